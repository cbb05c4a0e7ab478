"""The engine of the book's page "Play": scheduler and cache in Python, the model in the page's own JavaScript.

    play = make_play("tiny", Levers(num_blocks=24))
    play.send("A", "A block is free when")
    plan = play.plan()                  the tokens to compute, with positions and block tables
    play.take({"A1": 350})              the next token of each request that got one
    play.telling()                      the story for the figure, the counters, the texts

The interface between the two halves is vLLM's: a step's plan goes to the worker, and tokens come back. Standard library
only, so that it runs in a browser.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_kv import engine
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.kv_cache_planning import get_kv_cache_groups
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import RequestStatus
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.engine.detokenizer import IncrementalDetokenizer
from mini_kv.engine.engine_stats import EngineStats
from mini_kv.engine.tokenizer import Tokenizer
from mini_kv.policy.catalogue import find_policy
from mini_kv.tools.serve.live_story import LiveStory

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Levers:
    """The reader's choices. A change of one starts a new engine."""

    block_size: int = 8
    num_blocks: int = 20
    """Blocks of the pool, without the null block."""
    enable_caching: bool = True
    max_num_batched_tokens: int = 32
    """Tokens that one step may compute. A longer prompt is computed over several steps."""
    max_tokens: int = 24
    """Tokens of an answer."""
    policy: str = "lru"
    """The eviction policy. See `POLICIES`."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Levers":
        """Return the levers with these names, from texts. Others keep their defaults.

        Raises `ConfigError` if a text is not a value of its lever.
        """
        values: dict[str, Any] = {}
        for lever in fields(cls):
            text, default = given.get(lever.name), lever.default
            if text is None:
                continue
            if isinstance(default, bool):
                values[lever.name] = text == "true"
            elif isinstance(default, int):
                if not re.fullmatch("[0-9]{1,4}", text):
                    raise ConfigError(f"{lever.name} is {text!r}, it must be a number from 1 to 9999")
                values[lever.name] = int(text)
            else:
                values[lever.name] = text
        return cls(**values)

    def as_texts(self) -> dict[str, str]:
        """Return all levers as `of` reads them."""
        return {name: str(value).lower() for name, value in asdict(self).items()}


@dataclass(slots=True)
class Said:
    """A new token of a request, for the story."""

    request_id: str
    new_text: str
    finish_reason: str | None
    num_cached_tokens: int | None
    index: int = 0


@dataclass(slots=True)
class Box:
    """A text that the reader and the model write in turns."""

    text: str = ""
    num_sent: int = 0
    request_id: str = ""
    """Of the last request."""
    prompt_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int | None = None
    """Tokens of the last prompt that were found in the cache. `None` while the request waits."""
    found_in: Mapping[str, int] = field(default_factory=dict)
    """The number of found blocks by the box whose text was computed into them."""
    finish_reason: str | None = None
    detokenizer: IncrementalDetokenizer | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether the last request waits or runs."""
        return self.detokenizer is not None


class Play:
    """Scheduler, cache and texts. The caller computes the steps."""

    def __init__(self, tokenizer: Tokenizer, config: Mapping[str, Any], levers: Levers) -> None:
        """Make the engine of a small model.

        Args:
            tokenizer: the model's.
            config: the model's `config.json`.
            levers: the reader's choices.

        Raises `ConfigError` if no text could run with these levers.
        """
        self.tokenizer = tokenizer
        self.levers = levers
        self.stats = EngineStats()
        self.boxes: dict[str, Box] = {}
        self._computed_by: dict[BlockHash, str] = {}
        """The first box with this block."""
        self.live = LiveStory(self._make_manager, record=True)
        specs = _specs_of(config, levers.block_size)
        groups = get_kv_cache_groups(specs)
        self.groups = [next(i for i, group in enumerate(groups) if layer in group.layer_names) for layer in specs]
        """The group of each layer: the index of its block table in a plan."""
        manager = self.live.make_manager(
            KVCacheConfig(levers.num_blocks + 1, groups), max_in_flight_tokens=levers.max_num_batched_tokens
        )
        limits = SchedulerConfig(
            max_num_batched_tokens=levers.max_num_batched_tokens, max_model_len=config["max_position_embeddings"]
        )
        self.scheduler = Scheduler(manager, limits)
        self.live.watch(self)
        self.live.on_step(busy=False)  # the story begins with the empty pool
        self._output: SchedulerOutput | None = None

    def _make_manager(self, config: KVCacheConfig, *, new_block: Any, **options: Any) -> KVCacheManager:
        parts = KVCacheParts(new_block=new_block, make_queue=find_policy(self.levers.policy))
        return KVCacheManager(config, parts=parts, enable_caching=self.levers.enable_caching, **options)

    # What the reader does, between two steps.

    def send(self, name: str, words: str) -> None:
        """Append words to a box's text and send the whole text as a prompt.

        Raises `ConfigError` if the box's last request is unfinished, if there is no text, or if it is too long for the
        model or the pool. Nothing has changed then.
        """
        box = self.boxes.get(name, Box())
        if box.is_unfinished:
            raise ConfigError(f"box {name} is still being answered: stop it first")
        text = box.text + words
        token_ids = self.tokenizer.encode(text)
        if not token_ids:
            raise ConfigError(f"box {name} has no text")
        request_id = f"{name}{box.num_sent + 1}"
        self.scheduler.add_request(
            self.scheduler.kv_cache_manager.new_request(request_id, token_ids),
            max_tokens=self.levers.max_tokens,
            stop_token_ids=frozenset() if self.tokenizer.eos_token_id is None else {self.tokenizer.eos_token_id},
        )
        detokenizer = IncrementalDetokenizer(self.tokenizer, ())
        self.boxes[name] = Box(text, box.num_sent + 1, request_id, token_ids, detokenizer=detokenizer)
        self.live.on_request(self.boxes[name])

    def stop(self, name: str) -> None:
        """Abort the box's request. Its text stays, and so do its cached blocks."""
        box = self.boxes.get(name)
        if box is not None and box.is_unfinished:
            self.scheduler.finish_requests([box.request_id])
            self._end(box, "abort")

    def leave(self, name: str) -> None:
        """Abort the box's request and clear its text."""
        self.stop(name)
        if name in self.boxes:
            self.boxes[name] = Box(num_sent=self.boxes[name].num_sent)

    # One step.

    def plan(self) -> list[dict[str, Any]] | None:
        """Plan a step. Return its requests for the worker, or `None` if there is nothing to compute.

        Per request: `request_id`, its new `token_ids`, the position of the first one (`begin`), the block tables per
        group, and whether it needs a next token (`samples`).
        """
        if not self.scheduler.has_unfinished_requests:
            self.live.on_step(busy=False)
            return None
        self._output = output = self.scheduler.schedule()
        rows = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            begin = request.num_computed_tokens
            rows.append(
                {
                    "request_id": request_id,
                    "token_ids": list(request.token_ids[begin : begin + num_tokens]),
                    "begin": begin,
                    "tables": self.scheduler.kv_cache_manager.get_block_ids(request_id),
                    "samples": begin + num_tokens == request.num_tokens,
                }
            )
        return rows

    def take(self, sampled_token_ids: Mapping[str, int]) -> None:
        """Apply the sampled tokens of the planned step. They belong to the requests whose row has `samples`."""
        output = self._output
        assert output is not None
        self._output = None
        self._count(output, sampled_token_ids)
        tokens = {name: [token_id] for name, token_id in sampled_token_ids.items()}
        for result in self.scheduler.update_from_output(output, tokens):
            self._append(result.request_id, result.new_token_ids[0], result.finish_reason)
        self.live.on_step(busy=False)

    def _count(self, output: SchedulerOutput, sampled: Mapping[str, int]) -> None:
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += output.total_num_scheduled_tokens
        self.stats.num_generation_tokens += len(sampled)
        boxes = {box.request_id: (name, box) for name, box in self.boxes.items()}
        for request_id in output.num_scheduled_tokens:
            (name, box), request = boxes[request_id], self.scheduler.requests[request_id]
            if box.num_cached_tokens is None:
                box.num_cached_tokens = request.num_cached_tokens or 0
                found = request.block_hashes[: box.num_cached_tokens // self.levers.block_size]
                box.found_in = Counter(self._computed_by[block_hash] for block_hash in found)
                self.stats.num_prompt_tokens += len(box.prompt_token_ids)
                self.stats.recent_requests.observe(len(box.prompt_token_ids), box.num_cached_tokens)
            for block_hash in request.block_hashes:
                self._computed_by.setdefault(block_hash, name)

    def _append(self, request_id: str, token_id: int, finish_reason: str | None) -> None:
        box = next(box for box in self.boxes.values() if box.request_id == request_id)
        assert box.detokenizer is not None
        num_shown = len(box.detokenizer.text)
        if token_id != self.tokenizer.eos_token_id:
            box.detokenizer.append(token_id)
        if finish_reason is not None:
            box.detokenizer.finish()
        new_text = box.detokenizer.text[num_shown:]
        box.text += new_text
        self.live.on_token(box, Said(request_id, new_text, finish_reason, box.num_cached_tokens))
        if finish_reason is not None:
            box.finish_reason, box.detokenizer = finish_reason, None

    def _end(self, box: Box, finish_reason: str) -> None:
        self.live.on_token(box, Said(box.request_id, "", finish_reason, box.num_cached_tokens))
        box.finish_reason, box.detokenizer = finish_reason, None

    # What the page shows.

    def telling(self) -> dict[str, Any]:
        """Return the last steps as a story, the counters, the log, the boxes, and the pool: each block's state."""
        boxes = {name: self._shown(box) for name, box in self.boxes.items()}
        computed = {"steps": self.stats.num_steps, "computed_tokens": self.stats.num_scheduled_tokens}
        told = self.live.telling()
        pool = [_state_of_block(block) for block in self.scheduler.kv_cache_manager.block_pool.blocks[1:]]
        return told | {"boxes": boxes, "counters": told["counters"] | computed, "pool": pool}

    def _shown(self, box: Box) -> dict[str, Any]:
        return {
            "text": box.text,
            "prompt": self.tokenizer.decode(box.prompt_token_ids),
            "found": self.tokenizer.decode(box.prompt_token_ids[: box.num_cached_tokens or 0]),
            "tokens": len(box.prompt_token_ids),
            "cached": box.num_cached_tokens,
            "found_in": box.found_in,
            "running": box.is_unfinished,
            "state": self._state_of(box),
        }

    def _state_of(self, box: Box) -> str:
        """Return `waits`, `preempted`, `reads`, `writes`, or the finish reason of the box's last request."""
        if not box.is_unfinished:
            return box.finish_reason or ""
        request = self.scheduler.requests[box.request_id]
        if request.status is RequestStatus.RUNNING:
            return "writes" if request.num_computed_tokens >= request.num_prompt_tokens else "reads"
        return "preempted" if request.status is RequestStatus.PREEMPTED else "waits"


def make_play(model: str, levers: Levers) -> Play:
    """Return the engine of `tiny` or `tiny_windows`. The weights are not read."""
    folder = Path(engine.__path__[0]) / model
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Play(Tokenizer.from_file(folder / "tokenizer.json", config["eos_token_id"]), config, levers)


def _state_of_block(block: KVCacheBlock) -> str:
    """Return `shared`, `held`, `cached` (and free), or `free`."""
    if block.ref_cnt > 0:
        return "shared" if block.ref_cnt > 1 else "held"
    return "free" if block.block_hash is None else "cached"


def _specs_of(config: Mapping[str, Any], block_size: int) -> dict[str, KVCacheSpec]:
    """Return the KV of each layer of a small model by the layer's name, as `TinyLlama` does. Its dtype is float32."""
    shape = (block_size, config["num_key_value_heads"], config["head_dim"], _FLOAT32_BYTES)
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return {
        f"layers.{layer}": FullAttentionSpec(*shape)
        if kind == "full_attention"
        else SlidingWindowSpec(*shape, sliding_window=config["sliding_window"])
        for layer, kind in enumerate(kinds)
    }
