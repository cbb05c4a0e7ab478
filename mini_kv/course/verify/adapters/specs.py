"""The groups of layers of a scenario, in mini_kv's words."""

from typing import Any

from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)


def spec_of(group: dict[str, Any]) -> KVCacheSpec:
    """Return the spec of a group: its kind, its tokens per block, and the tokens of a window or a chunk."""
    block_size = group["block_size"]
    match group["kind"]:
        case "window":
            return SlidingWindowSpec(block_size, sliding_window=group["reach"])
        case "chunks":
            return ChunkedLocalAttentionSpec(block_size, attention_chunk_size=group["reach"])
        case "state":
            return MambaSpec(block_size, shapes=((1,),), dtypes_bytes=(2,))
        case _:
            return FullAttentionSpec(block_size)
