"""One step of the figure as an SVG, for paper, a README, and pages without scripts.

It is the drawing of `kv_story/draw.js`, with the same positions. Both read colours, signs and sizes from `look.json`.
A test compares the two in a browser.

    svg(story_data(load_scenario("share-and-evict")), step=2)
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from mini_kv.story.language import fill, words
from mini_kv.story.state import State, states
from mini_kv.story.story_json import Data

LOOK: Data = json.loads(resources.files("mini_kv.story").joinpath("look.json").read_text(encoding="utf-8"))
"""Colours, signs and sizes, which the figure's script reads too."""
HELD, LINE, CARD, INK, SOFT, RULE, TAG, NEW = (
    LOOK["light"][name] for name in ("held", "line", "card", "ink", "soft", "rule", "tag", "new")
)
TINTS = [person["tint"] for person in LOOK["persons"]["light"]]
"""Background colours of referenced blocks, by the request that computed them."""
HEAD: int = LOOK["head"]
SHELF: int = LOOK["shelf"]
MOST_BLOCKS: int = LOOK["most_cards"]
"""Largest pool with a still. The figure draws larger pools in another way."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that follow from the story and the width, in pixels."""

    w: int
    h: int
    gap: int
    label: int
    columns: int
    width: int
    under: bool
    words: bool
    tag: int
    """Height of a tag. One of less than 15 has no text."""

    @property
    def px(self) -> int:
        """Distance from one card to the next in a row."""
        return self.w + self.gap

    @property
    def py(self) -> int:
        """Distance from one row to the next."""
        return self.h + self.gap


@dataclass(slots=True)
class Place:
    """A card's position and height."""

    x: int
    y: int
    h: int
    line: int = -1
    group: int = -1
    column: int = -1


@dataclass(slots=True)
class Band:
    """Lines of the tables: the rows of one group from one column on, as far as they reach it."""

    group: int
    start: int
    rows: list[tuple[str, list[int]]]
    head: bool


def svg(data: Data, step: int = -1, width: int = 720) -> str:
    """Return the state after a step, negative counted from the end, as an SVG of this width in pixels.

    Tables and queue only: the figure's row of all blocks says the same again. Raises `ValueError` for a pool of more
    than 150 blocks.
    """
    still = _Still(data, width)
    number = step if step >= 0 else len(still.states) + step
    do = data["steps"][number - 1].get("do", "") if number else ""
    label = fill(still.t["still"], data["title"], number, len(data["steps"]), do).rstrip(": \uff1a")
    return _picture(label, still.m.width, still.height(number), still.draw(number))


def moving_svg(data: Data, width: int = 900, seconds: float = 2.5) -> str:
    """Return one SVG that shows all steps in turn, repeatedly. With reduced motion it shows the last step.

    `seconds`: time per step. Raises `ValueError` as `svg` does.
    """
    still, number, head = _Still(data, width), len(data["steps"]), 30
    frames = []
    for step, told in enumerate(data["steps"], start=1):
        line = re.split(r"[.:] |\.$", told.get("say", ""))[0]
        heading = f'<text y="14" font-size="17" font-weight="600">{escape(line)}</text>'
        picture = f'<g transform="translate(0 {head})">{still.draw(step)}</g>'
        frames.append(f'<g class="step" style="animation-delay:{(step - 1) * seconds:g}s">{heading}{picture}</g>')
    share = 100 / max(1, number)
    style = (
        f"<style>.step{{opacity:0;animation:step {number * seconds:g}s infinite}}"
        f"@keyframes step{{0%,{share:g}%{{opacity:1}}{share + 0.01:g}%,100%{{opacity:0}}}}"
        "@media (prefers-reduced-motion:reduce){.step{animation:none}.step:last-of-type{opacity:1}}</style>"
    )
    height = head + max(map(still.height, range(1, number + 1)), default=0)
    return _picture(data["title"], still.m.width, height, style + "".join(frames))


def _picture(label: str, width: int, height: int, inside: str) -> str:
    """Return the SVG around a drawing: its size, its label for screen readers, its background, its signs."""
    signs = "".join(
        f'<g id="kv-{kind}"><circle cx="8" cy="8" r="8" fill="{NEW}"/><path d="{path}" fill="none" stroke="{CARD}"'
        ' stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"/></g>'
        for kind, path in LOOK["signs"].items()
        if f'"#kv-{kind}"' in inside
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kv-still" viewBox="-8 -4 {width + 16} {height + 8}"'
        f' role="img" aria-label="{escape(label)}"'
        f' font-family="system-ui,-apple-system,Segoe UI,sans-serif" font-size="12" fill="{INK}">'
        f'<rect x="-8" y="-4" width="100%" height="100%" fill="{CARD}"/>'
        f'<defs><pattern id="kv-hatch" width="6" height="6" patternUnits="userSpaceOnUse"'
        f' patternTransform="rotate(45)"><line y2="6" stroke="{SOFT}" stroke-width="2"/></pattern>'
        f"{signs}</defs><style>{STYLE}</style>"
        f"{inside}</svg>"
    )


class _Still:
    """The layout of a story in a given width."""

    def __init__(self, data: Data, width: int) -> None:
        if data["num_blocks"] > MOST_BLOCKS:
            raise ValueError(f"a still shows at most {MOST_BLOCKS} blocks, not {data['num_blocks']}")
        self.data = data
        self.t = words(data.get("lang", "en"))
        self.states = states(data)
        self.requests = [*dict.fromkeys(name for state in self.states for name in state.order)]
        self.num_groups = max((len(groups) for state in self.states for groups in state.tables.values()), default=1)
        self.m = self._sizes(min(width, 960))

    def height(self, step: int) -> int:
        """Return the height of the drawing of a step."""
        state = self.states[step]
        shelves = sum(HEAD + self._shelf_lines(state, tier) * SHELF for tier in self.data.get("tiers", ()))
        return self._free_y(state) + self._queue_height(state) + shelves + 4

    def _sizes(self, width: int) -> Sizes:
        narrow = width < 480
        told = any(any(state.words) for state in self.states)
        words = told and not narrow
        under = not words and (narrow or self.data["num_blocks"] > 10)
        small = (36, 35 if told else 44, 3)
        usual, low, gap = (92, 68, 5) if words else small if narrow else (50, 46, 5)
        longest = max((len(name) for state in self.states for name in state.order), default=1)
        longest = min(10, longest + (2 if self.num_groups > 1 else 0))
        label = max(38, 8 * longest + 10) if narrow else max(46, 9 * longest + 14)
        tables = (table for state in self.states for groups in state.tables.values() for table in groups)
        longest_line = max(1, *(0 if narrow else len(state.free) for state in self.states), *map(len, tables))
        room = (width - label) // longest_line - gap
        least, most = (76, 120) if words else (30, usual) if narrow else (usual, usual)
        w = min(room, most) if room >= least else usual
        columns = max(1, (width - label) // (w + gap))
        return Sizes(
            w, low + (10 if under else 0), gap, label, columns, width, under, words, 6 if told and narrow else 15
        )

    def _queue_height(self, state: State) -> int:
        """Return the height of the queue: its cards, and one line for the word at its end if the last row is full."""
        full = len(state.free) > 0 and len(state.free) % self.m.columns == 0
        return _lines(len(state.free), self.m) + (16 if full else 0)

    def _bands(self, state: State, order: Sequence[str]) -> list[Band]:
        found = []
        for group in range(self.num_groups):
            tables = [(name, state.tables.get(name, [])) for name in order]
            rows = [(name, table[group] if group < len(table) else []) for name, table in tables]
            start = 0
            while rows:
                found.append(Band(group, start, rows, start == 0 and self.num_groups > 1))
                start += self.m.columns
                rows = [(name, table) for name, table in rows if len(table) > start]
        return found

    def _free_y(self, state: State) -> int:
        """Return where the queue begins: below the rows of this step."""
        bands = self._bands(state, state.order)
        in_tables = sum((18 if band.head else 0) + len(band.rows) * self.m.py + 4 for band in bands)
        return HEAD + HEAD + max(self.m.py, in_tables)

    def draw(self, step: int) -> str:
        """Return the drawing of the state after a step."""
        state = self.states[step]
        free_y = self._free_y(state)
        parts = [self._heading(HEAD, self.t["tables"]), self._heading(free_y, self.t["free"])]
        y = free_y + self.m.h // 2
        parts.append(_text(0, y + 4, self.t["next"], "s"))
        parts.append(f'<path d="M{self.m.label - 10} {y - 4}l6 4l-6 4z" fill="{INK}"/>')
        cards, marks = self._tables(state, parts)
        self._queue(state, free_y, cards, marks, parts)
        kinds: dict[int, list[str]] = {}
        for kind, block_id in state.events:
            kinds.setdefault(block_id, []).append(kind)
        parts += [self._card(state, block_id, place, kinds.get(block_id, [])) for block_id, place in cards.items()]
        parts += [sign for block_id, place in cards.items() for sign in self._signs(place, kinds.get(block_id, []))]
        parts += self._shelves(state, free_y + self._queue_height(state) + HEAD)
        return "".join(parts)

    def _heading(self, y: int, text: str) -> str:
        return _text(0, y - 13, text, "h")

    def _tables(self, state: State, parts: list[str]) -> tuple[dict[int, Place], list[tuple[int, int, int]]]:
        """Draw the rows. Return the cards' places, and further places of blocks with several rows that are apart."""
        cards: dict[int, Place] = {}
        ghosts: list[tuple[int, int, int]] = []
        y, m = HEAD, self.m
        for band in self._bands(state, state.order):
            if band.head:
                y += 18
                groups = self.data.get("groups", [])
                parts.append(_text(0, y - 6, groups[band.group] if band.group < len(groups) else str(band.group), "s"))
            for line, (name, table) in enumerate(band.rows):
                parts.append(self._row(state, band, name, y))
                for i, block_id in enumerate(table[band.start : band.start + m.columns]):
                    at = Place(m.label + i * m.px, y, m.h, line, band.group, band.start + i)
                    if block_id == 0:
                        parts.append(
                            _rect(at.x, y, m.w, m.h, 4, fill="url(#kv-hatch)", stroke=SOFT, stroke_dasharray="2 2")
                        )
                    else:
                        _stand(cards, ghosts, block_id, at, m.py)
                y += m.py
            y += 4
        if not state.order:
            parts.append(_text(m.label, HEAD + 14, self.t["noTables"], "s"))
        return cards, ghosts

    def _row(self, state: State, band: Band, name: str, y: int) -> str:
        m = self.m
        text = f"{name}.{band.group}" if self.num_groups > 1 else name
        row = f'<rect class="rowbg" y="{y}" width="{m.width}" height="{m.h}" rx="4" fill="{RULE}"/>'
        row += _text(4, y + m.h // 2, _short(text), "l")
        tokens = state.scheduled.get(name)
        if tokens is not None and band.start == 0 and band.group == 0:
            row += _text(4, y + m.h // 2 + 15, f"+{tokens}", "s")
        return row

    def _queue(
        self, state: State, top: int, cards: dict[int, Place], ghosts: list[tuple[int, int, int]], parts: list[str]
    ) -> None:
        m, last = self.m, len(state.free)
        for i, block_id in enumerate(state.free):
            at = Place(m.label + (i % m.columns) * m.px, top + i // m.columns * m.py, m.h)
            if block_id in cards:
                ghosts.append((block_id, at.x, at.y))
            else:
                cards[block_id] = at
        for block_id, x, y in ghosts:
            parts.append(_rect(x, y, m.w, m.h, 5, fill="none", stroke=LINE, stroke_width=1.5, stroke_dasharray="5 3"))
            parts.append(_text(x + 5, y + 16, str(block_id), ""))
        full = last > 0 and last % m.columns == 0
        x = m.label + ((last - 1 if full else last) % m.columns) * m.px + 2
        y = top + last // m.columns * m.py + (10 if full else m.h // 2 + 4)
        parts.append(_text(x, y, self.t["end"] if last else self.t["empty"], "s"))

    def _card(self, state: State, block_id: int, at: Place, kinds: Sequence[str]) -> str:
        m, ref, name = self.m, state.ref[block_id], state.name[block_id]
        writer = state.writer[block_id] if state.words[block_id] else ""
        dashes = "" if state.used[block_id] else "3 3"
        line, thick = (LINE, 2.0) if ref else (SOFT, 1.2)
        parts = [_rect(0, 0, m.w, at.h, 5, fill=CARD, stroke=line, stroke_width=thick, stroke_dasharray=dashes)]
        share = self._share(state, block_id)
        if ref and share:
            tint = TINTS[self.requests.index(writer) % len(TINTS)] if writer else HELD
            parts.append(_rect(1.5, 1.5, round((m.w - 3) * share, 3), at.h - 3, 3, fill=tint))
        if state.hue[block_id]:
            hue = LOOK["hues"][(state.hue[block_id] - 1) % len(LOOK["hues"])]
            dash = f' stroke-dasharray="{hue["dashes"]}"' if hue["dashes"] else ""
            parts.append(f'<path d="M4.5 4V{at.h - 4}" fill="none" stroke="{hue["colour"]}" stroke-width="4"{dash}/>')
        parts += self._words(state.words[block_id], bool(ref))
        if name:
            parts.append(_rect(3, at.h - m.tag - 3, m.w - 6, m.tag, 4 if m.tag == 15 else 2, fill=TAG, stroke=SOFT))
            if m.tag == 15:
                read = _fitting(writer or name[:4], (m.w - 2) / 6.4)
                parts.append(_text(m.w / 2, at.h - 6, read, "tagtext by" if m.words else "tagtext"))
        parts.append(_text(9, 17, str(block_id), "id"))
        if ref:
            parts.append(_text(m.w - 5, 29 if m.under else 16, f"\u00d7{ref}", "ref"))
        if kinds:
            parts.append(_rect(-1.5, -1.5, m.w + 3, at.h + 3, 6, stroke=NEW, _class="ring"))
        return f'<g class="kv-card" data-id="{block_id}" transform="translate({at.x} {at.y})">{"".join(parts)}</g>'

    def _share(self, state: State, block_id: int) -> float:
        """Return the share of a referenced block's slots that contain a token."""
        if state.name[block_id]:
            return 1.0
        size: int = self.data["block_size"]
        for name in state.order:
            for table in state.tables[name]:
                if block_id in table:
                    tokens = state.tok.get(name, size * len(table)) - table.index(block_id) * size
                    return max(0, min(size, tokens)) / max(1, size)
        return 0.0

    def _words(self, words: Sequence[str], held: bool) -> list[str]:
        if not self.m.words or not words:
            return []
        half, room = -(-len(words) // 2), (self.m.w - 10) / 6.6
        between = "" if any(word[:1].isspace() for word in words) else " "  # tokens bring their spaces
        lines = [" ".join(between.join(line).split()) for line in (words[:half], words[half:])]
        opacity = "" if held else ' opacity=".62"'
        return [
            f'<text x="9" y="{31 + 13 * i}" font-size="11"{opacity}>{escape(_fitting(line, room))}</text>'
            for i, line in enumerate(lines)
            if line
        ]

    def _signs(self, at: Place, kinds: Sequence[str]) -> list[str]:
        shown = [kind for kind in LOOK["loudest"] if kind in kinds][:2]
        if len(shown) > 1 and shown[1] == "cached":
            shown.pop()
        left = at.x + self.m.w / 2 - 8.5 * len(shown)
        return [
            f'<use class="kv-sign" href="#kv-{kind}" x="{left + 17 * i:g}" y="{at.y - 9}"/>'
            for i, kind in enumerate(shown)
        ]

    def _shelf_lines(self, state: State, tier: Data) -> int:
        """Return the number of lines of a tier: for its capacity, or for its content if that is more."""
        room: int = max(tier.get("capacity", 0), len(state.tiers.get(tier["id"], ())))
        return max(1, -(-room // self.m.columns))

    def _shelves(self, state: State, y: int) -> list[str]:
        """Return the tiers: below each heading its places, and the hashes of its blocks."""
        m, parts = self.m, list[str]()
        for tier in self.data.get("tiers", ()):
            names = state.tiers.get(tier["id"], [])
            capacity = tier.get("capacity", len(names))
            parts.append(self._heading(y, fill(self.t["tier"], tier.get("name", tier["id"]), len(names), capacity)))
            for i in range(max(capacity, len(names))):
                x, top = m.label + i % m.columns * m.px, y + i // m.columns * SHELF
                if i < capacity:
                    parts.append(_rect(x, top, m.w, 17, 4, fill="none", stroke=SOFT, stroke_dasharray="3 3"))
                if i < len(names):
                    tag = _rect(0, 0, m.w, 17, 4, fill=TAG, stroke=SOFT) + _text(m.w / 2, 13, names[i][:4], "tagtext")
                    parts.append(f'<g class="kv-shelf" transform="translate({x} {top})">{tag}</g>')
            y += HEAD + self._shelf_lines(state, tier) * SHELF
        return parts


def _stand(cards: dict[int, Place], ghosts: list[tuple[int, int, int]], block_id: int, at: Place, py: int) -> None:
    """Put a block into a row. If the row above has it in the same column, its card grows."""
    card = cards.get(block_id)
    if card is None:
        cards[block_id] = at
    elif (card.group, card.column, card.line) == (at.group, at.column, at.line - 1):
        card.h += py
        card.line = at.line
    else:
        ghosts.append((block_id, at.x, at.y))


def _lines(count: int, m: Sizes) -> int:
    return max(1, -(-count // m.columns)) * m.py


def _short(text: str, most: int = 10) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


STYLE = (
    ".kv-still .s{font-size:11px}.kv-still .h{font-weight:600;opacity:.8}.kv-still .l{font-size:14px;font-weight:650}"
    ".kv-still .id{font-size:14px;font-weight:700}.kv-still .ref{text-anchor:end}"
    ".kv-still .ring{fill:none;stroke-width:2.5}"
    ".kv-still .tagtext{font:600 11px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle}"
    ".kv-still .by{font-family:inherit}"
)
"""Style of texts, by class."""


def _text(x: float, y: float, text: str, look: str) -> str:
    return f'<text class="{look}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, rx: float, **look: float | str) -> str:
    """Return a rectangle. `look`: its attributes, of which empty ones are left out."""
    told = "".join(f' {name.replace("_", "-").lstrip("-")}="{value}"' for name, value in look.items() if value != "")
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rx:g}"{told}/>'


def _fitting(text: str, room: float) -> str:
    """Return the text, cut to a width in letters of usual width."""
    width = 0.0
    for end, letter in enumerate(text):
        width += _width_of(letter)
        if width > room:
            return f"{text[: max(0, end - 1)]}\u2026"
    return text


def _width_of(letter: str) -> float:
    if letter > "\u2e80":
        return 2
    return 1.5 if letter in "mwMW" else 0.5 if letter in "ilj.,:;'! " else 1
