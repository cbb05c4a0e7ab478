"""What lab-08 needs: the calls of the learner's functions, a cache drawn as text, random lives with a naive cache.

Each token has a key and a value of its own, so that a cache can be read back as the names of its tokens. Reading order:
the calls, tokens as numbers and back, then the random lives, whose model is `NaiveCache`. PyTorch comes in as an
argument.
"""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import LEAVES, Step, check_life, seeds

ADD, APPEND = "BlockTable.add_row", "BlockTable.append_row"
SLOTS, WRITE, GATHER = "compute_slot_mapping", "reshape_and_cache", "gather_kv"

EMPTY = 10_000.0
"""The value of each slot that has not been written."""
STALE = 5
"""The id after a request's last block in its row: another request's block."""


def make_table(lab: LabUnderTest, learners: str, num_rows: int, width: int) -> Any:
    """Return a table with the learner's method `learners`. The other method is ours."""

    class BlockTable(lab.BlockTable):  # type: ignore[misc, name-defined]  # the learner's
        if learners == ADD:
            append_row = plain_append_row
        else:
            add_row = plain_add_row

    return BlockTable(num_rows, width, 4)


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


def append_five(table: Any) -> InWords:
    """Append five blocks to row 0, and say how the row looks if nothing is raised."""
    table.append_row([1, 2, 4, 5, 6], 0)
    return InWords(f"no error: a row of {table.block_table.shape[1]} columns that counts {table.num_blocks_per_row[0]}")


def rows(table: Any) -> list[list[int]]:
    """Return the blocks of each row, as far as they count."""
    return [row[:count] for row, count in zip(table.block_table.tolist(), table.num_blocks_per_row, strict=True)]


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
    """Call compute_slot_mapping and return the slots. Each row has a stale id after the request's last block."""
    starts = [sum(lens[:n]) for n in range(len(lens) + 1)]
    width = max(map(len, tables)) + 1
    table = ints(torch, [row + [STALE] * (width - len(row)) for row in tables])
    given = (ints(torch, starts), longs(torch, positions), table)
    before = [tensor.tolist() for tensor in given]
    got = lab.compute_slot_mapping(*given, block_size)
    lab.expect("what it was given, afterwards", before, [tensor.tolist() for tensor in given], rule=5)
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
    """Return the tensor as plain lists. Fail if it is not a tensor or has another shape."""
    if not isinstance(got, torch.Tensor):
        lab.fail(what, f"a tensor of shape {shape}", got, why="the engine computes with the result and needs a tensor")
    lab.expect(f"shape of {what}", shape, list(got.shape))
    return got.tolist()


def make_caches(torch: Any, num_blocks: int, block_size: int) -> tuple[Any, Any]:
    """Return two empty caches, with two heads of two numbers per token."""
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
    """Return the four numbers of a token's key or value, two per head, so that exchanged heads differ."""
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
    """Return a block as text. An empty one is a single dash."""
    return "-" if set(names) == {"-"} else " ".join(names)


def live_at_random(lab: LabUnderTest, torch: Any, about: str) -> None:
    """Play forty random lives with the learner's function. A failure shows the shortest part that still fails."""
    for seed in seeds(40):
        life = random_life(random.Random(seed))
        check_life(
            lab, partial(play, lab, torch, about), life, f"in the life of seed {seed}, blocks of 3, shortened to"
        )


BEGINS, COMPUTES = "begins", "computes"


def random_life(rng: random.Random) -> list[Step]:
    """Return batches of up to three requests, some of which share a beginning, and departures.

    The options of a batch are the number of tokens that each request computes.
    """
    life: list[Step] = []
    alive: list[str] = []
    for _ in range(8):
        if len(alive) > 2:
            life.append(Step(LEAVES, alive.pop(rng.randrange(len(alive)))))
        if len(alive) < 3:
            new = next(name for name in "ABCD" if name not in alive)
            if alive and rng.random() < 0.5:
                life.append(Step(BEGINS, new, options={"like": rng.choice(alive)}))
            alive.append(new)
        order = rng.sample(alive, len(alive))
        life.append(Step(COMPUTES, options={name: rng.randint(0 if name != order[0] else 1, 4) for name in order}))
    return life


def play(lab: LabUnderTest, torch: Any, about: str, life: list[Step]) -> None:
    """Run the steps on the learner's function and on the model. Fail at the first difference."""
    model = NaiveCache(num_blocks=40, block_size=3)
    k_cache, v_cache = make_planes(torch, 40, 3, heads_first=False)
    for step in life:
        if step.verb == LEAVES:
            model.leave(step.name)
        elif step.verb == BEGINS:
            model.begin(step.name, step.options["like"])
        if step.verb != COMPUTES:
            continue
        names, want = model.compute(step.options)
        tables = {name: model.tables[name] for name in step.options}
        told = ", ".join(f"{name} has {' '.join(map(str, table))}" for name, table in tables.items())
        if about == SLOTS:
            positions = [int(name[1:]) for name in names]
            got = slots(lab, torch, [*step.options.values()], positions, list(tables.values()), 3)
            lab.expect(f"slots of {' '.join(names)} ({told})", want, got)
        if about == WRITE:
            write(lab, torch, [*names, "P0"], [*want, -1], k_cache, v_cache)
            lab.expect(f"keys in the cache after {step} ({told})", model.drawn(), drawn(k_cache, "k"))
            lab.expect(f"values in the cache after {step} ({told})", model.drawn(), drawn(v_cache, "v"))
        else:
            put(torch, k_cache, v_cache, dict(zip(want, names, strict=True)))
        if about == GATHER:
            for name, table in tables.items():
                read = gather(lab, torch, k_cache, [*table, STALE], model.lengths[name], "k")
                lab.expect(f"{name}'s keys ({told})", model.read(name), read)


class NaiveCache:
    """The same cache as a list of names, in which each request has the list of its slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.memory = ["-"] * (num_blocks * block_size)
        self.free = [(7 * n) % num_blocks for n in range(num_blocks)]
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def begin(self, name: str, other: str) -> None:
        """Begin a request that shares the full blocks of another one, if both are as they were drawn."""
        if other in self.tables and name not in self.tables:
            num_shared = self.lengths[other] // self.block_size
            self.tables[name] = self.tables[other][:num_shared]
            self.lengths[name] = num_shared * self.block_size

    def compute(self, batch: Mapping[str, int]) -> tuple[list[str], list[int]]:
        """Write the batch's tokens. Return their names and their slots, in the order of the batch."""
        names, written = [], []
        for name, num_new in batch.items():
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
        """Free the request's blocks. Their content is unchanged, and they are reused last."""
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
