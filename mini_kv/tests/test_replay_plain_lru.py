"""An LRU over ids that knows nothing of the engine, and the rules that turn its answer into the engine's.

The prompt tokens hit in Mooncake's `synthetic_trace.jsonl` (3,993 requests, 61,194,628 prompt tokens), one request at a
time, as the rules become the engine's one by one:

                                                             unbounded          10,000 blocks
    plain LRU over ids, partial last blocks included    39,852,661  65.12 %  26,421,660  43.18 %
    a partial block never hits: it has no hash          39,802,880  65.04 %  26,394,112  43.13 %
    it takes no room once its request is over           39,802,880  65.04 %  27,111,424  44.30 %
    the null block is one of the 10,000                 39,802,880  65.04 %  27,110,400  44.30 %
    a partial block takes room while its request runs   39,802,880  65.04 %  27,109,376  44.30 %
    at most `num_tokens - 1` tokens are hit: the engine 39,802,880  65.04 %  27,109,376  44.30 %

The partial block makes the difference. Counted as a hit, it adds up to 511 tokens to a prompt that comes a second time
(213 times in the unbounded column). Kept, it costs more than that: 3,776 of the 43,924 ids are partial blocks, one for
nearly every prompt, and each takes the room of a full block that could have been hit. The engine puts a block without a
hash at the front of the free queue, to be reused first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pytest

from mini_kv.tools import traces
from mini_kv.tools.traces.readers.mooncake import TraceRequest, read_trace
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.synthetic import generate


@dataclass(frozen=True)
class Rules:
    """What the LRU does as the engine does it; nothing, to begin with."""

    partial_block_is_no_hit: bool = False
    partial_block_is_not_kept: bool = False
    null_block_takes_room: bool = False
    partial_block_takes_room_meanwhile: bool = False
    last_token_is_no_hit: bool = False


def lru(trace, num_blocks, rules):
    """Return the tokens hit and the number of evictions, one request at a time.

    Exact as long as no prompt of full blocks only comes twice. Then the engine computes its last block again and holds
    two blocks with one key; here one takes the place of the other.
    """
    capacity = num_blocks - rules.null_block_takes_room
    ids: OrderedDict[int, None] = OrderedDict()
    hit_tokens = evictions = 0
    for request in trace:
        num_full = request.num_full_blocks
        kept = request.hash_ids[:num_full] if rules.partial_block_is_not_kept else request.hash_ids
        limit = num_full if rules.partial_block_is_no_hit else len(kept)
        if rules.last_token_is_no_hit:
            limit = min(limit, (request.input_length - 1) // 512)
        if request.num_blocks > capacity:
            continue
        num_hits = 0
        while num_hits < limit and kept[num_hits] in ids:
            num_hits += 1
        hit_tokens += min(512 * num_hits, request.input_length)
        for hash_id in kept[:num_hits]:
            ids.move_to_end(hash_id)
        needed = sum(hash_id not in ids for hash_id in kept)
        if rules.partial_block_takes_room_meanwhile:
            needed += request.num_blocks - len(kept)
        while len(ids) + needed > capacity:
            ids.popitem(last=False)
            evictions += 1
        for hash_id in reversed(kept):
            ids[hash_id] = None
            ids.move_to_end(hash_id)
    return hit_tokens, evictions


STEPS = [
    (Rules(), 685_230, 510_638),
    (Rules(True), 683_008, 508_416),
    (Rules(True, True), 683_008, 546_304),
    (Rules(True, True, True), 683_008, 543_744),
    (Rules(True, True, True, True), 683_008, 540_672),
    (Rules(True, True, True, True, True), 682_496, 540_160),
]
"""Tokens of the checked-in trace that are hit, in a pool without limit and in one of 100 blocks."""
ALL_RULES = STEPS[-1][0]


@pytest.fixture(scope="module")
def small_trace():
    return read_trace(Path(traces.__file__).with_name("small.jsonl"))


def test_the_plain_lru_on_paper():
    """Room for three ids. A partial block is a hit, up to its tokens; the tail is forgotten first."""
    trace = [
        TraceRequest(0, 700, 1, (1, 2)),  #      nothing                        2 1
        TraceRequest(0, 700, 1, (1, 2)),  #      both: all 700 tokens           2 1
        TraceRequest(0, 600, 1, (1, 3)),  #      1: 512 tokens                  2 3 1
        TraceRequest(0, 100, 1, (4,)),  #        nothing; 2 is forgotten        3 1 4
        TraceRequest(0, 1100, 1, (1, 2, 5)),  #  1: 512 tokens                  5 2 1
    ]
    assert lru(trace, 3, Rules())[0] == 700 + 512 + 512


@pytest.mark.parametrize(("rules", "unbounded", "bounded"), STEPS)
def test_from_the_plain_lru_to_the_engine_one_rule_at_a_time(small_trace, rules, unbounded, bounded):
    assert lru(small_trace, 10_000, rules)[0] == unbounded
    assert lru(small_trace, 100, rules)[0] == bounded


def test_the_last_step_is_the_engine(small_trace):
    assert replay(small_trace).hit_tokens == STEPS[-1][1]
    assert replay(small_trace, 100).hit_tokens == STEPS[-1][2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("num_blocks", [20, 45, 80, 150, 400, 2000])
def test_the_last_step_is_the_engine_hit_for_hit_and_eviction_for_eviction(seed, num_blocks):
    trace = generate(seed, 250)
    prompts = [request.hash_ids for request in trace if request.input_length % 512 == 0]
    assert len(set(prompts)) == len(prompts)  # see `lru`
    report = replay(trace, num_blocks)
    assert lru(trace, num_blocks, ALL_RULES) == (report.hit_tokens, report.evictions)
