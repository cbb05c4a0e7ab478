"""The tables of the page `reference/upstream.md`: what changed between two versions of vLLM.

    <!-- table upgrade manager -->

Everything is read from `book/data/upstream.json`, which `make upstream VERSION=x` writes, and from the recordings that
are held. By hand are only the causes in `book/data/upgrade_causes.toml`: why the calls of some scenarios differ.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mini_kv.course.verify import manager, scheduler
from mini_kv.course.verify.verdict_report import BY_BLOCK, LABELS
from mini_kv.dev.recorders.compare_calls import Difference, differences, differing_plans, with_changes
from mini_kv.dev.recorders.planning import PLANNING
from mini_kv_book.recorded import table

CHANGES = Path(__file__).parents[1] / "data" / "upstream.json"
CAUSES = CHANGES.with_name("upgrade_causes.toml")
RECORDINGS = {"manager": manager.RECORDING, "scheduler": scheduler.RECORDING, "planning": PLANNING}


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """Why scenarios differ between two versions: a cause of `book/data/upgrade_causes.toml`."""

    versions: list[str]
    part: str
    whom: str
    """For whom it matters."""
    title: str
    words: str
    symbol: str
    """Where vLLM's code has changed."""
    fields: list[str] = field(default_factory=list)
    setting: str = ""
    matches: str = ""

    def explains(self, difference: Difference) -> bool:
        """Return whether exactly these fields differ, or the setting matches."""
        if self.fields:
            return list(difference.fields) == self.fields
        return bool(re.search(self.matches, str(difference.settings.get(self.setting, ""))))


@cache
def causes() -> list[Cause]:
    """Return the causes that are written by hand."""
    return [Cause(**told) for told in tomllib.loads(CAUSES.read_text(encoding="utf-8"))["cause"]]


@cache
def changes() -> dict[str, Any]:
    """Return what `make upstream` wrote."""
    found: dict[str, Any] = json.loads(CHANGES.read_text(encoding="utf-8"))
    return found


@cache
def found_in(part: str) -> tuple[Difference, ...]:
    """Return the scenarios of a part that differ."""
    held: dict[str, Any] = json.loads(RECORDINGS[part].read_text(encoding="utf-8"))
    changed = changes()[part]["changes"]
    if part == "planning":
        return tuple(differing_plans(held, changed))
    return tuple(differences(held["scenarios"], with_changes(held["scenarios"], changed)))


def by_cause(part: str) -> dict[Cause | None, list[Difference]]:
    """Return the differences of a part by their causes; those without one come last."""
    known = [cause for cause in causes() if cause.part == part and cause.versions == [*versions()]]
    groups: dict[Cause | None, list[Difference]] = {cause: [] for cause in (*known, None)}
    for difference in found_in(part):
        groups[next((cause for cause in known if cause.explains(difference)), None)].append(difference)
    return {cause: group for cause, group in groups.items() if group}


def versions() -> tuple[str, str]:
    """Return the older and the newer version."""
    return changes()["old"], changes()["new"]


def other() -> str:
    """Return the version that is not the held one, as it is spoken."""
    return short(next(version for version in versions() if version != changes()["held"]))


def short(version: str) -> str:
    """Return the version as it is spoken.

    >>> short("0.33.0")
    '0.33'
    """
    return version.removesuffix(".0")


def as_markdown(what: str) -> str:
    """Return one of the page's tables. Raises `KeyError` for an unknown one."""
    tables: Mapping[str, Callable[[], Iterator[str]]] = {
        "summary": summary,
        "short": _in_short,
        "manager": lambda: _behaviour("manager"),
        "scheduler": lambda: _behaviour("scheduler"),
        "planning": plans,
        "settings": settings,
        "names": names,
    }
    return "\n".join(tables[what]())


def summary() -> Iterator[str]:
    """Yield a row per part: how much was played on both versions, and how much differs."""
    rows: list[tuple[object, ...]] = []
    for part, unit in (("manager", "scenarios"), ("scheduler", "scenarios"), ("planning", "plans")):
        found = changes()[part]
        if "failed" in found:
            rows.append((part, f"the recorder failed: `{found['failed']}`", "", "", ""))
            continue
        played, num_different = found["compared"], len(found["changes"])
        rows.append((part, f"{played} {unit}", played - num_different, num_different, len(found["left_out"])))
    yield table(["part", "played on both", "equal", "differ", f"not in {other()}"], rows)


def _in_short() -> Iterator[str]:
    """Yield for whom something changed, and what."""
    found = [(part, cause) for part in RECORDINGS for cause in by_cause(part)]
    rows = [(cause.whom, cause.title) if cause else ("", f"No cause is known: {part}") for part, cause in found]
    yield table(["if you use", "this changed"], rows, of_words=True)


def _behaviour(part: str) -> Iterator[str]:
    """Yield a section per cause, with an example, and what could not be played."""
    if not found_in(part):
        yield "Nothing differs."
    for cause, group in by_cause(part).items():
        yield from _of_cause(cause, group)
    for reason, left_out in _reasons(changes()[part]["left_out"]).items():
        yield f"Not played by {other()}: {counted(left_out, 'scenario')}, because `{reason}`."
        yield ""


def _of_cause(cause: Cause | None, group: Sequence[Difference]) -> Iterator[str]:
    """Yield the section of a cause."""
    title, words = (cause.title, cause.words) if cause else ("No cause is known", "To be explained by hand.")
    num_calls = sum(difference.num_calls for difference in group)
    yield from (f"### {title}", "", words, "")
    where = f"In vLLM: `{cause.symbol}`. " if cause else ""
    yield f"{where}{counted(group, 'scenario')} differ, after {num_calls} of their calls. The shortest one:"
    yield ""
    yield from example(min(group, key=lambda difference: len("".join(difference.calls))))
    yield ""
    yield f'??? note "All scenarios of this kind: {len(group)}"'
    yield ""
    yield from (f"    - {difference.scenario}" for difference in group)
    yield ""


def example(difference: Difference) -> Iterator[str]:
    """Yield the calls up to the first one that differs, and both sides."""
    yield f"*{difference.scenario}*"
    yield ""
    yield from ("```text", *difference.calls, "```", "")
    old, new = map(short, versions())
    fields = [row for name, values in difference.fields.items() for row in rows(name, *in_order(values))]
    shown = [(label, code(was), code(now)) for label, was, now in fields]
    yield table(["after the last call", old, new], shown, of_words=True)


def rows(field: str, was: str, now: str) -> list[tuple[str, str, str]]:
    """Return the label and both values of a field; of a field with a word per block only the blocks that differ."""
    if field not in BY_BLOCK:
        return [(LABELS[field], was, now)]
    pairs = enumerate(zip(was.split(), now.split(), strict=True))
    return [(f"{LABELS[field]}, block {block_id}", *pair) for block_id, pair in pairs if pair[0] != pair[1]]


def code(text: str) -> str:
    """Return the text as code; nothing has no marks."""
    return f"`{text}`" if text else "none"


def counted(items: Sequence[Any], noun: str) -> str:
    """Return the number of items with their noun.

    >>> counted(["a"], "scenario"), counted(["a", "b"], "scenario")
    ('1 scenario', '2 scenarios')
    """
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _reasons(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return by reason what was not played."""
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def plans() -> Iterator[str]:
    """Yield a section per cause with a row per model, and what could not be planned."""
    if not found_in("planning"):
        yield "Nothing differs."
    for cause, group in by_cause("planning").items():
        yield from (f"### {cause.title if cause else 'No cause is known'}", "")
        yield from ((cause.words, "", f"In vLLM: `{cause.symbol}`.", "") if cause else ())
        rows = []
        for difference in group:
            others = [key for key in difference.fields if key not in _PLANNED]
            rows.append((difference.scenario, *(_change_of(difference, key) for key in _PLANNED), _in_code(others)))
        head = ["model", "tokens per block", "blocks", "longest requests at once", "differ, too"]
        yield from (table(head, rows, of_words=True), "")
    for reason, left_out in _reasons(changes()["planning"]["left_out"]).items():
        yield f"Not planned by {other()}: {', '.join(left_out)}, because of `{reason}`."
        yield ""


_PLANNED = ("block_size", "num_blocks", "max_concurrency")
"""What a row shows of a plan."""


def _change_of(difference: Difference, key: str) -> str:
    """Return a number of both plans, the older version's first."""
    if key not in difference.fields:
        return "same"
    was, now = in_order(difference.fields[key])
    return f"{float(was):,.1f} to {float(now):,.1f}" if "." in was else f"{int(was):,} to {int(now):,}"


def in_order(held_and_other: tuple[str, str]) -> tuple[str, str]:
    """Return the value of the older version, then that of the newer one."""
    of_held, of_other = held_and_other
    return (of_other, of_held) if changes()["held"] == changes()["new"] else (of_held, of_other)


def settings() -> Iterator[str]:
    """Yield the settings with another default, and the values that are new or gone."""
    found = changes()["names"]
    old, new = map(short, versions())
    defaults = [
        (f"`{name}`", "not there" if was is None else f"`{was}`", "gone" if now is None else f"`{now}`")
        for name, (was, now) in found["settings"].items()
    ]
    yield from (table(["setting", f"default in {old}", f"default in {new}"], defaults, of_words=True), "")
    values = [
        (_KINDS.get(kind, f"`{kind}`"), _in_code(its["gone"]), _in_code(its["new"]))
        for kind, its in found["values"].items()
    ]
    yield table(["", f"gone in {new}", f"new in {new}"], values, of_words=True)


_KINDS = {"flags": "flags of the server", "metrics": "metrics"}


def _in_code(values: Sequence[str]) -> str:
    """Return the values as code, with commas."""
    return ", ".join(f"`{value}`" for value in values) or "none"


def names() -> Iterator[str]:
    """Yield the names that this project uses and that have moved, are gone or are new, with the files to change."""
    found = changes()["names"]
    old, new = map(short, versions())
    moved = [
        *((f"`{name}`", f"`{was}`", f"`{now}`", _in_code(where)) for name, (was, now, where) in found["moved"].items()),
        *((f"`{name}`", f"`{was}`", "gone", _in_code(where)) for name, (was, where) in found["gone"].items()),
        *((f"`{name}`", "not there", f"`{now}`", _in_code(where)) for name, (now, where) in found["new"].items()),
    ]
    yield from (table(["name", f"in {old}", f"in {new}", "used in"], moved, of_words=True), "")
    parameters = [
        (f"`{name}`", _in_code(its["gone"]), _in_code(its["new"])) for name, its in found["parameters"].items()
    ]
    head = ["function", "parameters that are gone", f"parameters that are new in {new}"]
    yield table(head, parameters, of_words=True)
