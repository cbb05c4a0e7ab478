"""What lab-11 needs: a scheduler with one method of the learner's, driven step by step.

Reading order: `Play`, the engine that the tests drive, steps and results in words, `make_scheduler`. Its worker, which
records the content of each slot, is `mini_kv.course.given.slot_worker`.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.core.request import Request
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.core.sched.step import Step as StepUnderWay
from mini_kv.course import LabTodo
from mini_kv.course.given.slot_worker import RememberingWorker
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.policy.admission_strategies import ReservedBlocks
from mini_kv.story.step_loop import SampledTokens, run_step

SCHEDULE, PREEMPT, UPDATE = METHODS = ("schedule", "_preempt_request", "update_from_output")


class Play:
    """A scheduler with one method of the learner's, its cache and its worker."""

    def __init__(
        self,
        lab: LabUnderTest,
        learners: str,
        num_blocks: int = 20,
        block_size: int = 4,
        *,
        next_token: Callable[[Sequence[int]], int] = len,
        reserved_blocks: int = 0,
        admission: AdmissionPolicy | None = None,
        **limits: Any,
    ) -> None:
        """Start without requests.

        Args:
            lab: the learner's code.
            learners: the method that is the learner's, or "" if all three are.
            num_blocks: blocks, the null block included.
            block_size: tokens per block.
            next_token: the token that the model samples after these, by default their number.
            reserved_blocks: blocks that an admission must leave free, if others run.
            admission: another strategy in its place.
            limits: fields of `SchedulerConfig`.
        """
        self.lab = lab
        self.kv = lab.make_kv(num_blocks, block_size)
        admission = admission or ReservedBlocks(reserved_blocks)
        self.scheduler = make_scheduler(lab, learners, self.kv, SchedulerConfig(**limits), admission=admission)
        self.worker = RememberingWorker(block_size, next_token)
        self.answers: dict[str, list[int]] = {}
        self.ended: list[str] = []

    def arrive(self, name: str, tokens: int | Sequence[int], max_tokens: int = 4, stop: Sequence[int] = ()) -> None:
        """Add a new request. An int stands for a prompt of that many tokens that no other request has."""
        if isinstance(tokens, int):
            tokens = [100 * (ord(name) - ord("A")) + number for number in range(tokens)]
        self.scheduler.add_request(self.kv.new_request(name, tokens), max_tokens=max_tokens, stop_token_ids=stop)

    def abort(self, name: str) -> None:
        """Abort a request. The engine does it, on the state that the learner's methods left."""
        with self._blame(f"finish_requests([{name}]), the engine's"):
            self.scheduler.finish_requests([name])

    def preempt(self, name: str) -> None:
        """Preempt a request, between two steps."""
        self.scheduler._preempt_request(self.scheduler.requests[name])

    def schedule(self) -> SchedulerOutput:
        """Plan a step and look at it from outside."""
        with self._blame("schedule(), the engine's"):
            step: Any = self.scheduler.schedule()
        if not isinstance(step, SchedulerOutput):
            self.lab.fail("what schedule returned", "a SchedulerOutput", step)
        num_tokens, limits = step.total_num_scheduled_tokens, self.scheduler.config
        if num_tokens > limits.max_num_batched_tokens:
            what = f"tokens of the step {told(step)}"
            self.lab.fail(what, f"at most {limits.max_num_batched_tokens}", num_tokens, rule=1)
        if len(self.running) > limits.max_num_seqs:
            self.lab.fail("those who run", f"at most {limits.max_num_seqs}", self.running, rule=5)
        gave_way = f"; gave way: {', '.join(step.preempted_req_ids)}" if step.preempted_req_ids else ""
        of_budget = f"{num_tokens} of {limits.max_num_batched_tokens} tokens"
        self.lab.note(f"step: {told(step) or 'empty'}   ({of_budget}; {self._who}{gave_way})")
        strangers = [name for name in step.num_scheduled_tokens if name not in self.running or name in self.waiting]
        if strangers:
            what = f"who is in the step {told(step)}, but not in the batch ({self._who})"
            self.lab.fail(what, [], strangers, rule=2)
        return step

    def update_from_output(self, step: SchedulerOutput, sampled: SampledTokens) -> list[EngineCoreOutput]:
        """Process the results of a step."""
        in_step = {name: self.scheduler.requests[name] for name in step.num_scheduled_tokens}
        self.scheduler.step = StepUnderWay(0, step, in_step)  # the engine's own method asks for it
        with self._blame("update_from_output(...), the engine's"):
            outputs: Any = self.scheduler.update_from_output(step, sampled)
        self.scheduler.step = None
        if not isinstance(outputs, list) or not all(isinstance(output, EngineCoreOutput) for output in outputs):
            self.lab.fail("what update_from_output returned", "a list of EngineCoreOutput", outputs)
        for output in outputs:
            self.answers.setdefault(output.request_id, []).extend(output.new_token_ids)
        self.ended += [output.request_id for output in outputs if output.finish_reason]
        return outputs

    def finish(self, step: SchedulerOutput) -> list[str]:
        """Run a planned step and process its results. Return them as in "A says [11]"."""
        return said(self.update_from_output(step, self.worker(step)))

    def results(self) -> list[str]:
        """Run one step. Return its results as in "A says [11]"."""
        return said(run_step(self, self.worker).results)

    def step(self) -> str:
        """Run one step. Return its plan as in "A 11, B 3"."""
        return told(run_step(self, self.worker).output)

    def steps(self, count: int) -> list[str]:
        """Run this number of steps. Return their plans."""
        return [self.step() for _ in range(count)]

    def drain(self, bound: int) -> list[str]:
        """Run until no request is left, at most `bound` steps. Return the plans."""
        steps: list[str] = []
        while self.scheduler.requests:
            if len(steps) == bound:
                what = f"requests that are not done after {bound} steps (the last step: {steps[-1] or 'empty'})"
                self.lab.fail(what, [], list(self.scheduler.requests))
            steps.append(self.step())
        return steps

    @property
    def running(self) -> list[str]:
        """The ids of the running requests."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        """The ids of the waiting requests."""
        return [request.request_id for request in self.scheduler.waiting]

    def known(self, *names: str) -> list[int]:
        """Return how many tokens each of them has."""
        return [self.scheduler.requests[name].num_tokens for name in names]

    def computed(self, *names: str) -> list[int]:
        """Return how many tokens of each are computed."""
        return [self.scheduler.requests[name].num_computed_tokens for name in names]

    @property
    def _who(self) -> str:
        return f"running: {', '.join(self.running) or 'none'}; waiting: {', '.join(self.waiting) or 'none'}"

    @contextmanager
    def _blame(self, what: str) -> Iterator[None]:
        """Report in one line if the engine raises an error on the state that the learner's method left."""
        try:
            yield
        except (LabTodo, LabFailure, KVCacheError):
            raise
        except Exception as error:
            file = self.lab.implementation.file
            if any(frame.filename == file for frame in traceback.extract_tb(error.__traceback__)):
                raise  # it happened in the learner's own lines
            why = "a request's status must agree with the list that it is in, self.running or self.waiting"
            self.lab.fail(f"{what}, on what your method left behind ({self._who})", "no exception", error, why)


def the_figure(lab: LabUnderTest, learners: str) -> Play:
    """Return the engine of the figure, where A and B wait."""
    play = Play(lab, learners, 8, max_num_batched_tokens=14)
    play.arrive("A", 11, max_tokens=6)
    play.arrive("B", 11, max_tokens=4)
    return play


def told(step: SchedulerOutput) -> str:
    """Return a step as in "A 11, B 3"."""
    return ", ".join(f"{name} {num_tokens}" for name, num_tokens in step.num_scheduled_tokens.items())


def said(outputs: Sequence[EngineCoreOutput]) -> list[str]:
    """Return results as in "A says [11]", with how the request ended if it did."""
    return [
        ", ".join(filter(None, (f"{output.request_id} says {list(output.new_token_ids)}", output.finish_reason)))
        for output in outputs
    ]


class Scheduler(engine.Scheduler):
    """The engine's scheduler, whose taught methods run on the learner's side: an object with this one's state."""

    taught: Sequence[str] = ()
    own_side: engine.Scheduler

    def schedule(self) -> SchedulerOutput:
        """Plan a step, or let the learner's method do it."""
        return self.own_side.schedule() if SCHEDULE in self.taught else super().schedule()

    def _preempt_request(self, request: Request) -> None:
        if PREEMPT in self.taught:
            self.own_side._preempt_request(request)
        else:
            super()._preempt_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Take in a step's results, or let the learner's method do it."""
        if UPDATE in self.taught:
            return self.own_side.update_from_output(scheduler_output, sampled_token_ids)
        return super().update_from_output(scheduler_output, sampled_token_ids)


def make_scheduler(lab: LabUnderTest, learners: str, *args: Any, **options: Any) -> engine.Scheduler:
    """Return the engine's scheduler, with the learner's method `learners` in it, or all three of them for "".

    So a mistake in one method does not fail the tests of another. The learner's method runs on an object of the
    learner's class, so that helpers of any name are possible there. Its state is the engine's.
    """
    taught = [learners] if learners else METHODS
    for method in taught:
        if lab.Scheduler is not engine.Scheduler and getattr(lab.Scheduler, method) is getattr(
            engine.Scheduler, method
        ):
            lab.fail(f"Scheduler.{method}", "a method of your own", "the engine's, which your class inherits")
    whole = Scheduler(*args, **options)

    class OwnSide(lab.Scheduler):  # type: ignore[misc, name-defined]  # the learner's
        """The learner's methods on the state of `whole`. The others are those of `whole`."""

        if SCHEDULE not in taught:
            schedule = whole.schedule
        if PREEMPT not in taught:
            _preempt_request = whole._preempt_request
        if UPDATE not in taught:
            update_from_output = whole.update_from_output

        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        def __setattr__(self, name: str, value: Any) -> None:
            whole.__setattr__(name, value)

    whole.own_side = OwnSide(*args, **options)
    whole.taught = taught
    return whole
