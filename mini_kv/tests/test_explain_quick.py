"""What makes `explain` quick has an obvious twin that is slow: both give the same answer."""

import random
from collections import deque
from collections.abc import Sequence

import pytest

from mini_kv.core.block import BlockHash
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tools.traces.belady_bound import belady_hit_blocks
from mini_kv.tools.traces.curve import hits_in_pool
from mini_kv.tools.traces.prefix_overlap import prefix_overlaps
from mini_kv.tools.traces.prompt_hashes import Prompt, make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest, number_prefixes
from mini_kv.tools.traces.runners import Setup, sequential
from mini_kv.tools.traces.waterfall import ServedRun, serve

SIZE = 16
FULL = FullAttentionSpec(SIZE)
STATE = MambaSpec(SIZE, shapes=((4,),), dtypes_bytes=(4,))


def setup(*specs: KVCacheSpec, num_blocks: int | None = None) -> Setup:
    """Return groups of one layer each."""
    return Setup(tuple(KVCacheGroupSpec((f"layer.{i}",), spec) for i, spec in enumerate(specs)), num_blocks)


def random_trace(seed: int, *, unique: bool) -> list[TraceRequest]:
    """Return requests that begin like an earlier one, many of full blocks; `unique`: an id says all before it, too."""
    dice = random.Random(seed)
    chains: list[list[int]] = [[]]
    trace = []
    for number in range(40):
        beginning = dice.choice(chains)
        chain = beginning[: dice.randint(0, len(beginning))]
        chain = chain + [100 * number + n if unique else dice.randint(1, 3) for n in range(dice.randint(0, 4))]
        chains.append(chain)
        ids = tuple(chain or [dice.randint(10_000, 99_999)])
        tokens = SIZE * len(ids) - dice.choice([0, 0, 5])
        trace.append(TraceRequest(10 * number, tokens, dice.randint(0, 90), ids, SIZE))
    return trace


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_hits_without_the_manager_are_the_managers(seed: int, unique: bool) -> None:
    """With memory for everything and in pools of all sizes, request by request."""
    trace = random_trace(seed, unique=unique)
    prompts = make_prompts(trace, SIZE)
    for num_blocks in [*range(2, 30, 3), 10**9]:
        hits, _ = hits_in_pool(prompts, [0] * len(prompts), SIZE, num_blocks)
        assert hits == list(sequential(setup(FULL, num_blocks=num_blocks).make_manager(prompts), prompts))


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_prefixes_are_numbered_as_they_occur(seed: int, unique: bool) -> None:
    """And what each prompt shares with an earlier one: the most leading ids, of whichever."""
    trace = random_trace(seed, unique=unique)
    numbers: dict[tuple[int, ...], int] = {}
    slow = [
        [numbers.setdefault(entry.hash_ids[:end], len(numbers) + 1) for end in range(1, len(entry.hash_ids) + 1)]
        for entry in trace
    ]
    assert number_prefixes([entry.hash_ids for entry in trace]) == slow
    shared = [
        max((common(entry.hash_ids, other.hash_ids) for other in trace[:number]), default=0)
        for number, entry in enumerate(trace)
    ]
    found, _ = prefix_overlaps(trace)
    assert [one.tokens for one in found] == [
        min(SIZE * ids, entry.input_length) for ids, entry in zip(shared, trace, strict=True)
    ]


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many ids two prompts begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize(
    "specs",
    [(FULL,), (FULL, SlidingWindowSpec(SIZE, sliding_window=40)), (FULL, STATE)],
    ids=["full", "window", "state"],
)
@pytest.mark.parametrize("num_blocks", [26, 60])
def test_steps_that_are_skipped_change_nothing(specs: tuple[KVCacheSpec, ...], num_blocks: int) -> None:
    """Hits, preemptions and tokens computed again are those of a run of all steps."""
    trace = random_trace(1, unique=False)
    prompts = make_prompts(trace, SIZE)
    answers = [entry.output_length for entry in trace]
    config = setup(*specs, num_blocks=num_blocks)
    for concurrency in (2, 5):
        assert serve(prompts, answers, config, concurrency) == step_by_step(prompts, answers, config, concurrency)


def step_by_step(prompts: list[Prompt], answers: list[int], config: Setup, concurrency: int) -> ServedRun:
    """Serve the prompts, each step as a step."""
    assert config.num_blocks is not None
    kv = KVCacheManager(KVCacheConfig(config.num_blocks, config.groups), max_in_flight_tokens=config.step)
    scheduler = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=config.step, max_num_seqs=concurrency))
    to_come = deque(enumerate(zip(prompts, answers, strict=True)))
    requests: list[Request] = []
    tokens_again, preempted = 0, set[str]()
    while to_come or scheduler.has_unfinished_requests:
        while to_come and len(scheduler.requests) < concurrency:
            number, (prompt, answer) = to_come.popleft()
            requests.append(Request(str(number), num_tokens=prompt.num_tokens, block_hashes=prompt.block_hashes))
            scheduler.add_request(requests[-1], max_tokens=max(answer, 1))
        computed = {request.request_id: request.num_computed_tokens for request in scheduler.running}
        output = scheduler.schedule()
        tokens_again += sum(computed[name] for name in output.preempted_req_ids)
        tokens_again -= sum(new.num_computed_tokens for new in output.scheduled_new_reqs if new.request_id in preempted)
        preempted.update(output.preempted_req_ids)
        results = {}
        for name, num_tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            if request.num_computed_tokens + num_tokens == request.num_tokens:
                results[name] = [7]
        scheduler.update_from_output(output, results)
    hits = [request.num_cached_tokens for request in requests]
    return ServedRun(list(hits), scheduler.num_preemptions, tokens_again)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_bound_is_that_of_a_look_at_all_blocks(seed: int, unique: bool) -> None:
    """Belady in pools of all sizes: each time all blocks that are held are looked at for the one used last."""
    prompts = make_prompts(random_trace(seed, unique=unique), SIZE)
    for num_blocks in range(2, 30):
        assert belady_hit_blocks(prompts, SIZE, num_blocks) == belady_by_looking(prompts, num_blocks)


def belady_by_looking(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Return the hits if each miss takes the place of the block whose next use is the farthest."""
    chains = [prompt.block_hashes for prompt in prompts if -(-prompt.num_tokens // SIZE) < num_blocks]
    uses = [block_hash for chain in chains for block_hash in chain]
    held: set[BlockHash] = set()
    num_hits = 0
    for place, block_hash in enumerate(uses):
        if block_hash in held:
            num_hits += 1
        elif len(held) == num_blocks - 1:
            rest = uses[place:]
            held.remove(max(held, key=lambda one: rest.index(one) if one in rest else len(rest)))
        held.add(block_hash)
    return num_hits
