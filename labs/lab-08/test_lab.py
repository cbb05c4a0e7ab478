"""lab-08: from block table to slot. Read the numbered tests in order: they follow a token from position to slot.

Tokens are called by request and position: A0 is A's first. Where a drawing of the cache shows blocks, `A4 A5 - -` is a
block with two of A's tokens and two slots that nobody has written. In the keys' cache a value shows as `v:A4`, and the
other way round as `k:A4`; what is neither shows as `?`.

Only the function that a test is about is yours; plain Python stands in for the others. PyTorch comes in as an argument,
so that this file can be read without it.
"""

import os
import random
from dataclasses import dataclass
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.labkit.shrink import shrink

ADD, APPEND = "BlockTable.add_row", "BlockTable.append_row"
SLOTS, WRITE, GATHER = "compute_slot_mapping", "reshape_and_cache", "gather_kv"

EMPTY = 10_000.0
"""Stands in every slot that nobody has written."""
STALE = 5
"""Stands behind a request's last block in its row: some other request's block."""


# The biography ------------------------------------------------------------------------------------------------------


@points(2, APPEND, why="new blocks stand behind those that the row has; the others' rows are the others'")
def test_1_a_row_grows(lab: LabUnderTest, torch: Any) -> None:
    """A has two blocks, then a third, then none at all, then two more. B, in the next row, gets one."""
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


@points(2, ADD, why="a row belongs to one request at a time, and what it has at first are these blocks")
def test_2_a_request_gets_a_row(lab: LabUnderTest, torch: Any) -> None:
    """A comes with three blocks, B with one, C with none."""
    table = make_table(lab, ADD, 3, 6)
    table.add_row([7, 3, 9], 0)
    table.add_row([4], 1)
    table.add_row([], 2)
    lab.expect("the rows of A, B and C", [[7, 3, 9], [4], []], rows(table))


@points(2, ADD, why="the count says which entries mean something: the old ones may stand there, but count no more")
def test_3_a_row_is_used_again(lab: LabUnderTest, torch: Any) -> None:
    """A had three blocks in row 0, and is gone. C takes the row over with one, and grows."""
    table = make_table(lab, ADD, 2, 6)
    fill(table, torch, 0, [7, 3, 9])
    fill(table, torch, 1, [4])
    table.add_row([6], 0)
    lab.expect("the rows of C and B", [[6], [4]], rows(table))
    table.append_row([2], 0)
    lab.expect("the rows of C and B, when C has grown by 2", [[6, 2], [4]], rows(table))


@points(3, SLOTS, why="which entry of the row: position // 4; which place in that block: position % 4")
def test_4_from_position_to_slot(lab: LabUnderTest, torch: Any) -> None:
    """A's first ten tokens, blocks of 4, and its row is 7 3 9. Block 7 has the slots 28 to 31. And the others?"""
    got = slots(lab, torch, [10], list(range(10)), [[7, 3, 9]], 4)
    want = [28, 29, 30, 31, 12, 13, 14, 15, 36, 37]
    lab.expect("slots of A's tokens 0 to 9, row 7 3 9", want, got, why="slot = block id * 4 + position % 4")


@points(4, SLOTS, why="each token is looked up in the row of its own request")
def test_5_two_requests_in_one_step(lab: LabUnderTest, torch: Any) -> None:
    """A's six tokens and B's three lie one after the other. B's positions begin at 0 again, and its row is another."""
    got = slots(lab, torch, [6, 3], [0, 1, 2, 3, 4, 5, 0, 1, 2], [[7, 3], [4]], 4)
    want = [28, 29, 30, 31, 12, 13, 16, 17, 18]
    lab.expect("slots of A's tokens 0 to 5 (row 7 3) and B's 0 to 2 (row 4)", want, got)


@points(3, SLOTS, why="a token's place is its position in the request, not its place in the step")
def test_6_a_prompt_in_chunks(lab: LabUnderTest, torch: Any) -> None:
    """A's prompt of 11 tokens is computed in two steps, 6 and 5. In the second, B's first token comes along."""
    got = slots(lab, torch, [6], [0, 1, 2, 3, 4, 5], [[7, 3, 9]], 4)
    lab.expect("slots of A's tokens 0 to 5, row 7 3 9", [28, 29, 30, 31, 12, 13], got)
    got = slots(lab, torch, [1, 5], [0, 6, 7, 8, 9, 10], [[4], [7, 3, 9]], 4)
    lab.expect("slots of B's token 0 (row 4) and A's 6 to 10 (row 7 3 9)", [16, 14, 15, 36, 37, 38], got)


@points(4, SLOTS, why="token i is written at position i, in the step that has it as its input")
def test_7_token_i_is_written_at_slot_i_of_its_request(lab: LabUnderTest, torch: Any) -> None:
    """A's answer, word by word: each step computes the token that was sampled last. The engine gives the blocks.

    step       known   computes   position   row (from the engine)
    prefill    6       A0 to A5   0 to 5     6 4
    decode     7       A6         6          6 4
    decode     8       A7         7          6 4
    decode     9       A8         8          6 4 2      <- the block comes in this step
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


@points(4, WRITE, why="a token's key and value go to the place that its slot says, keys to keys, values to values")
def test_8_keys_and_values_are_written_to_their_slots(lab: LabUnderTest, torch: Any) -> None:
    """A's six tokens, whose row is 3 1, into an empty cache of 5 blocks of 4."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    names = [f"A{n}" for n in range(6)]
    write(lab, torch, names, [12, 13, 14, 15, 4, 5], k_cache, v_cache)
    want = ["-", "A4 A5 - -", "-", "A0 A1 A2 A3", "-"]
    lab.expect("keys in the cache, block by block", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block", want, drawn(v_cache, "v"))


@points(3, WRITE, why="-1 is no slot; but as an index it is the last one, and the last one is somebody's")
def test_9_padding_is_not_written(lab: LabUnderTest, torch: Any) -> None:
    """A step of three tokens, padded to five. In the last slot of the cache is a token of B's."""
    k_cache, v_cache = make_caches(torch, 4, 4)
    put(torch, k_cache, v_cache, {15: "B7"})
    write(lab, torch, ["A0", "A1", "A2", "P0", "P1"], [8, 9, 10, -1, -1], k_cache, v_cache)
    want = ["-", "-", "A0 A1 A2 -", "- - - B7"]
    lab.expect("keys in the cache, block by block (P0 and P1 are padding)", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block (P0 and P1 are padding)", want, drawn(v_cache, "v"))


@points(3, WRITE, why="the caches are written in place: whatever reshaping copies, nobody else ever sees")
def test_10_keys_and_values_share_one_memory(lab: LabUnderTest, torch: Any) -> None:
    """As in the engine: block after block in one tensor, each with its keys, then its values. In either layout."""
    for heads_first in (False, True):
        k_cache, v_cache = make_planes(torch, 3, 4, heads_first=heads_first)
        write(lab, torch, ["A0", "A1", "A2"], [4, 5, 11], k_cache, v_cache)
        want = ["-", "A0 A1 - -", "- - - A2"]
        how = "heads" if heads_first else "tokens"
        lab.expect(f"keys in the cache, a view of one memory with {how} first", want, drawn(k_cache, "k"))
        lab.expect(f"values in the cache, a view of one memory with {how} first", want, drawn(v_cache, "v"))


@points(3, GATHER, why="the order of the tokens is the order of the row, not of the memory")
def test_11_a_request_is_read_back(lab: LabUnderTest, torch: Any) -> None:
    """A's eight tokens lie in blocks 3 and 1, with B's between them."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    put(torch, k_cache, v_cache, {12 + n: f"A{n}" for n in range(4)} | {4 + n: f"A{4 + n}" for n in range(4)})
    put(torch, k_cache, v_cache, {8 + n: f"B{n}" for n in range(4)})
    want = ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "A7"]
    lab.expect("A's keys, row 3 1", want, gather(lab, torch, k_cache, [3, 1], 8, "k"))
    lab.expect("A's values, row 3 1", want, gather(lab, torch, v_cache, [3, 1], 8, "v"))


@points(2, GATHER, why="the last block is seldom full, and what is behind a request's last token is not the request's")
def test_12_the_last_block_is_not_full(lab: LabUnderTest, torch: Any) -> None:
    """A has 5, 6, 7 or 8 tokens in the same two blocks."""
    for num_tokens in (5, 6, 7, 8):
        k_cache, v_cache = make_caches(torch, 5, 4)
        names = [f"A{n}" for n in range(num_tokens)]
        put(torch, k_cache, v_cache, dict(zip([12, 13, 14, 15, 4, 5, 6, 7], names, strict=False)))
        got = gather(lab, torch, k_cache, [3, 1], num_tokens, "k")
        lab.expect(f"A's keys, row 3 1, {num_tokens} tokens", names, got)


@points(2, SLOTS, why="B's own tokens begin behind what it shares: what two read, nobody writes")
def test_13_a_shared_block_is_not_written(lab: LabUnderTest, torch: Any) -> None:
    """B begins like A and shares its first block, 7. Its step computes tokens 4 to 6 only. Does A still read A?"""
    k_cache, v_cache = make_caches(torch, 8, 4)
    put(torch, k_cache, v_cache, {28 + n: f"A{n}" for n in range(4)} | {12 + n: f"A{4 + n}" for n in range(2)})
    got = slots(lab, torch, [3], [4, 5, 6], [[7, 2]], 4)
    put(torch, k_cache, v_cache, dict(zip(got, ["B4", "B5", "B6"], strict=True)))
    want = ["-", "-", "B4 B5 B6 -", "A4 A5 - -", "-", "-", "-", "A0 A1 A2 A3"]
    lab.expect("keys in the cache after B's step; A's row is 7 3, B's 7 2", want, drawn(k_cache, "k"))


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, APPEND, stage="adversary", why="what cannot work is refused before anything is written")
def test_blocks_that_do_not_fit_are_refused(lab: LabUnderTest, torch: Any) -> None:
    """The row is 4 wide and has three. One more fits, two do not. Five fit into no row at all."""
    empty = make_table(lab, APPEND, 2, 4)
    refuses(lab, "append_row of five blocks to an empty row, 4 wide", lambda: empty.append_row([1, 2, 4, 5, 6], 0))
    for row in (0, 1):  # the last row, too: there is no next one to run over into
        table = make_table(lab, APPEND, 2, 4)
        fill(table, torch, row, [7, 3, 9])
        before = table.block_table.tolist()
        refuses(
            lab,
            "append_row of two blocks to a row of 3 that is 4 wide",
            lambda table=table, row=row: table.append_row([5, 6], row),
        )
        lab.expect("the whole tensor after the refusal", before, table.block_table.tolist())
        lab.expect("blocks of the row after the refusal", 3, table.num_blocks_per_row[row])
        accepts(
            lab,
            "append_row of one block to a row of 3 that is 4 wide",
            lambda table=table, row=row: table.append_row([5], row),
            why="four columns hold four blocks: a row may be full",
        )
        lab.expect("the row, when it has got 5", [7, 3, 9, 5], rows(table)[row])


@points(1, ADD, stage="adversary", why="a request that is not let in must not cost the one that is there its blocks")
def test_a_request_that_is_too_long_for_its_row(lab: LabUnderTest, torch: Any) -> None:
    """Five blocks for a row that is 4 wide: refused, and whoever has the row still has it. Four blocks fit."""
    table = make_table(lab, ADD, 2, 4)
    fill(table, torch, 0, [7, 3, 9])
    refuses(lab, "add_row of five blocks to a row that is 4 wide", lambda: table.add_row([1, 2, 4, 5, 6], 0))
    lab.expect("the row after the refusal", [7, 3, 9], rows(table)[0])
    accepts(
        lab,
        "add_row of four blocks to a row that is 4 wide",
        lambda: table.add_row([1, 2, 4, 5], 0),
        why="only the new blocks must fit: four columns hold four, and what the row had before counts no more",
    )
    lab.expect("the row after four blocks", [1, 2, 4, 5], rows(table)[0])


@points(1, APPEND, stage="adversary", why="a kernel was given this tensor once, and reads 32-bit ids from its address")
def test_the_memory_is_allocated_once(lab: LabUnderTest, torch: Any) -> None:
    """Whoever got the tensor when the table was made sees every block that comes later."""
    table = make_table(lab, APPEND, 2, 4)
    seen_by_others = table.block_table
    table.append_row([7, 3], 0)
    table.append_row([9], 0)
    lab.expect("row 0 as others see it", [7, 3, 9], seen_by_others[0, :3].tolist())
    lab.expect("table.block_table is the tensor of the beginning", True, table.block_table is seen_by_others)


@points(1, SLOTS, stage="adversary", why="positions are divided by the block size that is given, whatever it is")
def test_other_block_sizes(lab: LabUnderTest, torch: Any) -> None:
    """Blocks of 1, 3, 4 and 16 tokens; one token less than full, full, one more; two requests, ids out of order."""
    for block_size in (1, 3, 4, 16):
        for length in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            table = [[9, 2, 6], [1, 8, 3]]
            places = [[block * block_size + n for block in row for n in range(block_size)] for row in table]
            start = block_size - 1  # B's first tokens are there already
            positions = [*range(length), *range(start, length)]
            got = slots(lab, torch, [length, length - start], positions, table, block_size)
            told = f"A's tokens 0 to {length - 1} (row 9 2 6), B's {start} to {length - 1} (row 1 8 3)"
            lab.expect(f"slots, blocks of {block_size}: {told}", places[0][:length] + places[1][start:length], got)


@points(1, SLOTS, stage="adversary", why="a request keeps its row, whether it has tokens in this step or not")
def test_a_request_without_tokens_in_this_step(lab: LabUnderTest, torch: Any) -> None:
    """A has two tokens, B none, C one, D none: the start locations are 0 2 2 3 3."""
    got = slots(lab, torch, [2, 0, 1, 0], [4, 5, 8], [[7, 3], [6], [1, 2, 4], [9]], 4)
    lab.expect("slots of A's tokens 4 and 5 (row 7 3) and C's 8 (row 1 2 4)", [12, 13, 16], got)
    got = slots(lab, torch, [0, 2], [0, 1], [[6], [7]], 4)
    lab.expect("slots of B's tokens 0 and 1 (row 7), A having none (row 6)", [28, 29], got)


@points(1, SLOTS, stage="adversary", why="ids are kept in 32 bits; slots times elements would not fit into these")
def test_a_large_cache(lab: LabUnderTest, torch: Any) -> None:
    """A block whose slots need more than 32 bits. The table has room for its id, and the slot must not wrap around."""
    mapping = lab.compute_slot_mapping(ints(torch, [0, 1]), longs(torch, [0]), ints(torch, [[1]]), 16)
    as_list(lab, torch, "what compute_slot_mapping returned", mapping, [1])
    lab.expect("dtype of the slots", "torch.int64", str(mapping.dtype), why="whoever multiplies it needs the bits")
    got = slots(lab, torch, [2], [14, 15], [[200_000_000]], 16)
    lab.expect("slots of tokens 14 and 15 in block 200,000,000, blocks of 16", [3_200_000_014, 3_200_000_015], got)


@points(
    1, WRITE, stage="adversary", why="each token goes with its own slot; padding may stand anywhere, and 0 is a slot"
)
def test_padding_in_between(lab: LabUnderTest, torch: Any) -> None:
    """Padding in front and in the middle, a token for slot 0; then a step of padding alone, then one of nothing."""
    k_cache, v_cache = make_caches(torch, 3, 4)
    names = ["P0", "A0", "P1", "A1", "A2"]
    write(lab, torch, names, [-1, 0, -1, 9, 2], k_cache, v_cache)
    want = ["A0 - A2 -", "-", "- A1 - -"]
    lab.expect("keys in the cache, block by block, slots -1 0 -1 9 2", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block, slots -1 0 -1 9 2", want, drawn(v_cache, "v"))
    write(lab, torch, ["P0", "P1"], [-1, -1], k_cache, v_cache)
    write(lab, torch, [], [], k_cache, v_cache)
    lab.expect("keys in the cache after padding alone, and after nothing", want, drawn(k_cache, "k"))


@points(
    1,
    WRITE,
    stage="adversary",
    why="a block comes back from somebody else: what is written replaces, nothing else changes",
)
def test_a_slot_is_used_again(lab: LabUnderTest, torch: Any) -> None:
    """C has got A's old block, and writes two tokens over A's; the other two it will write later."""
    k_cache, v_cache = make_caches(torch, 3, 4)
    put(torch, k_cache, v_cache, {4 + n: f"A{n}" for n in range(4)} | {8: "B0"})
    write(lab, torch, ["C0", "C1"], [4, 5], k_cache, v_cache)
    want = ["-", "C0 C1 A2 A3", "B0 - - -"]
    lab.expect("keys in the cache, block by block", want, drawn(k_cache, "k"))
    lab.expect("values in the cache, block by block", want, drawn(v_cache, "v"))


@points(1, WRITE, stage="adversary", why="the cache decides how many bits a number has")
def test_a_cache_of_fewer_bits(lab: LabUnderTest, torch: Any) -> None:
    """Keys of 32 bits, a cache of 16."""
    k_cache, v_cache = (cache.to(torch.float16) for cache in make_caches(torch, 2, 4))
    write(lab, torch, ["A0", "A1"], [6, 7], k_cache, v_cache)
    lab.expect("keys in a cache of float16", ["-", "- - A0 A1"], drawn(k_cache, "k"))
    lab.expect("values in a cache of float16", ["-", "- - A0 A1"], drawn(v_cache, "v"))


@points(1, GATHER, stage="adversary", why="behind the last block the row holds what the last owner left")
def test_what_is_behind_the_last_block_is_not_looked_at(lab: LabUnderTest, torch: Any) -> None:
    """A has 4 tokens in block 3. Behind it stand ids that this cache does not have. Then a request without tokens."""
    k_cache, v_cache = make_caches(torch, 5, 4)
    put(torch, k_cache, v_cache, {12 + n: f"A{n}" for n in range(4)})
    for num_tokens, stale in ((3, 90), (4, 100)):
        got = gather(lab, torch, k_cache, [3, stale, -stale], num_tokens, "k")
        want = ["A0", "A1", "A2", "A3"][:num_tokens]
        lab.expect(f"A's keys, row 3 {stale} -{stale}, {num_tokens} tokens", want, got)
    lab.expect("keys of a request without tokens", [], gather(lab, torch, k_cache, [100, 100], 0, "k"))


# The property -------------------------------------------------------------------------------------------------------


@points(1, SLOTS, stage="property", after="test_5_two_requests_in_one_step")
def test_random_lives_slots(lab: LabUnderTest, torch: Any) -> None:
    """Forty random lives of a small cache, each step's slots compared with a model made of plain lists."""
    run_lives(lab, torch, SLOTS)


@points(1, WRITE, stage="property", after="test_8_keys_and_values_are_written_to_their_slots")
def test_random_lives_writes(lab: LabUnderTest, torch: Any) -> None:
    """The same lives, and after each step the whole cache is compared."""
    run_lives(lab, torch, WRITE)


@points(1, GATHER, stage="property", after="test_11_a_request_is_read_back")
def test_random_lives_reads(lab: LabUnderTest, torch: Any) -> None:
    """The same lives, and after each step every request of it is read back."""
    run_lives(lab, torch, GATHER)


def run_lives(lab: LabUnderTest, torch: Any, about: str) -> None:
    """Play random lives with the learner's function; of one that goes wrong, show the shortest part that still does."""
    for seed in seeds(40):
        life = random_life(random.Random(seed))
        if play(lab, torch, life, about) is None:
            continue
        shortest = shrink(life, lambda shorter: play(lab, torch, shorter, about) is not None)
        failure = play(lab, torch, shortest, about)
        told = "; ".join(str(step) for step in shortest)
        if failure is not None:
            what = f"{failure.what}, in the life of seed {seed}, blocks of 3, shortened to: {told}"
            lab.fail(what, failure.want, failure.got, why="see NaiveCache in test_lab.py")


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


@dataclass(frozen=True)
class Step:
    """Some requests compute so many tokens each; who is not there yet comes now, perhaps sharing a beginning."""

    tokens: tuple[tuple[str, int], ...]
    like: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shared = dict(self.like)
        parts = [
            f"{name} +{n}" + (f" (begins like {shared[name]}, if there)" if name in shared else "")
            for name, n in self.tokens
        ]
        return "step " + ", ".join(parts)


@dataclass(frozen=True)
class Leave:
    """A request is over; nothing happens if it is not there."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} leaves"


def random_life(rng: random.Random) -> list[Step | Leave]:
    """Return steps of up to three requests, some of which share a beginning, and departures."""
    life: list[Step | Leave] = []
    alive: list[str] = []
    for _ in range(8):
        if len(alive) > 2:
            life.append(Leave(alive.pop(rng.randrange(len(alive)))))
        like: tuple[tuple[str, str], ...] = ()
        if len(alive) < 3:
            new = next(name for name in "ABCD" if name not in alive)
            if alive and rng.random() < 0.5:
                like = ((new, rng.choice(alive)),)
            alive.append(new)
        order = rng.sample(alive, len(alive))
        life.append(Step(tuple((name, rng.randint(0 if name != order[0] else 1, 4)) for name in order), like))
    return life


def play(lab: LabUnderTest, torch: Any, life: list[Step | Leave], about: str) -> LabFailure | None:
    """Play the life on the learner's function and on the model; return the first difference."""
    model = NaiveCache(num_blocks=40, block_size=3)
    k_cache, v_cache = make_planes(torch, 40, 3, heads_first=False)
    for step in life:
        if isinstance(step, Leave):
            model.leave(step.name)
            continue
        names, want = model.step(step)
        lens = [n for _, n in step.tokens]
        order = [name for name, _ in step.tokens]
        tables = [model.tables[name] for name in order]
        told = ", ".join(f"{name} has {' '.join(map(str, model.tables[name]))}" for name in order)
        try:
            if about == SLOTS:
                positions = [int(name[1:]) for name in names]
                got = slots(lab, torch, lens, positions, tables, 3)
                lab.expect(f"slots of {' '.join(names)} ({told})", want, got)
            if about == WRITE:
                write(lab, torch, [*names, "P0"], [*want, -1], k_cache, v_cache)
                lab.expect(f"keys in the cache after {step} ({told})", model.drawn(), drawn(k_cache, "k"))
                lab.expect(f"values in the cache after {step} ({told})", model.drawn(), drawn(v_cache, "v"))
            else:
                put(torch, k_cache, v_cache, dict(zip(want, names, strict=True)))
            if about == GATHER:
                for name, row in zip(order, tables, strict=True):
                    read = gather(lab, torch, k_cache, [*row, STALE], model.lengths[name], "k")
                    lab.expect(f"{name}'s keys ({told})", model.read(name), read)
        except LabFailure as failure:
            return failure
    return None


class NaiveCache:
    """The same cache as a list of names, in which each request has the list of its slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.memory = ["-"] * (num_blocks * block_size)
        self.free = [(7 * n) % num_blocks for n in range(num_blocks)]
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, step: Step) -> tuple[list[str], list[int]]:
        """Write the step's tokens; return their names and their slots, in the order of the batch."""
        names, written = [], []
        for name, other in step.like:
            if other in self.tables:
                num_shared = self.lengths[other] // self.block_size  # full blocks only
                self.tables[name] = self.tables[other][:num_shared]
                self.lengths[name] = num_shared * self.block_size
        for name, num_new in step.tokens:
            table, start = self.tables.setdefault(name, []), self.lengths.get(name, 0)
            while len(table) * self.block_size < start + num_new:
                table.append(self.free.pop(0))
            places = [block * self.block_size + n for block in table for n in range(self.block_size)]
            for position in range(start, start + num_new):
                self.memory[places[position]] = f"{name}{position}"
                names.append(f"{name}{position}")
                written.append(places[position])
            self.lengths[name] = start + num_new
        return names, written

    def leave(self, name: str) -> None:
        """Let the request go; its blocks keep what is in them, and come back last."""
        if name in self.tables:
            held = {block for other, table in self.tables.items() if other != name for block in table}
            self.free += [block for block in self.tables.pop(name) if block not in held]
            del self.lengths[name]

    def read(self, name: str) -> list[str]:
        """Return what is in the request's slots."""
        places = [block * self.block_size + n for block in self.tables[name] for n in range(self.block_size)]
        return [self.memory[place] for place in places[: self.lengths[name]]]

    def drawn(self) -> list[str]:
        """Return the cache block by block."""
        size = self.block_size
        return [drawn_block(self.memory[first : first + size]) for first in range(0, len(self.memory), size)]


# What the tests above stand on --------------------------------------------------------------------------------------


def make_table(lab: LabUnderTest, learners: str, num_rows: int, width: int) -> Any:
    """Return a table of which the method `learners` is the learner's, and the other one is not."""
    stand_ins = {APPEND: plain_append_row, ADD: plain_add_row}
    others = {name.partition(".")[2]: method for name, method in stand_ins.items() if name != learners}
    return type("BlockTable", (lab.BlockTable,), others)(num_rows, width, 4)


def plain_append_row(table: Any, block_ids: list[int], row: int) -> None:
    """Stands in for the learner's `append_row`."""
    start, width = table.num_blocks_per_row[row], table.block_table.shape[1]
    if start + len(block_ids) > width:
        raise ConfigError(f"{start + len(block_ids)} blocks in a row of {width}")
    for column, block_id in enumerate(block_ids, start=start):
        table.block_table[row, column] = block_id
    table.num_blocks_per_row[row] = start + len(block_ids)


def plain_add_row(table: Any, block_ids: list[int], row: int) -> None:
    """Stands in for the learner's `add_row`."""
    table.num_blocks_per_row[row] = 0
    plain_append_row(table, block_ids, row)


def fill(table: Any, torch: Any, row: int, block_ids: list[int]) -> None:
    """Put the blocks into the row without any of the learner's methods."""
    table.block_table[row, : len(block_ids)] = ints(torch, block_ids)
    table.num_blocks_per_row[row] = len(block_ids)


def rows(table: Any) -> list[list[int]]:
    """Return the blocks of each row, as far as they count."""
    return [row[:count] for row, count in zip(table.block_table.tolist(), table.num_blocks_per_row, strict=True)]


def refuses(lab: LabUnderTest, what: str, call: Any) -> None:
    """Make a call that must raise ConfigError."""
    try:
        call()
    except ConfigError:
        return
    except LabTodo:
        raise
    except (RuntimeError, IndexError, ValueError) as other:
        why = "PyTorch's own complaint comes too late: something may have changed, and it names no row"
        lab.fail(what, "ConfigError raised", other, why)
    lab.fail(what, "ConfigError raised", "nothing raised")


def accepts(lab: LabUnderTest, what: str, call: Any, why: str) -> None:
    """Make a call that must not raise ConfigError."""
    try:
        call()
    except ConfigError as refusal:
        lab.fail(what, "no error", refusal, why)


def ints(torch: Any, values: list[Any]) -> Any:
    """Return a tensor of 32-bit numbers."""
    return torch.tensor(values, dtype=torch.int32)


def longs(torch: Any, values: list[Any]) -> Any:
    """Return a tensor of 64-bit numbers."""
    return torch.tensor(values, dtype=torch.int64)


def slots(
    lab: LabUnderTest, torch: Any, lens: list[int], positions: list[int], tables: list[list[int]], block_size: int
) -> list[int]:
    """Call compute_slot_mapping and return the slots. What is behind a request's last block is another one's block."""
    starts = [sum(lens[:n]) for n in range(len(lens) + 1)]
    width = max(map(len, tables)) + 1
    table = ints(torch, [row + [STALE] * (width - len(row)) for row in tables])
    given = (ints(torch, starts), longs(torch, positions), table)
    before = [tensor.tolist() for tensor in given]
    got = lab.compute_slot_mapping(*given, block_size)
    lab.expect("what it was given, afterwards", before, [tensor.tolist() for tensor in given], why="it only answers")
    found: list[int] = as_list(lab, torch, "what compute_slot_mapping returned", got, [len(positions)])
    return found


def write(lab: LabUnderTest, torch: Any, names: list[str], where: list[int], k_cache: Any, v_cache: Any) -> None:
    """Call reshape_and_cache for tokens of these names. Key and value are views, as when a projection is split."""
    together = torch.stack([vectors(torch, names, "k"), vectors(torch, names, "v")], dim=1)
    lab.reshape_and_cache(together[:, 0], together[:, 1], k_cache, v_cache, longs(torch, where))


def gather(lab: LabUnderTest, torch: Any, cache: Any, row: list[int], num_tokens: int, plane: str) -> list[str]:
    """Call gather_kv and return the names of the tokens that it read."""
    got = lab.gather_kv(cache, ints(torch, row), num_tokens)
    shape = [num_tokens, cache.shape[2], cache.shape[3]]
    return [name_of(token, plane) for token in as_list(lab, torch, "what gather_kv returned", got, shape)]


def as_list(lab: LabUnderTest, torch: Any, what: str, got: Any, shape: list[int]) -> Any:
    """Return the tensor as plain lists; fail if it is none, or of another shape."""
    if not isinstance(got, torch.Tensor):
        lab.fail(what, f"a tensor of shape {shape}", got, why="what comes next computes with it, and wants a tensor")
    lab.expect(f"shape of {what}", shape, list(got.shape))
    return got.tolist()


def make_caches(torch: Any, num_blocks: int, block_size: int) -> tuple[Any, Any]:
    """Return two empty caches, two heads of two numbers a token."""
    shape = (num_blocks, block_size, 2, 2)
    return torch.full(shape, EMPTY), torch.full(shape, EMPTY)


def make_planes(torch: Any, num_blocks: int, block_size: int, *, heads_first: bool) -> tuple[Any, Any]:
    """Return two empty caches that are views of one memory, as the engine allocates it."""
    if heads_first:
        data = torch.full((num_blocks, 2, 2, block_size, 2), EMPTY).transpose(2, 3)
    else:
        data = torch.full((num_blocks, 2, block_size, 2, 2), EMPTY)
    return data[:, 0], data[:, 1]


def put(torch: Any, k_cache: Any, v_cache: Any, tokens: dict[int, str]) -> None:
    """Write tokens to slots without any of the learner's functions."""
    size = k_cache.shape[1]
    for slot, name in tokens.items():
        k_cache[slot // size, slot % size] = vectors(torch, [name], "k")[0]
        v_cache[slot // size, slot % size] = vectors(torch, [name], "v")[0]


def vectors(torch: Any, names: list[str], plane: str) -> Any:
    """Return keys or values of tokens, two heads of two numbers, each token's different from all others."""
    return torch.tensor([numbers_of(name, plane) for name in names], dtype=torch.float32).view(len(names), 2, 2)


def numbers_of(name: str, plane: str) -> list[float]:
    """Return the four numbers of a token's key or value; of both heads, so that exchanged heads show."""
    first = 1 + 100 * (ord(name[0]) - ord("A")) + int(name[1:])
    sign = 1 if plane == "k" else -1
    return [sign * (first + part / 8) for part in range(4)]


def name_of(token: list[list[float]], plane: str) -> str:
    """Return the name of the token with this key or value, as the drawings show it."""
    numbers = [number for head in token for number in head]
    if numbers == [EMPTY] * 4:
        return "-"
    first = int(abs(numbers[0])) - 1 if abs(numbers[0]) < EMPTY else 0  # NaN is not below anything
    name = f"{chr(ord('A') + first // 100)}{first % 100}"
    for found in ("k", "v"):
        if numbers == numbers_of(name, found):
            return name if found == plane else f"{found}:{name}"
    return "?"


def drawn(cache: Any, plane: str) -> list[str]:
    """Return the cache as text, block by block."""
    return [drawn_block([name_of(token, plane) for token in block]) for block in cache.tolist()]


def drawn_block(names: list[str]) -> str:
    """Return a block as text; an empty one is a single dash."""
    return "-" if set(names) == {"-"} else " ".join(names)
