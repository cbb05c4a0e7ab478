"""Questions before a step is shown. The right answer is measured on the step and is in no file.

In a scenario:

    [step.predict]
    ask = "B brings the same 32 tokens. How many new blocks will it take?"
    measure = "new_blocks"            # see MEASURES; "ref_cnt of 3" asks about block 3
    choice = [
      { value = 8, if_true = "every request would have to own all of its blocks." },
      { value = 1 },
      { value = 0, if_true = "...", text = "none" },     # text: the button's label, if not the value itself
    ]

Exactly one choice must be the engine's result. Every other choice has an `if_true`: the condition under which it would
be right. It is the end of a sentence that begins "For "8" to be right, ...".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.story.edge import EdgeKind
from mini_kv.story.frame import Frame
from mini_kv.story.traced_manager import Span

Answer = int | list[int]
"""A number, a truth value, or block ids in order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to choose."""

    value: Answer
    text: str
    if_true: str = ""
    """The condition under which this choice would be right. Empty for the right one only."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question about the next step."""

    ask: str
    measure: str
    choices: tuple[Choice, ...]


def parse_prediction(values: dict[str, Any]) -> Prediction:
    """Return the question that a step's table describes. Raises `ValueError` for a wrong table."""
    unknown = values.keys() - {"ask", "measure", "choice"}
    if unknown:
        raise ValueError(f"unknown {', '.join(sorted(unknown))}")
    for name in ("ask", "measure", "choice"):
        if not values.get(name):
            raise ValueError(f"{name} is missing")
    measure, _, block_id = values["measure"].partition(" of ")
    if not (block_id.isdecimal() and measure in OF_ONE_BLOCK) and values["measure"] not in MEASURES:
        raise ValueError(f"measure is {values['measure']!r}; there are: {', '.join(all_measures())}")
    choices = tuple(_parse_choice(choice) for choice in values["choice"])
    if len({choice.text for choice in choices}) < max(2, len(choices)):
        raise ValueError("there must be two choices or more, all different")
    return Prediction(" ".join(values["ask"].split()), values["measure"], choices)


def _parse_choice(values: dict[str, Any]) -> Choice:
    unknown = values.keys() - {"value", "text", "if_true"}
    if unknown:
        raise ValueError(f"a choice has unknown {', '.join(sorted(unknown))}")
    value = values.get("value")
    if not isinstance(value, int | list):
        raise ValueError(f"a choice has the value {value!r}: a number, true or false, or a list of block ids is needed")
    return Choice(value, values.get("text", answer_text(value)), " ".join(values.get("if_true", "").split()))


def answer_text(value: Answer) -> str:
    """Return an answer as text.

    >>> answer_text(28), answer_text(True), answer_text([8, 9]), answer_text([])
    ('28', 'yes', '8 9', 'none')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)


def right_choice(prediction: Prediction, spans: Sequence[Span], frame: Frame) -> int:
    """Return the index of the right choice.

    Raises `ValueError` unless exactly one choice is right and each of the others has an `if_true`.
    """
    measured = measure_step(prediction.measure, spans, frame)
    same = [type(choice.value) is type(measured) and choice.value == measured for choice in prediction.choices]
    if sum(same) != 1:
        raise ValueError(f"{prediction.measure} is {measured!r}, and {sum(same)} choices say so")
    right = same.index(True)
    for index, choice in enumerate(prediction.choices):
        if (index == right) == bool(choice.if_true):
            said = "is right and has an if_true" if index == right else "is wrong and has no if_true"
            raise ValueError(f"the choice {choice.text!r} {said}")
    return right


def measure_step(measure: str, spans: Sequence[Span], frame: Frame) -> Answer:
    """Return the value of the measure for the step: for the calls that it made and the state after them."""
    name, _, block_id = measure.partition(" of ")
    if block_id:
        return OF_ONE_BLOCK[name](frame, int(block_id))
    return MEASURES[name](spans, frame)


def _ids(*kinds: EdgeKind) -> Callable[[Sequence[Span], Frame], list[int]]:
    return lambda spans, frame: [edge.block_id for span in spans for edge in span.edges if edge.kind in kinds]


def _count(*kinds: EdgeKind) -> Callable[[Sequence[Span], Frame], int]:
    return lambda spans, frame: len(_ids(*kinds)(spans, frame))


def _hit_tokens(spans: Sequence[Span], frame: Frame) -> int:
    return sum(span.result for span in spans if span.call == "get_computed_blocks" and isinstance(span.result, int))


def _computed_tokens(spans: Sequence[Span], frame: Frame) -> int:
    done = [span for span in spans if span.call == "allocate_slots" and span.result is not None]
    return sum(int(span.args["num_new_tokens"] or 0) for span in done if isinstance(span.args["num_new_tokens"], int))


def _refused(spans: Sequence[Span], frame: Frame) -> bool:
    return any(span.call == "allocate_slots" and span.result is None and span.error is None for span in spans)


def _twins(frame: Frame) -> int:
    """Return the number of blocks with a key that another block has, too."""
    keys = [block.block_hash for block in frame.blocks if block.block_hash is not None]
    return sum(keys.count(key) > 1 for key in keys)


def _ref_cnt_of(frame: Frame, block_id: int) -> int:
    return frame.blocks[block_id].ref_cnt


def _named(frame: Frame, block_id: int) -> bool:
    return frame.blocks[block_id].block_hash is not None


def _place(frame: Frame, block_id: int) -> int:
    return frame.free_order.index(block_id) + 1 if block_id in frame.free_order else 0


OF_ONE_BLOCK: dict[str, Callable[[Frame, int], Answer]] = {"ref_cnt": _ref_cnt_of, "named": _named, "place": _place}
"""Measures of one block after the step: its references, whether it is cached, its place in the queue (0: not there)."""

MEASURES: dict[str, Callable[[Sequence[Span], Frame], Answer]] = {
    "new_blocks": _count(EdgeKind.ALLOCATED),
    "adopted_blocks": _count(EdgeKind.SHARED, EdgeKind.REVIVED),
    "hit_tokens": _hit_tokens,
    "computed_tokens": _computed_tokens,
    "num_evicted": _count(EdgeKind.EVICTED),
    "allocated": _ids(EdgeKind.ALLOCATED),
    "shared": _ids(EdgeKind.SHARED),
    "revived": _ids(EdgeKind.REVIVED),
    "freed": _ids(EdgeKind.FREED),
    "evicted": _ids(EdgeKind.EVICTED),
    "free_blocks": lambda spans, frame: len(frame.free_order),
    "free_order": lambda spans, frame: list(frame.free_order),
    "next_free": lambda spans, frame: frame.free_order[0] if frame.free_order else 0,
    "last_free": lambda spans, frame: frame.free_order[-1] if frame.free_order else 0,
    "named_blocks": lambda spans, frame: sum(block.block_hash is not None for block in frame.blocks),
    "twins": lambda spans, frame: _twins(frame),
    "refused": _refused,
}
"""The measures of a step. Counts and block ids are of the step; the free queue and the cached blocks are after it."""


def all_measures() -> list[str]:
    """Return the names of all measures."""
    return [*MEASURES, *(f"{name} of BLOCK" for name in OF_ONE_BLOCK)]
