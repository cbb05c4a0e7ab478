"""`mini-kv doctor`: the course's requirements, those that are installed, and the commands for the rest.

With `--gpu` a report on this machine's GPU.
"""

import argparse
import importlib.metadata
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from mini_kv.course.commands import gpu_report
from mini_kv.course.labkit.lab import UnknownLabError, find_checkout
from mini_kv.installer import install
from mini_kv.typed_numbers import output_file


class Extra(NamedTuple):
    """A set of packages that pyproject.toml offers by name."""

    packages: tuple[str, ...]
    """Packages of the extra, with those of the extras that it builds on."""
    gives: str
    """The features that need these packages."""
    make: str
    """The target of the Makefile that installs them."""


EXTRAS = {
    "xxhash": Extra(("xxhash",), "the hash function xxh3_128", "make"),
    "attention": Extra(("torch",), "attention over blocks, lab-08 and lab-09", "make test"),
    "triton": Extra(("torch", "triton", "numpy"), "kernels, lab-10", "make test"),
    "engine": Extra(("torch", "safetensors"), "mini-kv generate", "make test"),
    "hf": Extra(
        ("torch", "safetensors", "transformers", "jinja2"), "checkpoints of Llama, Qwen, Phi; chats", "make test"
    ),
    "remote": Extra(("torch", "safetensors", "valkey"), "a prefix cache that several engines share", "make test"),
    "serve": Extra(("torch", "safetensors", "starlette", "uvicorn", "prometheus_client"), "mini-kv serve", "make test"),
    "events": Extra(("pyzmq", "msgspec"), "KV events of an engine's cache; mini-kv attach", "make test"),
    "tokenizer": Extra(("tokenizers", "jinja2"), "traces of texts and chats", "make test"),
    "sweep": Extra(("joblib", "distributed"), "tables of replays in processes and on a Dask cluster", "make test"),
    "notebooks": Extra(("jupyterlab", "ipywidgets", "anywidget", "matplotlib"), "the notebooks", "make notebooks"),
}
"""Every extra of pyproject.toml. A test compares them."""


UNTRIED_TORCH = (2, 14)
"""The first version of PyTorch that was not tried. The extra `attention` ends before it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the report on a GPU."""
    parser.add_argument(
        "--gpu", action="store_true", help="measure the kernels on your GPU, and write one file to send"
    )
    default = Path("gpu-report.txt")
    parser.add_argument(
        "--to", type=output_file(), default=default, metavar="FILE", help=f"of --gpu; default: {default}"
    )


def run(args: argparse.Namespace) -> int:
    """Print the installed and the missing packages. Return 1 if a required one is missing, else 0.

    With `--gpu` measure the GPU instead. Return 2 if that is not possible.
    """
    if args.gpu:
        return gpu_report.run(args.to)
    lines, healthy = doctor_lines(Path.cwd())
    print("\n".join(lines))
    return 0 if healthy else 1


def doctor_lines(start: Path) -> tuple[list[str], bool]:
    """Return a line per possible requirement, and whether all mandatory ones are installed."""
    place = remedy = ""
    try:
        place = f" in {find_checkout(start)}"
    except UnknownLabError as error:
        remedy = str(error)
    checks: list[tuple[str, bool, bool, str]] = [
        ("Python 3.11 or newer", sys.version_info >= (3, 11), True, "make PY=/path/to/python3"),
        ("pytest", _importable("pytest"), True, install("pytest", "make")),
        ("pytest-timeout, stops endless loops", _importable("pytest_timeout"), True, install("pytest-timeout", "make")),
        (f"labs/{place}", bool(place), True, remedy),
        ("git, for updates", shutil.which("git") is not None, False, "install git"),
        ("Node and npm, for the browser tests", shutil.which("npm") is not None, False, "install Node 18 or newer"),
        *(_check_extra(name, extra) for name, extra in EXTRAS.items()),
        *check_torch(installed("torch")),
    ]
    lines = []
    for what, there, needed, remedy in checks:
        mark = "ok     " if there else ("MISSING" if needed else "without")
        lines.append(f"{mark}  {what}{'' if there else f'   ->  {remedy}'}")
    return lines, all(there for _, there, needed, _ in checks if needed)


def _check_extra(name: str, extra: Extra) -> tuple[str, bool, bool, str]:
    wanted = [package for package in extra.packages if package != "triton" or sys.platform == "linux"]
    missing = [package for package in wanted if not _importable(package)]
    lacks = f" (no {', no '.join(missing)})" if missing else ""
    return f"extra {name}: {extra.gives}{lacks}", not missing, False, install(f"-e '.[{name}]'", extra.make)


def installed(package: str) -> str:
    """Return the package's version, or "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_torch(version: str) -> list[tuple[str, bool, bool, str]]:
    """Return a check that fails if this version of PyTorch is too new. No check without a version."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    first = ".".join(map(str, UNTRIED_TORCH))
    what = f"PyTorch older than {first}, from which on none was tried"
    is_tried = numbers < UNTRIED_TORCH
    return [(f"{what}: here is {version}", is_tried, False, install(f"'torch<{first}'"))] if version else []


def _importable(name: str) -> bool:
    return importlib.util.find_spec("zmq" if name == "pyzmq" else name) is not None
