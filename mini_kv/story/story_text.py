"""Recorded calls as lines of text, one per call, and the first line that differs from an expected story.

    lookup B: hit 28
    allocate B: shared 1..7, allocated 9, cached 9
    free A: freed 8, unshared 7..1

Tests compare these lists of lines, so that a failure shows the calls and not only that there is a difference.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from mini_kv.core.invariants import InvariantViolationError
from mini_kv.story.edge import EdgeKind
from mini_kv.story.traced_manager import Span

VERBS = {
    "get_computed_blocks": "lookup",
    "allocate_slots": "allocate",
    "free": "free",
    "fork": "fork",
    "finish_kv_cache_block_copies": "copied",
    "withdraw_promises": "withdraw",
    "withdraw_all_promises": "withdraw all",
    "evict_blocks": "evict",
    "reset_prefix_cache": "reset",
    "recover": "recover",
}
"""The story's word for each call."""

NOTHING_CHANGED = "nothing changed"


def story(spans: Iterable[Span]) -> list[str]:
    """Return one line per span."""
    return [story_line(span) for span in spans]


def story_line(span: Span) -> str:
    """Return the call and its effects on blocks, grouped by kind in order of first appearance."""
    who = VERBS[span.call] if span.request_id is None else f"{VERBS[span.call]} {span.request_id}"
    return f"{who}: {_outcome(span)}"


def _outcome(span: Span) -> str:
    if span.error == InvariantViolationError.__name__:
        return _changes(span)  # the call came back; a check raised because of what it had done
    if span.error is not None:
        return f"raised {span.error}"
    if span.call == "get_computed_blocks":
        return f"hit {span.result}"
    if span.call == "allocate_slots" and span.result is None:
        return "refused"
    if span.call == "reset_prefix_cache" and span.result is False:
        return "refused"
    return _changes(span)


def _changes(span: Span) -> str:
    """Return the effects of the call on blocks, by kind."""
    by_kind: dict[EdgeKind, list[int]] = {}
    for edge in span.edges:
        by_kind.setdefault(edge.kind, []).append(edge.block_id)
    return ", ".join(f"{kind} {id_runs(ids)}" for kind, ids in by_kind.items()) or NOTHING_CHANGED


def id_runs(ids: Sequence[int]) -> str:
    """Return ids with runs of three or more written as `first..last`, up or down.

    >>> id_runs([1, 2, 3, 4, 9, 8, 7, 5])
    '1..4 9..7 5'
    """
    runs: list[list[int]] = []
    for block_id in ids:
        run = runs[-1] if runs else []
        # It continues the run if the step is 1 up or down, and the same as the run's steps before.
        if run and abs(block_id - run[-1]) == 1 and (len(run) == 1 or block_id - run[-1] == run[-1] - run[-2]):
            run.append(block_id)
        else:
            runs.append([block_id])
    return " ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs)


def first_difference(expected: Sequence[str], got: Sequence[str]) -> str | None:
    """Return the first difference of two stories with the line before it, or `None` if they are equal."""
    for index, (want, have) in enumerate(zip_longest(expected, got)):
        if want == have:
            continue
        before = f"  after     {expected[index - 1]}\n" if index > 0 else ""
        return (
            f"the story differs at call {index + 1}\n{before}"
            f"  expected  {want if want is not None else '(the end)'}\n"
            f"  got       {have if have is not None else '(the end)'}"
        )
    return None
