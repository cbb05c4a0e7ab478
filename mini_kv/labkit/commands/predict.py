"""`mini-kv predict LAB`: the lab's questions, to be answered before you run it."""

import argparse
import re
import sys
from typing import Any, TextIO

from mini_kv.labkit.commands import add_lab_argument, on_lab
from mini_kv.labkit.lab import Lab
from mini_kv.labkit.state import State, update_state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the lab."""
    add_lab_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Ask; return the exit status."""
    return on_lab(args, lambda lab: ask_predictions(lab, sys.stdout, sys.stdin))


def ask_predictions(lab: Lab, out: TextIO, answers: TextIO) -> int:
    """Ask the lab's questions one by one; say what would have had to be true for a wrong answer."""
    questions = lab.course_file("predict.toml")["question"]
    given: State = {}
    try:
        for number, question in enumerate(questions, start=1):
            out.write(f"\n[{number}/{len(questions)}] {question['ask']}\n> ")
            out.flush()
            answer = answers.readline()
            if not answer:
                out.write("\n")
                break
            right = _plain(answer) == _plain(question["answer"])
            given[f"{lab.lab_id} {question['id']}"] = {"answer": answer.strip(), "right": right}
            out.write(_reply(question, answer, right))
    finally:  # whatever was answered before Ctrl-C counts
        if given:
            update_state(lab.state, "predictions", lambda state: state.update(given))
    return 0


def _reply(question: dict[str, Any], answer: str, right: bool) -> str:
    """Return what is said to an answer: why it is right, or what would have had to be true."""
    if right:
        return f"Yes: {question['answer']}. {question['why']}\n"
    supposed = {_plain(wrong): reason for wrong, reason in question.get("wrong", {}).items()}.get(_plain(answer))
    no = "" if supposed is None else f"No. {supposed}\n"
    return f"{no}It is {question['answer']}. {question['why']}\n"


def _plain(answer: str) -> str:
    """Return the answer without what does not matter: case, spaces, commas, brackets, a unit or a percent sign."""
    return " ".join(re.sub(r"[\[\](),%]|tokens?|blocks?|percent", " ", answer.lower()).split())
