"""Questions of lab-12: one group of full attention and one with a window, over one pool."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.questions.cache_run import CacheRun, Moment, play
from mini_kv.course.questions.question import BLOCK_SIZE, Call, Question, listed

LAB = "lab-12"
WINDOW = 6
NUM_BLOCKS = 15
NUM_CALLS = 12
GROUPS = f"Blocks have {BLOCK_SIZE} tokens. Group 0 is full attention, group 1 has a window of {WINDOW}."


def questions_of_windows(rng: random.Random, own: OwnParts) -> Iterator[Question]:
    """Yield the questions of one run, and one about the groups of a model."""
    specs = [FullAttentionSpec(BLOCK_SIZE), SlidingWindowSpec(BLOCK_SIZE, sliding_window=WINDOW)]
    run = CacheRun(own, NUM_BLOCKS, specs)
    for moment in play(run, rng, NUM_CALLS, ("come", "grow", "end")):
        if moment.call.verb == "come" and moment.result is not None and moment.spans[0].result:
            ask = f"{GROUPS} {moment.call.name} is new: {moment.text}. How many tokens does get_computed_blocks find?"
            merit = 1 + (0 in (moment.spans[0].found or []))
            yield _ask(moment, "common hit", ask, moment.spans[0].result, merit)
        elif moment.call.verb == "grow" and moment.result is not None:
            yield from _after_growth(moment)
    yield from _group_sizes(rng, own.group_layers)


def _after_growth(moment: Moment) -> Iterator[Question]:
    """Ask for the window's table, and for the blocks that left the window in this call."""
    name = moment.call.name
    before, after = moment.before.tables[name][1], moment.after.tables[name][1]
    gone = [old for old, new in zip(before, after, strict=False) if old != new]
    done = f"{GROUPS} {moment.growth}"
    if gone:
        ask = f"{done} Which blocks leave {name}'s table in group 1, in the order of the table?"
        yield _ask(moment, "blocks left of the window", ask, listed(gone), 2)
    if gone or len(after) > len(before):
        ask = f"{done} What is {name}'s table in group 1 then? (0 is a null block.)"
        yield _ask(moment, "window's table", ask, listed(after), 1 + bool(gone))


def _group_sizes(rng: random.Random, group_layers: Callable[..., Any]) -> Iterator[Question]:
    """Ask for the sizes of the groups of a model with two kinds of layers."""
    num_full, num_window = rng.randint(2, 10), rng.randint(2, 30)
    specs: dict[str, KVCacheSpec] = {f"full.{number}": FullAttentionSpec(BLOCK_SIZE) for number in range(num_full)}
    window = SlidingWindowSpec(BLOCK_SIZE, sliding_window=WINDOW)
    specs |= {f"window.{number}": window for number in range(num_window)}
    sizes = [len(group.layer_names) for group in group_layers(specs)]
    if len(sizes) > 2:
        ask = "How many layers are in each group that group_layers makes, first the groups of full attention?"
        state = (f"full attention  {num_full} layers", f"window of {WINDOW}     {num_window} layers")
        proof = (f"layers per group: {listed(sizes)}",)
        calls = (Call("group", number=num_full, other=num_window),)
        merit = 1 + (len(set(sizes)) > 1)
        yield Question(LAB, "layers per group", ask, state, listed(sizes), proof, calls, merit=merit)


def _ask(moment: Moment, kind: str, ask: str, answer: object, merit: int) -> Question:
    return Question(LAB, kind, ask, moment.state, str(answer), moment.proof(), moment.calls, merit=merit)
