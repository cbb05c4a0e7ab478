"""Checks a checkpoint's weights before they become a model: the header first, the numbers last.

header      names, dtypes and shapes give the memory that is needed, before any is allocated
numbers     all must be finite: one NaN among the weights makes every answer empty
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mini_kv.core.strict_json import check_file
from mini_kv.engine.errors import CheckpointError

FLOATS = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights, by their names in the file. Dtypes of 8 bits or fewer are left out: they need scales."""


class TensorHeader(NamedTuple):
    """The dtype and shape of a tensor in a file of weights, from the file's header."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Return dtype and shape of each tensor in a file of weights, by its name. No tensor is read.

    Raises `CheckpointError` if the file is missing or damaged, and for a tensor of other than floating-point numbers.
    """
    from safetensors import SafetensorError, safe_open

    check_file(path, CheckpointError, 1 << 63, needed_for="the model's weights")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            header = {name: TensorHeader(s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"is damaged: {error}") from None
    for name, tensor in header.items():
        if tensor.dtype not in FLOATS:
            kinds = ", ".join(FLOATS)
            raise CheckpointError(path, f"{name} holds {tensor.dtype}, and weights are floating-point numbers: {kinds}")
    return header


def num_elements(header: dict[str, TensorHeader]) -> int:
    """Return the number of elements of all tensors together."""
    return sum(math.prod(tensor.shape) for tensor in header.values())


def check_finite(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise `CheckpointError`, naming the tensor, if any of the numbers is NaN or infinite. Costs one pass, no memory.

    Args:
        path: the file to name in the error.
        tensors: names and tensors.
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() > 0:
            smallest, largest = tensor.aminmax()  # either is NaN if any number is
            for value in (smallest.item(), largest.item()):
                if not math.isfinite(value):
                    raise CheckpointError(path, f"{name} holds {value} in {tensor.dtype}, so every answer would be NaN")
