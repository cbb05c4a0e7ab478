"""The timeline: what each request did in each step, and that it is the scheduler's own story."""

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.lessons.timeline import (
    ABSENT,
    AGAIN,
    ANSWER,
    OUT,
    PROMPT,
    WAITS,
    Arrival,
    long_among_short,
    timeline,
    who_runs_next,
)
from mini_kv.policy.admission_strategies import Greedy
from mini_kv.story.scenario import ScenarioPlayer, load_scenario

SIGNS = {ABSENT: " ", WAITS: ".", PROMPT: "P", ANSWER: "a", OUT: "x", AGAIN: "R"}


def drawn(lines):
    return {name: "".join(SIGNS[moment.doing] for moment in line) for name, line in lines.items()}


def waiting_in(step):
    return {request.request_id for request in step.waiting or ()}


def test_the_timeline_tells_the_scenario_s_story():
    """Step by step the same requests with as many tokens, the same one thrown out, the same who wait."""
    lines = who_runs_next()
    played = [step for step in ScenarioPlayer(load_scenario("who-runs-next")).play() if step.scheduled is not None]
    steps = [dict(zip(lines, moments, strict=True)) for moments in zip(*lines.values(), strict=True)]
    ran = [{name: moment.num_tokens for name, moment in step.items() if moment.num_tokens} for step in steps]
    assert ran == [step.scheduled for step in played]
    assert drawn(lines) == {"A": "Paaaaa  ", "B": "PPaxxxaa", "C": "   ...Pa"}
    idle = [{name for name, moment in step.items() if moment.doing in (WAITS, OUT)} for step in steps[:6]]
    assert idle == [waiting_in(step) for step in played[:6]]


def test_what_is_computed_anew_is_told_apart():
    """Both grow until B must go, with 12 tokens computed. It finds 8 again, and computes 4 anew with its 13th."""
    arrivals = [Arrival(1, "A", range(8), 12), Arrival(1, "B", range(100, 106), 8)]
    lines = timeline(arrivals, 8, 4, SchedulerConfig(max_num_batched_tokens=16))
    assert drawn(lines) == {"A": "Paaaaaaaaaaa ", "B": "PaaaaaaxxxxxR"}
    assert sum(moment.num_tokens for moment in lines["B"][:7]) == 12
    assert lines["B"][12] == (AGAIN, 5)


def test_a_prompt_waits_for_a_place_in_the_budget_and_comes_in_pieces():
    """Two tokens per step: A's prompt takes both, and then leaves one."""
    arrivals = [Arrival(1, "A", range(2), 6), Arrival(1, "B", range(100, 104), 2)]
    lines = timeline(arrivals, 20, 4, SchedulerConfig(max_num_batched_tokens=2))
    assert drawn(lines) == {"A": "Paaaaa", "B": ".PPPPa"}


def test_the_pictures_of_notebook_08():
    """First come, first served, and with jumping: what its text and its sentences say."""
    assert drawn(long_among_short()) == {
        "A": "PPaaaaaaaaaaa                 ",
        "B": ".PPaaaaaaaaaaaaa              ",
        "long": " ............PPxRaaaaa        ",
        "C": "  ...............Paaaaaaa     ",
        "D": "    .............PPxxxRaaaaaa ",
        "E": "      ................Paaaaaaa",
        "F": "        ..............PPaaaaa ",
    }
    assert drawn(long_among_short(Greedy(may_jump=True))) == {
        "A": "PPaaaaaaaaaaa               ",
        "B": ".PPaaaaaaaaaaaaa            ",
        "long": " ...................PPPaaaaa",
        "C": "  Paaaaaaa                  ",
        "D": "    PaxxxxRxxRaaaa          ",
        "E": "      ......Paaaaaaa        ",
        "F": "        .....PPxRaaaa       ",
    }
