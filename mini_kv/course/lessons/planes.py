"""One control plane and several data planes: the same plans, executed by different runners.

    play = control_plane({"A": "A block is free when"})
    steps = run(play, Dice())       plan, execute, take, until nothing is left
    answers(play)                   the text of each box

A data plane has one method, `execute(plan)`. It returns a token id for each row of the plan with `samples`. The runners
of this module need the standard library only. The one with PyTorch is in `torch_plane`, the one in JavaScript in
`book/mini_kv_book/assets/kv_runner.js`.
"""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from mini_kv.core.invariants import check_invariants
from mini_kv.course.lessons.play import Levers, Play, make_play

Plan = list[dict[str, Any]]
"""The rows of one step. See `Play.plan`."""

SENTENCES = (
    "A block is free when no request holds it. A block is cached when its hash is in the index. A request that waits "
    "has no blocks. A request that runs has a block table. The scheduler counts tokens and the cache counts blocks. "
    "The scheduler never sees a key or a value. A block table has the number of each block. When a request ends its "
    "blocks are free, and they stay cached until they are reused."
)
"""A text for models that count."""
TEXTS = {
    "A": "The scheduler counts tokens, and the cache counts blocks. A block is held by",
    "B": "The scheduler counts tokens, and the cache counts blocks. A request waits until",
}
"""Two texts with one beginning."""
TIGHT = Levers(num_blocks=5, max_num_batched_tokens=12, max_tokens=10)
"""With `TEXTS`: a prompt in two pieces, a hit, and a preemption."""


class DataPlane(Protocol):
    """Whatever can execute a plan."""

    def execute(self, plan: Plan) -> dict[str, int]:
        """Compute one step. Return the next token of each request whose row has `samples`."""


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """One step: what went down, what came up."""

    plan: Plan
    tokens: dict[str, int]
    seconds: float
    """Time of `execute`."""


def control_plane(texts: Mapping[str, str], model: str = "tiny", levers: Levers | None = None) -> Play:
    """Return an engine without a data plane, with one request for each text.

    Args:
        texts: a text for each name. The request of the text A is A1.
        model: `tiny` or `tiny_windows`. Only its tokenizer and its config.json are read, not its weights.
        levers: sizes and limits.
    """
    play = make_play(model, levers or Levers())
    for name, text in texts.items():
        play.send(name, text)
    return play


def run(play: Play, data_plane: DataPlane) -> list[ExecutedStep]:
    """Make steps until no request is left, and return them. All invariants of the cache are checked after each step.

    Raises `InvariantViolationError` at the first violation.
    """
    steps = []
    while (plan := play.plan()) is not None:
        begin = time.perf_counter()
        tokens = data_plane.execute(plan)
        steps.append(ExecutedStep(plan, tokens, time.perf_counter() - begin))
        play.take(tokens)
        check_invariants(play.scheduler.kv_cache_manager)
    return steps


def answers(play: Play) -> dict[str, str]:
    """Return what was generated after each text, by name."""
    return {
        name: box.text.removeprefix(play.tokenizer.decode(box.prompt_token_ids)) for name, box in play.boxes.items()
    }


def blocks_in_use(play: Play) -> int:
    """Return the number of blocks with a reference."""
    return int(play.telling()["counters"]["held"])


def shapes(steps: Sequence[ExecutedStep]) -> list[list[tuple[str, int, int, Any]]]:
    """Return the plans of these steps without their tokens: request, first position, number of tokens, tables."""
    return [
        [(row["request_id"], row["begin"], len(row["token_ids"]), row["tables"]) for row in step.plan] for step in steps
    ]


def dice_story() -> dict[str, Any]:
    """Return the story of `TEXTS` with dice, for the book's figure."""
    play = control_plane(TEXTS, levers=TIGHT)
    run(play, Dice())
    story = play.live.recorded()
    assert story is not None
    return {**story, "title": "Two texts, continued by dice"}


# The size of a plan.


def plan_bytes(plan: Plan) -> int:
    """Return the size of a plan as JSON."""
    return len(json.dumps(plan, separators=(",", ":")))


def num_tokens_of(plan: Plan) -> int:
    """Return the number of tokens whose keys and values the step writes or may read."""
    return sum(row["begin"] + len(row["token_ids"]) for row in plan)


# Data planes without tensors.


class Dice:
    """A runner without a model and without memory: each token is drawn at random."""

    def __init__(self, seed: int = 0, vocab_size: int = 1024) -> None:
        self.chance = random.Random(seed)
        self.vocab_size = vocab_size

    def execute(self, plan: Plan) -> dict[str, int]:
        """Draw a token for each request that needs one."""
        return {row["request_id"]: self.chance.randrange(self.vocab_size) for row in plan if row["samples"]}


class Bigrams:
    """A model that counts pairs: the next token is the one that most often followed the last token in a text."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.following: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for token_id, following in pairwise(token_ids):
            self.following[token_id][following] += 1

    def next_token(self, token_id: int) -> int:
        """Return the most frequent follower, or 0, the end of a text, if the token has none."""
        return max(self.following[token_id], key=self.following[token_id].__getitem__, default=0)

    def execute(self, plan: Plan) -> dict[str, int]:
        """Look up the last token of each request that needs one. Nothing is stored."""
        return {row["request_id"]: self.next_token(row["token_ids"][-1]) for row in plan if row["samples"]}


class Trigrams:
    """A model that counts triples. It needs the token before the last one, and stores it in a slot.

    After a prefix hit this token is not in the plan: only its block is.
    """

    def __init__(self, token_ids: Sequence[int], levers: Levers) -> None:
        self.pairs = Bigrams(token_ids)
        self.following: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for (first, second), (_, third) in pairwise(pairwise(token_ids)):
            self.following[first, second][third] += 1
        self.block_size = levers.block_size
        self.slots = [0] * ((levers.num_blocks + 1) * levers.block_size)

    def execute(self, plan: Plan) -> dict[str, int]:
        """Write all tokens of the step to their slots, then read the last two of each request that needs a token."""
        for row in plan:
            for position, token_id in enumerate(row["token_ids"], start=row["begin"]):
                self.slots[self.slot(row, position)] = token_id
        return {row["request_id"]: self.next_token(row) for row in plan if row["samples"]}

    def slot(self, row: dict[str, Any], position: int) -> int:
        """Return the slot of a position: its block in the table, and its place in the block."""
        block, offset = divmod(position, self.block_size)
        return int(row["tables"][0][block]) * self.block_size + offset

    def next_token(self, row: dict[str, Any]) -> int:
        """Return the most frequent follower of the last two tokens, or of the last one if the two have none."""
        last = row["begin"] + len(row["token_ids"]) - 1
        before, token_id = (self.slots[self.slot(row, max(position, 0))] for position in (last - 1, last))
        following = self.following[before, token_id]
        return max(following, key=following.__getitem__, default=self.pairs.next_token(token_id))


# A fault between the two.


class OneWrongBlock:
    """Passes plans on to a runner. In one step, one entry of one block table is wrong."""

    def __init__(self, runner: DataPlane, step: int, request_id: str, column: int, block_id: int) -> None:
        """Take the runner, the number of the step (the first is 1), the entry, and the wrong block id for it."""
        self.runner = runner
        self.step, self.request_id, self.column, self.block_id = step, request_id, column, block_id
        self.num_steps = 0

    def execute(self, plan: Plan) -> dict[str, int]:
        """Execute the plan, or the changed one."""
        self.num_steps += 1
        return self.runner.execute(self.changed(plan) if self.num_steps == self.step else plan)

    def changed(self, plan: Plan) -> Plan:
        """Return a copy of the plan with the wrong block id."""
        copy: Plan = json.loads(json.dumps(plan))
        [row] = [row for row in copy if row["request_id"] == self.request_id]
        row["tables"][0][self.column] = self.block_id
        return copy
