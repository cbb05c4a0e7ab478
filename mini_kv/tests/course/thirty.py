"""Thirty numbered hand-ins for lab-05, some hostile: `python mini_kv/tests/course/thirty.py FOLDER`, then grade it."""

import json
import sys
import zipfile
from pathlib import Path

from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import find_lab

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from mini_kv.tests.course.cheats import REFUSED, RUN, SOLVED

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = ("leaves at once, with success", "forks without end", "patches the comparison", "writes to others")
ROUGH = ("a loop without end", "all memory", "endless output")


def make(place: Path) -> None:
    """Write the thirty: 8 right in three ways, 12 with a wrong idea, 3 unfinished, 4 hostile, 3 that misbehave."""
    lab = find_lab("05", ROOT)
    solution = (lab.solutions / "solution.py").read_text(encoding="utf-8")
    right = [solution, *(path.read_text(encoding="utf-8") for path in sorted(lab.solutions.glob("alt_*.py")))]
    mutants = [mutant for mutant in load_mutants(lab) if mutant.module is None][:6]
    wrong = [mutant.apply(solution) for mutant in mutants]
    texts = [right[number % len(right)] for number in range(8)]
    texts += [wrong[min(number // 3, 2) if number < 9 else number - 6] for number in range(12)]
    texts += [lab.pristine_starter.read_text(encoding="utf-8"), SOLVED, SOLVED]
    texts += [SOLVED + REFUSED[cheat] for cheat in HOSTILE] + [SOLVED + RUN[cheat] for cheat in ROUGH]
    for number, text in enumerate(texts, start=1):
        _hand_in(place, f"{number:02}", text, number % 3)


def _hand_in(place: Path, student: str, text: str, kind: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    if kind == 0:
        (place / student).mkdir()
        (place / student / "lab-05.py").write_text(text, encoding="utf-8")
    elif kind == 1:
        with zipfile.ZipFile(place / f"{student}.zip", "w") as archive:
            archive.writestr("labs/lab-05/starter.py", text)
    else:
        page = {"code": text, "forecasts": {"identical-prompt": "28", "what-b-costs": "8"}, "hints": {}, "runs": 3}
        saved = {"format": "mini_kv hand-in", "version": 1, "labs": {"lab-05": page}}
        (place / f"{student}.json").write_text(json.dumps(saved), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
