"""The worker that remembers: it says of each wrong step what is wrong with it."""

import pytest

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.given.slot_worker import RememberingWorker
from mini_kv.course.labkit.fixture import LabFailure
from mini_kv.story.step_loop import run_step


def first_step() -> SchedulerOutput:
    """A computes 5 tokens in blocks 3 and 1 of 4."""
    return SchedulerOutput(scheduled_new_reqs=[new("A", [0, 1, 2, 3, 4], [3, 1])], num_scheduled_tokens={"A": 5})


def new(name: str, tokens: list[int], block_ids: list[int], num_computed_tokens: int = 0) -> NewRequestData:
    return NewRequestData(name, tokens, (block_ids,), num_computed_tokens)


def test_the_engines_steps_are_right():
    """Two requests share a block in one step, in a pool that makes one of them give way and come back."""
    kv = KVCacheManager.for_full_attention(7, 4)
    scheduler, worker = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=6)), RememberingWorker(4, len)
    for name in "AB":
        scheduler.add_request(kv.new_request(name, range(9)), max_tokens=10)
    answers: dict[str, list[int]] = {"A": [], "B": []}
    while scheduler.has_unfinished_requests:
        for result in run_step(scheduler, worker).results:
            answers[result.request_id] += result.new_token_ids
    assert scheduler.num_preemptions == 1
    assert answers == {"A": list(range(9, 19)), "B": list(range(9, 19))}


def test_a_step_leaves_the_schedulers_lists_alone():
    step = first_step()
    RememberingWorker(4, len)(step)
    assert step == first_step()


WRONG = {
    "not told": (SchedulerOutput(num_scheduled_tokens={"A": 1}), "told to run"),
    "unknown": (
        SchedulerOutput(scheduled_cached_reqs=CachedRequestData(["B"], [None], [0]), num_scheduled_tokens={"B": 1}),
        "B, whom the worker does not know",
    ),
    "too many": (
        SchedulerOutput(scheduled_cached_reqs=CachedRequestData(["A"], [None], [5]), num_scheduled_tokens={"A": 2}),
        "5 of 6 tokens are computed: expected 'at most 1', got 2",
    ),
    "no slot": (
        SchedulerOutput(scheduled_new_reqs=[new("B", [7, 8, 9], [2])], num_scheduled_tokens={"B": 3}),
        "blocks that the worker knows of B: expected 'enough for 3 tokens'",
    ),
    "another's": (
        SchedulerOutput(scheduled_new_reqs=[new("B", [0, 2, 9], [3], 2)], num_scheduled_tokens={"B": 1}),
        "B reads for its token 1, in block 3: expected 'those of token 2 after [0]', got [0, 1]",
    ),
    "not written": (
        SchedulerOutput(scheduled_new_reqs=[new("B", [0, 2, 9], [5], 2)], num_scheduled_tokens={"B": 1}),
        "in block 5: expected 'those of token 0 after []', got 'none: nothing was written there'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_step_is_refused(case: str):
    """After the first step: one request is not told of, one is unknown, and so on; each says what is wrong."""
    worker = RememberingWorker(2 if case == "no slot" else 4, len)
    if case != "no slot":
        worker(first_step())
    step, message = WRONG[case]
    with pytest.raises(LabFailure) as failure:
        worker(step)
    assert message in str(failure.value)
