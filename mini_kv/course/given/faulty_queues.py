"""lab-02-examples, in which learners write examples for a queue before they write the queue.

An example may make the calls of `QueueUnderTest`, by block ids. The faulty queues are below, then the correct ones:
reading them is reading the lab's answers.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import BlockStateError, OutOfBlocksError
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.course.given.manager_under_test import Session
from mini_kv.course.given.subjects import Correct, Faulty, Misread


class QueueUnderTest:
    """A queue of unknown kind, with its blocks by their ids."""

    def __init__(self, session: Session, block_ids: Sequence[int]) -> None:
        """Make a queue of these blocks, the first in front."""
        self._session = session
        self._blocks = {block_id: KVCacheBlock(block_id) for block_id in range(max(block_ids, default=-1) + 1)}
        self.told = [f"a queue of {list(block_ids)}"]
        """The calls so far with their answers, as text."""
        self._inner: Any = session.do(lambda: session.make_inner(self._of(block_ids)))

    def popleft(self) -> int:
        """Take the block at the front. Returns its id."""
        return int(self._do("popleft()", lambda: self._inner.popleft().block_id))

    def popleft_n(self, n: int) -> list[int]:
        """Take the `n` blocks at the front. Returns their ids."""
        return list(self._do(f"popleft_n({n})", lambda: _ids(self._inner.popleft_n(n))))

    def remove(self, block_id: int) -> None:
        """Take a block out, wherever it is."""
        self._do(f"remove({block_id})", lambda: self._inner.remove(*self._of([block_id])))

    def append(self, block_id: int) -> None:
        """Put a block at the back."""
        self._do(f"append({block_id})", lambda: self._inner.append(*self._of([block_id])))

    def append_n(self, block_ids: Sequence[int]) -> None:
        """Put blocks at the back, in this order."""
        self._do(f"append_n({list(block_ids)})", lambda: self._inner.append_n(self._of(block_ids)))

    def prepend_n(self, block_ids: Sequence[int]) -> None:
        """Put blocks at the front, in this order."""
        self._do(f"prepend_n({list(block_ids)})", lambda: self._inner.prepend_n(self._of(block_ids)))

    def order(self) -> list[int]:
        """Return the ids in the queue, front to back."""
        return list(self._do("order()", lambda: _ids(self._inner.get_all_free_blocks())))

    def count(self) -> int:
        """Return the queue's own count, `num_free_blocks`."""
        return int(self._do("count()", lambda: self._inner.num_free_blocks))

    def is_refused(self, call: Callable[..., object], argument: Any = None) -> bool:
        """Make a call of this queue, and return whether it raised an error. Without an argument, pass `None`."""
        try:
            call() if argument is None else call(argument)
        except Exception as error:
            self.told.append(f"   raised {type(error).__name__}")
            return True
        return False

    def _of(self, block_ids: Sequence[int]) -> list[KVCacheBlock]:
        """Return the blocks with these ids."""
        for block_id in block_ids:
            self._blocks.setdefault(block_id, KVCacheBlock(block_id))
        return [self._blocks[block_id] for block_id in block_ids]

    def _do(self, told: str, call: Callable[[], Any]) -> Any:
        self.told.append(told)
        answer = self._session.do(call)
        if answer is not None:
            self.told[-1] += f": {answer}"
        return answer


def _ids(blocks: Sequence[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


MakeQueue = Callable[[Sequence[int]], QueueUnderTest]


class PlainQueue:
    """A correct queue in a plain list, which is slow. The faulty ones replace one method."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.line = list(blocks)
        self.num_free_blocks = len(self.line)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks, front to back."""
        return list(self.line)

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks at the front, or none."""
        if not 0 <= n <= len(self.line):
            raise OutOfBlocksError(n, len(self.line))
        taken, self.line = self.line[:n], self.line[n:]
        self.num_free_blocks -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out."""
        if block not in self.line:
            raise BlockStateError("not in the queue", [block.block_id])
        self.line.remove(block)
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the back."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the back, or none."""
        self.check(blocks)
        self.line = [*self.line, *blocks]
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the front, or none."""
        self.check(blocks)
        self.line = [*blocks, *self.line]
        self.num_free_blocks += len(blocks)

    def check(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Raise for a block that is in the queue already, or is given twice."""
        if len({*self.line, *blocks}) < len(self.line) + len(blocks):
            raise BlockStateError("in the queue already")


# The faulty queues --------------------------------------------------------------------------------------------------


class TakesTheNewest(PlainQueue):
    """Takes a single block from the back."""

    def popleft(self) -> KVCacheBlock:
        """Take the block at the back."""
        if not self.line:
            raise OutOfBlocksError(1, 0)
        self.num_free_blocks -= 1
        return self.line.pop()


class TakesInReverse(PlainQueue):
    """Returns several blocks in the reverse order."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the blocks, and turn the list."""
        return super().popleft_n(n)[::-1]


class GivesWhatThereIs(PlainQueue):
    """Returns fewer blocks if there are too few."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take `n` blocks, or all."""
        return super().popleft_n(min(n, max(1, len(self.line))))


class TakesBeforeItRefuses(PlainQueue):
    """Takes blocks one by one, and refuses when there are no more."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the blocks one by one."""
        if n < 0:
            raise OutOfBlocksError(n, len(self.line))
        taken = []
        for _ in range(n):
            taken += super().popleft_n(1)
        return taken


class AppendsInReverse(PlainQueue):
    """Puts the first of several blocks last."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the blocks in the reverse order."""
        super().append_n(blocks[::-1])


class PrependsOneByOne(PlainQueue):
    """Puts each of several blocks in front of the one before it."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the blocks in the reverse order."""
        super().prepend_n(blocks[::-1])


class CountsCalls(PlainQueue):
    """Counts several blocks as one."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the blocks, and count one."""
        super().append_n(blocks)
        self.num_free_blocks -= max(len(blocks) - 1, 0)


class ChecksOneByOne(PlainQueue):
    """Adds blocks until one of them is in the queue already."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Check and add the blocks one by one."""
        for block in blocks:
            super().append_n([block])


class TurnsTheQueue(PlainQueue):
    """Removes a block by turning the queue until it is in front."""

    def remove(self, block: KVCacheBlock) -> None:
        """Leave the blocks that were behind it in front."""
        place = self.line.index(block) if block in self.line else 0
        super().remove(block)
        self.line = self.line[place:] + self.line[:place]


class RemovesUncounted(PlainQueue):
    """Does not count a removed block."""

    def remove(self, block: KVCacheBlock) -> None:
        """Remove the block and keep the count."""
        super().remove(block)
        self.num_free_blocks += 1


class RemovesWhatIsNotThere(PlainQueue):
    """Removes a block that is not in the queue, without an error."""

    def remove(self, block: KVCacheBlock) -> None:
        """Remove the block if it is there."""
        if block in self.line:
            super().remove(block)


class RemembersThePlace(PlainQueue):
    """Puts a block that was removed back to its old place."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        super().__init__(blocks)
        self.places: dict[KVCacheBlock, int] = {}

    def remove(self, block: KVCacheBlock) -> None:
        """Remember the place."""
        place = self.line.index(block) if block in self.line else 0
        super().remove(block)
        self.places[block] = place

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add blocks at the back, or where they were."""
        super().append_n(blocks)
        for block in blocks:
            if block in self.places:
                self.line.remove(block)
                self.line.insert(self.places.pop(block), block)


FAULTY_QUEUES = (
    Faulty("check_taking", TakesTheNewest, rule=1),
    Faulty("check_taking", TakesInReverse, rule=2),
    Faulty("check_taking", GivesWhatThereIs, rule=3),
    Faulty("check_taking", TakesBeforeItRefuses, rule=11),
    Faulty("check_returning", AppendsInReverse, rule=5),
    Faulty("check_returning", PrependsOneByOne, rule=6),
    Faulty("check_returning", CountsCalls, rule=10),
    Faulty("check_returning", ChecksOneByOne, rule=11),
    Faulty("check_removing", TurnsTheQueue, rule=8),
    Faulty("check_removing", RemovesUncounted, rule=10),
    Faulty("check_removing", RemovesWhatIsNotThere, rule=9),
    Faulty("check_removing", RemembersThePlace, rule=4),
)
"""Queue 1 is the first of them."""


# What a reader may expect who has misread a sentence ----------------------------------------------------------------


class SortsById(PlainQueue):
    """Keeps the blocks in the order of their ids."""

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Return the blocks, the smallest id first."""
        return sorted(self.line, key=lambda block: block.block_id)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the blocks with the smallest ids."""
        self.line = self.get_all_free_blocks()
        return super().popleft_n(n)


class IsAStack(PlainQueue):
    """Puts blocks where they are taken next."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put the blocks at the front."""
        super().prepend_n(blocks)


class MovesToTheBack(PlainQueue):
    """Moves a block that is in the queue already, as an LRU list does."""

    def check(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take the blocks out first, and accept each."""
        self.line = [block for block in self.line if block not in blocks]
        self.num_free_blocks = len(self.line)


class IgnoresRepeats(PlainQueue):
    """Leaves a block that is in the queue already at its place, without an error."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put only the new blocks at the back."""
        super().append_n([block for block in dict.fromkeys(blocks) if block not in self.line])

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put only the new blocks at the front."""
        super().prepend_n([block for block in dict.fromkeys(blocks) if block not in self.line])


class FillsTheGap(PlainQueue):
    """Puts the last block at the place of a removed one."""

    def remove(self, block: KVCacheBlock) -> None:
        """Move the last block into the gap."""
        place = self.line.index(block) if block in self.line else 0
        super().remove(block)
        self.line = [*self.line[:place], *self.line[place:][-1:], *self.line[place:][:-1]]


class CountsAllBlocks(PlainQueue):
    """Counts the blocks that it ever had."""

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that were in the queue."""
        return self.ever

    @num_free_blocks.setter
    def num_free_blocks(self, number: int) -> None:
        """Keep the greatest number."""
        self.ever = max(number, getattr(self, "ever", 0))


class NeedsOneMore(PlainQueue):
    """Refuses to give its last block."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the blocks if one is left after them."""
        if n == len(self.line) > 0:
            raise OutOfBlocksError(n, n - 1)
        return super().popleft_n(n)


class GoesOnAfterAnError(PlainQueue):
    """Adds the blocks of a refused call that are not in the queue."""

    def check(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add the new blocks, then raise."""
        known = {*self.line}
        if len({*known, *blocks}) < len(known) + len(blocks):
            self.line += [block for block in dict.fromkeys(blocks) if block not in known]
            self.num_free_blocks = len(self.line)
            raise BlockStateError("in the queue already")


class TakesNoReturns(PlainQueue):
    """Refuses a block that has left the queue."""

    def check(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Raise for a block that was in the queue before."""
        self.ever = {*getattr(self, "ever", ()), *self.line}
        super().check(blocks)
        if self.ever & {*blocks}:
            raise BlockStateError("was in the queue before")

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Remember the blocks."""
        self.ever = {*getattr(self, "ever", ()), *self.line}
        return super().popleft_n(n)

    def remove(self, block: KVCacheBlock) -> None:
        """Remember the blocks."""
        self.ever = {*getattr(self, "ever", ()), *self.line}
        super().remove(block)


MISREAD_QUEUES = (
    Misread(SortsById, rule=1),
    Misread(IsAStack, rule=4),
    Misread(MovesToTheBack, rule=7),
    Misread(IgnoresRepeats, rule=7),
    Misread(FillsTheGap, rule=8),
    Misread(CountsAllBlocks, rule=10),
    Misread(NeedsOneMore, rule=3),
    Misread(GoesOnAfterAnError, rule=11),
    Misread(TakesNoReturns, rule=4),
)


# The correct queues -------------------------------------------------------------------------------------------------


class RefusesWithBareErrors(PlainQueue):
    """Raises other errors than the engine's."""

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the blocks, or raise `IndexError`."""
        try:
            return super().popleft_n(n)
        except OutOfBlocksError:
            raise IndexError(n) from None

    def check(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Raise `ValueError` for a block that may not enter."""
        try:
            super().check(blocks)
        except BlockStateError:
            raise ValueError from None


class InADictionary(PlainQueue):
    """Keeps the blocks as the keys of an `OrderedDict`, and counts on demand."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._blocks = OrderedDict.fromkeys(blocks)

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks."""
        return len(self._blocks)

    @num_free_blocks.setter
    def num_free_blocks(self, number: int) -> None:
        """Ignore the count of the base class."""

    @property
    def line(self) -> list[KVCacheBlock]:
        """The blocks, front to back."""
        return list(self._blocks)

    @line.setter
    def line(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Replace the blocks."""
        self._blocks = OrderedDict.fromkeys(blocks)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out."""
        if block not in self._blocks:
            raise BlockStateError("not in the queue", [block.block_id])
        del self._blocks[block]


CORRECT_QUEUES = (
    Correct("the engine's own", FreeKVCacheBlockQueue),
    Correct("a plain list", PlainQueue),
    Correct("an OrderedDict", InADictionary),
    Correct("other errors", RefusesWithBareErrors),
)
"""Queues that keep the contract, each with what is different in it."""
