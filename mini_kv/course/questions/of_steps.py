"""Questions of lab-11: the learner's scheduler plans steps with a few blocks and a small budget. Tokens are dice."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.finale.assembly import make_manager, make_scheduler
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.questions.cache_run import call_line
from mini_kv.course.questions.question import BLOCK_SIZE, MAX_LINES, Call, Question, from_letters, letters, listed
from mini_kv.story.frame import Frame, frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.step_loop import sample_ready
from mini_kv.story.text import draw_state
from mini_kv.story.traced_manager import TracedKVCacheManager

LAB = "lab-11"
NUM_BLOCKS, BUDGET, MAX_SEQS = 9, 10, 3
_MAX_STEPS = 40
LIMITS = (
    f"A step computes at most {BUDGET} tokens of at most {MAX_SEQS} requests; {NUM_BLOCKS - 1} blocks of {BLOCK_SIZE}."
)


def next_token(tokens: Sequence[int]) -> int:
    """Return a token that depends on all tokens before it: a model that throws dice."""
    return ord("a") + random.Random(",".join(map(str, tokens))).randrange(26)


class _StepsRun:
    """The learner's scheduler on a manager of the learner's parts."""

    def __init__(self, own: OwnParts) -> None:
        recorder = Recorder(strict=False)
        config = KVCacheConfig(NUM_BLOCKS, (KVCacheGroupSpec(("layers",), FullAttentionSpec(BLOCK_SIZE)),))
        manager = make_manager(own, config, new_block=recorder.new_block, max_in_flight_tokens=BUDGET)
        self.kv = TracedKVCacheManager(manager, recorder, snapshots=True)
        limits = SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=MAX_SEQS)
        self.scheduler = make_scheduler(own, self.kv, limits)
        self.calls: list[Call] = []
        self.texts: dict[str, str] = {}

    def arrive(self, name: str, prompt: tuple[int, ...], max_tokens: int) -> None:
        """Add a request."""
        self.calls.append(Call("arrive", name, prompt, max_tokens))
        self.scheduler.add_request(self.kv.new_request(name, prompt), max_tokens=max_tokens)

    def waiting(self) -> list[str]:
        """Return the names of the waiting requests, in order."""
        return [request.request_id for request in self.scheduler.waiting]

    def frame(self) -> Frame:
        """Return the state of the cache."""
        return frame_of(self.kv.manager)

    def drawn(self) -> tuple[str, ...]:
        """Return the requests with their tokens, the tables, the free queue, and the tokens of the cached blocks."""
        rows = []
        for word, requests in (("running", self.scheduler.running), ("waiting", self.scheduler.waiting)):
            for request in requests:
                counts = f"({request.num_tokens} tokens, {request.num_computed_tokens} computed)"
                rows.append(f"{word}  {request.request_id}  {letters(request.token_ids)}  {counts}")
        frame = self.frame()
        texts = self._texts()
        cached = [f"{block.block_id}:{texts[block.block_hash]}" for block in frame.blocks if block.block_hash]
        return (*rows, *draw_state(frame), f"cached  {listed(cached)}")

    def _texts(self) -> dict[str, str]:
        """Return the tokens of each block hash that a request has or had."""
        for request in self.scheduler.requests.values():
            texts = letters(request.token_ids).split()
            for block_hash, text in zip(request.block_hashes, texts, strict=False):
                self.texts[make_block_hash_with_group_id(block_hash, 0).hex()] = text
        return self.texts

    def plan(self) -> Any:
        """Plan a step."""
        self.calls.append(Call("step"))
        self.kv.spans.clear()
        return self.scheduler.schedule()

    def take(self, step: Any) -> None:
        """Apply the step's tokens: one for each request whose last token was computed."""
        tokens = sample_ready(self.scheduler, step, lambda request: next_token(request.token_ids))
        self.scheduler.update_from_output(step, tokens)


def questions_of_steps(rng: random.Random, own: OwnParts) -> Iterator[Question]:
    """Yield the questions of one run until all requests have ended."""
    run = _StepsRun(own)
    stem = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=2 * BLOCK_SIZE))
    for name in "ABCD":
        text = stem[: rng.choice((0, BLOCK_SIZE, 2 * BLOCK_SIZE))] + "".join(
            rng.choices("stuvwxyz", k=rng.randint(2, 7))
        )
        run.arrive(name, from_letters(text), rng.randint(5, 12))
    for _ in range(_MAX_STEPS):
        if not run.scheduler.has_unfinished_requests:
            break
        state, waiting, running = run.drawn(), run.waiting(), list(run.scheduler.running)
        step = run.plan()
        if len(state) <= MAX_LINES:
            yield from _of_step(run, step, state, waiting, len(running))
        run.take(step)


def _of_step(
    run: _StepsRun, step: Any, state: tuple[str, ...], waiting: list[str], num_running: int
) -> Iterator[Question]:
    planned = ", ".join(f"{name} {num_tokens}" for name, num_tokens in step.num_scheduled_tokens.items()) or "nothing"
    preempted = list(step.preempted_req_ids)
    proof = (*map(call_line, run.kv.spans), f"tokens of the step: {planned}", f"waiting then: {listed(run.waiting())}")
    calls, asked = tuple(run.calls), f"{LIMITS} schedule() is called."

    def question(kind: str, ask: str, answer: object, merit: int, about: str = "") -> Question:
        return Question(LAB, kind, f"{asked} {ask}", state, str(answer), proof, calls, about, merit)

    if preempted and num_running > 1:
        yield question("preempted", "Which requests does it preempt, in order?", listed(preempted), 3)
    if preempted and len(run.waiting()) > 1:
        ask = "In which order do the requests wait then?"
        yield question("waiting order", ask, listed(run.waiting()), 2 + bool(waiting))
    for name, num_tokens in step.num_scheduled_tokens.items():
        if num_tokens > 1 and len(step.num_scheduled_tokens) > 1:
            ask = f"How many tokens of {name} does the step compute?"
            yield question("tokens of a request", ask, num_tokens, 1 + (name in waiting), name)
    if len(step.num_scheduled_tokens) > 1 and max(step.num_scheduled_tokens.values()) > 1:
        total = sum(step.num_scheduled_tokens.values())
        yield question("tokens of the step", "How many tokens does the step compute in all?", total, 1)
