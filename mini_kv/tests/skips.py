"""A pytest plugin: a skipped test is told at the end, and where a skip would be a lie it is a failure."""

import os
from collections.abc import Generator
from typing import Any

import pytest


def skips_fail() -> bool:
    """Return whether a skipped test counts as a failed one: in CI, or on demand."""
    return os.environ.get("CI") == "true" or bool(os.environ.get("MINI_KV_NO_SKIP"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where none may be."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and skips_fail():
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed here: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what could not run here; each reason says how to get what is missing."""
    skipped = {_reason(report) for report in terminalreporter.stats.get("skipped", [])}
    if skipped:
        terminalreporter.section("what could not run on this machine")
        for reason in sorted(skipped):
            terminalreporter.write_line(f"  {reason}")


def _reason(report: Any) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
