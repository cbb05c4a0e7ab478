"""Helpers for the tests of lab-12-further: blocks drawn as letters, and the engine's results."""

import random
from collections.abc import Sequence

from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.kv_cache_planning import unify_kv_cache_spec_page_size
from mini_kv.course.labkit.fixture import LabUnderTest


def blocks(drawing: str) -> list[bool]:
    """Return whether each block is cached: "x.x" is yes, no, yes."""
    return [letter == "x" for letter in drawing]


def drawn(cached: Sequence[bool]) -> str:
    """Return the drawing of these blocks."""
    return "".join("x" if is_cached else "." for is_cached in cached)


def hit_of_the_engine(cached: Sequence[bool], block_size: int, chunk_size: int) -> int:
    """Return the tokens that the engine's cache finds for a prompt of which these blocks are cached."""
    spec = ChunkedLocalAttentionSpec(block_size, attention_chunk_size=chunk_size)
    kv = KVCacheManager(KVCacheConfig(len(cached) + 2, (KVCacheGroupSpec(("layer",), spec),)))
    prompt = range(len(cached) * block_size + 1)
    request = kv.new_request("A", prompt)
    kv.allocate_slots(request, request.num_tokens)
    table = kv.get_block_ids("A")[0]
    kv.evict_blocks(block_id for block_id, is_cached in zip(table, cached, strict=False) if not is_cached)
    return kv.get_computed_blocks(kv.new_request("B", prompt))[1]


class EnginesStates:
    """A request in the engine's group of states, step by step."""

    def __init__(self, block_size: int) -> None:
        spec = MambaSpec(block_size=block_size, shapes=((1,),), dtypes_bytes=(1,))
        self.kv = KVCacheManager(KVCacheConfig(60, (KVCacheGroupSpec(("layer",), spec),)))
        self.request = self.kv.new_request("A", range(1_000))

    def places_after(self, num_tokens: int) -> list[bool]:
        """Plan the step that computes up to `num_tokens` tokens. Return which places of the table have a state."""
        self.kv.allocate_slots(self.request, num_tokens - self.request.num_computed_tokens)
        self.request.num_computed_tokens = num_tokens
        return [block_id != 0 for block_id in self.kv.get_block_ids("A")[0]]


def pages_of_the_engine(
    token_bytes: dict[str, int], state_bytes: dict[str, int], block_size: int
) -> dict[str, tuple[int, int]]:
    """Return each layer's tokens per block and bytes of a block, as the engine plans them."""
    specs: dict[str, KVCacheSpec] = {
        layer: FullAttentionSpec(block_size, num_kv_heads=1, head_size=size // 2, dtype_bytes=1)
        for layer, size in token_bytes.items()
    }
    for layer, size in state_bytes.items():
        specs[layer] = MambaSpec(block_size=block_size, shapes=((size,),), dtypes_bytes=(1,))
    unified = unify_kv_cache_spec_page_size(specs)
    return {layer: (spec.block_size, spec.page_size_bytes) for layer, spec in unified.items()}


def random_layers(rng: random.Random) -> tuple[dict[str, int], dict[str, int]]:
    """Return attention layers and layers with a state, with their bytes. There is at least one layer."""
    token_bytes = {f"a{i}": rng.choice([48, 96, 100, 192, 384]) for i in range(rng.randrange(4))}
    state_bytes = {f"s{i}": rng.randrange(100, 20_000) for i in range(rng.randrange(not token_bytes, 3))}
    return token_bytes, state_bytes


def random_plan(rng: random.Random) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Return groups of layers, and layers that share what one of these writes."""
    groups = [tuple(f"{kind}{i}" for i in range(rng.randrange(1, 5))) for kind in "abc"[: rng.randrange(1, 4)]]
    owners = [layer for group in groups for layer in group]
    return groups, {f"s{i}": rng.choice(owners) for i in range(rng.randrange(5))}


def expect_hits(lab: LabUnderTest, block_size: int, chunk_size: int, cases: Sequence[tuple[str, int, str]]) -> None:
    """Ask for the hit of each drawing."""
    rows = []
    for drawing, want, why in cases:
        what = f"hit of {drawing}, blocks of {block_size}, chunks of {chunk_size}"
        rows.append((what, want, lab.chunk_hit(blocks(drawing), block_size, chunk_size), why))
    lab.expect_all(rows)
