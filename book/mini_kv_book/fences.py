"""The fences of the chapters. A fence that fails stops the build, with file and line.

Without PyTorch a page shows the stored results of its fences (`outputs`). A fence without one is shown as code,
with a warning.

kv-story    a scenario's name: the figure, played by the cache. `NAME by module:function`: its steps, made by that
            function. `data by module:function`: a story that the function tells by itself
kv-beside   two lines as `kv-story` takes them: two figures that go together, with a mark where they differ
kv-still    a scenario's name and a step: a small picture of it, for a link. `instrument CHAPTER`: the chapter's first
kv-source   a dotted symbol: its source text, in lines that the column holds. `folder/file.wgsl function`: a function
            in WGSL
kv-python   Python: the code, and what it printed. The fences of a page share their names, as a notebook's cells do.
            With a line `# predict first` the output is folded, so that the question before it is not answered by it
kv-chart    Python that ends with a chart: the chart, and the code behind a fold. It shares the names of `kv-python`
kv-instrument  Python that ends with an instrument of `course.lessons.instruments`: the picture and its controls. It
            shares the names of `kv-python`
kv-output   one `mini-kv ...` command: the command, and what it printed
mermaid     a diagram, drawn when the book is built

The other fences are in `elements`.
"""

import functools
import hashlib
import html
import logging
import re
from collections.abc import Callable
from typing import Any

import mermaidx
from mkdocs.exceptions import BuildError
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pymdownx.superfences import SuperFencesException

from mini_kv.course.lessons.instrument import STYLE
from mini_kv.story.figure import beside, fragment, story_data
from mini_kv.story.scenario import ScenarioError, load_scenario
from mini_kv.story.still import svg
from mini_kv_book.outputs import Cells, first_instrument, kept, result_of, uses_stored
from mini_kv_book.places import language_of, link_to, said, where
from mini_kv_book.runs import (
    PREDICT,
    FenceError,
    run_chart,
    run_command,
    run_instrument,
    run_python,
    run_story,
    source_of,
)
from mini_kv_book.source_text import narrow

_log = logging.getLogger("mini_kv_book")  # no child of MkDocs' logger, whose warnings stop a strict build
_TO_BE_MADE = '<p class="admonition-title">Its output is made by <code>make book-whole</code></p>'


class _BuildStopped(SuperFencesException, BuildError):
    """The only exception that superfences does not catch, and that MkDocs reports without a traceback."""


def fence(show: Callable[[str, Any], str]) -> Callable[..., str]:
    """Turn `show(body, md) -> HTML` into a formatter for superfences.

    Superfences ignores a fence that raises any other exception, so all exceptions are caught here.
    """

    @functools.wraps(show)
    def formatter(source: str, _language: str, _css_class: str, _options: object, md: Any, **_: object) -> str:
        try:
            return show(source, md)
        except Exception as error:
            place = where(md, source, getattr(error, "offset", 0))
            if uses_stored() and _needs_package(error, md):
                _log.warning(
                    "WARNING -  %s: %s: this output is made by make book-whole (%s)", place, show.__name__, error
                )
                return f'<div class="admonition note">{_TO_BE_MADE}{code(source, "python")}</div>'
            known = isinstance(error, FenceError | ScenarioError)
            raise _BuildStopped(f"{place}: {show.__name__}: {error if known else repr(error)}") from error

    return formatter


def _needs_package(error: Exception, md: Any) -> bool:
    """Return whether a fence failed for want of a package, or because an earlier one on its page did."""
    if any(isinstance(one, ImportError) for one in (error, error.__cause__)) or "is not installed" in str(error):
        md.kv_incomplete = True
    return getattr(md, "kv_incomplete", False)


def code(text: str, language: str) -> str:
    """Return highlighted code, in the same form as every other block of code."""
    formatter = HtmlFormatter(cssclass=f"language-{language} highlight", wrapcode=True)
    return str(highlight(text, get_lexer_by_name(language), formatter))


@fence
def kv_story(body: str, md: Any) -> str:
    """Draw the scenario of that name, in the language of the page.

        passers-by by mini_kv.course.lessons.policies:play_seen_twice, used once goes first

    draws the steps of another player. The text after the comma is added to the title, to distinguish the two figures.
    """
    return f'<div class="kv-figure">{fragment(_data(body.strip(), md))}</div>'


@fence
def kv_beside(body: str, md: Any) -> str:
    """Draw two scenarios side by side, one line each as in `kv-story`. They step together and mark the differences."""
    first, second = body.strip().splitlines()
    return f'<div class="kv-figure">{beside(_data(first, md), _data(second, md))}</div>'


def _data(line: str, md: Any) -> dict[str, Any]:
    """Return the story for a line of a fence."""
    return dict(result_of(run_story, line, language_of(md)))


@fence
def kv_still(body: str, md: Any) -> str:
    """Draw a step of the scenario, or a chapter's first instrument, in the size of a picture in a link."""
    name, step = body.split()
    if name == "instrument":
        drawing = re.search("<svg .*?</svg>", first_instrument(step), re.DOTALL)
        return f'{_style(md)}<div class="kv-thumb kv-instrument alive">{drawing[0] if drawing else ""}</div>'
    data = story_data(load_scenario(name, language_of(md)))
    return f'<div class="kv-thumb">{svg(data, int(step), width=260)}</div>'


@fence
def kv_source(body: str, md: Any) -> str:
    """Show the source text of a symbol, with a link to its page."""
    source = source_of(body)
    caption = f'<a href="{html.escape(link_to(md, source.path))}"><code>{body.strip()}</code></a>'
    shown = code(source.text, "wgsl") if source.path.endswith(".wgsl") else code(narrow(source.text), "python")
    return f'<figure class="kv-code">{shown}<figcaption>{caption}</figcaption></figure>'


@fence
def kv_python(body: str, md: Any) -> str:
    """Run the code, and show it with its output."""
    return run_and_show(body, md)


def run_and_show(body: str, md: Any) -> str:
    """Return Python with its output, after the cells before it on the page."""
    shown, output = _cells_of(md).result(run_python, body)
    result = printed(output, md)
    if PREDICT in body.splitlines():
        result = (
            f'<details class="example"><summary>{said(language_of(md), "What it prints")}</summary>{result}</details>'
        )
    return f'<div class="kv-run">{code(shown, "python")}{result}</div>'


@fence
def kv_chart(body: str, md: Any) -> str:
    """Draw the chart that the code ends with."""
    drawing = _cells_of(md).result(run_chart, body)
    summary = said(language_of(md), "How it is drawn")
    how = f'<details class="example"><summary>{summary}</summary>{code(body, "python")}</details>'
    return f'<div class="kv-chart">{drawing}{how}</div>'


@fence
def kv_instrument(body: str, md: Any) -> str:
    """Draw the instrument that the code ends with."""
    drawing = _cells_of(md).result(run_instrument, body)
    return f'<div class="kv-figure">{_style(md)}{drawing}</div>'


def _style(md: Any) -> str:
    """Return the style of instruments, which a page needs once."""
    style = "" if getattr(md, "kv_instruments", False) else f"<style>{STYLE}</style>"
    md.kv_instruments = True
    return style


def _cells_of(md: Any) -> Cells:
    """Return the cells of a page, which share their names."""
    if not hasattr(md, "kv_cells"):
        md.kv_cells = Cells()
    cells: Cells = md.kv_cells
    return cells


@fence
def kv_output(body: str, md: Any) -> str:
    """Run a command, and show it with its output."""
    output = printed(result_of(run_command, body.strip()), md)
    return f'<div class="kv-run">{code("$ " + body.strip(), "console")}{output}</div>'


def printed(output: str, md: Any) -> str:
    """Return the block with the output, or nothing without output."""
    if not output:
        return ""
    label = said(language_of(md), "what it prints")
    return f'<div class="kv-printed" role="group" aria-label="{label}">{code(output, "text")}</div>'


@fence
def mermaid(body: str, _md: Any) -> str:
    """Draw a diagram. Its colours come from the stylesheet, in dark mode too."""
    try:
        svg: str = kept()(["mermaid", body], lambda: str(mermaidx.render(body, theme="neutral").svg()))
    except Exception as error:  # whatever Mermaid's own JavaScript raised
        raise FenceError(str(error)) from error
    if not re.search(r"^ *accTitle: *\S", body, re.MULTILINE):
        raise FenceError("a diagram needs a line `accTitle: ...`, for readers who cannot see it")
    name = "diagram-" + hashlib.sha256(body.encode()).hexdigest()[:8]  # ids are the page's: each diagram needs its own
    svg = svg.replace("my-svg", name).replace('role="graphics-document document"', 'role="img"')
    # Below seven tenths of its size a diagram's text is too small to read: then it scrolls instead of shrinking.
    svg = re.sub(r"max-width: ([\d.]+)px;", lambda w: f"{w[0]} min-width: {float(w[1]) * 0.7:.0f}px;", svg, count=1)
    return f'<figure class="kv-diagram">{svg}</figure>'
