"""Checks of the arguments of the KV cache manager: each raises before anything changes."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_hash import SINGLE_TENANT_HASHES, make_block_hashes_with_group_id
from mini_kv.core.errors import AllocationError, ConfigError, RepeatedRequestError, UnknownRequestError
from mini_kv.core.kv_cache_coordinator import KVCacheCoordinator
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

Hit = tuple[Sequence[KVCacheBlock], ...]
"""Blocks of a hit, per group."""


def check_watermark(watermark: float) -> None:
    """Raise `ConfigError` unless the watermark is a share of the pool."""
    if not 0.0 <= watermark < 1.0:
        raise ConfigError(f"watermark is {watermark}: it is a share of the pool, 0.0 to 1.0")


def check_cache_salt(request_id: str, cache_salt: str | None, hash_name: str) -> None:
    """Raise `ConfigError` for an empty salt, and for a salt with a hash function whose collisions can be made."""
    if cache_salt == "":
        raise ConfigError(f"the cache_salt of request {request_id!r} is empty: give its tenant's, or None for no salt")
    if cache_salt is not None and hash_name in SINGLE_TENANT_HASHES:
        raise ConfigError(f"{hash_name} is for a single tenant: with a cache_salt, use sha256")


def check_admitted(admitted: Mapping[str, Request], request: Request) -> None:
    """Raise `UnknownRequestError` unless the request holds blocks."""
    if admitted.get(request.request_id) is not request:
        raise UnknownRequestError(request.request_id)


def check_fork(
    coordinator: KVCacheCoordinator, admitted: Mapping[str, Request], parent: Request, child: Request
) -> None:
    """Raise unless the child can start from the parent's computed tokens. See `KVCacheManager.fork`."""
    check_admitted(admitted, parent)
    if child.request_id in admitted:
        raise RepeatedRequestError(child.request_id)
    if coordinator.has_states:
        raise ConfigError("a request with states cannot be forked: its next token would write over them")
    num_computed_tokens = parent.num_computed_tokens
    num_hashes = num_computed_tokens // coordinator.hash_block_size
    if child.token_ids[:num_computed_tokens] != parent.token_ids[:num_computed_tokens] or (
        child.block_hashes[:num_hashes] != parent.block_hashes[:num_hashes]
    ):
        message = f"its tokens do not begin with the {num_computed_tokens} that {parent.request_id!r} has computed"
        raise AllocationError(child.request_id, message)
    if child.num_tokens <= num_computed_tokens:
        raise AllocationError(child.request_id, f"all its {child.num_tokens} tokens are computed; it needs one more")


def check_allocation(
    coordinator: KVCacheCoordinator,
    request: Request,
    num_new_tokens: int,
    num_lookahead_tokens: int,
    num_computed_tokens: int,
    hit: Hit,
    admitted: Request | None,
    reach: range,
) -> None:
    """Raise unless the arguments of `KVCacheManager.allocate_slots` make sense together.

    `admitted` is the request that holds blocks under this id. Its number of computed tokens must be in `reach`: from
    its hit, which other requests computed, to the last slot of its blocks.
    """
    if num_new_tokens < 1 or num_lookahead_tokens < 0:
        message = f"num_new_tokens is {num_new_tokens} and num_lookahead_tokens {num_lookahead_tokens}: "
        raise AllocationError(request.request_id, message + "a step computes at least 1 token")
    if admitted is not request and admitted is not None:
        raise RepeatedRequestError(request.request_id)
    if coordinator.skipping_managers:
        _check_skipping(coordinator, request, num_new_tokens + num_lookahead_tokens, num_computed_tokens)
    if admitted is None:
        _check_hit(coordinator, request, num_computed_tokens, hit)
        return
    if any(hit) or num_computed_tokens != request.num_computed_tokens:
        raise AllocationError(request.request_id, "it is running; only a request without blocks can adopt a hit")
    if num_computed_tokens not in reach:
        message = (
            f"{num_computed_tokens} tokens are said to be computed; it adopted {reach.start}, which others wrote,"
            f" and its blocks have room for {reach.stop - 1}"
        )
        raise AllocationError(request.request_id, message)


def _check_skipping(
    coordinator: KVCacheCoordinator, request: Request, num_slots_wanted: int, num_computed_tokens: int
) -> None:
    """Raise if the call needs tokens that a window has given back, or puts drafts into the state of a layer."""
    has_given_back = any(
        manager.get_num_skipped_tokens(num_computed_tokens) // manager.block_size
        < manager.num_skipped_block.get(request.request_id, 0)
        for manager in coordinator.skipping_managers
    )
    if has_given_back:
        message = f"it goes back to {num_computed_tokens} computed tokens, but its window has freed blocks before them"
        raise AllocationError(request.request_id, message)
    num_drafts = num_computed_tokens + num_slots_wanted - request.num_tokens
    if coordinator.has_states and num_drafts > 0:
        message = f"{num_drafts} tokens are drafts, which cannot be taken back out of the state of a layer"
        raise AllocationError(request.request_id, message)


def _check_hit(coordinator: KVCacheCoordinator, request: Request, num_computed_tokens: int, hit: Hit) -> None:
    """Raise unless the hit has exactly the tokens that are counted as computed and is still cached."""
    managers = coordinator.single_type_managers
    lengths = [manager.block_size * len(blocks) for manager, blocks in zip(managers, hit, strict=True)]
    num_hit_tokens = max(lengths)
    if min(lengths) < num_hit_tokens:
        message = f"the groups' blocks of the hit stand for {lengths} tokens, but a hit has one end for all"
        raise AllocationError(request.request_id, message)
    if num_hit_tokens != num_computed_tokens or request.num_computed_tokens not in (0, num_hit_tokens):
        passed = num_computed_tokens - request.num_computed_tokens
        counted = f"request.num_computed_tokens is {request.num_computed_tokens}"
        counted += f" and num_new_computed_tokens {passed}" if passed else ""
        message = f"the blocks of its hit hold {num_hit_tokens} tokens, but {counted}: "
        raise AllocationError(request.request_id, message + "pass the blocks, and count their tokens once")
    if num_hit_tokens >= request.num_tokens:
        message = f"the hit covers all its {request.num_tokens} tokens; the last one is always computed"
        raise AllocationError(request.request_id, message)
    for manager, blocks in zip(managers, hit, strict=True):
        _check_hit_of_group(request, manager, blocks, num_hit_tokens)


def _check_hit_of_group(
    request: Request, manager: SingleTypeKVCacheManager, blocks: Sequence[KVCacheBlock], num_hit_tokens: int
) -> None:
    """Raise unless each block that the next token reads is present and has the request's own block hash."""
    first = manager.get_num_skipped_tokens(num_hit_tokens) // manager.block_size
    block_hashes = manager.hashes_per_block(request.block_hashes)[first : len(blocks)]
    keys = list(make_block_hashes_with_group_id(block_hashes, manager.kv_cache_group_id))
    own = manager.block_pool.blocks
    carried = [
        block.block_hash for block in blocks[first:] if block.block_id < len(own) and own[block.block_id] is block
    ]
    if carried == keys and list(blocks[:first]) == [manager.block_pool.null_block] * first:
        return
    for block, key in zip_longest(blocks, [*[b""] * first, *keys]):  # find the guilty one
        fault = _fault_in_hit(manager, block, key)
        if fault:
            raise AllocationError(request.request_id, f"block {block.block_id} of the hit {fault}")


def _fault_in_hit(manager: SingleTypeKVCacheManager, block: KVCacheBlock, key: bytes | None) -> str | None:
    """Return the fault of a block of a hit, or `None` if there is none.

    `key` is `b""` where nothing is read. It is `None` where the request has no block hash, so no block can match.
    """
    if key == b"":
        return None if block.is_null else f"is at a place that group {manager.kv_cache_group_id} does not read"
    if block.block_hash is None or block.block_hash != key:
        return "has been evicted since the lookup; look up again"
    own = manager.block_pool.blocks
    is_own = block.block_id < len(own) and own[block.block_id] is block
    return None if is_own else "belongs to another cache"
