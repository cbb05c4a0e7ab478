"""The ledger: the invariants of the cache after every operation, and functions that check them.

Tests, failure messages, labs and the book use the same numbers. Each check below reads the pool and the block tables
and yields every violation. A check changes nothing. It counts by itself and does not trust the counters.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, KVCacheError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_manager import KVCacheManager

LEDGER: dict[str, str] = {
    "I1": "references: ref_cnt is the number of tables that hold the block, and never negative",
    "I2": "free queue: exactly the blocks that no table holds, each once, linked both ways",
    "I3": "conservation: free + held + null is all blocks",
    "I4": "no memory of its own: an index entry points to a block of the pool that carries that key",
    "I5": "prefix: a hit is a chain from the first block; the index holds full blocks only, computed or promised",
    "I6": "private writes: a slot is written by the request that allocated its block, never in an adopted block",
    "I7": "cap: a hit covers at most num_tokens - 1 tokens, in whole blocks, to one boundary for all groups",
    "I8": "append-only: tables grow at the end; a window may null its head",
    "I9": "content: an adopted block holds the KV of exactly that prefix, tenant, adapter and model epoch",
    "I10": "order: a request's tail is evicted before its head",
    "I11": "atomic: None or an exception leaves the whole state as it was",
    "I12": "longest: the hit is the longest that exists",
    "I13": "isolation: different tenant, salt, adapter, epoch or model never share a key",
    "I14": "drain: when all requests are over, nothing is held and nothing is left per request",
    "I15": "progress: every request ends within a bound",
    "I16": "tiers: visible in a tier means complete and verified; pinned is never evicted",
    "I17": "replay: the same seed gives the same events",
    "I18": "same words: tokens with the cache on equal tokens with it off",
}
"""Each invariant as one sentence, by its number."""

Tables = Mapping[str, Sequence[Sequence[KVCacheBlock]]]
"""Block tables by request id and group."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation: the invariant, a description, and the blocks concerned."""

    invariant_id: str
    message: str
    block_ids: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.invariant_id} broken: {self.message}"


class InvariantViolationError(KVCacheError):
    """The state of the cache is wrong. Carries the `violation` and the `history` of calls before it."""

    def __init__(self, violation: Violation, history: Sequence[str] = ()) -> None:
        calls = "".join(f"\n  after {call}" for call in history)
        super().__init__(f"{violation}\n  ({violation.invariant_id} {LEDGER[violation.invariant_id]}){calls}")
        self.violation = violation
        self.history = list(history)


def tables_of(kv: KVCacheManager) -> dict[str, Sequence[Sequence[KVCacheBlock]]]:
    """Return the block tables of every admitted request, and one more table with the blocks pinned for a copy."""
    tables: dict[str, Sequence[Sequence[KVCacheBlock]]] = {
        request_id: kv.coordinator.get_blocks(request_id) for request_id in kv.requests
    }
    if kv.copy_on_write.pinned:
        tables[PINNED] = [[block] for block in kv.copy_on_write.pinned]
    return tables


PINNED = "a copy under way"
"""Name, in messages, of the holder of a pinned block."""


def find_violations(kv: KVCacheManager) -> Iterator[Violation]:
    """Yield every violation in the manager's state, in the order of the ledger. Costs O(pool)."""
    tables = tables_of(kv)
    yield from find_pool_violations(kv.block_pool, tables)
    yield from check_i5_prefix(kv)
    yield from check_i14_drain(kv)


def find_pool_violations(pool: BlockPool, tables: Tables) -> Iterator[Violation]:
    """Yield every violation in a pool. `tables` must be all tables that hold its blocks."""
    yield from check_i1_references(pool, tables)
    yield from check_i2_free_queue(pool, tables)
    yield from check_i3_conservation(pool)
    yield from check_i4_index(pool)


def check_invariants(kv: KVCacheManager, history: Sequence[str] = ()) -> None:
    """Raise `InvariantViolationError` for the first violation, if there is one."""
    for violation in find_violations(kv):
        raise InvariantViolationError(violation, history)


def holders_of(block: KVCacheBlock, tables: Tables) -> list[str]:
    """Return the ids of the requests that hold the block. An id appears once per place in a table."""
    return [name for name, groups in tables.items() for table in groups for held in table if held is block]


def told_holders(block: KVCacheBlock, tables: Tables) -> str:
    """Return the ids of the requests that hold the block, as text for a message."""
    return " and ".join(dict.fromkeys(holders_of(block, tables)))


def check_i1_references(pool: BlockPool, tables: Tables) -> Iterator[Violation]:
    """Yield every block whose `ref_cnt` is not the number of tables that contain it."""
    held: Counter[int] = Counter()
    for name, groups in tables.items():
        for table in groups:
            times_in_table = Counter(block.block_id for block in table if not block.is_null)
            held += times_in_table
            for block_id, times in times_in_table.items():
                if times > 1:
                    yield Violation("I1", f"block {block_id} stands {times} times in one table of {name}", (block_id,))
    for block in pool.blocks:
        if not block.is_null and block.ref_cnt != held[block.block_id]:
            message = f"block {block.block_id} has ref_cnt {block.ref_cnt} but is held by"
            yield Violation("I1", f"{message} {told_holders(block, tables) or 'no table'}", (block.block_id,))


def check_i2_free_queue(pool: BlockPool, tables: Tables) -> Iterator[Violation]:
    """Yield every difference between the free queue and the blocks that are in no table."""
    try:
        queue = pool.free_block_queue.get_all_free_blocks()
    except BlockStateError as error:
        yield Violation("I2", str(error), tuple(error.block_ids))
        return
    for block_id, times in Counter(block.block_id for block in queue).items():
        if times > 1:
            yield Violation("I2", f"block {block_id} is {times} times in the free queue", (block_id,))
    in_queue = set(queue)
    for block in pool.blocks:
        message = _wrong_place(block, block in in_queue, tables)
        if message is not None:
            yield Violation("I2", message, (block.block_id,))
    if isinstance(pool.free_block_queue, FreeKVCacheBlockQueue):  # another queue may have no links
        for before, after in pairwise(queue):
            if after.prev_free_block is not before:
                message = f"block {after.block_id} follows block {before.block_id}, but does not link back to it"
                yield Violation("I2", message, (before.block_id, after.block_id))


def _wrong_place(block: KVCacheBlock, is_in_queue: bool, tables: Tables) -> str | None:
    """Return the fault in the block's place (in the free queue or not), or `None` if it is right."""
    if block.is_null:
        return "the null block is in the free queue" if is_in_queue else None
    if block.ref_cnt > 0 and is_in_queue:
        holders = told_holders(block, tables) or f"{block.ref_cnt} references"
        return f"block {block.block_id} is held by {holders} and is also in the free queue"
    if block.ref_cnt == 0 and not is_in_queue:
        return f"no table holds block {block.block_id}, but it is not in the free queue: it is lost"
    return None


def check_i3_conservation(pool: BlockPool) -> Iterator[Violation]:
    """Yield a violation if the numbers of free, referenced and null blocks do not add up to all blocks."""
    held = sum(1 for block in pool.blocks if block.ref_cnt > 0 and not block.is_null)
    if pool.num_free_blocks + held + 1 != len(pool.blocks):
        message = f"{pool.num_free_blocks} free + {held} held + 1 null is not {len(pool.blocks)} blocks"
        yield Violation("I3", message)


def check_i4_index(pool: BlockPool) -> Iterator[Violation]:
    """Yield every index entry whose block does not have its key, and every key of a block that is not in the index."""
    found: set[int] = set()
    own = set(pool.blocks)
    for key, blocks in pool.cached_block_hash_to_block.items():
        for block in blocks:
            found.add(block.block_id)
            if block.is_null:
                yield Violation("I4", "the null block is in the index", (block.block_id,))
            elif block not in own:
                yield Violation("I4", f"the index has a block {block.block_id} that is not in the pool")
            elif block.block_hash != key:
                other = "no key" if block.block_hash is None else "another key"
                message = f"the index finds block {block.block_id} under {key.hex()[:8]}, but the block carries {other}"
                yield Violation("I4", message, (block.block_id,))
    for block in pool.blocks:
        if block.block_hash is not None and block.block_id not in found:
            yield Violation("I4", f"block {block.block_id} carries a key that is not in the index", (block.block_id,))


def check_i5_prefix(kv: KVCacheManager) -> Iterator[Violation]:
    """Yield every cached block in a table with a key that is not the request's block hash at that place."""
    for request_id, request in kv.requests.items():
        for manager in kv.coordinator.single_type_managers:
            hashes = manager.hashes_per_block(request.block_hashes)
            for index, block in enumerate(manager.req_to_blocks.get(request_id, ())):
                if block.block_hash is None:
                    continue
                if index >= len(hashes):
                    message = f"block {block.block_id} is in the index, but {request_id} has not filled it"
                    yield Violation("I5", message, (block.block_id,))
                elif block.block_hash != make_block_hash_with_group_id(hashes[index], manager.kv_cache_group_id):
                    message = f"block {block.block_id} of {request_id} is in the index under another prefix's hash"
                    yield Violation("I5", message, (block.block_id,))


def check_i14_drain(kv: KVCacheManager) -> Iterator[Violation]:
    """Yield the tables and references of finished requests."""
    for manager in kv.coordinator.single_type_managers:
        kept = manager.req_to_blocks.keys() | manager.num_cached_block.keys() | manager.num_skipped_block.keys()
        left = kept - kv.requests.keys()
        if left:
            yield Violation("I14", f"tables are left of requests that are over: {', '.join(sorted(left))}")
    pinned = set(kv.copy_on_write.pinned)
    blocks = [block for block in kv.block_pool.blocks if block not in pinned]
    held = [block.block_id for block in blocks if block.ref_cnt > 0 and not block.is_null]
    if not kv.requests and held:
        yield Violation("I14", f"no request is left, but blocks {held} are still held: they leaked", tuple(held))
