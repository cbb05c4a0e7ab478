"""The scheduler's interface to the cache: look up a prompt, allocate slots for a request, free them.

The calls for one request:

    request = kv.new_request("A", token_ids)
    blocks, num_hit = kv.get_computed_blocks(request)              # a question; nothing changes
    request.num_computed_tokens = num_hit                          # the head start
    kv.allocate_slots(request, len(token_ids) - num_hit, new_computed_blocks=blocks)
    ...                                                            # the step runs; KV is written
    request.num_computed_tokens = request.num_tokens
    kv.free(request)

Several groups of layers, of several kinds, behave as one: a hit ends at the same token in all of them, and an
allocation succeeds in all of them or in none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from mini_kv.core.block import BlockFactory, KVCacheBlock
from mini_kv.core.block_hash import get_hash_function
from mini_kv.core.checks import check_admitted, check_allocation, check_cache_salt, check_fork, check_watermark
from mini_kv.core.copy_on_write import CopyOnWrite
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.quiet import NoOpRanges
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request


@dataclass(frozen=True, slots=True)
class KVCacheBlocks:
    """Blocks of one request, per group: the result of a lookup or of an allocation."""

    blocks: tuple[Sequence[KVCacheBlock], ...]

    def get_block_ids(self) -> tuple[list[int], ...]:
        """Return the ids, per group. The worker needs nothing else."""
        if len(self.blocks) == 1:  # by far the most common, and half the price
            return ([block.block_id for block in self.blocks[0]],)
        return tuple([[block.block_id for block in group] for group in self.blocks])


class KVCacheManager:
    """Block tables, sharing and prefix caching for all requests over one pool.

    When blocks run out, `allocate_slots` returns `None`. Misuse raises an exception. In both cases the state is
    unchanged.

    Source: vLLM `KVCacheManager` (v1/core/kv_cache_manager.py).
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        enable_caching: bool = True,
        hash_name: str = "sha256",
        model_fingerprint: str = "",
        weights_epoch: int = 0,
        max_in_flight_tokens: int | None = None,
        watermark: float = 0.0,
        parts: KVCacheParts | None = None,
    ) -> None:
        """Build the pool and the tables.

        Args:
            kv_cache_config: blocks (the null block included) and groups.
            enable_caching: whether full blocks can be found and shared by their content.
            hash_name: see `HASH_FUNCTIONS`. `xxh3_128` is for a single tenant and refuses a `cache_salt`.
            model_fingerprint: identifies the weights that compute the KV. It is part of every block hash.
            weights_epoch: version of these weights. It is part of every block hash.
            max_in_flight_tokens: the most tokens that one step computes. `None`: a step may compute a whole request.
            watermark: share of the pool that stays free when a request is admitted while others run.
            parts: parts that replace the engine's own, such as an observer's blocks or a learner's queue.
        """
        check_watermark(watermark)
        parts = parts or KVCacheParts()
        self.kv_cache_config = kv_cache_config
        self.enable_caching = enable_caching
        self.hash_name = hash_name
        self.block_pool = parts.make_pool(
            kv_cache_config.num_blocks,
            enable_caching,
            new_block=parts.new_block,
            make_queue=parts.make_queue,
            make_index=parts.make_index,
        )
        self.coordinator = parts.make_coordinator(kv_cache_config, self.block_pool, parts.manager_classes)
        self.copy_on_write = CopyOnWrite(self.coordinator, self.block_pool)
        self.max_in_flight_tokens = max_in_flight_tokens
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.prefix_cache_stats = parts.make_stats()
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in kv_cache_config.kv_cache_groups))
        """No blocks in any group. Made once, because most calls return it."""
        self.requests: dict[str, Request] = {}
        """The admitted requests, which are those that hold blocks, in order of admission."""
        self.num_adopted_tokens: dict[str, int] = {}
        """Tokens of each admitted request's hit: its first blocks, which other requests computed. A subclass with
        another admission may leave it empty."""
        self.quiet = NoOpRanges()
        self.num_hash_lookahead_tokens = hash_lookahead = kv_cache_config.num_hash_lookahead_tokens
        """Tokens after each block that its hash covers. See `KVCacheConfig`."""
        self._block_hasher = parts.make_block_hasher(
            self.coordinator.hash_block_size,
            get_hash_function(hash_name),
            model_fingerprint,
            weights_epoch,
            **({"num_hash_lookahead_tokens": hash_lookahead} if hash_lookahead else {}),  # a learner's hasher has none
        )

    @classmethod
    def for_full_attention(
        cls,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool = True,
        hash_name: str = "sha256",
        new_block: BlockFactory = KVCacheBlock,
    ) -> Self:
        """Return a manager of one group of full-attention layers. `num_blocks` includes the null block."""
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
        config = KVCacheConfig(num_blocks, (group,))
        parts = KVCacheParts(new_block=new_block)
        return cls(config, enable_caching=enable_caching, hash_name=hash_name, parts=parts)

    @property
    def block_size(self) -> int:
        """Tokens per block. If groups differ, tokens between two places where a block of every group ends."""
        return self.coordinator.scheduler_block_size

    @property
    def usage(self) -> float:
        """Share of the blocks that are in use, 0.0 to 1.0, without the null block."""
        return self.block_pool.usage

    def new_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora_request: LoRARequest | None = None,
        mm_features: Sequence[MultiModalFeature] = (),
    ) -> Request:
        """Return a request with this cache's hashes of its full blocks. The request is not admitted yet.

        Args:
            request_id: must be unique among admitted requests.
            token_ids: the prompt, as integers in `0 <= t < 2**32`.
            cache_salt: only requests with the same salt share blocks. Derive it from the tenant, on the server. An
                empty salt is refused: a tenant whose salt was lost must not share blocks with others.
            lora_request: the adapter, if any.
            mm_features: images and their places in the prompt.
        """
        check_cache_salt(request_id, cache_salt, self.hash_name)
        return Request(
            request_id,
            token_ids,
            block_hasher=self._block_hasher if self.enable_caching else None,
            cache_salt=cache_salt,
            lora_request=lora_request,
            mm_features=mm_features,
        )

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of the request, as blocks and as a number of tokens. Changes nothing.

        A hit has at most `num_tokens - 1` tokens. The last token is always computed, because only its computation
        gives the next token's probabilities. The cache does not keep these. Costs O(blocks of the hit).
        """
        hit, num_tokens = self.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        return KVCacheBlocks(hit), num_tokens

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Allocate slots for the request's next tokens. Return the new blocks, or `None` if the request has to wait.

            tokens      | computed        | new_computed    | new            | lookahead |
                        | in its table    | the hit         | to compute now | may come  |
            blocks      | held            | touched         | from the free queue        |
            index       | entered         | entered         | full ones now  | never     |

        The first call admits the request. Pass the length of its hit as `num_new_computed_tokens`, as vLLM does, or set
        `request.num_computed_tokens` before, but not both. Pass the blocks of the hit in both cases.
        Full blocks are entered in the index at once, so other requests find them from now on. That is a promise that
        this step computes them (see `withdraw_promises`). The drafts among the new tokens get slots. Their blocks are
        entered when the drafts are accepted (see `cache_blocks`). Blocks left of a window, which no later token reads,
        are freed first. The allocation can use them again.

        Args:
            request: from `new_request`.
            num_new_tokens: tokens to compute in this step, drafts included.
            num_new_computed_tokens: tokens of the hit, if `request.num_computed_tokens` does not include them yet.
            new_computed_blocks: blocks of the hit, as `get_computed_blocks` returned them.
            num_lookahead_tokens: additional slots, for tokens that may be proposed later.
            full_sequence_must_fit: admit the request only if all of its tokens would fit, in steps of at most
                `max_in_flight_tokens`, not just this step's.
            reserved_blocks: free blocks that are kept for other requests.
            has_scheduled_reqs: whether other requests run. Only then admission keeps the watermark free.

        Returns:
            The blocks added to the tables, per group (often none): blocks from the free queue, and null blocks where
            a group of states keeps none. `None`, with nothing changed, in three cases. First: too few blocks are free
            for the new blocks, the copies, the revived blocks of the hit and the reserve. Second: a new request would
            use the watermark, or would not fit in full. Third: its hit ends in a state that the running step still
            computes. The scheduler then lets the request wait or preempts another one. A caller that has set
            `request.num_computed_tokens` to the hit must set it back to 0.

        Raises:
            AllocationError: the numbers contradict each other, or the hit has been evicted since the lookup.
            RepeatedRequestError: another admitted request has this id.
        """
        new_tokens_only = new_computed_blocks is None and num_new_computed_tokens == num_lookahead_tokens == 0
        if new_tokens_only and self.quiet.covers(request, num_new_tokens):
            return self.empty_kv_cache_blocks  # saves time only: the rest of this call would change nothing

        request_id = request.request_id
        hit = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
        total_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        num_slots_wanted = total_computed_tokens + num_new_tokens + num_lookahead_tokens
        num_tokens_to_cache = min(total_computed_tokens + num_new_tokens, request.num_tokens)
        num_slots_held = self.coordinator.num_token_slots(request_id)
        reach = range(self.num_adopted_tokens.get(request_id, 0), num_slots_held + 1)
        check_allocation(
            self.coordinator,
            request,
            num_new_tokens,
            num_lookahead_tokens,
            total_computed_tokens,
            hit,
            self.requests.get(request_id),
            reach,
        )

        shared = self.copy_on_write.shared_blocks(request_id, total_computed_tokens)
        if num_slots_wanted <= num_slots_held and not shared:
            # No block is needed, so nothing can be refused. A newcomer has no slots, and does not get here.
            self.coordinator.remove_skipped_blocks(request_id, total_computed_tokens)
            self.coordinator.cache_blocks(request, num_tokens_to_cache)
            self.quiet.note(self.coordinator, request, total_computed_tokens, num_tokens_to_cache)
            return self.empty_kv_cache_blocks

        num_needed = self.coordinator.get_num_blocks_to_allocate(request_id, num_slots_wanted, hit)
        if num_needed is None:
            return None  # its hit ends in a state that is still being computed
        num_needed += len(shared) + reserved_blocks
        num_needed -= self.coordinator.get_num_blocks_to_free(request_id, total_computed_tokens)
        if num_needed > self.block_pool.num_free_blocks:
            return None  # too few blocks
        is_new = request_id not in self.requests
        if is_new and not self._may_enter(request, hit, num_needed, full_sequence_must_fit, has_scheduled_reqs):
            return None  # it fits now, and would crowd those that run

        self.coordinator.remove_skipped_blocks(request_id, total_computed_tokens)
        if is_new:  # the hit is touched before a block is taken, which could be one of its own
            self._admit(request, total_computed_tokens, hit)
        self.copy_on_write.copy(request_id, total_computed_tokens, shared)
        new_blocks = self.coordinator.allocate_new_blocks(request_id, num_slots_wanted)
        self.coordinator.cache_blocks(request, num_tokens_to_cache)
        self.quiet.note(self.coordinator, request, total_computed_tokens, num_tokens_to_cache)
        return KVCacheBlocks(new_blocks)

    def num_quiet_steps(self, request: Request) -> int:
        """Return the number of next decoding steps, of one token each, that change nothing in the cache.

        In these steps no block is allocated, entered in the index or freed for this request, because its tokens only
        fill its last block. A simulation without a model can therefore skip them.
        """
        _, end = self.quiet.get(request, (0, 0))
        return max(0, end - 1 - request.num_computed_tokens)

    def free(self, request: Request) -> None:
        """Drop the request's references to its blocks, tail first. Full blocks stay cached until they are reused.

        Raises `UnknownRequestError` if the request holds none: it was freed already, or never admitted.
        """
        check_admitted(self.requests, request)
        self.quiet.pop(request, None)
        self.coordinator.free(request.request_id)
        del self.requests[request.request_id]
        self.num_adopted_tokens.pop(request.request_id, None)
        self.copy_on_write.forked.discard(request.request_id)

    def fork(self, parent: Request, child: Request) -> None:
        """Admit `child` with all the parent's computed blocks as shared blocks, also a half-filled last block.

        The first of the two that writes to that block gets a copy of it (see `take_kv_cache_block_copies`). The caller
        sets `child.num_computed_tokens` to the parent's. Costs O(blocks).

        Args:
            parent: an admitted request, between two steps.
            child: from `new_request`. Its tokens begin with all the parent's computed tokens.

        Raises:
            UnknownRequestError: the parent holds no blocks.
            RepeatedRequestError: an admitted request has the child's id.
            AllocationError: the child's tokens are different, or it has no token left to compute.
            ConfigError: a layer keeps states, which are overwritten at every token.
        """
        check_fork(self.coordinator, self.requests, parent, child)
        num_computed_tokens = parent.num_computed_tokens
        self.quiet.pop(parent, None)
        self.copy_on_write.fork(parent.request_id, child.request_id, num_computed_tokens)
        self.requests[child.request_id] = child
        self.num_adopted_tokens[child.request_id] = num_computed_tokens
        child.num_cached_tokens = num_computed_tokens

    def take_kv_cache_block_copies(self) -> list[tuple[int, int]]:
        """Return the copies, as (source, target), that the next step makes before it writes. Each is returned once."""
        return self.copy_on_write.take()

    def finish_kv_cache_block_copies(self) -> None:
        """Unpin both ends of the copies. Call it when their step has run. A copy that was not taken is dropped."""
        self.copy_on_write.finish()

    def confirm_promises(self) -> None:
        """Forget which block hashes were promised. Call it when their step has run, so that the KV is computed."""
        self.coordinator.promised.clear()

    def withdraw_all_promises(self) -> None:
        """Remove every block hash that the running step has promised, also from blocks that were freed since.

        For a step that the worker did not run. Preempt the requests that hold one of these blocks.
        """
        self.block_pool.evict_blocks(sorted(self.coordinator.promised))
        self.coordinator.promised.clear()

    def withdraw_promises(self, request: Request) -> list[str]:
        """Remove the hashes of the request's blocks that are not computed. Return the other requests that hold one.

        For a request that is preempted before its step ran. Call it before `free`: a block that was never computed
        must not stay cached. The first `request.num_computed_tokens` tokens and the hit count as computed. The returned
        requests use KV that will not be computed. Preempt them too. Costs O(tables).
        """
        check_admitted(self.requests, request)
        self.quiet.pop(request, None)
        num_computed = max(request.num_computed_tokens, self.num_adopted_tokens.get(request.request_id, 0))
        withdrawn = set(self.coordinator.withdraw_promises(request.request_id, num_computed))
        return [
            request_id
            for request_id in self.requests
            if request_id != request.request_id
            and any(not withdrawn.isdisjoint(table) for table in self.coordinator.get_blocks(request_id))
        ]

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter the full blocks of the request's first `num_computed_tokens` tokens in the index.

        For blocks that `allocate_slots` could not enter: those that accepted drafts made full, and those whose hash
        covers a token that was not known yet.
        """
        check_admitted(self.requests, request)
        self.coordinator.cache_blocks(request, min(num_computed_tokens, request.num_tokens))

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Remove the hashes of these blocks, in use or free. References, tables and the free queue are unchanged."""
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Remove all block hashes, return `True`. While a request holds blocks, change nothing and return `False`."""
        return self.block_pool.reset_prefix_cache()

    def recover(self) -> None:
        """Return to the initial state after an interrupted call: no admitted request, no cached block. Costs O(pool).

        If this call is interrupted too, call it again. `prefix_cache_stats` keeps its counts.
        """
        self.requests.clear()
        self.num_adopted_tokens.clear()
        self.quiet.clear()
        self.copy_on_write.clear()
        self.coordinator.recover()
        self.block_pool.recover()

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """Return the request's live block tables, per group. The lists are empty for a request without blocks."""
        return KVCacheBlocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the ids in the request's block tables, per group."""
        return self.get_blocks(request_id).get_block_ids()

    def _admit(self, request: Request, num_hit_tokens: int, hit: tuple[Sequence[KVCacheBlock], ...]) -> None:
        """Start the request's tables with its hit, and count it if this is its first admission."""
        request.shared_prefix_boundary = self.coordinator.shared_prefix_boundary(request, num_hit_tokens)
        self.coordinator.allocate_new_computed_blocks(request.request_id, hit)
        self.requests[request.request_id] = request
        self.num_adopted_tokens[request.request_id] = num_hit_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_hit_tokens
            if self.enable_caching:
                self.prefix_cache_stats.record(request.num_tokens, num_hit_tokens)

    def _may_enter(
        self,
        request: Request,
        hit: tuple[Sequence[KVCacheBlock], ...],
        num_needed: int,
        full_sequence_must_fit: bool,
        has_scheduled_reqs: bool,
    ) -> bool:
        """Return whether a new request leaves the watermark free: now and, if it must all fit, until its last token."""
        if full_sequence_must_fit:
            num_in_flight = self.max_in_flight_tokens or request.num_tokens
            num_at_most = self.coordinator.get_max_num_blocks_to_allocate(request.num_tokens, hit, num_in_flight)
            num_needed = max(num_needed, num_at_most)
        watermark_blocks = self.watermark_blocks if has_scheduled_reqs else 0
        return num_needed + watermark_blocks <= self.block_pool.num_free_blocks

    def num_blocks_needed(self, num_tokens: int) -> int:
        """Return the most blocks that a request holds at any time until it is `num_tokens` long, over all groups.

        Uses the formula of admission, so that both give the same number.
        """
        no_hit = self.empty_kv_cache_blocks.blocks
        return self.coordinator.get_max_num_blocks_to_allocate(
            num_tokens, no_hit, self.max_in_flight_tokens or num_tokens
        )
