"""Events come from the blocks: what each change is called, who reports it, and what a call leaves behind."""

from collections import Counter

import pytest

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, UnknownRequestError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.story.edge import Edge, EdgeKind, block_hash_edge, ref_cnt_edge
from mini_kv.story.frame import BlockView, Frame, frame_of, frames
from mini_kv.story.recorder import Recorder, TracedBlock
from mini_kv.story.scenario import prefill
from mini_kv.story.traced_manager import Span, TracedKVCacheManager, edges_of, free_order_of
from mini_kv.tests.traced_run import NUM_BLOCKS, lived, random_life, traced_kv

KEY, OTHER_KEY = BlockHashWithGroupId(b"a key"), BlockHashWithGroupId(b"another key")


# The state machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "has_hash", "kind"),
    [
        (0, 1, False, "allocated"),
        (0, 1, True, "revived"),
        (1, 2, False, "shared"),
        (1, 2, True, "shared"),
        (7, 8, True, "shared"),
        (2, 1, True, "unshared"),
        (8, 7, False, "unshared"),
        (1, 0, True, "freed"),
        (1, 0, False, "freed"),
        (0, -1, True, "illegal"),
        (-1, 0, False, "illegal"),
        (0, 2, True, "illegal"),
        (3, 1, True, "illegal"),
        (1, 1, True, "illegal"),
    ],
)
def test_what_a_change_of_the_reference_count_means(old, new, has_hash, kind):
    """One up or one down, and never below nought."""
    assert ref_cnt_edge(old, new, has_hash) == kind


@pytest.mark.parametrize(
    ("old", "new", "ref_cnt", "kind"),
    [
        (None, None, 0, None),
        (None, None, 1, None),
        (None, KEY, 1, "cached"),
        (None, KEY, 0, "illegal"),
        (KEY, None, 0, "evicted"),
        (KEY, None, 1, "uncached"),
        (KEY, OTHER_KEY, 1, "illegal"),
        (KEY, KEY, 1, "illegal"),
    ],
)
def test_what_a_change_of_the_key_means(old, new, ref_cnt, kind):
    """A key is given while the block is held, and taken away, never replaced."""
    assert block_hash_edge(old, new, ref_cnt) == kind


def test_the_life_of_one_block_in_the_recorder_s_words():
    """Every write to the two attributes is an edge; the others, and emptying what is empty, are none."""
    recorder = Recorder()
    block = recorder.new_block(5)
    block.block_hash = None
    block.is_null = False
    block.ref_cnt += 1
    block.block_hash = KEY
    block.ref_cnt += 1
    block.ref_cnt -= 1
    block.ref_cnt -= 1
    block.ref_cnt += 1
    block.block_hash = None
    block.block_hash = KEY
    block.ref_cnt -= 1
    block.block_hash = None
    key = KEY.hex()
    assert recorder.take_edges() == [
        Edge(EdgeKind.ALLOCATED, 5, 1, None),
        Edge(EdgeKind.CACHED, 5, 1, key),
        Edge(EdgeKind.SHARED, 5, 2, key),
        Edge(EdgeKind.UNSHARED, 5, 1, key),
        Edge(EdgeKind.FREED, 5, 0, key),
        Edge(EdgeKind.REVIVED, 5, 1, key),
        Edge(EdgeKind.UNCACHED, 5, 1, key),
        Edge(EdgeKind.CACHED, 5, 1, key),
        Edge(EdgeKind.FREED, 5, 0, key),
        Edge(EdgeKind.EVICTED, 5, 0, key),
    ]
    assert recorder.take_edges() == []


def test_every_kind_of_edge_comes_from_a_call_of_the_manager():
    """Allocated, cached, shared, unshared, freed, revived, evicted, uncached: five requests are enough."""
    kv = traced_kv(num_blocks=4, block_size=2)
    a = _admitted(kv, "A", [1, 2, 3])
    b = _admitted(kv, "B", [1, 2, 4])
    kv.free(a)
    kv.free(b)
    c = _admitted(kv, "C", [1, 2, 5, 6])
    kv.evict_blocks([1])
    kv.free(c)
    d = _admitted(kv, "D", [7, 8, 9, 10, 11])
    names: dict[str | None, str] = {None: "-"}
    for request in (c, d):
        for index, block_hash in enumerate(request.block_hashes):
            names[make_block_hash_with_group_id(block_hash, 0).hex()] = f"{request.request_id}{index}"
    told = [
        (span.call, span.request_id, [f"{e.kind} {e.block_id} x{e.ref_cnt} {names[e.block_hash]}" for e in span.edges])
        for span in kv.spans
        if span.call != "get_computed_blocks"
    ]
    assert told == [
        ("allocate_slots", "A", ["allocated 1 x1 -", "allocated 2 x1 -", "cached 1 x1 C0"]),
        ("allocate_slots", "B", ["shared 1 x2 C0", "allocated 3 x1 -"]),
        ("free", "A", ["freed 2 x0 -", "unshared 1 x1 C0"]),
        ("free", "B", ["freed 3 x0 -", "freed 1 x0 C0"]),
        ("allocate_slots", "C", ["revived 1 x1 C0", "allocated 3 x1 -", "cached 3 x1 C1"]),
        ("evict_blocks", None, ["uncached 1 x1 C0"]),
        ("free", "C", ["freed 3 x0 C1", "freed 1 x0 -"]),
        (
            "allocate_slots",
            "D",
            [
                *("allocated 1 x1 -", "allocated 2 x1 -", "evicted 3 x0 C1", "allocated 3 x1 -"),
                *("cached 1 x1 D0", "cached 2 x1 D1"),
            ],
        ),
    ]
    assert {edge.kind for edge in edges_of(kv.spans)} == set(EdgeKind) - {EdgeKind.ILLEGAL}


# Strict and lenient --------------------------------------------------------------------------------------------------


class CarelessPool(BlockPool):
    """Frees without looking, as a first attempt does."""

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append_n([block])


class ForgetfulPool(BlockPool):
    """Hands out a block with the key of what used to be in it."""

    def get_new_blocks(self, num_blocks):
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            block.ref_cnt += 1
        return blocks


def test_a_double_free_is_caught_at_the_guilty_line():
    """A pool that does not look itself is stopped by its own block, at 0 -> -1, before the write.

    In a demonstration the engine is not disturbed: the count is -1, and the edge says that this is illegal.
    """
    for strict in (True, False):
        recorder = Recorder(strict=strict)
        pool = CarelessPool(4, new_block=recorder.new_block)
        (block,) = pool.get_new_blocks(1)
        pool.free_blocks([block])
        if strict:
            with pytest.raises(BlockStateError, match=r"^block 1: illegal change, ref_cnt 0 -> -1$") as caught:
                pool.free_blocks([block])
            assert caught.value.block_ids == [1]
            assert caught.traceback[-3].name == "__setattr__"
            assert caught.traceback[-4].name == "free_blocks"  # who did it: CarelessPool, in this file
        else:
            pool.free_blocks([block])
        assert (block.ref_cnt, block.block_hash) == (0 if strict else -1, None)
        noted = [Edge(EdgeKind.ALLOCATED, 1, 1, None), Edge(EdgeKind.FREED, 1, 0, None)]
        assert recorder.take_edges() == noted + [Edge(EdgeKind.ILLEGAL, 1, -1, None)] * (not strict)


@pytest.mark.parametrize("strict", [True, False])
def test_a_key_that_replaces_a_key(strict):
    """Strict: refused, and the block keeps its key. Lenient: noted, and the block has the new one."""
    recorder = Recorder(strict=strict)
    block = recorder.new_block(3)
    block.ref_cnt = 1
    block.block_hash = KEY
    if strict:
        with pytest.raises(BlockStateError) as caught:
            block.block_hash = OTHER_KEY
        assert caught.value.block_ids == [3]
    else:
        block.block_hash = OTHER_KEY
    assert block.block_hash == (KEY if strict else OTHER_KEY)
    illegal = [] if strict else [Edge(EdgeKind.ILLEGAL, 3, 1, OTHER_KEY.hex())]
    assert recorder.take_edges()[2:] == illegal


def test_a_pool_that_forgets_to_drop_the_key_revives_where_it_should_allocate():
    """The story tells a stale key from a fresh block: `revived` where `evicted, allocated` was due."""
    told = {}
    for pool_type in (BlockPool, ForgetfulPool):
        recorder = Recorder()
        pool = pool_type(2, new_block=recorder.new_block)
        pool.cache_full_blocks(pool.get_new_blocks(1), [BlockHash(b"a name")], 0, 1)
        pool.free_blocks(pool.blocks[1:])
        recorder.take_edges()
        pool.get_new_blocks(1)
        told[pool_type] = [(edge.kind, edge.block_id) for edge in recorder.take_edges()]
    assert told == {BlockPool: [("evicted", 1), ("allocated", 1)], ForgetfulPool: [("revived", 1)]}


# Without a recorder, no cost ------------------------------------------------------------------------------------------


def test_an_untraced_cache_is_made_of_plain_blocks():
    """No subclass, no hook on attributes, no slot for an observer."""
    kv = KVCacheManager.for_full_attention(6, 2)
    assert {type(block) for block in kv.block_pool.blocks} == {KVCacheBlock}
    assert KVCacheBlock.__setattr__ is object.__setattr__
    assert KVCacheBlock.__getattribute__ is object.__getattribute__
    assert not hasattr(kv.block_pool.blocks[1], "__dict__")
    assert {type(block) for block in traced_kv(6, 2).block_pool.blocks} == {TracedBlock}


# Spans ---------------------------------------------------------------------------------------------------------------


def test_one_span_per_public_call():
    """A span says what was called, with which numbers, what came back, and what it did to the blocks."""
    kv = traced_kv(num_blocks=5, block_size=2)
    a = kv.new_request("A", [1, 2, 3])
    prefill(kv, a)
    b = kv.new_request("B", [1, 2, 3])
    hit, num_hits = kv.get_computed_blocks(b)
    b.num_computed_tokens = num_hits
    kv.allocate_slots(b, 1, new_computed_blocks=hit, num_lookahead_tokens=3)
    c = kv.new_request("C", [5])
    assert kv.allocate_slots(c, 1) is None
    kv.withdraw_promises(b)
    kv.free(b)
    assert kv.reset_prefix_cache() is False
    kv.free(a)
    kv.evict_blocks(iter([1, 2]))
    assert kv.reset_prefix_cache() is True
    spans = [(span.call, span.request_id, span.args, span.result) for span in kv.spans]
    assert spans == [
        ("get_computed_blocks", "A", {}, 0),
        ("allocate_slots", "A", {"num_new_tokens": 3, "num_computed_tokens": 0}, [1, 2]),
        ("get_computed_blocks", "B", {}, 2),
        (
            "allocate_slots",
            "B",
            {"num_new_tokens": 1, "num_computed_tokens": 2, "num_lookahead_tokens": 3},
            [3, 4],
        ),
        ("allocate_slots", "C", {"num_new_tokens": 1, "num_computed_tokens": 0}, None),
        ("withdraw_promises", "B", {}, None),
        ("free", "B", {}, None),
        ("reset_prefix_cache", None, {}, False),
        ("free", "A", {}, None),
        ("evict_blocks", None, {"block_ids": [1, 2]}, None),
        ("reset_prefix_cache", None, {}, True),
    ]
    assert [span.error for span in kv.spans] == [None] * 11
    assert [(span.tables, span.free_order) for span in kv.spans] == [(None, None)] * 11


def test_the_upstream_way_of_passing_a_hit_is_noted_as_such():
    """The hit passed as an argument is a number of its own, beside what was computed before."""
    kv = traced_kv(num_blocks=5, block_size=2)
    kv.free(_admitted(kv, "A", [1, 2, 3]))
    _admitted(kv, "B", [1, 2, 4])
    assert kv.spans[-1].args == {"num_new_tokens": 1, "num_computed_tokens": 0, "num_new_computed_tokens": 2}


def test_an_exception_is_noted_and_raised_again():
    """The caller gets the very exception, the span holds its name, and nothing has changed."""
    kv = traced_kv(num_blocks=5, block_size=2, snapshots=True)
    a = _admitted(kv, "A", [1, 2, 3])
    kv.free(a)
    with pytest.raises(UnknownRequestError) as caught:
        kv.free(a)
    assert caught.value.request_id == "A"
    assert kv.spans[-1] == Span("free", "A", error="UnknownRequestError", tables={}, free_order=[2, 3, 4, 1])


class BreaksInTheMiddle(KVCacheManager):
    """Drops one reference and fails."""

    def free(self, request):
        self.block_pool.blocks[2].ref_cnt -= 1
        raise ZeroDivisionError


def test_the_edges_of_a_call_that_breaks_in_the_middle_are_kept():
    """What happened up to the guilty line is in the span that raised."""
    recorder = Recorder()
    manager = BreaksInTheMiddle.for_full_attention(5, 2, new_block=recorder.new_block)
    kv = TracedKVCacheManager(manager, recorder)
    a = _admitted(kv, "A", [1, 2, 3])
    kv.block_pool.blocks[1].ref_cnt += 1  # changed from outside, between two calls: this edge belongs to none
    kv.recorder.strict = False
    with pytest.raises(ZeroDivisionError):
        kv.free(a)
    assert [(edge.kind, edge.block_id) for edge in kv.spans[-1].edges] == [("freed", 2)]
    assert kv.spans[-1].error == "ZeroDivisionError"


def test_everything_else_is_passed_through():
    """The wrapper stands in for the manager: what it does not trace, it hands on."""
    kv = traced_kv(num_blocks=5, block_size=2)
    assert kv.block_pool is kv.manager.block_pool
    assert kv.block_size == 2
    _admitted(kv, "A", [1, 2, 3])
    assert kv.get_block_ids("A") == ([1, 2],)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = kv.no_such_thing


# Frames --------------------------------------------------------------------------------------------------------------


def test_snapshots_only_on_request():
    """Without them there is no table and no queue in a span, and frames say what is missing."""
    kv = traced_kv(num_blocks=5, block_size=2)
    _admitted(kv, "A", [1, 2, 3])
    assert [(span.tables, span.free_order) for span in kv.spans] == [(None, None), (None, None)]
    with pytest.raises(ValueError, match="span get_computed_blocks has no snapshot"):
        frames(kv.spans, 5)

    kv = traced_kv(num_blocks=5, block_size=2, snapshots=True)
    _admitted(kv, "A", [1, 2, 3])
    assert [(span.tables, span.free_order) for span in kv.spans] == [({}, [1, 2, 3, 4]), ({"A": [[1, 2]]}, [3, 4])]


def test_a_frame_shows_blocks_tables_and_queue():
    """Every block by its id, the null block first."""
    kv = traced_kv(num_blocks=5, block_size=2)
    a = _admitted(kv, "A", [1, 2, 3])
    key = make_block_hash_with_group_id(a.block_hashes[0], 0).hex()
    assert frame_of(kv.manager) == Frame(
        blocks=(BlockView(0), BlockView(1, 1, key), BlockView(2, 1), BlockView(3), BlockView(4)),
        tables={"A": [[1, 2]]},
        free_order=[3, 4],
    )


@pytest.mark.parametrize("seed", range(20))
def test_frames_folded_from_edges_are_the_live_state(seed):
    """After every call of a random run, what the edges add up to is what the blocks say."""
    live: list[Frame] = []
    for kv in random_life(seed, snapshots=True):
        live.append(frame_of(kv.manager))
    assert len(live) >= 60
    assert frames(kv.spans, NUM_BLOCKS) == live


def test_the_random_runs_leave_nothing_out():
    """The property tests mean something: every kind of edge, every call, refusals and exceptions occur."""
    kinds: Counter[str] = Counter()
    calls: Counter[tuple[str, str | None, bool]] = Counter()
    for seed in range(20):
        kv = lived(seed)
        kinds.update(edge.kind for edge in edges_of(kv.spans))
        calls.update((span.call, span.error, span.result is None) for span in kv.spans)
    assert set(kinds) == set(EdgeKind) - {EdgeKind.ILLEGAL}
    assert min(kinds.values()) > 20
    assert set(calls) == {
        ("get_computed_blocks", None, False),
        ("allocate_slots", None, False),
        ("allocate_slots", None, True),  # refused
        ("free", None, True),
        ("free", "UnknownRequestError", True),
        ("withdraw_promises", None, True),
        ("evict_blocks", None, True),
        ("reset_prefix_cache", None, False),
    }


def test_a_traced_run_and_an_untraced_run_are_the_same_run():
    """Watching changes nothing: tables, queue and hits agree call by call."""
    traced = traced_kv(num_blocks=7, block_size=2)
    plain = KVCacheManager.for_full_attention(7, 2)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9], [7, 7, 7, 7]):
        for kv in (traced, plain):
            request = kv.new_request(f"R{tokens}", tokens)
            hit, num_hits = kv.get_computed_blocks(request)
            if kv.allocate_slots(request, len(tokens) - num_hits, num_hits, hit) is not None and len(tokens) != 3:
                kv.free(request)
        assert free_order_of(traced.block_pool) == free_order_of(plain.block_pool)
        assert {name: traced.get_block_ids(name) for name in traced.requests} == {
            name: plain.get_block_ids(name) for name in plain.requests
        }
    assert traced.prefix_cache_stats == plain.prefix_cache_stats


def _admitted(kv, request_id, tokens):
    request = kv.new_request(request_id, tokens)
    assert prefill(kv, request) is not None
    return request
