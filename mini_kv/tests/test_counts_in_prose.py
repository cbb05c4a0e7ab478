"""Counts in prose are what is counted. On the first pages that a person sees, a wrong one is an error."""

import re
from collections.abc import Callable

import pytest
from mini_kv_book import generate
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.recorded import PARTS
from mini_kv_book.spine import spine

from mini_kv.course.given import arena
from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import load_lab
from mini_kv.policy.admission_strategies import strategies
from mini_kv.story.puzzle import puzzle_names
from mini_kv.tests.test_golden_planning import RECORDED, WHOLE_WINDOWS
from mini_kv.tests.test_reference_pages import TRUE_AS_WRITTEN, errata

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
NUMBER = r"(?P<number>[\d,]+|[A-Za-z]+(?:-[a-z]+)?)"


def as_number(text: str) -> int | None:
    """Return what `16`, `1,800`, "sixteen" or "forty-four" says; `None` for another word."""
    ten, _, one = text.lower().partition("-")
    if text.replace(",", "").isdigit():
        return int(text.replace(",", ""))
    if ten in TENS and (not one or one in WORDS):
        return TENS[ten] + (WORDS.index(one) if one else 0)
    return WORDS.index(text.lower()) if text.lower() in WORDS else None


def minutes_of_the_first_labs() -> int:
    """Return the minutes that lab-01 to lab-07 are said to take."""
    return sum(load_lab(ROOT / "labs" / f"lab-{number:02}").minutes for number in range(1, 8))


def minutes_of_a_long_day() -> int:
    """Return the minutes of the labs that labs/README.md calls a long day."""
    return sum(load_lab(ROOT / "labs" / f"lab-{number:02}").minutes for number in (1, 3, 4, 5, 6, 8, 9, 11))


def mutants_of(lab_id: str) -> int:
    """Return how many wrong versions of a lab are known."""
    return len(load_mutants(load_lab(ROOT / "labs" / lab_id)))


def labs_in_page() -> list[str]:
    """Return the labs that the page's Python can run: those that need neither PyTorch nor Triton."""
    return [path.parent.name for path in ROOT.glob("labs/lab-*/lab.toml") if 'needs = "C"' in path.read_text("utf-8")]


def num_chapters() -> int:
    """Return how many chapters the book has."""
    return sum(map(len, generate.chapters().values()))


def num_claims() -> int:
    """Return how many claims a reader judges."""
    return (DOCS / "true-or-false.md").read_text(encoding="utf-8").count("[[question]]")


def equal_plans() -> int:
    """Return how many recorded plans of vLLM the planner's equal."""
    return len(RECORDED.keys() - WHOLE_WINDOWS)


def minutes_of_an_afternoon() -> int:
    """Return the sum of the minutes in the README's way through one afternoon."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (way,) = re.findall(r"<!-- afternoon -->(.*?)<!-- end of afternoon -->", readme, re.DOTALL)
    return sum(int(minutes) for minutes in re.findall(r"\s(\d+)(?=,| min,|\.)", way))


COMMANDS = "book/docs/reference/commands.md"
COUNTED: list[tuple[str, str, Callable[[], int]]] = [
    (COMMANDS, f"`make notebooks`: {NUMBER} notebooks", lambda: len([*ROOT.glob("notebooks/*.ipynb")])),
    (COMMANDS, f"{NUMBER} puzzles: reach", lambda: len(puzzle_names())),
    (COMMANDS, rf"engine.md\): {NUMBER} files", lambda: len(spine()["files"])),
    ("README.md", f"{NUMBER} scenarios were recorded", lambda: sum(len(load()) for load in PARTS.values())),
    ("README.md", f"first of {NUMBER} chapters", num_chapters),
    ("README.md", f"{NUMBER} hours and ten minutes", lambda: minutes_of_an_afternoon() // 60),
    ("README.md", f"Three hours and {NUMBER} minutes", lambda: minutes_of_an_afternoon() % 60),
    ("book/docs/index.md", f"{NUMBER} puzzles", lambda: len(puzzle_names())),
    ("book/docs/index.md", rf"{NUMBER} claims\]", num_claims),
    ("book/docs/true-or-false.md", f"{NUMBER} claims about", num_claims),
    ("book/docs/reference/errata.md", f"{NUMBER} claims, and", num_claims),
    ("book/docs/reference/changes.md", f"{NUMBER} claims to judge", num_claims),
    ("book/docs/index.md", f"{NUMBER} chapters with", num_chapters),
    ("book/docs/index.md", f"{NUMBER} graded labs", lambda: len([*ROOT.glob("labs/lab-*")])),
    ("book/docs/index.md", rf"{NUMBER}\s+run in the page", lambda: len(labs_in_page())),
    ("book/docs/engine.md", f"After {NUMBER} files", lambda: len(spine()["files"])),
    ("book/docs/reference/errata.md", f"Of {NUMBER} figures and", lambda: len(claims()) + len(TRUE_AS_WRITTEN)),
    ("book/docs/reference/errata.md", f"could be checked, {NUMBER} were right", lambda: len(TRUE_AS_WRITTEN)),
    ("book/docs/reference/errata.md", f"page is the other {NUMBER}", lambda: len(claims())),
    ("book/docs/fit.md", f"{NUMBER} of 118 recorded plans", equal_plans),
    ("book/docs/fit.md", f"114 of {NUMBER} recorded plans", lambda: len(RECORDED)),
    ("book/docs/answers/hit-rate-is-zero.md", f"own: {NUMBER} plans of vLLM", lambda: len(RECORDED)),
    ("book/docs/answers/hit-rate-is-zero.md", rf"recorded beside the tests\. {NUMBER} are equal", equal_plans),
    ("labs/README.md", f"11: {NUMBER} hours and 45 minutes", lambda: minutes_of_a_long_day() // 60),
    ("labs/README.md", f"7 hours and {NUMBER} minutes", lambda: minutes_of_a_long_day() % 60),
    ("book/docs/teach/teaching.md", f"take {NUMBER} hours and 30 minutes", lambda: minutes_of_the_first_labs() // 60),
    ("book/docs/teach/teaching.md", f"6 hours and {NUMBER} minutes", lambda: minutes_of_the_first_labs() % 60),
    ("labs/lab-11/README.md", f"under {NUMBER} strategies", lambda: len(strategies())),
    ("labs/lab-13/README.md", f"measured on {NUMBER} workloads", lambda: len(arena.WORKLOADS)),
    ("labs/lab-13/README.md", f"the {NUMBER} workloads", lambda: len(arena.WORKLOADS)),
    ("notebooks/08-who-runs-next.ipynb", f"{NUMBER} strategies", lambda: len(strategies())),
    ("solutions/lab-05-further/NOTES.md", f"versions: {NUMBER} beliefs", lambda: mutants_of("lab-05-further")),
    ("solutions/lab-10-ladder/NOTES.md", f"{NUMBER} wrong versions", lambda: mutants_of("lab-10-ladder")),
]
"""A file, how the count is written there, and what it must be."""


def claims() -> list[str]:
    """Return the numbers of the figures and statements that the errata refute."""
    return [number for key in errata() for number in re.findall(r"N\d+", key)]


FIRST_PAGES = ("README.md", "book/docs/index.md", "labs/README.md")


@pytest.mark.parametrize(
    ("file", "written", "count"),
    [
        pytest.param(file, how, count, id=f"{file}: {how}", marks=[] if file in FIRST_PAGES else pytest.mark.prose)
        for file, how, count in COUNTED
    ],
)
def test_a_count_is_what_is_counted(file: str, written: str, count: Callable[[], int]) -> None:
    """If this fails, the sentence is out of date; or it was rewritten, and then this list is."""
    found = re.search(written, re.sub(r"\s+", " ", (ROOT / file).read_text(encoding="utf-8")))
    assert found, f"{file} does not say {written!r} any more"
    assert as_number(found["number"]) == count()
