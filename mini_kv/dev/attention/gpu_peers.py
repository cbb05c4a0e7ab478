"""Other projects' attention on the same batch. Each peer turns a set of tensors into a call, or raises.

Peers for contiguous keys and values get these, and so need no block table.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mini_kv.dev.attention.shapes import Inputs

Call = Callable[[], object]


def sdpa(backend: SDPBackend, inputs: Inputs) -> Call:
    """Torch's attention, by one of its own kernels."""
    query, keys, values = _contiguous(inputs)
    is_causal = query.shape[2] == keys.shape[2] > 1
    if 1 < query.shape[2] < keys.shape[2]:
        raise ValueError("its causal mask begins at the first key, not at the first new one")

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, keys, values, is_causal=is_causal, enable_gqa=True)

    return call


def flex(inputs: Inputs) -> Call:
    """FlexAttention over contiguous keys and values, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask

    query, keys, values = _contiguous(inputs)
    query_len, seq_len = query.shape[2], keys.shape[2]

    def causal(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q + (seq_len - query_len) >= k

    mask = None if query_len == 1 else create_block_mask(causal, None, None, query_len, seq_len, str(query.device))
    return partial(_compiled_flex(), query, keys, values, block_mask=mask, enable_gqa=True)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


def flashinfer(inputs: Inputs) -> Call:
    """FlashInfer over our blocks, planned once, as a model does for all its layers. Decode uses its decode kernel."""
    from mini_kv.attention.flashinfer_backend import obstacle, plan
    from mini_kv.attention.options import AttentionOptions

    why = obstacle(inputs.query, inputs.kv_cache, AttentionOptions())
    if why is not None:
        raise ValueError(why)
    if inputs.shape.is_decode:
        wrapper = _planned_decode(inputs)
    else:
        wrapper = plan(inputs.query, inputs.kv_cache, inputs.metadata, AttentionOptions())
    data = inputs.kv_cache.data
    return partial(wrapper.run, inputs.query, data if data.is_contiguous() else data.transpose(2, 3))


def _planned_decode(inputs: Inputs) -> Any:
    """FlashInfer's wrapper for decode, with the tensor cores that it advises for heads that share keys."""
    import flashinfer

    from mini_kv.attention.flashinfer_backend import WORKSPACE_BYTES, page_lists

    shape, cache = inputs.shape, inputs.kv_cache
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.query.device)
    layout = "NHD" if cache.data.is_contiguous() else "HND"
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, layout, use_tensor_cores=True)
    wrapper.plan(
        *page_lists(inputs.metadata, cache.block_size),
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_size,
        shape.block_size,
        q_data_type=shape.dtype,
        kv_data_type=cache.data.dtype,
    )
    return wrapper


def vllm(inputs: Inputs) -> Call:
    """The Triton kernel of vLLM over our blocks, with its 16 segments where it would use them."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    if inputs.kv_cache.is_quantized:
        raise ValueError("keys and values in 8 bits")
    query, cache, metadata = inputs.query, inputs.kv_cache, inputs.metadata
    _, num_heads, head_size = query.shape
    most = 128 // cache.num_kv_heads  # with more requests it does not split
    parts = torch.empty((most, num_heads, 16, head_size), dtype=torch.float32, device=query.device)
    largest, total = (torch.empty_like(parts[..., 0]) for _ in range(2))
    return partial(
        unified_attention,
        q=query,
        k=cache.k_cache,
        v=cache.v_cache,
        out=torch.empty_like(query),
        cu_seqlens_q=metadata.query_start_loc,
        max_seqlen_q=metadata.max_query_len,
        seqused_k=metadata.seq_lens,
        max_seqlen_k=metadata.max_seq_len,
        softmax_scale=head_size**-0.5,
        causal=True,
        window_size=(-1, -1),
        block_table=metadata.block_tables,
        softcap=0.0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        seq_threshold_3D=most,
        num_par_softmax_segments=16,
        softmax_segm_output=parts,
        softmax_segm_max=largest,
        softmax_segm_expsum=total,
    )


def _contiguous(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    if inputs.keys is None or inputs.values is None:
        raise ValueError("requests of different lengths")
    if inputs.kv_cache.is_quantized:
        raise ValueError("keys and values in 8 bits")
    return inputs.padded_query.contiguous(), inputs.keys, inputs.values


PEERS: dict[str, Callable[[Inputs], Call]] = {
    "flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
    "cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
    "flashinfer": flashinfer,
    "vllm": vllm,
}
