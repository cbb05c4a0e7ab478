"""The language of the recorded scenarios, of the manager and of the scheduler: calls, and states in words.

A scenario is a table of settings and a list of calls, one per line: a verb, the request's handle, numbers, options:

    allocate A 0..7 100 hit=pass => free: 1..9 | refs: 0 0 0

What follows `=>` is where mini_kv differs on purpose: what it shows instead of the recorded fields. The scenario names
the deviation. `unchanged` instead of a field means that in mini_kv all but the result is as it was before the call.

After every call the whole visible state is put into words, each field a line of text. Equal text means equal state, and
a difference can be read. Hashes are numbered in the order in which they first appear, because every engine hashes in
its own way: what counts is which blocks have the same hash. The field for them is called `keys`.
"""

import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).parent / "scenarios"

State: TypeAlias = dict[str, str]


@cache
def load_recording(path: Path) -> dict[str, Any]:
    """Return what vLLM answered: a header, and each scenario's settings and calls, with the fields that a call changed.

    A scenario of a generator has its group and purpose there, too.
    """
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recorded


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a scenario."""

    text: str
    """As written, without the deviation."""
    verb: str
    handle: str
    numbers: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, str], ...] = ()
    """Fields in which mini_kv differs from the recording on purpose, with what mini_kv shows."""
    unchanged: bool = False
    """Whether vLLM's state changes and mini_kv's, on purpose, does not."""

    def option(self, name: str) -> str | None:
        """Return the last value given for the option."""
        return dict(self.options).get(name)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings and the calls to play with them."""

    name: str
    group: str
    purpose: str
    settings: dict[str, Any]
    deviations: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Language:
    """What a scenario can say, of the manager or of the scheduler."""

    verbs: Collection[str]
    without_request: Collection[str]
    """Verbs that are followed by no handle."""
    fields: Sequence[str]
    """What can be seen after a call, the result first."""
    defaults: Mapping[str, Any]
    """Settings of a scenario that names none."""
    shorthand: Callable[[str, list[str]], list[str]]
    """Returns the calls that a verb and its words stand for; none if the verb is a call."""

    def load(self, paths: Sequence[Path], recording: Path) -> list[Scenario]:
        """Return the scenarios of a recording, in its order. The files have those that are written by hand."""
        by_hand = {scenario.name: scenario for scenario in self.read(paths)}
        recorded = load_recording(recording)["scenarios"]
        return [by_hand.get(name) or self._parse_recorded(name, values) for name, values in recorded.items()]

    def read(self, paths: Sequence[Path]) -> list[Scenario]:
        """Return the scenarios of the files, in their order."""
        tables = [tomllib.loads(path.read_text(encoding="utf-8"))["scenario"] for path in paths]
        return [self.parse_scenario(values) for table in tables for values in table]

    def _parse_recorded(self, name: str, recorded: Mapping[str, Any]) -> Scenario:
        """Return a scenario that stands in the recording alone. In none of its calls mini_kv differs on purpose."""
        head = {"name": name, "group": recorded["group"], "purpose": recorded["purpose"]}
        calls = "\n".join(text for text, _ in recorded["calls"])
        return self.parse_scenario({**head, **recorded["settings"], "calls": calls})

    def parse_scenario(self, values: dict[str, Any]) -> Scenario:
        """Return the scenario that the table describes. Raises `ValueError` or `KeyError` for anything unknown."""
        values = dict(values)
        name, group, purpose = values.pop("name"), values.pop("group"), values.pop("purpose")
        deviations = tuple(values.pop("deviations", ()))
        lines = [line.strip() for line in values.pop("calls").splitlines()]
        if values.keys() - self.defaults.keys():
            raise ValueError(f"{name}: unknown settings {sorted(values.keys() - self.defaults.keys())}")
        calls = tuple(call for line in lines if line and not line.startswith("#") for call in self.parse_line(line))
        return Scenario(name, group, purpose, {**self.defaults, **values}, deviations, calls)

    def parse_line(self, line: str) -> Iterator[Call]:
        """Yield the calls of one line: one, or what a shorthand stands for."""
        text, _, difference = line.partition(" => ")
        verb, *words = text.split()
        calls = self.shorthand(verb, words)
        if calls and difference:
            raise ValueError(f"{line!r}: a shorthand is several calls; write out the one that differs")
        for call in calls or [text.strip()]:
            yield self._parse_call(call, difference)

    def _parse_call(self, text: str, difference: str) -> Call:
        verb, *words = text.split()
        if verb not in self.verbs:
            raise ValueError(f"{text!r}: unknown call; there are {', '.join(self.verbs)}")
        handle = "" if verb in self.without_request else words.pop(0)
        numbers = tuple(word for word in words if "=" not in word and word != "gate")
        named = (word.partition("=") for word in words if word not in numbers)
        options = tuple((name, value) for name, _, value in named)
        parts = [part.strip() for part in difference.split(" | ")] if difference else []
        differs = tuple(self._parse_field(part, text) for part in parts if part != "unchanged")
        return Call(text, verb, handle, numbers, options, differs, unchanged="unchanged" in parts)

    def _parse_field(self, part: str, text: str) -> tuple[str, str]:
        """Return a field that differs, and its value."""
        field, _, value = part.partition(":")
        if field not in self.fields:
            raise ValueError(f"{text!r}: {field!r} is not a field; there are {', '.join(self.fields)}")
        return field, value.strip()


def parse_numbers(words: Sequence[str]) -> list[int]:
    """Return the numbers in the words.

    >>> parse_numbers(["0..3", "100", "true"])
    [0, 1, 2, 3, 100, True]
    """
    numbers: list[int] = []
    for word in words:
        first, dots, last = word.partition("..")
        if word == "true":
            numbers.append(True)
        else:
            numbers += range(int(first), int(last) + 1) if dots else [int(first)]
    return numbers


def format_numbers(numbers: Sequence[int]) -> str:
    """Return the numbers as `parse_numbers` reads them; three or more in a row become a run.

    >>> format_numbers([7, 1, 2, 3, 9, 10])
    '7 1..3 9 10'
    """
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    words: list[str] = []
    for start, end in pairwise(starts):
        run = numbers[start:end]
        words += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
    return " ".join(words)


def format_groups(tables: Sequence[Sequence[int]]) -> str:
    """Return the numbers of each group's blocks; 0 is the null block.

    >>> format_groups([[1, 2, 3], [], [0, 0, 7]])
    '1..3 / - / 0 0 7'
    """
    return " / ".join(format_numbers(ids) or "-" for ids in tables) if len(tables) > 1 else format_numbers(tables[0])


def pool_in_words(reply: Mapping[str, Any], handles: Iterable[str], labels: dict[str, int]) -> State:
    """Return the fields of a reply that are about blocks, in words. Fields that the program does not show are missing.

    Args:
        reply: a program's reply.
        handles: all requests, in the order in which they came.
        labels: the hashes in the order of their first appearance, from 1. New ones are added.
    """
    state: State = {}
    if "tables" in reply:
        tables = {handle: reply["tables"].get(handle, []) for handle in handles}
        state["tables"] = "; ".join(f"{name}: {format_groups(ids)}" for name, ids in tables.items() if any(ids))
    if "refs" in reply:
        state["refs"] = " ".join(map(str, reply["refs"]))
    if "free" in reply:
        state["free"] = format_numbers(reply["free"])
    if "hashes" in reply:
        hashes = reply["hashes"]
        for block_hash in hashes:
            if block_hash is not None:
                labels.setdefault(block_hash, len(labels) + 1)
        state["keys"] = " ".join("-" if block_hash is None else str(labels[block_hash]) for block_hash in hashes)
        if "found" in reply:
            state["answers"] = "; ".join(_answers(hashes, reply["found"], labels))
    return state


def _answers(hashes: Sequence[str | None], found: Sequence[int | None], labels: Mapping[str, int]) -> list[str]:
    """Return which block the index gives for a hash of several blocks. For others, only where the index is wrong."""
    answers = []
    by_hash = {block_hash: block_id for block_hash, block_id in zip(hashes, found, strict=True) if block_hash}
    for block_hash, block_id in by_hash.items():
        if hashes.count(block_hash) > 1 or block_id is None or hashes[block_id] != block_hash:
            answers.append(f"key {labels[block_hash]}: {'none' if block_id is None else block_id}")
    return answers


def parse_groups(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of layers of a scenario: kind, tokens per block, and the tokens of a window or a chunk.

    >>> parse_groups({"groups": "full:4 window:2:5", "block_size": 4})
    [{'kind': 'full', 'block_size': 4}, {'kind': 'window', 'block_size': 2, 'reach': 5}]
    """
    words = settings["groups"].split() or [f"full:{settings['block_size']}"]
    groups = []
    for kind, *numbers in (word.split(":") for word in words):
        groups.append({"kind": kind, **dict(zip(("block_size", "reach"), map(int, numbers), strict=False))})
    return groups
