"""Scenarios that the scheduler plays: what they tell, and what is wrong with those that cannot be played."""

import pytest

from mini_kv.story.figure import story_data
from mini_kv.story.scenario import PlayedStep, ScenarioError, ScenarioPlayer, load_scenario, parse_scenario

HEAD = """
title = "t"
num_blocks = 5
block_size = 4
[scheduler]
max_num_batched_tokens = 4
"""
ARRIVE = '[[step]]\ncall = "arrive"\nrequest = "A"\ntokens = "0..5"\nmax_tokens = 2\nsay = "."\n'
STEP = '[[step]]\ncall = "step"\nsay = "."\n'
ABORT = '[[step]]\ncall = "abort"\nrequest = "A"\nsay = "."\n'


def play(text: str) -> list[PlayedStep]:
    return list(ScenarioPlayer(parse_scenario("test", text)).play())


def test_a_step_tells_who_runs_and_leaves_out_calls_that_changed_nothing():
    played = play(HEAD + ARRIVE + STEP * 4)
    assert [step.lines for step in played] == [
        ["waiting: A"],
        ["step: A 4", "lookup A: hit 0", "allocate A: allocated 1, cached 1"],
        ["step: A 2", "allocate A: allocated 2"],
        ["step: A 1", "free A: freed 2 1"],
        ["step: no request"],
    ]
    assert [step.scheduled for step in played] == [None, {"A": 4}, {"A": 2}, {"A": 1}, {}]


def test_who_waits_is_told_after_every_step():
    played = play(HEAD + ARRIVE + STEP + ABORT)
    assert [[request.request_id for request in step.waiting or ()] for step in played] == [["A"], [], []]
    assert played[2].lines == ["free A: freed 1"]


def test_the_figure_gets_the_waiting_line_with_the_preempted_marked():
    steps = story_data(load_scenario("who-runs-next"))["steps"]
    assert [step["waiting"] for step in steps] == [
        ["A"],
        ["A", "B"],
        [],
        [],
        [],
        ["C"],
        [["B", "preempted"], "C"],
        [["B", "preempted"], "C"],
        [["B", "preempted"], "C"],
        [],
        [],
    ]
    assert steps[2]["scheduled"] == {"A": 11, "B": 3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD.replace("= 4\n[", "= 0\n[") + ARRIVE, "block_size"),
        (HEAD.replace("max_num_batched_tokens", "max_tokens") + ARRIVE, "max_tokens"),
        (HEAD.replace("max_num_batched_tokens = 4", 'policy = "lottery"') + ARRIVE, "lottery"),
        (HEAD.replace("[scheduler]\nmax_num_batched_tokens = 4\n", "") + ARRIVE, "step 1: .* needs a \\[scheduler\\]"),
        (HEAD + ARRIVE + ARRIVE, "test, step 2: .*'A' is in use"),
    ],
)
def test_what_cannot_be_played_is_said_with_the_step(text: str, says: str):
    with pytest.raises((ScenarioError, ValueError), match=says):
        play(text)
