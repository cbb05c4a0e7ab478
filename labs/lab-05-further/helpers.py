"""Helpers for the tests of lab-05-further: pools in a given state, all their visible state, the real pool."""

from collections.abc import Mapping, Sequence

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.course.given.small_pool import SmallPool
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import free_queue, ids_of


class Desk:
    """A pool and the tables that hold its blocks, written down beside it."""

    def __init__(
        self,
        lab: LabUnderTest,
        num_blocks: int,
        tables: Mapping[str, Sequence[int]] | None = None,
        hashes: Mapping[int, str] | None = None,
        queue: Sequence[int] | None = None,
    ) -> None:
        """Make a pool in this state: tables by their holders, hashes by block, and the free blocks in their order."""
        self.lab, self.pool = lab, SmallPool(num_blocks)
        self.tables = {name: list(table) for name, table in (tables or {}).items()}
        for table in self.tables.values():
            for block_id in table:
                self.pool.blocks[block_id].ref_cnt += 1
        for block_id, block_hash in (hashes or {}).items():
            self.pool.fill([block_id], [block_hash])
        free = [block_id for block_id, block in self.pool.blocks.items() if block.ref_cnt == 0]
        self.pool.free_queue = list(queue) if queue is not None else free
        lab.draw(lambda: self.pool.frame(self.tables))

    def sees(
        self,
        what: str,
        returned: tuple[object, object] | None = None,
        *,
        queue: Sequence[int],
        counts: Sequence[int],
        index: Mapping[str, list[int]],
        why: str = "",
        why_index: str = "a block is in the index from when it is full until it is handed out again",
    ) -> None:
        """Compare all visible state after a call. `returned` is the expected and the actual result."""
        pool = self.pool
        hashes = [next((name for name, ids in index.items() if block in ids), None) for block in pool.blocks]
        held = [block.ref_cnt for block in pool.blocks.values()]
        rows = [] if returned is None else [(f"what came of {what}", *returned, why)]
        rows += [
            (f"free queue after {what}", list(queue), list(pool.free_queue), why),
            (
                f"references of blocks 1, 2, 3 ... after {what}",
                list(counts),
                held,
                "a count is the number of tables that hold it",
            ),
            (f"index after {what}", dict(index), dict(pool.index), why_index),
            (
                f"hashes of blocks 1, 2, 3 ... after {what}",
                hashes,
                [b.block_hash for b in pool.blocks.values()],
                why_index,
            ),
        ]
        self.lab.expect_all(rows)

    def admit(self, who: str, block_hashes: Sequence[str], num_blocks: int) -> object:
        """Call the learner's `admit` and write the table down."""
        table = self.lab.admit(self.pool, list(block_hashes), num_blocks)
        if isinstance(table, list) and all(block_id in self.pool.blocks for block_id in table):
            self.tables[who] = list(table)
        return table

    def mistake(self, table: Sequence[int]) -> InWords:
        """Call the learner's `give_back` with a table that may be invalid. Return whether it raised."""
        try:
            self._give_back(table)
        except ValueError:
            return InWords("ValueError raised")
        return InWords("nothing raised")

    def leave(self, who: str) -> None:
        """Give back the table that was written down, if there is one, with the learner's `give_back`."""
        self._give_back(self.tables.pop(who, []))

    def _give_back(self, table: Sequence[int]) -> None:
        given = list(table)
        self.lab.give_back(self.pool, given)
        self.lab.expect("the table that give_back was given", list(table), given, "the list is the caller's")

    def fill(self, who: str, letters: str) -> None:
        """Give the first blocks of the table that was written down, if there is one, the hashes of these contents."""
        self.pool.fill(self.tables.get(who, []), prefixes(letters))


def prefixes(letters: str) -> list[str]:
    """Return the hashes of blocks with these contents, in letters: "abc" gives "a", "ab" and "abc"."""
    return [letters[:end] for end in range(1, len(letters) + 1)]


class RealPool:
    """The engine's pool, called as its managers call it: to compare with."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks + 1)  # and the null block
        self.tables: dict[str, list[KVCacheBlock]] = {}

    @property
    def queue(self) -> list[int]:
        """The free queue."""
        return free_queue(self.pool)

    def table(self, who: str) -> list[int]:
        """Return the ids in a table."""
        return ids_of(self.tables[who])

    def admit(self, who: str, block_hashes: Sequence[str], num_blocks: int) -> list[int] | None:
        """Give a request its table, or None."""
        hit: list[KVCacheBlock] = []
        for block_hash in block_hashes:
            found = self.pool.get_cached_block(BlockHash(block_hash.encode()), [0])
            if found is None:
                break
            hit += found
        num_idle = sum(block.ref_cnt == 0 for block in hit)
        if num_blocks - len(hit) + num_idle > self.pool.num_free_blocks:
            return None
        self.pool.touch(hit)
        self.tables[who] = hit + self.pool.get_new_blocks(num_blocks - len(hit))
        return self.table(who)

    def fill(self, who: str, block_hashes: Sequence[str]) -> None:
        """Give the first blocks of a table their hashes."""
        table = self.tables[who]
        num_cached = sum(block.block_hash is not None for block in table[: len(block_hashes)])
        hashes = [BlockHash(block_hash.encode()) for block_hash in block_hashes]
        self.pool.cache_full_blocks(table, hashes, num_cached, len(hashes))

    def leave(self, who: str) -> None:
        """Give a table back, from its tail to its head."""
        self.pool.free_blocks(reversed(self.tables.pop(who)))
