"""The half of `mini-kv grade` that runs beside a submission: a pytest plugin that tells the parent what happened.

The parent passes two pipes. From one comes a word, read to its end before pytest collects anything; into the other go
lines that each begin with it. What is said here is evidence and no mark: the parent knows the tests, and counts.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mini_kv.labkit.misconception import find_beliefs

PIPES = "MINI_KV_PIPES"
LIMITS = "MINI_KV_LIMITS"
_MESSAGE = 4_000
"""Characters of a failure's message that are passed on."""


def pytest_configure(config: pytest.Config) -> None:
    """Take the word and the limits, and forget both."""
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
    """Tells the parent which tests there are, how each ended, and what was changed that is not the submission's."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        self.before: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.implementations: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell the tests' names and points; remember the judge as it is before the submission is loaded."""
        from mini_kv.labkit.plugin import IMPLEMENTATIONS, RESULTS  # not sooner: pytest wants to load it itself

        self.results, self.implementations = session.config.stash[RESULTS], session.config.stash[IMPLEMENTATIONS]
        told = [[r.test, r.points, r.function, r.stage] for r in self.results.values()]
        self.tell({"tests": told})
        self.before = dict(_judge())

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Tell how the test ended."""
        result = self.results[nodeid]
        self.tell({"test": result.test, "state": str(result.state), "message": result.message[:_MESSAGE]})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Tell what the student may believe, what was changed of the judge, and that all is over."""
        now = dict(_judge())
        changed = [name for name, thing in self.before.items() if now.get(name) is not thing]
        beliefs: dict[str, str] = {}
        for implementation in self.implementations.values():
            beliefs |= find_beliefs(implementation.lab, list(self.results.values()))
        self.tell({"end": True, "changed": changed[:20], "beliefs": beliefs})


def _judge() -> Iterator[tuple[str, Any]]:
    """Yield every function of mini_kv and of pytest by its name, as it stands in its module or class now."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("mini_kv", "_pytest", "pytest", "pluggy") or module is None:
            continue
        for name, thing in list(vars(module).items()):
            if callable(thing):
                yield f"{module_name}.{name}", thing
            if isinstance(thing, type) and thing.__module__ == module_name:
                for inner, method in list(vars(thing).items()):
                    if callable(method) or isinstance(method, property | classmethod | staticmethod):
                        yield f"{module_name}.{name}.{inner}", method
