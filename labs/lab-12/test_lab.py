"""lab-12: layers with a window, and layers of several kinds over one pool. Read the numbered tests in order.

Tokens are counted from 0: when 5 are computed, token 5 is next. Block 0 is the null block, which is always empty.

Only the part of the test is yours. The other parts are the engine's (see `manager_class` in helpers.py).
"""

from typing import Any

from mini_kv.core.block import BlockHash
from mini_kv.core.block_pool import BlockPool
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import cached_blocks, free_queue, ids_of, references, table

from .chance import compare_lives, compare_models, compare_random_caches, compare_windows
from .helpers import (
    FIND,
    GROUP,
    HASHES,
    MEET,
    REMOVE,
    SKIP,
    CountedFullAttention,
    NotingIndex,
    around_edges,
    draw,
    full,
    grouped,
    grow,
    held,
    hit_of,
    layers,
    lookup,
    make_group,
    make_kv,
    meet,
    remove,
    state,
    table_of,
    window,
    with_cached,
    with_groups,
    with_tables,
)

# The biography ------------------------------------------------------------------------------------------------------


@points(3, SKIP, rule=1)
def test_1_tokens_that_no_later_token_reads(lab: LabUnderTest) -> None:
    """A window of 4. With 0 tokens computed, 1, 2 and so on: how many of them will no token read again?

    tokens    0  1  2  3  4  5 | 6           6 are computed, token 6 is next
                       r  r  r   r           it reads 3, 4, 5 and itself
              -  -  -                        3 are skipped
    """
    group = make_group(lab, SKIP, window(4), BlockPool(4))
    got = [group.get_num_skipped_tokens(num_computed) for num_computed in range(9)]
    lab.expect("tokens skipped with 0, 1, 2, ... 8 computed, in a window of 4", [0, 0, 0, 0, 1, 2, 3, 4, 5], got)


@points(3, SKIP, rule=1)
def test_2_a_window_keeps_the_blocks_that_it_still_reads(lab: LabUnderTest) -> None:
    """Ten full and twenty window layers are three groups. The window is 32, blocks have 16. A has 111 tokens computed.

    Now token 111, the 112th, gets its slot, then token 112. How many blocks does each group hold?
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


@points(3, REMOVE, rule=2, why="a table keeps its length, since a token is found by counting blocks from the first")
def test_3_null_blocks_left_of_the_window(lab: LabUnderTest) -> None:
    """A window of 4, blocks of 2. A's table is 1 2 3 4. Tokens are computed one by one, and blocks are freed."""
    group = with_tables(lab, window(4), num_blocks=8, A=[1, 2, 3, 4])
    tables = {3: [1, 2, 3, 4], 4: [1, 2, 3, 4], 5: [0, 2, 3, 4], 6: [0, 2, 3, 4], 7: [0, 0, 3, 4], 8: [0, 0, 3, 4]}
    for num_computed, want in tables.items():
        remove(lab, group, "A", num_computed)
        skipped = max(num_computed - 3, 0)
        why = f"{skipped} tokens are skipped, two in a block" if len(table_of(group, "A")) == 4 else ""
        what = f"A's table with {num_computed} tokens computed (0 is the null block)"
        lab.expect(what, want, table_of(group, "A"), why)


@points(3, REMOVE, rule=3, why="the block freed first is reused first, and late blocks are shared less often")
def test_4_skipped_blocks_are_freed_last_first(lab: LabUnderTest) -> None:
    """A's six blocks are cached. After a long step, one call frees four of them. In which order?"""
    group = with_tables(lab, window(4), num_blocks=10, cached=range(1, 7), A=[1, 2, 3, 4, 5, 6])
    remove(lab, group, "A", 12)
    lab.expect("A's table with 12 tokens computed", [0, 0, 0, 0, 5, 6], table_of(group, "A"), rule=2)
    lab.expect("free queue, the next to be reused first", [7, 8, 9, 4, 3, 2, 1], free_queue(group))
    lab.expect("cached blocks", [1, 2, 3, 4, 5, 6], cached_blocks(group), why="freed blocks can be hit")


@points(2, REMOVE, rule=2, why="a step needs slots for its own tokens and the window before them")
def test_5_smaller_steps_hold_fewer_blocks(lab: LabUnderTest) -> None:
    """The prompt of 112 tokens again, in one step, in steps of 48 and of 16. Then the first token of the answer.

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


@points(3, FIND, rule=5)
def test_6_a_hit_needs_only_the_window(lab: LabUnderTest) -> None:
    """A window of 4, blocks of 2. A's twelve tokens were in blocks 1 to 6. Then blocks 1, 2 and 3 were reused."""
    kv = make_kv(lab, FIND, 12, window(4))
    request = kv.new_request("A", range(12))
    grow(kv, request, 12)
    kv.free(request)
    why = "all but the last token: 5 blocks"
    lab.expect("hit of the same prompt, all cached", [0, 0, 0, 4, 5], lookup(kv, range(12)), why)
    kv.evict_blocks([1, 2, 3])
    lab.expect("hit without blocks 1, 2 and 3", [0, 0, 0, 4, 5], lookup(kv, range(12)))
    kv.evict_blocks([4])
    why = "token 10 reads blocks 4 and 5; token 12 reads only blocks 5 and 6"
    lab.expect("hit without block 4 as well", [], lookup(kv, range(12)), why=why)
    lab.expect("hit of 13 tokens without block 4", [0, 0, 0, 0, 5, 6], lookup(kv, range(13)), why=why)


@points(3, FIND, rule=4)
def test_7_a_hit_is_searched_from_the_right(lab: LabUnderTest) -> None:
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
        got = hit_of(with_cached(lab, window(4), cached), 6, 12)
        why = "the first block alone is a hit: two tokens, and the next token reads no more" if want == [1] else ""
        lab.expect(f"hit with {' '.join(cached.split())!r} cached, of a to f", want, got, why=why)


@points(3, MEET, rule=8, why="a shortened hit of a window need not be a hit: the new end reads other blocks")
def test_8_groups_must_agree_on_one_length(lab: LabUnderTest) -> None:
    """Full attention has 4 blocks. The window reads one block, and has its first, third, fifth and sixth."""
    groups = with_groups(lab, (full(), "abcd"), (window(3), "a c ef"))
    alone = [len(hit_of(group, 6, 12)) for group in groups.single_type_managers]
    lab.expect("blocks that each group alone could hit", [4, 6], alone)
    hits, num_tokens = meet(lab, groups, 6, 12)
    lab.expect("tokens hit by both", 6, num_tokens, why="not 8: at 8 the window's fourth block is read")
    lab.expect("blocks hit, one list per group", [[1, 2, 3], [0, 0, 13]], hits)


@points(4, MEET, rule=8, why="when one group shortens the hit, ask the other groups again with the new length")
def test_9_every_group_is_asked_again_until_all_agree(lab: LabUnderTest) -> None:
    """Three groups. No group's own longest hit is a hit of all three.

    full       a b c d e f        12 tokens, and any beginning
    window 5   a b - - e f        12 tokens; or 4; or 2
    state      - b - d - -        8 tokens; or 4
    """
    groups = with_groups(lab, (full(), "abcdef"), (window(5), "ab  ef"), (state(), " b d  "))
    alone = [2 * len(hit_of(group, 6, 12)) for group in groups.single_type_managers]
    lab.expect("tokens that each group alone could hit", [12, 12, 8], alone)
    hits, num_tokens = meet(lab, groups, 6, 12)
    lab.expect("tokens hit by all", 4, num_tokens, why="at 8 the window reads c and d; at 4 all groups have a hit")
    lab.expect("blocks hit, one list per group", [[1, 2], [11, 12], [0, 22]], hits)


@points(2, GROUP, rule=11)
def test_10_layers_are_dealt_into_groups_of_one_size(lab: LabUnderTest) -> None:
    """A model of 30 layers: one full, two windows, and so on. Three groups of ten: which layers are together?"""
    groups = grouped(lab, layers("fww" * 10))
    lab.expect("layers in each group", [10, 10, 10], [len(names) for names in groups])
    for number, (kind, first) in enumerate((("f", range(10)), ("w", range(0, 20, 2)), ("w", range(1, 20, 2)))):
        want = [f"{kind}{layer}" for layer in first]
        lab.expect(f"layers of group {number}", want, groups[number], rule=12)


@points(1, GROUP, rule=12, why="empty places are spread, so no group is left with two layers and eight unused places")
def test_11_the_rarest_kind_decides_the_size(lab: LabUnderTest) -> None:
    """The counts of Gemma 3 27B: 52 windows, 10 full. Groups have at most ten: how full is each?"""
    groups = grouped(lab, layers("wwwwwf" * 10 + "ww"))
    lab.expect("layers in each group, windows first", [9, 9, 9, 9, 8, 8, 10], [len(names) for names in groups])


@points(1, GROUP, rule=11, why="with nearly equal counts, an empty place costs less than another group")
def test_12_nearly_equal_kinds_take_the_larger_size(lab: LabUnderTest) -> None:
    """13 and 12 layers, then 14 and 10, 15 and 10, 16 and 10. Where do two groups become three?"""
    want = {(13, 12): [13, 12], (14, 10): [14, 10], (15, 10): [8, 7, 10], (16, 10): [8, 8, 10], (12, 13): [12, 13]}
    got = {(w, f): [len(names) for names in grouped(lab, layers("w" * w + "f" * f))] for w, f in want}
    why = "if most < 1.5 * least, a group has `most` layers"
    lab.expect_all(
        (f"layers in each group of {num_windows} windows and {num_full} full", sizes, got[num_windows, num_full], why)
        for (num_windows, num_full), sizes in want.items()
    )


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, SKIP, rule=1, stage="adversary")
def test_windows_of_one_and_of_a_thousand(lab: LabUnderTest) -> None:
    """In a window of 1 a token reads only itself. A window of 1,000 is not full yet. Others are within a block."""
    for sliding_window, want in (
        (1, [0, 1, 2, 3, 15, 16, 17]),
        (2, [0, 0, 1, 2, 14, 15, 16]),
        (16, [0, 0, 0, 0, 0, 1, 2]),
        (1000, [0, 0, 0, 0, 0, 0, 0]),
    ):
        group = make_group(lab, SKIP, window(sliding_window, 16), BlockPool(4))
        got = [group.get_num_skipped_tokens(num_computed) for num_computed in (0, 1, 2, 3, 15, 16, 17)]
        lab.expect(f"tokens skipped with 0 1 2 3 15 16 17 computed, in a window of {sliding_window}", want, got)


@points(1, REMOVE, rule=3, stage="adversary", why="another request still reads this block: drop one reference only")
def test_a_neighbour_still_reads_it(lab: LabUnderTest) -> None:
    """A and B share blocks 1 and 2. Their windows move on in turns, until only their last blocks are left."""
    group = with_tables(lab, window(3), num_blocks=9, cached=[1, 2, 3, 4], A=[1, 2, 3, 4], B=[1, 2, 5])
    for name, num_computed, queue, tables in (
        ("A", 6, [6, 7, 8], [[0, 0, 3, 4], [1, 2, 5]]),
        ("B", 4, [6, 7, 8, 1], [[0, 0, 3, 4], [0, 2, 5]]),
        ("B", 6, [6, 7, 8, 1, 2], [[0, 0, 3, 4], [0, 0, 5]]),
        ("A", 8, [6, 7, 8, 1, 2, 3], [[0, 0, 0, 4], [0, 0, 5]]),
    ):
        remove(lab, group, name, num_computed)
        then = f"when {name} has {num_computed} tokens computed"
        lab.expect(f"tables of A and B {then}", tables, [table_of(group, "A"), table_of(group, "B")])
        lab.expect(f"free queue {then}", queue, free_queue(group))


@points(1, REMOVE, rule=3, stage="adversary")
def test_again_and_before_admission(lab: LabUnderTest) -> None:
    """The same call twice, a table that begins with a hit's null blocks, a request without a table."""
    group = with_tables(lab, window(4), num_blocks=12, cached=[4, 5, 6, 7], A=[0, 0, 0, 4, 5, 6, 7])
    for num_computed, want, queue in (
        (10, [0, 0, 0, 4, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11]),
        (12, [0, 0, 0, 0, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4]),
        (12, [0, 0, 0, 0, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4]),
        (14, [0, 0, 0, 0, 0, 6, 7], [1, 2, 3, 8, 9, 10, 11, 4, 5]),
    ):
        remove(lab, group, "A", num_computed)
        lab.expect(f"A's table with {num_computed} tokens computed", want, table_of(group, "A"), rule=2)
        lab.expect(f"free queue with {num_computed} tokens computed", queue, free_queue(group))
    group.remove_skipped_blocks("B", 14)
    lab.expect("requests with a table, after a call for B, who has none", ["A"], list(group.req_to_blocks), rule=2)


@points(1, REMOVE, rule=3, stage="adversary", why="uncached blocks go to the front, in the order given")
def test_without_caching_skipped_blocks_go_to_the_front(lab: LabUnderTest) -> None:
    """Caching is off, so freed blocks go to the front of the queue. One call frees three blocks, or five."""
    for sliding_window, want in ((4, [3, 2, 1, 6, 7]), (1, [5, 4, 3, 2, 1, 6, 7])):
        group = with_tables(lab, window(sliding_window), num_blocks=8, A=[1, 2, 3, 4, 5])
        remove(lab, group, "A", 10)
        lab.expect(f"free queue with 10 tokens computed, in a window of {sliding_window}", want, free_queue(group))


@points(1, REMOVE, rule=2, stage="adversary", why="a freed block stays cached until its reuse")
def test_what_slid_out_can_be_hit_again(lab: LabUnderTest) -> None:
    """A has twelve tokens and goes on. B has the same first six, whose blocks A freed before."""
    kv = make_kv(lab, REMOVE, 20, window(4))
    a = kv.new_request("A", range(12))
    for step in (6, 6, 1):
        grow(kv, a, step)
    lab.expect("A's table with 13 tokens", [0, 0, 0, 0, 5, 6, 7], table(kv, "A"))
    lab.expect("B's hit of 7 tokens, six as A's", [0, 2, 3], lookup(kv, [*range(6), 77]))
    b = kv.hold([*range(6), 77], "B")
    grow(kv, b, 2)
    lab.expect("B's table with 9 tokens", [0, 0, 3, 8, 9], table(kv, "B"), why="token 7 reads token 4, in block 3")
    kv.free(a)
    kv.free(b)
    lab.expect("free blocks, A and B gone", 19, kv.block_pool.num_free_blocks)


@points(1, FIND, rule=6, stage="adversary")
def test_no_longer_than_asked(lab: LabUnderTest) -> None:
    """Every max_length around a block's edge, blocks of 1, 3, 4 and 16 tokens, windows around theirs."""
    rows: list[tuple[str, object, object, str]] = []
    for block_size in (1, 3, 4, 16):
        for sliding_window in (block_size, block_size + 1, block_size + 2, 2 * block_size + 1):
            group = with_cached(lab, window(sliding_window, block_size), "abcde", ids=[9, 3, 7, 1, 5])
            for max_length in around_edges(block_size, 8):
                end = min(max_length // block_size, 5)
                num_read = -(-(sliding_window - 1) // block_size)
                want = [0] * max(end - num_read, 0) + [9, 3, 7, 1, 5][:end][-num_read or 5 :]
                what = f"hit with max_length {max_length}, 5 blocks of {block_size}, a window of {sliding_window}"
                rows.append((what, want, hit_of(group, 5, max_length), ""))
    lab.expect_all(rows)


@points(1, FIND, rule=5, stage="adversary")
def test_a_window_may_need_no_block(lab: LabUnderTest) -> None:
    """A window of 1 with an empty cache. A window longer than the prompt, with one block missing."""
    for what, size, cached, num_blocks, want in (
        ("of 8 tokens in a window of 1, nothing cached", 1, "", 4, [0, 0, 0, 0]),
        ("in a window of 100 without the first block", 100, " bcdef", 6, []),
        ("in a window of 100 without the fifth block", 100, "abcd f", 6, [1, 2, 3, 4]),
    ):
        group = with_cached(lab, window(size), cached)
        lab.expect(f"hit {what}", want, hit_of(group, num_blocks, 2 * num_blocks))


@points(1, FIND, rule=5, stage="adversary", why="a prefix has different KV in each group")
def test_each_group_finds_its_own(lab: LabUnderTest) -> None:
    """Group 0 has a, b and c cached, group 1 only a and b. What does a window of group 1 find?"""
    for group_id, cached, want in ((0, "abc", [0, 2, 3]), (1, "ab", [11, 12])):
        pool = BlockPool(40)
        draw(pool, 0, "abc", [1, 2, 3])
        draw(pool, 1, "ab", [11, 12])
        group = make_group(lab, FIND, window(4), pool, group_id)
        lab.expect(f"hit in group {group_id}, which has {' '.join(cached)}", want, hit_of(group, 3, 6))


@points(1, FIND, rule=7, stage="adversary")
def test_how_many_lookups(lab: LabUnderTest) -> None:
    """A prompt of 1,000 blocks, all cached, a window of two. Then with holes: is any block looked up twice?"""
    hashes = [BlockHash(b"%d" % number) for number in range(1000)]
    for holes, want in ((), [999, 998]), ((998, 996, 995), [993, 994]), ((999, 1, 0), [998, 997]):
        pool: Any = BlockPool(1001, make_index=NotingIndex)
        marks = "".join(" " if position in holes else "x" for position in range(1000))
        draw(pool, 0, marks, range(1, 1001), hashes)
        hit = make_group(lab, FIND, window(4), pool).find_longest_cache_hit(hashes, 2000)
        what = f"of 1,000 blocks, cached but for {list(holes)}" if holes else "of 1,000 blocks, all cached"
        lab.expect(f"blocks hit {what}", sorted(want), [n for n, b in enumerate(hit) if not b.is_null], rule=4)
        asked = [int(key[:-4]) for key in pool.cached_block_hash_to_block.asked]
        lab.expect(f"blocks looked up twice {what}", [], sorted({p for p in asked if asked.count(p) > 1}))
        num_left = sum(position < min(want) for position in asked)
        lab.expect(f"blocks looked up left of the hit's window {what}", 0, num_left)


@points(1, FIND, rule=7, stage="adversary")
def test_a_question_changes_nothing(lab: LabUnderTest) -> None:
    """Block c is held, a and b are free. References and the queue are the same before and after."""
    pool = BlockPool(8)
    draw(pool, 0, "abc", [1, 2, 3])
    pool.free_blocks([pool.blocks[2], pool.blocks[1]])
    lab.watch_pool(pool, {"held": [pool.blocks[3]]})
    hashes = HASHES[:3]
    hit = make_group(lab, FIND, window(4), pool).find_longest_cache_hit(hashes, 6)
    lab.expect("hit", [0, 2, 3], ids_of(hit), why="free or held, a cached block can be hit")
    lab.expect("references of blocks 0 to 3 afterwards", [0, 0, 0, 1], references(pool, range(4)))
    lab.expect("free queue afterwards", [4, 5, 6, 7, 2, 1], free_queue(pool))
    lab.expect("hashes in the list that was given, afterwards", 3, len(hashes))


@points(1, MEET, rule=8, stage="adversary", why="list i goes into the block table of group i: keep the groups' order")
def test_the_order_of_the_groups(lab: LabUnderTest) -> None:
    """The window is group 0, full attention group 1. The result keeps the groups' order."""
    hits, num_tokens = meet(lab, with_groups(lab, (window(3), "abc"), (full(), "abcd"), (window(5), "abcd")), 4, 9)
    lab.expect("tokens hit", 6, num_tokens)
    lab.expect("blocks hit, one list per group", [[0, 0, 3], [11, 12, 13], [0, 22, 23]], hits)


@points(1, MEET, rule=9, stage="adversary")
def test_full_attention_is_asked_once(lab: LabUnderTest) -> None:
    """Three groups shorten the hit again and again. How often is full attention asked?"""
    cached = [(full(), "abcdefgh"), (window(3), "abc e gh"), (window(5), "abcd fg "), (state(), "ab de  h")]
    groups = with_groups(lab, *cached, full_attention=CountedFullAttention)
    hits, num_tokens = meet(lab, groups, 8, 16)
    lab.expect("tokens hit", 4, num_tokens, why="the limit falls: 16, 14, 10, 8, 6, 4", rule=8)
    lab.expect("blocks hit, one list per group", [[1, 2], [0, 12], [21, 22], [0, 32]], hits, rule=8)
    lab.expect("how often full attention was asked", 1, groups.single_type_managers[0].num_asked)


@points(1, MEET, rule=9, stage="adversary")
def test_at_most_and_at_least(lab: LabUnderTest) -> None:
    """Limits around a block's edge, more hashes than blocks, and groups without a common length."""
    for block_size in (1, 3, 4, 16):
        groups = with_groups(lab, (window(block_size + 1, block_size), "abcd"), (full(block_size), "abcd"))
        for limit in around_edges(block_size, 6):
            hits, num_tokens = meet(lab, groups, 6, limit)
            num_blocks = min(limit // block_size, 4)
            what = f"with at most {limit} tokens, blocks of {block_size}, 4 of them cached in both groups"
            lab.expect(f"tokens hit {what}", num_blocks * block_size, num_tokens, rule=8)
            lab.expect(f"blocks in each list {what}", [num_blocks] * 2, [len(hit) for hit in hits], rule=8)
    for other in ("", " bcd"):
        groups = with_groups(lab, (full(), "abcd"), (full(), other), (window(1), ""))
        what = f"full attention with abcd, full attention with {other.strip() or 'nothing'}, and a window of 1"
        lab.expect(f"hit of {what}, and its tokens", ([[], [], []], 0), meet(lab, groups, 4, 8))


@points(1, GROUP, rule=10, stage="adversary", why="another window is another kind")
def test_what_is_one_kind(lab: LabUnderTest) -> None:
    """One kind alone, three kinds mixed, equal specs that are different objects, a kind with a single layer."""
    lab.expect("groups of four full layers", [["f0", "f1", "f2", "f3"]], grouped(lab, layers("ffff")))
    mixed = {"x": window(4), "y": full(), "z": window(8), "u": window(4), "v": window(8), "t": full()}
    lab.expect("groups of x z u v y t", [["x", "u"], ["y", "t"], ["z", "v"]], grouped(lab, mixed))
    single = grouped(lab, layers("wfwww"))
    lab.expect("groups of four windows and one full", [["w0"], ["w1"], ["w2"], ["w3"], ["f0"]], single)
    want = [["w0", "w2"], ["w1", "w3"], ["s0", "s2"], ["s1"], ["f0", "f1"]]
    lab.expect("groups of four windows, three states, two full", want, grouped(lab, layers("wsfwsfwsw")))


# The property -------------------------------------------------------------------------------------------------------


@points(1, SKIP, rule=1, stage="property")
def test_random_windows_of_get_num_skipped_tokens(lab: LabUnderTest) -> None:
    """Forty random windows. The tokens that are read are counted one by one."""
    compare_windows(lab)


@points(1, REMOVE, rule=2, stage="property")
def test_random_lives_of_remove_skipped_blocks(lab: LabUnderTest) -> None:
    """Forty random sequences on tables that share blocks, each compared step by step with a model of lists."""
    compare_lives(lab)


@points(1, FIND, rule=5, stage="property")
def test_random_caches_of_find_longest_cache_hit(lab: LabUnderTest) -> None:
    """Forty random windows and caches. Every end is tried."""
    compare_random_caches(lab, FIND)


@points(1, MEET, rule=8, stage="property")
def test_random_caches_of_several_groups(lab: LabUnderTest) -> None:
    """Forty random mixtures of groups, and random caches. Every end is tried."""
    compare_random_caches(lab, MEET)


@points(1, GROUP, rule=12, stage="property")
def test_random_models_of_group_layers(lab: LabUnderTest) -> None:
    """Forty random models. Layers are dealt out one by one."""
    compare_models(lab)
