"""Questions of lab-03: tables share blocks of the learner's pool, and are freed."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from mini_kv.course.questions.question import Call, Question, listed
from mini_kv.story.frame import Frame, frame_of_pool
from mini_kv.story.step_questions import answer_text, measure_step
from mini_kv.story.text import draw_state

LAB = "lab-03"
NUM_BLOCKS = 10


class _PoolRun:
    """The learner's pool, and the tables of requests."""

    def __init__(self, rng: random.Random, pool_class: Any) -> None:
        self.rng = rng
        self.pool = pool_class(NUM_BLOCKS)
        self.tables: dict[str, list[Any]] = {}
        self.calls: list[Call] = []

    def frame(self) -> Frame:
        """Return the state."""
        return frame_of_pool(self.pool, {name: [_ids(table)] for name, table in self.tables.items()})

    def take(self, name: str, num_blocks: int) -> list[str]:
        """Give a new table blocks of its own."""
        self.tables[name] = self.pool.get_new_blocks(num_blocks)
        self.calls.append(Call("take", name, number=num_blocks))
        return [f"get_new_blocks({num_blocks}) for {name}: {listed(_ids(self.tables[name]))}"]

    def share(self, name: str, other: str, num_shared: int, num_blocks: int) -> list[str]:
        """Begin a table with the first blocks of another one, and add new blocks."""
        shared = self.tables[other][:num_shared]
        self.pool.touch(shared)
        new = self.pool.get_new_blocks(num_blocks)
        self.tables[name] = [*shared, *new]
        self.calls.append(Call("share", name, tuple(map(ord, other)), num_shared, num_blocks))
        return [f"touch({_ids(shared)}) for {name}", f"get_new_blocks({num_blocks}) for {name}: {listed(_ids(new))}"]

    def end(self, name: str) -> list[str]:
        """Free a table, the last block first."""
        table = self.tables.pop(name)[::-1]
        self.pool.free_blocks(table)
        self.calls.append(Call("end", name))
        return [f"free_blocks({_ids(table)})"]


def questions_of_pool(rng: random.Random, pool_class: Any) -> Iterator[Question]:
    """Yield the questions of one run of the learner's class."""
    run = _PoolRun(rng, pool_class)
    run.take("A", rng.randint(2, 4))
    run.share("B", "A", rng.randint(1, len(run.tables["A"]) - 1), rng.randint(1, 2))
    other = rng.choice("AB")
    if rng.random() < 0.5:
        run.end("B" if other == "A" else "A")
    yield from _after_share(run, other)
    yield from _after_end(run)


def _after_share(run: _PoolRun, other: str) -> Iterator[Question]:
    """Share one more table, and ask for a count and for the number of free blocks."""
    before, table = run.frame(), run.tables[other]
    num_shared, num_new = run.rng.randint(1, len(table)), run.rng.randint(1, 2)
    calls = run.share("C", other, num_shared, num_new)
    begins = "block" if num_shared == 1 else f"{num_shared} blocks"
    done = f"C begins with the first {begins} of {other} and takes {num_new} more."
    block_id = table[num_shared - 1].block_id
    if before.blocks[block_id].ref_cnt > 1:
        yield _question(run, "reference count", before, done, calls, str(block_id), merit=2)
    yield _question(run, "free blocks", before, done, calls)


def _after_end(run: _PoolRun) -> Iterator[Question]:
    """End a table of which some blocks stay in use, and ask for the queue and for a count."""
    name = run.rng.choice(list(run.tables))
    before, ids = run.frame(), _ids(run.tables[name])
    shared = [block_id for block_id in ids if before.blocks[block_id].ref_cnt > 1]
    calls = run.end(name)
    done = f"{name} ends. Its table is freed, the last block first."
    if shared and len(shared) < len(ids):
        for kind in ("free queue", "free blocks"):
            yield _question(run, kind, before, done, calls, merit=2)
    if shared:
        yield _question(run, "reference count", before, done, calls, str(run.rng.choice(shared)), merit=2)


ASKED = {
    "reference count": ("ref_cnt of {}", "What is the reference count of block {} then?"),
    "free queue": ("free_order", "What is the free queue then, next block first?"),
    "free blocks": ("free_blocks", "How many blocks are free then?"),
}
"""Each kind of question: the measure that stories ask for, and the words. `{}`: the block that it is about."""


def _question(
    run: _PoolRun, kind: str, before: Frame, done: str, calls: Sequence[str], about: str = "", merit: int = 1
) -> Question:
    measure, ask = (text.format(about) for text in ASKED[kind])
    answer = answer_text(measure_step(measure, (), run.frame()))
    state, proof = tuple(draw_state(before)), (*calls, "after it:", *draw_state(run.frame()))
    return Question(LAB, kind, f"{done} {ask}", state, answer, proof, tuple(run.calls), about, merit)


def _ids(blocks: Sequence[Any]) -> list[int]:
    return [block.block_id for block in blocks]
