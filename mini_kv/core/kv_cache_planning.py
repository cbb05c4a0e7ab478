"""Plans the cache before the first request: the layers that share a block table, and the number of blocks.

All groups take their blocks from one pool. So a block must be equally large in each group: the same number of layers,
the same bytes per layer. Other models get padded layers, longer blocks or padded states:

    10 full + 52 window layers      a group of 10, four of 9 and two of 8: 8 of 70 places are empty
    half as many heads              blocks of twice as many tokens, or pages of half the size if one table serves all
    a state of 304 KiB              attention's blocks grow to 320 KiB, and the state is padded to that

Source: vLLM (v1/core/kv_cache_planning.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import lcm
from typing import TypeVar

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


def get_kv_cache_groups(
    kv_cache_spec: Mapping[str, KVCacheSpec], *, disable_hybrid_kv_cache_manager: bool | None = None
) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of the layers that own KV.

    Args:
        kv_cache_spec: the shape of each such layer, by its name, in the model's order.
        disable_hybrid_kv_cache_manager: `True`: every layer keeps all tokens, in one group. `False`: groups.
            `None`: groups, unless layers attend in chunks. For these vLLM disables groups, because they are slower.
    """
    specs = dict(kv_cache_spec)
    if not specs:
        raise ConfigError("no layer owns any KV: there is nothing to plan")
    if any(_is_compressed(spec) for spec in specs.values()):
        if disable_hybrid_kv_cache_manager:
            raise ConfigError("layers whose vectors stand for several tokens need groups")
        return get_packed_kv_cache_groups(specs)
    if disable_hybrid_kv_cache_manager is None:
        disable_hybrid_kv_cache_manager = any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs.values())
    if disable_hybrid_kv_cache_manager:
        specs = unify_hybrid_kv_cache_specs(specs)
    if len(set(specs.values())) > 1 and is_uniform_type(specs):
        return (_uniform_group(specs),)
    specs = unify_kv_cache_spec_page_size(specs)
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    return tuple(
        KVCacheGroupSpec(tuple(names), spec)
        for spec, layers in by_spec.items()
        for names in _split_layers(layers, group_size([len(layers) for layers in by_spec.values()]))
    )


def is_uniform_type(specs: Mapping[str, KVCacheSpec]) -> bool:
    """Return whether all layers always need the same number of blocks, so that one group with one table serves them.

    Their blocks may differ in bytes. Source: vLLM `UniformTypeKVCacheSpecs.is_uniform_type`. Unlike in vLLM,
    states are of one type only if they are equal.
    """
    return len({_uniform_type(spec) for spec in specs.values()}) == 1


def _uniform_type(spec: KVCacheSpec) -> tuple[object, ...]:
    """Return the values that decide the number of blocks of a layer."""
    match spec:
        case FullAttentionSpec():
            return (FullAttentionSpec, spec.block_size)
        case SlidingWindowSpec():
            return (type(spec), spec.block_size, spec.sliding_window)
        case ChunkedLocalAttentionSpec():
            return (ChunkedLocalAttentionSpec, spec.block_size, spec.attention_chunk_size)
        case _:
            return (spec,)


def get_packed_kv_cache_groups(specs: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return groups for a tensor of consecutive blocks. Each block has the pages of one group's layers.

        block 7, of group 2     |indexer|latent      |latent|indexer|latent      |latent| ..
        block 8, of group 0     |window      |window      |window      | ..          . . .

    A block is as large as the largest group needs, so pages may differ. Layers that need the same number of blocks are
    one kind. A kind is usually one group. It is split if it has equally many layers of each page size, and more of
    these than other kinds. Source: vLLM `_get_packed_kv_cache_groups`.
    """
    kinds: dict[tuple[object, ...], dict[str, KVCacheSpec]] = {}
    for name, spec in specs.items():
        kinds.setdefault(_uniform_type(spec), {})[name] = spec
    patterns = [_repeats(layers) for layers in kinds.values()]
    size = _repeats_per_group([pattern for pattern in patterns if pattern])
    groups = []
    for layers, pattern in zip(kinds.values(), patterns, strict=True):
        parts = _split_layers(pattern, size)
        if len(parts) > 1:
            groups += [_uniform_group({name: layers[name] for repeat in part for name in repeat}) for part in parts]
        else:
            groups.append(_uniform_group(layers))
    return tuple(groups)


def _repeats(layers: Mapping[str, KVCacheSpec]) -> list[tuple[str, ...]]:
    """Return the layers as repeats of a pattern (one layer of each page size), or nothing if the counts differ."""
    pages: dict[int, list[str]] = {}
    for name, spec in layers.items():
        pages.setdefault(spec.page_size_bytes, []).append(name)
    is_pattern = len({len(names) for names in pages.values()}) == 1
    return list(zip(*pages.values(), strict=True)) if is_pattern else []


def _repeats_per_group(patterns: Sequence[Sequence[tuple[str, ...]]]) -> int:
    """Return the number of repeats per group that leaves the fewest empty places: the largest such number.

    A pattern of several page sizes is never split. Without such a pattern no kind is split.
    """
    most = max((len(pattern) for pattern in patterns), default=1)
    least = max((len(pattern) for pattern in patterns if len(pattern[0]) > 1), default=most)
    return min(range(least, most + 1), key=lambda size: (sum(-len(pattern) % size for pattern in patterns), -size))


def _uniform_group(specs: Mapping[str, KVCacheSpec]) -> KVCacheGroupSpec:
    block_size = next(iter(specs.values())).block_size
    return KVCacheGroupSpec(tuple(specs), UniformTypeKVCacheSpecs(block_size, specs))


def group_size(num_layers: Sequence[int]) -> int:
    """Return the number of layers per group, given the number of layers of each kind.

    It is the number of the rarest kind, so that there are few groups and little padding. But it is the number of the
    most frequent kind if that is less than 1.5 times as large: 13 + 12 layers are two groups of 13 with one empty
    place, not three groups of 12 with eleven.
    """
    return max(num_layers) if max(num_layers) < 1.5 * min(num_layers) else min(num_layers)


Layer = TypeVar("Layer")


def _split_layers(layers: Sequence[Layer], size: int) -> list[Sequence[Layer]]:
    """Split the layers into the fewest groups of at most `size`, dealt out like cards: 52 by 10 are 9 9 9 9 8 8."""
    num_groups = -(-len(layers) // size)
    return [layers[i::num_groups] for i in range(num_groups)]


def unify_hybrid_kv_cache_specs(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the specs with windows and chunks as full attention, if another layer has full attention.

    The layers compute the same. They only keep more than they read. Raises `ConfigError` for states, which
    cannot be kept token by token.
    """
    if any(isinstance(spec, MambaSpec) for spec in specs.values()) and len(set(specs.values())) > 1:
        raise ConfigError("state layers beside others need groups: they cannot be treated as full attention")
    if not any(isinstance(spec, FullAttentionSpec) for spec in specs.values()):
        return dict(specs)
    shape = [field.name for field in fields(AttentionSpec)]
    return {
        name: spec
        if isinstance(spec, FullAttentionSpec)
        else FullAttentionSpec(*(getattr(spec, field) for field in shape))
        for name, spec in specs.items()
    }


LATENT_STEP = 128
"""Blocks of latent vectors in a model with states are multiples of this many tokens: their kernels require it."""


def align_hybrid_block_size(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the specs with longer blocks: their keys and values have at least as many bytes as the largest state.

    The size of a state does not depend on the block size. So in a model with states and attention all blocks grow to
    the fewest tokens that cover the state. The new size is a multiple of the requested block size (at least 128 for
    latent vectors), and of the tokens between two places where a kernel can export a state.
    Source: vLLM `Platform._align_hybrid_block_size`.
    """
    attention = [spec for spec in specs.values() if isinstance(spec, AttentionSpec)]
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    if not (attention and states):
        return dict(specs)
    longest = max(attention, key=lambda spec: spec.page_size_bytes)
    step = max(longest.block_size, LATENT_STEP if isinstance(longest, MLAAttentionSpec) else 1)
    checkpoints = {spec.prefill_checkpoint_alignment for spec in states}
    if None not in checkpoints:  # else no state is exported within a step
        step = lcm(step, *(alignment for alignment in checkpoints if alignment is not None))
    bytes_per_step = step * (longest.page_size_bytes // longest.block_size)
    num_steps = -(-max(spec.page_size_bytes for spec in states) // bytes_per_step)
    block_size = max(longest.block_size, step * num_steps)
    return {name: replace(spec, block_size=block_size) for name, spec in specs.items()}


def unify_kv_cache_spec_page_size(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the specs with equally large blocks: small layers get more tokens per block, or else padding."""
    specs = align_hybrid_block_size(specs)
    page_size = max(spec.page_size_bytes for spec in specs.values())
    return {name: _with_page_size(spec, page_size) for name, spec in specs.items()}


def _with_page_size(spec: KVCacheSpec, page_size: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_size:
        return spec
    if isinstance(spec, AttentionSpec) and page_size % spec.page_size_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page_size // spec.page_size_bytes))
    return replace(spec, page_size_padded=page_size)  # type: ignore[call-arg]  # states and attention have it


CACHE_DTYPES = ("auto", "int8_per_token_head", "fp8")
"""Possible forms of keys and values: the model's own, or 8 bits. Source: vLLM `CacheDType`, a part of it."""


SPARSE_FP8_BYTES = 656
"""Bytes of a sparse layer's latent vector in 8 bits: 512 numbers, 4 scales of 32 bits, 64 rotated ones in 16 bits.
Source: vLLM `fp8_ds_mla`, the form that `fp8` has in sparse layers."""


def with_cache_dtype(specs: Mapping[str, KVCacheSpec], cache_dtype: str) -> dict[str, KVCacheSpec]:
    """Return the specs of the same layers with keys and values of another dtype.

    States are unchanged. So are an indexer's vectors, which always have 8 bits, and compressed layers, which are fp8.
    Raises `ConfigError` for an unknown dtype, for a dtype that sparse layers do not have, and for sizes at which
    scales are not aligned to words.
    """
    if cache_dtype not in CACHE_DTYPES:
        raise ConfigError(f"kv_cache_dtype is {cache_dtype!r}; there are: {', '.join(CACHE_DTYPES)}")
    is_compressed = any(_is_compressed(spec) for spec in specs.values())
    if cache_dtype == "auto" or (is_compressed and cache_dtype == "fp8"):
        return dict(specs)
    is_sparse = any(is_indexer(spec) for spec in specs.values())
    if is_sparse and cache_dtype != "fp8":
        raise ConfigError(f"kv_cache_dtype is {cache_dtype!r}: sparse layers keep latent vectors as auto or fp8 only")
    found = dict(specs)
    for name, spec in specs.items():
        if isinstance(spec, AttentionSpec) and not is_indexer(spec):
            if spec.head_size % 4 > 0:
                raise ConfigError(
                    f"{name} has heads of {spec.head_size} elements: in 8 bits it must be a multiple of 4"
                )
            head_size = SPARSE_FP8_BYTES if is_sparse else spec.head_size
            found[name] = replace(spec, head_size=head_size, dtype_bytes=1, kv_quant_mode=cache_dtype)
    return found


def _is_compressed(spec: KVCacheSpec) -> bool:
    return isinstance(spec, MLAAttentionSpec) and spec.tokens_per_state > 1


def is_indexer(spec: KVCacheSpec) -> bool:
    """Return whether a layer is an indexer: its vectors only choose the latent vectors that a sparse layer reads."""
    return isinstance(spec, MLAAttentionSpec) and spec.cache_role == "indexer"


def get_kv_cache_config(groups: Sequence[KVCacheGroupSpec], available_memory: int) -> KVCacheConfig:
    """Return the groups with as many blocks as fit in the memory (bytes). Raises `ConfigError` if none fits."""
    num_blocks = available_memory // bytes_per_block(groups)
    if num_blocks < 2:
        need = f"a block takes {bytes_per_block(groups):,} bytes, and the null block is one"
        raise ConfigError(f"{available_memory:,} bytes hold {num_blocks} blocks: {need}")
    return KVCacheConfig(num_blocks, tuple(groups))


def bytes_per_block(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the bytes of one block: a page in the tensor of each layer of the largest group."""
    return max(group.page_size_bytes for group in groups)


def get_max_concurrency(config: KVCacheConfig, max_model_len: int, max_in_flight_tokens: int) -> float:
    """Return the number of longest requests that fit at once, each with the most blocks that it ever holds."""
    return (config.num_blocks - 1) / blocks_per_request(config.kv_cache_groups, max_model_len, max_in_flight_tokens)


def blocks_per_request(groups: Sequence[KVCacheGroupSpec], num_tokens: int, max_in_flight_tokens: int) -> int:
    """Return the most blocks that a request of `num_tokens` tokens holds in all groups, by admission's formula."""
    return sum(
        group.kv_cache_spec.max_admission_blocks_per_request(max_in_flight_tokens, num_tokens) for group in groups
    )


def get_kv_cache_tensors(
    groups: Sequence[KVCacheGroupSpec], kv_sharing: Mapping[str, str] | None = None
) -> list[list[list[str]]]:
    """Return which layers use each tensor: `result[tensor][group]` lists the layers that share it.

        tensor 0      full.0      window.0      window.1        one page of block 7 is here, one in tensor 1, ...
        tensor 1      full.1      window.2      window.3

    A block belongs to one group at a time. So layers of different groups share a tensor but never a page of it. An
    empty list is padding: the group has no layer there. The layers in `kv_sharing` (name to owner) own no KV. They
    are listed after their owner, read its KV, and use its group's table.
    """
    tensors: list[list[list[str]]] = []
    for row in range(max(len(group.layer_names) for group in groups)):
        owners = [group.layer_names[row : row + 1] for group in groups]
        readers = [[name for name, owner in (kv_sharing or {}).items() if owner in names] for names in owners]
        tensors.append([[*names, *shared] for names, shared in zip(owners, readers, strict=True)])
    return tensors
