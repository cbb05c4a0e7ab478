"""A hook of MkDocs: a shared link to a page shows the page's own picture, its figure at the key step.

The picture is the engine's still under the page's title, as a PNG. `theme/main.html` names it. A lab shows its
chapter's figure, and a page without one the first page's. It is drawn with matplotlib's own fonts, so that it is the
same on every machine. A book that is built without matplotlib has no such pictures.
"""

import base64
import html
import importlib.util
import re
import textwrap
from pathlib import Path
from typing import Any

from mini_kv.course.lessons.instrument import STYLE
from mini_kv_book.curriculum import chapter_of
from mini_kv_book.outputs import kept

_STILL = re.compile(r'(<svg [^>]*class="kv-still".*?</svg>)', re.DOTALL)
_INSTRUMENT = re.compile(r'<figure class="kv-instrument">.*?(<svg .*?</svg>)', re.DOTALL)
_VIEW = re.compile(r'viewBox="([-\d.]+) ([-\d.]+) ([-\d.]+) ([-\d.]+)"')
WIDTH, HEIGHT = 1200, 630
FOLDER = "assets/cards"
_titles: dict[str, str] = {}
_figures: dict[str, str] = {}


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Note a page's title and figure, and put the picture's address into its head. The page is unchanged."""
    name = _name_of(page.file.src_uri)
    _titles[name] = str(page.meta.get("title") or page.title)
    if figure := _STILL.search(content) or _INSTRUMENT.search(content):
        _figures[name] = figure[1]
    if _can_draw():
        page.meta["card"] = f"{FOLDER}/{name}.png"
    return content


def _can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _name_of(source: str) -> str:
    """Return the name of a page's picture. Pages of the engine share one.

    >>> _name_of("chapters/the-free-queue.md"), _name_of("labs/index.md"), _name_of("api/mini_kv.core.block.md")
    ('the-free-queue', 'labs', 'api')
    """
    return "api" if source.startswith("api/") else Path(source.removesuffix("/index.md")).stem


def on_post_build(*, config: Any) -> None:
    """Draw the pictures."""
    if not _can_draw():
        return
    folder = Path(config.site_dir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for name, title in _titles.items():
        title = "The engine, module by module" if name == "api" else title
        (folder / f"{name}.png").write_bytes(_kept_png(card(title, _figure_of(name))))


def _figure_of(name: str) -> str:
    """Return a page's figure, for a lab its chapter's, else the first page's, or nothing in a book without any."""
    of_chapter = _figures.get(chapter_of(name), "") if name.startswith("lab-") else ""
    return _figures.get(name) or of_chapter or _figures.get("index", "")


def card(title: str, figure: str) -> str:
    """Return the picture as an SVG: the title in at most two lines, the figure below it as large as possible."""
    lines = textwrap.wrap(re.sub(r"[^\u0020-\u024f]+", "", title), 36, max_lines=2, placeholder="…")
    words = "".join(
        f'<text x="70" y="{140 + 64 * number}" font-size="52" font-weight="bold">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    top = 110 + 64 * max(1, len(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" fill="#1d2429" color="#1d2429">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fffefb"/><rect width="{WIDTH}" height="12" fill="#0a6187"/>'
        f'<text x="70" y="72" font-size="26" fill="#4d5860">mini_kv: the KV cache, drawn by an engine</text>{words}'
        f"{_placed(figure, 70, top, WIDTH - 140, HEIGHT - top - 40)}</svg>"
    )


def _placed(figure: str, x: int, y: int, width: int, height: int) -> str:
    """Return a figure inside a box, on its left and at its top, its own proportions kept."""
    view = _VIEW.search(figure)
    if view is None:
        return ""
    scale = min(width / float(view[3]), height / float(view[4]))
    size = f'x="{x}" y="{y}" width="{float(view[3]) * scale:g}" height="{float(view[4]) * scale:g}"'
    of = "" if "kv-still" in figure else ' class="kv-instrument"'  # whose marks are styled by it
    return figure.replace("<svg", f'<svg{of} {size} overflow="visible"', 1)


def _kept_png(svg: str) -> bytes:
    """Return a picture's pixels, from an earlier build if nothing has changed."""
    return base64.b64decode(kept()(["card", svg], lambda: base64.b64encode(png(svg)).decode()))


def png(svg: str) -> bytes:
    """Return a picture's pixels."""
    import matplotlib
    import resvg_py

    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            style_sheet=STYLE,
            skip_system_fonts=True,
            font_files=[str(fonts / name) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf")],
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
            serif_family="DejaVu Sans",
            monospace_family="DejaVu Sans Mono",
        )
    )
