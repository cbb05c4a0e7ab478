"""What was measured, as a table for a terminal and as JSON."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mini_kv.bench.bookkeeping import Figure, Row, Target
from mini_kv.bench.measure import Spread
from mini_kv.bench.peers import MiniKV, Peer

OURS = MiniKV.name


@dataclass(frozen=True, slots=True)
class Header:
    """The circumstances of a measurement: machine, versions, method, seed, command."""

    machine: str
    python: str
    versions: dict[str, str]
    """Version of each engine, by its name."""
    method: str
    seed: int
    command: str


def make_header(peers: Sequence[Peer], seed: int, repeats: int) -> Header:
    """Return the header of a run with these peers on this machine."""
    return Header(
        machine=f"{cpu_model()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions={peer.name: peer.version for peer in peers},
        method=f"CPU time of the thread, medians of {repeats} runs in turns, GC on with the heap frozen at the start",
        seed=seed,
        command=shlex.join(["python", "-m", "mini_kv.bench", *sys.argv[1:]]),
    )


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Result:
    """One figure of one row: every peer's spread, and how ours stands."""

    figure: Figure
    spreads: dict[str, Spread]
    """Median and quartiles by peer; ours always, another peer's only if it could do the work."""

    @property
    def ratios(self) -> dict[str, float]:
        """How many times better ours is, by peer: above 1, ours is faster (or smaller)."""
        ours = self.spreads[OURS].median
        others = {name: spread.median for name, spread in self.spreads.items() if name != OURS}
        if self.figure.more_is_better:
            return {name: ours / median for name, median in others.items() if median}
        return {name: median / ours for name, median in others.items() if ours}

    @property
    def verdict(self) -> str | None:
        """`goal`, `must` or `missed`, whatever is reached; `None` without a target or the peer that it names."""
        target = self.figure.target
        if target is None:
            return None
        if target.versus is None:
            value = self.spreads[OURS].median
            return "goal" if value <= target.goal else "must" if value <= target.must else "missed"
        if target.versus not in self.ratios:
            return None
        ratio = self.ratios[target.versus]
        return "goal" if ratio >= target.goal else "must" if ratio >= target.must else "missed"


def results(row: Row, values: Mapping[str, Mapping[str, Sequence[float]]], spread: Any) -> list[Result]:
    """Return the row's figures, given the values of each peer; figures that ours lacks are left out."""
    return [
        Result(figure, {peer: spread(found[figure.name]) for peer, found in values.items() if figure.name in found})
        for figure in row.figures
        if figure.name in values[OURS]
    ]


def header_lines(header: Header) -> list[str]:
    """Return the header as lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    return [
        f"machine   {header.machine}",
        f"versions  {header.python}; {versions}",
        f"method    {header.method}",
        f"seed      {header.seed}",
        f"command   {header.command}",
        "ratio     how many times better than the peer; targets: at least this multiple of vLLM, or at most this value",
    ]


def table_lines(row: Row, found: Sequence[Result], peers: Sequence[str]) -> list[str]:
    """Return one row's figures as a table; `±` is the distance between the quartiles."""
    others = [name for name in peers if name != OURS]
    head = [row.name, "unit", OURS, *(cell for name in others for cell in (name, "ratio")), "must", "goal", "reached"]
    lines = [head]
    for result in found:
        figure, target = result.figure, result.figure.target
        cells = [figure.name, figure.unit, _spread_text(result.spreads[OURS])]
        for name in others:
            there = name in result.spreads
            cells.append(_spread_text(result.spreads[name]) if there else "-")
            cells.append(f"{result.ratios[name]:.2f}x" if name in result.ratios else "-")
        cells += [*_target_text(target), result.verdict or ("-" if target is None else f"no {target.versus}")]
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        row.title,
        *(
            "  ".join(cell.ljust(width) if index < 2 else cell.rjust(width) for index, (cell, width) in enumerate(line))
            for line in (list(zip(cells, widths, strict=True)) for cells in lines)
        ),
    ]


def _spread_text(spread: Spread) -> str:
    """Return a median with three digits and the relative distance of the quartiles."""
    value = f"{spread.median:,.0f}" if spread.median >= 1000 else f"{spread.median:.3g}"
    return f"{value} ±{spread.relative_iqr:3.0%}"


def _target_text(target: Target | None) -> tuple[str, str]:
    """Return must and goal as cells."""
    if target is None:
        return "", ""
    if target.versus is None:
        return f"<={target.must:g}", f"<={target.goal:g}"
    return f">={target.must:g}x", f">={target.goal:g}x"


def as_json(header: Header, tables: Sequence[tuple[Row, Sequence[Result]]]) -> dict[str, Any]:
    """Return the whole report as plain values."""
    return {
        "header": asdict(header),
        "rows": [
            {
                "name": row.name,
                "title": row.title,
                "figures": [
                    {
                        "name": result.figure.name,
                        "unit": result.figure.unit,
                        "more_is_better": result.figure.more_is_better,
                        "results": {peer: asdict(spread) for peer, spread in result.spreads.items()},
                        "ratios": result.ratios,
                        "target": asdict(result.figure.target) if result.figure.target else None,
                        "reached": result.verdict,
                    }
                    for result in found
                ],
            }
            for row, found in tables
        ],
    }
