"""`mini-kv doctor --gpu`: measure this machine's GPU and write one file to send."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mini_kv.course.labkit.lab import UnknownLabError, find_checkout

OLDEST = (8, 0)
"""The lowest compute capability that the kernels support."""
_TORCH_WORKS = "attention with torch and the rest of the course work here nevertheless"
SECONDS = 600
"""Seconds for all parts together. The report marks a part that is cut off."""


class Part(NamedTuple):
    """A measurement on a GPU, and Python's arguments for its program."""

    title: str
    arguments: tuple[str, ...]


Run = Callable[[Path, Part, float], str]


def parts(capability: str) -> list[Part]:
    """Return the parts of the report, the most important first."""
    bench, compiled = "mini_kv.dev.attention", "mini_kv.tests.attention.compiled"
    return [
        Part("the engine's tokens on every backend", ("-m", f"{bench}.engine_on_gpu")),
        Part("the compiled kernels: registers, spills, shared memory", ("-m", compiled, "--capability", capability)),
        Part("speed: copy bandwidth, our kernels, other projects' kernels", ("-m", bench, "--device", "cuda")),
        Part("speed with other tile sizes", ("-m", f"{bench}.tune")),
        Part("lab-10's kernels", ("labs/lab-10/on_gpu.py",)),
    ]


def run(out: Path, run_one: Run | None = None) -> int:
    """Measure, write the report and return 0, or print an error and return 2 on a machine without a suitable GPU.

    `run_one` runs each part. By default each part runs in its own process.
    """
    why = obstacle()
    if why is not None:
        print(f"mini-kv doctor --gpu: {why}; {_TORCH_WORKS}", file=sys.stderr)
        return 2
    try:
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        print(f"mini-kv doctor --gpu: {error}", file=sys.stderr)
        return 2
    out.touch()  # a folder that is not there is said now, and not after ten minutes
    text = report(root, SECONDS, run_one or run_part)
    out.write_text(text, encoding="utf-8")
    print(f"written: {out}. It contains the GPU's name, versions and measurements, no personal data.")
    return 0


def obstacle() -> str | None:
    """Return the reason why this machine cannot measure, or `None` if it can."""
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: in a checkout, run make test"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU here"
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        major, minor = capability
        return f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, and the kernels need 8.0"
    return None


def report(root: Path, seconds: float, run_one: Run) -> str:
    """Return the report: the card, then the output of each part. Prints the parts' titles as they begin."""
    import torch
    import triton

    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    lines = [
        f"card      {torch.cuda.get_device_name()}, compute capability {capability}",
        f"versions  Python {sys.version.split()[0]}, torch {torch.__version__}, triton {triton.__version__}",
    ]
    end = time.monotonic() + seconds
    for part in parts(capability):
        print(f"{part.title} ...", flush=True)
        lines += ["", f"== {part.title}", run_one(root, part, max(end - time.monotonic(), 1.0))]
    return "\n".join(lines) + "\n"


def run_part(root: Path, part: Part, seconds: float) -> str:
    """Return the output of a part, errors included. A last line follows if it failed or took longer than `seconds`."""
    command = [sys.executable, *part.arguments]
    done = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = done.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        done.kill()
        printed, _ = done.communicate()
        return f"{printed}(cut off after {seconds:.0f} seconds)"
    return printed + (f"(exit status {done.returncode})" if done.returncode else "")
