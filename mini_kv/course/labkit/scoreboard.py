"""The scoreboard: the code that ran, the points of each test, the next step."""

import linecache
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from itertools import takewhile
from pathlib import Path

from mini_kv.course.labkit.implementation import Implementation
from mini_kv.course.labkit.lab import Lab, all_labs, place_of, relative, run_command

ENDED = "Python ended in this test, before the test did"
"""Message of a running test in the files. It remains if Python is killed, or if C code runs until the time is over."""

ACTS_AS_IF = "your code acts as if "
"""First words of a belief. They are true for a slip as well as for a misunderstanding."""
BREAKS = "breaks rule "
"""First words of the sentence of the contract that a failure breaks. They are shown where no belief is recognised."""
ASK = "ask: "
"""First word of a belief's question, in a line of its own."""


@unique
class State(StrEnum):
    """The result of a test."""

    PASS = "pass"
    FAIL = "fail"
    TODO = "todo"
    """The code is not written yet. It has no points and is not a failure."""
    WAIT = "wait"
    """The test that it builds on failed."""
    NO_VERDICT = "no verdict"
    """The machine was too busy to run it to its end. It has no points and is not a failure."""
    NOT_RUN = "not run"


@dataclass(slots=True)
class LabResult:
    """One test's place on the scoreboard. It starts without points, so a test that never ran has none."""

    lab: Lab
    test: str
    points: int
    function: str
    stage: str
    after: str | None
    state: State = State.NOT_RUN
    message: str = ""
    """The message of the failure, as the student saw it."""
    observed: str = ""
    """Values of the test without paths and lines. They distinguish one wrong answer from another."""
    signs: int = 1
    """How many values of a failed test tell of its cause."""
    belief: str = ""
    """The possible belief, at the first failure of a function with a known mistake. After one sign, its question."""
    table: Sequence[str] = ()
    """Lines of a table that a passed test made."""
    rule: int = 0
    """Number of the sentence of the lab's contract that the test checks, or 0."""

    @property
    def short_function(self) -> str:
        """The function's name, without its class if the name alone is unique."""
        return self.lab.short_name(self.function)

    @property
    def score(self) -> int:
        """Sum of the earned points."""
        return self.points if self.state is State.PASS else 0

    def breaks(self) -> str:
        """Return the sentence of the lab's contract that a failure of the test breaks, or nothing."""
        contract = self.lab.contract()
        known = 0 < self.rule <= len(contract)
        return f"{BREAKS}{self.rule} of the contract: {contract[self.rule - 1]}" if known else ""


def in_full(belief: str) -> str:
    """Return a belief as a learner reads it. A question or a broken rule alone claims nothing."""
    return belief if belief.startswith((ASK, BREAKS)) else f"{ACTS_AS_IF}{belief}"


def first_failures(results: Sequence[LabResult]) -> list[LabResult]:
    """Return the first failure of each function."""
    failed = [result for result in results if result.state is State.FAIL]
    return list({result.function: result for result in reversed(failed)}.values())[::-1]


def all_ran(lab: Lab, results: Sequence[LabResult]) -> bool:
    """Return whether all tests of the lab ran: none was left out by `-k`, a node's name or an early end."""
    left_out = (State.NOT_RUN, State.NO_VERDICT)
    return sum(result.points for result in results if result.state not in left_out) == lab.points


def draw_scoreboard(implementation: Implementation, results: Sequence[LabResult]) -> list[str]:
    """Return the lines of one lab's scoreboard, or only two if the reference solution passed."""
    lab = implementation.lab
    score, total = sum(result.score for result in results), lab.points  # of all tests, selected or not
    if implementation.is_reference and score == total:
        return [
            f"{lab.lab_id}  {score} of {total} points for the reference solution, {_relative(implementation.source)}",
            f"  This was not your code. Run yours:  {run_command(lab)}",
            *_tables(results),
        ]
    width = max(len(result.test) for result in results)
    lines = [f"{lab.lab_id}  {lab.title}", f"code that ran: {_ran(implementation)}", ""]
    stage = ""
    for result in results:
        if result.stage != stage:
            stage = result.stage
            lines.append(f"  {stage}")
        mark = f"{result.state.upper():<8}"
        lines.append(f"    {mark}{result.score:>2}/{result.points:<2}  {result.test:<{width}}  {result.short_function}")
    lines += ["", f"  {_bar(score, total)}  {score} of {total} points   {_subtotals(results)}"]
    return [*lines, *_tables(results), *_verdict(implementation, results, score == total)]


def _tables(results: Sequence[LabResult]) -> list[str]:
    """Return the tables of all tests. A line that several of them have, such as the head, is in it once."""
    return list(dict.fromkeys(line for result in results for line in result.table))


def draw_brief(implementation: Implementation, results: Sequence[LabResult], printed: str = "") -> list[str]:
    """Return the first failure in full, its printed output, the number of others, and the score."""
    lab = implementation.lab
    score = sum(result.score for result in results)
    counts = Counter(result.state for result in results)
    told = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    bar = f"  {_bar(score, lab.points)}  {score} of {lab.points} points   {told}"
    failed = [result for result in results if result.state is State.FAIL]
    first = _first_open(results)
    if failed:
        shown = [f"   printed   {line}" for line in printed.splitlines()[-5:]]
        return [*failed[0].message.splitlines(), *shown, "", *_others(failed), bar]
    if first is None or lab.missing is not None:
        ending = _verdict(implementation, results, score == lab.points)
    else:
        ending = [f"  next: {first.test}", f"        {_place(implementation, first)}"]
    return [f"{lab.lab_id}  {lab.title}", "", bar, *_tables(results), *ending]


def _others(failed: Sequence[LabResult]) -> list[str]:
    """Return the number of failures after the first and the beliefs of other functions, or nothing."""
    if len(failed) == 1:
        return []
    first, *others = failed
    here = sum(result.function == first.function for result in others)
    told = f"{len(others)} more {'failures' if others[1:] else 'failure'}"
    told += f", {here} of them in {first.short_function}" if here else ""
    known = [one for one in others if one.belief and not one.belief.startswith(BREAKS)]
    beliefs = [f"  in {one.short_function} {in_full(one.belief).splitlines()[0]}" for one in known]
    return [f"  {told}; all of them:  mini-kv run {first.lab.lab_id.removeprefix('lab-')} --all", *beliefs]


def _ran(implementation: Implementation) -> str:
    shown = _relative(implementation.source)
    if implementation.is_reference:
        return f"{shown}, the reference solution (LAB_IMPL is not set to yours)"
    return f"{shown} (LAB_IMPL={implementation.choice})"


def _relative(source: str) -> str:
    """Return the path relative to the working directory. Return a module's name unchanged."""
    return relative(source) if os.path.isabs(source) else source


def _bar(score: int, total: int, width: int = 30) -> str:
    filled = width * score // total if total else 0
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def _subtotals(results: Sequence[LabResult]) -> str:
    functions = dict.fromkeys(result.function for result in results)
    parts = []
    for function in functions:
        own = [result for result in results if result.function == function]
        parts.append(f"{own[0].short_function} {sum(r.score for r in own)}/{sum(r.points for r in own)}")
    return "  ".join(parts)


def _verdict(implementation: Implementation, results: Sequence[LabResult], complete: bool) -> list[str]:
    """Return the last lines: passed or not, and the next thing to type or to write."""
    lab = implementation.lab
    if implementation.is_reference:
        return [f"  This was not your code. Run yours:  {run_command(lab)}"]
    if complete:
        part = f". Part 1 done: {lab.points} of {lab.points}" if lab.second_part else ""
        return [f"  PASSED{part}", *_lesson(lab)]
    first = _first_open(results)
    if first is None:
        return [f"  PASSED, but only some tests ran. All tests:  pytest {_relative(str(lab.folder))}"]
    if lab.missing is not None:
        return [f"  NOT RUN: {lab.missing}"]
    part = "Part 2: " if any(other.second_part == lab.lab_id for other in all_labs(lab.root)) else ""
    return [f"  {part}NOT PASSED YET", f"  next: {first.test}  {_place(implementation, first)}"]


def _first_open(results: Sequence[LabResult]) -> LabResult | None:
    """Return the first test that has not passed."""
    return next((result for result in results if result.state is not State.PASS), None)


def _place(implementation: Implementation, result: LabResult) -> str:
    """Return the location of a test's function, and the minutes to write it if it is still TODO."""
    function = next((f for f in implementation.lab.functions if f.name == result.function), None)
    if result.state is State.NO_VERDICT:
        return f"{result.message}. Run it again."
    time = ""
    if function is not None and result.state is State.TODO:
        time = f", about {function.minutes} {'minute' if function.minutes == 1 else 'minutes'}"
    return f"{_definition(implementation.source, result.function)} {result.function}{time}"


def _lesson(lab: Lab) -> list[str]:
    """Return the lesson, the equivalents in vLLM, the uses of the learner's code, and the next lab."""
    lines = ["", *_wrapped(lab.lesson), "", "  In vLLM 0.33:"]
    for function in lab.functions:
        lines += _wrapped(f"  {lab.short_name(function.name)}: {function.vllm}", more="      ")
    lines.append("")
    parts = [part.name for part in lab.parts if part.goes_to]
    if parts and all(part.only_for == "finale" for part in lab.parts if part.goes_to):
        lines += _wrapped(f"The finale plays with your {_listed(parts)}:")
        lines.append("    mini-kv finale --labs starter")
    elif parts:
        lines += _wrapped(f"The engine can run on your {_listed(parts)}:")
        more = " --windows" if any(part.only_for == "windows" for part in lab.parts) else ""
        lines.append(f'    mini-kv generate "A block is free when" --labs starter{more}')
    if lab.questions:
        lines.append(
            f"  Five questions about your own code:  mini-kv questions --lab {lab.lab_id.removeprefix('lab-')}"
        )
    if lab.solutions.is_dir():
        lines += _wrapped(f"Others have solved it in other ways: {_relative(str(lab.solutions))}")
    return lines + _following(lab) + (_wrapped(f"To take away: {lab.question}") if lab.question else [])


def _following(lab: Lab) -> list[str]:
    """Return the further parts up to the next lab, and the next lab."""
    later = [other for other in all_labs(lab.root) if place_of(other.lab_id) > place_of(lab.lab_id)]
    more = list(takewhile(lambda other: other.is_further, later))
    lines = []
    for other in more + later[len(more) :][:1]:
        readme = _relative(str(other.folder / "README.md"))
        lines += _wrapped(f"{'' if other in more else 'Next: '}{other.title} ({other.minutes} minutes), {readme}")
    return lines


def _listed(names: Sequence[str]) -> str:
    """Return the names as a sentence lists them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _wrapped(text: str, more: str = "  ") -> list[str]:
    return textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent=more)


def _definition(source: str, function: str) -> str:
    """Return `file:line` of the function's definition, or of the file's start."""
    if not Path(source).is_file():
        return source
    lines = linecache.getlines(source)
    owner, _, name = function.rpartition(".")
    first = next((n for n, line in enumerate(lines) if line.startswith(f"class {owner}(")), 0)
    here = (n for n, line in enumerate(lines[first:], first + 1) if line.lstrip().startswith(f"def {name}("))
    return f"{relative(source)}:{next(here, 1)}"
