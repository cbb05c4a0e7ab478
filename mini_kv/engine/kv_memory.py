"""The memory of the blocks, and each layer's view of it.

    16 or 32 bits     | keys of a block ............ | values of a block .......... |
    int8              | keys .......... | scales .. | values ........ | scales .. |      a scale per token and head
    fp8               | keys .......... | values ........ |                              no scales of its own

A block is one contiguous range of bytes in each form. So a copy of a block includes its scales.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_kv.attention.kv_cache import PagedKVCache
from mini_kv.attention.linear import StateCache
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import AttentionSpec, KVCacheConfig, MambaSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_tensors
from mini_kv.engine.interface import CausalLM

Layers = Sequence[tuple[PagedKVCache | StateCache, int]]
"""The KV memory of each layer, and the group of the layer."""


def allocate_kv_cache_tensors(
    model: CausalLM, kv_cache_config: KVCacheConfig
) -> tuple[list[Tensor], list[tuple[PagedKVCache | StateCache, int]]]:
    """Return the KV memory, and for each layer of the model the layer's view of this memory and the layer's group.

    There are as many tensors as the largest group has layers, `[num_blocks, elements of a page]`. In 8 bits their dtype
    is bytes. The first layers of all groups use the first tensor, each in its own shape. A block belongs to one group
    at a time, so no layer reads another group's numbers. The pages of a tensor are as large as those of its layers,
    which the planner has made equal.

    Raises `ConfigError` for a layer that does not keep keys and values, or one square state per head.
    """
    groups = kv_cache_config.kv_cache_groups
    specs = {name: group.spec_of(name) for group in groups for name in group.layer_names}
    is_narrow = any(isinstance(spec, AttentionSpec) and spec.kv_quant_mode != "none" for spec in specs.values())
    dtype = torch.uint8 if is_narrow else model.dtype
    tensors: list[Tensor] = []
    views: dict[str, tuple[PagedKVCache | StateCache, int]] = {}
    for users in get_kv_cache_tensors(groups):
        page_size = max(specs[name].page_size_bytes for names in users for name in names)
        shape = (kv_cache_config.num_blocks, page_size // dtype.itemsize)
        tensors.append(torch.zeros(shape, dtype=dtype, device=model.device))
        for group_id, names in enumerate(users):
            for name in names:
                views[name] = (_view(tensors[-1], name, specs[name], model.dtype), group_id)
    names_in_order = model.get_kv_cache_spec(groups[0].kv_cache_spec.block_size)
    return tensors, [views[name] for name in names_in_order]


def _view(tensor: Tensor, name: str, spec: object, dtype: torch.dtype) -> PagedKVCache | StateCache:
    """Return one layer's view of a tensor, without padding."""
    if isinstance(spec, MambaSpec) and len(spec.shapes) == 1 and len(spec.shapes[0]) == 3:
        states = tensor[:, : spec.real_page_size_bytes // tensor.dtype.itemsize].view(dtype)
        return StateCache(states.unflatten(1, spec.shapes[0]), spec.block_size)
    if not isinstance(spec, AttentionSpec):
        raise ConfigError(f"{name} keeps no keys and values, but {type(spec).__name__}")
    used = tensor[:, : spec.real_page_size_bytes // tensor.dtype.itemsize]
    planes, shape = spec.num_planes, (spec.block_size, spec.num_kv_heads, spec.head_size)
    if spec.kv_quant_mode == "none":
        return PagedKVCache(used.unflatten(1, (planes, *shape)))
    if spec.kv_quant_mode == "fp8":
        return PagedKVCache(used.view(torch.float8_e4m3fn).unflatten(1, (planes, *shape)))
    halves = used.unflatten(1, (planes, -1))  # keys with their scales, values with theirs
    num_scale_bytes = spec.block_size * spec.num_kv_heads * spec.scale_bytes
    data = halves[:, :, :-num_scale_bytes].view(torch.int8).unflatten(2, shape)
    scales = halves[:, :, -num_scale_bytes:].view(torch.float32).unflatten(2, shape[:2])
    return PagedKVCache(data, scales)
