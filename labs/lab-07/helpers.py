"""Helpers of lab-07: a cache with one of the learner's parts, calls and lookups, random lives.

Reading order: checks of the learner's results, caches with the learner's parts, calls and lookups, then the random
lives, which are compared with `NaiveCache` of mini_kv/course/labkit/naive.py.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import get_block_hash, make_block_hash_with_group_id
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.core.stats import PrefixCacheStats
from mini_kv.course.labkit import LabTodo, lives
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.course.labkit.lives import COMES, LEAVES, Step, are_blocks, cached_blocks, free_queue, ids_of, table
from mini_kv.course.labkit.naive import NaiveCache

GET_ONE = "BlockHashToBlockMap.get_one_block"
INSERT = "BlockHashToBlockMap.insert"
POP = "BlockHashToBlockMap.pop"
CACHE = "BlockPool.cache_full_blocks"
EVICT = "BlockPool._maybe_evict_cached_block"
FREE = "BlockPool.free_blocks"
FIND = "FullAttentionManager.find_longest_cache_hit"
LOOKUP = "KVCacheManager.get_computed_blocks"
RECORD = "PrefixCacheStats.record"

K, L, M = (BlockHashWithGroupId(text) for text in (b"the key K", b"the key L", b"the key M"))

# The learner's part among the engine's ------------------------------------------------------------------------------


class CountedPool(BlockPool):
    """The engine's pool, which counts the calls of `get_cached_block`."""

    num_asked = 0

    def get_cached_block(self, block_hash: BlockHash, group_ids: Sequence[int]) -> list[KVCacheBlock] | None:
        """Return the cached block of each group."""
        self.num_asked += 1
        return super().get_cached_block(block_hash, group_ids)


class CheckedGroup(FullAttentionManager):
    """Checks the result of the next class's lookup before the engine uses it."""

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the hit. Anything but a list of blocks fails the test."""
        hit = super().find_longest_cache_hit(block_hashes, max_length)
        if not are_blocks(hit):
            why = "get_cached_block returns a list with a block per group; the hit is a list of blocks"
            want = "a list of KVCacheBlock, one for each block"
            raise LabFailure("what find_longest_cache_hit returned", want, hit, why)
        return hit


class CheckedManager(KVCacheManager):
    """Checks the result of the next class's lookup before the recorder uses it."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the hit and its tokens. Anything else fails the test."""
        answer: Any = super().get_computed_blocks(request)
        is_pair = type(answer) is tuple and len(answer) == 2
        blocks = answer[0].blocks if is_pair and isinstance(answer[0], KVCacheBlocks) else None
        if type(blocks) is not tuple or len(blocks) != 1 or not are_blocks(blocks[0]):
            want = "(KVCacheBlocks(([block, ...],)), tokens): one list for the one group"
            raise LabFailure("what get_computed_blocks returned", want, answer)
        return answer[0], answer[1]


def parts(lab: LabUnderTest, learners: str) -> KVCacheParts:
    """Return the engine's parts, with the learner's class that has the method `learners` in its place."""
    return KVCacheParts(
        make_index=lab.BlockHashToBlockMap if learners in {GET_ONE, INSERT, POP} else BlockHashToBlockMap,
        make_pool=lab.engine_with(learners, CountedPool),
        manager_classes={FullAttentionSpec: lab.engine_with(learners, FullAttentionManager, CheckedGroup)},
        make_stats=lab.PrefixCacheStats if learners == RECORD else PrefixCacheStats,
    )


def make_kv(lab: LabUnderTest, learners: str, num_blocks: int, block_size: int = 4) -> WatchedKVCacheManager:
    """Return a cache with the learner's part, which checks its ledger after every call."""
    manager = lab.engine_with(learners, KVCacheManager, CheckedManager)
    return lab.make_kv(num_blocks, block_size, manager_class=manager, parts=parts(lab, learners))


def quick_kv(lab: LabUnderTest, learners: str, num_blocks: int, block_size: int) -> KVCacheManager:
    """Return the same cache without recorder and checks, for the many random lives."""
    config = KVCacheConfig(num_blocks, (KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size)),))
    return lab.engine_with(learners, KVCacheManager, CheckedManager)(config, parts=parts(lab, learners))


def make_table(lab: LabUnderTest, num_blocks: int) -> tuple[BlockPool, list[KVCacheBlock]]:
    """Return a pool with the learner's `cache_full_blocks`, and A's table of blocks that are not cached."""
    pool = lab.engine_with(CACHE, CountedPool)(9)
    blocks = pool.get_new_blocks(num_blocks)
    lab.watch_pool(pool, {"A": blocks})
    return pool, blocks


def make_group(lab: LabUnderTest, pool: BlockPool, group_id: int) -> FullAttentionManager:
    """Return a group over the pool with the learner's lookup."""
    return lab.engine_with(FIND, FullAttentionManager, CheckedGroup)(FullAttentionSpec(4), pool, group_id)


# What a test does and asks ------------------------------------------------------------------------------------------


def hold(kv: WatchedKVCacheManager, tokens: Sequence[int], name: str) -> Request:
    """Admit a request, for which there is room, and compute it."""
    with lives.cause_first():
        return kv.hold(tokens, name)


def leave(kv: Any, name: str) -> None:
    """Free a request, its table from the tail to the head."""
    with lives.cause_first():
        kv.free(kv.requests[name])


def come_and_go(kv: WatchedKVCacheManager, tokens: Sequence[int], name: str) -> None:
    """Admit a request, compute it and free it."""
    hold(kv, tokens, name)
    leave(kv, name)


def say(kv: WatchedKVCacheManager, request: Request, tokens: Sequence[int]) -> None:
    """Generate these tokens: each is sampled, then computed by the next step."""
    for token in tokens:
        request.append_output_token_ids(token)
        with lives.cause_first():
            kv.allocate_slots(request, 1)
        request.num_computed_tokens += 1


def lookup(kv: WatchedKVCacheManager, tokens: Sequence[int]) -> list[int]:
    """Return the blocks that a request with these tokens would find now."""
    return ids_of(kv.get_computed_blocks(kv.new_request("probe", tokens))[0].blocks[0])


def hit_without(lab: LabUnderTest, tokens: Sequence[int], *gaps: int) -> list[int]:
    """Return the hit of a prompt that begins with these tokens. All their blocks are cached but those at the gaps."""
    kv = make_kv(lab, FIND, num_blocks=20)
    hold(kv, tokens, "A")
    kv.evict_blocks(gaps)
    return lookup(kv, [*tokens, 7])


def counted_lookup(kv: WatchedKVCacheManager, tokens: Sequence[int]) -> tuple[list[int], int]:
    """Return the result of `lookup`, and its number of calls of `get_cached_block`."""
    pool: Any = kv.block_pool
    pool.num_asked = 0
    return lookup(kv, tokens), pool.num_asked


def make_index(lab: LabUnderTest, *entries: tuple[BlockHashWithGroupId, int]) -> Any:
    """Return the learner's index with these blocks inserted under these keys."""
    index, blocks = lab.BlockHashToBlockMap(), [KVCacheBlock(block_id) for block_id in range(10)]
    for key, block_id in entries:
        index.insert(key, blocks[block_id])
    return index


def under(lab: LabUnderTest, index: Any, key: BlockHashWithGroupId) -> list[int]:
    """Return the ids of the blocks under the key, oldest first."""
    try:
        blocks = dict(index.items()).get(key, [])
    except Exception as error:
        blocks = error
    if not are_blocks(blocks):
        why = "items() is given, and reads self._blocks as the class describes it: a dict for each key"
        lab.fail("what items() finds in self._blocks under one key", "a list of KVCacheBlock", blocks, why)
    return ids_of(blocks)


def hashes_of(blocks: Sequence[KVCacheBlock]) -> list[str | None]:
    """Return each block's hash as a word, if it is a word of group 0, or the whole key."""
    return [None if block.block_hash is None else told(block.block_hash) for block in blocks]


def told(key: BlockHashWithGroupId) -> str:
    """Return the block hash as a word, or the whole key of another group than 0."""
    block_hash = get_block_hash(key)
    return block_hash.decode() if key == make_block_hash_with_group_id(block_hash, 0) else repr(bytes(key))


def error_of(call: Callable[..., object], *args: object) -> str:
    """Return the name of the exception that the call raises, or "nothing"."""
    try:
        call(*args)
    except LabTodo:
        raise
    except Exception as error:
        return type(error).__name__
    return "nothing"


def counters(stats: Any) -> tuple[int, int, int]:
    """Return requests, queries and hits."""
    return stats.requests, stats.queries, stats.hits


def id_of(block: object) -> object:
    """Return a block's id. For an int return the string "the number N". Return any other value unchanged."""
    if isinstance(block, int):
        return f"the number {block}"
    return block.block_id if isinstance(block, KVCacheBlock) else block


def around_edges(block_size: int, num_blocks: int) -> list[int]:
    """Return numbers of tokens just before, on and just after the edges of the first blocks."""
    edges = [block_size * block for block in range(num_blocks)]
    return [max(edge + step, 0) for edge in edges for step in (-1, 0, 1)]


# Random lives -------------------------------------------------------------------------------------------------------

EVICTS, RESETS = "evict_blocks", "reset_prefix_cache"
SHARES = {COMES: 0.55, LEAVES: 0.33, EVICTS: 0.12, RESETS: 0.01}


def compare_lives(lab: LabUnderTest, learners: str) -> None:
    """Compare forty lives with the naive cache. Of the first that differs, report the shortest part."""
    for seed in lives.seeds(40):
        options = {EVICTS: {"block": range(1, 9)}}
        life = lives.random_life(
            random.Random(seed), 30, SHARES, max_tail=5, of_cache=(EVICTS, RESETS), options=options
        )
        if lives.fails(partial(play, lab, partial(quick_kv, lab, learners, 9, 2)), life):
            watched = partial(play, lab, partial(make_kv, lab, learners, 9, 2))
            lives.check_life(lab, watched, life, f"blocks of 2, seed {seed}")


def play(lab: LabUnderTest, make: Callable[[], Any], life: list[Step]) -> None:
    """Play the steps on a cache with the learner's part and on the model. Skip a step that is impossible now."""
    kv, model = make(), NaiveCache(num_blocks=9, block_size=2)
    for step in life:
        if step.verb == COMES:
            come(lab, kv, model, step)
        elif step.verb == LEAVES and step.name in model.tables:
            leave(kv, step.name)
            model.leave(step.name)
        elif step.verb == EVICTS:
            with lives.cause_first():
                kv.evict_blocks([step.options["block"]])
            model.evict([step.options["block"]])
        elif step.verb == RESETS:
            lab.expect("whether the cache could be emptied", model.reset(), kv.reset_prefix_cache())
        check_invariants(getattr(kv, "manager", kv))
        lab.expect("free queue", model.free_queue, free_queue(kv))
        lab.expect("cached blocks", sorted(model.cached), cached_blocks(kv))


def come(lab: LabUnderTest, kv: Any, model: NaiveCache, step: Step) -> None:
    """Look a request up and admit it if there is room."""
    request, hit = kv.new_request(step.name, step.tokens), model.hit(step.tokens)
    blocks, num_hit = kv.get_computed_blocks(request)
    lab.expect(f"blocks hit by {step.name}", hit, ids_of(blocks.blocks[0]))
    with lives.cause_first():
        admitted = kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
    new = model.allocate(step.name, step.tokens, hit)
    lab.expect(f"room for {step.name}", new is not None, admitted is not None)
    if admitted is not None:
        request.num_computed_tokens = request.num_tokens
        lab.expect(f"block table of {step.name}", model.tables[step.name], table(kv, step.name))
