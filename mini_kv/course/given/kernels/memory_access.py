"""Counts a kernel's reads and writes, lane by lane, and stops it at an access outside its tensors.

A lane is one element of a `tl.load` or `tl.store`. On a GPU a lane outside its tensor reads other memory, or
ends the process. Here the kernel stops at that line, and the failure draws these lanes:

    lanes     o inside   . masked off   X outside
       0-1    oooooooooooooooo
         2    ooooooooXXXXXXXX
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mini_kv.course.given.kernels.interpreter import interpreted
from mini_kv.course.labkit.fixture import LabFailure

MAX_ROWS = 5
_MAX_COLUMNS = 64
_UNDEFINED_INTEGER = 99
"""Value of a masked integer lane in a load without `other`. A float lane gets NaN."""


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a tensor."""

    name: str
    tensor: Any

    def find(self, addresses: Any) -> tuple[Any, list[Any]]:
        """Return a mask of the addresses (an int64 array) inside the tensor, and their indices per dimension."""
        tensor, size = self.tensor, self.tensor.element_size()
        rest = addresses - tensor.data_ptr()
        is_inside = (rest >= 0) & (rest % size == 0)
        rest = rest // size
        indices: list[Any] = [rest * 0] * tensor.dim()
        for dim in sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)):
            if tensor.shape[dim] > 1 and tensor.stride(dim) > 0:
                indices[dim] = rest // tensor.stride(dim)
                is_inside &= indices[dim] < tensor.shape[dim]
                rest = rest % tensor.stride(dim)
        return is_inside & (rest == 0), indices

    def place(self, address: int) -> str:
        """Return the position of an address outside the elements, in words."""
        element = (address - self.tensor.data_ptr()) // self.tensor.element_size()
        last = sum((n - 1) * stride for n, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True))
        if 0 <= element <= last:
            return f"in a gap of {self.name}"
        distance = -element if element < 0 else element - last
        numbers = "1 number" if distance == 1 else f"{distance} numbers"
        return f"{numbers} before {self.name}" if element < 0 else f"{numbers} behind the end of {self.name}"


@dataclass(frozen=True, slots=True)
class Access:
    """One `tl.load` or `tl.store` of one program."""

    is_load: bool
    program: tuple[int, ...]
    region: Region
    """The tensor in which most of the lanes are."""
    indices: list[Any]
    """The index of each active lane, per dimension of that tensor."""
    is_active: Any
    """Mask of the active lanes of the tile, in the tile's shape."""

    @property
    def num_lanes(self) -> int:
        """Number of active lanes."""
        return len(self.indices[0])

    def draw(self) -> str:
        """Return a line with all lanes of the tile, its rows side by side: `reads source  oooo|oo..`."""
        rows = self.is_active.reshape(-1, self.is_active.shape[-1] if self.is_active.ndim else 1)
        lanes = "|".join("".join("o" if lane else "." for lane in row) for row in rows)
        cut = lanes if len(lanes) <= _MAX_COLUMNS else lanes[: _MAX_COLUMNS - 4] + " ..."
        verb = "reads" if self.is_load else "writes"
        return f"program {self.program} {verb:<6} {self.region.name:<7} {cut}"


class KernelMemory:
    """The tensors that kernels may access, and all accesses."""

    def __init__(self, **tensors: Any) -> None:
        self.regions = [Region(name, tensor) for name, tensor in tensors.items()]
        self.accesses: list[Access] = []

    def lanes_read(self) -> Counter[str]:
        """Return the number of reads of elements per tensor. Repeated reads count."""
        return self._count(is_load=True)

    def lanes_written(self) -> Counter[str]:
        """Return the number of written elements per tensor."""
        return self._count(is_load=False)

    def _count(self, *, is_load: bool) -> Counter[str]:
        counts: Counter[str] = Counter()
        for access in self.accesses:
            if access.is_load == is_load:
                counts[access.region.name] += access.num_lanes
        return counts

    def loads(self) -> Counter[str]:
        """Return the number of loads per tensor, of any size."""
        return Counter(access.region.name for access in self.accesses if access.is_load)

    def watch(self) -> AbstractContextManager[None]:
        """Return a context in which kernels run under the interpreter, and every load and store is recorded.

        Raises `LabFailure` inside the kernel at the first lane that is outside the tensor of the access's other lanes.
        The memory there depends on the allocator, and may be another tensor. A masked lane of a load without `other`
        gets a useless value, because the language defines none.
        """
        return interpreted(self)

    def on_launch(self, arguments: dict[str, Any]) -> None:
        """Note the tensors among the kernel's arguments."""
        for name, argument in arguments.items():
            if hasattr(argument, "data_ptr") and argument.numel() > 0:
                self.regions.append(Region(name, argument))

    def on_load(self, builder: Any, ptrs: Any, mask: Any, other: Any, loaded: Callable[[], Any]) -> Any:
        """Record the lanes, then load."""
        self._see(True, _program(builder), ptrs, mask)
        values = loaded()
        if other is None:
            kind = values.data.dtype.kind
            values.data[mask.data == 0] = float("nan") if kind == "f" else _UNDEFINED_INTEGER
        return values

    def on_store(self, builder: Any, ptrs: Any, mask: Any) -> None:
        """Record the lanes."""
        self._see(False, _program(builder), ptrs, mask)

    def _see(self, is_load: bool, program: tuple[int, ...], ptrs: Any, mask: Any) -> None:
        is_active = mask.data.reshape(-1) != 0
        addresses = ptrs.data.reshape(-1).astype("int64")[is_active]
        if len(addresses) == 0:
            return
        found = [(region, *region.find(addresses)) for region in self.regions]
        region, is_inside, indices = max(found, key=lambda entry: int(entry[1].sum()))
        if not is_inside.all():
            self._stray(is_load, program, ptrs, is_active, addresses, region)
        self.accesses.append(Access(is_load, program, region, indices, (mask.data != 0).reshape(ptrs.data.shape)))

    def _stray(
        self, is_load: bool, program: tuple[int, ...], ptrs: Any, is_active: Any, addresses: Any, region: Region
    ) -> None:
        is_inside = region.find(addresses)[0]
        marks = ["."] * len(is_active)
        for lane, inside in zip(is_active.nonzero()[0].tolist(), is_inside.tolist(), strict=True):
            marks[lane] = "o" if inside else "X"
        astray = int(addresses[~is_inside][0])
        where = region.name
        if not is_inside.any():
            region = min(self.regions, key=lambda region: abs(astray - region.tensor.data_ptr()))
            where = "everything that it was given"
        verb = "reads" if is_load else "writes"
        why = "on a GPU this would be another tensor's memory, or the end of the process"
        if region.tensor.data_ptr() - astray > 2**30:  # bytes: no wrong mask or stride leads there
            why = "so far before the beginning: a product was too large for 32 bits, and came out negative"
        raise LabFailure(
            f"program {program} {verb} outside of {where}",
            "no lane outside",
            f"{marks.count('X')} of {len(marks)} lanes outside, the first one {region.place(astray)}",
            why,
            picture=draw_lanes(marks, ptrs.data.shape),
        )


def _program(builder: Any) -> tuple[int, ...]:
    """Return the running program's position in the grid, without unused dimensions."""
    num_dims = max([1, *(dim + 1 for dim, size in enumerate(builder.grid_dim) if size > 1)])
    return tuple(builder.grid_idx[:num_dims])


def draw_lanes(marks: Sequence[str], shape: Sequence[int]) -> list[str]:
    """Return one line per row of lanes. Equal rows are drawn once, wide ones are cut."""
    columns = shape[-1] if shape else 1
    rows = ["".join(marks[start : start + columns]) for start in range(0, len(marks), columns)]
    lines = ["lanes     o inside   . masked off   X outside"]
    first = 0
    for number in range(1, len(rows) + 1):
        if number < len(rows) and rows[number] == rows[first]:
            continue
        label = str(first) if number - first == 1 else f"{first}-{number - 1}"
        row = rows[first] if columns <= _MAX_COLUMNS else rows[first][: _MAX_COLUMNS - 4] + " ..."
        lines.append(f"{label:>7}   {row}")
        first = number
    return (
        lines if len(lines) <= MAX_ROWS + 1 else [*lines[:MAX_ROWS], f"          and {len(lines) - MAX_ROWS} rows more"]
    )
