"""Explains the effect of a call in sentences: the engine's numbers, and the ledger's rule that gives them.

E found 8 of its 20 words: block 3 of its prompt is not cached after this beginning. The rule: ...
"""

from collections.abc import Iterable, Sequence

from mini_kv.core.invariants import LEDGER
from mini_kv.story.edge import EdgeKind
from mini_kv.story.frame import Frame
from mini_kv.story.scenario import PlayedStep
from mini_kv.story.step_questions import Answer, answer_text
from mini_kv.story.story_text import id_runs
from mini_kv.story.traced_manager import Span


def reason(played: PlayedStep, before: Frame, block_size: int) -> str:
    """Return the effect of a step's calls on its request, and the reason. `before` is the state before the step."""
    request, told = played.step.request, []
    for span in played.spans:
        if span.call == "get_computed_blocks":
            told.append(_lookup(request, span, len(played.step.tokens), block_size))
        elif span.call == "allocate_slots" and span.result is None:
            new_blocks = -(-len(played.step.tokens) // block_size) - _num_found(played.spans)
            told.append(_refusal(request, new_blocks, _free_finds(played.spans, before), len(before.free_order)))
        elif span.call == "allocate_slots":
            told.append(_allocation(request, span))
        elif span.call == "free":
            told.append(_freed(span, before, played.frame))
    return " ".join(told)


def _rule(number: str) -> str:
    """Return a line of the ledger as a sentence, without its number and name."""
    _, _, text = LEDGER[number].partition(": ")
    return f"The rule: {text}."


def _lookup(request: str, span: Span, num_tokens: int, block_size: int) -> str:
    num_hits = span.result if isinstance(span.result, int) else 0
    found = f"{request} found {num_hits} of its {num_tokens} words"
    if num_hits == (num_tokens - 1) // block_size * block_size:
        return f"{found}, the most that it may find. {_rule('I7')}"
    after = " after this beginning" if num_hits else ""
    return f"{found}: block {num_hits // block_size + 1} of its prompt is not cached{after}. {_rule('I5')}"


def _refusal(request: str, new_blocks: int, free_finds: int, num_free: int) -> str:
    finds = f", and {free_finds} of them are blocks that it found itself" if free_finds else ""
    needs = "1 new block" if new_blocks == 1 else f"{new_blocks} new blocks"
    return f"{request} was refused: it needs {needs}. {num_free} blocks are free{finds}. {_rule('I11')}"


def _allocation(request: str, span: Span) -> str:
    freed, taken, evicted = (_ids(span, kind) for kind in (EdgeKind.FREED, EdgeKind.ALLOCATED, EdgeKind.EVICTED))
    told = f"{_blocks(freed)} left the window of {request}. {_rule('I8')} " if freed else ""
    if taken:
        told += f"{request} took {_blocks(taken).lower()} from the front of the free queue."
    else:
        told += f"{request} needed no new block."
    if evicted:
        told += f" {_blocks(evicted)} lost the old block hash: the old content is evicted. {_rule('I10')}"
    return told


def _freed(span: Span, before: Frame, after: Frame) -> str:
    """Return the new places of a freed request's blocks: without a block hash, with one, and still in use."""
    freed, shared = _ids(span, EdgeKind.FREED), _ids(span, EdgeKind.UNSHARED)
    bare = [block_id for block_id in freed if before.blocks[block_id].block_hash is None]
    cached = [block_id for block_id in freed if block_id not in bare]
    told = [f"{_blocks(bare)} had no block hash and went to the front of the free queue."] if bare else []
    if cached:
        end = "back" if after.free_order[-len(cached) :] == cached else "front"
        told.append(f"{_blocks(cached)} went to the {end} of the free queue, the last of the prompt first.")
    if shared:
        told.append(f"{_blocks(shared)} stayed in use by another request. {_rule('I1')}")
    return " ".join([*told, _rule("I10")])


def _num_found(spans: Iterable[Span]) -> int:
    return sum(len(span.found or ()) for span in spans)


def _free_finds(spans: Iterable[Span], before: Frame) -> int:
    """Return the number of found blocks that were free."""
    return sum(before.blocks[block_id].ref_cnt == 0 for span in spans for block_id in span.found or ())


def _ids(span: Span, kind: EdgeKind) -> list[int]:
    return [edge.block_id for edge in span.edges if edge.kind is kind]


def _blocks(ids: Sequence[int]) -> str:
    """Return block ids as the beginning of a sentence.

    >>> _blocks([4]), _blocks([3, 2, 1])
    ('Block 4', 'Blocks 3..1')
    """
    return f"{'Block' if len(ids) == 1 else 'Blocks'} {id_runs(ids)}"


SHORTFALLS = {
    "betrayed": "A lookup found more or less than in a correct cache",
    "computed_tokens": "Words that were computed",
    "evicted": "Evicted blocks, by number",
    "free_blocks": "Blocks that are free",
    "free_order": "The free queue from its front, by number",
    "hit_tokens": "Words that were found",
    "place": "Place of block {} in the free queue (0: not in it)",
    "ref_cnt": "Requests that use block {}",
    "refused": "A request was refused",
    "twins": "Blocks whose block hash another block has, too",
}
"""A description of each measure of puzzles, by its name. See `predict.MEASURES`."""


def shortfall(measure: str, is_now: Answer, wanted: Answer) -> str:
    """Return a sentence with the value of a measure and the wanted value.

    >>> shortfall("ref_cnt of 1", 2, 3)
    'Requests that use block 1: 2. The goal needs 3.'
    """
    name, _, block_id = measure.partition(" of ")
    return f"{SHORTFALLS[name].format(block_id)}: {answer_text(is_now)}. The goal needs {answer_text(wanted)}."
