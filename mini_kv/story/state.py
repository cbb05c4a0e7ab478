"""A story's states from its JSON: the state after each step, computed as the figure computes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mini_kv.story.story_json import COUNTS, Data

Tables = dict[str, list[list[int]]]


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is drawn for one step. Lists are by block id."""

    ref: list[int]
    name: list[str]
    """Shortened block hashes, empty for a block that is not cached."""
    free: list[int]
    used: list[bool]
    words: list[list[str]]
    writer: list[str]
    """The request whose step computed the block's KV, or an empty string."""
    hue: list[int]
    """Number of the prompt beginning that the block belongs to, from 1. 0: unknown."""
    tables: Tables = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """The requests, in the order of their rows."""
    tok: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    tiers: dict[str, list[str]] = field(default_factory=dict)
    """The shortened block hashes that each tier keeps."""


def states(data: Data) -> list[State]:
    """Return the state before the first step, and the one after each. Their events are those in the steps."""
    size = data["num_blocks"]
    empty = State(
        [0] * size, [""] * size, [*range(1, size)], [False] * size, [[] for _ in range(size)], [""] * size, [0] * size
    )
    beginnings: dict[str, int] = {}
    found = [_after(empty, data.get("start", {}), beginnings)]
    for step in data["steps"]:
        found.append(_after(found[-1], step, beginnings))
    return found


def ids(text: str) -> list[int]:
    """Return the ids in a text of runs.

    >>> ids("1..3 9 7..5")
    [1, 2, 3, 9, 7, 6, 5]
    """
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("..")
        start, end = int(first), int(last or first)
        found += range(start, end + 1) if end >= start else range(start, end - 1, -1)
    return found


def _after(before: State, step: Data, beginnings: dict[str, int]) -> State:
    parts = (part.partition(" ") for part in step.get("events", "").split(", ") if part)
    events = [(kind, block_id) for kind, _, run in parts for block_id in ids(run)]
    tables = {name: table for name, table in before.tables.items() if step.get("tables", {}).get(name, ()) is not None}
    for name, groups in step.get("tables", {}).items():
        if groups is not None:
            tables[name] = [ids(group) for group in groups]
    after = replace(
        before,
        ref=[*before.ref],
        name=[*before.name],
        used=[*before.used],
        words=[*before.words],
        writer=[*before.writer],
        hue=[*before.hue],
        free=ids(step["free"]) if "free" in step else before.free,
        tables=tables,
        order=_row_order(before.order, tables),
        tok=before.tok | step.get("tok", {}),
        scheduled=step.get("scheduled", {}),
        events=events,
        tiers=before.tiers | {tier: names.split() for tier, names in step.get("tiers", {}).items()},
    )
    _fold(after, step, events)
    for kind, block_id in events:
        if kind == "allocated":
            after.writer[block_id] = _holder(after, block_id)
    _colour(after, beginnings)
    return after


def _fold(state: State, step: Data, events: Sequence[tuple[str, int]]) -> None:
    """Apply the events to the state's lists, then the step's explicit counts, hashes and words."""
    names = iter(step.get("names", "").split())
    for kind, block_id in events:
        state.used[block_id] = True
        state.ref[block_id] += COUNTS.get(kind, 0)  # type: ignore[call-overload]
        if kind == "cached":
            state.name[block_id] = next(names)
        if kind in ("evicted", "uncached"):
            state.name[block_id] = ""
        if kind == "evicted":
            state.words[block_id] = []
        if kind in ("evicted", "allocated"):
            state.hue[block_id] = 0
    for count, run in step.get("ref", {}).items():
        for block_id in ids(run):
            state.ref[block_id] = int(count)
    for block_id, name in step.get("name", {}).items():
        state.name[int(block_id)] = name
    for block_id, words in step.get("words", {}).items():
        state.words[int(block_id)] = words


def _holder(state: State, block_id: int) -> str:
    """Return the first request with the block in a table, or an empty string."""
    return next((name for name in state.order if any(block_id in table for table in state.tables[name])), "")


def _colour(state: State, beginnings: dict[str, int]) -> None:
    """Number the blocks by the first block of their row: prompts that begin alike have one number."""
    for table in (table for groups in state.tables.values() for table in groups):
        held = [block_id for block_id in table if block_id > 0]
        if not held:
            continue
        first, name = held[0], state.name[held[0]]
        if name and table[0] == first and not state.hue[first]:
            state.hue[first] = beginnings.setdefault(name, len(beginnings) + 1)
        for block_id in held:
            state.hue[block_id] = state.hue[block_id] or state.hue[first]


def _row_order(before: Sequence[str], tables: Tables) -> list[str]:
    """Return the order of the rows. A new row follows the last one of those with the longest shared prefix."""
    order = [name for name in before if name in tables]
    for name, table in tables.items():
        if name in order:
            continue
        shared = [_common(table, tables[other]) for other in order]
        most = max(shared, default=0)
        order.insert(len(shared) - shared[::-1].index(most) if most else len(order), name)
    return order


def _common(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int:
    """Return the number of leading blocks that two requests share, in the group with the most."""
    most = 0
    for a, b in zip(one, other, strict=False):
        alike = 0
        while alike < min(len(a), len(b)) and a[alike] == b[alike]:
            alike += 1
        if any(a[:alike]):
            most = max(most, alike)
    return most
