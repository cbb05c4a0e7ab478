"""lab-12, another way: from the definitions. What does the next token read? Which ends are good for all?"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from mini_kv.core import kv_cache_coordinator, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec


class SlidingWindowManager(single_type_kv_cache_manager.SlidingWindowManager):
    """The engine's manager."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        first_read = num_computed_tokens - (self.sliding_window - 1)
        return first_read if first_read > 0 else 0

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        if request_id not in self.req_to_blocks:
            return
        table = self.req_to_blocks[request_id]
        num_skipped = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        left = table[:num_skipped]
        table[:num_skipped] = [self.block_pool.null_block] * len(left)
        self.block_pool.free_blocks([block for block in reversed(left) if not block.is_null])

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Try one end after the other, from the right, and remember what has been looked up."""
        known: dict[int, KVCacheBlock | None] = {}

        def cached(position: int) -> KVCacheBlock | None:
            if position not in known:
                found = self.block_pool.get_cached_block(block_hashes[position], [self.kv_cache_group_id])
                known[position] = found[0] if found else None
            return known[position]

        end = min(max_length // self.block_size, len(block_hashes))
        while True:
            first = self.get_num_skipped_tokens(end * self.block_size) // self.block_size
            blocks = [block for position in range(end - 1, first - 1, -1) if (block := cached(position)) is not None]
            if len(blocks) == end - first:
                return [self.block_pool.null_block] * first + blocks[::-1]
            end -= 1


class HybridKVCacheCoordinator(kv_cache_coordinator.HybridKVCacheCoordinator):
    """The engine's coordinator."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Full attention says how far at most; then each end from there to the left is put to the vote."""
        size = self.scheduler_block_size
        full = [manager for manager in self.single_type_managers if manager not in self.skipping_managers]
        answers = {
            manager.kv_cache_group_id: manager.find_longest_cache_hit(block_hashes, max_cache_hit_length)
            for manager in full
        }
        at_most = min([max_cache_hit_length // size, *(len(hit) for hit in answers.values())])
        for num_blocks in range(at_most, -1, -1):
            votes = takewhile(
                lambda vote: len(vote[1]) == num_blocks,  # noqa: B023  # used up in this round
                (
                    (manager.kv_cache_group_id, manager.find_longest_cache_hit(block_hashes, num_blocks * size))
                    for manager in self.skipping_managers
                ),
            )
            hits = answers | dict(votes)
            if len(hits) == len(self.single_type_managers):
                break
        return tuple(hits[group][:num_blocks] for group in sorted(hits)), num_blocks * size


def group_layers(kv_cache_spec: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Put the layers on piles, one after the other."""
    kinds = list(dict.fromkeys(kv_cache_spec.values()))
    counts = {kind: list(kv_cache_spec.values()).count(kind) for kind in kinds}
    rarest, commonest = min(counts.values()), max(counts.values())
    size = commonest if 2 * commonest < 3 * rarest else rarest
    groups = []
    for kind in kinds:
        piles: list[list[str]] = [[] for _ in range(1 + (counts[kind] - 1) // size)]
        for number, name in enumerate(name for name, spec in kv_cache_spec.items() if spec == kind):
            piles[number % len(piles)].append(name)
        groups += [KVCacheGroupSpec(tuple(pile), kind) for pile in piles]
    return tuple(groups)
