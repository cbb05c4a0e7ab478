"""Golden scenarios: their little language, and a player that two engines understand.

A scenario is a pool, its groups of layers, and a list of calls, one a line:

    new A 0..7 100 salt=t image=cat@2+3     make request A; also lora=name:path, id=NAME if its id is not its handle
    lookup A                                get_computed_blocks; the player keeps the hit
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

After every call all that can be seen is put into words (`Engine.state`), each field a line of text: equal text means
equal state, and a difference can be read. Keys are numbered in the order in which they first appear, since the two
recipes differ on purpose: what counts is which blocks carry the same key.

Where mini_kv differs on purpose, the call says what mini_kv shows instead of the recorded field, and the scenario
names the deviation:

    free A => result: error UnknownRequestError | refs: 0 0 0

`unchanged` instead of a field means that in mini_kv all but the result is as it was before the call.
"""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from mini_kv.core.request import LoRARequest, MultiModalFeature
from mini_kv.tests.random_driver import Config

FOLDER = Path(__file__).parent
SCENARIO_FILES = (FOLDER / "scenarios.toml", FOLDER / "scenarios-random.toml", FOLDER / "scenarios-groups.toml")
RECORDING = FOLDER / "vllm-0.33.json"

State: TypeAlias = dict[str, str]
FIELDS = ("result", "tables", "refs", "free", "keys", "answers", "usage", "stats")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a scenario."""

    text: str
    """As written, without the deviation."""
    verb: str
    handle: str
    numbers: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, str], ...] = ()
    """Fields in which mini_kv differs from the recording on purpose, with what mini_kv shows."""
    unchanged: bool = False
    """Whether vLLM's state changes and mini_kv's, on purpose, does not."""

    def option(self, name: str) -> str | None:
        """Return the last value given for the option."""
        return dict(self.options).get(name)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and the calls to play on it."""

    name: str
    group: str
    purpose: str
    settings: dict[str, Any]
    deviations: tuple[str, ...]
    calls: tuple[Call, ...]


DEFAULTS: dict[str, Any] = {
    "num_blocks": 10,
    "block_size": 4,
    "enable_caching": True,
    "groups": "",
    "max_in_flight_tokens": 1_000_000,
    "watermark": 0.0,
    "max_model_len": 1_000_000,
}
"""Settings of a scenario that names none; the last only vLLM has. Groups: as in `random_driver.Config`."""


def load_scenarios(paths: Sequence[Path] = SCENARIO_FILES) -> list[Scenario]:
    """Return all scenarios, in the order of the files."""
    return [parse_scenario(values) for path in paths for values in tomllib.loads(path.read_text("utf-8"))["scenario"]]


def parse_scenario(values: dict[str, Any]) -> Scenario:
    """Return the scenario that the table describes. Raises `ValueError` or `KeyError` for anything unknown."""
    values = dict(values)
    name, group, purpose = values.pop("name"), values.pop("group"), values.pop("purpose")
    deviations = tuple(values.pop("deviations", ()))
    lines = [line.strip() for line in values.pop("calls").splitlines()]
    if values.keys() - DEFAULTS.keys():
        raise ValueError(f"{name}: unknown settings {sorted(values.keys() - DEFAULTS.keys())}")
    calls = tuple(call for line in lines if line and not line.startswith("#") for call in parse_line(line))
    return Scenario(name, group, purpose, DEFAULTS | values, deviations, calls)


def parse_line(line: str) -> Iterator[Call]:
    """Yield the calls of one line: one, or what a shorthand stands for."""
    text, _, difference = line.partition(" => ")
    verb, _, rest = text.strip().partition(" ")
    handle = rest.partition(" ")[0]
    if verb in ("prefill", "resume", "decode"):
        if difference:
            raise ValueError(f"{line!r}: a shorthand is several calls; write out the one that differs")
        if verb == "decode":
            for token in parse_numbers(rest.split()[1:]):
                for step in (f"append {handle} {token}", f"allocate {handle} 1", f"compute {handle}"):
                    yield _parse_call(step, "")
            return
        steps = [f"lookup {handle}", f"allocate {handle} rest hit=pass", f"compute {handle}"]
        for step in [f"new {rest}", *steps] if verb == "prefill" else steps:
            yield _parse_call(step, "")
        return
    yield _parse_call(text.strip(), difference)


def _parse_call(text: str, difference: str) -> Call:
    verb, *words = text.split()
    if verb not in VERBS:
        raise ValueError(f"{text!r}: unknown call; there are {', '.join(VERBS)}")
    handle = "" if verb in WITHOUT_REQUEST else words.pop(0)
    numbers = tuple(word for word in words if "=" not in word and word != "gate")
    options = tuple((name, value) for name, _, value in (word.partition("=") for word in words if word not in numbers))
    parts = [part.strip() for part in difference.split(" | ")] if difference else []
    differs = []
    for part in parts:
        field, _, value = part.partition(":")
        if field not in (*FIELDS, "unchanged"):
            raise ValueError(f"{text!r}: {field!r} is no field; there are {', '.join(FIELDS)}")
        if field != "unchanged":
            differs.append((field, value.strip()))
    return Call(text, verb, handle, numbers, options, tuple(differs), unchanged="unchanged" in parts)


def parse_numbers(words: Sequence[str]) -> list[int]:
    """Return the numbers in the words.

    >>> parse_numbers(["0..3", "100", "true"])
    [0, 1, 2, 3, 100, True]
    """
    numbers: list[int] = []
    for word in words:
        first, dots, last = word.partition("..")
        if word == "true":
            numbers.append(True)
        else:
            numbers += range(int(first), int(last) + 1) if dots else [int(first)]
    return numbers


def format_numbers(numbers: Sequence[int]) -> str:
    """Return the numbers as `parse_numbers` reads them; three or more in a row become a run.

    >>> format_numbers([7, 1, 2, 3, 9, 10])
    '7 1..3 9 10'
    """
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    words: list[str] = []
    for start, end in pairwise(starts):
        run = numbers[start:end]
        words += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
    return " ".join(words)


def format_groups(tables: Sequence[Sequence[int]]) -> str:
    """Return the numbers of each group's blocks; 0 is the null block.

    >>> format_groups([[1, 2, 3], [], [0, 0, 7]])
    '1..3 / - / 0 0 7'
    """
    return " / ".join(format_numbers(ids) or "-" for ids in tables) if len(tables) > 1 else format_numbers(tables[0])


class Engine(ABC):
    """A manager under test, seen through what vLLM's and mini_kv's have in common."""

    manager: Any
    """Set by the subclass."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.requests: dict[str, Any] = {}
        """By handle."""
        self.hits: dict[str, tuple[Any, int]] = {}
        """The last lookup of each handle: blocks and tokens."""
        self.granted: dict[str, int] = {}
        """Tokens of each handle's last allocation that are not computed yet."""
        self.labels: dict[bytes, int] = {}
        """Keys in the order of their first appearance, from 1."""

    # What differs between the engines.

    @abstractmethod
    def new_request(
        self,
        request_id: str,
        token_ids: list[int],
        cache_salt: str | None,
        lora: tuple[str, str] | None,
        images: list[tuple[str, int, int]],
    ) -> Any:
        """Return a request."""

    @abstractmethod
    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        """Return the hit, as the engine's own object and in tokens."""

    @abstractmethod
    def allocate_slots(self, call: Call, request: Any, num_new_tokens: int, num_hit: int, blocks: Any) -> Any:
        """Allocate; on a first success, do what the engine's scheduler does on admission."""

    @abstractmethod
    def abort(self, request: Any) -> str:
        """End a request whose step never ran."""

    @abstractmethod
    def preempted(self, request: Any) -> None:
        """Note that the request was preempted, if the engine keeps track."""

    @abstractmethod
    def stats(self) -> str:
        """Return all counters of prefix cache use."""

    # The calls. Each returns what the caller gets to see, in words.

    def new(self, call: Call) -> str:
        """Make a request."""
        images = []
        for value in (value for name, value in call.options if name == "image"):
            identifier, _, place = value.partition("@")
            offset, _, length = place.partition("+")
            images.append((identifier, int(offset), int(length)))
        lora = call.option("lora")
        name_and_path = (lora.partition(":")[0], lora.partition(":")[2]) if lora else None
        request_id = call.option("id") or call.handle
        tokens = parse_numbers(call.numbers)
        self.requests[call.handle] = self.new_request(request_id, tokens, call.option("salt"), name_and_path, images)
        return f"{self.requests[call.handle].num_tokens} tokens"

    def lookup(self, call: Call) -> str:
        """Ask for the longest cached prefix, and keep the answer."""
        blocks, num_tokens = self.get_computed_blocks(self.requests[call.handle])
        self.hits[call.handle] = blocks, num_tokens
        return f"hit {num_tokens}: {format_groups(blocks.get_block_ids())}".rstrip(": ")

    def allocate(self, call: Call) -> str:
        """Ask for slots."""
        request = self.requests[call.handle]
        how = call.option("hit")
        blocks, num_hit = self.hits[call.option("of") or call.handle] if how else (None, 0)
        before = request.num_computed_tokens
        granted = False
        if how in ("adopt", "both"):
            request.num_computed_tokens = num_hit
        num_passed = num_hit if how in ("pass", "both") else 0
        num_new = request.num_tokens - request.num_computed_tokens - num_passed
        if call.numbers != ("rest",):
            (num_new,) = parse_numbers(call.numbers)
        try:
            new_blocks = self.allocate_slots(call, request, num_new, num_passed, blocks)
            granted = new_blocks is not None
        finally:
            if not granted:
                request.num_computed_tokens = before
        if not granted:
            return "refused"
        request.num_computed_tokens += num_passed
        self.granted[call.handle] = num_new
        return f"new {format_groups(new_blocks.get_block_ids())}".strip()

    def compute(self, call: Call) -> str:
        """Count what the step computed."""
        granted = self.granted.pop(call.handle, 0)
        request = self.requests[call.handle]
        request.num_computed_tokens += parse_numbers(call.numbers)[0] if call.numbers else granted
        self.step_is_done()
        return f"computed {request.num_computed_tokens}"

    @abstractmethod
    def step_is_done(self) -> None:
        """Tell the engine, if it wants to know, that a step ran."""

    def reject(self, call: Call) -> str:
        """Count drafts back."""
        request = self.requests[call.handle]
        request.num_computed_tokens -= parse_numbers(call.numbers)[0]
        return f"computed {request.num_computed_tokens}"

    def append(self, call: Call) -> str:
        """Add output tokens."""
        request = self.requests[call.handle]
        for token in parse_numbers(call.numbers):
            request.append_output_token_ids(token)
        return f"{request.num_tokens} tokens"

    def free(self, call: Call) -> str:
        """End a request."""
        self.manager.free(self.requests[call.handle])
        return "ok"

    def preempt(self, call: Call) -> str:
        """Free a request's blocks and start it over."""
        request = self.requests[call.handle]
        self.manager.free(request)
        request.num_computed_tokens = 0
        self.preempted(request)
        return "ok"

    def drop(self, call: Call) -> str:
        """End a request whose step never ran."""
        return self.abort(self.requests[call.handle])

    def evict(self, call: Call) -> str:
        """Drop the keys of blocks."""
        self.manager.evict_blocks(dict.fromkeys(parse_numbers(call.numbers)).keys())
        return "ok"

    def release(self, call: Call) -> str:
        """Drop a reference of each block, in the pool itself."""
        blocks = self.manager.block_pool.blocks
        self.manager.block_pool.free_blocks([blocks[block_id] for block_id in parse_numbers(call.numbers)])
        return "ok"

    def reset(self, call: Call) -> str:
        """Forget all keys."""
        return "done" if self.manager.reset_prefix_cache() else "refused"

    def show_stats(self, call: Call) -> str:
        """Show every counter."""
        return self.stats()

    # What can be seen.

    def state(self) -> State:
        """Return all that can be seen of the manager, each field in words; changes nothing but the labels."""
        pool = self.manager.block_pool
        hashes = [block.block_hash for block in pool.blocks]
        for key in hashes:
            if key is not None:
                self.labels.setdefault(key, len(self.labels) + 1)
        # With duplicates the index is asked which block answers; without, it can only be the one (or the index lies).
        answers = {}
        for key in dict.fromkeys(key for key in hashes if key is not None):
            found = pool.cached_block_hash_to_block.get_one_block(key)
            if hashes.count(key) > 1 or found is None or found.block_hash != key:
                answers[self.labels[key]] = "nobody" if found is None else found.block_id
        stats = self.manager.prefix_cache_stats
        tables = {name: self.manager.get_block_ids(request.request_id) for name, request in self.requests.items()}
        return {
            "tables": "; ".join(f"{name}: {format_groups(ids)}" for name, ids in tables.items() if any(ids)),
            "refs": " ".join(str(block.ref_cnt) for block in pool.blocks),
            "free": format_numbers([block.block_id for block in pool.free_block_queue.get_all_free_blocks()]),
            "keys": " ".join(str(self.labels[key]) if key is not None else "-" for key in hashes),
            "answers": "; ".join(f"key {label}: {block_id}" for label, block_id in answers.items()),
            "usage": f"{self.manager.usage:.6f}",
            "stats": f"{stats.requests} requests, {stats.queries} queries, {stats.hits} hits",
        }


VERBS: dict[str, Callable[[Engine, Call], str]] = {
    "new": Engine.new,
    "lookup": Engine.lookup,
    "allocate": Engine.allocate,
    "compute": Engine.compute,
    "reject": Engine.reject,
    "append": Engine.append,
    "free": Engine.free,
    "preempt": Engine.preempt,
    "abort": Engine.drop,
    "evict": Engine.evict,
    "release": Engine.release,
    "reset": Engine.reset,
    "stats": Engine.show_stats,
}
"""What a scenario can call."""

WITHOUT_REQUEST = ("evict", "release", "reset", "stats")


def perform(engine: Engine, call: Call) -> State:
    """Make one call and return its result and the state after it; an exception is a result too."""
    if call.verb not in ("new", *WITHOUT_REQUEST) and call.handle not in engine.requests:
        return {"result": "no such request", **engine.state()}
    try:
        result = VERBS[call.verb](engine, call)
    except Exception as error:  # which exception it is, is part of what is compared
        result = f"error {type(error).__name__}"
    return {"result": result, **engine.state()}


class MiniKV(Engine):
    """mini_kv's manager."""

    def __init__(self, settings: dict[str, Any], *, debug: bool = False) -> None:
        """Build the manager; `debug` checks the ledger of invariants after every call."""
        super().__init__(settings)
        chosen = {name: settings[name] for name in ("num_blocks", "block_size", "enable_caching", "groups")}
        self.manager = Config(**chosen, debug=debug).make(
            max_in_flight_tokens=settings["max_in_flight_tokens"], watermark=settings["watermark"]
        )

    def new_request(
        self,
        request_id: str,
        token_ids: list[int],
        cache_salt: str | None,
        lora: tuple[str, str] | None,
        images: list[tuple[str, int, int]],
    ) -> Any:
        """Return a request."""
        return self.manager.new_request(
            request_id,
            token_ids,
            cache_salt=cache_salt,
            lora_request=LoRARequest(*lora) if lora else None,
            mm_features=[MultiModalFeature(*image) for image in images],
        )

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        """Return the hit."""
        blocks, num_tokens = self.manager.get_computed_blocks(request)
        return blocks, num_tokens

    def allocate_slots(self, call: Call, request: Any, num_new_tokens: int, num_hit: int, blocks: Any) -> Any:
        """Allocate; the manager itself notes a first admission."""
        lookahead = int(call.option("lookahead") or 0)
        return self.manager.allocate_slots(
            request,
            num_new_tokens,
            num_hit,
            blocks,
            lookahead,
            full_sequence_must_fit=call.option("gate") is not None,
        )

    def abort(self, request: Any) -> str:
        """Withdraw the promises, then free."""
        adopters = self.manager.withdraw_promises(request)
        self.manager.free(request)
        return f"ok, adopted by {' '.join(adopters)}" if adopters else "ok"

    def step_is_done(self) -> None:
        """Do nothing: mini_kv looks at its requests' computed tokens."""

    def preempted(self, request: Any) -> None:
        """Do nothing: mini_kv counts a request's first admission only."""

    def stats(self) -> str:
        """Return the three counters."""
        stats = self.manager.prefix_cache_stats
        return f"{stats.requests} {stats.queries} {stats.hits}"
