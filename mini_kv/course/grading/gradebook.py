"""Marks kept in a folder, and the gradebook made from them: a CSV and a page."""

import csv
import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mini_kv.course.grading.grade import TO_REVIEW, Mark
from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.learner_state import write_whole
from mini_kv.course.labkit.scoreboard import State

FILE = "marks.json"
MAX_SHOWN = 200
"""The most characters of a message in the gradebook."""
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters of formulas in a spreadsheet. In some languages the wide characters also begin a formula."""


def save(folder: Path, marks: Sequence[Mark], labs: Sequence[Lab]) -> None:
    """Write the marks to the folder, for `mini-kv class book`."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"version": 1, "labs": {lab.lab_id: lab.title for lab in labs}, "marks": [asdict(mark) for mark in marks]}
    write_whole(folder / FILE, json.dumps(told, indent=1) + "\n")


def load(folder: Path) -> tuple[dict[str, str], list[Mark]]:
    """Return the labs' titles and the marks. Raises `ValueError` if `mini-kv class grade` has not written them."""
    try:
        told = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return dict(told["labs"]), [Mark(**mark) for mark in told["marks"]]
    except OSError as error:
        raise ValueError(f"{folder / FILE} cannot be read: {error.strerror}. mini-kv class grade writes it") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / FILE} is not a file of mini-kv class grade: {error}") from None


def as_csv(marks: Sequence[Mark]) -> str:
    """Return a row per student and lab."""
    columns = ["student", "lab", "status", "score", "points", "foreseen", "asked", "hints", "runs", "seconds", "why"]
    rows = [asdict(mark) | mark.page | {"why": "; ".join(mark.why)} for mark in marks]
    return _csv(columns, rows)


def first_message(mark: Mark) -> str:
    """Return the headline of the first failure, with its values, or of the first test without points. One line."""
    messages = {test["state"]: test["message"] for test in reversed(mark.tests.values()) if test["message"]}
    lines = messages.get(State.FAIL, "").splitlines()[1:]  # the first names lab and test
    if not lines:
        return " ".join("; ".join(messages.values()).split())[:MAX_SHOWN]
    values = [line.strip() for line in lines[1:] if line.startswith(("   expected", "   got"))]
    return " ".join(", ".join([lines[0], *values]).split())[:MAX_SHOWN]


def feedback(mark: Mark) -> list[str]:
    """Return one student's feedback on one lab: the points, and the message of each test without points.

    A belief is told as its question, because one wrong value may have another cause.
    """
    lines = [f"{mark.student}  {mark.lab}  {mark.score} of {mark.points} points, {mark.status}", *mark.why]
    for name, test in mark.tests.items():
        if test["state"] != State.PASS:
            message = test["message"].splitlines() or [f"{mark.lab}  {name}"]
            lines += ["", f"{test['state']}, {test['points']} points", *message]
    asked = {function: belief.partition("\n")[2] for function, belief in mark.beliefs.items()}
    questions = [f"{function}: {question}" for function, question in asked.items() if question]
    return [*lines, *(["", *questions] if questions else []), ""]


def gradebook_csv(labs: Sequence[str], marks: Sequence[Mark]) -> str:
    """Return a row per student, a column per lab, and the sum."""
    return _csv(_columns(labs), _by_student(labs, marks))


def _columns(labs: Sequence[str]) -> list[str]:
    return ["student", *labs, "total", "to look at", "first message"]


def _by_student(labs: Sequence[str], marks: Sequence[Mark]) -> list[dict[str, Any]]:
    rows = []
    for student in dict.fromkeys(mark.student for mark in marks):
        own = {mark.lab: mark for mark in marks if mark.student == student}
        scores = {lab: own[lab].score for lab in labs if lab in own}
        odd = [f"{lab}: {own[lab].status}" for lab in own if own[lab].status in TO_REVIEW]
        told = {lab: first_message(own[lab]) for lab in own}
        messages = [f"{lab}: {message}" if own.keys() != {lab} else message for lab, message in told.items() if message]
        last = {"total": sum(scores.values()), "to look at": ", ".join(odd), "first message": " | ".join(messages)}
        rows.append({"student": student, **scores, **last})
    return rows


def _csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as CSV. A cell that a spreadsheet would compute begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"'{v}" if isinstance(v, str) and v[:1] in FORMULA else v for k, v in row.items()})
    return out.getvalue()


def gradebook_page(labs: Sequence[str], marks: Sequence[Mark]) -> str:
    """Return the gradebook as a page, with the doubts below it."""
    columns = _columns(labs)
    rows = [[str(row.get(column, "")) for column in columns] for row in _by_student(labs, marks)]
    odd = [[mark.student, mark.lab, mark.status, line] for mark in marks for line in mark.why]
    sections = [table(columns, rows), "<h2>To look at</h2>", table(["student", "lab", "status", "why"], odd)]
    return page("Gradebook", "".join(sections))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of plain text."""
    head = "".join(f"<th scope='col'>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<div class='wide' tabindex='0'><table><tr>{head}</tr>\n{body}</table></div>\n"


def page(title: str, body: str) -> str:
    """Return a page without external files and scripts."""
    return PAGE.replace("TITLE", html.escape(title)).replace("BODY", body)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>mini_kv: TITLE</title>
<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:64rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.3rem .7rem;text-align:left;border-bottom:1px solid #8886}
.wide{overflow-x:auto}meter{width:12rem;max-width:40vw}li{margin:.3rem 0}</style>
<h1>TITLE</h1>
BODY</html>
"""
