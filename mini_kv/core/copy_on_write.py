"""Copy-on-write: requests that were forked share a half-filled block until one of them writes to it.

    before          A  [ 1  2  3 ]        B  [ 1  2  3 ]        block 3: two slots written, two free, in both tables
    B writes        A  [ 1  2  3 ]        B  [ 1  2  7 ]        3 is copied to 7, then B's token goes to 7
    A writes        A  [ 1  2  3 ]        B  [ 1  2  7 ]        3 is no longer in another table: no copy

The worker makes the copy at the beginning of its step. Both ends are pinned until that step has run. Until then, block
3 is not overwritten and block 7 is not allocated again, even if the requests end.

Source: PagedAttention (Kwon et al., SOSP 2023), section 4.4; vLLM `take_kv_cache_block_copies`, there for partial hits.
"""

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.kv_cache_coordinator import KVCacheCoordinator


class CopyOnWrite:
    """The requests that may share a half-filled block, and the copies under way."""

    def __init__(self, coordinator: KVCacheCoordinator, block_pool: BlockPool) -> None:
        self.coordinator = coordinator
        self.block_pool = block_pool
        self.forked: set[str] = set()
        """Requests whose next slot may be in a shared block."""
        self.pinned: list[KVCacheBlock] = []
        """Both ends of each copy that has not run yet: source, target, source, target."""
        self._not_taken: list[tuple[int, int]] = []

    def fork(self, parent_id: str, child_id: str, num_computed_tokens: int) -> None:
        """Start the child's tables with the parent's computed blocks."""
        for manager in self.coordinator.single_type_managers:
            manager.fork(parent_id, child_id, num_computed_tokens)
        self.forked |= {parent_id, child_id}

    def shared_blocks(self, request_id: str, num_computed_tokens: int) -> dict[int, KVCacheBlock]:
        """Return, per group, the shared block with the request's next slot. The request must not write there."""
        if request_id not in self.forked:
            return {}
        shared = {}
        for group_id, manager in enumerate(self.coordinator.single_type_managers):
            block = manager.partial_block(request_id, num_computed_tokens)
            # A pin is no reader: the copy runs before any request writes.
            if block is not None and block.ref_cnt - self.pinned.count(block) > 1:
                shared[group_id] = block
        return shared

    def copy(self, request_id: str, num_computed_tokens: int, shared: dict[int, KVCacheBlock]) -> None:
        """Replace these blocks in the request's tables by new ones. As many blocks must be free.

        From now on the request does not share the block of its next slot, until the request is forked again.
        """
        for group_id, source in shared.items():
            (target,) = self.block_pool.get_new_blocks(1)
            self.block_pool.touch([target])  # the pin; the source keeps the reference that the table gives up
            self.coordinator.single_type_managers[group_id].replace_partial_block(
                request_id, num_computed_tokens, target
            )
            self.pinned += [source, target]
            self._not_taken.append((source.block_id, target.block_id))
        self.forked.discard(request_id)

    def take(self) -> list[tuple[int, int]]:
        """Return the copies that the next step makes first, as (source, target). Each is returned once."""
        copies, self._not_taken = self._not_taken, []
        return copies

    def finish(self) -> None:
        """Unpin both ends of every copy. Call it when the step that made the copies has run.

        A copy that was not taken is dropped: its ends may now be allocated to other requests.
        """
        pinned, self.pinned, self._not_taken = self.pinned, [], []
        for block in pinned:  # one by one, since a block may be the source of two copies
            self.block_pool.free_blocks([block])

    def clear(self) -> None:
        """Remove all forks and copies. The pool's counts are unchanged."""
        self.forked, self.pinned, self._not_taken = set(), [], []
