"""The measurements, as a table for a terminal and as JSON."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mini_kv.dev.bookkeeping import Figure, Row, Target
from mini_kv.dev.measure import Spread, spread
from mini_kv.dev.peers import PEERS, MiniKV, Peer

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
        command=shlex.join(["python", "-m", "mini_kv.dev", *sys.argv[1:]]),
    )


def cpu_model() -> str:
    """Return the processor's name from the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Result:
    """One figure of one row, with every peer's spread."""

    figure: Figure
    spreads: dict[str, Spread]
    """Median and quartiles by peer. Ours are always there, another peer's only if it could do the work."""

    @property
    def ratios(self) -> dict[str, float]:
        """Our factor over each peer. Above 1 ours is faster (or smaller)."""
        ours = self.spreads[OURS].median
        others = {name: spread.median for name, spread in self.spreads.items() if name != OURS}
        if self.figure.more_is_better:
            return {name: ours / median for name, median in others.items() if median}
        return {name: median / ours for name, median in others.items() if ours}

    def verdict(self, target: Target) -> str | None:
        """Return the reached level, `goal`, `must` or `missed`, or `None` without the peer of the target."""
        if target.versus is None:
            value = self.spreads[OURS].median
            return "goal" if value <= target.goal else "must" if value <= target.must else "missed"
        if target.versus not in self.ratios:
            return None
        ratio = self.ratios[target.versus]
        return "goal" if ratio >= target.goal else "must" if ratio >= target.must else "missed"


def results(row: Row, values: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Result]:
    """Return the row's figures from the values of each peer. Figures without a value of ours are left out."""
    return [
        Result(figure, {peer: spread(found[figure.name]) for peer, found in values.items() if figure.name in found})
        for figure in row.figures
        if figure.name in values[OURS]
    ]


def header_lines(header: Header) -> list[str]:
    """Return the header as lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    absent = [f"{name} ({how})" for name, how in PEERS.items() if name not in header.versions]
    return [
        f"machine   {header.machine}",
        f"versions  {header.python}; {versions}",
        *([f"absent    {', '.join(absent)}"] if absent else []),
        f"method    {header.method}",
        f"seed      {header.seed}",
        f"command   {header.command}",
        "ratio     multiple of the peer's result; targets: at least this multiple, or at most this value",
    ]


def table_lines(row: Row, found: Sequence[Result], peers: Sequence[str]) -> list[str]:
    """Return one row's figures as a table. `±` is the distance between the quartiles."""
    others = [name for name in peers if name != OURS]
    head = [row.name, "unit", OURS, *(cell for name in others for cell in (name, "ratio")), "must", "goal", "reached"]
    lines = [head]
    for result in found:
        figure = result.figure
        cells = [figure.name, figure.unit, _spread_text(result.spreads[OURS])]
        for name in others:
            there = name in result.spreads
            cells.append(_spread_text(result.spreads[name]) if there else "-")
            cells.append(f"{result.ratios[name]:.2f}x" if name in result.ratios else "-")
        lines.append([*cells, *_target_cells(result)])
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


def _target_cells(result: Result) -> tuple[str, str, str]:
    """Return must, goal, and the reached level of each target."""
    must, goal, reached = [], [], []
    for target in result.figure.targets:
        sign, unit = ("<=", "") if target.versus is None else (">=", "x")
        must.append(f"{sign}{target.must:g}{unit} {target.versus or ''}".rstrip())
        goal.append(f"{sign}{target.goal:g}{unit}")
        reached.append(result.verdict(target) or f"no {target.versus}")
    return ", ".join(must), ", ".join(goal), ", ".join(reached)


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
                        "targets": [
                            {**asdict(target), "reached": result.verdict(target)} for target in result.figure.targets
                        ],
                    }
                    for result in found
                ],
            }
            for row, found in tables
        ],
    }
