"""lab-10: two kernels, run by Triton's interpreter. Read the numbered tests in order.

Every load and every store is watched: a lane that leaves the tensors stops the kernel, and its picture is the failure.
A masked lane of a load without `other` holds NaN here, since the language promises nothing. Caches are poisoned: NaN in
blocks that nobody holds, 10000 behind the last token of a block that is half full. What stands in memory that was never
written is -777.
"""

import os
import random
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from mini_kv.labkit import points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.labkit.kernels.memory import KernelMemory
from mini_kv.labkit.shrink import shrink

UNTOUCHED = -777.0
STALE = 1e4
NOT_A_BLOCK = 1 << 30
"""Stands in a row of the block table behind the request's last block."""


# The biography: writing ---------------------------------------------------------------------------------------------


@points(3, "reshape_and_cache", why="slot 11 in blocks of 4 is block 2, place 3")
def test_1_each_token_goes_to_its_slot(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three tokens with two heads each, slots in no order: six rows of each cache are written, no other."""
    step = Step(torch, slots=[11, 4, 6])
    step.run(lab)
    step.check(lab)


@points(3, "reshape_and_cache", why="-1 means that a token is padding; 0 is a slot like any other")
def test_2_padding_is_written_nowhere(lab: LabUnderTest, torch: ModuleType) -> None:
    """A batch is padded to a size that was prepared for: the slot of such a token is -1."""
    step = Step(torch, slots=[-1, 5, -1, 0])
    step.run(lab)
    step.check(lab)


@points(3, "reshape_and_cache", why="only the strides know how far it is from one block, token or head to the next")
def test_3_caches_are_views_of_one_memory(lab: LabUnderTest, torch: ModuleType) -> None:
    """Keys and values of a block lie side by side, and the step's keys are cut out of a tensor of queries and keys."""
    step = Step(torch, slots=[9, 2, 5], views=True)
    step.run(lab)
    step.check(lab)


# The biography: reading ---------------------------------------------------------------------------------------------


@points(2, "paged_attention_decode", why="with one token to look at, all the weight is on it: its value comes out")
def test_4_a_single_token_answers_with_its_value(lab: LabUnderTest, torch: ModuleType) -> None:
    """One request of one token, one head: the softmax of one number is 1."""
    batch = Batch(torch, [1], num_kv_heads=1, group=1)
    batch.run(lab)
    batch.check(lab)


@points(3, "paged_attention_decode", why="the row of the block table says where the next four tokens are")
def test_5_blocks_lie_in_any_order(lab: LabUnderTest, torch: ModuleType) -> None:
    """Two requests, three and two full blocks, ids scrambled: as if the keys were one array."""
    batch = Batch(torch, [12, 8], group=1)
    batch.run(lab)
    batch.check(lab)


@points(3, "paged_attention_decode", why="what lies behind the last token has no meaning and must have no weight")
def test_6_the_last_block_is_half_full(lab: LabUnderTest, torch: ModuleType) -> None:
    """One token less than a block, a block, one more: the places behind the end hold 10000."""
    batch = Batch(torch, [3, 4, 5, 9], num_kv_heads=1, group=1)
    batch.run(lab)
    batch.check(lab)


@points(3, "paged_attention_decode", why="query heads 0 and 1 read head 0 of the keys, 2 and 3 read head 1")
def test_7_heads_share_keys(lab: LabUnderTest, torch: ModuleType) -> None:
    """Groups of 1, 2 and 4 heads: every head has an answer, and it is its own."""
    for group in (1, 2, 4):
        batch = Batch(torch, [6], group=group)
        batch.run(lab)
        batch.check(lab)


@points(3, "paged_attention_decode", why="a softmax does not change when all scores move by the same amount")
def test_8_scores_far_from_zero(lab: LabUnderTest, torch: ModuleType) -> None:
    """All scores near +200, then near -200, then rising from block to block: exp of such numbers is infinite, or 0."""
    for shift, slope in ((200.0, 0.0), (-200.0, 0.0), (-200.0, 40.0)):
        batch = Batch(torch, [10], num_kv_heads=1, group=2)
        batch.set_scores(shift, slope)
        batch.run(lab)
        batch.check(lab, about=f", with scores around {shift:+.0f}")


# The adversary ------------------------------------------------------------------------------------------------------


@points(3, "reshape_and_cache", stage="adversary", why="lanes beyond the last head or element belong to somebody else")
def test_writing_odd_shapes(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three heads of 24, one of 20, blocks of 3 and of 1: no power of two anywhere, but the lanes come in such."""
    for num_kv_heads, head_size, block_size in ((3, 24, 3), (1, 20, 1)):
        step = Step(torch, [5, -1, 7], num_kv_heads=num_kv_heads, head_size=head_size, block_size=block_size)
        step.run(lab)
        step.check(lab)


@points(2, "reshape_and_cache", stage="adversary", why="a cache of 4 GB has more numbers than 32 bits can count")
def test_writing_far_away(lab: LabUnderTest, torch: ModuleType) -> None:
    """Block 2 begins 2,147,483,648 numbers behind block 0. The memory is promised by the system, and not used."""
    step = Step(torch, slots=[1, 9])
    step.k_cache, step.v_cache = far_apart(torch, step.k_cache.shape)
    memory = step.run(lab)
    lab.expect("numbers written to k_cache", 64, memory.lanes_written()["k_cache"])
    got = step.k_cache[2, 1].float().tolist()
    want = step.key[1].tolist()
    if got != want:
        lab.fail("block 2, place 1 of k_cache, head 0, its first numbers", want[0][:3], got[0][:3])


@points(2, "reshape_and_cache", stage="adversary", why="moving a number costs the same as looking at it")
def test_counted_each_number_is_moved_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three tokens with slots and one without, 32 numbers each: 96 are read and 96 written, of keys and of values."""
    step = Step(torch, slots=[3, -1, 6, 10])
    memory = step.run(lab)
    read, written = memory.lanes_read(), memory.lanes_written()
    lab.expect("numbers read, of key and of value", [96, 96], [read["key"], read["value"]])
    lab.expect("numbers written, to k_cache and to v_cache", [96, 96], [written["k_cache"], written["v_cache"]])
    lab.expect("numbers read from the caches", 0, read["k_cache"] + read["v_cache"])


@points(3, "paged_attention_decode", stage="adversary", why="only the strides know how far it is to the next row")
def test_reading_through_views(lab: LabUnderTest, torch: ModuleType) -> None:
    """Every tensor is a part of a larger one: the caches, the query, the output, the block table."""
    batch = Batch(torch, [7, 4, 9], views=True)
    batch.run(lab)
    batch.check(lab)
    lab.expect("numbers around the output that changed", 0, batch.num_changed_around_out())


@points(2, "paged_attention_decode", stage="adversary", why="entries behind the request's last block may be anything")
def test_the_row_ends_with_the_request(lab: LabUnderTest, torch: ModuleType) -> None:
    """The table is as wide as the longest request needs; entries behind the others' last blocks lead nowhere."""
    batch = Batch(torch, [4, 8, 12], num_kv_heads=1, spare=0)
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", stage="adversary", why="a row with no tokens is padding: it has no answer")
def test_padded_requests_are_left_alone(lab: LabUnderTest, torch: ModuleType) -> None:
    """Two rows of the batch have length 0: nothing is read for them, and their output stays as it was."""
    batch = Batch(torch, [0, 5, 0], num_kv_heads=1)
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", stage="adversary", why="lanes that stand for no head, token or element count not")
def test_reading_odd_shapes(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three heads a group, heads of 24 and of 20, blocks of 3 and of 1: no power of two, but the lanes come in such."""
    for num_kv_heads, group, head_size, block_size in ((2, 3, 24, 3), (1, 1, 20, 1)):
        batch = Batch(torch, [7, 2], num_kv_heads=num_kv_heads, group=group, head_size=head_size, block_size=block_size)
        batch.run(lab)
        batch.check(lab)


@points(2, "paged_attention_decode", stage="adversary", why="half a float is enough to keep a key, not to add them up")
def test_a_cache_of_half_precision(lab: LabUnderTest, torch: ModuleType) -> None:
    """Keys and values of 16 bits, query and output of 32: as exact as the numbers in the cache allow."""
    batch = Batch(torch, [40], num_kv_heads=1, group=1, block_size=16, dtype="float16")
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", stage="adversary", why="a cache of 4 GB has more numbers than 32 bits can count")
def test_reading_far_away(lab: LabUnderTest, torch: ModuleType) -> None:
    """Block 2 begins 2,147,483,648 numbers behind block 0, and the table keeps its ids in 32 bits."""
    batch = Batch(torch, [4], num_kv_heads=2, dtype="float16")
    k_cache, v_cache = far_apart(torch, (3, *batch.k_cache.shape[1:]))
    block = int(batch.block_tables[0, 0])
    k_cache[2], v_cache[2] = batch.k_cache[block], batch.v_cache[block]
    batch.k_cache, batch.v_cache = k_cache, v_cache
    batch.block_tables[0, 0] = 2
    batch.run(lab)
    batch.check(lab)


# The counted loads: the score that a GPU would give in microseconds ---------------------------------------------------


@points(3, "paged_attention_decode", stage="adversary", why="in a decode, the time is that of reading the keys")
def test_counted_each_key_is_read_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """9 and 6 tokens, 2 heads of 16 numbers, 4 query heads on each: every key and value once, no stale place at all."""
    batch = Batch(torch, [9, 6], group=4)
    memory = batch.run(lab)
    read = memory.lanes_read()
    for name in ("k_cache", "v_cache"):
        stale = batch.picture_of_stale_reads(memory, name)
        if stale:
            what = f"a load reads places of {name} that hold no token"
            lab.fail(what, "0 of them", stale[0], "what is masked off is not paid for", picture=stale[1])
        lab.expect(f"numbers read from {name}: 15 tokens of 2 heads of 16", 15 * 2 * 16, read[name])


@points(1, "paged_attention_decode", stage="adversary", why="the table is read as far as the request goes")
def test_counted_the_table_is_read_where_it_means_something(lab: LabUnderTest, torch: ModuleType) -> None:
    """A row has room for 40 blocks and the request has three: at most an entry a token is read."""
    batch = Batch(torch, [9], num_kv_heads=1, spare=37)
    memory = batch.run(lab)
    entries = {int(i) for a in memory.accesses if a.region.name == "block_tables" for i in a.indices[1]}
    lab.expect("entries of the row that were read", [0, 1, 2], sorted(entries))
    count = memory.lanes_read()["block_tables"]
    if count > 9:
        lab.fail("numbers read from block_tables for 9 tokens in 3 blocks", "at most 9, one a token", count)


@points(1, "paged_attention_decode", stage="adversary", why="a load moves a tile: a GPU is fed by the armful")
def test_counted_a_load_moves_a_whole_block(lab: LabUnderTest, torch: ModuleType) -> None:
    """32 tokens in two blocks of 16: two loads from each cache do it, or fewer."""
    batch = Batch(torch, [32], num_kv_heads=1, group=2, block_size=16)
    loads = batch.run(lab).loads()
    for name in ("k_cache", "v_cache"):
        if not 1 <= loads[name] <= 2:
            lab.fail(f"loads from {name} for two blocks", "at most 2", loads[name])


# The property -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(30)  # forty batches, a few milliseconds for each block that a program reads
@points(2, "paged_attention_decode", stage="property", why="every row is the softmax of its own keys, and no others")
def test_random_batches_agree_with_dense_attention(lab: LabUnderTest, torch: ModuleType) -> None:
    """Forty random batches of every shape, each row compared with attention over plain arrays."""
    for seed in seeds(40):
        rng = random.Random(seed)
        lengths = [rng.choice((0, 1, 2, 3, 4, 5, 7, 8)) for _ in range(rng.choice((1, 1, 2)))]
        shape = {
            "num_kv_heads": rng.choice((1, 2)),
            "group": rng.choice((1, 2, 3)),
            "head_size": rng.choice((8, 12, 16)),
            "block_size": rng.choice((3, 4, 8)),
            "views": rng.random() < 0.5,
            "seed": seed,
        }
        if play(lab, torch, lengths, shape) is None:
            continue
        shortest = shrink(lengths, partial(fails, lab, torch, shape))
        failure = play(lab, torch, shortest, shape)
        assert failure is not None
        told = ", ".join(f"{name}={value}" for name, value in shape.items())
        what = f"{failure.what}; lengths {shortest}, {told}"
        lab.fail(what, failure.want, failure.got, failure.why, failure.picture)


def fails(lab: LabUnderTest, torch: ModuleType, shape: dict[str, Any], lengths: list[int]) -> bool:
    """Return whether these requests still show what is wrong."""
    return bool(lengths) and play(lab, torch, lengths, shape) is not None


def seeds(number: int) -> range:
    """Return as many seeds from LAB_SEED on."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return range(first, first + number)


def play(lab: LabUnderTest, torch: ModuleType, lengths: list[int], shape: dict[str, Any]) -> LabFailure | None:
    """Return what is wrong with this batch; `None` if nothing is."""
    batch = Batch(torch, lengths, **shape)
    try:
        batch.run(lab)
        batch.check(lab)
    except LabFailure as failure:
        return failure
    return None


# What the tests above stand on --------------------------------------------------------------------------------------


class Step:
    """The new tokens of a step. Key `1203` is that of token 1, head 2, element 3; the value beside it is negative."""

    def __init__(
        self,
        torch: ModuleType,
        slots: list[int],
        *,
        num_kv_heads: int = 2,
        head_size: int = 16,
        block_size: int = 4,
        views: bool = False,
    ) -> None:
        num_tokens, num_blocks = len(slots), max(slots) // block_size + 2
        tokens, heads, elements = (torch.arange(float(n)) for n in (num_tokens, num_kv_heads, head_size))
        codes = 1000 * tokens[:, None, None] + 100 * heads[:, None] + elements
        self.memory = torch.full((num_blocks, 2, block_size, num_kv_heads, head_size), UNTOUCHED)
        self.k_cache, self.v_cache = self.memory[:, 0], self.memory[:, 1]
        self.key, self.value = codes, -codes
        if views:
            packed = torch.full((num_tokens, 3 * num_kv_heads, head_size), UNTOUCHED)
            packed[:, num_kv_heads : 2 * num_kv_heads], packed[:, 2 * num_kv_heads :] = codes, -codes
            self.key, self.value = packed[:, num_kv_heads : 2 * num_kv_heads], packed[:, 2 * num_kv_heads :]
        else:
            self.k_cache, self.v_cache = self.k_cache.contiguous(), self.v_cache.contiguous()
        self.slots, self.slot_mapping = slots, torch.tensor(slots)

    def run(self, lab: LabUnderTest) -> KernelMemory:
        """Call the learner's `reshape_and_cache`; return what it read and wrote."""
        memory = KernelMemory(
            key=self.key, value=self.value, k_cache=self.k_cache, v_cache=self.v_cache, slot_mapping=self.slot_mapping
        )
        with memory.watch():
            lab.reshape_and_cache(self.key, self.value, self.k_cache, self.v_cache, self.slot_mapping)
        return memory

    def check(self, lab: LabUnderTest) -> None:
        """Compare both caches, every row of them, with what the slots say."""
        block_size = self.k_cache.shape[1]
        for name, cache, rows in (("k_cache", self.k_cache, self.key), ("v_cache", self.v_cache, self.value)):
            want = cache.new_full(cache.shape, UNTOUCHED)
            for slot, row in zip(self.slots, rows, strict=True):
                if slot >= 0:
                    want[slot // block_size, slot % block_size] = row
            wrong = (want != cache).any(-1).nonzero().tolist()
            if wrong:
                block, place, head = wrong[0]
                first = int((want[block, place, head] != cache[block, place, head]).nonzero()[0])
                numbers = slice(max(first - 1, 0), max(first - 1, 0) + 4)
                others = f" and {len(wrong) - 1} rows more" if len(wrong) > 1 else ""
                lab.fail(
                    f"{name}, block {block}, place {place}, head {head}{others}: numbers from {numbers.start} on",
                    want[block, place, head, numbers].tolist(),
                    cache[block, place, head, numbers].tolist(),
                )


class Batch:
    """Requests of these lengths, a query for each, their keys and values in scrambled blocks of a poisoned cache."""

    def __init__(
        self,
        torch: ModuleType,
        lengths: list[int],
        *,
        num_kv_heads: int = 2,
        group: int = 2,
        head_size: int = 16,
        block_size: int = 4,
        dtype: str = "float32",
        views: bool = False,
        spare: int = 1,
        seed: int = 0,
    ) -> None:
        self.torch, self.lengths, self.group, self.block_size = torch, lengths, group, block_size
        self.scale = head_size**-0.5
        kept = getattr(torch, dtype)
        noise = torch.Generator().manual_seed(seed)
        self.keys, self.values = (
            [torch.randn(n, num_kv_heads, head_size, generator=noise).to(kept) for n in lengths] for _ in range(2)
        )
        num_blocks = [-(-length // block_size) for length in lengths]
        ids = list(range(1, sum(num_blocks) + 3))  # block 0 is the null block
        random.Random(seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(number)] for number in num_blocks]

        memory = torch.full((sum(num_blocks) + 3, 2, block_size, num_kv_heads, head_size), float("nan"), dtype=kept)
        self.k_cache, self.v_cache = memory[:, 0], memory[:, 1]
        if not views:
            self.k_cache, self.v_cache = self.k_cache.contiguous(), self.v_cache.contiguous()
        self.fill()

        num_reqs, num_heads, width = len(lengths), num_kv_heads * group, max([*num_blocks, 1]) + spare
        wide = torch.full((num_reqs, width + (3 if views else 0)), NOT_A_BLOCK, dtype=torch.int32)
        for row, table in zip(wide, self.tables, strict=True):
            row[: len(table)] = torch.tensor(table, dtype=torch.int32)
        self.block_tables = wide[:, :width]
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        packed = torch.randn(num_reqs, num_heads + 2 * num_kv_heads, head_size, generator=noise)
        self.query = packed[:, :num_heads] if views else packed[:, :num_heads].contiguous()
        self.around_out = torch.full((num_reqs, num_heads + (2 if views else 0), head_size), UNTOUCHED)
        self.out = self.around_out[:, :num_heads]

    def fill(self) -> None:
        """Write keys and values to their places; what is left of a request's blocks is stale."""
        for cache, rows in ((self.k_cache, self.keys), (self.v_cache, self.values)):
            for table, tokens in zip(self.tables, rows, strict=True):
                cache[table] = STALE
                for position, token in enumerate(tokens):
                    cache[table[position // self.block_size], position % self.block_size] = token

    def set_scores(self, shift: float, slope: float) -> None:
        """Make every score `shift`, a little more here and there, and `slope` more for each block behind the first.

        All of them are exact in float32, whatever the order of the operations: a score near 200 has no digits to lose.
        """
        self.query[..., 0] = 1 / self.scale
        for tokens in self.keys:
            tokens.zero_()
            for position, token in enumerate(tokens):
                token[..., 0] = shift + 0.5 * (position % 3) + slope * (position // self.block_size)
        self.fill()

    def run(self, lab: LabUnderTest) -> KernelMemory:
        """Call the learner's `paged_attention_decode`; return what it read and wrote."""
        tensors = {
            "out": self.out,
            "query": self.query,
            "k_cache": self.k_cache,
            "v_cache": self.v_cache,
            "block_tables": self.block_tables,
            "seq_lens": self.seq_lens,
        }
        memory = KernelMemory(**tensors)
        with memory.watch():
            lab.paged_attention_decode(*tensors.values(), self.scale)
        return memory

    def want(self, request: int) -> Any:
        """Return what comes out for a request, `[num_heads, head_size]`, in float64, from plain arrays."""
        rows = []
        for head, q in enumerate(self.query[request].double()):
            kv_head = head // self.group
            keys, values = self.keys[request][:, kv_head].double(), self.values[request][:, kv_head].double()
            rows.append(self.torch.softmax(keys @ q * self.scale, 0) @ values)
        return self.torch.stack(rows)

    def check(self, lab: LabUnderTest, about: str = "") -> None:
        """Compare every row of the output; 1e-5 of the row's largest number is what float32 may lose."""
        wrong = []
        for request, length in enumerate(self.lengths):
            want = self.want(request) if length else self.out.new_full(self.out.shape[1:], UNTOUCHED).double()
            got = self.out[request].double()
            far = (got - want).abs() > 1e-5 * want.abs().amax(-1, keepdim=True)
            far |= got.isnan()
            for head in far.any(-1).nonzero().flatten().tolist():
                start = min(int(far[head].nonzero()[0]), far.shape[1] - 4)
                numbers = slice(start, start + 4)
                wrong.append((request, head, start, want[head, numbers], got[head, numbers]))
        if not wrong:
            return
        request, head, start, want, got = wrong[0]
        others = f" and {len(wrong) - 1} rows more" if len(wrong) > 1 else ""
        what = (
            f"request {request} of length {self.lengths[request]}, head {head}{others}{about}: numbers from {start} on"
        )
        lab.fail(what, self.told(want), self.told(got), picture=self.clue(got))

    def clue(self, row: Any) -> list[str]:
        """Return a line about numbers that come from where nobody should have read."""
        if row.isnan().any():
            return ["nan       from a block that is not the request's, or a masked lane without `other`, or 0 / 0"]
        if (row.abs() > STALE / 100).any() and not (row == UNTOUCHED).all():
            return ["so large  10000 stands behind the last token of a half-full block"]
        return []

    def told(self, row: Any) -> object:
        """Return the numbers as a message shows them."""
        if (row == UNTOUCHED).all():
            return "nothing: the row is as it was before"
        return [float(f"{number:.5g}") for number in row.tolist()]

    def num_changed_around_out(self) -> int:
        """Return how many numbers of the larger tensor were written that are not the output's."""
        return int((self.around_out[:, self.out.shape[1] :] != UNTOUCHED).sum())

    def picture_of_stale_reads(self, memory: KernelMemory, name: str) -> tuple[str, list[str]] | None:
        """Return how many places were read that hold no token, and a drawing of the first block with such."""
        held = {
            (table[position // self.block_size], position % self.block_size)
            for table, length in zip(self.tables, self.lengths, strict=True)
            for position in range(length)
        }
        for access in memory.accesses:
            if access.is_load and access.region.name == name:
                places = list(zip(access.indices[0].tolist(), access.indices[1].tolist(), strict=True))
                stale = sorted({place for place in places if place not in held})
                if stale:
                    block = stale[0][0]
                    marks = ["X" if (block, place) in stale else "o" for place in range(self.block_size)]
                    return (
                        f"{len(stale)} of them by program {access.program}",
                        [f"block {block}   {''.join(marks)}   o a token's place   X a place that holds no token"],
                    )
        return None


def far_apart(torch: ModuleType, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return two caches of 16 bits whose blocks are 2**30 numbers apart: 4 GB that nobody touches cost nothing."""
    _, block_size, num_kv_heads, head_size = shape
    strides = (1 << 30, num_kv_heads * head_size, head_size, 1)
    block = block_size * num_kv_heads * head_size
    memory = torch.empty((1 << 31) + 2 * block, dtype=torch.float16)
    shape = (3, *shape[1:])
    return memory.as_strided(shape, strides), memory[block:].as_strided(shape, strides)
