"""Helpers of lab-03: a desk that records which table contains which blocks, and random sequences of calls."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.course.labkit import LabTodo, lives
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest
from mini_kv.course.labkit.lives import are_blocks, check_all, ids_of, seeds
from mini_kv.course.labkit.naive import NaiveTables

Step = tuple[str, str, int]
"""The kind of step, the request, and a number whose meaning depends on the kind."""
Model = NaiveTables[int]


class Desk:
    """A pool and the tables that contain its blocks. The tables are recorded here, never read from the blocks.

    Only the method named in `learners` is the learner's. The others are the engine's, on the same blocks and the same
    queue, so that a mistake in one method does not fail the tests of another.
    """

    def __init__(self, lab: LabUnderTest, num_gpu_blocks: int, learners: str = "") -> None:
        self.lab = lab
        self.pool = lab.BlockPool(num_gpu_blocks, enable_caching=False)
        self.learners = learners
        self.tables: dict[str, list[KVCacheBlock]] = {}
        self.calls: list[str] = []
        lab.watch_pool(self.pool, self.tables)
        self.check()

    def takes(self, name: str, num_blocks: int) -> list[int]:
        """Allocate new blocks to `name` and return their ids."""
        self.calls.append(f"get_new_blocks({num_blocks}) for {name}")
        blocks = self._method("get_new_blocks")(num_blocks)
        if not are_blocks(blocks):
            self.lab.fail(f"what get_new_blocks({num_blocks}) returned", f"a list of {num_blocks} KVCacheBlock", blocks)
        self.tables[name] = [*self.tables.get(name, []), *blocks]
        self.check()
        return ids_of(blocks)

    def shares(self, name: str, ids: list[int]) -> None:
        """Add these blocks to the table of `name`. Other tables keep them."""
        self.calls.append(f"touch({ids}) for {name}")
        blocks = [self.pool.blocks[block_id] for block_id in ids]
        self._method("touch")(blocks)
        self.tables[name] = [*self.tables.get(name, []), *blocks]
        self.check()

    def leaves(self, name: str) -> None:
        """Free the table of `name`, from the tail to the head."""
        self.calls.append(f"free_blocks(reversed({ids_of(self.tables[name])})) for {name}")
        self._method("free_blocks")(reversed(self.tables[name]))
        del self.tables[name]
        self.check()

    def refuses(self, error: type[Exception], method: str, argument: Any) -> None:
        """Make a call that must raise `error` and change nothing."""
        told = argument
        if not isinstance(argument, int):
            blocks = list(argument)
            told, argument = f"iter({ids_of(blocks)})", iter(blocks)
        call = f"{method}({told})"
        queue, counts = self.free_queue(), self.references(range(1, len(self.pool.blocks)))
        try:
            result = self._method(method)(argument)
        except LabTodo:
            raise
        except error:
            self._check_unchanged(f"{call} raised", queue, counts)
        except Exception as other:
            self.lab.fail(f"what {call} raised, after {self.told()}", error.__name__, other)
        else:
            returned = ids_of(result) if are_blocks(result) else result
            self._check_unchanged(f"{call} returned {returned}, not {error.__name__}", queue, counts)
            self.lab.fail(f"what {call} returned, after {self.told()}", f"{error.__name__} raised", returned)
        self.calls.append(f"{call} raised")
        self.check()

    def free_queue(self) -> list[int]:
        """Return the ids in the free queue, front first."""
        return lives.free_queue(self.pool)

    def references(self, ids: Iterable[int]) -> list[int]:
        """Return the `ref_cnt` of each of these blocks."""
        return lives.references(self.pool, ids)

    def order_queue(self, ids: list[int]) -> None:
        """Put the blocks of a new pool into this order, so that ids do not reveal places."""
        self.pool.free_block_queue.popleft_n(len(ids))
        self.pool.free_block_queue.append_n([self.pool.blocks[block_id] for block_id in ids])

    def count_reads(self) -> None:
        """Replace the blocks of a new pool by blocks that count how often their fields are read."""
        blocks = [CountedBlock(block_id) for block_id in range(len(self.pool.blocks))]
        blocks[0].is_null = True
        self.pool.blocks, self.pool.null_block = blocks, blocks[0]
        self.pool.free_block_queue = FreeKVCacheBlockQueue(blocks[1:])
        self._reads_before = CountedBlock.reads

    @property
    def reads(self) -> int:
        """Number of fields of blocks that were read since `count_reads`."""
        return CountedBlock.reads - self._reads_before

    def told(self) -> str:
        """Return the last calls, for a message."""
        return ("... " if len(self.calls) > 6 else "") + ("; ".join(self.calls[-6:]) or "nothing")

    def check(self) -> None:
        """Raise for the first invariant that is violated, with the calls before it."""
        try:
            self.lab.check_pool(self._engines_pool(), self.tables)
        except InvariantViolationError as error:
            self._violated(error.violation.invariant_id, error.violation.message)

    def _check_unchanged(self, call: str, queue: list[int], counts: list[int]) -> None:
        after = self.references(range(1, len(self.pool.blocks)))
        changed = [
            f"block {block_id} had ref_cnt {before} and has {now}"
            for block_id, (before, now) in enumerate(zip(counts, after, strict=True), start=1)
            if now != before
        ]
        if changed:
            self._violated("I11", f"{call}, but {', '.join(changed[:3])}")
        if self.free_queue() != queue:
            self._violated("I11", f"{call}, but the free queue was {queue} and is {self.free_queue()}")

    def _violated(self, invariant_id: str, message: str) -> None:
        raise InvariantViolationError(Violation(invariant_id, f"{message}, after {self.told()}")) from None

    def _method(self, name: str) -> Callable[..., Any]:
        owner = self.pool if name == self.learners else self._engines_pool()
        return getattr(owner, name)  # type: ignore[no-any-return]  # a method of either pool

    def _engines_pool(self) -> BlockPool:
        """Return the engine's pool on the same blocks and the same queue."""
        pool = BlockPool(2, enable_caching=False)
        pool.blocks, pool.null_block = self.pool.blocks, self.pool.null_block
        pool.free_block_queue = self.pool.free_block_queue
        return pool


class CountedBlock(KVCacheBlock):
    """A block that counts how often a field of any such block is read."""

    __slots__ = ()
    reads = 0

    def __getattribute__(self, name: str) -> Any:
        CountedBlock.reads += 1
        return super().__getattribute__(name)


def compare_lives(lab: LabUnderTest, learners: str) -> None:
    """Play forty lives. Of the first that fails, play the shortest part that still fails."""
    for seed in seeds(40):
        check_all(partial(attempt, lab, learners, seed), [random_life(random.Random(seed))])


def attempt(lab: LabUnderTest, learners: str, seed: int, life: list[Step]) -> None:
    """Play a life on a new pool. The message of an exception lists the last calls."""
    desk = Desk(lab, 9, learners)
    try:
        play(desk, life)
    except (LabTodo, LabFailure, InvariantViolationError):
        raise
    except Exception as error:
        lab.fail(f"{desk.told()}, in the life of seed {seed}", "no exception", error)


def random_life(rng: random.Random) -> list[Step]:
    """Return steps of several requests that allocate, share and free blocks. A few steps are wrong."""
    verbs = rng.choices(("take", "share", "revive", "leave", "wrong"), (4, 4, 2, 5, 1), k=25)
    return [(verb, f"R{number}", rng.randrange(60)) for number, verb in enumerate(verbs)]


def play(desk: Desk, life: list[Step]) -> None:
    """Play the steps on the learner's pool and on the model. A step that is impossible now is skipped."""
    model: Model = NaiveTables(9)
    plays = {"take": take, "share": share, "revive": revive, "leave": leave, "wrong": free_wrongly}
    for verb, name, number in life:
        plays[verb](desk, model, name, number)
        desk.lab.expect(f"free queue, after {desk.told()}", model.free_queue, desk.free_queue())


def take(desk: Desk, model: Model, name: str, number: int) -> None:
    """Allocate up to 4 new blocks to `name`. More than are free must be refused."""
    num_blocks = number % 5
    if num_blocks > len(model.free_queue):
        desk.refuses(OutOfBlocksError, "get_new_blocks", num_blocks)
        return
    model.tables[name] = model.take(num_blocks)
    got = desk.takes(name, num_blocks)
    desk.lab.expect(f"{name}'s blocks, after {desk.told()}", model.tables[name], got)


def share(desk: Desk, model: Model, name: str, number: int) -> None:
    """Add the first blocks of another table to the table of `name`."""
    if model.tables:
        touch(desk, model, name, model.tables[a_holder(model, number)][: 1 + number // 12])


def revive(desk: Desk, model: Model, name: str, number: int) -> None:
    """Touch up to two free blocks for `name`, somewhere in the queue."""
    if model.free_queue:
        touch(desk, model, name, free_from(model, number)[:2])


def touch(desk: Desk, model: Model, name: str, ids: list[int]) -> None:
    """Make these blocks the table of `name`."""
    model.tables[name] = ids
    model.revive(ids)
    desk.shares(name, ids)


def leave(desk: Desk, model: Model, name: str, number: int) -> None:
    """Free one of the tables. `name` is ignored."""
    if model.tables:
        holder = a_holder(model, number)
        desk.leaves(holder)
        model.leave(holder)


def free_wrongly(desk: Desk, model: Model, name: str, number: int) -> None:
    """Free a table together with a block that is free already, which must be refused. `name` is ignored."""
    if model.tables and model.free_queue:
        wrong = [*model.tables[a_holder(model, number)], free_from(model, number)[0]]
        desk.refuses(BlockStateError, "free_blocks", [desk.pool.blocks[block_id] for block_id in wrong])


def a_holder(model: Model, number: int) -> str:
    """Return one of the requests that have tables."""
    return sorted(model.tables)[number % len(model.tables)]


def free_from(model: Model, number: int) -> list[int]:
    """Return the end of the free queue, from any of its blocks on."""
    return model.free_queue[number % len(model.free_queue) :]
