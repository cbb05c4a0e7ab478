"""A picture with controls: the engine's results at every position of the controls, drawn once.

    Instrument("What is computed", [Control("words", ["1", "2", ...])], draw)

`draw(position)` returns the picture at a position, as named marks, and the sentence below it. It is called for every
position at once, so a move needs neither an engine nor a network. Without scripts, and on paper, the reader sees the
first picture. If marks are equal at many positions, only the differences are kept:

    draw(0) = {"row 3": Mark("rect", x=0, width=10)}
    draw(1) = {"row 3": Mark("rect", x=0, width=20)}   ->   <rect x="0" width="10" data-vary='[["width",[0],[10,20]]]'>
"""

import html
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from typing import Any

from mini_kv.course.lessons.trusted import trusted

Value = str | float
"""The type of an attribute. Numbers are written as short as possible."""
Position = tuple[int, ...]
"""The position of each control, in their order, from 0."""


@dataclass(frozen=True, slots=True)
class Control:
    """A slider, or a choice among a few labels."""

    name: str
    labels: Sequence[str]
    start: int = 0
    choice: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` for fewer than two positions, or a start outside them."""
        if len(self.labels) < 2:
            raise ValueError(f"the control {self.name!r} needs at least two positions, not {len(self.labels)}")
        if not 0 <= self.start < len(self.labels):
            raise ValueError(f"the control {self.name!r} of {len(self.labels)} positions cannot start at {self.start}")


class Mark:
    """An element of the drawing, with its attributes. `_` in their names becomes `-`."""

    def __init__(self, tag: str, text: str = "", /, **attributes: Value) -> None:
        """`text`: the content of a text element. The argument `of` sets the attribute `class`."""
        self.tag = tag
        self.values = {name.replace("_", "-"): _short(value) for name, value in attributes.items()}
        if "of" in self.values:
            self.values["class"] = self.values.pop("of")
        if tag == "text":
            self.values["text"] = text


@dataclass(frozen=True, slots=True)
class View:
    """The picture at one position of all controls."""

    marks: dict[str, Mark]
    """Marks by a name that is the same at all positions. A mark that is missing at a position is hidden there."""
    says: Sequence[str] = field(default=())
    """The sentence below the picture, in pieces: the changing ones, and those between them."""


class Instrument:
    """A drawing with its controls."""

    def __init__(
        self, title: str, controls: Sequence[Control], draw: Callable[..., View], size: tuple[int, int]
    ) -> None:
        """Draw the picture at every position.

        Args:
            title: the heading.
            controls: sliders and choices. The number of pictures is the product of their positions.
            draw: called with one position per control. Returns the picture there.
            size: width and height of the drawing, in units of its marks.

        Raises `ValueError` if a mark changes its kind, or the sentence its number of pieces.
        """
        self.title = title
        self.controls = controls
        self.size = size
        self.views = {at: draw(*at) for at in product(*(range(len(one.labels)) for one in controls))}
        self.start = tuple(one.start for one in controls)

    def _repr_html_(self) -> str:
        """Return the drawing with its style and script, for a notebook."""
        return f"<style>{STYLE}</style>{trusted(self.fragment())}<script>{script()}</script>"

    def fragment(self) -> str:
        """Return the drawing without its style and script, which a page needs once."""
        width, height = self.size
        return (
            f'<figure class="kv-instrument"><p class="kv-title">{html.escape(self.title)}</p>'
            f'<div class="kv-controls" hidden>{"".join(map(_control, self.controls))}</div>'
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(self.title)}">'
            f'{"".join(self._marks())}</svg><figcaption role="status">{"".join(self._sentence())}</figcaption></figure>'
        )

    def _marks(self) -> Iterator[str]:
        for name in dict.fromkeys(name for view in self.views.values() for name in view.marks):
            there = {at: view.marks[name] for at, view in self.views.items() if name in view.marks}
            tag = _the_one(f"the mark {name!r} is", [mark.tag for mark in there.values()])
            tables = {
                key: self._table({at: mark.values.get(key, "") for at, mark in there.items()})
                for key in dict.fromkeys(key for mark in there.values() for key in mark.values)
            }
            tables["hidden"] = self._table({at: int(at not in there) for at in self.views})
            yield self._element(tag, tables)

    def _sentence(self) -> Iterator[str]:
        num_pieces = _the_one("pieces of the sentence:", [len(view.says) for view in self.views.values()])
        for piece in range(num_pieces):
            tables = {"text": self._table({at: view.says[piece] for at, view in self.views.items()})}
            yield self._element("span", tables) if tables["text"][0] else html.escape(tables["text"][1][0])

    def _element(self, tag: str, tables: dict[str, tuple[list[int], list[Any]]]) -> str:
        """Return an element with its first values, and its changes as data."""
        now = {key: values[self._place(by)] for key, (by, values) in tables.items()}
        vary = [[key, by, _packed(values)] for key, (by, values) in tables.items() if by]
        text = html.escape(str(now.pop("text", "")), quote=False)
        style = ' style="display:none"' if now.pop("hidden", 0) else ""
        written = "".join(f' {key}="{html.escape(str(value))}"' for key, value in now.items())
        changes = json.dumps(vary, ensure_ascii=False, separators=(",", ":")) if vary else ""
        data = f" data-vary='{changes.replace('&', '&amp;').replace(chr(39), '&#39;').replace('<', '&lt;')}'"
        return f"<{tag}{written}{style}{data if vary else ''}>{text}</{tag}>"

    def _table(self, values: dict[Position, Any]) -> tuple[list[int], list[Any]]:
        """Return the controls on which a value depends, and its values there. A gap repeats the last value."""
        by = [control for control in range(len(self.controls)) if _depends(values, control)]
        known: dict[Position, Any] = {}
        for at, value in values.items():
            if known.setdefault(tuple(at[control] for control in by), value) != value:
                # No two positions of this mark, which is rarely seen, differ in one control alone.
                by = [*range(len(self.controls))]
                known = values
                break
        result: list[Any] = []
        for at in product(*(range(len(self.controls[control].labels)) for control in by)):
            result.append(known.get(at, result[-1] if result else next(iter(known.values()))))
        return by, result

    def _place(self, by: list[int]) -> int:
        """Return the index of the start in a table."""
        place = 0
        for control in by:
            place = place * len(self.controls[control].labels) + self.start[control]
        return place


def handle(
    x: float, y: float, width: float, height: float, *, across: int | None = None, up: int | None = None
) -> Mark:
    """Return a part of the drawing that can be dragged. `across` and `up`: indices of the controls that it moves.

    A control's first position is at the left or the lower edge.
    """
    axes = {"x": across, "y": up}
    drag = json.dumps({axis: control for axis, control in axes.items() if control is not None}, separators=(",", ":"))
    return Mark("rect", of="kv-handle", x=x, y=y, width=width, height=height, data_drag=drag)


def script() -> str:
    """Return the JavaScript that activates every instrument of a page. A second copy does no harm."""
    return resources.files("mini_kv.course.lessons").joinpath("instrument.js").read_text(encoding="utf-8")


def _control(control: Control) -> str:
    name, now = html.escape(control.name), html.escape(control.labels[control.start])
    if control.choice:
        radios = "".join(
            f'<label><input type="radio" value="{at}"{" checked" * (at == control.start)}> {html.escape(one)}</label>'
            for at, one in enumerate(control.labels)
        )
        return f"<fieldset data-control><legend>{name}</legend>{radios}</fieldset>"
    labels = html.escape(json.dumps(list(control.labels), ensure_ascii=False))
    return (
        f'<label data-control data-labels="{labels}">{name} <input type="range" min="0" max="{len(control.labels) - 1}"'
        f' value="{control.start}" aria-valuetext="{now}"> <b aria-hidden="true">{now}</b></label>'
    )


def _the_one(what: str, values: list[Any]) -> Any:
    """Return the one value that all of these equal. Raises `ValueError` if there are several."""
    if len(set(values)) > 1:
        raise ValueError(f"{what} once {' and once '.join(map(str, sorted(set(values))))}")
    return values[0]


def _depends(values: dict[Position, Any], control: int) -> bool:
    """Return whether two positions that differ in this control alone have different values."""
    different: dict[Position, set[Any]] = {}
    for at, value in values.items():
        different.setdefault(at[:control] + at[control + 1 :], set()).add(value)
    return any(len(found) > 1 for found in different.values())


def _short(value: Value) -> Value:
    """Return a number with only the digits that a drawing shows."""
    if isinstance(value, float):
        value = round(value, 1)
        return int(value) if value == int(value) else value
    return value


def _packed(values: list[Any]) -> list[Any] | dict[str, Any]:
    """Return a table in its shortest form. For a growing path: the whole path and the lengths of its beginnings."""
    longest = max(map(str, values), key=len)
    if len(longest) > 40 and all(isinstance(value, str) and longest.startswith(value) for value in values):
        return {"of": longest, "to": _runs([len(value) for value in values])}
    return _runs(values)


def _runs(values: list[Any]) -> list[Any]:
    """Return a table in which repeats of a value are `[value, times]`."""
    result: list[Any] = []
    for value in values:
        if result and isinstance(result[-1], list) and result[-1][0] == value:
            result[-1][1] += 1
        elif result and result[-1] == value:
            result[-1] = [value, 2]
        else:
            result.append(value)
    return result


STYLE = (
    ".kv-instrument{margin:1.5em 0;max-width:42rem;font:15px/1.5 system-ui,sans-serif}"
    ".kv-instrument .kv-title{margin:0 0 .4em;font-weight:650}"
    ".kv-controls{display:flex;flex-wrap:wrap;gap:.4em 1.6em;margin:.4em 0}.kv-controls[hidden]{display:none}"
    ".kv-controls label{margin-right:.8em;line-height:1.9;white-space:nowrap}"
    ".kv-controls label[data-control]{display:flex;flex-wrap:wrap;flex:1 1 18em;column-gap:.5em;margin:0}"
    ".kv-controls input[type=range]{order:1;width:100%;height:24px;margin:0}"  # below its name and position
    ".kv-controls b{min-width:3em;font-weight:650;font-variant-numeric:tabular-nums}"
    ".kv-controls fieldset{display:flow-root;border:0;margin:0;padding:0;width:100%}"
    ".kv-controls legend{float:left;padding:0;margin-right:.6em;line-height:1.9}"
    ".kv-controls fieldset label{display:inline-flex;align-items:center;min-height:28px}"
    "@media(max-width:44em),(pointer:coarse){.kv-controls{gap:0}"  # for a finger
    ".kv-controls label[data-control]{flex-basis:100%}.kv-controls input[type=range]{height:44px}"
    ".kv-controls legend{line-height:44px}.kv-controls fieldset label{min-height:44px;padding:0 .3em}"
    ".kv-controls input[type=radio]{width:24px;height:24px;margin:0 .4em 0 0}}"
    ".kv-instrument svg{display:block;width:100%;max-width:45em;height:auto;overflow:visible;user-select:none}"
    ".kv-instrument text{fill:currentColor;font-size:11px;text-rendering:geometricPrecision}"
    # A drawing becomes wider with its box. Its letters stay between 12 and 16 pixels.
    "@media screen{.kv-instrument text{font-size:clamp(9.5px,21px - 1.66vw,15.5px)}}"
    ".kv-instrument text.huge{font-size:20px}.kv-instrument .mid{text-anchor:middle}"
    ".kv-instrument .end{text-anchor:end}.kv-instrument .soft{opacity:.75}.kv-instrument .big{font-weight:650}"
    ".kv-instrument .blue{fill:#0072b2}.kv-instrument .orange{fill:#e69f00}.kv-instrument .green{fill:#009e73}"
    ".kv-instrument .pink{fill:#cc79a7}.kv-instrument .pale{fill:#0072b2;opacity:.35}"
    ".kv-instrument .line,.kv-instrument .dash{fill:none;stroke:currentColor}.kv-instrument .dash{stroke-dasharray:4 3}"
    ".kv-instrument .dark{fill:#111}"
    ".kv-handle{fill:transparent;cursor:grab;touch-action:none}"
    ".kv-instrument figcaption{margin:.4em 0 0;max-width:none;font-style:normal;text-align:left;min-height:3em;"
    "font-variant-numeric:tabular-nums}@media print{.kv-controls{display:none}}"
)
