"""The model, the prompts, and our engine's run of them.

The sizes produce every kind of event: prompts that begin alike, prompts that are split over steps, and a pool that is
too small for the running requests, so that blocks are evicted and requests preempted.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tools.serve.kv_events import AnyEvent
from mini_kv.tools.serve.kv_events_publisher import publishing

BLOCK_SIZE = 32
"""The smallest block size that vLLM supports on every CPU."""
NUM_BLOCKS = 48
LIMITS = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=8, max_model_len=512)
MODEL = ModelConfig(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
)


@dataclass(frozen=True, slots=True)
class Work:
    """The prompts and settings for both engines."""

    prompts: list[list[int]]
    max_tokens: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of an engine."""

    name: str
    tokens: list[list[int]]
    cached: list[int]
    """Number of tokens of each prompt that were found in the cache."""
    batches: list[list[AnyEvent]]
    """The events, step by step."""


def make_work(num_requests: int = 200, seed: int = 10) -> Work:
    """Return prompts that begin like one of eight texts, and the lengths of their answers.

    Every tenth request repeats the one before it: while both write the same answer, they fill blocks with one hash.
    With this seed the two likeliest tokens are never closer than 4e-4, so that no processor's rounding chooses another.
    """
    rng = random.Random(seed)
    texts = [[rng.randrange(1, MODEL.vocab_size) for _ in range(320)] for _ in range(8)]
    work = Work([], [])
    for number in range(num_requests):
        own = [rng.randrange(1, MODEL.vocab_size) for _ in range(rng.randrange(1, 60))]
        is_repeated = number % 10 == 9
        work.prompts.append(work.prompts[-1] if is_repeated else rng.choice(texts)[: rng.randrange(0, 320)] + own)
        work.max_tokens.append(rng.randrange(1, 60))
    return work


def make_model() -> TinyLlama:
    """Return a model whose random weights are large: its two likeliest tokens are seldom close."""
    generator = torch.Generator().manual_seed(0)
    model = TinyLlama(MODEL).requires_grad_(False)
    for weights in model.parameters():
        if weights.dim() == 2:
            weights.normal_(0.0, 0.25, generator=generator)
    return model.eval()


class _Listener:
    """Keeps the events of each step with events."""

    def __init__(self) -> None:
        self.batches: list[list[AnyEvent]] = []

    def publish(self, events: Sequence[AnyEvent]) -> None:
        if events:
            self.batches.append(list(events))


def our_run(work: Work, *, one_at_a_time: bool = False) -> Run:
    """Run the prompts, all submitted at the beginning, or one after the other."""
    listener = _Listener()
    parts: dict[str, Any] = publishing(listener)
    config = EngineConfig(BLOCK_SIZE, NUM_BLOCKS, scheduler=LIMITS)
    engine = LLMEngine(make_model(), config=config, **parts)
    params = [SamplingParams(max_tokens=most, temperature=0, ignore_eos=True) for most in work.max_tokens]
    if one_at_a_time:
        outputs = [engine.generate([prompt], [each])[0] for prompt, each in zip(work.prompts, params, strict=True)]
    else:
        outputs = engine.generate(work.prompts, params)
    return Run(
        "mini_kv",
        [list(output.outputs[0].token_ids) for output in outputs],
        [output.num_cached_tokens or 0 for output in outputs],
        listener.batches,
    )


def gap(token_ids: list[int]) -> float:
    """Return the difference of the log probabilities of the two likeliest next tokens."""
    engine = LLMEngine(make_model(), config=EngineConfig(BLOCK_SIZE, NUM_BLOCKS, scheduler=LIMITS))
    (output,) = engine.generate([token_ids], SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, logprobs=2))
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    first, second = sorted((each.logprob for each in logprobs[0].values()), reverse=True)[:2]
    return first - second
