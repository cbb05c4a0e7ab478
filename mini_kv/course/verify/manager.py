"""The manager's scenarios: what their calls ask of a program, and its replies in words.

A scenario (see `language`) is a pool, its groups of layers, and a list of calls:

    new A 0..7 100 salt=t image=cat@2+3     make request A; also lora=name:path, id=NAME if its id is not its handle
    lookup A                                get_computed_blocks; the program keeps the hit
    allocate A rest hit=pass                allocate_slots for `rest` or a number of tokens; hit=adopt: counted in
                                            num_computed_tokens before the call, hit=both: twice, of=B: the hit of B's
                                            lookup; lookahead=N; gate: the whole sequence must fit
    compute A                               the step ran: counts the tokens granted, or as many as are given
    reject A 2                              drafts are turned down: num_computed_tokens goes back
    append A 100..101                       output tokens
    free A / preempt A / abort A            preempt: free, computed 0; abort: the step never ran (withdraws promises)
    evict 3 4 / reset / stats
    release 3 4                             BlockPool.free_blocks, behind the manager's back

`prefill A 0..7` is new, lookup, allocate, compute; `resume A` the same without new; `decode A 100 101` is append,
allocate, compute for each token. Token and block lists are runs and single numbers: `0..7 100`.
"""

from collections.abc import Callable
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

SCENARIO_FILES = tuple(FOLDER / f"{name}.toml" for name in ("scenarios", "scenarios-groups", "scenarios-drafter"))
RECORDING = FOLDER / "vllm-0.33-manager.json"

FIELDS = ("result", "tables", "refs", "free", "keys", "answers", "usage", "stats")
DEFAULTS: dict[str, Any] = {
    "num_blocks": 10,
    "block_size": 4,
    "enable_caching": True,
    "groups": "",
    "drafter_groups": [],
    "num_hash_lookahead_tokens": 0,
    "max_in_flight_tokens": 1_000_000,
    "watermark": 0.0,
    "max_model_len": 1_000_000,
}
"""Settings of a scenario that names none; the last only vLLM has. Groups: as in `parse_groups`; those of a
drafter by number."""


@dataclass(slots=True)
class _Request:
    """What the player must know of a request, to say what the next call is."""

    num_tokens: int
    num_computed_tokens: int = 0
    num_hit: int = 0
    """Tokens of its last lookup."""
    granted: int = 0
    """Tokens of its last allocation that are not computed yet."""
    is_freed: bool = False


class Player:
    """Plays the calls of one scenario on a program."""

    def __init__(self, program: Program, settings: dict[str, Any]) -> None:
        """Start the program anew, with the scenario's settings."""
        self.program = program
        self.requests: dict[str, _Request] = {}
        """By handle."""
        self.labels: dict[str, int] = {}
        groups = parse_groups(settings)
        asked = {**settings, "block_size": groups[0]["block_size"], "groups": groups}
        self.asked_first: Message = {"call": "start", "version": VERSION, "part": "manager", "settings": asked}
        self.asked = self.asked_first
        self.reply = program.answer(self.asked)
        self._check_sizes(self.reply)

    @property
    def skipped(self) -> str:
        """Why the program does not play this scenario. Empty if it does."""
        return str(self.reply.get("skip", ""))

    def perform(self, call: Call) -> State:
        """Make one call and return its result and the state after it, in words."""
        if call.verb not in ("new", *_WITHOUT_REQUEST) and call.handle not in self.requests:
            return {**self._state(), "result": "no such request"}
        self.asked = MESSAGES[call.verb](self, call)
        reply = self.program.answer(self.asked)
        # A cache needs nothing of a step's end, so a program may leave these out.
        self._check_sizes(reply)
        self.reply = self.reply | {"result": {}} if "skip" in reply and call.verb in NOTICES else reply
        if self.skipped:
            return {}
        return {"result": self._result(call), **self._state()}

    def _check_sizes(self, reply: Message) -> None:
        """Raise `ProgramError` for a list by blocks that has another length than the pool."""
        num_blocks = self.asked_first["settings"]["num_blocks"]
        for name in ("refs", "hashes"):
            if len(reply.get(name, range(num_blocks))) != num_blocks:
                raise ProgramError(f"`{name}` has {len(reply[name])} entries, and the pool has {num_blocks} blocks")

    # What the calls ask of the program.

    def _new(self, call: Call) -> Message:
        tokens = parse_numbers(call.numbers)
        lora = call.option("lora")
        self.requests[call.handle] = _Request(len(tokens))
        return {
            "call": "new",
            "request": call.handle,
            "id": call.option("id") or call.handle,
            "tokens": tokens,
            "salt": call.option("salt"),
            "lora": lora.split(":", 1) if lora else None,
            "images": [_image(value) for name, value in call.options if name == "image"],
        }

    def _allocate(self, call: Call) -> Message:
        request = self.requests[call.handle]
        how = call.option("hit")
        num_hit = self.requests[call.option("of") or call.handle].num_hit if how else 0
        passed = num_hit if how in ("pass", "both") else 0
        computed = num_hit if how in ("adopt", "both") else request.num_computed_tokens
        num_new = request.num_tokens - computed - passed
        if call.numbers != ("rest",):
            (num_new,) = parse_numbers(call.numbers)
        return {
            "call": "allocate",
            "request": call.handle,
            "computed": computed,
            "hit": passed,
            "hit_of": call.option("of") or call.handle if how else None,
            "tokens": num_new,
            "lookahead": int(call.option("lookahead") or 0),
            "whole": call.option("gate") is not None,
        }

    def _compute(self, call: Call) -> Message:
        request = self.requests[call.handle]
        granted, request.granted = request.granted, 0
        request.num_computed_tokens += parse_numbers(call.numbers)[0] if call.numbers else granted
        return {"call": "compute", "request": call.handle, "computed": request.num_computed_tokens}

    def _reject(self, call: Call) -> Message:
        request = self.requests[call.handle]
        request.num_computed_tokens -= parse_numbers(call.numbers)[0]
        return {"call": "reject", "request": call.handle, "computed": request.num_computed_tokens}

    def _append(self, call: Call) -> Message:
        tokens = parse_numbers(call.numbers)
        self.requests[call.handle].num_tokens += len(tokens)
        return {"call": "append", "request": call.handle, "tokens": tokens}

    def _preempt(self, call: Call) -> Message:
        self.requests[call.handle].num_computed_tokens = 0
        return self._of_request(call)

    def _free(self, call: Call) -> Message:
        self.requests[call.handle].is_freed = True
        return self._of_request(call)

    def _lookup(self, call: Call) -> Message:
        request = self.requests[call.handle]
        if request.is_freed:  # it comes again, and starts over
            request.num_computed_tokens, request.is_freed = 0, False
        return self._of_request(call)

    def _of_request(self, call: Call) -> Message:
        return {"call": call.verb, "request": call.handle}

    def _of_blocks(self, call: Call) -> Message:
        return {"call": call.verb, "blocks": parse_numbers(call.numbers)}

    def _of_nothing(self, call: Call) -> Message:
        return {"call": call.verb}

    # The replies, in words.

    def _result(self, call: Call) -> str:
        """Return the result in words."""
        result = self.reply["result"]
        if "error" in result:
            return self._failed(call, result["error"])
        request = self.requests.get(call.handle)
        if request is None:
            return _of_pool(call.verb, result)
        match call.verb:
            case "new" | "append":
                return f"{request.num_tokens} tokens"
            case "lookup":
                request.num_hit = result["hit"]
                return _with_blocks(f"hit {request.num_hit}:", result).rstrip(":")
            case "allocate":
                return self._allocated(request, result)
            case "compute" | "reject":
                return f"computed {request.num_computed_tokens}"
        adopters = " ".join(result.get("adopters", ()))
        return f"ok, adopted by {adopters}" if adopters else "ok"

    def _allocated(self, request: _Request, result: dict[str, Any]) -> str:
        if not result["granted"]:
            return "refused"
        request.num_computed_tokens = self.asked["computed"] + self.asked["hit"]
        request.granted = self.asked["tokens"]
        return _with_blocks("new", result)

    def _failed(self, call: Call, name: str) -> str:
        if call.verb == "new":
            del self.requests[call.handle]
        return f"error {name}"

    def _state(self) -> State:
        """Return all that the program shows, each field in words."""
        state = pool_in_words(self.reply, self.requests, self.labels)
        if "usage" in self.reply:
            state["usage"] = f"{self.reply['usage']:.6f}"
        if "stats" in self.reply:
            requests, queries, hits = self.reply["stats"]
            state["stats"] = f"{requests} requests, {queries} queries, {hits} hits"
        return state


def _image(value: str) -> list[Any]:
    """Return identity, offset and length of an image, written as `cat@2+3`."""
    identifier, _, place = value.partition("@")
    offset, _, length = place.partition("+")
    return [identifier, int(offset), int(length)]


def _with_blocks(words: str, result: dict[str, Any]) -> str:
    """Return the words and the blocks, or the words and a question mark if the program shows no blocks."""
    if "blocks" not in result:
        return f"{words} ?"
    return f"{words} {format_groups(result['blocks'])}".strip()


def _of_pool(verb: str, result: dict[str, Any]) -> str:
    """Return the result of a call that is about no request, in words."""
    if verb == "reset":
        return "done" if result["reset"] else "refused"
    if verb == "stats":
        counted = " ".join(map(str, result["stats"]))
        preempted = " ".join(map(str, result.get("preempted_stats", ())))
        return f"{counted}, preempted {preempted}" if preempted else counted
    return "ok"


MESSAGES: dict[str, Callable[[Player, Call], Message]] = {
    "new": Player._new,
    "lookup": Player._lookup,
    "allocate": Player._allocate,
    "compute": Player._compute,
    "reject": Player._reject,
    "append": Player._append,
    "free": Player._free,
    "preempt": Player._preempt,
    "abort": Player._of_request,
    "evict": Player._of_blocks,
    "release": Player._of_blocks,
    "reset": Player._of_nothing,
    "stats": Player._of_nothing,
}
"""The message of each call that a scenario can make."""

SIX = ("start", "new", "lookup", "allocate", "append", "free")
"""The messages of the challenge."""
NOTICES = ("compute", "reject")
"""Calls that only say how many tokens of a request are computed now."""

_WITHOUT_REQUEST = ("evict", "release", "reset", "stats")


def shorthand(verb: str, words: list[str]) -> list[str]:
    """Return the calls that a shorthand stands for; none if the verb is a call."""
    handle = words[0] if words else ""
    if verb == "decode":
        steps = ("append {handle} {token}", "allocate {handle} 1", "compute {handle}")
        return [step.format(handle=handle, token=token) for token in parse_numbers(words[1:]) for step in steps]
    if verb not in ("prefill", "resume"):
        return []
    steps = (f"lookup {handle}", f"allocate {handle} rest hit=pass", f"compute {handle}")
    return [f"new {' '.join(words)}", *steps] if verb == "prefill" else [*steps]


LANGUAGE = Language(MESSAGES, _WITHOUT_REQUEST, FIELDS, DEFAULTS, shorthand)


def needs(scenario: Scenario) -> list[str]:
    """Return what a scenario needs beyond the six messages of the challenge and one group of full attention."""
    settings = scenario.settings
    kinds = [group["kind"] for group in parse_groups(settings)]
    options = {name for call in scenario.calls for name, _ in call.options}
    asked = {
        "caching off": not settings["enable_caching"],
        "salts": "salt" in options,
        "adapters": "lora" in options,
        "images": "image" in options,
        "windows": "window" in kinds,
        "chunks": "chunks" in kinds,
        "states": "state" in kinds,
        "groups": len(kinds) > 1,
        "sizes": len({group["block_size"] for group in parse_groups(settings)}) > 1,
        "lookahead": "lookahead" in options,
        "drafters": bool(settings["drafter_groups"]) or settings["num_hash_lookahead_tokens"] > 0,
        "watermark": settings["watermark"] > 0,
        "whole": any("gate" in call.text.split() for call in scenario.calls),
        **{verb: any(call.verb == verb for call in scenario.calls) for verb in MESSAGES if verb not in SIX + NOTICES},
    }
    return [name for name, is_asked in asked.items() if is_asked]


def load_scenarios() -> list[Scenario]:
    """Return all scenarios, in the order of the recording."""
    return LANGUAGE.load(SCENARIO_FILES, RECORDING)
