"""Reads JSON from other people, which may be broken or hostile, and accepts only JSON with one meaning.

Python's own reader accepts more. Of two equal keys it uses the last, it reads `NaN`, and it turns `1e400` into
infinity. The depth of brackets that it can read depends on the used part of the stack.

A file must be an ordinary file, not too large, in UTF-8, with one object. Otherwise the error describes it in one
sentence. A link may point out of the file's folder, because Hugging Face's cache consists of links to files that are
named by their content.

Standard library only.
"""

import json
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MAX_DEPTH = 64
"""The most levels of nested brackets. Configurations and tokenizers of published models have fewer than ten."""
_WITH_MEMBERS = frozenset({dict, list})
MAX_CONFIG_BYTES = 1 << 20
"""Bytes of the largest file with settings. Published files have a few KiB."""


def loads(text: str, *, infinite: bool = False) -> Any:
    """Parse JSON. `infinite`: accept `Infinity`, too, which Python writes into files that it calls JSON.

    Raises:
        json.JSONDecodeError: the text is not JSON.
        ValueError: an object has a key twice, a number is NaN, infinite or too long, or brackets are nested too deeply.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_repeated_keys,
            parse_constant=_infinite if infinite else _refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise _too_deep() from None
    level = _nested([value])
    for _ in range(MAX_DEPTH):
        level = [member for container in level for member in _nested(container)]
        if not level:
            return value
    raise _too_deep()


def read_object(
    path: Path,
    error: Callable[[Path, str], Exception],
    max_bytes: int = MAX_CONFIG_BYTES,
    *,
    needed_for: str = "the model's sizes",
    infinite: bool = False,
) -> dict[str, Any]:
    """Return the object in a file. `infinite`: as of `loads`.

    Raises `error(path, problem)` if the file is missing or holds something else.
    """
    check_file(path, error, max_bytes, needed_for=needed_for)
    try:
        data = loads(path.read_bytes().decode("utf-8"), infinite=infinite)
    except UnicodeDecodeError as problem:
        message = f"is not UTF-8: byte {problem.start} is 0x{problem.object[problem.start]:02x}"
        raise error(path, message) from None
    except json.JSONDecodeError as problem:
        raise error(path, f"is not JSON: {problem}") from None
    except ValueError as problem:
        raise error(path, f"is not JSON that can be read: {problem}") from None
    if not isinstance(data, dict):
        raise error(path, f"is not an object with settings, but {type(data).__name__}")
    return data


def check_file(path: Path, error: Callable[[Path, str], Exception], max_bytes: int, *, needed_for: str) -> None:
    """Raise `error(path, problem)` for a file that is missing or too large, and for a pipe, which may never end."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise error(path, f"there is no such file, and {needed_for} are read from it") from None
    except (OSError, ValueError) as problem:  # Python's words for a NUL in a path are a ValueError
        raise error(path, f"cannot be read: {problem}") from None
    if not stat.S_ISREG(status.st_mode):
        raise error(path, "is not a regular file")
    if status.st_size > max_bytes:
        raise error(path, f"has {status.st_size:,} bytes, and a file of its kind has at most {max_bytes:,}")


def _nested(value: dict[str, Any] | list[Any]) -> list[Any]:
    """Return the members that have members. Costs one pass at the speed of `map` where there are none."""
    members = list(value.values()) if isinstance(value, dict) else value
    if _WITH_MEMBERS.isdisjoint(map(type, members)):
        return []
    return [member for member in members if type(member) in _WITH_MEMBERS]


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {repeated[:40]!r} twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _infinite(name: str) -> float:
    return _refuse_constant(name) if name == "NaN" else float(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _too_deep() -> ValueError:
    return ValueError(f"brackets are nested more than {MAX_DEPTH} deep")
