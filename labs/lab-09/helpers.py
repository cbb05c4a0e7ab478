"""What lab-09 needs: attention in plain Python, tokens with known weights, the calls of the learner's functions.

Reading order: the expected values (`attend_scores`, `attend`), tokens, the poisoned caches that they are put into, the
calls, the comparisons. PyTorch is an argument.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.labkit.fixture import LabUnderTest

INFINITY = math.inf
TOLERANCE = 1e-5

Vector = list[float]
"""The numbers of one head."""


@dataclass(frozen=True)
class Request:
    """A request's row of the block table, and for each of its tokens the keys and values, head by head."""

    row: list[int]
    tokens: list[tuple[list[Vector], list[Vector]]]


def attend_scores(scores: Vector, values: Sequence[Vector], size: int = 0) -> tuple[Vector, float]:
    """Return the expected result and log-sum-exp of one query and one head, in float64, over all keys at once."""
    if not scores:
        return [0.0] * size, -INFINITY
    largest = max(scores)
    powers = [math.exp(score - largest) for score in scores]
    total = sum(powers)
    result = [sum(p * v[i] for p, v in zip(powers, values, strict=True)) / total for i in range(len(values[0]))]
    return result, math.log(total) + largest


def attend(q: Vector, keys: list[Vector], values: list[Vector], scale: float) -> tuple[Vector, float]:
    """Return the expected result and log-sum-exp of a query, given the keys and values of its head."""
    scores = [scale * sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
    return attend_scores(scores, values, size=len(q))


def merged(first: tuple[Vector, float], second: tuple[Vector, float]) -> tuple[Vector, float]:
    """Return the expected merge of two parts that both have keys: a softmax over their log-sum-exps."""
    return attend_scores([first[1], second[1]], [first[0], second[0]])


def logs(*numbers: int) -> Vector:
    """Return scores whose powers are these numbers."""
    return [math.log(number) for number in numbers]


def one_hot(first: int, count: int, size: int) -> list[Vector]:
    """Return the values of tokens `first` and following: a one in the token's own place."""
    return [[1.0 if i == token else 0.0 for i in range(size)] for token in range(first, first + count)]


def numbered(numbers: Sequence[int], size: int) -> list[tuple[list[Vector], list[Vector]]]:
    """Return tokens of one head with one-hot values. Scores with `query(size)` are the logarithms of the numbers."""
    values = one_hot(0, len(numbers), size)
    return [([[math.log(n), *[0.3] * (size - 1)]], [value]) for n, value in zip(numbers, values, strict=True)]


def query(size: int) -> Vector:
    """Return the query that picks the first number of a key."""
    return [1.0, *[0.0] * (size - 1)]


def some_vectors(rng: random.Random, count: int, size: int) -> list[Vector]:
    """Return random vectors."""
    return [[rng.uniform(-2, 2) for _ in range(size)] for _ in range(count)]


def some_tokens(
    rng: random.Random, count: int, num_kv_heads: int, size: int
) -> list[tuple[list[Vector], list[Vector]]]:
    """Return tokens with random keys and values."""
    return [(some_vectors(rng, num_kv_heads, size), some_vectors(rng, num_kv_heads, size)) for _ in range(count)]


def random_batch(rng: random.Random, block_size: int, lengths: list[int], num_kv_heads: int) -> list[Request]:
    """Return requests of these lengths, in blocks whose ids are out of order. A head has 3 numbers."""
    ids = list(range(1, 40))
    rng.shuffle(ids)
    return [
        Request([ids.pop() for _ in range(-(-length // block_size))], some_tokens(rng, length, num_kv_heads, 3))
        for length in lengths
    ]


def caches(
    torch: Any, requests: list[Request], block_size: int, others: float = math.nan, unused: float = 1e4
) -> tuple[Any, Any, Any, Any]:
    """Return keys' cache, values' cache, block table and lengths of the requests.

    Blocks of no request hold `others`, slots after the last token of a block hold `unused`. In each row block 0, which
    holds `others`, comes after the last block.
    """
    example = next(request.tokens[0] for request in requests if request.tokens)
    num_blocks = max([0, *(block for request in requests for block in request.row)]) + 1
    shape = (num_blocks, block_size, len(example[0]), len(example[0][0]))
    k_cache, v_cache = torch.full(shape, others), torch.full(shape, others)
    for request in requests:
        for index, block in enumerate(request.row):
            tokens = request.tokens[index * block_size : (index + 1) * block_size]
            if tokens:
                keys, values = zip(*tokens, strict=True)
                fill_block(torch, k_cache[block], keys, unused)
                fill_block(torch, v_cache[block], values, unused)
    width = max(len(request.row) for request in requests) + 1
    table = [request.row + [0] * (width - len(request.row)) for request in requests]
    lens = [len(request.tokens) for request in requests]
    return k_cache, v_cache, torch.tensor(table, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32)


def fill_block(torch: Any, block: Any, vectors: Sequence[list[Vector]], unused: float) -> None:
    """Write a block of one of the caches: these tokens' vectors from its first slot on, `unused` after them."""
    block[:] = unused
    block[: len(vectors)] = torch.tensor(vectors)


def attention(
    lab: LabUnderTest,
    torch: Any,
    queries: list[list[Vector]],
    requests: list[Request],
    block_size: int,
    scale: float = 1.0,
) -> tuple[Any, Any]:
    """Call paged_attention_ref. Return result and log-sum-exp as lists."""
    if all(not request.tokens for request in requests):
        requests = [*requests, Request([1], [([[0.0] * 3], [[0.0] * 3])])]  # a cache has its shape even without tokens
        queries = [*queries, queries[0]]
    q = torch.tensor(queries)

    def attend(**poison: float) -> tuple[Any, Any]:
        got = lab.paged_attention_ref(q, *caches(torch, requests, block_size, **poison), scale)
        return pair(lab, torch, "paged_attention_ref", got, list(q.shape))

    out, lse = attend()
    for index, request in enumerate(requests):
        if request.tokens:
            refuse_nan(lab, f"request {index}, of {len(request.tokens)} tokens", out[index], index, attend)
    return out, lse


def prefill(
    lab: LabUnderTest, torch: Any, queries: list[list[Vector]], request: Request, block_size: int
) -> tuple[Any, Any]:
    """Call paged_prefill_ref with a scale of 1. Return result and log-sum-exp as lists."""
    q = torch.tensor(queries)

    def attend(**poison: float) -> tuple[Any, Any]:
        k_cache, v_cache, table, _ = caches(torch, [request], block_size, **poison)
        got = lab.paged_prefill_ref(q, k_cache, v_cache, table[0], len(request.tokens), 1.0)
        return pair(lab, torch, "paged_prefill_ref", got, list(q.shape))

    out, lse = attend()
    for index, heads in enumerate(out):
        refuse_nan(lab, f"query {index} of {len(out)}, request of {len(request.tokens)} tokens", heads, index, attend)
    return out, lse


Attend = Callable[..., tuple[Any, Any]]
"""Attention of the learner in caches with other poison: `others`, `unused` as in `caches`."""


def refuse_nan(lab: LabUnderTest, whose: str, heads: list[Vector], index: int, attend: Attend) -> None:
    """Fail if a result has NaN although all keys and values that the query sees are finite."""
    for head, numbers in enumerate(heads):
        if has_nan(numbers):
            five, seven, no_slots = (
                attend(**poison)[0][index][head] for poison in ({"others": 5.0}, {"others": 7.0}, {"unused": 0.0})
            )
            seen = [f"{number:.1e}" for number in seven]
            why = why_nan(five, seven, no_slots)
            lab.fail(f"result of {whose}, head {head}", f"{len(numbers)} numbers", numbers, why, seen=seen, rule=5)


def has_nan(numbers: Vector) -> bool:
    """Return whether one of the numbers is NaN."""
    return any(map(math.isnan, numbers))


def why_nan(five: Vector, seven: Vector, no_slots: Vector) -> str:
    """Return what is observed without the NaN of the poison, and ask for the cause.

    `five` and `seven`: the result if blocks of no request hold these numbers in place of NaN. `no_slots`: the result if
    unused slots hold 0 in place of 10,000.
    """
    if not has_nan(five) and five == seven:
        return "a block of no request is read: with 5 or 7 in it nothing changes, but 0 times NaN is NaN"
    if not has_nan(five) and not has_nan(seven):
        return "a block of no request is read: with 5 and with 7 in it there are two results, with NaN it is NaN"
    if not has_nan(no_slots):
        return "unused slots are read: with 0 in them it is not NaN. Ask: are they in the maximum? Then each power is 0"
    return "other numbers in blocks of no request and in unused slots do not help. Ask: is 0 divided by 0 somewhere?"


def merge(
    lab: LabUnderTest, torch: Any, first: tuple[Vector, float], second: tuple[Vector, float]
) -> tuple[Vector, float]:
    """Call merge_attn_states for one token and one head."""
    args = []
    for out, lse in (first, second):
        args += [torch.tensor([[out]]), torch.tensor([[lse]])]
    out, lse = pair(lab, torch, "merge_attn_states", lab.merge_attn_states(*args), list(args[0].shape))
    return out[0][0], lse[0][0]


def begin(torch: Any, num_heads: int, head_size: int) -> Any:
    """Return the state of a softmax that has seen no key."""
    return torch.full((num_heads,), -INFINITY), torch.zeros(num_heads), torch.zeros(num_heads, head_size)


def update(lab: LabUnderTest, torch: Any, state: Any, scores: list[Vector], values: list[list[Vector]]) -> Any:
    """Call online_softmax_update. Return the new state."""
    given = [*state, torch.tensor(scores), torch.tensor(values)]
    before = [tensor.tolist() for tensor in given]
    got = lab.online_softmax_update(*given)
    is_state = isinstance(got, tuple) and len(got) == 3 and all(isinstance(part, torch.Tensor) for part in got)
    if not is_state:
        lab.fail("what online_softmax_update returned", "three tensors: (m, l, acc)", got)
    shapes = [list(part.shape) for part in state]
    lab.expect("shapes of (m, l, acc) that online_softmax_update returned", shapes, [list(part.shape) for part in got])
    after = [tensor.tolist() for tensor in given]
    for name, old, new in zip(("m", "l", "acc", "scores", "v"), before, after, strict=True):
        lab.expect(f"the argument {name} after the call", old, new, rule=1)
    return got


def pair(lab: LabUnderTest, torch: Any, function: str, got: Any, shape: list[int]) -> tuple[Any, Any]:
    """Return result and log-sum-exp as lists. Fail if the function returned anything else."""
    if not (isinstance(got, tuple) and len(got) == 2 and all(isinstance(part, torch.Tensor) for part in got)):
        lab.fail(f"what {function} returned", "two tensors: result and log-sum-exp", got)
    shapes = [list(part.shape) for part in got]
    lab.expect(f"shapes of the two tensors that {function} returned", [shape, shape[:2]], shapes)
    return got[0].tolist(), got[1].tolist()


def expect_state(lab: LabUnderTest, what: str, m: Vector, l: Vector, acc: list[Vector], state: Any) -> None:  # noqa: E741
    """Compare the state of a softmax of one head."""
    expect_numbers(lab, f"m {what}", m, state[0].tolist())
    expect_numbers(lab, f"l {what}", l, state[1].tolist())
    expect_numbers(lab, f"acc {what}", acc[0], state[2].tolist()[0])


def expect_result(lab: LabUnderTest, what: str, want: Vector, lse: float, state: Any) -> None:
    """Compare acc / l and m + log(l) of a softmax of one head."""
    (m,), (l,), (acc,) = (part.tolist() for part in state)  # noqa: E741
    expect_numbers(lab, f"acc / l {what}", want, [number / l if l else math.nan for number in acc])
    expect_numbers(lab, f"m + log(l) {what}", [lse], [m + math.log(l) if l > 0 else math.nan])


def expect_attention(
    lab: LabUnderTest,
    what: str,
    queries: list[list[Vector]],
    requests: list[Request],
    scale: float,
    out: Any,
    lse: Any,
    names: list[str] | None = None,
) -> None:
    """Compare results and log-sum-exps with `attend`, query by query and head by head."""
    for index, (heads, request) in enumerate(zip(queries, requests, strict=True)):
        name = names[index] if names else f"request {index} of {len(request.tokens)} tokens"
        for head, q in enumerate(heads):
            num_kv_heads = len(request.tokens[0][0]) if request.tokens else 1
            kv_head = head // (len(heads) // num_kv_heads)
            keys = [key[kv_head] for key, _ in request.tokens]
            want, want_lse = attend(q, keys, [value[kv_head] for _, value in request.tokens], scale)
            expect_numbers(lab, f"{what}: result of {name}, head {head}", want, out[index][head])
            expect_numbers(lab, f"{what}: log-sum-exp of {name}, head {head}", [want_lse], [lse[index][head]])


def expect_numbers(lab: LabUnderTest, what: str, want: Vector, got: Vector, why: str = "") -> None:
    """Compare numbers to 1e-5, relative for large ones. Show four digits, or more if these are the same."""
    close = [math.isclose(w, g, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for w, g in zip(want, got, strict=True)]
    if not all(close):  # NaN is close to nothing
        for digits in (4, 9):
            short, seen = ([float(f"{number:.{digits}g}") for number in numbers] for numbers in (want, got))
            if short != seen:
                lab.fail(what, short, seen, why)
