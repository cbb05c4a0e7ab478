"""Plays scenarios on a program and compares every state with vLLM's: equal, as listed, or different."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mini_kv.course.verify import manager, scheduler
from mini_kv.course.verify.program import Program, ProgramError
from mini_kv.course.verify.scenario_language import Call, Scenario, State, load_recording


class Player(Protocol):
    """Plays the calls of one scenario."""

    @property
    def skipped(self) -> str:
        """Why the program does not play the scenario."""
        ...

    def perform(self, call: Call) -> State:
        """Make one call and return the state after it, in words."""
        ...


class Part(NamedTuple):
    """What was recorded of vLLM, and who plays it."""

    name: str
    make_player: Callable[[Program, dict[str, Any]], Player]
    load_scenarios: Callable[[], list[Scenario]]
    recording: Path
    needs: Callable[[Scenario], list[str]]


PARTS = (
    Part("manager", manager.Player, manager.load_scenarios, manager.RECORDING, manager.needs),
    Part("scheduler", scheduler.Player, scheduler.load_scenarios, scheduler.RECORDING, lambda _: ["scheduler"]),
)


class Recorded(NamedTuple):
    """A scenario and what vLLM showed."""

    part: Part
    scenario: Scenario
    changes: Sequence[State]
    """The fields that each call changed, its result among them."""


def recording(part: Part) -> dict[str, Any]:
    """Return the recording of a part."""
    return load_recording(part.recording)


def recorded_scenarios(parts: Sequence[Part] = PARTS) -> list[Recorded]:
    """Return the scenarios of these parts with what vLLM showed, the manager's first."""
    return [
        Recorded(part, scenario, [changed for _, changed in recording(part)["scenarios"][scenario.name]["calls"]])
        for part in parts
        for scenario in part.load_scenarios()
    ]


class Verdict(Enum):
    """How a scenario ended."""

    EQUAL = "equal"
    LISTED = "as listed"
    """Equal, but for calls in which it differs from vLLM as mini_kv does, on purpose."""
    DIFFERS = "differs"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario."""

    recorded: Recorded
    verdict: Verdict
    num_equal: int = 0
    """Calls after which all that the program shows is as expected."""
    num_listed: int = 0
    """Those among them that are equal to mini_kv's state and not to vLLM's."""
    reason: str = ""
    """Why it was skipped, or why there is no reply."""
    wanted: State | None = None
    """vLLM's state after the call that differs."""
    got: State | None = None
    """The program's state after that call."""
    not_shown: tuple[str, ...] = ()
    """The fields that the program does not show, so that they are not compared."""

    @property
    def call(self) -> Call:
        """The call that differs."""
        return self.recorded.scenario.calls[self.num_equal]

    @property
    def fields(self) -> list[str]:
        """The fields that differ."""
        if self.wanted is None or self.got is None:
            return []
        return [field for field in self.got if not matches(field, self.wanted[field], self.got[field])]


def play(recorded: Recorded, program: Program) -> Outcome:
    """Play a scenario on a program, up to the first call that differs."""
    got: State = {}
    theirs: State = {}
    num_equal = num_listed = 0
    try:
        asked = recorded.scenario.settings | {"needs": recorded.part.needs(recorded.scenario)}
        player = recorded.part.make_player(program, asked)
        for call, changed in zip(recorded.scenario.calls, recorded.changes, strict=True):
            before, theirs = got, theirs | changed
            got = {} if player.skipped else player.perform(call)
            if player.skipped:
                return Outcome(recorded, Verdict.SKIPPED, num_equal, num_listed, player.skipped)
            if not agrees(got, theirs):
                if not agrees(got, listed_state(call, theirs, before)):
                    not_shown = tuple(theirs.keys() - got.keys())
                    return Outcome(recorded, Verdict.DIFFERS, num_equal, num_listed, "", theirs, got, not_shown)
                num_listed += 1
            num_equal += 1
    except ProgramError as error:
        return Outcome(recorded, Verdict.DIFFERS, num_equal, num_listed, str(error))
    verdict = Verdict.LISTED if num_listed else Verdict.EQUAL
    return Outcome(recorded, verdict, num_equal, num_listed, not_shown=tuple(theirs.keys() - got.keys()))


def listed_state(call: Call, theirs: State, before: State) -> State:
    """Return mini_kv's state after a call, from vLLM's and from mini_kv's before: it may differ where the call says."""
    kept = {field: before[field] for field in before if field != "result"} if call.unchanged else {}
    return theirs | kept | dict(call.differs)


def agrees(got: State, wanted: State) -> bool:
    """Return whether all that the program shows is as wanted."""
    return all(matches(field, wanted[field], value) for field, value in got.items())


def matches(field: str, wanted: str, got: str) -> bool:
    """Return whether a field is as wanted. Every engine has errors of its own, and some show no new blocks."""
    if field == "result" and got.startswith("error "):
        return wanted.startswith("error ")
    if field == "result" and got.endswith(" ?"):
        return f"{wanted}:".startswith(got[:-2])
    return got == wanted


CORE = ("cold", "hits", "sharing", "freeing", "eviction", "refusal")
"""The topics of the challenge. One group of full attention and six messages are enough."""
EXTRAS = ("caching-off", "salts", "windows", "groups")
"""The topics that its contract has sentences for, beside these."""
TOPICS: Mapping[str, tuple[str, Sequence[str]]] = {
    **{topic: ("manager", (topic,)) for topic in (*CORE, *EXTRAS)},
    **{topic: ("manager", (topic,)) for topic in ("preempt", "evict", "lookahead", "admission", "random", "misuse")},
    "steps": ("scheduler", ("steps", "never", "room", "hits", "chunking off", "thresholds")),
    "preemption": ("scheduler", ("preemption", "priority", "aborts")),
    "drafts": ("scheduler", ("lookahead", "drafts")),
    "hybrid-steps": ("scheduler", ("groups", "states", "retention")),
    "random-steps": ("scheduler", ("random",)),
}
"""The topics of `--only`: the part, and its groups of scenarios."""


def topic_of(recorded: Recorded) -> str:
    """Return the topic of a scenario."""
    name, group = recorded.part.name, recorded.scenario.group
    return next(topic for topic, (part, groups) in TOPICS.items() if part == name and group in groups)
