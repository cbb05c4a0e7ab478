"""Stories of an engine, drawn from a seed, and an exception that strikes at a chosen call inside it."""

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor

import mini_kv
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.invariants import find_violations
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.interface import Attend
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.output_processor import DeltaOutput
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.test_detokenizer import Letters

SOURCE = str(Path(mini_kv.__file__).parent)
TESTS = str(Path(mini_kv.__file__).parent / "tests")
GREEDY = SamplingParams(max_tokens=3, temperature=0)
KINDS = (KeyboardInterrupt, MemoryError, RuntimeError)
VOCAB_SIZE = 20


class OnlyAttention:
    """A model of nothing but attention, which is what a cache can spoil; its layers' windows are its only setting."""

    vocab_size, max_position_embeddings, dtype, device = VOCAB_SIZE, 64, torch.float64, torch.device("cpu")
    max_position_embeddings = 64

    def __init__(self, *windows: int | None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randn(VOCAB_SIZE, 8, generator=generator, dtype=self.dtype)
        self.places = torch.randn(64, 8, generator=generator, dtype=self.dtype)
        self.mixes = torch.randn(3, 8, 8, generator=generator, dtype=self.dtype) / 2
        self.windows = windows
        self.settings = str(windows)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from {"words": self.words, "places": self.places, "mixes": self.mixes}.items()

    def get_kv_cache_spec(self, block_size: int) -> dict[str, KVCacheSpec]:
        return {
            f"layers.{layer}": SlidingWindowSpec(block_size, 1, 8, 8, sliding_window=window)
            if window
            else FullAttentionSpec(block_size, 1, 8, 8)
            for layer, window in enumerate(self.windows)
        }

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, logits_indices: Tensor) -> Tensor:
        hidden = self.words[token_ids] + self.places[positions]
        for layer, window in enumerate(self.windows):
            query, key, value = (hidden @ self.mixes).unsqueeze(2)
            hidden = attend(layer, query, key, value, AttentionOptions(sliding_window=window))[:, 0]
        return hidden[logits_indices] @ self.words.T


MODELS = [OnlyAttention(None), OnlyAttention(3), OnlyAttention(5, None)]


class Fuse:
    """Raises at chosen calls of mini_kv's functions, counted from the first one while it is lit."""

    def __init__(self, at: Sequence[int] = ()) -> None:
        self.at = at
        self.num_calls = 0
        self.blown: list[str] = []
        """Functions that never began."""
        self._before: Any = None
        self._is_lit = False

    def __enter__(self) -> None:
        self._before, self._is_lit = sys.gettrace(), True
        if not self.at or len(self.blown) < len(self.at):
            sys.settrace(self._on_event)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        self._is_lit = False

    def light_again(self) -> None:
        """Go on counting, if it has blown and is to blow once more: Python drops a trace function that raises."""
        if self._is_lit and 0 < len(self.blown) < len(self.at):
            sys.settrace(self._on_event)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE) and not file.startswith(TESTS):
            self.num_calls += 1
            if self.num_calls in self.at:
                self.blown.append(frame.f_code.co_name)
                raise KINDS[self.num_calls % len(KINDS)](f"at {frame.f_code.co_qualname}")


class NotingScheduler(Scheduler):
    """Notes which step is planned, and lets a fuse blow again while the engine cleans up."""

    fuse: Fuse
    planned: list[str] | None = None
    """Names in the last step; `None` while it is planned."""

    def schedule(self) -> SchedulerOutput:
        self.planned = None
        output = super().schedule()
        self.planned = list(output.num_scheduled_tokens)
        return output

    def abandon_step(self) -> None:
        self.fuse.light_again()
        super().abandon_step()

    def finish_requests(self, request_ids: Any) -> None:
        self.fuse.light_again()
        super().finish_requests(request_ids)


@dataclass(frozen=True)
class Asked:
    """A request of a story."""

    name: str
    prompt: list[int]
    params: SamplingParams
    n: int
    priority: int
    cache_salt: str | None


@dataclass(frozen=True)
class Story:
    """What happens to an engine, call by call; in the end it is stepped until all is said."""

    model: OnlyAttention
    config: EngineConfig
    calls: list[Asked | str | None]
    """A request that comes, the name of one that is aborted, or a step."""

    @property
    def asked(self) -> list[Asked]:
        return [call for call in self.calls if isinstance(call, Asked)]

    def without_aborts(self) -> "Story":
        return replace(self, calls=[call for call in self.calls if not isinstance(call, str)])


def make_story(seed: int) -> Story:
    """Return a story: prompts that begin alike, samples, few blocks, small steps, windows, priorities, aborts."""
    rng = random.Random(seed)
    model = MODELS[seed % len(MODELS)]
    scheduler = SchedulerConfig(
        max_num_seqs=rng.choice((2, 2, 3)),
        max_num_batched_tokens=rng.choice((5, 8, 32)),
        policy=rng.choice(list(SchedulingPolicy)),
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )
    num_blocks = rng.choice((7, 7, 8, 30)) * len(model.windows)
    config = EngineConfig(2, num_blocks, enable_prefix_caching=rng.random() < 0.9, scheduler=scheduler)
    document = [rng.randrange(VOCAB_SIZE) for _ in range(4)]
    calls: list[Asked | str | None] = []
    for name in "abc":
        prompt = document[: rng.randrange(5)] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 3))]
        params = SamplingParams(
            max_tokens=rng.randrange(1, 7),
            temperature=rng.choice((0, 1.0)),
            seed=rng.randrange(100),
            stop=(Letters.text([rng.randrange(VOCAB_SIZE)]),),
        )
        n = rng.choice((1, 1, 2))
        calls += [Asked(name, prompt, params, n, rng.randrange(2), rng.choice((None, None, "salt")))]
        calls += [None] * rng.randrange(3)
        if rng.random() < 0.2:
            calls.append(rng.choice("abc"[: "abc".index(name) + 1]))
    return Story(model, replace(config, debug_poison=rng.random() < 0.2), calls)


Words = dict[tuple[str, int], list[tuple[int, str, str | None]]]
"""What each sample of each request was given: token, text, and why it ended."""


class Play:
    """Plays one story, goes on after an exception, and checks at once what must be true then."""

    def __init__(self, story: Story, fuse: Fuse) -> None:
        self.story, self.fuse = story, fuse
        self.said: Words = defaultdict(list)
        self.may_be_cut: set[str] = set()
        """Requests that were aborted, by the story or with a step that failed."""
        self.llm = LLMEngine(story.model, Letters(), story.config, make_scheduler=NotingScheduler)
        self.scheduler = cast(NotingScheduler, self.llm.scheduler)
        self.scheduler.fuse = fuse
        self.num_threads = torch.get_num_threads()

    def run(self) -> Words:
        """Play to the end; then ask the first prompts once more, on what is in the cache and in the rows now."""
        for call in self.story.calls:
            if isinstance(call, Asked):
                self._add(call)
            elif isinstance(call, str):
                self.may_be_cut.add(call)
                if not self._attempt(partial(self.llm.abort, call)):
                    self.llm.abort(call)
            else:
                self._step()
        self._drain()
        self._ask_again()
        return self.said

    def _add(self, asked: Asked) -> None:
        """Add a request; after an exception it is not there, and can be added."""
        add = partial(
            self.llm.add_request,
            asked.name,
            asked.prompt,
            asked.params,
            n=asked.n,
            priority=asked.priority,
            cache_salt=asked.cache_salt,
        )
        if not self._attempt(add):
            add()

    def _step(self) -> None:
        """Make a step; if it failed, its requests are aborted, or none if it was still being planned."""
        before = self._unfinished()
        if not self._attempt(lambda: self._take_in(self.llm.step())):
            in_step = {name.split("/")[0] for name in self.scheduler.planned or ()}
            self.may_be_cut |= in_step
            if len(self.fuse.blown) == 1:
                assert before - self._unfinished() in (set(), in_step)

    def _take_in(self, deltas: list[DeltaOutput]) -> None:
        for delta in deltas:
            (token,) = delta.new_token_ids
            self.said[delta.request_id, delta.index].append((token, delta.new_text, delta.finish_reason))

    def _attempt(self, call: Callable[[], object]) -> bool:
        """Return whether the call came to its end. If not, nothing is torn, unless its clean-up was stopped, too."""
        num_blown = len(self.fuse.blown)
        try:
            with self.fuse:
                call()
            return True
        except KINDS:
            assert len(self.fuse.blown) > num_blown
            assert torch.get_num_threads() == self.num_threads
            if len(self.fuse.blown) == 1:
                assert list(find_violations(self.llm.kv_cache_manager)) == []
                assert self.scheduler.requests.keys() <= self.llm._samples.keys()
            return False

    def _drain(self) -> None:
        while self.llm.has_unfinished_requests:
            self._step()
        assert self.scheduler.requests == {} and len(self.scheduler.waiting) == len(self.scheduler.running) == 0
        assert self.llm.kv_cache_manager.usage == 0.0

    def _ask_again(self) -> None:
        """Fill all seats at once: each has a row of its own, and the runner knows no other request."""
        self.fuse = self.scheduler.fuse = Fuse()
        seats = self.story.config.scheduler.max_num_seqs
        again = [Asked(f"again {old.name}", old.prompt[:3], GREEDY, 1, 0, old.cache_salt) for old in self.story.asked]
        for asked in again[:seats]:
            self._add(asked)
        runner = self.llm.model_runner
        while len(runner.requests) < seats or any(not name.startswith("again") for name in runner.requests):
            assert self.llm.has_unfinished_requests
            self._step()
        assert sorted(state.row for state in runner.requests.values()) == list(range(seats))
        self._drain()

    def _unfinished(self) -> set[str]:
        return {sample.request.request_id for sample in self.llm._samples.values()}
