"""lab-12: the reference solution."""

from collections.abc import Mapping, Sequence

from mini_kv.core import kv_cache_coordinator, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec
from mini_kv.core.single_type_kv_cache_manager import cdiv


class SlidingWindowManager(single_type_kv_cache_manager.SlidingWindowManager):
    """The engine's manager of one group of layers with a window; the window is ours."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many tokens, from the first, are read neither by the next token nor by any later one."""
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks that no token reads any more, and put the null block in their places."""
        table = self.req_to_blocks.get(request_id, [])
        num_skipped = min(self.get_num_skipped_tokens(num_computed_tokens) // self.block_size, len(table))
        gone: list[KVCacheBlock] = []
        for position in reversed(range(num_skipped)):
            if table[position].is_null:  # and so is all that stands before it
                break
            gone.append(table[position])
            table[position] = self.block_pool.null_block
        self.block_pool.free_blocks(gone)

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit of at most `max_length` tokens: a block for each place, null blocks on its left."""
        num_read = cdiv(self.sliding_window - 1, self.block_size)
        end = min(max_length // self.block_size, len(block_hashes))
        run: list[KVCacheBlock] = []  # cached blocks without a gap, from `end` to the left
        for position in reversed(range(end)):
            if len(run) == num_read:
                break
            found = self.block_pool.get_cached_block(block_hashes[position], [self.kv_cache_group_id])
            if found is None:
                end, run = position, []  # no hit can end behind it and reach over it
            else:
                run += found
        return [self.block_pool.null_block] * (end - len(run)) + run[::-1]


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator of several groups; what a hit of all of them is, is ours."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit that is one for every group: their blocks, one list per group, and its length."""
        hits: dict[int, list[KVCacheBlock]] = {}
        num_blocks = max_cache_hit_length // self.scheduler_block_size
        while True:
            before = num_blocks
            for manager in self.full_attention_first:
                group = manager.kv_cache_group_id
                if group not in hits or manager in self.skipping_managers:
                    max_length = num_blocks * self.scheduler_block_size
                    hits[group] = manager.find_longest_cache_hit(block_hashes, max_length)
                num_blocks = min(num_blocks, len(hits[group]))
            if num_blocks == before:
                break
        blocks = tuple(hits[manager.kv_cache_group_id][:num_blocks] for manager in self.single_type_managers)
        return blocks, num_blocks * self.scheduler_block_size


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups of layers that share a block table."""
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in kv_cache_spec.items():
        by_spec.setdefault(spec, []).append(name)
    counts = [len(names) for names in by_spec.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups: list[KVCacheGroupSpec] = []
    for spec, names in by_spec.items():
        num_groups = cdiv(len(names), size)
        groups += [KVCacheGroupSpec(tuple(names[i::num_groups]), spec) for i in range(num_groups)]
    return tuple(groups)
