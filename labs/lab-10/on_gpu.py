"""Your kernels on a GPU: right or wrong, and which share of the memory's bandwidth they reach. It gives no points.

    LAB_IMPL=starter python labs/lab-10/on_gpu.py

Without LAB_IMPL it runs the reference solution. LAB_IMPL may also be a file.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
FILES = {"starter": HERE / "starter.py", "solution": HERE.parents[1] / "solutions" / HERE.name / "solution.py"}
NUM_KV_HEADS, GROUP, HEAD_SIZE, BLOCK_SIZE = 8, 4, 128, 16


def load(file: Path) -> ModuleType:
    """Import the learner's file."""
    spec = importlib.util.spec_from_file_location("kernels", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def milliseconds(call: Callable[[], object], repeats: int = 30) -> float:
    """Return the median time of a call, after three to warm up."""
    times: list[float] = []
    for number in range(repeats + 3):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def dense(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention over plain arrays: queries `[heads, size]`, keys and values `[tokens, kv_heads, size]`."""
    keys, values = (x.float().repeat_interleave(GROUP, 1).transpose(0, 1) for x in (keys, values))
    scores = torch.einsum("hd,htd->ht", query.float(), keys) * HEAD_SIZE**-0.5
    return torch.einsum("ht,htd->hd", torch.softmax(scores, 1), values)


def measure(kernels: ModuleType, num_reqs: int, length: int, device: str = "cuda") -> None:
    """Write a batch of requests of about this length to a cache, decode it, compare, and print a line."""
    lengths = [length - 7 * request % 50 for request in range(num_reqs)]
    max_blocks = -(-length // BLOCK_SIZE)
    num_blocks = num_reqs * max_blocks + 1
    block_tables = (torch.randperm(num_blocks - 1) + 1).reshape(num_reqs, max_blocks).to(device, torch.int32)
    shape = (num_blocks, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE)
    memory = torch.full(shape, 1e4, dtype=torch.float16, device=device)
    k_cache, v_cache = memory[:, 0], memory[:, 1]
    slots: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for row, n in zip(block_tables.long(), lengths, strict=True):
        positions = torch.arange(n, device=device)
        slots.append(row[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
        for kept in (keys, values):
            kept.append(torch.randn(n, NUM_KV_HEADS, HEAD_SIZE, dtype=torch.float16, device=device))
    arguments = (torch.cat(keys), torch.cat(values), k_cache, v_cache, torch.cat(slots))
    write_ms = milliseconds(lambda: kernels.reshape_and_cache(*arguments))

    query = torch.randn(num_reqs, NUM_KV_HEADS * GROUP, HEAD_SIZE, dtype=torch.float16, device=device)
    out = torch.empty_like(query)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    scale = HEAD_SIZE**-0.5
    read_ms = milliseconds(
        lambda: kernels.paged_attention_decode(out, query, k_cache, v_cache, block_tables, seq_lens, scale)
    )
    want = torch.stack([dense(q, k, v) for q, k, v in zip(query, keys, values, strict=True)])
    error = ((out.float() - want).abs().amax() / want.abs().amax()).item()
    moved = sum(lengths) * NUM_KV_HEADS * HEAD_SIZE * 2 * 2
    verdict = "right" if error < 2e-3 else "WRONG"
    print(
        f"{num_reqs:>4} x {length:<6} {moved / 1e6:>6.0f} MB   {verdict} (error {error:.0e})   "
        f"written at {2 * moved / write_ms / 1e9:.2f} TB/s   read at {moved / read_ms / 1e9:.2f} TB/s"
    )


def main() -> int:
    """Measure. Return 2 without a GPU."""
    if not torch.cuda.is_available():
        print("no GPU here; the points need none:  LAB_IMPL=starter pytest labs/lab-10", file=sys.stderr)
        return 2
    choice = os.environ.get("LAB_IMPL") or "solution"
    kernels = load(FILES.get(choice, Path(choice)))
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_ms = milliseconds(lambda: target.copy_(source))
    copied = 2 * source.nbytes / copy_ms / 1e9
    print(f"{torch.cuda.get_device_name()}: a copy moves {copied:.2f} TB/s, read and written")
    for num_reqs, length in ((1, 4096), (32, 1024), (32, 4096)):
        measure(kernels, num_reqs, length)
    return 0


if __name__ == "__main__":
    sys.exit(main())
