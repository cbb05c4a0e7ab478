"""A slider over pictures: the reader's hand on one number of an experiment.

    Lever("tokens per block", {"1": chart_1, "2": chart_2, ...})       a notebook shows it as its cell's result

The engine has drawn one picture for each position, so a move takes no time, and neither a kernel nor a network: in an
exported page the lever is as alive as in the notebook. Without scripts it is the picture at which it starts.
"""

import html
from collections.abc import Mapping
from typing import Protocol


class Shown(Protocol):
    """Whatever a notebook can show as HTML, with a sentence that says what there is to see."""

    sentence: str

    def _repr_html_(self) -> str: ...


MOVE = (
    "const box=this.closest('.kv-lever'),at=+this.value;"
    "box.querySelectorAll('[data-at]').forEach((one,i)=>{one.hidden=i!==at});"
    "const label=box.querySelectorAll('[data-at]')[at].dataset.at;"
    "box.querySelector('output').textContent=label;this.setAttribute('aria-valuetext',label)"
)
"""What a move does: show the picture of its position, and say which that is."""


class Lever:
    """A slider with a picture for each of its positions."""

    def __init__(self, name: str, pictures: Mapping[str, Shown], start: int = 0) -> None:
        """`name`: what the slider sets. `pictures`: by the label of their position, in order. `start`: where it begins.

        Raises `ValueError` for fewer than two positions, or a start that is none of them.
        """
        if len(pictures) < 2:
            raise ValueError(f"a lever needs at least two positions, not {len(pictures)}")
        if not 0 <= start < len(pictures):
            raise ValueError(f"a lever of {len(pictures)} positions cannot start at {start}")
        self.name = name
        self.pictures = dict(pictures)
        self.start = start

    def _repr_html_(self) -> str:
        labels = [*self.pictures]
        frames = "".join(
            f'<div data-at="{html.escape(label)}"{"" if i == self.start else " hidden"}>{picture._repr_html_()}</div>'
            for i, (label, picture) in enumerate(self.pictures.items())
        )
        now = html.escape(labels[self.start])
        slider = (
            f'<input type="range" min="0" max="{len(labels) - 1}" value="{self.start}" aria-valuetext="{now}"'
            f' style="width:16em;max-width:60%;vertical-align:middle" oninput="{html.escape(MOVE)}">'
        )
        return (
            '<div class="kv-lever" style="max-width:42rem"><label style="display:block;margin:.6em 0">'
            f"{html.escape(self.name)}: {slider} <output><b>{now}</b></output></label>{frames}</div>"
        )
