"""A cache drawn as a table: a row per block, a cell per slot, and the overwritten tokens."""

import html
from collections.abc import Sequence

from mini_kv.course.lessons.chart import ORANGE


class SlotMap:
    """The content of each slot, for a notebook. Plain HTML without scripts.

    Args:
        sentence: the finding, printed below the table.
        blocks: content by block and place. Empty: no token.
        overwritten: pairs of an overwritten token and its replacement, in order.
    """

    def __init__(self, sentence: str, blocks: Sequence[Sequence[str]], overwritten: Sequence[tuple[str, str]]) -> None:
        self.sentence = sentence
        self.blocks = blocks
        self.before = {new: old for old, new in overwritten}

    def _repr_html_(self) -> str:
        places = range(len(self.blocks[0]))
        head = "".join(f'<th scope="col">{place}</th>' for place in places)
        rows = "".join(
            f'<tr><th scope="row">{number}</th>{"".join(map(self._cell, block))}</tr>'
            for number, block in enumerate(self.blocks)
        )
        return (
            '<figure style="margin:0;max-width:42rem"><table style="border-collapse:collapse">'
            f'<thead><tr><th scope="col">block</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
            f"<figcaption>{html.escape(self.sentence)}</figcaption></figure>"
        )

    def _cell(self, name: str) -> str:
        lost, old = [], self.before.get(name)
        while old is not None:
            lost.append(old)
            old = self.before.get(old)
        edge = f"3px solid {ORANGE}" if lost else "1px solid currentColor"
        gone = "".join(f" <s>{html.escape(old)}</s>" for old in lost)
        text = html.escape(name) or "&middot;"
        return f'<td style="border:{edge};padding:.2em .6em;text-align:left">{text}{gone}</td>'
