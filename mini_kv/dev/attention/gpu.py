"""On a GPU: our kernels compared with the machine's limits, and with other installed kernels.

It first prints the machine's limits (copy, read, multiply), then each row with its ratio to these and to other kernels:
torch's attention over contiguous keys and values (flash, cuDNN), FlexAttention, FlashInfer. Each result is compared
with our oracle on a few tokens. It takes less than ten minutes on one H200.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mini_kv.attention.backends import paged_attention, write_kv
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.reference import attend_once, visible_kv
from mini_kv.dev.attention import gpu_peers
from mini_kv.dev.attention.shapes import Inputs, Shape, decode, make_inputs, prefill
from mini_kv.dev.attention.timing import Calls, gpu_seconds

_SETS_BYTES = 512 * 2**20
"""Bytes of all sets of keys and values: far more than the 50 to 60 MB of a GPU's last cache."""

Clock = Callable[[Calls], float]


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates of this GPU without other work."""

    copy: float
    """Bytes per second, read and written."""
    read: float
    multiply: float
    """Operations per second, bfloat16."""


@dataclass(frozen=True, slots=True)
class Row:
    """A shape and the targets of performance: a share of the copy bandwidth, or operations per second."""

    name: str
    shape: Shape
    must: float | None = None
    goal: float | None = None
    write: bool = False
    """Time the write of new keys and values, not attention."""
    flex: bool = False
    """Compare with FlexAttention, which takes tens of seconds to compile."""


@dataclass(slots=True)
class Result:
    """Seconds per call for one row."""

    row: Row
    ours: float
    error: float
    """Largest relative error against the oracle on a few tokens."""
    others: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """The peers that could not do the row, with the reasons."""


def rows(quick: bool) -> list[Row]:
    """Return the rows. `quick` ones are tiny, and their figures mean nothing."""
    k = 16 if quick else 1024
    full, half = (0.90, 0.95), (0.70, 0.80)
    ragged = tuple(k // 8 + (i * 7919) % (8 * k) for i in range(64 // (16 if quick else 1)))

    def many(batch: int) -> int:
        return min(batch, 2) if quick else batch

    return [
        Row("decode B1 4k", decode(1, 4 * k)),
        Row("decode B1 32k", decode(1, 32 * k), *half),
        Row("decode B1 128k", decode(1, 128 * k), *full),
        Row("decode B8 4k", decode(many(8), 4 * k), *half),
        Row("decode B32 1k", decode(many(32), k), *half),
        Row("decode B32 4k", decode(many(32), 4 * k), *full, flex=True),
        Row("decode B32 4k HND", decode(many(32), 4 * k, layout="HND"), *full),
        Row("decode B64 8k", decode(many(64), 8 * k), *full),
        Row("decode B128 2k", decode(many(128), 2 * k), *full),
        Row("decode B256 1k", decode(many(256), k), *full),
        Row("decode B32 4k, block 64", decode(many(32), 4 * k, block_size=64), *full),
        Row("decode B32 4k, block 256", decode(many(32), 4 * k, block_size=256), *full),
        Row("decode B64 ragged", Shape((1,) * len(ragged), ragged), *full),
        Row("decode B32 4k, G 1", decode(many(32), 4 * k, num_heads=8)),
        Row("decode B32 4k, G 7", decode(many(32), 4 * k, num_heads=28, num_kv_heads=4)),
        Row("decode B32 4k, G 8", decode(many(32), 4 * k, num_heads=64), *full),
        Row("decode B32 4k, int8", decode(many(32), 4 * k, cache_dtype=torch.int8)),
        Row("decode B32 4k, fp8", decode(many(32), 4 * k, cache_dtype=torch.float8_e4m3fn)),
        Row("write 8k", prefill(1, 8 * k), 0.85, 0.9, write=True),
        Row("write 32k", prefill(1, 32 * k), 0.85, 0.9, write=True),
        Row("write 8k, int8", prefill(1, 8 * k, cache_dtype=torch.int8), write=True),
        Row("prefill 8k", prefill(1, 8 * k), 400e12, 500e12, flex=True),
        Row("prefill 8k, block 64", prefill(1, 8 * k, block_size=64), 400e12, 500e12),
        Row("prefill 4 x 4k", prefill(min(4, many(4)), 4 * k), 400e12, 500e12),
        Row("prefill 2k on 16k", prefill(1, 2 * k, 16 * k), 400e12, 500e12),
        Row("mixed: 2k on 2k, 63 decodes at 4k", Shape((2 * k, *(1,) * 63), (4 * k,) * 64)),
    ]


MeasureRow = Callable[[Row, int, torch.device, Clock, str], Result]


def run(
    seed: int,
    *,
    quick: bool = False,
    only: Sequence[str] | None = None,
    device: torch.device | str = "cuda",
    clock: Clock = gpu_seconds,
    backend: str = "triton",
    measure_row: MeasureRow | None = None,
) -> dict[str, Any]:
    """Measure and print all rows, and return them as plain values. Tests pass another device and another clock."""
    device = torch.device(device)
    limits = _measure_limits(device, clock, 2**16 if quick else 2**30)
    print(f"copy      {limits.copy / 1e12:.3f} TB/s    read {limits.read / 1e12:.3f} TB/s", flush=True)
    print(f"multiply  {limits.multiply / 1e12:.0f} TFLOP/s in bfloat16\n", flush=True)
    titles = f"{'us':>9}{'TB/s':>8}{'TFLOP/s':>9}{'share':>7}{'must':>7}{'goal':>7}{'reached':>9}{'error':>9}"
    print(f"{'':<36}{titles}  speed as a multiple of others", flush=True)
    found: list[dict[str, Any]] = []
    reasons = set()
    for row in rows(quick):
        if only and not any(part in row.name for part in only):
            continue
        try:
            result = (measure_row or measure)(row, seed, device, clock, backend)
        except Exception as error:  # a row that cannot be measured must not cost the others their ten minutes
            print(f"{row.name:<36} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            found.append({"row": row.name, "failed": f"{type(error).__name__}: {error}"})
            continue
        print(line(result, limits), flush=True)
        found.append(_as_values(result, limits))
        reasons |= {f"{name}: {why}" for name, why in result.failures.items()}
    print("\n".join(["", *_quantized_lines(found), "", *sorted(reasons)]), flush=True)
    return {"copy": limits.copy, "read": limits.read, "multiply": limits.multiply, "rows": found}


def _quantized_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the time of decode over 8-bit caches divided by that over bfloat16. Target: at most 0.62, better 0.55."""
    seconds = {row["row"]: row["seconds"] for row in found if "seconds" in row}
    name = "decode B32 4k"
    pairs = [(f"{name}, {kind}", seconds.get(f"{name}, {kind}")) for kind in ("int8", "fp8")]
    return [f"{one}: {took / seconds[name]:.2f} of bfloat16" for one, took in pairs if took and name in seconds]


def _measure_limits(device: torch.device, clock: Clock, num_bytes: int) -> Limits:
    """Time a copy, a sum and a product.

    The copy is a kernel. In a captured graph torch's own copy uses the copy engine: 2.75 TB/s on an H200, not 4.2.
    """
    source, target = (torch.ones(num_bytes // 4, dtype=torch.float32, device=device) for _ in range(2))
    side = max(64, round((num_bytes // 8) ** 0.5) // 64 * 64)
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    calls = (partial(torch.mul, source, 1.0, out=target), source.sum, partial(torch.mm, a, b))
    copied, read, multiplied = (clock([call]) for call in calls)
    return Limits(2 * num_bytes / copied, num_bytes / read, 2 * side**3 / multiplied)


def measure(row: Row, seed: int, device: torch.device, clock: Clock, backend: str) -> Result:
    """Check one row and time it, with our kernels and with every peer that can do it."""
    shape = row.shape
    num_sets = max(1, min(32, -(-_SETS_BYTES // shape.kv_bytes))) if device.type == "cuda" else 2
    sets = [make_inputs(shape, device, seed + i, with_contiguous=not row.write) for i in range(num_sets)]
    if row.write:
        return Result(row, clock([partial(_write, one, backend) for one in sets]), check_write(sets[0], backend))
    ours = clock([partial(_attend, one, backend) for one in sets])
    result = Result(row, ours, check(sets[0], backend))
    for name, peer in gpu_peers.PEERS.items():
        if name == "flex" and not row.flex:
            continue
        try:
            calls = [peer(one) for one in sets]
            result.others[name] = clock(calls)
        except Exception as error:  # not installed, or cannot do it: said in the report
            result.failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return result


def _attend(inputs: Inputs, backend: str) -> Tensor:
    return paged_attention(inputs.query, inputs.kv_cache, inputs.metadata, backend=backend, out=inputs.out)[0]


def _write(inputs: Inputs, backend: str) -> None:
    key, value = inputs.query[:, : inputs.shape.num_kv_heads], inputs.query[:, -inputs.shape.num_kv_heads :]
    write_kv(key, value, inputs.kv_cache, inputs.metadata.slot_mapping, backend=backend)


def check(inputs: Inputs, backend: str) -> float:
    """Return the largest relative error of a few tokens and heads against the oracle, in float64."""
    out, options = _attend(inputs, backend), AttentionOptions()
    shape, starts, worst = inputs.shape, inputs.metadata.query_start_loc.tolist(), 0.0
    group = shape.num_heads // shape.num_kv_heads
    for request in {0, len(shape.seq_lens) // 2, len(shape.seq_lens) - 1}:
        query_len, seq_len = shape.query_lens[request], shape.seq_lens[request]
        for i in {0, query_len // 2, query_len - 1}:
            block_ids = inputs.metadata.block_tables[request]
            keys, values = visible_kv(inputs.kv_cache, block_ids, seq_len - query_len + i, options)
            for head in {0, shape.num_heads - 1}:
                token, kv_head = starts[request] + i, head // group
                query = inputs.query[token, head].double()
                expected, _ = attend_once(query, keys[:, kv_head], values[:, kv_head], head, options)
                error = (out[token, head].double() - expected).norm() / expected.norm()
                worst = max(worst, float(error))
    return worst


def check_write(inputs: Inputs, backend: str) -> float:
    """Return the relative error of the slots' content after a write."""
    _write(inputs, backend)
    last = inputs.shape.seq_lens[0] - 1
    keys, _ = visible_kv(inputs.kv_cache, inputs.metadata.block_tables[0], last, AttentionOptions())
    expected = inputs.query[: last + 1, : inputs.shape.num_kv_heads].double()
    return float((keys - expected).norm() / expected.norm())


def rates(result: Result) -> tuple[float, float]:
    """Return bytes and operations per second."""
    shape = result.row.shape
    num_bytes = shape.bytes
    if result.row.write:  # read once in the query's dtype, written once in the cache's
        numbers = 2 * sum(shape.query_lens) * shape.num_kv_heads * shape.head_size
        num_bytes = numbers * shape.dtype.itemsize + shape.kv_bytes
    return num_bytes / result.ours, shape.flops / result.ours


def _as_values(result: Result, limits: Limits) -> dict[str, Any]:
    """Return a row as plain values."""
    num_bytes, flops = rates(result)
    row = result.row
    score = flops if row.must is not None and row.must > 1 else num_bytes / limits.copy
    reached = ""
    if row.must is not None and row.goal is not None:
        reached = "goal" if score >= row.goal else "must" if score >= row.must else "missed"
    return {
        "row": row.name,
        "seconds": result.ours,
        "bytes_per_second": num_bytes,
        "flops_per_second": flops,
        "share_of_copy": num_bytes / limits.copy,
        "reached": reached,
        "error": result.error,
        "others_seconds": dict(result.others),
        "times_as_fast_as": {name: seconds / result.ours for name, seconds in result.others.items()},
        "failures": dict(result.failures),
    }


def line(result: Result, limits: Limits) -> str:
    """Return a row as a line of text, with our speed as a multiple of each peer's."""
    values: Mapping[str, Any] = _as_values(result, limits)
    row = result.row
    must, goal = ("" if t is None else f"{t / 1e12:.0f}T" if t > 1 else f"{t:.2f}" for t in (row.must, row.goal))
    others = [f"{name} {ratio:.2f}x" for name, ratio in values["times_as_fast_as"].items()]
    return (
        f"{row.name:<36}{1e6 * result.ours:>9.1f}{values['bytes_per_second'] / 1e12:>8.2f}"
        f"{values['flops_per_second'] / 1e12:>9.1f}{values['share_of_copy']:>7.2f}{must:>7}{goal:>7}"
        f"{values['reached']:>9}{result.error:>9.1e}  {', '.join(others)}"
    )
