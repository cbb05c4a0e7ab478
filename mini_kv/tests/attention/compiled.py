"""What the compiler makes of every launch, for GPUs that need not be there.

    python -m mini_kv.tests.attention.compiled --capability 9.0 --only "decode bf16"    as a table
    python -m mini_kv.tests.attention.compiled --write          all, into book/data/kernels.json

A process of its own, because the tests' process runs the kernels under the interpreter. The file keeps what each
version of Triton said, and for which source; the book's table and the quick tests read it.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, TypedDict

from mini_kv.attention.triton_plan import Capability, programs_that_fit, version_text
from mini_kv.tests.attention.launches import CAPABILITIES, RELATIVES, Launch, launches

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "book" / "data" / "kernels.json"
KERNELS = ROOT / "mini_kv" / "attention" / "triton_kernels.py"

INTEGERS = {"block_tables": "*i32", "seq_lens": "*i32", "query_start_loc": "*i32", "slot_mapping": "*i64"}
FLOATS = ("lse", "sinks", "k_scales", "v_scales", "parts", "part_lses")
SCALARS = {"score_scale": "fp32", "value_scale": "fp32", "soft_cap": "fp32"}
IN_TRITON = {"int8": "i8", "fp8": "fp8e4nv"}
ODD = ("lse_stride_token",)
"""An integer that need not be a multiple of 16; strides of the big tensors are. So with those that change."""
TENSOR_CORES = r"UTC[A-Z]*MMA|[HQ]GMMA|[HIQ]MMA"


class Facts(TypedDict):
    """What one launch takes, and what it became."""

    registers: int
    """Per thread."""
    spills: int
    """Instructions that put a register off to memory, or get it back."""
    shared: int
    """Bytes per program."""
    programs: int
    """On a multiprocessor at a time."""
    tensor_cores: str
    """Kinds of instructions for tensor cores."""
    wide_loads: int
    """Asynchronous loads of 16 bytes per thread."""
    narrow_loads: int
    """Other asynchronous loads."""


Table = dict[str, dict[str, Facts]]
"""By compute capability, then by the launch's name."""


def fingerprint() -> str:
    """Return a hash of all that is compiled: the kernels without comments and docstrings, and the launches."""
    digest = hashlib.sha256()
    for token in tokenize.generate_tokens(io.StringIO(KERNELS.read_text(encoding="utf-8")).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            digest.update(b"" if token.string.startswith('"""') else token.string.encode() + b" ")
    for capability in (*CAPABILITIES, *RELATIVES):
        digest.update(repr((capability, launches(capability))).encode())
    return digest.hexdigest()[:16]


def compile_launch(launch: Launch, capability: Capability) -> Any:
    """Return the binary of one case, as the launcher would have it compiled."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mini_kv.attention import triton_kernels

    kernel = getattr(triton_kernels, launch.kernel)
    constants = dict(launch.constants)
    if launch.kernel == "attend_kernel":
        constants["COMPUTE"] = getattr(
            triton.language, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[launch.query]
        )
    signature, constexprs, hints = {}, {}, {}
    for index, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            constexprs[(index,)] = constants[argument]
            continue
        signature[argument] = kind_of(argument, launch)
        if argument not in (*triton_kernels.CHANGING, *ODD, *SCALARS):
            hints[(index,)] = [["tt.divisibility", 16]]
    major, minor = capability
    return triton.compile(
        ASTSource(kernel, signature, constexprs, hints),
        target=GPUTarget("cuda", 10 * major + minor, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )


def kind_of(argument: str, launch: Launch) -> str:
    """Return an argument's type, in triton's words."""
    if argument in INTEGERS:
        return INTEGERS[argument]
    if argument in FLOATS or (argument == "out" and launch.constants.get("IS_SPLIT")):
        return "*fp32"
    if argument in ("k_cache", "v_cache"):
        return f"*{IN_TRITON.get(launch.cache, launch.cache)}"
    if argument in ("out", "query", "key", "value"):
        return f"*{launch.query}"
    return SCALARS.get(argument, "i32")


def facts(launch: Launch, capability: Capability) -> Facts:
    """Return what the compiler makes of one launch."""
    compiled = compile_launch(launch, capability)
    usage, code = describe(compiled.asm["cubin"])
    found = re.search(r"REG:(\d+)", usage)
    assert found, usage
    registers, shared = int(found[1]), compiled.metadata.shared
    loads = re.findall(r"\bLDGSTS[\w.]*", code)
    wide = sum(".128" in load for load in loads)
    return Facts(
        registers=registers,
        spills=len(re.findall(r"\b(?:STL|LDL)\b", code)),
        shared=shared,
        programs=programs_that_fit(registers, shared, capability, launch.num_warps),
        tensor_cores=" ".join(sorted(set(re.findall(rf"\b({TENSOR_CORES})\b", code)))),
        wide_loads=wide,
        narrow_loads=len(loads) - wide,
    )


def describe(binary: bytes) -> tuple[str, str]:
    """Return the resources that the machine code takes, and the code as text."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        return printed(tools / "cuobjdump", "-res-usage", str(path)), printed(tools / "nvdisasm", "-c", str(path))


def printed(program: Path, *arguments: str) -> str:
    """Return what a program prints. Raises `subprocess.CalledProcessError` if it fails."""
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def compile_all(capabilities: tuple[Capability, ...], only: list[str]) -> Table:
    """Return the facts of all launches whose names contain one of `only`, compiled by as many processes as cores."""
    table: Table = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for capability in capabilities:
            chosen = [launch for launch in launches(capability) if not only or launch.name in only]
            found = pool.map(facts, chosen, repeat(capability))
            table[version_text(capability)] = {launch.name: each for launch, each in zip(chosen, found, strict=True)}
    return table


def load_recording() -> dict[str, Any]:
    """Return what was recorded: the source's fingerprint, and a table for each version of Triton."""
    recording: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return recording


def record(table: Table) -> None:
    """Put the table into the recording, for this version of Triton; figures of other sources are dropped."""
    import triton

    recording = load_recording() if RECORDING.exists() else {}
    if recording.get("source") != fingerprint():
        recording = {"source": fingerprint(), "triton": {}}
    recording["triton"].setdefault(triton.__version__, {}).update(table)
    text = json.dumps(recording, indent=1)
    text = re.sub(r"\{\s*(\"registers\"[^}]*?)\s*\}", lambda row: "{" + " ".join(row[1].split()) + "}", text)
    RECORDING.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Compile, and print or record."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.tests.attention.compiled", description=__doc__)
    parser.add_argument("--capability", nargs="+", default=[], metavar="N", help="such as 9.0 (default: all)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="launches with these names")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="record it in book/data/kernels.json")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write records all launches of a GPU: leave out --only")
    chosen = tuple(c for c in (*CAPABILITIES, *RELATIVES) if not args.capability or version_text(c) in args.capability)
    table = compile_all(chosen, args.only)
    if args.write:
        record(table)
    if args.json:
        print(json.dumps(table))
        return 0
    for capability, rows in table.items():
        print(f"\n{capability:<38} registers  spills  shared  programs  wide/other loads  tensor cores")
        for name, row in rows.items():
            numbers = f"{row['registers']:>10}{row['spills']:>8}{row['shared']:>8}{row['programs']:>10}"
            print(f"{name:<38}{numbers}{row['wide_loads']:>8}/{row['narrow_loads']:<9}  {row['tensor_cores']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
