"""Attention over blocks with our own kernels: plans, checks and launches them. Import needs triton."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.quantized import to_fp8
from mini_kv.attention.triton_kernels import attend_kernel, merge_kernel, write_kv_kernel
from mini_kv.attention.triton_plan import (
    ROWS_PER_WRITE,
    Call,
    Capability,
    Plan,
    Tiles,
    max_rows,
    pick_splits,
    pick_tiles,
    power_of_2,
    programs_per_multiprocessor,
    version_text,
)

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton read it when the kernels above were defined. It cannot change afterwards."""


def obstacle(query: Tensor, kv_cache: PagedKVCache, options: AttentionOptions) -> str | None:
    """Return why the kernels cannot do the call, in words, or `None` if they can."""
    if query.device.type != "cuda" and not IS_INTERPRETED:
        return f"the tensors are on {query.device}; without a GPU set TRITON_INTERPRET=1 before Python starts"
    if torch.float64 in (query.dtype, kv_cache.data.dtype):
        return "the kernels compute in float32, so a float64 result would be too imprecise"
    if kv_cache.head_size > 256:
        return f"head size {kv_cache.head_size}: a tile of more than 256 does not fit in shared memory"
    if query.shape[1] // kv_cache.num_kv_heads > 128:
        return "more than 128 heads share a head of keys"
    if query.stride(-1) != 1 or kv_cache.data.stride(-1) != 1:
        return "the elements of a head must be contiguous"
    if query.device.type != "cuda":
        return None
    return obstacle_of_gpu(query, kv_cache, torch.cuda.get_device_capability(query.device))


def obstacle_of_gpu(query: Tensor, kv_cache: PagedKVCache, capability: Capability) -> str | None:
    """Return why a GPU of this compute capability cannot do the call, in words, or `None` if it can."""
    if capability < (8, 0):
        return f"the kernels are made for compute capability 8.0 and later; this GPU has {version_text(capability)}"
    if kv_cache.data.dtype == torch.float8_e4m3fn and capability < (8, 9):
        return f"fp8 needs compute capability 8.9; this GPU has {version_text(capability)}"
    call = _call_of(query, kv_cache, max_query_len=1)
    rows = max_rows(call, capability)
    if call.group > rows:
        what = f"{query.dtype} over {kv_cache.data.dtype}, head size {call.head_size}".replace("torch.", "")
        return f"{call.group} heads share a head of keys; {what}: registers hold {rows or 'none'} of them"
    return None


def attend(
    query: Tensor,
    kv_cache: PagedKVCache,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    out: Tensor,
    plan: Plan | None = None,
) -> Tensor:
    """Write each query's attention over the keys and values that it sees to `out`. Return the log-sum-exp.

    Arguments as in `paged_attention`, and a plan in place of `make_plan`'s.
    """
    num_tokens, num_heads, head_size = query.shape
    lse = query.new_empty((num_tokens, num_heads), dtype=torch.float32)  # to fill it would be one more launch
    if metadata.max_query_len == 0:
        return lse
    plan = plan or make_plan(query, kv_cache, metadata, options)
    if plan.num_splits == 1:
        _launch_attend(query, kv_cache, metadata, options, plan, out.unsqueeze(0), lse.unsqueeze(0))
        return lse
    parts = query.new_empty((plan.num_splits, *query.shape), dtype=torch.float32)
    part_lses = lse.new_empty((plan.num_splits, *lse.shape))
    _launch_attend(query, kv_cache, metadata, options, plan, parts, part_lses)
    merge_kernel[(num_tokens, num_heads)](
        out,
        lse,
        parts,
        part_lses,
        lse if options.sinks is None else options.sinks,
        metadata.query_start_loc,
        metadata.num_reqs,
        plan.num_splits,
        *out.stride()[:2],
        *parts.stride()[:2],
        *part_lses.stride()[:2],
        HEAD_SIZE=head_size,
        BLOCK_D=power_of_2(head_size),
        BLOCK_S=power_of_2(plan.num_splits),
        HAS_SINKS=options.sinks is not None,
    )
    return lse


def make_plan(query: Tensor, kv_cache: PagedKVCache, metadata: AttentionMetadata, options: AttentionOptions) -> Plan:
    """Return the plan of the call, from data on the host: nothing waits for the device."""
    call = _call_of(query, kv_cache, metadata.max_query_len)
    if IS_INTERPRETED:  # a program and a tile cost milliseconds each, whatever their size
        return Plan(Tiles(max(16, power_of_2(call.group)), 32, num_warps=4, num_stages=1))
    capability = torch.cuda.get_device_capability(query.device)
    tiles = pick_tiles(call, capability)
    if metadata.max_query_len > 1:
        return Plan(tiles)
    multiprocessors = torch.cuda.get_device_properties(query.device).multi_processor_count
    slots = programs_per_multiprocessor(call, capability, tiles.num_warps) * multiprocessors
    length = metadata.max_seq_len
    for limit in (options.sliding_window, options.chunk_size):
        length = length if limit is None else min(length, limit + tiles.tile)
    return Plan(tiles, *pick_splits(metadata.num_reqs * kv_cache.num_kv_heads, length, slots, tiles.tile))


def _call_of(query: Tensor, kv_cache: PagedKVCache, max_query_len: int) -> Call:
    """Return the numbers on which the tiles of such a call depend."""
    return Call(
        query_bytes=query.element_size(),
        cache_bytes=kv_cache.data.element_size(),
        head_size=kv_cache.head_size,
        group=query.shape[1] // kv_cache.num_kv_heads,
        max_query_len=max_query_len,
    )


def _launch_attend(
    query: Tensor,
    kv_cache: PagedKVCache,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: Plan,
    out: Tensor,
    lse: Tensor,
) -> None:
    num_tokens, num_heads, head_size = query.shape
    group = num_heads // kv_cache.num_kv_heads
    is_decode = metadata.max_query_len == 1
    tiles = plan.tiles
    block_q = tiles.block_m // group
    num_tiles = metadata.num_reqs if is_decode else num_tokens // block_q + metadata.num_reqs
    scales = kv_cache.scales
    k_scales, v_scales = (lse, lse) if scales is None else (scales[:, 0], scales[:, -1])
    k_scale, v_scale = kv_cache.tensor_scales
    attend_kernel[(num_tiles, kv_cache.num_kv_heads, plan.num_splits)](
        out,
        lse,
        query,
        kv_cache.k_cache,
        kv_cache.v_cache,
        k_scales,
        v_scales,
        lse if options.sinks is None else options.sinks,
        metadata.block_tables,
        metadata.seq_lens,
        metadata.query_start_loc,
        metadata.num_reqs,
        options.scale_for(head_size) * k_scale,
        v_scale,
        options.logits_soft_cap or 1.0,
        plan.split_tokens,
        *out.stride()[:3],
        *lse.stride()[:2],
        *query.stride()[:2],
        *kv_cache.k_cache.stride()[:3],
        *((0, 0, 0) if scales is None else k_scales.stride()),
        metadata.block_tables.stride(0),
        BLOCK_SIZE=kv_cache.block_size,
        HEAD_SIZE=head_size,
        BLOCK_D=max(16, power_of_2(head_size)),
        GROUP=group,
        BLOCK_M=tiles.block_m,
        TILE=tiles.tile,
        WINDOW=options.sliding_window or 0,
        CHUNK=options.chunk_size or 0,
        HAS_SOFT_CAP=options.logits_soft_cap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_SCALES=scales is not None,
        IS_SPLIT=plan.num_splits > 1,
        ONE_QUERY_EACH=is_decode,
        COMPUTE=_compute_dtype(query.dtype),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _compute_dtype(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of the products' operands. Sums are always in float32.

    The interpreter multiplies the bit patterns of 16-bit numbers, so under it everything is float32.
    """
    if IS_INTERPRETED or dtype == torch.float32:
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


def write_kv_triton(key: Tensor, value: Tensor, kv_cache: PagedKVCache, slot_mapping: Tensor) -> None:
    """Write each token's key and value to its slot, in the cache's own form. See `write_kv`.

    Numbers become fp8 before the kernel, by torch: compute capability 8.0 cannot, and the interpreter rounds wrongly.
    """
    num_tokens, num_kv_heads, head_size = key.shape
    if num_tokens == 0:
        return
    data, scales = kv_cache.data, kv_cache.scales
    if data.dtype == torch.float8_e4m3fn:
        key, value = (to_fp8(x, s).view(torch.uint8) for x, s in zip((key, value), kv_cache.tensor_scales, strict=True))
        data = data.view(torch.uint8)
    k_scales, v_scales = (slot_mapping, slot_mapping) if scales is None else (scales[:, 0], scales[:, -1])
    num_rows = num_tokens * num_kv_heads
    write_kv_kernel[(triton.cdiv(num_rows, ROWS_PER_WRITE), 2)](
        key,
        value,
        data[:, 0],
        data[:, 1],
        k_scales,
        v_scales,
        slot_mapping,
        num_rows,
        *key.stride()[:2],
        *value.stride()[:2],
        *data[:, 0].stride()[:3],
        *((0, 0, 0) if scales is None else k_scales.stride()),
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=kv_cache.block_size,
        HEAD_SIZE=head_size,
        BLOCK_D=power_of_2(head_size),
        ROWS=ROWS_PER_WRITE,
        HAS_SCALES=scales is not None,
        num_warps=4,
    )
