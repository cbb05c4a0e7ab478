"""Coordinates the groups of layers: it passes each call for a request to the manager of every group."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import gcd, lcm
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from mini_kv.core.mamba_manager import MambaManager
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import (
    ChunkedLocalAttentionManager,
    FullAttentionManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)

MANAGER_CLASSES: Mapping[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = {
    FullAttentionSpec: FullAttentionManager,
    MLAAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    SlidingWindowMLASpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    MambaSpec: MambaManager,
}
"""The manager of a group, by the kind of its spec."""


class KVCacheCoordinator(ABC):
    """The groups' managers over one pool of blocks. Subclasses define a prefix hit.

    Source: vLLM `KVCacheCoordinator` (v1/core/kv_cache_coordinator.py).
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        block_pool: BlockPool,
        manager_classes: Mapping[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = MANAGER_CLASSES,
    ) -> None:
        """Make one manager per group. Its class is the one in `manager_classes` for the group's kind of spec."""
        self.block_pool = block_pool
        specs = [group.first_spec for group in kv_cache_config.kv_cache_groups]
        self.scheduler_block_size = lcm(*(spec.block_size for spec in specs))
        """Tokens between two positions where a block of every group ends. Hits can end only at these positions."""
        self.hash_block_size = gcd(*(spec.block_size for spec in specs))
        """Tokens per hash in `Request.block_hashes`: every group's blocks end where one of these does."""
        self.retention_interval = kv_cache_config.prefix_cache_retention_interval
        self.promised: set[int] = set()
        """Ids of the blocks that were entered in the index but are not computed yet: their step is not confirmed."""
        self.single_type_managers = tuple(
            manager_classes[type(spec)](
                spec,
                block_pool,
                group_id,
                hash_block_size=self.hash_block_size,
                cache_hit_alignment_tokens=self.scheduler_block_size,
                retention_interval=self.retention_interval,
                promised=self.promised,
            )
            for group_id, spec in enumerate(specs)
        )
        for manager, group in zip(self.single_type_managers, kv_cache_config.kv_cache_groups, strict=True):
            manager.use_eagle = group.is_eagle_group and kv_cache_config.drops_last_block
        self.skipping_managers = tuple(
            manager for manager in self.single_type_managers if not isinstance(manager, FullAttentionManager)
        )
        """The managers of the groups that free blocks while a request runs."""
        _check_retention_interval(self.retention_interval, self.scheduler_block_size, self.single_type_managers)
        self.has_states = any(isinstance(manager, MambaManager) for manager in self.single_type_managers)
        """Whether a group keeps states. Tokens cannot be removed from a state."""

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the blocks of the longest hit, per group, and its length in tokens. Changes nothing."""

    def shared_prefix_boundary(self, request: Request, num_hit_tokens: int) -> int:
        """Return the end of a prefix that full attention has cached and another group has not, or 0 if there is none.

        At this position the request caches the blocks that a hit needs: its state, because a step ends there, and with
        a retention interval the blocks of its window. The next request that differs from here on can hit these blocks.
        """
        if self.retention_interval is None and not self.has_states:
            return 0
        manager = min(self.single_type_managers, key=lambda manager: manager in self.skipping_managers)
        hit = manager.find_longest_cache_hit(manager.hashes_per_block(request.block_hashes), request.num_tokens - 1)
        boundary = len(hit) * manager.block_size // self.scheduler_block_size * self.scheduler_block_size
        return boundary if boundary > num_hit_tokens else 0

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> int | None:
        """Return the number of free blocks that all groups need for `num_tokens` tokens. `None`: a group must wait."""
        num_needed = 0
        for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
            num_blocks = manager.get_num_blocks_to_allocate(request_id, num_tokens, hit)
            if num_blocks is None:
                return None
            num_needed += num_blocks
        return num_needed

    def get_max_num_blocks_to_allocate(
        self, num_tokens: int, new_computed_blocks: Sequence[Sequence[KVCacheBlock]], max_in_flight_tokens: int
    ) -> int:
        """Return the most free blocks that a new request takes, in all groups, until it has `num_tokens` tokens."""
        return sum(
            manager.get_max_num_blocks_to_allocate(num_tokens, hit, max_in_flight_tokens)
            for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True)
        )

    def get_num_blocks_to_free(self, request_id: str, num_computed_tokens: int) -> int:
        """Return the number of blocks that `remove_skipped_blocks` would free: those that only this request holds."""
        return sum(
            block.ref_cnt == 1
            for manager in self.skipping_managers
            for block in manager.get_skipped_blocks(request_id, num_computed_tokens)
        )

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Free, in every group, the blocks that no token from `num_computed_tokens` on reads."""
        for manager in self.skipping_managers:
            manager.remove_skipped_blocks(request_id, num_computed_tokens)

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]]
    ) -> None:
        """Start the request's tables with its hit.

        All groups touch their hit before any group takes a new block. Otherwise a group could take a block of another
        group's hit as its new block.
        """
        for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.allocate_new_computed_blocks(request_id, hit)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> tuple[list[KVCacheBlock], ...]:
        """Extend the request's tables to `num_tokens` tokens. Return the new blocks, per group."""
        return tuple(manager.allocate_new_blocks(request_id, num_tokens) for manager in self.single_type_managers)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the full blocks of the first `num_tokens` tokens in the index."""
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_tokens)

    def withdraw_promises(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Remove the keys of the request's blocks that are not computed. Return these blocks, of all groups."""
        return [
            block
            for manager in self.single_type_managers
            for block in manager.withdraw_promises(request_id, num_computed_tokens)
        ]

    def free(self, request_id: str) -> None:
        """Drop the request's references and delete its tables."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def recover(self) -> None:
        """Remove all tables and promises. The pool's counts are unchanged."""
        self.promised.clear()
        for manager in self.single_type_managers:
            manager.recover()

    def get_blocks(self, request_id: str) -> tuple[list[KVCacheBlock], ...]:
        """Return the request's tables, per group. They are empty lists for a request without blocks."""
        return tuple(manager.req_to_blocks.get(request_id, []) for manager in self.single_type_managers)

    def num_token_slots(self, request_id: str) -> int:
        """Return the number of tokens that fit in the request's tables. The group with the least room decides."""
        return min(
            manager.block_size * len(manager.req_to_blocks.get(request_id, ())) for manager in self.single_type_managers
        )


def _check_retention_interval(
    interval: int | None, block_size: int, managers: Sequence[SingleTypeKVCacheManager]
) -> None:
    """Raise `ConfigError` unless the retention interval works with the groups' blocks."""
    if interval is not None and (interval < 0 or interval % block_size):
        message = f"prefix_cache_retention_interval is {interval}: it must be 0 or a multiple of the block size"
        raise ConfigError(f"{message} {block_size}")
    if interval and all(manager.num_blocks_of_hit is None for manager in managers):
        message = f"prefix_cache_retention_interval is {interval}, but no layer has a window or states"
        raise ConfigError(f"{message}: there is nothing to thin out")


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Any number of groups without a prefix cache: every lookup is a miss, and no block gets a key."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return no hit."""
        return tuple([] for _ in self.single_type_managers), 0

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Do nothing: blocks need no keys without lookups."""


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its longest hit is the cache's longest hit."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the one group's longest hit and its length in tokens."""
        (manager,) = self.single_type_managers
        hit = manager.find_longest_cache_hit(block_hashes, max_cache_hit_length)
        return (hit,), len(hit) * manager.block_size

    def num_token_slots(self, request_id: str) -> int:
        """Return the number of tokens that fit in the one table. It has no loop, because it runs for every token."""
        (manager,) = self.single_type_managers
        return manager.block_size * len(manager.req_to_blocks.get(request_id, ()))


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups, of any kinds: a hit must end at the same token in every group."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.full_attention_first = sorted(
            self.single_type_managers, key=lambda manager: manager in self.skipping_managers
        )

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest hit of all groups together: look up each group in turn until none shortens the hit.

            full       |==================================|       24, for a start
            window     |          ==========|                     16: no window at 24
            state      |      #|                                  8:  no state at 16
            full       |==========|  still fine, it is only cut   8
            window     |======|      asked again: another at 8    8:  all agree

        The shortest of the groups' own hits may be wrong: a window that is cached at 16 need not be cached at 8. No
        group ever makes the hit longer, so the loop ends. Full attention is first, because it gives an upper bound
        fast. It is looked up only once, because any part of its hit is a hit.
        """
        hits: dict[int, list[KVCacheBlock]] = {}
        hit_length = max_cache_hit_length // self.scheduler_block_size * self.scheduler_block_size
        num_agreed = 0
        for manager in cycle(self.full_attention_first):
            group_id = manager.kv_cache_group_id
            if group_id not in hits or manager in self.skipping_managers:
                num_dropped = manager.num_dropped_blocks * manager.block_size  # found after the hit
                hashes = manager.hashes_per_block(block_hashes)
                hits[group_id] = manager.find_longest_cache_hit(hashes, hit_length + num_dropped)
            length = min(len(hits[group_id]) * manager.block_size, hit_length)
            length -= length % self.scheduler_block_size
            del hits[group_id][length // manager.block_size :]
            num_agreed = num_agreed + 1 if length == hit_length else 1
            hit_length = length
            if num_agreed == len(self.single_type_managers):
                break
        return tuple(hits[manager.kv_cache_group_id] for manager in self.single_type_managers), hit_length


def get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig,
    block_pool: BlockPool,
    manager_classes: Mapping[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = MANAGER_CLASSES,
) -> KVCacheCoordinator:
    """Return the coordinator that fits the configuration."""
    if not block_pool.enable_caching:
        return KVCacheCoordinatorNoPrefixCache(kv_cache_config, block_pool, manager_classes)
    if len(kv_cache_config.kv_cache_groups) == 1:
        return UnitaryKVCacheCoordinator(kv_cache_config, block_pool, manager_classes)
    return HybridKVCacheCoordinator(kv_cache_config, block_pool, manager_classes)
