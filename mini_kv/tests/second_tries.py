"""A pytest plugin: says at the end why a test needed a second try, since a slow machine and a rare fault look alike."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the error of each try that another one followed."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"why {report.nodeid} was tried again")
        error = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        terminalreporter.write_line("\n".join(error or report.longreprtext.splitlines()[-12:]))
