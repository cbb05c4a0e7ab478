"""JSON that means one thing only: for files from others, which may be broken or hostile.

Python's own reader is more generous: of two equal keys it takes the last, it reads `NaN`, it turns `1e400` into
infinity, and how deep it follows brackets depends on how much of the stack is in use.

Standard library only.
"""

import json
import math
from typing import Any

MAX_DEPTH = 64
"""Brackets within brackets; the configurations and tokenizers that models are published with have less than ten."""


def loads(text: str) -> Any:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: it is none.
        ValueError: an object has a key twice, a number is NaN, infinite or too long, or brackets are nested too deeply.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_without_repeated_keys, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [_members(value) for value in level]
        level = [member for members in inner for member in members if isinstance(member, dict | list)]
        if not level:
            return value
    raise _too_deep()


def _members(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {repeated[:40]!r} twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _too_deep() -> ValueError:
    return ValueError(f"brackets are nested more than {MAX_DEPTH} deep")
