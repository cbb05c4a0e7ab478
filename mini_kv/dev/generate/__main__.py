"""`python -m mini_kv.dev.generate`: the gain of a cache and of a batch, and the speed of other engines."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mini_kv.dev.generate import batch, cache, peers, prefix
from mini_kv.dev.generate.setup import SHAPE_NAMES, Setup, make_setup
from mini_kv.dev.report import cpu_model

PARTS = {"cache": cache, "prefix": prefix, "batch": batch, "peers": peers}
_SHAPES_ON_CPU = {
    "cache": ("tiny", "small"),
    "prefix": ("tiny",),
    "batch": ("tiny", "small"),
    "peers": ("tiny",),
}
"""The models that each part measures by default."""
_SHAPES_ON_GPU = dict.fromkeys(PARTS, ("1b",))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0 measured, 2 unusable arguments."""
    args = parse(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("mini_kv.dev.generate: torch sees no GPU here", file=sys.stderr)
        return 2
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    header = make_header(device, args)
    print("\n".join(f"{name:<10}{value}" for name, value in header.items()), flush=True)
    report: dict[str, Any] = {"date": date.today().isoformat(), "header": header, "parts": []}
    setups: dict[str, Setup] = {}
    shapes = _SHAPES_ON_GPU if device == "cuda" else _SHAPES_ON_CPU
    for part in args.parts:
        for shape in args.shape or shapes[part]:
            if shape not in setups:
                setups[shape] = make_setup(shape, device, quick=args.quick, repeats=args.repeats, seed=args.seed)
            report["parts"].append(measure(part, PARTS[part], setups[shape]))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(part: str, module: Any, setup: Setup) -> dict[str, Any]:
    """Run one part on one model, and print it. Its failure does not affect the other parts."""
    begin = load()
    print(f"\n{module.TITLE}\nmodel {setup.shape}: {describe(setup)}", flush=True)
    found: dict[str, Any] = {"part": part, "title": module.TITLE, "shape": setup.shape}
    try:
        found["rows"] = module.run(setup)
    except RuntimeError as error:  # torch's, for memory that is not there
        found["failed"] = str(error).splitlines()[0]
        print(f"failed: {found['failed']}", flush=True)
        return found
    found["load"] = [begin, load()]
    print("\n".join(module.lines(found["rows"])))
    print(f"load average before and after: {begin}, {found['load'][1]}", flush=True)
    return found


def describe(setup: Setup) -> str:
    """Return a model's sizes in words."""
    config = setup.model.config
    return (
        f"{config.num_hidden_layers} layers, hidden {config.hidden_size}, {config.num_attention_heads} heads on "
        f"{config.num_key_value_heads}, {setup.weight_bytes / 1e6:,.1f} MB of weights "
        f"({str(setup.model.dtype).removeprefix('torch.')}), {setup.kv_bytes_per_token:,} bytes of KV a token"
    )


def load() -> float | None:
    """Return the machine's load average of the last minute, if the system has it."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.generate", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--shape", nargs="+", choices=SHAPE_NAMES, help="default: depends on part and device")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each, in turns (default: 5)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and prompts (default: 0)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows the tables, their figures mean nothing")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    return parser.parse_args(argv)


def make_header(device: str, args: argparse.Namespace) -> dict[str, str]:
    """Return the circumstances of the measurement."""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
        method = f"wall clock with the device waited for, medians of {args.repeats} runs in turns; no CUDA graphs"
    else:
        machine = f"{cpu_model()}, {os.cpu_count()} cores, 1 thread of torch"
        method = f"CPU time of the process, medians of {args.repeats} runs in turns; GC on with the heap frozen"
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "transformers", "psutil"))
    return {
        "machine": machine,
        "versions": f"Python {sys.version.split()[0]}, {packages}",
        "method": method,
        "seed": str(args.seed),
        "command": shlex.join(["python", "-m", "mini_kv.dev.generate", *sys.argv[1:]]),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main())
