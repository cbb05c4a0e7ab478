"""The driver's operations once more, as a Hypothesis state machine: slower, but what it finds reads like a story.

Same engine, same reference, same comparison after each operation: `World` does all of it. The driver goes for volume
and leaves out operations; Hypothesis also makes every argument of those that remain as plain as it can be.
`MINI_KV_OPERATIONS` scales it as it scales the driver.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.tests.random_driver import MISUSES, NAMESPACES, Config, Op, World, replay

NUM_OPERATIONS = int(os.environ.get("MINI_KV_OPERATIONS", "100000"))

SETTINGS = settings(
    max_examples=max(10, 60 * NUM_OPERATIONS // 100_000),
    stateful_step_count=40,
    derandomize=True,  # one suite, one outcome; the driver is the one that takes other seeds
    database=None,
    phases=[Phase.generate, Phase.shrink],  # to explain a failure takes a minute, and the story says it already
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

T = TypeVar("T")
Rule = TypeVar("Rule", bound=Callable[..., Any])


def one_of_now(choices: Callable[["CacheMachine"], list[T]]) -> st.SearchStrategy[T]:
    """Draw from what there is at this moment."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choices(machine)))


def known(machine: "CacheMachine") -> list[str]:
    return sorted(machine.world.live)


def absent(machine: "CacheMachine") -> list[str]:
    return [name for name in "ABCDE" if name not in machine.world.live]


def running(machine: "CacheMachine") -> list[str]:
    return list(machine.world.ref.tables)


def to_schedule(machine: "CacheMachine") -> list[str]:
    world = machine.world
    return [
        name
        for name, live in sorted(world.live.items())
        if name not in world.scheduled and live.ref.num_computed < len(live.ref.token_ids)
    ]


def decoding(machine: "CacheMachine") -> list[str]:
    world = machine.world
    return [
        name
        for name, live in sorted(world.live.items())
        if name in world.ref.tables
        and name not in world.scheduled
        and live.ref.num_computed == len(live.ref.token_ids) < 16
    ]


def cached(machine: "CacheMachine") -> list[int]:
    return sorted(machine.world.ref.key_of)


def if_any(choices: Callable[["CacheMachine"], list[Any]]) -> Callable[[Rule], Rule]:
    return precondition(lambda machine: bool(choices(machine)))


# A run of one token and a short tail: prompts that share much, and fork where a block ends or not.
prompts = st.builds(
    lambda num_zeros, tail: (*[0] * num_zeros, *tail), st.integers(1, 12), st.lists(st.integers(0, 1), max_size=2)
)
namespaces = st.just(0) | st.just(0) | st.integers(0, len(NAMESPACES) - 1)
drafts = st.just(()) | st.lists(st.integers(0, 1), max_size=4).map(tuple)
hits = st.sampled_from(["passed", "adopted", "stale", "ignored"])


class CacheMachine(RuleBasedStateMachine):
    """Each rule is one operation of the driver, or a few that belong together, so that forty steps go somewhere."""

    last_run: ClassVar[tuple[list[Op], Config]]
    """The latest example: after a failure, the shrunk one."""

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(3, 12),
        enable_caching=st.sampled_from([True] * 7 + [False]),
    )
    def start(self, block_size: int, num_blocks: int, enable_caching: bool) -> None:
        config = Config(block_size, num_blocks, enable_caching=enable_caching)
        self.world = World(config)
        self.ops: list[Op] = []
        type(self).last_run = (self.ops, config)

    def do(self, *op: Any) -> None:
        self.ops.append(op)
        try:
            self.world.apply(op)
        except Exception:
            note(f"replay({self.ops}, {self.world.config})")
            raise

    @if_any(absent)
    @rule(name=one_of_now(absent), namespace=namespaces, token_ids=prompts, hit=hits)
    def prefill(self, name: str, namespace: int, token_ids: tuple[int, ...], hit: str) -> None:
        self.do("submit", name, namespace, token_ids)
        self.do("allocate", name, 16, (), 0, hit)

    @if_any(absent)
    @rule(name=one_of_now(absent), namespace=namespaces, token_ids=prompts)
    def submit_and_look_up(self, name: str, namespace: int, token_ids: tuple[int, ...]) -> None:
        self.do("submit", name, namespace, token_ids)
        self.do("lookup", name)

    @if_any(to_schedule)
    @rule(
        name=one_of_now(to_schedule),
        num_new=st.just(16) | st.integers(1, 8),
        drafts=drafts,
        lookahead=st.just(0) | st.integers(0, 4),
        hit=hits,
    )
    def allocate(self, name: str, num_new: int, drafts: tuple[int, ...], lookahead: int, hit: str) -> None:
        self.do("allocate", name, num_new, drafts, lookahead, hit)

    @precondition(lambda self: self.world.scheduled)
    @rule()
    def step(self) -> None:
        self.do("step")

    @if_any(decoding)
    @rule(name=one_of_now(decoding), token=st.integers(0, 1), num_accepted=st.integers(0, 4), drafts=drafts)
    def decode(self, name: str, token: int, num_accepted: int, drafts: tuple[int, ...]) -> None:
        self.do("append", name, token, num_accepted)
        self.do("allocate", name, 16, drafts, 0, "ignored")

    @if_any(running)
    @rule(name=one_of_now(running))
    def preempt(self, name: str) -> None:
        self.do("preempt", name)

    @if_any(known)
    @rule(name=one_of_now(known))
    def abort(self, name: str) -> None:
        self.do("abort", name)

    @if_any(running)
    @rule(name=one_of_now(running))
    def step_and_finish(self, name: str) -> None:
        self.do("step")
        self.do("finish", name)

    @if_any(cached)
    @rule(block_id=one_of_now(cached))
    def evict(self, block_id: int) -> None:
        self.do("evict", (block_id,))

    @if_any(known)
    @rule(kind=st.sampled_from(["reset", *MISUSES]), name=one_of_now(known))
    def do_what_may_be_refused(self, kind: str, name: str) -> None:
        self.do(*(["reset"] if kind == "reset" else ["misuse", kind, name]))


@pytest.mark.timeout(300)
def test_any_story_is_the_references_story() -> None:
    """60 caches, up to 40 steps on each: tables, queue, keys, hits, refusals, errors equal after each operation."""
    run_state_machine_as_test(CacheMachine, settings=SETTINGS)


# The machine's worth: bugs, each told in a short story.

free_blocks, popleft_n = BlockPool.free_blocks, FreeKVCacheBlockQueue.popleft_n


def head_first(pool: BlockPool, blocks: Iterable[KVCacheBlock]) -> None:
    free_blocks(pool, reversed(list(blocks)))


def as_many_as_there_are(queue: FreeKVCacheBlockQueue, n: int) -> list[KVCacheBlock]:
    return popleft_n(queue, min(n, queue.num_free_blocks))


def no_promise_taken_back(*_: object) -> list[KVCacheBlock]:
    return []


def newcomer_replaces(index: BlockHashToBlockMap, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
    index._blocks[key] = block


def reset_whatever_is_held(pool: BlockPool) -> bool:
    for block in pool.blocks:
        block.block_hash = None
    pool.cached_block_hash_to_block.clear()
    return True


BUGS: list[tuple[type, str, Callable[..., object]]] = [
    (BlockPool, "free_blocks", head_first),
    (BlockPool, "reset_prefix_cache", reset_whatever_is_held),
    (FreeKVCacheBlockQueue, "popleft_n", as_many_as_there_are),
    (FullAttentionManager, "withdraw_promises", no_promise_taken_back),
    (BlockHashToBlockMap, "insert", newcomer_replaces),
]
NUM_BUGS = len(BUGS) if NUM_OPERATIONS > 100_000 else 1  # shrinking takes seconds each


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("owner", "verb", "bug"), BUGS[:NUM_BUGS], ids=[bug.__name__ for *_, bug in BUGS[:NUM_BUGS]])
def test_a_bug_is_told_in_a_few_operations(
    owner: type, verb: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counterexample is short, is printed as a call of the driver's `replay`, and is about the bug alone."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, verb, bug)
        with pytest.raises(Exception) as failure:  # a broken engine may raise anything
            run_state_machine_as_test(CacheMachine, settings=settings(SETTINGS, max_examples=60))
        ops, config = CacheMachine.last_run
        assert replay(ops, config) is not None
    assert replay(ops, config) is None
    assert len(ops) <= 8, ops  # 3 to 5, as Hypothesis shrinks today
    assert f"replay({ops}, {config})" in failure.value.__notes__
