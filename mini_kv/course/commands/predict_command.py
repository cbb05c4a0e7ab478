"""`mini-kv predict LAB`: the lab's questions, to be answered before you run it."""

import argparse
import sys
from typing import TextIO

from mini_kv.course.commands import add_lab_argument, on_lab
from mini_kv.course.labkit.lab import Lab, Prediction
from mini_kv.course.labkit.learner_state import State, read_state, update_state
from mini_kv.course.labkit.spelling import is_right, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab."""
    add_lab_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the questions and return the exit status."""
    return on_lab(args, lambda lab: ask_predictions(lab, sys.stdout, sys.stdin))


def ask_predictions(lab: Lab, out: TextIO, answers: TextIO) -> int:
    """Ask the lab's questions one by one. For a wrong answer print the condition under which it would be right."""
    questions = lab.predictions
    given: State = {}
    try:
        for number, question in enumerate(questions, start=1):
            out.write(f"\n[{number}/{len(questions)}] {question.ask}\n> ")
            answer = _take_answer(lab, question, out, answers, given)
            if answer is None:
                break
            out.write(_reply(question, answer))
    finally:  # whatever was answered before Ctrl-C counts
        _keep(lab, given)
    return 0


def ask_next(lab: Lab, out: TextIO, answers: TextIO) -> None:
    """Ask the first new question about a test that has not passed. An empty line skips it permanently."""
    asked = read_state(lab.state, "predictions")
    states = read_state(lab.state, "progress").get(lab.lab_id, {"tests": {}})["tests"]
    for question in lab.predictions:
        if _key(lab, question) not in asked and states.get(question.test) != "pass":
            given: State = {}
            out.write(f"Before you look: {question.ask}\n(Enter skips) > ")
            answer = _take_answer(lab, question, out, answers, given)
            if answer:
                out.write(_reply(question, answer))
            _keep(lab, given)
            return


def _take_answer(lab: Lab, question: Prediction, out: TextIO, answers: TextIO, given: State) -> str | None:
    """Read an answer, note it in `given` and return it, or return `None` at the end of input."""
    out.flush()
    line = answers.readline()
    if not line:
        out.write("\n")
        return None
    answer = line.strip()
    given[_key(lab, question)] = {"answer": answer, "right": is_right(question, answer)}
    return answer


def _keep(lab: Lab, given: State) -> None:
    if given:
        update_state(lab.state, "predictions", lambda state: state.update(given))


def _key(lab: Lab, question: Prediction) -> str:
    return f"{lab.lab_id} {question.id}"


def _reply(question: Prediction, answer: str) -> str:
    """Return the feedback for an answer: its reason, or the condition under which it would be right."""
    if is_right(question, answer):
        return f"Yes: {question.answer}. {question.why}\n"
    supposed = {plain(wrong): reason for wrong, reason in question.wrong.items()}.get(plain(answer))
    no = "No. " if supposed is None else f"No. {supposed}\n"
    return f"{no}It is {question.answer}. {question.why}\n"
