"""Drives the scheduler with random arrivals, aborts, forks, drafts and abandoned steps, over a pairwise matrix.

    python -m mini_kv.tests.scheduler_driver --matrix --steps 500000

What runs the steps is a `StrictWorker`: it finds a request that reads another one's KV at once. Each request's output
must be what it would have been if the request had had the machine to itself. A life is one engine under use for some
hundred steps; it ends with every request done and every block returned.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.errors import ConfigError, SchedulerError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission import Greedy as GreedyJumping
from mini_kv.policy.admission import Hysteresis, ReservedBlocks, Watermark
from mini_kv.tests.pairwise import Setting, pairwise_rows
from mini_kv.tests.strict_worker import NUM_TOKENS, SchedulerFailure, StrictWorker, alone, next_token

STEPS_PER_LIFE = 250


@dataclass(frozen=True, slots=True)
class Config:
    """The engine to drive, and how it is used."""

    num_blocks: int = 12
    specs: tuple[KVCacheSpec, ...] = (FullAttentionSpec(4),)
    """One per group of layers."""
    limits: SchedulerConfig = field(default_factory=SchedulerConfig)
    admission: AdmissionPolicy = field(default_factory=Greedy)
    enable_caching: bool = True
    retention_interval: int | None = None
    """Which keys windows and states keep; see `KVCacheConfig`."""
    plans_in_flight: bool = False
    """Whether admission counts on steps as long as the scheduler's, as the engine does, or on any length."""
    num_drafts: int = 0
    """Most tokens proposed for a request at a time."""
    fork_rate: float = 0.0
    """How often a running request is forked, per step."""
    num_samples: int = 1
    """Most samples of a prompt; further ones are forked at the first token."""
    num_salts: int = 1
    abort_rate: float = 0.03
    """How often a request is aborted, per step and moment: before the step, in it, after it."""
    abandon_rate: float = 0.0
    """How often a step is given up."""
    stop_token_ids: tuple[int, ...] = ()

    def make_manager(self, manager_class: type[KVCacheManager] = KVCacheManager) -> KVCacheManager:
        """Return a new cache."""
        in_flight = self.limits.max_num_batched_tokens + self.limits.num_lookahead_tokens
        groups = tuple(KVCacheGroupSpec((f"layers of group {i}",), spec) for i, spec in enumerate(self.specs))
        return manager_class(
            KVCacheConfig(self.num_blocks, groups, prefix_cache_retention_interval=self.retention_interval),
            enable_caching=self.enable_caching,
            max_in_flight_tokens=in_flight if self.plans_in_flight else None,
        )


GROUPS: dict[str, tuple[int, tuple[KVCacheSpec, ...]]] = {
    "full": (11, (FullAttentionSpec(4),)),
    "full of 1": (24, (FullAttentionSpec(1),)),
    "full of 2 and 4": (22, (FullAttentionSpec(2), FullAttentionSpec(4))),
    "full and window": (22, (FullAttentionSpec(4), SlidingWindowSpec(4, sliding_window=6))),
    "window": (12, (SlidingWindowSpec(4, sliding_window=5),)),
    "window and chunks": (
        30, (FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=5), ChunkedLocalAttentionSpec(2, attention_chunk_size=6))
    ),
    "states": (24, (FullAttentionSpec(2), MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,)))),
}  # fmt: skip
"""Blocks of a tight pool, and groups of layers."""

DIMENSIONS: dict[str, Sequence[Any]] = {
    "groups": tuple(GROUPS),
    "pool": ("tight", "roomy"),
    "max_num_batched_tokens": (6, 16, 64),
    "max_num_seqs": (8, 2),
    "max_model_len": (1 << 20, 18),
    "enable_chunked_prefill": (True, False),
    "long_prefill_token_threshold": (0, 3),
    "num_lookahead_tokens": (0, 2),
    "policy": tuple(SchedulingPolicy),
    "scheduler_reserve_full_isl": (True, False),
    "admission": (Greedy(), GreedyJumping(may_jump=True), ReservedBlocks(2), Watermark(0.1), "hysteresis"),
    "enable_caching": (True, False),
    "retention_interval": (None, 0, 8),
    "plans_in_flight": (True, False),
    "num_drafts": (0, 4),
    "fork_rate": (0.0, 0.3),
    "num_samples": (1, 3),
    "num_salts": (1, 2),
    "abort_rate": (0.0, 0.03, 0.3),
    "abandon_rate": (0.0, 0.05),
    "stop_token_ids": ((), (2,)),
}
"""What the matrix varies."""

LIMITS = {
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill", "policy",
    "long_prefill_token_threshold", "num_lookahead_tokens", "scheduler_reserve_full_isl",
}  # fmt: skip


def cannot_meet(one: Setting, other: Setting) -> bool:
    """Return whether the engine refuses these two settings together: a state forgets no token, and has one reader."""
    refused = {"retention_interval"} if str(one[1]).startswith("full of") or one[1] == "full" else set()
    if one == ("groups", "states"):
        refused = {"num_lookahead_tokens", "num_drafts", "fork_rate", "num_samples"}
    return one[0] == "groups" and other[0] in refused and other[1] != DIMENSIONS[other[0]][0]


def config_of(row: dict[str, Any]) -> Config:
    """Return the engine that a row of the matrix describes."""
    values = dict(row)
    num_blocks, specs = GROUPS[values.pop("groups")]
    if values.pop("pool") == "roomy":
        num_blocks *= 3
    if values["admission"] == "hysteresis":  # it keeps a state, so each engine has its own
        values["admission"] = Hysteresis(0.9, 0.5)
    limits = SchedulerConfig(**{name: values.pop(name) for name in LIMITS})
    return Config(num_blocks=num_blocks, specs=specs, limits=limits, **values)


def matrix(seed: int = 0) -> list[Config]:
    """Return engines in which every two settings meet."""
    return [config_of(row) for row in pairwise_rows(DIMENSIONS, seed, excluded=cannot_meet)]


CONFIGS = tuple(matrix())
"""The engines of the test: half of them short of blocks, so that requests have to give way all the time."""


@dataclass(slots=True)
class Order:
    """What was asked for under a name."""

    prompt: tuple[int, ...]
    max_tokens: int
    cache_salt: str | None = None
    num_further_samples: int = 0
    """Samples that begin when the first token is known."""


class Run:
    """One engine under random use."""

    MAX_UNFINISHED = 8

    def __init__(
        self,
        config: Config,
        seed: int,
        check_every: int = 1,
        *,
        scheduler_class: type[Scheduler] = Scheduler,
        manager_class: type[KVCacheManager] = KVCacheManager,
    ) -> None:
        self.config = config
        self.check_every = check_every
        self.rng = random.Random(seed)
        self.kv = config.make_manager(manager_class)
        self.scheduler = scheduler_class(self.kv, config.limits, admission=deepcopy(config.admission))
        self.worker = StrictWorker(config.specs, config.num_blocks, config.limits.max_num_seqs)
        self.orders: dict[str, Order] = {}
        self.done: Counter[str] = Counter()
        """Operations, and what became of requests."""
        self.num_steps = 0
        self.num_names = 0
        # The longest request that the pool can serve; windows need less than all of it for each token.
        lengths = range(1, min(4 * config.num_blocks, config.limits.max_model_len))
        self.capacity = max(n for n in lengths if self.kv.num_blocks_needed(n) < config.num_blocks)
        if not config.limits.enable_chunked_prefill and not config.limits.long_prefill_token_threshold:
            self.capacity = min(self.capacity, config.limits.max_num_batched_tokens + 2)  # some are refused
        self.document = tuple(self.rng.randrange(NUM_TOKENS) for _ in range(self.capacity))

    @property
    def num_operations(self) -> int:
        """How many calls changed the scheduler, or were refused by it."""
        return sum(self.done[name] for name in OPERATIONS)

    def step(self, *, arrivals: bool = True) -> None:
        """Let requests come and go, and run one step."""
        rng, scheduler = self.rng, self.scheduler
        self.num_steps += 1
        if arrivals:
            self._come_and_go()
        self._propose()
        if not scheduler.has_unfinished_requests:
            return
        output = self._schedule()
        running = {request.request_id: request.cache_salt for request in scheduler.running}
        planned = [scheduler.requests[name] for name in output.num_scheduled_tokens]
        if arrivals:
            # Before the step has run; what was just admitted is what others of the step may have adopted from.
            self._abort([data.request_id for data in output.scheduled_new_reqs], self.config.abort_rate)
            if len(scheduler.requests) < self.MAX_UNFINISHED and rng.random() < 0.1:
                self._arrive()  # perhaps under the name of one that was just aborted
            if rng.random() < self.config.abandon_rate:
                self._abandon(output, planned, running)
                return
        self.worker.take(output, running)
        sampled = self.worker.run(output)
        if arrivals:
            self._abort(list(scheduler.requests), self.config.abort_rate / 3)
        before = dict(scheduler.requests)
        self.done["update"] += 1
        outputs = scheduler.update_from_output(output, sampled)
        for out in outputs:
            if out.finish_reason:
                self._check_output(before[out.request_id], out)
        for out in outputs:
            self._begin_further_samples(out)
        if self.num_steps % self.check_every == 0:
            check_invariants(self.kv)

    def drain(self) -> None:
        """Let every request finish: the first in line computes a token per step at least, and that bounds the steps."""
        left = [request.max_slots + 1 for request in self.scheduler.requests.values()]
        bound = (sum(left) + 1) * (1 + len(left)) * self.config.num_samples
        for _ in range(bound):
            if not self.scheduler.has_unfinished_requests:
                break
            self.step(arrivals=False)
        else:
            raise SchedulerFailure(f"I15: {list(self.scheduler.requests)} are not done after {bound} steps")
        check_invariants(self.kv)
        if self.kv.block_pool.num_free_blocks != self.config.num_blocks - 1 or self.kv.requests:
            raise SchedulerFailure("I14: blocks are held although every request is done")

    # Requests come and go.

    def _come_and_go(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        while len(scheduler.requests) < self.MAX_UNFINISHED and rng.random() < 0.5:
            self._arrive()
        self._abort(list(scheduler.requests), self.config.abort_rate)
        if rng.random() < self.config.fork_rate:
            self._fork()

    def _arrive(self) -> None:
        rng = self.rng
        max_tokens = rng.randrange(1, max(2, self.capacity // 2))
        longest = max(1, self.capacity + 1 - max_tokens)
        fork = rng.randrange(longest)
        prompt = self.document[:fork] + tuple(rng.randrange(NUM_TOKENS) for _ in range(rng.choice((1, 1, 2, 5))))
        salt = f"tenant {rng.randrange(self.config.num_salts)}" if self.config.num_salts > 1 else None
        num_further_samples = rng.randrange(self.config.num_samples)
        self._add(
            Order(prompt[:longest], max_tokens, salt, num_further_samples),
            rng.randrange(3),
            old_name=rng.random() < 0.3,
        )

    def _add(self, order: Order, priority: int = 0, *, old_name: bool = False) -> bool:
        """Bring a request; return whether it was accepted."""
        name, request = self._new_request(order, old_name=old_name)
        self.done["add"] += 1
        try:
            self.scheduler.add_request(
                request, max_tokens=order.max_tokens, stop_token_ids=self.config.stop_token_ids, priority=priority
            )
        except ConfigError:
            self.done["refused"] += 1
            if name in self.scheduler.requests:
                raise SchedulerFailure(f"I11: {name} was refused, and is there") from None
            return False
        self.orders[name] = order
        return True

    def _new_request(self, order: Order, *, old_name: bool = False) -> tuple[str, Request]:
        """Return a request under a new name, or under one whose bearer is gone: nothing must be left of that."""
        self.num_names += 1
        name = f"r{self.num_names}"
        gone = [name for name in self.orders if name not in self.scheduler.requests] if old_name else []
        if gone:
            name = gone[-1] if self.rng.random() < 0.5 else self.rng.choice(gone)
        return name, self.kv.new_request(name, order.prompt, cache_salt=order.cache_salt)

    def _fork(self) -> None:
        """Let a request that decodes go on in two ways, or in two equal ones."""
        decoding = [r for r in self.scheduler.running if r.num_computed_tokens == r.num_tokens - 1]
        if decoding:
            parent = self.rng.choice(decoding)
            prompt = (*parent.token_ids[: parent.num_computed_tokens], self.rng.randrange(NUM_TOKENS))
            self._fork_from(parent.request_id, Order(prompt, self.rng.randrange(1, 8), parent.cache_salt))

    def _fork_from(self, parent_id: str, order: Order) -> bool:
        name, child = self._new_request(order)
        self.done["fork"] += 1
        try:
            forked = self.scheduler.fork_request(parent_id, child, max_tokens=order.max_tokens)
        except ConfigError:
            self.done["refused"] += 1
            return False
        if forked:
            self.done["forked"] += 1
            self.orders[name] = order
        return forked

    def _begin_further_samples(self, out: EngineCoreOutput) -> None:
        """As the engine does: each further sample has its own first token, and the prompt's blocks where it can."""
        order = self.orders[out.request_id]
        parent = self.scheduler.requests.get(out.request_id)
        can_share = parent is not None and parent.num_computed_tokens == len(order.prompt)
        num_samples, order.num_further_samples = order.num_further_samples, 0
        limits = self.config.limits
        for index in range(num_samples):
            prompt = (*order.prompt, (out.new_token_ids[0] + index) % NUM_TOKENS)
            child = Order(prompt, order.max_tokens - 1, order.cache_salt)
            if child.max_tokens == 0 or len(prompt) >= limits.max_model_len:
                continue
            if can_share and self._fork_from(out.request_id, child):
                continue
            if not self._add(child):
                message = f"a further sample of {out.request_id} was refused, which needs no more than the first"
                raise SchedulerFailure(f"I15: {message}: {len(prompt)} + {child.max_tokens} tokens")

    def _abort(self, names: list[str], rate: float) -> None:
        if not names or self.rng.random() >= rate:
            return
        gone = self.rng.sample(names, min(len(names), self.rng.choice((1, 1, 2))))
        self.done["abort"] += 1
        self.done["aborted"] += len(gone)
        self.scheduler.finish_requests([*gone, "unknown"])

    def _propose(self) -> None:
        for request in self.scheduler.running if self.config.num_drafts else ():
            if request.num_computed_tokens != request.num_tokens - 1:
                continue
            drafts: list[int] = []
            for _ in range(self.rng.randrange(self.config.num_drafts + 1)):
                right = next_token([*request.token_ids, *drafts], request.cache_salt)
                drafts.append(right if self.rng.random() < 0.7 else (right + 1) % NUM_TOKENS)
            self.done["draft"] += 1
            self.scheduler.update_draft_token_ids(request.request_id, drafts)

    # Steps.

    def _schedule(self) -> SchedulerOutput:
        """Plan a step, and check what can be seen from outside."""
        self.done["schedule"] += 1
        output = self.scheduler.schedule()
        self.done["copied"] += len(output.kv_cache_block_copies)
        if self.num_steps % self.check_every == 0:
            check_invariants(self.kv)
        limits = self.config.limits
        if output.total_num_scheduled_tokens > limits.max_num_batched_tokens:
            raise SchedulerFailure(f"{output.total_num_scheduled_tokens} tokens are over the budget")
        if len(self.scheduler.running) > limits.max_num_seqs:
            raise SchedulerFailure(f"{len(self.scheduler.running)} requests run at once")
        if not output.num_scheduled_tokens:
            raise SchedulerFailure("I15: the step is empty although requests are not done")
        if any(num_tokens < 1 for num_tokens in output.num_scheduled_tokens.values()):
            raise SchedulerFailure(f"a request runs with no token: {output.num_scheduled_tokens}")
        # Where an abandoned step sends requests back, or a fork enters, the order is another one.
        in_order = limits.policy is SchedulingPolicy.FCFS and not self.config.admission.may_jump
        if in_order and not (self.done["abandon"] or self.done["forked"]):
            served = [request.arrival for request in (*self.scheduler.running, *self.scheduler.waiting)]
            if served != sorted(served):
                raise SchedulerFailure(f"first come is not first served: {served}")
        return output

    def _abandon(self, output: SchedulerOutput, planned: Sequence[Request], running: Mapping[str, str | None]) -> None:
        """Give the step up: before the worker has seen it, after it has taken it in, or after it has run it."""
        how_far = self.rng.randrange(3)
        if how_far > 0:
            self.worker.take(output, running)
        if how_far > 1:
            self.worker.run(output)
        self.done["abandon"] += 1
        self.scheduler.abandon_step()
        check_invariants(self.kv)
        waiting = list(self.scheduler.waiting)
        for request in planned:
            if self.scheduler.requests.get(request.request_id) is not request:
                continue  # it was aborted
            if request.status is not RequestStatus.PREEMPTED or request not in waiting or request.num_computed_tokens:
                raise SchedulerFailure(f"{request} was in the step that was given up, and does not wait from the start")
        try:
            self.scheduler.update_from_output(output, {})
        except SchedulerError:
            return
        raise SchedulerFailure("results of a step that was given up were taken in")

    def _check_output(self, request: Request, out: EngineCoreOutput) -> None:
        order = self.orders[request.request_id]
        room = self.config.limits.max_model_len - len(order.prompt)
        wanted = alone(order.prompt, min(order.max_tokens, room), order.cache_salt)
        stop = next((i for i, token in enumerate(wanted) if token in self.config.stop_token_ids), None)
        reason = "length" if stop is None else "stop"
        wanted = wanted if stop is None else wanted[: stop + 1]
        said = request.token_ids[len(order.prompt) :]
        if (said, out.finish_reason) != (wanted, reason):
            message = f"{request.request_id} said {said} ({out.finish_reason}), not {wanted} ({reason})"
            raise SchedulerFailure(f"I18: {message}")
        self.done["finished"] += 1


OPERATIONS = ("add", "abort", "fork", "draft", "schedule", "update", "abandon")


def run(config: Config, seed: int, num_steps: int, check_every: int = 1, **parts: Any) -> list[Run]:
    """Do `num_steps` random steps, in lives that end with every request done. Raises `SchedulerFailure`."""
    lives = []
    for life in range((num_steps + STEPS_PER_LIFE - 1) // STEPS_PER_LIFE):
        this = Run(config, seed + life, check_every, **parts)
        try:
            for _ in range(min(STEPS_PER_LIFE, num_steps - life * STEPS_PER_LIFE)):
                this.step()
            this.drain()
        except Exception as error:
            message = f"seed {seed + life}, step {this.num_steps}, {config}: {type(error).__name__}: {error}"
            raise SchedulerFailure(message) from error
        lives.append(this)
    return lives


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; return 1, with the report on stdout, if something failed."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tests.scheduler_driver")
    parser.add_argument("--seed", type=int, default=0, help="of the first life; each later one has one more")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--matrix", action="store_true", help="another matrix for each seed, not that of the test")
    parser.add_argument("--check-every", type=int, default=1, help="steps between two checks of all invariants")
    options = parser.parse_args(argv)
    start = time.process_time()
    configs = matrix(options.seed) if options.matrix else CONFIGS
    done: Counter[str] = Counter()
    failures = []
    for index, config in enumerate(configs):
        num_steps = options.steps // len(configs) + (index < options.steps % len(configs))
        try:
            for life in run(config, options.seed + 100_000 * index, num_steps, options.check_every):
                done += life.done
        except SchedulerFailure as failure:
            failures.append(failure)
            print(failure)
    seconds = time.process_time() - start
    num_operations = sum(done[name] for name in OPERATIONS)
    print(", ".join(f"{number:,} {name}" for name, number in done.most_common()))
    what = f"{len(failures)} configurations failed" if failures else "nothing wrong"
    print(f"{num_operations:,} operations over {len(configs)} configurations, {what}, {seconds:.1f} s of CPU")
    print(f"seeds from {options.seed}, invariants every {options.check_every} steps and at the end of each life")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
