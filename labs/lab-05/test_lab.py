"""lab-05: the life of a cached block. Read the numbered tests in order: they are its biography.

Blocks hold 4 tokens. PROMPT is 32 tokens, so 8 full blocks. Block 0 is the null block: it is never handed out.
"""

import random
from functools import partial
from typing import Any

from mini_kv.core.errors import InvalidTokenError, RepeatedRequestError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest, WatchedKVCacheManager
from mini_kv.course.labkit.lives import (
    COMES,
    LEAVES,
    Step,
    check_life,
    free_queue,
    random_life,
    references,
    scramble,
    seeds,
    table,
)
from mini_kv.course.labkit.naive import NaiveCache

BLOCK_SIZE = 4
PROMPT = list(range(32))


# The biography ------------------------------------------------------------------------------------------------------


@points(4, "prefill", rule=3, why="nothing is cached yet: the first request pays for all of its tokens")
def test_1_first_request_populates_a_cold_cache(lab: LabUnderTest) -> None:
    """A comes first: 0 tokens cached, eight new blocks."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    _, cached = admit(lab, kv, PROMPT, "A")
    lab.expect("A's cached tokens", 0, cached, rule=2)
    lab.expect("A's block table", [1, 2, 3, 4, 5, 6, 7, 8], table(kv, "A"), why="32 tokens fill 8 blocks of 4")


@points(4, "prefill", rule=3, after="test_1_first_request_populates_a_cold_cache")
def test_2_identical_prompt_shares_all_but_the_tail_block(lab: LabUnderTest) -> None:
    """B asks the same: 28 of 32 tokens cached, seven of A's blocks, and one new block instead of eight."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    admit(lab, kv, PROMPT, "A")
    free_before = kv.block_pool.num_free_blocks
    _, cached = admit(lab, kv, PROMPT, "B")
    lab.expect(
        "B's cached tokens",
        28,
        cached,
        why="a hit covers at most num_tokens - 1 = 31 tokens, in whole blocks of 4: 7 blocks, 28 tokens",
        rule=2,
    )
    lab.expect("B's block table", [1, 2, 3, 4, 5, 6, 7, 9], table(kv, "B"), why="A's first seven blocks, then B's own")
    lab.expect(
        "new blocks that B cost",
        1,
        free_before - kv.block_pool.num_free_blocks,
        why="only the 4 tokens that are not cached need slots",
    )


@points(
    4,
    "ref_counts",
    rule=8,
    why="each table that contains a block adds one reference: blocks 1 to 7 are in both tables, the last is in one",
)
def test_3_reference_counts_show_the_sharing(lab: LabUnderTest) -> None:
    """A and B hold the first seven blocks together, and one block each; without A, B holds each of its blocks once."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    a, b = kv.hold(PROMPT, "A"), kv.hold(PROMPT, "B")
    lab.expect("B's reference counts", [2] * 7 + [1], lab.ref_counts(kv, b))
    lab.expect("A's reference counts", [2] * 7 + [1], lab.ref_counts(kv, a))
    kv.free(a)
    lab.expect("B's reference counts without A", [1] * 8, lab.ref_counts(kv, b))


@points(2, "prefill", rule=2, after="test_2_identical_prompt_shares_all_but_the_tail_block")
def test_4_diverging_prompt_shares_only_the_common_prefix(lab: LabUnderTest) -> None:
    """B begins like A for 16 tokens, then goes its own way: 16 cached, four blocks shared."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    admit(lab, kv, PROMPT, "A")
    _, cached = admit(lab, kv, PROMPT[:16] + [900 + n for n in range(16)], "B")
    lab.expect("B's cached tokens", 16, cached, why="the fifth block differs, and nothing after a difference can match")
    lab.expect("B's block table", [1, 2, 3, 4, 9, 10, 11, 12], table(kv, "B"))


@points(3, "prefill", rule=3, after="test_2_identical_prompt_shares_all_but_the_tail_block")
def test_5_tails_are_evicted_before_the_shared_prefix(lab: LabUnderTest) -> None:
    """A pool of exactly ten: under pressure the two private tails go first, the head of the prefix last."""
    kv = lab.make_kv(num_blocks=10, block_size=BLOCK_SIZE)  # null, A's eight, B's tail
    a, _ = admit(lab, kv, PROMPT, "A")
    b, _ = admit(lab, kv, PROMPT, "B")
    kv.free(a)
    kv.free(b)
    lab.expect(
        "free queue, all nine still cached",
        [8, 9, 7, 6, 5, 4, 3, 2, 1],
        free_queue(kv),
        why="each table is freed from tail to head: the front of the queue goes first, the prompt's beginning last",
    )
    _, cached = admit(lab, kv, [900 + n for n in range(8)], "C")
    lab.expect("C's cached tokens", 0, cached)
    lab.expect("C's block table", [8, 9], table(kv, "C"), why="the two tails were at the front")
    lab.expect("old prefix that can still be hit", 28, hit_length(kv, PROMPT), why="only the tails are gone")
    admit(lab, kv, [800 + n for n in range(24)], "D")
    lab.expect("old prefix that can still be hit", 4, hit_length(kv, PROMPT), why="only block 1 is still cached")


@points(4, "prefill", rule=3, after="test_2_identical_prompt_shares_all_but_the_tail_block")
def test_6_cached_free_blocks_are_revived_not_recomputed(lab: LabUnderTest) -> None:
    """A is freed, its blocks stay cached; D has the same prompt and gets them from the middle of the queue."""
    kv = lab.make_kv(num_blocks=10, block_size=BLOCK_SIZE)
    a, _ = admit(lab, kv, PROMPT, "A")
    kv.free(a)
    lab.expect("free queue without A", [9, 8, 7, 6, 5, 4, 3, 2, 1], free_queue(kv))
    _, cached = admit(lab, kv, PROMPT, "D")
    lab.expect("D's cached tokens", 28, cached, why="no request held the blocks, but they were still cached")
    lab.expect("D's block table", [1, 2, 3, 4, 5, 6, 7, 9], table(kv, "D"))
    lab.expect("free queue", [8], free_queue(kv), why="a revived block leaves the queue, wherever it is in it")


@points(2, "prefill", rule=2, after="test_1_first_request_populates_a_cold_cache")
def test_7_caching_disabled_means_no_sharing(lab: LabUnderTest) -> None:
    """The control group: with caching off, the same prompt costs eight blocks every time."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE, enable_caching=False)
    admit(lab, kv, PROMPT, "A")
    _, cached = admit(lab, kv, PROMPT, "B")
    lab.expect("B's cached tokens", 0, cached, why="no index, no hit")
    lab.expect("B's block table", [9, 10, 11, 12, 13, 14, 15, 16], table(kv, "B"))


@points(
    4, "cache_hit_rate", rule=9, why="the rate counts the tokens of all requests, also those of A, which found nothing"
)
def test_8_hit_rate_counts_the_pioneers(lab: LabUnderTest) -> None:
    """The second request found 28 of 32, 87.5 %; but the first found none, and together it is 43.75 %."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    lab.expect("hit rate before any request", 0.0, lab.cache_hit_rate(kv), why="0 of 0 tokens: no division by zero")
    kv.hold(PROMPT, "A")
    lab.expect("hit rate after A, who is alone", 0.0, lab.cache_hit_rate(kv))
    kv.hold(PROMPT, "B")
    why = "A asked for 32 tokens, B for 32, and 28 were found: 28 of 64"
    lab.expect("hit rate after A and B", 0.4375, lab.cache_hit_rate(kv), why)
    kv.hold(PROMPT[:9], "C")
    lab.expect("hit rate after A, B and C", (28 + 8) / (32 + 32 + 9), lab.cache_hit_rate(kv))


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "prefill", rule=3, stage="adversary", after="test_5_tails_are_evicted_before_the_shared_prefix")
def test_scrambled_frees_leave_a_queue_that_you_can_predict(lab: LabUnderTest) -> None:
    """Three sharers leave in another order than they came. Predict the whole queue on paper before you look."""
    kv = lab.make_kv(num_blocks=16, block_size=BLOCK_SIZE)
    a, _ = admit(lab, kv, PROMPT[:16], "A")  # 1 2 3 4
    b, _ = admit(lab, kv, PROMPT[:18], "B")  # 1 2 3 4, then 5 with 2 tokens
    c, _ = admit(lab, kv, PROMPT[:8] + [900] * 8, "C")  # 1 2, then 6 7
    lab.expect("tables", [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 6, 7]], [table(kv, name) for name in "ABC"])
    for request in (b, c, a):
        kv.free(request)
    lab.expect(
        "free queue after B, C and A left",
        [5, 8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 4, 3, 2, 1],
        free_queue(kv),
        why="5 is not cached and goes to the front; the others go to the back with their last request, tail first",
    )


@points(2, "prefill", rule=2, stage="adversary", after="test_4_diverging_prompt_shares_only_the_common_prefix")
def test_same_block_after_another_prefix_is_another_block(lab: LabUnderTest) -> None:
    """The same four tokens after other tokens are other KV: nothing may match."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    admit(lab, kv, [1, 2, 3, 4, 5, 6, 7, 8, 9], "A")
    _, cached = admit(lab, kv, [0, 0, 0, 0, 5, 6, 7, 8, 9], "B")
    lab.expect("B's cached tokens", 0, cached, why="5 6 7 8 came after 1 2 3 4: another hash")
    _, cached = admit(lab, kv, [5, 6, 7, 8, 9], "C")
    lab.expect("C's cached tokens", 0, cached, why="5 6 7 8 at the beginning of a prompt have never been computed")
    lab.expect("tables of B and C", [[4, 5, 6], [7, 8]], [table(kv, "B"), table(kv, "C")])


@points(2, "prefill", rule=2, stage="adversary", after="test_1_first_request_populates_a_cold_cache")
def test_evicted_key_never_hits(lab: LabUnderTest) -> None:
    """A's blocks are overwritten by C: a request with A's prompt must not find C's KV."""
    kv = lab.make_kv(num_blocks=9, block_size=BLOCK_SIZE)
    a, _ = admit(lab, kv, PROMPT, "A")
    kv.free(a)
    c, _ = admit(lab, kv, [900 + n for n in range(32)], "C")
    lab.expect("C's block table", [8, 7, 6, 5, 4, 3, 2, 1], table(kv, "C"), why="C needs the whole pool")
    kv.free(c)
    _, cached = admit(lab, kv, PROMPT, "D")
    lab.expect("D's cached tokens", 0, cached, why="a block that is reused loses its block hash")


@points(1, "prefill", rule=2, stage="adversary", after="test_4_diverging_prompt_shares_only_the_common_prefix")
def test_nothing_after_a_hole_is_hit(lab: LabUnderTest) -> None:
    """A's third block loses its block hash while A runs: the blocks after it are cached, and no lookup reaches them."""
    kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
    admit(lab, kv, PROMPT, "A")
    kv.evict_blocks([3])
    _, cached = admit(lab, kv, PROMPT, "B")
    lab.expect("B's cached tokens", 8, cached, why="a hit is a chain from the first block: it ends before the hole")
    lab.expect("B's block table", [1, 2, 9, 10, 11, 12, 13, 14], table(kv, "B"))


@points(1, "prefill", rule=3, stage="adversary", after="test_6_cached_free_blocks_are_revived_not_recomputed")
def test_a_hit_in_front_of_the_queue_is_not_taken_as_new(lab: LabUnderTest) -> None:
    """B's hits stand in front of the free queue, where new blocks come from: they must be pulled out first."""
    kv = lab.make_kv(num_blocks=10, block_size=BLOCK_SIZE)
    a, c = kv.hold(PROMPT, "A"), kv.hold([900, 901, 902, 903], "C")
    kv.free(a)
    kv.free(c)
    lab.expect("free queue before B", [8, 7, 6, 5, 4, 3, 2, 1, 9], free_queue(kv))
    b, cached = admit(lab, kv, [*PROMPT, 32, 33, 34, 35], "B")
    lab.expect("B's cached tokens", 32, cached)
    lab.expect("B's block table", [1, 2, 3, 4, 5, 6, 7, 8, 9], table(kv, "B"), why="first the hits, then new blocks")
    kv.free(b)
    lab.expect("B's prompt that can be hit afterwards", 32, hit_length(kv, [*PROMPT, 32, 33, 34, 35]))


@points(2, "prefill", rule=5, stage="adversary", after="test_6_cached_free_blocks_are_revived_not_recomputed")
def test_revived_hit_is_charged(lab: LabUnderTest) -> None:
    """A revived block leaves the free queue like a new one: with 7 free blocks B is refused, with 8 it is admitted."""
    why = "B needs 8 blocks out of the free queue: 7 to revive and 1 new"
    roomy = lab.make_kv(num_blocks=10, block_size=BLOCK_SIZE)
    roomy.free(roomy.hold(PROMPT, "A"))
    roomy.hold([900], "H")
    lab.expect("free queue before B", [8, 7, 6, 5, 4, 3, 2, 1], free_queue(roomy))
    _, cached = admit(lab, roomy, PROMPT, "B")
    lab.expect("B's cached tokens, 8 blocks free", 28, cached, why=why)
    lab.expect("B's block table", [1, 2, 3, 4, 5, 6, 7, 8], table(roomy, "B"), why=why)

    tight = lab.make_kv(num_blocks=9, block_size=BLOCK_SIZE)
    tight.free(tight.hold(PROMPT, "A"))
    tight.hold([900], "H")
    lab.expect("free queue before B", [7, 6, 5, 4, 3, 2, 1], free_queue(tight))
    lab.expect("B's prefill, 7 blocks free, all of them hits", None, lab.prefill(tight, PROMPT, "B"), why=why)


@points(3, "prefill", rule=6, stage="adversary", after="test_2_identical_prompt_shares_all_but_the_tail_block")
def test_refusal_changes_nothing(lab: LabUnderTest) -> None:
    """No room for B: None, and every count as before; when A is gone, B's turn comes again and it fits."""
    kv = lab.make_kv(num_blocks=9, block_size=BLOCK_SIZE)
    a = kv.hold(PROMPT, "A")
    lab.expect(
        "B's prefill in a full pool", None, lab.prefill(kv, PROMPT, "B"), why="28 tokens are cached, 0 blocks free"
    )
    lab.expect("A's block table", [1, 2, 3, 4, 5, 6, 7, 8], table(kv, "A"))
    lab.expect("A's references", [1] * 8, references(kv, range(1, 9)), why="B was refused and holds nothing")
    lab.expect("requests counted", 1, kv.prefix_cache_stats.requests, why="a refused request is not counted")
    for request in kv.made_requests:
        lab.expect(
            f"computed tokens of the refused request {request.request_id}",
            0,
            request.num_computed_tokens,
            why="it will be tried again; its count must not include tokens for which it has no blocks",
        )
    kv.free(a)
    _, cached = admit(lab, kv, PROMPT, "B")
    lab.expect("B's cached tokens at the second try", 28, cached)


@points(1, "prefill", rule=7, stage="adversary", after="test_1_first_request_populates_a_cold_cache")
def test_errors_are_not_refusals(lab: LabUnderTest) -> None:
    """A bad token and an id that is in use are the caller's mistakes: None would hide them, an exception tells them."""
    for what, tokens, error in (
        ("prefill of a prompt with the token -1", [1, -1], InvalidTokenError),
        ("prefill under an id that is in use", PROMPT, RepeatedRequestError),
    ):
        kv = lab.make_kv(num_blocks=20, block_size=BLOCK_SIZE)
        kv.hold(PROMPT, "A")
        try:
            result = lab.prefill(kv, tokens, "A")
        except error:
            continue
        lab.fail(
            what, f"{error.__name__}, passed on", result, why="return None only for too few blocks; catch no errors"
        )


@points(2, "prefill", rule=2, stage="adversary", after="test_2_identical_prompt_shares_all_but_the_tail_block")
def test_lengths_around_a_block_and_other_block_sizes(lab: LabUnderTest) -> None:
    """One token less, exactly full, one more; blocks of 1, 3, 4 and 16 tokens; ids out of order."""
    for block_size in (1, 3, 4, 16):
        for num_tokens in (3 * block_size - 1, 3 * block_size, 3 * block_size + 1):
            kv = lab.make_kv(num_blocks=30, block_size=block_size)
            scramble(kv)
            tokens = list(range(100, 100 + num_tokens))
            name = f"with {num_tokens} tokens in blocks of {block_size}"
            _, cached = admit(lab, kv, tokens, "A")
            lab.expect(f"A's cached tokens {name}", 0, cached)
            num_shared = (num_tokens - 1) // block_size
            _, cached = admit(lab, kv, tokens, "B")
            lab.expect(f"B's cached tokens {name}", num_shared * block_size, cached, why="at most num_tokens - 1")
            lab.expect(f"blocks that B shares {name}", table(kv, "A")[:num_shared], table(kv, "B")[:num_shared])
            num_blocks = -(-num_tokens // block_size)
            lab.expect(f"length of B's block table {name}", num_blocks, len(table(kv, "B")))
            lab.expect(
                f"blocks free {name}", 29 - num_blocks - (num_blocks - num_shared), kv.block_pool.num_free_blocks
            )


@points(2, "ref_counts", rule=8, stage="adversary", after="test_3_reference_counts_show_the_sharing")
def test_reference_counts_of_any_table(lab: LabUnderTest) -> None:
    """Three holders, a partial tail, ids out of order: one count for every block of the table, in its order."""
    kv = lab.make_kv(num_blocks=30, block_size=BLOCK_SIZE)
    scramble(kv)
    a, b, c = kv.hold(PROMPT[:10], "A"), kv.hold(PROMPT[:13], "B"), kv.hold([*PROMPT[:4], 7], "C")
    lab.expect(
        "A's reference counts", [3, 2, 1], lab.ref_counts(kv, a), why="the third block, with 2 tokens, counts too"
    )
    lab.expect("B's reference counts", [3, 2, 1, 1], lab.ref_counts(kv, b))
    lab.expect("C's reference counts", [3, 1], lab.ref_counts(kv, c))


@points(2, "cache_hit_rate", rule=9, stage="adversary", after="test_8_hit_rate_counts_the_pioneers")
def test_hit_rate_ignores_lookups_that_admit_no_request(lab: LabUnderTest) -> None:
    """A lookup is not a request: a refused request that tries again counts once."""
    kv = lab.make_kv(num_blocks=9, block_size=BLOCK_SIZE)
    a = kv.hold(PROMPT, "A")
    for _ in range(3):
        kv.get_computed_blocks(kv.new_request("B", PROMPT))
    lab.expect("hit rate after A and three lookups", 0.0, lab.cache_hit_rate(kv))
    kv.free(a)
    kv.hold(PROMPT[:31], "B")
    lab.expect("hit rate after A and B", 28 / 63, lab.cache_hit_rate(kv), why="28 of 32 + 31 tokens")


# The property -------------------------------------------------------------------------------------------------------


@points(
    3,
    "prefill",
    rule=3,
    stage="property",
    after="test_2_identical_prompt_shares_all_but_the_tail_block",
    why="what the same cache does in plain lists; see NaiveCache in mini_kv/course/labkit/naive.py",
)
def test_random_traces_agree_with_a_naive_cache(lab: LabUnderTest) -> None:
    """Forty random lives of a small cache, each compared step by step with a model made of plain lists."""
    for seed in seeds(40):
        life = random_life(random.Random(seed), 16, {COMES: 0.6, LEAVES: 0.4}, max_tail=5)
        check_life(lab, partial(play, lab), life, f"in the life of seed {seed}, blocks of 2")


def play(lab: LabUnderTest, life: list[Step]) -> None:
    """Play the steps on the learner's code and on the model, step by step."""
    kv, model = lab.make_kv(num_blocks=9, block_size=2), NaiveCache(num_blocks=9, block_size=2)
    requests: dict[str, Any] = {}
    for step in life:
        if step.verb == COMES:
            hit = model.hit(step.tokens)
            want = None if model.allocate(step.name, step.tokens, hit) is None else 2 * len(hit)
            result = lab.prefill(kv, list(step.tokens), step.name)
            got = result[1] if type(result) is tuple and len(result) == 2 else result
            lab.expect(f"cached tokens of {step.name} (None: refused)", want, got)
            if want is not None:
                requests[step.name] = result[0]
                lab.expect(f"block table of {step.name}", model.tables[step.name], table(kv, step.name))
        elif step.name in requests:
            kv.free(requests.pop(step.name))
            model.leave(step.name)
        lab.expect(f"free queue after: {step}", model.free_queue, free_queue(kv))


# What the tests above stand on --------------------------------------------------------------------------------------


def admit(lab: LabUnderTest, kv: WatchedKVCacheManager, token_ids: list[int], request_id: str) -> tuple[Any, Any]:
    """Call the learner's prefill where there is room, and return the request and its cached tokens."""
    result = lab.prefill(kv, token_ids, request_id)
    if type(result) is not tuple or len(result) != 2:
        why = "None is for a request that is refused; there was room here"
        lab.fail(f"what prefill returned for {request_id}", "(request, number of cached tokens)", result, why, rule=1)
    request, cached = result
    if getattr(request, "request_id", None) != request_id:
        what, want = f"the request that prefill returned for {request_id}", f"Request({request_id!r}, ...)"
        why = "prefill returns the pair (request, number of cached tokens), in this order"
        lab.fail(what, want, request, why, rule=1)
    lab.expect(
        f"computed tokens of {request_id} after its prefill",
        len(token_ids),
        request.num_computed_tokens,
        why="the step has run: the cached tokens and the new ones all have their KV now",
        rule=4,
    )
    return request, cached


def hit_length(kv: WatchedKVCacheManager, token_ids: list[int]) -> int:
    """Return how many tokens of this prompt are cached now."""
    return int(kv.get_computed_blocks(kv.new_request("probe", token_ids))[1])
