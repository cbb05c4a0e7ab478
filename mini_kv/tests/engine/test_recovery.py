"""An exception at any call inside an engine: what was in the step is lost at most, and the others never notice.

MINI_KV_FAIL_EVERY=1 python -m pytest mini_kv/tests/engine/test_recovery.py -s     at every call; minutes
"""

import itertools
import os
import sys
from types import FrameType
from typing import Any, cast

import pytest
import torch

from mini_kv.core.errors import SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.failing_stories import Fuse, Play, make_story
from mini_kv.tests.engine.small_models import alone, small_model
from mini_kv.tests.engine.test_detokenizer import Letters

NUM_STORIES = 50
FAIL_EVERY = int(os.environ.get("MINI_KV_FAIL_EVERY", "997"))
"""From one call that fails to the next."""
GAPS = (None, 1, 5, 25)
"""Calls from an exception to a second one, while the engine is cleaning up."""


MODEL = small_model()
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [1, 6, 1, 8, 0]]
SAID = alone(MODEL, PROMPTS, 6)
GREEDY = SamplingParams(max_tokens=6, temperature=0)


@pytest.fixture(autouse=True)
def two_threads():
    """Return to what was set before; two, so that a story that leaves one behind is found."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(NUM_STORIES))
@pytest.mark.slow
def test_an_exception_at_any_call_costs_no_other_request_a_word(seed):
    story = make_story(seed)
    wanted = Play(story.without_aborts(), Fuse()).run()
    counted = Fuse()
    Play(story, counted).run()
    num_injected = 0
    for at in range(1 + seed % FAIL_EVERY, counted.num_calls + 1, FAIL_EVERY):
        gap = GAPS[at % len(GAPS)]
        fuse = Fuse([at] if gap is None else [at, at + gap])
        play = Play(story, fuse)
        said = play.run()
        assert fuse.blown
        num_injected += len(fuse.blown)
        for (name, index), words in wanted.items():
            given = said[name, index]
            assert given == (words if name not in play.may_be_cut else words[: len(given)]), (at, gap, fuse.blown)
    print(f"story {seed}: {counted.num_calls} calls, {num_injected} exceptions")


class AtLine:
    """Interrupts a function when it comes to a line, counted from its first one on."""

    def __init__(self, function: Any, at: int) -> None:
        self._code, self._left = function.__code__, at

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._on_event)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _on_event(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not self._code:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._on_event


def test_an_interrupt_at_any_line_of_a_step_leaves_no_hole_in_a_text():
    """Whoever lost a token is aborted. The last lines count, too: the step is done there and not yet returned."""
    ends = []
    for at in itertools.count(1):
        llm = engine()
        for i in range(2):
            llm.add_request(f"r{i}", PROMPTS[i], GREEDY)
        said = {delta.request_id: list(delta.new_token_ids) for delta in llm.step()}
        try:
            with AtLine(LLMEngine.step, at):
                llm.step()
        except KeyboardInterrupt:
            for name, more in words(llm).items():
                said[name] += more
            ends.append(said)
        else:
            break
    nothing_lost, aborted = ({f"r{i}": SAID[i][:length] for i in range(2)} for length in (6, 1))
    assert [end for end in ends if end not in (nothing_lost, aborted)] == []
    assert ends[0] == nothing_lost and ends[-1] == aborted
    assert llm.kv_cache_manager.usage > 0.0  # the last step was not interrupted


def test_an_interrupt_at_any_line_of_add_request_adds_nothing():
    """Its last line counts the request, which is in the engine by then."""
    for at in itertools.count(1):
        llm = engine()
        try:
            with AtLine(LLMEngine.add_request, at):
                llm.add_request("a", PROMPTS[0], GREEDY)
        except KeyboardInterrupt:
            assert not llm.has_unfinished_requests and not llm.scheduler.has_unfinished_requests
            llm.add_request("a", PROMPTS[1], GREEDY)
            assert words(llm) == {"a": SAID[1]}
        else:
            break
    assert at > 10


# The same as stories, one reason at a time.


class Breaks(ModelRunner):
    """Fails before it has looked at a step, as often as it is told to."""

    num_failures = 0

    def execute_model(self, output):
        if self.num_failures:
            self.num_failures -= 1
            raise KeyboardInterrupt
        return super().execute_model(output)


def engine(tokenizer=None, *, max_num_seqs: int = 2, num_blocks: int = 20, **parts) -> LLMEngine:
    config = EngineConfig(block_size=4, num_blocks=num_blocks, scheduler=SchedulerConfig(max_num_seqs=max_num_seqs))
    return LLMEngine(MODEL, tokenizer, config, **parts)


def words(llm: LLMEngine) -> dict[str, list[int]]:
    """Step until all is said; return it."""
    said: dict[str, list[int]] = {}
    while llm.has_unfinished_requests:
        for delta in llm.step():
            said.setdefault(delta.request_id, []).extend(delta.new_token_ids)
    return said


def test_two_interrupts_cost_two_steps_and_no_row():
    """Each takes both requests of its step along. What the runner was to be told in between, the next step tells it."""
    llm = engine(make_runner=Breaks)
    for i in range(6):
        llm.add_request(f"r{i}", PROMPTS[i % 3], GREEDY)
    llm.step()
    cast(Breaks, llm.model_runner).num_failures = 2
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            llm.step()
    assert list(llm.scheduler.requests) == ["r4", "r5"]
    assert words(llm) == {"r4": SAID[1], "r5": SAID[2]}
    assert llm.kv_cache_manager.usage == 0.0


def test_a_request_that_runs_but_is_not_in_the_step_goes_on():
    """The budget is one token: each step is one request's, and only that one is lost."""
    config = EngineConfig(4, 20, scheduler=SchedulerConfig(max_num_batched_tokens=1, max_num_seqs=2))
    llm = LLMEngine(MODEL, config=config, make_runner=Breaks)
    llm.add_request("a", [3], GREEDY)
    llm.add_request("b", [2], GREEDY)
    llm.step()
    cast(Breaks, llm.model_runner).num_failures = 1
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    assert words(llm) == {"b": alone(MODEL, [[2]], 6)[0]}


def test_a_tokenizer_that_fails_costs_the_requests_of_its_step():
    class Stumbles(Letters):
        num_failures = 0

        def decode_bytes(self, ids):
            if self.num_failures:
                self.num_failures -= 1
                raise LookupError(ids)
            return super().decode_bytes(ids)

    tokenizer = Stumbles()
    llm = engine(tokenizer, max_num_seqs=1)
    llm.add_request("stumbles", PROMPTS[0], GREEDY)
    llm.add_request("waits", PROMPTS[1], GREEDY)
    llm.step()
    tokenizer.num_failures = 1
    with pytest.raises(LookupError):
        llm.step()
    llm.add_request("stumbles", PROMPTS[2], GREEDY)  # its name is free again
    assert words(llm) == {"waits": SAID[1], "stumbles": SAID[2]}


def test_an_exception_while_a_step_is_planned_costs_nothing():
    class Forgetful(KVCacheManager):
        num_failures = 0

        def get_computed_blocks(self, request):
            if self.num_failures:
                self.num_failures -= 1
                raise MemoryError
            return super().get_computed_blocks(request)

    llm = engine(make_manager=Forgetful)
    llm.add_request("a", PROMPTS[0], GREEDY)
    llm.step()
    llm.add_request("b", PROMPTS[1], GREEDY)
    cast(Forgetful, llm.kv_cache_manager).num_failures = 3
    for _ in range(3):
        with pytest.raises(MemoryError):
            llm.step()
    assert words(llm) == {"a": SAID[0][1:], "b": SAID[1]}


def test_a_second_interrupt_while_a_step_is_taken_back():
    """The first one strikes when the step is planned, and before the engine has seen it: no request is lost."""

    class Interrupted(Scheduler):
        num_failures = 2

        def _fail(self):
            if self.num_failures:
                self.num_failures -= 1
                raise KeyboardInterrupt

        def schedule(self):
            output = super().schedule()
            self._fail()
            return output

        def abandon_step(self):
            self._fail()
            super().abandon_step()

    llm = engine(make_scheduler=Interrupted)
    llm.add_request("a", PROMPTS[0], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    assert words(llm) == {"a": SAID[0]}


def test_an_interrupt_when_the_scheduler_has_a_request_and_the_engine_not_yet():
    class Interrupted(Scheduler):
        num_failures = 1

        def add_request(self, request, **options):
            super().add_request(request, **options)
            if self.num_failures:
                self.num_failures -= 1
                raise KeyboardInterrupt

    llm = engine(make_scheduler=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.add_request("a", PROMPTS[0], GREEDY)
    assert not llm.scheduler.has_unfinished_requests
    llm.add_request("a", PROMPTS[1], GREEDY)
    assert words(llm) == {"a": SAID[1]}


@pytest.mark.slow
def test_the_runner_can_be_told_the_same_twice():
    """A step that is planned again brings requests that the runner knows, and the ends of some that it does not."""
    llm = engine()
    for i in range(2):
        llm.add_request(f"r{i}", PROMPTS[i], GREEDY)
    runner = llm.model_runner
    for _ in range(3):
        runner.execute_model(llm.scheduler.schedule())
        llm.scheduler.abandon_step()
        assert [state.row for state in runner.requests.values()] == [0, 1]
    output = llm.scheduler.schedule()
    output.finished_req_ids += ["gone", "gone"]
    output.preempted_req_ids = []
    runner.execute_model(output)
    assert [state.row for state in runner.requests.values()] == [0, 1]


def test_a_request_that_was_sent_back_to_the_line_has_no_row():
    """Two that come later are more urgent, and take both seats and both rows."""
    limits = SchedulerConfig(max_num_seqs=2, policy=SchedulingPolicy.PRIORITY)
    llm = LLMEngine(MODEL, config=EngineConfig(4, 20, scheduler=limits))
    for number, priority in enumerate((1, 1, 0, 0)):
        if number == 2:
            llm.model_runner.execute_model(llm.scheduler.schedule())
            llm.scheduler.abandon_step()
        llm.add_request(f"r{number}", PROMPTS[number % 3], GREEDY, priority=priority)
    llm.model_runner.execute_model(llm.scheduler.schedule())
    assert {name: state.row for name, state in llm.model_runner.requests.items()} == {"r2": 0, "r3": 1}


@pytest.mark.parametrize("call", ["generate", "stream"])
def test_requests_that_are_never_let_in_are_an_error_and_no_endless_loop(call):
    class Refuses(KVCacheManager):
        refuses = True

        def allocate_slots(self, *args, **options):
            return None if self.refuses else super().allocate_slots(*args, **options)

    llm = engine(make_manager=Refuses)
    with pytest.raises(SchedulerError, match="the engine would never make progress"):
        list(getattr(llm, call)(PROMPTS, GREEDY))
    assert not llm.has_unfinished_requests and not llm.scheduler.has_unfinished_requests
    cast(Refuses, llm.kv_cache_manager).refuses = False
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)] == SAID


@pytest.mark.timeout(1200)
def test_generate_can_be_interrupted_anywhere_and_used_again():
    short = SamplingParams(max_tokens=2, temperature=0)

    def generate(llm):
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:2], short)]

    generate(engine(num_blocks=8))  # what is done only once in a process is done
    counted = Fuse()
    llm = engine(num_blocks=8)
    with counted:
        generate(llm)
    for at in range(1, counted.num_calls + 1, -(-FAIL_EVERY // 8)):
        llm, fuse = engine(num_blocks=8), Fuse([at])
        with fuse, pytest.raises((KeyboardInterrupt, MemoryError, RuntimeError)):
            generate(llm)
        assert not llm.has_unfinished_requests and not llm.scheduler.has_unfinished_requests
        assert llm.kv_cache_manager.usage == 0.0
        assert generate(llm) == [said[:2] for said in SAID[:2]]
    print(f"generate: {counted.num_calls} calls")
