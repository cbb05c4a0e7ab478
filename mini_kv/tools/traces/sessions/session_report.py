"""The result of a session in words: a row per turn, the blocks, the breaks, the waterfall, the pool."""

from collections.abc import Sequence

from mini_kv.tools.traces.sessions.analysis import Analysis, TurnRow
from mini_kv.tools.traces.sessions.breaks import Break
from mini_kv.tools.traces.sessions.session import Kind
from mini_kv.tools.traces.waterfall import Waterfall

_WIDTH = 40
"""Most signs of a row of blocks."""
_MOST_TEXT = 70
"""Letters of a text that are printed on request."""


def report(analysis: Analysis, *, weights: str = "characters", with_texts: bool = False) -> list[str]:
    """Return the lines of the report.

    Args:
        analysis: the result.
        weights: by what the tokens between two counts were divided.
        with_texts: print the beginning of each text where a prefix broke.
    """
    lines = [*_beginning(analysis, weights), "", *_table(analysis), "", *_drawing(analysis), "", *_breaks(analysis)]
    if with_texts:
        lines += ["", *_texts(analysis)]
    lines += ["", *_waterfall(analysis.waterfall)]
    if analysis.waterfall.setup.num_blocks is not None:
        lines += ["", *_pool(analysis)]
    return lines


def _beginning(analysis: Analysis, weights: str) -> list[str]:
    session = analysis.session
    subagents = len([name for name in session.conversations if name != "main"])
    lines = [
        f"{session.format_name}: {_number(len(session.turns), 'turn')}, {_number(subagents, 'subagent')}."
        " A turn is one call of the model.",
        f"Token positions are estimates: {weights}, scaled to the counts in the file.",
        f"About {analysis.hidden_tokens:,} tokens before the first text are not in the file: {unseen(analysis)}."
        " So what is said about texts is the least that changed.",
        "provider: tokens read from its cache, as it counted."
        f" hosted: predicted for a hosted cache, whose entries live {_seconds(analysis.ttls)} from the start of a turn."
        f" blocks: predicted for blocks of {analysis.block_size} tokens, without eviction, answers not cached.",
    ]
    return lines + [f"{_capital(note)}." for note in session.notes]


def unseen(analysis: Analysis) -> str:
    """Return what the tokens before the first text are."""
    kinds = {part.kind for part in analysis.session.turns[0].parts}
    if Kind.SYSTEM in kinds:
        return "the agent's own tools, and what else it sends first"
    return "the system prompt and other tools" if Kind.TOOL in kinds else "the system prompt and the tools"


def _seconds(numbers: Sequence[int]) -> str:
    return " or ".join(f"{number:,} s" for number in numbers)


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _table(analysis: Analysis) -> list[str]:
    """Return a line per turn."""
    has_pool = analysis.waterfall.setup.num_blocks is not None
    pool = f" {'in pool':>10}" if has_pool else ""
    lines = [f"turn {'pause':>9} {'tokens in':>10} {'provider':>10} {'hosted':>10} {'blocks':>10}{pool}  what broke"]
    for row in analysis.rows:
        pool = "" if not has_pool else f" {'refused' if row.pool is None else format(row.pool, ','):>10}"
        lines.append(
            f"{row.turn:>4} {_duration(row.pause):>9} {row.tokens:>10,} {row.cached:>10,} {row.hosted:>10,}"
            f" {row.blocks:>10,}{pool}  {_remark(row)}".rstrip()
        )
    return lines


def _remark(row: TurnRow) -> str:
    who = "" if row.conversation == "main" else f"{row.conversation}: "
    if who and row.pause is None:
        return f"{who}another conversation, not a break"
    if row.broke is None:
        return f"{who}{row.note}".removesuffix(": ")
    return f"{who}{row.broke.name}, at token {row.broke.token:,}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _drawing(analysis: Analysis) -> list[str]:
    """Return a row of blocks per turn."""
    size = analysis.block_size
    most = max(row.tokens for row in analysis.rows)
    per_sign = max(-(-most // size // _WIDTH), 1)
    blocks = "one block" if per_sign == 1 else f"{per_sign:,} blocks"
    lines = [
        f"One sign is {blocks} of {size} tokens."
        " #: the provider read it from its cache. x: computed again, the turn before had it. +: new.",
        "",
    ]
    for row in analysis.rows:
        ends = [_signs(count, size * per_sign) for count in (row.cached, row.cached + row.again, row.tokens)]
        signs = "#" * ends[0] + "x" * (ends[1] - ends[0]) + "+" * (ends[2] - ends[1])
        lines.append(f"{row.turn:>4} [{signs}]")
    return lines


def _signs(num_tokens: int, per_sign: int) -> int:
    return -(-num_tokens // per_sign)


def _breaks(analysis: Analysis) -> list[str]:
    """Return a line per break, or that there is none."""
    broken = [(row, row.broke) for row in analysis.rows if row.broke is not None]
    if not broken:
        has_notes = any(row.note and row.pause is not None for row in analysis.rows)
        as_predicted = "" if has_notes or not analysis.session.has_cached else ", and the provider read it as predicted"
        return [f"No prefix broke: each prompt continues the one before{as_predicted}."]
    lines = []
    for row, broke in broken:
        lines.append(f"Turn {row.turn}, token {broke.token:,}, {_place(broke)}: {broke.name}.")
        lines.append(f"  {_capital(broke.sentence)}.{_again(broke)}")
    return lines


def _again(broke: Break) -> str:
    return f" The provider computed {broke.again:,} tokens again that the turn before had." if broke.again else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _place(broke: Break) -> str:
    if broke.message == 0:
        return "before the first text"
    return "at the end" if broke.kind == "end" else f"in text {broke.message} ({broke.kind})"


def _texts(analysis: Analysis) -> list[str]:
    """Return the beginning of each text where a prefix broke."""
    lines = []
    for row, layout in zip(analysis.rows, analysis.layouts, strict=True):
        if row.broke is not None and 0 < row.broke.message < len(layout.spans):
            text = " ".join(layout.spans[row.broke.message].part.text[: 4 * _MOST_TEXT].split())
            text = "".join(letter for letter in text if letter.isprintable())
            lines.append(f"Turn {row.turn}, text {row.broke.message}: {text[:_MOST_TEXT]}")
    return lines


def _waterfall(waterfall: Waterfall) -> list[str]:
    total = waterfall.tokens("prompt")
    width = max(len(row.label) for row in waterfall.rows) + 2
    lines = [f"All turns in blocks of {waterfall.setup.hash_block_size} tokens:", ""]
    for row in waterfall.rows:
        if row.is_total or row.tokens:
            label = row.label if row.is_total else f"  - {row.label}"
            lines.append(f"{label:<{width + 4}}{row.tokens:>15,} {100 * row.tokens / total:7.2f} %")
    return lines


def _pool(analysis: Analysis) -> list[str]:
    """Return what the pauses cost in the pool and at the provider."""
    num_blocks = analysis.waterfall.setup.num_blocks
    lines = [f"A pool of {num_blocks:,} blocks (one is the null block), LRU, for this session alone."]
    lines.append("The load of other sessions is not in the file. A pause alone evicts nothing from a pool.")
    lines += [f"{_capital(cause.sentence)}." for cause in analysis.causes]
    paused = [row for row in analysis.rows if row.pause is not None and row.pause > row.ttl]
    for row in paused:
        lines.append(f"After {_duration(row.pause)}, turn {row.turn}: {_cost(row, num_blocks or 0)}")
    if not paused:
        lines.append(f"No pause was longer than {_seconds(analysis.ttls)}.")
    return lines


def _cost(row: TurnRow, num_blocks: int) -> str:
    if row.pool is None:
        return f"the prompt is larger than the pool. The provider computed {row.again:,} old tokens again."
    cost = f"the pool computed {row.blocks - row.pool:,} old tokens again, the provider {row.again:,}."
    room = num_blocks - (row.needed or 0)
    return cost if room < 0 else f"{cost} Other sessions may fill {room:,} blocks before it finds less."
