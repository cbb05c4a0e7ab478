"""Compiles the kernels for GPUs that need not be there: `python -m mini_kv.tests.attention.compiled 90`.

Prints one JSON object: for each case what it needs and which instructions it became. A process of its own, because the
tests' process runs the kernels under the interpreter.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mini_kv.attention import triton_kernels

NVDISASM = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
INTEGERS = {"block_tables": "*i32", "seq_lens": "*i32", "query_start_loc": "*i32", "slot_mapping": "*i64"}
FLOATS = ("lse", "sinks", "k_scales", "v_scales", "parts", "part_lses")
CACHES = ("k_cache", "v_cache")
SCALARS = {"score_scale": "fp32", "value_scale": "fp32", "soft_cap": "fp32"}
ODD = ("num_reqs", "num_rows", "num_splits", "table_stride", "lse_stride_token")
"""Integers that are no multiples of 16 at run time; strides of the big tensors are."""

DECODE = {
    "BLOCK_SIZE": 16, "HEAD_SIZE": 128, "BLOCK_D": 128, "GROUP": 4, "BLOCK_M": 16, "TILE": 64, "WINDOW": 0, "CHUNK": 0,
    "HAS_SOFT_CAP": False, "HAS_SINKS": False, "HAS_SCALES": False, "IS_SPLIT": True, "ONE_QUERY_EACH": True,
}  # fmt: skip
HEAD_256 = {**DECODE, "HEAD_SIZE": 256, "BLOCK_D": 256, "TILE": 32}
PREFILL = {**DECODE, "BLOCK_M": 128, "IS_SPLIT": False, "ONE_QUERY_EACH": False}
WRITE = {"NUM_KV_HEADS": 8, "BLOCK_SIZE": 16, "HEAD_SIZE": 128, "BLOCK_D": 128, "ROWS": 16, "HAS_SCALES": False}
MERGE = {"HEAD_SIZE": 128, "BLOCK_D": 128, "BLOCK_S": 16, "HAS_SINKS": True}
EVERYTHING = {"WINDOW": 1024, "CHUNK": 4096, "HAS_SOFT_CAP": True, "HAS_SINKS": True}

# name: kernel, constants, dtype of queries, dtype of the cache, warps, stages
CASES = {
    "decode": ("attend_kernel", DECODE, "bf16", "bf16", 4, 3),
    "decode, block 64": ("attend_kernel", {**DECODE, "BLOCK_SIZE": 64}, "bf16", "bf16", 4, 3),
    "decode, everything": ("attend_kernel", {**DECODE, **EVERYTHING, "IS_SPLIT": False}, "bf16", "bf16", 4, 3),
    "decode, int8": ("attend_kernel", {**DECODE, "HAS_SCALES": True}, "bf16", "i8", 4, 3),
    "decode, fp8": ("attend_kernel", DECODE, "bf16", "fp8e4nv", 4, 3),
    "decode, head 256": (
        "attend_kernel",
        {**DECODE, "HEAD_SIZE": 256, "BLOCK_D": 256, "TILE": 32},
        "bf16",
        "bf16",
        4,
        2,
    ),
    "prefill": ("attend_kernel", PREFILL, "bf16", "bf16", 8, 3),
    "write": ("write_kv_kernel", WRITE, "bf16", "bf16", 4, 3),
    "write, int8": ("write_kv_kernel", {**WRITE, "HAS_SCALES": True}, "bf16", "i8", 4, 3),
    "merge": ("merge_kernel", MERGE, "bf16", "bf16", 4, 3),
}


def compile_case(name, capability):
    """Return the binary of one case, as the launcher would have it compiled."""
    kernel_name, constants, query_dtype, cache_dtype, num_warps, num_stages = CASES[name]
    kernel = getattr(triton_kernels, kernel_name)
    if name == "prefill" and capability < 90:
        constants = {**constants, "TILE": 32}  # as `make_plan` has it: its sums lie in registers, there
    if kernel_name == "attend_kernel":
        constants = {**constants, "COMPUTE": triton.language.bfloat16}
    signature, constexprs, hints = {}, {}, {}
    for index, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            constexprs[(index,)] = constants[argument]
            continue
        signature[argument] = kind_of(argument, query_dtype, cache_dtype, constants.get("IS_SPLIT", False))
        if argument not in ODD and signature[argument] != "fp32":
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs, hints)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps, "num_stages": num_stages})


def kind_of(argument, query_dtype, cache_dtype, is_split):
    """Return an argument's type, in triton's words."""
    if argument in INTEGERS:
        return INTEGERS[argument]
    if argument in FLOATS or (argument == "out" and is_split):
        return "*fp32"
    if argument in CACHES:
        return f"*{cache_dtype}"
    if argument in ("out", "query", "key", "value"):
        return f"*{query_dtype}"
    return SCALARS.get(argument, "i32")


def disassemble(binary):
    """Return the machine code as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        return subprocess.run([NVDISASM, "-c", path], capture_output=True, text=True, check=True).stdout


def facts(name, capability):
    """Return what the tests look at."""
    compiled = compile_case(name, capability)
    code = disassemble(compiled.asm["cubin"])
    found = re.findall(r"\b((?:STL|LDL|LDGSTS|LDG|STG|HGMMA|HMMA|UTCHMMA|UTCQMMA|UTCMMA|QGMMA|LDTM)[\w.]*)", code)
    counts: dict[str, int] = {}
    for instruction in found:
        counts[instruction] = counts.get(instruction, 0) + 1
    return {"shared": compiled.metadata.shared, "instructions": counts}


if __name__ == "__main__":
    gpu = int(sys.argv[1])
    names = sys.argv[2:] or [name for name in CASES if not (gpu < 89 and "fp8" in name)]
    print(json.dumps({name: facts(name, gpu) for name in names}))
