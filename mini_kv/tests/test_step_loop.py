"""The loop around a scheduler: what it hands on, and which requests sample."""

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.step_loop import run_step, sample_ready


def test_a_prompt_in_two_steps_samples_in_the_second():
    """The worker sees where each request stands before the step; its token is in the results."""
    kv = KVCacheManager.for_full_attention(10, 4)
    scheduler = Scheduler(kv, SchedulerConfig(max_num_batched_tokens=4))
    scheduler.add_request(kv.new_request("A", [1, 2, 3, 4, 5, 6]), max_tokens=2)
    seen: list[tuple[int, int]] = []

    def worker(output: SchedulerOutput) -> dict[str, list[int]]:
        seen.append((scheduler.requests["A"].num_computed_tokens, output.num_scheduled_tokens["A"]))
        return sample_ready(scheduler, output, lambda request: 100 + request.num_tokens)

    told = []
    while scheduler.has_unfinished_requests:
        output, results = run_step(scheduler, worker)
        told.append([(result.request_id, result.new_token_ids, result.finish_reason) for result in results])
        assert list(output.num_scheduled_tokens) == ["A"]
    assert seen == [(0, 4), (4, 2), (6, 1)]
    assert told == [[], [("A", [106], None)], [("A", [107], "length")]]
