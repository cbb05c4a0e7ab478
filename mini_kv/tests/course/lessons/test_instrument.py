"""An instrument keeps differences: what its marks say at every position is what was drawn there."""

import html
import json
import re
from itertools import product

import pytest

from mini_kv.course.lessons.instrument import Control, Instrument, Mark, View, handle

MARK = re.compile(r"<(rect|path|text|circle|span)([^>]*?)(?: data-vary='([^']*)')?>([^<]*)</\1>")
ATTRIBUTE = re.compile(r' ([\w-]+)="([^"]*)"')


def unpack(table):
    """Return the values of a table, as the page's script does."""
    runs = table["to"] if isinstance(table, dict) else table
    values = [value for run in runs for value in ([run[0]] * run[1] if isinstance(run, list) else [run])]
    return [table["of"][:length] for length in values] if isinstance(table, dict) else values


def at_position(vary, at, sizes):
    """Return what a mark's differences say at a position, as the page's script reads them."""
    values = {}
    for key, by, table in json.loads(html.unescape(vary) or "[]"):
        place = 0
        for control in by:
            place = place * sizes[control] + at[control]
        values[key] = str(unpack(table)[place])
    return values


def seen(instrument, at):
    """Return what a reader sees when the controls are there: kinds, attributes and texts; and the sentence."""
    sizes = [len(control.labels) for control in instrument.controls]
    marks, drawing = [], instrument.fragment().partition("<svg")[2]
    for tag, written, vary, words in MARK.findall(drawing):
        values = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(written)}
        values |= {"text": html.unescape(words)} if tag in ("text", "span") else {}
        values["hidden"] = str(int(values.pop("style", "") == "display:none"))
        values |= at_position(vary, at, sizes)
        if values.pop("hidden") == "0":
            marks.append((tag, values))
    return [mark for mark in marks if mark[0] != "span"], [mark[1]["text"] for mark in marks if mark[0] == "span"]


def drawn(view):
    """Return the same of a view as it was drawn."""
    return [(mark.tag, {key: str(value) for key, value in mark.values.items()}) for mark in view.marks.values()]


def of_two_controls():
    """Return an instrument with a bar that grows, a path that grows, and a mark that is seen at one corner alone."""

    def draw(size, colour):
        marks = {
            "bar": Mark("rect", x=0, width=size / 3, of=("red", "<blue>")[colour]),
            "path": Mark("path", d="M0 0" + "h10v10" * (10 + size)),
            "size": Mark("text", f"{size} & more", x=1),
            "same": Mark("circle", r=3),
        }
        if (size, colour) in ((0, 0), (4, 1)):
            marks["corner"] = Mark("text", f"corner {size}", x=size)
        return View(marks, ("At ", f"{size}'s", " place."))

    controls = (
        Control("size", [str(size) for size in range(5)], start=2),
        Control("colour", ("red", "blue"), choice=True),
    )
    return Instrument("Two <controls>", controls, draw, (100, 50))


@pytest.mark.parametrize("at", [*product(range(5), range(2))])
def test_every_position_is_as_it_was_drawn(at):
    instrument = of_two_controls()
    marks, says = seen(instrument, at)
    assert marks == drawn(instrument.views[at])
    assert says == [f"{at[0]}'s"]


def test_without_a_script_it_is_the_picture_at_which_it_starts():
    fragment = of_two_controls().fragment()
    assert '<div class="kv-controls" hidden>' in fragment
    assert "Two &lt;controls&gt;" in fragment
    assert "<script" not in fragment
    start, texts = seen(of_two_controls(), (2, 0))
    still = re.sub(r" data-vary='[^']*'", "", fragment)
    assert ([dict(ATTRIBUTE.findall(found[1])) for found in MARK.findall(still) if found[0] == "rect"], texts) == (
        [{"x": "0", "width": "0.7", "class": "red"}],
        ["2's"],
    )
    assert len(start) == 4  # the corner is not seen there, and not shown
    assert still.count('style="display:none"') == 1


def test_a_path_that_grows_is_written_once():
    assert of_two_controls().fragment().count("h10v10" * 14) == 1


@pytest.mark.parametrize(
    ("labels", "start", "said"), [(["1"], 0, "at least two positions, not 1"), (["1", "2"], 2, "cannot start at 2")]
)
def test_a_control_that_cannot_move_is_refused(labels, start, said):
    with pytest.raises(ValueError, match=said):
        Control("size", labels, start)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda at: View({"a": Mark(("rect", "path")[at])}), "the mark 'a' is once path and once rect"),
        (lambda at: View({}, ("x",) * (1 + at)), "pieces of the sentence: once 1 and once 2"),
    ],
)
def test_a_mark_and_a_sentence_keep_their_shape(draw, said):
    with pytest.raises(ValueError, match=said):
        Instrument("x", [Control("c", ("1", "2"))], draw, (1, 1)).fragment()


def test_a_handle_says_what_it_moves():
    assert handle(0, 0, 9, 9, across=1, up=0).values["data-drag"] == '{"x":1,"y":0}'
