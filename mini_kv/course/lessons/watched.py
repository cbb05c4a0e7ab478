"""An engine on the small model that records its batches, slots, words, and its cache's calls.

It is for chapters and notebooks.
"""

import html
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import TinyLlama
from mini_kv.engine.model_runner import Batch, ModelRunner
from mini_kv.engine.output_processor import sample_name
from mini_kv.engine.tokenizer import Tokenizer
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager


@cache
def exact() -> TinyLlama:
    """Return the small model in 64 bits. Rounding differences are then too small to change a word."""
    model, _ = load_model(tiny_folder(), torch.float64)
    return model


@cache
def tiny() -> tuple[TinyLlama, Tokenizer]:
    """Return the small model and its tokenizer, read once."""
    return load_model(tiny_folder())


class KeepsLogits(ModelRunner):
    """Keeps the last step's logits."""

    logits: Tensor

    def execute_model(self, output: SchedulerOutput) -> tuple[list[str], Tensor]:
        """Run the step as `ModelRunner` does, and keep its logits."""
        request_ids, self.logits = super().execute_model(output)
        return request_ids, self.logits


class WatchedRunner(ModelRunner):
    """Keeps the last step's batch and the slots of its tokens."""

    batch: Batch
    slots: list[int]

    def _make_metadata(self, batch: Batch) -> list[AttentionMetadata]:
        metadata = super()._make_metadata(batch)
        self.batch, self.slots = batch, metadata[0].slot_mapping.tolist()
        return metadata


class ForgetsNewBlocks(WatchedRunner):
    """A runner with a mistake: it ignores the blocks that a request gets during its answer."""

    def _update_states(self, output: SchedulerOutput) -> None:
        cached = output.scheduled_cached_reqs
        cached.new_block_ids = [None] * len(cached.new_block_ids)
        super()._update_states(output)


@dataclass(frozen=True, slots=True)
class TokenOfStep:
    """A token of a step."""

    request_id: str
    text: str
    position: int
    """Its position in its request."""
    slot: int
    """Its slot in the memory."""
    is_asked: bool
    """Whether the step returned its logits."""


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """The tokens that a step computed and the tokens that were sampled."""

    batch: list[TokenOfStep]
    said: dict[str, str]
    """The new token of each request for which one was sampled."""
    preempted: list[str]

    def __str__(self) -> str:
        """Return the batch, one token per line, with a mark for tokens whose logits are returned."""
        return "\n".join(
            f"{token.request_id}  {token.text!r:<13} position {token.position:>2}  slot {token.slot:>2}"
            + "   what comes next?" * token.is_asked
            for token in self.batch
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass
class WatchedEngine:
    """An engine on the small model that records its cache's calls and keeps its batches."""

    num_blocks: int = 33
    block_size: int = 4
    limits: SchedulerConfig = field(default_factory=SchedulerConfig)
    enable_prefix_caching: bool = True
    debug_poison: bool = False
    runner: type[WatchedRunner] = WatchedRunner

    def __post_init__(self) -> None:
        """Build the engine from parts that record."""
        model, self.tokenizer = tiny()
        self.recorder = Recorder()
        self.answers: dict[str, list[int]] = {}
        """Tokens sampled so far, by sample."""
        config = EngineConfig(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
            scheduler=replace(self.limits, max_model_len=min(self.limits.max_model_len, 512)),
            debug_poison=self.debug_poison,
        )
        self.engine = LLMEngine(
            model, self.tokenizer, config, make_manager=self._make_manager, make_runner=cast(Any, self.runner)
        )

    def _make_manager(self, config: KVCacheConfig, **options: Any) -> KVCacheManager:
        manager = KVCacheManager(config, parts=KVCacheParts(new_block=self.recorder.new_block), **options)
        self.kv = TracedKVCacheManager(manager, self.recorder, snapshots=True)
        return self.kv

    def step(self) -> WatchedStep:
        """Make one step, and return its tokens and samples. Errors: those of `LLMEngine.step`."""
        running = {request.request_id for request in self.engine.scheduler.running}
        said: dict[str, str] = {}
        deltas = self.engine.step()
        runner = cast(WatchedRunner, self.engine.model_runner)
        batch, asked = runner.batch, set(runner.batch.logits_indices)
        owners = [name for name, n in zip(batch.request_ids, batch.query_lens, strict=True) for _ in range(n)]
        tokens = [
            TokenOfStep(owner, self.tokenizer.decode([token_id]), position, slot, row in asked)
            for row, (owner, token_id, position, slot) in enumerate(
                zip(owners, batch.token_ids, batch.positions, runner.slots, strict=True)
            )
        ]
        for delta in deltas:
            name = sample_name(delta.request_id, delta.index)
            self.answers.setdefault(name, []).extend(delta.new_token_ids)
            said[name] = self.tokenizer.decode(delta.new_token_ids)
        waiting = {request.request_id for request in self.engine.scheduler.waiting}
        return WatchedStep(tokens, said, sorted(running & waiting))
