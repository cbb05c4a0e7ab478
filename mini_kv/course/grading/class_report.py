"""A class in counts, without names: beliefs, first open functions, correct predictions, tests with equal results."""

import html
from collections import Counter, defaultdict
from collections.abc import Sequence

from mini_kv.course.grading.grade import Mark
from mini_kv.course.grading.gradebook import page, table


def beliefs(marks: Sequence[Mark]) -> list[tuple[int, str]]:
    """Return the number of students per recognised belief, the most common first."""
    believers: dict[str, set[str]] = defaultdict(set)
    for mark in marks:
        for belief in mark.beliefs.values():
            believers[belief.partition("\n")[0]].add(mark.student)
    return sorted(((len(who), belief) for belief, who in believers.items()), key=lambda pair: (-pair[0], pair[1]))


def stops(marks: Sequence[Mark]) -> list[tuple[int, str]]:
    """Return the number of students per first function with an open test, in the lab's order."""
    counts: Counter[str | None] = Counter()
    for mark in marks:
        first = next((test["function"] for test in mark.tests.values() if test["state"] != "pass"), None)
        counts[first if mark.tests else f"({mark.status})"] += 1
    order = [test["function"] for mark in marks for test in mark.tests.values()]
    names = [name for name in [*dict.fromkeys(order), "(held)", "(missing)"] if counts[name]]
    return [(counts[name], name) for name in names] + ([(counts[None], "(done)")] if counts[None] else [])


def shares(marks: Sequence[Mark]) -> dict[str, tuple[int, int]]:
    """Return for each test the numbers of students who passed it and who ran it."""
    ran = [mark for mark in marks if mark.tests]
    names = dict.fromkeys(name for mark in ran for name in mark.tests)
    return {name: (sum(mark.tests[name]["state"] == "pass" for mark in ran), len(ran)) for name in names}


def alike(marks: Sequence[Mark]) -> list[str]:
    """Return the tests that all or none passed, for two students or more."""
    return [name for name, (passed, ran) in shares(marks).items() if ran > 1 and passed in (0, ran)]


def foreseen(marks: Sequence[Mark]) -> tuple[int, int, int]:
    """Return the numbers of correct predictions, of questions, and of students."""
    told = [mark.page for mark in marks if mark.page.get("asked")]
    return sum(page["foreseen"] for page in told), sum(page["asked"] for page in told), len(told)


def lines(lab: str, title: str, marks: Sequence[Mark]) -> list[str]:
    """Return one lab's counts for the terminal."""
    total = len(marks)
    told = [f"{lab}  {title}", ""]
    told += [f"  {count} of {total} believe that {belief}" for count, belief in beliefs(marks)]
    told += ["", "  where they stopped"]
    told += [f"    {count:>3}  {name}" for count, name in stops(marks)]
    right, asked, students = foreseen(marks)
    if asked:
        told += ["", f"  foreseen: {right} of {asked} numbers, by {students} of {total}"]
    same = alike(marks)
    if same:
        told += ["", f"  {len(same)} tests have the same result for all students: {', '.join(same)}"]
    return [*told, ""]


def picture_page(titles: dict[str, str], marks: Sequence[Mark]) -> str:
    """Return a page that can be shown to the class: every lab's counts, without names of students."""
    return page("What we believe", "".join(_section(lab, title, of_lab(marks, lab)) for lab, title in titles.items()))


def of_lab(marks: Sequence[Mark], lab: str) -> list[Mark]:
    """Return the marks of one lab."""
    return [mark for mark in marks if mark.lab == lab]


def _section(lab: str, title: str, marks: Sequence[Mark]) -> str:
    total = len(marks)
    ideas = "".join(
        f"<li>{_meter(count, total)} {count} of {total} believe that {html.escape(belief)}</li>\n"
        for count, belief in beliefs(marks)
    )
    stopped = "".join(
        f"<li>{_meter(count, total)} {count} of {total}: {html.escape(name)}</li>\n" for count, name in stops(marks)
    )
    right, asked, students = foreseen(marks)
    told = f"<p>Foreseen: {right} of {asked} numbers, by {students} of {total}.</p>" if asked else ""
    rows = [[name, f"{passed} of {ran}"] for name, (passed, ran) in shares(marks).items()]
    same = ", ".join(map(html.escape, alike(marks))) or "none"
    return (
        f"<h2>{html.escape(lab)}: {html.escape(title)}</h2>\n<ul>{ideas or '<li>No idea was recognised.</li>'}</ul>\n"
        f"<h3>Where they stopped</h3><ul>{stopped}</ul>{told}\n"
        f"<details><summary>Test by test</summary>{table(['test', 'passed'], rows)}</details>\n"
        f"<p>Tests with the same result for all students: {same}.</p>\n"
    )


def _meter(count: int, total: int) -> str:
    return f"<meter min='0' max='{total}' value='{count}'>{count}</meter>"
