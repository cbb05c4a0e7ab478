"""Random steps of the scheduler: nobody reads another's KV, everybody ends, and says what it would have said alone.

`MINI_KV_OPERATIONS` sets the number of steps (a tenth of it). The other tests are about the driver: it must be able to
fail.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from mini_kv.core.copy_on_write import CopyOnWrite
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tests.scheduler_driver import CONFIGS, Run, SchedulerFailure, alone, main, next_token, run

NUM_STEPS = int(os.environ.get("MINI_KV_OPERATIONS", "100000")) // 10


@pytest.mark.timeout(900)
@pytest.mark.parametrize("index", range(len(CONFIGS)), ids=lambda index: f"config{index}")
def test_every_read_finds_the_right_kv_and_everybody_ends(index: int) -> None:
    """With the cache on and off, chunks, preemptions, aborts, drafts, priorities (I9, I14, I15, I18)."""
    seed = 100_000 * index
    print(f"seeds from {seed}, {CONFIGS[index]}")
    run(CONFIGS[index], seed, NUM_STEPS // len(CONFIGS))


def test_everything_happens() -> None:
    """Requests finish, are aborted and preempted, and are sent back because another was aborted in the same step."""
    runs = _run_all(1000)
    assert sum(this.num_finished for this in runs) > 500
    assert sum(this.num_aborted for this in runs) > 100
    assert sum(this.num_sent_back_by_aborts for this in runs) > 5
    assert sum(this.scheduler.num_preemptions for this in runs) > 500
    assert sum(this.num_forked for this in runs) > 500
    assert sum(this.num_copied for this in runs) > 300
    assert all(this.kv.prefix_cache_stats.hits > 0 for this in runs if this.config.enable_caching)


def _run_all(num_steps: int) -> list[Run]:
    return [this for index, config in enumerate(CONFIGS) for this in run(config, 100_000 * index, num_steps)]


def test_one_seed_one_run() -> None:
    """I17: the same seed gives the same steps and preemptions."""
    first, second, other = (run(CONFIGS[0], seed, 300)[0] for seed in (4, 4, 5))
    assert (first.num_steps, first.prompts, first.scheduler.num_preemptions) == (
        second.num_steps,
        second.prompts,
        second.scheduler.num_preemptions,
    )
    assert first.prompts != other.prompts


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One line when all is well."""
    assert main(["--seed", "5", "--steps", "400"]) == 0
    assert capsys.readouterr().out.startswith("400 steps, nothing wrong, ")


def test_the_model_depends_on_all_tokens() -> None:
    """One token changed at the very beginning changes what is said after many: else a wrong read could go unseen."""
    assert alone((0, 1, 2), 12) != alone((1, 1, 2), 12)
    assert alone((0, 1, 2), 3) == [next_token([0, 1, 2]), *alone((0, 1, 2, next_token([0, 1, 2])), 2)]


def keep_computed(preempt: Callable[..., None]) -> Callable[..., None]:
    def wrong(scheduler: Scheduler, request: Request) -> None:
        num_computed_tokens = request.num_computed_tokens
        preempt(scheduler, request)
        request.num_computed_tokens = num_computed_tokens

    return wrong


def forget_to_free(take_blocks: Callable[..., None]) -> Callable[..., None]:
    def wrong(scheduler: Scheduler, request: Request) -> None:
        scheduler.running.remove(request)

    return wrong


def oldest(victim: Callable[..., Request]) -> Callable[..., Request]:
    return lambda scheduler: scheduler.running[0]


def no_withdrawal(withdraw: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kv, request: []


def no_copy(shared_blocks: Callable[..., Any]) -> Callable[..., Any]:
    return lambda copy_on_write, request_id, num_computed_tokens: {}


def count_rejected(update: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(scheduler: Scheduler, output: Any, sampled: Any) -> Any:
        before = {name: scheduler.requests[name].num_computed_tokens for name in output.num_scheduled_tokens}
        outputs = update(scheduler, output, sampled)
        for name, num_tokens in output.num_scheduled_tokens.items():
            if name in scheduler.requests:
                scheduler.requests[name].num_computed_tokens = before[name] + num_tokens
        return outputs

    return wrong


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Scheduler, "_preempt_request", keep_computed),
        (Scheduler, "_take_blocks", forget_to_free),
        (Scheduler, "_victim", oldest),
        (Scheduler, "update_from_output", count_rejected),
        (KVCacheManager, "withdraw_promises", no_withdrawal),
        (CopyOnWrite, "shared_blocks", no_copy),
    ],
)
def test_the_driver_finds_what_schedulers_get_wrong(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., Any]
) -> None:
    """Progress, blocks, wrong drafts or promises kept; the oldest thrown out; a copy left out."""
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    with pytest.raises(SchedulerFailure):
        _run_all(1000)
