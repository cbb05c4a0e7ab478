"""The loop around a scheduler, one step at a time: plan, let a worker compute, take in what it sampled.

    output, results = run_step(scheduler, worker)

`LLMEngine.step` does the same around a model, and takes a step back that fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mini_kv.core.request import Request
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler

SampledTokens = Mapping[str, Sequence[int]]
"""The new tokens of each request that has some, per request id."""
Worker = Callable[[SchedulerOutput], SampledTokens]
"""Computes a step and returns what it sampled: a model, or a function that stands in for one."""


class Plans(Protocol):
    """A `Scheduler`, or anything else with these two methods."""

    def schedule(self) -> SchedulerOutput:
        """Plan a step."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: SampledTokens
    ) -> list[EngineCoreOutput]:
        """Take in what the step computed."""


class MadeStep(NamedTuple):
    """A step from its plan to its results."""

    output: SchedulerOutput
    results: list[EngineCoreOutput]


def run_step(scheduler: Plans, worker: Worker) -> MadeStep:
    """Plan a step, run the worker on it, and pass its tokens to the scheduler. Return plan and results.

    The worker sees the requests as the plan leaves them: `num_computed_tokens` is still that before the step.
    """
    output = scheduler.schedule()
    return MadeStep(output, scheduler.update_from_output(output, worker(output)))


def sample_ready(
    scheduler: Scheduler, output: SchedulerOutput, next_token: Callable[[Request], int]
) -> dict[str, list[int]]:
    """Return one token per request whose known tokens are all computed after this step: what a model would sample."""
    in_step = ((scheduler.requests[name], num_tokens) for name, num_tokens in output.num_scheduled_tokens.items())
    return {
        request.request_id: [next_token(request)]
        for request, num_tokens in in_step
        if request.num_computed_tokens + num_tokens == request.num_tokens
    }
