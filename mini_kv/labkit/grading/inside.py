"""The half of `mini-kv grade` that runs in the submission's process: a pytest plugin that reports to the parent.

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

from mini_kv.labkit.grading.isolation import LIMITS, PIPES
from mini_kv.labkit.misconception import find_beliefs

_MESSAGE = 4_000
"""The most characters of a failure's message in the report."""


def pytest_configure(config: pytest.Config) -> None:
    """Read the word, set the limits, and remove both from the environment."""
    limit(json.loads(os.environ.pop(LIMITS)))
    read, write = map(int, os.environ.pop(PIPES).split(","))
    with os.fdopen(read, "rb") as pipe:
        word = pipe.read().decode()

    def tell(what: dict[str, Any], send: Callable[[int, bytes], int] = os.write) -> None:
        send(write, f"{word} {json.dumps(what)}\n".encode())

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

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self.results: dict[str, Any] = {}
        self.implementations: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report the tests' names and points."""
        from mini_kv.labkit.plugin import IMPLEMENTATIONS, RESULTS  # not sooner: pytest wants to load it itself

        self.results, self.implementations = session.config.stash[RESULTS], session.config.stash[IMPLEMENTATIONS]
        told = [[r.test, r.points, r.function, r.stage] for r in self.results.values()]
        self.tell({"tests": told})

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the result of the test."""
        result = self.results[nodeid]
        self.tell({"test": result.test, "state": str(result.state), "message": result.message[:_MESSAGE]})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report the recognised beliefs, the changed functions of the judge, and the end."""
        from mini_kv.labkit.plugin import changed

        beliefs: dict[str, str] = {}
        for implementation in self.implementations.values():
            beliefs |= find_beliefs(implementation.lab, list(self.results.values()))
        self.tell({"end": True, "changed": changed(session.config)[:20], "beliefs": beliefs})
