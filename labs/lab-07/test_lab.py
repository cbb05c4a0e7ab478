"""lab-07: how a block gets its block hash, is found by it, and loses it. Read the numbered tests in order.

Blocks hold 4 tokens. PROMPT is 32 tokens, so 8 full blocks. Block 0 is the null block, which is never allocated. Only
the method that a test checks is yours. The others are the engine's (see `parts` in helpers.py).
"""

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import cached_blocks, free_queue, ids_of, scramble, table

from .helpers import (
    CACHE,
    EVICT,
    FIND,
    FREE,
    GET_ONE,
    INSERT,
    LOOKUP,
    POP,
    RECORD,
    K,
    L,
    M,
    around_edges,
    come_and_go,
    compare_lives,
    counted_lookup,
    counters,
    error_of,
    hashes_of,
    hit_without,
    hold,
    id_of,
    leave,
    lookup,
    make_group,
    make_index,
    make_kv,
    make_table,
    say,
    under,
)

PROMPT, OTHERS = list(range(32)), list(range(900, 932))
HASHES = [BlockHash(b"hash %d" % number) for number in range(5)]

# The biography ------------------------------------------------------------------------------------------------------


@points(2, CACHE, rule=4, why="a partial block still changes")
def test_1_a_full_block_gets_its_block_hash(lab: LabUnderTest) -> None:
    """A has 10 tokens: two full blocks are cached. The third, with 2 tokens, is not."""
    kv = make_kv(lab, CACHE, num_blocks=12)
    hold(kv, PROMPT[:10], "A")
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("cached blocks", [1, 2], cached_blocks(kv))
    lab.expect("blocks found for the same prompt", [1, 2], lookup(kv, PROMPT[:10]), why="a block is cached to be found")


@points(2, FIND, rule=8)
def test_2_the_longest_known_beginning_is_found(lab: LabUnderTest) -> None:
    """A has 32 tokens in eight blocks. How many blocks can prompts with the same beginning hit?"""
    kv = make_kv(lab, FIND, num_blocks=20)
    hold(kv, PROMPT, "A")
    lab.expect("hit of a prompt with 8 tokens more", [1, 2, 3, 4, 5, 6, 7, 8], lookup(kv, PROMPT + OTHERS[:8]))
    lab.expect("hit of a prompt that shares 18 tokens", [1, 2, 3, 4], lookup(kv, PROMPT[:18] + OTHERS[:10]))
    lab.expect("hit of a prompt that shares nothing", [], lookup(kv, OTHERS[:4] + PROMPT[4:]))


@points(3, LOOKUP, rule=10)
def test_3_the_last_token_is_always_computed(lab: LabUnderTest) -> None:
    """A has 32 tokens. B has the same 32 and hits seven blocks, 28 tokens. With one token more it hits eight, 32."""
    kv = make_kv(lab, LOOKUP, num_blocks=20)
    hold(kv, PROMPT, "A")
    cases = [("the same 32 tokens", PROMPT, 7), ("the same 32 tokens and one more", [*PROMPT, 7], 8)]
    cases += [("the first 31 of them", PROMPT[:31], 7), ("32 other tokens", OTHERS, 0)]
    for what, tokens, want in cases:
        blocks, num_tokens = kv.get_computed_blocks(request := kv.new_request("B", tokens))
        why = "the last token's result is wanted, so it is computed; all before it can be hit"
        lab.expect(f"blocks hit by {what}", list(range(1, want + 1)), ids_of(blocks.blocks[0]), why)
        lab.expect(f"tokens hit by {what}", 4 * want, num_tokens, why="whole blocks of 4, counted in tokens")
        lab.expect("B's computed tokens after the lookup", 0, request.num_computed_tokens, why="B may yet be refused")


@points(3, FIND, rule=8, why="a request's progress is one number, and has no gaps")
def test_4_nothing_behind_a_gap_is_hit(lab: LabUnderTest) -> None:
    """Block 3 is evicted, or 4, or 5, or 1 and 3. How many of the other blocks can be hit?"""
    why = "what is behind the gap is in the cache, and out of reach"
    rows = [(f"hit without block {gap}", [*range(1, gap)], hit_without(lab, PROMPT, gap), why) for gap in (5, 4, 3)]
    lab.expect_all(reversed(rows))
    lab.expect("hit without 1 and 3", [], hit_without(lab, PROMPT, 1, 3), why="a prefix starts at the first token")


@points(3, CACHE, rule=4, why="B's eighth block is inserted beside A's")
def test_5_two_blocks_with_one_block_hash(lab: LabUnderTest) -> None:
    """B has A's prompt. Seven blocks are shared. The eighth is computed again: block 9 has block 8's hash."""
    kv = make_kv(lab, CACHE, num_blocks=20)
    hold(kv, PROMPT, "A")
    hold(kv, PROMPT, "B")
    lab.expect("B's block table", [1, 2, 3, 4, 5, 6, 7, 9], table(kv, "B"), why="31 tokens can be hit: seven blocks")
    lab.expect("cached blocks", [1, 2, 3, 4, 5, 6, 7, 8, 9], cached_blocks(kv), why="block 9 is full, so it is cached")
    lab.expect("hit of a longer prompt", [1, 2, 3, 4, 5, 6, 7, 8], lookup(kv, [*PROMPT, 7]), why="8 is older than 9")
    kv.evict_blocks([8])
    lab.expect("hit when 8 is evicted", [1, 2, 3, 4, 5, 6, 7, 9], lookup(kv, [*PROMPT, 7]), why="9 has the same KV")


@points(1, INSERT, rule=1)
def test_6_a_key_keeps_its_blocks(lab: LabUnderTest) -> None:
    """Blocks 8, 9 and 5 are inserted under the key K, and 4 under another key."""
    index = make_index(lab, (K, 8), (K, 9), (L, 4), (K, 5))
    lab.expect("blocks under K, to which 8, 9 and 5 were added", [8, 9, 5], under(lab, index, K))
    lab.expect("blocks under L, to which 4 was added", [4], under(lab, index, L))


@points(2, GET_ONE, rule=2, after="test_6_a_key_keeps_its_blocks")
def test_7_the_oldest_block_answers(lab: LabUnderTest) -> None:
    """The result for K is block 8 as long as it is there. For a key that was never inserted it is None."""
    index = make_index(lab, (K, 8))
    lab.expect("answer for K, with 8", 8, id_of(index.get_one_block(K)))
    index.insert(K, KVCacheBlock(5))
    index.insert(K, KVCacheBlock(9))
    for _ in range(2):
        lab.expect("answer for K, with 8, then 5, then 9", 8, id_of(index.get_one_block(K)))
    lab.expect("blocks under K after two questions", [8, 5, 9], under(lab, index, K), why="a lookup removes no block")
    lab.expect("answer for L, which was never entered", None, index.get_one_block(L))
    lab.expect("keys in the index", 1, len(index), why="a lookup does not add L to the index")


@points(2, POP, rule=3, after="test_6_a_key_keeps_its_blocks")
def test_8_one_block_goes_others_stay(lab: LabUnderTest) -> None:
    """Of 8, 9 and 5 under K, 9 is taken out, then 8, then 5. The key is removed with 5."""
    index = make_index(lab, (K, 8), (K, 9), (K, 5), (L, 4))
    for block_id, left in ((9, [8, 5]), (8, [5]), (5, [])):
        lab.expect(f"what pop(K, {block_id}) returned", block_id, id_of(index.pop(K, block_id)))
        lab.expect(f"blocks under K after pop(K, {block_id})", left, under(lab, index, K))
    lab.expect("blocks under L", [4], under(lab, index, L))
    lab.expect("keys left, of K and L", 1, len(index), why="no block carries K any more, so K is gone too")


@points(3, FREE, rule=7, why="its place in the queue decides how long it stays cached")
def test_9_a_freed_prefix_outlives_its_tail(lab: LabUnderTest) -> None:
    """A is freed, and all its blocks stay cached. Then others need memory, and the tail is evicted first."""
    kv = make_kv(lab, FREE, num_blocks=9)
    come_and_go(kv, PROMPT, "A")
    lab.expect("cached blocks, A gone", [1, 2, 3, 4, 5, 6, 7, 8], cached_blocks(kv), why="freed blocks stay cached")
    lab.expect("free queue, A gone", [8, 7, 6, 5, 4, 3, 2, 1], free_queue(kv), why="freed from tail to head")
    hold(kv, OTHERS[:12], "B")
    lab.expect("B's block table", [8, 7, 6], table(kv, "B"))
    lab.expect("A's prompt, what can still be hit", [1, 2, 3, 4, 5], lookup(kv, PROMPT))
    hold(kv, OTHERS[12:28], "C")
    lab.expect("A's prompt, what can still be hit", [1], lookup(kv, PROMPT), why="its beginning is evicted last")


@points(2, FREE, rule=7, why="an uncached block can never be hit")
def test_10_a_partial_block_goes_to_the_front(lab: LabUnderTest) -> None:
    """A has 10 tokens, so its third block is not cached. This block is reused before all others."""
    kv = make_kv(lab, FREE, num_blocks=7)
    come_and_go(kv, PROMPT[:10], "A")
    lab.expect("free queue, A gone", [3, 4, 5, 6, 2, 1], free_queue(kv), why="3 is not cached: front. 2, 1 are: back")
    hold(kv, OTHERS[:6], "B")
    lab.expect("B's block table", [3, 4], table(kv, "B"))
    leave(kv, "B")
    lab.expect("free queue, B gone", [4, 5, 6, 2, 1, 3], free_queue(kv), why="now 3 is full and cached, 4 is not")


@points(3, EVICT, rule=6, why="the memory will hold other KV")
def test_11_a_block_loses_its_hash_when_reused(lab: LabUnderTest) -> None:
    """A is freed, and its blocks stay cached. B gets two of them, and only these lose their hashes."""
    kv = make_kv(lab, EVICT, num_blocks=9)
    come_and_go(kv, PROMPT, "A")
    lab.expect("A's prompt, what can be hit when A is gone", [1, 2, 3, 4, 5, 6, 7], lookup(kv, PROMPT))
    hold(kv, OTHERS[:6], "B")
    lab.expect("B's block table", [8, 7], table(kv, "B"))
    lab.expect("cached blocks", [1, 2, 3, 4, 5, 6, 8], cached_blocks(kv), why="8 has a new hash; 7 is not full")
    lab.expect("A's prompt, what can still be hit", [1, 2, 3, 4, 5, 6], lookup(kv, PROMPT))
    lab.expect("B's prompt, what can be hit", [8], lookup(kv, OTHERS[:6]), why="a lookup of its new hash finds block 8")


@points(2, RECORD, rule=11)
def test_12_the_rate_counts_tokens(lab: LabUnderTest) -> None:
    """A hits nothing, B hits 28 of 32 tokens, C 8 of 9: 36 of 73."""
    kv = make_kv(lab, RECORD, num_blocks=20)
    got = []
    for name, tokens in (("A", PROMPT), ("B", PROMPT), ("C", PROMPT[:9])):
        hold(kv, tokens, name)
        got.append(counters(kv.prefix_cache_stats))
    what = "requests, queries and hits when A, when B and when C is admitted"
    lab.expect(what, [(1, 32, 0), (2, 64, 28), (3, 73, 36)], got)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, CACHE, rule=4, stage="adversary")
def test_only_the_blocks_that_have_just_become_full(lab: LabUnderTest) -> None:
    """A long prompt is computed in chunks: its table and its hashes are longer than its full part."""
    pool, blocks = make_table(lab, 6)
    for num_cached, num_full in ((0, 1), (1, 1), (1, 3), (3, 4)):
        pool.cache_full_blocks(blocks, HASHES, num_cached, num_full)
        lab.check_pool(pool, {"A": blocks})
        want = [f"hash {number}" if number < num_full else None for number in range(6)]
        call = f"cache_full_blocks(table, hashes, {num_cached}, {num_full})"
        lab.expect(f"hashes of A's six blocks after {call}", want, hashes_of(blocks))
        got = [id_of(next(iter(pool.get_cached_block(each, [0]) or ()), None)) for each in HASHES[:num_full]]
        lab.expect(f"blocks found by the first {num_full} hashes, after {call}", ids_of(blocks[:num_full]), got)


@points(1, CACHE, rule=5, stage="adversary", why="the first hash would stay in the index")
def test_a_block_hash_is_given_once(lab: LabUnderTest) -> None:
    """The third block of the part is cached already. The call raises and changes nothing."""
    pool, blocks = make_table(lab, 4)
    pool.cache_full_blocks(blocks, [BlockHash(b"another")] * 4, 2, 3)
    call = "cache_full_blocks(table, hashes, 0, 4), where block 3 is cached"
    raised = error_of(pool.cache_full_blocks, blocks, HASHES, 0, 4)
    lab.check_pool(pool, {"A": blocks})
    lab.expect(f"hashes of blocks 1 to 4, after {call}", [None, None, "another", None], hashes_of(blocks))
    lab.expect(f"what {call} raised", "BlockStateError", raised)


@points(1, CACHE, rule=4, stage="adversary", why="one prefix has other KV in each group")
def test_the_group_is_part_of_the_key(lab: LabUnderTest) -> None:
    """A block is cached in group 1. Group 0 must not find it."""
    pool, blocks = make_table(lab, 1)
    pool.cache_full_blocks(blocks, HASHES, 0, 1, kv_cache_group_id=1)
    lab.expect("block found in group 1", [1], ids_of(pool.get_cached_block(HASHES[0], [1]) or []))
    lab.expect("block found in group 0", [], ids_of(pool.get_cached_block(HASHES[0], [0]) or []))


@points(1, FIND, rule=8, stage="adversary")
def test_no_longer_than_asked(lab: LabUnderTest) -> None:
    """Every max_length around a block's edge, in blocks of 1, 3, 4 and 16 tokens, in use and free."""
    rows: list[tuple[str, object, object, str]] = []
    for block_size in (1, 3, 4, 16):
        kv = make_kv(lab, FIND, num_blocks=12, block_size=block_size)
        scramble(kv)
        hashes = hold(kv, list(range(5 * block_size - 1)) or [0], "A").block_hashes
        known = table(kv, "A")[: len(hashes)]
        (group,) = kv.coordinator.single_type_managers
        for holder, why in (("A", ""), ("no request", "a cached block can be hit, in use or free")):
            queue = free_queue(kv)
            for max_length in around_edges(block_size, 6):
                got = ids_of(group.find_longest_cache_hit(hashes, max_length))
                what = f"hit with max_length {max_length} in blocks of {block_size}, held by {holder}"
                rows.append((what, known[: max_length // block_size], got, why))
            rows.append(("free queue after all these questions", queue, free_queue(kv), "a question moves no block"))
            for name in list(kv.requests):
                leave(kv, name)
    lab.expect_all(rows)


@points(1, FIND, rule=9, stage="adversary")
def test_a_miss_ends_the_search(lab: LabUnderTest) -> None:
    """A prompt has 1,000 blocks, of which 3 are cached: at most four hashes are looked up."""
    kv = make_kv(lab, FIND, num_blocks=12)
    hold(kv, PROMPT[:12], "A")
    hit, num_asked = counted_lookup(kv, [*PROMPT[:12], *range(1000, 4988)])
    lab.expect("hit", [1, 2, 3], hit)
    if num_asked > 4:
        lab.fail("calls of get_cached_block for a hit of 3", "4: three hits and a miss", num_asked)


@points(1, FIND, rule=8, stage="adversary", why="each group looks up its own keys")
def test_each_group_finds_its_own(lab: LabUnderTest) -> None:
    """Group 0 has cached two blocks of a prompt, group 1 the first of them. Each finds its own."""
    pool = BlockPool(8)
    pool.cache_full_blocks(pool.get_new_blocks(2), HASHES, 0, 2, kv_cache_group_id=0)
    pool.cache_full_blocks(pool.get_new_blocks(2), HASHES, 0, 1, kv_cache_group_id=1)
    for group_id, want in ((0, [1, 2]), (1, [3])):
        group = make_group(lab, pool, group_id)
        lab.expect(f"hit in group {group_id}", want, ids_of(group.find_longest_cache_hit(HASHES[:2], 8)))


@points(1, LOOKUP, rule=10, stage="adversary")
def test_one_token_less_and_one_more(lab: LabUnderTest) -> None:
    """Prompts that end just before a block's edge, on it, and after it, in blocks of 1, 3, 4 and 16 tokens."""
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


@points(1, LOOKUP, rule=10, stage="adversary", why="output tokens can be hit as well")
def test_a_request_that_comes_back(lab: LabUnderTest) -> None:
    """A has 5 output tokens when it is preempted. Its next lookup finds blocks of its prompt and of its output."""
    kv = make_kv(lab, LOOKUP, num_blocks=12)
    request = hold(kv, PROMPT[:8], "A")
    say(kv, request, OTHERS[:5])
    leave(kv, "A")
    request.num_computed_tokens = 0
    blocks, num_tokens = kv.get_computed_blocks(request)
    lab.expect("blocks hit by A, 8 tokens of prompt and 5 of answer", [1, 2, 3], ids_of(blocks.blocks[0]))
    lab.expect("tokens hit by A", 12, num_tokens)


@points(1, INSERT, rule=1, stage="adversary")
def test_a_block_keeps_its_place(lab: LabUnderTest) -> None:
    """8 is inserted again, and is still the oldest. Ids and other keys do not matter."""
    index = make_index(lab, (K, 8), (L, 2), (K, 2), (K, 5), (K, 8), (K, 2))
    lab.expect("blocks under K, after inserting 8, 2, 5, 8, 2", [8, 2, 5], under(lab, index, K))
    lab.expect("blocks under L, after inserting 2", [2], under(lab, index, L))


@points(1, GET_ONE, rule=2, stage="adversary", after="test_6_a_key_keeps_its_blocks")
def test_the_next_oldest_answers(lab: LabUnderTest) -> None:
    """When the oldest block is taken out, the next oldest is returned: 8, then 3, then 7, then None, then 8 again."""
    index = make_index(lab, (K, 8), (K, 9), (K, 3), (K, 7))
    got = [id_of(index.get_one_block(K))]
    for block_id in (9, 8, 3, 7):
        index.pop(K, block_id)
        got.append(id_of(index.get_one_block(K)))
    index.insert(K, KVCacheBlock(8))
    got.append(id_of(index.get_one_block(K)))
    lab.expect("answers for K: 8 9 3 7, without 9, 8, 3 and 7 in turn, 8 again", [8, 8, 3, 7, None, 8], got)


@points(1, POP, rule=3, stage="adversary", after="test_6_a_key_keeps_its_blocks")
def test_taking_out_what_is_not_there(lab: LabUnderTest) -> None:
    """For a block of another key, or a key that was never inserted, pop returns None and changes nothing."""
    index = make_index(lab, (K, 8), (K, 9), (L, 4))
    for told, key, block_id in (("K, 4", K, 4), ("L, 8", L, 8), ("M, 8", M, 8)):
        lab.expect(f"what pop({told}) returned", None, index.pop(key, block_id), why="no such block under that key")
        got = [under(lab, index, key) for key in (K, L)]
        lab.expect(f"blocks under K and under L after pop({told})", [[8, 9], [4]], got)
        lab.expect(f"keys in the index after pop({told})", 2, len(index))


@points(1, EVICT, rule=6, stage="adversary", why="its twin has the same KV")
def test_one_of_two_twins_is_evicted(lab: LabUnderTest) -> None:
    """8 and 9 have the same hash. When one of them is reused, a lookup finds the other."""
    for order, gone, tail in (("AB", 8, 9), ("BA", 9, 8)):
        kv = make_kv(lab, EVICT, num_blocks=10)
        hold(kv, PROMPT, "A")
        hold(kv, PROMPT, "B")
        for name in order:
            leave(kv, name)
        hold(kv, OTHERS[:3], "C")  # takes what stands in front: A's tail, or B's
        lab.expect(f"C's block table, after {order[0]} left first", [gone], table(kv, "C"))
        got = lookup(kv, [*PROMPT, 7])
        lab.expect(f"hit when C has overwritten {gone}, which was {tail}'s twin", [1, 2, 3, 4, 5, 6, 7, tail], got)


@points(1, EVICT, rule=6, stage="adversary")
def test_in_use_or_free_or_not_cached(lab: LabUnderTest) -> None:
    """Evicting a block changes neither its table nor its place in the queue. An uncached block is not evicted."""
    kv = make_kv(lab, EVICT, num_blocks=9)
    hold(kv, OTHERS[:8], "X")
    hold(kv, PROMPT[:10], "A")
    leave(kv, "X")
    queue = [6, 7, 8, 2, 1]
    lab.expect("free queue before", queue, free_queue(kv))
    cases = ((3, "held, cached", True), (2, "free, cached", True), (5, "held, not full", False))
    for block_id, whose, want in (*cases, (3, "held, evicted before", False)):
        result = kv.block_pool._maybe_evict_cached_block(kv.block_pool.blocks[block_id])
        lab.check_pool(kv.block_pool, {name: kv.get_blocks(name).blocks[0] for name in kv.requests})
        lab.expect(f"what _maybe_evict_cached_block returned for block {block_id} ({whose})", want, result)
        lab.expect(f"free queue after it was called for block {block_id} ({whose})", queue, free_queue(kv))
    lab.expect("cached blocks", [1, 4], cached_blocks(kv))


@points(1, FREE, rule=7, stage="adversary")
def test_three_leave_in_another_order(lab: LabUnderTest) -> None:
    """Three requests share blocks, ids out of order, two blocks evicted. Predict the whole queue on paper."""
    kv = make_kv(lab, FREE, num_blocks=13)
    scramble(kv)  # 2 4 6 8 10 12 11 9 7 5 3 1
    hold(kv, PROMPT[:16], "A")  # 2 4 6 8
    hold(kv, PROMPT[:18], "B")  # 2 4 6 8, then 10 with 2 tokens
    hold(kv, PROMPT[:8] + OTHERS[:11], "C")  # 2 4, then 12 11, then 9 with 3 tokens
    kv.evict_blocks([12, 6])
    lab.expect("tables", [[2, 4, 6, 8], [2, 4, 6, 8, 10], [2, 4, 12, 11, 9]], [table(kv, name) for name in "ABC"])
    for name in "CBA":
        leave(kv, name)
    lab.expect("free queue, C, B and A gone in this order", [6, 10, 9, 12, 7, 5, 3, 1, 11, 8, 4, 2], free_queue(kv))


@points(1, FREE, rule=7, stage="adversary", why="recency counts, not age")
def test_a_hit_makes_a_block_young_again(lab: LabUnderTest) -> None:
    """One prompt is sent again and again, and others once in between. The repeated one stays cached."""
    kv = make_kv(lab, FREE, num_blocks=9)
    got = []
    for number in range(6):
        got.append(len(lookup(kv, PROMPT[:9])))
        come_and_go(kv, PROMPT[:9], f"popular {number}")
        come_and_go(kv, [token + 100 * number for token in OTHERS[:8]], f"once {number}")
    lab.expect("blocks of the popular prompt that were hit, time after time", [0, 2, 2, 2, 2, 2], got)


@points(1, FREE, rule=7, stage="adversary", why="the order alone decides the rate")
def test_the_rate_and_the_size_of_the_pool(lab: LabUnderTest) -> None:
    """24 requests run one after the other. Each has one of three beginnings of 12 tokens, and 6 tokens of its own."""
    got = []
    for num_blocks in (6, 7, 8, 9, 12, 14, 16):
        kv = make_kv(lab, FREE, num_blocks=num_blocks)
        for number, beginning in enumerate("010201020102010201020102"):
            own = [10_000 + 100 * number + token for token in range(6)]
            come_and_go(kv, [*(1000 * int(beginning) + token for token in range(12)), *own], f"R{number}")
        got.append(kv.prefix_cache_stats.hits)
    lab.expect("tokens hit, of 432, with 6, 7, 8, 9, 12, 14, 16 blocks", [0, 44, 88, 132, 172, 252, 252], got)


@points(1, RECORD, rule=11, stage="adversary")
def test_many_requests_add_up(lab: LabUnderTest) -> None:
    """Six requests are recorded. The counters are compared at the end."""
    stats = lab.PrefixCacheStats()
    for num_tokens, num_hits in ((32, 0), (32, 28), (1, 0), (33, 32), (7, 4), (5, 0)):
        stats.record(num_tokens, num_hits)
    lab.expect("requests, queries, hits", (6, 110, 64), counters(stats))


# The property -------------------------------------------------------------------------------------------------------


@points(1, CACHE, rule=4, stage="property")
def test_random_lives_of_cache_full_blocks(lab: LabUnderTest) -> None:
    """Forty random sequences of calls on a small cache are compared, step by step, with a model of plain lists."""
    compare_lives(lab, CACHE)


@points(1, POP, rule=1, stage="property", after="test_6_a_key_keeps_its_blocks")
def test_random_lives_of_the_index(lab: LabUnderTest) -> None:
    """The same, with your index in the engine's pool."""
    compare_lives(lab, POP)


@points(1, EVICT, rule=6, stage="property")
def test_random_lives_of_maybe_evict_cached_block(lab: LabUnderTest) -> None:
    """The same, with your `_maybe_evict_cached_block`."""
    compare_lives(lab, EVICT)


@points(1, FREE, rule=7, stage="property")
def test_random_lives_of_free_blocks(lab: LabUnderTest) -> None:
    """The same, with your `free_blocks`."""
    compare_lives(lab, FREE)


@points(1, FIND, rule=8, stage="property")
def test_random_lives_of_find_longest_cache_hit(lab: LabUnderTest) -> None:
    """The same, with your `find_longest_cache_hit`."""
    compare_lives(lab, FIND)
