"""lab-07: how a block gets its name, is found by it, and loses it. Read the numbered tests in order.

Blocks hold 4 tokens. PROMPT is 32 tokens, so 8 full blocks. Block 0 is the null block: it is never handed out.

Only the method that a test is about is yours; the engine's stand in for those of the other classes (see make_kv).
"""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from mini_kv.core import block_pool, kv_cache_coordinator, kv_cache_manager, single_type_kv_cache_manager
from mini_kv.core.block import BlockHash, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import get_block_hash, make_block_hash_with_group_id
from mini_kv.core.invariants import InvariantViolationError, Violation, check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.labkit.shrink import shrink

GET_ONE = "BlockHashToBlockMap.get_one_block"
INSERT = "BlockHashToBlockMap.insert"
POP = "BlockHashToBlockMap.pop"
CACHE = "BlockPool.cache_full_blocks"
EVICT = "BlockPool._maybe_evict_cached_block"
FREE = "BlockPool.free_blocks"
FIND = "FullAttentionManager.find_longest_cache_hit"
LOOKUP = "KVCacheManager.get_computed_blocks"
RECORD = "PrefixCacheStats.record"

PROMPT = list(range(32))
OTHERS = [900 + number for number in range(32)]
K, L = (BlockHashWithGroupId(text) for text in (b"the key K", b"the key L"))


# The biography ------------------------------------------------------------------------------------------------------


@points(2, CACHE, why="a name stands for tokens that do not change any more, so only a full block has one")
def test_1_a_full_block_gets_its_name(lab: LabUnderTest) -> None:
    """A comes with 10 tokens: two full blocks get names, the third, with 2 tokens, does not."""
    kv = make_kv(lab, CACHE, num_blocks=12)
    hold(kv, PROMPT[:10], "A")
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("blocks with a name", [1, 2], named(kv))
    lab.expect("blocks found for the same prompt", [1, 2], lookup(kv, PROMPT[:10]), why="a name is there to be found")


@points(2, FIND, why="a block is found by its name, and the name says all that is before it")
def test_2_the_longest_beginning_that_is_known(lab: LabUnderTest) -> None:
    """A has 32 tokens in eight blocks. How much of a prompt that begins alike is there already?"""
    kv = make_kv(lab, FIND, num_blocks=20)
    hold(kv, PROMPT, "A")
    lab.expect("hit of a prompt with 8 tokens more", [1, 2, 3, 4, 5, 6, 7, 8], lookup(kv, PROMPT + OTHERS[:8]))
    lab.expect("hit of a prompt that shares 18 tokens", [1, 2, 3, 4], lookup(kv, PROMPT[:18] + OTHERS[:10]))
    lab.expect("hit of a prompt that shares nothing", [], lookup(kv, OTHERS[:4] + PROMPT[4:]))


@points(3, LOOKUP, why="the last token's result is wanted, and the cache keeps no results: it is always computed")
def test_3_the_last_token_is_always_computed(lab: LabUnderTest) -> None:
    """A has 32 tokens. B brings the same 32: seven blocks, 28 tokens. With one token more it is eight, and 32."""
    kv = make_kv(lab, LOOKUP, num_blocks=20)
    hold(kv, PROMPT, "A")
    for what, tokens, want in (
        ("the same 32 tokens", PROMPT, 7),
        ("the same 32 tokens and one more", [*PROMPT, 7], 8),
        ("the first 31 of them", PROMPT[:31], 7),
        ("32 other tokens", OTHERS, 0),
    ):
        request = kv.new_request("B", tokens)
        blocks, num_tokens = kv.get_computed_blocks(request)
        lab.expect(f"blocks hit by {what}", list(range(1, want + 1)), ids_of(blocks.blocks[0]))
        lab.expect(f"tokens hit by {what}", 4 * want, num_tokens, why="whole blocks of 4, counted in tokens")
        lab.expect("B's computed tokens after the lookup", 0, request.num_computed_tokens, why="B may yet be refused")


@points(3, FIND, why="a request's progress is one number, tokens from the first on: it has no gaps")
def test_4_nothing_behind_a_gap_is_hit(lab: LabUnderTest) -> None:
    """Block 3 loses its name; then block 1. Six of eight blocks are still in the cache: what are they worth?"""
    kv = make_kv(lab, FIND, num_blocks=20)
    hold(kv, PROMPT, "A")
    kv.evict_blocks([3])
    lab.expect("hit without block 3", [1, 2], lookup(kv, [*PROMPT, 7]), why="4 to 8 are there, behind the gap")
    kv.evict_blocks([1])
    lab.expect("hit without blocks 1 and 3", [], lookup(kv, [*PROMPT, 7]), why="a prefix starts at the first token")


@points(3, CACHE, why="two blocks may carry one name: tables only grow, so the newcomer keeps its own block")
def test_5_two_blocks_with_one_name(lab: LabUnderTest) -> None:
    """B brings A's prompt. Seven blocks are shared, the eighth is computed again, into block 9: with block 8's name."""
    kv = make_kv(lab, CACHE, num_blocks=20)
    hold(kv, PROMPT, "A")
    hold(kv, PROMPT, "B")
    lab.expect("B's block table", [1, 2, 3, 4, 5, 6, 7, 9], table(kv, "B"), why="31 tokens can be hit: seven blocks")
    lab.expect("blocks with a name", [1, 2, 3, 4, 5, 6, 7, 8, 9], named(kv), why="block 9 is full, so it has a name")
    longer = PROMPT + OTHERS[:4]
    lab.expect("hit of a longer prompt", [1, 2, 3, 4, 5, 6, 7, 8], lookup(kv, longer), why="8 and 9: the older answers")
    kv.evict_blocks([8])
    lab.expect("hit when 8 has lost its name", [1, 2, 3, 4, 5, 6, 7, 9], lookup(kv, longer), why="9 has the same KV")


@points(1, INSERT, why="a second block under one key stands beside the first, not in its place")
def test_6_the_index_keeps_both(lab: LabUnderTest) -> None:
    """The same seen from the index: 8, then 9, then 5 under the key K; and 4 under another."""
    index = lab.BlockHashToBlockMap()
    for key, block_id in ((K, 8), (K, 9), (L, 4), (K, 5)):
        index.insert(key, KVCacheBlock(block_id))
    lab.expect("blocks under K, to which 8, 9 and 5 were added", [8, 9, 5], carriers(lab, index, K))
    lab.expect("blocks under L, to which 4 was added", [4], carriers(lab, index, L))


@points(2, GET_ONE, after="test_6_the_index_keeps_both", why="one answer for all who ask: the block entered first")
def test_7_the_oldest_answers(lab: LabUnderTest) -> None:
    """Whoever asks for K gets block 8, as long as it is there; who asks for what nobody entered gets None."""
    index = lab.BlockHashToBlockMap()
    index.insert(K, KVCacheBlock(8))
    lab.expect("answer for K, with 8", 8, id_of(index.get_one_block(K)))
    index.insert(K, KVCacheBlock(9))
    index.insert(K, KVCacheBlock(5))
    for _ in range(2):
        lab.expect("answer for K, with 8, then 9, then 5", 8, id_of(index.get_one_block(K)))
    lab.expect(
        "blocks under K after two questions", [8, 9, 5], carriers(lab, index, K), why="a question takes nothing out"
    )
    lab.expect("answer for L, which nobody entered", None, index.get_one_block(L))
    lab.expect("keys in the index", 1, len(index), why="asking for L does not enter it")


@points(2, POP, after="test_6_the_index_keeps_both", why="the block whose memory is reused loses its key, and no other")
def test_8_each_goes_alone(lab: LabUnderTest) -> None:
    """8, 9 and 5 under K: first 9 is taken out, then 8, then 5; and with 5 the key."""
    index = lab.BlockHashToBlockMap()
    for block_id in (8, 9, 5):
        index.insert(K, KVCacheBlock(block_id))
    index.insert(L, KVCacheBlock(4))
    for block_id, left in ((9, [8, 5]), (8, [5]), (5, [])):
        lab.expect(f"what pop(K, {block_id}) returned", block_id, id_of(index.pop(K, block_id)))
        lab.expect(f"blocks under K after pop(K, {block_id})", left, carriers(lab, index, K))
    lab.expect("blocks under L", [4], carriers(lab, index, L))
    lab.expect("keys left, of K and L", 1, len(index), why="nobody carries K any more, so K is gone too")


@points(3, FREE, why="free is not gone: names stay, and the order of the queue decides who keeps one longest")
def test_9_the_head_outlives_the_tail(lab: LabUnderTest) -> None:
    """A leaves. Its blocks are free, and all are in the cache; then others need memory, and the tail goes first."""
    kv = make_kv(lab, FREE, num_blocks=9)
    hold(kv, PROMPT, "A")
    leave(kv, "A")
    lab.expect("blocks with a name, A gone", [1, 2, 3, 4, 5, 6, 7, 8], named(kv), why="freed blocks keep their names")
    lab.expect("free queue, A gone", [8, 7, 6, 5, 4, 3, 2, 1], free_queue(kv), why="given from tail to head, so kept")
    hold(kv, OTHERS[:12], "B")
    lab.expect("B's block table", [8, 7, 6], table(kv, "B"))
    lab.expect("A's prompt, what can still be hit", [1, 2, 3, 4, 5], lookup(kv, PROMPT))
    hold(kv, OTHERS[12:28], "C")
    lab.expect("A's prompt, what can still be hit", [1], lookup(kv, PROMPT), why="its beginning is the last to go")


@points(2, FREE, why="a block without a name can never be hit, so its memory may as well be used first")
def test_10_a_partial_block_goes_to_the_front(lab: LabUnderTest) -> None:
    """A has 10 tokens: its third block has no name. The useless one is reused before all others (vLLM 0.33)."""
    kv = make_kv(lab, FREE, num_blocks=7)
    hold(kv, PROMPT[:10], "A")
    leave(kv, "A")
    lab.expect("free queue, A gone", [3, 4, 5, 6, 2, 1], free_queue(kv), why="3 has no name: front. 2 and 1 have: back")
    hold(kv, OTHERS[:6], "B")
    lab.expect("B's block table", [3, 4], table(kv, "B"))
    leave(kv, "B")
    lab.expect("free queue, B gone", [4, 5, 6, 2, 1, 3], free_queue(kv), why="now 3 is full and has a name, 4 has not")


@points(3, EVICT, why="the memory is about to hold something else: who asks for the old name must not get it")
def test_11_a_name_goes_when_its_memory_does(lab: LabUnderTest) -> None:
    """A leaves, all of it stays in the cache; B takes two of its blocks, and only these lose their names."""
    kv = make_kv(lab, EVICT, num_blocks=9)
    hold(kv, PROMPT, "A")
    leave(kv, "A")
    lab.expect("A's prompt, what can be hit when A is gone", [1, 2, 3, 4, 5, 6, 7], lookup(kv, PROMPT))
    hold(kv, OTHERS[:6], "B")
    lab.expect("B's block table", [8, 7], table(kv, "B"))
    lab.expect("blocks with a name", [1, 2, 3, 4, 5, 6, 8], named(kv), why="8 has a new one; 7 is not full, has none")
    lab.expect("A's prompt, what can still be hit", [1, 2, 3, 4, 5, 6], lookup(kv, PROMPT))
    lab.expect("B's prompt, what can be hit", [8], lookup(kv, OTHERS[:6]), why="block 8 answers to its new name")


@points(2, RECORD, why="the rate is a share of tokens, and whoever came first and found nothing is counted too")
def test_12_the_rate_counts_tokens(lab: LabUnderTest) -> None:
    """A finds nothing, B finds 28 of 32 tokens, C 8 of 9: 36 of 73."""
    kv = make_kv(lab, RECORD, num_blocks=20)
    for name, tokens, want in (("A", PROMPT, (1, 32, 0)), ("B", PROMPT, (2, 64, 28)), ("C", PROMPT[:9], (3, 73, 36))):
        hold(kv, tokens, name)
        stats = kv.prefix_cache_stats
        got = (stats.requests, stats.queries, stats.hits)
        lab.expect(f"requests, queries and hits when {name} is admitted", want, got)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, CACHE, stage="adversary", why="only what this call is about: from num_cached_blocks up to num_full_blocks")
def test_only_the_blocks_that_have_just_become_full(lab: LabUnderTest) -> None:
    """A long prompt that is computed in pieces: its table and its names are longer than what is full by now."""
    pool = make_pool(lab, CACHE, num_blocks=9)
    blocks, names = pool.get_new_blocks(6), [BlockHash(b"name %d" % number) for number in range(5)]
    lab.watch_pool(pool, {"A": blocks})
    for num_cached, num_full in ((0, 1), (1, 1), (1, 3), (3, 4)):
        pool.cache_full_blocks(blocks, names, num_cached, num_full)
        lab.check_pool(pool, {"A": blocks})
        want = [f"name {number}" if number < num_full else None for number in range(6)]
        call = f"cache_full_blocks(table, names, {num_cached}, {num_full})"
        lab.expect(f"names of A's six blocks after {call}", want, [name_of(block) for block in blocks])
        found = [pool.get_cached_block(name, [0]) for name in names[:num_full]]
        got = [id_of(each[0] if each else None) for each in found]
        lab.expect(f"blocks found by the first {num_full} names, after {call}", ids_of(blocks[:num_full]), got)


@points(1, CACHE, stage="adversary", why="a second name would leave the first in the index, for a block with other KV")
def test_a_name_is_given_once(lab: LabUnderTest) -> None:
    """The third block of the part has a name already: somebody has lost count. Nothing may change."""
    pool = make_pool(lab, CACHE, num_blocks=9)
    blocks, names = pool.get_new_blocks(4), [BlockHash(b"name %d" % number) for number in range(4)]
    lab.watch_pool(pool, {"A": blocks})
    pool.cache_full_blocks(blocks, [BlockHash(b"another")] * 4, 2, 3)
    call = "cache_full_blocks(table, names, 0, 4), where block 3 has a name"
    raised = "nothing"
    try:
        pool.cache_full_blocks(blocks, names, 0, 4)
    except LabTodo:
        raise
    except Exception as error:
        raised = type(error).__name__
    lab.check_pool(pool, {"A": blocks})
    got = [name_of(block) for block in blocks]
    lab.expect(f"names of blocks 1 to 4, after {call}", [None, None, "another", None], got)
    lab.expect(f"what {call} raised", "BlockStateError", raised)


@points(1, CACHE, stage="adversary", why="one prefix has other keys and values in each group of layers")
def test_the_group_is_part_of_the_key(lab: LabUnderTest) -> None:
    """A block of group 1 is entered. Group 0 must not find it."""
    pool = make_pool(lab, CACHE, num_blocks=4)
    blocks, name = pool.get_new_blocks(1), BlockHash(b"name")
    lab.watch_pool(pool, {"A": blocks})
    pool.cache_full_blocks(blocks, [name], 0, 1, kv_cache_group_id=1)
    lab.expect("block found in group 1", [1], ids_of(pool.get_cached_block(name, [1]) or []))
    lab.expect("block found in group 0", [], ids_of(pool.get_cached_block(name, [0]) or []))


@points(1, FIND, stage="adversary", why="as many whole blocks as max_length tokens have room for, and no more")
def test_no_longer_than_asked(lab: LabUnderTest) -> None:
    """Every max_length around a block's edge; blocks of 1, 3, 4 and 16 tokens; ids out of order; then an idle cache."""
    for block_size in (1, 3, 4, 16):
        kv = make_kv(lab, FIND, num_blocks=12, block_size=block_size)
        scramble(kv)
        request = hold(kv, list(range(5 * block_size - 1)) or [0], "A")
        known = table(kv, "A")[: len(request.block_hashes)]
        (group,) = kv.coordinator.single_type_managers
        for holder in ("A", "nobody"):
            for edge in range(6):
                for max_length in {max(edge * block_size - 1, 0), edge * block_size, edge * block_size + 1}:
                    got = ids_of(group.find_longest_cache_hit(request.block_hashes, max_length))
                    what = f"hit with max_length {max_length} in blocks of {block_size}, held by {holder}"
                    lab.expect(what, known[: max_length // block_size], got)
            if holder == "A":
                leave(kv, "A")
        lab.expect("free blocks after all these questions", 11, kv.block_pool.num_free_blocks)


@points(1, FIND, stage="adversary", why="whatever is behind the first miss cannot matter, so it need not be looked at")
def test_a_miss_ends_the_search(lab: LabUnderTest) -> None:
    """A prompt of 1,000 blocks, of which 3 are known: how many names are looked up?"""
    kv = make_kv(lab, FIND, num_blocks=12)
    hold(kv, PROMPT[:12], "A")
    request = kv.new_request("B", [*PROMPT[:12], *range(1000, 4988)])
    with mock.patch.object(kv.block_pool, "get_cached_block", wraps=kv.block_pool.get_cached_block) as looked_up:
        lab.expect("hit", [1, 2, 3], ids_of(kv.get_computed_blocks(request)[0].blocks[0]))
    if looked_up.call_count > 4:
        lab.fail("calls of get_cached_block for a hit of 3 blocks", "4: three hits and a miss", looked_up.call_count)


@points(1, FIND, stage="adversary", why="group 0 has both blocks; each group looks for its own keys")
def test_each_group_finds_its_own(lab: LabUnderTest) -> None:
    """Group 0 has entered two blocks, group 1 the first of them. What does group 1 find?"""
    pool = block_pool.BlockPool(8)
    names = [BlockHash(b"name %d" % number) for number in range(2)]
    pool.cache_full_blocks(pool.get_new_blocks(2), names, 0, 2, kv_cache_group_id=0)
    pool.cache_full_blocks(pool.get_new_blocks(2), names, 0, 1, kv_cache_group_id=1)
    group_class = assembled(lab, FIND)[1]
    for group_id, want in ((0, [1, 2]), (1, [3])):
        group = group_class(FullAttentionSpec(4), pool, group_id)
        lab.expect(f"hit in group {group_id}", want, ids_of(group.find_longest_cache_hit(names, 8)))


@points(1, LOOKUP, stage="adversary", why="all tokens but one, in whole blocks, whatever the size of a block")
def test_one_token_less_and_one_more(lab: LabUnderTest) -> None:
    """Prompts that end just before a block's edge, on it, and behind it; blocks of 1, 3, 4 and 16 tokens."""
    for block_size in (1, 3, 4, 16):
        kv = make_kv(lab, LOOKUP, num_blocks=12, block_size=block_size)
        scramble(kv)
        hold(kv, list(range(4 * block_size)), "A")
        for num_tokens in range(3 * block_size - 1, 3 * block_size + 2):
            blocks, got = kv.get_computed_blocks(kv.new_request("B", list(range(max(num_tokens, 1)))))
            num_shared = (max(num_tokens, 1) - 1) // block_size
            what = f"hit by {num_tokens} known tokens in blocks of {block_size}"
            lab.expect(f"blocks {what}", table(kv, "A")[:num_shared], ids_of(blocks.blocks[0]))
            lab.expect(f"tokens {what}", num_shared * block_size, got)


@points(1, LOOKUP, stage="adversary", why="what it has answered is KV like the prompt's, and can be hit as well")
def test_a_request_that_comes_back(lab: LabUnderTest) -> None:
    """A has answered 5 tokens when it has to give its memory back. Later it asks what is left: its own words, too."""
    kv = make_kv(lab, LOOKUP, num_blocks=12)
    request = hold(kv, PROMPT[:8], "A")
    for token in OTHERS[:5]:  # each is sampled, then computed by the next step
        request.append_output_token_ids(token)
        with cause_first():
            kv.allocate_slots(request, 1)
        request.num_computed_tokens += 1
    leave(kv, "A")
    request.num_computed_tokens = 0
    blocks, num_tokens = kv.get_computed_blocks(request)
    lab.expect("blocks hit by A, 8 tokens of prompt and 5 of answer", [1, 2, 3], ids_of(blocks.blocks[0]))
    lab.expect("tokens hit by A", 12, num_tokens)


@points(1, INSERT, stage="adversary", why="a key keeps its blocks in the order in which they came")
def test_a_block_keeps_its_place(lab: LabUnderTest) -> None:
    """8 is entered again: it is there already, and still the oldest. Numbers do not matter, nor does another key."""
    index = lab.BlockHashToBlockMap()
    blocks = {block_id: KVCacheBlock(block_id) for block_id in (8, 2, 5)}
    for key, block_id in ((K, 8), (L, 2), (K, 2), (K, 5), (K, 8), (K, 2)):
        index.insert(key, blocks[block_id])
    lab.expect("blocks under K, after inserting 8, 2, 5, 8, 2", [8, 2, 5], carriers(lab, index, K))
    lab.expect("blocks under L, after inserting 2", [2], carriers(lab, index, L))


@points(1, GET_ONE, stage="adversary", after="test_6_the_index_keeps_both", why="the oldest of those that are left")
def test_the_next_oldest_answers(lab: LabUnderTest) -> None:
    """What the index answers follows what has gone: 8, then 3, then nobody, then 8 again."""
    index = lab.BlockHashToBlockMap()
    for block_id in (8, 9, 3):
        index.insert(K, KVCacheBlock(block_id))
    got = [id_of(index.get_one_block(K))]
    for block_id in (9, 8, 3):
        index.pop(K, block_id)
        got.append(id_of(index.get_one_block(K)))
    index.insert(K, KVCacheBlock(8))
    got.append(id_of(index.get_one_block(K)))
    lab.expect("answers for K: with 8 9 3, without 9, without 8, without 3, with 8 again", [8, 8, 3, None, 8], got)


@points(1, POP, stage="adversary", after="test_6_the_index_keeps_both", why="what is not there cannot be taken out")
def test_taking_out_what_is_not_there(lab: LabUnderTest) -> None:
    """A block that stands under another key, a key that nobody entered: None, and nothing changes."""
    index = lab.BlockHashToBlockMap()
    for key, block_id in ((K, 8), (K, 9), (L, 4)):
        index.insert(key, KVCacheBlock(block_id))
    for told, key, block_id in (("K, 4", K, 4), ("L, 8", L, 8), ("M, 8", BlockHashWithGroupId(b"the key M"), 8)):
        lab.expect(f"what pop({told}) returned", None, index.pop(key, block_id), why="no such block under that key")
        lab.expect(f"blocks under K after pop({told})", [8, 9], carriers(lab, index, K))
        lab.expect(f"blocks under L after pop({told})", [4], carriers(lab, index, L))
        lab.expect(f"keys in the index after pop({told})", 2, len(index))


@points(1, EVICT, stage="adversary", why="the one whose memory goes loses its name; its twin has the KV still")
def test_one_of_two_twins_is_evicted(lab: LabUnderTest) -> None:
    """8 and 9 carry one name. One is reused, the other answers: whichever of the two it was."""
    for order, tail in (("AB", 9), ("BA", 8)):
        kv = make_kv(lab, EVICT, num_blocks=10)
        hold(kv, PROMPT, "A")
        hold(kv, PROMPT, "B")
        for name in order:
            leave(kv, name)
        hold(kv, OTHERS[:3], "C")  # takes what stands in front: A's tail, or B's
        gone = 8 if tail == 9 else 9
        lab.expect(f"C's block table, after {order[0]} left first", [gone], table(kv, "C"))
        got = lookup(kv, [*PROMPT, 7])
        lab.expect(f"hit when C has overwritten {gone}, which was {tail}'s twin", [1, 2, 3, 4, 5, 6, 7, tail], got)


@points(1, EVICT, stage="adversary", why="a name is a name, held or free; and its loss moves no block")
def test_held_or_free_or_nameless(lab: LabUnderTest) -> None:
    """A block that A holds loses its name and stays A's; one that is free stays where it is; one has none to lose."""
    kv = make_kv(lab, EVICT, num_blocks=9)
    hold(kv, OTHERS[:8], "X")
    hold(kv, PROMPT[:10], "A")
    leave(kv, "X")
    queue = [6, 7, 8, 2, 1]
    lab.expect("free queue before", queue, free_queue(kv))
    for block_id, whose, want in (
        (3, "held, with a name", True),
        (2, "free, with a name", True),
        (5, "held, not full", False),
        (3, "held, evicted before", False),
    ):
        result = kv.block_pool._maybe_evict_cached_block(kv.block_pool.blocks[block_id])
        lab.check_pool(kv.block_pool, tables_of(kv))
        lab.expect(f"what _maybe_evict_cached_block returned for block {block_id} ({whose})", want, result)
        lab.expect(f"free queue after it was called for block {block_id} ({whose})", queue, free_queue(kv))
    lab.expect("blocks with a name", [1, 4], named(kv))


@points(1, FREE, stage="adversary", why="whoever leaves last frees a block; nameless in front, the others behind")
def test_three_leave_in_another_order(lab: LabUnderTest) -> None:
    """Three sharers, ids out of order, two blocks that have lost their names. Predict the whole queue on paper."""
    kv = make_kv(lab, FREE, num_blocks=13)
    scramble(kv)  # 2 4 6 8 10 12 11 9 7 5 3 1
    hold(kv, PROMPT[:16], "A")  # 2 4 6 8
    hold(kv, PROMPT[:18], "B")  # 2 4 6 8, then 10 with 2 tokens
    hold(kv, PROMPT[:8] + OTHERS[:11], "C")  # 2 4, then 12 11, then 9 with 3 tokens
    kv.evict_blocks([12, 6])
    lab.expect("tables", [[2, 4, 6, 8], [2, 4, 6, 8, 10], [2, 4, 12, 11, 9]], [table(kv, name) for name in "ABC"])
    for name in "CBA":
        leave(kv, name)
    want = [6, 10, 9, 12, 7, 5, 3, 1, 11, 8, 4, 2]
    lab.expect("free queue, after C, B and A have left in this order", want, free_queue(kv))


@points(1, FREE, stage="adversary", why="who was used last goes last, whenever its name is from: recency, not age")
def test_a_hit_makes_a_block_young_again(lab: LabUnderTest) -> None:
    """One prompt is asked again and again; in between come prompts that nobody repeats. Who should be forgotten?"""
    kv = make_kv(lab, FREE, num_blocks=9)
    got = []
    for number in range(6):
        got.append(len(lookup(kv, PROMPT[:9])))
        hold(kv, PROMPT[:9], f"popular {number}")
        leave(kv, f"popular {number}")
        hold(kv, [token + 100 * number for token in OTHERS[:8]], f"once {number}")
        leave(kv, f"once {number}")
    lab.expect("blocks of the popular prompt that were hit, time after time", [0, 2, 2, 2, 2, 2], got)


@points(1, FREE, stage="adversary", why="the same memory and the same requests: the order alone decides the rate")
def test_the_rate_and_the_size_of_the_pool(lab: LabUnderTest) -> None:
    """24 requests, one after the other: one of three common beginnings of 12 tokens, and 6 tokens of their own."""
    got = {}
    for num_blocks in (6, 7, 8, 9, 12, 14, 16):
        kv = make_kv(lab, FREE, num_blocks=num_blocks)
        for number, beginning in enumerate("010201020102010201020102"):
            own = [10_000 + 100 * number + token for token in range(6)]
            hold(kv, [*(1000 * int(beginning) + token for token in range(12)), *own], f"R{number}")
            leave(kv, f"R{number}")
        got[num_blocks] = kv.prefix_cache_stats.hits
    want = {6: 0, 7: 44, 8: 88, 9: 132, 12: 172, 14: 252, 16: 252}
    lab.expect("tokens hit, of 432, with 6, 7, 8, 9, 12, 14, 16 blocks", list(want.values()), list(got.values()))


@points(1, RECORD, stage="adversary", why="each request adds to all three counters, a hit or not")
def test_many_requests_add_up(lab: LabUnderTest) -> None:
    """Requests of all kinds; the counters are looked at in the end only."""
    stats = lab.PrefixCacheStats()
    for num_tokens, num_hits in ((32, 0), (32, 28), (1, 0), (33, 32), (7, 4), (5, 0)):
        stats.record(num_tokens, num_hits)
    lab.expect("requests, queries, hits", (6, 110, 64), (stats.requests, stats.queries, stats.hits))


# The property -------------------------------------------------------------------------------------------------------


@points(
    1, CACHE, stage="property", why="full blocks get their names in the step that fills them, all of them, twins too"
)
def test_random_lives_of_cache_full_blocks(lab: LabUnderTest) -> None:
    """Forty random lives of a small cache, each compared step by step with a model made of plain lists."""
    compare_random_lives(lab, CACHE)


@points(
    1,
    POP,
    stage="property",
    after="test_6_the_index_keeps_both",
    why="an index finds what was entered and not taken out again, the oldest first",
)
def test_random_lives_of_the_index(lab: LabUnderTest) -> None:
    """The same, with your index in the engine's pool."""
    compare_random_lives(lab, POP)


@points(
    1,
    EVICT,
    stage="property",
    why="a block that is handed out, or evicted, loses its name; every other block keeps its own",
)
def test_random_lives_of_maybe_evict_cached_block(lab: LabUnderTest) -> None:
    """The same, with your `_maybe_evict_cached_block`."""
    compare_random_lives(lab, EVICT)


@points(
    1, FREE, stage="property", why="nameless blocks to the front, named ones to the back, each lot in the order given"
)
def test_random_lives_of_free_blocks(lab: LabUnderTest) -> None:
    """The same, with your `free_blocks`."""
    compare_random_lives(lab, FREE)


@points(1, FIND, stage="property", why="block after block from the first, up to the first that is not there")
def test_random_lives_of_find_longest_cache_hit(lab: LabUnderTest) -> None:
    """The same, with your `find_longest_cache_hit`."""
    compare_random_lives(lab, FIND)


@dataclass(frozen=True)
class Step:
    """Something that happens: a request comes or leaves, a block loses its name, the cache is emptied."""

    verb: str
    name: str = ""
    tokens: tuple[int, ...] = ()
    block_id: int = 0

    def __str__(self) -> str:
        if self.verb == "come":
            return f"{self.name} comes with {' '.join(map(str, self.tokens))}"
        return {"leave": f"{self.name} leaves", "evict": f"evict_blocks([{self.block_id}])"}.get(self.verb, "reset")


def compare_random_lives(lab: LabUnderTest, learners: str) -> None:
    """Play forty lives; of the first that goes wrong, play the shortest part that still does, and say what happened."""
    for seed in seeds(40):
        life = random_life(random.Random(seed))
        if not goes_wrong(lab, learners, life):
            continue
        shortest = shrink(life, lambda shorter: goes_wrong(lab, learners, shorter))
        told = f", blocks of 2, seed {seed}: {'; '.join(map(str, shortest))}"
        try:
            play(lab, make_kv(lab, learners, 9, 2), shortest)
        except LabFailure as failure:
            lab.fail(failure.what + told, failure.want, failure.got, failure.why)
        except InvariantViolationError as error:
            message = f"{error.violation.message}{told}"
            raise InvariantViolationError(Violation(error.violation.invariant_id, message)) from None


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def random_life(rng: random.Random) -> list[Step]:
    """Return requests over few tokens, so that they often begin alike; now and then a name is lost, or all are."""
    life: list[Step] = []
    alive: list[str] = []
    for number in range(18):
        kind = rng.random()
        if alive and kind < 0.35:
            life.append(Step("leave", alive.pop(rng.randrange(len(alive)))))
        elif kind < 0.45:
            life.append(Step("evict", block_id=rng.randint(1, 8)))
        elif kind < 0.48:
            life.append(Step("reset"))
        else:
            stem = rng.choice(((1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (2,)))
            tokens = stem[: rng.randint(1, 6)] + tuple(rng.choices((1, 2), k=rng.randint(0, 3)))
            life.append(Step("come", f"R{number}", tokens))
            alive.append(f"R{number}")
    return life


def goes_wrong(lab: LabUnderTest, learners: str, life: list[Step]) -> bool:
    """Return whether the learner's code differs from the model, breaks an invariant or breaks down."""
    try:
        play(lab, quick_kv(lab, learners, 9, 2), life)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


def play(lab: LabUnderTest, kv: Any, life: list[Step]) -> None:
    """Play the steps on a cache with the learner's part and on the model; leave out what means nothing now."""
    model = NaiveCache(num_blocks=9, block_size=2)
    for step in life:
        if step.verb == "come":
            request = kv.new_request(step.name, step.tokens)
            blocks, num_hit = kv.get_computed_blocks(request)
            want = model.come(step.name, step.tokens)
            lab.expect(f"blocks hit by {step.name}", want, ids_of(blocks.blocks[0]))
            with cause_first():
                admitted = kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
            lab.expect(f"room for {step.name}", step.name in model.tables, admitted is not None)
            if admitted is not None:
                request.num_computed_tokens = request.num_tokens
                lab.expect(f"block table of {step.name}", model.tables[step.name], table(kv, step.name))
        elif step.verb == "leave" and step.name in model.tables:
            leave(kv, step.name)
            model.leave(step.name)
        elif step.verb == "evict":
            with cause_first():
                kv.evict_blocks([step.block_id])
            model.known.pop(step.block_id, None)
        elif step.verb == "reset":
            lab.expect("whether the cache could be emptied", model.reset(), kv.reset_prefix_cache())
        check_invariants(getattr(kv, "manager", kv))
        lab.expect("free queue", model.free, free_queue(kv))
        lab.expect("blocks with a name", sorted(model.known), named(kv))


class NaiveCache:
    """The same cache without hashes, links or counts: a block is known by all the tokens up to its end."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        self.known: dict[int, tuple[int, ...]] = {}  # block -> prefix, oldest first
        self.tables: dict[str, list[int]] = {}

    def come(self, name: str, tokens: tuple[int, ...]) -> list[int]:
        """Return the hit; admit the request if it fits."""
        hit: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):  # stops before the last token
            found = [block for block, prefix in self.known.items() if prefix == tokens[:end]]
            if not found:
                break
            hit.append(found[0])
        num_new = -(-len(tokens) // self.block_size) - len(hit)
        if num_new + len([block for block in hit if block in self.free]) > len(self.free):
            return hit
        self.free = [block for block in self.free if block not in hit]
        new, self.free = self.free[:num_new], self.free[num_new:]
        for block in new:
            self.known.pop(block, None)
        self.tables[name] = hit + new
        for index in range(len(hit), len(tokens) // self.block_size):
            self.known[self.tables[name][index]] = tokens[: (index + 1) * self.block_size]
        return hit

    def leave(self, name: str) -> None:
        """Let the request's blocks go, tail first: those without a name to the front, the others to the back."""
        gone_table = self.tables.pop(name)
        held = {block for other in self.tables.values() for block in other}
        gone = [block for block in reversed(gone_table) if block not in held]
        in_front = [block for block in gone if block not in self.known]
        self.free = in_front + self.free + [block for block in gone if block in self.known]

    def reset(self) -> bool:
        """Forget all names, unless somebody holds a block; the queue stays as it is."""
        if self.tables:
            return False
        self.known.clear()
        return True


# What the tests above stand on --------------------------------------------------------------------------------------


def assembled(lab: LabUnderTest, function: str) -> tuple[Any, Any, Any]:
    """Return classes for pool, group and manager: the learner's where `function` belongs, the engine's elsewhere.

    A learner's pool gets the engine's methods for all but that one, so that a mistake in one does not fail the tests of
    another. What a lookup returns is checked for its type before the engine has to live with it.
    """
    pool, group, manager = (
        block_pool.BlockPool,
        single_type_kv_cache_manager.FullAttentionManager,
        kv_cache_manager.KVCacheManager,
    )
    if function in (CACHE, EVICT, FREE):
        others = {name.partition(".")[2] for name in (CACHE, EVICT, FREE) if name != function}
        return type("BlockPool", (lab.BlockPool,), {name: vars(pool)[name] for name in others}), group, manager
    if function == FIND:
        own = lab.FullAttentionManager

        def find_longest_cache_hit(self: Any, block_hashes: Sequence[BlockHash], max_length: int) -> Any:
            hit = own.find_longest_cache_hit(self, block_hashes, max_length)
            if not are_blocks(hit):
                lab.fail("what find_longest_cache_hit returned", "a list of KVCacheBlock, one for each block", hit)
            return hit

        return pool, type("FullAttentionManager", (own,), {"find_longest_cache_hit": find_longest_cache_hit}), manager
    if function == LOOKUP:
        owns: Any = lab.KVCacheManager

        def get_computed_blocks(self: Any, request: Request) -> Any:
            answer = owns.get_computed_blocks(self, request)
            blocks = answer[0].blocks if is_pair(answer) and isinstance(answer[0], KVCacheBlocks) else None
            if type(blocks) is not tuple or len(blocks) != 1 or not are_blocks(blocks[0]):
                want = "(KVCacheBlocks(([block, ...],)), tokens): one list for the one group"
                lab.fail("what get_computed_blocks returned", want, answer)
            return answer

        return pool, group, type("KVCacheManager", (owns,), {"get_computed_blocks": get_computed_blocks})
    return pool, group, manager


def make_kv(lab: LabUnderTest, function: str, num_blocks: int, block_size: int = 4) -> WatchedKVCacheManager:
    """Return a cache put together from the engine's parts and the one of the learner's that `function` belongs to."""
    pool, group, manager = assembled(lab, function)
    with parts(pool, group):
        kv = lab.make_kv(num_blocks, block_size, manager_class=manager)
    if function in (GET_ONE, INSERT, POP):
        kv.block_pool.cached_block_hash_to_block = lab.BlockHashToBlockMap()
    if function == RECORD:
        kv.manager.prefix_cache_stats = lab.PrefixCacheStats()
    return kv


def quick_kv(lab: LabUnderTest, function: str, num_blocks: int, block_size: int) -> kv_cache_manager.KVCacheManager:
    """Return the same cache without anybody who watches it, for the random lives: they are many."""
    pool, group, manager = assembled(lab, function)
    with parts(pool, group):
        kv: kv_cache_manager.KVCacheManager = manager.for_full_attention(num_blocks, block_size)
    if function in (GET_ONE, INSERT, POP):
        kv.block_pool.cached_block_hash_to_block = lab.BlockHashToBlockMap()
    return kv


@contextmanager
def parts(pool: Any, group: Any) -> Iterator[None]:
    """Let a manager that is made meanwhile use these classes."""
    with (
        mock.patch.object(kv_cache_manager, "BlockPool", pool),
        mock.patch.object(kv_cache_coordinator, "FullAttentionManager", group),
    ):
        yield


def make_pool(lab: LabUnderTest, function: str, num_blocks: int) -> Any:
    """Return a pool of which this one method is the learner's."""
    return assembled(lab, function)[0](num_blocks)


@contextmanager
def cause_first() -> Iterator[None]:
    """Show what went wrong first: code that breaks down half-way leaves a broken state, and debug mode sees that."""
    try:
        yield
    except InvariantViolationError as error:
        cause = error.__context__
        if isinstance(cause, Exception) and not isinstance(cause, InvariantViolationError):
            raise cause from None
        raise


def hold(kv: WatchedKVCacheManager, tokens: Sequence[int], name: str) -> Request:
    """Admit a request and compute it; there is room."""
    with cause_first():
        return kv.hold(tokens, name)


def leave(kv: WatchedKVCacheManager, name: str) -> None:
    """Let a request go; its table is freed from the tail to the head."""
    with cause_first():
        kv.free(kv.requests[name])


def lookup(kv: WatchedKVCacheManager, tokens: Sequence[int]) -> list[int]:
    """Return the blocks that a request with these tokens would find now."""
    return ids_of(kv.get_computed_blocks(kv.new_request("probe", tokens))[0].blocks[0])


def tables_of(kv: WatchedKVCacheManager) -> dict[str, list[KVCacheBlock]]:
    """Return who holds which blocks."""
    return {name: kv.get_blocks(name).blocks[0] for name in kv.requests}


def table(kv: WatchedKVCacheManager, name: str) -> list[int]:
    """Return the ids in the request's block table."""
    return list(kv.get_block_ids(name)[0])


def named(kv: WatchedKVCacheManager) -> list[int]:
    """Return the ids of the blocks that carry a name."""
    return [block.block_id for block in kv.block_pool.blocks if block.block_hash is not None]


def free_queue(kv: WatchedKVCacheManager) -> list[int]:
    """Return the ids in the free queue, the next to be handed out first."""
    return ids_of(kv.block_pool.free_block_queue.get_all_free_blocks())


def carriers(lab: LabUnderTest, index: Any, key: BlockHashWithGroupId) -> list[int]:
    """Return the ids of the blocks under the key, oldest first."""
    try:
        blocks = dict(index.items()).get(key, [])
    except Exception as error:
        blocks = error
    if not are_blocks(blocks):
        why = "items() is given, and reads self._blocks as the class describes it: a dict for each key"
        lab.fail("what items() finds in self._blocks under one key", "a list of KVCacheBlock", blocks, why)
    return ids_of(blocks)


def is_pair(value: object) -> bool:
    """Return whether it is a tuple of two."""
    return type(value) is tuple and len(value) == 2


def are_blocks(value: object) -> bool:
    """Return whether it is a list of blocks and nothing else."""
    return type(value) is list and all(isinstance(item, KVCacheBlock) for item in value)


def name_of(block: KVCacheBlock) -> str | None:
    """Return the block's name, for names that are words in group 0; any other key as it is."""
    if block.block_hash is None:
        return None
    name = get_block_hash(block.block_hash)
    return (
        name.decode() if block.block_hash == make_block_hash_with_group_id(name, 0) else repr(bytes(block.block_hash))
    )


def id_of(block: object) -> object:
    """Return the number of a block; whatever is no block, as it is."""
    return block.block_id if isinstance(block, KVCacheBlock) else block


def ids_of(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """Return the numbers of the blocks, which is how a drawing names them."""
    return [block.block_id for block in blocks]


def scramble(kv: WatchedKVCacheManager) -> None:
    """Put the blocks of a new cache into another order, so that no number tells a block's place."""
    queue = kv.block_pool.free_block_queue
    blocks = queue.popleft_n(queue.num_free_blocks)
    queue.append_n(blocks[1::2] + blocks[::2][::-1])
