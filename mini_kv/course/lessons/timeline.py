"""The state of each request in each step, one line per request, for the timeline of notebook 08.

    step    1         2         3         4             5
    A       prompt    answer    answer    answer        answer
    B       waits     prompt    answer    thrown out    again

B is preempted in step 4. In step 5 it computes again the tokens without a hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import RequestStatus
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.story.step_loop import run_step, sample_ready

ABSENT, WAITS, PROMPT, ANSWER, OUT, AGAIN = "", "waits", "prompt", "answer", "thrown out", "again"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and the step before which it arrives, from 1."""

    step: int
    request_id: str
    token_ids: Sequence[int]
    max_tokens: int


class Moment(NamedTuple):
    """The state of a request in one step."""

    doing: str
    """`ABSENT` before its arrival and after its end. `WAITS` in the queue. `PROMPT` and `ANSWER` for tokens that are
    computed for the first time. `OUT` from the step that preempted it until it is admitted again. `AGAIN` if the step
    began with tokens that had been computed before."""
    num_tokens: int = 0
    """Tokens that the step computed for it."""


def who_runs_next() -> dict[str, list[Moment]]:
    """Return the timeline of the scenario of this name: three requests, seven blocks, steps of at most 14 tokens."""
    arrivals = [
        Arrival(1, "A", range(11), max_tokens=6),
        Arrival(1, "B", range(100, 111), max_tokens=4),
        Arrival(4, "C", range(200, 203), max_tokens=2),
    ]
    return timeline(arrivals, num_blocks=8, block_size=4, limits=SchedulerConfig(max_num_batched_tokens=14))


def long_among_short(
    admission: AdmissionPolicy | None = None, limits: SchedulerConfig | None = None
) -> dict[str, list[Moment]]:
    """Return the timeline of a long request among six short ones: 18 blocks of 4, steps of at most 16 tokens.

    `admission`, `limits`: replace the scheduler's own.
    """
    sizes = {  # who: before which step, tokens of the prompt, tokens of the answer
        "A": (1, 20, 12),
        "B": (1, 16, 14),
        "long": (2, 44, 6),
        "C": (3, 8, 8),
        "D": (5, 12, 8),
        "E": (7, 8, 8),
        "F": (9, 12, 6),
    }
    arrivals = [
        Arrival(step, name, range(1000 * index, 1000 * index + num_tokens), max_tokens)
        for index, (name, (step, num_tokens, max_tokens)) in enumerate(sizes.items())
    ]
    limits = limits or SchedulerConfig(max_num_batched_tokens=16)
    return timeline(arrivals, num_blocks=19, block_size=4, limits=limits, admission=admission)


def timeline(
    arrivals: Sequence[Arrival],
    num_blocks: int,
    block_size: int,
    limits: SchedulerConfig | None = None,
    *,
    admission: AdmissionPolicy | None = None,
) -> dict[str, list[Moment]]:
    """Serve these requests until all have ended and return the state of each in each step, by its id.

    Args:
        arrivals: in order of their steps.
        num_blocks: size of the pool, the null block included.
        block_size: tokens per block.
        limits: the scheduler's limits.
        admission: the rule for new requests.

    Raises `ConfigError` for a request that is larger than the pool.
    """
    kv = KVCacheManager.for_full_attention(num_blocks, block_size)
    serving = _Serving(arrivals, Scheduler(kv, limits, admission=admission))
    while serving.to_come or serving.scheduler.has_unfinished_requests:
        serving.step()
    return serving.lines


class _Serving:
    """A running scheduler, and the recorded states of its requests."""

    def __init__(self, arrivals: Sequence[Arrival], scheduler: Scheduler) -> None:
        self.to_come = list(arrivals)
        self.scheduler = scheduler
        self.lines: dict[str, list[Moment]] = {arrival.request_id: [] for arrival in arrivals}
        self.num_prompt_tokens = {arrival.request_id: len(arrival.token_ids) for arrival in arrivals}
        self.reached = dict.fromkeys(self.lines, 0)
        """Most tokens of each request that have been computed so far."""
        self.num_steps = 0

    def step(self) -> None:
        """Add the requests that arrive now, make a step, and record the state of each request."""
        self.num_steps += 1
        while self.to_come and self.to_come[0].step <= self.num_steps:
            arrival = self.to_come.pop(0)
            request = self.scheduler.kv_cache_manager.new_request(arrival.request_id, arrival.token_ids)
            self.scheduler.add_request(request, max_tokens=arrival.max_tokens)
        run_step(self.scheduler, self._note)

    def _note(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Record the state of each request in this step and return the sampled tokens."""
        for name, line in self.lines.items():
            num_tokens = output.num_scheduled_tokens.get(name, 0)
            line.append(Moment(self._doing(name, num_tokens), num_tokens))
            if num_tokens:
                end = self.scheduler.requests[name].num_computed_tokens + num_tokens
                self.reached[name] = max(self.reached[name], end)
        return sample_ready(self.scheduler, output, lambda request: FIRST_OUTPUT_TOKEN + request.num_tokens)

    def _doing(self, name: str, num_tokens: int) -> str:
        if name not in self.scheduler.requests:
            return ABSENT
        request = self.scheduler.requests[name]
        if num_tokens == 0:
            return OUT if request.status is RequestStatus.PREEMPTED else WAITS
        if request.num_computed_tokens < self.reached[name]:
            return AGAIN
        return PROMPT if request.num_computed_tokens < self.num_prompt_tokens[name] else ANSWER


FIRST_OUTPUT_TOKEN = 1_000_000
"""Output tokens are larger than this. Requests with equal prompts get equal output tokens."""
