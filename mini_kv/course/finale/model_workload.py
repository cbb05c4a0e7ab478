"""A workload for a small model: forty requests from a seed, on an engine whose pool is too small for them.

engine = ModelWorkload(seed=0).engine(own)     an engine with these parts
for step in engine.steps(): ...                arrivals, aborts, and a step of the engine, until the last answer
engine.story()                                 the story of its cache, for a figure
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.finale.arrivals import Arrival, Arrivals, arrivals
from mini_kv.course.finale.assembly import make_manager, seams
from mini_kv.course.finale.steps import Step, found_by, names_of
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import TinyLlama
from mini_kv.engine.output_processor import DeltaOutput, sample_name
from mini_kv.engine.sampling import SamplingParams
from mini_kv.story.story_json import scheduled_tokens
from mini_kv.tools.serve.live_story import LiveStory

LARGER_BY = 16
"""Factor of the queries in a workload with large scores. The exponential of such a score is too large for a float32."""
LONGEST = 234
"""Tokens of the longest request, prompt and answer."""


@dataclass(frozen=True, slots=True)
class ModelWorkload:
    """Requests from a seed, and the engine's sizes."""

    seed: int = 0
    windows: bool = False
    """Whether two of three layers of the model have a window."""
    forks: bool = False
    """Whether two of the requests have several samples."""
    large_scores: bool = False
    """Whether the scores of attention are so large that a softmax must subtract their maximum."""
    num_requests: int | None = None
    """Keep only the first requests. `None`: all."""
    longest_answer: int | None = None
    """End each answer after so many tokens. `None`: answers are as long as their requests want."""
    block_size: int = 8
    num_blocks: int = 43
    """Blocks of the pool, which is short. One of them is the null block."""

    def engine(self, own: OwnParts) -> "ModelEngine":
        """Return an engine with these parts."""
        return ModelEngine(self, own)

    @property
    def config(self) -> EngineConfig:
        """The engine's sizes and limits."""
        limits = SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=48)
        return EngineConfig(
            self.block_size,
            self.num_blocks,
            scheduler=limits,
            seed=self.seed,
        )

    def arrivals(self) -> list[Arrival]:
        """Return the requests in the order of their arrival."""
        kept = arrivals(self.seed, forks=self.forks)[: self.num_requests]
        longest = self.longest_answer or LONGEST
        return [replace(arrival, max_tokens=min(arrival.max_tokens, longest)) for arrival in kept]


def _enlarge_scores(model: TinyLlama) -> None:
    """Make the queries of this model longer."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name:
                weight.mul_(LARGER_BY)


class Arrived(NamedTuple):
    """A request, as the story needs it."""

    request_id: str
    prompt_token_ids: Sequence[int]


class ModelEngine:
    """A whole engine that runs one workload."""

    def __init__(self, workload: ModelWorkload, own: OwnParts) -> None:
        """Build the engine."""
        self.workload = workload
        self.live = LiveStory(partial(make_manager, own), record=True)
        model, tokenizer = load_model(tiny_folder(windows=workload.windows))
        if workload.large_scores:
            _enlarge_scores(model)
        parts = {**seams(own, on_logits=self._note), "make_manager": self.live.make_manager}
        self.engine = LLMEngine(model, tokenizer, workload.config, **parts)
        self.live.watch(self.engine)
        self.live.on_step(busy=False)
        self.number = 0
        self._arrivals = Arrivals(workload.arrivals())
        self._arrived: dict[str, Arrived] = {}
        self._logits: dict[str, Tensor] = {}

    def _note(self, request_ids: list[str], logits: Tensor) -> None:
        self._logits = dict(zip(request_ids, logits, strict=True))

    def steps(self) -> Iterator[Step]:
        """Yield the steps until the last answer is complete. Raises whatever the engine raises."""
        while self._arrivals.are_due or self.engine.has_unfinished_requests:
            self.number += 1
            for arrival in self._arrivals.arriving(self.number):
                self._add(arrival, self._arrivals.texts[arrival.request_id])
            for request_id in self._arrivals.leaving(self.number):
                self.engine.abort(request_id)
            yield self._step()

    def _add(self, arrival: Arrival, text: str) -> None:
        params = SamplingParams(
            max_tokens=arrival.max_tokens, temperature=0.8 if arrival.n > 1 else 0, seed=self.workload.seed
        )
        self.engine.add_request(arrival.request_id, text, params, n=arrival.n)
        assert self.engine.tokenizer is not None
        arrived = Arrived(arrival.request_id, self.engine.tokenizer.encode(text))
        self._arrived[arrival.request_id] = arrived
        self.live.on_request(arrived)

    def _step(self) -> Step:
        self._logits = {}
        deltas = self.engine.step()
        token_ids: dict[str, list[int]] = {}
        for delta in deltas:
            token_ids[sample_name(delta.request_id, delta.index)] = delta.new_token_ids
            self._take(delta)
        self.live.on_step(busy=False)
        frame, spans, _, heading = self.live.kept[-1]
        if heading["do"] != f"step {self.engine.stats.num_steps}":
            spans = []
        scheduler, stats = self.engine.scheduler, self.engine.stats
        scheduled = list(scheduled_tokens(spans).items())
        return Step(
            number=self.number,
            spans=spans,
            found=found_by(spans, scheduled),
            scheduled=scheduled,
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

    def story(self) -> dict[str, Any]:
        """Return the story of the pool. It ends where the run ended."""
        return {**(self.live.recorded() or {}), "title": f"The rush hour of seed {self.workload.seed}"}

    def _take(self, delta: DeltaOutput) -> None:
        if delta.index == 0:
            self._arrivals.say(delta.request_id, delta.new_text)
        if delta.finish_reason:
            self._arrivals.sample_ended(delta.request_id)
        self.live.on_token(self._arrived[delta.request_id], delta)
