"""The block tables of layers that keep a running state in place of keys and values."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.kv_cache_interface import MambaSpec
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, cdiv


class MambaManager(SingleTypeKVCacheManager):
    """Tables for layers that keep a running state in place of keys and values.

    A step reads one state and writes one to the block of its last token. The blocks between the two are null blocks.
    A state can be shared only if its step ended exactly at a block's end, and only after that step has run. A block of
    keys and values can be shared within its step, because each layer writes before it reads. A state is needed before
    the first token is computed.

        blocks of 16        [ s16 ]  [ null ]  [ s48 ]  [ s50 ]        steps that ended at 16, 48 and 50
        in the index          yes                yes      no

    Source: vLLM `MambaManager`, its mode "align".
    """

    def __init__(self, kv_cache_spec: MambaSpec, *args: Any, **options: Any) -> None:
        super().__init__(kv_cache_spec, *args, **options)
        self._promises: dict[str, tuple[KVCacheBlock, Request, int]] = {}
        """The last state that each request entered in the index: its block, its request, its number of tokens."""

    @property
    def num_blocks_of_hit(self) -> int:
        """Number of blocks before its end that a hit needs: 1, the state at that end."""
        return 1

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the number of computed tokens minus one: the last state covers all earlier tokens."""
        return max(0, num_computed_tokens - 1)

    def num_missing_blocks(self, num_tokens: int, num_held: int) -> int:
        """Return 1 if the last token is beyond the table: a step of any length writes one state."""
        return min(super().num_missing_blocks(num_tokens, num_held), 1)

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int | None:
        """Return the number of free blocks needed. `None`: the running step still computes the state of the hit."""
        for block, writer, num_tokens_of_state in self._promises.values():
            is_hit = len(new_computed_blocks) > 0 and new_computed_blocks[-1] is block
            if is_hit and writer.num_computed_tokens < num_tokens_of_state:
                return None
        return super().get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Add a block for the state at `num_tokens`, and null blocks for the places before it. Return both.

        The null blocks are returned because a worker appends the result to its copy of the table.
        """
        table = self.req_to_blocks[request_id]
        gaps = [self.block_pool.null_block] * (cdiv(num_tokens, self.block_size) - len(table) - 1)
        table += gaps
        return gaps + super().allocate_new_blocks(request_id, num_tokens)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enter the state in the index if the step ends at a block's end, where a hit can end.

        If block hashes cover the next token, the previous step's state may get its hash only now.
        """
        num_before = request.num_computed_tokens
        has_waited = self.num_cached_block[request.request_id] == num_before // self.block_size - 1
        for end in (num_before, num_tokens) if has_waited else (num_tokens,):
            if end % self.cache_hit_alignment_tokens == 0:
                position = end // self.block_size - 1
                self.num_cached_block[request.request_id] = position  # no state of a block's end stands before it
                super().cache_blocks(request, end)
                self._promises[request.request_id] = (self.req_to_blocks[request.request_id][position], request, end)

    def free(self, request_id: str) -> None:
        """Free the request's blocks, and remove its promise."""
        super().free(request_id)
        self._promises.pop(request_id, None)

    def recover(self) -> None:
        """Remove all tables and promises."""
        super().recover()
        self._promises.clear()


def mamba_block_aligned_split(
    request: Request, num_computed_tokens: int, num_new_tokens: int, block_size: int, longest_step: int
) -> int:
    """Return the number of tokens to compute, so that the step ends where a state can be shared. 0 means none now.

    The state of the last token of a step is kept, and another request can use it only if that token ends a block. A
    hit is at most all tokens but one, so the last such place is the last block's end before the last token. A step
    also ends where the request leaves a prefix that other requests share:

        blocks of 16, 40 tokens                     0 ............ 32 .. 40        steps of 32 and 8
        16 of them are another request's, too       0 .... 16 .... 32 .. 40        steps of 16, 16 and 8

    Decoding is not split: it computes one token per step, so a step ends at every block's end. If no step is as long as
    a block, a block takes several steps. The last of them ends at the block's end.

    Args:
        request: its `shared_prefix_boundary` must be up to date.
        num_computed_tokens: tokens before the step, those of a hit included.
        num_new_tokens: tokens that the step could compute.
        block_size: tokens between two places where a hit can end.
        longest_step: the most tokens that any step computes for a request.

    Source: vLLM `Scheduler._mamba_block_aligned_split` (v1/core/sched/scheduler.py).
    """
    start, end = num_computed_tokens, num_computed_tokens + num_new_tokens
    prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)  # a preempted request computes its answer too
    if start >= prefill_end:
        return num_new_tokens
    if end < prefill_end:
        aligned_end = end // block_size * block_size
        if aligned_end > start or block_size <= longest_step:
            end = aligned_end
    stops = (
        cdiv(start, block_size) * block_size,
        (request.num_tokens - 1) // block_size * block_size,
        request.shared_prefix_boundary,
    )
    end = min((stop for stop in stops if start < stop < end), default=end)
    return max(end - start, 0)
