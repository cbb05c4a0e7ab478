"""Quiet stretches: while its last block fills up, a running request needs nothing of the cache, and is not looked at.

    block of 16     |= full =|= full =|= 5 of 16 -  -  -  -|        37 tokens are computed, or will be in this step
                                       | quiet: 38 to 47      |     the 48th fills the block: it gets its key

Decoding, that is 14 of 16 calls. What ends a stretch early: the request is freed, is forked, has its promises
withdrawn, or the manager recovers.
"""

from bisect import bisect_right

from mini_kv.core.kv_cache_coordinator import KVCacheCoordinator
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, cdiv


class QuietStretches(dict[Request, tuple[int, int]]):
    """Per request the least tokens that a quiet call starts from, and the number that it has to end before."""

    def note(
        self, coordinator: KVCacheCoordinator, request: Request, num_computed_tokens: int, num_tokens_to_cache: int
    ) -> None:
        """Note a stretch, after a call that entered the full blocks of the first `num_tokens_to_cache` tokens.

        It ends where the block of any group does, and where one falls out of a window's reach. None is noted where a
        layer keeps states: what these may be asked for is checked at every call.
        """
        if not coordinator.has_states:
            end = cdiv(num_tokens_to_cache, coordinator.hash_block_size) * coordinator.hash_block_size
            for manager in coordinator.skipping_managers:
                end = _first_skip(manager, num_computed_tokens, end)
            self[request] = (num_computed_tokens, end)


def _first_skip(manager: SingleTypeKVCacheManager, num_computed_tokens: int, end: int) -> int:
    """Return after how many computed tokens the group's next block falls out of reach; `end` if not before."""

    def num_skipped_blocks(num_tokens: int) -> int:
        return manager.get_num_skipped_tokens(num_tokens) // manager.block_size

    now = num_skipped_blocks(num_computed_tokens)
    return num_computed_tokens + bisect_right(range(num_computed_tokens, end), now, key=num_skipped_blocks)
