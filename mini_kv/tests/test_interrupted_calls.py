"""An interrupted call costs what is cached and computed, and no request: stories, interrupted at every call inside.

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
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.story.debug import manager_state
from mini_kv.story.metrics import memory_over_time
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_text import story
from mini_kv.story.traced_manager import TracedKVCacheManager
from mini_kv.tests.step_stories import BETWEEN_STEPS, IN_A_STEP, World, forked, low_gives_way, two_decode, with_drafts
from mini_kv.tests.strict_worker import SchedulerFailure, alone

EVERY_LINE = os.environ.get("MINI_KV_EVERY_CALL", "") == "1"
EVERY_NTH = 1 if EVERY_LINE else 3
"""Of the places to interrupt at, how many lie between two that are tried."""

Call = Callable[[], object]
Prepare = Callable[[World], Call]
"""Returns the call that a story makes at its place, as it will be made again after an interrupt."""


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
    """Return what a refused call must leave as it was."""
    scheduler, kv = world.scheduler, world.kv
    return {
        "waiting": [request.request_id for request in scheduler.waiting],
        "running": [request.request_id for request in scheduler.running],
        "requests": {name: request_state(request) for name, request in sorted(scheduler.requests.items())},
        "preemptions": scheduler.num_preemptions,
        "cache": manager_state(kv),
    }


def request_state(request: Request) -> dict[str, Any]:
    """Return all that a request holds, copied."""
    return {name: list(value) if isinstance(value, list) else value for name, value in vars(request).items()}


def cached_blocks(kv: KVCacheManager) -> set[tuple[int, bytes]]:
    """Return each block that can be found, with its block hash."""
    return {(block.block_id, block.block_hash) for block in kv.block_pool.blocks if block.block_hash is not None}


def aborting(world: World, *names: str) -> Call:
    """Return the call that aborts these requests."""
    return lambda: world.abort(*names)


CALLS_BETWEEN: dict[str, tuple[Prepare, Callable[[World], bool]]] = {
    "schedule": (lambda world: world.plan, lambda world: True),
    "add_request": (lambda world: lambda: world.add("N", [0, 1, 2], 3, priority=1), lambda world: True),
    "abort all": (lambda world: aborting(world, *world.scheduler.requests), lambda world: bool(world.asked)),
    "abort the first": (
        lambda world: aborting(world, next(iter(world.scheduler.requests))),
        lambda world: bool(world.asked),
    ),
    "fork_request": (
        lambda world: lambda: world.fork(world.scheduler.running[0].request_id, "F"),
        lambda world: bool(world.scheduler.running) and not world.kv.coordinator.has_states,
    ),
}  # fmt: skip
"""By name: a call, and whether a story has something to call it on."""
CALLS_IN_A_STEP: dict[str, tuple[Prepare, Callable[[World], bool]]] = {
    "update_from_output": (lambda world: world.update, lambda world: True),
    "abandon_step": (lambda world: world.abandon, lambda world: True),
    "add_request": CALLS_BETWEEN["add_request"],
    "abort all": CALLS_BETWEEN["abort all"],
    "abort the first": CALLS_BETWEEN["abort the first"],
}

CASES = [
    (story, call, make, calls[call][0])
    for stories, calls in ((BETWEEN_STEPS, CALLS_BETWEEN), (IN_A_STEP, CALLS_IN_A_STEP))
    for story, make in stories.items()
    for call in calls
    if calls[call][1](make())
]
all_cases = pytest.mark.parametrize(
    ("make", "prepare", "name"),
    [pytest.param(make, prepare, name, id=f"{story}-{name}".replace(" ", "-")) for story, name, make, prepare in CASES],
)


def ready(make: Callable[[], World], name: str) -> World:
    """Return the story at its place; the worker has run the step if its results are what comes next."""
    world = make()
    return world.work() if name == "update_from_output" and world.output is not None else world


def go_on(world: World, name: str, call: Call) -> None:
    """Give up the step under way, as an engine does, and make the call again where that still makes sense."""
    world.abandon()
    check_invariants(world.kv)
    world.take_stock()
    if name in ("schedule", "abort all", "abort the first") or (name == "add_request" and "N" not in world.asked):
        call()
        check_invariants(world.kv)


@pytest.mark.slow
@all_cases
@pytest.mark.timeout(900)
def test_an_interrupted_call_costs_no_request_a_word(make: Callable[[], World], prepare: Prepare, name: str) -> None:
    """At every call inside: afterwards the cache is sound, and all requests say what they would have said."""
    n = 1
    while True:
        world = ready(make, name)
        call, fuse = prepare(world), Fuse(n)
        with suppress(KeyboardInterrupt, MemoryError), fuse.lit():
            call()
        if not fuse.places:
            break
        answer_lost = name == "update_from_output" and world.scheduler.step is None  # done, and not yet returned
        go_on(world, name, call)
        said = world.finish()
        assert answer_lost or said == world.wanted(), f"place {n}, {fuse.places[0]}"
        n += EVERY_NTH
    assert n > 1


@all_cases
@pytest.mark.timeout(900)
def test_a_second_interrupt_while_the_first_is_cleared_up(
    make: Callable[[], World], prepare: Prepare, name: str
) -> None:
    """Wherever the recovery itself stops, the next call begins it again."""
    for n in range(5, 200, 40):
        for then in range(1, 40, 7):
            world = ready(make, name)
            call, fuse = prepare(world), Fuse(n, then)
            with suppress(KeyboardInterrupt, MemoryError), fuse.lit():
                try:
                    call()
                finally:
                    world.scheduler.abandon_step()
            if len(fuse.places) < 2:
                break
            go_on(world, name, call)
            assert world.finish() == world.wanted(), fuse.places
        if not fuse.places:
            break


# What recovery does.


def test_after_a_recovery_all_wait_in_the_order_in_which_they_came() -> None:
    """A and B run, C waits, and D was aborted: only D is gone, and nothing is held or found any more."""
    world = two_decode()
    world.add("C", [0, 1, 2, 0, 2], 2)
    world.add("D", [1, 1], 2)
    world.plan()
    world.abort("D")
    world.scheduler.recover()
    world.abandon()  # there is no step any more
    assert [request.request_id for request in world.scheduler.waiting] == ["A", "B", "C"]
    assert [request.num_computed_tokens for request in world.scheduler.waiting] == [0, 0, 0]
    assert (world.scheduler.running, world.scheduler.step) == ([], None)
    assert (world.kv.usage, world.kv.requests, cached_blocks(world.kv)) == (0.0, {}, set())
    assert [block.block_id for block in world.kv.block_pool.free_block_queue.get_all_free_blocks()] == [*range(1, 9)]
    world.plan()
    assert world.output is not None
    assert world.output.preempted_req_ids == ["A", "B", "C"]  # of C the worker has never heard, which does no harm
    assert world.output.finished_req_ids == ["D"]
    assert world.finish() == world.wanted()


class Interrupted(KVCacheManager):
    """Is interrupted once, when the results of a step are nearly taken in: all tokens are appended by then."""

    is_armed = False

    def confirm_promises(self) -> None:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        super().confirm_promises()


def interrupted(**options: Any) -> World:
    """Return A, which has one more token to say, after the results that bring it were taken in all but for the end."""
    world = World(9, manager_class=Interrupted)
    world.add("A", [0, 1, 2, 0], 2, **options)
    world.step()
    world.plan()
    world.work()
    world.kv.is_armed = True  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        world.update()
    world.abandon()
    return world


def test_a_last_token_whose_results_were_interrupted_is_computed_again() -> None:
    """Kept, it would leave the request without a token to compute, which no step can plan."""
    world = interrupted()
    assert list(world.scheduler.requests["A"].token_ids) == [0, 1, 2, 0, *world.said["A"]]
    assert world.finish() == world.wanted()
    assert world.scheduler.requests == {}


def test_a_stop_token_whose_results_were_interrupted_is_reported_when_it_comes_again() -> None:
    """Kept, it would never be reported: the request goes on behind it."""
    stop = alone([0, 1, 2, 0], 2)[1]
    world = interrupted(stop_token_ids=[stop])
    world.plan()
    assert world.output is not None
    world.work()
    (out,) = world.scheduler.update_from_output(world.output, world.sampled)
    assert (out.request_id, out.new_token_ids, out.finish_reason) == ("A", [stop], "stop")
    assert world.scheduler.requests == {}


def traced() -> tuple[World, TracedKVCacheManager]:
    """Return A and B, which share their first blocks, in a step that the worker has."""
    recorder = Recorder()
    managers = []

    def make(config: KVCacheConfig) -> TracedKVCacheManager:
        manager = TracedKVCacheManager(
            KVCacheManager(config, parts=KVCacheParts(new_block=recorder.new_block)), recorder
        )
        managers.append(manager)
        return manager

    world = World(12, manager_class=make)
    world.add("A", [0, 1, 2, 0, 1, 1], 3)
    world.add("B", [0, 1, 2, 0, 1, 2, 2], 3)
    world.plan()
    return world, managers[0]


@pytest.mark.parametrize(
    ("give_up", "told"),
    [
        ("abandon_step", ["withdraw all: uncached 1..4", "free B: freed 5 4, unshared 2 1", "free A: freed 3..1"]),
        ("recover", ["recover: uncached 1..4, unshared 1 2, freed 1..5"]),
    ],
)
def test_what_is_given_up_is_told_in_events(give_up: str, told: list[str]) -> None:
    """Folded from the events, the blocks that are held and those that can be found are the manager's own."""
    world, kv = traced()
    before = len(kv.spans)
    getattr(world.scheduler, give_up)()
    assert story(kv.spans[before:]) == told
    memory = memory_over_time([span.edges for span in kv.spans], len(kv.block_pool.blocks))[-1]
    assert (memory.used, memory.cached) == (0, 0)
    assert (kv.usage, cached_blocks(kv)) == (0.0, set())


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
    before = state_of(world)
    with pytest.raises(error):
        world.scheduler.update_from_output(world.output, {**world.sampled, **sampled})  # type: ignore[arg-type]
    assert state_of(world) == before
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
