"""The table of what the compiler makes of each kernel, recorded without a GPU.

    <!-- table kernels 9.0 -->

shows the launches for compute capability 9.0. Recorded in book/data/kernels.json by
`python -m mini_kv.tests.attention.compiled --write`; a test compiles some of them again, `make audit` all.
"""

import json
from typing import Any

from mini_kv_book.places import ROOT

RECORDING = ROOT / "book" / "data" / "kernels.json"
COLUMNS = ("kernel", "registers", "spills", "shared memory", "programs", "tensor cores", "loads of 16 bytes")


def as_markdown(capability: str) -> str:
    """Return the table of one compute capability, and a line on how it came about; two versions' figures by a slash."""
    versions: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))["triton"]
    recorded = [tables[capability] for tables in versions.values() if capability in tables]
    if not recorded:
        raise ValueError(f"no kernels are recorded for compute capability {capability}")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for name in recorded[0]:
        lines.append("| " + " | ".join([name, *cells([table[name] for table in recorded])]) + " |")
    command = f"python -m mini_kv.tests.attention.compiled --capability {capability}"
    return "\n".join([*lines, "", f"*`{command}`, Triton {' / '.join(versions)}.*"])


def cells(facts: list[dict[str, Any]]) -> list[str]:
    """Return a row's cells; where the versions of Triton agree, one figure."""
    columns = [
        [f"{one['registers']}" for one in facts],
        [f"{one['spills']}" for one in facts],
        [f"{one['shared'] / 1024:.0f} KB" for one in facts],
        [f"{one['programs']}" for one in facts],
        [one["tensor_cores"] or "none" for one in facts],
        [loads_text(one) for one in facts],
    ]
    return [" / ".join(dict.fromkeys(column)) for column in columns]


def loads_text(one: dict[str, Any]) -> str:
    """Return the share of the asynchronous loads that take 16 bytes per thread."""
    loads = one["wide_loads"] + one["narrow_loads"]
    return f"{one['wide_loads']} of {loads}" if loads else "-"
