"""A running engine as a story, for the figure `<kv-story>`: the steps since a page was opened, and the counters.

The engine's loop calls `on_request`, `on_token` and `on_step` in the engine's thread. `mini-kv serve` and the book's
page "Play" have such loops. Imports no torch and no web server.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import RequestStatus
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.engine.detokenizer import TextTokenizer
from mini_kv.engine.engine_stats import EngineStats
from mini_kv.story.edge import EdgeKind
from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_json import StoryWriter
from mini_kv.story.story_text import story
from mini_kv.story.traced_manager import Span, TracedKVCacheManager

EVERY_S = 0.15
"""Minimum seconds between two updates of a page."""
MOST_STEPS, MOST_RECORDED = 48, 2000
"""The most steps of the story on a page, and of a recorded story."""
MOST_LINES, MOST_REQUESTS, MOST_CHARACTERS = 12, 16, 400
ENDS = {"length": "it has all its tokens", "stop": "its text is complete", "abort": "it was stopped"}
"""Finish reasons, in words."""

Json = dict[str, Any]


class Engine(Protocol):
    """The parts of an engine that a story is made from. `LLMEngine` has them."""

    scheduler: Scheduler
    stats: EngineStats

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """Turns tokens into words. `None`: the story shows the numbers."""


class Asked(Protocol):
    """A new request, for instance a `Ticket` of `mini-kv serve`."""

    @property
    def request_id(self) -> str:
        """Its id."""

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """Its prompt."""


class NewText(Protocol):
    """One step's new text of a request, for instance a `DeltaOutput`."""

    @property
    def request_id(self) -> str:
        """The request."""

    @property
    def index(self) -> int:
        """Index of the sample among the request's samples."""

    @property
    def new_text(self) -> str:
        """The new text."""

    @property
    def finish_reason(self) -> str | None:
        """`None` while the text is unfinished."""

    @property
    def num_cached_tokens(self) -> int | None:
        """Tokens of the prompt that were found in the cache."""


def plain_manager(config: KVCacheConfig, *, new_block: Any, **options: Any) -> KVCacheManager:
    """Return the engine's own manager, with blocks that report their changes."""
    return KVCacheManager(config, parts=KVCacheParts(new_block=new_block), **options)


class LiveStory:
    """Watches an engine from its thread, and makes stories for the page."""

    def __init__(self, make: Callable[..., Any] = plain_manager, record: bool = False) -> None:
        """Prepare to watch the manager that `make` makes. `record`: keep the whole story, too."""
        self._make, self._recorder = make, Recorder(strict=False)
        self._spans: list[Span] = []
        self._requests: dict[str, Json] = {}
        self._sentences: list[str] = []
        """What has happened since the last step of the story."""
        self._preempted: set[str] = set()
        self._log: deque[str] = deque(maxlen=60)
        self._num_evicted = self._num_steps = 0
        self._told_at = 0.0
        self.kept: list[tuple[Frame, list[Span], dict[int, list[str]], Json]] = []
        self._record = record
        self._recording: StoryWriter | None = None
        self._words: dict[int, list[str]] = {}
        self._spelled: dict[int, str] = {}
        self.listened_by(lambda: False, lambda telling: None)

    def listened_by(self, is_wanted: Callable[[], bool], tell: Callable[[Json], None]) -> None:
        """Set the listener: `is_wanted` returns whether a page is open, and `tell` gets each update."""
        self.is_wanted, self.tell = is_wanted, tell

    def make_manager(self, config: KVCacheConfig, **options: Any) -> TracedKVCacheManager:
        """Return a watched manager. Pass this method to `LLMEngine` as `make_manager`."""
        self._kv = TracedKVCacheManager(
            self._make(config, new_block=self._recorder.new_block, **options), self._recorder
        )
        self._num_blocks = config.num_blocks
        self._groups = [_kept(group.kv_cache_spec) for group in config.kv_cache_groups]
        return self._kv

    def watch(self, engine: Engine) -> None:
        """Set the engine that was made with `make_manager`."""
        self._engine = engine
        self._begun = frame_of(self._kv.manager)
        if self._record:
            self._recording = self._writer(self._begun)

    # Called by the loop, in the engine's thread.

    def on_request(self, ticket: Asked) -> None:
        """Record a new request."""
        while len(self._requests) >= MOST_REQUESTS:
            ended = (name for name, each in self._requests.items() if each["state"] not in ("waits", "runs"))
            del self._requests[next(ended, next(iter(self._requests)))]
        prompt = "".join(map(self._word, ticket.prompt_token_ids))[:MOST_CHARACTERS]
        self._requests[ticket.request_id] = {
            "name": ticket.request_id,
            "prompt": prompt,
            "tokens": len(ticket.prompt_token_ids),
            "found": "",
            "said": "",
            "cached": None,
            "state": "waits",
        }
        self._note(f"{ticket.request_id} arrives with {len(ticket.prompt_token_ids)} tokens", 1)

    def on_token(self, ticket: Asked, delta: NewText) -> None:
        """Record a new token of a request."""
        request = self._requests.get(delta.request_id)
        if request is None or delta.index:
            return  # of several samples the page follows the first
        request["said"] += delta.new_text
        if request["state"] == "waits":
            found = ticket.prompt_token_ids[: delta.num_cached_tokens or 0]
            request["found"] = "".join(map(self._word, found))[:MOST_CHARACTERS]
        request["cached"], request["state"] = delta.num_cached_tokens, delta.finish_reason or "runs"
        if delta.finish_reason:
            self._note(f"{delta.request_id} ends: {ENDS.get(delta.finish_reason, delta.finish_reason)}")

    def on_step(self, busy: bool) -> None:
        """Collect the cache's calls, and send an update if one is due."""
        spans = _worth_telling(self._kv.spans)
        self._kv.spans.clear()
        for span in spans:
            if span.call == "get_computed_blocks" and span.result:
                self._note(f"{span.request_id} finds {span.result} tokens in the cache")
        evicted = [edge.block_id for span in spans for edge in span.edges if edge.kind is EdgeKind.EVICTED]
        self._num_evicted += len(evicted)
        if evicted:
            blocks = "block" if len(evicted) == 1 else "blocks"
            self._note(f"{blocks} {', '.join(map(str, evicted))} evicted")
        self._note_preempted()
        if not self._record and not self.is_wanted():
            self.kept.clear()
            self._sentences, self._spans = [], []
            return
        self._spans += spans
        now = time.perf_counter()
        if busy and now - self._told_at < EVERY_S:
            return
        self._told_at = now
        if self._spans or not self.kept:
            self._add_step()
        if self.is_wanted():
            self.tell(self.telling())

    def _note_preempted(self) -> None:
        """Record the requests that were preempted in this step, and those that run again."""
        waiting = self._engine.scheduler.waiting
        preempted = {each.request_id for each in waiting if each.status is RequestStatus.PREEMPTED}
        for name in sorted(preempted - self._preempted):
            self._note(f"no block is free: {name} is preempted, its blocks are freed, and it waits")
            if name in self._requests:
                self._requests[name]["state"] = "preempted"
        for name in sorted(self._preempted - preempted):
            if name in self._engine.scheduler.requests:
                self._note(f"{name} runs again: what is no longer in the cache is computed again")
        self._preempted = preempted

    def _note(self, line: str, steps_ahead: int = 0) -> None:
        self._log.append(f"step {self._engine.stats.num_steps + steps_ahead}: {line}")
        self._sentences.append(f"{line[0].upper()}{line[1:]}.")

    # A telling.

    def _add_step(self) -> None:
        """Add one step to the story, with all calls since the last step."""
        self._read_words()
        frame, words = frame_of(self._kv.manager), dict(self._words)
        lines = story(span for span in self._spans if span.edges or span.call == "get_computed_blocks")
        self._num_steps += 1
        told = {
            "do": f"step {self._engine.stats.num_steps}",
            "say": " ".join(self._sentences[:MOST_LINES]),
            "lines": lines[:MOST_LINES],
            "waiting": self._waiting(),
            "prompts": self._partly_computed() or None,
        }
        self.kept.append((frame, self._spans, words, told))
        if self._recording is not None and len(self._recording.steps) < MOST_RECORDED:
            self._recording.add_step(frame, self._spans, words, **told)
        self._spans, self._sentences = [], []
        if len(self.kept) > MOST_STEPS:  # half at once: the figure plays what is added at the end, and knows it by that
            self.kept = self.kept[MOST_STEPS // 2 :]

    def telling(self) -> Json:
        """Return the page's data: the story, the counters, the requests and the log."""
        scheduler, stats = self._engine.scheduler, self._engine.stats
        pool = self._kv.block_pool
        counters = {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "held": self._num_blocks - 1 - pool.num_free_blocks,
            "blocks": self._num_blocks - 1,
            "hit_rate": stats.recent_requests.hit_rate,
            "evicted": self._num_evicted,
            "preempted": scheduler.num_preemptions,
            "prompt_tokens": stats.num_prompt_tokens,
            "generation_tokens": stats.num_generation_tokens,
        }
        told = {"counters": counters, "requests": list(self._requests.values()), "log": list(self._log)}
        return {"story": self._story(), **told}

    def _story(self) -> Json:
        """Return the last steps as a story."""
        if not self.kept:
            return self._writer(self._begun).data()
        frame, _, words, _ = self.kept[0]
        writer = self._writer(frame, words)
        for frame, spans, words, told in self.kept[1:]:
            writer.add_step(frame, spans, words, **told)
        return writer.data()

    def recorded(self) -> Json | None:
        """Return the whole story so far, if it was recorded."""
        return None if self._recording is None else self._recording.data()

    def _writer(self, start: Frame, words: dict[int, list[str]] | None = None) -> StoryWriter:
        title = f"{self._num_blocks - 1} blocks of {self._kv.block_size} tokens, live"
        head = {"groups": self._groups} if len(self._groups) > 1 else {}
        return StoryWriter(title, self._num_blocks, self._kv.block_size, start=start, words=words, **head)

    def _partly_computed(self) -> dict[str, list[str]]:
        """Return the tokens, as words, of each newly admitted request whose prompt takes more than one step."""
        before = self.kept[-1][0].tables if self.kept else self._begun.tables
        admitted = [self._engine.scheduler.requests[name] for name in self._kv.requests if name not in before]
        return {
            request.request_id: [self._word(token_id) for token_id in request.token_ids]
            for request in admitted
            if request.num_computed_tokens < request.num_tokens - 1  # a token that was just sampled has no KV yet
        }

    def _waiting(self) -> list[str | list[str]]:
        waiting = self._engine.scheduler.waiting
        return [
            [each.request_id, "preempted"] if each.status is RequestStatus.PREEMPTED else each.request_id
            for each in waiting
        ]

    def _read_words(self) -> None:
        """Read the text of each referenced block. A free block keeps its text until it is evicted."""
        for edge in (edge for span in self._spans for edge in span.edges):
            if edge.kind is EdgeKind.EVICTED:
                self._words.pop(edge.block_id, None)
        size = self._kv.block_size
        for name in self._kv.requests:
            request = self._engine.scheduler.requests[name]
            token_ids = request.token_ids[: request.num_computed_tokens]  # the newest token has no slot yet
            for table in self._kv.get_block_ids(name):
                for place, block_id in enumerate(table):
                    if block_id:
                        words = [self._word(each) for each in token_ids[place * size : (place + 1) * size]]
                        self._words[block_id] = words

    def _word(self, token_id: int) -> str:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            return f"{token_id} "
        if token_id not in self._spelled:
            self._spelled[token_id] = tokenizer.decode_bytes([token_id]).decode("utf-8", errors="replace")
        return self._spelled[token_id]


def _kept(spec: KVCacheSpec) -> str:
    """Return the tokens that the layers of a group keep, as a scenario names them."""
    return f"window {spec.sliding_window}" if isinstance(spec, SlidingWindowSpec) else "full"


def _worth_telling(spans: Iterable[Span]) -> list[Span]:
    """Return the calls without those of a request that cannot be admitted yet: they repeat in every step."""
    told: list[Span] = []
    for span in spans:
        if span.call == "allocate_slots" and span.result is None:
            if told and told[-1].call == "get_computed_blocks" and told[-1].request_id == span.request_id:
                told.pop()
            continue
        told.append(span)
    return told
