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
from dataclasses import dataclass
from typing import Any

from mini_kv.core.errors import ConfigError, SchedulerError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.mamba_manager import MambaManager
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tests.scheduler_matrix import CONFIGS, Config, matrix
from mini_kv.tests.strict_worker import NUM_TOKENS, SchedulerFailure, StrictWorker, alone, next_token

STEPS_PER_LIFE = 250


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
        scheduler = self.scheduler
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
            self._meddle(output)
            if self.rng.random() < self.config.abandon_rate:
                self._abandon(output, planned, running)
                return
        self.worker.take(output, running)
        sampled = self.worker.run(output)
        if arrivals:
            self._abort(list(scheduler.requests), self.config.abort_rate / 3)
        before = dict(scheduler.requests)
        self.done["update"] += 1
        outputs = scheduler.update_from_output(output, sampled)
        self._check_states(planned)
        for out in outputs:
            if out.finish_reason:
                self._check_output(before[out.request_id], out)
        for out in outputs:
            self._begin_further_samples(out)
        if self.num_steps % self.check_every == 0:
            check_invariants(self.kv)

    def _meddle(self, output: SchedulerOutput) -> None:
        """Abort and add requests before the step has run; others of it may have adopted from those just admitted."""
        self._abort([data.request_id for data in output.scheduled_new_reqs], self.config.abort_rate)
        if len(self.scheduler.requests) < self.MAX_UNFINISHED and self.rng.random() < 0.1:
            self._arrive()  # perhaps under the id of one that was just aborted

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
        self._check_order()
        return output

    def _check_order(self) -> None:
        """Check that requests are served as they came; an abandoned step or a fork changes the order."""
        in_order = self.config.limits.policy is SchedulingPolicy.FCFS and not self.config.admission.may_jump
        served = [request.arrival for request in (*self.scheduler.running, *self.scheduler.waiting)]
        if in_order and not (self.done["abandon"] or self.done["forked"]) and served != sorted(served):
            raise SchedulerFailure(f"first come is not first served: {served}")

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

    def _check_states(self, planned: Sequence[Request]) -> None:
        """Raise unless each computed prompt has left the state that the same prompt needs: else it never hits."""
        managers = [each for each in self.kv.coordinator.single_type_managers if isinstance(each, MambaManager)]
        if not self.kv.enable_caching:
            return
        for request in planned:
            is_admitted = self.kv.requests.get(request.request_id) is request
            if not is_admitted or request.num_computed_tokens < request.num_prompt_tokens:
                continue
            needed = (request.num_prompt_tokens - 1) // self.kv.block_size * self.kv.block_size
            for manager in managers:
                published = manager.num_cached_block[request.request_id] * manager.block_size
                if published < needed:
                    message = f"{request.request_id} has published states up to token {published}"
                    raise SchedulerFailure(f"I12: {message}, the same prompt needs the one at {needed}")

    def _check_output(self, request: Request, out: EngineCoreOutput) -> None:
        order = self.orders[request.request_id]
        room = self.config.limits.max_model_len - len(order.prompt)
        wanted = alone(order.prompt, min(order.max_tokens, room), order.cache_salt)
        stop = next((i for i, token in enumerate(wanted) if token in self.config.stop_token_ids), None)
        reason = "length" if stop is None else "stop"
        wanted = wanted if stop is None else wanted[: stop + 1]
        said = request.token_ids[len(order.prompt) :].tolist()
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
