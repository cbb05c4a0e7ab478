"""The two ways of requests through the cache. Both are generators: the caller counts what it needs after each item.

    sequential      prompts in the order of the trace, each computed as soon as it is admitted; answers take no blocks
    scheduled       requests with their answers through `Scheduler`: they wait, run in steps, and are preempted

There is no model. `curve` has a third way, which computes the hits in pools of all sizes at once.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.mamba_manager import mamba_block_aligned_split
from mini_kv.core.request import Request
from mini_kv.core.sched.config import can_ever_run
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.sched.scheduler_checks import max_slots
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.tools.traces.prompt_hashes import Prompt

ANSWER = 2
"""The token of every answer. It is neither 0 nor 1, because these need a check for booleans."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The groups and the pool of a run."""

    groups: tuple[KVCacheGroupSpec, ...]
    num_blocks: int | None = None
    """Size of the pool, the null block included. `None`: nothing is ever evicted."""
    step: int = 8192
    """The most tokens per step."""
    retention: int | None = None
    """See `KVCacheConfig.prefix_cache_retention_interval`."""

    @property
    def hash_block_size(self) -> int:
        """Tokens per block hash."""
        return gcd(*(group.kv_cache_spec.block_size for group in self.groups))

    @property
    def boundary(self) -> int:
        """Tokens between two places where the blocks of all groups end. Hits can end only there."""
        return lcm(*(group.kv_cache_spec.block_size for group in self.groups))

    @property
    def has_given_blocks(self) -> bool:
        """Whether the model's groups decide how long a block is, so that it cannot be chosen freely."""
        return len(self.groups) > 1

    def make_manager(self, prompts: Iterable[Prompt]) -> KVCacheManager:
        """Return a manager for these prompts. It has no blocks that they would never use."""
        sizes = [group.kv_cache_spec.block_size for group in self.groups]
        enough = 1 + sum(-(-prompt.num_tokens // size) for prompt in prompts for size in sizes)
        num_blocks = enough if self.num_blocks is None else min(self.num_blocks, enough)
        config = KVCacheConfig(num_blocks, self.groups, self.retention)
        return KVCacheManager(config, max_in_flight_tokens=self.step)


def full_attention(block_size: int) -> tuple[KVCacheGroupSpec, ...]:
    """Return one group of full attention: a trace's own blocks, without a model."""
    return (KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size)),)


def make_requests(prompts: Iterable[Prompt]) -> Iterator[Request]:
    """Yield a request per prompt. Its id is the number of the prompt."""
    for number, prompt in enumerate(prompts):
        yield Request(str(number), num_tokens=prompt.num_tokens, block_hashes=prompt.block_hashes)


def sequential(kv: KVCacheManager, prompts: Iterable[Prompt], *, concurrency: int = 1) -> Iterator[int | None]:
    """Admit the prompts in order. Yield the hit tokens of each, or `None` if it is larger than the pool.

    Up to `concurrency` requests hold their blocks at once. The oldest is freed when a new one needs its place or its
    blocks. A prompt is computed in steps of at most the manager's `max_in_flight_tokens`, or in one step.
    """
    num_blocks = len(kv.block_pool.blocks)
    running: deque[Request] = deque()
    for request in make_requests(prompts):
        if kv.num_blocks_needed(request.num_tokens) > num_blocks - 1:
            yield None
            continue
        if len(running) == concurrency:
            kv.free(running.popleft())
        # One lookup is enough: freeing a request removes no block from the index, so the hit does not change.
        hit, num_hit_tokens = kv.get_computed_blocks(request)
        request.num_computed_tokens = num_hit_tokens
        request.shared_prefix_boundary = kv.coordinator.shared_prefix_boundary(request, num_hit_tokens)
        while request.num_computed_tokens < request.num_tokens:
            num_new_tokens = _num_in_step(kv, request)
            while kv.allocate_slots(request, num_new_tokens, new_computed_blocks=hit) is None:
                if not running:
                    raise ConfigError(f"a prompt of {request.num_tokens:,} tokens cannot grow in {num_blocks} blocks")
                kv.free(running.popleft())
            hit = kv.empty_kv_cache_blocks
            request.num_computed_tokens += num_new_tokens
        running.append(request)
        yield num_hit_tokens


def _num_in_step(kv: KVCacheManager, request: Request) -> int:
    """Return the number of tokens of the prompt that the next step computes.

    A layer with states keeps one where a step ends, so the step ends where the state can be shared.
    """
    step = kv.max_in_flight_tokens or request.num_tokens
    num_new_tokens = min(step, request.num_tokens - request.num_computed_tokens)
    if not kv.coordinator.has_states:
        return num_new_tokens
    return mamba_block_aligned_split(request, request.num_computed_tokens, num_new_tokens, kv.block_size, step)


class Arrival(NamedTuple):
    """A request that will be sent to the scheduler."""

    request: Request
    max_tokens: int
    """Tokens of its answer, at least 1."""
    step: float = 0
    """The time of its arrival, counted in steps. Only a clock uses it."""

    def can_run(self, scheduler: Scheduler) -> bool:
        """Return whether the request can ever run. If not, the scheduler refuses it."""
        kv, config = scheduler.kv_cache_manager, scheduler.config
        slots = max_slots(config, self.request, self.max_tokens)
        return can_ever_run(kv, config, self.request.num_tokens, slots) is None


@dataclass
class Clock:
    """The time of a run, counted in steps."""

    now: int = 0
    """The number of the current step."""


class ServedStep(NamedTuple):
    """A step that has run."""

    computed: dict[str, int]
    """Computed tokens, before the step, of each request that was running."""
    output: SchedulerOutput
    results: list[EngineCoreOutput]


def scheduled(
    scheduler: Scheduler,
    arrivals: Sequence[Arrival],
    clock: Clock | None = None,
    on_planned: Callable[[SchedulerOutput], None] | None = None,
) -> Iterator[ServedStep]:
    """Send the requests to the scheduler and run its steps until all have ended. Yield each step.

    Args:
        scheduler: one that the caller can inspect during the run. A traced manager in it records the run.
        arrivals: the requests, in order.
        clock: lets each request arrive at its step. Time without a request passes without a step. `None`: a request
            arrives as soon as there are fewer unfinished ones than may run at once.
        on_planned: called in each step between its plan and its results.

    Raises `ConfigError` when a request arrives that can never run.
    """

    def worker(output: SchedulerOutput) -> dict[str, list[int]]:
        if on_planned is not None:
            on_planned(output)
        return sample_ready(scheduler, output, lambda _: ANSWER)

    def arrives(number: int) -> bool:
        if clock is None:
            return len(scheduler.requests) < scheduler.config.max_num_seqs
        return arrivals[number].step <= clock.now

    num_arrived = 0
    while num_arrived < len(arrivals) or scheduler.has_unfinished_requests:
        if clock is not None and not scheduler.has_unfinished_requests:
            clock.now = max(clock.now, math.ceil(arrivals[num_arrived].step))
        while num_arrived < len(arrivals) and arrives(num_arrived):
            arrival = arrivals[num_arrived]
            scheduler.add_request(arrival.request, max_tokens=arrival.max_tokens)
            num_arrived += 1
        computed = {request.request_id: request.num_computed_tokens for request in scheduler.running}
        yield ServedStep(computed, *run_step(scheduler, worker))
        if clock is not None:
            clock.now += 1
