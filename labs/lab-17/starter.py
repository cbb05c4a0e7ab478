"""lab-17: a KV cache from an empty file, written by you. The contract and the protocol are in README.md.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-17
    $env:LAB_IMPL="starter"; pytest labs/lab-17                (Windows, PowerShell)

    mini-kv verify --challenge labs/lab-17/starter.py          the board: a square per scenario
"""

from typing import Any


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one message of the protocol."""
    return {"skip": "not built yet"}
