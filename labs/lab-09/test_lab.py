"""lab-09: attention over blocks. Read the numbered tests in order: from one softmax to a prompt after a cached prefix.

You can do the sums of the numbered tests on paper. A token's score is the logarithm of its number, so the tokens
1 2 3 4 have the weights 1/10 2/10 3/10 4/10. Its value has a one in its own place and zeros elsewhere, so the result of
a query is the list of its weights.

Slots of a block without a token hold 1e4. Blocks of no request hold NaN. The expected values are those of `attend` in
helpers.py: one query, one head, plain Python.

Numbers must agree to 1e-5. A float of 32 bits is good for 6e-8, results are means of numbers below 4, and there are at
most a few dozen terms in a sum: correct code is off by at most 1e-6, the closest wrong one by 1e-3.
"""

import math
import random
from functools import partial
from typing import Any

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import check_all, seeds

from .helpers import (
    INFINITY,
    TOLERANCE,
    Request,
    Vector,
    attend_scores,
    attention,
    begin,
    expect_attention,
    expect_numbers,
    expect_result,
    expect_state,
    logs,
    merge,
    merged,
    numbered,
    one_hot,
    pair,
    prefill,
    query,
    random_batch,
    some_tokens,
    some_vectors,
    update,
)

UPDATE, ATTEND = "online_softmax_update", "paged_attention_ref"
MERGE, PREFILL = "merge_attn_states", "paged_prefill_ref"
MODEL = "see attend in helpers.py"


# The biography ------------------------------------------------------------------------------------------------------


@points(3, UPDATE, rule=1, why="relative to log 4 the powers are 1/4 2/4 3/4 and 1, and their sum is 2.5")
def test_1_one_tile_gives_maximum_sum_and_result(lab: LabUnderTest, torch: Any) -> None:
    """The scores log 1 to log 4, all at once. What are m, l and acc?"""
    state = update(lab, torch, begin(torch, 1, 4), [logs(1, 2, 3, 4)], [one_hot(0, 4, size=4)])
    expect_state(lab, "after the tokens 1 2 3 4", [math.log(4)], [2.5], [[0.25, 0.5, 0.75, 1.0]], state)


@points(3, UPDATE, rule=1, why="sums against the old maximum must be scaled down, or their keys get too much weight")
def test_2_a_larger_score_later_rescales_what_was_summed(lab: LabUnderTest, torch: Any) -> None:
    """The same four, two by two: the second tile has the larger scores. Then the other way round."""
    state = begin(torch, 1, 4)
    for first, tile in ((0, (1, 2)), (2, (3, 4))):
        state = update(lab, torch, state, [logs(*tile)], [one_hot(first, 2, size=4)])
    expect_state(lab, "after 1 2, then 3 4", [math.log(4)], [2.5], [[0.25, 0.5, 0.75, 1.0]], state)
    state = begin(torch, 1, 4)
    for first, tile in ((0, (4, 3)), (2, (2, 1))):
        state = update(lab, torch, state, [logs(*tile)], [one_hot(first, 2, size=4)])
    expect_state(lab, "after 4 3, then 2 1", [math.log(4)], [2.5], [[1.0, 0.75, 0.5, 0.25]], state)


@points(2, UPDATE, rule=2)
def test_3_any_tiles_give_the_same(lab: LabUnderTest, torch: Any) -> None:
    """Seven tokens, with the largest score in the middle, in tiles of 1, 2, 3 and 7."""
    tokens = (2, 5, 1, 9, 4, 3, 6)
    for size in (1, 2, 3, 7):
        state = begin(torch, 1, 7)
        for first in range(0, 7, size):
            tile = tokens[first : first + size]
            state = update(lab, torch, state, [logs(*tile)], [one_hot(first, len(tile), size=7)])
        want = [token / 9 for token in tokens]
        expect_state(lab, f"after 2 5 1 9 4 3 6, tiles of {size}", [math.log(9)], [30 / 9], [want], state)


@points(2, UPDATE, rule=2, why="e^100 overflows float32 and e^-110 underflows: exponentiate only differences of scores")
def test_4_scores_far_from_zero_stay_finite(lab: LabUnderTest, torch: Any) -> None:
    """The tokens 1 2 3 4 again, all scores 100 higher, then 110 lower, then 300 lower at first and 300 higher later."""
    for shifts in ((100, 100), (-110, -110), (-300, 300), (300, -300)):
        state = begin(torch, 1, 4)
        for first, tile, shift in ((0, (1, 2), shifts[0]), (2, (3, 4), shifts[1])):
            scores = [score + shift for score in logs(*tile)]
            state = update(lab, torch, state, [scores], [one_hot(first, 2, size=4)])
        scores = [score + shifts[0] for score in logs(1, 2)] + [score + shifts[1] for score in logs(3, 4)]
        want, lse = attend_scores(scores, one_hot(0, 4, size=4))
        what = f"after 1 2 with {shifts[0]:+} on each score, then 3 4 with {shifts[1]:+}"
        expect_result(lab, what, want, lse, state)


@points(2, UPDATE, rule=3, why="no key yet: the maximum is minus infinity, and minus infinity minus itself is NaN")
def test_5_a_tile_without_keys_changes_nothing(lab: LabUnderTest, torch: Any) -> None:
    """The scores of the first tile are all minus infinity: hidden by a mask. Then come tokens, one of them hidden."""
    hidden = -INFINITY
    state = update(lab, torch, begin(torch, 1, 4), [[hidden, hidden]], [one_hot(0, 2, size=4)])
    expect_state(lab, "after a tile with no visible key", [hidden], [0.0], [[0.0] * 4], state)
    state = update(lab, torch, state, [[*logs(1), hidden, *logs(3)]], [one_hot(0, 3, size=4)])
    expect_state(lab, "after 1, a hidden one, and 3", [math.log(3)], [4 / 3], [[1 / 3, 0.0, 1.0, 0.0]], state)


@points(3, ATTEND, rule=4)
def test_6_weights_of_six_tokens_in_two_blocks(lab: LabUnderTest, torch: Any) -> None:
    """One request, one head, the tokens 1 to 6 in blocks 3 and 1 of 4. The weights are 1/21 to 6/21."""
    requests = [Request([3, 1], numbered(range(1, 7), size=6))]
    out, lse = attention(lab, torch, [[query(6)]], requests, 4)
    want = [n / 21 for n in range(1, 7)]
    expect_numbers(lab, "weights of the tokens 1 to 6, row 3 1", want, out[0][0])
    expect_numbers(lab, "log-sum-exp: log(1 + 2 + ... + 6)", [math.log(21)], [lse[0][0]])


@points(3, ATTEND, rule=5)
def test_7_slots_behind_the_last_token_have_no_weight(lab: LabUnderTest, torch: Any) -> None:
    """One to eight tokens in two blocks of 4: slots after the last token have no weight."""
    for length in (1, 3, 4, 5, 7, 8):
        requests = [Request([3, 1], numbered(range(1, length + 1), size=8))]
        out, _ = attention(lab, torch, [[query(8)]], requests, 4)
        total = length * (length + 1) / 2
        want = [n / total for n in range(1, length + 1)] + [0.0] * (8 - length)
        expect_numbers(lab, f"weights of the tokens 1 to {length}, row 3 1", want, out[0][0])


@points(3, ATTEND, rule=4)
def test_8_each_request_reads_its_own_row(lab: LabUnderTest, torch: Any) -> None:
    """A and B share block 5. A continues in block 2, B in 4 and 1. Stale ids are at the end of A's row."""
    shared = list(range(1, 5))
    a, b = numbered([*shared, 7], size=10), numbered([*shared, 1, 2, 3, 4, 5], size=10)
    out, _ = attention(lab, torch, [[query(10)], [query(10)]], [Request([5, 2], a), Request([5, 4, 1], b)], 4)
    expect_numbers(lab, "A's weights, tokens 1 2 3 4 7", [*(n / 17 for n in (1, 2, 3, 4, 7)), *[0.0] * 5], out[0][0])
    want = [*(n / 25 for n in (1, 2, 3, 4, 1, 2, 3, 4, 5)), 0.0]
    expect_numbers(lab, "B's weights, tokens 1 2 3 4 1 2 3 4 5", want, out[1][0])


@points(2, ATTEND, rule=4)
def test_9_scores_are_multiplied_by_the_scale_once(lab: LabUnderTest, torch: Any) -> None:
    """The tokens 1 16 81 256 with a scale of a quarter have the weights of 1 2 3 4, their fourth roots."""
    requests = [Request([2], numbered((1, 16, 81, 256), size=4))]
    out, lse = attention(lab, torch, [[query(4)]], requests, 4, scale=0.25)
    expect_numbers(lab, "weights of the tokens 1 16 81 256, scale 0.25", [0.1, 0.2, 0.3, 0.4], out[0][0])
    expect_numbers(lab, "log-sum-exp: log(1 + 2 + 3 + 4)", [math.log(10)], [lse[0][0]])


@points(2, ATTEND, rule=6, why="of 4 and 2 heads it is 0 0 1 1, not 0 1 0 1")
def test_10_neighbouring_query_heads_share_a_head_of_keys(lab: LabUnderTest, torch: Any) -> None:
    """Four query heads. KV head n's first value is n, so the result is the KV head that was read."""
    for num_kv_heads, want in ((4, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (1, [0, 0, 0, 0])):
        tokens = [
            ([[0.5, float(n)] for _ in range(num_kv_heads)], [[float(h), 7.0] for h in range(num_kv_heads)])
            for n in range(5)
        ]
        out, _ = attention(lab, torch, [[[0.1, 0.2]] * 4], [Request([3, 1], tokens)], 4)
        what = f"the head of keys that each of 4 heads read, of {num_kv_heads}"
        expect_numbers(lab, what, [float(h) for h in want], [numbers[0] for numbers in out[0]])


@points(2, MERGE, rule=8, why="a part's weight is the sum of its keys' weights: 3/10 and 7/10")
def test_11_two_parts_merge_to_the_whole(lab: LabUnderTest, torch: Any) -> None:
    """The tokens 1 2 in one part, 3 4 in the other: together they are 1/10 2/10 3/10 4/10 again."""
    first, second = ([1 / 3, 2 / 3, 0.0, 0.0], math.log(3)), ([0.0, 0.0, 3 / 7, 4 / 7], math.log(7))
    for what, parts in (("1 2 and 3 4", (first, second)), ("3 4 and 1 2", (second, first))):
        out, lse = merge(lab, torch, *parts)
        expect_numbers(lab, f"weights of the tokens 1 2 3 4, merged from {what}", [0.1, 0.2, 0.3, 0.4], out)
        expect_numbers(lab, f"log-sum-exp, merged from {what}: log 10", [math.log(10)], [lse])


@points(2, MERGE, rule=8, why="the order of merging does not matter")
def test_12_parts_may_be_merged_in_any_order(lab: LabUnderTest, torch: Any) -> None:
    """Nine tokens in parts of one, three and five, merged from the left, and from the right."""
    parts = []
    for first, size in ((0, 1), (1, 3), (4, 5)):
        parts.append(attend_scores(logs(*range(first + 1, first + size + 1)), one_hot(first, size, size=9)))
    want = [n / 45 for n in range(1, 10)]
    left = merge(lab, torch, merge(lab, torch, parts[0], parts[1]), parts[2])
    right = merge(lab, torch, parts[0], merge(lab, torch, parts[1], parts[2]))
    expect_numbers(lab, "weights of the tokens 1 to 9, merged from the left", want, left[0])
    expect_numbers(lab, "weights of the tokens 1 to 9, merged from the right", want, right[0])


@points(2, MERGE, rule=9, why="0 times NaN is NaN")
def test_13_a_part_without_keys_has_no_weight(lab: LabUnderTest, torch: Any) -> None:
    """One part has seen no key: the result is the other part. Two such parts give zeros and minus infinity."""
    seen = ([0.25, 0.75], math.log(4))
    for holds in (0.0, 1e4, math.nan):
        empty = ([holds, holds], -INFINITY)
        for what, parts in (("the first", (empty, seen)), ("the second", (seen, empty))):
            out, lse = merge(lab, torch, *parts)
            expect_numbers(lab, f"result, where {what} part has no keys and holds {holds}", seen[0], out)
            expect_numbers(lab, f"log-sum-exp, where {what} part has no keys", [seen[1]], [lse])
        out, lse = merge(lab, torch, empty, empty)
        expect_numbers(lab, f"result of two parts without keys, which hold {holds}", [0.0, 0.0], out)
        expect_numbers(lab, "log-sum-exp of two parts without keys", [-INFINITY], [lse])


@points(3, PREFILL, rule=10, after="test_8_each_request_reads_its_own_row")
def test_14_new_tokens_see_the_cached_prefix(lab: LabUnderTest, torch: Any) -> None:
    """The tokens 1 to 6, of which the last two are new: the first of these sees five, the second six."""
    request = Request([3, 1], numbered(range(1, 7), size=6))
    out, lse = prefill(lab, torch, [[query(6)]] * 2, request, 4)
    seen = [sum(weight > TOLERANCE for weight in heads[0]) for heads in out]
    lab.expect("how many tokens those at positions 4 and 5 see", [5, 6], seen)
    expect_numbers(lab, "weights that the token at position 4 gives", [*(n / 15 for n in range(1, 6)), 0.0], out[0][0])
    expect_numbers(lab, "weights that the token at position 5 gives", [n / 21 for n in range(1, 7)], out[1][0])
    expect_numbers(lab, "log-sum-exp of both: log 15, log 21", [math.log(15), math.log(21)], [lse[0][0], lse[1][0]])


@points(2, PREFILL, rule=10, after="test_8_each_request_reads_its_own_row")
def test_15_the_future_changes_nothing(lab: LabUnderTest, torch: Any) -> None:
    """A prompt of five tokens, none cached. The last one is replaced: only its own result may change."""
    rng = random.Random(15)
    before = Request([3, 1], some_tokens(rng, 5, 2, 3))
    after = Request([3, 1], [*before.tokens[:4], *some_tokens(rng, 1, 2, 3)])
    queries = [some_vectors(rng, 4, 3) for _ in range(5)]
    first, _ = prefill(lab, torch, queries, before, 4)
    second, _ = prefill(lab, torch, queries, after, 4)
    for position in range(4):
        for head in range(4):
            what = f"result of the token at position {position}, head {head}, after the last token has changed"
            expect_numbers(lab, what, first[position][head], second[position][head])
    changed = max(abs(a - b) for a, b in zip(first[4][0], second[4][0], strict=True))
    lab.expect("the last token's own result has changed", True, changed > TOLERANCE)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, UPDATE, rule=1, stage="adversary", why="each head has its own maximum")
def test_heads_apart(lab: LabUnderTest, torch: Any) -> None:
    """Three heads at once: one with scores of a hundred, one with minus a hundred, one that is hidden at first."""
    tiles = [
        [[100 + score for score in logs(1, 2)], [score - 110 for score in logs(4, 3)], [-INFINITY] * 2],
        [[100 + score for score in logs(3, 4)], [score - 110 for score in logs(2, 1)], logs(1, 3)],
    ]
    state = begin(torch, 3, 4)
    for first, tile in zip((0, 2), tiles, strict=True):
        state = update(lab, torch, state, tile, [one_hot(first, 2, size=4)] * 3)
    for head in range(3):
        want, lse = attend_scores(tiles[0][head] + tiles[1][head], one_hot(0, 4, size=4))
        of_head = tuple(part[head : head + 1] for part in state)
        expect_result(lab, f"head {head} of three, after two tiles", want, lse, of_head)


@points(2, ATTEND, rule=6, stage="adversary", why="attention over the wrong heads has the right shape too")
def test_equals_dense_attention(lab: LabUnderTest, torch: Any) -> None:
    """Three requests of random numbers, 1, 2, 8 query heads per KV head, blocks of 1, 3, 4 and 16, ids out of order."""
    rng = random.Random(9)
    for block_size in (1, 3, 4, 16):
        for num_heads, num_kv_heads in ((2, 2), (4, 2), (8, 1), (4, 4)):
            batch = random_batch(
                rng, block_size, [2 * block_size + 1, 2 * block_size, 2 * block_size - 1], num_kv_heads
            )
            queries = [some_vectors(rng, num_heads, 3) for _ in batch]
            out, lse = attention(lab, torch, queries, batch, block_size, scale=0.5)
            what = f"blocks of {block_size}, {num_heads} heads of queries, {num_kv_heads} of keys"
            expect_attention(lab, what, queries, batch, 0.5, out, lse)


@points(3, ATTEND, rule=7, stage="adversary", why="a batch may be padded with requests of length 0")
def test_a_request_without_tokens(lab: LabUnderTest, torch: Any) -> None:
    """The second of three requests has length 0."""
    some = numbered((1, 2, 3), size=3)
    requests = [Request([3], some), Request([], []), Request([1], some)]
    out, lse = attention(lab, torch, [[query(3)]] * 3, requests, 4)
    expect_numbers(lab, "result of the request without tokens", [0.0, 0.0, 0.0], out[1][0])
    expect_numbers(lab, "its log-sum-exp", [-INFINITY], [lse[1][0]])
    for index in (0, 2):
        expect_numbers(lab, f"weights in request {index}", [1 / 6, 2 / 6, 3 / 6], out[index][0])


@points(3, ATTEND, rule=2, stage="adversary", why="trained models have such scores, and float32 overflows above e^88")
def test_scores_of_a_hundred_in_the_cache(lab: LabUnderTest, torch: Any) -> None:
    """The tokens 1 to 6 with scores 100 higher, and 110 lower. The largest is in the first block or in the last."""
    for shift in (100.0, -110.0):
        for order in (range(1, 7), range(6, 0, -1)):
            tokens = [([[k + shift for k in key[0][:1]] + key[0][1:]], v) for key, v in numbered(order, size=6)]
            out, lse = attention(lab, torch, [[query(6)]], [Request([3, 1], tokens)], 4)
            what = f"tokens {order[0]} to {order[-1]}, {shift:+} on each score"
            expect_numbers(lab, f"weights of the {what}", [n / 21 for n in order], out[0][0])
            expect_numbers(lab, f"log-sum-exp of the {what}", [math.log(21) + shift], [lse[0][0]])
    low = [([[-20_000.0, *key[0][1:]]], value) for key, value in numbered([1] * 6, size=6)]
    out, _ = attention(lab, torch, [[query(6)]], [Request([3, 1], low)], 4)
    why = "mask with minus infinity, not with a large negative number: a real token may score lower"
    expect_numbers(lab, "weights of six tokens that all score -20,000", [1 / 6] * 6, out[0][0], why)


@points(1, MERGE, rule=8, stage="adversary")
def test_parts_that_weigh_a_lot(lab: LabUnderTest, torch: Any) -> None:
    """The parts 1 2 and 3 4 with log-sum-exps 300 higher, and 300 lower. Then two parts that are 200 apart."""
    for shift in (300.0, -300.0):
        first, second = ([1 / 3, 2 / 3], math.log(3) + shift), ([3 / 7, 4 / 7], math.log(7) + shift)
        out, lse = merge(lab, torch, first, second)
        expect_numbers(lab, f"result, {shift:+} on both log-sum-exps", [0.4, 0.6], out)
        expect_numbers(lab, f"log-sum-exp, {shift:+} on both", [math.log(10) + shift], [lse])
    out, lse = merge(lab, torch, ([0.0, 1.0], 100.0), ([1.0, 0.0], -100.0))
    expect_numbers(lab, "result of two parts that are 200 apart", [0.0, 1.0], out)
    expect_numbers(lab, "log-sum-exp of two parts that are 200 apart", [100.0], [lse])


@points(1, MERGE, rule=8, stage="adversary")
def test_every_token_and_head_has_its_own_shares(lab: LabUnderTest, torch: Any) -> None:
    """Two tokens, two heads, two numbers per head: a weight on the wrong axis has the right shape, too."""
    rng = random.Random(4)
    parts = [
        [[attend_scores(some_vectors(rng, 1, 3)[0], some_vectors(rng, 3, 2)) for _ in range(2)] for _ in range(2)]
        for _ in range(2)
    ]
    tensors = [torch.tensor([[cell[i] for cell in row] for row in part]) for part in parts for i in (0, 1)]
    given = [tensor.tolist() for tensor in tensors]
    out, lse = pair(lab, torch, "merge_attn_states", lab.merge_attn_states(*tensors), [2, 2, 2])
    lab.expect("what it was given, afterwards", given, [tensor.tolist() for tensor in tensors], why="no input changes")
    for token in range(2):
        for head in range(2):
            want, want_lse = merged(parts[0][token][head], parts[1][token][head])
            expect_numbers(lab, f"result of token {token}, head {head}", want, out[token][head])
            expect_numbers(lab, f"log-sum-exp of token {token}, head {head}", [want_lse], [lse[token][head]])


@points(1, PREFILL, rule=10, stage="adversary", after="test_8_each_request_reads_its_own_row")
def test_a_prompt_in_any_chunks(lab: LabUnderTest, torch: Any) -> None:
    """Nine tokens, GQA, blocks of 4, in chunks of 1, 2, 4, 5 and 9. Each token sees the same as in one go."""
    rng = random.Random(6)
    tokens, queries = some_tokens(rng, 9, 2, 3), [some_vectors(rng, 4, 3) for _ in range(9)]
    for size in (1, 2, 4, 5, 9):
        for first in range(0, 9, size):
            last = min(first + size, 9)
            chunk = Request([5, 2, 7], tokens[:last])
            out, lse = prefill(lab, torch, queries[first:last], chunk, 4)
            seen = [Request([], tokens[: position + 1]) for position in range(first, last)]
            names = [f"token {position}" for position in range(first, last)]
            expect_attention(lab, f"chunks of {size}", queries[first:last], seen, 1.0, out, lse, names)


# The property -------------------------------------------------------------------------------------------------------


@points(1, ATTEND, rule=4, stage="property", after="test_6_weights_of_six_tokens_in_two_blocks", why=MODEL)
def test_random_batches_equal_dense_attention(lab: LabUnderTest, torch: Any) -> None:
    """Forty random batches, each compared with plain Python. A failure shows the shortest part that still differs."""
    for seed in seeds(40):
        rng = random.Random(seed)
        num_kv_heads, block_size = rng.choice((1, 2)), rng.choice((1, 2, 5))
        batch = random_batch(rng, block_size, [rng.randint(0, 12) for _ in range(3)], num_kv_heads)
        queries = [some_vectors(rng, 2, 3) for _ in batch]

        def check(pairs: list[Any], seed: int = seed, block_size: int = block_size) -> None:
            if pairs:
                queries, batch = map(list, zip(*pairs, strict=True))
                out, lse = attention(lab, torch, queries, batch, block_size)
                lens = " ".join(str(len(request.tokens)) for request in batch)
                what = f"batch of seed {seed}, shortened to requests of {lens} tokens in blocks of {block_size}"
                expect_attention(lab, what, queries, batch, 1.0, out, lse)

        check_all(check, [list(zip(queries, batch, strict=True))])


@points(1, MERGE, rule=8, stage="property", after="test_11_two_parts_merge_to_the_whole", why=MODEL)
def test_random_cuts_merge_to_the_whole(lab: LabUnderTest, torch: Any) -> None:
    """Forty rows of scores, cut into parts anywhere, merged in random order: always attention over the whole row."""
    for seed in seeds(40):
        rng = random.Random(seed)
        tokens = [(rng.uniform(-60, 60), some_vectors(rng, 1, 2)[0]) for _ in range(rng.randint(1, 9))]
        cuts = sorted(rng.choices(range(len(tokens) + 1), k=3))  # parts may be empty
        parts = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
        rng.shuffle(parts)
        check_all(partial(check_parts, lab, torch, seed), [parts])


ScoredValues = list[tuple[float, Vector]]
"""The scores and values of some tokens."""


def check_parts(lab: LabUnderTest, torch: Any, seed: int, parts: list[ScoredValues]) -> None:
    """Merge the parts one by one into an empty part, and compare with attention over all of their tokens at once."""
    whole: tuple[Vector, float] = ([0.0, 0.0], -INFINITY)
    for part in parts:
        whole = merge(lab, torch, whole, attend_tokens(part))
    want, lse = attend_tokens([token for part in parts for token in part])
    told = " | ".join(" ".join(f"{score:.0f}" for score, _ in part) or "no key" for part in parts)
    what = f"result, seed {seed}, merged into nothing: parts with the scores {told}"
    expect_numbers(lab, what, want, whole[0])
    expect_numbers(lab, f"log-sum-exp, seed {seed}, parts with the scores {told}", [lse], [whole[1]])


def attend_tokens(tokens: ScoredValues) -> tuple[Vector, float]:
    """Return the expected result and log-sum-exp of tokens with values of 2 numbers."""
    return attend_scores([score for score, _ in tokens], [value for _, value in tokens], size=2)
