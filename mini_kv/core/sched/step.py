"""A step in progress: the data that the scheduler keeps besides the plan for the worker."""

from dataclasses import dataclass, field

from mini_kv.core.request import Request
from mini_kv.core.sched.output import SchedulerOutput


@dataclass(slots=True)
class Step:
    """A step from the start of its planning to its results."""

    token_budget: int
    output: SchedulerOutput = field(default_factory=SchedulerOutput)
    requests: dict[str, Request] = field(default_factory=dict)
    """The step's requests. An aborted one stays, so that a new request with the same id is not mistaken for it."""
    long_prefill_token_threshold: int = 0
    before_results: list[tuple[Request, int, int]] = field(default_factory=list)
    """Each request with results that are being applied, with its earlier numbers of tokens and of block hashes."""

    def take_out(self, request_id: str) -> None:
        """Remove the request from the step. Its tokens are added to the budget again."""
        self.token_budget += self.output.num_scheduled_tokens.get(request_id, 0)
        self.requests.pop(request_id, None)
        self.output.drop(request_id)
