"""The driver's operations once more, as a Hypothesis state machine: slower, but what it finds reads like a story.

Same engine, same reference, same comparison after each operation: `World` does all of it. The driver goes for volume
and leaves out operations; Hypothesis also makes every argument of those that remain as plain as it can be.
`MINI_KV_OPERATIONS` scales it as it scales the driver.
"""

import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.given.faulty_parts import GivesWhatThereIs, TurnsTheList
from mini_kv.tests.random_driver import MISUSES, NAMESPACES, Config, Op, replay

NUM_OPERATIONS = int(os.environ.get("MINI_KV_OPERATIONS", "30000"))

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

    config_class: ClassVar[type[Config]] = Config
    last_run: ClassVar[tuple[list[Op], Config]]
    """The latest example: after a failure, the shrunk one."""

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(3, 12),
        enable_caching=st.sampled_from([True] * 7 + [False]),
    )
    def start(self, block_size: int, num_blocks: int, enable_caching: bool) -> None:
        config = self.config_class(block_size, num_blocks, enable_caching=enable_caching)
        self.world = config.make_world()
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


def test_any_story_is_the_references_story() -> None:
    """60 caches, up to 40 steps on each: tables, queue, keys, hits, refusals, errors equal after each operation."""
    run_state_machine_as_test(CacheMachine, settings=SETTINGS)


# The machine's worth: bugs, each told in a short story.


class ResetsWhateverIsHeld(BlockPool):
    def reset_prefix_cache(self) -> bool:
        for block in self.blocks:
            block.block_hash = None
        self.cached_block_hash_to_block.clear()
        return True


class NoPromiseTakenBack(FullAttentionManager):
    def withdraw_promises(self, *_: object) -> list[KVCacheBlock]:
        return []


class NewcomerReplaces(BlockHashToBlockMap):
    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        self._blocks[key] = block


BUGS = {
    "head_first": KVCacheParts(make_queue=TurnsTheList),
    "reset_whatever_is_held": KVCacheParts(make_pool=ResetsWhateverIsHeld),
    "as_many_as_there_are": KVCacheParts(make_pool=GivesWhatThereIs),
    "no_promise_taken_back": KVCacheParts(manager_classes={FullAttentionSpec: NoPromiseTakenBack}),
    "newcomer_replaces": KVCacheParts(make_index=NewcomerReplaces),
}
NUM_BUGS = len(BUGS) if NUM_OPERATIONS >= 100_000 else 1  # shrinking takes seconds each


@pytest.mark.parametrize("bug", list(BUGS)[:NUM_BUGS])
@pytest.mark.slow
def test_a_bug_is_told_in_a_few_operations(bug: str) -> None:
    """The counterexample is short, is printed as a call of the driver's `replay`, and is about the bug alone."""

    class BrokenConfig(Config):
        def make(self, **options: Any) -> KVCacheManager:
            return super().make(parts=BUGS[bug])

    class BrokenMachine(CacheMachine):
        config_class = BrokenConfig

    with pytest.raises(Exception) as failure:  # a broken engine may raise anything
        run_state_machine_as_test(BrokenMachine, settings=settings(SETTINGS, max_examples=60))
    ops, config = BrokenMachine.last_run
    assert replay(ops, config) is not None
    assert replay(ops, Config(config.block_size, config.num_blocks, enable_caching=config.enable_caching)) is None
    assert len(ops) <= 8, ops  # 3 to 5, as Hypothesis shrinks today
    assert f"replay({ops}, {config})" in failure.value.__notes__
