"""What lab-10 needs: the arguments of both kernels on poisoned memory, and the expected results.

Reading order: `Step`, new tokens that a kernel writes, and `Batch`, requests whose keys and values a kernel reads.
PyTorch is an argument. Triton's compiler is in compiler.py, what the random test needs in chance.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mini_kv.course.given.kernels.memory_access import KernelMemory
from mini_kv.course.labkit.fixture import LabUnderTest

UNTOUCHED = -777.0
"""The value where nothing has been written."""
STALE = 1e4
"""The value after the last token of a block that is not full."""
NOT_A_BLOCK = 1 << 30
"""The id after the request's last block in its row of the block table."""
SHOWN = 4
"""Numbers of a row that a failure shows."""


@dataclass
class Step:
    """The new tokens of a step. Key `1203` is that of token 1, head 2, element 3. Its value is the negative number."""

    torch: ModuleType
    slots: Sequence[int]
    num_kv_heads: int = 2
    head_size: int = 16
    block_size: int = 4
    views: bool = False
    """Whether the tensors are parts of larger ones."""

    def __post_init__(self) -> None:
        num_tokens, num_blocks = len(self.slots), max(self.slots) // self.block_size + 2
        sizes = (num_tokens, self.num_kv_heads, self.head_size)
        tokens, heads, elements = (self.torch.arange(float(size)) for size in sizes)
        codes = 1000 * tokens[:, None, None] + 100 * heads[:, None] + elements
        shape = (num_blocks, 2, self.num_kv_heads, self.block_size, self.head_size)
        memory = self.torch.full(shape, UNTOUCHED).transpose(2, 3)  # the layout HND of vLLM: a head's places in a row
        queries_keys_values = self.torch.stack([self.torch.full_like(codes, UNTOUCHED), codes, -codes], 2)
        self.key, self.value = queries_keys_values[:, :, 1], queries_keys_values[:, :, 2]
        self.k_cache, self.v_cache = memory[:, 0], memory[:, 1]
        if not self.views:
            self.key, self.value = self.key.contiguous(), self.value.contiguous()
            self.k_cache, self.v_cache = self.k_cache.contiguous(), self.v_cache.contiguous()
        self.slot_mapping = self.torch.tensor(self.slots)

    def tensors(self) -> dict[str, Any]:
        """Return the arguments, by name."""
        return {name: getattr(self, name) for name in ("key", "value", "k_cache", "v_cache", "slot_mapping")}

    def run(self, lab: LabUnderTest) -> KernelMemory:
        """Call the learner's `reshape_and_cache`. Return the memory that it read and wrote."""
        tensors = self.tensors()
        memory = KernelMemory(**tensors)
        with memory.watch():
            lab.reshape_and_cache(*tensors.values())
        return memory

    def check(self, lab: LabUnderTest) -> None:
        """Compare every row of both caches with the tokens of the slots."""
        for name, cache, rows in (("k_cache", self.k_cache, self.key), ("v_cache", self.v_cache, self.value)):
            want = self.torch.full_like(cache, UNTOUCHED)
            for slot, row in zip(self.slots, rows, strict=True):
                if slot >= 0:
                    want[slot // self.block_size, slot % self.block_size] = row
            wrong = (want != cache).any(-1).nonzero().tolist()
            if wrong:
                block, place, head = wrong[0]
                wanted, found = want[block, place, head], cache[block, place, head]
                first = max(int((wanted != found).nonzero()[0]) - 1, 0)
                what = f"{name}, block {block}, place {place}, head {head}{others(wrong)}: numbers from {first} on"
                lab.fail(what, wanted[first : first + SHOWN].tolist(), found[first : first + SHOWN].tolist())


@dataclass
class Batch:
    """Requests of these lengths, a query for each, their keys and values in scrambled blocks of a poisoned cache."""

    torch: ModuleType
    lengths: Sequence[int]
    num_kv_heads: int = 2
    group: int = 2
    """Query heads that share one head of keys."""
    head_size: int = 16
    block_size: int = 4
    dtype: str = "float32"
    """Of both caches."""
    views: bool = False
    """Whether the tensors are parts of larger ones."""
    spare: int = 1
    """Entries of the block table after the last block of the longest request."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.scale = self.head_size**-0.5
        self.seq_lens = self.torch.tensor(self.lengths, dtype=self.torch.int32)
        noise = self.torch.Generator().manual_seed(self.seed)
        dtype = getattr(self.torch, self.dtype)
        self.keys, self.values = (
            [self.torch.randn(n, self.num_kv_heads, self.head_size, generator=noise).to(dtype) for n in self.lengths]
            for _ in range(2)
        )
        num_blocks = [-(-length // self.block_size) for length in self.lengths]
        self._make_tables(num_blocks)
        shape = (sum(num_blocks) + 3, 2, self.num_kv_heads, self.block_size, self.head_size)
        memory = self.torch.full(shape, float("nan"), dtype=dtype).transpose(2, 3)
        self.k_cache, self.v_cache = memory[:, 0], memory[:, 1]
        if not self.views:
            self.k_cache, self.v_cache = self.k_cache.contiguous(), self.v_cache.contiguous()
        self.fill()
        self._make_rows(noise)

    def _make_tables(self, num_blocks: list[int]) -> None:
        """Give each request its blocks, in no order, and write them to the block table."""
        ids = list(range(1, sum(num_blocks) + 3))  # block 0 is the null block
        random.Random(self.seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(number)] for number in num_blocks]
        width = max([*num_blocks, 1]) + self.spare
        shape = (len(self.lengths), width + 3 * self.views)
        self.block_tables = self.torch.full(shape, NOT_A_BLOCK, dtype=self.torch.int32)[:, :width]
        for row, table in zip(self.block_tables, self.tables, strict=True):
            row[: len(table)] = self.torch.tensor(table, dtype=self.torch.int32)

    def _make_rows(self, noise: Any) -> None:
        """Make the query and the output, one row for each head."""
        num_reqs, num_heads = len(self.lengths), self.num_kv_heads * self.group
        packed = self.torch.randn(num_reqs, num_heads + 2 * self.num_kv_heads, self.head_size, generator=noise)
        if self.views:  # a query and its gate side by side, as in Qwen3-Next
            packed = self.torch.cat([packed, packed], -1)[..., : self.head_size]
        self.query = packed[:, :num_heads] if self.views else packed[:, :num_heads].contiguous()
        around = (num_reqs, num_heads + 2 * self.views, self.head_size + 4 * self.views)
        self.around_out = self.torch.full(around, UNTOUCHED)
        self.out = self.around_out[:, :num_heads, : self.head_size]

    def fill(self) -> None:
        """Write keys and values to their places. The rest of a request's blocks is stale."""
        for cache, rows in ((self.k_cache, self.keys), (self.v_cache, self.values)):
            for table, tokens in zip(self.tables, rows, strict=True):
                cache[table] = STALE
                for position, token in enumerate(tokens):
                    cache[table[position // self.block_size], position % self.block_size] = token

    def set_scores(self, shift: float, slope: float) -> None:
        """Make every score `shift`, a little more here and there, and `slope` more for each block after the first.

        All of them are exact in float32, whatever the order of the operations.
        """
        self.query[..., 0] = 1 / self.scale
        for tokens in self.keys:
            tokens.zero_()
            for position, token in enumerate(tokens):
                token[..., 0] = shift + 0.5 * (position % 3) + slope * (position // self.block_size)
        self.fill()

    def tensors(self) -> dict[str, Any]:
        """Return the arguments that are tensors, by name."""
        names = ("out", "query", "k_cache", "v_cache", "block_tables", "seq_lens")
        return {name: getattr(self, name) for name in names}

    def run(self, lab: LabUnderTest) -> KernelMemory:
        """Call the learner's `paged_attention_decode`. Return the memory that it read and wrote."""
        tensors = self.tensors()
        memory = KernelMemory(**tensors)
        with memory.watch():
            lab.paged_attention_decode(*tensors.values(), self.scale)
        return memory

    def want(self, request: int) -> Any:
        """Return the expected result of a request, `[num_heads, head_size]`, in float64, from plain arrays."""
        if not self.lengths[request]:
            return self.torch.full_like(self.out[request], UNTOUCHED).double()
        rows = []
        for head, q in enumerate(self.query[request].double()):
            keys, values = (of[request][:, head // self.group].double() for of in (self.keys, self.values))
            rows.append(self.torch.softmax(keys @ q * self.scale, 0) @ values)
        return self.torch.stack(rows)

    def check(self, lab: LabUnderTest, about: str = "") -> None:
        """Compare every row of the output. An error of 1e-5 of the row's largest number is allowed."""
        wrong = []
        for request in range(len(self.lengths)):
            want, got = self.want(request), self.out[request].double()
            far = (got - want).abs() > 1e-5 * want.abs().amax(-1, keepdim=True)
            far |= got.isnan()
            for head in far.any(-1).nonzero().flatten().tolist():
                start = min(int(far[head].nonzero()[0]), self.head_size - SHOWN)
                shown = slice(start, start + SHOWN)
                wrong.append((request, head, start, want[head, shown], got[head, shown]))
        if wrong:
            request, head, start, want, got = wrong[0]
            whose = f"request {request} of length {self.lengths[request]}, head {head}{others(wrong)}{about}"
            lab.fail(f"{whose}: numbers from {start} on", told(want), told(got), picture=clue(want, got))

    def num_changed_around_out(self) -> int:
        """Return how many numbers of the larger tensor outside the output were written."""
        return int((self.around_out != UNTOUCHED).sum() - (self.out != UNTOUCHED).sum())

    def refuse_stale_reads(self, lab: LabUnderTest, memory: KernelMemory, name: str) -> None:
        """Fail if a load of this cache reads a place without a token. Draw the first block with such a place."""
        held = {
            (table[position // self.block_size], position % self.block_size)
            for table, length in zip(self.tables, self.lengths, strict=True)
            for position in range(length)
        }
        loads = [access for access in memory.accesses if access.is_load and access.region.name == name]
        for load in loads:
            places = zip(load.indices[0].tolist(), load.indices[1].tolist(), strict=True)
            stale = sorted(set(places) - held)
            if stale:
                block = stale[0][0]
                marks = "".join("X" if (block, place) in stale else "o" for place in range(self.block_size))
                what, got = f"a load reads places of {name} that hold no token", f"{len(stale)} of them by program"
                picture = [f"block {block}   {marks}   o a token's place   X a place that holds no token"]
                lab.fail(what, "0 of them", f"{got} {load.program}", "a masked lane costs no read", picture, rule=9)


def others(wrong: Sequence[object]) -> str:
    """Return how many rows are wrong besides the first, for a message."""
    return f" and {len(wrong) - 1} rows more" if len(wrong) > 1 else ""


def told(row: Any) -> object:
    """Return the numbers as a message shows them."""
    if (row == UNTOUCHED).all():
        return "nothing: the row is as it was before"
    return [float(f"{number:.5g}") for number in row.tolist()]


def clue(want: Any, row: Any) -> list[str]:
    """Return a line about numbers from a place that must not be read, or numbers that are nearly right."""
    if row.isnan().any():
        return ["nan       from a block that is not the request's, or a masked lane without `other`, or 0 / 0"]
    if (row.abs() > STALE / 100).any() and not (row == UNTOUCHED).all():
        return ["so large  10000 is the value after the last token of a half-full block"]
    if ((row - want).abs() < 2e-3 * want.abs().amax()).all():
        return ["so near   right to three digits: were sums, weights or products computed in 16 bits?"]
    return []


def far_apart(torch: ModuleType, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return two caches of 16 bits with three blocks, 2**30 numbers apart: 4 GB that cost nothing until written."""
    _, block_size, num_kv_heads, head_size = shape
    strides = (1 << 30, num_kv_heads * head_size, head_size, 1)
    block = block_size * num_kv_heads * head_size
    memory = torch.empty((1 << 31) + 2 * block, dtype=torch.float16)
    shape = (3, *shape[1:])
    return memory.as_strided(shape, strides), memory[block:].as_strided(shape, strides)
