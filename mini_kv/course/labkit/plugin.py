"""pytest's hooks: the states TODO and WAIT, drawn failures, points, the scoreboard.

The root `conftest.py` registers this module with pytest. Tests outside `labs/` are unchanged.
Under pytest-xdist tests run in workers. The process that started them collects and prints the results.
"""

import faulthandler
import gc
import importlib
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Generator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mini_kv.course.labkit import LabTodo
from mini_kv.course.labkit.export import remove_old, write_results
from mini_kv.course.labkit.failure import describe, describe_break_down, num_signs, observed, running_line, with_belief
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.course.labkit.implementation import Implementation, ImplementationError, check_choice, resolve
from mini_kv.course.labkit.lab import NEEDS, PACKAGES, Lab, is_lab_test, load_lab
from mini_kv.course.labkit.misconception import beliefs_for_learner
from mini_kv.course.labkit.progress import record_run
from mini_kv.course.labkit.scoreboard import (
    ASK,
    ENDED,
    LabResult,
    State,
    draw_brief,
    draw_scoreboard,
    first_failures,
    in_full,
)
from mini_kv.course.labkit.tamper_check import changed, functions_of_the_judge
from mini_kv.course.labkit.time_limit import (
    PATIENCE_S,
    TIME_LIMIT_S,
    Clock,
    Interrupted,
    NoVerdictError,
    TookTooLongError,
    hard_limit,
    memory_limit,
    time_limit,
)
from mini_kv.installer import pip
from mini_kv.typed_numbers import number_above_zero

STOPS_OTHERS = (State.FAIL, State.WAIT, State.NO_VERDICT)
"""The states of a test in which those that build on it wait."""
PRINTED = 10_000
"""Most characters kept of one test's output."""
end_python = os._exit
"""The original `os._exit`."""
_PROCESS = os.getpid()

RESULTS = pytest.StashKey[dict[str, LabResult]]()
IMPLEMENTATIONS = pytest.StashKey[dict[str, Implementation]]()
FIXTURE = pytest.StashKey[LabUnderTest]()
LOADED = pytest.StashKey[dict[str, ModuleType | None]]()
"""Module by source, or `None` if loading it was tried and failed."""
ENGINE_BUG = pytest.StashKey[Mapping[str, Any]]()
"""The audit's replacements for the engine's classes and functions, by name."""
NOTES = pytest.StashKey[list[str]]()
"""Sentences about the learner's files, printed after the scoreboard."""
STDERR = pytest.StashKey[int]()
"""File number of the terminal, also while pytest captures the output."""
CLOCK = pytest.StashKey[Clock]()
"""The clock of the running test."""
JUDGE = pytest.StashKey[Mapping[str, Any]]()
"""The judge's functions by name, as they were before a learner's code was loaded."""
OVER = pytest.StashKey[pytest.Session]()
"""Set after all results have been printed and written."""


class Waiting(Exception):
    """Raised in place of a test whose parent failed."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the option that writes the labs' results to a file, and those of a run.

    Also registers the setting `timeout` if pytest-timeout is missing, as in a browser, where nothing interrupts a test.
    """
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "has no effect without pytest-timeout")
    group = parser.getgroup("labs")
    group.addoption("--lab-json", metavar="FILE", help="write the labs' results as JSON")
    group.addoption(
        "--lab-seconds",
        metavar="N",
        type=number_above_zero(10**9),
        default=TIME_LIMIT_S,
        help=f"seconds that a lab's test may compute (default {TIME_LIMIT_S}); it has {PATIENCE_S} s on the clock",
    )
    group.addoption("--brief", action="store_true", help="print one failure in full and count the others: mini-kv run")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, remove results of an earlier run, and refuse an invalid LAB_IMPL."""
    config.addinivalue_line(
        "markers", "lab(points, function, stage, after, rule, why): a lab's test; see mini_kv.course.labkit"
    )
    config.stash[RESULTS] = {}
    config.stash[IMPLEMENTATIONS] = {}
    config.stash[LOADED] = {}
    config.stash[NOTES] = []
    config.stash[STDERR] = os.dup(2)
    config.add_cleanup(lambda: os.close(config.stash[STDERR]))
    if config.getoption("--brief"):
        config.option.tbstyle = "no"  # pytest prints no failure; ours follows
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): has no effect without pytest-timeout")
    try:
        for option in ("--lab-json", "xmlpath"):
            remove_old(config.getoption(option, None))
        check_choice(_choice(), config.invocation_params.dir)
        if _choice() == "starter" and not hasattr(config, "workerinput"):
            config.args += _second_parts(config)
    except (ImplementationError, OSError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None


def _second_parts(config: pytest.Config) -> list[str]:
    """Return the folders of the second parts that the learner has begun, of the labs whose folder is given."""
    folders = [config.invocation_params.dir / argument for argument in config.args]
    labs = [load_lab(folder) for folder in folders if (folder / "lab.toml").is_file()]
    second = [lab.folder.parent / lab.second_part for lab in labs if lab.second_part]
    second_parts = [load_lab(folder) for folder in second if (folder / "lab.toml").is_file()]
    return [str(lab.folder) for lab in second_parts if lab.is_begun and lab.folder not in folders]


def _choice() -> str:
    return os.environ.get("LAB_IMPL") or "solution"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the objects that exist now, so that the collector need not scan them. Replace `os._exit` for learners."""
    gc.freeze()
    if _is_learners(session.config):
        patch = pytest.MonkeyPatch()
        patch.setattr(os, "_exit", _exit)
        if os.name == "posix":
            import posix  # where `os` has it from

            patch.setattr(posix, "_exit", _exit)
        session.config.add_cleanup(patch.undo)
        session.config.stash[JUDGE] = functions_of_the_judge()


def _is_learners(config: pytest.Config) -> bool:
    return not all(implementation.is_reference for implementation in config.stash[IMPLEMENTATIONS].values())


def _exit(status: int) -> None:
    """Replace `os._exit`. A child process may end without a message. A test may not."""
    if os.getpid() != _PROCESS:
        end_python(status)
    raise SystemExit(status)


def pytest_report_header() -> str:
    """Return a line with the code that the labs run."""
    given = os.environ.get("LAB_IMPL")
    return (
        f"labs run: {given} (LAB_IMPL={given})"
        if given
        else "labs run: solution, where there is one (LAB_IMPL is not set)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Give each case of a lab's parametrized test its id as its name: on the scoreboard and on the command line."""
    found = yield
    if isinstance(found, list) and is_lab_test(collector.path):
        for item in found:
            if hasattr(item, "callspec"):
                item.name = item.callspec.id
                item._nodeid = f"{collector.nodeid}::{item.name}"
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find the code to run in each lab, and start every lab test at 0 points."""
    lab_items = [item for item in items if is_lab_test(item.path)]
    folders = list(dict.fromkeys(item.path.parent for item in lab_items))
    try:
        for folder in folders:
            lab = load_lab(folder)
            implementation = resolve(_choice(), lab, len(folders), config.invocation_params.dir)
            if lab.missing is None:
                _import_what_it_needs(lab)
            config.stash[IMPLEMENTATIONS][lab.lab_id] = implementation
    except (ImplementationError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None
    for item in lab_items:
        lab = config.stash[IMPLEMENTATIONS][item.path.parent.name].lab
        config.stash[RESULTS][item.nodeid] = _new_result(lab, item)
        # This project's own tests take every warning for an error; a learner's unclosed file costs no point.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        item.add_marker(pytest.mark.timeout(0), append=False)  # pytest-timeout's clock does not know who computes


def _import_what_it_needs(lab: Lab) -> None:
    """Import PyTorch and Triton before any test's clock runs, because this takes seconds.

    Raises `pytest.UsageError` if one of them cannot be imported, as after an installation that was interrupted.
    """
    try:
        if lab.needs != "C":
            importlib.import_module("torch").set_num_threads(1)  # threads only cost where tensors are tiny
        if lab.needs == "K":
            importlib.import_module("triton.language")  # uninterpreted, as for the rest of the process
    except Exception as error:  # whatever half a package raises
        said = f"{type(error).__name__}: {str(error)[:200]}".splitlines()[0]
        packages = " ".join(PACKAGES[lab.needs])
        raise pytest.UsageError(
            f"{lab.lab_id} needs {NEEDS[lab.needs]}, and what is installed cannot be imported ({said})."
            f" Was the installation interrupted? Repeat it: {pip()} uninstall {packages}, then install them again"
        ) from None


def _new_result(lab: Lab, item: pytest.Item) -> LabResult:
    marker = item.get_closest_marker("lab")
    if marker is None:
        raise pytest.UsageError(f"{item.nodeid} has no @points: every test of a lab needs its points")
    values = marker.kwargs
    shown = {name: values[name] for name in ("points", "function", "stage", "after", "rule")}
    return LabResult(lab, item.name, **shown)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> LabUnderTest:
    """Return the fixture: the learner's functions, and caches to try them on."""
    config = request.config
    implementation = config.stash[IMPLEMENTATIONS][request.path.parent.name]
    about = config.stash[RESULTS][request.node.nodeid].function
    engine_bug = config.stash.get(ENGINE_BUG, {})
    lab_under_test = LabUnderTest(implementation, lambda: _load_once(config, implementation), about, engine_bug)
    request.node.stash[FIXTURE] = lab_under_test
    return lab_under_test


@pytest.fixture
def torch() -> ModuleType:
    """Return PyTorch, for the tests of a lab that needs it. Their file can be loaded without PyTorch."""
    return importlib.import_module("torch")


def _load_once(config: pytest.Config, implementation: Implementation) -> ModuleType:
    """Return the learner's module. If loading it fails, raise the error in the first test. The other tests WAIT."""
    loaded = config.stash[LOADED]
    if implementation.source not in loaded:
        loaded[implementation.source] = None
        with implementation.lab.loading():
            loaded[implementation.source] = implementation.load()
    module = loaded[implementation.source]
    if module is None:
        raise Waiting(f"waits until {implementation.source} can be loaded")
    return module


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Mark a test as waiting if its parent has failed (TODO is not a failure), and skip tests that cannot run here."""
    results = item.config.stash[RESULTS]
    result = results.get(item.nodeid)
    if result is not None and result.lab.missing is not None:
        pytest.skip(result.lab.missing)
    if result is None or result.after is None:
        return
    for other in results.values():
        if other.lab is result.lab and other.test == result.after and other.state in STOPS_OTHERS:
            raise Waiting(f"waits for {result.after}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run a lab's test with its limits of time and memory. The run continues after every error of the code."""
    config, result = item.config, item.config.stash[RESULTS].get(item.nodeid)
    if result is None:
        return (yield)
    with suppress(OSError, ValueError):  # told at the end, if it still cannot be written then
        _write_results(config, ends_in=result)
    marks = [mark.args[0] for mark in item.iter_markers("timeout")]  # ours is 0; a long test brings its own
    seconds = max([config.getoption("--lab-seconds"), *marks])
    is_debugged = "pydevd" in sys.modules  # a person looks at it, line by line
    with (
        nullcontext() if is_debugged else hard_limit(seconds, config.stash[STDERR]),
        time_limit(seconds, last_resort=lambda: _end_python(item)) as config.stash[CLOCK],
        memory_limit() if result.lab.needs == "C" else nullcontext(),
    ):
        if is_debugged:
            config.stash[CLOCK].stop()
        elif FIXTURE in item.stash:
            item.stash[FIXTURE].clock_stopped = config.stash[CLOCK].stopped
        try:
            return (yield)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:  # pytest would stop at both
            if isinstance(error, Interrupted) or getattr(error, "returncode", 0) is None:  # Ctrl-C; a debugger's `quit`
                raise
            raise SystemExit().with_traceback(error.__traceback__) from error


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Stop the clocks, because a person uses the debugger."""
    faulthandler.cancel_dump_traceback_later()
    if CLOCK in config.stash:
        config.stash[CLOCK].stop()


def _write_results(config: pytest.Config, ends_in: LabResult | None = None) -> None:
    """Write the requested file at the end, and before each test, with the test as failed in case Python ends in it."""
    path = config.getoption("--lab-json")
    if path is None or hasattr(config, "workeroutput"):
        return
    results = list(config.stash[RESULTS].values())
    if ends_in is not None:
        results = [replace(r, state=State.FAIL, message=ENDED) if r is ends_in else r for r in results]
    write_results(Path(path), results, over=ends_in is None)


def _end_python(item: pytest.Item) -> None:
    """End this process, because the running code cannot be stopped. Write and print all results so far first."""
    config = item.config
    result = config.stash[RESULTS][item.nodeid]
    source = config.stash[IMPLEMENTATIONS][result.lab.lab_id].file
    line = running_line(sys._current_frames()[threading.main_thread().ident or 0], source)
    why = "an endless loop that catches every exception, also the one that ends it. Write `except Exception`"
    result.state = State.FAIL
    result.message = f"{result.lab.lab_id}  {result.test}\n{why}\nat:  {line}"
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    _finish(config)
    reporter.write_line("")
    if not config.getoption("--brief"):
        reporter.write_line(result.message)
    pytest_terminal_summary(reporter, config)
    sys.stdout.flush()
    end_python(pytest.ExitCode.TESTS_FAILED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the exception of a lab's test into its state and its message."""
    result = item.config.stash[RESULTS].get(item.nodeid)
    if result is None:
        return (yield)
    style, item.config.option.tbstyle = item.config.option.tbstyle, "native"  # of all, the one that parses no source
    try:
        report = yield
    finally:
        item.config.option.tbstyle = style
    report.sections = [(name, _shortened(text)) for name, text in report.sections]
    if call.excinfo is None:
        if report.when == "call" and report.passed:
            result.state = State.PASS
            result.table = item.stash[FIXTURE].table if FIXTURE in item.stash else ()
    elif call.when == "setup" and report.skipped:  # no code of the learner's has run, so the skip is our own
        result.message = str(call.excinfo.value)
    else:
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)  # pytest.xfail() in a learner's code is no excuse
        result.state = _state_of(call.excinfo.value)
        _set_message(item, report, result, call.excinfo)
        report.lab_state = result.state.value  # type: ignore[attr-defined]  # reports carry what plugins add
    return report


def _shortened(text: str) -> str:
    """Return the beginning and the end of a printed text."""
    if len(text) <= PRINTED:
        return text
    half = PRINTED // 2
    return f"{text[:half]}\n({len(text) - PRINTED:,} characters are left out)\n{text[-half:]}"


def _state_of(error: BaseException) -> State:
    if isinstance(error, LabTodo):
        return State.TODO
    if isinstance(error, NoVerdictError):
        return State.NO_VERDICT
    return State.WAIT if isinstance(error, Waiting) else State.FAIL


def _set_message(
    item: pytest.Item, report: pytest.TestReport, result: LabResult, excinfo: pytest.ExceptionInfo[BaseException]
) -> None:
    """Replace the traceback by the drawn message. Keep the traceback with -vv and for errors of the harness."""
    error = excinfo.value
    if result.state is not State.FAIL:
        result.message = str(error)
    else:
        implementation = item.config.stash[IMPLEMENTATIONS][result.lab.lab_id]
        marker = item.get_closest_marker("lab")
        why = marker.kwargs["why"] if marker is not None else ""
        fixture = item.stash.get(FIXTURE, None)
        if fixture is not None and fixture.charged:
            result.function = fixture.charged
        message = describe(error, result, why, fixture, implementation.file)
        if item.config.stash[LOADED].get(implementation.source) is None or isinstance(error, TookTooLongError):
            result.rule = 0  # no function of the learner's has returned or raised anything
        elif isinstance(error, LabFailure):
            result.rule = error.rule or result.rule
        result.signs = num_signs(error)
        result.observed = observed(error, implementation.file, len(fixture.notes) if fixture is not None else 0)
        if message is None and implementation.is_reference:  # our own bug
            report.longrepr = item.repr_failure(excinfo)
            return
        result.message = message or describe_break_down(error, result)
    if item.config.get_verbosity() >= 2:
        report.longrepr = item.repr_failure(excinfo)
        report.sections.append(("In short", result.message))
    else:
        report.longrepr = result.message


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show TODO, WAIT and NO VERDICT as separate states, so that the list of failures starts with a real problem."""
    state = getattr(report, "lab_state", None)
    if state == State.TODO:
        return "todo", "T", "TODO"
    if state == State.WAIT:
        return "wait", "W", "WAIT"
    if state == State.NO_VERDICT:
        return "no verdict", "N", "NO VERDICT"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write a scoreboard per lab, and the sentences about the learner's files."""
    if config.option.collectonly:
        return
    for lab_id, implementation in config.stash[IMPLEMENTATIONS].items():
        results = [result for result in config.stash[RESULTS].values() if result.lab.lab_id == lab_id]
        if config.getoption("--brief"):
            lines = draw_brief(implementation, results, _printed_first(terminalreporter))
        else:
            terminalreporter.section(lab_id)
            lines = draw_scoreboard(implementation, results)
        for line in lines:
            terminalreporter.write_line(line)
    for note in config.stash[NOTES]:
        terminalreporter.write_line(f"note: {note}")


def _printed_first(terminalreporter: Any) -> str:
    """Return the output of the first failing test, because learners debug their code with print()."""
    failures = terminalreporter.stats.get("failed", ())
    return "".join(text for name, text in failures[0].sections if name.startswith("Captured")) if failures else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before JUnit's file is written
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Write all results. A worker sends them instead."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["labs"] = pickle.dumps(config.stash[RESULTS])
        return (yield)
    _finish(config)
    if any(result.state is State.FAIL for result in config.stash[RESULTS].values()):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    yield
    config.stash[OVER] = session


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End Python if it runs only pytest, so that no thread and no `atexit` hook of the learner runs afterwards."""
    if OVER in config.stash and _is_learners(config) and [*config.invocation_params.args] == sys.argv[1:]:
        sys.stdout.flush()
        sys.stderr.flush()
        end_python(config.stash[OVER].exitstatus)


def _finish(config: pytest.Config) -> None:
    """Name beliefs, write the requested files, and store the learner's progress."""
    stash = config.stash
    touched = changed(stash.get(JUDGE, {}), functions_of_the_judge())
    if touched:
        stash[NOTES].append(f"the code changed functions of the judge, so no test counts: {', '.join(touched)[:200]}")
        for result in stash[RESULTS].values():
            result.state, result.message = State.FAIL, stash[NOTES][-1]
    _name_beliefs(config)
    try:
        _write_results(config)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"the results could not be written: {error}") from None
    if _is_learners(config):
        with warnings.catch_warnings():  # files that a learner's code left open, in a cycle: close them unheard
            warnings.simplefilter("ignore")
            gc.collect()
    for lab_id, implementation in stash[IMPLEMENTATIONS].items():
        if implementation.choice == "starter" or Path(implementation.choice).is_dir():
            results = [result for result in stash[RESULTS].values() if result.lab.lab_id == lab_id]
            record_run(implementation, results, stash[NOTES].append)


def _name_beliefs(config: pytest.Config) -> None:
    """Add the learner's possible belief to the first failure of each function, or the rule that the code breaks.

    All tests of a function must have ended before. The failures are printed later. JUnit's file already has their
    texts, so it gets properties.
    """
    junit = [plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "add_global_property")]
    for lab_id, implementation in config.stash[IMPLEMENTATIONS].items():
        results = [result for result in config.stash[RESULTS].values() if result.lab.lab_id == lab_id]
        beliefs = beliefs_for_learner(implementation.lab, results)
        for first in first_failures(results):
            belief = beliefs.get(first.function, "")
            if not belief or belief.startswith(ASK):
                belief = f"{first.breaks()}\n{belief}".strip()
            if belief:
                told, first.message, first.belief = first.message, with_belief(first.message, belief), belief
                _tell_again(config, told, first.message)
            for xml in junit if belief else ():
                xml.add_global_property(f"{lab_id} {first.function}", in_full(belief))


def _tell_again(config: pytest.Config, told: str, message: str) -> None:
    """Replace the text of a report by the message. The terminal prints it later."""
    stats = getattr(config.pluginmanager.get_plugin("terminalreporter"), "stats", {})
    for report in (*stats.get("failed", ()), *stats.get("error", ())):
        report.longrepr = message if report.longrepr == told else report.longrepr
        report.sections = [(title, message if text == told else text) for title, text in report.sections]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the lab tests that a worker of pytest-xdist reports, with the results of those that it ran."""
    config = node.config
    results: dict[str, LabResult] = pickle.loads(getattr(node, "workeroutput", {}).get("labs", pickle.dumps({})))
    for test_id, result in results.items():
        lab = result.lab
        config.stash[IMPLEMENTATIONS].setdefault(lab.lab_id, resolve(_choice(), lab, 1, config.invocation_params.dir))
        if result.state is not State.NOT_RUN or test_id not in config.stash[RESULTS]:
            config.stash[RESULTS][test_id] = result
