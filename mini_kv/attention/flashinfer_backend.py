"""Attention over blocks with FlashInfer's kernels, where the package is installed.

This thin adapter is for comparison: it plans at every call. Planning reads values and so waits for the GPU. A real
integration of FlashInfer would plan once per step and run in every layer.

Source: FlashInfer 0.6, `BatchPrefillWithPagedKVCacheWrapper`, which does decode, too; its log-sum-exp is to base 2.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions

WORKSPACE_BYTES = 128 * 2**20


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why FlashInfer cannot do the call, in words, or `None` if it can."""
    if query.device.type != "cuda":
        return f"the tensors are on {query.device}"
    if kv_cache.num_planes == 1:
        return "it has other kernels for latent vectors, which this adapter does not call"
    if query.dtype not in (torch.float16, torch.bfloat16) or kv_cache.is_quantized:
        return "this adapter knows float16 and bfloat16 only"
    if options.chunk_size is not None or options.sinks is not None:
        return "this adapter knows no chunked-local attention and no sinks"
    if not (kv_cache.data.is_contiguous() or kv_cache.data.transpose(2, 3).is_contiguous()):
        return "the cache is neither NHD nor HND"
    return None


def plan(query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions) -> Any:
    """Return FlashInfer's wrapper, planned for this batch. Its `run(query, kv_data)` computes any layer."""
    import flashinfer

    layout = "NHD" if kv_cache.data.is_contiguous() else "HND"
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout)
    indptr, indices, last_page_len = page_lists(metadata, kv_cache.block_size)
    window = -1 if options.sliding_window is None else options.sliding_window - 1
    wrapper.plan(
        metadata.query_start_loc,
        indptr,
        indices,
        last_page_len,
        query.shape[1],
        kv_cache.num_kv_heads,
        kv_cache.head_size,
        kv_cache.block_size,
        causal=True,
        sm_scale=options.scale_for(kv_cache.head_size),
        window_left=window,
        logits_soft_cap=options.logits_soft_cap,
        q_data_type=query.dtype,
        kv_data_type=kv_cache.data.dtype,
    )
    return wrapper


def page_lists(metadata: AttentionMetadata, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the block tables for FlashInfer, int32: each request's first index, all ids, tokens in its last block."""
    seq_lens = metadata.seq_lens
    num_blocks = (seq_lens + block_size - 1) // block_size
    indptr = torch.zeros(len(seq_lens) + 1, dtype=torch.int32, device=seq_lens.device)
    indptr[1:] = num_blocks.cumsum(0)
    columns = torch.arange(metadata.block_tables.shape[1], device=seq_lens.device)
    indices = metadata.block_tables[columns < num_blocks.unsqueeze(1)]
    last_page_len = (seq_lens - 1) % block_size + 1
    return indptr, indices, last_page_len.to(torch.int32)


def attend(
    query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions, out: Tensor
) -> Tensor:
    """Write each query's attention over the keys and values that it sees to `out`. Return the log-sum-exp."""
    num_tokens = int(metadata.query_start_loc[-1])
    lse = query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    data = kv_cache.data if kv_cache.data.is_contiguous() else kv_cache.data.transpose(2, 3)
    wrapper = plan(query, kv_cache, metadata, options)
    found, found_lse = wrapper.run(query[:num_tokens].contiguous(), data, return_lse=True)
    out[:num_tokens] = found
    lse[:num_tokens] = found_lse * math.log(2)
    return lse
