"""mini_kv against vLLM 0.33: the recorded scenarios played again, every call's whole state compared.

How the recording is made: dev/recorders/record.py. What differs on purpose: course/verify/deviations.py.
"""

import json
import re
from typing import Any

import pytest

from mini_kv.course.verify import scheduler
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.deviations import DEVIATIONS, UPSTREAM, as_markdown
from mini_kv.course.verify.manager import LANGUAGE, RECORDING, Player, load_scenarios
from mini_kv.course.verify.scenario_language import Scenario, format_numbers, parse_numbers
from mini_kv.dev.recorders import strict
from mini_kv.dev.recorders.generate import generated, scenarios
from mini_kv.dev.recorders.recording import as_json
from mini_kv.story.debug import DebugKVCacheManager

SCENARIOS = load_scenarios()
RECORDED: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))

NOT_IN_A_TRACE = {
    "admission-policies",
    "chunking-off",
    "chunks-checked",
    "computed-in-update",
    "dense-retention",
    "draft-draws",
    "drafter-retention",
    "fewer-specs",
    "fork",
    "hash-lookahead",
    "hash-recipe",
    "hash-seed",
    "hybrid-switch",
    "key-namespace",
    "lookup-alone",
    "lookup-pair",
    "names",
    "no-skip-reading",
    "one-key",
    "plan-null-block",
    "plan-one-type",
    "plan-packed",
    "plan-states",
    "pool-of-one",
    "ready-hashes",
    "results-checked",
    "scheduler-without",
    "step-undone",
    "window-bound",
}
"""Deviations that no call of a scenario can show: other signatures and names, other bytes, what is not built."""


class DebugAdapter(ManagerAdapter):
    """Checks the ledger of invariants after every call."""

    def make_manager(self, settings: dict[str, Any]) -> Any:
        return DebugKVCacheManager(super().make_manager(settings))


def differences(scenario: Scenario, recorded: dict[str, Any], adapter: ManagerAdapter) -> list[str]:
    """Return what differs between the recording and mini_kv, apart from what the scenario says; stops at a call."""
    changes = [changed for _, changed in recorded["calls"]]
    return strict.differences(scenario, changes, Player(adapter, scenario.settings).perform)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_same_state_after_every_call(scenario: Scenario) -> None:
    """Result, tables, references, free order, keys, who answers, usage and statistics are vLLM's."""
    found = differences(scenario, RECORDED["scenarios"][scenario.name], ManagerAdapter())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_ledger_holds_in_every_scenario(scenario: Scenario) -> None:
    """The same under the manager that checks its invariants after every call."""
    found = differences(scenario, RECORDED["scenarios"][scenario.name], DebugAdapter())
    assert not found, "\n".join(found)


def test_the_recording_is_of_these_scenarios() -> None:
    """Those in the files, and those that the generator makes again, call by call: else the recording is stale."""
    recorded = RECORDED["scenarios"]
    assert list(recorded) == [scenario.name for scenario in scenarios()], "record again: dev/recorders/record.py"
    calls = [(scenario, recorded[scenario.name]["calls"]) for scenario in scenarios()]
    for scenario, changes in calls:
        assert [text for text, _ in changes] == [call.text for call in scenario.calls]
    assert as_json(RECORDED["header"], calls, generated()) == RECORDING.read_text(encoding="utf-8")


def test_random_scenarios_are_read_from_the_recording() -> None:
    assert scenarios() == SCENARIOS


def test_what_the_recording_says_of_itself() -> None:
    header = RECORDED["header"]
    assert header["vllm"] in UPSTREAM
    assert header["command"] == "python -m mini_kv.dev.recorders.record"
    assert header["scenarios"] == len(SCENARIOS) >= 40
    assert header["calls"] == sum(len(scenario.calls) for scenario in SCENARIOS)


def test_scenarios_are_told_apart() -> None:
    """Names are unique, purposes are sentences, and a few scenarios are long."""
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.purpose.endswith(".") for scenario in SCENARIOS)
    assert sum(len(scenario.calls) >= 60 for scenario in SCENARIOS) >= 5


def test_random_scenarios_meet_what_is_rare() -> None:
    """They are of use only if requests are refused, hit, preempted and evicted in them."""
    calls = [
        (call.verb, changed["result"])
        for scenario in SCENARIOS
        if scenario.group == "random"
        for call, (_, changed) in zip(scenario.calls, RECORDED["scenarios"][scenario.name]["calls"], strict=True)
    ]
    assert sum(result == "refused" for verb, result in calls if verb == "allocate") >= 20
    assert sum(result != "hit 0" for verb, result in calls if verb == "lookup") >= 40
    assert sum(verb == "preempt" for verb, _ in calls) >= 20


# The scenarios can fail: a scenario that says nothing of a difference, and one that says too much.


def changed_recording(name: str, number: int, **fields: str) -> tuple[Scenario, dict[str, Any]]:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    calls = [[text, dict(changed)] for text, changed in RECORDED["scenarios"][name]["calls"]]
    calls[number - 1][1] |= fields
    return scenario, {"calls": calls}


def test_a_difference_is_told_with_its_place() -> None:
    scenario, recorded = changed_recording("cold, less than a block", 3, free="3..9 2")
    assert differences(scenario, recorded, ManagerAdapter()) == [
        "'cold, less than a block', call 3, 'allocate A rest hit=pass': free differs\n"
        "  expected 3..9 2\n  got      2..9"
    ]


def test_a_deviation_that_is_gone_is_told() -> None:
    scenario, recorded = changed_recording(
        "free a request that was never let in", 2, result="error UnknownRequestError"
    )
    (found,) = differences(scenario, recorded, ManagerAdapter())
    assert "does not differ from vLLM any more" in found


def test_an_unchanged_state_must_be_a_difference() -> None:
    scenario, recorded = changed_recording("a block is freed twice", 6)
    recorded["calls"][5][1] = {"result": "ok"}
    (found,) = differences(scenario, recorded, ManagerAdapter())
    assert "does not change any more either" in found


# The list of deviations.


def test_scenarios_name_the_deviations_that_they_show() -> None:
    """A call that differs belongs to a scenario that says why; every deviation is shown or is of another kind."""
    scenarios = [*SCENARIOS, *scheduler.load_scenarios()]
    for scenario in scenarios:
        differs = any(call.differs or call.unchanged for call in scenario.calls)
        assert differs == bool(scenario.deviations), scenario.name
    shown = {deviation for scenario in scenarios for deviation in scenario.deviations}
    listed = {deviation.deviation_id for deviation in DEVIATIONS}
    assert shown | NOT_IN_A_TRACE == listed
    assert not shown & NOT_IN_A_TRACE


def test_deviations_are_well_formed() -> None:
    assert len({deviation.deviation_id for deviation in DEVIATIONS}) == len(DEVIATIONS)
    for deviation in DEVIATIONS:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", deviation.deviation_id)
        for text in (deviation.symbol, deviation.vllm, deviation.mini_kv, deviation.why):
            assert text == text.strip() != ""
            assert "|" not in text
            assert "\n" not in text


def test_the_table_for_the_book() -> None:
    """A head, a rule, and five cells a deviation."""
    head, rule, *rows = as_markdown().splitlines()
    assert UPSTREAM in head
    assert set(rule) == {"|", "-"}
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [d.deviation_id for d in DEVIATIONS]
    assert all(row.count("|") == 6 for row in (head, rule, *rows))


# The language of the scenarios.


def test_runs_of_numbers() -> None:
    for text in ("", "3", "3 4", "1..3", "7 1..3 9 10", "5 4 3..6"):
        assert format_numbers(parse_numbers(text.split())) == text


@pytest.mark.parametrize("line", ["dance A", "prefill A 0..3 => result: x", "free A => mood: sour"])
def test_a_line_that_is_none(line: str) -> None:
    with pytest.raises(ValueError):
        LANGUAGE.parse_scenario({"name": "", "group": "", "purpose": "", "calls": line})


def test_a_setting_that_is_none() -> None:
    with pytest.raises(ValueError):
        LANGUAGE.parse_scenario({"name": "", "group": "", "purpose": "", "calls": "", "num_block": 3})
