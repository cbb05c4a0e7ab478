"""A hybrid lookup equals brute force: of all boundaries, the last at which every group has what the next token reads.

`MINI_KV_LOOKUPS` sets how many random configurations of groups are tried; `.ci/run` tries 20,000. Their seeds follow
from the last commit's tree.
"""

import os
import random
from collections.abc import Sequence

import pytest

from mini_kv.core.block import BlockHash
from mini_kv.core.block_hash_list import BlockHashListWithBlockSize
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_coordinator import KVCacheCoordinator, get_kv_cache_coordinator
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.tests.tree import tree

NUM_CONFIGURATIONS = int(os.environ.get("MINI_KV_LOOKUPS", "4000"))
PARTS = 4
NUM_TOKENS = 96
"""Length of the prompts; a multiple of every block size below."""


def spec(kind: str, block_size: int, reach: int) -> KVCacheSpec:
    match kind:
        case "full":
            return FullAttentionSpec(block_size)
        case "window":
            return SlidingWindowSpec(block_size, sliding_window=reach)
        case "chunks":
            return ChunkedLocalAttentionSpec(block_size, attention_chunk_size=reach)
        case _:
            return MambaSpec(block_size, shapes=((1,),), dtypes_bytes=(2,))


def tokens_read(kind: str, reach: int, position: int) -> range:
    """Return the earlier tokens that the token at `position` reads: the definition of the kind, said once more."""
    match kind:
        case "full":
            return range(position)
        case "window":
            return range(max(0, position - (reach - 1)), position)
        case "chunks":
            return range(position - position % reach, position)
        case _:
            return range(max(0, position - 1), position)  # the state after it


Group = tuple[str, int, int]
"""Kind, block size, reach."""


def brute_force(groups: Sequence[Group], drafters: Sequence[bool], cached: Sequence[set[int]], max_length: int) -> int:
    """Return the last boundary of all groups' blocks at which all blocks that the next token reads are cached.

    A drafter's groups need the block behind it, too; a group alone may not look behind `max_length` for it.
    """
    for length in range(max_length, 0, -1):
        if any(length % block_size for _, block_size, _ in groups):
            continue
        needed = [
            {token // block_size for token in tokens_read(kind, reach, length)} for kind, block_size, reach in groups
        ]
        for blocks, (_, block_size, _), is_drafter in zip(needed, groups, drafters, strict=True):
            if is_drafter:
                is_out_of_sight = len(groups) == 1 and length + block_size > max_length
                blocks.add(NUM_TOKENS if is_out_of_sight else length // block_size)
        if all(blocks <= have for blocks, have in zip(needed, cached, strict=True)):
            return length
    return 0


def random_groups(rng: random.Random) -> list[Group]:
    """Return 1 to 5 groups of any kinds, some alike, with blocks of one size or of several."""
    sizes = rng.choice([(4,), (2, 4), (4, 8), (2, 6), (3, 4), (4, 6, 8), (1, 16)])
    kinds = [
        (rng.choice(("full", "full", "window", "window", "window", "chunks", "state")), rng.randrange(1, 40))
        for _ in range(rng.randrange(1, 4))
    ]
    return [(kind, rng.choice(sizes), reach) for kind, reach in (rng.choice(kinds) for _ in range(rng.randrange(1, 6)))]


def fill(
    coordinator: KVCacheCoordinator, pool: BlockPool, names: list[BlockHash], rng: random.Random
) -> list[set[int]]:
    """Put some blocks of each group in the index: most of them, few, a prefix, a tail; return which."""
    cached = []
    for manager in coordinator.single_type_managers:
        num_blocks = NUM_TOKENS // manager.block_size
        density = rng.choice((0.3, 0.8, 0.95, 1.0))
        positions = {position for position in range(num_blocks) if rng.random() < density}
        if rng.random() < 0.3:
            positions &= set(range(rng.randrange(num_blocks + 1)))
        if rng.random() < 0.3:
            positions -= set(range(rng.randrange(num_blocks + 1)))
        for position in positions:
            block = pool.get_new_blocks(1)
            table = [pool.null_block] * position + block
            hashes = manager.hashes_per_block(names)
            pool.cache_full_blocks(table, hashes, position, position + 1, manager.kv_cache_group_id)
        cached.append(positions)
    return cached


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_hit_is_the_longest_that_all_groups_have(part: int) -> None:
    """Any mix of kinds, reaches and block sizes, any holes: the length, and which blocks, and nulls left of them."""
    lengths = set()
    for number in range(NUM_CONFIGURATIONS // PARTS):
        seed = f"{tree()}/{part}/{number}"
        rng = random.Random(seed)
        groups = random_groups(rng)
        drafters = [kind in ("full", "window") and rng.random() < 0.3 for kind, _, _ in groups]
        layers = tuple(
            KVCacheGroupSpec((f"layer {i}",), spec(*group), is_eagle_group=drafters[i])
            for i, group in enumerate(groups)
        )
        pool = BlockPool(1 + sum(NUM_TOKENS // block_size for _, block_size, _ in groups))
        coordinator = get_kv_cache_coordinator(KVCacheConfig(2, layers), pool)
        names = [BlockHash(bytes([i])) for i in range(NUM_TOKENS // coordinator.hash_block_size)]
        cached = fill(coordinator, pool, names, rng)
        for max_length in (NUM_TOKENS - 1, rng.randrange(NUM_TOKENS)):
            hit, num_tokens = coordinator.find_longest_cache_hit(names, max_length)
            what = f"random.Random({seed!r}): {groups}, {drafters}, at most {max_length}"
            assert num_tokens == brute_force(groups, drafters, cached, max_length), what
            lengths.add(num_tokens)
            for blocks, (kind, block_size, reach), manager in zip(
                hit, groups, coordinator.single_type_managers, strict=True
            ):
                assert len(blocks) * block_size == num_tokens, what
                read = {token // block_size for token in tokens_read(kind, reach, num_tokens)}
                assert [position for position, block in enumerate(blocks) if not block.is_null] == sorted(read), what
                for position in read:
                    block_hash = manager.hashes_per_block(names)[position]
                    found = pool.get_cached_block(block_hash, [manager.kv_cache_group_id])
                    assert found == [blocks[position]], what
    assert len(lengths) > 20  # of the 49 that are possible


def test_a_window_at_the_shorter_end_is_another_window() -> None:
    """The shortest of the groups' own answers is no hit: at 16 the window would have to be cached somewhere else."""
    layers = (
        KVCacheGroupSpec(("full",), FullAttentionSpec(4)),
        KVCacheGroupSpec(("window",), SlidingWindowSpec(4, sliding_window=8)),
        KVCacheGroupSpec(("state",), MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,))),
    )
    pool = BlockPool(40)
    coordinator = get_kv_cache_coordinator(KVCacheConfig(2, layers), pool)
    names = [BlockHash(bytes([i])) for i in range(8)]
    for group_id, positions in enumerate(([0, 1, 2, 3, 4, 5], [0, 1, 4, 5], [1, 3])):
        for position in positions:
            table = [pool.null_block] * position + pool.get_new_blocks(1)
            pool.cache_full_blocks(table, names, position, position + 1, group_id)
    alone = [manager.find_longest_cache_hit(names, 31) for manager in coordinator.single_type_managers]
    assert [4 * len(blocks) for blocks in alone] == [24, 24, 16]
    hit, num_tokens = coordinator.find_longest_cache_hit(names, 31)
    assert num_tokens == 8  # at 16 the window would have to hold blocks 2 and 3
    assert [[block.block_id for block in blocks] for blocks in hit] == [[1, 2], [7, 8], [0, 11]]


def test_hashes_of_larger_blocks_are_hashes_of_smaller_ones() -> None:
    """The hash of a large block of 3 is the hash of its last small block; what does not fill a large block has none."""
    names = [BlockHash(bytes([i])) for i in range(8)]
    view = BlockHashListWithBlockSize(names, 2, 6)
    assert (len(view), list(view), view[1], view[-1], view[:1], view[1:9]) == (
        2, [names[2], names[5]], names[5], names[5], [names[2]], [names[5]]
    )  # fmt: skip
    with pytest.raises(IndexError):
        view[2]
    with pytest.raises(ConfigError, match="blocks of 6 tokens do not end where blocks of 4 do"):
        BlockHashListWithBlockSize(names, 4, 6)
