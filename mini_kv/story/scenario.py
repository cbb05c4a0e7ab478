"""Scenarios: a pool and an ordered list of calls, as data. Terminal, notebooks, book and tests play the same ones.

A scenario is a TOML file in `mini_kv/story/scenarios`:

    title = "..."                 # and, if wanted: ending = "..." (told after the last step)
    num_blocks = 12               # the null block included
    block_size = 4                # and, if wanted: enable_caching = false

    [[step]]
    call = "prefill"              # what it does, see below
    request = "A"
    tokens = "0..31"              # runs and single tokens: "0..15 100..103 7"
    say = "..."                   # told with the step
    expect = ["lookup A: hit 0", "allocate A: allocated 1..8, cached 1..8"]

    [step.predict]                # optional: what the reader is asked before the step; see step_questions.py

A step may have `text = "..."` instead of tokens. Then each word is a token, equal words are equal tokens, and the
figure shows the words on the blocks.

Several groups of layers are listed in order. By default there is one group, of full attention:

    groups = ["full", "window 8"]  # or "chunk 8": sliding windows of 8 tokens, local attention in chunks of 8

The calls, and the keys that they need or may have:

    prefill   request, tokens, (salt)   look up, admit, compute the whole prompt; refused if too few blocks are free
    lookup    request, tokens, (salt)   only look up: what would this prompt find?
    decode    request, tokens           append these output tokens one at a time, each with its slot
    free      request                   end the request
    reset                               empty the index

With a table of limits (`SchedulerConfig`'s), the scheduler decides which requests run, and these are the calls:

    [scheduler]
    max_num_batched_tokens = 8

    arrive    request, tokens, (max_tokens, priority, salt)     a request arrives and waits
    step      (request, tokens)         one step: plan, compute, a new token for each request that is past its prompt;
                                        with tokens: those that the model returns for this request, one after the other
    draft     request, tokens           a guess of the request's next tokens: the next step checks it
    abort     request                   its client has disconnected
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import Any

from mini_kv.core.errors import KVCacheError, UnknownRequestError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.messages import choices, shown
from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.story.step_questions import Prediction, parse_prediction, right_choice
from mini_kv.story.story_text import NOTHING_CHANGED, story
from mini_kv.story.traced_manager import Span, TracedKVCacheManager


class ScenarioError(ValueError):
    """A scenario that cannot be played. The message names the file and the step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a scenario."""

    call: str
    say: str
    expect: tuple[str, ...]
    """The story lines that this step adds. A test compares them."""
    request: str = ""
    tokens: tuple[int, ...] = ()
    """Prompt of a `prefill` or `lookup`, output of a `decode`."""
    salt: str | None = None
    """The request's `cache_salt`: only requests with the same one share."""
    max_tokens: int = 16
    """Number of output tokens after which an arriving request ends."""
    priority: int = 0
    """The smallest is served first, if the scheduler uses priorities."""
    predict: Prediction | None = None
    """The question to the reader before the step is shown."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and the steps that are played on it."""

    name: str
    title: str
    num_blocks: int
    block_size: int
    enable_caching: bool
    steps: tuple[Step, ...]
    ending: str
    groups: tuple[str, ...] = ("full",)
    """The kinds of layers, as `parse_group` reads them."""
    limits: SchedulerConfig | None = None
    """Limits of the scheduler that chooses the requests. `None`: the steps choose them."""
    words: tuple[str, ...] = ()
    """The word of each token. Empty if the steps have tokens and no text."""
    lang: str = "en"
    """The language of its texts."""


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A step, the calls that it made, and the state after them."""

    step: Step
    spans: list[Span]
    frame: Frame
    num_hits: int
    """Tokens that the request found in the cache, if the step admitted one."""
    right_choice: int | None = None
    """Index of the prediction's right choice, if the step has a prediction."""
    scheduled: dict[str, int] | None = None
    """Tokens of each request in a scheduler's step."""
    preempted: tuple[str, ...] = ()
    """The requests that lost their blocks in the step."""
    waiting: tuple[Request, ...] | None = None
    """The waiting requests after the step, in the order in which they will be served. `None` without a scheduler."""
    words: dict[int, list[str]] | None = None
    """The words in each block that a request holds, by block id, or `None` if the scenario has no text."""

    @property
    def lines(self) -> list[str]:
        """The effects of the step, one line per call. With a scheduler: running requests first, waiting ones last."""
        if self.waiting is None:
            return story(self.spans)
        told = [line for line in story(self.spans) if not line.endswith(NOTHING_CHANGED)]
        if self.scheduled is not None:
            runs = ", ".join(f"{name} {num_tokens}" for name, num_tokens in self.scheduled.items())
            told = [f"step: {runs or 'no request'}", *(f"preempted: {name}" for name in self.preempted), *told]
        if self.step.call == "draft":
            told.append(f"guessed for {self.step.request}: {len(self.step.tokens)} tokens")
        if self.waiting:
            told.append(f"waiting: {', '.join(request.request_id for request in self.waiting)}")
        return told


def scenario_names() -> list[str]:
    """Return the names of the scenarios in the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str, lang: str = "en") -> Scenario:
    """Return the scenario with this name, in this language.

    Raises `ScenarioError` with the choices for an unknown name.
    """
    names = scenario_names()
    if name not in names:
        raise ScenarioError(f"no scenario {shown(name)}; {choices(name, names, 'mini-kv story')}")
    text = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    if lang == "en":
        return parse_scenario(name, text)
    told = _folder() / lang / f"{name}.toml"
    if not told.is_file():
        raise ScenarioError(f"the scenario {name} has no translation {lang!r}: there is no {lang}/{name}.toml")
    return translated(parse_scenario(name, text), lang, tomllib.loads(told.read_text(encoding="utf-8")))


def parse_scenario(name: str, text: str) -> Scenario:
    """Return the scenario that the TOML text describes. Raises `ScenarioError` for anything that cannot be played."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: {error}") from error
    return scenario_from(name, values)


def translated(scenario: Scenario, lang: str, told: dict[str, Any]) -> Scenario:
    """Return the scenario in another language: its title, ending, and the texts and questions of each step.

    A translation has the choices in the scenario's order. Raises `ScenarioError` if a text is missing.
    """
    try:
        pairs = zip(scenario.steps, told["step"], strict=True)
        return replace(
            scenario,
            lang=lang,
            title=told["title"],
            ending=_joined(told["ending"]) if scenario.ending else "",
            steps=tuple(_translated_step(step, words) for step, words in pairs),
        )
    except (KeyError, ValueError) as error:
        raise ScenarioError(f"{lang}/{scenario.name}: {error!r}") from error


def _translated_step(step: Step, told: dict[str, Any]) -> Step:
    """Return the step with the texts of a translation. Line breaks are removed, because Chinese has no spaces."""
    if step.predict is None:
        return replace(step, say=_joined(told["say"]))
    choices = tuple(
        replace(
            choice, text=words.get("text", choice.text), if_true=_joined(words["if_true"]) if choice.if_true else ""
        )
        for choice, words in zip(step.predict.choices, told["choice"], strict=True)
    )
    return replace(
        step, say=_joined(told["say"]), predict=replace(step.predict, ask=_joined(told["ask"]), choices=choices)
    )


def _joined(text: str) -> str:
    return "".join(text.splitlines()).strip()


def scenario_from(name: str, values: dict[str, Any], words: dict[str, int] | None = None) -> Scenario:
    """Return the scenario of a file's values. Raises `ScenarioError` for anything that cannot be played.

    `words`: the words that already have a token. The words of the steps are added.
    """
    try:
        words = {} if words is None else words
        steps = [_with_tokens(step, words) for step in values.pop("step")]
        return Scenario(
            name=name,
            title=values.pop("title"),
            num_blocks=values.pop("num_blocks"),
            block_size=values.pop("block_size"),
            enable_caching=values.pop("enable_caching", True),
            ending=values.pop("ending", ""),
            groups=tuple(values.pop("groups", ("full",))),
            limits=_parse_limits(values.pop("scheduler")) if "scheduler" in values else None,
            words=tuple(words),
            steps=tuple(_parse_step(f"{name}, step {number}", step) for number, step in enumerate(steps, start=1)),
        )
    except KeyError as error:
        raise ScenarioError(f"{name}: {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, ScenarioError) else ScenarioError(f"{name}: {error}") from error


def parse_group(text: str, block_size: int) -> KVCacheSpec:
    """Return the group of layers that the text names. Raises `ScenarioError` if it names none."""
    kind, _, size = text.partition(" ")
    if kind == "full" and not size:
        return FullAttentionSpec(block_size)
    if kind == "window" and size.isdecimal():
        return SlidingWindowSpec(block_size, sliding_window=int(size))
    if kind == "chunk" and size.isdecimal():
        return ChunkedLocalAttentionSpec(block_size, attention_chunk_size=int(size))
    raise ScenarioError(f"a group is {text!r}; there are: full, window 8, chunk 8 (or other sizes)")


def _parse_limits(values: dict[str, Any]) -> SchedulerConfig:
    if "policy" in values:
        values["policy"] = SchedulingPolicy(values["policy"])
    return SchedulerConfig(**values)


def _with_tokens(step: dict[str, Any], words: dict[str, int]) -> dict[str, Any]:
    """Return the step with the tokens of its text. `words` has the number of every word so far."""
    if "text" not in step:
        return step
    tokens = word_tokens(step["text"], words)
    return {**{key: value for key, value in step.items() if key != "text"}, "tokens": " ".join(map(str, tokens))}


def word_tokens(text: str, words: dict[str, int]) -> tuple[int, ...]:
    """Return a token for each word of the text. A word that is not in `words` gets the next number there.

    >>> word_tokens("to be or not to be", {})
    (0, 1, 2, 3, 0, 1)
    """
    return tuple(words.setdefault(word, len(words)) for word in text.split())


def _parse_step(where: str, values: dict[str, Any]) -> Step:
    if values.get("call") not in CALLS:
        raise ScenarioError(f"{where}: call is {values.get('call')!r}; there are: {', '.join(CALLS)}")
    unknown = values.keys() - _STEP_KEYS
    if unknown:
        raise ScenarioError(f"{where}: unknown {', '.join(sorted(unknown))}")
    if not values.get("say"):
        raise ScenarioError(f"{where}: say is missing or empty")
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
        max_tokens=values.get("max_tokens", 16),
        priority=values.get("priority", 0),
        predict=predict,
    )


_STEP_KEYS = {"call", "say", "expect", "request", "tokens", "salt", "max_tokens", "priority", "predict"}


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
    """Admit the request and compute its whole prompt at once. Return its hit in tokens, or `None` if it is refused."""
    blocks, num_hits = kv.get_computed_blocks(request)
    num_new_tokens = request.num_tokens - num_hits
    if kv.allocate_slots(request, num_new_tokens, num_hits, blocks) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return num_hits


class ScenarioPlayer:
    """Plays a scenario's steps on a real manager, and records the calls."""

    def __init__(
        self,
        scenario: Scenario,
        parts: KVCacheParts | None = None,
        *,
        make_manager: Callable[..., KVCacheManager] = KVCacheManager,
        strict: bool = True,
    ) -> None:
        """Build the pool. `parts` and `make_manager` replace the engine's own. `strict`: as for a `Recorder`."""
        self.scenario = scenario
        recorder = Recorder(strict=strict)
        groups = tuple(KVCacheGroupSpec((name,), parse_group(name, scenario.block_size)) for name in scenario.groups)
        manager = make_manager(
            KVCacheConfig(scenario.num_blocks, groups),
            enable_caching=scenario.enable_caching,
            parts=replace(parts or KVCacheParts(), new_block=recorder.new_block),
        )
        self.kv = TracedKVCacheManager(manager, recorder, snapshots=True)
        self.scheduler = Scheduler(self.kv, scenario.limits) if scenario.limits else None
        self._requests: dict[str, Request] = {}
        self._output: SchedulerOutput | None = None

    def play(self) -> Iterator[PlayedStep]:
        """Make each step, then yield it."""
        for number, step in enumerate(self.scenario.steps, start=1):
            try:
                yield self.make(step)
            except (KVCacheError, ValueError, KeyError) as error:
                raise ScenarioError(f"{self.scenario.name}, step {number}: {error}") from error

    def make(self, step: Step) -> PlayedStep:
        """Make one step, of the scenario or any other, and return it. Raises if it cannot be made now."""
        num_spans = len(self.kv.spans)
        self._output = None
        num_hits = CALLS[step.call](self, step)
        spans, frame = self.kv.spans[num_spans:], frame_of(self.kv.manager)
        return PlayedStep(
            step,
            spans,
            frame,
            num_hits,
            right_choice(step.predict, spans, frame) if step.predict is not None else None,
            scheduled=dict(self._output.num_scheduled_tokens) if self._output is not None else None,
            preempted=tuple(self._output.preempted_req_ids) if self._output is not None else (),
            waiting=tuple(self.scheduler.waiting) if self.scheduler is not None else None,
            words=self._words() if self.scenario.words else None,
        )

    def _words(self) -> dict[int, list[str]]:
        """Return the words of the computed tokens in each block that a request holds."""
        size, told, held = self.scenario.block_size, self.scenario.words, {}
        for request_id, request in self.kv.manager.requests.items():
            words = [told[token] for token in request.token_ids if token < len(told)]
            for table in self.kv.get_block_ids(request_id):
                for column, block_id in enumerate(table):
                    held[block_id] = words[column * size : (column + 1) * size]
        return held

    def _prefill(self, step: Step) -> int:
        """Admit a request and compute its whole prompt. Return its hit in tokens."""
        request = self.kv.manager.new_request(step.request, step.tokens, cache_salt=step.salt)
        num_hits = prefill(self.kv, request)
        if num_hits is None:
            return 0
        self._requests[step.request] = request
        return num_hits

    def _lookup(self, step: Step) -> int:
        """Look up a prompt and return its hit in tokens. Nothing changes."""
        request = self.kv.manager.new_request(step.request, step.tokens, cache_salt=step.salt)
        return self.kv.get_computed_blocks(request)[1]

    def _decode(self, step: Step) -> int:
        """Append output tokens one at a time, each with its slot."""
        request = self._admitted(step.request)
        for token in step.tokens:
            request.append_output_token_ids(token)
            if self.kv.allocate_slots(request, 1) is None:
                raise ValueError(f"no block is left for {step.request}")
            request.num_computed_tokens = request.num_tokens
        return 0

    def _free(self, step: Step) -> int:
        """End a request."""
        self.kv.free(self._admitted(step.request))
        del self._requests[step.request]
        return 0

    def _admitted(self, request_id: str) -> Request:
        """Return the request that a `prefill` has admitted. Raises `UnknownRequestError` if there is none."""
        if request_id not in self._requests:
            raise UnknownRequestError(request_id)
        return self._requests[request_id]

    def _reset(self, step: Step) -> int:
        """Empty the index. Refused while a request holds a block."""
        self.kv.reset_prefix_cache()
        return 0

    def _arrive(self, step: Step) -> int:
        """Add a new request to the waiting queue."""
        request = self.kv.manager.new_request(step.request, step.tokens, cache_salt=step.salt)
        self._scheduler().add_request(request, max_tokens=step.max_tokens, priority=step.priority)
        return 0

    def _step(self, step: Step) -> int:
        """Make the scheduler's next step. Every new token is different, and in no prompt."""
        self._output, _ = run_step(self._scheduler(), partial(self._sample, step))
        return 0

    def _draft(self, step: Step) -> int:
        """Propose tokens. The next step checks them."""
        self._scheduler().update_draft_token_ids(step.request, step.tokens)
        return 0

    def _sample(self, step: Step, output: SchedulerOutput) -> dict[str, list[int]]:
        sampled = sample_ready(
            self._scheduler(),
            output,
            lambda request: FIRST_OUTPUT_TOKEN * (request.arrival + 1) + request.num_tokens,
        )
        if step.tokens:
            drafts = output.scheduled_spec_decode_tokens.get(step.request, [])
            right = takewhile(lambda pair: pair[0] == pair[1], zip(drafts, step.tokens, strict=False))
            num_right = len(list(right))
            sampled[step.request] = list(step.tokens[: num_right + 1])
        return sampled

    def _abort(self, step: Step) -> int:
        """Abort a request."""
        self._scheduler().finish_requests([step.request])
        return 0

    def _scheduler(self) -> Scheduler:
        if self.scheduler is None:
            raise ValueError("this call needs a [scheduler] in the scenario")
        return self.scheduler


FIRST_OUTPUT_TOKEN = 1_000_000
"""Output tokens of a scheduler's steps are larger than this."""


CALLS: dict[str, Callable[[ScenarioPlayer, Step], int]] = {
    "prefill": ScenarioPlayer._prefill,
    "lookup": ScenarioPlayer._lookup,
    "decode": ScenarioPlayer._decode,
    "free": ScenarioPlayer._free,
    "reset": ScenarioPlayer._reset,
    "arrive": ScenarioPlayer._arrive,
    "step": ScenarioPlayer._step,
    "draft": ScenarioPlayer._draft,
    "abort": ScenarioPlayer._abort,
}
"""The calls of steps. Each returns the number of tokens that it found in the cache."""


def _folder() -> Traversable:
    return resources.files("mini_kv.story").joinpath("scenarios")
