"""One loop over the groups: whatever happens to a request happens to its table in every group."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager


class KVCacheCoordinator(ABC):
    """The groups' managers over one pool of blocks. Subclasses say what a prefix hit is.

    Source: vLLM `KVCacheCoordinator` (v1/core/kv_cache_coordinator.py).
    """

    def __init__(self, kv_cache_config: KVCacheConfig, block_pool: BlockPool) -> None:
        self.block_pool = block_pool
        self.single_type_managers = tuple(
            FullAttentionManager(group.kv_cache_spec, block_pool, group_id)
            for group_id, group in enumerate(kv_cache_config.kv_cache_groups)
        )

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the blocks of the longest hit, a list a group, and its length in tokens. Changes nothing."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> int:
        """Return how many free blocks all groups together need for `num_tokens` tokens, revived hits included."""
        return sum(
            manager.get_num_blocks_to_allocate(request_id, num_tokens, hit)
            for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True)
        )

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> None:
        """Start the request's tables with its hit.

        All groups are touched before any group takes a new block: the other way round, one group's new block could
        be another group's hit, evicted a moment before it was adopted.
        """
        for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.allocate_new_computed_blocks(request_id, hit)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> tuple[list[KVCacheBlock], ...]:
        """Grow the request's tables to hold `num_tokens` tokens; return the new blocks, a list a group."""
        return tuple(manager.allocate_new_blocks(request_id, num_tokens) for manager in self.single_type_managers)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the index."""
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_tokens)

    def withdraw_promises(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Take back the keys of the request's blocks that were never computed; return these blocks, of all groups."""
        return [
            block
            for manager in self.single_type_managers
            for block in manager.withdraw_promises(request_id, num_computed_tokens)
        ]

    def free(self, request_id: str) -> None:
        """Drop the request's references and forget its tables."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def get_blocks(self, request_id: str) -> tuple[list[KVCacheBlock], ...]:
        """Return the request's tables, a list a group; empty lists for a request that holds nothing."""
        return tuple(manager.req_to_blocks.get(request_id, []) for manager in self.single_type_managers)

    def num_token_slots(self, request_id: str) -> int:
        """Return how many tokens the request's tables have room for: the group with the least room decides."""
        return min(
            manager.block_size * len(manager.req_to_blocks.get(request_id, ())) for manager in self.single_type_managers
        )

    def num_hit_tokens(self, hit: Sequence[Sequence[KVCacheBlock]]) -> int:
        """Return how many tokens the blocks of a hit hold: the group with the fewest decides."""
        return min(
            manager.block_size * len(blocks) for manager, blocks in zip(self.single_type_managers, hit, strict=True)
        )


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """No lookup, no keys: every request pays for all of its tokens. Any number of groups."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return no hit."""
        return tuple([] for _ in self.single_type_managers), 0

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Do nothing: what is not looked up needs no key."""


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its longest hit is the hit."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the one group's longest hit and its length in tokens."""
        (manager,) = self.single_type_managers
        hit = manager.find_longest_cache_hit(block_hashes, max_cache_hit_length)
        return (hit,), len(hit) * manager.block_size


def get_kv_cache_coordinator(kv_cache_config: KVCacheConfig, block_pool: BlockPool) -> KVCacheCoordinator:
    """Return the coordinator that fits the configuration. Raises `ConfigError` for several groups with caching."""
    if not block_pool.enable_caching:
        return KVCacheCoordinatorNoPrefixCache(kv_cache_config, block_pool)
    if len(kv_cache_config.kv_cache_groups) == 1:
        return UnitaryKVCacheCoordinator(kv_cache_config, block_pool)
    raise ConfigError("prefix caching over several KV cache groups is not built yet: pass enable_caching=False")
