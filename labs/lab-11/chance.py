"""Random tests of lab-11: random lives, run on the learner's code and on `NaiveScheduler`, step by step."""

import random
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from mini_kv.core.sched.output import EngineCoreOutput
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import COMES, Step, check_life, free_queue, random_life, scramble, seeds
from mini_kv.course.labkit.naive import NaiveScheduler

from .helpers import PREEMPT, Play, said, told

RUNS, ABORTED = "step", "is aborted"
SHARES = {COMES: 0.35, ABORTED: 0.07, RUNS: 0.58}
OPTIONS = {COMES: {"wants": (1, 2, 3, 5, 8), "ends at": (0, 3)}}
"""How many tokens a request may sample, and its stop token. 0 is never sampled."""


def compare_lives(lab: LabUnderTest, learners: str) -> None:
    """Compare forty random lives, step by step and then to their end, with `NaiveScheduler`."""
    for seed in seeds(40):
        rng = random.Random(seed)
        setup = {
            "max_num_seqs": rng.choice((1, 2, 3, 9)),
            "max_num_batched_tokens": rng.choice((1, 3, 5, 8, 30)),
            "num_blocks": rng.randint(5, 8),
            "block_size": rng.choice((1, 3, 4)),
            "reserved_blocks": rng.choice((0, 0, 1, 3)),
        }
        stem = tuple(rng.choices((1, 2), k=setup["num_blocks"] * setup["block_size"] * 2 // 3))
        life = random_life(rng, 20, SHARES, stems=[stem], of_cache=[RUNS], options=OPTIONS)
        limits = ", ".join(f"{name} {value}" for name, value in setup.items())
        where = f"in the life of seed {seed}, {limits}, to the end"
        check_life(lab, partial(play_life, lab, learners, setup), life, where)


def play_life(lab: LabUnderTest, learners: str, setup: dict[str, Any], life: list[Step]) -> None:
    """Play the steps on the learner's code and on the model, then go on until all requests are done."""
    play, model = Play(lab, learners, next_token=mixed, **setup), NaiveScheduler(**setup)
    scramble(play.kv)
    model.free_queue = free_queue(play.kv)
    num_slots = (setup["num_blocks"] - 1) * setup["block_size"]
    for step in life:
        if step.verb == RUNS:
            compare_step(lab, learners, play, model)
        elif step.verb == ABORTED:
            play.abort(step.name)
            model.forget(step.name)
        elif len(step.tokens) + step.options["wants"] <= num_slots + 1:  # the engine refuses what can never fit
            play.arrive(step.name, step.tokens, step.options["wants"], [step.options["ends at"]])
            model.arrive(step.name, step.tokens, step.options["wants"], step.options["ends at"])
    while model.tokens:
        compare_step(lab, learners, play, model)
    lab.expect("requests that are not finished", [], list(play.scheduler.requests))


def compare_step(lab: LabUnderTest, learners: str, play: Play, model: NaiveScheduler) -> None:
    """Run one step on both sides and compare."""
    want, preempted = model.schedule()
    step = play.schedule()
    lab.expect("the step", ", ".join(f"{name} {num_tokens}" for name, num_tokens in want.items()), told(step))
    if learners != PREEMPT:  # the engine's `schedule` learns it from its own `_preempt_request`
        lab.expect("who gave way", preempted, step.preempted_req_ids)
    results = [EngineCoreOutput(name, [token], why or None) for name, (token, why) in model.finish(want, mixed).items()]
    lab.expect("what the step brought", said(results), play.finish(step))
    lab.expect("those who run", model.running, play.running)
    lab.expect("those who wait", model.waiting, play.waiting)
    computed = [model.computed[name] for name in model.running]
    lab.expect("computed tokens of those who run", computed, play.computed(*play.running))
    lab.expect("free queue", model.free_queue, free_queue(play.kv))


def mixed(tokens: Sequence[int]) -> int:
    """Return the sampled token in random lives: 1, 2 or 3, by a hash of all tokens before it."""
    return 1 + zlib.crc32(repr(list(tokens)).encode()) % 3
