"""What lab-17 needs: it plays a topic's scenarios on the learner's `answer`, up to the first difference."""

from itertools import chain
from pathlib import Path

from mini_kv.course import todo
from mini_kv.course.given.contract import draw
from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.verify.board import is_green, squares, why_not_green
from mini_kv.course.verify.compare import Outcome, Verdict, play
from mini_kv.course.verify.diagnosis import sentence_of, state_before
from mini_kv.course.verify.program import Called
from mini_kv.course.verify.verdict_report import LABELS, known_fault

VARIANT = draw(load_course(Path(__file__).parents[2]).challenge)
SQUARES = squares(VARIANT)


def check_topic(lab: LabUnderTest, topic: str) -> None:
    """Play the topic's scenarios, and fail at the first call after which a state differs from the recorded one.

    A topic that the learner's cache skips is still to do. In a class with a variant of the contract the extras have no
    scenarios of their own: they play all others.
    """
    for recorded in SQUARES.get(topic) or chain(*SQUARES.values()):
        outcome = play(recorded, Called(lab.answer))
        if outcome.verdict is Verdict.SKIPPED:
            todo("lab-17", "answer", f"the cache skips {topic}: {outcome.reason}")
        if outcome.verdict is Verdict.DIFFERS or not is_green(outcome):
            _fail(lab, topic, outcome)


def _fail(lab: LabUnderTest, topic: str, outcome: Outcome) -> None:
    scenario = outcome.recorded.scenario
    if outcome.reason:
        call = f"{topic}, {scenario.name!r}, call {outcome.num_equal + 1}: {outcome.call.text}"
        lab.fail(f"the reply to {call}", "a reply of the protocol", outcome.reason)
    if outcome.wanted is None or outcome.got is None:
        lab.fail("every reply shows tables, free and hashes", "all three", why_not_green(outcome))
    calls = [call.text for call in scenario.calls[max(0, outcome.num_equal - 5) : outcome.num_equal]]
    before = state_before(outcome)
    want, got = ({LABELS[field]: side[field] for field in outcome.fields} for side in (outcome.wanted, outcome.got))
    shown = f"tables {before['tables'] or '-'}, free queue {before['free'] or '-'}"
    picture = [f"calls     {'; '.join(calls)}", f"before    {shown}"]
    size = f"{scenario.settings['num_blocks']} blocks of {scenario.settings['block_size']}"
    what = f"{topic}, {scenario.name!r} ({size}), call {outcome.num_equal + 1}: {outcome.call.text}"
    lab.fail(what, want, got, known_fault(outcome), picture, rule=sentence_of(outcome))
