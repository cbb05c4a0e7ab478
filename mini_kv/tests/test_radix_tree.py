"""A radix tree beside the engine's index: the same hits, block for block, on random lives; and how it is built."""

import random

import pytest

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.dev.radix import BLOCK_SIZE, INDEXES, measure, prompts
from mini_kv.dev.radix_tree import RadixIndex
from mini_kv.story.edge import EdgeKind
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager


def runs(index):
    """Each node's blocks, twins together, with those of its children."""
    return sorted((node.twins, sorted(child.twins for child in node.children.values())) for node in index.nodes())


def test_a_run_is_split_where_two_prompts_part():
    index = RadixIndex(2)
    index.insert([1, 2, 3, 4, 5, 6], [1, 2, 3])
    assert runs(index) == [([[1], [2], [3]], [])]
    index.insert([1, 2, 3, 4, 7, 8], [1, 2, 4])
    assert runs(index) == [([[1], [2]], [[[3]], [[4]]]), ([[3]], []), ([[4]], [])]
    assert index.match([1, 2, 3, 4, 7, 8, 9]) == [1, 2, 4]
    assert index.match([1, 2, 3]) == [1], "a block is found whole or not at all"
    assert index.match([2, 2, 3, 4]) == []


def test_a_twin_takes_over_when_the_older_one_goes():
    """The last block of a known prompt is computed again: two blocks hold it, and either is enough."""
    index = RadixIndex(1)
    index.insert([1, 2], [1, 2])
    index.insert([1, 2], [1, 3])
    assert runs(index) == [([[1], [2, 3]], [])]
    assert index.match([1, 2]) == [1, 2]
    index.remove(2)
    assert index.match([1, 2]) == [1, 3]
    index.remove(3)
    assert index.match([1, 2]) == [1]
    index.remove(1)
    assert runs(index) == []


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda index: index.remove(1), "block 1 cannot go before those behind it"),
        (lambda index: index.remove(9), "block 9 is not in the tree"),
        (lambda index: index.insert([1, 2, 3], [1]), "3 tokens do not fill 1 blocks of 2"),
        (lambda index: index.insert([1, 2, 3, 4], [1]), "4 tokens do not fill 1 blocks of 2"),
        (lambda index: index.insert([7, 7], [2]), "block 2 is in the tree with other content"),
        (lambda index: index.insert([1, 2, 7, 7], [3, 2]), "block 2 is in the tree with other content"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(act, says):
    index = RadixIndex(2)
    index.insert([1, 2, 3, 4], [1, 2])
    before = runs(index)
    with pytest.raises(ValueError, match=says):
        act(index)
    assert runs(index) == before
    assert index.match([1, 2, 3, 4]) == [1, 2]


def lives(seed, num_calls, num_blocks, block_size):
    """Yield the tree's answer and the engine's, lookup by lookup, of a random life in a pool that evicts."""
    rng = random.Random(seed)
    recorder = Recorder()
    manager = KVCacheManager.for_full_attention(num_blocks, block_size, new_block=recorder.new_block)
    kv = TracedKVCacheManager(manager, recorder)
    index, number = RadixIndex(block_size), 0
    running: list[Request] = []
    content: dict[int, tuple[int, ...]] = {}
    for _ in range(num_calls):
        if running and rng.random() < 0.45:
            kv.free(running.pop(rng.randrange(len(running))))
            continue
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 9 * block_size))]
        request = kv.manager.new_request(str(number), tokens)
        number += 1
        blocks, num_hits = kv.get_computed_blocks(request)
        theirs = [block.block_id for block in blocks.blocks[0]]
        yield index.match(tokens[: len(tokens) - 1]), theirs
        if kv.allocate_slots(request, len(tokens) - num_hits, num_hits, blocks) is None:
            continue
        running.append(request)
        table = manager.get_block_ids(request.request_id)[0]
        for edge in kv.spans[-1].edges:
            if edge.kind is EdgeKind.EVICTED:
                index.remove(edge.block_id)
                content.pop(edge.block_id)
        num_full = len(tokens) // block_size
        index.insert(tokens[: num_full * block_size], table[:num_full])
        content.update(dict.fromkeys(table[:num_full], tuple(tokens)))
        yield sorted(index._node_of), sorted(content)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_the_same_hits_as_the_chain_on_random_lives(seed):
    """Block for block, in pools that evict, with twins, sharing and revival; tails always go before heads."""
    rng = random.Random(seed)
    asked = list(lives(seed, 300, rng.randrange(8, 40), rng.choice([1, 2, 3])))
    assert [ours for ours, _ in asked] == [theirs for _, theirs in asked]
    assert sum(len(ours) for ours, _ in asked) > 100


def test_after_n_prompts_there_are_fewer_than_2_n_nodes():
    """That is what the runs are for: a tree of single blocks would have thousands."""
    rng = random.Random(1)
    index, next_id = RadixIndex(1), 0
    for _ in range(100):
        tokens = [rng.randrange(2) for _ in range(60)]
        known = index.match(tokens)
        index.insert(tokens, [*known, *range(next_id, next_id + 60 - len(known))])
        next_id += 60 - len(known)
    assert len(list(index.nodes())) < 200
    assert next_id > 5000


def test_the_benchmark_asks_both_for_the_same_and_gets_it():
    """Half of each second prompt is known, and what is timed is that: 64 of 128 blocks."""
    asked = prompts(4)
    for make in INDEXES.values():
        index = make(BLOCK_SIZE)
        index.insert(asked[0], range(128))
        assert index.match(asked[1]) == list(range(64))
        assert index.match(asked[2]) == []
        costs = measure(make, asked)
        assert [*costs] == ["look up", "enter", "evict", "bytes per block"]
        assert min(costs.values()) > 0
