"""lab-08: from block table to slot. Read the numbered tests in order: they follow a token from position to slot.

A0 is A's token at position 0. In a drawing of the cache `A4 A5 - -` is a block with two of A's tokens and two empty
slots. A value in the keys' cache is drawn as `v:A4`, a key in the values' cache as `k:A4`, other data as `?`.

Only the function of the test is yours. The tests have plain Python for the others. PyTorch is an argument, so that this
file can be imported without it.
"""

from functools import partial
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import refuses

from .helpers import (
    ADD,
    APPEND,
    GATHER,
    SLOTS,
    WRITE,
    accepts,
    append_five,
    as_list,
    drawn,
    fill,
    gather,
    ints,
    live_at_random,
    longs,
    make_caches,
    make_planes,
    make_table,
    put,
    rows,
    slots,
    write,
)

TOO_LATE = "raise ConfigError before anything changes; PyTorch's own error comes too late and does not name the row"
MODEL = "NaiveCache, in helpers.py, keeps a list of slots per request"


# The biography ------------------------------------------------------------------------------------------------------


@points(2, APPEND, rule=1)
def test_1_new_blocks_stand_behind_those_of_the_row(lab: LabUnderTest, torch: Any) -> None:
    """A has two blocks, then a third, then no more, then two more. B, in the next row, gets one."""
    table = make_table(lab, APPEND, 2, 6)
    table.append_row([7, 3], 0)
    lab.expect("the rows, when A has got 7 3", [[7, 3], []], rows(table))
    table.append_row([9], 0)
    lab.expect("the rows, when A has got 9 as well", [[7, 3, 9], []], rows(table))
    table.append_row([], 0)
    table.append_row([4], 1)
    lab.expect("the rows, when A has got nothing more, and B 4", [[7, 3, 9], [4]], rows(table))
    table.append_row([8, 1], 0)
    lab.expect("the rows, when A has got 8 1 as well", [[7, 3, 9, 8, 1], [4]], rows(table))


@points(2, ADD, rule=2)
def test_2_a_new_request_fills_its_row(lab: LabUnderTest, torch: Any) -> None:
    """A has three blocks, B one, C none."""
    table = make_table(lab, ADD, 3, 6)
    table.add_row([7, 3, 9], 0)
    table.add_row([4], 1)
    table.add_row([], 2)
    lab.expect("the rows of A, B and C", [[7, 3, 9], [4], []], rows(table))


@points(2, ADD, rule=2, why="only the entries within the count are valid; old ids may stay in the tensor after them")
def test_3_a_row_is_taken_over_from_its_beginning(lab: LabUnderTest, torch: Any) -> None:
    """A had three blocks in row 0 and has finished. C gets row 0 with one block, then a second block."""
    table = make_table(lab, ADD, 2, 6)
    fill(table, torch, 0, [7, 3, 9])
    fill(table, torch, 1, [4])
    table.add_row([6], 0)
    lab.expect("the rows of C and B", [[6], [4]], rows(table))
    table.append_row([2], 0)
    lab.expect("the rows of C and B, when C has grown by 2", [[6, 2], [4]], rows(table))


@points(2, SLOTS, rule=5, why="which entry of the row: position // 4; which place in that block: position % 4")
def test_4_a_slot_is_block_times_block_size_plus_place(lab: LabUnderTest, torch: Any) -> None:
    """A's first ten tokens, blocks of 4, and its row is 7 3 9. Block 7 has slots 28 to 31. And blocks 3 and 9?"""
    got = slots(lab, torch, [10], list(range(10)), [[7, 3, 9]], 4)
    want = [28, 29, 30, 31, 12, 13, 14, 15, 36, 37]
    lab.expect("slots of A's tokens 0 to 9, row 7 3 9", want, got, why="slot = block id * 4 + position % 4")


@points(3, SLOTS, rule=6, why="each token is looked up in the row of its own request")
def test_5_each_token_is_looked_up_in_the_row_of_its_request(lab: LabUnderTest, torch: Any) -> None:
    """A's six tokens, then B's three. B's positions begin at 0 again, and its row is another."""
    got = slots(lab, torch, [6, 3], [0, 1, 2, 3, 4, 5, 0, 1, 2], [[7, 3], [4]], 4)
    want = [28, 29, 30, 31, 12, 13, 16, 17, 18]
    lab.expect("slots of A's tokens 0 to 5 (row 7 3) and B's 0 to 2 (row 4)", want, got)


@points(3, SLOTS, rule=6, why="a token's place is its position in the request, not its place in the step")
def test_6_a_later_chunk_goes_on_at_its_position(lab: LabUnderTest, torch: Any) -> None:
    """A's prompt of 11 tokens is computed in two steps, 6 and 5. The second step has B's first token too."""
    got = slots(lab, torch, [6], [0, 1, 2, 3, 4, 5], [[7, 3, 9]], 4)
    lab.expect("slots of A's tokens 0 to 5, row 7 3 9", [28, 29, 30, 31, 12, 13], got)
    got = slots(lab, torch, [1, 5], [0, 6, 7, 8, 9, 10], [[4], [7, 3, 9]], 4)
    lab.expect("slots of B's token 0 (row 4) and A's 6 to 10 (row 7 3 9)", [16, 14, 15, 36, 37, 38], got)


@points(3, SLOTS, rule=6, why="token i is written at position i, in the step that has it as its input")
def test_7_token_i_is_written_at_slot_i_of_its_request(lab: LabUnderTest, torch: Any) -> None:
    """A decodes: each step computes the token that was sampled last. The engine allocates the blocks.

    step       known   computes   position   row (from the engine)
    prefill    6       A0 to A5   0 to 5     6 4
    decode     7       A6         6          6 4
    decode     8       A7         7          6 4
    decode     9       A8         8          6 4 2      <- block 2 is allocated in this step
    """
    kv = lab.make_kv(num_blocks=8, block_size=4)
    queue = kv.block_pool.free_block_queue
    free = queue.popleft_n(queue.num_free_blocks)
    queue.append_n([free[i] for i in (5, 3, 1, 4, 0, 2, 6)])  # 6 4 2 5 1 3 7: no block is where its number suggests
    a = kv.hold([900 + n for n in range(6)], "A")
    for position, want in zip(range(6, 11), [18, 19, 8, 9, 10], strict=True):
        a.append_output_token_ids(1000 + position)
        kv.allocate_slots(a, 1)
        row = list(kv.get_block_ids("A")[0])
        got = slots(lab, torch, [1], [position], [row], 4)
        shown = " ".join(map(str, row))
        lab.expect(f"slot of the token at position {position}, row {shown}", [want], got)
        a.num_computed_tokens += 1


@points(4, WRITE, rule=7, why="block 3 has the slots 12 to 15, block 1 the slots 4 to 7")
def test_8_keys_and_values_are_written_to_their_slots(lab: LabUnderTest, torch: Any) -> None:
    """A's six tokens, whose row is 3 1, into an empty cache of 5 blocks of 4."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    names = [f"A{n}" for n in range(6)]
    write(lab, torch, names, [12, 13, 14, 15, 4, 5], k_cache, v_cache)
    want = ["-", "A4 A5 - -", "-", "A0 A1 A2 A3", "-"]
    lab.expect("keys in the cache, block by block", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block", want, drawn(v_cache, "v"))


@points(3, WRITE, rule=8, why="-1 is not a slot, but as a Python index it means the last slot, and B uses that one")
def test_9_padding_is_not_written(lab: LabUnderTest, torch: Any) -> None:
    """A step of three tokens, padded to five. In the last slot of the cache is a token of B's."""
    k_cache, v_cache = make_caches(torch, 4, 4)
    put(torch, k_cache, v_cache, {15: "B7"})
    write(lab, torch, ["A0", "A1", "A2", "P0", "P1"], [8, 9, 10, -1, -1], k_cache, v_cache)
    want = ["-", "-", "A0 A1 A2 -", "- - - B7"]
    lab.expect("keys in the cache, block by block (P0 and P1 are padding)", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block (P0 and P1 are padding)", want, drawn(v_cache, "v"))


@points(3, WRITE, rule=9, why="write to the caches in place: a copy made by reshape is invisible to other code")
def test_10_keys_and_values_share_one_memory(lab: LabUnderTest, torch: Any) -> None:
    """As in the engine, one tensor contains each block's keys and then its values. Both layouts are tested."""
    for heads_first in (False, True):
        k_cache, v_cache = make_planes(torch, 3, 4, heads_first=heads_first)
        write(lab, torch, ["A0", "A1", "A2"], [4, 5, 11], k_cache, v_cache)
        want = ["-", "A0 A1 - -", "- - - A2"]
        how = "heads" if heads_first else "tokens"
        lab.expect(f"keys in the cache, a view of one memory with {how} first", want, drawn(k_cache, "k"))
        lab.expect(f"values in the cache, a view of one memory with {how} first", want, drawn(v_cache, "v"))


@points(3, GATHER, rule=10, why="the order of the tokens is the order of the row, not of the memory")
def test_11_a_request_is_read_back(lab: LabUnderTest, torch: Any) -> None:
    """A's eight tokens are in blocks 3 and 1. B's are in block 2."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    put(torch, k_cache, v_cache, {12 + n: f"A{n}" for n in range(4)} | {4 + n: f"A{4 + n}" for n in range(4)})
    put(torch, k_cache, v_cache, {8 + n: f"B{n}" for n in range(4)})
    want = ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "A7"]
    lab.expect("A's keys, row 3 1", want, gather(lab, torch, k_cache, [3, 1], 8, "k"))
    lab.expect("A's values, row 3 1", want, gather(lab, torch, v_cache, [3, 1], 8, "v"))


@points(2, GATHER, rule=10, why="the slots after the last token hold no KV of the request")
def test_12_only_the_tokens_of_the_last_block_are_read(lab: LabUnderTest, torch: Any) -> None:
    """A has 5, 6, 7 or 8 tokens in the same two blocks."""
    for num_tokens in (5, 6, 7, 8):
        k_cache, v_cache = make_caches(torch, 5, 4)
        names = [f"A{n}" for n in range(num_tokens)]
        put(torch, k_cache, v_cache, dict(zip([12, 13, 14, 15, 4, 5, 6, 7], names, strict=False)))
        got = gather(lab, torch, k_cache, [3, 1], num_tokens, "k")
        lab.expect(f"A's keys, row 3 1, {num_tokens} tokens", names, got)


@points(2, SLOTS, rule=6, why="B's own tokens come after the shared block, so B writes only to its own block")
def test_13_a_shared_block_is_not_written(lab: LabUnderTest, torch: Any) -> None:
    """B begins like A and shares its first block, 7. Its step computes tokens 4 to 6 only. Does A still read A?"""
    k_cache, v_cache = make_caches(torch, 8, 4)
    put(torch, k_cache, v_cache, {28 + n: f"A{n}" for n in range(4)} | {12 + n: f"A{4 + n}" for n in range(2)})
    got = slots(lab, torch, [3], [4, 5, 6], [[7, 2]], 4)
    put(torch, k_cache, v_cache, dict(zip(got, ["B4", "B5", "B6"], strict=True)))
    want = ["-", "-", "B4 B5 B6 -", "A4 A5 - -", "-", "-", "-", "A0 A1 A2 A3"]
    lab.expect("keys in the cache after B's step; A's row is 7 3, B's 7 2", want, drawn(k_cache, "k"))


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, APPEND, rule=3, stage="adversary")
def test_blocks_that_do_not_fit_are_refused(lab: LabUnderTest, torch: Any) -> None:
    """The row is 4 wide and has three. One more fits, two do not. Five fit into no row at all."""
    empty = make_table(lab, APPEND, 2, 4)
    refuses(
        lab, "append_row of five blocks to an empty row, 4 wide", ConfigError, partial(append_five, empty), TOO_LATE
    )
    for row in (0, 1):  # the last row, too: there is no next one to run over into
        table = make_table(lab, APPEND, 2, 4)
        fill(table, torch, row, [7, 3, 9])
        before = table.block_table.tolist()
        what = "append_row of two blocks to a row of 3 that is 4 wide"
        refuses(lab, what, ConfigError, partial(table.append_row, [5, 6], row), TOO_LATE)
        lab.expect("the whole tensor after the refusal", before, table.block_table.tolist())
        lab.expect("blocks of the row after the refusal", 3, table.num_blocks_per_row[row])
        what, why = "append_row of one block to a row of 3 that is 4 wide", "four columns hold four: a row may be full"
        accepts(lab, what, partial(table.append_row, [5], row), why)
        lab.expect("the row, when it has got 5", [7, 3, 9, 5], rows(table)[row])


@points(1, ADD, rule=3, stage="adversary", why="the request that has the row keeps its blocks")
def test_a_request_that_is_too_long_for_its_row(lab: LabUnderTest, torch: Any) -> None:
    """Five blocks for a row that is 4 wide: refused, and the row's request keeps it. Four blocks fit."""
    table = make_table(lab, ADD, 2, 4)
    fill(table, torch, 0, [7, 3, 9])
    five = partial(table.add_row, [1, 2, 4, 5, 6], 0)
    refuses(lab, "add_row of five blocks to a row that is 4 wide", ConfigError, five, TOO_LATE)
    lab.expect("the row after the refusal", [7, 3, 9], rows(table)[0])
    why = "only the new blocks must fit: four columns hold four, and add_row replaces the row's old blocks"
    accepts(lab, "add_row of four blocks to a row that is 4 wide", partial(table.add_row, [1, 2, 4, 5], 0), why)
    lab.expect("the row after four blocks", [1, 2, 4, 5], rows(table)[0])


@points(1, APPEND, rule=4, stage="adversary", why="a kernel reads 32-bit ids from its address")
def test_the_memory_is_allocated_once(lab: LabUnderTest, torch: Any) -> None:
    """A kernel that got the tensor at the beginning sees every block that is added later."""
    table = make_table(lab, APPEND, 2, 4)
    seen_by_others = table.block_table
    table.append_row([7, 3], 0)
    table.append_row([9], 0)
    lab.expect("row 0 as others see it", [7, 3, 9], seen_by_others[0, :3].tolist())
    lab.expect("table.block_table is the tensor of the beginning", True, table.block_table is seen_by_others)


@points(1, SLOTS, rule=5, stage="adversary")
def test_other_block_sizes(lab: LabUnderTest, torch: Any) -> None:
    """Blocks of 1, 3, 4 and 16 tokens. Lengths of one token less than full, full, and one more. Ids out of order."""
    for block_size in (1, 3, 4, 16):
        for length in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            table = [[9, 2, 6], [1, 8, 3]]
            places = [[block * block_size + n for block in row for n in range(block_size)] for row in table]
            start = block_size - 1  # B's first tokens are there already
            positions = [*range(length), *range(start, length)]
            got = slots(lab, torch, [length, length - start], positions, table, block_size)
            told = f"A's tokens 0 to {length - 1} (row 9 2 6), B's {start} to {length - 1} (row 1 8 3)"
            lab.expect(f"slots, blocks of {block_size}: {told}", places[0][:length] + places[1][start:length], got)


@points(1, SLOTS, rule=6, stage="adversary")
def test_a_request_without_tokens_in_this_step(lab: LabUnderTest, torch: Any) -> None:
    """A has two tokens, B none, C one, D none: the start locations are 0 2 2 3 3."""
    got = slots(lab, torch, [2, 0, 1, 0], [4, 5, 8], [[7, 3], [6], [1, 2, 4], [9]], 4)
    lab.expect("slots of A's tokens 4 and 5 (row 7 3) and C's 8 (row 1 2 4)", [12, 13, 16], got)
    got = slots(lab, torch, [0, 2], [0, 1], [[6], [7]], 4)
    lab.expect("slots of B's tokens 0 and 1 (row 7), A having none (row 6)", [28, 29], got)


@points(4, SLOTS, rule=5, stage="adversary", why="block ids are 32-bit; slots, and slots times elements, need 64 bits")
def test_a_large_cache(lab: LabUnderTest, torch: Any) -> None:
    """A block whose slots need more than 32 bits. The table has room for its id, and the slot must not wrap around."""
    mapping = lab.compute_slot_mapping(ints(torch, [0, 1]), longs(torch, [0]), ints(torch, [[1]]), 16)
    as_list(lab, torch, "what compute_slot_mapping returned", mapping, [1])
    lab.expect("dtype of the slots", "torch.int64", str(mapping.dtype), why="slot times row size needs 64 bits")
    got = slots(lab, torch, [2], [14, 15], [[200_000_000]], 16)
    lab.expect("slots of tokens 14 and 15 in block 200,000,000, blocks of 16", [3_200_000_014, 3_200_000_015], got)


@points(1, WRITE, rule=8, stage="adversary")
def test_padding_in_between(lab: LabUnderTest, torch: Any) -> None:
    """Padding at the start and in the middle, a token for slot 0. Then a step of only padding, then an empty step."""
    k_cache, v_cache = make_caches(torch, 3, 4)
    names = ["P0", "A0", "P1", "A1", "A2"]
    write(lab, torch, names, [-1, 0, -1, 9, 2], k_cache, v_cache)
    want = ["A0 - A2 -", "-", "- A1 - -"]
    lab.expect("keys in the cache, block by block, slots -1 0 -1 9 2", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block, slots -1 0 -1 9 2", want, drawn(v_cache, "v"))
    write(lab, torch, ["P0", "P1"], [-1, -1], k_cache, v_cache)
    write(lab, torch, [], [], k_cache, v_cache)
    lab.expect("keys in the cache after padding alone, and after nothing", want, drawn(k_cache, "k"))


@points(1, WRITE, rule=7, stage="adversary", why="another request used this block: a write replaces its old KV")
def test_a_slot_is_used_again(lab: LabUnderTest, torch: Any) -> None:
    """C has A's old block, and overwrites two of A's tokens. The other two are unchanged."""
    k_cache, v_cache = make_caches(torch, 3, 4)
    put(torch, k_cache, v_cache, {4 + n: f"A{n}" for n in range(4)} | {8: "B0"})
    write(lab, torch, ["C0", "C1"], [4, 5], k_cache, v_cache)
    want = ["-", "C0 C1 A2 A3", "B0 - - -"]
    lab.expect("keys in the cache, block by block", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block", want, drawn(v_cache, "v"))


@points(1, WRITE, rule=7, stage="adversary")
def test_a_cache_of_fewer_bits(lab: LabUnderTest, torch: Any) -> None:
    """Keys of 32 bits, a cache of 16."""
    k_cache, v_cache = (cache.to(torch.float16) for cache in make_caches(torch, 2, 4))
    write(lab, torch, ["A0", "A1"], [6, 7], k_cache, v_cache)
    lab.expect("keys in a cache of float16", ["-", "- - A0 A1"], drawn(k_cache, "k"))
    lab.expect("values in a cache of float16", ["-", "- - A0 A1"], drawn(v_cache, "v"))


@points(1, GATHER, rule=11, stage="adversary")
def test_what_is_behind_the_last_block_is_not_looked_at(lab: LabUnderTest, torch: Any) -> None:
    """A's tokens are in block 3. The ids after it do not exist in this cache. Then a request without tokens."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    put(torch, k_cache, v_cache, {12 + n: f"A{n}" for n in range(4)})
    for num_tokens, stale in ((3, 90), (4, 100)):
        try:
            got: object = gather(lab, torch, k_cache, [3, stale, -stale], num_tokens, "k")
        except IndexError as error:
            got = error
        want = ["A0", "A1", "A2", "A3"][:num_tokens]
        lab.expect(f"A's keys, row 3 {stale} -{stale}, {num_tokens} tokens", want, got)
    lab.expect("keys of a request without tokens", [], gather(lab, torch, k_cache, [100, 100], 0, "k"), rule=10)


# The property -------------------------------------------------------------------------------------------------------


@points(1, SLOTS, rule=6, stage="property", after="test_5_each_token_is_looked_up_in_the_row_of_its_request", why=MODEL)
def test_random_lives_slots(lab: LabUnderTest, torch: Any) -> None:
    """Forty random sequences of calls on a small cache. Each step's slots are compared with a model of plain lists."""
    live_at_random(lab, torch, SLOTS)


@points(1, WRITE, rule=7, stage="property", after="test_8_keys_and_values_are_written_to_their_slots", why=MODEL)
def test_random_lives_writes(lab: LabUnderTest, torch: Any) -> None:
    """The same sequences. After each step the whole cache is compared."""
    live_at_random(lab, torch, WRITE)


@points(1, GATHER, rule=10, stage="property", after="test_11_a_request_is_read_back", why=MODEL)
def test_random_lives_reads(lab: LabUnderTest, torch: Any) -> None:
    """The same sequences. After each step every request of it is read back."""
    live_at_random(lab, torch, GATHER)
