"""What adapters in Python have in common: a method per call, errors that become results, a loop over standard input."""

import json
import runpy
import sys
from typing import Any


class NotBuiltError(Exception):
    """The engine lacks what a scenario needs. The scenario is skipped, and the report says why."""


class Adapter:
    """Answers each call with the method of its name, and adds all that can be seen.

    A subclass has a method `do_<call>(message)` for each call, `do_start` among them, and `visible()`.
    """

    part = "manager"
    """The part of the suite that the engine plays: `manager` or `scheduler`."""

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a message. An exception is a result: which one it is, is part of what is compared."""
        call = message["call"]
        if message.get("part", self.part) != self.part:
            return {"skip": f"there is no {message['part']}"}
        do = getattr(self, f"do_{call}", None)
        if do is None:
            return {"skip": f"`{call}` is not built"}
        try:
            result = do(message) or {}
        except NotBuiltError as missing:
            return {"skip": str(missing)}
        except Exception as error:  # an engine may raise anything
            result = {"error": type(error).__name__}
        return {"result": result, **self.visible()}

    def visible(self) -> dict[str, Any]:
        """Return all that can be seen of the engine."""
        raise NotImplementedError


def _answer_lines(file: str) -> None:
    """Answer all messages on standard input with the function `answer` of a Python file, as lab-17 wants it."""
    answer = runpy.run_path(file).get("answer")
    if answer is None:
        sys.exit(f"{file} has no function `answer`")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def run(*adapters: Adapter) -> None:
    """Answer all messages on standard input. Each `start` goes to the adapter of its part."""
    adapter = adapters[0]
    for line in sys.stdin:
        message = json.loads(line)
        if message["call"] == "start":
            adapter = next((other for other in adapters if other.part == message["part"]), adapters[0])
        print(json.dumps(adapter.answer(message)), flush=True)


if __name__ == "__main__":
    _answer_lines(sys.argv[1])
