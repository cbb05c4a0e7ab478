"""Many requests in one step, compared with the machine's limits: the gain of batches, and the cost of a request.

A step reads all weights once, for one token as for a hundred. It also reads each request's keys and values, and
computes each request's products. So tokens per second grow with the batch until one of two limits is reached:

    time of a step  >=  (weights + KV) bytes / bandwidth
    time of a step  >=  operations / operations per second

The limits are measured here, too: a copy that is much larger than the last cache, and a product of large matrices.

Missing optimisations, which matter most for short kernels, on a GPU with few requests: CUDA graphs (each kernel is
launched from Python), one matrix for query, key and value, fused norms, sampling without waiting for the device.
"""

from statistics import median
from typing import Any

import torch

from mini_kv.dev.generate.setup import Setup, greedy, table
from mini_kv.dev.measure import Run, take_turns

TITLE = "tokens/s by the number of requests in a step"
_COPY_BYTES = 256 * 2**20
"""Bytes of the copied tensor: far more than a last-level cache."""
_ROUNDS = 10
"""Copies or products per measurement, so that waiting for the device is a negligible part."""


def run(setup: Setup, *, copy_bytes: int = _COPY_BYTES) -> list[dict[str, Any]]:
    """Return one row per batch size. Limits and steps are measured in turns."""
    matrix = 4096 if setup.model.device.type == "cuda" else 512
    runs: dict[str, Run] = {"copy": _copy(setup, copy_bytes), "multiply": _multiply(setup, matrix)}
    runs |= {str(batch): _decode(setup, batch) for batch in setup.sizes.batches}
    values = take_turns(runs, setup.repeats)
    copy = max(values["copy"]["per second"])  # the limit is what it can do when no other program disturbs it
    multiply = max(values["multiply"]["per second"])
    return [_row(setup, batch, values[str(batch)], copy, multiply) for batch in setup.sizes.batches]


def _copy(setup: Setup, num_bytes: int) -> Run:
    """Return a run that copies a large tensor, for the bytes per second that are read and written."""
    source = torch.ones(num_bytes // 4, device=setup.model.device)
    target = torch.empty_like(source)

    def once() -> dict[str, float]:
        begin = setup.clock()
        for _ in range(_ROUNDS):
            target.copy_(source)
        return {"per second": _ROUNDS * 2 * num_bytes / (setup.clock() - begin)}

    return once


def _multiply(setup: Setup, size: int) -> Run:
    """Return a run that multiplies two square matrices, for the operations per second."""
    left, right = (torch.randn(size, size, device=setup.model.device).to(setup.model.dtype) for _ in range(2))

    def once() -> dict[str, float]:
        begin = setup.clock()
        for _ in range(_ROUNDS):
            left @ right
        return {"per second": _ROUNDS * 2 * size**3 / (setup.clock() - begin)}

    return once


def _decode(setup: Setup, batch: int) -> Run:
    """Return a run that gives each of `batch` requests a few more tokens. The prompts are computed beforehand."""
    sizes = setup.sizes
    # Those whose prompt is computed first go on while the others' are: in steps of more than 512 tokens of prompts.
    num_new = (setup.repeats + 1) * sizes.steps + batch * sizes.context // 512 + 3
    engine = setup.engine(batch, sizes.context + num_new, prefix_caching=False)
    for index, prompt in enumerate(setup.prompts(batch, sizes.context)):
        engine.add_request(f"r{index}", prompt, greedy(num_new))
    while engine.scheduler.waiting or any(r.num_tokens == r.num_prompt_tokens for r in engine.scheduler.running):
        engine.step()

    def once() -> dict[str, float]:
        begin = setup.clock()
        for _ in range(sizes.steps):
            if len(engine.step()) != batch:
                raise RuntimeError("a request got no token")
        seconds = (setup.clock() - begin) / sizes.steps
        context = sum(request.num_computed_tokens for request in engine.scheduler.running) / batch
        return {"seconds": seconds, "context": context - sizes.steps / 2}

    return once


def _row(setup: Setup, batch: int, values: dict[str, list[float]], copy: float, multiply: float) -> dict[str, Any]:
    seconds, context = median(values["seconds"]), median(values["context"])
    kv_bytes = batch * context * setup.kv_bytes_per_token
    flops = batch * (setup.weight_flops_per_token + context * setup.attention_flops_per_token)
    floor = max((setup.weight_bytes + kv_bytes) / copy, flops / multiply)
    return {
        "requests": batch,
        "ms per step": 1e3 * seconds,
        "tokens/s": batch / seconds,
        "weight bytes per step": setup.weight_bytes,
        "KV bytes per step": kv_bytes,
        "context": context,
        "copy bytes/s": copy,
        "multiply flop/s": multiply,
        "share of copy": (setup.weight_bytes + kv_bytes) / seconds / copy,
        "share of multiply": flops / seconds / multiply,
        "floor ms": 1e3 * floor,
        "share of floor": floor / seconds,
    }


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as text."""
    one = rows[0]["tokens/s"] / rows[0]["requests"]
    cells = []
    for row in rows:
        cells.append(
            [
                str(row["requests"]),
                row["ms per step"],
                row["tokens/s"],
                f"{row['tokens/s'] / one:.1f}x",
                row["ms per step"] / row["requests"],
                row["weight bytes per step"] / 1e6,
                row["KV bytes per step"] / 1e6,
                row["floor ms"],
                *(f"{row[name]:.2f}" for name in ("share of copy", "share of multiply", "share of floor")),
            ]
        )
    head = ["requests", "ms per step", "tokens/s", "", "ms per token", "weights MB", "KV MB", "floor ms"]
    limits = f"copy {rows[0]['copy bytes/s'] / 1e9:,.1f} GB/s, multiply {rows[0]['multiply flop/s'] / 1e9:,.0f} GFLOP/s"
    return [
        f"measured limits: {limits}; {rows[0]['context']:.0f} tokens of context",
        *table([*head, "of copy", "of multiply", "of floor"], cells),
    ]
