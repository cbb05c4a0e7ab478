"""The curve of one pass says at every pool size what a replay of that size says: `replay` is the truth."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.tools import traces
from mini_kv.tools.traces.curve import Curve, make_curve
from mini_kv.tools.traces.prompt_hashes import get_block_size, make_prompts
from mini_kv.tools.traces.readers.mooncake import BLOCK_SIZE, TraceRequest, read_trace
from mini_kv.tools.traces.readers.token_trace import TokenRequest
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.synthetic import generate

SMALL = Path(traces.__file__).with_name("small.jsonl")


def curve_of(trace: Sequence[TraceRequest]) -> Curve:
    """Return the curve of a trace of hashes."""
    return make_curve(make_prompts(trace, BLOCK_SIZE), BLOCK_SIZE)


def by_replay(trace: Sequence[TraceRequest], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return hit tokens, prompt tokens and refused requests at each pool size, as the engine has them."""
    reports = [replay(trace, size) for size in sizes]
    return [(report.hit_tokens, report.prompt_tokens, report.requests_refused) for report in reports]


def by_curve(trace: Sequence[TraceRequest], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the same from one pass."""
    points = [curve_of(trace).at(size) for size in sizes]
    return [(point.hit_tokens, point.prompt_tokens, point.requests_refused) for point in points]


def request(*hash_ids: int, partial: int = 0) -> TraceRequest:
    """Return a request of these blocks; `partial` tokens are in the last one, 0: it is full."""
    return TraceRequest(0, len(hash_ids) * BLOCK_SIZE - (BLOCK_SIZE - partial if partial else 0), 1, hash_ids)


@pytest.mark.slow
@pytest.mark.parametrize("trace", [read_trace(SMALL), generate(7, 600)], ids=["small", "generated"])
def test_a_curve_equals_replay(trace: list[TraceRequest]) -> None:
    """At twelve sizes: pools that refuse prompts, the first that holds all, up to one that forgets nothing."""
    curve = curve_of(trace)
    sizes = [2, curve.smallest // 2, curve.smallest - 1, *curve.sizes(7), curve.largest - 1, curve.largest + 1]
    assert len(sizes) == 12
    assert by_curve(trace, sizes) == by_replay(trace, sizes)


@pytest.mark.parametrize(
    "trace",
    [
        [request(1, 2, 3), request(1), request(1, 2), request(1, 4, 5, partial=9), request(1, 2, 6)],
        [request(1, partial=7), request(1, 2), request(1, 2), request(1, 2, 3), request(4, 5), request(1, 2, 3)],
        [request(1), request(1), request(1), request(2, 3), request(1, 2), request(3, 4), request(1, 5)],
    ],
    ids=["touched-in-two-places", "whole-prompts-again", "one-hash-three-blocks"],
)
def test_a_prompt_whose_last_block_is_computed_again(trace: list[TraceRequest]) -> None:
    """Its hash has two blocks from then on, and which one is touched next depends on the size of the pool."""
    sizes = range(2, 16)
    assert by_curve(trace, sizes) == by_replay(trace, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_traces_equal_replay_at_every_size(seed: int) -> None:
    """Few different blocks, most prompts full to the last block: hashes with many blocks, prompts that are refused."""
    trace = random_trace(random.Random(seed))
    sizes = range(2, curve_of(trace).largest + 3)
    assert by_curve(trace, sizes) == by_replay(trace, sizes)


def random_trace(dice: random.Random) -> list[TraceRequest]:
    """Return up to 60 requests that begin like an earlier one, or not."""
    trace: list[TraceRequest] = []
    for _ in range(dice.randint(3, 60)):
        old = dice.choice(trace[-12:]).hash_ids if trace and dice.random() < 0.7 else ()
        head = old[: dice.randint(0, len(old))]
        tail = [dice.randint(0, 2) for _ in range(dice.randint(0 if head else 1, 3))]
        trace.append(request(*head, *tail, partial=dice.choice([0, 0, 0, dice.randint(1, 511)])))
    return trace


def test_the_largest_pool_that_pays_and_the_knee() -> None:
    """Four chats in turn, then one of them alone: a pool of all four pays off, and one block more nothing."""
    chats = [request(10 * chat, 10 * chat + 1, partial=5) for chat in range(4)]
    curve = curve_of([*chats, *chats, *[chats[0]] * 6])
    assert (curve.smallest, curve.largest) == (3, 6)
    assert [curve.at(size).hit_tokens // BLOCK_SIZE for size in range(3, 8)] == [5, 5, 5, 10, 10]
    assert curve.knee() == 3


def test_tokens_are_cut_into_blocks_of_any_size() -> None:
    """The same two prompts: the second finds more with small blocks, and nothing under another salt."""
    first, second = tuple(range(100)), (*range(50), *range(200, 250))
    trace = [TokenRequest(0, first, 1), TokenRequest(1, second, 1), TokenRequest(2, second, 1, cache_salt="other")]
    hits = []
    for block_size in (1, 16, 64):
        assert get_block_size(trace, block_size) == block_size
        hits.append(make_curve(make_prompts(trace, block_size), block_size).at(1000).hit_tokens)
    assert hits == [50, 48, 0]


def test_what_cannot_be_asked() -> None:
    """Hashes have their block size; a pool has at least two blocks; no request has no curve."""
    trace = [request(1)]
    with pytest.raises(ConfigError, match="it cannot be cut into 16"):
        get_block_size(trace, 16)
    with pytest.raises(ConfigError, match="at least 2"):
        curve_of(trace).at(1)
    with pytest.raises(ConfigError, match="no request"):
        make_curve([], 16)
