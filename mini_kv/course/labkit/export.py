"""Results for machines: our own JSON, Gradescope's results.json, a CSV, a page to look at."""

import csv
import html
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.learner_state import write_whole
from mini_kv.course.labkit.progress import foreseen
from mini_kv.course.labkit.scoreboard import LabResult, State


def rows(results: Sequence[LabResult]) -> list[dict[str, Any]]:
    """Return all results of each test, as plain values."""
    names = ("test", "function", "stage", "state", "score", "points", "message", "belief")
    return [{"lab": result.lab.lab_id} | {name: getattr(result, name) for name in names} for result in results]


def as_json(results: Sequence[LabResult]) -> str:
    """Return every test with its state, points and message, and the number of correct predictions per lab, as JSON."""
    labs = {result.lab.lab_id: result.lab for result in results}
    told = {lab_id: dict(zip(("right", "asked"), foreseen(lab), strict=True)) for lab_id, lab in labs.items()}
    return json.dumps({"version": 1, "foreseen": told, "tests": rows(results)}, indent=2) + "\n"


def as_gradescope(results: Sequence[LabResult]) -> str:
    """Return the content of /autograder/results/results.json for Gradescope."""
    tests = [
        {
            "name": f"{row['lab']} {row['test']}",
            "score": row["score"],
            "max_score": row["points"],
            "status": "passed" if row["state"] is State.PASS else "failed",
            "output": row["message"] or row["state"],
            "visibility": "visible",
        }
        for row in rows(results)
    ]
    return json.dumps({"tests": tests}, indent=2) + "\n"


def as_csv(results: Sequence[LabResult]) -> str:
    """Return a line per test and a total, with a header, for a spreadsheet."""
    out = io.StringIO()
    columns = ["lab", "test", "function", "stage", "state", "score", "points"]
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results))
    totals = {name: sum(row[name] for row in rows(results)) for name in ("score", "points")}
    writer.writerow({"test": "TOTAL", **totals})
    return out.getvalue()


FORMATS: dict[str, tuple[Callable[[Sequence[LabResult]], str], str]] = {
    "--lab-json": (as_json, "write the labs' results as JSON"),
    "--lab-gradescope": (as_gradescope, "write the labs' results as Gradescope's results.json"),
    "--lab-csv": (as_csv, "write the labs' results as CSV"),
}
"""pytest's options, each with the function that makes the text and its help."""


def progress_page(labs: Sequence[Lab], progress: dict[str, Any]) -> str:
    """Return a page with a bar per lab: without scripts and external files, readable in dark mode and on a phone."""
    rows = []
    for lab in labs:
        entry = progress.get(lab.lab_id, {"best": 0, "when": "not started"})
        words = (lab.lab_id, lab.title, lab.points, min(entry["best"], lab.points), entry["when"])
        lab_id, title, points, best, when = (html.escape(str(word)) for word in words)
        rows.append(
            f"<tr><th scope='row'>{lab_id}</th><td>{title}</td>"
            f"<td><meter min='0' max='{points}' value='{best}'>{best}</meter></td>"
            f"<td>{best} of {points}</td><td>{when}</td></tr>"
        )
    return PAGE.replace("ROWS", "\n".join(rows))


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>mini_kv: progress</title>
<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{padding:.4rem;text-align:left;border-bottom:1px solid #8886}
@media(max-width:40rem){td:nth-child(2),td:nth-child(5){display:none}}</style>
<h1>Progress</h1><table><tr><th>lab</th><th>title</th><th></th><th>points</th><th>last run</th></tr>
ROWS
</table></html>
"""


def remove_old(path: str | None) -> None:
    """Remove an earlier file of results. After a crash it could be mistaken for the results of this run."""
    if path is not None and Path(path).is_file():
        Path(path).resolve().unlink()


def write_exports(paths: dict[str, str | None], results: Sequence[LabResult], *, over: bool = True) -> None:
    """Write the requested files. `paths` maps each option to a path or `None`. A pipe is written only at the end."""
    for option, path in paths.items():
        if path is None:
            continue
        if Path(path).is_file() or not Path(path).exists():
            write_whole(Path(path), FORMATS[option][0](results))
        elif over:
            Path(path).write_text(FORMATS[option][0](results), encoding="utf-8")
