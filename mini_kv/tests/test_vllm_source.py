"""Every event and every cause links to a recorded function of vLLM, and to one of ours that exists."""

import json
from functools import reduce
from importlib import import_module, resources

import pytest
from mini_kv_book.upstream import recording

from mini_kv.dev.recorders.record_names import LINES, record_lines
from mini_kv.story.edge import EdgeKind
from mini_kv.story.vllm_source import CAUSES, EVENTS, Place, all_places, event_symbols
from mini_kv.tools.traces.causes import CauseName


def found(path: str) -> object:
    """Return what a dotted path below `mini_kv` names. The longest part that is a module is imported."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(["mini_kv", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[end:], module)
    raise LookupError(path)


def test_every_kind_of_event_and_every_cause_has_a_place():
    assert set(EVENTS) == set(EdgeKind)
    assert set(CAUSES) == set(CauseName)


@pytest.mark.parametrize("place", all_places(), ids=lambda place: place.symbol)
def test_vllm_has_the_symbol_and_mini_kv_has_its_counterpart(place: Place):
    assert place.symbol in recording()["symbols"][place.file]
    assert callable(found(place.here))


def test_a_link_opens_the_line_of_the_function_in_the_recorded_version():
    url = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/block_pool.py#L769"
    assert EVENTS[EdgeKind.EVICTED].url == url


def test_the_recording_has_the_version_and_the_symbols_of_the_table():
    """If this fails: python -m mini_kv.dev.recorders.record_names with the folder of vLLM's unpacked wheel."""
    recorded = json.loads(resources.files("mini_kv.story").joinpath("vllm_source.json").read_text(encoding="utf-8"))
    assert recorded["version"] == recording()["version"]
    assert recorded["events"] == event_symbols()
    symbols = [(file, symbol) for file, lines in recorded["lines"].items() for symbol in lines]
    assert sorted(symbols) == sorted({(place.file, place.symbol) for place in all_places()})


def test_the_recorded_line_is_that_of_the_definition(tmp_path):
    """A made-up package has each function at the line of the recording, and is recorded in the same words."""
    for file, lines in json.loads(LINES.read_text(encoding="utf-8"))["lines"].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(source_with(lines), encoding="utf-8")
    assert record_lines(tmp_path) == LINES.read_text(encoding="utf-8")


def source_with(lines: dict[str, int]) -> str:
    """Return a module that defines each symbol at its line."""
    text = [""] * (max(lines.values()) + 1)
    for symbol, number in lines.items():
        cls, _, method = symbol.rpartition(".")
        if cls:
            text[number - 2] = f"class {cls}:"
            text[number - 1] = f"    def {method}(self): ..."
        else:
            text[number - 1] = f"def {method}(): ..."
    return "\n".join(text)
