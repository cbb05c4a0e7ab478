"""A rush hour on dice: a scheduler and a cache without a model. Imports no torch, so it also runs in the book's page.

The next token of a request is a number that depends on the request and its position alone. Sizes, groups of layers,
arrivals and departures are drawn from a seed. So two right engines make the same steps, and many short hours meet
almost everything that can happen in one: refusals, preemptions, ids that come again, tenants, adapters, drafts.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.request import LoRARequest
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.events.frame import frame_of
from mini_kv.events.recorder import Recorder
from mini_kv.events.traced_manager import TracedKVCacheManager
from mini_kv.labkit.learner_parts import OwnParts
from mini_kv.labkit.own_engine.assembly import make_groups, make_manager, make_scheduler
from mini_kv.labkit.own_engine.steps import Step, names_of, told
from mini_kv.labkit.time_limit import time_limit
from mini_kv.policy.admission_strategies import Hysteresis, ReservedBlocks
from mini_kv.viz.story_json import StoryWriter

NUM_REQUESTS = 40
MOST_DRAFTS = 3
NAMES = tuple("ABCDEFGHIJKL")
"""Ids of requests. An id comes again when its request has ended."""
SALTS = (None, "blue", "green")
ADAPTERS = (None, LoRARequest("poet", "/adapters/poet"))
STOP = 0
"""The token that ends a text."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an hour's engine, drawn from its seed."""

    block_size: int
    num_blocks: int
    max_tokens: int
    """The most tokens of one request, prompt and output."""
    limits: SchedulerConfig
    admission: str
    arrivals: tuple[int, ...]
    """Numbers of requests that may arrive before a step, each as likely as the others."""
    longest_answer: int
    """The most output tokens of a request."""
    mixed: float
    """The share of requests with a salt or an adapter."""
    losses: float
    """The share of steps before which a few blocks lose their content, as after a failed load."""


@dataclass(frozen=True, slots=True)
class DiceHour:
    """One short hour."""

    seed: int
    windows: tuple[int, ...] = ()
    """The windows of the model's layers, in blocks. Beside them there is a layer with full attention."""
    drafts: bool = False
    """Whether the requests have drafts. Then the engine's own scheduler plans, because lab-11 has none."""

    def rush(self, own: OwnParts, limit_s: float) -> "DiceRush":
        """Return an engine with these parts."""
        return DiceRush(self, own, limit_s)

    def sizes(self) -> Sizes:
        """Draw the sizes. The pool is short: it holds one or two of the longest requests."""
        dice = random.Random(f"sizes {self.seed}")
        block_size, longest = dice.choice((1, 2, 3, 4, 4, 8)), dice.randrange(8, 13)
        max_tokens = longest * block_size - MOST_DRAFTS
        return Sizes(
            block_size=block_size,
            num_blocks=1 + longest * (1 + len(self.windows)) * dice.choice((11, 11, 12, 14, 20, 30)) // 10,
            max_tokens=max_tokens,
            limits=SchedulerConfig(
                max_num_batched_tokens=block_size * dice.randrange(1, 6) + dice.randrange(block_size),
                max_num_seqs=dice.randrange(3, 8),
                num_lookahead_tokens=MOST_DRAFTS if self.drafts else 0,
            ),
            admission=dice.choice(("greedy", "greedy", "reserved", "hysteresis")),
            arrivals=dice.choice(((0, 0, 0, 1), (0, 1, 1, 2), (0, 0, 0, 0, 3))),
            longest_answer=dice.choice((1, block_size, max_tokens, max_tokens, max_tokens)),
            mixed=dice.choice((0, 0, 0.2, 0.6)),
            losses=dice.choice((0, 0, 0.3)),
        )

    def specs(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the layers."""
        layers: dict[str, KVCacheSpec] = {"full": FullAttentionSpec(block_size)}
        for number, blocks in enumerate(self.windows):
            layers[f"window {number}"] = SlidingWindowSpec(block_size, sliding_window=blocks * block_size)
        return layers


def _admission(name: str) -> AdmissionPolicy:
    return {"greedy": Greedy(), "reserved": ReservedBlocks(3), "hysteresis": Hysteresis(0.8, 0.5)}[name]


class DiceRush:
    """One hour on one engine."""

    def __init__(self, hour: DiceHour, own: OwnParts, limit_s: float) -> None:
        """Build scheduler and cache. `limit_s`: the most seconds for that, and for each step."""
        self.hour, self.limit_s, self.sizes = hour, limit_s, hour.sizes()
        self.chance = random.Random(f"arrivals {hour.seed}")
        recorder, limits = Recorder(strict=False), self.sizes.limits
        with time_limit(limit_s):
            config = KVCacheConfig(self.sizes.num_blocks, make_groups(own, hour.specs(self.sizes.block_size)))
            manager = make_manager(
                own,
                config,
                new_block=recorder.new_block,
                model_fingerprint="dice",
                max_in_flight_tokens=limits.max_num_batched_tokens + limits.num_lookahead_tokens,
            )
            self.kv = TracedKVCacheManager(manager, recorder)
            self.scheduler = make_scheduler(own, self.kv, limits, admission=_admission(self.sizes.admission))
        groups = [f"window {blocks * self.sizes.block_size}" for blocks in hour.windows]
        head = {"groups": ["full", *groups]} if len(config.kv_cache_groups) > 1 else {}
        self._writer = StoryWriter(
            f"An hour on dice, seed {hour.seed}", self.sizes.num_blocks, self.sizes.block_size, **head
        )
        self.number = 0
        self._documents = [[self._any_token() for _ in range(self.sizes.max_tokens)] for _ in range(2)]
        self._texts: list[Sequence[int]] = []
        """Everything that was sent or answered so far, as tokens."""
        self._num_arrived = 0

    def steps(self) -> Iterator[Step]:
        """Yield the steps until all requests have come and gone."""
        while self._num_arrived < NUM_REQUESTS or self.scheduler.has_unfinished_requests:
            self.number += 1
            with time_limit(self.limit_s):
                for _ in range(self.chance.choice(self.sizes.arrivals)):
                    self._arrive()
                if self.chance.random() < 0.05:
                    self._leave()
                if self.chance.random() < self.sizes.losses:
                    self.kv.evict_blocks(self.chance.choices(range(1, self.sizes.num_blocks), k=3))
                yield self._step()

    def film(self) -> dict[str, Any]:
        """Return the story of the pool so far."""
        return self._writer.data()

    # Requests come and go.

    def _any_token(self) -> int:
        return self.chance.randrange(1, 1000)

    def _arrive(self) -> None:
        """Add a request under an id that is not in use."""
        free = [name for name in NAMES if name not in self.scheduler.requests]
        if not free or self._num_arrived == NUM_REQUESTS:
            return
        self._num_arrived += 1
        name, prompt = self.chance.choice(free), self._prompt()
        salt, adapter = self.chance.choice(SALTS), self.chance.choice(ADAPTERS)
        if self.chance.random() >= self.sizes.mixed:
            salt = adapter = None
        request = self.kv.new_request(name, prompt, cache_salt=salt, lora_request=adapter)
        most = min(self.sizes.longest_answer, self.sizes.max_tokens - len(prompt))
        max_tokens = self.chance.randrange(1, 2 + most)
        try:
            self.scheduler.add_request(request, max_tokens=max_tokens, stop_token_ids=[STOP])
        except ConfigError:  # it could never run: not even alone
            return
        self._texts.append(request.token_ids)

    def _prompt(self) -> list[int]:
        """Return a text that is new, known, or a beginning of a known one with or without new tokens after it."""
        most = self.sizes.max_tokens - 1
        new = [self._any_token() for _ in range(self.chance.randrange(1, 1 + most // 2))]
        known = list(self.chance.choice([*self._documents, *self._texts]))
        match self.chance.choice(("new", "known", "beginning", "beginning", "continued")):
            case "new":
                return new
            case "known":
                return known[:most]
            case "beginning":
                return known[: self.chance.randrange(1, most)]
        return (known[: self.chance.randrange(1, most)] + new)[:most]

    def _leave(self) -> None:
        """Abort one of the unfinished requests."""
        names = sorted(self.scheduler.requests)
        if names:
            self.scheduler.finish_requests([self.chance.choice(names)])

    # One step.

    def _step(self) -> Step:
        output = self.scheduler.schedule()
        orders, scheduled = told(output), list(output.num_scheduled_tokens.items())
        tokens = self._sampled(output)
        if self.chance.random() < 0.05:  # a client leaves while the worker computes
            self._leave()
        known = {name: ids for name, ids in tokens.items() if name in self.scheduler.requests}
        results = self.scheduler.update_from_output(output, known)
        if self.hour.drafts:
            self._propose()
        spans, self.kv.spans = list(self.kv.spans), []
        stats = self.kv.prefix_cache_stats
        frame, waiting = frame_of(self.kv.manager), names_of(list(self.scheduler.waiting))
        self._writer.add_step(frame, spans, do=f"step {self.number}", waiting=waiting)
        return Step(
            number=self.number,
            spans=spans,
            scheduled=scheduled,
            messages=orders,
            waiting=waiting,
            num_preemptions=self.scheduler.num_preemptions,
            counters={
                "usage": round(self.kv.usage, 6),
                "queries": stats.queries,
                "hits": stats.hits,
                "requests": stats.requests,
            },
            frame=frame,
            token_ids={each.request_id: list(each.new_token_ids) for each in results},
        )

    def _sampled(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Return the tokens that a model would sample: after drafts, the right ones and one more."""
        sampled = {}
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if request.num_computed_tokens + num_tokens - len(drafts) != request.num_tokens:
                continue
            right = self._next_tokens(name, request.num_tokens, len(drafts) + 1)
            num_right = next((at for at, draft in enumerate(drafts) if draft != right[at]), len(drafts))
            sampled[name] = right[: num_right + 1]
        return sampled

    def _next_tokens(self, name: str, position: int, count: int) -> list[int]:
        """Return the tokens that the dice give a request from this position on."""
        dice = [random.Random(f"{self.hour.seed} {name} {at}") for at in range(position, position + count)]
        return [STOP if each.random() < 0.02 else each.randrange(1, 1000) for each in dice]

    def _propose(self) -> None:
        """Propose drafts, of which some are wrong."""
        for request in self.scheduler.running:
            if request.num_computed_tokens == request.num_tokens - 1:
                most = min(MOST_DRAFTS, request.max_slots - request.num_tokens)
                drafts = self._next_tokens(request.request_id, request.num_tokens, max(most, 0))
                wrong = self.chance.randrange(MOST_DRAFTS + 2)
                proposed = [1001 if at == wrong else draft for at, draft in enumerate(drafts)]
                self.scheduler.update_draft_token_ids(request.request_id, proposed)


def dice_hours(
    seed: int, count: int, windows: Sequence[tuple[int, ...]] = ((),), drafts: bool = False
) -> list[DiceHour]:
    """Return hours of a seed. Their groups of layers are these, in turn."""
    return [DiceHour(seed * 1000 + at, windows[at % len(windows)], drafts) for at in range(count)]
