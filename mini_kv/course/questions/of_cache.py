"""Questions of lab-05 (prefill), lab-06 (slots) and lab-07 (hits and evictions): one manager, three points of view."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.questions.cache_run import CacheRun, Moment, Prefill, call_line, play
from mini_kv.course.questions.question import BLOCK_SIZE, Question, listed
from mini_kv.story.step_questions import answer_text

NUM_BLOCKS = 11
"""Blocks of the pool, with the null block."""
NUM_CALLS = 14


def questions_of_prefill(
    rng: random.Random, own: OwnParts, prefill: Prefill, ref_counts: Callable[[Any, Any], list[int]]
) -> Iterator[Question]:
    """Yield the questions of lab-05 about one run: the learner's function is the scheduler."""
    run = CacheRun(own, NUM_BLOCKS, [FullAttentionSpec(BLOCK_SIZE)], prefill)
    for moment in play(run, rng, NUM_CALLS, ("come", "come", "end")):
        if moment.call.verb == "come" and moment.result is not None and moment.result[1] > 0:
            request, num_cached = moment.result
            done = f'prefill(kv, prompt, "{moment.call.name}") is called with the prompt {moment.text}.'
            yield _ask(moment, "lab-05", "cached tokens", f"{done} How many cached tokens does it return?", num_cached)
            table = listed(moment.after.tables[moment.call.name][0])
            yield _ask(moment, "lab-05", "block table", f"{done} What is {moment.call.name}'s block table then?", table)
            counts = ref_counts(run.kv, request)
            if len(set(counts)) > 1:
                ask = f"{done} What does ref_counts(kv, {moment.call.name}) return then?"
                yield _ask(moment, "lab-05", "reference counts", ask, listed(counts))


def questions_of_slots(rng: random.Random, own: OwnParts) -> Iterator[Question]:
    """Yield the questions of lab-06 about one run: requests grow, some with lookahead slots."""
    run = CacheRun(own, NUM_BLOCKS, [FullAttentionSpec(BLOCK_SIZE)])
    for moment in play(run, rng, NUM_CALLS, ("come", "need", "grow", "grow", "end")):
        if moment.call.verb == "need":
            yield from _blocks_needed(moment)
        elif moment.call.verb == "grow" and moment.result is not None:
            yield from _after_growth(moment)


def _blocks_needed(moment: Moment) -> Iterator[Question]:
    """Ask for the blocks that a new request needs, if some of its hit are free."""
    found = moment.spans[0].found or []
    free = [block_id for block_id in found if block_id in moment.before.free_order]
    if free:
        call = f"get_num_blocks_to_allocate({moment.call.name}, {len(moment.call.tokens)}, "
        ask = f"{moment.call.name} is new: {moment.text}. With the blocks of its hit, what does {call}hit) return?"
        needed = f"{call}{found}): {moment.result}"
        proof = (call_line(moment.spans[0]), f"of these are free: {listed(free)}", needed)
        answer, merit = str(moment.result), 1 + len(free)
        yield Question("lab-06", "blocks needed", ask, moment.state, answer, proof, moment.calls, merit=merit)


def _after_growth(moment: Moment) -> Iterator[Question]:
    """Ask for the new blocks, and for the number of cached ones."""
    name, done = moment.call.name, moment.growth
    new = moment.result.get_block_ids()[0]
    if new:
        yield _ask(moment, "lab-06", "new blocks", f"{done} Which blocks does it return?", listed(new), len(new))
    before, after = _num_cached(moment.before, name), _num_cached(moment.after, name)
    if after > before and after < len(moment.after.tables[name][0]):
        ask = f"{done} How many of {name}'s blocks are cached then?"
        yield _ask(moment, "lab-06", "cached blocks", ask, after, moment.call.number > 0)


def questions_of_hits(rng: random.Random, own: OwnParts) -> Iterator[Question]:
    """Yield the questions of lab-07 about one run: hits, evictions and the order of the free queue."""
    run = CacheRun(own, NUM_BLOCKS, [FullAttentionSpec(BLOCK_SIZE)])
    for moment in play(run, rng, NUM_CALLS, ("come", "come", "end")):
        if moment.call.verb == "end":
            yield from _after_end(moment)
        elif moment.result is not None:
            yield from _after_arrival(moment)


def _after_arrival(moment: Moment) -> Iterator[Question]:
    """Ask for the hit, for the evicted and for the revived blocks, if there are any."""
    new = f"{moment.call.name} is new: {moment.text}."
    done = f"{moment.call.name} is admitted with the prompt {moment.text}."
    asked = {
        "hit": ("hit_tokens", f"{new} How many tokens does get_computed_blocks find?"),
        "evicted": ("evicted", f"{done} Which blocks does that evict, in order?"),
        "revived": ("revived", f"{done} Which blocks of its hit were free and are revived?"),
    }
    for kind, (measure, ask) in asked.items():
        if answer := moment.measured(measure):
            yield _ask(moment, "lab-07", kind, ask, answer_text(answer))


def _after_end(moment: Moment) -> Iterator[Question]:
    """Ask for the free queue, if several blocks become free and at least one of them is cached."""
    table = moment.before.tables[moment.call.name][0]
    freed = [block_id for block_id in table if moment.before.blocks[block_id].ref_cnt == 1]
    num_cached = sum(moment.before.blocks[block_id].block_hash is not None for block_id in freed)
    if num_cached and len(freed) > 1:
        ask = f"{moment.call.name} ends and is freed. What is the free queue then, next block first?"
        rules = (num_cached < len(freed)) + (len(freed) < len(table))
        yield _ask(moment, "lab-07", "free queue", ask, answer_text(moment.measured("free_order")), rules)


def _ask(moment: Moment, lab_id: str, kind: str, ask: str, answer: object, rules: int = 0) -> Question:
    """Return a question about a moment. Its merit is the number of rules that decide what happens."""
    if moment.call.verb == "come":
        is_capped = len(moment.call.tokens) == (len(moment.spans[0].found or []) + 1) * BLOCK_SIZE
        rules += bool(moment.measured("revived")) + bool(moment.measured("evicted")) + is_capped
    return Question(lab_id, kind, ask, moment.state, str(answer), moment.proof(), moment.calls, merit=1 + rules)


def _num_cached(frame: Any, name: str) -> int:
    return sum(frame.blocks[block_id].block_hash is not None for block_id in frame.tables[name][0])
