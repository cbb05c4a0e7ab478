"""The half of `mini-kv class grade` that runs in the submission's process: a pytest plugin that reports to the parent.

The parent passes two pipes. The plugin reads a secret word from the first pipe before pytest collects any test. It
writes lines to the second pipe, and each begins with this word. The report is evidence, not a mark. The parent knows
the tests and counts the points.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mini_kv.course.grading.isolation import LIMITS, PIPES
from mini_kv.course.labkit.tamper_check import changed, functions_of_all_modules

_MESSAGE = 4_000
"""The most characters of a failure's message in the report."""
_OBSERVED = 20_000
"""The most characters of a test's values in the report."""


def pytest_configure(config: pytest.Config) -> None:
    """Read the word, set the limits, and remove both from the environment."""
    limit(json.loads(os.environ.pop(LIMITS)))
    read, write = map(int, os.environ.pop(PIPES).split(","))
    with os.fdopen(read, "rb") as pipe:
        word = pipe.read().decode()

    def tell(*fields: str, send: Callable[[int, bytes], int] = os.write) -> None:
        """Write a line. It needs only methods of `str` and `bytes`, which no code can replace."""
        coded = [field.encode("utf-8", "replace").hex() for field in fields]
        send(write, f"{' '.join([word, *coded])}\n".encode())

    config.pluginmanager.register(_Teller(tell))


def limit(limits: dict[str, int]) -> None:
    """Limit this process and what it starts: {"CPU": seconds, "AS": bytes, ...}, where the system has limits."""
    if sys.platform == "win32":
        return
    import resource

    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


class _Teller:
    """Reports to the parent: the tests, the result of each, and changed functions outside the submission."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self.tell = tell
        self.results: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report the tests' names and points."""
        from mini_kv.course.labkit.plugin import RESULTS  # not sooner: pytest wants to load it itself

        self.results = session.config.stash[RESULTS]
        for r in self.results.values():
            self.tell("collected", r.test, str(r.points), r.function, r.stage)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Note all functions. Every hook of the collection has run, and no code of the submission."""
        self.functions = functions_of_all_modules()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the result of the test."""
        r = self.results[nodeid]
        self.tell("test", r.test, str(r.state), r.message[:_MESSAGE], r.function, r.observed[:_OBSERVED])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Report the changed functions, and the end."""
        self.tell("end", *changed(self.functions, functions_of_all_modules())[:20])
