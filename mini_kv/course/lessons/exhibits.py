"""Shows five bugs that other engines had, each with a part that replaces this engine's own.

    sent_twice(range(5, 14), HitsTheLastToken)      each prompt sent twice, with this lookup
    reported_rate(CountsAgain)                      the hit rate of random prompts, with these counters
    texts(60, GroupByGroup)                         the small model's texts, with this coordinator
    ANY_ORDER.right, ANY_ORDER.wrong                a few calls without and with this part, as two stories

The parts are in `mini_kv.course.given.faulty_parts`. The bugs were in the code of other projects. The chapter links to
their public reports.
"""

import random
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import KVCacheError
from mini_kv.core.free_blocks import QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.core.stats import PrefixCacheStats
from mini_kv.course.given.faulty_parts import FREED_TWICE, AnyOrder, CountsAgain, GroupByGroup, HitsTheLastToken
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.course.given.small_manager import make_manager
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.story.figure import played_data
from mini_kv.story.frame import frame_of
from mini_kv.story.scenario import PlayedStep, Scenario, ScenarioPlayer, Step, scenario_from
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.story.story_json import Data

HEADS = ("A block is free when no request holds it.", "The scheduler counts tokens and", "The cache keeps keys of")
TAILS = (" Who", " It", " and the", " a request", " because", " then the pool", " of blocks")
"""The prompts of `texts` are one of the first and two of the second."""


def sent_twice(lengths: Iterable[int], lookup: type[FullAttentionManager], block_size: int = 4) -> str:
    """Send a prompt of each length twice. Return one line per length: the tokens of the second hit, or the error."""
    lines = []
    for length in lengths:
        kv = make_manager(100, block_size, tables=lookup)
        try:
            for name in "AB":
                request = kv.new_request(name, range(length))
                prefill(kv, request)
                kv.free(request)
            lines.append(f"{length:>2} tokens: {request.num_cached_tokens} cached, {length} in all")
        except KVCacheError as error:
            lines.append(f"{length:>2} tokens: {type(error).__name__}: {error}")
    return "\n".join(lines)


def still_found(make_queue: QueueFactory) -> int:
    """Fill a cache of three blocks of 4 with one prompt, evict one block, and return the tokens that are still hit."""
    kv = make_manager(4, 4, make_queue=make_queue)
    for name, token_ids in (("A", range(12)), ("B", [99])):
        request = kv.new_request(name, token_ids)
        prefill(kv, request)
        kv.free(request)
    return kv.get_computed_blocks(kv.new_request("C", range(13)))[1]


def reported_rate(kind: type[KVCacheManager], seed: int = 0) -> str:
    """Send 100 random prompts of 60 tokens through a pool that is too small. Return the counters after the last."""
    chance = random.Random(seed)
    kv = make_manager(100, 4, kind)
    scheduler = Scheduler(kv, SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=128))
    for number in range(100):
        prompt = [chance.randrange(50_000) for _ in range(60)]
        scheduler.add_request(kv.new_request(str(number), prompt), max_tokens=60)
    while scheduler.has_unfinished_requests:
        run_step(scheduler, lambda output: sample_ready(scheduler, output, lambda _: 0))
    stats = kv.prefix_cache_stats
    counted = f"{stats.requests} requests, {stats.hits:,} of {stats.queries:,} tokens hit"
    return f"hit rate {stats.hits / stats.queries:.1%} ({counted}), {scheduler.num_preemptions} preemptions"


def texts(num_blocks: int, *, windows: bool = False, check: bool = False, **parts: Any) -> list[str]:
    """Return the small model's texts to 40 prompts in a pool of this size.

    `windows`: the model whose layers have windows, with several groups. `check`: a manager that checks itself after
    every call. `parts`: replaced parts of `KVCacheParts`.

    Raises:
        KVCacheError: from an engine with a wrong part.
        InvariantViolationError: with `check`, at the first broken rule.
    """

    def make_manager(config: KVCacheConfig, **options: Any) -> KVCacheManager:
        manager = KVCacheManager(config, parts=KVCacheParts(**parts), **options)
        return DebugKVCacheManager(manager) if check else manager

    from mini_kv.engine.checkpoint import tiny_folder
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.sampling import SamplingParams

    llm = LLM(
        tiny_folder(windows=windows),
        parts={"make_manager": make_manager},
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=4,
    )
    chance = random.Random(1)
    prompts = [chance.choice(HEADS) + chance.choice(TAILS) + chance.choice(TAILS) for _ in range(40)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=24, temperature=0))
    return [output.outputs[0].text for output in outputs]


def error_of(num_blocks: int, *, windows: bool = False, check: bool = False, **parts: Any) -> str:
    """Return the error that ends such a run, or an empty string."""
    try:
        texts(num_blocks, windows=windows, check=check, **parts)
    except (KVCacheError, InvariantViolationError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class _TakesTwins(FreeKVCacheBlockQueue):
    """A queue that ignores that a block is listed twice, so that the picture shows what follows, and no error."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append each block once."""
        super().append_n(list(dict.fromkeys(blocks)))


@dataclass(frozen=True)
class Bug:
    """A scenario of `bugs.toml`, played on this engine, and on one that has the bug."""

    name: str
    parts: dict[str, Any] = field(default_factory=dict)
    """The wrong parts, as for `KVCacheParts`."""
    make_manager: Callable[..., KVCacheManager] = KVCacheManager

    def right(self) -> Data:
        """Return the story of this engine. It asks before the step in which the other differs."""
        player = ScenarioPlayer(self._scenario())
        return self._story(player, "This engine", player.scenario.steps)

    def wrong(self) -> Data:
        """Return the story of the other engine, without questions. An error ends it."""
        scenario = self._scenario()
        player = ScenarioPlayer(scenario, KVCacheParts(**self.parts), make_manager=self.make_manager, strict=False)
        return self._story(player, "The other", [replace(step, predict=None) for step in scenario.steps])

    def _scenario(self) -> Scenario:
        text = resources.files("mini_kv.course.lessons").joinpath("bugs.toml").read_text(encoding="utf-8")
        return scenario_from(self.name, tomllib.loads(text)[self.name])

    def _story(self, player: ScenarioPlayer, title: str, steps: Iterable[Step]) -> Data:
        scenario = player.scenario
        return played_data(replace(scenario, title=f"{scenario.title}: {title}"), self._played(player, steps))

    def _played(self, player: ScenarioPlayer, steps: Iterable[Step]) -> Iterator[PlayedStep]:
        for step in steps:
            num_spans = len(player.kv.spans)
            try:
                played = player.make(step)
            except KVCacheError as error:
                told = replace(step, say=f"{type(error).__name__}: {error}")
                yield PlayedStep(told, player.kv.spans[num_spans:], frame_of(player.kv.manager), 0)
                return
            yield played if player.scheduler is None else _counted(played, player.kv.prefix_cache_stats)


def _counted(played: PlayedStep, stats: PrefixCacheStats) -> PlayedStep:
    """Return the step with the counters in its words."""
    counted = f"Counted: {stats.requests} requests, {stats.hits} of {stats.queries} words found."
    return replace(played, step=replace(played.step, say=f"{played.step.say} {counted}"))


_HITS_ALL: dict[type[KVCacheSpec], Any] = {**MANAGER_CLASSES, FullAttentionSpec: HitsTheLastToken}
EVERY_TOKEN_FOUND = Bug("every-token-found", {"manager_classes": _HITS_ALL})
ANY_ORDER = Bug("any-order", {"make_queue": partial(AnyOrder, seed=6)})
COUNTED_AGAIN = Bug("counted-again", make_manager=CountsAgain)
GROUP_BY_GROUP = Bug("group-by-group", {"make_coordinator": GroupByGroup})
TWICE_IN_A_LIST = Bug("freed-twice", {**FREED_TWICE, "make_queue": _TakesTwins})
