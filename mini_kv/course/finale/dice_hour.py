"""A rush hour on dice: a scheduler and a cache without a model. Imports no torch, so it also runs in the book's page.

The next token of a request is a number that depends on the request and its position alone. Sizes, groups of layers,
arrivals and departures are drawn from a seed. So two right engines make the same steps, and many short hours meet
almost everything that can happen in one: refusals, preemptions, ids that come again, tenants, adapters, drafts.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.course.finale.assembly import make_groups, make_manager, make_scheduler
from mini_kv.course.finale.steps import Step, found_by, names_of, told
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.events.frame import frame_of
from mini_kv.events.recorder import Recorder
from mini_kv.events.traced_manager import TracedKVCacheManager
from mini_kv.policy.admission_strategies import ReservedBlocks
from mini_kv.policy.eviction import PolicyPool
from mini_kv.policy.ranked import LFU
from mini_kv.viz.story_json import StoryWriter

VOCABULARY = 1000
"""The tokens are below it. A wrong draft is not."""
NUM_REQUESTS = 40
MOST_DRAFTS = 3
NAMES = tuple("ABCDEFGHIJKL")
"""Ids of requests. An id comes again when its request has ended."""


class Tenants(NamedTuple):
    """The salts and adapters of an hour. A hash must tell them apart."""

    salts: Sequence[str | None]
    adapters: Sequence[LoRARequest | None]


LONG = "p" * 254
"""A field of more than 255 bytes can be made with it. Its length has two bytes."""
TENANTS = (
    Tenants(  # adapters with the names of salts
        (None, "poet", "cook"),
        (
            None,
            LoRARequest("poet", "/adapters/poet"),
            LoRARequest("cook", "/adapters/poet"),
            LoRARequest("poet", "/adapters/cook"),
        ),
    ),
    Tenants(  # equal if name and path are joined without their lengths, or with a zero byte between them
        (None, "poet"),
        (
            LoRARequest("asb", "c"),
            LoRARequest("a", "bsc"),
            LoRARequest("a\0sb", "c"),
            LoRARequest("a", "b\0sc"),
        ),
    ),
    Tenants(  # equal if a length has one byte, or if characters without a UTF-8 form are replaced
        (None, "\ud800", "\ud801"),
        (LoRARequest("n", f"{LONG}\x02sq"), LoRARequest(f"n\x02s{LONG}", "q")),
    ),
)
KV_SHAPE = 2, 24
"""KV heads and elements of a head of the model that the dice replace."""
MOST_BLOCKS = 2000
PICTURES = ("cat-0001", "dog-0001")
STOPS = (0, 1)
"""The tokens that end a text."""


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
    has_images: bool
    losses: float
    """The share of steps before which a few blocks lose their content, as after a failed load."""
    tenants: Tenants
    element_bytes: int
    """Bytes of an element of the cache."""


@dataclass(frozen=True, slots=True)
class DiceHour:
    """One short hour."""

    seed: int
    windows: tuple[int, ...] = ()
    """The windows of the model's layers, in blocks. Beside them there is a layer with full attention."""
    policy: bool = False
    """Whether the cache evicts by LFU."""
    caching: bool = True
    """Whether prefixes are cached."""
    drafts: bool = False
    """Whether the requests have drafts. Then the engine's own scheduler plans, because lab-11 has none."""

    def rush(self, own: OwnParts) -> "DiceRush":
        """Return an engine with these parts."""
        return DiceRush(self, own)

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
            admission=dice.choice(("greedy", "greedy", "reserved", "closed")),
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


@dataclass(frozen=True)
class ClosedWhenFull:
    """Admits no request while four fifths of the pool are held. It has no state, so it may be asked at any time."""

    may_jump: bool = False

    def reserved_blocks(self, block_pool: BlockPool, request: Request) -> int | None:
        """Return 0, or `None` while the pool is nearly full."""
        return None if block_pool.usage > 0.8 else 0


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


def _admission(name: str) -> AdmissionPolicy:
    if name == "reserved":
        return ReservedBlocks(3)
    return ClosedWhenFull() if name == "closed" else Greedy()


class Text(NamedTuple):
    """The tokens of a request and its images."""

    token_ids: Sequence[int]
    images: Sequence[MultiModalFeature]


class DiceRush:
    """One hour on one engine."""

    traced: type[TracedKVCacheManager] = TracedKVCacheManager
    """The class that records the calls to the cache."""

    def __init__(self, hour: DiceHour, own: OwnParts) -> None:
        """Build scheduler and cache."""
        self.hour, self.own, self.sizes = hour, own, hour.sizes()
        self.chance = random.Random(f"arrivals {hour.seed}")
        recorder, limits = Recorder(strict=False), self.sizes.limits
        if hour.policy:
            own = replace(own, queue=_visible(own.policy or LFU), pool=PolicyPool, counts=None)
        config = KVCacheConfig(self._num_blocks(own), make_groups(own, hour.specs(self.sizes.block_size)))
        manager = make_manager(
            own,
            config,
            new_block=recorder.new_block,
            model_fingerprint="dice",
            max_in_flight_tokens=limits.max_num_batched_tokens + limits.num_lookahead_tokens,
            enable_caching=hour.caching,
        )
        self.kv = self.traced(manager, recorder)
        self.scheduler = make_scheduler(own, self.kv, limits, admission=_admission(self.sizes.admission))
        self._config = config
        self._made: list[Step] = []
        self.number = 0
        self._documents = [self._document() for _ in range(2)]
        self._last = Text(self._documents[0].token_ids[: self.sizes.block_size], [])
        """The last prompt that was new."""
        self._texts: list[Text] = []
        """What the requests so far have said, prompt and answer."""
        self._num_arrived = 0

    def _num_blocks(self, own: OwnParts) -> int:
        """Return the number of blocks in the memory of this hour's pool."""
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
            if self.chance.random() < 0.05:
                self._leave()
            if self.chance.random() < self.sizes.losses:
                self._lose()
            yield self._step()

    def film(self) -> dict[str, Any]:
        """Return the story of the pool so far."""
        kinds = [getattr(group.kv_cache_spec, "sliding_window", None) for group in self._config.kv_cache_groups]
        groups = [f"window {size}" if size else "full" for size in kinds]
        head: dict[str, Any] = {"groups": groups} if len(groups) > 1 else {}
        title = f"An hour on dice, seed {self.hour.seed}"
        writer = StoryWriter(title, self._config.num_blocks, self.sizes.block_size, **head)
        for step in self._made:
            writer.add_step(step.frame, step.spans, do=f"step {step.number}", waiting=step.waiting)
        return writer.data()

    # Requests come and go.

    def _token(self, dice: random.Random) -> int:
        return dice.randrange(len(STOPS), VOCABULARY)

    def _arrive(self) -> None:
        """Add a request under an id that is not in use."""
        free = [name for name in NAMES if name not in self.scheduler.requests]
        if not free or self._num_arrived == NUM_REQUESTS:
            return
        self._num_arrived += 1
        name, text = self.chance.choice(free), self.prompt()
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
        self._texts.append(Text(request.token_ids, text.images))

    def prompt(self) -> Text:
        """Return a text that is new, known, or a beginning of a known one with or without new tokens after it.

        Sometimes it is the last one again: twins run side by side.
        """
        most = self.sizes.max_tokens - 1
        if self.chance.random() < 0.2:
            return self._last
        new = [self._token(self.chance) for _ in range(self.chance.randrange(1, 1 + most // 2))]
        known = self.chance.choice([*self._documents, *self._texts])
        cut = self.chance.choice((0, most, *(self.chance.randrange(1, most) for _ in range(3))))
        tokens = list(known.token_ids)[:cut]
        if not tokens or self.chance.random() < 0.3:
            tokens = (tokens + new)[:most]
        shown = [each for each in known.images if each.offset + each.length <= min(cut, len(tokens))]
        if tokens and self.chance.random() < 0.1:
            self._change(tokens)
        if self.chance.random() < 0.5:
            shown = [replace(each, identifier=self.chance.choice(PICTURES)) for each in shown]
        if self.chance.random() < 0.2:
            shown = [replace(each, offset=max(each.offset - 1, 0)) for each in shown]
        self._last = Text(tokens, shown)
        return self._last

    def _change(self, tokens: list[int]) -> None:
        """Change one token so that its last bytes stay the same, or two so that their digits do."""
        at, kind = self.chance.randrange(len(tokens)), self.chance.randrange(2)
        if kind == 0 and at + 1 < len(tokens):
            first, last = divmod(tokens[at], 10)
            tokens[at : at + 2] = [first, int(f"{last}{tokens[at + 1]}")]
        else:
            tokens[at] += 256 ** self.chance.choice((1, 2))

    def _document(self) -> Text:
        """Return a long text. In an hour with images it has three pairs of them, of one token and of two."""
        size = self.sizes.max_tokens
        places = [self.chance.randrange(size - 1) for _ in range(3 if self.sizes.has_images else 0)]
        images = [MultiModalFeature(PICTURES[0], place + at, 1 + at) for place in places for at in (0, 1)]
        return Text([self._token(self.chance) for _ in range(size)], images)

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
        orders, scheduled = told(output), list(output.num_scheduled_tokens.items())
        tokens = self._sampled(output)
        if self.chance.random() < 0.05:  # a client leaves while the worker computes
            self._leave()
        known = {name: ids for name, ids in tokens.items() if name in self.scheduler.requests}
        results = self.scheduler.update_from_output(output, known)
        if self.hour.drafts:
            self._propose()
        return self.step_made(
            self.number,
            scheduled=scheduled,
            messages=orders,
            waiting=names_of(list(self.scheduler.waiting)),
            statuses=[f"{each.status.value}, {each.num_preemptions} preemptions" for each in self.scheduler.waiting],
            endings={each.request_id: str(each.finish_reason) for each in results},
            num_preemptions=self.scheduler.num_preemptions,
            token_ids={each.request_id: list(each.new_token_ids) for each in results},
        )

    def step_made(
        self,
        number: int,
        scheduled: Sequence[tuple[str, int]] = (),
        counters: Mapping[str, float] | None = None,
        **seen: Any,
    ) -> Step:
        """Return a step with the cache as it is now. `seen`: further fields of the step."""
        spans, self.kv.spans = list(self.kv.spans), []
        frame, stats = frame_of(self.kv.manager), self.kv.prefix_cache_stats
        counted = {"queries": stats.queries, "hits": stats.hits, "requests": stats.requests, **(counters or {})}
        counted["usage"] = round(self.kv.usage, 6)
        found = found_by(spans, scheduled)
        groups = [tuple(group.layer_names) for group in self._config.kv_cache_groups]
        step = Step(number, spans, found, [*scheduled], frame=frame, counters=counted, groups=groups, **seen)
        self._made.append(step)
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
            dice = random.Random(f"{self.hour.seed} {tokens[-2:]}")
            tokens.append(dice.choice(STOPS) if dice.random() < 0.04 else self._token(dice))
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


def dice_hours(seed: int, count: int, windows: Sequence[tuple[int, ...]] = ((),), **kind: bool) -> list[DiceHour]:
    """Return hours of a seed. Their groups of layers are these, in turn. `kind`: further fields of the hours."""
    return [DiceHour(seed * 1000 + at, windows[at % len(windows)], **kind) for at in range(count)]
