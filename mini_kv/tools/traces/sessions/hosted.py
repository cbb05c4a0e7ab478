"""A model of a provider's cache: entries that end at breakpoints, and expire.

    turn 1    | system prompt, tools | user |                       entries end at 9,000 and at 12,000 tokens
    turn 2    | system prompt, tools | user | answer | result |     reads the entry of 12,000, writes one of 12,900
              ^ 0                    ^ 9,000 ^ 12,000         ^ 12,900

    breakpoints     a prompt is found only up to the end of an entry. Claude Code ends an entry after the system prompt
                    and one at the end of each prompt. The counts give the end of the second one: read + written
    steps           OpenAI's entries can be found in part, in steps of 128 tokens, from 1,024 tokens on
    time to live    counted from the start of the last turn that used the entry
    model           models share no entries

Sources: platform.claude.com/docs/en/build-with-claude/prompt-caching, code.claude.com/docs/en/prompt-caching and
developers.openai.com/api/docs/guides/prompt-caching, read in 2026. Not modelled: that a provider may drop an entry
early, send a request to a machine without it, or look back over 20 content blocks only. `breaks` names the last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mini_kv.tools.traces.sessions.layout import STEP, Layout
from mini_kv.tools.traces.sessions.session import Session, Turn

_SHORTEST = 1024
"""The shortest prefix that OpenAI's cache finds."""


@dataclass(slots=True)
class _Entry:
    """A prefix in the cache."""

    end: int
    """Its number of tokens."""
    model: str
    ttl: int
    """Seconds that it lives."""
    used: int
    """Start of the last turn that used it, in ms."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model of the cache finds for a turn."""

    num_cached: int
    num_expired: int
    """Tokens that it would find if no entry expired."""
    num_other_model: int
    """Tokens that it would find if models shared entries."""


def predict(session: Session, layouts: Sequence[Layout]) -> list[Prediction]:
    """Return the prediction for each turn."""
    has_steps = session.format_name == "codex"
    entries: dict[int, list[_Entry]] = {}
    predictions = []
    for turn, layout in zip(session.turns, layouts, strict=True):
        own = _still_equal(entries.get(turn.conversation, []), layout.common, can_be_part=has_steps)
        found = [min(entry.end, turn.num_tokens - 1) for entry in own]
        same = [entry.model == turn.model for entry in own]
        fresh = [turn.started - entry.used <= 1000 * entry.ttl for entry in own]
        longest = [0, 0, 0]
        for end, is_same, is_fresh in zip(found, same, fresh, strict=True):
            end = _in_steps(end) if has_steps else end
            for index, counts in enumerate((is_same and is_fresh, is_same, is_fresh)):
                longest[index] = max(longest[index], end if counts else 0)
        predictions.append(Prediction(*longest))
        for entry, is_same, is_fresh in zip(own, same, fresh, strict=True):
            if is_same and is_fresh and entry.end <= longest[0]:
                entry.used = turn.started
        own += [_Entry(end, turn.model, turn.ttl, turn.started) for end in _ends(turn, layout)]
        entries[turn.conversation] = own
    return predictions


def _still_equal(entries: Sequence[_Entry], common: int, *, can_be_part: bool) -> list[_Entry]:
    """Return the entries whose tokens still begin the prompt, cut to the common tokens where that is possible."""
    if can_be_part:
        return [replace(entry, end=min(entry.end, common)) for entry in entries]
    return [entry for entry in entries if entry.end <= common]


def _ends(turn: Turn, layout: Layout) -> list[int]:
    """Return where the entries end that a turn leaves behind."""
    if turn.num_written is None:
        return [turn.num_tokens]
    end = turn.num_cached + turn.num_written
    return [end for end in {layout.head, end} if 0 < end <= turn.num_cached + turn.num_written]


def _in_steps(end: int) -> int:
    return end // STEP * STEP if end >= _SHORTEST else 0
