"""Drawings of a curve: in plain characters, as an SVG, and as an HTML page."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 40, 44
INK, LINE, MARK = "#767676", "#0072b2", "#e69f00"
"""A grey for text on white and on black, and colours for colour-blind readers (Okabe and Ito, 2008)."""


def curve_text(points: Sequence[tuple[int, float]], width: int = 64, height: int = 12) -> list[str]:
    """Return the lines of a plot: shares of 1 over sizes, which grow by the same factor from column to column."""
    first, last = points[0][0], points[-1][0]
    columns = [first * (last / first) ** (column / (width - 1)) for column in range(width)]
    heights = [max(share for size, share in points if size <= column * 1.000001) for column in columns]
    top = max(heights) or 1.0
    lines = []
    for row in range(height, 0, -1):
        cells = "".join("#" if value * height >= (row - 0.5) * top else " " for value in heights)
        label = f"{100 * top * row / height:5.1f} %" if row % 3 == 0 else " " * 7
        lines.append(f"{label} |{cells}".rstrip())
    axis = f"{first:,}".ljust(width // 2) + f"{last:,} blocks".rjust(width - width // 2)
    return [*lines, " " * 8 + "+" + "-" * width, " " * 9 + axis]


def curve_svg(title: str, sentence: str, points: Sequence[tuple[int, float]], marks: Sequence[tuple[int, str]]) -> str:
    """Return the plot as an SVG: a step curve over sizes on a logarithmic axis, and sizes that are marked by a word."""
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    top = max(share for _, share in points) or 1.0

    def x(size: float) -> float:
        share = math.log(max(size, first) / first) / math.log(last / first)
        return LEFT + min(share, 1.0) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share / top * (HEIGHT - TOP - BOTTOM)

    path = f"M{x(first):.1f} {y(points[0][1]):.1f}"
    path += "".join(f"H{x(size):.1f}V{y(share):.1f}" for size, share in points[1:])
    parts = [f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="2"/>']
    for share in (0, top / 2, top):
        parts.append(_rule(LEFT, y(share), WIDTH - RIGHT, y(share)))
        parts.append(_text(LEFT - 6, y(share) + 4, f"{100 * share:.1f} %", "end"))
    for size in (first, round(math.sqrt(first * last)), last):
        parts.append(_text(x(size), HEIGHT - BOTTOM + 18, f"{size:,}", "end" if size == last else "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, "blocks in the pool", "middle"))
    for row, (size, word) in enumerate(marks):
        parts.append(_rule(x(size), TOP, x(size), HEIGHT - BOTTOM, MARK))
        parts.append(_text(x(size) - 4, TOP + 12 + 15 * row, word, "end"))
    return _svg(title, sentence, HEIGHT, parts)


def page(title: str, svg: str, lines: Sequence[str]) -> str:
    """Return an HTML page of a drawing and the text below it. It runs no script and loads nothing."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
        "svg{width:100%;height:auto}pre{overflow-x:auto}</style></head>"
        f"<body><h1>{escape(title)}</h1>{svg}<pre>{escape(chr(10).join(lines))}</pre></body></html>\n"
    )


def _svg(title: str, sentence: str, height: float, parts: Sequence[str]) -> str:
    label = escape(f"{title}. {sentence}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"'
        f' font-family="sans-serif" font-size="12">{_text(8, 20, title, "start")}{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="0.7" stroke-dasharray="3 3"/>'
