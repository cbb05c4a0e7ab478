"""Stories of the scheduler that stop right before a call that is worth interrupting, and can be told to their end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Greedy
from mini_kv.tests.strict_worker import StrictWorker, alone


@dataclass(slots=True)
class World:
    """A scheduler, a strict worker, and what was asked for."""

    num_blocks: int
    specs: tuple[KVCacheSpec, ...] = (FullAttentionSpec(2),)
    limits: dict[str, Any] = field(default_factory=dict)
    may_jump: bool = False
    retention_interval: int | None = None
    manager_class: Callable[[KVCacheConfig], KVCacheManager] = KVCacheManager
    kv: KVCacheManager = field(init=False)
    scheduler: Scheduler = field(init=False)
    worker: StrictWorker = field(init=False)
    asked: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    """Prompt and number of output tokens, for each request that was not aborted."""
    said: dict[str, list[int]] = field(default_factory=dict)
    output: SchedulerOutput | None = None
    """The step that the worker has not run yet."""
    running: dict[str, str | None] = field(default_factory=dict)
    """Who ran when it was planned."""
    sampled: dict[str, list[int]] = field(default_factory=dict)
    """What it brought, once the worker has run it."""

    def __post_init__(self) -> None:
        groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(self.specs))
        config = KVCacheConfig(self.num_blocks, groups, prefix_cache_retention_interval=self.retention_interval)
        self.kv = self.manager_class(config)
        limits = SchedulerConfig(**self.limits)
        self.scheduler = Scheduler(self.kv, limits, admission=Greedy(may_jump=self.may_jump))
        self.worker = StrictWorker(self.specs, self.num_blocks, limits.max_num_seqs)

    # Calls of the scheduler, each of them one that may be interrupted.

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 4, **options: Any) -> None:
        """Bring a request."""
        request = self.kv.new_request(name, prompt)
        self.scheduler.add_request(request, max_tokens=max_tokens, **options)
        self.asked[name] = (list(prompt), max_tokens)

    def fork(self, name: str, child: str, token: int = 1, max_tokens: int = 3) -> None:
        """Let a child go on from what the parent has computed."""
        parent = self.scheduler.requests[name]
        tokens = [*parent.token_ids[: parent.num_computed_tokens], token]
        assert self.scheduler.fork_request(name, self.kv.new_request(child, tokens), max_tokens=max_tokens)
        self.asked[child] = (tokens, max_tokens)

    def abort(self, *names: str) -> None:
        """Abort requests."""
        self.scheduler.finish_requests(names)
        for name in names:
            self.asked.pop(name, None)
            self.said.pop(name, None)

    def plan(self) -> None:
        """Plan a step."""
        output = self.scheduler.schedule()
        self.output, self.sampled = output, {}
        self.running = {request.request_id: request.cache_salt for request in self.scheduler.running}

    def update(self) -> None:
        """Bring what the worker has sampled."""
        assert self.output is not None
        for out in self.scheduler.update_from_output(self.output, self.sampled):
            self.said.setdefault(out.request_id, []).extend(out.new_token_ids)
        self.output = None

    def abandon(self) -> None:
        """Give up the step."""
        self.scheduler.abandon_step()
        self.output = None

    # Between them.

    def take_stock(self) -> None:
        """Note who is there after an interrupt: it may have come in the middle of an abort, or at an arrival's end."""
        unfinished = self.scheduler.requests
        over = [name for name, (_, max_tokens) in self.asked.items() if len(self.said.get(name, ())) == max_tokens]
        for name in self.asked.keys() - unfinished.keys() - {*over}:
            del self.asked[name]
            self.said.pop(name, None)
        for name in unfinished.keys() - self.asked.keys():
            request = unfinished[name]
            prompt = list(request.token_ids[: request.num_prompt_tokens])
            self.asked[name] = (prompt, request.max_slots + 1 - len(prompt))

    def work(self) -> "World":
        """Let the worker run the step."""
        assert self.output is not None
        self.worker.take(self.output, self.running)
        self.sampled = self.worker.run(self.output)
        return self

    def step(self, times: int = 1) -> "World":
        """Run whole steps."""
        for _ in range(times):
            self.plan()
            self.work().update()
        return self

    def finish(self) -> dict[str, list[int]]:
        """Run to the end; return what each request has said."""
        if self.output is not None:
            if not self.sampled:
                self.work()
            self.update()
        while self.scheduler.has_unfinished_requests:
            self.step()
        return self.said

    def wanted(self) -> dict[str, list[int]]:
        """Return what each request says if it has the machine to itself."""
        return {name: alone(prompt, max_tokens) for name, (prompt, max_tokens) in self.asked.items()}


def two_decode(num_blocks: int = 9, **options: Any) -> World:
    """A and B, of 4 and 3 tokens, have computed their prompts."""
    world = World(num_blocks, **options)
    world.add("A", [0, 1, 2, 0], 6)
    world.add("B", [2, 1, 0], 6)
    return world.step()


def short_of_blocks() -> World:
    """A and B hold all blocks: A needs another one, so that B has to give way."""
    world = two_decode(num_blocks=6)
    return world.step(1)


def a_window_slides() -> World:
    """The window leaves a block behind, which another request takes in the same step."""
    world = World(13, (FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=3)), {"max_num_batched_tokens": 5})
    world.add("A", [0, 1, 2, 0], 6)
    world.add("B", [2, 1, 0, 0, 1, 1], 3)
    return world.step()


def a_prefix_is_shared() -> World:
    """A has left its last window alone: B, which parts from it earlier, has to keep one where they part."""
    specs = (FullAttentionSpec(2), SlidingWindowSpec(2, sliding_window=4))
    world = World(30, specs, retention_interval=0)
    world.add("A", [0, 1, 2, 0, 1, 1, 2, 2, 0, 1], 2)
    world.step(2)
    world.add("B", [0, 1, 2, 0, 1, 1, 0, 0, 1], 2)
    return world


def forked() -> World:
    """A, B and C share a half-filled block: two of them get a copy in the coming step."""
    world = World(12, (FullAttentionSpec(4), FullAttentionSpec(2)))
    world.add("A", [0, 1, 2, 0, 1], 6)
    world.step()
    world.fork("A", "B", 0)
    world.fork("A", "C", 1)
    return world


def same_prompt_twice() -> World:
    """A and B wait: B will adopt blocks that A is to compute in the same step."""
    world = World(12)
    world.add("A", [0, 1, 2, 0, 1, 1], 3)
    world.add("B", [0, 1, 2, 0, 1, 2, 2], 3)
    return world


def queue_jumping() -> World:
    """L does not fit while A runs; S, behind it, does."""
    world = World(8, may_jump=True)
    world.add("A", [0, 1, 2, 0, 1, 1], 4)
    world.step()
    world.add("L", [2] * 9, 3)
    world.add("S", [1, 1], 2)
    return world


def low_gives_way(manager_class: Callable[[KVCacheConfig], KVCacheManager] = KVCacheManager) -> World:
    """Low came first and takes the last block; then high needs one, and low has to give way in the same step."""
    limits = {"policy": SchedulingPolicy.PRIORITY, "long_prefill_token_threshold": 3, "max_num_batched_tokens": 6}
    world = World(11, limits={**limits, "scheduler_reserve_full_isl": False}, manager_class=manager_class)
    world.add("low", [0, 1, 2, 0, 1, 1, 2, 2, 1, 0, 0, 1, 2, 1, 0, 0, 2], 2, priority=1)
    world.step()
    world.add("high", [2, 2, 2], 3)
    return world.step(2)


def with_drafts() -> World:
    """A has right drafts, B a wrong one."""
    world = two_decode(num_blocks=14, limits={"num_lookahead_tokens": 2})
    right = alone([*world.asked["A"][0], *world.said["A"]], 3)
    world.scheduler.update_draft_token_ids("A", right)
    wrong = (alone([*world.asked["B"][0], *world.said["B"]], 1)[0] + 1) % 3
    world.scheduler.update_draft_token_ids("B", [wrong])
    return world


def with_states() -> World:
    """A layer keeps states; B will start from one that A has left."""
    world = World(14, (FullAttentionSpec(2), MambaSpec(2, shapes=((1,),), dtypes_bytes=(2,))))
    world.add("A", [0, 1, 2, 0], 3)
    world.step(2)
    world.add("B", [0, 1, 2, 0, 1], 2)
    return world


def aborted_in_the_step() -> World:
    """A, whose promise B has adopted, is aborted before the step has run."""
    world = same_prompt_twice()
    world.plan()
    world.abort("A")
    return world


def about_to_end() -> World:
    """A and B say their last token in this step, and C waits."""
    world = two_decode()
    world.step(4)
    world.add("C", [0, 1, 2, 0, 2], 2)
    return world


BETWEEN_STEPS: dict[str, Callable[[], World]] = {
    "nothing yet": lambda: World(9),
    "two decode": two_decode,
    "short of blocks": short_of_blocks,
    "a window slides": a_window_slides,
    "a prefix is shared": a_prefix_is_shared,
    "forked": forked,
    "the same prompt twice": same_prompt_twice,
    "queue jumping": queue_jumping,
    "low gives way": low_gives_way,
    "drafts": with_drafts,
    "states": with_states,
    "about to end": about_to_end,
}
"""Stories that stop before a step is planned."""


def planned(make: Callable[[], World]) -> World:
    """Return the story with its step planned."""
    world = make()
    world.plan()
    return world


IN_A_STEP: dict[str, Callable[[], World]] = {
    **{f"{name}, planned": partial(planned, make) for name, make in BETWEEN_STEPS.items() if name != "nothing yet"},
    "aborted in the step": aborted_in_the_step,
}
"""Stories that stop while a step is under way."""
