"""The loop around a scheduler, one step at a time: plan, compute, apply the sampled tokens.

    output, results = run_step(scheduler, worker)

`LLMEngine.step` does the same around a model, and undoes a step that fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mini_kv.core.request import Request
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler

SampledTokens = Mapping[str, Sequence[int]]
"""The new tokens per request id, for requests that have some."""
Worker = Callable[[SchedulerOutput], SampledTokens]
"""Computes a step and returns its sampled tokens: a model, or a function that replaces one."""


class Plans(Protocol):
    """A `Scheduler`, or anything else with these two methods."""

    def schedule(self) -> SchedulerOutput:
        """Plan a step."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: SampledTokens
    ) -> list[EngineCoreOutput]:
        """Apply the results of the step."""


class MadeStep(NamedTuple):
    """A step from its plan to its results."""

    output: SchedulerOutput
    results: list[EngineCoreOutput]


def run_step(scheduler: Plans, worker: Worker) -> MadeStep:
    """Plan a step, run the worker on it, and pass its tokens to the scheduler. Return plan and results.

    The worker gets the requests in the state after planning: `num_computed_tokens` is still the number before the step.
    """
    output = scheduler.schedule()
    return MadeStep(output, scheduler.update_from_output(output, worker(output)))


def sample_ready(
    scheduler: Scheduler, output: SchedulerOutput, next_token: Callable[[Request], int]
) -> dict[str, list[int]]:
    """Return one token per request with all known tokens computed after this step, as a model would sample."""
    in_step = ((scheduler.requests[name], num_tokens) for name, num_tokens in output.num_scheduled_tokens.items())
    return {
        request.request_id: [next_token(request)]
        for request, num_tokens in in_step
        if request.num_computed_tokens + num_tokens == request.num_tokens
    }
