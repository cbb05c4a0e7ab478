"""What lab-09 needs: attention in plain Python, tokens with known weights, the calls of the learner's functions.

Reading order: what is right (`attend_scores`, `attend`), tokens made by hand or by chance, the poisoned caches that
they are put into, the calls, the comparisons. PyTorch comes in as an argument.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mini_kv.labkit.fixture import LabUnderTest

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
    """Return tokens of one head whose scores with `query(size)` are the logarithms of the numbers; values one-hot."""
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


def caches(torch: Any, requests: list[Request], block_size: int) -> tuple[Any, Any, Any, Any]:
    """Return keys' cache, values' cache, block table and lengths of the requests.

    NaN in blocks that no request has, 1e4 behind the last token of a block; and in each row, behind the last block,
    block 0, which holds NaN.
    """
    example = next(request.tokens[0] for request in requests if request.tokens)
    num_blocks = max([0, *(block for request in requests for block in request.row)]) + 1
    shape = (num_blocks, block_size, len(example[0]), len(example[0][0]))
    k_cache, v_cache = torch.full(shape, math.nan), torch.full(shape, math.nan)
    for request in requests:
        for index, block in enumerate(request.row):
            tokens = request.tokens[index * block_size : (index + 1) * block_size]
            if tokens:
                keys, values = zip(*tokens, strict=True)
                fill_block(torch, k_cache[block], keys)
                fill_block(torch, v_cache[block], values)
    width = max(len(request.row) for request in requests) + 1
    table = [request.row + [0] * (width - len(request.row)) for request in requests]
    lens = [len(request.tokens) for request in requests]
    return k_cache, v_cache, torch.tensor(table, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32)


def fill_block(torch: Any, block: Any, vectors: Sequence[list[Vector]]) -> None:
    """Write a block of one of the caches: these tokens' vectors from its first slot on, 1e4 behind them."""
    block[:] = 1e4
    block[: len(vectors)] = torch.tensor(vectors)


def attention(
    lab: LabUnderTest,
    torch: Any,
    queries: list[list[Vector]],
    requests: list[Request],
    block_size: int,
    scale: float = 1.0,
) -> tuple[Any, Any]:
    """Call paged_attention_ref; return result and log-sum-exp as lists."""
    if all(not request.tokens for request in requests):
        requests = [*requests, Request([1], [([[0.0] * 3], [[0.0] * 3])])]  # caches have a shape, tokens or not
        queries = [*queries, queries[0]]
    q, given = torch.tensor(queries), caches(torch, requests, block_size)

    def attend(nan: float = math.nan) -> tuple[Any, Any]:
        filled = [cache.nan_to_num(nan=nan) for cache in given[:2]]
        got = lab.paged_attention_ref(q, *filled, *given[2:], scale)
        return pair(lab, torch, "paged_attention_ref", got, list(q.shape))

    def attend_to(index: int, nan: float) -> list[Vector]:
        result: list[Vector] = attend(nan)[0][index]
        return result

    out, lse = attend()
    for index, request in enumerate(requests):
        if request.tokens:
            whose = f"request {index}, of {len(request.tokens)} tokens"
            refuse_nan(lab, whose, out[index], partial(attend_to, index))
    return out, lse


def prefill(
    lab: LabUnderTest, torch: Any, queries: list[list[Vector]], request: Request, block_size: int
) -> tuple[Any, Any]:
    """Call paged_prefill_ref with a scale of 1; return result and log-sum-exp as lists."""
    k_cache, v_cache, table, _ = caches(torch, [request], block_size)
    q = torch.tensor(queries)
    got = lab.paged_prefill_ref(q, k_cache, v_cache, table[0], len(request.tokens), 1.0)
    out, lse = pair(lab, torch, "paged_prefill_ref", got, list(q.shape))
    for index, heads in enumerate(out):
        refuse_nan(lab, f"query {index} of {len(out)}, request of {len(request.tokens)} tokens", heads)
    return out, lse


def refuse_nan(
    lab: LabUnderTest,
    whose: str,
    heads: list[Vector],
    with_instead: Callable[[float], list[Vector]] | None = None,
) -> None:
    """Fail if a result has NaN although all keys and values that the query sees are finite.

    `with_instead`: the result if the caches held that number where they hold NaN. It tells what was done with the NaN.
    """
    for head, numbers in enumerate(heads):
        if not any(map(math.isnan, numbers)):
            continue
        why = "did the code read a block outside the request's row? It holds NaN. Or subtract infinity from infinity?"
        seven = with_instead(7.0)[head] if with_instead else None
        if with_instead and seven == with_instead(5.0)[head]:
            why = "a masked position still takes part: its weight is 0, and 0 times NaN is NaN"
        seen = [f"{number:.1e}" for number in seven] if seven else None
        lab.fail(f"result of {whose}, head {head}", f"{len(numbers)} numbers", numbers, why, seen=seen)


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
    """Call online_softmax_update; return the new state."""
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
        lab.expect(f"the argument {name} after the call", old, new, why="the new state is returned, the old one stays")
    return got


def pair(lab: LabUnderTest, torch: Any, function: str, got: Any, shape: list[int]) -> tuple[Any, Any]:
    """Return result and log-sum-exp as lists; fail if the function returned anything else."""
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
    """Compare what can be read off the state of a softmax of one head: acc / l, and m + log(l)."""
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
    """Compare numbers to 1e-5, relative for large ones; shown are four digits, or more if these are the same."""
    close = [math.isclose(w, g, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for w, g in zip(want, got, strict=True)]
    if not all(close):  # NaN is close to nothing
        for digits in (4, 9):
            short, seen = ([float(f"{number:.{digits}g}") for number in numbers] for numbers in (want, got))
            if short != seen:
                lab.fail(what, short, seen, why)
