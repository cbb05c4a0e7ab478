"""lab-01: the reference solution."""

from collections.abc import Mapping, Sequence
from typing import Any


def token_forwards(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many tokens go through the model in all steps together, without a cache and with one."""
    seen = range(num_prompt_tokens, num_prompt_tokens + num_output_tokens)
    return sum(seen), num_prompt_tokens + num_output_tokens - 1


def attention_scores(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many attention scores are computed, without a cache and with one, in one layer and one head."""
    seen = range(num_prompt_tokens, num_prompt_tokens + num_output_tokens)
    return sum(n * n for n in seen), num_prompt_tokens * num_prompt_tokens + sum(seen[1:])


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes that one token leaves in the cache, in all layers together."""
    return 2 * num_layers * num_kv_heads * head_size * dtype_bytes


def kv_shape(hf_config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return `(num_layers, num_kv_heads, head_size)`, read off a model's config.json."""
    num_heads = hf_config["num_attention_heads"]
    num_kv_heads = hf_config.get("num_key_value_heads") or num_heads
    head_size = hf_config.get("head_dim") or hf_config["hidden_size"] // num_heads
    return hf_config["num_hidden_layers"], num_kv_heads, head_size


def gb_and_gib(num_bytes: int) -> tuple[float, float]:
    """Return the same amount in GB and in GiB."""
    return num_bytes / 1000**3, num_bytes / 1024**3


def cdiv(a: int, b: int) -> int:
    """Return a divided by b, rounded up."""
    return (a + b - 1) // b


def page_size_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one block in one layer."""
    return block_size * 2 * num_kv_heads * head_size * dtype_bytes


def waste(lengths: Sequence[int], block_size: int, max_len: int) -> tuple[int, int]:
    """Return how many slots are reserved and hold no token: (contiguous, paged)."""
    contiguous = sum(max_len - length for length in lengths)
    paged = sum(cdiv(length, block_size) * block_size - length for length in lengths)
    return contiguous, paged


def max_concurrency(num_gpu_blocks: int, max_len: int, block_size: int) -> int:
    """Return how many requests of `max_len` tokens can run at one time."""
    return (num_gpu_blocks - 1) // cdiv(max_len, block_size)
