"""lab-01, another way: no loops, only formulas, each function from those before it."""

from collections.abc import Mapping, Sequence
from typing import Any


def token_forwards(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many tokens go through the model in all steps together, without a cache and with one."""
    last = num_prompt_tokens + num_output_tokens - 1
    before = num_prompt_tokens - 1
    return (last * (last + 1) - before * (before + 1)) // 2, last


def attention_scores(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many attention scores are computed, without a cache and with one, in one layer and one head."""
    last = num_prompt_tokens + num_output_tokens - 1
    forwards, _ = token_forwards(num_prompt_tokens, num_output_tokens)
    decode = forwards - num_prompt_tokens  # each decode step scores one query against as many tokens as it sees
    return _pyramid(last) - _pyramid(num_prompt_tokens - 1), num_prompt_tokens**2 + decode


def _pyramid(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6  # 1 + 4 + ... + n * n


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes that one token leaves in the cache, in all layers together."""
    return num_layers * page_size_bytes(1, num_kv_heads, head_size, dtype_bytes)


def kv_shape(hf_config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return `(num_layers, num_kv_heads, head_size)`, read off a model's config.json."""
    num_kv_heads = hf_config.get("num_key_value_heads")
    if num_kv_heads is None:
        num_kv_heads = hf_config["num_attention_heads"]
    head_size = hf_config.get("head_dim")
    if head_size is None:
        head_size = hf_config["hidden_size"] // hf_config["num_attention_heads"]
    return (hf_config["num_hidden_layers"], num_kv_heads, head_size)


def gb_and_gib(num_bytes: int) -> tuple[float, float]:
    """Return the same amount in GB and in GiB."""
    return num_bytes * 1e-9, num_bytes / (1 << 30)


def cdiv(a: int, b: int) -> int:
    """Return a divided by b, rounded up."""
    return -(a // -b)


def page_size_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one block in one layer."""
    key = value = num_kv_heads * head_size * dtype_bytes
    return (key + value) * block_size


def waste(lengths: Sequence[int], block_size: int, max_len: int) -> tuple[int, int]:
    """Return how many slots are reserved and hold no token: (contiguous, paged)."""
    return max_len * len(lengths) - sum(lengths), sum(-length % block_size for length in lengths)


def max_concurrency(num_gpu_blocks: int, max_len: int, block_size: int) -> int:
    """Return how many requests of `max_len` tokens can run at one time."""
    return (num_gpu_blocks - 1) // ((max_len - 1) // block_size + 1)
