"""Questions of lab-02: three calls to the learner's free queue, and what it hands out next."""

import random
from collections.abc import Iterator
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.course.questions.question import Call, Question, listed

LAB = "lab-02"


class _QueueRun:
    """The learner's queue, and the blocks that are not in it."""

    def __init__(self, rng: random.Random, queue_class: Any) -> None:
        self.rng = rng
        ids = rng.sample(range(1, 10), 9)
        self.blocks = {block_id: KVCacheBlock(block_id) for block_id in ids}
        self.outside = ids[5:]
        self.queue = queue_class([self.blocks[block_id] for block_id in ids[:5]])
        self.calls = [Call("start", tokens=tuple(ids[:5]))]
        self.start = (f"queue  {self.order()}", f"in no queue: {listed(self.outside)}")
        self.proof: list[str] = []

    def ids(self) -> list[int]:
        """Return the ids in the queue, front first."""
        return [block.block_id for block in self.queue.get_all_free_blocks()]

    def order(self) -> str:
        """Return the queue as a line."""
        return f"next-> {listed(self.ids())} <-last"

    def make(self, verb: str) -> str:
        """Make a random call of this kind and return it as text."""
        if verb == "remove":
            chosen = [self.rng.choice(self.ids()[1:-1])]
            self.queue.remove(self.blocks[chosen[0]])
            self.outside += chosen
            text = f"remove({chosen[0]})"
        elif verb == "popleft_n":
            taken = [block.block_id for block in self.queue.popleft_n(2)]
            self.outside += taken
            chosen, text = [], "popleft_n(2)"
        else:
            chosen = self.rng.sample(self.outside, 2)
            self.outside = [block_id for block_id in self.outside if block_id not in chosen]
            getattr(self.queue, verb)([self.blocks[block_id] for block_id in chosen])
            text = f"{verb}({chosen})"
        self.calls.append(Call(verb, tokens=tuple(chosen), number=2))
        self.proof.append(f"{text:<22} {self.order()}")
        return text


def questions_of_queue(rng: random.Random, queue_class: Any) -> Iterator[Question]:
    """Yield the questions of one run of the learner's class."""
    run = _QueueRun(rng, queue_class)
    front = run.ids()[0]
    verbs = rng.sample(["remove", "popleft_n", "prepend_n", "append_n"], 3)
    texts = [run.make(verb) for verb in verbs]
    state = (*run.start, *(f"{number}. {text}" for number, text in enumerate(texts, start=1)))
    order = run.ids()
    merit = len({"remove", "prepend_n"}.intersection(verbs))
    asked = {
        "queue order": ("What is your queue after these calls, next block first?", order, "get_all_free_blocks()"),
        "next three": ("Then popleft_n(3) is called. Which blocks does it return, in order?", None, "popleft_n(3)"),
        "next block": ("Then popleft() is called. Which block does it return?", None, "popleft()"),
    }
    kind = rng.choice(list(asked))
    ask, answer, call = asked[kind]
    if kind == "next three":
        answer = [block.block_id for block in run.queue.popleft_n(3)]
    elif kind == "next block":
        answer = [run.queue.popleft().block_id]
    assert answer is not None
    if answer[0] != front:
        proof = (*run.proof, f"{call:<22} returns {listed(answer)}")
        yield Question(LAB, kind, ask, state, listed(answer), proof, tuple(run.calls), merit=merit)
