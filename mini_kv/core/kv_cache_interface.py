"""The configuration of the cache: the shape of a layer's KV, the groups of layers, the number of blocks.

The kinds of layers differ in the earlier tokens that a token still reads. All other blocks may be given back:

    tokens        0 1 2 3 4 5 6 7 8 9 . .       the next token is 10
    full          r r r r r r r r r r           all before it
    window 4      - - - - - - - r r r           the 3 before it, and itself
    chunks of 4   - - - - - - - - r r           those of its own chunk
    state         - - - - - - - - - S           a summary of all before it, as large after 10 tokens as after 10,000
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import ClassVar

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True)
class KVCacheSpec(ABC):
    """Shape of one layer's KV, and the number of blocks per request. Source: vLLM (v1/kv_cache_interface.py)."""

    block_size: int
    """Tokens per block."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            least = 0 if name in ("num_speculative_blocks", "num_prefill_checkpoint_blocks") else 1
            if isinstance(value, int) and value < least:
                raise ConfigError(f"{name} is {value}, it must be at least {least}")

    @property
    @abstractmethod
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer, padding included."""

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of blocks for `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, num_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` tokens ever holds in one group of such layers.

        The plan calls it with the longest allowed request. Admission calls it with the request itself. Both must use
        the same formula. Otherwise a request could fit in the plan and never be admitted.

        Args:
            max_in_flight_tokens: the most tokens that one step computes for a request.
            num_tokens: length of the request.
        """
        return self.num_blocks(num_tokens)


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """Shape of a layer that keeps a key and a value of each token."""

    num_planes: ClassVar[int] = 2
    """Number of vectors per token and KV head: a key and a value."""

    num_kv_heads: int = 1
    head_size: int = 1
    """Elements per head."""
    dtype_bytes: int = 2
    """Bytes per element: 2 for bf16."""
    page_size_padded: int | None = None
    """Bytes of a block after padding to another layer's larger block, or `None` without padding."""
    kv_quant_mode: str = "none"
    """Form of 8-bit elements: `"int8_per_token_head"` or `"fp8"`. Source: vLLM, same name."""
    head_size_v: int | None = None
    """Elements of a value, if a key has another number of elements."""

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scale of one key, or of one value, per KV head and token."""
        return 4 if self.kv_quant_mode == "int8_per_token_head" else 0

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of one block of one layer without padding: keys, values (maybe of another size), and their scales."""
        sizes = (self.head_size, self.head_size_v or self.head_size)[: self.num_planes]
        head_bytes = sum(size * self.dtype_bytes + self.scale_bytes for size in sizes)
        return self.block_size * self.num_kv_heads * head_bytes

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer, padding included."""
        return self.page_size_padded or self.real_page_size_bytes


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """Every token attends to all tokens before it: no block is freed while the request runs."""


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Every token keeps one vector. All heads read the whole vector as key, and all but its last part as value.

    Multi-head latent attention: `num_kv_heads` is 1, and `head_size` is the latent vector with the rotated part that
    follows it. Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1; vLLM `MLAAttentionSpec`.
    """

    num_planes: ClassVar[int] = 1
    cache_role: str = "sparse"
    """`"indexer"`: vectors that choose the tokens that a sparse layer reads. Source: vLLM, same name."""
    tokens_per_state: int = 1
    """Number of tokens that share one vector. The block size is a multiple of it. Source: vLLM, same name."""

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of one block of one layer without padding."""
        return super().real_page_size_bytes // self.tokens_per_state


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Every token attends to itself and to the `sliding_window - 1` tokens before it."""

    sliding_window: int

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, num_tokens: int) -> int:
        """Return the blocks of the window and of the tokens in flight, plus one: a window may start within a block."""
        held = min(self.sliding_window - 1 + max_in_flight_tokens, num_tokens)
        return min(self.num_blocks(held) + 1, self.num_blocks(num_tokens))


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    """A sliding window of tokens that keep one vector each. Source: vLLM, same name."""

    num_planes: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """Every token attends to the tokens before it in its own chunk, `[i * size, (i + 1) * size)`."""

    attention_chunk_size: int

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, num_tokens: int) -> int:
        """Return the blocks of a chunk and of the tokens in flight, plus one if chunks start within blocks."""
        held = min(self.attention_chunk_size + max_in_flight_tokens, num_tokens)
        starts_within = self.attention_chunk_size % self.block_size > 0
        return min(self.num_blocks(held) + starts_within, self.num_blocks(num_tokens))


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """A state that is updated token by token: a block holds the state after the last token written to it.

    `block_size` is the distance between two kept states, in tokens. It is not the size of a state.
    """

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the tensors that make up one state, such as the convolution's and the recurrence's."""
    dtypes_bytes: tuple[int, ...]
    """Bytes per element of each of these tensors."""
    page_size_padded: int | None = None
    num_speculative_blocks: int = 0
    """Extra states per step, one per draft: after a rejected draft the layer continues from the state before it."""
    num_prefill_checkpoint_blocks: int = 0
    """States of tokens before its last one that a step can keep: 1 if the layer's kernels can export one."""
    prefill_checkpoint_alignment: int | None = None
    """Tokens between two places where these kernels can export a state. The block size is a multiple of it."""

    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of one state of one layer."""
        return sum(prod(shape) * size for shape, size in zip(self.shapes, self.dtypes_bytes, strict=True))

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one state of one layer, padding included."""
        return self.page_size_padded or self.real_page_size_bytes

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, num_tokens: int) -> int:
        """Return 2 (the state that a step reads and the one that it writes) plus those of drafts and checkpoints."""
        more = self.num_speculative_blocks + self.num_prefill_checkpoint_blocks
        return min(2, self.num_blocks(num_tokens)) + more


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """Layers that need the same number of blocks but differ in bytes per block: one table serves them all.

    Each layer has its own tensor, with its own page size. Source: vLLM, same name.
    """

    kv_cache_specs: Mapping[str, KVCacheSpec]
    """The shape of each layer, by its name. Never empty."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of all these layers together."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, num_tokens: int) -> int:
        """Return the number of blocks of any of these layers: it is the same for all."""
        first = next(iter(self.kv_cache_specs.values()))
        return first.max_admission_blocks_per_request(max_in_flight_tokens, num_tokens)


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers that share one block table, and their common shape."""

    layer_names: tuple[str, ...]
    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False
    """Whether a drafter (EAGLE, MTP) has layers here. Its KV of a token also depends on the next token. So a hit drops
    its last block: what came after it is not known. A block before it may still be wrong, if another text with the same
    block went on differently. Then the drafter guesses worse, and the text is the same.
    `KVCacheConfig.num_hash_lookahead_tokens` 1 avoids both."""

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """Return the shape of one of these layers."""
        spec = self.kv_cache_spec
        return spec.kv_cache_specs[layer_name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec

    @property
    def first_spec(self) -> KVCacheSpec:
        """The shape of the first layer. All layers have the same kind."""
        return self.spec_of(self.layer_names[0])

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of all layers of the group together."""
        return sum(self.spec_of(name).page_size_bytes for name in self.layer_names)


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The number of blocks, and the groups of layers that use them."""

    num_blocks: int
    """Number of all physical blocks, including the null block, which cannot be allocated."""
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    prefix_cache_retention_interval: int | None = None
    """Tokens between two places where windows and states keep the blocks that a hit needs. 0: only at the ends of
    prompts and where requests differ. `None`: everywhere. vLLM's default is 0: it keeps fewer keys and finds fewer
    hits."""
    num_hash_lookahead_tokens: int = 0
    """Tokens after each block that its hash covers, in every group, 0 or 1. With 1 a drafter's hits keep their last
    block. Then a block is hashed one token later, and requests that differ right after a block do not share it. Source:
    vLLM RFC 50438. Not the same as `num_lookahead_tokens`: these are slots for drafts."""

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks is {self.num_blocks}: the null block takes one, so it must be at least 2")
        if not self.kv_cache_groups:
            raise ConfigError("a KV cache needs at least one group of layers")
        if self.num_hash_lookahead_tokens not in (0, 1):
            raise ConfigError(f"num_hash_lookahead_tokens is {self.num_hash_lookahead_tokens}, it must be 0 or 1")
        if self.drops_last_block and self.prefix_cache_retention_interval is not None:
            message = "a retention interval keeps the blocks of a hit, but not the next one, which a hit drops"
            raise ConfigError(f"{message}: set num_hash_lookahead_tokens to 1")
        for group in self.kv_cache_groups:
            if group.is_eagle_group and not isinstance(group.first_spec, FullAttentionSpec | SlidingWindowSpec):
                raise ConfigError(f"is_eagle_group: a drafter has no layers of {type(group.first_spec).__name__}")

    @property
    def drops_last_block(self) -> bool:
        """Whether hits of a drafter's groups drop their last block."""
        return self.num_hash_lookahead_tokens == 0 and any(group.is_eagle_group for group in self.kv_cache_groups)
