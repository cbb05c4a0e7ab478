"""Quiet stretches: calls that need no work in the cache, because they only fill a request's last block.

    block of 16     |= full =|= full =|= 5 of 16 -  -  -  -|        37 tokens are computed, or will be in this step
                                       | quiet: 38 to 47      |     the 48th fills the block: it gets its hash

In decoding, 14 of 16 calls are quiet. A stretch ends early if the request is freed or forked, if its promises are
withdrawn, or if the manager recovers.
"""

from bisect import bisect_right

from mini_kv.core.kv_cache_coordinator import KVCacheCoordinator
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, cdiv


class NoOpRanges(dict[Request, tuple[int, int]]):
    """Per request: the fewest tokens at which a quiet call may start, and the number before which it must end."""

    def covers(self, request: Request, num_new_tokens: int) -> bool:
        """Return whether these tokens only fill the request's last block: nothing in the cache changes."""
        first, end = self.get(request, (0, 0))
        return first <= request.num_computed_tokens < request.num_computed_tokens + num_new_tokens < end

    def note(
        self, coordinator: KVCacheCoordinator, request: Request, num_computed_tokens: int, num_tokens_to_cache: int
    ) -> None:
        """Record a quiet stretch, after a call that entered the full blocks of the first `num_tokens_to_cache` tokens.

        It ends at the next block's end in any group, and before a block leaves a window. A manager with states has no
        quiet stretch, because every call has to be checked.
        """
        if not coordinator.has_states:
            end = cdiv(num_tokens_to_cache, coordinator.hash_block_size) * coordinator.hash_block_size
            for manager in coordinator.skipping_managers:
                end = _first_skip(manager, num_computed_tokens, end)
            self[request] = (num_computed_tokens, end)


def _first_skip(manager: SingleTypeKVCacheManager, num_computed_tokens: int, end: int) -> int:
    """Return the number of computed tokens at which the group's next block leaves its window, at most `end`."""

    def num_skipped_blocks(num_tokens: int) -> int:
        return manager.get_num_skipped_tokens(num_tokens) // manager.block_size

    now = num_skipped_blocks(num_computed_tokens)
    return num_computed_tokens + bisect_right(range(num_computed_tokens, end), now, key=num_skipped_blocks)
