"""`python -m mini_kv.dev.attention`: attention over blocks, compared with contiguous keys and values."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from mini_kv.dev.attention import cpu, gpu
from mini_kv.dev.report import cpu_model


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0 measured, 2 unusable arguments."""
    args = parse(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("mini_kv.dev.attention: torch sees no GPU here", file=sys.stderr)
        return 2
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    about = header_lines(device, args.seed)
    print("\n".join(about), flush=True)
    if device == "cuda":
        report: object = {"about": about, **gpu.run(args.seed, quick=args.quick, only=args.rows)}
    else:
        torch.set_num_threads(1)
        results = []
        for row in cpu.rows(args.quick):
            if not args.rows or any(part in row.name for part in args.rows):
                results.append(cpu.measure(row, args.repeats, args.seed))
                print("\n".join(cpu.table_lines(results)[-1 if len(results) > 1 else 0 :]), flush=True)
        report = [
            {
                "row": r.row.name,
                "ms": {n: asdict(s) for n, s in r.ms.items()},
                "ratio": r.ratio,
                "reached": r.verdict,
            }
            for r in results
        ]
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.attention", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose names contain one of these")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="runs per row, on a CPU (default: 9)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the tensors (default: 0)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows the table, its figures mean nothing")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    return parser.parse_args(argv)


def header_lines(device: str, seed: int) -> list[str]:
    """Return the circumstances of the measurement, as lines."""
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
        method = "replay of a CUDA graph over sets of tensors of 512 MB together, median of 7; random block order"
    else:
        machine = f"{cpu_model()}, 1 thread"
        size = cpu.LAYERS_BYTES >> 20
        method = f"CPU time of the thread, medians, in turns; sets of tensors of up to {size} MB together"
    return [
        f"machine   {machine}",
        f"versions  Python {sys.version.split()[0]}, torch {torch.__version__}, triton {version}",
        f"method    {method}",
        f"seed      {seed}",
        f"command   {shlex.join(['python', '-m', 'mini_kv.dev.attention', *sys.argv[1:]])}",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
