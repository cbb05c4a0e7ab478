"""Attention over blocks with the kernels of the package flash-attn, where it is installed.

Source: flash-attn 2.8, `flash_attn_varlen_func` with a block table; its blocks must be multiples of 256 tokens.
"""

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why flash-attn cannot do the call, in words, or `None` if it can."""
    if query.device.type != "cuda":
        return f"the tensors are on {query.device}"
    if kv_cache.block_size % 256 != 0:
        return f"its blocks are multiples of 256 tokens, ours have {kv_cache.block_size}"
    if query.dtype not in (torch.float16, torch.bfloat16) or kv_cache.is_quantized:
        return "it knows float16 and bfloat16 only"
    if options.chunk_size is not None or options.sinks is not None:
        return "it knows no chunked-local attention and no sinks"
    return None


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write each query's attention over the keys and values that it sees to `out`. Return the log-sum-exp."""
    from flash_attn import flash_attn_varlen_func

    num_tokens = int(metadata.query_start_loc[-1])
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    first_key = torch.zeros_like(metadata.query_start_loc)
    first_key[1:] = metadata.seq_lens.cumsum(0)
    window = -1 if options.sliding_window is None else options.sliding_window - 1
    found, found_lse, _ = flash_attn_varlen_func(
        query[:num_tokens],
        kv_cache.k_cache,
        kv_cache.v_cache,
        metadata.query_start_loc,
        first_key,
        metadata.max_query_len,
        metadata.max_seq_len,
        softmax_scale=options.scale_for(kv_cache.head_size),
        causal=True,
        window_size=(window, 0 if window >= 0 else -1),
        softcap=options.logits_soft_cap or 0.0,
        block_table=metadata.block_tables,
        return_attn_probs=True,
    )
    out[:num_tokens] = found
    lse[:num_tokens] = found_lse.T
    return lse
