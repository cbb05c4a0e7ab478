"""Lower bounds of a step's time and of a request's cost, from a card's data sheet and a model's sizes.

    step of a batch of 64     fetch weights | fetch 64 caches              bytes / bandwidth
                              compute 64 tokens                            operations / operations per second
    seconds of the step       the longer of the two

These are bounds: every engine is slower, by a factor that only a measurement shows. Money is seconds times the
caller's price.

Source: the roofline of Williams, Waterman and Patterson (2009, doi.org/10.1145/1498765.1498785).
"""

import math
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from mini_kv.tools.planning.models import BYTES, load_model


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's speeds and memory, from its data sheet."""

    name: str
    flops: float
    """Dense operations per second, with 16-bit numbers."""
    bandwidth: float
    """Bytes per second from its memory."""
    memory: float
    """Bytes. A data sheet's GB are 10^9 bytes. A driver reports up to 7 % more."""
    exports_states: bool = False
    """vLLM 0.33 computes the prefill of gated delta nets with FlashInfer's kernel here: Hopper and Blackwell."""
    max_num_batched_tokens: int = 2048
    """Tokens per step of vLLM 0.33's server, if not given. Source: `EngineArgs.get_batch_defaults`."""

    @property
    def max_num_seqs(self) -> int:
        """Requests per step of vLLM 0.33's server, if not given. Source: as above."""
        return 1024 if self.max_num_batched_tokens > 2048 else 256


H200 = Card("H200", 989e12, 4.8e12, 141e9, exports_states=True, max_num_batched_tokens=8192)
"""nvidia.com/en-us/data-center/h200, the SXM form, read in November 2026."""

CARDS = {
    "b300": Card("B300", 2250e12, 8e12, 288e9, True, 16384),  # an eighth of the DGX B300 data sheet
    "b200": Card("B200", 2250e12, 8e12, 180e9, True, 16384),  # an eighth of the DGX B200 data sheet
    "h200": H200,
    "h100": Card("H100", 989e12, 3.35e12, 80e9, True, 8192),  # nvidia.com/en-us/data-center/h100, SXM
    "h20": Card("H20", 148e12, 4.0e12, 96e9, True, 8192),  # NVIDIA's H20 data sheet, the form of 96 GB
    "gb10": Card("GB10", 125e12, 0.273e12, 128e9, True),  # NVIDIA DGX Spark data sheet: an eighth of FP4
    "a100": Card("A100", 312e12, 2.039e12, 80e9),  # nvidia.com/en-us/data-center/a100, SXM
    "a100-40gb": Card("A100", 312e12, 1.555e12, 40e9),
    "l40s": Card("L40S", 362e12, 0.864e12, 48e9),  # nvidia.com/en-us/data-center/l40s
    "l4": Card("L4", 121e12, 0.3e12, 24e9),  # nvidia.com/en-us/data-center/l4, without sparsity
    "a10": Card("A10", 125e12, 0.6e12, 24e9),  # nvidia.com/en-us/data-center/products/a10-gpu
    "t4": Card("T4", 65e12, 0.32e12, 16e9),  # nvidia.com/en-us/data-center/tesla-t4
    "rtx-pro-6000": Card("RTX PRO 6000", 503.8e12, 1.792e12, 96e9, True, 8192),  # RTX Blackwell PRO white paper
    "rtx-5090": Card("RTX 5090", 209.5e12, 1.792e12, 32e9, True),  # NVIDIA RTX Blackwell GPU white paper, appendix A
    "rtx-4090": Card("RTX 4090", 165e12, 1.008e12, 24e9),  # NVIDIA Ada GPU architecture white paper, appendix A
    "rtx-3090": Card("RTX 3090", 71e12, 0.936e12, 24e9),  # NVIDIA Ampere GA102 GPU white paper, appendix A
    "mi355x": Card(
        "MI355X", 2516e12, 8e12, 288e9, False, 16384
    ),  # amd.com/en/products/accelerators/instinct/mi350/mi355x
    "mi300x": Card(
        "MI300X", 1307e12, 5.3e12, 192e9, False, 16384
    ),  # amd.com/en/products/accelerators/instinct/mi300/mi300x
}
"""GPUs by the names that `--gpu` takes, with the form and page of each."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model's cost per token: bytes to fetch, operations to do."""

    name: str
    num_parameters: float
    kv_bytes_per_token: int
    attention_flops_per_token: int
    """Operations of attention for one new token, per token that it attends to."""

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, which every step fetches, with 16-bit numbers."""
        return BYTES * self.num_parameters


def served(name: str, num_parameters: float, num_heads: int) -> Served:
    """Return the costs of the model of that name in models.toml.

    Raises `ConfigError` for an unknown name, and for a model with other layers than full attention.
    """
    specs = list(load_model(name).kv_cache_spec.values())
    kv_bytes = flops = 0
    for spec in specs:
        if not isinstance(spec, FullAttentionSpec):
            raise ConfigError(f"{name} has layers without full attention; this formula supports full attention only")
        if isinstance(spec, MLAAttentionSpec) and spec.cache_role == "indexer":
            raise ConfigError(f"{name} has sparse layers with an indexer; this formula supports full attention only")
        kv_bytes += spec.page_size_bytes // spec.block_size
        flops += 4 * num_heads * spec.head_size  # a product and a sum with each number of the key, and of the value
    return Served(name, num_parameters, kv_bytes, flops)


def prefill_seconds(model: Served, card: Card, num_tokens: int, places: int) -> float:
    """Return the least time to compute these tokens of prompts.

    `places`: the sum of the tokens' positions in their prompts, counted from 1. A position is the number of tokens that
    the token attends to.
    """
    return (2 * model.num_parameters * num_tokens + model.attention_flops_per_token * places) / card.flops


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of one step, by kind of work. Fetching and computing overlap."""

    weights: float
    """Seconds to fetch the weights."""
    kv: float
    """Seconds to fetch all requests' keys and values."""
    arithmetic: float
    """Seconds to compute."""

    @property
    def seconds(self) -> float:
        """Least seconds of the step."""
        return max(self.weights + self.kv, self.arithmetic)


def decode_step(model: Served, card: Card, batch: int, context: int) -> StepTime:
    """Return the time of a step in which each of `batch` requests, with `context` tokens before, gets a token."""
    flops = batch * (2 * model.num_parameters + context * model.attention_flops_per_token)
    return StepTime(
        model.weight_bytes / card.bandwidth,
        batch * context * model.kv_bytes_per_token / card.bandwidth,
        flops / card.flops,
    )


def largest_batch(model: Served, card: Card, context: int) -> int:
    """Return the most requests of this length that fit in memory with the weights."""
    return int((card.memory - model.weight_bytes) // (context * model.kv_bytes_per_token))


def tokens_per_second(model: Served, card: Card, batch: int, context: int) -> float:
    """Return the most tokens per second that the card can generate in all, or NaN if the batch does not fit."""
    if context and batch > largest_batch(model, card, context):
        return math.nan
    return batch / decode_step(model, card, batch, context).seconds


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Seconds of a shared card that one request takes."""

    prompt: float
    answer: float

    @property
    def seconds(self) -> float:
        """Seconds of prompt and answer together."""
        return self.prompt + self.answer

    def price(self, price_per_hour: float) -> float:
        """Return the money, in the currency of the price."""
        return self.seconds / 3600 * price_per_hour


def request_cost(
    model: Served, card: Card, prompt_tokens: int, answer_tokens: int, *, batch: int, cached_tokens: int = 0
) -> RequestCost:
    """Return the least time that a request takes, if `batch - 1` equal requests share each step.

    Args:
        model: the model that answers.
        card: the GPU.
        prompt_tokens: tokens of the prompt.
        answer_tokens: tokens of the answer.
        batch: requests that share each step's weights, this one included.
        cached_tokens: the prompt's hit in the prefix cache.

    The prompt's time is its arithmetic, because computing limits a step with hundreds of tokens. The answer's steps are
    shared. Their time is that of a step in the middle of the answer.
    """
    new = prompt_tokens - cached_tokens
    looked_back_on = (cached_tokens + (new + 1) / 2) * new  # by all new tokens together
    prompt = (2 * model.num_parameters * new + model.attention_flops_per_token * looked_back_on) / card.flops
    step = decode_step(model, card, batch, prompt_tokens + answer_tokens // 2)
    return RequestCost(prompt, answer_tokens * step.seconds / batch)
