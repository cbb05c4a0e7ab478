"""Golden scenarios of the manager: their calls, and a player that two engines understand.

A scenario (see `common`) is a pool, its groups of layers, and a list of calls:

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
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from mini_kv.core.request import LoRARequest, MultiModalFeature
from mini_kv.tests.golden.common import FOLDER, Call, Language, Scenario, State, format_groups, look, parse_numbers
from mini_kv.tests.random_driver import Config

SCENARIO_FILES = tuple(
    FOLDER / f"{name}.toml" for name in ("scenarios", "scenarios-random", "scenarios-groups", "scenarios-drafter")
)
RECORDING = FOLDER / "vllm-0.33.json"

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
"""Settings of a scenario that names none; the last only vLLM has. Groups: as in `random_driver.Config`; those of a
drafter by number."""


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
        stats = self.manager.prefix_cache_stats
        return {
            **look(self.manager, self.requests, self.labels),
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


LANGUAGE = Language(VERBS, WITHOUT_REQUEST, FIELDS, DEFAULTS, shorthand)


def load_scenarios() -> list[Scenario]:
    """Return all scenarios, in the order of the files."""
    return LANGUAGE.load(SCENARIO_FILES)


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
        names = ("drafter_groups", "num_hash_lookahead_tokens", "max_in_flight_tokens", "watermark")
        self.manager = Config(**chosen, debug=debug).make(**{name: settings[name] for name in names})

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
