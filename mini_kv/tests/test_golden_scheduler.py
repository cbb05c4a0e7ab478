"""mini_kv's scheduler against that of vLLM 0.33: the recorded scenarios played again, every call's state compared.

How the recording is made: dev/recorders/record_scheduler.py. What differs on purpose: course/verify/deviations.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mini_kv_book import recorded

from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.verify.adapters.mini_kv_scheduler import SchedulerAdapter
from mini_kv.course.verify.deviations import UPSTREAM
from mini_kv.course.verify.scenario_language import Call, Scenario, State, parse_numbers
from mini_kv.course.verify.scheduler import (
    LANGUAGE,
    RECORDING,
    Player,
    load_scenarios,
    model_tokens,
)
from mini_kv.dev.recorders.generate_scheduler import generated, scenarios
from mini_kv.dev.recorders.recording import as_json
from mini_kv.dev.recorders.strict import differences
from mini_kv.story.debug import DebugKVCacheManager

ROOT = Path(__file__).parents[2]
SCENARIOS = load_scenarios()
RECORDED: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))


class DebugAdapter(SchedulerAdapter):
    """Checks the ledger of invariants after every call of the manager."""

    def make_scheduler(self, settings: dict[str, Any]) -> Any:
        scheduler = super().make_scheduler(settings)
        return Scheduler(DebugKVCacheManager(scheduler.kv_cache_manager), scheduler.config)


def recorded_changes(scenario: Scenario) -> list[State]:
    """Return the fields that each call changed in vLLM."""
    return [changed for _, changed in RECORDED["scenarios"][scenario.name]["calls"]]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_same_steps_and_the_same_state_after_every_call(scenario: Scenario) -> None:
    """Steps, outputs, running and waiting requests, computed tokens, tables, free order and keys are vLLM's."""
    found = differences(scenario, recorded_changes(scenario), Player(SchedulerAdapter(), scenario.settings).perform)
    assert not found, "\n".join(found)


def test_the_ledger_holds_in_every_scenario() -> None:
    """The same over a manager that checks its invariants after every call: reference counts follow from the tables."""
    for scenario in SCENARIOS:
        player = Player(DebugAdapter(), scenario.settings)
        assert not differences(scenario, recorded_changes(scenario), player.perform)


# The recording.


def test_the_recording_is_of_these_scenarios() -> None:
    """Those in the file, and those that the generator makes again, call by call: else the recording is stale."""
    recorded = RECORDED["scenarios"]
    assert list(recorded) == [scenario.name for scenario in scenarios()], "record again: record_scheduler.py"
    calls = [(scenario, recorded[scenario.name]["calls"]) for scenario in scenarios()]
    for scenario, changes in calls:
        assert [text for text, _ in changes] == [call.text for call in scenario.calls]
    assert as_json(RECORDED["header"], calls, generated()) == RECORDING.read_text(encoding="utf-8")


def test_random_scenarios_are_read_from_the_recording() -> None:
    assert scenarios() == SCENARIOS


def test_what_the_recording_says_of_itself() -> None:
    header = RECORDED["header"]
    assert header["vllm"] in UPSTREAM
    assert header["command"] == "python -m mini_kv.dev.recorders.record_scheduler"
    assert header["scenarios"] == len(SCENARIOS) >= 60
    assert header["calls"] == sum(len(scenario.calls) for scenario in SCENARIOS)


def test_scenarios_are_told_apart() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.purpose.endswith(".") for scenario in SCENARIOS)


def test_random_scenarios_meet_what_is_rare() -> None:
    """They are of use only if requests are preempted, hit, cut, drafted for and aborted in the midst of a step."""
    results = [
        changed["result"]
        for scenario in SCENARIOS
        if scenario.group == "random"
        for _, changed in RECORDED["scenarios"][scenario.name]["calls"]
    ]
    assert sum("preempted" in result for result in results) >= 40
    assert sum(re.search(r"[1-9]\d*\+\d+ new", result) is not None for result in results) >= 200
    assert sum("drafts" in result for result in results) >= 80
    in_midst = [
        call.verb
        for scenario in SCENARIOS
        if scenario.group == "random"
        for before, call in zip(scenario.calls, scenario.calls[1:], strict=False)
        if before.verb == "schedule"
    ]
    assert in_midst.count("abort") >= 40


# The deviations; that scenarios name those that they show, test_golden.py looks at for both recordings.


def test_tokens_are_counted_as_computed_when_they_are() -> None:
    """`computed-in-update`: after `schedule` vLLM's request has 10 computed tokens, mini_kv's none yet."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "one request, one token per step")
    adapter = SchedulerAdapter()
    player = Player(adapter, scenario.settings)
    for call in scenario.calls[:2]:
        player.perform(call)
    assert RECORDED["scenarios"][scenario.name]["calls"][1][1]["computed"] == "A 10/10"
    assert adapter.requests["A"].num_computed_tokens == 0


def test_a_difference_is_told_with_its_place() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "one token and it is done")
    changes = [dict(changed) for changed in recorded_changes(scenario)]
    changes[2]["result"] = "A 911 length"
    assert differences(scenario, changes, Player(SchedulerAdapter(), scenario.settings).perform) == [
        "'one token and it is done', call 3, 'update': result differs\n  expected A 911 length\n  got      A 910 length"
    ]


# A key for KV that no step wrote.


PART = re.compile(r"(\w+) (\d+)\+(\d+)( drafts ([-\d ]+\d))?")
"""What a step says of one request: its id, tokens computed before, tokens to compute, drafts among them."""


class Worker:
    """Believes every step that is recorded, and notes what stands in each slot of a pool with one full group."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[str, list[int]] = {}
        """Each request's prompt, followed by all that the model could ever add."""
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        """The tokens up to and including that of each slot's KV, by block and place in it."""

    def add(self, call: Call) -> None:
        """Note a request's tokens."""
        prompt = parse_numbers(call.numbers)
        self.tokens[call.handle] = prompt + model_tokens(len(prompt), 100)

    def run(self, step: str, tables: str) -> list[str]:
        """Write what the step says; return what it takes for written and is not."""
        blocks = dict(part.split(": ") for part in tables.split("; "))
        missing = []
        for handle, computed, num_new, _, drafts in PART.findall(step):
            end = int(computed) + int(num_new)
            tokens = self.tokens[handle][: end - len(drafts.split())] + [int(draft) for draft in drafts.split()]
            table = parse_numbers(blocks[handle].split())
            for place in range(end):
                slot = table[place // self.block_size], place % self.block_size
                content = tuple(tokens[: place + 1])
                if place >= int(computed):
                    self.slots[slot] = content
                elif self.slots.get(slot) != content:
                    missing.append(f"{handle} reads token {place} from block {slot[0]}")
        return missing


def reads_of_nothing(scenario: Scenario, states: list[State]) -> list[str]:
    """Return what the steps of a played scenario read that was never written."""
    worker = Worker(scenario.settings["block_size"])
    found = []
    for call, state in zip(scenario.calls, states, strict=True):
        if call.verb == "add":
            worker.add(call)
        elif call.verb == "schedule" and state["tables"]:
            found += worker.run(state["result"], state["tables"])
    return found


def recorded_states(scenario: Scenario) -> list[State]:
    """Return vLLM's state after every call."""
    state: State = {}
    return [state := state | changed for changed in recorded_changes(scenario)]


def test_a_key_for_kv_that_no_step_wrote() -> None:
    """The story of `withdraw-promises`, as vLLM played it (its open pull request 43569).

    A decodes. The token that it computes next fills block 3, so the block gets its key while the step is planned. In
    the same step B, more urgent, finds no room: A leaves the step again and gives its blocks back. No worker ever
    computes A's token, but in vLLM the key of block 3 stays. C comes with the same tokens and a question: it hits 12
    tokens, and the last of them is whatever stood in the slot before.
    """
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "a key for KV that no step wrote")
    theirs = recorded_states(scenario)
    player = Player(SchedulerAdapter(), scenario.settings)
    ours = [player.perform(call) for call in scenario.calls]
    planned = [number for number, call in enumerate(scenario.calls) if call.verb == "schedule"]
    taken_out, question = planned[-2:]
    assert [call.text for call in scenario.calls[taken_out:]] == [
        "schedule",
        "update",
        "abort B",
        "add C 0..9 910..911 50 max=12 prio=0",
        "schedule",
        "update",
    ]
    assert theirs[taken_out]["result"] == ours[taken_out]["result"] == "B 12+1 new 4; preempted A"
    assert theirs[taken_out]["keys"] == "- 1 2 6 - 3 4 5 -"
    assert ours[taken_out]["keys"] == "- 1 2 - - 3 4 5 -"
    assert theirs[question]["result"].startswith("C 12+1 ")
    assert ours[question]["result"].startswith("C 8+5 ")
    assert reads_of_nothing(scenario, theirs) == ["C reads token 11 from block 3"]
    assert reads_of_nothing(scenario, ours) == []


def test_no_other_scenario_reads_what_was_not_written() -> None:
    """In all that have one group: neither in vLLM, but for the story above, nor in mini_kv, without exception."""
    theirs = []
    for scenario in SCENARIOS:
        if scenario.settings["groups"]:
            continue
        player = Player(SchedulerAdapter(), scenario.settings)
        assert reads_of_nothing(scenario, [player.perform(call) for call in scenario.calls]) == [], scenario.name
        if reads_of_nothing(scenario, recorded_states(scenario)):
            theirs.append(scenario.name)
    assert theirs == ["a key for KV that no step wrote"]


# The sentence for the README and the table for the book.


def test_the_readme_says_how_much_is_equal() -> None:
    """No more than what is counted from the scenarios that are replayed here."""
    assert recorded.conformance_summary() in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_table_adds_up() -> None:
    """The groups of a part together are the part."""
    rows = [line.strip("| ").replace(",", "").split(" | ") for line in recorded.conformance().splitlines()[2:]]
    parts = [number for number, row in enumerate(rows) if row[0].startswith("**")]
    assert [rows[number][0] for number in parts] == ["**`KVCacheManager`**", "**`Scheduler`**"]
    for first, end in zip(parts, [*parts[1:], len(rows)], strict=True):
        for column in range(1, 6):
            groups = [int(row[column]) for row in rows[first + 1 : end]]
            assert sum(groups) == int(rows[first][column])


# The language of the scenarios.


@pytest.mark.parametrize("line", ["dance A", "step 2 => result: x", "schedule => mood: sour"])
def test_a_line_that_is_none(line: str) -> None:
    with pytest.raises(ValueError):
        LANGUAGE.parse_scenario({"name": "", "group": "", "purpose": "", "calls": line})
