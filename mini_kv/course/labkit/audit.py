"""Checks a lab's tests: runs them on right code, on wrong code, and on the empty starter.

    python -m mini_kv.course.labkit.audit lab-05
    python -m mini_kv.course.labkit.audit lab-05 --write               store the fingerprints and the starter
    python -m mini_kv.course.labkit.audit lab-05 --sample SEED         a quarter of the wrong versions, by this seed
    python -m mini_kv.course.labkit.audit lab-05 --show never-looks    one wrong version and its difference

Right code: the solution and every alternative get full marks, for 200 seeds of the random tests. The empty starter gets
no points, and every test reports TODO. Wrong code: the tests catch every mutant of the learner's functions and every
bug in the engine, and every test catches at least one of them.

A sample is for the files on which `--write` found nothing wrong. If one of them has changed since, all are played.
"""

import argparse
import ast
import difflib
import hashlib
import importlib
import inspect
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mini_kv.course.labkit.failure import BROKE_DOWN, MAX_LINES
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.lab import Lab, load_lab
from mini_kv.course.labkit.lives import seeds
from mini_kv.course.labkit.misconception import Stored, fingerprints, load_stored, signs_of, store
from mini_kv.course.labkit.plugin import ENGINE_BUG, FIXTURE, RESULTS
from mini_kv.course.labkit.scoreboard import LabResult, State
from mini_kv.messages import did_you_mean, shown

_SEEDS = (0, 40, 80, 120, 160)
"""Values of LAB_SEED. A random test tries 40 seeds from each."""
_NOT_PLAYED = ("starter.py", "fingerprints.json", "README.md", "NOTES.md")
"""Files of a lab that have no influence on a wrong version's results. The learner edits the first one."""
_FOR_READERS = ("prediction", "chapter", "says", "picture")
"""Keys of a `lab.toml` that have none, either."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plausible wrong version: one exact replacement in the solution, or in a module of the engine."""

    id: str
    idea: str
    """The wrong belief that leads to this version, in a sentence."""
    seen: str
    """The project and issue in which the bug really occurred."""
    old: str
    new: str
    module: str | None = None
    """Module of the engine, or `None` for the lab's solution."""
    function: str | None = None
    """The function whose tests must catch it. Needed if the text is in another function or outside of functions."""
    ask: str = ""
    """A question whose answer contradicts the belief."""
    spellings: Sequence[str | Sequence[str]] = ()
    """Other spellings of the same belief: each is another `new`, or a pair of another `old` and `new`."""

    @property
    def belief(self) -> str:
        """The text for a learner: the idea, and under it the question if there is one."""
        return f"{self.idea}\nask: {self.ask}" if self.ask else self.idea

    def apply(self, text: str) -> str:
        """Return the text with the replacement made. Raises `ValueError` unless `old` occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"mutant {self.id}: its text occurs {text.count(self.old)} times, it must occur once")
        return text.replace(self.old, self.new)

    def all_spellings(self) -> list["Mutant"]:
        """Return this mutant and each of its other spellings, as mutants of one idea."""
        pairs = [(self.old, new) if isinstance(new, str) else new for new in self.spellings]
        others = [
            replace(self, id=f"{self.id}-{number}", old=old, new=new) for number, (old, new) in enumerate(pairs, 2)
        ]
        return [self, *others]


@dataclass(slots=True)
class Audit:
    """The results of one lab's audit."""

    lab: Lab
    findings: list[str] = field(default_factory=list)
    """The faults of the lab, one sentence each. Empty if there are none."""
    notes: list[str] = field(default_factory=list)
    """What else a reader should know, one sentence each."""
    kills: dict[str, list[str]] = field(default_factory=dict)
    """The tests that catch each mutant, by the mutant's id."""
    scores: dict[str, str] = field(default_factory=dict)
    """The score of each implementation that ran, as `points/total`."""
    beliefs: dict[str, dict[str, str]] = field(default_factory=dict)
    """The belief behind each spelling of a mutant of the solution, by function and fingerprint."""
    one_sign: list[str] = field(default_factory=list)
    """The ideas whose fingerprint rests on one wrong value, so that a learner reads only their question."""
    played_all: bool = True
    """Whether every spelling of every mutant ran."""


def load_mutants(lab: Lab) -> list[Mutant]:
    """Return the lab's mutants. Raises `ValueError` if two have the same id."""
    values = tomllib.loads((lab.solutions / "mutants.toml").read_text(encoding="utf-8"))
    mutants = [Mutant(**mutant) for mutant in values["mutant"]]
    ids = [mutant.id for mutant in mutants]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{lab.lab_id}: two mutants share an id")
    return mutants


def audit_lab(folder: Path, *, write: bool = False, sample: str | None = None) -> Audit:
    """Audit a lab and return the results. Costs 0.2 to 3 s of CPU per mutant, 5 s where kernels are interpreted.

    `write` plays every mutant, and stores the pristine starter and the fingerprints, which are otherwise compared with
    the stored ones. `sample` is the seed of a sample, for a lab whose files have not changed since.
    """
    audit = Audit(load_lab(folder))
    if audit.lab.missing is not None:
        audit.findings.append(audit.lab.missing)
        return audit
    had_torch = "torch" in sys.modules  # from the audit of another lab
    if write:
        shutil.copyfile(audit.lab.starter, audit.lab.pristine_starter)
    elif not audit.lab.pristine_starter.is_file():
        audit.findings.append("no pristine starter yet: call this with --write")
        return audit
    with audit.lab.auditing():
        watcher = watch(audit.lab)
        _audit_right_code(audit, watcher)
        _audit_starter(audit)
        _audit_signatures(audit)
        audit_mutants(audit, watcher, None if write else sample)
        if audit.played_all:
            _audit_decoration(audit)
    _audit_learner_files(audit)
    if audit.lab.needs == "C" and "torch" in sys.modules and not had_torch:
        audit.findings.append("lab.toml does not list torch as needed, but the lab's tests imported it")
    if write:
        write_fingerprints(audit)
    else:
        _audit_generated(audit)
    return audit


def _audit_right_code(audit: Audit, watcher: "_Watcher") -> None:
    """Run each right version with each seed. What draws nothing runs once."""
    files = [audit.lab.solutions / "solution.py", *sorted(audit.lab.solutions.glob("alt_*.py"))]
    if len(files) < 3:
        audit.findings.append("fewer than 2 alternatives")
    right = {file.stem: str(file) for file in files}
    if audit.lab.engine is not None:
        right["engine"] = "engine"
    for name, lab_impl in right.items():
        for seed in _SEEDS:
            again = seed != _SEEDS[0] and watcher.passed
            results = _run_lab(audit.lab, lab_impl, seed, plugin=_Chosen(watcher.drawing) if again else None)
            _note_score(audit, name, results)
            wrong = [result.test for result in results if result.state is not State.PASS]
            if wrong:
                audit.findings.append(f"{name}, LAB_SEED={seed}: not passed: {', '.join(wrong)}")
    worth = sum(result.points for result in results)
    if worth != audit.lab.points:
        audit.findings.append(f"lab.toml has {audit.lab.points} points, the tests are worth {worth}")


def _audit_starter(audit: Audit) -> None:
    text = audit.lab.pristine_starter.read_text(encoding="utf-8")
    results = run_text(audit.lab, "starter", text)
    _note_score(audit, "starter", results)
    other = [result.test for result in results if result.state is not State.TODO]
    if other:
        audit.findings.append(f"starter: not TODO: {', '.join(other)}")
    _audit_contract(audit, results)


def _audit_contract(audit: Audit, results: Sequence[LabResult]) -> None:
    """Check that every test names a sentence of README's contract, and that every sentence has a test.

    Where learners write tests, the subjects name the sentences.
    """
    if not any(result.rule for result in results) and audit.lab.contract():
        return
    names = [name for name in ("test_lab.py", "helpers.py") if (audit.lab.folder / name).is_file()]
    told = "".join((audit.lab.folder / name).read_text(encoding="utf-8") for name in names)
    named = {int(number) for number in re.findall(r"\brule=(\d+)", told)}
    sentences = set(range(1, len(audit.lab.contract()) + 1))
    without = [result.test for result in results if not result.rule]
    if without:
        audit.findings.append(f"no rule=, the number of a sentence of README's contract: {', '.join(without)}")
    for number in sorted(named - sentences):
        audit.findings.append(f"rule={number}, but README's contract has {len(sentences)} sentences")
    for number in sorted(sentences - named):
        audit.findings.append(f"no test has rule={number} of README's contract")


def _audit_signatures(audit: Audit) -> None:
    """Compare every file's functions with the starter's: names, arguments, types."""
    want = _signatures(audit.lab.pristine_starter)
    for function in audit.lab.functions:
        if function.name not in want:
            audit.findings.append(f"starter: {function.name} is missing")
    want = {function.name: want.get(function.name, "") for function in audit.lab.functions}
    for file in [audit.lab.solutions / "solution.py", *audit.lab.solutions.glob("alt_*.py")]:
        have = _signatures(file)
        for name, signature in want.items():
            if have.get(name) != signature:
                audit.findings.append(f"{file.name}: {name} has another signature than the starter's")


def _signatures(file: Path) -> dict[str, str]:
    """Return the signatures of the functions, and of the methods as `Class.method`."""
    signatures = {}
    for name, function in _functions(file.read_text(encoding="utf-8")):
        returns = ast.unparse(function.returns) if function.returns else ""
        signatures[name] = f"{ast.unparse(function.args)} -> {returns}"
    return signatures


def _functions(text: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a file with their names, and the methods as `Class.method`."""
    for node in ast.parse(text).body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                yield owner + function.name, function


def digest_of_files(lab: Lab) -> str:
    """Return a digest of the lab's tests, helpers, pristine starter, solutions and mutants, and of its `lab.toml`.

    It is the same whether a checkout ends lines with LF or CRLF, and whatever the hints and predictions are.
    """
    texts = sorted(
        (f"{file.parent.parent.name}/{file.name}", _played(file))
        for file in [*lab.folder.iterdir(), *lab.solutions.iterdir(), lab.pristine_starter]
        if file.is_file() and file.name not in _NOT_PLAYED
    )
    return hashlib.sha256(repr(texts).encode()).hexdigest()


def _played(file: Path) -> bytes:
    """Return the content of a file that can change a wrong version's results."""
    content = file.read_bytes().replace(b"\r\n", b"\n")
    if file.name != "lab.toml":
        return content
    values = tomllib.loads(content.decode())
    for name in _FOR_READERS:
        values.pop(name, None)
    for function in values.get("function", ()):
        function.pop("hints", None)
        function.pop("also", None)
    return repr(values).encode()


def sample_of(lab: Lab, mutants: Sequence[Mutant], seed: str) -> list[Mutant]:
    """Return a quarter of the mutants, rounded up, in order. It depends on the seed and the lab."""
    count = -(-len(mutants) // 4)
    chosen = random.Random(f"{seed} {lab.lab_id}").sample(range(len(mutants)), count)
    return [mutants[place] for place in sorted(chosen)]


def watch(lab: Lab) -> "_Watcher":
    """Run the lab's tests on the solution, and return what each test did."""
    watcher = _Watcher(str((lab.solutions / "solution.py").resolve()))
    watcher.passed = all(result.state is State.PASS for result in _run_lab(lab, watcher.file, plugin=watcher))
    return watcher


def audit_mutants(audit: Audit, watcher: "_Watcher", sample: str | None = None) -> None:
    """Run each spelling of each mutant. Record the tests that catch it, and the belief that its functions get.

    No mutant may get another mutant's belief, not even for a function that it does not change. If two mutants give the
    same results in a function's tests, add a test that distinguishes them, or make them one belief.

    With `sample`, the seed of a sample, run a quarter of them and take the other beliefs as stored. This needs files on
    which all of them were right: if the stored digest is of other files, run all.
    """
    spellings = [spelling for mutant in load_mutants(audit.lab) for spelling in mutant.all_spellings()]
    stored = load_stored(audit.lab)
    if sample is not None and stored.digest == digest_of_files(audit.lab):
        audit.played_all = False
        audit.beliefs = stored.beliefs
        chosen = sample_of(audit.lab, spellings, sample)
        audit.notes.append(f"{len(chosen)} of {len(spellings)} wrong versions played, chosen by {sample}")
        spellings = chosen
    tests_of = _tests_by_function(watcher)
    seen = []
    for mutant in spellings:
        results = _audit_mutant(audit, mutant, tests_of.get(_function_around(audit.lab, mutant)))
        if mutant.module is None:
            wrong = _changed_function(audit.lab, mutant)
            prints = fingerprints(results)
            if mutant.spellings and not (prints if wrong is None else wrong in prints):
                audit.findings.append(f"mutant {mutant.id} gets no belief")
            for function, print_ in prints.items():
                seen.append((mutant, function, print_))
                if wrong in (function, None):
                    if signs_of(results, function) == 1 and mutant.idea not in audit.one_sign:
                        audit.one_sign.append(mutant.idea)
                    audit.beliefs.setdefault(function, {}).setdefault(print_, mutant.belief)
    for mutant, function, print_ in seen:
        known = audit.beliefs.get(function, {}).get(print_, mutant.belief)
        if known != mutant.belief:
            audit.findings.append(f"mutant {mutant.id} gets another belief for {function}: {known.splitlines()[0]}")


def _tests_by_function(watcher: "_Watcher") -> dict[str, set[str]]:
    """Return the tests in which each function of the solution runs. A function without an entry may affect every test.

    A test that never runs a function passes even if that function is wrong, so it need not run again. Threads and
    caches that an earlier test filled are not watched, because no lab uses them.
    """
    if not watcher.passed:
        return {}  # a test that failed may have ended early
    ran = watcher.tests_of.items()
    return {name: tests | watcher.elsewhere for name, tests in ran if name not in watcher.while_loading}


def _function_around(lab: Lab, mutant: Mutant) -> str:
    """Return the function or `Class.method` of the solution that contains the mutant's text, or "" if none does."""
    solution = _source_of(lab, mutant)
    first = solution.count("\n", 0, solution.index(mutant.old)) + 1
    last = first + mutant.old.count("\n")
    for name, function in _functions(solution) if mutant.module is None else ():
        if function.body[0].lineno <= first and last <= (function.end_lineno or 0):
            return name
    return ""


def _audit_mutant(audit: Audit, mutant: Mutant, tests: Collection[str] | None) -> list[LabResult]:
    if mutant.module is not None:
        results = _run_lab(audit.lab, str(audit.lab.solutions / "solution.py"), engine_bug=engine_bug(mutant))
    else:
        results = run_text(audit.lab, mutant.id, mutant.apply(_source_of(audit.lab, mutant)), tests)
    _note_score(audit, mutant.id, results)
    audit.kills[mutant.id] = [result.test for result in results if result.state is State.FAIL]
    if not audit.kills[mutant.id]:
        audit.findings.append(f"mutant {mutant.id} survives")
    for result in results:
        if len(result.message.splitlines()) > MAX_LINES:
            audit.findings.append(f"mutant {mutant.id}, {result.test}: a message of more than {MAX_LINES} lines")
        if mutant.module is None and BROKE_DOWN in result.message:
            audit.findings.append(f"mutant {mutant.id}, {result.test}: {BROKE_DOWN}")
    return results


def run_text(lab: Lab, name: str, text: str, tests: Collection[str] | None = None) -> list[LabResult]:
    """Run the lab's tests on this source text. With `tests`, only those run, and the others count as passed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name.replace('-', '_')}.py"
        file.write_text(text, encoding="utf-8")
        return _run_lab(lab, str(file), plugin=None if tests is None else _Chosen(tests))


def _changed_function(lab: Lab, mutant: Mutant) -> str | None:
    """Return the function whose tests must show the mutant. `None`: every failing test counts, as for a helper."""
    solution = (lab.solutions / "solution.py").read_text(encoding="utf-8")
    start = solution.index(mutant.old) + len(mutant.old) - len(mutant.old.lstrip())
    line = solution.count("\n", 0, start) + 1
    for name, function in _functions(solution):
        if name in [f.name for f in lab.functions] and function.lineno <= line <= (function.end_lineno or line):
            return mutant.function or name
    return mutant.function


def write_fingerprints(audit: Audit) -> None:
    """Store the fingerprints. If the audit has findings, leave out the digest, so that the next one plays all."""
    store(audit.lab, Stored("" if audit.findings else digest_of_files(audit.lab), audit.beliefs))


def _audit_generated(audit: Audit) -> None:
    """Compare the beliefs with those stored for learners, and the lab's files with those on which all were played."""
    stored = load_stored(audit.lab)
    how = f"python -m mini_kv.course.labkit.audit --write {audit.lab.lab_id}"
    if stored.beliefs != audit.beliefs:
        audit.findings.append(f"fingerprints.json is stale: {how}")
    elif stored.digest != digest_of_files(audit.lab):
        audit.notes.append(f"the digest in fingerprints.json is out of date: {how}")


def _audit_learner_files(audit: Audit) -> None:
    """Check that every function has three hints, and that the lab has three questions or more about existing tests."""
    for function in audit.lab.functions:
        if len(function.hints) != 3:
            audit.findings.append(f"lab.toml: function {function.name}: {len(function.hints)} hints, it needs three")
    tests = audit.lab.tests()
    for question in audit.lab.predictions:
        if question.test not in tests:
            near = did_you_mean(question.test, tests)
            about = f"prediction {question.id} is about {question.test}, which does not exist. {near}"
            audit.findings.append(f"lab.toml: {about}".strip())
    if len(audit.lab.predictions) < 3:
        audit.findings.append("lab.toml: fewer than three predictions")
    for name in ("lesson", "question", "chapter", "says"):
        if not getattr(audit.lab, name):
            audit.findings.append(f"lab.toml: {name} is missing")


def _audit_decoration(audit: Audit) -> None:
    """Check that every test with points catches a mutant."""
    useful = {test for tests in audit.kills.values() for test in tests}
    for result in _run_lab(audit.lab, str(audit.lab.solutions / "solution.py")):
        if result.points and result.test not in useful:
            audit.findings.append(f"{result.test} catches no mutant: it checks nothing")


def _note_score(audit: Audit, name: str, results: Sequence[LabResult]) -> None:
    score, total = sum(result.score for result in results), sum(result.points for result in results)
    audit.scores[name] = f"{score}/{total}"


class _Collector:
    """A pytest plugin that passes the engine's bug to the labs' fixture, and keeps the lab's results."""

    results: list[LabResult]

    def __init__(self, engine_bug: Mapping[str, Any]) -> None:
        self.engine_bug = engine_bug

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[ENGINE_BUG] = self.engine_bug

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.results = list(session.config.stash[RESULTS].values())


class _Chosen:
    """A pytest plugin that lets every other test pass without running it."""

    def __init__(self, tests: Collection[str]) -> None:
        self.tests = tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        return None if pyfuncitem.name in self.tests else True  # True: it has been called


class _Watcher:
    """A pytest plugin that records the tests in which each function of a file runs, and those that draw."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.passed = False
        """Whether every test ran to its end."""
        self.drawing: set[str] = set()
        """Tests whose course depends on LAB_SEED."""
        self.tests_of: dict[str, set[str]] = {}
        self.while_loading: set[str] = set()
        """Functions that run as the file is loaded: once, in some test, and for all of them."""
        self.elsewhere: set[str] = set()
        """Tests that run the whole file in a process of its own."""
        self._loading = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.lab_seconds *= 20  # code that is watched is slow

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, bool | None, bool | None]:
        def on_call(frame: FrameType, event: str, argument: object) -> Any:
            code = frame.f_code
            if code is seeds.__code__:
                self.drawing.add(pyfuncitem.name)
            if code.co_filename != self.file:
                return None
            name = code.co_qualname.partition(".<locals>")[0]
            if name == "<module>":
                self._loading = True
                return on_end_of_module
            self.tests_of.setdefault(name, set()).add(pyfuncitem.name)
            if self._loading:
                self.while_loading.add(name)
            return None

        def on_end_of_module(frame: FrameType, event: str, argument: object) -> Any:
            self._loading = event != "return"
            return on_end_of_module

        sys.settrace(on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            if FIXTURE in pyfuncitem.stash and pyfuncitem.stash[FIXTURE].ran_elsewhere:
                self.elsewhere.add(pyfuncitem.name)


def _run_lab(
    lab: Lab,
    lab_impl: str,
    seed: int = 0,
    engine_bug: Mapping[str, Any] | None = None,
    plugin: object | None = None,
) -> list[LabResult]:
    """Run the lab's tests on this implementation in this process without output. Return the results."""
    collector = _Collector(engine_bug or {})
    variables = {"LAB_IMPL": lab_impl, "LAB_SEED": str(seed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no lab needs one
    with _environment(**variables), redirect_stdout(io.StringIO()) as out:
        # The plugin has been imported by now and cannot be rewritten: it holds no assertion.
        options = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        without = ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]  # which collects garbage five times a run
        plugins = [collector, *filter(None, [plugin])]
        status = pytest.main([str(lab.folder), *options, *without], plugins=plugins)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status} on {lab_impl}:\n{out.getvalue()}")
    return collector.results


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables of the environment while the context lasts."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def engine_bug(mutant: Mutant) -> dict[str, Any]:
    """Return the classes and functions of an engine's module with the bug, by name.

    The changed source is loaded as a second module, so the real module is unchanged. A test's cache is built from the
    returned objects: see `LabUnderTest.engine`.
    """
    if mutant.module is None:
        raise ValueError(f"mutant {mutant.id} names no module of the engine")
    text = mutant.apply(inspect.getsource(importlib.import_module(mutant.module)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{mutant.id.replace('-', '_')}.py"
        file.write_text(text, encoding="utf-8")
        changed = load_file(file)
    own = changed.__name__  # what the module imports has another
    return {name: value for name, value in vars(changed).items() if getattr(value, "__module__", None) == own}


def main(argv: Sequence[str] | None = None) -> int:
    """Audit labs by name, and print all scores and the tests that catch each mutant. Return 1 for a fault, else 0."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.course.labkit.audit", description="Check a lab's tests.")
    parser.add_argument("labs", nargs="+", metavar="LAB", help="such as lab-05")
    parser.add_argument("--write", action="store_true", help="store the fingerprints and the starter")
    parser.add_argument("--sample", metavar="SEED", help="play a quarter of the wrong versions if no file has changed")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--show", metavar="ID", help="print the changes of a wrong version, and run nothing")
    args = parser.parse_args(argv)
    if args.show:
        try:
            print("\n".join(line for lab in args.labs for line in show(load_lab(Path("labs") / lab), args.show)))
        except ValueError as error:
            parser.error(str(error))
        return 0
    audits = [audit_lab(Path("labs") / lab, write=args.write, sample=args.sample) for lab in args.labs]
    if args.json:
        print(json.dumps({a.lab.lab_id: _as_dict(a) for a in audits}))
    else:
        for audit in audits:
            _print(audit)
    return 1 if any(audit.findings for audit in audits) else 0


def show(lab: Lab, mutant_id: str) -> Iterator[str]:
    """Yield the belief of a wrong version, and the changes of each spelling. Raises `ValueError` for an unknown one."""
    known = {mutant.id: mutant for mutant in load_mutants(lab)}
    if mutant_id not in known:
        near = did_you_mean(mutant_id, list(known))
        raise ValueError(f"{lab.lab_id} has no wrong version {shown(mutant_id)}. {near}".strip())
    mutant = known[mutant_id]
    yield f"{lab.lab_id}: as if {mutant.belief}\nseen: {mutant.seen}"
    for spelling in mutant.all_spellings():
        right = _source_of(lab, spelling)
        names = (spelling.module or "solution.py", spelling.id)
        yield from difflib.unified_diff(right.splitlines(), spelling.apply(right).splitlines(), *names, lineterm="")


def _source_of(lab: Lab, mutant: Mutant) -> str:
    """Return the text that the mutant changes: the solution, or a module of the engine."""
    if mutant.module is None:
        return (lab.solutions / "solution.py").read_text(encoding="utf-8")
    return inspect.getsource(importlib.import_module(mutant.module))


def _as_dict(audit: Audit) -> dict[str, Any]:
    return {"findings": audit.findings, "notes": audit.notes, "scores": audit.scores, "kills": audit.kills}


def _print(audit: Audit) -> None:
    print(f"{audit.lab.lab_id}  {audit.lab.title}")
    for name, score in audit.scores.items():
        killers = audit.kills.get(name)
        print(f"  {name:<28} {score:>7}   {'' if killers is None else ', '.join(killers)}")
    print(f"{len(audit.kills)} mutants, {sum(map(bool, audit.kills.values()))} caught")
    print(f"{len(audit.one_sign)} beliefs rest on one wrong value, so a learner reads only their question")
    for idea in audit.one_sign:
        print(f"  {idea}")
    for note in audit.notes:
        print(f"note: {note}")
    for finding in audit.findings:
        print(f"WRONG: {finding}")


if __name__ == "__main__":
    sys.exit(main())
