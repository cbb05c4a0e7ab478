"""The block tables of layers that keep a running state in place of keys and values."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.kv_cache_interface import MambaSpec
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, cdiv


class MambaManager(SingleTypeKVCacheManager):
    """Tables for layers that keep a running state in place of keys and values.

    A step reads one state and writes one, into the block in which its last token lies; the places between stay null.
    A state can be shared only where a step ended exactly at a block's end, and not before that step has run:
    attention reads a promised block layer by layer, after it was written; a state is needed before the first token.

        blocks of 16        [ s16 ]  [ null ]  [ s48 ]  [ s50 ]        steps that ended at 16, 48 and 50
        in the index          yes                yes      no

    Source: vLLM `MambaManager`, its mode "align".
    """

    def __init__(self, kv_cache_spec: MambaSpec, *args: Any, **options: Any) -> None:
        super().__init__(kv_cache_spec, *args, **options)
        self._promises: dict[str, tuple[KVCacheBlock, Request, int]] = {}
        """The state that each request published last: its block, its writer, the tokens that make it true."""

    @property
    def num_blocks_of_hit(self) -> int:
        """How many blocks before its end a hit needs: 1, the state at that end."""
        return 1

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return all but the last computed token: the state behind it knows the rest."""
        return max(0, num_computed_tokens - 1)

    def num_missing_blocks(self, num_tokens: int, num_held: int) -> int:
        """Return 1 if the last token lies beyond the table: whatever a step's length, it writes one state."""
        return min(super().num_missing_blocks(num_tokens, num_held), 1)

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int | None:
        """Return as for any group; `None` if the step under way has still to compute the state of the hit."""
        for block, writer, num_tokens_of_state in self._promises.values():
            is_hit = len(new_computed_blocks) > 0 and new_computed_blocks[-1] is block
            if is_hit and writer.num_computed_tokens < num_tokens_of_state:
                return None
        return super().get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Add null blocks for the states that no step stops at, and a block for the one at `num_tokens`; return both.

        A worker appends what is returned to its copy of the table, so the null blocks are part of it.
        """
        self._note(request_id)
        table = self.req_to_blocks[request_id]
        gaps = [self.block_pool.null_block] * (cdiv(num_tokens, self.block_size) - len(table) - 1)
        table += gaps
        return gaps + super().allocate_new_blocks(request_id, num_tokens)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the state in the index if the step ends where a hit can end, which is at a block's end."""
        if num_tokens % self.cache_hit_alignment_tokens > 0:
            return
        self._note(request.request_id)
        position = num_tokens // self.block_size - 1
        self.num_cached_block[request.request_id] = position  # what stands before it is no state of a block's end
        super().cache_blocks(request, num_tokens)
        self._promises[request.request_id] = (self.req_to_blocks[request.request_id][position], request, num_tokens)

    def free(self, request_id: str) -> None:
        """Free as any group does, and forget the request's promise."""
        super().free(request_id)
        self._promises.pop(request_id, None)

    def _dictionaries(self) -> tuple[dict[str, Any], ...]:
        """Return all that is kept per request, the tables first."""
        return *super()._dictionaries(), self._promises
