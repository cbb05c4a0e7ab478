"""lab-10, the ladder: five kernels, run by Triton's interpreter, one per rung. Read the tests in order.

Every load and store is watched: a lane outside its tensor stops the kernel. A masked lane of a load without `other`
holds NaN, since the language promises nothing. If numbers are wrong, the lanes of the first program are drawn.
"""

from types import ModuleType

from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest

from .helpers import (
    STALE,
    UNTOUCHED,
    compare,
    count_reads,
    noise,
    part,
    play_gather,
    play_heads,
    refuse_what_no_compiler_takes,
    start,
)

# Rung 1: a copy with a mask -----------------------------------------------------------------------------------------


@points(3, "masked_copy", rule=1, why="program 1 begins where the tile of program 0 ends")
def test_1_two_tiles_are_copied(lab: LabUnderTest, torch: ModuleType) -> None:
    """Sixteen numbers in tiles of eight: two programs, all lanes at work."""
    target, source = torch.full((16,), UNTOUCHED), torch.arange(16.0)
    memory = start(lab, "masked_copy", {"target": target, "source": source}, 8)
    compare(lab, memory, target, source)


@points(3, "masked_copy", rule=2, why="the memory after the last number belongs to others")
def test_2_the_last_tile_is_not_full(lab: LabUnderTest, torch: ModuleType) -> None:
    """Five numbers in a tile of eight, then 21 in three tiles."""
    for count in (5, 21):
        target, source = torch.full((count,), UNTOUCHED), torch.arange(float(count))
        memory = start(lab, "masked_copy", {"target": target, "source": source}, 8)
        compare(lab, memory, target, source)


@points(2, "masked_copy", rule=1)
def test_3_each_number_moves_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """21 numbers: 21 are read, 21 are written, in three loads and three stores."""
    target, source = torch.full((21,), UNTOUCHED), torch.arange(21.0)
    memory = start(lab, "masked_copy", {"target": target, "source": source}, 8)
    count_reads(lab, memory, source=21, target=0)
    lab.expect("numbers written", 21, memory.lanes_written()["target"])


@points(2, "masked_copy", rule=12, why="the interpreter accepts any Python, the compiler does not")
def test_4_the_copy_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """Compile for a GPU of compute capability 9.0. No GPU is needed."""
    start(lab, "masked_copy", {"target": torch.zeros(8), "source": torch.zeros(8)}, 8)
    refuse_what_no_compiler_takes(lab, torch, "masked_copy")


# Rung 2: a row's softmax --------------------------------------------------------------------------------------------


@points(3, "row_softmax", rule=3, why="the weights of a row are positive and add up to 1")
def test_5_rows_as_wide_as_the_tile(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three rows of eight scores: every lane is a score."""
    out, scores = torch.full((3, 8), UNTOUCHED), noise(torch, 3, 8)
    compare(lab, start(lab, "row_softmax", {"out": out, "scores": scores}), out, scores.softmax(1))


@points(2, "row_softmax", rule=3, why="a lane without a score must get weight 0: which score has the exponential 0?")
def test_6_rows_narrower_than_the_tile(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three rows of five scores, each a part of a longer row."""
    out, scores = part(torch, 3, 5), part(torch, 3, 5, around=STALE)
    scores[:] = noise(torch, 3, 5)
    compare(lab, start(lab, "row_softmax", {"out": out, "scores": scores}), out, scores.softmax(1))


@points(1, "row_softmax", rule=4)
def test_each_tensor_has_its_own_stride(lab: LabUnderTest, torch: ModuleType) -> None:
    """The rows of `scores` are parts of longer rows, those of `out` are not."""
    out, scores = torch.full((3, 5), UNTOUCHED), part(torch, 3, 5, around=STALE)
    scores[:] = noise(torch, 3, 5)
    compare(lab, start(lab, "row_softmax", {"out": out, "scores": scores}), out, scores.softmax(1))


@points(2, "row_softmax", rule=5, why="a softmax does not change when all scores move by the same amount")
def test_7_scores_far_from_zero(lab: LabUnderTest, torch: ModuleType) -> None:
    """Rows near +200 and -200, whose exponentials are infinite, or 0. One row is near the least float."""
    scores = noise(torch, 3, 5) + torch.tensor([[200.0], [-200.0], [-1e38]])
    out = torch.full((3, 5), UNTOUCHED)
    compare(lab, start(lab, "row_softmax", {"out": out, "scores": scores}), out, scores.softmax(1))


@points(2, "row_softmax", rule=12, why="the interpreter accepts any Python, the compiler does not")
def test_8_the_softmax_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """For the same GPU, with rows of 1000."""
    start(lab, "row_softmax", {"out": torch.zeros(1, 2), "scores": torch.zeros(1, 2)})
    refuse_what_no_compiler_takes(lab, torch, "row_softmax")


# Rung 3: a softmax over tiles ---------------------------------------------------------------------------------------


@points(3, "online_softmax", rule=6, why="it is the weighted sum divided by the sum of the weights")
def test_9_one_tile(lab: LabUnderTest, torch: ModuleType) -> None:
    """Two rows of five scores and values, in one tile of eight."""
    out, (scores, values) = torch.full((2,), UNTOUCHED), noise(torch, 2, 2, 5)
    memory = start(lab, "online_softmax", {"out": out, "scores": scores, "values": values}, 8)
    compare(lab, memory, out, (scores.softmax(1) * values).sum(1))


@points(2, "online_softmax", rule=6, why="when a larger score comes, scale both running sums down by the same factor")
def test_10_scores_rise_from_tile_to_tile(lab: LabUnderTest, torch: ModuleType) -> None:
    """21 scores in three tiles: rising by 2 per tile, falling by 60, near -200, near -1e35."""
    tile = torch.arange(21) // 8
    out, values = torch.full((4,), UNTOUCHED), noise(torch, 4, 21)
    scores = noise(torch, 4, 21) + torch.stack([2.0 * tile, -60.0 * tile, -200.0 + 0 * tile, -1e35 + 0 * tile])
    memory = start(lab, "online_softmax", {"out": out, "scores": scores, "values": values}, 8)
    compare(lab, memory, out, (scores.softmax(1) * values).sum(1))


@points(1, "online_softmax", rule=4)
def test_rows_of_longer_rows(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three rows of 21 scores and values. After each are five numbers that are not its own."""
    out, scores, values = (
        torch.full((3,), UNTOUCHED),
        part(torch, 3, 21, around=STALE),
        part(torch, 3, 21, around=STALE),
    )
    scores[:], values[:] = noise(torch, 2, 3, 21)
    memory = start(lab, "online_softmax", {"out": out, "scores": scores, "values": values}, 8)
    compare(lab, memory, out, (scores.softmax(1) * values).sum(1))


@points(2, "online_softmax", rule=7, why="with the running maximum and sums, one pass is enough")
def test_11_each_score_is_read_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """One row of 21 scores and values."""
    out, (scores, values) = torch.full((1,), UNTOUCHED), noise(torch, 2, 1, 21)
    memory = start(lab, "online_softmax", {"out": out, "scores": scores, "values": values}, 8)
    count_reads(lab, memory, scores=21, values=21)


@points(2, "online_softmax", rule=12, why="for the compiler, a variable keeps its type and shape through a loop")
def test_12_the_online_softmax_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """For the same GPU, with tiles of 1024."""
    scores, values = torch.zeros(1, 8), torch.zeros(1, 8)
    start(lab, "online_softmax", {"out": torch.zeros(1), "scores": scores, "values": values}, 8)
    refuse_what_no_compiler_takes(lab, torch, "online_softmax")


# Rung 4: a gather through a table -----------------------------------------------------------------------------------


@points(3, "gather", rule=8, why="the order of the blocks is that of the table")
def test_13_blocks_in_any_order(lab: LabUnderTest, torch: ModuleType) -> None:
    """Three full blocks of 4 tokens, 8 numbers each, with a gap between blocks. Number 503: token 5, element 3."""
    play_gather(lab, torch, num_tokens=12, block_size=4, head_size=8, gap=1)


@points(3, "gather", rule=8, why="places after the last token are empty, and out has no row for them")
def test_14_the_last_block_is_half_full(lab: LabUnderTest, torch: ModuleType) -> None:
    """Nine tokens in blocks of 4: of the last block, one place holds a token."""
    play_gather(lab, torch, num_tokens=9, block_size=4, head_size=8)


@points(2, "gather", rule=9, why="both sides of a tile are powers of two")
def test_15_odd_blocks_and_heads(lab: LabUnderTest, torch: ModuleType) -> None:
    """Blocks of 3 in tiles of 4, heads of 6 in tiles of 8."""
    play_gather(lab, torch, num_tokens=9, block_size=3, head_size=6)


@points(2, "gather", rule=12, why="the interpreter accepts any Python, the compiler does not")
def test_16_the_gather_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """For the same GPU, with blocks of 16 and heads of 128 in half precision."""
    play_gather(lab, torch, num_tokens=1, block_size=1, head_size=1)
    refuse_what_no_compiler_takes(lab, torch, "gather")


# Rung 5: two heads share a load --------------------------------------------------------------------------------------


@points(3, "shared_load", rule=10)
def test_17_each_head_has_its_answer(lab: LabUnderTest, torch: ModuleType) -> None:
    """Sixteen keys of eight numbers in two tiles."""
    play_heads(lab, torch, num_tokens=16, head_size=8)


@points(3, "shared_load", rule=10, why="mask both sides of the tile: tokens and elements")
def test_18_both_sides_have_an_end(lab: LabUnderTest, torch: ModuleType) -> None:
    """Eleven keys of six numbers: the tile's last rows and columns hold no key."""
    play_heads(lab, torch, num_tokens=11, head_size=6)


@points(2, "shared_load", rule=11, why="one load of the keys serves both heads: this is what GQA saves")
def test_19_each_key_is_read_once(lab: LabUnderTest, torch: ModuleType) -> None:
    """Eleven keys of six numbers are 66 numbers, for one head and for two."""
    query, keys = noise(torch, 2, 6), noise(torch, 11, 6)
    memory = start(lab, "shared_load", {"out": torch.zeros(2, 11), "query": query, "keys": keys}, 8)
    count_reads(lab, memory, keys=66)


@points(2, "shared_load", rule=12, why="the interpreter accepts any Python, the compiler does not")
def test_20_the_shared_load_compiles(lab: LabUnderTest, torch: ModuleType) -> None:
    """For the same GPU, with heads of 128."""
    tensors = {"out": torch.zeros(2, 1), "query": torch.zeros(2, 1), "keys": torch.zeros(1, 1)}
    start(lab, "shared_load", tensors, 8)
    refuse_what_no_compiler_takes(lab, torch, "shared_load")
