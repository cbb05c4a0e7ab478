"""Helpers of lab-02: calls of the learner's queue, blocks that record each access, a plain list as the model.

Queues are written as the numbers of their blocks, front first. Reading order: `QueueUnderTest`, `NaiveQueue`, and last
`Watch` and its blocks, by which a test sees whether a call walks the queue.
"""

import random
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, KVCacheError, OutOfBlocksError
from mini_kv.course import LabTodo
from mini_kv.course.labkit.fixture import InWords, LabUnderTest


class QueueUnderTest:
    """A learner's queue, all blocks by their numbers, and the watch that records accesses to them."""

    def __init__(self, lab: LabUnderTest, inside: Iterable[int], outside: Iterable[int] = ()) -> None:
        inside = list(inside)
        self.lab = lab
        self.watch = Watch()
        self.blocks = {block_id: self.watch.block(block_id) for block_id in [*inside, *outside]}
        self.learners: Any = lab.FreeKVCacheBlockQueue([self.blocks[block_id] for block_id in inside])

    def call(self, verb: str, *given: Any) -> object:
        """Call the method and return its result. Blocks are numbers, in the arguments and in the result."""
        if verb in ("remove", "append"):
            given = (self.blocks[given[0]],)
        elif verb in ("append_n", "prepend_n"):
            given = ([self.blocks[block_id] for block_id in given[0]],)
        result = getattr(self.learners, verb)(*given)
        return result if result is None else numbers(result) if isinstance(result, list) else number(result)

    def do(self, what: str, verb: str, *given: Any) -> object:
        """Return the result of a call that must succeed. If it raises, fail with the call and the line that raised."""
        try:
            return self.call(verb, *given)
        except LabTodo:
            raise
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
            where = f"raised in {frames[-1].name}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
            linked = [number for number, block in self.blocks.items() if block.prev_free_block or block.next_free_block]
            self.lab.fail(what, "no error", told(error), where, seen=linked)

    def expect(self, want: Sequence[int], what: str, why: str = "") -> None:
        """Expect this order, and a count that agrees with it."""
        self.lab.expect(what, list(want), outcome(order, self.learners), why)
        self.lab.expect(f"num_free_blocks, {what}", len(want), self.learners.num_free_blocks, rule=3)

    def expect_looks(self, limit: int, what: str, why: str = "") -> None:
        """Expect accesses to at most `limit` different blocks since `watch.seen` was cleared."""
        if len(self.watch.seen) > limit:
            self.lab.fail(f"blocks that {what} looks at", f"at most {limit}", len(self.watch.seen), why)

    def refuses(
        self, what: str, error: type[KVCacheError], verb: str, *given: Any, why: str = "", seen: object = None
    ) -> None:
        """Expect that the call raises the error, and that queue and count are unchanged."""
        before, num_before = order(self.learners), self.learners.num_free_blocks
        returned = outcome(self.call, verb, *given)
        if returned != error.__name__:
            if not isinstance(returned, InWords):
                returned = InWords(f"no error; it returned {returned}")
            left = (outcome(order, self.learners), self.learners.num_free_blocks, seen)
            self.lab.fail(what, f"{error.__name__}, and nothing changed", returned, why, seen=left)
        self.lab.expect(f"queue after the refused {what}", before, outcome(order, self.learners), rule=10)
        self.lab.expect(f"num_free_blocks after the refused {what}", num_before, self.learners.num_free_blocks, rule=10)


def outcome(function: Callable[..., object], *args: object) -> object:
    """Return the result of the call, or the error that it raises as text."""
    try:
        return function(*args)
    except LabTodo:
        raise
    except Exception as error:
        return told(error)


def told(error: Exception) -> InWords:
    """Return the error as text. For `OutOfBlocksError` and `BlockStateError`, return only its name."""
    if isinstance(error, OutOfBlocksError | BlockStateError):
        return InWords(type(error).__name__)
    return InWords(f"{type(error).__name__}: {error}")


def number(block: object) -> object:
    """Return the block's number as a plain int. For any other value return the string `"not a block: ..."`."""
    return int(block.block_id) if isinstance(block, KVCacheBlock) else f"not a block: {block!r}"


def numbers(blocks: object) -> object:
    """Return the numbers of a list of blocks. Return any other value unchanged."""
    return [number(block) for block in blocks] if isinstance(blocks, list) else blocks


def order(queue: Any) -> object:
    """Return the queue as numbers, the next to be reused first."""
    return numbers(queue.get_all_free_blocks())


@dataclass(frozen=True)
class Step:
    """A call of a random life: the method's name and its numbers. They are block ids, but a count in popleft_n."""

    verb: str
    ids: tuple[int, ...] = ()

    def given(self) -> list[Any]:
        """Return the arguments."""
        return [list(self.ids)] if self.verb in ("append_n", "prepend_n") else list(self.ids)

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(map(str, self.given()))})"


def random_life(rng: random.Random) -> list[Step]:
    """Return 25 calls about eight blocks. About a third of them are wrong calls."""
    life = []
    for _ in range(25):
        verb = rng.choice(("popleft", "popleft_n", "remove", "remove", "append", "append_n", "prepend_n"))
        ids: list[int] = []
        if verb == "popleft_n":
            ids = [rng.choice((-1, 0, 1, 2, 3, 5))]
        elif verb in ("remove", "append"):
            ids = [rng.randrange(8)]
        elif verb != "popleft":
            ids = [rng.randrange(8) for _ in range(rng.randint(0, 3))]
        life.append(Step(verb, tuple(ids)))
    return life


class NaiveQueue:
    """The model: a Python list of numbers."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = list(ids)

    def do(self, step: Step) -> object:
        """Change the list as the call should. Return the expected result: numbers, None or the name of an error."""
        if step.verb in ("popleft", "popleft_n"):
            n = step.ids[0] if step.ids else 1
            if not 0 <= n <= len(self.ids):
                return InWords("OutOfBlocksError")
            taken, self.ids = self.ids[:n], self.ids[n:]
            return taken if step.ids else taken[0]
        if step.verb == "remove":
            if step.ids[0] not in self.ids:
                return InWords("BlockStateError")
            self.ids.remove(step.ids[0])
        else:
            if len({*step.ids, *self.ids}) != len(step.ids) + len(self.ids):
                return InWords("BlockStateError")
            self.ids = [*step.ids, *self.ids] if step.verb == "prepend_n" else [*self.ids, *step.ids]
        return None


def play(queue: QueueUnderTest, start: list[int], life: Sequence[Step]) -> None:
    """Play the calls on the learner's queue and on a list, and fail at the first difference."""
    lab, model = queue.lab, NaiveQueue(start)
    for step in life:
        lab.charge(f"FreeKVCacheBlockQueue.{step.verb}")
        rule = {"popleft": 4, "popleft_n": 5, "remove": 6, "prepend_n": 8}.get(step.verb, 7)
        lab.expect(f"what {step} gives", model.do(step), outcome(queue.call, step.verb, *step.given()), rule=rule)
        lab.expect(f"queue after {step}", model.ids, outcome(order, queue.learners), rule=rule)
        lab.expect(f"num_free_blocks after {step}", len(model.ids), queue.learners.num_free_blocks, rule=3)


class EndlessWalkError(KVCacheError):
    """A test has accessed blocks so often that the links must form a circle."""


@dataclass
class Watch:
    """Records which blocks are accessed, by number."""

    seen: set[int] = field(default_factory=set)
    num_looks: int = 0
    num_blocks: int = 0

    def block(self, block_id: int) -> KVCacheBlock:
        """Return a new block whose accesses are recorded here."""
        self.num_blocks += 1
        return WatchedBlock(block_id, self)

    def note(self, block_id: int) -> None:
        """Record an access to this block. Raises `EndlessWalkError` after far too many."""
        self.seen.add(block_id)
        self.num_looks += 1
        if self.num_looks > 5000 + 100 * self.num_blocks:
            raise EndlessWalkError(f"{self.num_looks:,} looks at {self.num_blocks} blocks: the links form a circle?")


def _watched(name: str) -> Any:
    """Return the attribute of that name of `KVCacheBlock`. Each access is recorded by the watch."""
    slot = vars(KVCacheBlock)[name]

    def get(block: Any) -> Any:
        block.watch.note(block.own_id)
        return slot.__get__(block)

    def put(block: Any, value: object) -> None:
        block.watch.note(block.own_id)
        slot.__set__(block, value)

    return property(get, put)


class WatchedBlock(KVCacheBlock):
    """A block that records every access to its links and its number, every comparison and every hash."""

    __slots__ = ("own_id", "watch")

    def __init__(self, block_id: int, watch: Watch) -> None:
        self.watch, self.own_id = watch, block_id
        super().__init__(WatchedId(block_id))
        self.block_id.watch = watch

    block_id = _watched("block_id")
    prev_free_block = _watched("prev_free_block")
    next_free_block = _watched("next_free_block")

    def __eq__(self, other: object) -> bool:
        self.watch.note(self.own_id)
        return self is other

    def __hash__(self) -> int:
        self.watch.note(self.own_id)
        return object.__hash__(self)


class WatchedId(int):
    """A block's number that records comparisons, because a search through a list of numbers is a walk as well."""

    watch: Watch | None = None

    def __eq__(self, other: object) -> bool:
        if self.watch is not None:
            self.watch.note(int(self))
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))
