"""On a CPU: our torch backend compared with torch's own attention over contiguous keys and values, on one thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_kv.attention.backends import paged_attention
from mini_kv.dev.attention.shapes import Inputs, Shape, decode, make_inputs, prefill
from mini_kv.dev.attention.timing import cpu_seconds
from mini_kv.dev.measure import Spread, spread, take_turns

LAYERS_BYTES = 512 * 2**20
"""Bytes of all sets of keys and values, far more than a processor's cache. A model's layers take turns, too."""


@dataclass(frozen=True, slots=True)
class Row:
    """A shape, and the allowed ratio of our time to that of contiguous attention."""

    name: str
    shape: Shape
    must: float | None = None
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds per call, by implementation."""

    row: Row
    ms: dict[str, Spread]

    @property
    def ratio(self) -> float:
        """Our time divided by that of contiguous attention."""
        return self.ms["paged"].median / self.ms["contiguous"].median

    @property
    def verdict(self) -> str:
        """The reached level: `goal`, `must` or `missed`."""
        if self.row.must is None or self.row.goal is None:
            return ""
        return "goal" if self.ratio <= self.row.goal else "must" if self.ratio <= self.row.must else "missed"


def rows(quick: bool) -> list[Row]:
    """Return the rows. `quick` ones are tiny, and their figures mean nothing."""
    batch, short, long, prompt = (2, 32, 64, 32) if quick else (8, 1024, 4096, 1024)
    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
    found = []
    for layout in ("NHD", "HND"):
        found += [
            Row(f"decode fp32 {short} {layout}", decode(batch, short, dtype=f32, layout=layout), 1.25, 1.1),
            Row(f"decode fp32 {long} {layout}", decode(batch, long, dtype=f32, layout=layout), 1.0, 0.8),
            Row(f"decode bf16 {short} {layout}", decode(batch, short, dtype=bf16, layout=layout), 1.4, 1.3),
            Row(f"decode bf16 {long} {layout}", decode(batch, long, dtype=bf16, layout=layout), 1.15, 1.0),
        ]
    found += [
        Row(f"decode bf16 {short} block 32", decode(batch, short, dtype=bf16, block_size=32)),
        Row(f"decode bf16 {long} block 32", decode(batch, long, dtype=bf16, block_size=32)),
        Row(f"decode fp16 {long}", decode(batch, long, dtype=f16), 0.65, 0.58),
        Row(f"decode int8 {long}", decode(batch, long, dtype=bf16, cache_dtype=torch.int8)),
        Row(f"prefill fp32 {prompt}", prefill(1, prompt, dtype=f32), 1.1, 1.05),
        Row(f"prefill bf16 {prompt}", prefill(1, prompt, dtype=bf16), 1.1, 1.05),
        Row(f"prefill fp32 {prompt // 4} on {2 * prompt}", prefill(1, prompt // 4, 2 * prompt, dtype=f32), 1.1, 1.05),
        Row(f"prefill bf16 {prompt // 4} on {2 * prompt}", prefill(1, prompt // 4, 2 * prompt, dtype=bf16), 1.1, 1.05),
    ]
    return found


def measure(row: Row, repeats: int, seed: int, layers_bytes: int = LAYERS_BYTES) -> Result:
    """Time one row: paged and contiguous in turns, each over all sets of tensors.

    The first round is not counted. It plans the batch, as a model does once per step, not once per layer.
    """
    num_sets = max(1, min(8, layers_bytes // row.shape.kv_bytes))
    sets = [make_inputs(row.shape, torch.device("cpu"), seed + i, with_contiguous=True) for i in range(num_sets)]
    runs = {
        "paged": partial(_seconds, [partial(paged, one) for one in sets]),
        "contiguous": partial(_seconds, [contiguous(one) for one in sets]),
    }
    values = take_turns(runs, repeats)
    return Result(row, {name: spread([1e3 * s for s in found["seconds"]]) for name, found in values.items()})


def _seconds(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    return {"seconds": cpu_seconds(calls)}


def paged(inputs: Inputs) -> Tensor:
    """Attend over blocks."""
    return paged_attention(inputs.query, inputs.kv_cache, inputs.metadata, backend="torch", out=inputs.out)[0]


def contiguous(inputs: Inputs) -> Callable[[], Tensor]:
    """Return torch's own attention over contiguous keys and values, as in a model library.

    Queries and result have our layout, with one token's heads side by side, as projections produce and read them.
    transformers' `sdpa_attention_forward` transposes both, too. One query per request needs no transposition.
    """
    query, keys, values = inputs.padded_query, inputs.keys, inputs.values
    assert keys is not None and values is not None
    batch, num_heads, query_len, head_size = query.shape
    seq_len, is_causal = keys.shape[2], query_len == keys.shape[2] > 1
    mask = None
    if 1 < query_len < seq_len:
        mask = torch.ones(query_len, seq_len, dtype=torch.bool).tril(seq_len - query_len)
    out = inputs.out.view(batch, query_len, num_heads, head_size).transpose(1, 2)

    def attend() -> Tensor:
        out.copy_(
            F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=is_causal, enable_gqa=True)
        )
        return inputs.out

    return attend


def table_lines(results: list[Result]) -> list[str]:
    """Return the results as lines of text."""
    targets = f"{'must':>8}{'goal':>8}{'reached':>9}"
    lines = [f"{'':<26}{'paged ms':>14}{'contiguous ms':>16}{'ratio':>8}{targets}"]
    for result in results:
        row = result.row
        targets = f"{row.must or '':>8}{row.goal or '':>8}{result.verdict:>9}"
        times = "".join(f"{_text(result.ms[name]):>{width}}" for name, width in (("paged", 14), ("contiguous", 16)))
        lines.append(f"{row.name:<26}{times}{result.ratio:>8.2f}{targets}")
    return lines


def _text(found: Spread) -> str:
    return f"{found.median:.3g} ±{found.relative_iqr:3.0%}"
