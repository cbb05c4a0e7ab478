"""lab-09: attention over blocks. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-09
    $env:LAB_IMPL="starter"; pytest labs/lab-09          (Windows, PowerShell)

The score of a query and a key is their dot product times `scale`. A query's result is the mean of the values, each
weighted with e to the power of its score. Its log-sum-exp, `lse`, is the natural logarithm of the sum of these weights.
"""

import torch  # noqa: F401  # you will need it
from torch import Tensor

from mini_kv.course import todo


def online_softmax_update(
    m: Tensor,
    l: Tensor,  # noqa: E741  # the papers call it l
    acc: Tensor,
    scores: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add keys to a softmax in progress, and return the new `(m, l, acc)`. No argument changes.

    The state of a softmax has three parts per head. `m` is the largest score so far, `l` is the sum of e^(score - m)
    over all keys so far, and `acc` is the sum of e^(score - m) * value. At the beginning `m` is minus infinity, and the
    others are 0. At the end the result is `acc / l`, and the log-sum-exp `m + log(l)`.

    The old sums are relative to the old `m`: multiply them by e^(old m - new m). No power may be taken of a positive
    number, since e^100 is infinite. A key whose score is minus infinity counts for nothing. There may be no other key
    yet, so that `m` is still minus infinity. Infinity minus infinity is NaN.

    Args:
        m: `[num_heads]`.
        l: `[num_heads]`.
        acc: `[num_heads, head_size]`.
        scores: `[num_heads, num_keys]`, at least one key.
        v: `[num_heads, num_keys, head_size]`, the keys' values.

    Example, one head: after the scores log 1 and log 2, `m = log 2` and `l = 1.5`. The new scores are log 3 and log 4.
    The new `m` is log 4. The old sum becomes 1.5 * 2/4 = 0.75, the new keys add 3/4 + 1, so `l = 2.5`, and `m + log(l)`
    is log 10.
    """
    todo("lab-09", "online_softmax_update", "what is the largest score now, and what are the old sums worth?")


def paged_attention_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result of one query for each request, and its log-sum-exp.

    Query s sees the `seq_lens[s]` tokens of request s: token i is in block `block_table[s, i // block_size]`, place
    `i % block_size`. The slots after the last token of its block hold any finite number, and count for nothing. Blocks
    after the last one are not read: they may hold NaN, and 0 times NaN is NaN.

    There may be fewer KV heads than query heads. Then neighbours share: of 4 and 2, query heads 0 1 2 3 read the KV
    heads 0 0 1 1. With one KV head all read the same.

    A request of length 0 sees no token: its result is zeros, its log-sum-exp minus infinity. Kernels go block by block,
    with `online_softmax_update`. Gathering all tokens first gives the same result.

    Args:
        q: `[num_seqs, num_heads, head_size]`.
        k_cache: `[num_blocks, block_size, num_kv_heads, head_size]`. `num_heads` is a multiple of `num_kv_heads`.
        v_cache: the same shape.
        block_table: `[num_seqs, max_num_blocks]`, int32.
        seq_lens: `[num_seqs]`, int32.
        scale: the factor of each score, used once.

    Returns:
        `[num_seqs, num_heads, head_size]` and `[num_seqs, num_heads]`.

    Example, one head, blocks of 2: a request of 3 tokens with the scores log 1, log 2, log 3 has the weights 1/6, 2/6,
    3/6. The fourth slot has none.
    """
    todo("lab-09", "paged_attention_ref", "which tokens does each query see, and in which slots are they?")


def merge_attn_states(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two parts of one attention: return result and log-sum-exp over all their keys.

    Each part has seen some of the keys, and no key is in both. e^lse is the sum of the weights of a part's keys. So the
    result is a weighted mean of two results, and its log-sum-exp is the logarithm of both sums together. No power may
    be taken of a positive number.

    A part without keys has an `lse` of minus infinity. Ignore its `o`, which may hold NaN. Two such parts give zeros,
    and minus infinity.

    Args:
        o1: `[num_tokens, num_heads, head_size]`.
        lse1: `[num_tokens, num_heads]`, natural logarithm.
        o2: like `o1`.
        lse2: like `lse1`.

    Example: keys with the scores log 1 and log 2 are in one part, log 3 and log 4 in the other. Their `lse` are log 3
    and log 7, so the parts count 3/10 and 7/10, and the new `lse` is log 10.
    """
    todo("lab-09", "merge_attn_states", "what is the weight of each part?")


def paged_prefill_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the results of one request's new tokens, which are its last ones, and their log-sum-exp.

    All `seq_len` tokens of the request are in the cache, the new ones as well. Each new token sees all tokens up to
    and including itself, the old ones too, and none after it.

    Args:
        q: `[num_new, num_heads, head_size]`: query i belongs to the token at position `seq_len - num_new + i`.
        k_cache: as above.
        v_cache: as above.
        block_table: `[max_num_blocks]`, int32: the row of this request.
        seq_len: tokens of the request, the new ones included.
        scale: as above.

    Example: a request of 6 tokens, of which 2 are new. Query 0 sees 5 tokens, query 1 all 6.
    """
    todo("lab-09", "paged_prefill_ref", "how many tokens does each query see?")
