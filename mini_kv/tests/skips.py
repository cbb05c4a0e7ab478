"""A pytest plugin: a skipped test is told at the end, and where a skip would be a lie it is a failure.

At the end stands also how to reword a sentence in a test.
"""

import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MAY_SKIP = {
    "darwin": r"\btriton\b|\bTriton\b|only Linux tells who waits|gives memory only when it is touched",
    "win32": "",
}
"""What a system may lack in CI, by `sys.platform`: a pattern of the reasons. Elsewhere nothing may be missing.

There is no Triton for macOS. Windows runs the suite without packages, and has no signals, no make and no bash, so there
every reason counts.
"""


def skips_fail(reason: str, system: str = sys.platform) -> bool:
    """Return whether a test that is skipped for this reason counts as a failed one: in CI, or on demand."""
    if os.environ.get("CI") != "true" and not os.environ.get("MINI_KV_NO_SKIP"):
        return False
    allowed = MAY_SKIP.get(system)
    return allowed is None or re.search(allowed, reason) is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a test's skip into a failure where none may be."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole file, as by `importorskip`, into a failure where none may be."""
    report = yield
    _forbid(report)
    return report


def _forbid(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and skips_fail(_reason(report)):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed here: {_reason(report)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what could not run here; each reason says how to get what is missing."""
    skipped = {_reason(report) for report in terminalreporter.stats.get("skipped", [])}
    if skipped:
        terminalreporter.section("what could not run on this machine")
        for reason in sorted(skipped):
            terminalreporter.write_line(f"  {reason}")
    failed = {Path(report.fspath) for report in terminalreporter.stats.get("failed", [])}
    for path in sorted(path for path in failed if path.is_file() and b"inline_snapshot" in path.read_bytes()):
        terminalreporter.write_line(f"if only words have changed: make snapshots ARGS={path}")


def _reason(report: Any) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
