"""Puzzles: a picture, a goal, and calls to reach it. The engine checks whether the goal is reached.

A puzzle is a scenario (see `scenario`) that stops before the interesting part, with a few more keys:

    goal = "Evict block 3 in three calls."
    minutes = 5
    most_calls = 3
    calls = ["prefill B", "free B"]     # what the player may call
    hint = "..."
    picture = ["prefill B"]             # optional: the calls after which its small picture is drawn
    fault = "alone"                     # optional: this cache has a fault, see FAULTS

    [prompts]                           # of the requests that the player may admit; a word is a token
    B = "How do I keep my bread from burning?"

    [[reach]]                           # all goals must hold after the player's calls; see predict.MEASURES
    measure = "named of 3"
    is = false

    [[step]]                            # what has happened already
    ...

If the engine has a fault, `measure = "betrayed"` asks whether a lookup has found more or less than a correct cache.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_hash import HashFunction, RequestBlockHasher
from mini_kv.core.errors import KVCacheError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.token_ids import pack_token_ids
from mini_kv.story.reason import reason, shortfall
from mini_kv.story.scenario import (
    CALLS,
    FIRST_OUTPUT_TOKEN,
    PlayedStep,
    Scenario,
    ScenarioError,
    ScenarioPlayer,
    Step,
    scenario_from,
    word_tokens,
)
from mini_kv.story.step_questions import Answer, measure_step


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The steps so far, the goal, and the calls that the player may make."""

    scenario: Scenario
    goal: str
    minutes: int
    most_calls: int
    calls: tuple[str, ...]
    """The calls that the player may make, such as `prefill B`."""
    prompts: dict[str, tuple[int, ...]]
    reach: tuple[tuple[str, Answer], ...]
    """Measures, and the required value of each."""
    hint: str
    picture: tuple[str, ...] = ()
    """The calls after which the small picture is drawn."""
    fault: str | None = None

    @property
    def name(self) -> str:
        """Its name, as `mini-kv puzzle` takes it."""
        return self.scenario.name

    @property
    def all_prompts(self) -> dict[str, tuple[int, ...]]:
        """The prompts by request: of the requests so far, and of those that the player may admit."""
        return {step.request: step.tokens for step in self.scenario.steps if step.tokens} | self.prompts

    def in_blocks(self, tokens: Sequence[int]) -> list[list[str]]:
        """Return a prompt's words, a list per block."""
        size = self.scenario.block_size
        words = [self.scenario.words[token] for token in tokens]
        return [words[start : start + size] for start in range(0, len(words), size)]


@dataclass(frozen=True, slots=True)
class Strip:
    """A request's prompt over the cache: its words block by block, and the blocks that the cache has."""

    request: str
    blocks: list[list[str]]
    """The words, a list per block."""
    block_ids: list[int]
    """Ids of their blocks: those of its table, or, if it holds none, those that its last lookup found."""
    num_found: int
    """Number of these blocks that its last lookup found."""
    differs_at: int | None
    """Number of the first word that differs from every earlier prompt, or `None` if no word does."""
    differs_from: str
    """The request whose prompt is equal up to this word. Empty if no word differs."""


def puzzle_names() -> list[str]:
    """Return the names of the puzzles, the easiest first."""
    found = [(load_puzzle(entry.name.removesuffix(".toml")), entry.name) for entry in _folder().iterdir()]
    return [puzzle.name for puzzle, _ in sorted(found, key=lambda one: (one[0].minutes, one[0].most_calls, one[1]))]


def load_puzzle(name: str) -> Puzzle:
    """Return the puzzle with this name, one of `puzzle_names`. Raises `ScenarioError` if it cannot be played."""
    return parse_puzzle(name, _folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def parse_puzzle(name: str, text: str) -> Puzzle:
    """Return the puzzle that the TOML text describes. Raises `ScenarioError` for anything that cannot be played."""
    try:
        values = tomllib.loads(text)
        own = {key: values.pop(key) for key in ("goal", "minutes", "most_calls", "calls", "hint", "reach")}
        words: dict[str, int] = {}
        prompts = {request: word_tokens(text, words) for request, text in values.pop("prompts", {}).items()}
        picture, fault = values.pop("picture", ()), values.pop("fault", None)
    except (ValueError, KeyError) as error:
        raise ScenarioError(f"{name}: {error}") from error
    unknown = [call for call in own["calls"] if call.split()[0] not in CALLS]
    if unknown or fault not in (None, *FAULTS):
        raise ScenarioError(f"{name}: there is no {(unknown or [fault])[0]!r}")
    return Puzzle(
        scenario=scenario_from(name, values, words),
        goal=own["goal"],
        minutes=own["minutes"],
        most_calls=own["most_calls"],
        calls=tuple(own["calls"]),
        prompts=prompts,
        reach=tuple((one["measure"], one["is"]) for one in own["reach"]),
        hint=" ".join(own["hint"].split()),
        picture=tuple(picture),
        fault=fault,
    )


class PuzzlePlayer:
    """A puzzle that is being played: the cache after the player's calls."""

    def __init__(self, puzzle: Puzzle) -> None:
        """Play the steps so far."""
        self.puzzle = puzzle
        self.calls: list[str] = []
        """The player's calls so far."""
        self._begin()

    def _begin(self) -> None:
        """Play the steps so far, on this cache and on one without the fault."""
        scenario, fault = self.puzzle.scenario, self.puzzle.fault
        self._player = ScenarioPlayer(scenario, FAULTS[fault] if fault is not None else None)
        self._right: ScenarioPlayer | None = ScenarioPlayer(scenario)
        self.before = list(self._player.play())
        for _ in self._right.play():
            pass
        self.made: list[PlayedStep] = []
        self.betrayed = False
        """Whether a lookup has found more or less than in a cache without the fault."""

    @property
    def is_solved(self) -> bool:
        """Whether the goal is reached now."""
        return bool(self.made) and not self.unmet()

    def unmet(self) -> list[str]:
        """Return a sentence for each measure that differs from the goal, with its value and the wanted value."""
        measured = [(name, self.measure(name), wanted) for name, wanted in self.puzzle.reach]
        return [shortfall(name, is_now, wanted) for name, is_now, wanted in measured if is_now != wanted]

    def reason(self) -> str:
        """Return the effect of the last call, and the rule of the cache that caused it."""
        frame_before = [*self.before, *self.made][-2].frame
        return reason(self.made[-1], frame_before, self.puzzle.scenario.block_size)

    def strips(self) -> list[Strip]:
        """Return every request's prompt over the cache now."""
        found, came = self._found_and_came()
        tables = [*self.before, *self.made][-1].frame.tables
        strips = []
        for request, tokens in self.puzzle.all_prompts.items():
            ids = found.get(request, [])
            differs_at, differs_from = _first_difference(tokens, came)
            blocks = self.puzzle.in_blocks(tokens)
            table = tables[request][0] if request in tables else ids
            strips.append(Strip(request, blocks, table[: len(blocks)], len(ids), differs_at, differs_from))
        return strips

    def _found_and_came(self) -> tuple[dict[str, list[int]], dict[str, tuple[int, ...]]]:
        """Return the blocks that each request's last lookup found, and the prompts that were computed."""
        found: dict[str, list[int]] = {}
        came: dict[str, tuple[int, ...]] = {}
        for played in (*self.before, *self.made):
            step = played.step
            if step.call == "free":
                found.pop(step.request, None)
            for span in played.spans:
                if span.call == "get_computed_blocks":
                    found[step.request] = span.found or []
                elif span.call == "allocate_slots" and span.result is not None and step.call == "prefill":
                    came[step.request] = step.tokens
        return found, came

    def measure(self, name: str) -> Answer:
        """Return the value of a measure after all calls so far."""
        if name == "betrayed":
            return self.betrayed
        return measure_step(name, [span for played in self.made for span in played.spans], self.made[-1].frame)

    def call(self, text: str) -> PlayedStep:
        """Make one of the puzzle's calls. If it cannot be made now, raise `ValueError` and change nothing."""
        try:
            played = self._make(text)
        except (KVCacheError, KeyError, ValueError) as error:
            self._begin()
            for made in self.calls:
                self._make(made)
            raise ValueError(f"{text} is not possible now ({error})") from error
        self.calls.append(text)
        return played

    def _make(self, text: str) -> PlayedStep:
        verb, _, request = text.partition(" ")
        tokens = self.puzzle.prompts.get(request, ())
        if verb == "decode":
            tokens = (FIRST_OUTPUT_TOKEN + len(self.made),)
        step = Step(verb, "", (), request, tokens)
        played = self._player.make(step)
        self.made.append(played)
        if self._right is not None and self._right.make(step).num_hits != played.num_hits:
            self.betrayed = True
            self._right = None  # from here on the two have different things to do
        return played


def _first_difference(tokens: Sequence[int], came: dict[str, tuple[int, ...]]) -> tuple[int | None, str]:
    """Return the number of the first word that differs from all these prompts, and the prompt with all words before it.

    >>> _first_difference((0, 1, 2, 3), {"A": (0, 9, 2), "B": (0, 1, 7)})
    (2, 'B')
    """
    if not came:
        return None, ""
    same = {request: _num_same(tokens, other) for request, other in came.items()}
    nearest = max(same, key=lambda request: same[request])
    return (same[nearest], nearest) if same[nearest] < len(tokens) else (None, "")


def _num_same(tokens: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal tokens from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, other, strict=False)))


def solves(puzzle: Puzzle, calls: Sequence[str]) -> bool:
    """Return whether these calls are all possible and reach the goal."""
    player = PuzzlePlayer(puzzle)
    try:
        for call in calls:
            player.call(call)
    except ValueError:
        return False
    return player.is_solved


# Caches with something wrong in them, for puzzles that ask what. ---------------------------------------------------


def _blocks_alone(block_size: int, hash_function: HashFunction, *_: object) -> RequestBlockHasher:
    """Return a hasher that uses only a block's own tokens, not the tokens before it."""

    def hash_blocks(request: Request) -> list[BlockHash]:
        numbers = range(len(request.block_hashes), request.num_tokens // block_size)
        blocks = [request.token_ids[number * block_size : (number + 1) * block_size] for number in numbers]
        return [BlockHash(hash_function(pack_token_ids(tokens))) for tokens in blocks]

    return hash_blocks


class _LastOutFirstIn(FreeKVCacheBlockQueue):
    """The block that was freed last is reused first, cached or not."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.prepend_n(blocks)


FAULTS = {
    "alone": KVCacheParts(make_block_hasher=_blocks_alone),
    "front": KVCacheParts(make_queue=_LastOutFirstIn),
}
"""The parts of each faulty cache."""


def _folder() -> Traversable:
    return resources.files("mini_kv.story").joinpath("puzzles")
