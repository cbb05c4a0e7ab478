"""A slider over pictures: the reader changes one number of an experiment.

    Lever("tokens per block", {"1": chart_1, "2": chart_2, ...})       a notebook shows it as its cell's result
    Lever(..., challenge=Challenge("Find the ...", lambda label: ...))       and a position to find

The engine has drawn one picture for each position. So a move needs no time, no kernel and no network, and the lever
also works in an exported page. Without scripts it shows its first picture.
"""

import html
from collections.abc import Mapping
from typing import Protocol

from mini_kv.course.lessons.challenge import Challenge
from mini_kv.course.lessons.trusted import plain, trusted


class Shown(Protocol):
    """An object that a notebook shows as HTML, with a sentence about its finding."""

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""

    def _repr_html_(self) -> str: ...


MOVE = (
    "const box=this.closest('.kv-lever'),at=+this.value;"
    "box.querySelectorAll('[data-at]').forEach((one,i)=>{one.hidden=i!==at});"
    "const label=box.querySelectorAll('[data-at]')[at].dataset.at;"
    "box.querySelector('output').textContent=label;this.setAttribute('aria-valuetext',label)"
)
"""Script of a move: show the picture and the label of the position."""
ANSWER = (
    "const box=this.closest('.kv-lever'),one=box.querySelectorAll('[data-at]')[box.querySelector('input').value];"
    "this.nextElementSibling.textContent='met' in one.dataset?`${one.dataset.at}: yes, that is it.`:"
    "`${one.dataset.at}: no, not this one.`"
)
"""Script of the button: show whether the current position meets the challenge."""


class Lever:
    """A slider with one picture per position."""

    def __init__(
        self, name: str, pictures: Mapping[str, Shown], start: int = 0, challenge: Challenge | None = None
    ) -> None:
        """`name`: the number that the slider sets. `pictures`: by label, in order. `start`: the first label.

        `challenge`: checked once per label, here. So its button works without a kernel.
        Raises `ValueError` for fewer than two positions, an unknown start, or a challenge that the start meets or
        that no position meets.
        """
        if len(pictures) < 2:
            raise ValueError(f"a lever needs at least two positions, not {len(pictures)}")
        if not 0 <= start < len(pictures):
            raise ValueError(f"a lever of {len(pictures)} positions cannot start at {start}")
        self.name = name
        self.pictures = dict(pictures)
        self.start = start
        self.challenge = challenge
        self.met = [label for label in pictures if challenge and challenge.met(label)]
        if challenge and (not self.met or [*pictures][start] in self.met):
            raise ValueError(f"a challenge must be met by a position, but not by the start: {self.met}")

    def _repr_html_(self) -> str:
        return trusted(self.fragment())

    def fragment(self) -> str:
        """Return the slider and its pictures, for a page."""
        labels = [*self.pictures]
        frames = "".join(
            f'<div data-at="{html.escape(label)}"{" data-met" if label in self.met else ""}'
            f"{'' if i == self.start else ' hidden'}>{plain(picture)}</div>"
            for i, (label, picture) in enumerate(self.pictures.items())
        )
        now = html.escape(labels[self.start])
        slider = (
            f'<input type="range" min="0" max="{len(labels) - 1}" value="{self.start}" aria-valuetext="{now}"'
            f' style="display:block;width:100%;height:44px;margin:0" oninput="{html.escape(MOVE)}">'
        )
        return (
            '<div class="kv-lever" style="max-width:42rem"><label style="display:block;margin:.6em 0">'
            f"{html.escape(self.name)}: <output><b>{now}</b></output>{slider}</label>{frames}{self._challenge()}</div>"
        )

    def _challenge(self) -> str:
        if not self.challenge:
            return ""
        return (
            f'<p class="kv-challenge"><b>Challenge.</b> {html.escape(self.challenge.ask)} <button type="button"'
            f' style="min-height:44px;padding:0 1em" onclick="{html.escape(ANSWER)}">This one</button>'
            ' <span role="status"></span></p>'
        )
