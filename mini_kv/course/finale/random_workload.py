"""Random workloads without a model, for a scheduler and a cache, or for a cache alone.

The next token of a request depends on its last two tokens only. Sizes, groups of layers, arrivals and aborts are drawn
from a seed. So two right engines make the same steps, and many short workloads meet almost everything that can happen:
refusals, preemptions, ids that come again, tenants, adapters, drafts. Imports no torch: the book's page runs it, too.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError, InvalidTokenError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.core.request import Request
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.course.finale.assembly import make_groups, make_manager, make_scheduler
from mini_kv.course.finale.random_requests import NAMES, STOPS, TENANTS, VOCABULARY, Prompts, Tenants, Text, token
from mini_kv.course.finale.steps import Step, found_by, names_of, plan_lines
from mini_kv.course.given import faulty_admissions
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.policy.admission_strategies import ReservedBlocks
from mini_kv.policy.eviction import PolicyPool
from mini_kv.policy.ranked import LFU
from mini_kv.story.frame import frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_json import StoryWriter
from mini_kv.story.traced_manager import TracedKVCacheManager

NUM_REQUESTS = 40
"""Requests of a workload with a scheduler."""
MOST_DRAFTS = 3
KV_SHAPE = 2, 24
"""KV heads and elements of a head of the model that the dice replace."""
MOST_BLOCKS = 2000
NUM_STEPS = 60
"""Steps of a workload without a scheduler."""
FORKS = 0.4
"""The share of steps without a cache in which a request is forked, if one runs and a name is free."""


@dataclass(frozen=True)
class ClosedWhenFull:
    """Admits no request while four fifths of the pool are held. It has no state, so it may be asked at any time."""

    may_jump: bool = False

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return 0, or `None` while the pool is nearly full."""
        return None if block_pool.usage > 0.8 else 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a workload's engine, drawn from its seed."""

    block_size: int
    num_blocks: int
    max_tokens: int
    """The most tokens of one request, prompt and output."""
    limits: SchedulerConfig
    admission: AdmissionPolicy
    arrivals: tuple[int, ...]
    """Numbers of requests that may arrive before a step, each as likely as the others."""
    longest_answer: int
    """The most output tokens of a request."""
    mixed: float
    """The share of requests with a salt or an adapter."""
    has_images: bool
    losses: float
    """The share of steps before which a few blocks lose their content, as after a failed load."""
    tenants: Tenants
    element_bytes: int
    """Bytes of an element of the cache."""


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """One short workload, from a seed."""

    seed: int
    windows: tuple[int, ...] = ()
    """The windows of the model's layers, in blocks. Beside them there is a layer with full attention."""
    policy: bool = False
    """Whether the cache evicts by LFU."""
    caching: bool = True
    """Whether prefixes are cached."""
    drafts: bool = False
    """Whether the requests have drafts. Then the engine's own scheduler plans, because lab-11 has none."""

    def engine(self, own: OwnParts) -> "RandomEngine":
        """Return an engine with these parts."""
        return RandomEngine(self, own)

    def sizes(self) -> Sizes:
        """Draw the sizes. The pool is short: it holds one or two of the longest requests."""
        dice = random.Random(f"sizes {self.seed}")
        block_size, longest = dice.choice((1, 2, 3, 4, 4, 8)), dice.randrange(8, 13)
        max_tokens = longest * block_size - MOST_DRAFTS
        num_groups = len(get_kv_cache_groups(self.specs(block_size)))
        return Sizes(
            block_size=block_size,
            num_blocks=1 + longest * num_groups * dice.choice((11, 11, 12, 14, 20, 30, 45)) // 10,
            max_tokens=max_tokens,
            limits=SchedulerConfig(
                max_num_batched_tokens=block_size * dice.randrange(1, 6) + dice.randrange(block_size),
                max_num_seqs=dice.randrange(3, 8),
                num_lookahead_tokens=MOST_DRAFTS if self.drafts else 0,
            ),
            admission=dice.choice((Greedy(), Greedy(), ReservedBlocks(3), ClosedWhenFull())),
            arrivals=dice.choice(((0, 0, 0, 1), (0, 1, 1, 2), (0, 0, 0, 0, 3))),
            longest_answer=dice.choice((1, block_size, max_tokens, max_tokens, max_tokens)),
            mixed=dice.choice((0, 0, 0.2, 0.6)),
            has_images=dice.random() < 0.5,
            losses=dice.choice((0, 0, 0.3, 0.5)),
            tenants=dice.choice(TENANTS),
            element_bytes=dice.choice((1, 2, 2, 4)),
        )

    def specs(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Return the layers. With windows there may be several of a kind, and a window need not end with a block."""
        dice = random.Random(f"layers {self.seed}")
        num_full_layers = dice.choice((1, 1, 2)) if self.windows else 1
        layers: dict[str, KVCacheSpec] = {
            f"full {number}": FullAttentionSpec(block_size) for number in range(num_full_layers)
        }
        for blocks in self.windows:
            window = blocks * block_size - dice.randrange(block_size)
            for number in range(dice.choice((1, 1, 2, 3, 3))):
                layers[f"window {window} {number}"] = SlidingWindowSpec(block_size, sliding_window=window)
        return dict(reversed(layers.items())) if dice.random() < 0.5 else layers


@dataclass(frozen=True, slots=True)
class PrefillWorkload(RandomWorkload):
    """A workload without a scheduler. Without a cache, requests share blocks because they are forked."""

    def engine(self, own: OwnParts) -> "PrefillEngine":
        """Return a cache with these parts."""
        return PrefillEngine(self, own)


def random_workloads(
    seed: int, count: int, windows: Sequence[tuple[int, ...]] = ((),), **kind: bool
) -> list[RandomWorkload]:
    """Return workloads of a seed. Their groups of layers are these, in turn. `kind`: further fields."""
    return [RandomWorkload(seed * 1000 + at, windows[at % len(windows)], **kind) for at in range(count)]


def page_size_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one block in one layer, as the engine counts them."""
    return FullAttentionSpec(block_size, num_kv_heads, head_size, dtype_bytes).page_size_bytes


def _visible(policy: Any) -> Any:
    """Return the policy with an order for drawings: by number. Its victims show the order of eviction."""

    class Visible(policy):  # type: ignore[misc]  # a class that is known when the command runs
        """A policy whose free blocks are listed by number."""

        def in_order(self) -> list[KVCacheBlock]:
            """Return the free blocks with a hash, in the order of their numbers."""
            return sorted(self._waiting, key=lambda block: block.block_id)

    return Visible


class NotingManager(TracedKVCacheManager):
    """Records the calls to the cache, and the last new request: after a refusal the learner's code returns none."""

    last_request: Request

    def new_request(self, *args: Any, **options: Any) -> Request:
        """Return a new request."""
        self.last_request = self.manager.new_request(*args, **options)
        return self.last_request


class RandomEngine:
    """A scheduler and a cache that run one workload."""

    departures = 0.05
    """The share of steps before which a client leaves, and of those in which one leaves while the worker computes."""

    def __init__(self, workload: RandomWorkload, own: OwnParts) -> None:
        """Build scheduler and cache."""
        self.workload, self.own, self.sizes = workload, own, workload.sizes()
        self.chance = random.Random(f"arrivals {workload.seed}")
        recorder, limits = Recorder(strict=False), self.sizes.limits
        if workload.policy:
            own = replace(own, queue=_visible(own.policy or LFU), pool=PolicyPool, counts=None)
        config = KVCacheConfig(self._num_blocks(own), make_groups(own, workload.specs(self.sizes.block_size)))
        manager = make_manager(
            own,
            config,
            new_block=recorder.new_block,
            model_fingerprint="dice",
            max_in_flight_tokens=limits.max_num_batched_tokens + limits.num_lookahead_tokens,
            enable_caching=workload.caching,
        )
        self.kv = NotingManager(manager, recorder)
        self.scheduler = make_scheduler(own, self.kv, limits, admission=self.sizes.admission)
        self.prompts = Prompts(self.chance, self.sizes.block_size, self.sizes.max_tokens, self.sizes.has_images)
        self.number = 0
        """The number of the step."""
        self._config, self._num_arrived = config, 0
        self._steps: list[Step] = []

    def _num_blocks(self, own: OwnParts) -> int:
        """Return the number of blocks in the memory of this workload's pool."""
        page_size = own.page_size or page_size_bytes
        size = *KV_SHAPE, self.sizes.element_bytes
        shape = self.sizes.block_size, *size
        memory = self.sizes.num_blocks * page_size_bytes(*shape) + page_size_bytes(1, *size) - 1
        num_blocks = memory // page_size(*shape)
        if num_blocks > MOST_BLOCKS:
            raise ValueError(f"page_size_bytes{shape} is {page_size(*shape)}: {num_blocks} blocks in {memory} bytes")
        return int(num_blocks)

    def steps(self) -> Iterator[Step]:
        """Yield the steps until all requests have come and gone."""
        while self._num_arrived < NUM_REQUESTS or self.scheduler.has_unfinished_requests:
            self.number += 1
            for _ in range(self.chance.choice(self.sizes.arrivals)):
                self._arrive()
            if self.chance.random() < self.departures:
                self._leave()
            if self.chance.random() < self.sizes.losses:
                self._lose()
            yield self._step()

    def story(self) -> dict[str, Any]:
        """Return the story of the pool so far."""
        kinds = [getattr(group.kv_cache_spec, "sliding_window", None) for group in self._config.kv_cache_groups]
        groups = [f"window {size}" if size else "full" for size in kinds]
        head: dict[str, Any] = {"groups": groups} if len(groups) > 1 else {}
        title = f"Random requests, seed {self.workload.seed}"
        writer = StoryWriter(title, self._config.num_blocks, self.sizes.block_size, **head)
        for step in self._steps:
            writer.add_step(step.frame, step.spans, do=f"step {step.number}", waiting=step.waiting)
        return writer.data()

    # Requests come and go.

    def _arrive(self) -> None:
        """Add a request under an id that is not in use."""
        free = [name for name in NAMES if name not in self.scheduler.requests]
        if not free or self._num_arrived == NUM_REQUESTS:
            return
        self._num_arrived += 1
        name, text = self.chance.choice(free), self.prompts.draw()
        tenants = self.sizes.tenants
        salt, adapter = self.chance.choice(tenants.salts), self.chance.choice(tenants.adapters)
        if self.chance.random() >= self.sizes.mixed:
            salt = adapter = None
        request = self.kv.new_request(
            name, text.token_ids, cache_salt=salt, lora_request=adapter, mm_features=text.images
        )
        most = min(self.sizes.longest_answer, self.sizes.max_tokens - len(text.token_ids))
        max_tokens = self.chance.randrange(1, 2 + most)
        try:
            self.scheduler.add_request(request, max_tokens=max_tokens, stop_token_ids=STOPS)
        except ConfigError:  # it could never run: not even alone
            return
        self.prompts.texts.append(Text(request.token_ids, text.images))

    def _lose(self) -> None:
        """Evict three blocks: any, or some of those that were freed last."""
        freed = [block.block_id for block in self.kv.block_pool.free_block_queue.get_all_free_blocks()]
        blocks = self.chance.choice((range(1, self.sizes.num_blocks), freed[-8:] or [1]))
        self.kv.evict_blocks(self.chance.choices(blocks, k=3))

    def _leave(self) -> None:
        """Abort one of the unfinished requests."""
        names = sorted(self.scheduler.requests)
        if names:
            self.scheduler.finish_requests([self.chance.choice(names)])

    # One step.

    def _step(self) -> Step:
        output = self.scheduler.schedule()
        orders, scheduled = plan_lines(output), list(output.num_scheduled_tokens.items())
        tokens = self._sampled(output)
        if self.chance.random() < self.departures:  # a client leaves while the worker computes
            self._leave()
        known = {name: ids for name, ids in tokens.items() if name in self.scheduler.requests}
        results = self.scheduler.update_from_output(output, known)
        if self.workload.drafts:
            self._propose()
        return self.step_made(
            scheduled,
            messages=orders,
            waiting=names_of(list(self.scheduler.waiting)),
            statuses=[f"{each.status.value}, {each.num_preemptions} preemptions" for each in self.scheduler.waiting],
            endings={each.request_id: str(each.finish_reason) for each in results},
            num_preemptions=self.scheduler.num_preemptions,
            token_ids={each.request_id: list(each.new_token_ids) for each in results},
        )

    def step_made(
        self, scheduled: Sequence[tuple[str, int]] = (), counters: Mapping[str, float] | None = None, **seen: Any
    ) -> Step:
        """Return a step with the cache as it is now. `seen`: further fields of the step."""
        spans, self.kv.spans = list(self.kv.spans), []
        frame, stats = frame_of(self.kv.manager), self.kv.prefix_cache_stats
        counted = {"queries": stats.queries, "hits": stats.hits, "requests": stats.requests, **(counters or {})}
        counted["usage"] = round(self.kv.usage, 6)
        found = found_by(spans, scheduled)
        groups = [tuple(group.layer_names) for group in self._config.kv_cache_groups]
        step = Step(self.number, spans, found, [*scheduled], frame=frame, counters=counted, groups=groups, **seen)
        self._steps.append(step)
        return step

    def _sampled(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Return the tokens that a model would sample: after drafts, the right ones and one more."""
        sampled = {}
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if request.num_computed_tokens + num_tokens - len(drafts) != request.num_tokens:
                continue
            right = self._next_tokens(request, len(drafts) + 1)
            num_right = next((at for at, draft in enumerate(drafts) if draft != right[at]), len(drafts))
            sampled[name] = right[: num_right + 1]
        return sampled

    def _next_tokens(self, request: Request, count: int) -> list[int]:
        """Return the next tokens of a request. They follow from its last two, so equal texts continue equally."""
        tokens = list(request.token_ids[-2:])
        for _ in range(count):
            dice = random.Random(f"{self.workload.seed} {tokens[-2:]}")
            tokens.append(dice.choice(STOPS) if dice.random() < 0.04 else token(dice))
        return tokens[-count:]

    def _propose(self) -> None:
        """Propose drafts, of which some are wrong."""
        for request in self.scheduler.running:
            if request.num_computed_tokens == request.num_tokens - 1:
                most = min(MOST_DRAFTS, request.max_slots - request.num_tokens)
                drafts = self._next_tokens(request, most) if most > 0 else []
                wrong = self.chance.randrange(MOST_DRAFTS + 2)
                proposed = [VOCABULARY if at == wrong else draft for at, draft in enumerate(drafts)]
                self.scheduler.update_draft_token_ids(request.request_id, proposed)


class PrefillEngine(RandomEngine):
    """A cache that runs one workload. In each step a prompt is admitted or refused, or a request ends or is forked."""

    def steps(self) -> Iterator[Step]:
        """Yield the steps."""
        running: dict[str, Request] = {}
        while self.number < NUM_STEPS:
            self.number += 1
            lines = list(self.end_or_admit(running)) if self.number > 1 else []  # step 1: no request yet
            hit_rate = (self.own.hit_rate or faulty_admissions.cache_hit_rate)(self.kv)
            ref_counts = self.own.ref_counts or faulty_admissions.ref_counts
            lines += [f"{name}: references {ref_counts(self.kv, each)}" for name, each in running.items()]
            yield self.step_made(messages=lines, counters={"hit rate": hit_rate})

    def end_or_admit(self, running: dict[str, Request]) -> Iterator[str]:
        """End a request or admit a prompt under a name, and yield a line about it."""
        name = self.chance.choice(NAMES)
        if name in running:
            self.kv.free(running.pop(name))
            yield f"{name}: ended"
            return
        if not self.workload.caching and running and self.chance.random() < FORKS:
            yield self.fork(running, self.chance.choice(sorted(running)), name)
            return
        token_ids = list(self.prompts.draw().token_ids)
        if self.chance.random() < 0.05:
            token_ids[-1] = -1  # not a token
        try:
            admitted = self.admit(token_ids, name)
        except InvalidTokenError:
            yield f"{name}: invalid"
            return
        if admitted is None:
            yield f"{name}: refused, computed {self.kv.last_request.num_computed_tokens}"
            return
        running[name], num_cached = admitted
        yield f"{name}: found {num_cached}, computed {running[name].num_computed_tokens}"

    def fork(self, running: dict[str, Request], parent: str, name: str) -> str:
        """Fork a running request and give the child's next token a slot. Return the line about it."""
        child = self.kv.new_request(name, [*running[parent].token_ids, token(self.chance)])
        child.num_computed_tokens = running[parent].num_computed_tokens
        self.kv.fork(running[parent], child)
        if self.kv.allocate_slots(child, 1) is None:
            self.kv.free(child)
            return f"{name}: forked from {parent}, refused"
        copies = self.kv.take_kv_cache_block_copies()
        self.kv.finish_kv_cache_block_copies()
        child.num_computed_tokens += 1
        running[name] = child
        return f"{name}: forked from {parent}, copied {copies}"

    def admit(self, token_ids: list[int], name: str) -> tuple[Request, int] | None:
        """Admit a prompt as the learner does, or as mini_kv does."""
        return (self.own.admit or faulty_admissions.prefill)(self.kv, token_ids, name)
