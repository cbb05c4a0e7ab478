"""`python -m mini_kv.dev.attention.tune`: our kernels with other tiles and warps than the plan's, on a GPU."""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import product

import torch

from mini_kv.attention import triton_backend
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.triton_plan import Plan, Tiles, pick_splits
from mini_kv.dev.attention.gpu import Clock
from mini_kv.dev.attention.shapes import Inputs, Shape, decode, make_inputs, prefill
from mini_kv.dev.attention.timing import gpu_seconds

SHAPES = {
    "decode B32 4k": decode(32, 4096),
    "decode B32 4k, int8": decode(32, 4096, cache_dtype=torch.int8),
    "decode B8 4k, float32": decode(8, 4096, dtype=torch.float32),
    "prefill 8k": prefill(1, 8192),
}


def candidates(plan: Plan) -> list[Tiles]:
    """Return the plan's tiles first, then others with as many rows."""
    own = plan.tiles
    others = (Tiles(own.block_m, *rest) for rest in product((32, 64, 128), (4, 8), (2, 3, 4)))
    return [own, *(tiles for tiles in others if tiles != own)]


def _seconds_with(tiles: Tiles, plan: Plan, sets: Sequence[Inputs], clock: Clock) -> float:
    """Return the time of a call with these tiles, with about as many splits as the plan has."""
    splits = (1, 0)
    if plan.num_splits > 1:
        length = max(sets[0].shape.seq_lens)
        _, splits_tokens = pick_splits(1, length, slots=plan.num_splits, tile=tiles.tile)
        splits = (-(-length // splits_tokens), splits_tokens)
    calls = [
        partial(triton_backend.attend, x.query, x.kv_cache, x.metadata, AttentionOptions(), x.out, Plan(tiles, *splits))
        for x in sets
    ]
    return clock(calls)


def tune(name: str, shape: Shape, device: str, clock: Clock, most: int | None = None) -> list[str]:
    """Return a line per choice of tiles, the plan's own first. Lines of unusable tiles have the reason."""
    sets = [make_inputs(shape, torch.device(device), seed, with_contiguous=False) for seed in (0, 1)]
    one = sets[0]
    plan = triton_backend.make_plan(one.query, one.kv_cache, one.metadata, AttentionOptions())
    lines = [name]
    for tiles in candidates(plan)[:most]:
        what = f"  tile {tiles.tile:<4} warps {tiles.num_warps}  stages {tiles.num_stages}"
        try:
            lines.append(f"{what}  {1e6 * _seconds_with(tiles, plan, sets, clock):>9.1f} us")
        except Exception as error:  # too much shared memory: not a failure of the report
            lines.append(f"{what}  {type(error).__name__}")
    return lines


def main() -> int:
    """Print a table per shape and return 2 where there is no GPU."""
    if not torch.cuda.is_available():
        print("mini_kv.dev.attention.tune: torch sees no GPU here", file=sys.stderr)
        return 2
    for name, shape in SHAPES.items():
        print("\n".join(tune(name, shape, "cuda", gpu_seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
