"""lab-06: slots for the next token. Read the numbered tests in order: they are a request's way across a block's edge.

Tokens are counted from 0, and token i has its keys and values in slot i. In the first five tests a block has 16 slots;
later it has 4. Block 0 is the null block: it is never handed out.

Only the method that a test is about is yours; the engine's stand in for the other three (see StandIns).
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from mini_kv.core import kv_cache_manager as engine
from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError
from mini_kv.core.invariants import InvariantViolationError, Violation, check_invariants
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.labkit.shrink import shrink
from mini_kv.trace.debug import manager_state

PROMPT = list(range(100, 164))

NEED = "get_num_blocks_to_allocate"
ALLOCATE = "allocate_slots"
CACHE = "cache_blocks"
FREE = "free"

# The biography ------------------------------------------------------------------------------------------------------


@points(2, f"KVCacheManager.{NEED}", why="slots come in whole blocks: 17 tokens do not fit into one block of 16")
def test_1_fifteen_sixteen_seventeen(lab: LabUnderTest) -> None:
    """One block holds 15 tokens, or 16. Seventeen need a second one."""
    kv = make_kv(lab, NEED, num_blocks=10, block_size=16)
    got = [need(lab, kv, "A", num_tokens) for num_tokens in (1, 15, 16, 17, 32, 33)]
    lab.expect("blocks for 1, 15, 16, 17, 32, 33 tokens of a request that holds none", [1, 1, 1, 2, 2, 3], got)


@points(3, f"KVCacheManager.{NEED}", why="the block is full with token 15; only token 16, the 17th, needs another")
def test_2_the_boundary_on_paper(lab: LabUnderTest) -> None:
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
    got = [need(lab, kv, "A", num_tokens) for num_tokens in (14, 15, 16, 17, 18, 32, 33)]
    lab.expect("further blocks for 14, 15, 16, 17, 18, 32, 33 tokens of A", [0, 0, 0, 1, 1, 1, 2], got)


@points(3, f"KVCacheManager.{ALLOCATE}", why="slots for the tokens of this step: no more, no fewer")
def test_3_a_prompt_gets_slots_for_its_own_tokens(lab: LabUnderTest) -> None:
    """Prompts of 15, 16 and 17 tokens: one block, one block, two. Nothing in reserve for the answer."""
    kv = make_kv(lab, ALLOCATE, num_blocks=10, block_size=16)
    for name, num_tokens, want in (("A", 15, [1]), ("B", 16, [2]), ("C", 17, [3, 4])):
        tokens = [token + 1000 * num_tokens for token in PROMPT[:num_tokens]]
        got = allocate(kv, kv.new_request(name, tokens), num_tokens)
        lab.expect(f"new blocks for {name}'s prompt of {num_tokens} tokens", want, got)
        lab.expect(f"{name}'s block table", want, table(kv, name))


@points(
    5,
    f"KVCacheManager.{ALLOCATE}",
    why="token i is written at slot i by the step that computes it: the block must be there then, and not before",
)
def test_4_the_boundary_in_motion(lab: LabUnderTest) -> None:
    """A's prompt has 14 tokens; then each step computes the token that was sampled last. When does a block come?

    step       known  computes   KV written after   blocks
    prefill    14     0 to 13    14                 1
    decode     15     14         15                 1
    decode     16     15         16                 1        full
    decode     17     16         17                 2        <- the 17th token, when it is computed
    decode     18     17         18                 2
    """
    for num_prompt, want in ((14, [16, 32]), (16, [16, 32]), (17, [32])):
        kv = make_kv(lab, ALLOCATE, num_blocks=10, block_size=16)
        request = admit(lab, kv, PROMPT[:num_prompt], "A")
        got = []
        for token in range(num_prompt, 35):  # the token that this step computes
            if decode(lab, kv, request):
                got.append(token)
        what = f"tokens whose step brought a new block, after a prompt of {num_prompt} (tokens are counted from 0)"
        lab.expect(what, want, got)


@points(3, f"KVCacheManager.{CACHE}", why="a block gets its name in the step that fills its last slot")
def test_5_a_full_block_gets_its_name(lab: LabUnderTest) -> None:
    """The same steps, looked at from the index: block 1 is entered with token 15, neither before nor after."""
    kv = make_kv(lab, CACHE, num_blocks=10, block_size=16)
    request = admit(lab, kv, PROMPT[:14], "A")
    got = [named(kv)]
    for _ in range(3):
        decode(lab, kv, request)
        got.append(named(kv))
    lab.expect("blocks with a name after the steps that computed tokens 13, 14, 15, 16", [[], [], [1], [1]], got)


@points(3, f"KVCacheManager.{NEED}", why="a hit that nobody holds is a free block, and it will be one free block less")
def test_6_what_a_hit_costs(lab: LabUnderTest) -> None:
    """B brings a hit of two blocks and wants slots for 9 tokens, blocks of 4: one new block, and the hit?"""
    kv = make_kv(lab, NEED, num_blocks=12, block_size=4)
    a = kv.hold(PROMPT[:9], "A")  # 1 2 3
    hit, _ = kv.get_computed_blocks(kv.new_request("B", PROMPT[:9]))
    lab.expect("B's hit", [1, 2], ids_of(hit.blocks[0]))
    d = kv.hold(PROMPT[:9], "D")  # 1 2 4
    lab.expect("free blocks B needs, while A and D hold the hit", 1, need(lab, kv, "B", 9, hit.blocks[0]))
    kv.free(d)
    lab.expect("free blocks B needs, while A holds the hit", 1, need(lab, kv, "B", 9, hit.blocks[0]))
    c = kv.hold([*PROMPT[:4], 7], "C")  # 1 4
    kv.free(a)
    lab.expect("free blocks B needs, while C holds one of the hit", 2, need(lab, kv, "B", 9, hit.blocks[0]))
    kv.free(c)
    lab.expect("free blocks B needs, while nobody holds the hit", 3, need(lab, kv, "B", 9, hit.blocks[0]))


@points(2, f"KVCacheManager.{ALLOCATE}", why="a hit is the head of the table, held by one table more")
def test_7_a_hit_begins_the_table(lab: LabUnderTest) -> None:
    """B brings the same prompt as A: its table begins with A's blocks, and only the rest is new."""
    kv = make_kv(lab, ALLOCATE, num_blocks=12, block_size=4)
    admit(lab, kv, PROMPT[:9], "A")  # 1 2 3
    b = kv.new_request("B", PROMPT[:9])
    hit, num_hit = kv.get_computed_blocks(b)
    got = allocate(kv, b, 9 - num_hit, num_hit, hit)
    lab.expect(
        "new blocks for B", [4], got, why="the hit begins the table, but it is not new; the new tokens come behind it"
    )
    lab.expect("B's block table", [1, 2, 4], table(kv, "B"))
    lab.expect("references of blocks 1 to 4", [2, 2, 1, 1], references(kv, 1, 2, 3, 4), why="two tables hold the hit")
    why = "the list came from the caller, who may go on using it: B's table is a list of its own"
    lab.expect("the hit that B brought, when B's table has grown", [1, 2], ids_of(hit.blocks[0]), why=why)


@points(
    2,
    f"KVCacheManager.{ALLOCATE}",
    after="test_7_a_hit_begins_the_table",
    why="first the hit leaves the queue, then new blocks are taken from it",
)
def test_8_a_hit_is_touched_first(lab: LabUnderTest) -> None:
    """B's hit is free and stands in front of the queue, just where new blocks come from."""
    kv = make_kv(lab, ALLOCATE, num_blocks=5, block_size=4)
    kv.free(admit(lab, kv, PROMPT[:8], "A"))
    admit(lab, kv, [7, 7], "C")
    kv.free(admit(lab, kv, [8, 8, 8, 8], "D"))
    lab.expect("free queue before B", [2, 1, 4], free_queue(kv))
    admit(lab, kv, PROMPT[:9], "B")
    lab.expect("B's block table", [1, 2, 4], table(kv, "B"), why="new blocks are taken from what the hit leaves over")
    lab.expect("blocks with a name", [1, 2], named(kv), why="a revived block keeps its name; 4 has lost D's")


@points(
    3,
    f"KVCacheManager.{ALLOCATE}",
    after="test_7_a_hit_begins_the_table",
    why="who was refused holds nothing, and never gives anything back",
)
def test_9_all_or_nothing(lab: LabUnderTest) -> None:
    """B needs 4 new blocks and brings a hit of 2 that nobody holds. Six free blocks are enough, five are not."""
    for num_free in (7, 6, 5):
        kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
        kv.free(admit(lab, kv, PROMPT[:8], "A"))
        admit(lab, kv, [1000 + n for n in range(4 * (8 - num_free))], "H")
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


@points(2, f"KVCacheManager.{FREE}", why="a prefix is useful without what follows it, not without what precedes")
def test_10_the_tail_goes_home_first(lab: LabUnderTest) -> None:
    """A's table is 1 2 3, all named; B's is 4 5, and 5 is not full."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, b = kv.hold(PROMPT[:12], "A"), kv.hold(PROMPT[20:26], "B")
    free(kv, a)
    lab.expect("free queue without A", [6, 3, 2, 1], free_queue(kv), why="named blocks go to the back, the tail first")
    lab.expect("blocks with a name", [1, 2, 3, 4], named(kv), why="freed is not gone: whoever begins alike can have it")
    lab.expect("A's block table", [], table(kv, "A"))
    free(kv, b)
    lab.expect("free queue without A and B", [5, 6, 3, 2, 1, 4], free_queue(kv), why="5 has no name and goes in front")


@points(2, f"KVCacheManager.{FREE}", why="a second free is a mistake; kept quiet, it frees somebody else's blocks")
def test_11_freed_twice(lab: LabUnderTest) -> None:
    """A goes, and goes again. And B, who was never admitted, goes as well."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, b = kv.hold(PROMPT[:6], "A"), kv.new_request("B", PROMPT)
    free(kv, a)
    refuses(lab, "free(A) for the second time", UnknownRequestError, lambda: free(kv, a))
    refuses(lab, "free(B), who was never admitted", UnknownRequestError, lambda: free(kv, b))
    kv.hold(PROMPT[:6], "A")  # the name is free again
    lab.expect("A's new block table", [1, 2], table(kv, "A"), why="block 1 is a hit")


@points(
    2, f"KVCacheManager.{ALLOCATE}", why="a slot is room for a token; a name says that its keys and values are there"
)
def test_12_slots_to_look_ahead(lab: LabUnderTest) -> None:
    """A computes 6 of its 20 tokens and wants 3 slots more, for tokens that may come: 9 slots, but 6 tokens of KV."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a = kv.new_request("A", PROMPT[:20])
    got = allocate(kv, a, 6, num_lookahead_tokens=3)
    lab.expect("new blocks for A", [1, 2, 3], got, why="6 + 3 tokens need slots")
    lab.expect(
        "blocks with a name",
        [1],
        named(kv),
        why="block 2 will hold 2 tokens' KV after this step; a name says that all 4 are there",
    )


@points(2, f"KVCacheManager.{CACHE}", why="a name stands for known tokens; a draft is a guess, and may be wrong")
def test_13_drafts_get_slots_but_no_names(lab: LabUnderTest) -> None:
    """A knows 7 tokens, and the step computes 3 drafts beyond them: block 2 is full of KV, and of guesses."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4)
    a = admit(lab, kv, PROMPT[:6], "A")
    a.append_output_token_ids(7)
    must_fit(lab, "A", allocate(kv, a, 1 + 3))
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("blocks with a name, three drafts on their way", [1], named(kv))
    a.append_output_token_ids(8, 9)  # the first draft was right; 9 is what the model says in place of the second
    a.num_computed_tokens = 8
    must_fit(lab, "A", allocate(kv, a, 1))
    lab.expect("blocks with a name, one draft accepted", [1, 2], named(kv), why="tokens 4 to 7 are known now")


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, f"KVCacheManager.{NEED}", stage="adversary", why="what is missing is never less than nothing")
def test_a_table_longer_than_needed(lab: LabUnderTest) -> None:
    """Six drafts were rejected: A has 4 blocks and needs 2 of them. The other two are its own, and no credit."""
    kv = make_kv(lab, NEED, num_blocks=9, block_size=4)
    a = kv.hold(PROMPT[:6], "A")
    a.append_output_token_ids(7)
    kv.allocate_slots(a, 1 + 6)
    lab.expect("A's block table", [1, 2, 3, 4], table(kv, "A"))
    got = [need(lab, kv, "A", num_tokens) for num_tokens in (7, 8, 9, 16, 17)]
    lab.expect("further blocks for 7, 8, 9, 16, 17 tokens of A", [0, 0, 0, 0, 1], got)


@points(1, f"KVCacheManager.{NEED}", stage="adversary")
def test_needs_of_other_block_sizes(lab: LabUnderTest) -> None:
    """Blocks of 1, 3, 4 and 16 tokens; one token less than full, full, one more; held, new and revived together."""
    for block_size in (1, 3, 4, 16):
        kv = make_kv(lab, NEED, num_blocks=30, block_size=block_size)
        scramble(kv)
        kv.hold(PROMPT[: 2 * block_size], "A")
        lengths = [block_size * k + rest for k in (2, 3) for rest in (-1, 0, 1)]
        got = [need(lab, kv, "A", num_tokens) for num_tokens in lengths]
        want = [max(-(-num_tokens // block_size) - 2, 0) for num_tokens in lengths]
        lab.expect(f"further blocks for {lengths} tokens of A, who has 2 of {block_size}", want, got)
        kv.free(kv.hold(PROMPT[: 3 * block_size], "C"))
        hit, _ = kv.get_computed_blocks(kv.new_request("B", PROMPT[: 3 * block_size + 1]))
        lengths = [3 * block_size + 1, 4 * block_size, 4 * block_size + 1]
        got = [need(lab, kv, "B", num_tokens, hit.blocks[0]) for num_tokens in lengths]
        want = [1 + -(-num_tokens // block_size) - 3 for num_tokens in lengths]
        what = f"free blocks for {lengths} tokens of B, who has a hit of 3 of {block_size}, one of these free"
        lab.expect(what, want, got)


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", after="test_4_the_boundary_in_motion")
def test_slots_of_other_block_sizes(lab: LabUnderTest) -> None:
    """The same in blocks of 1, 3, 4 and 16 tokens: a prompt in two chunks, then token by token."""
    for block_size in (1, 3, 4, 16):
        for num_tokens in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            kv = make_kv(lab, ALLOCATE, num_blocks=30, block_size=block_size)
            scramble(kv)
            request = kv.new_request("A", PROMPT[: num_tokens + 1])
            lengths = []
            for num_new_tokens in (num_tokens, 1):  # the prompt's last token is a chunk of its own
                must_fit(lab, "A", allocate(kv, request, num_new_tokens))
                request.num_computed_tokens += num_new_tokens
                lengths.append(len(table(kv, "A")))
            for _ in range(block_size):
                decode(lab, kv, request)
                lengths.append(len(table(kv, "A")))
            want = [-(-(num_tokens + step) // block_size) for step in range(block_size + 2)]
            what = f"length of A's table after each step: {num_tokens} tokens, then one by one, blocks of {block_size}"
            lab.expect(what, want, lengths)


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", why="a step computes at least one token")
def test_no_new_token(lab: LabUnderTest) -> None:
    """0 new tokens, then -1, of a new request and of a running one."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a, b = admit(lab, kv, PROMPT[:5], "A"), kv.new_request("B", PROMPT[30:40])
    for request in (b, a):
        for num_new_tokens in (0, -1):
            what = f"allocate_slots({request.request_id}, {num_new_tokens})"
            refuses(lab, what, AllocationError, partial(allocate, kv, request, num_new_tokens))
    lab.expect("admitted requests", ["A"], list(kv.requests))


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", why="an id names one table, and one request writes it")
def test_an_id_in_use(lab: LabUnderTest) -> None:
    """Another request calls itself A while A is running. When A is gone, it may."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a, other = admit(lab, kv, PROMPT[:8], "A"), kv.new_request("A", PROMPT[30:40])
    refuses(lab, "allocate_slots of another A", RepeatedRequestError, lambda: allocate(kv, other, 10))
    lab.expect("A's block table", [1, 2], table(kv, "A"))
    lab.expect("new blocks of the first A", [3], decode(lab, kv, a), why="the first A is running as before")
    kv.free(a)
    lab.expect("new blocks of the other A", [3, 4, 5], allocate(kv, other, 10), why="the name is free again")


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", after="test_7_a_hit_begins_the_table")
def test_a_hit_that_is_adopted_first(lab: LabUnderTest) -> None:
    """Some schedulers write the hit on the request before they ask for slots, others pass it. It is counted once."""
    kv = make_kv(lab, ALLOCATE, num_blocks=12, block_size=4)
    admit(lab, kv, PROMPT[:13], "A")  # 1 2 3 4
    b = kv.new_request("B", PROMPT[:13])
    hit, b.num_computed_tokens = kv.get_computed_blocks(b)
    lab.expect("new blocks for B, who has adopted 12 tokens", [5], allocate(kv, b, 1, new_computed_blocks=hit))
    c = kv.new_request("C", PROMPT[:13])
    hit, num_hit = kv.get_computed_blocks(c)
    lab.expect("new blocks for C, who passes 12 tokens", [6], allocate(kv, c, 1, num_hit, hit))
    lab.expect("tables of B and C", [[1, 2, 3, 5], [1, 2, 3, 6]], [table(kv, "B"), table(kv, "C")])


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", after="test_4_the_boundary_in_motion")
def test_slots_of_rejected_drafts_are_used_again(lab: LabUnderTest) -> None:
    """Six drafts, all of them wrong: their slots stay A's, and its next tokens need no block for a while."""
    kv = make_kv(lab, ALLOCATE, num_blocks=9, block_size=4)
    a = admit(lab, kv, PROMPT[:6], "A")
    a.append_output_token_ids(7)
    lab.expect("new blocks for one token and six drafts", [3, 4], allocate(kv, a, 1 + 6))
    a.num_computed_tokens = 7
    got = [decode(lab, kv, a) for _ in range(10)]
    lab.expect("new blocks for tokens 7 to 16", [[]] * 9 + [[5]], got, why="A has slots for 16 tokens already")


@points(1, f"KVCacheManager.{ALLOCATE}", stage="adversary", after="test_4_the_boundary_in_motion")
def test_a_running_request_is_refused(lab: LabUnderTest) -> None:
    """A's block is full and the pool is empty. None; when B is gone, the same call goes through."""
    kv = make_kv(lab, ALLOCATE, num_blocks=3, block_size=4)
    a, b = admit(lab, kv, PROMPT[:3], "A"), admit(lab, kv, PROMPT[30:34], "B")
    lab.expect("new blocks for A's token 3", [], decode(lab, kv, a), why="it fits into block 1: no block is needed")
    a.append_output_token_ids(7)
    lab.expect("new blocks for A's token 4, none free", None, allocate(kv, a, 1), why="None is refused, [] is not")
    kv.free(b)
    lab.expect("new blocks for A's token 4, one free", [2], allocate(kv, a, 1), why="the last block is as good as any")


@points(1, f"KVCacheManager.{CACHE}", stage="adversary", why="names follow the KV, chunk by chunk; none runs ahead")
def test_a_prompt_in_chunks(lab: LabUnderTest) -> None:
    """20 tokens in chunks of 6, 1, 1, 11 and 1. Slots for all of them, and all five names, are there from the start."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4)
    a = kv.new_request("A", PROMPT[:20])
    got = []
    for num_new_tokens in (6, 1, 1, 11, 1):
        left = 20 - a.num_computed_tokens - num_new_tokens
        must_fit(lab, "A", allocate(kv, a, num_new_tokens, num_lookahead_tokens=left))
        a.num_computed_tokens += num_new_tokens
        got.append(named(kv))
    want = [[1], [1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    lab.expect("blocks with a name after 6, 7, 8, 19, 20 tokens, blocks of 4", want, got)


@points(1, f"KVCacheManager.{CACHE}", stage="adversary", why="with caching off no request has names, and nobody asks")
def test_caching_can_be_off(lab: LabUnderTest) -> None:
    """The control group: the same tables, and an index that stays empty."""
    kv = make_kv(lab, CACHE, num_blocks=9, block_size=4, enable_caching=False)
    a = admit(lab, kv, PROMPT[:8], "A")
    decode(lab, kv, a)
    lab.expect("A's block table", [1, 2, 3], table(kv, "A"))
    lab.expect("blocks with a name", [], named(kv))


@points(1, f"KVCacheManager.{FREE}", stage="adversary", after="test_11_freed_twice")
def test_a_stranger_of_the_same_name(lab: LabUnderTest) -> None:
    """Another request is called A as well, and was never admitted: it has nothing to free here."""
    kv = make_kv(lab, FREE, num_blocks=7, block_size=4)
    a, stranger = kv.hold(PROMPT[:6], "A"), kv.new_request("A", PROMPT[:6])
    why = "the request counts, not its name: these are the blocks of the A that is running"
    refuses(lab, "free(another A)", UnknownRequestError, lambda: free(kv, stranger), why)
    lab.expect("A's block table", [1, 2], table(kv, "A"))
    free(kv, a)


@points(1, f"KVCacheManager.{FREE}", stage="adversary", after="test_10_the_tail_goes_home_first")
def test_shared_blocks_stay_with_the_others(lab: LabUnderTest) -> None:
    """Three requests with one beginning leave, ids out of order. Predict the queue."""
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
        why="the unnamed tails go in front, the later one first; a shared block waits for its last holder",
    )


# The property -------------------------------------------------------------------------------------------------------


@points(
    1,
    f"KVCacheManager.{NEED}",
    stage="property",
    why="blocks for all these tokens, less those that are there; and each free block of the hit",
)
def test_random_lives_of_get_num_blocks_to_allocate(lab: LabUnderTest) -> None:
    """Forty random lives of a small cache, each compared step by step with a model made of plain lists."""
    compare_random_lives(lab, NEED)


@points(
    1,
    f"KVCacheManager.{ALLOCATE}",
    stage="property",
    why="slots for this step and what lies ahead, or nothing at all; see NaiveCache.allocate",
)
def test_random_lives_of_allocate_slots(lab: LabUnderTest) -> None:
    """The same, with your `allocate_slots`."""
    compare_random_lives(lab, ALLOCATE)


@points(
    1,
    f"KVCacheManager.{CACHE}",
    stage="property",
    why="a full block of known tokens has a name, and nothing else has one; see NaiveCache.allocate",
)
def test_random_lives_of_cache_blocks(lab: LabUnderTest) -> None:
    """The same, with your `cache_blocks`."""
    compare_random_lives(lab, CACHE)


@points(
    1,
    f"KVCacheManager.{FREE}",
    stage="property",
    why="tail first; what has no name goes in front; see NaiveCache.leave",
)
def test_random_lives_of_free(lab: LabUnderTest) -> None:
    """The same, with your `free`."""
    compare_random_lives(lab, FREE)


@dataclass(frozen=True)
class Come:
    """A request comes; its first step computes at most `chunk` tokens beyond its hit."""

    name: str
    tokens: tuple[int, ...]
    chunk: int
    lookahead: int

    def __str__(self) -> str:
        return f"{self.name} brings {_digits(self.tokens)}, {self.chunk} a step{_ahead(self.lookahead)}"


@dataclass(frozen=True)
class Run:
    """A step of a running request: the next chunk of what it knows; with its last token also some drafts."""

    name: str
    chunk: int
    drafts: int
    said: tuple[int, ...]
    """The accepted drafts and one token more."""
    lookahead: int

    def __str__(self) -> str:
        drafts = f", {self.drafts} drafts" if self.drafts else ""
        return f"{self.name} runs {self.chunk} a step{drafts}{_ahead(self.lookahead)}, says {_digits(self.said)}"


@dataclass(frozen=True)
class Leave:
    """A request is over; nothing happens if it is not there."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} leaves"


Step = Come | Run | Leave


def _ahead(lookahead: int) -> str:
    return f", {lookahead} ahead" if lookahead else ""


def _digits(tokens: Sequence[int]) -> str:
    return "".join(map(str, tokens))


def random_life(rng: random.Random) -> list[Step]:
    """Return some requests over few tokens, so that they often begin alike, coming, running and going."""
    life: list[Step] = []
    alive: list[str] = []
    for number in range(14):
        kind = rng.random()
        if alive and kind < 0.3:
            life.append(Leave(alive.pop(rng.randrange(len(alive)))))
        elif alive and kind < 0.6:
            drafts = rng.choice((0, 0, 1, 3, 5))
            said = tuple(rng.choices((1, 2), k=rng.randint(1, drafts + 1)))
            life.append(Run(rng.choice(alive), rng.choice((1, 4, 9)), drafts, said, rng.choice((0, 0, 0, 2, 4))))
        else:
            stem = rng.choice(((1, 1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 2, 2, 2, 2), (2, 2)))
            tokens = stem[: rng.randint(1, 9)] + tuple(rng.choices((1, 2), k=rng.randint(0, 5)))
            alive.append(f"R{number}")
            life.append(Come(alive[-1], tokens, rng.choice((2, 4, 20, 20)), rng.choice((0, 0, 0, 3))))
    return life


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def compare_random_lives(lab: LabUnderTest, learners: str) -> None:
    """Play forty lives; of the first that goes wrong, play the shortest part that still does, and say what happened."""
    for seed in seeds(40):
        life = random_life(random.Random(seed))
        if not goes_wrong(lab, learners, life):
            continue
        shortest = shrink(life, lambda shorter: goes_wrong(lab, learners, shorter))
        told = f"in the life of seed {seed}, blocks of 3: {'; '.join(map(str, shortest))}"
        try:
            play(lab, learners, shortest)
        except LabFailure as failure:
            lab.fail(f"{failure.what}, {told}", failure.want, failure.got)
        except InvariantViolationError as error:
            violation = Violation(error.violation.invariant_id, f"{error.violation.message}, {told}")
            raise InvariantViolationError(violation) from None
        except Exception as error:
            lab.fail(f"the last step, {told}", "no exception", error)


def goes_wrong(lab: LabUnderTest, learners: str, life: list[Step]) -> bool:
    """Return whether the learner's code differs from the model, breaks an invariant or breaks down."""
    try:
        play(lab, learners, life)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


def play(lab: LabUnderTest, learners: str, life: list[Step]) -> None:
    """Play the steps on the learner's code and on the model; a step that means nothing now is left out."""
    kv, model = make_kv(lab, learners, num_blocks=8, block_size=3), NaiveCache(num_blocks=8, block_size=3)
    requests: dict[str, Request] = {}
    for step in life:
        if isinstance(step, Leave):
            if step.name in requests:
                free(kv, requests.pop(step.name))
                model.leave(step.name)
        elif isinstance(step, Come):
            request = kv.new_request(step.name, step.tokens)
            hit, num_hit = kv.get_computed_blocks(request)
            model.come(step.name, step.tokens)
            lab.expect(f"cached tokens of {step.name}", model.computed[step.name], num_hit)
            num_new = min(step.chunk, len(step.tokens) - num_hit)
            if same_blocks(lab, kv, model, request, num_new, step.lookahead, num_hit, hit):
                requests[step.name] = request
                request.num_computed_tokens = num_hit + num_new
                if request.num_computed_tokens == request.num_tokens:
                    request.append_output_token_ids(1)
                model.ran(step.name, num_new, [1])
        elif step.name in requests:
            request = requests[step.name]
            left = request.num_tokens - request.num_computed_tokens
            num_new, drafts = (step.chunk, 0) if step.chunk < left else (left, step.drafts)
            if same_blocks(lab, kv, model, request, num_new + drafts, step.lookahead):
                if num_new == left:
                    request.num_computed_tokens += num_new + len(step.said) - 1
                    request.append_output_token_ids(*step.said)
                else:
                    request.num_computed_tokens += num_new
                model.ran(step.name, num_new, list(step.said))
        lab.expect("free queue", model.free, free_queue(kv))
        lab.expect("blocks with a name", sorted(model.known), named(kv))


def same_blocks(
    lab: LabUnderTest,
    kv: WatchedKVCacheManager,
    model: "NaiveCache",
    request: Request,
    num_new: int,
    lookahead: int,
    num_hit: int = 0,
    hit: KVCacheBlocks | None = None,
) -> bool:
    """Allocate on both sides and compare; return whether there was room."""
    name = request.request_id
    wanted = model.need(name, num_new + lookahead)
    num_tokens = request.num_computed_tokens + num_hit + num_new + lookahead
    got = kv.get_num_blocks_to_allocate(name, num_tokens, hit.blocks[0] if hit is not None else [])
    lab.expect(f"free blocks that {name} needs for {num_tokens} tokens", wanted, got)
    want = model.allocate(name, num_new, lookahead)
    lab.expect(f"new blocks of {name} (None: refused)", want, allocate(kv, request, num_new, num_hit, hit, lookahead))
    lab.expect(f"block table of {name}", model.tables.get(name, []), table(kv, name))
    return want is not None


class NaiveCache:
    """The same cache without hashes, links or counts: a block is known by all the tokens up to its end."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        self.known: dict[int, tuple[int, ...]] = {}  # block -> prefix, oldest first
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.hits: dict[str, list[int]] = {}

    def come(self, name: str, tokens: Sequence[int]) -> None:
        """Look the request up; it holds nothing yet."""
        hit: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):  # stops before the last token
            found = [block for block, prefix in self.known.items() if prefix == tuple(tokens[:end])]
            if not found:
                break
            hit.append(found[0])
        self.tokens[name], self.computed[name], self.hits[name] = list(tokens), len(hit) * self.block_size, hit

    def need(self, name: str, num_more: int) -> int:
        """Return how many free blocks it takes to give the request slots for so many tokens more."""
        there = self.tables.get(name) or self.hits[name]
        slots = list(range(self.computed[name] + num_more))
        blocks = [slots[first : first + self.block_size] for first in range(0, len(slots), self.block_size)]
        return len(blocks[len(there) :]) + len([block for block in there if block in self.free])

    def allocate(self, name: str, num_new: int, lookahead: int) -> list[int] | None:
        """Return the new blocks; None if they do not fit. Names what this step fills with known tokens."""
        if self.need(name, num_new + lookahead) > len(self.free):
            return None
        table = self.tables.setdefault(name, self.hits[name])
        self.free = [block for block in self.free if block not in table]
        new = [self.free.pop(0) for _ in range(self.need(name, num_new + lookahead))]
        for block in new:
            self.known.pop(block, None)
        table += new
        filled = self.tokens[name][: self.computed[name] + num_new]
        for index in range(len(filled) // self.block_size):
            self.known.setdefault(table[index], tuple(filled[: (index + 1) * self.block_size]))
        return new

    def ran(self, name: str, num_new: int, said: list[int]) -> None:
        """The step is done; if all that was known is computed, the request has said something."""
        self.computed[name] += num_new
        if self.computed[name] == len(self.tokens[name]):
            self.computed[name] += len(said) - 1  # the drafts that it accepted
            self.tokens[name] += said

    def leave(self, name: str) -> None:
        """Let the request's blocks go, tail first: those without a name to the front, the others to the back."""
        table = self.tables.pop(name)
        held = {block for other in self.tables.values() for block in other}
        gone = [block for block in reversed(table) if block not in held]
        in_front = [block for block in gone if block not in self.known]
        self.free = in_front + self.free + [block for block in gone if block in self.known]


# What the tests above stand on --------------------------------------------------------------------------------------


def do_nothing(*args: object) -> None:
    """Stands in for a call whose work is done elsewhere."""


class StandIns(engine.KVCacheManager):
    """The engine's methods under the names of this lab: they stand in for those that a test is not about."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        return self.coordinator.get_num_blocks_to_allocate(request_id, num_tokens, [new_computed_blocks])

    def allocate_slots(  # type: ignore[override]  # the engine's has three more, for a scheduler's admission
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        rest = (num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens)
        return engine.KVCacheManager.allocate_slots(self, request, num_new_tokens, *rest)

    def allocate_without_names(self, request: Request, num_new_tokens: int, *rest: Any) -> KVCacheBlocks | None:
        with mock.patch.object(self.coordinator, "cache_blocks", new=do_nothing):
            return engine.KVCacheManager.allocate_slots(self, request, num_new_tokens, *rest)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        num_slots = self.block_size * len(self.get_block_ids(request.request_id)[0])
        self.coordinator.cache_blocks(request, min(num_computed_tokens, num_slots))  # a short table shows soon enough

    def free(self, request: Request) -> None:
        if self.requests.get(request.request_id) is not request:
            raise UnknownRequestError(request.request_id)
        del self.requests[request.request_id]
        self.coordinator.free(request.request_id)


def make_kv(
    lab: LabUnderTest, learners: str, num_blocks: int, block_size: int, *, enable_caching: bool = True
) -> WatchedKVCacheManager:
    """Return a cache whose method `learners` is the learner's, and whose other methods are the engine's.

    So a mistake in one method does not fail the tests of another.
    """
    own: type[engine.KVCacheManager] = lab.KVCacheManager
    others: dict[str, Any] = {name: vars(StandIns)[name] for name in (NEED, ALLOCATE, CACHE, FREE) if name != learners}
    others["names_are_asked_for"] = learners == CACHE  # by `allocate` below, so that a mistake shows where it is made
    if learners == CACHE:
        others[ALLOCATE] = StandIns.allocate_without_names
    if learners == ALLOCATE:

        def allocate_slots(self: engine.KVCacheManager, *args: Any, **options: Any) -> Any:
            blocks = own.allocate_slots(self, *args, **options)
            if blocks is not None and not are_new_blocks(blocks):
                want = "None, or KVCacheBlocks(([block, ...],)): a list for the one group"
                lab.fail("what allocate_slots returned", want, blocks)
            return blocks

        others[ALLOCATE] = allocate_slots
    manager_class = type("KVCacheManager", (own,), others)
    return lab.make_kv(num_blocks, block_size, enable_caching=enable_caching, manager_class=manager_class)


def are_new_blocks(value: object) -> bool:
    """Return whether it is what `allocate_slots` should return: the blocks of one group."""
    return (
        isinstance(value, KVCacheBlocks)
        and isinstance(value.blocks, tuple)
        and len(value.blocks) == 1
        and isinstance(value.blocks[0], list | tuple)
        and all(isinstance(block, KVCacheBlock) for block in value.blocks[0])
    )


def need(
    lab: LabUnderTest, kv: WatchedKVCacheManager, name: str, num_tokens: int, hit: Sequence[KVCacheBlock] = ()
) -> int:
    """Ask how many free blocks it takes; whoever asks changes nothing."""
    before = manager_state(kv.manager)
    got = kv.get_num_blocks_to_allocate(name, num_tokens, hit)
    after = manager_state(kv.manager)
    changed = [what for what in before if before[what] != after[what]]
    if changed:
        lab.fail(f"what {NEED} changed: it only answers a question", "nothing", " and the ".join(changed))
    return got  # type: ignore[no-any-return]  # whatever the learner returned


def allocate(
    kv: WatchedKVCacheManager,
    request: Request,
    num_new_tokens: int,
    num_new_computed_tokens: int = 0,
    new_computed_blocks: KVCacheBlocks | None = None,
    num_lookahead_tokens: int = 0,
) -> list[int] | None:
    """Call allocate_slots and return the ids of the new blocks, or None."""
    rest = (num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens)
    with cause_first():
        blocks = kv.allocate_slots(request, num_new_tokens, *rest)
    if blocks is not None and kv.names_are_asked_for:
        kv.cache_blocks(request, request.num_computed_tokens + num_new_computed_tokens + num_new_tokens)
        check_invariants(kv.manager)
    return None if blocks is None else ids_of(blocks.blocks[0])


def free(kv: WatchedKVCacheManager, request: Request) -> None:
    """Call free."""
    with cause_first():
        kv.free(request)


@contextmanager
def cause_first() -> Iterator[None]:
    """Show what went wrong first: code that breaks down half-way leaves a broken state, and debug mode sees that.

    An exception that the learner raises on purpose is another matter: there the broken state is the mistake.
    """
    try:
        yield
    except InvariantViolationError as error:
        cause = error.__context__
        on_purpose = (AllocationError, RepeatedRequestError, UnknownRequestError, InvariantViolationError)
        if isinstance(cause, Exception) and not isinstance(cause, on_purpose):
            raise cause from None
        raise


def must_fit(lab: LabUnderTest, name: str, new: list[int] | None) -> list[int]:
    """Return the new blocks; a refusal is wrong, since there is room."""
    if new is None:
        lab.fail(f"new blocks for {name}", "a list of ids: there is room", None, why="None is for too few free blocks")
    return new


def admit(lab: LabUnderTest, kv: WatchedKVCacheManager, token_ids: list[int], name: str) -> Request:
    """What a scheduler does when a request's turn comes: look it up, get slots for the rest, compute it all at once."""
    request = kv.new_request(name, token_ids)
    hit, num_hit = kv.get_computed_blocks(request)
    must_fit(lab, name, allocate(kv, request, len(token_ids) - num_hit, num_hit, hit))
    request.num_computed_tokens = request.num_tokens
    return request


def decode(lab: LabUnderTest, kv: WatchedKVCacheManager, request: Request) -> list[int]:
    """One token is sampled, and the next step computes it; return the new blocks of that step."""
    request.append_output_token_ids(7)
    new = must_fit(lab, request.request_id, allocate(kv, request, 1))
    request.num_computed_tokens += 1
    return new


def refuses(lab: LabUnderTest, what: str, error: type[Exception], call: Callable[[], object], why: str = "") -> None:
    """Make a call that must raise `error`; that it changed nothing is seen to by debug mode."""
    try:
        result = call()
    except (LabTodo, LabFailure, InvariantViolationError):
        raise
    except error:
        return
    except Exception as other:
        lab.fail(what, f"{error.__name__} raised", other, why)
    lab.fail(what, f"{error.__name__} raised", f"{result} returned", why)


def table(kv: WatchedKVCacheManager, name: str) -> list[int]:
    """Return the ids in the request's block table; empty if it holds nothing."""
    return list(kv.get_block_ids(name)[0])


def named(kv: WatchedKVCacheManager) -> list[int]:
    """Return the ids of the blocks that can be found by their content."""
    return [block.block_id for block in kv.block_pool.blocks if block.block_hash is not None]


def references(kv: WatchedKVCacheManager, *block_ids: int) -> list[int]:
    """Return how many tables hold each of these blocks, as the blocks have it."""
    return [kv.block_pool.blocks[block_id].ref_cnt for block_id in block_ids]


def free_queue(kv: WatchedKVCacheManager) -> list[int]:
    """Return the ids in the free queue, the next to be handed out first."""
    return ids_of(kv.block_pool.free_block_queue.get_all_free_blocks())


def ids_of(blocks: Sequence[KVCacheBlock]) -> list[int]:
    """Return the numbers of the blocks, which is how a drawing names them."""
    return [block.block_id for block in blocks]


def scramble(kv: WatchedKVCacheManager) -> None:
    """Put the blocks of a new cache into another order, so that no number tells a block's place."""
    queue = kv.block_pool.free_block_queue
    blocks = queue.popleft_n(queue.num_free_blocks)
    queue.append_n(blocks[1::2] + blocks[::2][::-1])
