"""What differs between two recordings of the same scenarios, and a recording put together again from what differs.

One recording is held as a whole. Of another version of vLLM only the calls that differ are held. `with_changes` makes
the whole recording of the other version from both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mini_kv.course.verify.scenario_language import State

Scenarios: TypeAlias = Mapping[str, Any]
"""A recording's scenarios by name, each with its settings and calls."""
Changes: TypeAlias = dict[str, dict[str, State]]
"""By scenario, then by the number of the call, from 1: what the other version recorded for this call."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A scenario that differs, and the first call after which it does."""

    scenario: str
    settings: Mapping[str, Any]
    calls: tuple[str, ...]
    """The calls up to the first one that differs."""
    fields: Mapping[str, tuple[str, str]]
    """By field: what the held version shows after this call, and what the other one shows."""
    num_calls: int
    """The calls of the scenario after which any field differs."""


def changed_calls(held: Scenarios, other: Scenarios) -> Changes:
    """Return what the other version recorded, of the calls that were recorded differently."""
    changes: Changes = {}
    for name in other:
        pairs = zip(held[name]["calls"], other[name]["calls"], strict=True)
        changed = {str(i): theirs[1] for i, (ours, theirs) in enumerate(pairs, start=1) if ours[1] != theirs[1]}
        if changed:
            changes[name] = changed
    return changes


def with_changes(held: Scenarios, changes: Changes) -> dict[str, Any]:
    """Return the other version's recording of the scenarios that differ."""
    return {
        name: {
            "settings": held[name]["settings"],
            "calls": [
                [text, changed.get(str(i), fields)] for i, (text, fields) in enumerate(held[name]["calls"], start=1)
            ],
        }
        for name, changed in changes.items()
    }


def differences(held: Scenarios, other: Scenarios) -> Iterator[Difference]:
    """Yield the scenarios after whose calls the two versions show something different."""
    for name in other:
        found = []
        pairs = zip(_states(held[name]["calls"]), _states(other[name]["calls"]), strict=True)
        for number, (ours, theirs) in enumerate(pairs, start=1):
            fields = {field: (ours[field], theirs[field]) for field in ours if ours[field] != theirs[field]}
            if fields:
                found.append((number, fields))
        if found:
            number, fields = found[0]
            calls = tuple(text for text, _ in held[name]["calls"][:number])
            yield Difference(name, held[name]["settings"], calls, fields, len(found))


def differing_plans(held: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the plans that differ. A plan is one call, and its settings are the held plan."""
    for name, theirs in other.items():
        ours = held[name]
        fields = {key: (str(ours[key]), str(theirs[key])) for key in ours if ours[key] != theirs[key]}
        yield Difference(name, ours, (), fields, 1)


def _states(calls: list[tuple[str, State]]) -> Iterator[State]:
    """Yield the whole state after each call."""
    state: State = {}
    for _, changed in calls:
        state = state | changed
        yield state
