"""lab-06: slots for the next token. Read the numbered tests in order: they are a request's way across a block's edge.

Tokens are counted from 0, and token i has its keys and values in slot i. In the first five tests a block has 16 slots.
Later it has 4. Block 0 is the null block, which is never allocated.

Only the method that a test checks is yours. The other three are the engine's (see `make_kv` in helpers.py).
"""

from functools import partial

from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import cached_blocks, free_queue, ids_of, references, refuses, scramble, table

from .helpers import ALLOCATE, CACHE, FREE, NEED, admit, allocate, compare_lives, decode, free, grant, make_kv, need

PROMPT = list(range(100, 164))

# The biography ------------------------------------------------------------------------------------------------------


@points(2, NEED, rule=1, why="17 tokens do not fit into one block of 16")
def test_1_seventeen_tokens_need_a_second_block(lab: LabUnderTest) -> None:
    """One block holds 15 tokens, or 16. Seventeen need a second one."""
    kv = make_kv(lab, NEED, num_blocks=10, block_size=16)
    got = [need(kv, "A", num_tokens) for num_tokens in (1, 15, 16, 17, 32, 33)]
    lab.expect("blocks for 1, 15, 16, 17, 32, 33 tokens of a request that holds none", [1, 1, 1, 2, 2, 3], got)


@points(3, NEED, rule=1, why="the block is full with token 15; only token 16, the 17th, needs another")
def test_2_a_block_is_missing_from_token_17_on(lab: LabUnderTest) -> None:
    """A has 14 tokens in block 1. How many more blocks for 15 tokens, for 16, for 17, and so on?

    slot          0  1  2  3 ...  13 | 14 | 15 || 16 | 17 ...
    block         1                            || 2
    written       ==================

    15 tokens     slots 0 to 14                       block 1
    16 tokens     slots 0 to 15                       block 1, and it is full
    17 tokens     slots 0 to 16                       block 1 and another one
    """
    kv = make_kv(lab, NEED, num_blocks=10, block_size=16)
    kv.hold(PROMPT[:14], "A")
    got = [need(kv, "A", num_tokens) for num_tokens in (14, 15, 16, 17, 18, 32, 33)]
    lab.expect("further blocks for 14, 15, 16, 17, 18, 32, 33 tokens of A", [0, 0, 0, 1, 1, 1, 2], got)


@points(3, ALLOCATE, rule=3)
def test_3_a_prompt_gets_slots_for_its_own_tokens(lab: LabUnderTest) -> None:
    """Prompts of 15, 16 and 17 tokens get one block, one block and two. None is reserved for the answer."""
    kv = make_kv(lab, ALLOCATE, num_blocks=10, block_size=16)
    for name, num_tokens, want in (("A", 15, [1]), ("B", 16, [2]), ("C", 17, [3, 4])):
        tokens = [token + 1000 * num_tokens for token in PROMPT[:num_tokens]]
        got = allocate(kv, kv.new_request(name, tokens), num_tokens)
        lab.expect(f"new blocks for {name}'s prompt of {num_tokens} tokens", want, got)
        lab.expect(f"{name}'s block table", want, table(kv, name))


@points(5, ALLOCATE, rule=3, why="token i is written at slot i by the step that computes it")
def test_4_a_block_comes_with_the_token_that_needs_it(lab: LabUnderTest) -> None:
    """A's prompt has 14 tokens. Each step then computes the token that was sampled last. Which steps allocate a block?

    step       known  computes   KV written after   blocks
    prefill    14     0 to 13    14                 1
    decode     15     14         15                 1
    decode     16     15         16                 1        full
    decode     17     16         17                 2        <- the 17th token, when it is computed
    decode     18     17         18                 2
    """
    for num_prompt, want in ((14, [16, 32]), (16, [16, 32]), (17, [32])):
        kv = make_kv(lab, ALLOCATE, num_blocks=10, block_size=16)
        request = admit(kv, PROMPT[:num_prompt], "A")
        got = []
        for token in range(num_prompt, 35):  # the token that this step computes
            if decode(kv, request):
                got.append(token)
        what = f"tokens whose step brought a new block, after a prompt of {num_prompt} (tokens are counted from 0)"
        lab.expect(what, want, got)


@points(3, CACHE, rule=9, why="a block is cached in the step that fills its last slot")
def test_5_a_full_block_is_cached(lab: LabUnderTest) -> None:
    """In the same steps, block 1 is cached in the step that computes token 15, neither before nor after."""
    kv = make_kv(lab, CACHE, num_blocks=10, block_size=16)
    request = admit(kv, PROMPT[:14], "A")
    got = [cached_blocks(kv)]
    for _ in range(3):
        decode(kv, request)
        got.append(cached_blocks(kv))
    lab.expect("cached blocks after the steps that computed tokens 13, 14, 15, 16", [[], [], [1], [1]], got)


@points(3, NEED, rule=2)
def test_6_a_hit_that_no_request_holds_costs_its_blocks(lab: LabUnderTest) -> None:
    """B has a hit of two blocks and needs slots for 9 tokens, in blocks of 4. How many free blocks does that take?"""
    kv = make_kv(lab, NEED, num_blocks=12, block_size=4)
    a = kv.hold(PROMPT[:9], "A")  # 1 2 3
    hit, _ = kv.get_computed_blocks(kv.new_request("B", PROMPT[:9]))
    lab.expect("B's hit", [1, 2], ids_of(hit.blocks[0]))
    d = kv.hold(PROMPT[:9], "D")  # 1 2 4
    lab.expect("free blocks B needs, while A and D hold the hit", 1, need(kv, "B", 9, hit.blocks[0]))
    kv.free(d)
    lab.expect("free blocks B needs, while A holds the hit", 1, need(kv, "B", 9, hit.blocks[0]))
    c = kv.hold([*PROMPT[:4], 7], "C")  # 1 4
    kv.free(a)
    lab.expect("free blocks B needs, while C holds one of the hit", 2, need(kv, "B", 9, hit.blocks[0]))
    kv.free(c)
    lab.expect("free blocks B needs, while no request holds the hit", 3, need(kv, "B", 9, hit.blocks[0]))


@points(2, ALLOCATE, rule=5)
def test_7_a_hit_begins_the_table(lab: LabUnderTest) -> None:
    """B has A's prompt. Its table begins with A's blocks, and only the rest is new."""
    kv = make_kv(lab, ALLOCATE, num_blocks=12, block_size=4)
    admit(kv, PROMPT[:9], "A")  # 1 2 3
    b = kv.new_request("B", PROMPT[:9])
    hit, num_hit = kv.get_computed_blocks(b)
    got = allocate(kv, b, 9 - num_hit, num_hit, hit)
    lab.expect("new blocks for B", [4], got, rule=4)
    lab.expect("B's block table", [1, 2, 4], table(kv, "B"))
    lab.expect("references of blocks 1 to 4", [2, 2, 1, 1], references(kv, [1, 2, 3, 4]), why="two tables hold the hit")
    why = "the list came from the caller, who may go on using it: B's table is a list of its own"
    lab.expect("the hit that B brought, when B's table has grown", [1, 2], ids_of(hit.blocks[0]), why=why)


@points(2, ALLOCATE, rule=5, after="test_7_a_hit_begins_the_table")
def test_8_a_hit_leaves_the_queue_before_new_blocks_are_taken(lab: LabUnderTest) -> None:
    """B's hit is free, and at the front of the queue, where new blocks are taken."""
    kv = make_kv(lab, ALLOCATE, num_blocks=5, block_size=4)
    kv.free(admit(kv, PROMPT[:8], "A"))
    admit(kv, [7, 7], "C")
    kv.free(admit(kv, [8, 8, 8, 8], "D"))
    lab.expect("free queue before B", [2, 1, 4], free_queue(kv))
    admit(kv, PROMPT[:9], "B")
    lab.expect("B's block table", [1, 2, 4], table(kv, "B"), why="new blocks are not taken from the hit")
    lab.expect("cached blocks", [1, 2], cached_blocks(kv), why="a revived block stays cached; 4 has lost D's hash")


@points(3, ALLOCATE, rule=7, after="test_7_a_hit_begins_the_table", why="a refused request has no table to free")
def test_9_a_refused_request_holds_nothing(lab: LabUnderTest) -> None:
    """B needs 4 new blocks and has a hit of 2 free blocks. Six free blocks are enough, five are not."""
    for num_free in (7, 6, 5):
        kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
        kv.free(admit(kv, PROMPT[:8], "A"))
        admit(kv, [1000 + n for n in range(4 * (8 - num_free))], "H")
        before = free_queue(kv)
        b = kv.new_request("B", PROMPT[:24])
        hit, num_hit = kv.get_computed_blocks(b)
        got = allocate(kv, b, 24 - num_hit, num_hit, hit)
        what = f"new blocks for B, {num_free} blocks free and two of these its hit (None: refused)"
        if num_free < 6:
            lab.expect(what, None, got, why="once its hit is touched, 3 are left for 4 new blocks")
            lab.expect("free queue after the refusal", before, free_queue(kv))
            lab.expect("B's block table", [], table(kv, "B"))
        else:
            want = [block_id for block_id in before if block_id not in (1, 2)][:4]
            lab.expect(what, want, got, why="two to revive and four new: six")


@points(2, FREE, rule=10, why="a block can be hit without the blocks after it, but not without those before it")
def test_10_the_tail_of_a_table_is_freed_first(lab: LabUnderTest) -> None:
    """A's table is 1 2 3, all cached. B's is 4 5, and 5 is not full."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, b = kv.hold(PROMPT[:12], "A"), kv.hold(PROMPT[20:26], "B")
    free(kv, a)
    lab.expect("free queue without A", [6, 3, 2, 1], free_queue(kv), why="cached blocks go to the back, the tail first")
    lab.expect("cached blocks", [1, 2, 3, 4], cached_blocks(kv), why="a freed block stays cached and can be hit again")
    lab.expect("A's block table", [], table(kv, "A"))
    free(kv, b)
    lab.expect(
        "free queue without A and B", [5, 6, 3, 2, 1, 4], free_queue(kv), why="5 is not cached and goes in front"
    )


@points(2, FREE, rule=11, why="without an error, it frees another request's blocks")
def test_11_a_request_that_is_not_admitted_has_nothing_to_free(lab: LabUnderTest) -> None:
    """Free A, then free A again, then free B, which was never admitted."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, b = kv.hold(PROMPT[:6], "A"), kv.new_request("B", PROMPT)
    free(kv, a)
    refuses(lab, "free(A) for the second time", UnknownRequestError, lambda: free(kv, a))
    refuses(lab, "free(B), who was never admitted", UnknownRequestError, lambda: free(kv, b))
    kv.hold(PROMPT[:6], "A")  # the id is free again
    lab.expect("A's new block table", [1, 2], table(kv, "A"), why="block 1 is a hit")


@points(2, ALLOCATE, rule=6, why="a slot is only room for a token")
def test_12_lookahead_slots_are_not_cached(lab: LabUnderTest) -> None:
    """A computes 6 of its 20 tokens and gets 3 lookahead slots: 9 slots, but KV of 6 tokens."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a = kv.new_request("A", PROMPT[:20])
    got = allocate(kv, a, 6, num_lookahead_tokens=3)
    lab.expect("new blocks for A", [1, 2, 3], got, why="6 + 3 tokens need slots")
    lab.expect(
        "cached blocks",
        [1],
        cached_blocks(kv),
        why="block 2 will hold the KV of 2 tokens after this step; a cached block needs all 4",
    )


@points(2, CACHE, rule=9, why="a block hash stands for known tokens; a draft is a guess, and may be wrong")
def test_13_drafts_get_slots_but_are_not_cached(lab: LabUnderTest) -> None:
    """A knows 7 tokens, and the step computes 3 drafts as well: block 2 is full, but not of known tokens."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4)
    a = admit(kv, PROMPT[:6], "A")
    a.append_output_token_ids(7)
    grant(kv, a, 1 + 3)
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("cached blocks, three drafts on their way", [1], cached_blocks(kv))
    a.append_output_token_ids(8, 9)  # the first draft was right; 9 is what the model says in place of the second
    a.num_computed_tokens = 8
    grant(kv, a, 1)
    lab.expect("cached blocks, one draft accepted", [1, 2], cached_blocks(kv), why="tokens 4 to 7 are known now")


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, NEED, rule=1, stage="adversary")
def test_a_table_longer_than_needed(lab: LabUnderTest) -> None:
    """Six drafts were rejected: A has 4 blocks and needs 2 of them. The answer is then 0, not -2."""
    kv = make_kv(lab, NEED, num_blocks=9, block_size=4)
    a = kv.hold(PROMPT[:6], "A")
    a.append_output_token_ids(7)
    kv.allocate_slots(a, 1 + 6)
    lab.expect("A's block table", [1, 2, 3, 4], table(kv, "A"))
    got = [need(kv, "A", num_tokens) for num_tokens in (7, 8, 9, 16, 17)]
    lab.expect("further blocks for 7, 8, 9, 16, 17 tokens of A", [0, 0, 0, 0, 1], got)


@points(1, NEED, rule=1, stage="adversary")
def test_needs_of_other_block_sizes(lab: LabUnderTest) -> None:
    """Blocks of 1, 3, 4 and 16 tokens: one token less than full, full, one more. Then with a hit."""
    for block_size in (1, 3, 4, 16):
        kv = make_kv(lab, NEED, num_blocks=30, block_size=block_size)
        scramble(kv)
        kv.hold(PROMPT[: 2 * block_size], "A")
        lengths = [block_size * k + rest for k in (2, 3) for rest in (-1, 0, 1)]
        got = [need(kv, "A", num_tokens) for num_tokens in lengths]
        want = [max(-(-num_tokens // block_size) - 2, 0) for num_tokens in lengths]
        lab.expect(f"further blocks for {lengths} tokens of A, who has 2 of {block_size}", want, got)
        kv.free(kv.hold(PROMPT[: 3 * block_size], "C"))
        hit, _ = kv.get_computed_blocks(kv.new_request("B", PROMPT[: 3 * block_size + 1]))
        lengths = [3 * block_size + 1, 4 * block_size, 4 * block_size + 1]
        got = [need(kv, "B", num_tokens, hit.blocks[0]) for num_tokens in lengths]
        want = [1 + -(-num_tokens // block_size) - 3 for num_tokens in lengths]
        what = f"free blocks for {lengths} tokens of B, who has a hit of 3 of {block_size}, one of these free"
        lab.expect(what, want, got)


@points(1, ALLOCATE, rule=3, stage="adversary", after="test_4_a_block_comes_with_the_token_that_needs_it")
def test_slots_of_other_block_sizes(lab: LabUnderTest) -> None:
    """The same in blocks of 1, 3, 4 and 16 tokens: a prompt in two chunks, then token by token."""
    for block_size in (1, 3, 4, 16):
        for num_tokens in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            kv = make_kv(lab, ALLOCATE, num_blocks=30, block_size=block_size)
            scramble(kv)
            request = kv.new_request("A", PROMPT[: num_tokens + 1])
            lengths = []
            for num_new_tokens in (num_tokens, 1):  # the prompt's last token is a chunk of its own
                grant(kv, request, num_new_tokens)
                request.num_computed_tokens += num_new_tokens
                lengths.append(len(table(kv, "A")))
            for _ in range(block_size):
                decode(kv, request)
                lengths.append(len(table(kv, "A")))
            want = [-(-(num_tokens + step) // block_size) for step in range(block_size + 2)]
            what = f"length of A's table after each step: {num_tokens} tokens, then one by one, blocks of {block_size}"
            lab.expect(what, want, lengths)


@points(1, ALLOCATE, rule=8, stage="adversary", why="a step computes at least one token")
def test_no_new_token(lab: LabUnderTest) -> None:
    """0 and -1 new tokens are an error, for a new request and for a running one."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a, b = admit(kv, PROMPT[:5], "A"), kv.new_request("B", PROMPT[30:40])
    for request in (b, a):
        for num_new_tokens in (0, -1):
            what = f"allocate_slots({request.request_id}, {num_new_tokens})"
            refuses(lab, what, AllocationError, partial(allocate, kv, request, num_new_tokens))
    lab.expect("admitted requests", ["A"], list(kv.requests))


@points(1, ALLOCATE, rule=8, stage="adversary", why="two requests must not write to one table")
def test_an_id_in_use_is_refused(lab: LabUnderTest) -> None:
    """Another request with the id A is refused while A is running, and admitted when A is freed."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a, other = admit(kv, PROMPT[:8], "A"), kv.new_request("A", PROMPT[30:40])
    refuses(lab, "allocate_slots of another A", RepeatedRequestError, lambda: allocate(kv, other, 10))
    lab.expect("A's block table", [1, 2], table(kv, "A"))
    lab.expect("new blocks of the first A", [3], decode(kv, a), why="the first A is still running")
    kv.free(a)
    lab.expect("new blocks of the other A", [3, 4, 5], allocate(kv, other, 10), why="the id is free again")


@points(1, ALLOCATE, rule=3, stage="adversary", after="test_7_a_hit_begins_the_table")
def test_a_hit_that_is_adopted_first(lab: LabUnderTest) -> None:
    """Some schedulers add the hit to the request's computed tokens, others pass it. It is counted once."""
    kv = make_kv(lab, ALLOCATE, num_blocks=12, block_size=4)
    admit(kv, PROMPT[:13], "A")  # 1 2 3 4
    b = kv.new_request("B", PROMPT[:13])
    hit, b.num_computed_tokens = kv.get_computed_blocks(b)
    lab.expect("new blocks for B, who has adopted 12 tokens", [5], allocate(kv, b, 1, new_computed_blocks=hit))
    c = kv.new_request("C", PROMPT[:13])
    hit, num_hit = kv.get_computed_blocks(c)
    lab.expect("new blocks for C, who passes 12 tokens", [6], allocate(kv, c, 1, num_hit, hit))
    lab.expect("tables of B and C", [[1, 2, 3, 5], [1, 2, 3, 6]], [table(kv, "B"), table(kv, "C")])


@points(1, ALLOCATE, rule=3, stage="adversary", after="test_4_a_block_comes_with_the_token_that_needs_it")
def test_slots_of_rejected_drafts_are_used_again(lab: LabUnderTest) -> None:
    """Six drafts are wrong. A keeps their slots, so its next nine tokens need no new block."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a = admit(kv, PROMPT[:6], "A")
    a.append_output_token_ids(7)
    lab.expect("new blocks for one token and six drafts", [3, 4], allocate(kv, a, 1 + 6))
    a.num_computed_tokens = 7
    got = [decode(kv, a) for _ in range(10)]
    lab.expect("new blocks for tokens 7 to 16", [[]] * 9 + [[5]], got, why="A has slots for 16 tokens already")


@points(1, ALLOCATE, rule=7, stage="adversary", after="test_4_a_block_comes_with_the_token_that_needs_it")
def test_a_running_request_is_refused(lab: LabUnderTest) -> None:
    """A's block is full and no block is free: `None`. When B is freed, the same call succeeds."""
    kv = make_kv(lab, ALLOCATE, num_blocks=3, block_size=4)
    a, b = admit(kv, PROMPT[:3], "A"), admit(kv, PROMPT[30:34], "B")
    lab.expect("new blocks for A's token 3", [], decode(kv, a), why="it fits into block 1: no block is needed")
    a.append_output_token_ids(7)
    lab.expect("new blocks for A's token 4, none free", None, allocate(kv, a, 1), why="None is refused, [] is not")
    kv.free(b)
    lab.expect("new blocks for A's token 4, one free", [2], allocate(kv, a, 1), why="the last block is usable too")


@points(1, CACHE, rule=9, stage="adversary")
def test_a_prompt_in_chunks(lab: LabUnderTest) -> None:
    """20 tokens in chunks of 6, 1, 1, 11 and 1. All five blocks have slots and block hashes from the first chunk on."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4)
    a = kv.new_request("A", PROMPT[:20])
    got = []
    for num_new_tokens in (6, 1, 1, 11, 1):
        left = 20 - a.num_computed_tokens - num_new_tokens
        grant(kv, a, num_new_tokens, num_lookahead_tokens=left)
        a.num_computed_tokens += num_new_tokens
        got.append(cached_blocks(kv))
    want = [[1], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    lab.expect("cached blocks after 6, 7, 8, 19, 20 tokens, blocks of 4", want, got)


@points(1, CACHE, rule=9, stage="adversary")
def test_caching_can_be_off(lab: LabUnderTest) -> None:
    """The control group: the tables are the same, and no block is cached."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4, enable_caching=False)
    a = admit(kv, PROMPT[:8], "A")
    decode(kv, a)
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("cached blocks", [], cached_blocks(kv))


@points(1, FREE, rule=11, stage="adversary", after="test_11_a_request_that_is_not_admitted_has_nothing_to_free")
def test_another_request_with_the_same_id_frees_nothing(lab: LabUnderTest) -> None:
    """Another request has the id A as well, and was never admitted: freeing it is an error."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, stranger = kv.hold(PROMPT[:6], "A"), kv.new_request("A", PROMPT[:6])
    why = "the request counts, not its id: these are the blocks of the A that is running"
    refuses(lab, "free(another A)", UnknownRequestError, lambda: free(kv, stranger), why)
    lab.expect("A's block table", [1, 2], table(kv, "A"))
    free(kv, a)


@points(1, FREE, rule=10, stage="adversary", after="test_10_the_tail_of_a_table_is_freed_first")
def test_shared_blocks_stay_with_the_others(lab: LabUnderTest) -> None:
    """Three requests with one beginning are freed, ids out of order. Predict the queue."""
    kv = make_kv(lab, FREE, num_blocks=12, block_size=4)
    scramble(kv)
    a, b, c = kv.hold(PROMPT[:8], "A"), kv.hold(PROMPT[:13], "B"), kv.hold([*PROMPT[:8], 7], "C")
    tables = [table(kv, name) for name in "ABC"]
    rest = free_queue(kv)
    for request in (b, a, c):
        free(kv, request)
    (head, second), b3, b4, c3 = tables[0], tables[1][2], tables[1][3], tables[2][2]
    lab.expect(
        f"free queue after B, A and C left; their tables were {', '.join(map(str, tables))}",
        [c3, b4, *rest, b3, second, head],
        free_queue(kv),
        why="the uncached tails go to the front, the later one first; a shared block is freed with its last request",
    )


# The property -------------------------------------------------------------------------------------------------------


@points(1, NEED, rule=1, stage="property")
def test_random_lives_of_get_num_blocks_to_allocate(lab: LabUnderTest) -> None:
    """Forty random sequences of calls on a small cache are compared, step by step, with a model of plain lists."""
    compare_lives(lab, NEED)


@points(1, ALLOCATE, rule=3, stage="property", why="see NaiveCache.allocate in labkit/naive.py")
def test_random_lives_of_allocate_slots(lab: LabUnderTest) -> None:
    """The same, with your `allocate_slots`."""
    compare_lives(lab, ALLOCATE)


@points(1, CACHE, rule=9, stage="property", why="see NaiveCache.allocate in labkit/naive.py")
def test_random_lives_of_cache_blocks(lab: LabUnderTest) -> None:
    """The same, with your `cache_blocks`."""
    compare_lives(lab, CACHE)


@points(1, FREE, rule=10, stage="property", why="tail first; see NaiveTables.leave")
def test_random_lives_of_free(lab: LabUnderTest) -> None:
    """The same, with your `free`."""
    compare_lives(lab, FREE)
