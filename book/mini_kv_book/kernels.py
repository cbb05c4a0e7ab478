"""Two tables of the kernels: what the compiler makes of each, recorded without a GPU, and how fast they were on one.

    <!-- table kernels 9.0 -->
    <!-- table kernels-measured h200 -->

The first shows the launches for compute capability 9.0. Recorded in book/data/kernels.json by
`python -m mini_kv.tests.attention.compiled --write`; a test compiles some of them again, `make audit` all.
The second shows book/data/gpu-h200.json, or another card's: `python -m mini_kv.dev.attention --json FILE` wrote it
beside that GPU.
"""

import json
from typing import Any

from mini_kv_book.places import ROOT

RECORDING = ROOT / "book" / "data" / "kernels.json"
COLUMNS = ("kernel", "registers", "spills", "shared memory", "programs", "tensor cores", "loads of 16 bytes")


def as_markdown(capability: str) -> str:
    """Return the table of one compute capability, and its source. A slash separates the figures of two versions."""
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
    """Return a row's cells, with one figure if the versions of Triton agree."""
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


OTHERS = {
    "flash": "torch's FlashAttention",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
    "flashinfer": "FlashInfer",
    "vllm": "vLLM's Triton kernel",
}
"""The peers of `mini_kv.dev.attention.gpu_peers`, as the table's head names them."""


def measured_as_markdown(card: str) -> str:
    """Return the measurements on a GPU: our time, and the time of others as a multiple of ours."""
    record = measured(card)
    others = [name for name in OTHERS if any(name in row["times_as_fast_as"] for row in record["rows"])]
    head = ("batch", "microseconds", "TB/s", "of a copy's speed", "TFLOP/s", *(OTHERS[name] for name in others))
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in record["rows"]:
        ratios = [row["times_as_fast_as"].get(name) for name in others]
        cells = [f"{1e6 * row['seconds']:,.1f}", f"{row['bytes_per_second'] / 1e12:.2f}", f"{row['share_of_copy']:.2f}"]
        cells.append("" if row["row"].startswith("write") else f"{row['flops_per_second'] / 1e12:.0f}")
        cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        lines.append("| " + " | ".join([row["row"], *cells]) + " |")
    about = dict(line.split(maxsplit=1) for line in record["about"])
    limits = f"a copy moves {record['copy'] / 1e12:.2f} TB/s, a product does {record['multiply'] / 1e12:.0f} TFLOP/s"
    return "\n".join([*lines, "", f"*`{about['command']}`, {about['machine']}, {about['versions']}; {limits}.*"])


def measured(card: str) -> dict[str, Any]:
    """Return the record of a GPU. Raises `ValueError` if there is none."""
    path = ROOT / "book" / "data" / f"gpu-{card}.json"
    if not path.is_file():
        raise ValueError(f"nothing was measured on {card}: there is no {path.relative_to(ROOT)}")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
