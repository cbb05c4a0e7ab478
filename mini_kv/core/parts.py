"""The parts of a KV cache manager: the engine's own, or others that replace them.

Pass every replacement here, such as an observer's block, a learner's queue, or a wrong lookup for a test.

    KVCacheManager(config, parts=KVCacheParts(make_queue=MyQueue))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mini_kv.core.block import BlockFactory, KVCacheBlock
from mini_kv.core.block_hash import RequestBlockHasher, get_request_block_hasher
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.free_blocks import QueueFactory
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES, KVCacheCoordinator, get_kv_cache_coordinator
from mini_kv.core.kv_cache_interface import KVCacheSpec
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from mini_kv.core.stats import PrefixCacheStats


@dataclass(frozen=True)
class KVCacheParts:
    """One factory per part. Each is called with the arguments that the engine's own part takes."""

    new_block: BlockFactory = KVCacheBlock
    make_queue: QueueFactory = FreeKVCacheBlockQueue
    """Makes the free queue of these blocks, with the first block in front. Its order is the eviction order. For another
    order pass a subclass with another `append_n`, or any object with the same methods (`mini_kv.policy`)."""
    make_index: Callable[[], BlockHashToBlockMap] = BlockHashToBlockMap
    make_pool: Callable[..., BlockPool] = BlockPool
    manager_classes: Mapping[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = field(
        default_factory=lambda: MANAGER_CLASSES
    )
    """The manager of a group, by the kind of its spec."""
    make_coordinator: Callable[..., KVCacheCoordinator] = get_kv_cache_coordinator
    make_block_hasher: Callable[..., RequestBlockHasher] = get_request_block_hasher
    make_stats: Callable[[], PrefixCacheStats] = PrefixCacheStats
