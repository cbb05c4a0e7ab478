"""Prompts through the real cache manager with a model's groups, and through the real scheduler.

    prompts         one request at a time, in steps of at most `step` tokens; answers take no blocks
    served          up to C requests at once, with their answers, through `Scheduler`: requests wait and are preempted

A layer with states keeps one where a step ends. Both kinds of runs end their steps where it can be shared: see
`mamba_block_aligned_split`.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from math import gcd, lcm

from mini_kv.core.block import BlockHash
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.mamba_manager import mamba_block_aligned_split
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig, can_ever_run
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tools.traces.prompt_hashes import Prompt

_ANSWER = 2
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


@dataclass(frozen=True, slots=True)
class ServedRun:
    """The result of a run through the scheduler."""

    hits: list[int | None]
    """Hit tokens of each request at its first admission. `None`: refused."""
    num_preemptions: int
    tokens_again: int
    """Tokens that preempted requests had computed, or hit, and did not find again at their next admission."""


def run_prompts(prompts: Sequence[Prompt], setup: Setup) -> list[int | None]:
    """Return the hit tokens of each request, one at a time. `None`: larger than the pool. Costs O(blocks)."""
    kv = _manager(prompts, setup)
    hits: list[int | None] = []
    for number, prompt in enumerate(prompts):
        if kv.num_blocks_needed(prompt.num_tokens) > len(kv.block_pool.blocks) - 1:
            hits.append(None)
            continue
        request = Request(str(number), num_tokens=prompt.num_tokens, block_hashes=prompt.block_hashes)
        hit, num_hit = kv.get_computed_blocks(request)
        request.num_computed_tokens = num_hit
        request.shared_prefix_boundary = kv.coordinator.shared_prefix_boundary(request, num_hit)
        while request.num_computed_tokens < request.num_tokens:
            num_new_tokens = _num_in_step(kv, request, setup.step)
            if kv.allocate_slots(request, num_new_tokens, new_computed_blocks=hit) is None:
                raise ConfigError(f"a prompt of {prompt.num_tokens:,} tokens cannot grow in {setup.num_blocks} blocks")
            hit = kv.empty_kv_cache_blocks
            request.num_computed_tokens += num_new_tokens
        kv.free(request)
        hits.append(num_hit)
    return hits


def _manager(prompts: Sequence[Prompt], setup: Setup) -> KVCacheManager:
    enough = 1 + sum(
        -(-prompt.num_tokens // group.kv_cache_spec.block_size) for prompt in prompts for group in setup.groups
    )
    num_blocks = enough if setup.num_blocks is None else min(setup.num_blocks, enough)
    config = KVCacheConfig(num_blocks, setup.groups, setup.retention)
    return KVCacheManager(config, max_in_flight_tokens=setup.step)


def _num_in_step(kv: KVCacheManager, request: Request, step: int) -> int:
    """Return the number of tokens of the prompt that the next step computes."""
    num_new_tokens = min(step, request.num_tokens - request.num_computed_tokens)
    if not kv.coordinator.has_states:
        return num_new_tokens
    return mamba_block_aligned_split(request, request.num_computed_tokens, num_new_tokens, kv.block_size, step)


def run_served(prompts: Sequence[Prompt], answers: Sequence[int], setup: Setup, concurrency: int) -> ServedRun:
    """Serve the prompts with answers of these lengths, at most `concurrency` unfinished at once.

    Costs O(blocks * concurrency + requests * concurrency): steps in which nothing happens are skipped.
    """
    kv = _manager(prompts, setup)
    config = SchedulerConfig(max_num_batched_tokens=setup.step, max_num_seqs=concurrency)
    scheduler = Scheduler(kv, config)
    requests: list[Request | None] = []
    to_come = deque(zip(prompts, answers, strict=True))
    preempted: set[str] = set()
    tokens_again = 0
    while to_come or scheduler.has_unfinished_requests:
        while to_come and len(scheduler.requests) < concurrency:
            requests.append(_add(scheduler, str(len(requests)), *to_come.popleft()))
        if not scheduler.has_unfinished_requests:
            break
        computed = {request.request_id: request.num_computed_tokens for request in scheduler.running}
        output = scheduler.schedule()
        tokens_again += sum(computed[request_id] for request_id in output.preempted_req_ids)
        tokens_again -= sum(
            data.num_computed_tokens for data in output.scheduled_new_reqs if data.request_id in preempted
        )
        preempted.update(output.preempted_req_ids)
        results = scheduler.update_from_output(output, {name: [_ANSWER] for name in _through(scheduler, output)})
        if all(result.finish_reason is None for result in results):
            _skip_quiet_steps(scheduler, output)
    hits = [None if request is None else request.num_cached_tokens for request in requests]
    return ServedRun(hits, scheduler.num_preemptions, tokens_again)


def _add(scheduler: Scheduler, name: str, prompt: Prompt, answer: int) -> Request | None:
    """Add a request and return it, or `None` if the pool is too small for it."""
    request = Request(name, num_tokens=prompt.num_tokens, block_hashes=prompt.block_hashes)
    max_tokens = max(answer, 1)
    num_slots = prompt.num_tokens + max_tokens - 1
    if can_ever_run(scheduler.kv_cache_manager, scheduler.config, prompt.num_tokens, num_slots) is not None:
        return None
    scheduler.add_request(request, max_tokens=max_tokens)
    return request


def _through(scheduler: Scheduler, output: SchedulerOutput) -> Iterator[str]:
    """Yield the requests of a step whose known tokens are all computed after it."""
    for name, num_tokens in output.num_scheduled_tokens.items():
        request = scheduler.requests[name]
        if request.num_computed_tokens + num_tokens == request.num_tokens:
            yield name


def _skip_quiet_steps(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Give all requests the tokens of the next steps at once, up to the first step that could do anything else.

    The last step must not have admitted, preempted or ended a request. Then the next steps admit none either, because
    the pool does not change while all running requests have quiet steps (`KVCacheManager.num_quiet_steps`).
    """
    if output.scheduled_new_reqs or output.preempted_req_ids:
        return
    num_steps = sys.maxsize
    for request in scheduler.running:
        num_quiet = scheduler.kv_cache_manager.num_quiet_steps(request)
        is_decoding = request.num_computed_tokens + 1 == request.num_tokens
        was_in_step = request.request_id in output.num_scheduled_tokens
        num_until_end = min(num_quiet, request.max_slots - request.num_tokens)
        num_steps = min(num_steps, num_until_end if is_decoding and was_in_step else 0)
    if num_steps > 0:
        for request in scheduler.running:
            request.append_output_token_ids(*[_ANSWER] * num_steps)
            request.num_computed_tokens += num_steps


def belady_hit_blocks(prompts: Sequence[Prompt], block_size: int, num_blocks: int) -> int:
    """Return the most blocks that any policy can hit in this pool, the null block included, one request at a time.

    Each miss evicts the block with the farthest next use. It is a bound, not a policy, because here a request takes its
    blocks one by one, but a real pool must hold all of them at once. Refused prompts are ignored.

    Source: Belady (1966), doi.org/10.1147/sj.52.0078. Costs O(blocks + requests * log(requests)).
    """
    fitting = [prompt for prompt in prompts if -(-prompt.num_tokens // block_size) < num_blocks]
    following: list[list[int]] = []
    next_use: dict[BlockHash, int] = {}
    for number in range(len(fitting) - 1, -1, -1):
        chain = fitting[number].block_hashes
        following.append(list(map(next_use.get, chain, repeat(len(fitting)))))
        next_use.update(dict.fromkeys(chain, number))
    held = _HeldBlocks()
    num_hits, num_free = 0, num_blocks - 1
    for number, (prompt, uses) in enumerate(zip(fitting, reversed(following), strict=True)):
        run: list[BlockHash] = []
        use_of_run = -1
        for block_hash, use in zip(prompt.block_hashes, uses, strict=True):
            if block_hash in held.next_use:
                num_hits += 1
            elif num_free:
                num_free -= 1
            else:
                held.evict_farthest()
            if use != use_of_run or not run:
                run, use_of_run = held.new_run(use), use
            run.append(block_hash)
            held.next_use[block_hash] = use
        held.runs.pop(number, None)  # all of these have been used now
    return num_hits


class _HeldBlocks:
    """The blocks that Belady's policy holds, by the request that uses them next.

        request 1    a0 a1 a2 a3         request 5 uses all four next: a run of these
        request 3    a0 a1 b2            request 5 uses a0 and a1 next: a second run. In the first one they are outdated

    A block hash covers all blocks before it, too. So a later request leaves, for the same next request, blocks that are
    nearer to its beginning. Of several runs the first run's last block is used last.
    """

    def __init__(self) -> None:
        self.next_use: dict[BlockHash, int] = {}
        """Per block that is held, the request that uses it next."""
        self.runs: dict[int, list[list[BlockHash]]] = {}
        """Per request the blocks that it uses next, those of one earlier request in a run, from its first block on."""
        self._farthest: list[int] = []
        """A heap of the requests in `runs`, the last one first: negative numbers."""

    def new_run(self, use: int) -> list[BlockHash]:
        """Return a new run of blocks that this request uses next, for the caller to fill."""
        run: list[BlockHash] = []
        if use not in self.runs:
            self.runs[use] = []
            heappush(self._farthest, -use)
        self.runs[use].append(run)
        return run

    def evict_farthest(self) -> None:
        """Drop the block whose next use is the farthest."""
        while True:
            use = -self._farthest[0]
            runs = self.runs.get(use, [])
            while runs and not runs[0]:
                del runs[0]
            if not runs:
                self.runs.pop(use, None)
                heappop(self._farthest)
                continue
            victim = runs[0].pop()
            if self.next_use.get(victim) == use:
                del self.next_use[victim]
                return
