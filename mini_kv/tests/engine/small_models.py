"""Small models with random weights in float64: two ways to compute the same give the same token, not nearly always."""

import functools
import random
from collections.abc import Iterable

import torch

from mini_kv.engine.contiguous import generate_alone
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.output_processor import RequestOutput

VOCAB_SIZE = 40


def small_model(
    *,
    sliding_window: int | None = None,
    window_layers: tuple[int, ...] = (),
    layers: int = 2,
    max_position_embeddings: int = 2048,
) -> TinyLlama:
    """Return a model whose choice depends on all that it sees: its random weights are large."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=max_position_embeddings,
        sliding_window=sliding_window,
        window_layers=window_layers,
    )
    model = TinyLlama(config).double().requires_grad_(False)
    for weights in model.parameters():
        if weights.dim() == 2:
            weights.normal_(std=0.6)
    return model


def prompts_with_shared_prefixes(num: int, seed: int = 1) -> list[list[int]]:
    """Return prompts that begin like one document, each up to some point, and then go their own ways."""
    rng = random.Random(seed)
    document = [rng.randrange(VOCAB_SIZE) for _ in range(40)]
    return [
        document[: rng.randrange(40)] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 8))]
        for _ in range(num)
    ]


def alone(model: TinyLlama, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return what the model says to each prompt if it computes everything again for every token."""
    return [list(_alone(model, tuple(prompt), max_tokens)) for prompt in prompts]


@functools.cache
def _alone(model: TinyLlama, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """Return it for one prompt: several engines are compared with the same answers."""
    return tuple(generate_alone(model, list(prompt), max_tokens))


def first_samples(outputs: Iterable[RequestOutput]) -> list[list[int]]:
    """Return the tokens of the first sample of each output."""
    return [output.outputs[0].token_ids for output in outputs]
