"""lab-12: layers with a window, and layers of several kinds over one pool. Read the numbered tests in order.

Tokens are counted from 0: when 5 are computed, token 5 is next. Block 0 is the null block, which holds nothing.

Only the part that a test is about is yours; the engine's stand in for the others (see assembled).
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from mini_kv.core import kv_cache_coordinator as coordinators
from mini_kv.core import single_type_kv_cache_manager as managers
from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.labkit.shrink import shrink

SKIP = "SlidingWindowManager.get_num_skipped_tokens"
REMOVE = "SlidingWindowManager.remove_skipped_blocks"
FIND = "SlidingWindowManager.find_longest_cache_hit"
MEET = "HybridKVCacheCoordinator.find_longest_cache_hit"
GROUP = "group_layers"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = [BlockHash(letter.encode()) for letter in LETTERS]


def window(sliding_window: int, block_size: int = 2) -> SlidingWindowSpec:
    """Return the spec of a layer in which a token reads itself and the `sliding_window - 1` tokens before it."""
    return SlidingWindowSpec(block_size, sliding_window=sliding_window)


def full(block_size: int = 2) -> FullAttentionSpec:
    """Return the spec of a layer in which a token reads itself and all tokens before it."""
    return FullAttentionSpec(block_size)


def state(block_size: int = 2) -> MambaSpec:
    """Return the spec of a layer that keeps one state: a hit needs the block in which the last token lies, no other."""
    return MambaSpec(block_size, shapes=((2 * block_size,),), dtypes_bytes=(2,))  # as many bytes as the others


# The biography ------------------------------------------------------------------------------------------------------


@points(3, SKIP, why="the next token reads itself and the 3 tokens before it: 4 in all")
def test_1_what_nobody_reads_any_more(lab: LabUnderTest) -> None:
    """A window of 4. With 0 tokens computed, 1, 2 and so on: how many of them will nobody read again?

    tokens    0  1  2  3  4  5 | 6           6 are computed, token 6 is next
                       r  r  r   r           it reads 3, 4, 5 and itself
              -  -  -                        3 are skipped
    """
    group = make_group(lab, SKIP, window(4))
    got = [group.get_num_skipped_tokens(num_computed) for num_computed in range(9)]
    lab.expect("tokens skipped with 0, 1, 2, ... 8 computed, in a window of 4", [0, 0, 0, 0, 1, 2, 3, 4, 5], got)


@points(3, SKIP, why="a block goes when the next token reads nothing in it; the window's first token keeps its block")
def test_2_the_notes_112_tokens(lab: LabUnderTest) -> None:
    """Ten full and twenty window layers are three groups; a window of 32, blocks of 16. A has 111 tokens computed.

    Now token 111, the 112th, gets its slot; then token 112. How many blocks does each group hold?
    """
    kv = make_kv(lab, SKIP, 60, full(16), window(32, 16), window(32, 16))
    request = kv.new_request("A", range(111))
    grow(kv, request, 111)
    lab.expect("blocks of A in each group, 111 tokens computed in one go", [7, 7, 7], held(kv, "A"))
    grow(kv, request, 1)
    lab.expect("blocks of A while token 111 gets its slot", [7, 2, 2], held(kv, "A"), why="it reads tokens 80 to 111")
    grow(kv, request, 1)
    why = "token 112 begins a block in each group, and reads token 81, so that block is still needed"
    lab.expect("blocks of A while token 112 gets its slot", [8, 3, 3], held(kv, "A"), why=why)
    got = []
    for _ in range(32):
        grow(kv, request, 1)
        got.append(held(kv, "A")[1])
    lab.expect("blocks of A in a window group in the next 32 steps", [3] * 14 + [2] + [3] * 15 + [2] + [3], got)


@points(3, REMOVE, why="a table keeps its length, since a token is found by counting blocks from the first")
def test_3_null_blocks_left_of_the_window(lab: LabUnderTest) -> None:
    """A window of 4, blocks of 2. A's table is 1 2 3 4; tokens are computed one by one, and blocks go."""
    pool, group = make_pool(lab, REMOVE, window(4), num_blocks=8)
    hold(group, "A", [1, 2, 3, 4])
    lab.watch_pool(pool, group.req_to_blocks)
    tables = {3: [1, 2, 3, 4], 4: [1, 2, 3, 4], 5: [0, 2, 3, 4], 6: [0, 2, 3, 4], 7: [0, 0, 3, 4], 8: [0, 0, 3, 4]}
    for num_computed, want in tables.items():
        remove(lab, group, "A", num_computed)
        lab.expect(f"A's table with {num_computed} tokens computed (0 is the null block)", want, table_of(group, "A"))


@points(3, REMOVE, why="what is freed first is reused first, and a hit needs what follows a block more than the block")
def test_4_the_last_of_them_first(lab: LabUnderTest) -> None:
    """A's six blocks have names. A long step has passed; four blocks go in one call. In which order?"""
    pool, group = make_pool(lab, REMOVE, window(4), num_blocks=10)
    hold(group, "A", [1, 2, 3, 4, 5, 6], named=6)
    lab.watch_pool(pool, group.req_to_blocks)
    remove(lab, group, "A", 12)
    lab.expect("A's table with 12 tokens computed", [0, 0, 0, 0, 5, 6], table_of(group, "A"))
    lab.expect("free queue, the next to be reused first", [7, 8, 9, 4, 3, 2, 1], free_queue(pool))
    lab.expect("blocks that still have a name", [1, 2, 3, 4, 5, 6], named(pool), why="freed is not gone: it can be hit")


@points(2, REMOVE, why="a step needs slots for its own tokens and the window before them; what is older can go")
def test_5_what_a_prompt_holds_on_its_way(lab: LabUnderTest) -> None:
    """The prompt of 112 tokens again, in one step, in steps of 48 and of 16; then the first token of the answer.

    What does it hold at most, in all three groups together?
    """
    stories: dict[int, list[list[int]]] = {
        112: [[7, 7, 7], [8, 3, 3]],
        48: [[3, 3, 3], [6, 5, 5], [7, 3, 3], [8, 3, 3]],
        16: [[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 3, 3], [5, 3, 3], [6, 3, 3], [7, 3, 3], [8, 3, 3]],
    }
    for step, want in stories.items():
        kv = make_kv(lab, REMOVE, 60, full(16), window(32, 16), window(32, 16))
        request = kv.new_request("A", range(112))
        got = []
        for start in range(0, 112, step):
            grow(kv, request, min(step, 112 - start))
            got.append(held(kv, "A"))
        grow(kv, request, 1)
        lab.expect(f"blocks of A in each group, in steps of {step}, then one of 1", want, [*got, held(kv, "A")])


@points(3, FIND, why="the next token reads the window, and nothing to the left of it: that need not be cached")
def test_6_a_hit_needs_only_the_window(lab: LabUnderTest) -> None:
    """A window of 4, blocks of 2. A's twelve tokens were in blocks 1 to 6; then blocks 1, 2 and 3 were reused."""
    kv = make_kv(lab, FIND, 12, window(4))
    request = kv.new_request("A", range(12))
    grow(kv, request, 12)
    kv.free(request)
    lab.expect(
        "hit of the same prompt, all cached",
        [0, 0, 0, 4, 5],
        lookup(kv, range(12)),
        why="all but the last token: 5 blocks",
    )
    kv.evict_blocks([1, 2, 3])
    lab.expect("hit without blocks 1, 2 and 3", [0, 0, 0, 4, 5], lookup(kv, range(12)))
    kv.evict_blocks([4])
    why = "at 10 tokens block 4 is read; at 12, with one token more to come, only 5 and 6 are"
    lab.expect("hit without block 4 as well", [], lookup(kv, range(12)), why=why)
    lab.expect("hit of 13 tokens without block 4", [0, 0, 0, 0, 5, 6], lookup(kv, range(13)), why=why)


@points(3, FIND, why="the longest hit is the one that ends furthest to the right, so that is where to look first")
def test_7_from_the_right(lab: LabUnderTest) -> None:
    """A window of 4 in blocks of 2 reads two blocks. Some of a to f are cached, block 1 for a, 2 for b, and so on."""
    for cached, want in (
        ("abcdef", [0, 0, 0, 0, 5, 6]),
        ("abcd", [0, 0, 3, 4]),
        ("ab de ", [0, 0, 0, 4, 5]),
        ("abc e ", [0, 2, 3]),
        ("a c e ", [1]),
        (" b d f", []),
        (" bcd f", [0, 0, 3, 4]),
    ):
        group = with_cached(lab, FIND, window(4), cached)
        got = ids_of(group.find_longest_cache_hit(NAMES[:6], 12))
        why = "the first block alone is a hit: two tokens, and the next token reads no more" if want == [1] else ""
        lab.expect(f"hit with {' '.join(cached.split())!r} cached, of a to f", want, got, why=why)


@points(3, MEET, why="a window's hit that is cut is no hit: at the shorter end, another window is read")
def test_8_two_groups_meet(lab: LabUnderTest) -> None:
    """Full attention has 4 blocks; the window, which reads one block, has its first, third, fifth and sixth."""
    meeting = with_groups(lab, MEET, [(full(), "abcd"), (window(3), "a c ef")])
    alone = [len(group.find_longest_cache_hit(NAMES[:6], 12)) for group in meeting.single_type_managers]
    lab.expect("blocks that each group alone could hit", [4, 6], alone)
    blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:6], 12)
    lab.expect("tokens hit by both", 6, num_tokens, why="not 8: at 8 the window's fourth block is read")
    lab.expect("blocks hit, a list a group", [[1, 2, 3], [0, 0, 13]], [ids_of(group) for group in blocks])


@points(4, MEET, why="whoever shortens the hit asks the others a new question: is it one for you there as well?")
def test_9_it_shrinks_twice(lab: LabUnderTest) -> None:
    """Three groups, and each pair of them agrees on something that the third does not have.

    full       a b c d e f        12 tokens, and any beginning
    window 5   a b - - e f        12 tokens; or 4; or 2
    state      - b - d - -        8 tokens; or 4
    """
    meeting = with_groups(lab, MEET, [(full(), "abcdef"), (window(5), "ab  ef"), (state(), " b d  ")])
    alone = [2 * len(group.find_longest_cache_hit(NAMES[:6], 12)) for group in meeting.single_type_managers]
    lab.expect("tokens that each group alone could hit", [12, 12, 8], alone)
    blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:6], 12)
    lab.expect("tokens hit by all", 4, num_tokens, why="at 8 the window reads c and d; at 4 all have what is read")
    lab.expect("blocks hit, a list a group", [[1, 2], [11, 12], [0, 22]], [ids_of(group) for group in blocks])


@points(2, GROUP, why="as many layers a group as there are of the rarest kind: no place stays empty")
def test_10_ten_and_twenty(lab: LabUnderTest) -> None:
    """A model of 30 layers: one full, two windows, and so on. Three groups of ten; which layers are together?"""
    groups = grouped(lab, layers("fww" * 10))
    lab.expect("layers in each group", [10, 10, 10], [len(names) for names in groups])
    for number, (kind, first) in enumerate((("f", range(10)), ("w", range(0, 20, 2)), ("w", range(1, 20, 2)))):
        want = [f"{kind}{layer}" for layer in first]
        lab.expect(f"layers of group {number}", want, groups[number], why="dealt like cards, one to each")


@points(1, GROUP, why="empty places are spread, so no group is left with two layers and eight places that nobody uses")
def test_11_ten_and_fifty_two(lab: LabUnderTest) -> None:
    """The counts of Gemma 3 27B: 52 windows, 10 full. Groups of at most ten; how full is each?"""
    groups = grouped(lab, layers("wwwwwf" * 10 + "ww"))
    lab.expect("layers in each group, windows first", [9, 9, 9, 9, 8, 8, 10], [len(names) for names in groups])


@points(1, GROUP, why="with nearly equal counts one place more is cheaper than one group more")
def test_12_nearly_as_many(lab: LabUnderTest) -> None:
    """13 and 12 layers; then 14 and 10, 15 and 10, 16 and 10. Where do two groups become three?"""
    want = {(13, 12): [13, 12], (14, 10): [14, 10], (15, 10): [8, 7, 10], (16, 10): [8, 8, 10], (12, 13): [12, 13]}
    got = {(w, f): [len(names) for names in grouped(lab, layers("w" * w + "f" * f))] for w, f in want}
    for (num_windows, num_full), sizes in want.items():
        what = f"layers in each group of {num_windows} windows and {num_full} full"
        lab.expect(what, sizes, got[num_windows, num_full], why="fewer than 1.5 times as many: as many as of the most")


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, SKIP, stage="adversary", why="a window counts the token itself; and nobody skips less than nothing")
def test_windows_of_one_and_of_a_thousand(lab: LabUnderTest) -> None:
    """A window of 1 reads the token itself and nothing else; one of 1,000 is not full yet; windows within a block."""
    for sliding_window, want in (
        (1, [0, 1, 2, 3, 15, 16, 17]),
        (2, [0, 0, 1, 2, 14, 15, 16]),
        (16, [0, 0, 0, 0, 0, 1, 2]),
        (1000, [0, 0, 0, 0, 0, 0, 0]),
    ):
        group = make_group(lab, SKIP, window(sliding_window, 16))
        got = [group.get_num_skipped_tokens(num_computed) for num_computed in (0, 1, 2, 3, 15, 16, 17)]
        lab.expect(f"tokens skipped with 0 1 2 3 15 16 17 computed, in a window of {sliding_window}", want, got)


@points(1, REMOVE, stage="adversary", why="what one leaves behind another still reads: a reference goes, not the block")
def test_a_neighbour_still_reads_it(lab: LabUnderTest) -> None:
    """A and B share blocks 1 and 2. A moves on; then B does; then A has a long way behind it, and all of it is gone."""
    pool, group = make_pool(lab, REMOVE, window(3), num_blocks=9)
    hold(group, "A", [1, 2, 3, 4], named=4)
    hold(group, "B", [1, 2, 5])
    lab.watch_pool(pool, group.req_to_blocks)
    for name, num_computed, queue, tables in (
        ("A", 6, [6, 7, 8], [[0, 0, 3, 4], [1, 2, 5]]),
        ("B", 4, [6, 7, 8, 1], [[0, 0, 3, 4], [0, 2, 5]]),
        ("B", 6, [6, 7, 8, 1, 2], [[0, 0, 3, 4], [0, 0, 5]]),
        ("A", 8, [6, 7, 8, 1, 2, 3], [[0, 0, 0, 4], [0, 0, 5]]),
    ):
        remove(lab, group, name, num_computed)
        then = f"when {name} has {num_computed} tokens computed"
        lab.expect(f"tables of A and B {then}", tables, [table_of(group, "A"), table_of(group, "B")])
        lab.expect(f"free queue {then}", queue, free_queue(pool))


@points(1, REMOVE, stage="adversary", why="null blocks stay null blocks: nobody holds them, and nobody frees them")
def test_again_and_before_admission(lab: LabUnderTest) -> None:
    """The same call twice; a table that begins with a hit's null blocks; a request that has no table yet."""
    pool, group = make_pool(lab, REMOVE, window(4), num_blocks=12)
    hold(group, "A", [0, 0, 0, 4, 5, 6, 7], named=7)
    lab.watch_pool(pool, group.req_to_blocks)
    for num_computed, want, queue in (
        (10, [0, 0, 0, 4, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11]),
        (12, [0, 0, 0, 0, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4]),
        (12, [0, 0, 0, 0, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4]),
        (14, [0, 0, 0, 0, 0, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4, 5]),
    ):
        remove(lab, group, "A", num_computed)
        lab.expect(f"A's table with {num_computed} tokens computed", want, table_of(group, "A"))
        lab.expect(f"free queue with {num_computed} tokens computed", queue, free_queue(pool))
    group.remove_skipped_blocks("B", 14)
    lab.expect("requests with a table, after a call for B, who has none", ["A"], list(group.req_to_blocks))


@points(
    1, REMOVE, stage="adversary", why="blocks without names join the front of the queue, together, in the order given"
)
def test_without_names(lab: LabUnderTest) -> None:
    """Caching is off, so nothing has a name, and what is freed goes to the front. Three blocks go in one call."""
    for sliding_window, want in ((4, [3, 2, 1, 6, 7]), (1, [5, 4, 3, 2, 1, 6, 7])):
        pool, group = make_pool(lab, REMOVE, window(sliding_window), num_blocks=8)
        hold(group, "A", [1, 2, 3, 4, 5])
        lab.watch_pool(pool, group.req_to_blocks)
        remove(lab, group, "A", 10)
        lab.expect(f"free queue with 10 tokens computed, in a window of {sliding_window}", want, free_queue(pool))


@points(1, REMOVE, stage="adversary", why="a block that slid out keeps its name until it is reused: others can hit it")
def test_what_slid_out_can_be_hit_again(lab: LabUnderTest) -> None:
    """A has twelve tokens and goes on; B brings the first six of them, whose blocks A has left behind long ago."""
    kv = make_kv(lab, REMOVE, 20, window(4))
    a = kv.new_request("A", range(12))
    for step in (6, 6, 1):
        grow(kv, a, step)
    lab.expect("A's table with 13 tokens", [0, 0, 0, 0, 5, 6, 7], table_of(kv.coordinator.single_type_managers[0], "A"))
    lab.expect("B's hit of 7 tokens, six as A's", [0, 2, 3], lookup(kv, [*range(6), 77]))
    b = kv.hold([*range(6), 77], "B")
    grow(kv, b, 2)
    lab.expect(
        "B's table with 9 tokens",
        [0, 0, 3, 8, 9],
        table_of(kv.coordinator.single_type_managers[0], "B"),
        why="token 7 reads token 4, in block 3",
    )
    kv.free(a)
    kv.free(b)
    lab.expect("free blocks, A and B gone", 19, kv.block_pool.num_free_blocks)


@points(1, FIND, stage="adversary", why="whole blocks, at most max_length tokens, and no more blocks than have names")
def test_no_longer_than_asked(lab: LabUnderTest) -> None:
    """Every max_length around a block's edge, blocks of 1, 3, 4 and 16 tokens, windows around theirs; ids scrambled."""
    for block_size in (1, 3, 4, 16):
        for sliding_window in (block_size, block_size + 1, block_size + 2, 2 * block_size + 1):
            group = with_cached(lab, FIND, window(sliding_window, block_size), "abcde", ids=[9, 3, 7, 1, 5])
            for edge in range(8):
                for max_length in {max(edge * block_size - 1, 0), edge * block_size, edge * block_size + 1}:
                    end = min(max_length // block_size, 5)
                    num_read = -(-(sliding_window - 1) // block_size)
                    want = [0] * max(end - num_read, 0) + [9, 3, 7, 1, 5][:end][-num_read or 5 :]
                    got = ids_of(group.find_longest_cache_hit(NAMES[:5], max_length))
                    what = f"hit with max_length {max_length}, 5 blocks of {block_size}, a window of {sliding_window}"
                    lab.expect(what, want, got)


@points(1, FIND, stage="adversary", why="a window of 1 reads nothing before the token, so nothing has to be cached")
def test_a_hit_of_nothing(lab: LabUnderTest) -> None:
    """A window of 1, and nothing in the cache; a window longer than the prompt, and all but its first block is."""
    group = with_cached(lab, FIND, window(1), "")
    lab.expect(
        "hit of 8 tokens in a window of 1, nothing cached", [0] * 4, ids_of(group.find_longest_cache_hit(NAMES[:4], 8))
    )
    group = with_cached(lab, FIND, window(100), " bcdef")
    lab.expect(
        "hit in a window of 100 without the first block", [], ids_of(group.find_longest_cache_hit(NAMES[:6], 12))
    )
    group = with_cached(lab, FIND, window(100), "abcd f")
    got = ids_of(group.find_longest_cache_hit(NAMES[:6], 12))
    lab.expect("hit in a window of 100 without the fifth block", [1, 2, 3, 4], got)


@points(
    1, FIND, stage="adversary", why="one prefix has other keys and values in each group: a name alone is not the key"
)
def test_each_group_finds_its_own(lab: LabUnderTest) -> None:
    """Group 0 has a, b and c cached, group 1 only a and b. What does a window of group 1 find?"""
    for group_id, cached, want in ((0, "abc", [0, 2, 3]), (1, "ab", [11, 12])):
        pool = BlockPool(40)
        enter(pool, 0, {position: position + 1 for position in range(3)})
        enter(pool, 1, {position: position + 11 for position in range(2)})
        group = assembled(lab, FIND)(window(4), pool, group_id)
        got = ids_of(group.find_longest_cache_hit(NAMES[:3], 6))
        lab.expect(f"hit in group {group_id}, which has {' '.join(cached)}", want, got)


@points(1, FIND, stage="adversary", why="from the right, the window is all that has to be looked at")
def test_how_many_lookups(lab: LabUnderTest) -> None:
    """A prompt of 1,000 blocks, all cached, a window of two. Then with holes: is any block looked up twice?"""
    names = [BlockHash(b"%d" % number) for number in range(1000)]
    for holes, want in ((), [999, 998]), ((998, 996, 995), [993, 994]), ((999, 1, 0), [998, 997]):
        pool = BlockPool(1001)
        enter(pool, 0, {position: position + 1 for position in range(1000) if position not in holes}, names)
        group = assembled(lab, FIND)(window(4), pool, 0)
        index = pool.cached_block_hash_to_block
        with mock.patch.object(index, "get_one_block", wraps=index.get_one_block) as looked_up:
            hit = group.find_longest_cache_hit(names, 2000)
        what = f"of 1,000 blocks, cached but for {list(holes)}" if holes else "of 1,000 blocks, all cached"
        lab.expect(f"blocks hit {what}", sorted(want), [position for position, b in enumerate(hit) if not b.is_null])
        asked = [int(call.args[0][:-4]) for call in looked_up.call_args_list]
        lab.expect(f"blocks looked up twice {what}", [], sorted({p for p in asked if asked.count(p) > 1}))
        num_left = sum(position < min(want) for position in asked)
        lab.expect(f"blocks looked up left of the hit's window {what}", 0, num_left)


@points(1, FIND, stage="adversary", why="a lookup is a question: nobody has been admitted yet")
def test_a_question_changes_nothing(lab: LabUnderTest) -> None:
    """Block c is held, a and b are free and in the queue; names, references and the queue, before and after."""
    pool = BlockPool(8)
    enter(pool, 0, {0: 1, 1: 2, 2: 3})
    pool.free_blocks([pool.blocks[2], pool.blocks[1]])
    group = assembled(lab, FIND)(window(4), pool, 0)
    lab.watch_pool(pool, {"held": [pool.blocks[3]]})
    names = NAMES[:3]
    lab.expect("hit", [0, 2, 3], ids_of(group.find_longest_cache_hit(names, 6)), why="free or held, a name can be hit")
    lab.expect("references of blocks 0 to 3 afterwards", [0, 0, 0, 1], [block.ref_cnt for block in pool.blocks[:4]])
    lab.expect("free queue afterwards", [4, 5, 6, 7, 2, 1], free_queue(pool))
    lab.expect("names in the list that was given, afterwards", 3, len(names))


@points(1, MEET, stage="adversary", why="the blocks go into the tables by their place: group 0's list comes first")
def test_the_order_of_the_groups(lab: LabUnderTest) -> None:
    """The window is group 0 and full attention group 1: whoever is asked first, the answer keeps the groups' order."""
    meeting = with_groups(lab, MEET, [(window(3), "abc"), (full(), "abcd"), (window(5), "abcd")])
    blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:4], 9)
    lab.expect("tokens hit", 6, num_tokens)
    lab.expect("blocks hit, a list a group", [[0, 0, 3], [11, 12, 13], [0, 22, 23]], [ids_of(hit) for hit in blocks])


@points(
    1,
    MEET,
    stage="adversary",
    why="any beginning of a hit of full attention is a hit, so there is nothing to ask again",
)
def test_full_attention_is_asked_once(lab: LabUnderTest) -> None:
    """Three groups shorten the hit again and again. How often is full attention asked, which looks at every block?"""
    cached = [(full(), "abcdefgh"), (window(3), "abc e gh"), (window(5), "abcd fg "), (state(), "ab de  h")]
    meeting = with_groups(lab, MEET, cached)
    calls: list[int] = []
    asked: Any = managers.FullAttentionManager.find_longest_cache_hit

    def count(self: Any, block_hashes: Sequence[BlockHash], max_length: int) -> Any:
        calls.append(max_length)
        return asked(self, block_hashes, max_length)

    with mock.patch.object(managers.FullAttentionManager, "find_longest_cache_hit", count):
        blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:8], 16)
    lab.expect("tokens hit", 4, num_tokens, why="16, then 14, 10, 8, 6, 4: each has something to say")
    lab.expect("blocks hit, a list a group", [[1, 2], [0, 12], [21, 22], [0, 32]], [ids_of(hit) for hit in blocks])
    lab.expect("how often full attention was asked", 1, len(calls))


@points(1, MEET, stage="adversary", why="no more than was asked for, in whole blocks; and nothing in common is no hit")
def test_at_most_and_at_least(lab: LabUnderTest) -> None:
    """Limits around a block's edge; more names than blocks; then groups that have nothing in common."""
    for block_size in (1, 3, 4, 16):
        meeting = with_groups(lab, MEET, [(window(block_size + 1, block_size), "abcd"), (full(block_size), "abcd")])
        for edge in range(6):
            for limit in {max(edge * block_size - 1, 0), edge * block_size, edge * block_size + 1}:
                blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:6], limit)
                num_blocks = min(limit // block_size, 4)
                what = f"with at most {limit} tokens, blocks of {block_size}, 4 of them cached in both groups"
                lab.expect(f"tokens hit {what}", num_blocks * block_size, num_tokens)
                lab.expect(f"blocks in each list {what}", [num_blocks] * 2, [len(hit) for hit in blocks])
    for other in ("", " bcd"):
        meeting = with_groups(lab, MEET, [(full(), "abcd"), (full(), other), (window(1), "")])
        what = f"full attention with abcd, full attention with {other.strip() or 'nothing'}, and a window of 1"
        blocks, num_tokens = meeting.find_longest_cache_hit(NAMES[:4], 8)
        lab.expect(f"hit of {what}", [[], [], []], [ids_of(hit) for hit in blocks])
        lab.expect(f"tokens hit by {what}", 0, num_tokens)


@points(
    1, GROUP, stage="adversary", why="equal specs are one kind, whoever made them; a window of another length is not"
)
def test_what_is_one_kind(lab: LabUnderTest) -> None:
    """One kind alone; three kinds, mixed; equal specs that are different objects; a kind with a single layer."""
    lab.expect("groups of four full layers", [["f0", "f1", "f2", "f3"]], grouped(lab, layers("ffff")))
    mixed = {"x": window(4), "y": full(), "z": window(8), "u": window(4), "v": window(8), "t": full()}
    lab.expect("groups of x z u v y t", [["x", "u"], ["y", "t"], ["z", "v"]], grouped(lab, mixed))
    single = grouped(lab, layers("wfwww"))
    lab.expect("groups of four windows and one full", [["w0"], ["w1"], ["w2"], ["w3"], ["f0"]], single)
    want = [["w0", "w2"], ["w1", "w3"], ["s0", "s2"], ["s1"], ["f0", "f1"]]
    lab.expect("groups of four windows, three states, two full", want, grouped(lab, layers("wsfwsfwsw")))


# The property -------------------------------------------------------------------------------------------------------


@points(1, SKIP, stage="property", why="a token is skipped if the next one does not read it, nor any that comes later")
def test_random_windows_of_get_num_skipped_tokens(lab: LabUnderTest) -> None:
    """Forty random windows; who reads a token is counted one by one."""
    for seed in seeds(40):
        rng = random.Random(seed)
        sliding_window, num_computed = rng.randint(1, 40), rng.randint(0, 60)
        group = make_group(lab, SKIP, window(sliding_window, rng.choice((1, 3, 4, 16))))
        want = 0
        while want < num_computed and num_computed - want >= sliding_window:
            want += 1  # the next token is num_computed, and reads tokens less than a window away
        what = f"tokens skipped with {num_computed} computed, in a window of {sliding_window} (seed {seed})"
        lab.expect(what, want, group.get_num_skipped_tokens(num_computed))


@points(
    1,
    REMOVE,
    stage="property",
    why="what no request reads any more is free, the last first; all else stays where it is",
)
def test_random_lives_of_remove_skipped_blocks(lab: LabUnderTest) -> None:
    """Forty random lives of some tables that share blocks, each compared step by step with a model made of lists."""
    for seed in seeds(40):
        rng = random.Random(seed)
        world = World(rng.choice((1, 3, 4)), rng.randint(1, 14))
        life = random_life(rng, world.block_size)
        attempt = partial(live, lab, world)
        if not fails(attempt, life):
            continue
        shortest = shrink(life, partial(fails, attempt))
        told = f", {world}, seed {seed}: {'; '.join(map(str, shortest))}"
        try:
            live(lab, world, shortest, told)
        except InvariantViolationError as error:
            message = f"{error.violation.message}{told}"
            raise InvariantViolationError(Violation(error.violation.invariant_id, message)) from None


@points(1, FIND, stage="property", why="of all ends, the last at which every block that the next token reads is cached")
def test_random_caches_of_find_longest_cache_hit(lab: LabUnderTest) -> None:
    """Forty random windows and caches; every end is tried."""
    compare_random_caches(lab, FIND)


@points(1, MEET, stage="property", why="of all ends, the last at which every group has what its next token reads")
def test_random_caches_of_several_groups(lab: LabUnderTest) -> None:
    """Forty random mixtures of two to five groups, and random caches; every end is tried."""
    compare_random_caches(lab, MEET)


@points(
    1,
    GROUP,
    stage="property",
    why="the rarest kind, or the most frequent if it is near, says how many layers a group has",
)
def test_random_models_of_group_layers(lab: LabUnderTest) -> None:
    """Forty random models; layers are dealt out one by one."""
    for seed in seeds(40):
        rng = random.Random(seed)
        kinds = rng.sample("fwsv", rng.randint(1, 4))
        order = [kind for kind in kinds for _ in range(rng.choice((1, 2, 3, 10, 12, 13, 15, 20, 31)))]
        rng.shuffle(order)
        model = layers(order)
        lab.expect(f"groups of {''.join(order)} (seed {seed})", dealt(model, order), grouped(lab, model))


def dealt(model: Mapping[str, KVCacheSpec], order: Sequence[str]) -> list[list[str]]:
    """Return the groups of a model, made with the hands."""
    kinds = sorted(set(order), key=order.index)
    counts = sorted(order.count(kind) for kind in kinds)
    size = counts[-1] if 2 * counts[-1] < 3 * counts[0] else counts[0]
    groups = []
    for kind in kinds:
        names = [name for name in model if name[0] == kind]
        hands: list[list[str]] = [[]]
        while len(hands) * size < len(names):
            hands.append([])
        for name in names:
            min(hands, key=len).append(name)  # of several, the first
        groups += hands
    return groups


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def fails(attempt: Callable[..., object], steps: Any) -> bool:
    """Return whether the learner's code differs from the model, breaks an invariant or breaks down."""
    try:
        attempt(steps)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


# Random caches: a group is what it reads, a cache is a set of (group, place of a cached block).


@dataclass(frozen=True)
class Kind:
    """A group as the definition has it: which earlier tokens does a token read?"""

    name: str
    reach: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.reach}" if self.reach else self.name

    def spec(self, block_size: int) -> KVCacheSpec:
        """Return the engine's spec."""
        if self.name == "window":
            return window(self.reach, block_size)
        return full(block_size) if self.name == "full" else state(block_size)

    def read(self, token: int) -> list[int]:
        """Return the tokens before it that a token reads; of a state, the one that it stands behind."""
        nearest = {"full": token, "window": self.reach - 1, "state": 1}[self.name]
        return [other for other in range(token) if token - other <= nearest]


def compare_random_caches(lab: LabUnderTest, learners: str) -> None:
    """Try forty random caches; of the first that goes wrong, drop cached blocks as long as it still does."""
    for seed in seeds(40):
        rng = random.Random(seed)
        block_size, num_blocks = rng.choice((1, 2, 3, 4)), rng.randint(1, 9)
        kinds = [Kind("window", rng.randint(1, 3 * block_size + 2)) for _ in range(rng.randint(1, 3))]
        if learners == FIND:
            kinds = kinds[:1]
        else:
            kinds += [Kind("full")] * rng.choice((0, 1, 1, 2)) + [Kind("state")] * rng.choice((0, 0, 1))
            kinds = [*kinds, Kind("full")] if len(kinds) == 1 else kinds
            rng.shuffle(kinds)
        density = rng.choice((0.5, 0.8, 0.95))
        places = [(group, place) for group in range(len(kinds)) for place in range(num_blocks)]
        cached = [pair for pair in places if rng.random() < density]
        max_length = rng.randint(0, block_size * (num_blocks + 1))
        attempt = partial(ask, lab, learners, (kinds, block_size, num_blocks, max_length))
        if fails(attempt, cached):
            attempt(shrink(cached, partial(fails, attempt)), f", seed {seed}")


def ask(
    lab: LabUnderTest,
    learners: str,
    question: tuple[list[Kind], int, int, int],
    cached: Sequence[tuple[int, int]],
    told: str = "",
) -> None:
    """Compare the learner's hit with the one that is found by trying every end."""
    kinds, block_size, num_blocks, max_length = question
    marks = [
        "".join(LETTERS[place] if (group, place) in cached else " " for place in range(num_blocks))
        for group in range(len(kinds))
    ]
    want = 0
    for end in range(min(max_length // block_size, num_blocks), 0, -1):
        read = [{token // block_size for token in kind.read(end * block_size)} for kind in kinds]
        if all((group, place) in cached for group, places in enumerate(read) for place in places):
            want = end
            break
    expected = [
        [10 * group + place + 1 if any(t // block_size == place for t in kind.read(want * block_size)) else 0
         for place in range(want)]
        for group, kind in enumerate(kinds)
    ]  # fmt: skip
    groups = [(kind.spec(block_size), mark) for kind, mark in zip(kinds, marks, strict=True)]
    story = "; ".join(
        f"{kind} has {' '.join(mark.split()) or 'nothing'}" for kind, mark in zip(kinds, marks, strict=True)
    )
    what = f"blocks of {block_size}, at most {max_length} of {num_blocks * block_size} tokens, {story}{told}"
    if learners == FIND:
        hit = with_cached(lab, FIND, *groups[0]).find_longest_cache_hit(NAMES[:num_blocks], max_length)
        lab.expect(f"hit: {what}", expected[0], ids_of(hit))
    else:
        hits, num_tokens = with_groups(lab, MEET, groups).find_longest_cache_hit(NAMES[:num_blocks], max_length)
        lab.expect(f"tokens hit: {what}", want * block_size, num_tokens)
        lab.expect(f"hits: {what}", expected, [ids_of(hit) for hit in hits])


# Random lives of tables: requests come, some with the beginning of another's table, and their windows move on.


@dataclass(frozen=True)
class World:
    """Where a life happens."""

    block_size: int
    sliding_window: int

    def __str__(self) -> str:
        return f"blocks of {self.block_size}, a window of {self.sliding_window}"


@dataclass(frozen=True)
class Step:
    """A request comes with `number` new blocks behind `shared` of another's, or it has `number` tokens computed."""

    name: str
    number: int
    shared: int = -1
    of: str = ""
    num_named: int = 0

    def __str__(self) -> str:
        if self.shared < 0:
            return f"{self.name} at {self.number}"
        shares = f" behind {self.shared} of {self.of}'s" if self.of else ""
        return f"{self.name} comes with {self.number} blocks{shares}, {self.num_named} named"


def random_life(rng: random.Random, block_size: int) -> list[Step]:
    """Return requests whose windows move on, now by one token and now by many."""
    life: list[Step] = []
    lengths: dict[str, list[int]] = {}  # blocks, tokens computed
    for number in range(3):
        name, num_new = "ABC"[number], rng.randint(1, 6)
        of = rng.choice([*lengths, ""])
        shared = rng.randint(0, lengths[of][0]) if of else 0
        life.append(Step(name, num_new, shared, of, rng.choice((0, shared, shared + num_new))))
        lengths[name] = [shared + num_new, 0]
        for _ in range(5):
            moving = rng.choice(list(lengths))
            blocks, computed = lengths[moving]
            computed = min(computed + rng.choice((1, 2, block_size, 3 * block_size)), blocks * block_size)
            lengths[moving][1] = computed
            life.append(Step(moving, computed))
    return life


def live(lab: LabUnderTest, world: World, life: Sequence[Step], told: str = "") -> None:
    """Play the steps on a group with the learner's `remove_skipped_blocks` and on the model."""
    pool, group = make_pool(lab, REMOVE, window(world.sliding_window, world.block_size), num_blocks=20)
    lab.watch_pool(pool, group.req_to_blocks)
    model = NaiveTables(world, num_blocks=20)
    for step in life:
        if step.shared >= 0:
            new = model.come(step)
            pool.evict_blocks(new)  # memory that is used anew has lost its name
            hold(group, step.name, model.tables[step.name], step.num_named)
        elif step.name in model.tables:
            remove(lab, group, step.name, step.number)
            model.move_on(step.name, step.number)
        for name, want in model.tables.items():
            lab.expect(f"table of {name}{told}", want, table_of(group, name))
        lab.expect(f"free queue{told}", model.queue, free_queue(pool))
        lab.expect(f"blocks with a name{told}", sorted(model.named), named(pool))


class NaiveTables:
    """The same without counts: a block is free when it stands in no table."""

    def __init__(self, world: World, num_blocks: int) -> None:
        self.world = world
        self.queue = list(range(1, num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.named: set[int] = set()

    def come(self, step: Step) -> list[int]:
        """Make the request's table; return its new blocks."""
        new, self.queue = self.queue[: step.number], self.queue[step.number :]
        self.named -= set(new)
        self.tables[step.name] = self.tables.get(step.of, [])[: step.shared] + new
        self.named |= {block for block in self.tables[step.name][: step.num_named] if block}
        return new

    def move_on(self, name: str, num_computed: int) -> None:
        """Null what lies left of the window of token `num_computed`; whoever stands in no table any more is free."""
        first_read = max(num_computed - self.world.sliding_window + 1, 0)
        table, free = self.tables[name], []
        for place in reversed(range(len(table))):
            block = table[place]
            if block and (place + 1) * self.world.block_size <= first_read:
                table[place] = 0
                if not any(block in other for other in self.tables.values()):
                    free.append(block)
        in_front = [block for block in free if block not in self.named]
        self.queue = in_front + self.queue + [block for block in free if block in self.named]


# What the tests above stand on --------------------------------------------------------------------------------------


def assembled(lab: LabUnderTest, function: str) -> Any:
    """Return a window's manager of which this one method is the learner's; the engine's stand in for the other two.

    What the learner's method makes is checked for its type before the engine has to live with it.
    """
    if function not in (SKIP, REMOVE, FIND):
        return managers.SlidingWindowManager
    own = lab.SlidingWindowManager

    def get_num_skipped_tokens(self: Any, num_computed_tokens: int) -> Any:
        answer = own.get_num_skipped_tokens(self, num_computed_tokens)
        if type(answer) is not int:
            lab.fail(f"what get_num_skipped_tokens({num_computed_tokens}) returned", "a number of tokens", answer)
        return answer

    def remove_skipped_blocks(self: Any, request_id: str, num_computed_tokens: int) -> None:
        own.remove_skipped_blocks(self, request_id, num_computed_tokens)
        table = self.req_to_blocks.get(request_id, [])
        if not are_blocks(table):
            what = f"{request_id}'s table after remove_skipped_blocks({request_id!r}, {num_computed_tokens})"
            lab.fail(what, "a list of KVCacheBlock, the null block where one has gone", table)

    def find_longest_cache_hit(self: Any, block_hashes: Sequence[BlockHash], max_length: int) -> Any:
        hit = own.find_longest_cache_hit(self, block_hashes, max_length)
        if not are_blocks(hit):
            lab.fail("what find_longest_cache_hit returned", "a list of KVCacheBlock, one for each place", hit)
        return hit

    learners = {SKIP: get_num_skipped_tokens, REMOVE: remove_skipped_blocks, FIND: find_longest_cache_hit}
    body: dict[str, Any] = {}
    for name in (SKIP, REMOVE, FIND):
        method = name.partition(".")[2]
        body[method] = getattr(managers.SlidingWindowManager, method)
        if name == function:
            body[method] = learners[name]
    return type("SlidingWindowManager", (own,), body)


def assembled_coordinator(lab: LabUnderTest) -> Any:
    """Return the learner's coordinator, whose answer is checked for its type."""
    own = lab.HybridKVCacheCoordinator

    def find_longest_cache_hit(self: Any, block_hashes: Sequence[BlockHash], max_cache_hit_length: int) -> Any:
        answer = own.find_longest_cache_hit(self, block_hashes, max_cache_hit_length)
        good = type(answer) is tuple and len(answer) == 2 and type(answer[0]) is tuple and type(answer[1]) is int
        if not good or len(answer[0]) != len(self.single_type_managers) or not all(map(are_blocks, answer[0])):
            lab.fail("what find_longest_cache_hit returned", "a tuple with a list of blocks a group; tokens", answer)
        return answer

    return type("HybridKVCacheCoordinator", (own,), {"find_longest_cache_hit": find_longest_cache_hit})


def make_group(lab: LabUnderTest, function: str, spec: KVCacheSpec) -> Any:
    """Return a group's manager over a small pool of its own."""
    return assembled(lab, function)(spec, BlockPool(4), 0)


def make_pool(lab: LabUnderTest, function: str, spec: KVCacheSpec, num_blocks: int) -> tuple[BlockPool, Any]:
    """Return a pool and a group's manager over it."""
    pool = BlockPool(num_blocks)
    return pool, assembled(lab, function)(spec, pool, 0)


def make_kv(lab: LabUnderTest, function: str, num_blocks: int, *specs: KVCacheSpec) -> WatchedKVCacheManager:
    """Return a cache of one group a spec, which checks its ledger after every call."""
    groups = tuple(KVCacheGroupSpec((f"layers of group {number}",), spec) for number, spec in enumerate(specs))
    managers_by_spec = {**coordinators.MANAGER_CLASSES, SlidingWindowSpec: assembled(lab, function)}
    return lab.make_kv_of(KVCacheConfig(num_blocks, groups), parts=KVCacheParts(manager_classes=managers_by_spec))


def enter(pool: BlockPool, group_id: int, ids: Mapping[int, int], names: Sequence[BlockHash] = NAMES) -> None:
    """Put blocks into the index: at a place in the prompt, the block with this number. They are held."""
    for place, block_id in ids.items():
        pool.touch([pool.blocks[block_id]])
        pool.cache_full_blocks([pool.blocks[block_id]], [names[place]], 0, 1, group_id)


def with_cached(
    lab: LabUnderTest, function: str, spec: KVCacheSpec, cached: str, ids: Sequence[int] = range(1, 20)
) -> Any:
    """Return a group's manager, with blocks cached where the text has a letter."""
    pool, group = make_pool(lab, function, spec, num_blocks=20)
    places = [place for place, letter in enumerate(cached) if letter != " "]
    enter(pool, 0, {place: ids[place] for place in places})
    lab.watch_pool(
        pool, {"cached": [pool.blocks[ids[place] if place in places else 0] for place in range(len(cached))]}
    )
    return group


def with_groups(lab: LabUnderTest, function: str, groups: Sequence[tuple[KVCacheSpec, str]]) -> Any:
    """Return a coordinator of several groups; of group 2, say, 21, 22, ... are cached where there is a letter."""
    pool = BlockPool(10 * len(groups) + 1)
    tables = {}
    for group_id, (_, cached) in enumerate(groups):
        ids = {place: 10 * group_id + place + 1 for place, letter in enumerate(cached) if letter != " "}
        enter(pool, group_id, ids)
        tables[f"group {group_id}"] = [pool.blocks[ids.get(place, 0)] for place in range(len(cached))]
    lab.watch_pool(pool, tables)
    specs = tuple(KVCacheGroupSpec((f"layers of group {number}",), spec) for number, (spec, _) in enumerate(groups))
    coordinator = assembled_coordinator(lab) if function == MEET else coordinators.HybridKVCacheCoordinator
    return coordinator(KVCacheConfig(2, specs), pool)


def hold(group: Any, name: str, ids: Sequence[int], named: int = 0) -> None:
    """Give a request a table of these blocks, 0 for the null block; the first so many get names of their own."""
    pool = group.block_pool
    table = [pool.blocks[block_id] for block_id in ids]
    pool.touch(table)
    for block in table[:named]:
        if block.block_hash is None:
            pool.cache_full_blocks([block], [BlockHash(b"block %d" % block.block_id)], 0, 1)
    group.req_to_blocks[name] = table


def remove(lab: LabUnderTest, group: Any, name: str, num_computed_tokens: int) -> None:
    """Call the learner's `remove_skipped_blocks`, and check the ledger before anything else."""
    pool = group.block_pool
    free, given = pool.free_blocks, []

    def free_blocks(ordered_blocks: Iterable[KVCacheBlock]) -> None:
        given.extend(blocks := list(ordered_blocks))
        free(blocks)

    with mock.patch.object(pool, "free_blocks", free_blocks):
        group.remove_skipped_blocks(name, num_computed_tokens)
    lab.check_pool(pool, group.req_to_blocks)
    num_null = sum(block.is_null for block in given)
    lab.expect("null blocks given to free_blocks", 0, num_null, why="nobody holds the null block, so nobody frees it")


@contextmanager
def cause_first() -> Iterator[None]:
    """Show what went wrong first: it leaves a broken state behind, over which debug mode and trace stumble."""
    try:
        yield
    except Exception as error:
        stumbled = isinstance(error, InvariantViolationError) or isinstance(error.__context__, LabFailure)
        raise (error.__context__ if stumbled and error.__context__ is not None else error) from None


def grow(kv: WatchedKVCacheManager, request: Request, num_tokens: int) -> None:
    """Compute the request's next tokens; if it has no more, it has just said new ones."""
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


def layers(kinds: Iterable[str]) -> dict[str, KVCacheSpec]:
    """Return a model: a letter a layer: f(ull), w(indow), v, another window, s(tate); f0 is the first full one."""
    specs: dict[str, Callable[[], KVCacheSpec]] = {
        "f": full,
        "w": lambda: window(4),
        "v": lambda: window(8),
        "s": state,
    }
    model: dict[str, KVCacheSpec] = {}
    for kind in kinds:
        model[f"{kind}{sum(name[0] == kind for name in model)}"] = specs[kind]()
    return model


def grouped(lab: LabUnderTest, model: Mapping[str, KVCacheSpec]) -> list[list[str]]:
    """Return the names in each of the learner's groups; first check that each group has the spec of its layers."""
    groups = lab.group_layers(model)
    if type(groups) is not tuple or not all(isinstance(group, KVCacheGroupSpec) for group in groups):
        lab.fail("what group_layers returned", "a tuple of KVCacheGroupSpec", groups)
    for group in groups:
        names = group.layer_names
        if type(names) is not tuple or not all(name in model for name in names):
            lab.fail("layer_names of a group", "a tuple of names of the model's layers", names)
        for name in names:
            if model[name] != group.kv_cache_spec:
                lab.fail(f"spec of the group of {name}", model[name], group.kv_cache_spec, "layers of one kind only")
    return [list(group.layer_names) for group in groups]


def table_of(group: Any, name: str) -> list[int]:
    """Return the ids in the request's block table."""
    return ids_of(group.req_to_blocks[name])


def named(pool: BlockPool) -> list[int]:
    """Return the ids of the blocks that carry a name."""
    return [block.block_id for block in pool.blocks if block.block_hash is not None]


def free_queue(pool: BlockPool) -> list[int]:
    """Return the ids in the free queue, the next to be handed out first."""
    return ids_of(pool.free_block_queue.get_all_free_blocks())


def are_blocks(value: object) -> bool:
    """Return whether it is a list of blocks and nothing else."""
    return type(value) is list and all(isinstance(item, KVCacheBlock) for item in value)


def ids_of(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """Return the numbers of the blocks, which is how a drawing names them."""
    return [block.block_id for block in blocks]
