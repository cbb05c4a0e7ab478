"""lab-10: two kernels, run by Triton's interpreter. Read the numbered tests in order.

Every load and every store is watched: a lane outside the tensors stops the kernel, and the failure draws it.
A masked lane of a load without `other` holds NaN here, since the language promises nothing. Caches are poisoned: NaN in
blocks of no request, 10000 after the last token of a half-full block. Memory that was never written holds -777.

`Step` and `Batch` in helpers.py make the tensors, call your launcher and compare the memory afterwards.
"""

from types import ModuleType

import pytest

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .chance import compare_random_batches
from .compiler import refuse_what_no_compiler_takes
from .helpers import Batch, Step, far_apart

# The biography: writing ---------------------------------------------------------------------------------------------


@points(2, "reshape_and_cache", rule=1, why="slot 11 in blocks of 4 is block 2, place 3")
def test_1_each_token_goes_to_its_slot(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three tokens with two heads each, slots in no order: six rows of each cache are written, no other."""
    step = Step(torch, slots=[11, 4, 6])
    step.run(lab)
    step.check(lab)


@points(2, "reshape_and_cache", rule=2, why="in Python -1 is the last element, in a kernel it is before the first")
def test_2_padding_is_written_nowhere(lab: LabUnderTest, torch: ModuleType) -> None:
    """A batch is padded to a prepared batch size. Each padding token has slot -1."""
    step = Step(torch, slots=[-1, 5, -1, 0])
    step.run(lab)
    step.check(lab)


@points(3, "reshape_and_cache", rule=3)
def test_3_caches_are_views_of_one_memory(lab: LabUnderTest, torch: ModuleType) -> None:
    """Caches, key and value are parts of larger tensors, so no stride follows from a shape."""
    step = Step(torch, slots=[9, 2, 5], views=True)
    step.run(lab)
    step.check(lab)


# The biography: reading ---------------------------------------------------------------------------------------------


@points(1, "paged_attention_decode", rule=8, why="a single token has weight 1, so the result is its value")
def test_4_a_single_token_answers_with_its_value(lab: LabUnderTest, torch: ModuleType) -> None:
    """One request of one token, one head: the softmax of one number is 1."""
    batch = Batch(torch, [1], num_kv_heads=1, group=1)
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", rule=8)
def test_5_blocks_lie_in_any_order(lab: LabUnderTest, torch: ModuleType) -> None:
    """Two requests, three and two full blocks, ids scrambled."""
    batch = Batch(torch, [12, 8], group=1)
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", rule=9)
def test_6_the_last_block_is_half_full(lab: LabUnderTest, torch: ModuleType) -> None:
    """One token less than a block, a block, one more: the places after the end hold 10000."""
    batch = Batch(torch, [3, 4, 5, 9], num_kv_heads=1, group=1)
    batch.run(lab)
    batch.check(lab)


@points(3, "paged_attention_decode", rule=8)
def test_7_heads_share_keys(lab: LabUnderTest, torch: ModuleType) -> None:
    """Groups of 1, 2 and 4 query heads: each query head has its own result."""
    for group in (1, 2, 4):
        batch = Batch(torch, [6], group=group)
        batch.run(lab)
        batch.check(lab)


@points(2, "paged_attention_decode", rule=11, why="a softmax does not change when all scores move by the same amount")
def test_8_scores_far_from_zero(lab: LabUnderTest, torch: ModuleType) -> None:
    """All scores near +200, then near -200, then rising from block to block: exp of such numbers is infinite, or 0."""
    for shift, slope in ((200.0, 0.0), (-200.0, 0.0), (-200.0, 40.0)):
        batch = Batch(torch, [10], num_kv_heads=1, group=2)
        batch.set_scores(shift, slope)
        batch.run(lab)
        batch.check(lab, about=f", with scores around {shift:+.0f}")


# The biography: what a GPU gets --------------------------------------------------------------------------------------


@points(3, "reshape_and_cache", rule=7, why="the interpreter accepts any Python, the compiler does not")
def test_9_the_writer_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """Compile for a GPU of compute capability 9.0. No GPU is needed, and nothing is launched."""
    refuse_what_no_compiler_takes(lab, torch, "reshape_and_cache")


@points(5, "paged_attention_decode", rule=7, why="the interpreter accepts any Python, the compiler does not")
def test_10_the_reader_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """For the same GPU, with heads of 128, blocks of 16 and a cache of half precision."""
    refuse_what_no_compiler_takes(lab, torch, "paged_attention_decode")


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "reshape_and_cache", rule=4, stage="adversary")
def test_writing_odd_shapes(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three heads of 24, one of 20, blocks of 3 and of 1. A tile's sides are powers of two, these sizes are not all."""
    for num_kv_heads, head_size, block_size in ((3, 24, 3), (1, 20, 1)):
        step = Step(torch, [5, -1, 7], num_kv_heads=num_kv_heads, head_size=head_size, block_size=block_size)
        step.run(lab)
        step.check(lab)


@points(3, "reshape_and_cache", rule=5, stage="adversary")
def test_writing_far_away(lab: LabUnderTest, torch: ModuleType) -> None:
    """Block 2 begins 2,147,483,648 numbers after block 0. The system reserves the addresses, not the memory."""
    step = Step(torch, slots=[1, 9])
    step.k_cache, step.v_cache = far_apart(torch, step.k_cache.shape)
    memory = step.run(lab)
    lab.expect("numbers written to k_cache", 64, memory.lanes_written()["k_cache"])
    got = step.k_cache[2, 1].float().tolist()
    want = step.key[1].tolist()
    if got != want:
        lab.fail("block 2, place 1 of k_cache, head 0, its first numbers", want[0][:3], got[0][:3])


@points(1, "reshape_and_cache", rule=6, stage="adversary")
def test_counted_each_number_is_moved_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three tokens with slots and one without, 32 numbers each: 96 are read and 96 written, of keys and of values."""
    step = Step(torch, slots=[3, -1, 6, 10])
    memory = step.run(lab)
    read, written = memory.lanes_read(), memory.lanes_written()
    lab.expect("numbers read, of key and of value", [96, 96], [read["key"], read["value"]])
    lab.expect("numbers written, to k_cache and to v_cache", [96, 96], [written["k_cache"], written["v_cache"]])
    lab.expect("numbers read from the caches", 0, read["k_cache"] + read["v_cache"])


@points(2, "paged_attention_decode", rule=3, stage="adversary")
def test_reading_through_views(lab: LabUnderTest, torch: ModuleType) -> None:
    """Every tensor is a part of a larger one: caches, query, output, and the rows of the table."""
    batch = Batch(torch, [7, 4, 9], views=True)
    batch.run(lab)
    batch.check(lab)
    lab.expect("numbers around the output that changed", 0, batch.num_changed_around_out(), rule=10)


@points(2, "paged_attention_decode", rule=9, stage="adversary")
def test_the_row_ends_with_the_request(lab: LabUnderTest, torch: ModuleType) -> None:
    """The table is as wide as the longest request needs. Entries after the others' last blocks are invalid."""
    batch = Batch(torch, [4, 8, 12], num_kv_heads=1, spare=0)
    batch.run(lab)
    batch.check(lab)


@points(1, "paged_attention_decode", rule=10, stage="adversary")
def test_padded_requests_are_left_alone(lab: LabUnderTest, torch: ModuleType) -> None:
    """Two rows of the batch have length 0: nothing is read for them, and their output is unchanged."""
    batch = Batch(torch, [0, 5, 0], num_kv_heads=1)
    batch.run(lab)
    batch.check(lab)


@points(2, "paged_attention_decode", rule=4, stage="adversary")
def test_reading_odd_shapes(lab: LabUnderTest, torch: ModuleType) -> None:
    """Groups of three heads, heads of 24 and of 20, blocks of 3 and of 1. A tile's sides are powers of two."""
    for num_kv_heads, group, head_size, block_size in ((2, 3, 24, 3), (1, 1, 20, 1)):
        batch = Batch(torch, [7, 2], num_kv_heads=num_kv_heads, group=group, head_size=head_size, block_size=block_size)
        batch.run(lab)
        batch.check(lab)


@points(2, "paged_attention_decode", rule=11, stage="adversary")
def test_a_cache_of_half_precision(lab: LabUnderTest, torch: ModuleType) -> None:
    """Keys and values have 16 bits, query and output 32: the result is as exact as the numbers in the cache."""
    batch = Batch(torch, [40], num_kv_heads=1, group=1, block_size=16, dtype="float16")
    batch.run(lab)
    batch.check(lab)


@points(3, "paged_attention_decode", rule=5, stage="adversary")
def test_reading_far_away(lab: LabUnderTest, torch: ModuleType) -> None:
    """Block 2 begins 2,147,483,648 numbers after block 0, and the ids of the table have 32 bits."""
    batch = Batch(torch, [4], num_kv_heads=2, dtype="float16")
    k_cache, v_cache = far_apart(torch, (3, *batch.k_cache.shape[1:]))
    block = int(batch.block_tables[0, 0])
    k_cache[2], v_cache[2] = batch.k_cache[block], batch.v_cache[block]
    batch.k_cache, batch.v_cache = k_cache, v_cache
    batch.block_tables[0, 0] = 2
    batch.run(lab)
    batch.check(lab)


# The counted loads: the score that a GPU would give in microseconds ---------------------------------------------------


@points(3, "paged_attention_decode", rule=12, stage="adversary", why="decode time is mostly the time of these reads")
def test_counted_each_key_is_read_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """9 and 6 tokens, 2 heads of 16 numbers, 4 query heads on each: read every key and value once, no other place."""
    batch = Batch(torch, [9, 6], group=4)
    memory = batch.run(lab)
    read = memory.lanes_read()
    for name in ("k_cache", "v_cache"):
        batch.refuse_stale_reads(lab, memory, name)
        lab.expect(f"numbers read from {name}: 15 tokens of 2 heads of 16", 15 * 2 * 16, read[name])


@points(1, "paged_attention_decode", rule=12, stage="adversary")
def test_counted_the_table_is_read_where_it_means_something(lab: LabUnderTest, torch: ModuleType) -> None:
    """A row has room for 40 blocks and the request has three: at most one entry per token is read."""
    batch = Batch(torch, [9], num_kv_heads=1, spare=37)
    memory = batch.run(lab)
    entries = {int(i) for a in memory.accesses if a.region.name == "block_tables" for i in a.indices[1]}
    lab.expect("entries of the row that were read", [0, 1, 2], sorted(entries))
    count = memory.lanes_read()["block_tables"]
    if count > 9:
        lab.fail("numbers read from block_tables for 9 tokens in 3 blocks", "at most 9, one per token", count)


@points(1, "paged_attention_decode", rule=12, stage="adversary", why="GPUs need wide loads")
def test_counted_a_load_moves_a_whole_block(lab: LabUnderTest, torch: ModuleType) -> None:
    """32 tokens in two blocks of 16: two loads from each cache do it, or fewer."""
    batch = Batch(torch, [32], num_kv_heads=1, group=2, block_size=16)
    loads = batch.run(lab).loads()
    for name in ("k_cache", "v_cache"):
        if not 1 <= loads[name] <= 2:
            lab.fail(f"loads from {name} for two blocks", "at most 2", loads[name])


# The property -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(30)  # forty batches, a few milliseconds for each block that a program reads
@points(2, "paged_attention_decode", rule=8, stage="property")
def test_random_batches_agree_with_dense_attention(lab: LabUnderTest, torch: ModuleType) -> None:
    """Forty random batches of every shape, each row compared with attention over plain arrays."""
    compare_random_batches(lab, torch)
