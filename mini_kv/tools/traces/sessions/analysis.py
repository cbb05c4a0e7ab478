"""A session's turns held against two models of a cache, in one result.

hosted    a provider's cache: entries that end at breakpoints, and expire (`hosted`)
blocks    the engine's cache: blocks in a pool (`blocks`). `make_waterfall` runs them as for any trace
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mini_kv.tools.traces.causes import Cause, find_causes
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.runners import Setup, full_attention
from mini_kv.tools.traces.sessions.blocks import as_trace, blocks_needed
from mini_kv.tools.traces.sessions.breaks import FROM_COUNTS, Break, find_break
from mini_kv.tools.traces.sessions.hosted import Prediction, predict
from mini_kv.tools.traces.sessions.layout import Layout, Weigh, lay_out, slack
from mini_kv.tools.traces.sessions.session import Session, Turn
from mini_kv.tools.traces.waterfall import Row, Waterfall, make_waterfall

BLOCK_SIZE = 16
FIRST = "first turn"
LABELS = {
    "never": "new, or less than a block",
    "server": "fewer at the provider",
    "observed": "tokens that the provider read",
}
"""Labels of the waterfall's rows that are others here, by the row's name."""
MORE = "more at the provider"
_NO_COUNTS = "the provider counted no cached token at all, so only causes that the texts show are named"


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn, with what each cache found."""

    turn: int
    """Counted from 1."""
    conversation: str
    line: int
    ttl: int
    """Seconds that the entries live which this turn wrote."""
    pause: float | None
    """Seconds since the conversation's turn before began. `None`: there was none."""
    tokens: int
    cached: int
    """As the provider counted."""
    hosted: int
    """As the model of a hosted cache predicts."""
    blocks: int
    """As the model of blocks predicts, if none is ever evicted."""
    pool: int | None
    """The same in a pool of `num_blocks`. `None`: there is no such pool, or the prompt is larger."""
    needed: int | None
    """The smallest pool that finds as much as one that evicts nothing. `None`: no pool was asked for."""
    common: int
    """Tokens of the prompt that equal those of the conversation's turn before."""
    broke: Break | None
    again: int
    """Tokens that the conversation's turn before would have given, less those that the provider read."""
    note: str
    """Why the provider's count differs from the prediction, if it does and nothing broke."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result for a session."""

    session: Session
    layouts: Sequence[Layout]
    rows: Sequence[TurnRow]
    block_size: int
    waterfall: Waterfall
    """Its rows are `_told_rows`."""
    causes: Sequence[Cause]
    """Causes of losses in the pool."""

    @property
    def ttls(self) -> list[int]:
        """Seconds that entries live. Subagents may have others than the main conversation."""
        return sorted({turn.ttl for turn in self.session.turns})

    @property
    def hidden_tokens(self) -> int:
        """Tokens of the first prompt whose texts are not in the file."""
        return self.layouts[0].head

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name. No text of the file is included. The names do not change between versions."""
        return {
            "format": self.session.format_name,
            "conversations": list(self.session.conversations),
            "ttls": self.ttls,
            "block_size": self.block_size,
            "num_blocks": self.waterfall.setup.num_blocks,
            "hidden_tokens": self.hidden_tokens,
            "turns": [_row_as_dict(row) for row in self.rows],
            "rows": [row._asdict() for row in self.waterfall.rows],
            "causes": [cause._asdict() for cause in self.causes],
            "notes": list(self.session.notes),
        }


def _row_as_dict(row: TurnRow) -> dict[str, Any]:
    result = asdict(row)
    if row.broke is not None:
        result["broke"]["sentence"] = row.broke.sentence
    return result


def analyse(
    session: Session,
    *,
    block_size: int = BLOCK_SIZE,
    num_blocks: int | None = None,
    ttl: int | None = None,
    weigh: Weigh = len,
) -> Analysis:
    """Return the result for a session.

    Args:
        session: at least one turn.
        block_size: tokens per block.
        num_blocks: size of the pool, the null block included. `None`: nothing is ever evicted.
        ttl: seconds that a provider's entry lives. `None`: what the file says, or five minutes.
        weigh: returns the weight of a text, such as its number of tokens by some tokenizer.

    Raises `ConfigError` for a block size below 1 or a pool below 2 blocks.
    """
    if ttl is not None:
        session = replace(session, turns=[replace(turn, ttl=ttl) for turn in session.turns])
    layouts = lay_out(session, weigh)
    trace = as_trace(session, layouts, block_size)
    setup = Setup(full_attention(block_size), num_blocks)
    prompts = make_prompts(trace, block_size)
    read = [turn.num_cached for turn in session.turns]
    waterfall = make_waterfall(trace, prompts, setup, observed=read if num_blocks is None else None)
    causes = find_causes(waterfall, prompts) if num_blocks is not None else []
    needed = blocks_needed(prompts, block_size) if num_blocks is not None else None
    predictions = predict(session, layouts)
    rows: list[TurnRow] = []
    last: dict[int, int] = {}
    for index, turn in enumerate(session.turns):
        before = last.get(turn.conversation)
        last[turn.conversation] = index
        row = _row(index, before, session, layouts, predictions, waterfall)
        rows.append(row if needed is None else replace(row, needed=needed[index]))
    waterfall = replace(waterfall, rows=_told_rows(waterfall, rows))
    if not session.has_cached:
        session = replace(session, notes=[*session.notes, _NO_COUNTS])
        rows = [_without_counts(row) for row in rows]
    return Analysis(session, layouts, rows, block_size, waterfall, causes)


def _told_rows(waterfall: Waterfall, turns: Sequence[TurnRow]) -> list[Row]:
    """Return the waterfall's rows in a session's words. What a break cost has a row of its own.

    The waterfall sees blocks, and each block after a break is new to it.
    """
    size = waterfall.setup.hash_block_size
    lost = 0
    for turn, shared in zip(turns, waterfall.shared, strict=True):
        given = turn.cached + turn.again if turn.again else turn.common
        lost += max(given // size * size - shared.tokens, 0)
    rows = []
    for row in waterfall.rows:
        is_more = row.name == "server" and row.tokens < 0
        row = row._replace(label=MORE if is_more else LABELS.get(row.name, row.label))
        if row.name == "never":
            rows.append(row._replace(tokens=row.tokens - lost))
            row = Row("after-break", "after a break, although the turn before had them", lost)
        rows.append(row)
    return rows


def _without_counts(row: TurnRow) -> TurnRow:
    """Return the row with what the texts alone show."""
    is_hidden = row.broke is not None and row.broke.name in FROM_COUNTS
    return replace(row, broke=None if is_hidden else row.broke, note=row.note if row.pause is None else "")


def _row(
    index: int,
    before: int | None,
    session: Session,
    layouts: Sequence[Layout],
    predictions: Sequence[Prediction],
    waterfall: Waterfall,
) -> TurnRow:
    turn, layout, prediction = session.turns[index], layouts[index], predictions[index]
    pause, broke = None, None
    if before is not None:
        pause = (turn.started - session.turns[before].started) / 1000
        broke = find_break(turn, layout, session.turns[before], layouts[before], prediction)
    return TurnRow(
        turn=index + 1,
        conversation=session.conversations[turn.conversation],
        line=turn.line,
        ttl=turn.ttl,
        pause=pause,
        tokens=turn.num_tokens,
        cached=turn.num_cached,
        hosted=prediction.num_cached,
        blocks=waterfall.unlimited[index],
        pool=waterfall.hits[index] if waterfall.setup.num_blocks is not None else None,
        needed=None,
        common=layout.common,
        broke=broke,
        again=broke.again if broke is not None else max(layout.common - turn.num_cached, 0),
        note=_note(turn, prediction, pause) if broke is None else "",
    )


def _note(turn: Turn, prediction: Prediction, pause: float | None) -> str:
    """Return why the provider's count differs from the prediction."""
    if pause is None:
        return f"{FIRST}, and another session left an entry with the same beginning" if turn.num_cached else FIRST
    if abs(turn.num_cached - prediction.num_cached) <= slack(prediction.num_cached):
        return ""
    if turn.num_cached < prediction.num_cached:
        return "the provider read less than predicted"
    if pause > turn.ttl:
        return "the entry lived longer than the time to live"
    return "the provider read more than the file's texts explain"
