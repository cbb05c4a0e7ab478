"""Random configurations at the edge of what can run, and a loop that tells whether everything accepted ends."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.errors import ConfigError, SchedulerError
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
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import EngineCoreOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.policy.admission_strategies import Hysteresis, ReservedBlocks


class StandsStill(AssertionError):
    """Something that was accepted does not end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    num_prompt_tokens: int
    max_tokens: int
    num_samples: int = 1
    priority: int = 0
    arrives_at: int = 0
    """Before which step it comes."""


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, and the requests that it is asked for."""

    asks: tuple[Ask, ...]
    num_blocks: int
    """The null block included."""
    specs: tuple[KVCacheSpec, ...] = (FullAttentionSpec(4),)
    limits: dict[str, Any] = field(default_factory=dict)
    """Settings of `SchedulerConfig`."""
    admission: AdmissionPolicy = field(default_factory=Greedy)
    num_drafts: int = 0
    max_in_flight_tokens: int | None = None
    watermark: float = 0.0
    enable_caching: bool = True
    seed: int = 0
    """Of the tokens."""

    def make_manager(self, num_blocks: int) -> KVCacheManager:
        """Return a cache of this many blocks."""
        groups = tuple(KVCacheGroupSpec((f"layers of group {i}",), spec) for i, spec in enumerate(self.specs))
        return KVCacheManager(
            KVCacheConfig(num_blocks, groups),
            enable_caching=self.enable_caching,
            max_in_flight_tokens=self.max_in_flight_tokens,
            watermark=self.watermark,
        )


def random_case(seed: int) -> Case:
    """Draw a case at an edge: pools and budgets that are one too small, just right, or one too large."""
    rng = random.Random(seed)
    asks = tuple(_random_ask(rng) for _ in range(rng.randrange(1, 5)))
    edge = max(asks, key=lambda ask: ask.num_prompt_tokens + ask.max_tokens)
    prompt, total = edge.num_prompt_tokens, edge.num_prompt_tokens + edge.max_tokens
    specs = _random_specs(rng)
    has_states = any(isinstance(spec, MambaSpec) for spec in specs)
    budget = max(1, rng.choice((prompt, total, rng.randrange(1, 12))) + rng.randrange(-2, 3))
    limits: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.choice((1, 2, 3, 8)),
        "max_model_len": max(1, total + rng.randrange(-2, 2)) if rng.random() < 0.3 else 1 << 20,
        "enable_chunked_prefill": rng.random() < 0.5,
        "long_prefill_token_threshold": rng.choice((0, 0, rng.randrange(1, 8), budget, budget + 1)),
        "num_lookahead_tokens": 0 if rng.random() < (0.9 if has_states else 0.5) else rng.randrange(1, 6),
        "policy": rng.choice(tuple(SchedulingPolicy)),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
    }
    most_in_flight = budget + limits["num_lookahead_tokens"] - (rng.random() < 0.1)
    case = Case(
        asks=asks,
        num_blocks=2,
        specs=specs,
        limits=limits,
        admission=rng.choice((Greedy(), Greedy(may_jump=True), ReservedBlocks(rng.randrange(4)), Hysteresis())),
        num_drafts=0 if has_states or rng.random() < 0.5 else rng.randrange(1, 5),
        max_in_flight_tokens=rng.choice((None, most_in_flight, most_in_flight + rng.randrange(5))),
        watermark=rng.choice((0.0, 0.0, 0.3)),
        enable_caching=rng.random() < 0.7,
        seed=seed,
    )
    # What the request at the edge needs, without and with its lookahead, is where mistakes of a block show.
    num_tokens = total - 1 + rng.choice((0, limits["num_lookahead_tokens"]))
    need = case.make_manager(2).num_blocks_needed(num_tokens)
    return replace_pool(case, max(2, need + 1 + rng.choice((-1, 0, 0, 0, 1, 1, 5))))


def replace_pool(case: Case, num_blocks: int) -> Case:
    """Return the case with another pool."""
    values = {name: getattr(case, name) for name in Case.__dataclass_fields__}
    return Case(**{**values, "num_blocks": num_blocks})


def _random_ask(rng: random.Random) -> Ask:
    return Ask(
        num_prompt_tokens=rng.randrange(1, 24),
        max_tokens=rng.choice((1, 2, rng.randrange(1, 20))),
        num_samples=rng.choice((1, 1, 2, 3)),
        priority=rng.randrange(3),
        arrives_at=rng.choice((0, 0, rng.randrange(8))),
    )


def _random_specs(rng: random.Random) -> tuple[KVCacheSpec, ...]:
    """Draw one to three groups of layers."""

    def block_size() -> int:
        return rng.choice((1, 2, 3, 4))

    kinds = {
        "full": lambda: FullAttentionSpec(block_size()),
        "window": lambda: SlidingWindowSpec(block_size(), sliding_window=rng.randrange(1, 9)),
        "chunks": lambda: ChunkedLocalAttentionSpec(block_size(), attention_chunk_size=rng.randrange(1, 9)),
        "state": lambda: MambaSpec(block_size(), shapes=((1,),), dtypes_bytes=(2,)),
    }
    names = rng.choices(tuple(kinds), weights=(4, 3, 2, 1), k=rng.choice((1, 1, 2, 3)))
    return tuple(kinds[name]() for name in names)


class Play:
    """A case while it runs: which requests were accepted, and how many ended."""

    def __init__(self, case: Case) -> None:
        """Build the engine. Raises `ConfigError` if it is refused."""
        self.case = case
        self.rng = random.Random(case.seed)
        self.kv = case.make_manager(case.num_blocks)
        self.scheduler = Scheduler(self.kv, SchedulerConfig(**case.limits), admission=case.admission)
        self.to_come = sorted(enumerate(case.asks), key=lambda entry: entry[1].arrives_at)
        self.samples: dict[str, Ask] = {}
        """Accepted requests that have not said their first token."""
        self.num_accepted = self.num_refused = self.num_finished = self.num_steps = 0

    def run(self) -> None:
        """Let everything that is accepted end. Raises `StandsStill`."""
        sizes = [(ask.num_prompt_tokens + ask.max_tokens) * ask.num_samples for ask in self.case.asks]
        bound = (sum(sizes) + 10) * (len(sizes) + 2)
        while self.to_come or self.scheduler.has_unfinished_requests:
            while self.to_come and self.to_come[0][1].arrives_at <= self.num_steps:
                self._arrive(*self.to_come.pop(0))
            self.num_steps += 1
            if self.num_steps > bound:
                raise StandsStill(f"{list(self.scheduler.requests)} have not ended after {bound} steps")
            if self.scheduler.has_unfinished_requests:
                self._step()
        if self.kv.block_pool.num_free_blocks != self.case.num_blocks - 1:
            raise StandsStill("blocks are held although everything has ended")

    def _arrive(self, index: int, ask: Ask) -> None:
        common = [0] * 40 if index % 2 else [index + 2] * 40
        prompt = [*common[: ask.num_prompt_tokens - 1], 1]
        name = f"r{index}"
        try:
            self.scheduler.add_request(
                self.kv.new_request(name, prompt), max_tokens=ask.max_tokens, priority=ask.priority
            )
        except ConfigError:
            self.num_refused += 1
            return
        self.num_accepted += 1
        self.samples[name] = ask

    def _step(self) -> None:
        scheduler, rng = self.scheduler, self.rng
        for request in scheduler.running if self.case.num_drafts else ():
            if request.num_computed_tokens == request.num_tokens - 1:
                drafts = [rng.randrange(2) for _ in range(rng.randrange(self.case.num_drafts + 1))]
                scheduler.update_draft_token_ids(request.request_id, drafts)
        try:
            output = scheduler.schedule()
        except SchedulerError as error:
            raise StandsStill(str(error)) from error
        sampled: dict[str, list[int]] = {}
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            if request.num_computed_tokens + num_tokens >= request.num_tokens:
                drafts = list(output.scheduled_spec_decode_tokens.get(name, ()))
                sampled[name] = [*drafts[: rng.randrange(len(drafts) + 1)], rng.randrange(2)]
        for out in scheduler.update_from_output(output, sampled):
            self.num_finished += out.finish_reason is not None
            ask = self.samples.pop(out.request_id, None)
            if ask is not None:
                self._begin_further_samples(out, ask)

    def _begin_further_samples(self, out: EngineCoreOutput, ask: Ask) -> None:
        """Fork the further samples of a prompt, or let them wait their turn, as the engine does."""
        parent = self.scheduler.requests.get(out.request_id)
        max_model_len = self.scheduler.config.max_model_len
        if ask.max_tokens == 1 or ask.num_prompt_tokens + 1 >= max_model_len or parent is None:
            return
        for index in range(1, ask.num_samples):
            prompt = [*parent.token_ids[: ask.num_prompt_tokens], index]
            child = self.kv.new_request(f"{out.request_id}.{index}", prompt)
            can_share = parent.num_computed_tokens == ask.num_prompt_tokens and not self.kv.coordinator.has_states
            max_tokens = ask.max_tokens - 1
            try:
                if not (can_share and self.scheduler.fork_request(parent.request_id, child, max_tokens=max_tokens)):
                    self.scheduler.add_request(child, max_tokens=max_tokens, priority=ask.priority)
            except ConfigError as error:
                message = f"a further sample was refused, which needs no more than the first: {error}"
                raise StandsStill(message) from error
            self.num_accepted += 1


def stand_still(seeds: Sequence[int]) -> list[str]:
    """Return a line for each of these cases in which something that was accepted does not end."""
    found = []
    for seed in seeds:
        case = random_case(seed)
        try:
            Play(case).run()
        except ConfigError:
            continue
        except StandsStill as error:
            found.append(f"seed {seed}: {error}: {case}")
    return found
