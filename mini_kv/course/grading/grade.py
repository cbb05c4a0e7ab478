"""The marks: each lab of each hand-in runs in its own process, and the parent process counts the points.

A mark is the sum of the points of the tests that were reported once as passed. The parent knows the tests and their
points. If a report is unknown or repeated, or a test passes that no code can pass, the lab is held: it has 0 points
until a person has reviewed it.
"""

import json
import os
import random
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_kv.course.grading.handins import HandIn, printable
from mini_kv.course.grading.hidden_tests import Copy, fresh_copy
from mini_kv.course.grading.isolation import LIMITS, PIPES, Sandbox, environment_of, limits_of
from mini_kv.course.grading.static_check import objections
from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.misconception import find_beliefs
from mini_kv.course.labkit.scoreboard import LabResult, State
from mini_kv.course.labkit.spelling import is_right

MAX_REPORT = 4_000_000
"""Bytes that a process may report."""
WALL_S = 600
"""Wall-clock seconds of a lab's process beyond twice its CPU seconds. A busy machine takes no points."""
TO_REVIEW = ("held", "broken", "no verdict")
"""The states of a mark that a person has to look at."""


@dataclass(slots=True)
class Mark:
    """The mark of one student in one lab."""

    student: str
    lab: str
    points: int
    score: int = 0
    status: str = "graded"
    """`graded`, `missing`, or one of these.

    `held`: 0 points until a person has reviewed it. `broken`: it ended early. `no verdict`: the machine was too busy to
    run each test to its end, so grade it again.
    """
    why: list[str] = field(default_factory=list)
    """Sentences for the TA."""
    ran: str = ""
    """The code that ran: the entry and the file in it. Empty if none has run."""
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """State, points, function, stage and message of each test."""
    beliefs: dict[str, str] = field(default_factory=dict)
    page: dict[str, Any] = field(default_factory=dict)
    """Data from the page: `foreseen`, `asked`, `hints`, `runs`."""
    seconds: float = 0.0


class Grader:
    """Grades hand-ins, and keeps the data that all of them share."""

    def __init__(self, labs: Sequence[Lab], sandbox: Sandbox, seconds: int, accepted: Iterable[str] = ()) -> None:
        """Set the labs, and collect the tests of each, without a student's code.

        Args:
            labs: to be graded.
            sandbox: the isolation of each process.
            seconds: CPU seconds of one lab's process.
            accepted: each `STUDENT/LAB` whose code may run despite objections.
        """
        self.labs, self.sandbox, self.seconds, self.accepted = labs, sandbox, seconds, set(accepted)
        self.tests = {lab.lab_id: self._expected(lab) for lab in labs}

    def _expected(self, lab: Lab) -> dict[str, dict[str, Any]]:
        ran = self._run(lab, lab.pristine_starter.read_bytes(), "--collect-only")
        tests: dict[str, dict[str, Any]] = {
            name: {"points": int(points), "function": function, "stage": stage}
            for name, points, function, stage in ran.collected
            if name not in ran.copy.canaries
        }
        if sum(test["points"] for test in tests.values()) != lab.points:
            raise ValueError(
                f"{lab.lab_id} cannot be graded here: {lab.missing or ran.tail or 'its tests report nothing'}"
            )
        return tests

    def grade_all(self, handins: Sequence[HandIn], jobs: int, tell: Callable[[Mark], None]) -> list[Mark]:
        """Grade every lab of every hand-in, `jobs` at a time. Call `tell` with each mark in order."""
        work = [(handin, lab) for handin in handins for lab in self.labs]
        marks = []
        with ThreadPoolExecutor(jobs) as pool:
            for mark in pool.map(lambda pair: self.grade(*pair), work):
                tell(mark)
                marks.append(mark)
        return marks

    def grade(self, handin: HandIn, lab: Lab) -> Mark:
        """Grade one lab. Every submission gets a mark."""
        mark = Mark(handin.student, lab.lab_id, lab.points)
        try:
            self._grade(mark, handin, lab)
        except Exception as error:  # the other hand-ins still get their marks
            mark.status, mark.score = "held", 0
            mark.why = [printable(f"it could not be graded: {type(error).__name__}: {error}")]
        return mark

    def _grade(self, mark: Mark, handin: HandIn, lab: Lab) -> None:
        code = handin.code.get(lab.lab_id)
        mark.page = _from_page(handin.page.get(lab.lab_id, {}), lab)
        if handin.fault or code is None:
            mark.status = "held" if handin.fault else "missing"
            mark.why = [handin.fault] if handin.fault else []
            return
        where = handin.names.get(lab.lab_id, f"{lab.lab_id}.py")
        found = objections(code, lab)
        if found and f"{handin.student}/{lab.lab_id}" not in self.accepted:
            mark.status, mark.why = "held", [f"{where}, {objection}" for objection in found]
            return
        began = time.monotonic()
        mark.ran = where
        ran = self._run(lab, code)
        mark.seconds = round(time.monotonic() - began, 2)
        self._count(mark, lab, ran)

    def _count(self, mark: Mark, lab: Lab, ran: "_Ran") -> None:
        tests = self.tests[mark.lab]
        mark.tests = {name: {**test, "state": "not run", "message": ""} for name, test in tests.items()}
        mark.why = [printable(doubt) for doubt in ran.doubts + ran.doubts_of(tests)]
        if mark.why:
            mark.status = "held"
            return
        for name, state, message, _, _ in ran.ended:
            if name in tests:
                mark.tests[name] |= {"state": state, "message": message}
        mark.beliefs = find_beliefs(lab, [ran.result(lab, name, test) for name, test in tests.items()])
        mark.score = sum(test["points"] for test in mark.tests.values() if test["state"] == State.PASS)
        unknown = [f"{name}: {message}" for name, state, message, _, _ in ran.ended if state == State.NO_VERDICT]
        if ran.is_late:
            unknown.append(f"its process had not ended after {self._wall_seconds} s on the clock")
        if unknown:
            mark.status, mark.why = "no verdict", [printable(each) for each in unknown]
        elif not ran.over:
            mark.status, mark.why = "broken", [f"the process ended before its tests did: {ran.ending}"]

    @property
    def _wall_seconds(self) -> int:
        return 2 * self.seconds + WALL_S

    def _run(self, lab: Lab, code: bytes, *options: str) -> "_Ran":
        """Run the lab's tests on this code, in a temporary folder."""
        folder = Path(tempfile.mkdtemp(prefix="mini-kv-")).resolve()
        try:
            (folder / "tmp").mkdir()
            (folder / "hand-in").mkdir()
            (folder / "hand-in" / f"{lab.lab_id}.py").write_bytes(code)
            ran = _Ran(fresh_copy(lab, folder, random.SystemRandom()))
            command = [sys.executable, "-m", "pytest", f"labs/{lab.lab_id}", "-q", "-p", "no:cacheprovider"]
            command += ["-p", "mini_kv.course.grading.inside", *options]
            self._watch(ran, lab, folder, command)
            return ran
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, ran: "_Ran", lab: Lab, folder: Path, command: Sequence[str]) -> None:
        """Start the process, read its output until it ends or its time is over, and end all its processes."""
        (read_word, write_word), (read_report, write_report) = os.pipe(), os.pipe()
        word = secrets.token_hex(16)
        environment = environment_of(self.sandbox.root, folder) | {
            "LAB_IMPL": f"hand-in/{lab.lab_id}.py",
            PIPES: f"{read_word},{write_report}",
            LIMITS: json.dumps(limits_of(lab.needs, self.seconds, self.sandbox.kind)),
        }
        with (folder / "said").open("w+b") as said:
            process = subprocess.Popen(
                self.sandbox.command(folder, command),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(read_word, write_report),
                start_new_session=True,
            )
            os.close(read_word)
            os.close(write_report)
            os.write(write_word, word.encode())
            os.close(write_word)
            try:
                report, ran.is_late = _listen(read_report, process, self._wall_seconds)
            finally:
                os.close(read_report)
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                ran.status = process.wait()
            said.seek(max(0, said.seek(0, os.SEEK_END) - 500))
            ran.tail = said.read(500).decode(errors="replace")
        ran.hear(report, word)


def _listen(pipe: int, process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bool]:
    """Return the output of the process until it ends or exceeds the limit of bytes, and whether its time was over."""
    heard, until = bytearray(), time.monotonic() + seconds
    while time.monotonic() < until and len(heard) <= MAX_REPORT:
        over = process.poll() is not None  # asked before: what it said last is still read
        ready, _, _ = select.select([pipe], [], [], 0 if over else 0.1)
        more = os.read(pipe, 65536) if ready else b""
        heard += more
        if (over or ready) and not more:
            return bytes(heard), False
    return bytes(heard[:MAX_REPORT]), len(heard) <= MAX_REPORT


@dataclass(slots=True)
class _Ran:
    """What one process reported."""

    copy: Copy
    collected: list[list[str]] = field(default_factory=list)
    """Name, points, function and stage of each test."""
    ended: list[list[str]] = field(default_factory=list)
    """Name, state, message, function and values of each test that has ended."""
    doubts: list[str] = field(default_factory=list)
    over: bool = False
    is_late: bool = False
    """Whether it was ended because it took too long on the clock."""
    status: int = 0
    tail: str = ""

    @property
    def ending(self) -> str:
        """The end of the process, in words."""
        if self.status < 0:
            with suppress(ValueError):
                return f"it was ended by {signal.Signals(-self.status).name}"
        return f"Python's exit status was {self.status}"

    def doubts_of(self, tests: Collection[str]) -> list[str]:
        """Return the differences between the report and the tests that should have run."""
        names = [name for name, *_ in self.ended]
        canaries = self.copy.canaries
        wanted = {*tests, *canaries}
        doubts = [f"an unknown or repeated test: {name[:60]}" for name in {*names} - wanted]
        doubts += ["a test has ended twice"] if len(set(names)) < len(names) else []
        doubts += ["it reports its end before all tests have ended"] if self.over and {*names} != wanted else []
        passed = [name for name, state, *_ in self.ended if name in canaries and state == State.PASS]
        return doubts + (["a test that no code can pass has passed"] if passed else [])

    def result(self, lab: Lab, test: str, about: dict[str, Any]) -> LabResult:
        """Return the result of a test, for the beliefs."""
        for name, state, message, function, observed in self.ended:
            if name == test:
                return LabResult(lab, test, 0, function, about["stage"], None, State(state), message, observed)
        return LabResult(lab, test, 0, about["function"], about["stage"], None)

    def hear(self, report: bytes, word: str) -> None:
        """Read the lines of the report. A line with a wrong first word or format is recorded as a doubt."""
        for line in report.decode(errors="replace").splitlines():
            begin, _, rest = line.partition(" ")
            try:
                if not secrets.compare_digest(begin.encode(), word.encode()):
                    raise ValueError
                self._take(*(bytes.fromhex(field).decode() for field in rest.split(" ")))
            except (ValueError, TypeError):
                self.doubts.append("its report has a line that is not from the judge")
                return

    def _take(self, kind: str, *fields: str) -> None:
        if self.over:
            raise ValueError(kind)
        if kind == "end":
            self.over = True
            self.doubts += [f"it changed other functions: {', '.join(fields)[:200]}"] if fields else []
            return
        name, *rest = fields
        if name not in self.copy.canaries:
            name = self.copy.in_words(name)
        if kind == "collected":
            points, function, stage = rest
            self.collected.append([name, points, function, stage])
        else:
            state, message, function, observed = rest
            self.ended.append([name, str(State(state)), self.copy.in_words(message), function, observed])


def _from_page(page: dict[str, Any], lab: Lab) -> dict[str, Any]:
    """Return the counts of the page's saved answers. Predictions are compared here with the lab's own answers."""
    if not page:
        return {}
    forecasts, hints, runs = (page.get(name) for name in ("forecasts", "hints", "runs"))
    given = forecasts if isinstance(forecasts, dict) else {}
    asked = [question for question in lab.predictions if given.get(question.id)]
    used = hints.values() if isinstance(hints, dict) else []
    return {
        "foreseen": sum(is_right(question, str(given[question.id])) for question in asked),
        "asked": len(asked),
        "hints": sum(map(_counted, used)),
        "runs": _counted(runs),
    }


def _counted(value: object) -> int:
    """Return a count from the page, or 0 for an impossible value, such as a number that is too long."""
    return value if type(value) is int and 0 <= value < 1_000_000 else 0
