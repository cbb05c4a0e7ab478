"""A story as JSON, the input of the figure `<kv-story>`. Only differences are written, so that sixty steps stay small.

    {"version": 1, "title": "...", "num_blocks": 11, "block_size": 4, "steps": [...],
     "lang": "en",                            optional: the language of the interface; else the page's
     "ending": "...",                         optional: shown after the last step
     "groups": ["full", "window"],            optional: a heading per group
     "tiers": [{"id": "cpu", "name": "CPU", "capacity": 4}],      optional: shelves below the free queue
     "at": -1,                                optional: the step to open at; negative counts from the end
     "start": {...},                          optional: a step's state keys, if the story begins in the middle of a life
     "drawing": "A  [1x1#] ..."}              the last state in plain text, for readers without scripts

A step lists the differences after it. Ids are runs, "1..7 9 8", or arrays.

    "do": "prefill B", "say": "...", "lines": ["lookup B: hit 28", ...]     texts that are shown
    "events": "shared 1..7, allocated 9, cached 9"     block events, in the order in which the figure plays them
    "probes": [[0, "B", "1..7"]]              lookups: number of events before it, request, blocks that it found
    "names": "ab12"                           hashes, shortened, of the blocks that were cached, in the events' order
    "ref": {"2": "1..7", "1": "9"}            reference count -> blocks that have it now; overrides the events
    "name": {"9": "ab12", "8": ""}            block -> its hash in the index; "" if evicted; overrides the events
    "tables": {"B": ["1..7 9"], "A": null}    block tables, runs per group; null: the request has ended; 0: null block
    "words": {"9": ["shares", "a"]}           optional: the words of a block's tokens, shown on its card
    "free": "10 8"                            the free queue, head first
    "tok": {"B": 32}                          tokens that have a slot, so that a block can be seen filling
    "scheduled": {"B": 4}                     tokens computed in this step
    "prompts": {"B": ["shares", "a"]}         optional: the prompt of a request that is admitted with a part of it
    "waiting": ["C", ["D", "preempted"]]      the waiting requests, from here on
    "tiers": {"cpu": "ab12 77c0"}             the block hashes that a tier keeps, from here on
    Without "events" the figure finds them by comparing the two states.
    "predict": {"ask": "...", "choices": [{"text": "8", "if_true": "..."}, {"text": "1"}], "answer": 1}
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.frame import BlockView, Frame
from mini_kv.story.language import line_in
from mini_kv.story.story_text import id_runs, story
from mini_kv.story.text import draw_state
from mini_kv.story.traced_manager import Span, edges_of

VERSION = 1
_GROUP_DIGITS = 8
"""Hex digits at the end of a key that name its group."""

COUNTS = {
    EdgeKind.ALLOCATED: 1,
    EdgeKind.REVIVED: 1,
    EdgeKind.SHARED: 1,
    EdgeKind.UNSHARED: -1,
    EdgeKind.FREED: -1,
}
"""The change of the reference count by each kind of event."""

Data = dict[str, Any]


class StoryWriter:
    """Turns frames into a story, step by step. A live figure calls `data` after each step."""

    def __init__(
        self,
        title: str,
        num_blocks: int,
        block_size: int,
        *,
        start: Frame | None = None,
        words: Mapping[int, list[str]] | None = None,
        **head: Any,
    ) -> None:
        """Begin with an untouched pool, or with the state `start`.

        Args:
            title: of the story.
            num_blocks: the pool's size, the null block included.
            block_size: tokens per block.
            start: the state at the beginning, if the pool is not untouched.
            words: the words of the tokens in each block of `start`.
            head: further keys of the story, such as `groups` or `tiers`.
        """
        self.head = {"version": VERSION, "title": title, "num_blocks": num_blocks, "block_size": block_size, **head}
        self.steps: list[Data] = []
        self.words: dict[int, list[str]] = {}
        self.frame = Frame(tuple(BlockView(block_id) for block_id in range(num_blocks)), {}, [*range(1, num_blocks)])
        self.start: Data | None = None
        if start is not None:
            self.add_step(start, [], words)
            self.start = self.steps.pop()

    def add_step(
        self, frame: Frame, spans: Sequence[Span], words: Mapping[int, list[str]] | None = None, **told: Any
    ) -> None:
        """Add the state after these calls. `told`: further keys of the step, such as `do`, `say` or `waiting`.

        `words`: the words of the tokens in each block, by block id. `tiers`, if given: the kept keys per tier.
        """
        step = {name: value for name, value in told.items() if value not in (None, "")}
        step.setdefault("lines", story(spans))
        step |= _changed_blocks(self.frame.blocks, frame.blocks, spans)
        tables = _changed_tables(self.frame.tables, frame.tables)
        if tables:
            step["tables"] = tables
        if frame.free_order != self.frame.free_order:
            step["free"] = id_runs(frame.free_order)
        step |= _tokens(spans)
        written = {block_id: text for block_id, text in (words or {}).items() if self.words.get(block_id) != text}
        if written:
            step["words"] = {str(block_id): text for block_id, text in written.items()}
            self.words |= written
        self.steps.append(step)
        self.frame = frame

    def data(self) -> Data:
        """Return the story so far, in the language of its head.

        Hashes are cut to the fewest hex digits that keep them distinct, at least four.
        """
        lang = self.head.get("lang", "en")
        begun = [] if self.start is None else [self.start]
        short = _short_names({key for step in (*begun, *self.steps) for key in _keys(step)})
        steps = [_told_in(lang, _shortened(step, short)) for step in self.steps]
        start = {"start": _shortened(begun[0], short)} if begun else {}
        drawing = "\n".join(draw_state(self.frame, lang=lang))
        return {**self.head, **start, "steps": steps, "drawing": drawing}


def _told_in(lang: str, step: Data) -> Data:
    """Return the step with the engine's own words in this language."""
    told = {"do": line_in(lang, step["do"])} if "do" in step else {}
    return {**step, **told, "lines": [line_in(lang, line) for line in step["lines"]]}


def _changed_blocks(before: Sequence[BlockView], after: Sequence[BlockView], spans: Sequence[Span]) -> Data:
    """Return the events, and the counts and hashes that do not follow from them."""
    edges = edges_of(spans)
    runs = groupby(edges, key=lambda edge: edge.kind)
    changed: Data = {"events": ", ".join(f"{kind} {id_runs([edge.block_id for edge in run])}" for kind, run in runs)}
    probes = _probes(spans)
    if probes:
        changed["probes"] = probes
    cached = [edge.block_hash or "" for edge in edges if edge.kind is EdgeKind.CACHED]
    if cached:
        changed["names"] = cached
    return changed | _unexpected(_after(before, edges), after)


def _probes(spans: Sequence[Span]) -> list[list[Any]]:
    """Return the lookups of a step, each with the number of events before it and the blocks that it found."""
    probes, num_events = [], 0
    for span in spans:
        if span.call == "get_computed_blocks" and span.error is None:
            probes.append([num_events, span.request_id, id_runs(span.found or [])])
        num_events += len(span.edges)
    return probes


def _unexpected(expected: Sequence[tuple[int, str | None]], after: Sequence[BlockView]) -> Data:
    """Return the counts and hashes that differ from those that follow from the events."""
    refs: dict[str, list[int]] = {}
    hashes: dict[str, str] = {}
    for (ref_cnt, block_hash), block in zip(expected, after, strict=True):
        if block.ref_cnt != ref_cnt:
            refs.setdefault(str(block.ref_cnt), []).append(block.block_id)
        if block.block_hash != block_hash:
            hashes[str(block.block_id)] = block.block_hash or ""
    found: Data = {"ref": {count: id_runs(ids) for count, ids in refs.items()}, "name": hashes}
    return {field: value for field, value in found.items() if value}


def _after(before: Sequence[BlockView], edges: Sequence[Edge]) -> list[tuple[int, str | None]]:
    """Return the reference count and hash of each block that follow from the events."""
    counts = [block.ref_cnt for block in before]
    names = [block.block_hash for block in before]
    for edge in edges:
        counts[edge.block_id] += COUNTS.get(edge.kind, 0)
        if edge.kind is EdgeKind.CACHED:
            names[edge.block_id] = edge.block_hash
        elif edge.kind in (EdgeKind.EVICTED, EdgeKind.UNCACHED):
            names[edge.block_id] = None
    return list(zip(counts, names, strict=True))


def _keys(step: Data) -> list[str]:
    in_tiers = [key for keys in step.get("tiers", {}).values() for key in keys]
    return [key for key in (*step.get("names", ()), *step.get("name", {}).values(), *in_tiers) if key]


def _shortened(step: Data, short: Mapping[str, str]) -> Data:
    """Return the step with shortened hashes instead of keys."""
    step = dict(step)
    if "names" in step:
        step["names"] = " ".join(short[key] for key in step["names"])
    if "name" in step:
        step["name"] = {block_id: short.get(key, "") for block_id, key in step["name"].items()}
    if "tiers" in step:
        step["tiers"] = {tier: " ".join(short[key] for key in keys) for tier, keys in step["tiers"].items()}
    return step


def _changed_tables(before: Mapping[str, list[list[int]]], after: Mapping[str, list[list[int]]]) -> Data:
    gone: Data = {request_id: None for request_id in before if request_id not in after}
    changed = {
        request_id: [id_runs(group) for group in groups]
        for request_id, groups in after.items()
        if before.get(request_id) != groups
    }
    return gone | changed


def _tokens(spans: Sequence[Span]) -> Data:
    """Return the tokens that have a slot now, and those computed in this step, by request."""
    with_slots = {name: sum(counts) for name, counts in _allocated(spans)}
    return {"tok": with_slots, "scheduled": scheduled_tokens(spans)} if with_slots else {}


def scheduled_tokens(spans: Sequence[Span]) -> dict[str, int]:
    """Return the tokens computed in this step, by request."""
    scheduled: dict[str, int] = {}
    for name, (_, _, new) in _allocated(spans):
        scheduled[name] = scheduled.get(name, 0) + new
    return scheduled


def _allocated(spans: Sequence[Span]) -> Iterator[tuple[str, list[int]]]:
    """Yield the request of each allocation, with its computed, found and new tokens."""
    for span in spans:
        if span.call == "allocate_slots" and span.result is not None and span.request_id is not None:
            names = ("num_computed_tokens", "num_new_computed_tokens", "num_new_tokens")
            counts = [span.args.get(name) for name in names]
            yield span.request_id, [count if isinstance(count, int) else 0 for count in counts]


def _short_names(keys: set[str]) -> dict[str, str]:
    """Return a short hash for each key: the start of its digest, and its group unless that is group 0."""
    digests = {key: key[:-_GROUP_DIGITS] or key for key in keys}
    digits = 4
    while len({digest[:digits] for digest in digests.values()}) < len(set(digests.values())):
        digits += 1
    names = {}
    for key, digest in digests.items():
        group = int(key[len(digest) :] or "0", 16)
        names[key] = digest[:digits] + (f".{group}" if group else "")
    return names
