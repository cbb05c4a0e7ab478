"""Golden scenarios of the scheduler: their calls, and a player that two schedulers understand.

A scenario (see `common`) is a pool, the limits of a step, and a list of calls:

    add A 0..7 100 max=4 stop=909 salt=t prio=1     a new request; ends after `max` tokens (16), or after a stop token
    schedule                                        the next step is planned
    update                                          it has run: its results are brought back
    abort A                                         between steps, or between schedule and update
    draft A 908 909                                 proposes the next tokens, once A's step has run
    reset                                           forgets all keys, unless a block is held

`step 3` is schedule and update, three times.

The model is simple: the token at place `p` of any sequence is `900 + p`, so a draft is right if it is such a token.
With `num_drafts` in the settings each request that goes on is drafted for after each step; how many of its drafts are
right depends on its length alone.

`schedule` shows the step, in its order: which request computes which tokens (`A 4+8`: eight after the first four),
which of them are drafts, which blocks are new to the worker; then which requests have ended or were preempted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tests.golden.common import FOLDER, Call, Language, Scenario, State, format_groups, look, parse_numbers
from mini_kv.tests.random_driver import Config

SCENARIO_FILES = (FOLDER / "scenarios-scheduler.toml", FOLDER / "scenarios-scheduler-random.toml")
RECORDING = FOLDER / "vllm-0.33-scheduler.json"

FIELDS = ("result", "running", "waiting", "computed", "tables", "free", "keys", "answers")
DEFAULTS: dict[str, Any] = {
    "num_blocks": 10,
    "block_size": 4,
    "enable_caching": True,
    "groups": "",
    "watermark": 0.0,
    "max_model_len": 64,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "policy": "fcfs",
    "scheduler_reserve_full_isl": True,
    "num_lookahead_tokens": 0,
    "num_speculative_tokens": 0,
    "num_drafts": 0,
    "retention_interval": None,
}
"""Settings of a scenario that names none. Groups: as in `random_driver.Config`. `num_speculative_tokens` tells vLLM of
drafts to come; `num_drafts` makes some after each step."""

POOL = ("num_blocks", "block_size", "enable_caching", "groups")
"""Settings of the pool, by the names of `random_driver.Config`."""
LIMITS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
)
"""Settings that are options of `SchedulerConfig` by the same name, in vLLM and in mini_kv."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a step does for one request."""

    handle: str
    num_computed_tokens: int
    num_new_tokens: int
    num_tokens: int
    """Tokens that are known when the step is planned."""
    drafts: Sequence[int]
    block_ids: Sequence[Sequence[int]] | None
    """What the worker is told of its blocks."""

    def __str__(self) -> str:
        drafts = f" drafts {' '.join(map(str, self.drafts))}" if self.drafts else ""
        blocks = f" new {format_groups(self.block_ids)}" if self.block_ids and any(self.block_ids) else ""
        return f"{self.handle} {self.num_computed_tokens}+{self.num_new_tokens}{drafts}{blocks}"

    def sampled(self) -> list[int]:
        """Return what the model makes of it: the drafts that are right and one token more; nothing in mid-prompt."""
        if self.num_computed_tokens + self.num_new_tokens < self.num_tokens:
            return []
        right = model_tokens(self.num_tokens, len(self.drafts))
        num_right = next((i for i, draft in enumerate(self.drafts) if draft != right[i]), len(self.drafts))
        return model_tokens(self.num_tokens, num_right + 1)


def model_tokens(first_place: int, num_tokens: int) -> list[int]:
    """Return the model's tokens from a place on."""
    return [900 + place for place in range(first_place, first_place + num_tokens)]


@dataclass(frozen=True, slots=True)
class Step:
    """A step under way: the scheduler's own object, and what it says."""

    output: Any
    parts: Sequence[Part]
    finished: Iterable[str]
    preempted: Iterable[str]

    def __str__(self) -> str:
        told = [f"{name} {' '.join(sorted(ids))}" for name, ids in self.told() if ids]
        return "; ".join([*map(str, self.parts), *told]) or "empty"

    def told(self) -> list[tuple[str, Iterable[str]]]:
        """Return what the worker is told besides."""
        return [("finished", self.finished), ("preempted", self.preempted)]


class Loop(ABC):
    """A scheduler under test, seen through what vLLM's and mini_kv's have in common."""

    scheduler: Any
    """Set by the subclass."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.requests: dict[str, Any] = {}
        """By handle, which is also the id; all that were ever added."""
        self.labels: dict[bytes, int] = {}
        self.under_way: Step | None = None

    # What differs between the schedulers.

    @abstractmethod
    def add_request(self, call: Call, token_ids: list[int], max_tokens: int, stop: list[int], priority: int) -> Any:
        """Make a request and hand it to the scheduler."""

    @abstractmethod
    def plan(self) -> Step:
        """Plan a step."""

    @abstractmethod
    def take_in(self, step: Step, sampled: dict[str, list[int]]) -> list[tuple[str, Sequence[int], str | None]]:
        """Bring the results back; return each request's new tokens and why it has ended, if it has."""

    @abstractmethod
    def finish(self, handle: str) -> None:
        """Abort a request."""

    @abstractmethod
    def propose(self, handle: str, token_ids: list[int]) -> None:
        """Propose tokens for a request."""

    @abstractmethod
    def num_computed_tokens(self, request: Any) -> int:
        """Return the tokens that are computed or in the step under way."""

    # The calls. Each returns what the caller gets to see, in words.

    def add(self, call: Call) -> str:
        """Add a request."""
        stop = parse_numbers((call.option("stop") or "").replace(",", " ").split())
        priority, max_tokens = int(call.option("prio") or 0), int(call.option("max") or 16)
        request = self.add_request(call, parse_numbers(call.numbers), max_tokens, stop, priority)
        self.requests[call.handle] = request
        return f"{request.num_tokens} tokens"

    def schedule(self, call: Call) -> str:
        """Plan a step."""
        self.under_way = self.plan()
        return str(self.under_way)

    def update(self, call: Call) -> str:
        """Let the step run: also for those who were aborted meanwhile, which the worker does not know."""
        step, self.under_way = self.under_way, None
        assert step is not None, "a scenario updates after schedule"
        outputs = self.take_in(step, {part.handle: tokens for part in step.parts if (tokens := part.sampled())})
        for handle, _, reason in outputs:
            if reason is None and self.settings["num_drafts"]:
                self.propose(handle, self.drafts_for(self.requests[handle]))
        words = [
            " ".join([handle, *map(str, tokens), *([reason] if reason else [])]) for handle, tokens, reason in outputs
        ]
        return "; ".join(words) or "no tokens"

    def drafts_for(self, request: Any) -> list[int]:
        """Return drafts of which the first few are right."""
        num_drafts = self.settings["num_drafts"]
        num_right = request.num_tokens % (num_drafts + 1)
        return model_tokens(request.num_tokens, num_right) + [0] * (num_drafts - num_right)

    def abort(self, call: Call) -> str:
        """Abort a request."""
        self.finish(call.handle)
        return "ok"

    def draft(self, call: Call) -> str:
        """Propose tokens."""
        self.propose(call.handle, parse_numbers(call.numbers))
        return "ok"

    def reset(self, call: Call) -> str:
        """Forget all keys."""
        return "done" if self.scheduler.kv_cache_manager.reset_prefix_cache() else "refused"

    # What can be seen.

    def state(self) -> State:
        """Return all that can be seen, each field in words."""
        live = self.scheduler.requests
        blocks = look(self.scheduler.kv_cache_manager, self.requests, self.labels)
        del blocks["refs"]  # they follow from the tables: the ledger of invariants says so
        return {
            "running": " ".join(request.request_id for request in self.scheduler.running),
            "waiting": " ".join(request.request_id for request in self.scheduler.waiting),
            "computed": "; ".join(
                f"{handle} {self.num_computed_tokens(request)}/{request.num_tokens}"
                for handle, request in self.requests.items()
                if handle in live
            ),
            **blocks,
        }


VERBS: dict[str, Callable[[Loop, Call], str]] = {
    "add": Loop.add,
    "schedule": Loop.schedule,
    "update": Loop.update,
    "abort": Loop.abort,
    "draft": Loop.draft,
    "reset": Loop.reset,
}
"""What a scenario can call."""


def shorthand(verb: str, words: list[str]) -> list[str]:
    """Return the calls that `step` stands for; none for another verb."""
    return ["schedule", "update"] * int(words[0] if words else 1) if verb == "step" else []


LANGUAGE = Language(VERBS, ("schedule", "update", "reset"), FIELDS, DEFAULTS, shorthand)


def load_scenarios() -> list[Scenario]:
    """Return all scenarios, in the order of the files."""
    return LANGUAGE.load(SCENARIO_FILES)


def perform(loop: Loop, call: Call) -> State:
    """Make one call and return its result and the state after it; an exception is a result too."""
    try:
        result = VERBS[call.verb](loop, call)
    except Exception as error:  # which exception it is, is part of what is compared
        result = f"error {type(error).__name__}"
    return {"result": result, **loop.state()}


class MiniKV(Loop):
    """mini_kv's scheduler."""

    scheduler: Scheduler

    def __init__(self, settings: dict[str, Any], *, debug: bool = False) -> None:
        """Build the scheduler; `debug` checks the ledger of invariants after every call of the manager."""
        super().__init__(settings)
        chosen = {name: settings[name] for name in POOL}
        config = SchedulerConfig(
            **{name: settings[name] for name in LIMITS},
            policy=SchedulingPolicy(settings["policy"]),
            num_lookahead_tokens=settings["num_lookahead_tokens"],
        )
        manager = Config(**chosen, debug=debug).make(
            max_in_flight_tokens=config.max_num_batched_tokens + config.num_lookahead_tokens,
            watermark=settings["watermark"],
            retention_interval=settings["retention_interval"],
        )
        self.scheduler = Scheduler(manager, config)

    def add_request(self, call: Call, token_ids: list[int], max_tokens: int, stop: list[int], priority: int) -> Any:
        """Add it, made by the manager."""
        request = self.scheduler.kv_cache_manager.new_request(call.handle, token_ids, cache_salt=call.option("salt"))
        self.scheduler.add_request(request, max_tokens=max_tokens, stop_token_ids=stop, priority=priority)
        return request

    def plan(self) -> Step:
        """Plan a step."""
        output: SchedulerOutput = self.scheduler.schedule()
        told = {data.request_id: (data.num_computed_tokens, data.block_ids) for data in output.scheduled_new_reqs}
        none = self.scheduler.kv_cache_manager.empty_kv_cache_blocks.get_block_ids()
        told |= {name: (computed, new or none) for name, new, computed in output.scheduled_cached_reqs}
        parts = [
            Part(
                handle,
                told[handle][0],
                num_new_tokens,
                self.requests[handle].num_tokens,
                output.scheduled_spec_decode_tokens.get(handle, []),
                told[handle][1],
            )
            for handle, num_new_tokens in output.num_scheduled_tokens.items()
        ]
        return Step(output, parts, output.finished_req_ids, output.preempted_req_ids)

    def take_in(self, step: Step, sampled: dict[str, list[int]]) -> list[tuple[str, Sequence[int], str | None]]:
        """Bring the results back."""
        outputs = self.scheduler.update_from_output(step.output, sampled)
        return [(output.request_id, output.new_token_ids, output.finish_reason) for output in outputs]

    def finish(self, handle: str) -> None:
        """Abort a request."""
        self.scheduler.finish_requests([handle])

    def propose(self, handle: str, token_ids: list[int]) -> None:
        """Propose tokens."""
        self.scheduler.update_draft_token_ids(handle, token_ids)

    def num_computed_tokens(self, request: Any) -> int:
        """Return the sum: mini_kv counts a step's tokens when its results come back, vLLM when it is planned."""
        in_step = self.under_way.output.num_scheduled_tokens if self.under_way else {}
        return int(request.num_computed_tokens + in_step.get(request.request_id, 0))
