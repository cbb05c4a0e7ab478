"""Drives the scheduler with random arrivals, aborts and drafts, on a worker whose memory knows whose KV is whose.

    python -m mini_kv.tests.scheduler_driver --seed 7 --steps 100000

In place of a model stands a rule that anybody can check: the next token is a number made of all tokens before it. The
worker keeps, for each slot, the tokens whose KV it holds. A step writes its tokens and then reads everything that
attention would read; whoever finds another request's tokens in its slots fails at once, and a request's output must be
what it would have been if it had had the machine to itself.
"""

import argparse
import random
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler

Tokens = tuple[int, ...]


class SchedulerFailure(AssertionError):
    """Something that must not happen did; the message begins with the seed and the step."""


@dataclass(frozen=True, slots=True)
class Config:
    """The engine to drive, and how it is used."""

    num_blocks: int = 12
    block_size: int = 4
    limits: SchedulerConfig = field(default_factory=SchedulerConfig)
    enable_caching: bool = True
    num_drafts: int = 0
    """Most tokens proposed for a request at a time."""
    fork_rate: float = 0.0
    """How often a running request is forked, a step."""
    admission: AdmissionPolicy = field(default_factory=Greedy)
    specs: tuple[KVCacheSpec, ...] = ()
    """A group of layers each; empty: one of full attention."""
    max_in_flight_tokens: int | None = None


def window(size: int, block_size: int) -> KVCacheSpec:
    """Return a group of layers with a sliding window."""
    return SlidingWindowSpec(block_size, sliding_window=size)


CONFIGS = (
    Config(limits=SchedulerConfig(max_num_batched_tokens=16)),
    Config(num_blocks=8, block_size=3, limits=SchedulerConfig(max_num_batched_tokens=5, max_num_seqs=4)),
    Config(num_blocks=9, block_size=1, limits=SchedulerConfig(scheduler_reserve_full_isl=False)),
    Config(limits=SchedulerConfig(policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=10)),
    Config(limits=SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=40)),
    Config(limits=SchedulerConfig(long_prefill_token_threshold=3), enable_caching=False),
    Config(num_blocks=16, limits=SchedulerConfig(max_num_batched_tokens=20), fork_rate=0.4),
    Config(num_blocks=20, limits=SchedulerConfig(), fork_rate=0.3, specs=(FullAttentionSpec(4), window(6, 4))),
    Config(limits=SchedulerConfig(num_lookahead_tokens=2, max_num_batched_tokens=12), num_drafts=4),
    Config(num_blocks=30, block_size=2, limits=SchedulerConfig(max_num_batched_tokens=64), num_drafts=2),
    Config(
        num_blocks=30, limits=SchedulerConfig(max_num_batched_tokens=12), specs=(FullAttentionSpec(4), window(6, 4))
    ),
    Config(
        num_blocks=24,
        block_size=2,
        limits=SchedulerConfig(max_num_batched_tokens=8, num_lookahead_tokens=2),
        num_drafts=3,
        specs=(FullAttentionSpec(4), window(5, 2), ChunkedLocalAttentionSpec(2, attention_chunk_size=6)),
        max_in_flight_tokens=8,
    ),
    Config(
        num_blocks=9, limits=SchedulerConfig(max_num_batched_tokens=6), specs=(window(5, 4),), max_in_flight_tokens=6
    ),
)
"""The engines of the test: most of them short of blocks, so that somebody has to give way all the time."""


def next_token(tokens: Sequence[int]) -> int:
    """Return what the "model" says after these tokens: 0, 1 or 2."""
    return zlib.crc32(bytes(tokens)) % 3


def alone(prompt: Tokens, max_tokens: int) -> list[int]:
    """Return the output of a request that has the machine to itself: the obvious way."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Worker:
    """Slots that remember the tokens whose KV they hold."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.kv = kv
        self.managers = kv.coordinator.single_type_managers
        self.slots: dict[tuple[int, int], tuple[int, Tokens]] = {}
        """From (block, offset) to the group and all tokens up to the one whose KV lies there."""

    def run(self, output: SchedulerOutput, requests: dict[str, Request]) -> dict[str, list[int]]:
        """Write the step's tokens, read what attention reads, and return the new tokens."""
        for source, target in reversed(output.kv_cache_block_copies):  # on a GPU they run at once, in no order
            for (block, offset), content in list(self.slots.items()):
                if block == source:
                    self.slots[target, offset] = content
        known = {}
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = requests[name]
            tokens = (*request.token_ids, *output.scheduled_spec_decode_tokens.get(name, ()))
            known[name] = tokens[: request.num_computed_tokens + num_tokens]
            for group in range(len(self.managers)):
                for position in range(request.num_computed_tokens, len(known[name])):
                    self.slots[self._slot(name, group, position)] = (group, tokens[: position + 1])
        sampled = {}
        for name, tokens in known.items():
            request = requests[name]
            for group, manager in enumerate(self.managers):
                for position in range(manager.get_num_skipped_tokens(request.num_computed_tokens), len(tokens)):
                    found = self.slots.get(self._slot(name, group, position))
                    if found != (group, tokens[: position + 1]):
                        message = f"in group {group} {name} reads KV of {found} where that of {tokens} belongs"
                        raise SchedulerFailure(f"I9: {message}")
            if len(tokens) >= request.num_tokens:
                sampled[name] = self._accept(tokens, request.num_tokens)
        return sampled

    def _slot(self, name: str, group: int, position: int) -> tuple[int, int]:
        block_size = self.managers[group].block_size
        return self.kv.get_block_ids(name)[group][position // block_size], position % block_size

    def _accept(self, tokens: Tokens, num_known: int) -> list[int]:
        """Return the drafts that are right, and one token more."""
        accepted = []
        for end in range(num_known, len(tokens) + 1):
            accepted.append(next_token(tokens[:end]))
            if end < len(tokens) and tokens[end] != accepted[-1]:
                break
        return accepted


class Run:
    """One engine under random use."""

    MAX_UNFINISHED = 8

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.rng = random.Random(seed)
        specs = config.specs or (FullAttentionSpec(config.block_size),)
        groups = tuple(KVCacheGroupSpec((f"layers of group {index}",), spec) for index, spec in enumerate(specs))
        self.kv = KVCacheManager(
            KVCacheConfig(config.num_blocks, groups),
            enable_caching=config.enable_caching,
            max_in_flight_tokens=config.max_in_flight_tokens,
        )
        self.scheduler = Scheduler(self.kv, config.limits, admission=config.admission)
        self.worker = Worker(self.kv)
        self.prompts: dict[str, tuple[Tokens, int]] = {}
        self.num_steps = self.num_finished = self.num_aborted = self.num_sent_back_by_aborts = 0
        self.num_forked = self.num_copied = 0
        # The longest request that the pool can serve; windows need less than all of it for each token.
        lengths = range(1, 4 * config.num_blocks)
        self.capacity = max(n for n in lengths if self.kv.num_blocks_needed(n) < config.num_blocks)
        self.document = tuple(self.rng.randrange(3) for _ in range(self.capacity))

    def step(self, *, arrivals: bool = True) -> None:
        """Let requests come and go, and run one step."""
        rng, scheduler = self.rng, self.scheduler
        self.num_steps += 1
        while arrivals and len(scheduler.requests) < self.MAX_UNFINISHED and rng.random() < 0.5:
            self._arrive()
        if arrivals and rng.random() < 0.03:
            self._abort(list(scheduler.requests))
        if arrivals and rng.random() < self.config.fork_rate:
            self._fork()
        for request in scheduler.running:
            if self.config.num_drafts and request.num_computed_tokens == request.num_tokens - 1:
                self._propose(request)
        output = scheduler.schedule()
        self.num_copied += len(output.kv_cache_block_copies)
        self._check_step(output)
        if arrivals and rng.random() < (0.4 if len(output.scheduled_new_reqs) > 1 else 0.03):
            self._abort([data.request_id for data in output.scheduled_new_reqs])  # the step has not run yet
        check_invariants(self.kv)
        sampled = self.worker.run(output, scheduler.requests)
        before = dict(scheduler.requests)
        for out in scheduler.update_from_output(output, sampled):
            if out.finish_reason:
                self._check_output(before[out.request_id])
        check_invariants(self.kv)

    def drain(self) -> None:
        """Let everybody finish. The first in line computes a token a step at least: that bounds the steps."""
        bound = sum(len(prompt) + max_tokens for prompt, max_tokens in self.prompts.values()) + 1
        for _ in range(bound):
            if not self.scheduler.has_unfinished_requests:
                break
            self.step(arrivals=False)
        else:
            raise SchedulerFailure(f"I15: {list(self.scheduler.requests)} are not done after {bound} steps")
        if self.kv.block_pool.num_free_blocks != self.config.num_blocks - 1 or self.kv.requests:
            raise SchedulerFailure("I14: blocks are held although everybody is done")

    def _arrive(self) -> None:
        rng = self.rng
        max_tokens = rng.randrange(1, max(2, self.capacity // 2))
        longest = self.capacity + 1 - max_tokens
        if not self.config.limits.enable_chunked_prefill:
            longest = min(longest, self.config.limits.max_num_batched_tokens)
        fork = rng.randrange(longest)
        prompt = self.document[:fork] + tuple(rng.randrange(3) for _ in range(rng.choice((1, 1, 2, 5))))
        prompt = prompt[:longest]
        name = f"r{len(self.prompts)}"
        self.prompts[name] = (prompt, max_tokens)
        self.scheduler.add_request(self.kv.new_request(name, prompt), max_tokens=max_tokens, priority=rng.randrange(3))

    def _fork(self) -> None:
        """Let a request that decodes go on in two ways, or in two equal ones."""
        through = [
            request for request in self.scheduler.running if request.num_computed_tokens == request.num_tokens - 1
        ]
        if not through:
            return
        parent = self.rng.choice(through)
        prompt = (*parent.token_ids[: parent.num_computed_tokens], self.rng.randrange(3))
        max_tokens = self.rng.randrange(1, 8)
        if len(prompt) + max_tokens > self.capacity:
            return
        name = f"r{len(self.prompts)}"
        if self.scheduler.fork_request(parent.request_id, self.kv.new_request(name, prompt), max_tokens=max_tokens):
            self.prompts[name] = (prompt, max_tokens)
            self.num_forked += 1

    def _abort(self, names: list[str]) -> None:
        if names:
            name = self.rng.choice(names)
            num_preemptions = self.scheduler.num_preemptions
            self.scheduler.finish_requests([name])
            self.num_sent_back_by_aborts += self.scheduler.num_preemptions - num_preemptions
            del self.prompts[name]
            self.prompts[f"{name} (aborted)"] = ((), 0)  # keeps names apart
            self.num_aborted += 1

    def _propose(self, request: Request) -> None:
        drafts: list[int] = []
        for _ in range(self.rng.randrange(self.config.num_drafts + 1)):
            right = next_token([*request.token_ids, *drafts])
            drafts.append(right if self.rng.random() < 0.7 else (right + 1) % 3)
        self.scheduler.update_draft_token_ids(request.request_id, drafts)

    def _check_step(self, output: SchedulerOutput) -> None:
        limits = self.config.limits
        if output.total_num_scheduled_tokens > limits.max_num_batched_tokens:
            raise SchedulerFailure(f"{output.total_num_scheduled_tokens} tokens are over the budget")
        if len(self.scheduler.running) > limits.max_num_seqs:
            raise SchedulerFailure(f"{len(self.scheduler.running)} requests run at once")
        if self.scheduler.has_unfinished_requests and not output.num_scheduled_tokens:
            raise SchedulerFailure("I15: somebody is not done, and nobody runs")
        if (
            limits.policy is SchedulingPolicy.FCFS
            and not self.config.admission.may_jump
            and not self.num_sent_back_by_aborts
            and not self.num_forked
        ):
            served = [request.arrival for request in (*self.scheduler.running, *self.scheduler.waiting)]
            if served != sorted(served):
                raise SchedulerFailure(f"first come is not first served: {served}")
        if any(num_tokens < 1 for num_tokens in output.num_scheduled_tokens.values()):
            raise SchedulerFailure(f"a request runs with no token: {output.num_scheduled_tokens}")

    def _check_output(self, request: Request) -> None:
        prompt, max_tokens = self.prompts[request.request_id]
        wanted = alone(prompt, max_tokens)
        if request.token_ids[len(prompt) :] != wanted:
            raise SchedulerFailure(f"I18: {request.request_id} said {request.token_ids[len(prompt) :]}, not {wanted}")
        self.prompts[request.request_id] = ((), 0)
        self.num_finished += 1


def run(config: Config, seed: int, num_steps: int, steps_per_episode: int = 500) -> list[Run]:
    """Do `num_steps` random steps, in episodes that end with everybody done. Raises `SchedulerFailure`."""
    runs = []
    for episode in range((num_steps + steps_per_episode - 1) // steps_per_episode):
        this = Run(config, seed + episode)
        try:
            for _ in range(min(steps_per_episode, num_steps - episode * steps_per_episode)):
                this.step()
            this.drain()
        except Exception as error:
            message = f"seed {seed + episode}, step {this.num_steps}, {config}: {type(error).__name__}: {error}"
            raise SchedulerFailure(message) from error
        runs.append(this)
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; return 1, with the report on stdout, if something failed."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tests.scheduler_driver")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; each later one has one more")
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args(argv)
    start = time.process_time()
    try:
        for index, config in zip(range(len(CONFIGS)), cycle(CONFIGS), strict=False):
            run(config, options.seed + 100_000 * index, options.steps // len(CONFIGS))
    except SchedulerFailure as failure:
        print(failure)
        return 1
    print(f"{options.steps} steps, nothing wrong, {time.process_time() - start:.1f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
