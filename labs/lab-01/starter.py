"""lab-01: how big is a token? Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-01
    $env:LAB_IMPL="starter"; pytest labs/lab-01          (Windows, PowerShell)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mini_kv.course import todo


def token_forwards(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many tokens go through the model in all steps together, without a cache and with one.

    The first step reads the whole prompt and gives the first output token. Each later step gives one more, and sees the
    prompt and all output tokens before it. Without a cache, every token that a step sees goes through the model. With
    a cache, only the tokens that no earlier step has seen go through.

    No step puts the last output token through: it goes to the user. Both numbers are at least 1. Cost: O(steps).

    Example, 1 prompt token and 4 output tokens: the steps see 1, 2, 3 and 4 tokens, so `(10, 4)`.
    """
    todo("lab-01", "token_forwards", "which tokens does each step put through?")


def attention_scores(num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
    """Return how many attention scores are computed, without a cache and with one, in one layer and one head.

    The steps are those of `token_forwards`. Each token that a step puts through the model has a query. The query has a
    score for the key of every token that the step sees, its own included. (Scores that causality hides count as well.
    They are computed and thrown away.) With a cache, the keys of earlier tokens are read.

    Cost: O(steps).

    Example, 1 prompt token and 4 output tokens: 1 + 4 + 9 + 16 without, 1 + 2 + 3 + 4 with, so `(30, 10)`.
    """
    todo("lab-01", "attention_scores", "how many queries does each step have, and how many keys?")


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes that one token leaves in the cache, in all layers together.

    In every layer, every KV head keeps a key and a value. Each has `head_size` elements of `dtype_bytes` bytes.

    Example, 4 layers, 3 KV heads of 8 elements, 2 bytes per element: 96 bytes in each layer, so 384.
    """
    todo("lab-01", "kv_bytes_per_token", "how many elements does one token leave?")


def kv_shape(hf_config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return `(num_layers, num_kv_heads, head_size)`, read off a model's config.json.

    The layers are `num_hidden_layers`. The KV heads are `num_key_value_heads`. If it is absent or None, every query
    head has a KV head of its own: `num_attention_heads`. The head size is `head_dim`. If it is absent or None, the
    query heads share `hidden_size` evenly. The other fields named here are always present.

    Example: `{"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}` gives
    `(4, 2, 8)`. With `"head_dim": 16` as well, `(4, 2, 16)`.
    """
    todo("lab-01", "kv_shape", "which fields may be missing, and what stands in for them?")


def gb_and_gib(num_bytes: int) -> tuple[float, float]:
    """Return the same amount in GB (a thousand times a thousand times a thousand bytes) and in GiB (1024 for 1000).

    Do not round: the code that prints it does.

    Example: 4 * 1024**3 bytes are `(4.294967296, 4.0)`.
    """
    todo("lab-01", "gb_and_gib", "how many bytes has each unit?")


def cdiv(a: int, b: int) -> int:
    """Return a divided by b, rounded up: how many blocks of b slots it takes to hold a tokens.

    `a` is at least 0 and `b` at least 1. Exact for integers of any size, so leave floating point out of it.

    Example, blocks of 4 slots: `cdiv(3, 4)` and `cdiv(4, 4)` are 1, `cdiv(5, 4)` is 2, `cdiv(0, 4)` is 0.
    """
    todo("lab-01", "cdiv", "how do you round up without floats?")


def page_size_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one block in one layer: `block_size` tokens, each with its keys and values.

    Example, blocks of 4 tokens, 3 KV heads of 8 elements, 2 bytes per element: 96 bytes per token, so 384.
    """
    todo("lab-01", "page_size_bytes", "how many bytes has one token in one layer?")


def waste(lengths: Sequence[int], block_size: int, max_len: int) -> tuple[int, int]:
    """Return how many slots are reserved and hold no token: (contiguous, paged). A slot is room for one token.

    `lengths` are the tokens of each running request, none longer than `max_len`.

    - Contiguous: every request has `max_len` slots to itself, whether it will need them or not.
    - Paged: every request has as many blocks of `block_size` slots as its tokens need. Blocks are not shared here.

    Cost: O(len(lengths)). Use your `cdiv`.

    Example, blocks of 4 and `max_len` 10: `waste([4, 5], 4, 10)` is `(11, 3)`: 6 and 5 slots, against 0 and 3.
    """
    todo("lab-01", "waste", "which slots does each request have?")


def max_concurrency(num_gpu_blocks: int, max_len: int, block_size: int) -> int:
    """Return how many requests of `max_len` tokens can run at one time, all of their tokens in the cache.

    The pool has `num_gpu_blocks` blocks of `block_size` slots, and a slot is room for one token. Blocks are not shared
    here. One block of the pool, block 0, is the null block, which no request ever gets. All three arguments are at
    least 1. The answer may be 0.

    The steps are for you to find, with integers of any size. Cost: O(1), so do not deal out blocks one by one.

    Example, 4 blocks of 4 slots: three requests of 4 tokens, one of 5 to 12 tokens, none of 13.
    """
    todo("lab-01", "max_concurrency", "how many blocks can be used, and how many does a request take?")
