"""Fail at every call: whole stories, in which each call that can be refused is refused first, in every way it can be.

What is promised (I11): `None` and every error of our own leave the whole state as it was. Both are decided before
anything changes, and that is what these stories show, call by call; each goes on afterwards as if nothing had been, and
ends with nothing held or left over (I14).

What is not promised: that a call which is torn in its middle, by Ctrl-C or by a lack of memory, is rolled back. There
the claim is smaller: a torn state is never silently wrong, and `recover` makes a new one of it.
"""

import copy
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.errors import AllocationError, BlockStateError, InvalidTokenError, KVCacheError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import find_violations
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.debug import manager_state
from mini_kv.tests.random_driver import CONFIGS, MISUSES, Config, Generator, Op, World

NUM_OPERATIONS = int(os.environ.get("MINI_KV_OPERATIONS", "30000"))
NUM_DRAWN = max(40, NUM_OPERATIONS // 5_000)
OPS_PER_STORY = 60

# Stories made by hand, each at an edge.

HAND_MADE: dict[str, tuple[Config, list[Op]]] = {
    "fits to the last block": (
        Config(block_size=2, num_blocks=4),
        [("submit", "A", 0, (0,) * 6), ("allocate", "A", 9, (), 0, "passed"), ("step",)],
    ),
    "one block too many": (
        Config(block_size=2, num_blocks=4),
        [("submit", "A", 0, (0,) * 7), ("allocate", "A", 9, (), 0, "passed")],
    ),
    "only the lookahead does not fit": (
        Config(block_size=2, num_blocks=4),
        [("submit", "A", 0, (0,) * 6), ("allocate", "A", 9, (), 1, "passed"), ("allocate", "A", 9, (), 0, "passed")],
    ),
    "the hit is all there is": (
        Config(block_size=2, num_blocks=4),
        [
            ("submit", "A", 0, (0,) * 6), ("allocate", "A", 9, (), 0, "passed"), ("step",), ("finish", "A"),
            ("submit", "B", 0, (0,) * 7), ("allocate", "B", 9, (), 0, "passed"),
            ("submit", "C", 0, (0,) * 6), ("allocate", "C", 9, (), 0, "passed"), ("step",),
        ],
    ),
    "the hit is adopted, refused, and adopted again": (
        Config(block_size=2, num_blocks=5),
        [
            ("submit", "A", 0, (0,) * 4), ("allocate", "A", 9, (), 0, "passed"), ("step",), ("finish", "A"),
            ("submit", "X", 0, (1,) * 3), ("allocate", "X", 9, (), 0, "passed"),
            ("submit", "B", 0, (0,) * 7), ("allocate", "B", 9, (), 0, "adopted"),
            ("step",), ("finish", "X"), ("allocate", "B", 9, (), 0, "adopted"), ("step",),
        ],
    ),
    "the hit is held by another": (
        Config(block_size=2, num_blocks=5),
        [
            ("submit", "A", 0, (0,) * 5), ("allocate", "A", 9, (), 0, "passed"), ("step",),
            ("submit", "B", 0, (0, 0, 0, 0, 1)), ("allocate", "B", 9, (), 0, "passed"), ("step",),
        ],
    ),
    "the hit was evicted since": (
        Config(block_size=2, num_blocks=5),
        [
            ("submit", "A", 0, (0,) * 5), ("allocate", "A", 9, (), 0, "passed"), ("step",), ("finish", "A"),
            ("submit", "B", 0, (0,) * 5), ("lookup", "B"), ("evict", (1,)), ("allocate", "B", 9, (), 0, "stale"),
            ("allocate", "B", 9, (), 0, "passed"), ("step",),
        ],
    ),
    "promises of one step, and the first is stopped": (
        Config(block_size=2, num_blocks=8),
        [
            ("submit", "A", 0, (0,) * 5), ("allocate", "A", 9, (), 0, "passed"),
            ("submit", "B", 0, (0,) * 7), ("allocate", "B", 9, (), 0, "passed"),
            ("submit", "C", 0, (0,) * 3), ("allocate", "C", 9, (), 0, "adopted"), ("abort", "A"),
            ("allocate", "C", 9, (), 0, "passed"), ("step",),
        ],
    ),
    "decodes until the pool is empty, and is preempted": (
        Config(block_size=1, num_blocks=5),
        [
            ("submit", "A", 0, (0, 0)), ("allocate", "A", 9, (), 0, "passed"), ("step",),
            *[("append", "A", 1, 0), ("allocate", "A", 9, (), 0, "ignored"), ("step",)] * 3,
            ("preempt", "A"), ("submit", "B", 0, (0, 0)), ("allocate", "B", 9, (), 0, "passed"), ("step",),
        ],
    ),
    "in chunks, with drafts that are rejected": (
        Config(block_size=2, num_blocks=5),
        [
            ("submit", "A", 0, (0,) * 5), ("allocate", "A", 3, (), 0, "passed"), ("step",),
            ("allocate", "A", 9, (1, 1, 1), 0, "passed"), ("step",), ("append", "A", 0, 1),
            ("allocate", "A", 9, (1, 1), 1, "passed"), ("step",),
        ],
    ),
    "duplicates of one content": (
        Config(block_size=2, num_blocks=6),
        [
            ("submit", "A", 0, (0,) * 4), ("allocate", "A", 9, (), 0, "passed"),
            ("submit", "B", 0, (0,) * 4), ("allocate", "B", 9, (), 0, "ignored"), ("step",), ("finish", "A"),
            ("submit", "C", 0, (1,) * 6), ("allocate", "C", 9, (), 0, "passed"), ("step",), ("reset",),
        ],
    ),
    "without caching": (
        Config(block_size=2, num_blocks=4, enable_caching=False),
        [
            ("submit", "A", 0, (0,) * 5), ("allocate", "A", 9, (), 0, "passed"), ("step",), ("finish", "A"),
            ("submit", "B", 0, (0,) * 7), ("allocate", "B", 9, (), 0, "passed"), ("reset",),
        ],
    ),
}  # fmt: skip

STORIES = [*HAND_MADE, *range(NUM_DRAWN)]
"""By name, or by the seed of the driver's generator."""

ONE_GROUP = [config for config in CONFIGS if not config.groups]
"""What a call needs is easily counted, to the block, if nothing slides meanwhile."""

ids = pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story).replace(" ", "-").replace(",", ""))


def tell(story: str | int, prepare: Callable[[World], object], meanwhile: Callable[[World], object]) -> World:
    """Play a story to its end: `prepare` its world, do something `meanwhile`, before each operation; then drain."""
    if isinstance(story, str):
        config, ops = HAND_MADE[story]
        world = World(config)
        draw = iter(ops).__next__
        num_ops = len(ops)
    else:
        world = World(ONE_GROUP[story % len(ONE_GROUP)])
        draw = Generator(world, story).draw
        num_ops = OPS_PER_STORY
    prepare(world)
    for _ in range(num_ops):
        meanwhile(world)
        world.apply(draw())
    world.apply(("drain",))
    kv = world.kv
    assert list(find_violations(kv)) == []
    assert (kv.usage, kv.requests, kv.num_adopted_tokens) == (0.0, {}, {})
    assert (manager_state(kv)["tables"], manager_state(kv)["published"]) == ({}, [{}])
    return world


def nothing(world: World) -> None:
    """Leave the world as it is."""


# None: the pool is too small, by one block and by more.


class Lender:
    """In front of `allocate_slots`: calls it with 0, 1, 2... free blocks beside the hit, the others being lent out.

    Each refusal must leave all as it was. The call that succeeds has exactly the blocks that it needs; then the lent
    ones come back behind what is left, which is the order in which they would stand if they had never been away.
    """

    def __init__(self, world: World) -> None:
        self.kv = world.kv
        self.allocate_slots = world.kv.allocate_slots
        self.refused = 0
        world.kv.allocate_slots = self  # type: ignore[method-assign, assignment]  # worlds use these five arguments

    def __call__(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        pool = self.kv.block_pool
        hit = set() if new_computed_blocks is None else {*new_computed_blocks.blocks[0]}
        free = pool.free_block_queue.get_all_free_blocks()
        spare = [block for block in free if block not in hit]
        before = manager_state(self.kv)
        num_pinned = len(self.kv.copy_on_write.pinned)
        for num_left in range(len(spare) + 1):
            lent = spare[num_left:]
            pool.touch(lent)
            while_lent = manager_state(self.kv)
            try:
                got = self.allocate_slots(
                    request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens
                )
            except KVCacheError:  # misuse is misuse at any size of the pool
                assert manager_state(self.kv) == while_lent
                self._put_back(lent, free)
                raise
            if got is not None:
                num_copied = (len(self.kv.copy_on_write.pinned) - num_pinned) // 2
                assert len(got.get_block_ids()[0]) + num_copied == num_left
                self._put_back(lent, lent)
                return got
            self.refused += 1
            assert manager_state(self.kv) == while_lent
            self._put_back(lent, free)
            assert manager_state(self.kv) == before
        return None

    def _put_back(self, lent: Sequence[KVCacheBlock], free: Sequence[KVCacheBlock]) -> None:
        queue = self.kv.block_pool.free_block_queue
        for block in lent:
            block.ref_cnt -= 1
        queue.popleft_n(queue.num_free_blocks)
        queue.append_n(free)


@ids
def test_not_now_changes_nothing(story: str | int) -> None:
    """Each allocation with too few free blocks, down to none: `None`, the same state, and then it works (I11, I14)."""
    lenders = []
    tell(story, lambda world: lenders.append(Lender(world)), nothing)
    assert lenders[0].refused > 0


# Errors of our own: misuse, at every moment of a story.


def hits_that_are_none(world: World, name: str) -> dict[str, Callable[[], object]]:
    """Return the wrong ways to pass a hit, for a request that waits and finds one."""
    kv, request = world.kv, world.live[name].request
    found, num_hit = kv.get_computed_blocks(request)
    blocks = list(found.blocks[0])
    if not blocks:
        return {}
    size = kv.block_size
    return {
        "blocks without a count": lambda: kv.allocate_slots(request, 1, 0, found),
        "a count without blocks": lambda: kv.allocate_slots(request, 1, num_hit),
        "one block too few": lambda: kv.allocate_slots(request, 1, num_hit, KVCacheBlocks((blocks[:-1],))),
        "a block twice": lambda: kv.allocate_slots(request, 1, num_hit + size, KVCacheBlocks(([*blocks, blocks[-1]],))),
        "the null block": lambda: kv.allocate_slots(
            request, 1, num_hit, KVCacheBlocks(([*blocks[:-1], kv.block_pool.null_block],))
        ),
    }


def misuse_everything(world: World) -> None:
    """Do all that is forbidden, with one request that waits and one that runs: each raises, and nothing changes."""
    kv, ref = world.kv, world.ref
    before = manager_state(kv)
    waiting = next((name for name in world.live if name not in ref.tables), None)
    running = next((name for name in world.live if name in ref.tables), None)
    for name in filter(None, (waiting, running)):
        for kind in MISUSES:
            world.misuse(kind, name)
        request = world.live[name].request
        tokens, names = list(request.token_ids), list(request.block_hashes)
        with pytest.raises(InvalidTokenError):
            request.append_output_token_ids(0, -1)
        assert (list(request.token_ids), request.block_hashes) == (tokens, names)
    if waiting is not None:
        for call in hits_that_are_none(world, waiting).values():
            with pytest.raises(AllocationError):
                call()
    if running is not None:
        table = kv.get_blocks(running).blocks[0]
        with pytest.raises(BlockStateError):
            kv.block_pool.free_blocks([*table, table[0]])
        if table[0].block_hash is not None:
            with pytest.raises(BlockStateError):
                kv.block_pool.cache_full_blocks(table, [BlockHash(b"of other tokens")], 0, 1)
        assert not kv.reset_prefix_cache()
    assert manager_state(kv) == before


@ids
def test_misuse_at_every_moment_changes_nothing(story: str | int) -> None:
    """Before each operation all that is forbidden then: the error comes first, and the story goes on (I11, I14)."""
    tell(story, nothing, misuse_everything)


# Exceptions from inside: what no check in front can foresee.


class Torn(Exception):
    """Stands for whatever may end a call in its middle."""


VERBS: dict[type, tuple[str, ...]] = {
    FreeKVCacheBlockQueue: ("popleft_n", "remove", "append_n", "prepend_n"),
    BlockPool: ("get_cached_block", "get_new_blocks", "touch", "free_blocks", "cache_full_blocks", "evict_blocks"),
    BlockHashToBlockMap: ("get_one_block", "insert", "pop", "clear"),
}
CALLS = ("get_computed_blocks", "allocate_slots", "free", "withdraw_promises", "evict_blocks", "reset_prefix_cache")


class Fuse:
    """Blows, once set, at the n-th call of a verb of the pool, the queue or the index, before that does anything."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.blown_at = ""
        for owner, verbs in VERBS.items():
            for verb in verbs:
                patch.setattr(owner, verb, self._guarded(verb, getattr(owner, verb)))

    def set(self, n: int) -> None:
        self.left, self.blown_at = n, ""

    def _guarded(self, verb: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                if not self.left:
                    self.blown_at = verb
                    raise Torn(verb)
            return original(*arguments, **options)

        return guarded


def outcome_of(kv: KVCacheManager, before: dict[str, Any], fuse: Fuse) -> str:
    """Say what a torn call left: all as before, a sound cache that can be emptied, or what the ledger reports."""
    fuse.set(0)
    if list(find_violations(kv)):
        return "the ledger says so"
    if manager_state(kv) == before:
        return "as before"
    for request in list(kv.requests.values()):
        kv.free(request)
    kv.finish_kv_cache_block_copies()
    return "sound" if list(find_violations(kv)) == [] and kv.usage == 0 else "SILENTLY WRONG"


def check_recovery(kv: KVCacheManager) -> None:
    """Check that a manager is as new after a recovery, but for what it has counted."""
    counted = copy.copy(kv.prefix_cache_stats)
    kv.recover()
    state = manager_state(kv)
    ids = [block.block_id for block in kv.block_pool.blocks]
    assert list(find_violations(kv)) == []
    assert state["blocks"] == [(0, None) for _ in ids]
    assert (state["free queue"], state["index"], state["tables"], state["copies"]) == (ids[1:], {}, {}, [])
    assert (state["published"], kv.num_adopted_tokens, kv.coordinator.promised) == ([{}], {}, set())
    assert state["statistics"] == (counted.requests, counted.queries, counted.hits)


def tear_every_call(world: World, fuse: Fuse, outcomes: Counter[tuple[str, str, str]]) -> None:
    """Before each public call of a world's manager, tear the same call on copies of it, at each place inside."""

    def torn_first(call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def told(*arguments: Any) -> Any:
            n = 0
            while True:
                n += 1
                kv, its_arguments = copy.deepcopy((world.kv, arguments))
                for patched in CALLS:
                    del vars(kv)[patched]
                before = manager_state(kv)
                fuse.set(n)
                try:
                    getattr(kv, call)(*its_arguments)
                except Torn:
                    torn = copy.deepcopy(kv)
                    outcomes[call, fuse.blown_at, outcome_of(kv, before, fuse)] += 1
                    check_recovery(torn)
                except KVCacheError:  # misuse, and no place left inside to tear
                    break
                else:
                    break
            fuse.set(0)
            return original(*arguments)

        return told

    for call in CALLS:
        setattr(world.kv, call, torn_first(call, getattr(world.kv, call)))


@pytest.mark.timeout(1200)  # `MINI_KV_LONG=1 .ci/run` draws two thousand calls
def test_a_torn_call_is_never_silently_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception at every place inside every call; what it may leave, call by call."""
    outcomes: Counter[tuple[str, str, str]] = Counter()
    fuse = Fuse(monkeypatch)
    for story in [*HAND_MADE, *range(NUM_DRAWN // 5)]:
        tell(story, lambda world: tear_every_call(world, fuse, outcomes), nothing)
    for what, number in sorted(outcomes.items()):
        print(f"{number:6}", *what, sep="   ")
    assert {call: {what for name, _, what in outcomes if name == call} for call in CALLS} == {
        "get_computed_blocks": {"as before"},  # a question changes nothing, wherever it ends
        "reset_prefix_cache": {"as before"},
        "evict_blocks": {"as before", "sound"},  # some of the keys are gone; call it again
        "withdraw_promises": {"as before", "sound"},  # the same
        "free": {"as before", "the ledger says so"},  # before the first block is freed, and after it
        "allocate_slots": {"as before", "sound", "the ledger says so"},  # sound: admitted, so that it can be freed
    }
