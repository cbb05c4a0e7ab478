"""The picture of six servers: what an operator sees of each, and on choice its cause and the command that finds it.

    six_servers()       one row per server of `misbehave.SERVERS`, three charts per row, with the same axes

Grey, and behind each server: A, which has no fault. All that is drawn comes from the runs of `serve`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mini_kv.core.parts import KVCacheParts
from mini_kv.course.lessons.instrument import Control, Instrument, Mark, View
from mini_kv.course.lessons.instruments import WIDTH, text
from mini_kv.course.lessons.misbehave import (
    BLOCK_SIZE,
    NUM_REQUESTS,
    SERVERS,
    Case,
    Fault,
    hits_per_request,
    idle_seconds,
    serve,
)

_AGES = (0, 1, 2, 4, 8, 16)
"""Bounds of the ages at eviction, in seconds."""
_LEFT, _TOP, _WIDE, _HIGH = 20, 28, 124, 42
"""Place of the first chart, and the size of each."""
_COLUMN, _ROW = 138, 52
"""Distance between the charts of a row, and between rows."""
_SECONDS, _MOST = 28, 1.15
"""Ends of the axes of the time and of the shares of the pool. A line may leave its chart at the top."""
_BLUE, _ORANGE, _GREY, _DASHES = "#0072b2", "#e69f00", "currentColor", "3 2"

_Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Symptoms:
    """What an operator sees of a server."""

    usage: _Points
    """Second, and the share of the pool that is in use: at the last step of each half second."""
    keys: _Points
    """Second, and the keys in the index as a share of the pool's blocks."""
    ages: list[int]
    """Evicted blocks by the time that they were unused, one number per interval of `_AGES`."""
    found: list[float]
    """Tokens found of those asked, one share per request."""


def _symptoms(case: Case) -> _Symptoms:
    """Return what an operator sees of this server."""
    seen = case.seen
    halves = [int(2 * second) for second in seen.seconds]
    steps = [step for step, (now, then) in enumerate(pairwise([*halves, -1])) if now != then]
    num_blocks = case.fault.num_blocks - 1  # without the null block
    idle = idle_seconds(case)
    return _Symptoms(
        usage=[(seen.seconds[step], seen.usage[step]) for step in steps],
        keys=[(seen.seconds[step], seen.num_keys[step] / num_blocks) for step in steps],
        ages=[sum(low <= age < high for age in idle) for low, high in pairwise(_AGES)],
        found=[hit / request.input_length for hit, request in zip(seen.hits, case.trace, strict=False)],
    )


@dataclass(frozen=True)
class _Finding:
    """What the picture shows when its reader chooses a server."""

    says: str
    """What is seen, and the cause."""
    note: str = ""
    """The number that decides, written into its chart."""
    column: int = 0
    """The chart that decides."""
    ring: tuple[float, float, float, float] = (0, 0, 0, 0)
    """Around the place in that chart: left, top, width and height."""


def six_servers() -> Instrument:
    """Return the picture: first the symptoms of all, then a server's cause, and the command that finds it."""
    cases = {name: serve(name) for name in SERVERS}
    shown = {name: _symptoms(case) for name, case in cases.items()}
    charts = dict(_axes())
    for row, (name, seen) in enumerate(shown.items()):
        charts |= _charts(row, seen, shown["none"], cases[name].seen.failed)
    findings = [*_findings(cases, shown)]

    def draw(choice: int) -> View:
        if choice == 0:
            return View(charts, (_HOW_TO_READ,))
        return View(charts | _marked(choice - 1, findings[choice - 1]), (findings[choice - 1].says,))

    control = Control("server", ("none", *"ABCDEF"), choice=True)
    return Instrument("Six servers, one without a fault", (control,), draw, (WIDTH, _TOP + 6 * _ROW + 10))


_HOW_TO_READ = (
    "Grey is A, which has no fault. Left: blocks in use and keys in the index, as shares of the pool; at the cross the "
    "engine stopped. Middle: how long blocks were unused before their eviction, and how many were evicted. Right: a "
    "dot per request, at the share of its tokens that it found. Guess first, then choose a server to see its cause."
)


def command(name: str, fault: Fault) -> str:
    """Return the command that finds the fault of this server in `SERVERS`."""
    if fault.parts != KVCacheParts():  # a correct cache, as in `explain`, has not this fault
        return f'debugged("{name}")'
    traffic = f" --fault {fault.traffic}" if fault.traffic else ""
    return (
        f"mini-kv trace make chat --num-requests {NUM_REQUESTS}{traffic} | "
        f"mini-kv explain - --num-blocks {fault.num_blocks} --concurrency {fault.max_num_seqs}"
    )


def _findings(cases: dict[str, Case], shown: dict[str, _Symptoms]) -> Iterator[_Finding]:
    """Yield the findings in the order of the servers."""
    by = {name: f" Found by: {command(name, case.fault)}" for name, case in cases.items()}
    yield _Finding(
        "A has no fault. No block is in use after the last request, no block is evicted young, and one request, the "
        "first, finds nothing."
    )
    misses = hits_per_request(cases["salt-per-user"])["nothing"]
    floor = (-2, _HIGH - 5, _WIDE + 4, 10)
    yield _Finding(
        f"B: {misses} requests find nothing, and the others what they find on A. The cause: each user has a salt, and "
        "computes the system prompt once more." + by["salt-per-user"],
        f"{misses} find nothing", 2, floor,
    )  # fmt: skip
    blocks = hits_per_request(cases["timestamp"])["one block"]
    yield _Finding(
        f"C: {blocks} requests find one block of {BLOCK_SIZE} tokens. The cause: after these tokens, the prompts have "
        "the time of day." + by["timestamp"],
        f"{blocks} find {BLOCK_SIZE} tokens", 2, floor,
    )  # fmt: skip
    second, left = shown["leak"].usage[-1]
    yield _Finding(
        f"D: the last request has ended, and {left:.1%} of the pool are in use. The cause: a request's last block is "
        "never freed if it is not full." + by["leak"],
        f"{left:.1%} left", 0, (_x(second) - 4, _height(left) - 6, _WIDE - _x(second) + 8, 12),
    )  # fmt: skip
    young, total = shown["storm"].ages[0], sum(shown["storm"].ages)
    bar = _HIGH * young / total
    yield _Finding(
        f"E: {young} of {total:,} evicted blocks were used less than a second before. The cause: too many requests at "
        "once, so that they preempt each other." + by["storm"],
        f"{young} below 1 s", 1, (-2, _HIGH - bar - 3, _WIDE / 5 + 2, bar + 6),
    )  # fmt: skip
    second, most = shown["stale-index"].keys[-1]
    yield _Finding(
        f"F: the index has more keys than the pool has blocks, {most:.0%}, until a lookup finds another block. The "
        "cause: a block's key stays in the index when the block is allocated again." + by["stale-index"],
        f"{most:.0%} keys", 0, (_x(second) - 24, _height(most) - 4, 30, _height(1) - _height(most) + 4),
    )  # fmt: skip


def _axes() -> Iterator[tuple[str, Mark]]:
    """Yield the headings, the ends of the axes, and the key to the lines."""
    below = _TOP + 6 * _ROW + 4
    yield "usage", Mark("path", d=f"M{_LEFT} 6h16", stroke=_BLUE, stroke_width=1.8)
    yield "keys", Mark("path", d=f"M{_LEFT + 72} 6h16", stroke=_ORANGE, stroke_width=1.8, stroke_dasharray=_DASHES)
    yield "keys' name", text(_LEFT + 91, 10, "keys", "big")
    yield "pool", text(_LEFT, _TOP + _height(1) - 3, "100%", "soft")
    middle, right = _LEFT + _COLUMN, _LEFT + 2 * _COLUMN
    for left, heading in ((_LEFT + 19, "in use"), (middle, "age at eviction, s"), (right, "found, 0 to 100%")):
        yield heading, text(left, 10, heading, "big")
    for second in range(0, _SECONDS, 10):
        yield f"second {second}", text(_LEFT + _x(second), below, f"{second}", "soft mid")
    for index, age in enumerate(_AGES):
        yield f"age {age}", text(middle + _WIDE * index / (len(_AGES) - 1), below, f"{age}", "soft mid")
    yield "seconds", text(_LEFT + _WIDE, below, "s", "soft end")
    yield "requests", text(right, below, f"request 1 to {NUM_REQUESTS}", "soft")


def _charts(row: int, seen: _Symptoms, well: _Symptoms, failed: str | None) -> dict[str, Mark]:
    """Return the marks of a row: frames, A's charts in grey, and the server's own in front of them."""
    top = _TOP + _ROW * row
    marks = {"letter": text(0, top + _HIGH / 2 + 5, "ABCDEF"[row], "big")}
    full = top + _height(1)
    marks["floor"] = Mark(
        "path",
        d="".join(f"M{_LEFT + _COLUMN * column} {top + _HIGH}h{_WIDE}" for column in range(3)),
        of="line soft",
        stroke_width=0.5,
    )
    marks["full"] = Mark("path", d=f"M{_LEFT} {full:g}h{_WIDE}", of="line soft", stroke_width=0.5)
    if row:
        marks["grey usage"] = Mark(
            "path", d=_line(well.usage, top), fill="none", stroke=_GREY, stroke_width=4, opacity=0.3
        )
        marks["grey ages"] = Mark("path", d=_bars(well.ages, top, 1), fill=_GREY, opacity=0.3)
        marks["grey found"] = Mark("path", d=_dots(well.found, top, 4), fill=_GREY, opacity=0.3)
    marks["keys"] = Mark(
        "path", d=_line(seen.keys, top), fill="none", stroke=_ORANGE, stroke_width=1.8, stroke_dasharray=_DASHES
    )
    # A server that has nothing to do stays as it is. A cross ends the line of one that stopped.
    end = "m-4 -4l8 8m0 -8l-8 8" if failed else f"H{_LEFT + _WIDE}"
    marks["usage"] = Mark("path", d=_line(seen.usage, top) + end, fill="none", stroke=_BLUE, stroke_width=1.8)
    marks["ages"] = Mark("path", d=_bars(seen.ages, top, 4), fill=_BLUE)
    marks["evicted"] = text(_LEFT + _COLUMN, top + 10, f"{sum(seen.ages):,}{'' if row else ' evicted'}", "soft")
    marks["found"] = Mark("path", d=_dots(seen.found, top, 2), fill=_BLUE)
    marks["place"] = Mark("rect", **_band(row), fill="transparent", cursor="pointer", data_pick=row + 1)
    return {f"{row} {name}": mark for name, mark in marks.items()}


def _marked(row: int, finding: _Finding) -> dict[str, Mark]:
    """Return the marks of a chosen row: its band, and the ring with the number that decides."""
    top, left = _TOP + _ROW * row, _LEFT + _COLUMN * finding.column
    marks = {"band": Mark("rect", **_band(row), fill=_GREY, opacity=0.1)}
    if finding.note:
        x, y, width, height = finding.ring
        marks["ring"] = Mark(
            "rect", x=left + x, y=top + y, width=width, height=height, rx=5, of="line", stroke_width=1.8
        )
        marks["note"] = text(left + _WIDE, top + (3, 10, 28)[finding.column], finding.note, "big end")
    return marks


def _band(row: int) -> dict[str, float]:
    """Return the place of a row."""
    return {"x": -2, "y": _TOP + _ROW * row - 5, "width": WIDTH + 4, "height": _ROW, "rx": 4}


def _x(second: float) -> float:
    """Return the place of a second, from a chart's left."""
    return _WIDE * second / _SECONDS


def _height(share: float) -> float:
    """Return the place of a share of the pool, from a chart's top."""
    return _HIGH * (1 - share / _MOST)


def _line(points: _Points, top: float) -> str:
    """Return the path of a line."""
    return "M" + "L".join(f"{_LEFT + _x(second):.1f} {top + _height(share):.1f}" for second, share in points)


def _bars(numbers: list[int], top: float, margin: float) -> str:
    """Return the path of a histogram, as shares of all."""
    left, wide, total = _LEFT + _COLUMN, _WIDE / len(numbers), sum(numbers)
    return "".join(
        f"M{left + wide * index + margin:.1f} {top + _HIGH}v-{_HIGH * number / total:.1f}h{wide - 2 * margin:.1f}"
        f"v{_HIGH * number / total:.1f}z"
        for index, number in enumerate(numbers)
    )


def _dots(shares: list[float], top: float, size: float) -> str:
    """Return the path of a dot per request."""
    left, step = _LEFT + 2 * _COLUMN, _WIDE / NUM_REQUESTS
    return "".join(
        f"M{left + step * number - size / 2:.1f} {top + _HIGH * (1 - share) - size / 2:.1f}h{size}v{size}h-{size}z"
        for number, share in enumerate(shares)
    )
