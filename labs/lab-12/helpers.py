"""Helpers for the tests of lab-12: parts with one method of the learner's, tables, caches drawn as letters.

Reading order: models of layers, the learner's method in the engine's manager, then tables and requests that grow,
at last caches drawn as letters. What the random tests need is in chance.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mini_kv.core import kv_cache_interface as interface
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager, SlidingWindowManager
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.course.labkit.lives import are_blocks, cause_first, ids_of

SKIP = "SlidingWindowManager.get_num_skipped_tokens"
REMOVE = "SlidingWindowManager.remove_skipped_blocks"
FIND = "SlidingWindowManager.find_longest_cache_hit"
MEET = "HybridKVCacheCoordinator.find_longest_cache_hit"
GROUP = "group_layers"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
HASHES = [BlockHash(letter.encode()) for letter in LETTERS]

# Layers -------------------------------------------------------------------------------------------------------------


def window(sliding_window: int, block_size: int = 2) -> SlidingWindowSpec:
    """Return the spec of a layer in which a token reads itself and the `sliding_window - 1` tokens before it."""
    return SlidingWindowSpec(block_size, sliding_window=sliding_window)


def full(block_size: int = 2) -> FullAttentionSpec:
    """Return the spec of a layer in which a token reads itself and all tokens before it."""
    return FullAttentionSpec(block_size)


def state(block_size: int = 2) -> interface.MambaSpec:
    """Return the spec of a layer that keeps one state: a hit needs only the block of its last token."""
    return interface.MambaSpec(
        block_size, shapes=((2 * block_size,),), dtypes_bytes=(2,)
    )  # as many bytes as the others


def layers(kinds: Iterable[str]) -> dict[str, KVCacheSpec]:
    """Return a model, one letter per layer: f(ull), w(indow), v (another window), s(tate). f0 is the first full one."""
    specs = {"f": full(), "w": window(4), "v": window(8), "s": state()}
    model: dict[str, KVCacheSpec] = {}
    for kind in kinds:
        model[f"{kind}{sum(name[0] == kind for name in model)}"] = specs[kind]
    return model


def grouped(lab: LabUnderTest, model: Mapping[str, KVCacheSpec]) -> list[list[str]]:
    """Return the layers in each of the learner's groups. First check that each group has the spec of its layers."""
    groups = lab.group_layers(model)
    if type(groups) is not tuple or not all(isinstance(group, interface.KVCacheGroupSpec) for group in groups):
        lab.fail("what group_layers returned", "a tuple of interface.KVCacheGroupSpec", groups)
    for group in groups:
        names = group.layer_names
        if type(names) is not tuple or not all(name in model for name in names):
            lab.fail("layer_names of a group", "a tuple of names of the model's layers", names)
        for name in names:
            if model[name] != group.kv_cache_spec:
                lab.fail(f"spec of the group of {name}", model[name], group.kv_cache_spec, "layers of one kind only")
    return [list(group.layer_names) for group in groups]


# The learner's part among the engine's ------------------------------------------------------------------------------


class Checked(SlidingWindowManager):
    """Checks the return types of the next class's methods before the engine uses the values."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return the number of skipped tokens. Anything but an int fails the test."""
        answer: object = super().get_num_skipped_tokens(num_computed_tokens)
        if type(answer) is not int:
            raise LabFailure(f"what get_num_skipped_tokens({num_computed_tokens}) returned", "a number", answer)
        return answer

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Remove the skipped blocks. A table of anything but blocks fails the test."""
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        table = self.req_to_blocks.get(request_id, [])
        if not are_blocks(table):
            what = f"{request_id}'s table after remove_skipped_blocks({request_id!r}, {num_computed_tokens})"
            raise LabFailure(what, "a list of KVCacheBlock, the null block where one has gone", table)

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the hit. Anything but a list of blocks fails the test."""
        hit = super().find_longest_cache_hit(block_hashes, max_length)
        if not are_blocks(hit):
            raise LabFailure("what find_longest_cache_hit returned", "a list of KVCacheBlock, one for each place", hit)
        return hit


def manager_class(lab: LabUnderTest, learners: str) -> Any:
    """Return a window's manager with one method of the learner's."""
    return lab.engine_with(learners, SlidingWindowManager, Checked)


class NullCountingPool(BlockPool):
    """A pool that counts the null blocks that it is asked to free."""

    num_null_freed = 0

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Free the blocks."""
        blocks = list(ordered_blocks)
        self.num_null_freed += sum(block.is_null for block in blocks)
        super().free_blocks(blocks)


class NotingIndex(BlockHashToBlockMap):
    """An index that notes the keys that are looked up in it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[BlockHashWithGroupId] = []

    def get_one_block(self, key: BlockHashWithGroupId) -> KVCacheBlock | None:
        """Return the oldest block under the key."""
        self.asked.append(key)
        return super().get_one_block(key)


class CountedFullAttention(FullAttentionManager):
    """A group of full attention that counts how often it is asked for a hit."""

    num_asked = 0

    def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
        """Return the longest hit."""
        self.num_asked += 1
        return super().find_longest_cache_hit(block_hashes, max_length)


def make_group(lab: LabUnderTest, learners: str, spec: KVCacheSpec, pool: BlockPool, group_id: int = 0) -> Any:
    """Return a group's manager over the pool, with one method of the learner's."""
    return manager_class(lab, learners)(spec, pool, group_id)


def make_kv(lab: LabUnderTest, learners: str, num_blocks: int, *specs: KVCacheSpec) -> WatchedKVCacheManager:
    """Return a cache with one group per spec, which checks its invariants after every call."""
    classes: dict[type[KVCacheSpec], Any] = {**MANAGER_CLASSES, SlidingWindowSpec: manager_class(lab, learners)}
    return lab.make_kv_of(KVCacheConfig(num_blocks, groups_of(specs)), parts=KVCacheParts(manager_classes=classes))


def groups_of(specs: Iterable[KVCacheSpec]) -> tuple[interface.KVCacheGroupSpec, ...]:
    """Return one group per spec."""
    return tuple(interface.KVCacheGroupSpec((f"layers of group {number}",), spec) for number, spec in enumerate(specs))


# Tables, and a request that grows -----------------------------------------------------------------------------------


def with_tables(
    lab: LabUnderTest, spec: KVCacheSpec, num_blocks: int, cached: Iterable[int] = (), **tables: Sequence[int]
) -> Any:
    """Return a group with the learner's `remove_skipped_blocks` and these tables, 0 for the null block."""
    group = make_group(lab, REMOVE, spec, NullCountingPool(num_blocks))
    for name, ids in tables.items():
        hold(group, name, ids)
    cache(group, cached)
    lab.watch_pool(group.block_pool, group.req_to_blocks)
    return group


def hold(group: Any, name: str, ids: Sequence[int]) -> None:
    """Give a request a table of these blocks."""
    group.req_to_blocks[name] = [group.block_pool.blocks[block_id] for block_id in ids]
    group.block_pool.touch(group.req_to_blocks[name])


def cache(group: Any, ids: Iterable[int]) -> None:
    """Cache each of these blocks under a hash of its own, unless it has one."""
    for block in (group.block_pool.blocks[block_id] for block_id in ids):
        if block.block_hash is None:
            group.block_pool.cache_full_blocks([block], [BlockHash(b"block %d" % block.block_id)], 0, 1)


def remove(lab: LabUnderTest, group: Any, name: str, num_computed_tokens: int) -> None:
    """Call the learner's `remove_skipped_blocks`, and check the ledger before anything else."""
    group.remove_skipped_blocks(name, num_computed_tokens)
    lab.check_pool(group.block_pool, group.req_to_blocks)
    lab.expect("null blocks given to free_blocks", 0, group.block_pool.num_null_freed, rule=3)


def table_of(group: Any, name: str) -> list[int]:
    """Return the ids in the request's block table."""
    return ids_of(group.req_to_blocks[name])


def grow(kv: WatchedKVCacheManager, request: Request, num_tokens: int) -> None:
    """Compute the request's next tokens. Append output tokens first if it has too few."""
    missing = request.num_computed_tokens + num_tokens - request.num_tokens
    request.append_output_token_ids(*range(900, 900 + missing))
    with cause_first():
        kv.allocate_slots(request, num_tokens)
    request.num_computed_tokens += num_tokens


def held(kv: WatchedKVCacheManager, name: str) -> list[int]:
    """Return how many blocks the request holds in each group."""
    return [sum(block_id > 0 for block_id in table) for table in kv.get_block_ids(name)]


def lookup(kv: WatchedKVCacheManager, tokens: Iterable[int]) -> list[int]:
    """Return the blocks that a request with these tokens would find now, in the only group."""
    with cause_first():
        return ids_of(kv.get_computed_blocks(kv.new_request("probe", list(tokens)))[0].blocks[0])


# Caches drawn as letters --------------------------------------------------------------------------------------------


def draw(
    pool: BlockPool, group_id: int, cached: str, ids: Sequence[int], hashes: Sequence[BlockHash] = HASHES
) -> list[KVCacheBlock]:
    """Cache and hold a block of `ids` for each letter. Return these, with the null block for each space."""
    blocks = [pool.blocks[0 if letter == " " else block_id] for letter, block_id in zip(cached, ids, strict=False)]
    pool.touch(blocks)
    pool.cache_full_blocks(blocks, hashes, 0, len(blocks), group_id)
    return blocks


def with_cached(lab: LabUnderTest, spec: KVCacheSpec, cached: str, ids: Sequence[int] = range(1, 20)) -> Any:
    """Return a group with the learner's `find_longest_cache_hit`, and blocks cached where there is a letter."""
    pool = BlockPool(20)
    lab.watch_pool(pool, {"cached": draw(pool, 0, cached, ids)})
    return make_group(lab, FIND, spec, pool)


def hit_of(group: Any, num_blocks: int, max_length: int) -> list[int]:
    """Return the hit of a prompt of blocks a, b, c and so on."""
    return ids_of(group.find_longest_cache_hit(HASHES[:num_blocks], max_length))


def with_groups(lab: LabUnderTest, *groups: tuple[KVCacheSpec, str], full_attention: Any = FullAttentionManager) -> Any:
    """Return the learner's coordinator. In group 2 the blocks 21, 22, ... are cached where there is a letter."""
    pool = BlockPool(10 * len(groups) + 1)
    tables = {
        f"group {n}": draw(pool, n, cached, range(10 * n + 1, 10 * n + 11)) for n, (_, cached) in enumerate(groups)
    }
    lab.watch_pool(pool, tables)
    config = KVCacheConfig(2, groups_of(spec for spec, _ in groups))
    classes: dict[type[KVCacheSpec], Any] = {**MANAGER_CLASSES, FullAttentionSpec: full_attention}
    return lab.HybridKVCacheCoordinator(config, pool, classes)


def meet(lab: LabUnderTest, groups: Any, num_blocks: int, limit: int) -> tuple[list[list[int]], int]:
    """Return the hits of a prompt of blocks a, b, c and so on, one list per group, and the number of tokens."""
    answer = groups.find_longest_cache_hit(HASHES[:num_blocks], limit)
    is_pair = type(answer) is tuple and len(answer) == 2 and type(answer[0]) is tuple and type(answer[1]) is int
    if not is_pair or len(answer[0]) != len(groups.single_type_managers) or not all(map(are_blocks, answer[0])):
        lab.fail("what find_longest_cache_hit returned", "a tuple with a list of blocks per group; tokens", answer)
    return [ids_of(hit) for hit in answer[0]], answer[1]


def around_edges(block_size: int, num_blocks: int) -> list[int]:
    """Return numbers of tokens that end just before, on and just after the edges of the first blocks."""
    edges = [block_size * block for block in range(num_blocks)]
    return [max(edge + step, 0) for edge in edges for step in (-1, 0, 1)]
