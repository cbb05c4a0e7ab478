"""Charts for the notebooks: drawn by matplotlib, styled once, put into the page as SVG.

    Chart("Title", "the finding, in a sentence", ...)      a notebook shows it as its cell's result

The axes have the page's own text colour, so that one chart is readable on white and on black. The series have colours
that colour-blind readers can distinguish (Okabe and Ito, 2008), and each has its own dash or hatch. The sentence is
printed below the chart and read by screen readers.
"""

import html
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mini_kv.course.lessons.needs import need
from mini_kv.course.lessons.trusted import trusted

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
COLOURS = (BLUE, ORANGE, GREEN, PINK)
_DASHES = ("-", "--", ":", "-.")
_HATCHES = ("", "/", ".", "x")
LOOKS = {
    "waits": ("none", ""),
    "prompt": (BLUE, ""),
    "answer": (ORANGE, "/"),
    "thrown out": ("none", "xx"),
    "again": (PINK, "."),
}
"""The colour and the hatch of each state in a timeline."""
_MAX_STEPS_WITH_NUMBERS = 16
INK = "#7b7b7c"
"""Placeholder for the colour of the page's text. No series may have it."""


class Chart:
    """A drawing with its title and a sentence about its finding."""

    def __init__(self, title: str, sentence: str, svg: str) -> None:
        self.title = title
        self.sentence = sentence
        self.svg = svg

    def _repr_html_(self) -> str:
        return trusted(self.fragment())

    def fragment(self) -> str:
        """Return the drawing with its sentence, for a page."""
        return (
            '<figure style="margin:0;max-width:36rem">'
            f"{self.svg}<figcaption>{html.escape(self.sentence)}</figcaption></figure>"
        )


def line_chart(
    title: str,
    sentence: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    labels: tuple[str, str],
    log: str = "",
    steps: bool = False,
    shares: bool = True,
) -> Chart:
    """Return a chart of one line per series over `x`.

    Args:
        title: above the chart.
        sentence: what to see; below the chart, and for a screen reader.
        x: positions on the horizontal axis. On a logarithmic one they are powers of two apart.
        series: name and values of each line, at most four.
        labels: of the horizontal and of the vertical axis.
        log: the logarithmic axes: "", "x" or "xy".
        steps: whether a value holds until the next one.
        shares: whether the values are shares of 1, shown as percent. Otherwise they are counts.
    """
    figure, axes = _new_axes(labels)
    for (name, values), colour, dash in zip(series.items(), COLOURS, _DASHES, strict=False):
        axes.plot(
            x,
            values,
            dash,
            color=colour,
            label=name,
            linewidth=2,
            marker="" if steps else "o",
            drawstyle="steps-post" if steps else "default",
        )
    if "x" in log:
        axes.set_xscale("log", base=2)
        ticks = list(x)[:: 1 + len(x) // 8]
        axes.set_xticks(ticks, labels=[f"{value:,}" for value in ticks])
        axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log", subs=[])
        low, high = axes.get_ylim()
        # Below three powers of ten, these alone would be two numbers.
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if high < 1000 * low else (1,))
        axes.yaxis.set_major_formatter("{x:,g}")
    else:
        axes.set_ylim(bottom=0)
    if shares:
        _percent(axes)
    return _finish(title, sentence, figure, axes)


def stacked_chart(
    title: str, sentence: str, series: Mapping[str, Sequence[float]], *, labels: tuple[str, str]
) -> Chart:
    """Return a chart of stacked areas, one position per step, with the series in order from the bottom."""
    figure, axes = _new_axes(labels)
    steps = range(1, 1 + len(next(iter(series.values()))))
    below = [0.0] * len(steps)
    for (name, values), colour, hatch in zip(series.items(), COLOURS, _HATCHES, strict=False):
        top = [low + value for low, value in zip(below, values, strict=True)]
        # The last value gets a width too: it is a state, not a moment.
        places, lower, upper = [*steps, steps[-1] + 1], [*below, below[-1]], [*top, top[-1]]
        axes.fill_between(
            places, lower, upper, step="post", facecolor=colour, edgecolor=INK, hatch=hatch, label=name, linewidth=0
        )
        below = top
    axes.set_xlim(1, len(steps) + 1)
    axes.set_ylim(0, max(below))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _finish(title, sentence, figure, axes)


def bar_chart(
    title: str,
    sentence: str,
    x: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    labels: tuple[str, str],
    shares: bool = True,
) -> Chart:
    """Return a chart of one bar for each name in `x`, with the series stacked. `shares`: as in `line_chart`."""
    figure, axes = _new_axes(labels)
    below = [0.0] * len(x)
    wrapper = textwrap.TextWrapper(50 // len(x), break_long_words=False)
    names = ["\n".join(map(wrapper.fill, name.splitlines())) for name in x]
    for (name, values), colour, hatch in zip(series.items(), COLOURS, _HATCHES, strict=False):
        axes.bar(names, values, bottom=below, color=colour, hatch=hatch, label=name, edgecolor=INK, linewidth=0)
        below = [low + value for low, value in zip(below, values, strict=True)]
    if shares:
        _percent(axes)
    return _finish(title, sentence, figure, axes)


def timeline_chart(
    title: str,
    sentence: str,
    rows: Mapping[str, Sequence[tuple[str, int]]],
    *,
    labels: tuple[str, str],
) -> Chart:
    """Return a chart with one row per request, the first on top, and one place per step.

    Args:
        title: above the chart.
        sentence: what to see; below the chart, and for a screen reader.
        rows: for each request its state in each step, one of `LOOKS` or nothing, and its number of tokens. A number
            above 1 is written where there is room.
        labels: of the horizontal and of the vertical axis.
    """
    figure, axes = _new_axes(labels)
    num_steps = max(len(row) for row in rows.values())
    for place, row in enumerate(rows.values()):
        for first, length, doing, num_tokens in _runs(row):
            colour, hatch = LOOKS[doing]
            axes.barh(place, length, left=first - 0.5, color=colour, edgecolor=INK, hatch=hatch, linewidth=0.5)
            if num_tokens > 1 and num_steps <= _MAX_STEPS_WITH_NUMBERS:
                on_it = "#ffffff" if colour == BLUE else "#111111"
                axes.text(first, place, num_tokens, ha="center", va="center", color=on_it)
    seen = {doing for row in rows.values() for doing, _ in row}
    for doing, (colour, hatch) in LOOKS.items():
        if doing in seen:
            axes.barh(0, 0, color=colour, edgecolor=INK, hatch=hatch, linewidth=0.5, label=doing)  # for the legend
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0.5, num_steps + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False)
    return _finish(title, sentence, figure, axes)


def _runs(row: Sequence[tuple[str, int]]) -> Iterator[tuple[int, int, str, int]]:
    """Yield each step of a row, from 1, with its length, its state and its tokens. Idle steps in a row are one."""
    first = 1
    for (doing, num_tokens), steps in groupby(row):
        num_steps = len(list(steps))
        if doing and num_tokens == 0:
            yield first, num_steps, doing, 0
        elif doing:
            yield from ((step, 1, doing, num_tokens) for step in range(first, first + num_steps))
        first += num_steps


def _new_axes(labels: tuple[str, str]) -> tuple[Any, Any]:
    """Return an empty figure and its axes. Without pyplot the notebook's own settings are unchanged.

    Its size in inches is small, so that a phone shows its letters of 10 points as 11 pixels.
    """
    figure = need("matplotlib.figure").Figure(figsize=(4.5, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(labels[0], color=INK)
    axes.set_ylabel(labels[1], color=INK)
    axes.tick_params(colors=INK)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y", color=INK, alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _percent(axes: Any) -> None:
    """Write the vertical axis as percent, from 0 to 100."""
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(need("matplotlib.ticker").PercentFormatter(xmax=1))


def _finish(title: str, sentence: str, figure: Any, axes: Any) -> Chart:
    """Set the title and the legend, and return the figure as an inline SVG."""
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize="medium", fontweight="bold")
    whole = need("matplotlib.transforms").blended_transform_factory(figure.transFigure, axes.transAxes)
    _, names = axes.get_legend_handles_labels()
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.03),
        bbox_transform=whole,
        ncols=5 if len("".join(names)) < 35 else 3,
        columnspacing=0.9,
        handlelength=1.3,
        handletextpad=0.4,
        frameon=False,
        labelcolor=INK,
        borderaxespad=0,
    )
    drawing = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif", "hatch.linewidth": 0.4}
    with need("matplotlib").rc_context(settings):
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Chart(title, sentence, _inline(drawing.getvalue(), f"{title}. {sentence}"))


def _inline(svg: str, spoken: str) -> str:
    """Return the SVG file as an element of a page: no prologue, no global style, the page's colour, a text."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    size = 'style="width:100%;height:auto;stroke-linejoin:round"'
    svg = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"|(?<=<svg) height="[\d.]+pt"', "", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(spoken)}" {size}', 1)
