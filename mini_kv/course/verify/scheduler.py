"""The scheduler's scenarios: what their calls ask of a program, and its replies in words.

A scenario (see `language`) is a pool, the limits of a step, and a list of calls:

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.course.verify.program import VERSION, Message, Program, ProgramError
from mini_kv.course.verify.scenario_language import (
    FOLDER,
    Call,
    Language,
    Scenario,
    State,
    format_groups,
    parse_groups,
    parse_numbers,
    pool_in_words,
)

SCENARIO_FILES = (FOLDER / "scenarios-scheduler.toml",)
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
"""Settings of a scenario that names none. Groups: as in `parse_groups`. `num_speculative_tokens` tells vLLM of
drafts to come; `num_drafts` makes some after each step."""


def model_tokens(first_place: int, num_tokens: int) -> list[int]:
    """Return the model's tokens from a place on."""
    return [900 + place for place in range(first_place, first_place + num_tokens)]


@dataclass(frozen=True, slots=True)
class Part:
    """What a step does for one request."""

    handle: str
    num_computed_tokens: int
    num_new_tokens: int
    num_tokens: int
    """Tokens that are known when the step is planned."""
    drafts: list[int]
    block_ids: list[list[int]]
    """The blocks that are new to the worker, by group."""

    def __str__(self) -> str:
        drafts = f" drafts {' '.join(map(str, self.drafts))}" if self.drafts else ""
        blocks = f" new {format_groups(self.block_ids)}" if any(self.block_ids) else ""
        return f"{self.handle} {self.num_computed_tokens}+{self.num_new_tokens}{drafts}{blocks}"

    def sampled(self) -> list[int]:
        """Return what the model makes of it: the drafts that are right and one token more. In mid-prompt nothing."""
        if self.num_computed_tokens + self.num_new_tokens < self.num_tokens:
            return []
        right = model_tokens(self.num_tokens, len(self.drafts))
        num_right = next((i for i, draft in enumerate(self.drafts) if draft != right[i]), len(self.drafts))
        return model_tokens(self.num_tokens, num_right + 1)


class Player:
    """Plays the calls of one scenario on a program. The player is the worker: it says which tokens come."""

    def __init__(self, program: Program, settings: dict[str, Any]) -> None:
        """Start the program anew, with the scenario's settings."""
        self.program = program
        self.settings = settings
        self.num_tokens: dict[str, int] = {}
        """Known tokens of all requests that were ever added, by handle."""
        self.labels: dict[str, int] = {}
        self.parts: list[Part] = []
        """The step under way."""
        asked = {**settings, "groups": parse_groups(settings)}
        self.reply = program.answer({"call": "start", "version": VERSION, "part": "scheduler", "settings": asked})

    @property
    def skipped(self) -> str:
        """Why the program does not play this scenario. Empty if it does."""
        return str(self.reply.get("skip", ""))

    def perform(self, call: Call) -> State:
        """Make one call and return its result and the state after it, in words."""
        self.reply = self.program.answer(MESSAGES[call.verb](self, call))
        if self.skipped:
            return {}
        result = self.reply["result"]
        words = f"error {result['error']}" if "error" in result else RESULTS[call.verb](self, call, result)
        return {"result": words, **self._state()}

    # What the calls ask of the program.

    def _add(self, call: Call) -> Message:
        tokens = parse_numbers(call.numbers)
        self.num_tokens[call.handle] = len(tokens)
        return {
            "call": "add",
            "request": call.handle,
            "tokens": tokens,
            "max_tokens": int(call.option("max") or 16),
            "stop": parse_numbers((call.option("stop") or "").replace(",", " ").split()),
            "salt": call.option("salt"),
            "priority": int(call.option("prio") or 0),
        }

    def _update(self, call: Call) -> Message:
        """Let the step run: also for those who were aborted meanwhile, of whom the worker does not know."""
        sampled = {part.handle: part.sampled() for part in self.parts}
        return {"call": "update", "sampled": {handle: tokens for handle, tokens in sampled.items() if tokens}}

    def _draft(self, call: Call) -> Message:
        return {"call": "draft", "request": call.handle, "tokens": parse_numbers(call.numbers)}

    def _of_request(self, call: Call) -> Message:
        return {"call": call.verb, "request": call.handle}

    def _of_nothing(self, call: Call) -> Message:
        return {"call": call.verb}

    # The replies, in words.

    def _added(self, call: Call, result: Message) -> str:
        return f"{self.num_tokens[call.handle]} tokens"

    def _check_requests(self, rows: Sequence[Message]) -> None:
        for row in rows:
            if row["request"] not in self.num_tokens:
                raise ProgramError(f"the result has the request {row['request']!r}, which was never added")

    def _planned(self, call: Call, result: Message) -> str:
        self._check_requests(result["steps"])
        self.parts = [
            Part(
                step["request"],
                step["computed"],
                step["tokens"],
                self.num_tokens[step["request"]],
                step["drafts"],
                step["blocks"],
            )
            for step in result["steps"]
        ]
        told = [(name, sorted(result[name])) for name in ("finished", "preempted")]
        words = [*map(str, self.parts), *(f"{name} {' '.join(handles)}" for name, handles in told if handles)]
        return "; ".join(words) or "empty"

    def _updated(self, call: Call, result: Message) -> str:
        self._check_requests(result["outputs"])
        self.parts = []
        words = []
        for output in result["outputs"]:
            self.num_tokens[output["request"]] += len(output["tokens"])
            words.append(" ".join([output["request"], *map(str, output["tokens"]), *filter(None, [output["finish"]])]))
            if output["finish"] is None and self.settings["num_drafts"]:
                self.reply = self.program.answer(self._drafts_for(output["request"]))
        return "; ".join(words) or "no tokens"

    def _drafts_for(self, handle: str) -> Message:
        """Propose tokens of which the first few are right."""
        num_drafts, num_tokens = self.settings["num_drafts"], self.num_tokens[handle]
        num_right = num_tokens % (num_drafts + 1)
        drafts = model_tokens(num_tokens, num_right) + [0] * (num_drafts - num_right)
        return {"call": "draft", "request": handle, "tokens": drafts}

    def _ok(self, call: Call, result: Message) -> str:
        return "ok"

    def _was_reset(self, call: Call, result: Message) -> str:
        return "done" if result["reset"] else "refused"

    def _state(self) -> State:
        """Return all that the program shows, each field in words."""
        state: State = {name: " ".join(self.reply[name]) for name in ("running", "waiting") if name in self.reply}
        if "computed" in self.reply:
            computed = self.reply["computed"]
            known = [(handle, computed[handle]) for handle in self.num_tokens if handle in computed]
            state["computed"] = "; ".join(f"{handle} {count}/{num_tokens}" for handle, (count, num_tokens) in known)
        state |= pool_in_words(self.reply, self.num_tokens, self.labels)
        state.pop("refs", None)  # they follow from the tables: the ledger of invariants says so
        return state


MESSAGES: dict[str, Callable[[Player, Call], Message]] = {
    "add": Player._add,
    "schedule": Player._of_nothing,
    "update": Player._update,
    "abort": Player._of_request,
    "draft": Player._draft,
    "reset": Player._of_nothing,
}
"""The message of each call that a scenario can make."""
RESULTS: dict[str, Callable[[Player, Call, Message], str]] = {
    "add": Player._added,
    "schedule": Player._planned,
    "update": Player._updated,
    "abort": Player._ok,
    "draft": Player._ok,
    "reset": Player._was_reset,
}
"""The result of each call, in words."""


def shorthand(verb: str, words: list[str]) -> list[str]:
    """Return the calls that `step` stands for; none for another verb."""
    return ["schedule", "update"] * int(words[0] if words else 1) if verb == "step" else []


LANGUAGE = Language(MESSAGES, ("schedule", "update", "reset"), FIELDS, DEFAULTS, shorthand)


def load_scenarios() -> list[Scenario]:
    """Return all scenarios, in the order of the recording."""
    return LANGUAGE.load(SCENARIO_FILES, RECORDING)
