"""The token at which each text of a prompt begins, scaled to the provider's own counts.

A file has the texts, but neither the provider's tokenizer nor the system prompt. It does have each prompt's length:

    turn 1    | not in the file | user                            |             12,000 tokens
    turn 2    | not in the file | user | answer | tool result     |             12,900 tokens
                                         |--------- 900 --------|

So the texts that are new in turn 2 have 900 tokens. They are divided in proportion to the texts' weights: characters,
or the tokens of another tokenizer. The usual tokens per character, over all turns, divide the first prompt, and replace
a number that is far from it: then there are tokens that the file lacks, or texts that were not sent.

Old thinking may be such a text. A provider can remove it when the user writes again. It was removed if the provider
read only the tokens up to an answer that has thinking. It was also removed if the counts fit much better without it,
and the provider read no more than the tokens before it. Such a removal is only looked for if the model is the same, the
texts continue, and no old tool result was cleared.

If a prompt is shorter although it continues the texts of the one before, older texts were left out. Then only the
tokens that the provider read are known to be the same, and the rest is divided again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from statistics import median
from typing import NamedTuple

from mini_kv.tools.traces.prefix_overlap import LEAST_MATCH, common_length
from mini_kv.tools.traces.sessions.session import Kind, Part, Session, Turn

Weigh = Callable[[str], float]
"""Returns the weight of a text."""
_UNSEEN = "not in the file"
"""The kind of tokens whose text is not in the file."""
_USUAL = 0.25
"""Tokens per character if the file has too few turns to tell."""
_FAR = 4.0
"""A number of tokens per weight that is this many times the usual one, or a part of it, is not believed."""
NEAR = 2.0
"""Up to this factor, thinking is not looked at."""
LEAST_TOKENS, LEAST_SHARE = 256, 0.05
"""A difference between two counts is explained from so many tokens on, and from this share."""
STEP = 128
"""Tokens between two ends that OpenAI's cache finds."""
_SAME_START = 16
"""Characters with which a changed text must begin like the text before it, to be called the same text."""


def slack(num_tokens: int) -> float:
    """Return the difference to this number of tokens that is not explained."""
    return max(LEAST_TOKENS, LEAST_SHARE * num_tokens)


class Span(NamedTuple):
    """A part of a prompt, and its tokens."""

    part: Part
    num_tokens: int
    step: float
    """Characters per token. 0: the text is not known, or too short."""

    def piece(self, start: int, end: int) -> str:
        """Return what identifies these tokens of the part."""
        if not self.step:
            return f"{self.part.text} {start} {end}"
        return self.part.text[int(start * self.step) : int(end * self.step)]


@dataclass(frozen=True, slots=True)
class Layout:
    """The spans of a turn's prompt. The first one is what the file lacks at the beginning."""

    spans: Sequence[Span]
    common: int
    """Leading tokens that equal those of the conversation's turn before."""
    place: int
    """Index of the first span that differs from that turn's."""
    dropped: int = 0
    """Thinking before this index of the turn's parts was removed."""
    is_shorter: bool = False
    """Whether the prompt has too few tokens for the texts that it shares with the turn before."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all spans."""
        return sum(span.num_tokens for span in self.spans)

    @property
    def head(self) -> int:
        """Tokens before the first text of the file."""
        return self.spans[0].num_tokens

    def message_at(self, token: int) -> tuple[int, str]:
        """Return the number and the kind of the text with this token. 0: it is before the texts of the file."""
        for index, end in enumerate(accumulate(span.num_tokens for span in self.spans)):
            if token < end:
                return index, self.spans[index].part.kind
        return len(self.spans), "end"


def lay_out(session: Session, weigh: Weigh = len) -> list[Layout]:
    """Return the layout of each turn."""
    weights = _Weights(weigh)
    usual = _usual_rate(session, weights)
    last: dict[int, tuple[Turn, Layout]] = {}
    layouts = []
    for turn in session.turns:
        before = last.get(turn.conversation)
        if before is None:
            layout = _first(turn, weights, usual, session.conversations[turn.conversation])
        else:
            layout = _next(turn, *before, weights, usual)
        last[turn.conversation] = turn, layout
        layouts.append(layout)
    return layouts


class _Weights:
    """The weights of texts, each computed once."""

    def __init__(self, weigh: Weigh) -> None:
        self._weigh = weigh
        self._known: dict[str, float] = {}

    def of(self, part: Part) -> float:
        """Return the weight of a part."""
        if part.text not in self._known:
            self._known[part.text] = float(self._weigh(part.text))
        return self._known[part.text]

    def sum(self, parts: Sequence[Part]) -> float:
        """Return the weight of all parts."""
        return sum(map(self.of, parts))


def _usual_rate(session: Session, weights: _Weights) -> float:
    """Return the median of the tokens per weight, over the turns that only add texts."""
    last: dict[int, Turn] = {}
    rates = []
    for turn in session.turns:
        before = last.get(turn.conversation)
        last[turn.conversation] = turn
        if before is None or turn.parts[: len(before.parts)] != before.parts:
            continue
        weight = weights.sum(turn.parts[len(before.parts) :])
        if weight and turn.num_tokens > before.num_tokens:
            rates.append((turn.num_tokens - before.num_tokens) / weight)
    return median(rates) if rates else _USUAL


def _first(turn: Turn, weights: _Weights, usual: float, conversation: str) -> Layout:
    num_text = min(round(weights.sum(turn.parts) * usual), turn.num_tokens)
    head = Span(Part(_UNSEEN, f"head of {conversation}"), turn.num_tokens - num_text, 0.0)
    return Layout([head, *_divide(turn.parts, num_text, weights)], 0, 0)


def _next(turn: Turn, before: Turn, layout: Layout, weights: _Weights, usual: float) -> Layout:
    """Return the layout of a turn from that of the turn before. Old thinking is kept or removed."""
    kept = _arrange(turn, before, layout, layout.dropped, weights, usual)
    user = max((index for index, part in enumerate(turn.parts) if part.kind == Kind.USER), default=0)
    continues = kept.layout.place == len(layout.spans)
    is_other = turn.model != before.model or turn.cleared != before.cleared or not continues
    if is_other or not any(part.kind == Kind.THINKING for part in turn.parts[layout.dropped : user]):
        return kept.layout
    removed = _arrange(turn, before, layout, user, weights, usual)
    was_sent = removed.layout.common < kept.layout.common
    was_read = turn.num_cached > removed.layout.common
    unread = kept.layout.common - turn.num_cached
    if was_sent and unread <= LEAST_MATCH + (STEP if turn.num_written is None else 0):
        return kept.layout
    if was_sent and _answer_thinks(layout, turn.num_cached):
        return removed.layout
    return removed.layout if not (was_sent and was_read) and removed.is_much_better_than(kept) else kept.layout


def _answer_thinks(layout: Layout, token: int) -> bool:
    """Return whether the answer that begins at this token, or soon after it, contains thinking."""
    begin = 0
    for span in layout.spans:
        if begin >= token and span.part.kind == Kind.THINKING:
            return True
        if begin >= token and span.part.kind in (Kind.USER, Kind.RESULT):
            return False
        begin += span.num_tokens
    return False


@dataclass(frozen=True, slots=True)
class _Arranged:
    layout: Layout
    misfit: float | None
    """How far the tokens per weight of the new texts are from the usual, as a logarithm. `None`: no new texts."""

    def is_much_better_than(self, other: "_Arranged") -> bool:
        """Return whether the counts fit this layout, and not the other one."""
        if self.misfit is None or other.misfit is None:
            return False
        return self.misfit < log(NEAR) < other.misfit


def _arrange(turn: Turn, before: Turn, layout: Layout, dropped: int, weights: _Weights, usual: float) -> _Arranged:
    """Return the layout without the thinking before the index `dropped`."""
    parts = [part for index, part in enumerate(turn.parts) if index >= dropped or part.kind != Kind.THINKING]
    place = _first_difference(parts, layout.spans)
    same, new = list(layout.spans[:place]), parts[sum(span.part.kind != _UNSEEN for span in layout.spans[:place]) :]
    common = sum(span.num_tokens for span in same)
    known = {span.part: span for span in layout.spans[place:]}
    if place < len(layout.spans) and new:
        changed = _changed(layout.spans[place], new[0])
        if changed is not None:
            known[new[0]] = changed
        common += _common_tokens(layout.spans[place], new[0])
    fresh = [part for part in new if part not in known]
    rest = turn.num_tokens - sum(span.num_tokens for span in same)
    rest -= sum(known[part].num_tokens for part in new if part in known)
    weight = weights.sum(fresh)
    misfit = None if not weight else abs(log(max(rest, 0.001) / weight / usual))
    num_fresh = rest if misfit is not None and misfit < log(_FAR) else min(round(weight * usual), max(rest, 0))
    divided = iter(_divide(fresh, num_fresh, weights))
    spans = same + [known[part] if part in known else next(divided) for part in new]
    is_shorter = -rest > slack(before.num_tokens)
    if rest < 0:
        is_read = is_shorter or turn.cleared != before.cleared
        room = turn.num_tokens - round(weight * usual)
        common = min(common, turn.num_cached if is_read else max(room, turn.num_cached))
        spans = _shortened(spans, common, turn.num_tokens, weights)
    num_missing = turn.num_tokens - sum(span.num_tokens for span in spans)
    if num_missing:
        spans.append(Span(Part(_UNSEEN, f"end of line {turn.line}"), num_missing, 0.0))
    return _Arranged(Layout(spans, common, place, dropped, is_shorter), misfit)


def _shortened(spans: Sequence[Span], common: int, num_tokens: int, weights: _Weights) -> list[Span]:
    """Return the spans with fewer tokens. Those after the common tokens are divided again."""
    kept: list[Span] = []
    begin = 0
    for span in spans:
        if begin + span.num_tokens > common:
            break
        kept.append(span)
        begin += span.num_tokens
    rest = spans[len(kept) :]
    if rest and rest[0].part.kind == _UNSEEN:
        kept.append(Span(rest[0].part, common - begin, 0.0))
        begin = common
    return kept + _divide([span.part for span in rest if span.part.kind != _UNSEEN], num_tokens - begin, weights)


def _first_difference(parts: Sequence[Part], spans: Sequence[Span]) -> int:
    """Return the index of the first span that these parts do not continue. Tokens without a text are skipped."""
    index = 0
    for place, span in enumerate(spans):
        if span.part.kind == _UNSEEN:
            continue
        if index == len(parts) or parts[index] != span.part:
            return place
        index += 1
    return len(spans)


def _changed(span: Span, part: Part) -> Span | None:
    """Return the span of a text that begins like the one before, with as many characters per token."""
    if part.kind != span.part.kind or not span.step:
        return None
    if common_length(part.text, span.part.text) < _SAME_START:
        return None
    return Span(part, round(len(part.text) / span.step), span.step)


def _common_tokens(span: Span, part: Part) -> int:
    """Return the tokens with which both texts begin."""
    if part.kind != span.part.kind or not span.step:
        return 0
    return min(int(common_length(span.part.text, part.text) / span.step), span.num_tokens)


def _divide(parts: Sequence[Part], num_tokens: int, weights: _Weights) -> list[Span]:
    """Divide the tokens among the parts, in proportion to their weights."""
    total = weights.sum(parts)
    ends = [round(num_tokens * end / total) if total else 0 for end in accumulate(map(weights.of, parts))]
    spans = []
    for part, start, end in zip(parts, [0, *ends], ends, strict=False):
        spans.append(Span(part, end - start, len(part.text) / (end - start) if end > start else 0.0))
    return spans
