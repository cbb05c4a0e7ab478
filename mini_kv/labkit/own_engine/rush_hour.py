"""The rush hour of a small model: forty requests from a seed, on an engine whose pool is too small for them.

rush = ModelHour(seed=0).rush(own, limit_s)     an engine with these parts
for step in rush.steps(): ...                   arrivals, departures, and a step of the engine, until the last answer
rush.film()                                     the story of its cache, for a figure
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.checkpoint import tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm import load
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.output_processor import DeltaOutput, sample_name
from mini_kv.engine.sampling import SamplingParams
from mini_kv.labkit.learner_parts import OwnParts
from mini_kv.labkit.own_engine.assembly import make_manager, seams
from mini_kv.labkit.own_engine.steps import Step, names_of
from mini_kv.labkit.time_limit import time_limit
from mini_kv.serve.live_story import LiveStory
from mini_kv.viz.story_json import scheduled_tokens

SYSTEM = "You answer questions about a cache. Name the block, name the request that holds it, and be short. "
QUESTIONS = (
    "Which block is free?",
    "Who holds block three?",
    "When is a block evicted?",
    "Why does a request wait?",
    "What is a prefix?",
    "How many tokens fit?",
    "Which block is next?",
    "What does the scheduler count?",
)
REPLIES = (" And then?", " Why is that so?", " Who else holds it?", " Say it again, with numbers.")
DOCUMENT = (
    "A block has a number, a count of references and a hash. The pool has a queue of free blocks. A request has a "
    "table of blocks. A prompt that begins like another one shares its blocks. "
)


LONGEST = 234
"""Tokens of the longest request, prompt and answer: what an engine with rows would reserve for each."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of the rush hour."""

    request_id: str
    arrives: int
    """The step before which it arrives. A reply arrives later, if the text that it follows is unfinished then."""
    text: str
    max_tokens: int
    follows: str = ""
    """The request whose prompt and answer this text continues."""
    n: int = 1
    """Number of samples: those after the first are forked from it."""
    leaves: int | None = None
    """The step before which its client leaves."""


@dataclass(frozen=True, slots=True)
class ModelHour:
    """A rush hour: which requests, and the engine's sizes."""

    seed: int = 0
    windows: bool = False
    """Whether two of three layers of the model have a window."""
    forks: bool = False
    """Whether two of the requests have several samples."""
    num_visits: int | None = None
    """Keep only the first requests. `None`: all."""
    enable_caching: bool = True
    max_num_seqs: int = 12

    def rush(self, own: OwnParts, limit_s: float) -> "ModelRush":
        """Return an engine with these parts."""
        return ModelRush(self, own, limit_s)

    def others(self) -> dict[str, "ModelHour"]:
        """Return the same requests on engines that have less."""
        config = self.config
        rows = (config.num_blocks or 1) * config.block_size // LONGEST
        return {
            "no prefix caching": replace(self, enable_caching=False),
            "a row per request": replace(self, enable_caching=False, max_num_seqs=max(1, rows)),
            "one at a time": replace(self, max_num_seqs=1),
        }

    @property
    def config(self) -> EngineConfig:
        """The engine's sizes: blocks of 8 tokens, and a pool that is short."""
        limits = SchedulerConfig(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=48)
        num_blocks = 106 if self.windows else 43
        return EngineConfig(8, num_blocks, enable_prefix_caching=self.enable_caching, scheduler=limits, seed=self.seed)

    def visits(self) -> list[Visit]:
        """Return the requests in the order of their arrival.

        Single questions and conversations of three turns begin with the same system text. One prompt takes many steps,
        and two clients leave.
        """
        rng = random.Random(self.seed)
        found = [
            Visit(f"q{number}", rng.randrange(40), SYSTEM + rng.choice(QUESTIONS), rng.randrange(6, 40))
            for number in range(20)
        ]
        for talk in range(5):
            name, first = f"talk{talk}.", rng.randrange(40)
            found.append(Visit(f"{name}1", first, f"{SYSTEM}{rng.choice(QUESTIONS)}", rng.randrange(8, 16)))
            for turn in (2, 3):
                reply = Visit(f"{name}{turn}", first, rng.choice(REPLIES), rng.randrange(6, 12), f"{name}{turn - 1}")
                found.append(reply)
        found.append(Visit("long", 12, DOCUMENT * 5, 8))
        for number in range(2 if self.forks else 0):
            found.append(Visit(f"fork{number}", rng.randrange(50), SYSTEM + QUESTIONS[number], 14, n=3))
        for number in range(2):
            arrives = rng.randrange(10, 40)
            found.append(
                Visit(f"left{number}", arrives, SYSTEM + REPLIES[number], 40, leaves=arrives + rng.randrange(4, 9))
            )
        return sorted(found, key=lambda visit: visit.arrives)[: self.num_visits]


class Arrived(NamedTuple):
    """A request, as the story needs it."""

    request_id: str
    prompt_token_ids: Sequence[int]


class ModelRush:
    """One rush hour on one engine."""

    def __init__(self, hour: ModelHour, own: OwnParts, limit_s: float) -> None:
        """Build the engine. `limit_s`: the seconds within which it must be built, and within which it makes a step."""
        self.hour, self.limit_s = hour, limit_s
        self.live = LiveStory(partial(make_manager, own), record=True)
        model, tokenizer = load(tiny_folder(windows=hour.windows))
        parts = {**seams(own, on_logits=self._note), "make_manager": self.live.make_manager}
        with time_limit(limit_s):
            self.engine = LLMEngine(model, tokenizer, hour.config, **parts)
        self.live.watch(self.engine)
        self.live.turned(busy=False)
        self.texts: dict[str, str] = {}
        """Prompt and answer of each request, of its first sample."""
        self.waits: dict[str, int] = {}
        """Steps from a request's arrival to its first token."""
        self.number = 0
        self._due = hour.visits()
        self._unfinished: dict[str, int] = {}
        """The number of samples of each request that have not ended."""
        self._arrived: dict[str, tuple[int, Arrived]] = {}
        self._logits: dict[str, Tensor] = {}

    def _note(self, request_ids: list[str], logits: Tensor) -> None:
        self._logits = dict(zip(request_ids, logits, strict=True))

    def steps(self) -> Iterator[Step]:
        """Yield the steps until the last answer is complete. Raises whatever the engine raises."""
        while self._due or self.engine.has_unfinished_requests:
            self.number += 1
            for visit in [visit for visit in self._due if self._can_arrive(visit)]:
                self._due.remove(visit)
                self._add(visit)
            for visit in self.hour.visits():
                if visit.leaves == self.number:
                    self.engine.abort(visit.request_id)
                    self._unfinished.pop(visit.request_id, None)
            yield self._step()

    def _can_arrive(self, visit: Visit) -> bool:
        if visit.arrives > self.number:
            return False
        return not visit.follows or (visit.follows in self.texts and visit.follows not in self._unfinished)

    def _add(self, visit: Visit) -> None:
        text = self.texts.get(visit.follows, "") + visit.text
        params = SamplingParams(max_tokens=visit.max_tokens, temperature=0.8 if visit.n > 1 else 0, seed=self.hour.seed)
        self.engine.add_request(visit.request_id, text, params, n=visit.n)
        self.texts[visit.request_id] = text
        self._unfinished[visit.request_id] = visit.n
        assert self.engine.tokenizer is not None
        arrived = Arrived(visit.request_id, self.engine.tokenizer.encode(text))
        self._arrived[visit.request_id] = self.number, arrived
        self.live.came(arrived)

    def _step(self) -> Step:
        self._logits = {}
        with time_limit(self.limit_s):
            deltas = self.engine.step()
            token_ids: dict[str, list[int]] = {}
            for delta in deltas:
                token_ids[sample_name(delta.request_id, delta.index)] = delta.new_token_ids
                self._take(delta)
            self.live.turned(busy=False)
        frame, spans, _, told = self.live.kept[-1]
        if told["do"] != f"step {self.engine.stats.num_steps}":
            spans = []
        scheduler, stats = self.engine.scheduler, self.engine.stats
        return Step(
            number=self.number,
            spans=spans,
            scheduled=list(scheduled_tokens(spans).items()),
            messages=[],
            waiting=names_of(list(scheduler.waiting)),
            num_preemptions=scheduler.num_preemptions,
            counters={
                "hit rate": stats.recent_requests.hit_rate,
                "usage": round(self.engine.kv_cache_manager.usage, 6),
            },
            frame=frame,
            token_ids=token_ids,
            logits=self._logits,
        )

    def film(self) -> dict[str, Any]:
        """Return the story of the pool. It ends where the run ended."""
        return {**(self.live.recorded() or {}), "title": f"The rush hour of seed {self.hour.seed}"}

    def _take(self, delta: DeltaOutput) -> None:
        number, arrived = self._arrived[delta.request_id]
        self.waits.setdefault(delta.request_id, self.number - number)
        if delta.index == 0:
            self.texts[delta.request_id] += delta.new_text
        if delta.finish_reason:
            self._unfinished[delta.request_id] -= 1
            if not self._unfinished[delta.request_id]:
                del self._unfinished[delta.request_id]
        self.live.said(arrived, delta)
