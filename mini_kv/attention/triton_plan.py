"""Divides a call into tiles, warps and splits. The plan depends only on numbers, before anything is launched.

The chosen kernels are compiled for GPUs that need not be present, and recorded with their registers, shared memory and
instructions: `python -m mini_kv.tests.attention.compiled`. Only one choice spills registers to memory: 8-bit keys with
heads of 128. It spills a few, and is faster nevertheless, measured on an H200.
"""

from dataclasses import dataclass

MIN_SPLIT_TOKENS = 256
"""Positions of the shortest split: shorter ones write more partial results than the parallel work saves."""
ROWS_PER_WRITE = 16

Capability = tuple[int, int]
"""Compute capability of a GPU: (9, 0) for an H100 or H200."""


@dataclass(frozen=True, slots=True)
class Call:
    """The numbers that determine the tiles of a call."""

    query_bytes: int
    """Bytes of a number of the query: 2 or 4."""
    cache_bytes: int
    """Bytes of a number in the cache: 1, 2 or 4."""
    head_size: int
    group: int
    """Number of query heads that share a KV head."""
    max_query_len: int

    @property
    def is_wide(self) -> bool:
        """Whether a head of the query has more than 256 bytes."""
        return self.query_bytes * self.head_size > 256


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile sizes and the number of threads of a program of `attend_kernel`."""

    block_m: int
    """Rows of a program: queries times the query heads that share a KV head."""
    tile: int
    """Positions per step of the loop."""
    num_warps: int
    num_stages: int
    """Number of tiles in flight, plus one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The division of a call into programs of `attend_kernel`."""

    tiles: Tiles
    num_splits: int = 1
    split_tokens: int = 0
    """Positions per split, a multiple of `tile`."""


def max_rows(call: Call, capability: Capability) -> int:
    """Return the most rows that a program can have without running out of registers. 0: the call cannot be done.

    In float32 there are no tensor cores to hold the operands: each thread keeps whole rows of them in its registers.
    """
    is_quantized = call.cache_bytes == 1
    if call.query_bytes == 4:
        if is_quantized:  # converted on the way, which takes as many registers again
            return 16 if call.head_size <= 128 else 0
        return 16 if is_small(capability) else 32
    if call.is_wide:
        return 32 if is_quantized else 64
    return 64 if is_quantized and _sums_in_registers(capability) else 128


def pick_tiles(call: Call, capability: Capability) -> Tiles:
    """Return the tiles of a call on a GPU of this compute capability."""
    rows = max(call.max_query_len, 1) * call.group
    block_m = max(16, min(power_of_2(rows), max_rows(call, capability)), power_of_2(call.group))
    if call.query_bytes == 4:
        return _tiles_of_float32(call, block_m)
    if call.is_wide:
        if block_m > 16 and call.cache_bytes == 2:
            block_m = 64  # with 32 rows the compiler spills two registers, before compute capability 9.0
        return Tiles(block_m, 32, num_warps=4 if block_m == 16 else 8, num_stages=2)
    if block_m == 16 and call.head_size > 64 and call.cache_bytes == 1 and capability == (9, 0):
        return Tiles(block_m, 128, num_warps=4, num_stages=2)  # 0.8 of the time of 64 positions, on H200 and H100
    is_narrow = block_m > 16 and (call.cache_bytes == 1 or _sums_in_registers(capability))
    return Tiles(block_m, 32 if is_narrow else 64, num_warps=4 if block_m < 64 else 8, num_stages=3)


def _tiles_of_float32(call: Call, block_m: int) -> Tiles:
    """Return the tiles of a call in float32, which uses no tensor cores: few positions, or few threads."""
    if block_m > 16 or call.cache_bytes == 1:
        return Tiles(block_m, 16, num_warps=8, num_stages=2)
    if call.head_size > 128:
        return Tiles(block_m, 32, num_warps=8, num_stages=2)
    return Tiles(block_m, 64, num_warps=4, num_stages=2)  # 0.76 of the time of 32 positions for 8 warps, on an H200


def _sums_in_registers(capability: Capability) -> bool:
    """Return whether a product's sums are always in registers, and no tensor core multiplies from shared memory.

    This is the case before compute capability 9.0, and again in 12.0, whose cards are for desktops.
    """
    return capability < (9, 0) or capability >= (12, 0)


DECODE_NEEDS = {
    (2, 2): {64: (96, 36864), 128: (166, 71680), 256: (168, 41984)},
    (2, 1): {64: (161, 21504), 128: (255, 41984), 256: (208, 25856)},
    (4, 4): {64: (96, 40960), 128: (168, 77888), 256: (96, 84032)},
    (4, 1): {64: (128, 11392), 128: (199, 21632)},
}
"""Registers per thread and bytes of shared memory of a decode, by bytes of query and cache, and by head size.

The most that the compiler needs on any GPU that it supports. A test compares the numbers.
"""
REGISTERS = 65536
"""Registers of a multiprocessor, on every GPU since compute capability 3.0."""


def programs_per_multiprocessor(call: Call, capability: Capability, num_warps: int) -> int:
    """Return the number of programs of a decode that fit on one multiprocessor, by registers and shared memory."""
    needs = DECODE_NEEDS[call.query_bytes, call.cache_bytes]
    registers, shared = next(need for size, need in needs.items() if call.head_size <= size)
    return programs_that_fit(registers, shared, capability, num_warps)


def programs_that_fit(registers: int, shared: int, capability: Capability, num_warps: int) -> int:
    """Return how many programs with these needs fit on a multiprocessor. Registers per thread are rounded up to 8.

    >>> programs_that_fit(registers=128, shared=71680, capability=(9, 0), num_warps=4)
    3
    >>> programs_that_fit(registers=217, shared=39936, capability=(9, 0), num_warps=4)
    2
    """
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * num_warps)
    by_shared = shared_memory(capability) // (shared + 1024)  # the driver keeps 1 KB for each
    return min(by_registers, by_shared)


def shared_memory(capability: Capability) -> int:
    """Return the bytes of shared memory of a multiprocessor. A program can use all but 1 KB of it."""
    if is_small(capability):
        return 100 * 1024
    return (164 if capability < (9, 0) else 228) * 1024


def is_small(capability: Capability) -> bool:
    """Return whether the GPU is a desktop's: compute capability 8.6, 8.9, 12.0."""
    return capability in ((8, 6), (8, 9)) or capability >= (12, 0)


def pick_splits(num_programs: int, length: int, slots: int, tile: int) -> tuple[int, int]:
    """Return the number of splits per program, and the positions per split, that keep the GPU busy to the end.

    Programs run in waves of `slots`. The plan uses the fewest splits that fill the waves to nine tenths. If none does,
    it uses the splits with the fullest waves.

    >>> pick_splits(num_programs=256, length=4096, slots=396, tile=64)  # 768 programs: 1.94 waves
    (3, 1408)
    >>> pick_splits(num_programs=8, length=4096, slots=396, tile=64)  # cannot be filled: as many as make sense
    (16, 256)
    """
    best, best_fill = 1, 0.0
    for num_splits in range(1, max(length // MIN_SPLIT_TOKENS, 1) + 1):
        waves = num_programs * num_splits / slots
        fill = waves / -(-num_programs * num_splits // slots)
        if fill > best_fill:
            best, best_fill = num_splits, fill
        if fill >= 0.9:
            break
    split_tokens = -(-length // (best * tile)) * tile
    return -(-length // split_tokens), split_tokens


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def version_text(capability: Capability) -> str:
    """Return a compute capability as NVIDIA writes it: 9.0."""
    return ".".join(map(str, capability))
