"""lab-01, another way: no formulas at all; play it through and count. Slower, and hard to get wrong."""

from collections.abc import Mapping, Sequence
from typing import Any


def token_forwards(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many tokens go through the model in all steps together, without a cache and with one."""
    without, cached, seen = 0, 0, num_prompt_tokens
    for _ in range(num_output_tokens):
        without += seen
        cached = seen
        seen += 1
    return without, cached


def attention_scores(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many attention scores are computed, without a cache and with one, in one layer and one head."""
    without, with_cache, cached, seen = 0, 0, 0, num_prompt_tokens
    for _ in range(num_output_tokens):
        without += seen * seen
        with_cache += (seen - cached) * seen
        cached = seen
        seen += 1
    return without, with_cache


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes that one token leaves in the cache, in all layers together."""
    return sum(page_size_bytes(1, num_kv_heads, head_size, dtype_bytes) for _ in range(num_layers))


def kv_shape(hf_config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return `(num_layers, num_kv_heads, head_size)`, read off a model's config.json."""
    given = {key: value for key, value in hf_config.items() if value is not None}
    num_heads = given["num_attention_heads"]
    even_share = given.get("hidden_size", 0) // num_heads
    return given["num_hidden_layers"], given.get("num_key_value_heads", num_heads), given.get("head_dim", even_share)


def gb_and_gib(num_bytes: int) -> tuple[float, float]:
    """Return the same amount in GB and in GiB."""
    gb = gib = float(num_bytes)
    for _ in ("kilo", "mega", "giga"):
        gb, gib = gb / 1000, gib / 1024
    return gb, gib


def cdiv(a: int, b: int) -> int:
    """Return a divided by b, rounded up."""
    whole, rest = divmod(a, b)
    return whole + (1 if rest else 0)


def page_size_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one block in one layer."""
    num_elements = 0
    for _plane in ("keys", "values"):
        num_elements += block_size * num_kv_heads * head_size
    return num_elements * dtype_bytes


def waste(lengths: Sequence[int], block_size: int, max_len: int) -> tuple[int, int]:
    """Return how many slots are reserved and hold no token: (contiguous, paged)."""
    contiguous = paged = 0
    for length in lengths:
        contiguous += max_len - length
        slots = 0
        while slots < length:
            slots += block_size
        paged += slots - length
    return contiguous, paged


def max_concurrency(num_gpu_blocks: int, max_len: int, block_size: int) -> int:
    """Return how many requests of `max_len` tokens can run at one time."""
    free, running = num_gpu_blocks - 1, 0
    while free >= cdiv(max_len, block_size):
        free -= cdiv(max_len, block_size)
        running += 1
    return running
