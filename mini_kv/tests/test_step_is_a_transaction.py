"""Each call of the scheduler is done or not done: stories that are interrupted at every call inside, and go on.

`MINI_KV_EVERY_CALL=1` interrupts at every line of the core, not at a sample of the calls.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from mini_kv.core.errors import InvalidTokenError, SchedulerError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.tests.step_stories import BETWEEN_STEPS, IN_A_STEP, World, forked, low_gives_way, with_drafts
from mini_kv.tests.strict_worker import SchedulerFailure

EVERY_LINE = os.environ.get("MINI_KV_EVERY_CALL", "") == "1"
EVERY_NTH = 1 if EVERY_LINE else 3
"""Of the places to interrupt at, how many lie between two that are tried."""

Call = Callable[[World], object]


class Fuse:
    """Raises at the n-th place inside the core, while it is lit; a second one at the m-th call after that.

    Two mechanisms of the interpreter carry the two interrupts, since each of them ends with the exception it raises.
    """

    def __init__(self, n: int, then: int = 0) -> None:
        self.left, self.then_left = n, then
        self.error: BaseException = (KeyboardInterrupt, MemoryError)[n % 2]("interrupted")
        self.places: list[str] = []
        """Where it blew."""

    @contextmanager
    def lit(self) -> Iterator[None]:
        """Be lit within the block."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not _is_core(frame):
            return None
        if event == ("line" if EVERY_LINE else "call"):
            self.left -= 1
            if self.left == 0:
                self.places.append(_place(frame))
                raise self.error
        return self._trace if EVERY_LINE else None

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if self.left <= 0 and self.then_left > 0 and event == "call" and _is_core(frame):
            self.then_left -= 1
            if self.then_left == 0:
                self.places.append(_place(frame))
                raise KeyboardInterrupt("interrupted again")


def _is_core(frame: FrameType) -> bool:
    return "/mini_kv/core/" in frame.f_code.co_filename.replace(os.sep, "/")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name}:{frame.f_lineno}"


def state_of(world: World) -> dict[str, Any]:
    """Return what an interrupted call must leave as it was."""
    scheduler, kv = world.scheduler, world.kv
    return {
        "waiting": [request.request_id for request in scheduler.waiting],
        "running": [request.request_id for request in scheduler.running],
        "requests": {name: request_state(request) for name, request in sorted(scheduler.requests.items())},
        "preemptions": scheduler.num_preemptions,
        "tables": {name: kv.get_block_ids(name) for name in kv.requests},
        "ref counts": [block.ref_cnt for block in kv.block_pool.blocks],
        "pending copies": [block.block_id for block in kv.copy_on_write.pinned],
        "statistics": (kv.prefix_cache_stats.requests, kv.prefix_cache_stats.queries, kv.prefix_cache_stats.hits),
    }


def request_state(request: Request) -> dict[str, Any]:
    """Return all that a request holds, copied."""
    return {name: list(value) if isinstance(value, list) else value for name, value in vars(request).items()}


def cached_blocks(kv: KVCacheManager) -> set[tuple[int, bytes]]:
    """Return each block that can be found, with its key."""
    return {(block.block_id, block.block_hash) for block in kv.block_pool.blocks if block.block_hash is not None}


def check_interrupted(world: World, before: dict[str, Any], keys: set[tuple[int, bytes]], where: str) -> None:
    """Check that everything is as before: keys may be lost, those that the call promised must be."""
    after = state_of(world)
    changed = {what: (before[what], after[what]) for what in before if before[what] != after[what]}
    assert changed == {}, where
    assert cached_blocks(world.kv) <= keys, f"{where}: a key is left that the call has promised"
    check_invariants(world.kv)


CALLS_BETWEEN: dict[str, tuple[Call, Callable[[World], bool]]] = {
    "schedule": (World.plan, lambda world: True),
    "add_request": (lambda world: world.add("N", [0, 1, 2], 3, priority=1), lambda world: True),
    "abort all": (lambda world: world.abort(*list(world.scheduler.requests)), lambda world: bool(world.asked)),
    "abort the first": (
        lambda world: world.abort(next(iter(world.scheduler.requests))),
        lambda world: bool(world.asked),
    ),
    "fork_request": (
        lambda world: world.fork(world.scheduler.running[0].request_id, "F"),
        lambda world: bool(world.scheduler.running) and not world.kv.coordinator.has_states,
    ),
}  # fmt: skip
"""By name: a call, and whether a story has something to call it on."""
CALLS_IN_A_STEP: dict[str, tuple[Call, Callable[[World], bool]]] = {
    "update_from_output": (World.update, lambda world: True),
    "abandon_step": (World.abandon, lambda world: True),
    "add_request": CALLS_BETWEEN["add_request"],
    "abort all": CALLS_BETWEEN["abort all"],
    "abort the first": CALLS_BETWEEN["abort the first"],
}

CASES = [
    (story, call, make, *calls[call])
    for stories, calls in ((BETWEEN_STEPS, CALLS_BETWEEN), (IN_A_STEP, CALLS_IN_A_STEP))
    for story, make in stories.items()
    for call in calls
    if calls[call][1](make())
]
all_cases = pytest.mark.parametrize(
    ("make", "call", "name"),
    [pytest.param(make, call, name, id=f"{story}-{name}".replace(" ", "-")) for story, name, make, call, _ in CASES],
)


def ready(make: Callable[[], World], name: str) -> World:
    """Return the story at its place; the worker has run the step if its results are what comes next."""
    world = make()
    return world.work() if name == "update_from_output" and world.output is not None else world


@pytest.mark.slow
@all_cases
@pytest.mark.timeout(900)
def test_an_interrupted_call_has_not_happened(make: Callable[[], World], call: Call, name: str) -> None:
    """At every call inside: the state is as before, the same call works again, and all requests say what they would."""
    n = 1
    while True:
        world = ready(make, name)
        before, keys, fuse = state_of(world), cached_blocks(world.kv), Fuse(n)
        with suppress(KeyboardInterrupt, MemoryError), fuse.lit():
            call(world)
        if not fuse.places:
            break
        where = f"place {n}, {fuse.places[0]}"
        if EVERY_LINE and "_all_or_nothing" in where:  # the frame around the call: its result may be all that is lost
            world.abandon()
            world.finish()
            check_invariants(world.kv)
        else:
            check_interrupted(world, before, keys, where)
            call(world)
            check_invariants(world.kv)
            assert world.finish() == world.wanted(), where
        n += EVERY_NTH
    assert n > 1


@all_cases
@pytest.mark.timeout(900)
def test_a_second_interrupt_while_the_first_is_undone(make: Callable[[], World], call: Call, name: str) -> None:
    """Wherever the roll back itself stops, the next call finishes it first."""
    for n in range(5, 200, 40):
        for then in range(1, 40, 7):
            world = ready(make, name)
            fuse = Fuse(n, then)
            with suppress(KeyboardInterrupt, MemoryError), fuse.lit():
                call(world)
            if len(fuse.places) < 2:
                break
            call(world)
            check_invariants(world.kv)
            assert world.finish() == world.wanted(), fuse.places
        if not fuse.places:
            break


# What is not an interrupt, and must change nothing either.


@pytest.mark.parametrize(
    ("sampled", "error"),
    [
        ({"A": [1, 1]}, SchedulerError),
        ({"A": []}, SchedulerError),
        ({"A": [2], "B": [-1]}, InvalidTokenError),
        ({"A": [2], "B": ["x"]}, InvalidTokenError),
    ],
)
def test_bad_results_change_nothing(sampled: dict[str, list[Any]], error: type[Exception]) -> None:
    """The first request's tokens are good, the second one's are not: neither is taken in."""
    world = ready(IN_A_STEP["two decode, planned"], "update_from_output")
    before, keys = state_of(world), cached_blocks(world.kv)
    with pytest.raises(error):
        world.scheduler.update_from_output(world.output, {**world.sampled, **sampled})  # type: ignore[arg-type]
    check_interrupted(world, before, keys, "bad results")
    assert cached_blocks(world.kv) == keys
    assert world.finish() == world.wanted()


def test_results_of_an_abandoned_step_are_refused() -> None:
    world = with_drafts()
    world.plan()
    output = world.output
    assert output is not None
    world.work().abandon()
    with pytest.raises(SchedulerError):
        world.scheduler.update_from_output(output, world.sampled)
    assert [request.request_id for request in world.scheduler.waiting] == ["A", "B"]
    assert world.scheduler.running == []
    assert world.kv.usage == 0.0
    assert world.finish() == world.wanted()


def test_an_abandoned_step_tells_again_who_has_gone() -> None:
    """A has ended and B was aborted: the step that would have said so did not run, and the next one says it."""
    world = IN_A_STEP["two decode, planned"]()
    world.work().update()
    world.abort("B")
    world.add("C", [1, 1, 2], 2)
    world.plan()
    assert world.output is not None
    assert world.output.finished_req_ids == ["B"]
    world.abandon()
    world.abort("C")
    world.plan()
    assert world.output is not None
    assert sorted(world.output.finished_req_ids) == ["B", "C"]
    assert sorted(world.output.preempted_req_ids) == ["A", "C"]
    assert world.finish() == world.wanted()


def test_an_abandoned_step_leaves_no_key_of_a_request_that_was_aborted_in_it() -> None:
    """A's blocks are free by then, but nothing was ever written to them."""
    world = IN_A_STEP["aborted in the step"]()
    world.abandon()
    assert cached_blocks(world.kv) == set()
    assert world.kv.usage == 0.0
    assert world.finish() == world.wanted()


def test_copies_of_an_abandoned_step_are_let_go() -> None:
    world = forked()
    world.plan()
    assert world.output is not None
    assert len(world.output.kv_cache_block_copies) == 4
    world.abandon()
    assert world.kv.copy_on_write.pinned == []
    assert world.kv.usage == 0.0
    assert world.finish() == world.wanted()


class KeepsPromisesOfThePreempted(KVCacheManager):
    def withdraw_promises(self, request: Request) -> list[str]:
        return []


def test_who_is_preempted_in_the_step_that_planned_it_leaves_no_key_of_it() -> None:
    """Low is planned, then gives way to high in the same step: it must not find what it was about to write."""
    world = low_gives_way()
    world.plan()
    assert world.output is not None
    assert (world.output.num_scheduled_tokens, world.output.preempted_req_ids) == ({"high": 1}, ["low"])
    assert world.finish() == world.wanted()
    with pytest.raises(SchedulerFailure, match="I9"):
        low_gives_way(KeepsPromisesOfThePreempted).finish()
