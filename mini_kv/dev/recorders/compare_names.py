"""What differs between the names of two versions of vLLM, of those names that this project uses.

Both recordings are of `record_names`, which reads vLLM's source files. A name is used if it is written in the book, in
a lab's page, in `mini_kv.core`, or in the recorders. These are the places to change by hand.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[3]
RECORDERS = ("mini_kv/dev/recorders/record*.py", "mini_kv/dev/recorders/versions.py")
TEXTS = ("book/docs/**/*.md", "mini_kv/course/verify/*.py", "labs/*/README.md", "mini_kv/core/**/*.py", *RECORDERS)
NOT_READ = ("book/docs/api/", "book/docs/labs/", "book/docs/reference/upstream.md")
"""Generated pages, and the page of these differences."""

Names: TypeAlias = dict[str, Any]


def texts(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file in which a name of vLLM may be written."""
    found = {path.relative_to(root).as_posix(): path for pattern in TEXTS for path in sorted(root.glob(pattern))}
    return {name: path.read_text(encoding="utf-8") for name, path in found.items() if not name.startswith(NOT_READ)}


def users(symbol: str, found_in: Mapping[str, str]) -> list[str]:
    """Return the files that use a name such as `BlockPool.touch`. A recorder may use a member without its class."""
    wanted = symbol.removesuffix(".__init__")
    word = re.compile(rf"(?<![\w.]){re.escape(wanted)}(?!\w)")
    member = re.compile(rf"\.{wanted.rpartition('.')[2]}\b")
    return [
        name
        for name, text in found_in.items()
        if (wanted in text and word.search(text))
        or ("." in wanted and name.startswith("mini_kv/dev/recorders/") and member.search(text))
    ]


def changed_names(old: Names, new: Names, used_in: Callable[[str], list[str]]) -> dict[str, Any]:
    """Return what has moved, is gone or is new; names with the files of this project that use them."""
    before, after = _files(old), _files(new)
    moved = {name for name in before.keys() & after.keys() if not before[name] & after[name]}
    gone, added = before.keys() - after.keys(), after.keys() - before.keys()
    return {
        "moved": {name: [*_one(before, after, name), where] for name, where in _used(moved, used_in)},
        "gone": {name: [sorted(before[name])[0], where] for name, where in _used(gone, used_in)},
        "new": {name: [sorted(after[name])[0], where] for name, where in _used(added, used_in)},
        "counts": {"moved": len(moved), "gone": len(gone), "new": len(added)},
        "parameters": _changed_parameters(old, new, used_in),
        "settings": _changed_settings(old["config"], new["config"]),
        "values": {
            kind: {"gone": sorted({*was} - {*now}), "new": sorted({*now} - {*was})}
            for kind, was, now in _lists(old, new)
            if {*was} != {*now}
        },
    }


def _changed_parameters(old: Names, new: Names, used_in: Callable[[str], list[str]]) -> dict[str, Any]:
    """Return the functions that are used and take other parameters: those that are gone, and those that are new."""
    was = {name: given for functions in old["parameters"].values() for name, given in functions.items()}
    now = {name: given for functions in new["parameters"].values() for name, given in functions.items()}
    changed = {name for name in was.keys() & now.keys() if {*was[name]} != {*now[name]}}
    return {
        name: {
            "gone": [item for item in was[name] if item not in now[name]],
            "new": [item for item in now[name] if item not in was[name]],
        }
        for name, _ in _used(changed, used_in)
    }


def _changed_settings(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[str | None]]:
    """Return the settings with another default; none before one that is new, none after one that is gone."""
    was = {f"{cls}.{name}": value for cls, fields in old.items() for name, value in fields.items()}
    now = {f"{cls}.{name}": value for cls, fields in new.items() for name, value in fields.items()}
    return {
        name: [was.get(name), now.get(name)]
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    }


def _files(recording: Names) -> dict[str, set[str]]:
    """Return the files that define each name."""
    files: dict[str, set[str]] = {}
    for file, names in recording["symbols"].items():
        for name in names:
            files.setdefault(name, set()).add(file)
    return files


def _one(before: dict[str, set[str]], after: dict[str, set[str]], name: str) -> list[str]:
    """Return one file of each version."""
    return [sorted(before[name])[0], sorted(after[name])[0]]


def _used(names: Iterable[str], used_in: Callable[[str], list[str]]) -> list[tuple[str, list[str]]]:
    """Return the names that are used, with the files. A member of a class that is itself in the list is left out."""
    names = {*names}
    found = [(name, used_in(name)) for name in sorted(names) if name.partition(".")[0] not in names - {name}]
    return [(name, where) for name, where in found if where]


def _lists(old: Names, new: Names) -> list[tuple[str, list[str], list[str]]]:
    """Return the recorded lists of values: the flags of the server, its metrics, the choices of a setting."""
    choices = [
        (name, old["literals"].get(name, []), new["literals"].get(name, []))
        for name in sorted(old["literals"].keys() | new["literals"].keys())
    ]
    return [(kind, old[kind], new[kind]) for kind in ("flags", "metrics")] + choices
