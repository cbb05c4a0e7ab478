"""Tables of measured figures, which are kept as data with the command, the machine and the date.

    <!-- table recorded cpu cache small -->

shows the part `cache`, model `small`, of book/data/generate-cpu.json. That file is the output of
`python -m mini_kv.dev.generate --json FILE`. Results that a page can compute are computed at the build. Only
measured times are here.
"""

import json
from functools import cache
from typing import Any

from mini_kv_book.places import ROOT

COLUMNS = {
    "cache": {
        "tokens before it": ("tokens", "{:,}"),
        "no cache": ("no cache ms", "{:,.1f} ms"),
        "contiguous": ("contiguous ms", "{:,.1f} ms"),
        "blocks": ("paged ms", "{:,.1f} ms"),
    },
    "prefix": {
        "prefix caching": ("prefix caching", "{}"),
        "prompt tokens a second": ("prompt tokens/s", "{:,.0f}"),
        "first word, median": ("first token ms, median", "{:,.0f} ms"),
        "first word, last": ("first token ms, last", "{:,.0f} ms"),
        "found": ("found", "{:.0%}"),
    },
    "batch": {
        "requests in a step": ("requests", "{:,}"),
        "a step": ("ms per step", "{:,.1f} ms"),
        "tokens a second": ("tokens/s", "{:,.0f}"),
        "a step at the least": ("floor ms", "{:,.1f} ms"),
    },
}
"""The columns of each part's table: heading, then the key of the value and the format that it is written in."""


@cache
def report(machine: str) -> dict[str, Any]:
    """Return the recording of a machine. Raises `ValueError` if there is none."""
    path = ROOT / "book" / "data" / f"generate-{machine}.json"
    if not path.is_file():
        raise ValueError(f"nothing is recorded in {path.relative_to(ROOT)}")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rows(machine: str, part: str, shape: str) -> list[dict[str, Any]]:
    """Return the rows of a part, measured with the model of that shape. Raises `ValueError` if there are none."""
    for found in report(machine)["parts"]:
        if (found["part"], found["shape"]) == (part, shape) and "rows" in found:
            return list(found["rows"])
    raise ValueError(f"generate-{machine}.json has no {part!r} of the model {shape!r}")


def as_markdown(machine: str, part: str, shape: str) -> str:
    """Return the table, and below it the source of its figures."""
    columns = COLUMNS[part]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows(machine, part, shape):
        values = [(row.get(key), form) for key, form in columns.values()]
        cells = ["not tried" if value is None else form.format(value) for value, form in values]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", source(machine)])


def source(machine: str) -> str:
    """Return a sentence on the measurement of the figures."""
    found = report(machine)
    header = found["header"]
    return (
        f"*Recorded on {found['date']} by `{header['command']}`: {header['machine']}; {header['versions']}; "
        f"{header['method']}.*"
    )
