"""Scenarios: a pool and an ordered list of calls, as data. Terminal, notebooks, book and tests play the same ones.

A scenario is a TOML file in `mini_kv/trace/scenarios`:

    title = "..."                 # and, if wanted: ending = "..." (told after the last step)
    num_blocks = 12               # the null block included
    block_size = 4                # and, if wanted: enable_caching = false

    [[step]]
    call = "prefill"              # what it does, see below
    request = "A"
    tokens = "0..31"              # runs and single tokens: "0..15 100..103 7"
    say = "..."                   # told with the step
    expect = ["lookup A: hit 0", "allocate A: allocated 1..8, cached 1..8"]
    invariant = "I7"              # optional: which line of the ledger is at stake (core/invariants.py)

    [step.predict]                # optional: what the reader is asked before the step; see trace/predict.py

The calls, and the keys that they need or may have:

    prefill   request, tokens, (salt)   look up, admit, compute the whole prompt; refused if too few blocks are free
    lookup    request, tokens, (salt)   only look up: what would this prompt find?
    decode    request, tokens           append these output tokens one at a time, each with its slot
    free      request                   the request is over
    reset                               forget every name
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import LEDGER
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.trace.frame import Frame, frame_of
from mini_kv.trace.predict import Prediction, parse_prediction, right_choice
from mini_kv.trace.recorder import Recorder
from mini_kv.trace.traced_manager import Span, TracedKVCacheManager


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names the file and the step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens in a scenario."""

    call: str
    say: str
    expect: tuple[str, ...]
    """The story lines that this step adds: what a test compares."""
    request: str = ""
    tokens: tuple[int, ...] = ()
    """Prompt of a `prefill` or `lookup`, output of a `decode`."""
    salt: str | None = None
    """The request's `cache_salt`: only requests with the same one share."""
    invariant: str = ""
    """Number of the invariant at stake, as in `LEDGER`; empty if none is named."""
    predict: Prediction | None = None
    """What the reader is asked before the step is shown."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and the steps to play on it."""

    name: str
    title: str
    num_blocks: int
    block_size: int
    enable_caching: bool
    steps: tuple[Step, ...]
    ending: str


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A step, the calls that it made, and the state after them."""

    step: Step
    spans: list[Span]
    frame: Frame
    num_hits: int
    """Tokens that the request found in the cache, if the step admitted one."""
    right_choice: int | None = None
    """Index of the prediction's choice that came true, if the step has a prediction."""


def scenario_names() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """Return the scenario of that name. Raises `ScenarioError`, naming the choices, if there is none."""
    file = _folder() / f"{name}.toml"
    if not file.is_file():
        raise ScenarioError(f"no scenario {name!r}; there are: {', '.join(scenario_names())}")
    return parse_scenario(name, file.read_text(encoding="utf-8"))


def parse_scenario(name: str, text: str) -> Scenario:
    """Return the scenario that the TOML text describes. Raises `ScenarioError` for anything that cannot be played."""
    try:
        values = tomllib.loads(text)
        steps = values.pop("step")
        return Scenario(
            name=name,
            title=values.pop("title"),
            num_blocks=values.pop("num_blocks"),
            block_size=values.pop("block_size"),
            enable_caching=values.pop("enable_caching", True),
            ending=values.pop("ending", ""),
            steps=tuple(_parse_step(f"{name}, step {number}", step) for number, step in enumerate(steps, start=1)),
        )
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: {error}") from error
    except KeyError as error:
        raise ScenarioError(f"{name}: {error} is missing") from error


def _parse_step(where: str, values: dict[str, Any]) -> Step:
    if values.get("call") not in CALLS:
        raise ScenarioError(f"{where}: call is {values.get('call')!r}; there are: {', '.join(CALLS)}")
    unknown = values.keys() - {"call", "say", "expect", "request", "tokens", "salt", "invariant", "predict"}
    if unknown:
        raise ScenarioError(f"{where}: unknown {', '.join(sorted(unknown))}")
    if not values.get("say"):
        raise ScenarioError(f"{where}: nothing to say")
    if values.get("invariant", "I1") not in LEDGER:
        raise ScenarioError(f"{where}: invariant is {values['invariant']!r}; there are: {', '.join(LEDGER)}")
    try:
        tokens = parse_tokens(values.get("tokens", ""))
    except ValueError as error:
        raise ScenarioError(f"{where}: tokens are {values['tokens']!r}: {error}") from error
    try:
        predict = parse_prediction(values["predict"]) if "predict" in values else None
    except ValueError as error:
        raise ScenarioError(f"{where}, predict: {error}") from error
    return Step(
        call=values["call"],
        say=" ".join(values["say"].split()),
        expect=tuple(values.get("expect", ())),
        request=values.get("request", ""),
        tokens=tokens,
        salt=values.get("salt"),
        invariant=values.get("invariant", ""),
        predict=predict,
    )


def parse_tokens(text: str) -> tuple[int, ...]:
    """Return the tokens that the text lists.

    >>> parse_tokens("0..3 100 7..8")
    (0, 1, 2, 3, 100, 7, 8)
    """
    tokens: list[int] = []
    for part in text.split():
        first, _, last = part.partition("..")
        tokens += range(int(first), int(last or first) + 1)
    return tuple(tokens)


def prefill(kv: TracedKVCacheManager, request: Request) -> int | None:
    """Admit the request and compute its whole prompt at once; return its hit in tokens, `None` if it is refused."""
    blocks, num_hits = kv.get_computed_blocks(request)
    num_new_tokens = request.num_tokens - num_hits
    if kv.allocate_slots(request, num_new_tokens, num_hits, blocks) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return num_hits


class ScenarioPlayer:
    """Plays a scenario's steps on a real manager, traced."""

    def __init__(self, scenario: Scenario) -> None:
        """Build the pool."""
        self.scenario = scenario
        recorder = Recorder()
        manager = KVCacheManager.for_full_attention(
            scenario.num_blocks,
            scenario.block_size,
            enable_caching=scenario.enable_caching,
            new_block=recorder.new_block,
        )
        self.kv = TracedKVCacheManager(manager, recorder, snapshots=True)
        self._requests: dict[str, Request] = {}

    def play(self) -> Iterator[PlayedStep]:
        """Yield each step after it has been made."""
        for number, step in enumerate(self.scenario.steps, start=1):
            num_spans = len(self.kv.spans)
            try:
                num_hits = CALLS[step.call](self, step)
                spans, frame = self.kv.spans[num_spans:], frame_of(self.kv.manager)
                right = right_choice(step.predict, spans, frame) if step.predict is not None else None
            except (KVCacheError, ValueError, KeyError) as error:
                raise ScenarioError(f"{self.scenario.name}, step {number}: {error}") from error
            yield PlayedStep(step, spans, frame, num_hits, right)

    def _prefill(self, step: Step) -> int:
        """Admit a request and compute its whole prompt; return its hit in tokens."""
        request = self.kv.manager.new_request(step.request, step.tokens, cache_salt=step.salt)
        num_hits = prefill(self.kv, request)
        if num_hits is None:
            return 0
        self._requests[step.request] = request
        return num_hits

    def _lookup(self, step: Step) -> int:
        """Ask what a prompt would find; return it in tokens. Nothing changes."""
        request = self.kv.manager.new_request(step.request, step.tokens, cache_salt=step.salt)
        return self.kv.get_computed_blocks(request)[1]

    def _decode(self, step: Step) -> int:
        """Append output tokens one at a time, each with its slot."""
        request = self._requests[step.request]
        for token in step.tokens:
            request.append_output_token_ids(token)
            if self.kv.allocate_slots(request, 1) is None:
                raise ValueError(f"no block is left for {step.request}")
            request.num_computed_tokens = request.num_tokens
        return 0

    def _free(self, step: Step) -> int:
        """End a request."""
        self.kv.free(self._requests.pop(step.request))
        return 0

    def _reset(self, step: Step) -> int:
        """Forget every name; refused while somebody holds a block."""
        self.kv.reset_prefix_cache()
        return 0


CALLS: dict[str, Callable[[ScenarioPlayer, Step], int]] = {
    "prefill": ScenarioPlayer._prefill,
    "lookup": ScenarioPlayer._lookup,
    "decode": ScenarioPlayer._decode,
    "free": ScenarioPlayer._free,
    "reset": ScenarioPlayer._reset,
}
"""What a step can do; each returns the tokens that it found in the cache."""


def _folder() -> Traversable:
    return resources.files("mini_kv.trace").joinpath("scenarios")
