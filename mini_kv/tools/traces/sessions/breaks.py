"""The causes of broken prefixes, by name, each with the turn and the token.

Some causes are visible in the texts: the prompt does not continue the prompt before. Others are not in the file. Then
the texts continue, and the provider read fewer tokens than before.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.tools.traces.prefix_overlap import LEAST_MATCH, ShiftedMatch, common_length, find_shifted_match
from mini_kv.tools.traces.readers.token_trace import TokenRequest
from mini_kv.tools.traces.sessions.hosted import Prediction
from mini_kv.tools.traces.sessions.layout import Layout, Span, slack
from mini_kv.tools.traces.sessions.session import Kind, Turn

(
    COMPACTION,
    MODEL,
    CLEARED,
    SHORTER,
    THINKING_REMOVED,
    TIMESTAMP,
    TOOL_ORDER,
    SYSTEM_PROMPT,
    NEW,
    REWIND,
    EXPIRED,
    PROBABLY_EXPIRED,
    LOOKBACK,
    BEFORE,
    UNKNOWN,
) = (
    "compaction",
    "model",
    "results-cleared",
    "shorter",
    "thinking-removed",
    "timestamp",
    "tool-order",
    "system-prompt",
    "new-conversation",
    "rewind",
    "expired",
    "probably-expired",
    "lookback",
    "before-the-texts",
    "unknown",
)
FROM_COUNTS = (MODEL, EXPIRED, PROBABLY_EXPIRED, LOOKBACK, BEFORE, UNKNOWN)
"""The causes that the provider's counts show, and the texts do not."""
SENTENCES = {
    COMPACTION: "a compaction replaced the history by a summary",
    MODEL: "the model changed, and models share no entries",
    CLEARED: "old tool results were cleared from the history",
    SHORTER: "the prompt is shorter although the texts in the file continue: older texts were left out of it",
    THINKING_REMOVED: "the provider's count fits if the old thinking was removed from the history",
    TIMESTAMP: "a value changed (a timestamp or a counter) and the text after it is the same: put it last",
    TOOL_ORDER: "the same tools came in another order: sort them",
    SYSTEM_PROMPT: "the system prompt or a tool changed",
    NEW: "a new conversation begins: its prompt has none of the texts before",
    REWIND: "a message of the history was changed or removed, as after going back in the conversation",
    EXPIRED: "the pause was longer than the time to live, and the provider's count fell: the entry had expired",
    PROBABLY_EXPIRED: "the pause was nearly as long as the time to live, and the provider's count fell: the entry had"
    " probably expired",
    LOOKBACK: "more than 20 texts were added at once, and the provider looks for an entry among the last 20 only",
    BEFORE: "the provider read {token:,} tokens although the texts in the file continue: either something before them"
    " changed (system prompt, tools, or a setting), or the provider no longer had the entry, or did not find it",
    UNKNOWN: "the provider read {token:,} tokens although the texts in the file continue: the file does not say why",
}
_REASONS = {
    "system_changed": SYSTEM_PROMPT,
    "tools_changed": SYSTEM_PROMPT,
    "messages_changed": REWIND,
    "model_changed": MODEL,
}
"""The causes that a provider itself names."""
_NEARLY = 0.9
"""From this part of the time to live on, an entry may have expired: the clocks differ by seconds."""
_LOOKS_BACK = 20
"""Content blocks before a breakpoint in which Anthropic's cache looks for an entry. See `hosted` for the source."""
_MOST_CHARACTERS = 20_000
"""Of two texts that differ, so much is compared after the difference."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a prompt stopped being equal to the one before, or where the provider stopped reading."""

    name: str
    token: int
    """The first token that was not found, counted from 0."""
    message: int
    """The text with this token, counted from 1. 0: before the first text of the file."""
    kind: str
    """The kind of this text."""
    again: int
    """Tokens that the prompt before would have given, less those that the provider read."""

    @property
    def sentence(self) -> str:
        """The cause in words."""
        return SENTENCES[self.name].format(token=self.token)


def find_break(turn: Turn, layout: Layout, before: Turn, layout_before: Layout, prediction: Prediction) -> Break | None:
    """Return the break between two turns of a conversation, if there is one."""
    name = _visible(turn, layout, before, layout_before)
    given = layout.common
    if name is not None:
        given = max(given, _num_same(layout, layout_before))
        token = max(layout.common, turn.num_cached) if name == THINKING_REMOVED else layout.common
    else:
        name = _hidden(turn, layout, before, prediction)
        if name is None:
            return None
        token = 0 if name == MODEL else turn.num_cached
    number, kind = layout.message_at(token)
    return Break(name, token, number, kind, max(given - turn.num_cached, 0))


def _num_same(layout: Layout, before: Layout) -> int:
    """Return the tokens whose text is in the prompt before, at any place."""
    texts = Counter(span.part for span in before.spans)
    num_same = 0
    for place, span in enumerate(layout.spans):
        if texts[span.part]:
            texts[span.part] -= 1
            num_same += span.num_tokens
        elif place == layout.place < len(before.spans):
            num_same += _num_same_in_text(span, before.spans[layout.place])
    return num_same


def _num_same_in_text(span: Span, before: Span) -> int:
    """Return the tokens before and after the letters that differ. A short text after them may be equal by chance."""
    if span.part.kind != before.part.kind or not before.step:
        return 0
    texts = before.part.text, span.part.text
    start = common_length(*texts)
    end = min(common_length(texts[0][::-1], texts[1][::-1]), min(map(len, texts)) - start)
    num_changed = len(texts[0]) - start - (end if end >= LEAST_MATCH else 0)
    return min(before.num_tokens - round(num_changed / before.step), span.num_tokens)


def _visible(turn: Turn, layout: Layout, before: Turn, layout_before: Layout) -> str | None:
    """Return the cause that the texts show."""
    if layout.common > layout_before.num_tokens - LEAST_MATCH:
        return None
    if turn.compaction != before.compaction:
        return COMPACTION
    if layout.place == len(layout_before.spans):  # the texts continue
        if turn.cleared != before.cleared:
            return CLEARED
        return SHORTER if layout.is_shorter else None
    kind = layout_before.spans[layout.place].part.kind
    if layout.dropped > layout_before.dropped and kind == Kind.THINKING:
        return THINKING_REMOVED
    behind = _behind(layout_before.spans[layout.place :], layout.spans[layout.place :])
    if behind.order and kind == Kind.TOOL:
        return TOOL_ORDER
    if behind.value:
        return TIMESTAMP
    if kind in (Kind.SYSTEM, Kind.TOOL):
        return SYSTEM_PROMPT
    return REWIND if set(turn.parts) & set(before.parts) else NEW


def _hidden(turn: Turn, layout: Layout, before: Turn, prediction: Prediction) -> str | None:
    """Return the cause of a count that fell although the texts continue."""
    longest = max(prediction.num_expired, prediction.num_other_model, prediction.num_cached)
    if turn.num_cached >= longest - slack(longest):
        return None
    if turn.model != before.model:
        return MODEL
    if turn.cleared != before.cleared:
        return CLEARED
    if turn.reason in _REASONS:
        return _REASONS[turn.reason]
    if prediction.num_cached < longest - slack(longest):
        return EXPIRED
    if _NEARLY * before.ttl <= (turn.started - before.started) / 1000 <= before.ttl:
        return PROBABLY_EXPIRED
    if turn.num_written is not None and len(turn.parts) - len(before.parts) > _LOOKS_BACK:
        return LOOKBACK
    return BEFORE if turn.num_cached < layout.head else UNKNOWN


def _behind(spans: Sequence[Span], others: Sequence[Span]) -> ShiftedMatch:
    """Return the characters that both texts have after the first difference: after a value, or in another order."""
    texts = ["".join(span.part.text for span in some) for some in (spans, others)]
    start = max(common_length(*texts) - LEAST_MATCH, 0)
    cut = [tuple(map(ord, text[start : start + _MOST_CHARACTERS])) for text in texts]
    if not all(cut):
        return ShiftedMatch()
    mine, theirs = (TokenRequest(0, letters, 0) for letters in cut)
    return find_shifted_match(theirs, mine, 0)
