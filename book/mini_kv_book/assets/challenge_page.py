"""Plays the challenge's scenarios on the reader's cache in the page, in Python or in JavaScript.

`kv_lab_worker.js` loads this file into Pyodide and calls `run`.
"""

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_kv.course.given.contract import draw
from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.verify.board import sign, squares, why_not_green
from mini_kv.course.verify.compare import Outcome, Verdict, play
from mini_kv.course.verify.diagnosis import sentence_of
from mini_kv.course.verify.program import Called, Message, ProgramError
from mini_kv.course.verify.verdict_report import NOTATION, difference, known_fault

_VARIANT = draw(load_course(Path()).challenge)
_SQUARES = squares(_VARIANT)


def run(language: str, text: str, say: Callable[[str, str], None]) -> str:
    """Return as JSON a row per topic with its squares, and the first square that is not green.

    Args:
        language: `python` or `javascript`.
        text: the reader's file. It has a function `answer`.
        say: is told of each square before and after it.
    """
    try:
        answer = _guarded(_python if language == "python" else _javascript)(text)
    except ProgramError as error:
        return json.dumps({"error": str(error)})
    answer = _guarded(answer)
    rows, first = [], None
    for topic, of_topic in _SQUARES.items():
        row = []
        for recorded in of_topic:
            say(recorded.scenario.name, "")
            outcome = play(recorded, Called(answer))
            row.append({"name": recorded.scenario.name, "sign": sign(outcome)})
            say(recorded.scenario.name, sign(outcome))
            first = first or (None if sign(outcome) == "#" else outcome)
        rows.append({"topic": topic, "squares": row})
    return json.dumps({"rows": rows, "first": _told(first) if first is not None else None})


def _told(outcome: Outcome) -> dict[str, Any]:
    """Return what the page says about a square that is not green."""
    number = sentence_of(outcome)
    calls, *sides = "\n".join([*difference(outcome, _VARIANT)][2:]).split("\n\n")
    drawn = [calls, *sides[: 0 if outcome.reason else 1], "\n".join(NOTATION)]  # the rest of it is told below
    return {
        "sign": sign(outcome),
        "name": outcome.recorded.scenario.name,
        "purpose": outcome.recorded.scenario.purpose,
        "reason": why_not_green(outcome) if sign(outcome) == "." else outcome.reason,
        "drawn": "\n\n".join(drawn) if outcome.verdict is Verdict.DIFFERS else "",
        "number": number,
        "sentence": _VARIANT.sentences[number - 1] if number else "",
        "fault": known_fault(outcome),
    }


def _python(text: str) -> Callable[[Message], Any]:
    """Return the function `answer` of a file in Python."""
    names: dict[str, Any] = {"__name__": "answer"}
    exec(compile(text, "answer.py", "exec"), names)
    if not callable(names.get("answer")):
        raise ProgramError("the file has no function `answer`")
    return names["answer"]  # type: ignore[no-any-return]


def _javascript(text: str) -> Callable[[Message], Any]:
    """Return the function `answer` of a file in JavaScript."""
    from pyodide.code import run_js  # type: ignore[import-not-found]  # only in a page

    called = "return (line) => JSON.stringify(answer(JSON.parse(line)) ?? null)"
    answer = run_js(f"(() => {{ {text}\n; {called}; }})() //# sourceURL=answer.js")
    return lambda message: json.loads(answer(json.dumps(message)))


def _guarded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function, which raises `ProgramError` for whatever the reader's code raises."""

    def guarded(asked: Any) -> Any:
        try:
            return function(asked)
        except (Exception, SystemExit) as error:
            raise ProgramError(_in_words(error)) from None

    return guarded


def _in_words(error: BaseException) -> str:
    """Return an error of the reader's file and its line."""
    if stack := getattr(error, "stack", ""):  # of JavaScript. A syntax error has no line
        line, what = next(iter(re.findall(r"answer\.js:(\d+)", stack)), None), str(error)
        return f"{what} (line {line})" if line else what
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "answer.py"]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    what = said if isinstance(error, ProgramError) else f"{type(error).__name__}: {said}".removesuffix(": ")
    return f"{what} (line {line})" if line else what
