"""lab-11: who runs next? Read the numbered tests in order: tests 1 to 9 are the figure `mini-kv story who-runs-next`.

There a step may compute 14 tokens, and there are seven blocks of 4. A brings 11 tokens and wants 6, B brings 11 others
and wants 4, C comes later with 3. The model of these tests says how many tokens it has read: A's tokens are 0 to 10,
and its answer begins 11, 12. A step is written as who computes how much: "A 11, B 3".

Only the method that a test is about is yours; the engine's stand in for the other two. The worker knows nothing but
what your steps tell it. It remembers whose keys and values lie in each slot, and fails as soon as somebody reads
another's.
"""

import os
import random
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mini_kv.core.errors import KVCacheError, SchedulerError
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.core.request import Request
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_kv.labkit import LabTodo, points
from mini_kv.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.labkit.shrink import shrink
from mini_kv.policy.admission import Hysteresis, ReservedBlocks

SCHEDULE = "schedule"
PREEMPT = "_preempt_request"
UPDATE = "update_from_output"
METHODS = (SCHEDULE, PREEMPT, UPDATE)

# The biography ------------------------------------------------------------------------------------------------------


@points(2, f"Scheduler.{SCHEDULE}", why="handed out from the front; whoever comes last gets what is left")
def test_1_the_budget_is_handed_out_from_the_front(lab: LabUnderTest) -> None:
    """A and B wait with 11 tokens each, and a step may compute 14. B begins with the 3 that are left."""
    play = the_figure(lab, SCHEDULE)
    step = play.plan()
    lab.expect("the first step", "A 11, B 3", told(step))
    lab.expect("those who run", ["A", "B"], play.batch)
    lab.expect("those who wait", [], play.line)
    got = [play.table("A"), play.table("B")]
    lab.expect("tables of A and B", [[1, 2, 3], [4]], got, why="11 tokens need 3 blocks, B's first 3 need one")
    play.finish(step)


@points(2, f"Scheduler.{SCHEDULE}", why="everybody gets what it lacks: a piece of a prompt, or the one token just said")
def test_2_prompts_and_answers_in_one_batch(lab: LabUnderTest) -> None:
    """A answers while B is still in its prompt. There is one kind of work: to catch up with what is known."""
    play = the_figure(lab, SCHEDULE)
    lab.expect("the first three steps", ["A 11, B 3", "A 1, B 8", "A 1, B 1"], play.steps(3))


@points(2, f"Scheduler.{UPDATE}", why="a token is sampled from the last known one; B's prompt has 8 to go")
def test_3_a_token_comes_when_all_known_ones_are_computed(lab: LabUnderTest) -> None:
    """The first step is done: A 11 of 11 tokens, B 3 of 11. Who has a new token, and who is how far?"""
    play = the_figure(lab, UPDATE)
    lab.expect("what the first step brought", ["A says [11]"], play.said(play.finish(play.plan())))
    why = "the new token is known and not computed: it is the input of the next step"
    lab.expect("known tokens of A and B", [12, 11], play.known("A", "B"))
    lab.expect("computed tokens of A and B", [11, 3], play.computed("A", "B"), why)
    lab.expect("what the second step brought", ["A says [12]", "B says [11]"], play.said(play.finish(play.plan())))
    lab.expect("computed tokens of A and B", [12, 11], play.computed("A", "B"))


@points(3, f"Scheduler.{SCHEDULE}", why="no block is free: the last goes, even if it asks, and gets no second turn")
def test_4_the_last_to_come_gives_way(lab: LabUnderTest) -> None:
    """B's thirteenth token needs a block, and none is free. C, which has just come, would need one too."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", range(200, 203), max_tokens=2)
    step = play.plan()
    lab.expect("the fourth step", "A 1", told(step))
    lab.expect("who gave way", ["B"], step.preempted_req_ids, why="the worker is told whose blocks are no longer there")
    lab.expect("those who run", ["A"], play.batch)
    why = "B's blocks are free now, but in a step that threw somebody out nobody enters"
    lab.expect("those who wait", ["B", "C"], play.line, why)
    play.finish(step)


@points(3, f"Scheduler.{PREEMPT}", why="all of its blocks at once, and back to the front of the line")
def test_5_what_is_lost_and_what_is_kept(lab: LabUnderTest) -> None:
    """The same moment, slowly: B has 13 tokens, 12 of them computed, in blocks 4 5 6. It is preempted."""
    play = the_figure(lab, PREEMPT)
    play.steps(3)
    play.arrive("C", range(200, 203), max_tokens=2)
    b = play.preempt("B")
    lab.expect("free queue without B", [6, 5, 4], play.free_queue())
    lab.expect("those who run", ["A"], play.batch)
    lab.expect("those who wait", ["B", "C"], play.line, why="B came before everybody who waits")
    lab.expect("B's status", "preempted", b.status.value)
    lab.expect("B's computed tokens", 0, b.num_computed_tokens, why="keys and values without a block are nowhere")
    lab.expect("B's known tokens", 13, b.num_tokens, why="what it has said is said")
    lab.expect("preemptions of B, and of all", [1, 1], [b.num_preemptions, play.scheduler.num_preemptions])
    _, num_hit_tokens = play.kv.get_computed_blocks(b)
    lab.expect("tokens that B would find now", 12, num_hit_tokens, why="freed is not gone: the blocks keep their names")


@points(3, f"Scheduler.{SCHEDULE}", why="the first in line enters first; while it does not fit, nobody passes it")
def test_6_first_come_first_served(lab: LabUnderTest) -> None:
    """Three blocks are free. B needs four of them, C behind it only one."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", range(200, 203), max_tokens=2)
    lab.expect("the next two steps", ["A 1", "A 1"], play.steps(2))
    lab.expect("those who wait", ["B", "C"], play.line)
    b = play.request("B")
    lab.expect("B's computed tokens", 0, b.num_computed_tokens, why="its hit of 12 was looked up, and B was refused")


@points(2, f"Scheduler.{UPDATE}", why="out of the batch, out of the books, blocks back")
def test_7_the_last_word(lab: LabUnderTest) -> None:
    """A says its sixth token. Is that a seventeenth token to compute? Nobody will ever read its keys and values."""
    play = the_figure(lab, UPDATE)
    play.steps(5)
    lab.expect("A's slots, at most", 16, play.request("A").max_slots, why="11 and 6, less the very last")
    lab.expect("what the sixth step brought", ["A says [16], length"], play.said(play.finish(play.plan())))
    lab.expect("those who run", [], play.batch)
    lab.expect("requests that are not finished", ["B"], list(play.scheduler.requests))
    lab.expect("free queue", [6, 5, 4, 7, 3, 2, 1], play.free_queue(), why="B's blocks went first, then A's")


@points(3, f"Scheduler.{SCHEDULE}", why="a hit is a head start: it is computed, and only the rest is lacking")
def test_8_back_with_a_hit(lab: LabUnderTest) -> None:
    """A is done. B comes back with 13 tokens and finds 12 of them where it left them. C enters behind it."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", range(200, 203), max_tokens=2)
    play.steps(3)
    step = play.plan()
    lab.expect("the seventh step", "B 1, C 3", told(step))
    lab.expect("tables of B and C", [[4, 5, 6, 7], [3]], [play.table("B"), play.table("C")])
    lab.expect("computed tokens of B and C", [12, 0], play.computed("B", "C"), why="the step itself has not run yet")
    play.finish(step)
    lab.expect("the eighth step", "B 1, C 1", play.step())
    lab.expect("requests that are not finished", [], list(play.scheduler.requests))


@points(2, f"Scheduler.{PREEMPT}", why="it comes back like a newcomer: all its tokens are known, and none is computed")
def test_9_the_whole_story(lab: LabUnderTest) -> None:
    """All eight steps, with your `_preempt_request` in the middle."""
    play = the_figure(lab, PREEMPT)
    got = play.steps(3)
    play.arrive("C", range(200, 203), max_tokens=2)
    want = ["A 11, B 3", "A 1, B 8", "A 1, B 1", "A 1", "A 1", "A 1", "B 1, C 3", "B 1, C 1"]
    lab.expect("the eight steps", want, got + play.steps(5))
    lab.expect("what B has said in all", [11, 12, 13, 14], play.answers["B"], why="it went on where it was thrown out")


@points(2, f"Scheduler.{SCHEDULE}", why="a hit ends before the last token, so one token at least is left, and it runs")
def test_10_one_token_after_a_full_hit(lab: LabUnderTest) -> None:
    """A's 9 tokens are cached, blocks of 4. B brings the same 9, C the first 8 of them, D one more than A."""
    play = Play(lab, SCHEDULE)
    for name, tokens, want in (("A", 9, "A 9"), ("B", 9, "B 1"), ("C", 8, "C 4"), ("D", 10, "D 2")):
        play.arrive(name, range(tokens), max_tokens=1)
        lab.expect(f"the step in which {name} is alone, with {tokens} tokens", want, play.step())


@points(1, f"Scheduler.{SCHEDULE}", why="max_num_seqs counts those who run, the newcomers of this step among them")
def test_11_so_many_seats(lab: LabUnderTest) -> None:
    """Two may run at once; four wait, each with one token and wanting two."""
    play = Play(lab, SCHEDULE, max_num_seqs=2)
    for name in "ABCD":
        play.arrive(name, [ord(name)], max_tokens=2)
    lab.expect("four steps", ["A 1, B 1", "A 1, B 1", "C 1, D 1", "C 1, D 1"], play.steps(4))


@points(2, f"Scheduler.{SCHEDULE}", why="what is kept back protects those who run, if anybody does")
def test_12_kept_back_for_those_who_run(lab: LabUnderTest) -> None:
    """Eight blocks of 4, two of them kept back while anybody runs. A takes four, B would take three, or two."""
    for num_tokens, want in ((9, "A 1"), (8, "A 1, B 8")):
        play = Play(lab, SCHEDULE, 9, admission=ReservedBlocks(2))
        play.arrive("A", range(14), max_tokens=2)
        play.step()
        play.arrive("B", range(100, 100 + num_tokens), max_tokens=1)
        lab.expect(f"the step in which B could enter, with {num_tokens} tokens and 4 blocks free", want, play.step())
    play = Play(lab, SCHEDULE, 9, admission=ReservedBlocks(2))
    play.arrive("A", range(30), max_tokens=1)
    why = "nobody runs, so there is nobody to protect; who waits now would wait for ever"
    lab.expect("the step in which A, alone, needs all eight blocks", "A 30", play.step(), why)


@points(2, f"Scheduler.{SCHEDULE}", why="nobody else can throw out the first, so it gets on, step by step")
def test_13_everybody_ends(lab: LabUnderTest) -> None:
    """Six requests that each grow to four blocks, in a pool of seven. Who ends when?"""
    play = Play(lab, SCHEDULE, 8)
    for number, name in enumerate("ABCDEF"):
        play.arrive(name, range(100 * number, 100 * number + 5), max_tokens=11)
    steps = play.drain(66)
    lab.expect("who has ended, in this order", list("ABCDEF"), play.ended, why="first come, first served")
    why = "whoever gives way waits until there is room for all of it"
    lab.expect("preemptions", 4, play.scheduler.num_preemptions, why)
    lab.expect("steps", 33, len(steps))


@points(2, f"Scheduler.{UPDATE}", why="a stop token is an answer's last word; the user gets it, and nothing behind it")
def test_14_a_word_that_ends(lab: LabUnderTest) -> None:
    """A may say ten tokens, but 13 ends it. B may say two, and 12, its last, would end it as well."""
    play = Play(lab, UPDATE)
    play.arrive("A", range(11), max_tokens=10, stop=[13])
    play.arrive("B", range(100, 111), max_tokens=2, stop=[12])
    got = [play.said(play.finish(play.plan())) for _ in range(3)]
    want = [["A says [11]", "B says [11]"], ["A says [12]", "B says [12], stop"], ["A says [13], stop"]]
    lab.expect("what three steps brought", want, got)
    lab.expect("free blocks", 19, play.kv.block_pool.num_free_blocks)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="a step has room for its budget, and for no token more")
def test_edges_of_the_budget(lab: LabUnderTest) -> None:
    """A decodes, B has 6 tokens, C has 1. Steps of 1, of 6, 7 and 8 tokens."""
    got = []
    for budget in (1, 6, 7, 8):
        play = Play(lab, SCHEDULE, max_num_batched_tokens=budget)
        play.arrive("A", [1], max_tokens=9)
        play.step()
        play.arrive("B", range(10, 16), max_tokens=9)
        play.arrive("C", [2], max_tokens=9)
        got.append(play.step())
    lab.expect("the second step, for budgets of 1, 6, 7, 8", ["A 1", "A 1, B 5", "A 1, B 6", "A 1, B 6, C 1"], got)


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="a prompt in pieces takes what those before it leave")
def test_a_long_prompt_among_answers(lab: LabUnderTest) -> None:
    """Three tokens a step. A and B bring 4 tokens, C brings 1; each wants three."""
    play = Play(lab, SCHEDULE, max_num_batched_tokens=3)
    play.arrive("A", range(4), max_tokens=3)
    play.arrive("B", range(10, 14), max_tokens=3)
    play.arrive("C", [20], max_tokens=3)
    want = ["A 3", "A 1, B 2", "A 1, B 2", "A 1, B 1, C 1", "B 1, C 1", "C 1"]
    lab.expect("all steps", want, play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="who enters needs blocks for all that it knows")
def test_no_foot_in_the_door(lab: LabUnderTest) -> None:
    """Five blocks are free, and a step computes 4 tokens. B has 20 tokens, 21, or 24; C behind it has 4."""
    got = []
    for num_tokens in (20, 21, 24):
        play = Play(lab, SCHEDULE, 8, max_num_batched_tokens=5)
        play.arrive("A", range(5), max_tokens=4)
        play.step()
        play.arrive("B", range(100, 100 + num_tokens), max_tokens=1)
        play.arrive("C", range(200, 204), max_tokens=1)
        got.append(play.step())
    lab.expect("the step in which B could enter, with 20, 21, 24 tokens", ["A 1, B 4", "A 1", "A 1"], got)


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="one block less than needed is too few")
def test_exact_pools(lab: LabUnderTest) -> None:
    """A and B need 3 blocks each, C needs 1. Pools of 5, 6, 7 and 8 blocks."""
    got = []
    for num_blocks in (5, 6, 7, 8):
        play = Play(lab, SCHEDULE, num_blocks + 1)
        play.arrive("A", range(12), max_tokens=1)
        play.arrive("B", range(100, 112), max_tokens=1)
        play.arrive("C", range(200, 204), max_tokens=1)
        got.append(play.step())
    want = ["A 12", "A 12, B 12", "A 12, B 12, C 4", "A 12, B 12, C 4"]
    lab.expect("the first step in pools of 5, 6, 7, 8", want, got)


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="one by one from the end; who is gone is not asked again")
def test_two_give_way_in_one_step(lab: LabUnderTest) -> None:
    """A and B both need a third block; C and D, who came last, hold one each, and that is all there is."""
    play = Play(lab, SCHEDULE, 7)
    play.arrive("A", range(8), max_tokens=3)
    play.arrive("B", range(100, 108), max_tokens=3)
    play.arrive("C", [1], max_tokens=3)
    play.arrive("D", [2], max_tokens=3)
    lab.expect("the first step", "A 8, B 8, C 1, D 1", play.step())
    play.arrive("E", [3], max_tokens=3)
    step = play.plan()
    lab.expect("the second step", "A 1, B 1", told(step))
    lab.expect("who gave way, in this order", ["D", "C"], step.preempted_req_ids)
    lab.expect("those who run", ["A", "B"], play.batch)
    lab.expect("those who wait", ["C", "D", "E"], play.line, why="each goes to the front, so C stands before D")
    play.finish(step)
    lab.expect("the other steps", ["A 1, B 1", "C 2, D 2, E 1", "C 1, D 1, E 1", "E 1"], play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="whoever was thrown out would come straight back in")
def test_nobody_enters_when_somebody_left(lab: LabUnderTest) -> None:
    """A and B bring the same words and say the same. A needs the last block, and B gives up two: one is left over.

    B would find all that it lost, in A's blocks, and the block that is left over is all it needs. Not in this step.
    """
    play = Play(lab, SCHEDULE, 7)
    play.arrive("A", range(9), max_tokens=10)
    play.arrive("B", range(9), max_tokens=10)
    lab.expect("the first eight steps", ["A 9, B 1"] + ["A 1, B 1"] * 7, play.steps(8))
    lab.expect("tables of A and B", [[1, 2, 3, 5], [1, 2, 4, 6]], [play.table("A"), play.table("B")])
    lab.expect("the other steps", ["A 1", "A 1, B 1", "B 1"], play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="what the first is about to compute, the second finds")
def test_sharing_within_a_step(lab: LabUnderTest) -> None:
    """A and B bring the same 9 tokens and wait side by side. C's first block is the same as theirs."""
    play = Play(lab, SCHEDULE)
    play.arrive("A", range(9))
    play.arrive("B", range(9))
    play.arrive("C", [*range(4), 7])
    step = play.plan()
    lab.expect("the first step", "A 9, B 1, C 1", told(step))
    lab.expect("tables of A, B, C", [[1, 2, 3], [1, 2, 4], [1, 5]], [play.table(name) for name in "ABC"])
    play.finish(step)


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="a refusal leaves no trace: its turn will come again")
def test_a_refused_newcomer_is_as_before(lab: LabUnderTest) -> None:
    """B has a hit of one block and no room for the rest. It is refused twice, then aborted, and C enters."""
    play = Play(lab, SCHEDULE, 5)
    play.arrive("A", range(12), max_tokens=4)
    play.step()
    play.arrive("B", [*range(4), *range(100, 112)], max_tokens=1)
    play.arrive("C", [1], max_tokens=1)
    b = play.request("B")
    for number in ("first", "second"):
        lab.expect(f"the step of the {number} refusal", "A 1", play.step())
        lab.expect("B's status and computed tokens", ["waiting", 0], [b.status.value, b.num_computed_tokens])
        lab.expect("those who wait", ["B", "C"], play.line)
    play.abort("B")
    play.abort("A")
    lab.expect("the step without A and B", "C 1", play.step())


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="None is a closed door; 0 would be an open one")
def test_a_closed_door(lab: LabUnderTest) -> None:
    """The door closes when more than half of the pool is held, and opens again below a quarter."""
    play = Play(lab, SCHEDULE, 9, admission=Hysteresis(high=0.5, low=0.25))
    play.arrive("A", range(17), max_tokens=3)
    play.arrive("B", [1], max_tokens=2)
    lab.expect("all steps", ["A 17", "A 1", "A 1", "B 1", "B 1"], play.drain(9), why="the door opens when A is gone")


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="lengths around the edges of blocks and of the budget")
def test_ragged_lengths(lab: LabUnderTest) -> None:
    """Blocks of 1, 3, 4 and 16; prompts around two blocks, sent twice; steps of 5 tokens."""
    for block_size in (1, 3, 4, 16):
        for length in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            play = Play(lab, SCHEDULE, 9, block_size, max_num_batched_tokens=5, says=mixed)
            for name in "AB":
                play.arrive(name, range(length), max_tokens=2)
                lacking = length if name == "A" else length - (length - 1) // block_size * block_size
                want = [f"{name} {min(5, lacking - start)}" for start in range(0, lacking, 5)] + [f"{name} 1"]
                what = f"the steps of {name}, {length} tokens in blocks of {block_size}, 5 tokens a step"
                lab.expect(what, want, play.drain(99), why="A computes all of it, B what is behind the hit")


@points(1, f"Scheduler.{SCHEDULE}", stage="adversary", why="who enters is running, and can be seen to be")
def test_abort_of_whoever_runs(lab: LabUnderTest) -> None:
    """A answers, B is in its prompt, C waits. They are aborted between two steps, and all blocks are free."""
    for order in ("ABC", "CBA", "BAC"):
        play = Play(lab, SCHEDULE, 9, max_num_batched_tokens=5)
        play.arrive("A", range(4))
        play.arrive("B", range(100, 112))
        play.arrive("C", [1])
        play.steps(2)
        for name in order:
            play.abort(name)
        lab.expect("free blocks", 8, play.kv.block_pool.num_free_blocks)
        lab.expect("a step with nobody", "", play.step())


@points(1, f"Scheduler.{PREEMPT}", stage="adversary", why="only its own references go; what others hold is theirs")
def test_shared_blocks_stay_with_the_others(lab: LabUnderTest) -> None:
    """B shares two blocks with A and is preempted; then A as well. Predict the queue."""
    play = Play(lab, PREEMPT, 7)
    play.arrive("A", range(9))
    play.arrive("B", [*range(8), 9, 9])
    play.step()
    play.preempt("B")
    lab.expect("free queue without B", [4, 5, 6], play.free_queue(), why="block 4 was not full and has no name")
    play.preempt("A")
    lab.expect("free queue without A and B", [3, 4, 5, 6, 2, 1], play.free_queue())
    lab.expect("those who wait", ["A", "B"], play.line)
    lab.expect("the next step", "A 2, B 3", play.step(), why="each finds the two blocks that both of them wrote")


@points(1, f"Scheduler.{PREEMPT}", stage="adversary", why="who waits is not running, and can be seen not to be")
def test_abort_of_whoever_gave_way(lab: LabUnderTest) -> None:
    """B is preempted in the middle of its prompt, C in its answer. They are aborted; A goes on."""
    play = Play(lab, PREEMPT, 12, max_num_batched_tokens=8)
    play.arrive("A", range(4), max_tokens=4)
    play.arrive("C", [1], max_tokens=4)
    play.arrive("B", range(100, 120), max_tokens=4)
    play.steps(2)
    play.preempt("C")
    lab.expect("those who run", ["A", "B"], play.batch, why="C gave way, from the middle of the batch")
    play.preempt("B")
    lab.expect("those who wait", ["B", "C"], play.line)
    for name in "BC":
        play.abort(name)
    lab.expect("free blocks", 9, play.kv.block_pool.num_free_blocks)
    lab.expect("the other steps", ["A 1", "A 1"], play.drain(9))


@points(1, f"Scheduler.{UPDATE}", stage="adversary", why="all questions first; then nothing can go wrong")
def test_results_that_do_not_fit(lab: LabUnderTest) -> None:
    """A is through, B is not. Results: one for B as well, none for A, two for A; then the right ones."""
    play = the_figure(lab, UPDATE)
    step = play.plan()
    wrong: list[dict[str, list[int]]] = [{"A": [11], "B": [7]}, {}, {"A": []}, {"A": [11, 12]}]
    for results in wrong:
        what = f"update_from_output({told(step)}; {results})"
        refuses(lab, what, SchedulerError, partial(play.update, step, results))
        lab.expect(f"known tokens of A and B after {what}", [11, 11], play.known("A", "B"))
        lab.expect(f"computed tokens of A and B after {what}", [0, 0], play.computed("A", "B"))
    lab.expect("what the step brought", ["A says [11]"], play.said(play.finish(step)))


@points(1, f"Scheduler.{UPDATE}", stage="adversary", why="each in its turn, whoever else ends in this step")
def test_some_end_in_the_middle_of_the_batch(lab: LabUnderTest) -> None:
    """Five run; B, C and E say their only token."""
    play = Play(lab, UPDATE)
    for name, max_tokens in zip("ABCDE", (2, 1, 1, 2, 1), strict=True):
        play.arrive(name, [ord(name)], max_tokens=max_tokens)
    want = ["A says [1]", "B says [1], length", "C says [1], length", "D says [1]", "E says [1], length"]
    lab.expect("what the first step brought", want, play.said(play.finish(play.plan())))
    lab.expect("those who run", ["A", "D"], play.batch)
    step = play.plan()
    lab.expect("whom the worker may forget", ["B", "C", "E"], step.finished_req_ids)
    want = ["A says [2], length", "D says [2], length"]
    lab.expect("what the second step brought", want, play.said(play.finish(step)))


# The property -------------------------------------------------------------------------------------------------------


@points(1, f"Scheduler.{SCHEDULE}", stage="property", why="who runs, with how many tokens; see NaiveEngine.plan")
def test_random_lives_of_schedule(lab: LabUnderTest) -> None:
    """Forty random lives of a small engine, each compared step by step with a model made of plain lists."""
    compare_random_lives(lab, SCHEDULE)


@points(1, f"Scheduler.{PREEMPT}", stage="property", why="back to the line, with nothing; see NaiveEngine.give_way")
def test_random_lives_of_preempt_request(lab: LabUnderTest) -> None:
    """The same, with your `_preempt_request`."""
    compare_random_lives(lab, PREEMPT)


@points(1, f"Scheduler.{UPDATE}", stage="property", why="progress, a token, an end; see NaiveEngine.finish")
def test_random_lives_of_update_from_output(lab: LabUnderTest) -> None:
    """The same, with your `update_from_output`."""
    compare_random_lives(lab, UPDATE)


@points(1, f"Scheduler.{SCHEDULE}", stage="property", why="your three methods, by themselves")
def test_random_lives_of_your_scheduler(lab: LabUnderTest) -> None:
    """The same, with all three."""
    compare_random_lives(lab, "")


@dataclass(frozen=True)
class Setup:
    """An engine: its pool, its limits."""

    num_blocks: int
    """Blocks that can be held."""
    block_size: int
    budget: int
    seats: int
    reserved: int

    def __str__(self) -> str:
        limits = f"{self.budget} tokens a step, {self.seats} may run, {self.reserved} kept back"
        return f"{self.num_blocks} blocks of {self.block_size}, {limits}"


@dataclass(frozen=True)
class Arrive:
    """A request comes."""

    name: str
    tokens: tuple[int, ...]
    max_tokens: int
    stop: int

    def __str__(self) -> str:
        return f"{self.name} brings {''.join(map(str, self.tokens))}, wants {self.max_tokens}, {self.stop} ends it"


@dataclass(frozen=True)
class Abort:
    """A request is aborted; nothing happens if it is not there."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} is aborted"


@dataclass(frozen=True)
class Step:
    """The engine runs a step."""

    def __str__(self) -> str:
        return "step"


Event = Arrive | Abort | Step


def random_setup(rng: random.Random) -> Setup:
    """Return an engine that is short of something."""
    seats, budget = rng.choice((1, 2, 3, 9)), rng.choice((1, 3, 5, 8, 30))
    return Setup(rng.randint(4, 7), rng.choice((1, 3, 4)), budget, seats, rng.choice((0, 0, 1, 3)))


def random_life(rng: random.Random, setup: Setup) -> list[Event]:
    """Return requests over few tokens, so that they often begin alike, with steps and aborts between them."""
    life: list[Event] = []
    names: list[str] = []
    num_slots = setup.num_blocks * setup.block_size
    stem = rng.choices((1, 2), k=num_slots)
    for number in range(16):
        kind = rng.random()
        if kind < 0.35:
            max_tokens = rng.randint(1, max(num_slots // 2, 1))
            longest = num_slots + 1 - max_tokens
            tokens = (*stem[: rng.randrange(longest)], *rng.choices((1, 2), k=rng.choice((1, 1, 3))))[:longest]
            names.append(f"R{number}")
            life.append(Arrive(names[-1], tokens, max_tokens, rng.choice((0, 9))))
        elif kind < 0.42 and names:
            life.append(Abort(rng.choice(names)))
        else:
            life.append(Step())
    return life


def mixed(tokens: Sequence[int]) -> int:
    """Return what the model says in the random lives: a 0, 1 or 2 made of all tokens before it."""
    return zlib.crc32(repr(list(tokens)).encode()) % 3


def seeds(count: int) -> list[int]:
    """Return the seeds to try; LAB_SEED=n in the environment starts somewhere else."""
    first = int(os.environ.get("LAB_SEED", "0"))
    return list(range(first, first + count))


def compare_random_lives(lab: LabUnderTest, learners: str) -> None:
    """Play forty lives; of the first that goes wrong, play the shortest part that still does, and say what happened."""
    for seed in seeds(40):
        rng = random.Random(seed)
        setup = random_setup(rng)
        life = random_life(rng, setup)
        if not goes_wrong(lab, learners, setup, life):
            continue
        shortest = shrink(life, partial(goes_wrong, lab, learners, setup))
        where = f"in the life of seed {seed}, {setup}: {'; '.join(map(str, shortest))}; then to the end"
        try:
            play_life(lab, learners, setup, shortest)
        except LabFailure as failure:
            lab.fail(f"{failure.what}, {where}", failure.want, failure.got)
        except InvariantViolationError as error:
            violation = Violation(error.violation.invariant_id, f"{error.violation.message}, {where}")
            raise InvariantViolationError(violation) from None
        except Exception as error:
            lab.fail(f"the last step, {where}", "no exception", error)


def goes_wrong(lab: LabUnderTest, learners: str, setup: Setup, life: list[Event]) -> bool:
    """Return whether the learner's code differs from the model, breaks an invariant or breaks down."""
    try:
        play_life(lab, learners, setup, life)
    except LabTodo:
        raise
    except Exception:
        return True
    return False


def play_life(lab: LabUnderTest, learners: str, setup: Setup, life: list[Event]) -> None:
    """Play the events on the learner's code and on the model, then steps until everybody is done."""
    play = Play(
        lab,
        learners,
        setup.num_blocks + 1,
        setup.block_size,
        says=mixed,
        admission=ReservedBlocks(setup.reserved),
        max_num_batched_tokens=setup.budget,
        max_num_seqs=setup.seats,
    )
    naive = NaiveEngine(setup)
    play.scramble()
    for event in life:
        if isinstance(event, Arrive):
            play.arrive(event.name, event.tokens, event.max_tokens, [event.stop])
            naive.arrive(event)
        elif isinstance(event, Abort):
            play.abort(event.name)
            naive.abort(event.name)
        else:
            compare_step(lab, play, naive)
    while naive.tokens:
        compare_step(lab, play, naive)
    lab.expect("requests that are not finished", [], list(play.scheduler.requests))


def compare_step(lab: LabUnderTest, play: "Play", naive: "NaiveEngine") -> None:
    """Run a step on both sides and compare."""
    want, gone = naive.plan()
    step = play.plan()
    lab.expect("the step", ", ".join(f"{name} {num_tokens}" for name, num_tokens in want), told(step))
    if play.learners != PREEMPT:  # the engine's `schedule` learns it from its own `_preempt_request`
        lab.expect("who gave way", gone, step.preempted_req_ids)
    lab.expect("what the step brought", naive.finish(want), play.said(play.finish(step)))
    lab.expect("those who run", naive.batch, play.batch)
    lab.expect("those who wait", naive.line, play.line)
    lab.expect("computed tokens of those who run", [naive.computed[n] for n in naive.batch], play.computed(*play.batch))
    lab.expect("free queue", naive.free, play.free_queue())


class NaiveEngine:
    """The same engine without hashes, links, counts or statuses: a block is known by all the tokens up to its end."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        ids = list(range(1, setup.num_blocks + 1))
        self.free = ids[1::2] + ids[::2][::-1]  # as `Play.scramble` leaves them
        self.known: dict[int, tuple[int, ...]] = {}  # block -> prefix, oldest first
        self.events: dict[str, Arrive] = {}
        self.tokens: dict[str, list[int]] = {}  # of everybody who is not done
        self.computed: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.batch: list[str] = []
        self.line: list[str] = []

    def arrive(self, event: Arrive) -> None:
        """Join the end of the line."""
        self.events[event.name], self.tokens[event.name] = event, list(event.tokens)
        self.line.append(event.name)

    def abort(self, name: str) -> None:
        """Forget the request, wherever it stands."""
        if name in self.batch:
            self.leave(name)
        if name in self.line:
            self.line.remove(name)
        self.tokens.pop(name, None)

    def plan(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Return who computes how many tokens in the next step, and who gave way for it."""
        left, step, gone = self.setup.budget, [], []
        for name in list(self.batch):
            lacking = min(len(self.tokens[name]) - self.computed[name], left)
            while name in self.batch and not self.take(name, lacking, [], 0):
                gone.append(self.batch[-1])
                self.give_way(self.batch[-1])
            if name in self.batch:
                step.append((name, lacking))
                left -= lacking
        while self.line and left and len(self.batch) < self.setup.seats and not gone:
            name = self.line[0]
            hit = self.find(self.tokens[name])
            self.computed[name] = len(hit) * self.setup.block_size
            lacking = min(len(self.tokens[name]) - self.computed[name], left)
            if not self.take(name, lacking, hit, self.setup.reserved if self.batch else 0):
                break
            self.batch.append(self.line.pop(0))
            step.append((name, lacking))
            left -= lacking
        return step, gone

    def finish(self, step: list[tuple[str, int]]) -> list[str]:
        """Count what was computed; whoever is through says something, and may be done."""
        said = []
        for name, num_tokens in step:
            self.computed[name] += num_tokens
            tokens, event = self.tokens[name], self.events[name]
            if self.computed[name] == len(tokens):
                tokens.append(mixed(tokens))
                how = ""
                if len(tokens) == len(event.tokens) + event.max_tokens:
                    how = ", length"
                if tokens[-1] == event.stop:
                    how = ", stop"
                said.append(f"{name} says [{tokens[-1]}]{how}")
                if how:
                    self.abort(name)
        return said

    def give_way(self, name: str) -> None:
        """Put a running request back in front of the line."""
        self.leave(name)
        self.line.insert(0, name)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known beginning, without the last token."""
        hit: list[int] = []
        for end in range(self.setup.block_size, len(tokens), self.setup.block_size):
            found = [block for block, prefix in self.known.items() if prefix == tuple(tokens[:end])]
            if not found:
                break
            hit.append(found[0])
        return hit

    def take(self, name: str, lacking: int, hit: list[int], reserved: int) -> bool:
        """Give the request blocks for its next tokens, unless there are too few; names those that are full then."""
        size = self.setup.block_size
        there = self.tables.get(name, hit)
        filled = self.tokens[name][: self.computed[name] + lacking]
        revived = [block for block in there if block in self.free]
        num_new = max(len(range(0, len(filled), size)) - len(there), 0)
        num_in_all = len(range(0, len(self.tokens[name]), size)) - len(there)
        if num_new + len(revived) + reserved > len(self.free):
            return False
        if name not in self.tables and num_in_all + len(revived) > len(self.free):
            return False
        self.free = [block for block in self.free if block not in revived]
        new, self.free = self.free[:num_new], self.free[num_new:]
        for block in new:
            self.known.pop(block, None)
        table = self.tables[name] = [*there, *new]
        for index in range(len(filled) // size):
            self.known.setdefault(table[index], tuple(filled[: (index + 1) * size]))
        return True

    def leave(self, name: str) -> None:
        """Let the blocks go, tail first: those without a name to the front, the others to the back."""
        table = self.tables.pop(name)
        self.batch.remove(name)
        held = {block for other in self.tables.values() for block in other}
        gone = [block for block in reversed(table) if block not in held]
        in_front = [block for block in gone if block not in self.known]
        self.free = in_front + self.free + [block for block in gone if block in self.known]


# What the tests above stand on --------------------------------------------------------------------------------------


def make_scheduler(lab: LabUnderTest, learners: str, *args: Any, **options: Any) -> engine.Scheduler:
    """Return the engine's scheduler, with the learner's method `learners` in it; with all three of them for "".

    So a mistake in one method does not fail the tests of another. The learner's method runs on an object of the
    learner's class that has the same attributes, so that helpers of any name are welcome there.
    """
    own: type[engine.Scheduler] = lab.Scheduler
    taught = [learners] if learners else METHODS
    for method in taught:
        if own is not engine.Scheduler and getattr(own, method) is getattr(engine.Scheduler, method):
            lab.fail(f"Scheduler.{method}", "a method of your own", "the engine's, which your class inherits")
    pair: dict[str, engine.Scheduler] = {}

    def passed_to(whom: str, method: str) -> Callable[..., Any]:
        return lambda self, *args, **options: getattr(pair[whom], method)(*args, **options)

    own_class = type("Scheduler", (own,), {m: passed_to("engine", m) for m in METHODS if m not in taught})
    engine_class = type("Scheduler", (engine.Scheduler,), {m: passed_to("own", m) for m in taught})
    pair["own"] = own_class(*args, **options)
    pair["engine"] = object.__new__(engine_class)
    pair["engine"].__dict__ = pair["own"].__dict__
    return pair["engine"]


@dataclass
class Row:
    """What the worker knows of one request."""

    tokens: list[int]
    table: list[int]
    num_computed_tokens: int


@dataclass
class Worker:
    """Runs steps. It knows what the steps have told it, and nothing else."""

    lab: LabUnderTest
    block_size: int
    says: Callable[[Sequence[int]], int]
    """What the model says after these tokens."""
    rows: dict[str, Row] = field(default_factory=dict)
    slots: dict[int, list[int]] = field(default_factory=dict)
    """From a slot to all tokens up to the one whose keys and values lie there."""

    def run(self, step: SchedulerOutput) -> dict[str, list[int]]:
        """Write the step's tokens, read all that attention reads, and return the new tokens."""
        self._listen(step)
        spans = {}
        for name, num_tokens in step.num_scheduled_tokens.items():
            row = self.rows[name]
            spans[name] = range(row.num_computed_tokens, row.num_computed_tokens + num_tokens)
            if spans[name].stop > len(row.tokens):
                known = f"{row.num_computed_tokens} of {len(row.tokens)} tokens are computed"
                what = f"tokens of {name} that the step computes; the worker is told that {known}"
                why = "a hit is computed already; what the step itself computes counts only when it is done"
                self.lab.fail(what, f"at most {len(row.tokens) - row.num_computed_tokens}", num_tokens, why)
            if spans[name].stop > len(row.table) * self.block_size:
                want = f"enough for {spans[name].stop} tokens"
                self.lab.fail(f"blocks that the worker knows of {name}", want, row.table)
        for name, span in spans.items():
            for position in span:
                self.slots[self._slot(name, position)] = self.rows[name].tokens[: position + 1]
        for name, span in spans.items():
            self._read(name, span.stop)
        return {name: self._say(name) for name, span in spans.items() if span.stop == len(self.rows[name].tokens)}

    def _listen(self, step: SchedulerOutput) -> None:
        for name in (*step.preempted_req_ids, *step.finished_req_ids):
            self.rows.pop(name, None)
        for new in step.scheduled_new_reqs:
            self.rows[new.request_id] = Row(list(new.token_ids), list(new.block_ids[0]), new.num_computed_tokens)
        for data in step.scheduled_cached_reqs:
            if data.request_id not in self.rows:
                self.lab.fail(f"{data.request_id}, whom the worker does not know", "told in full", data)
            row = self.rows[data.request_id]
            row.table += data.new_block_ids[0]
            row.num_computed_tokens = data.num_computed_tokens
        told_of = [data.request_id for data in step.scheduled_cached_reqs]
        told_of += [data.request_id for data in step.scheduled_new_reqs]
        self.lab.expect("requests that the worker is told to run", sorted(step.num_scheduled_tokens), sorted(told_of))

    def _read(self, name: str, num_tokens: int) -> None:
        tokens = self.rows[name].tokens
        for position in range(num_tokens):
            found = self.slots.get(self._slot(name, position))
            if found != tokens[: position + 1]:
                block_id = self.rows[name].table[position // self.block_size]
                what = f"whose keys and values {name} reads for its token {position}, in block {block_id}"
                why = "what counts as computed must have been computed, for these very tokens"
                want = f"those of token {tokens[position]} after {tokens[:position]}"
                self.lab.fail(what, want, "nobody's" if found is None else found, why)

    def _slot(self, name: str, position: int) -> int:
        return self.rows[name].table[position // self.block_size] * self.block_size + position % self.block_size

    def _say(self, name: str) -> list[int]:
        tokens = self.rows[name].tokens
        tokens.append(self.says(tokens))
        return tokens[-1:]


class Play:
    """A scheduler with one method of the learner's, its cache and its worker."""

    def __init__(
        self,
        lab: LabUnderTest,
        learners: str,
        num_blocks: int = 20,
        block_size: int = 4,
        *,
        says: Callable[[Sequence[int]], int] = len,
        admission: AdmissionPolicy | None = None,
        **limits: int,
    ) -> None:
        self.lab, self.learners = lab, learners
        self.kv: WatchedKVCacheManager = lab.make_kv(num_blocks, block_size)
        config = SchedulerConfig(**limits)  # type: ignore[arg-type]  # the numbers among them
        manager: Any = self.kv
        self.scheduler = make_scheduler(lab, learners, manager, config, admission=admission)
        self.engines_update = learners not in ("", UPDATE) or lab.Scheduler is engine.Scheduler
        self.worker = Worker(lab, block_size, says)
        self.answers: dict[str, list[int]] = {}
        self.ended: list[str] = []

    def arrive(self, name: str, tokens: Sequence[int], max_tokens: int = 4, stop: Sequence[int] = ()) -> None:
        """Put a new request in the line."""
        request = self.kv.new_request(name, tokens)
        self.scheduler.add_request(request, max_tokens=max_tokens, stop_token_ids=stop)

    def abort(self, name: str) -> None:
        """Abort a request; that is the engine's work, on what the learner's methods have left."""
        with self.blame(f"finish_requests([{name}]), the engine's"):
            self.scheduler.finish_requests([name])

    def preempt(self, name: str) -> Request:
        """Throw a request out, between two steps."""
        request = self.request(name)
        self.scheduler._preempt_request(request)
        return request

    def plan(self) -> SchedulerOutput:
        """Plan a step and look at it from outside."""
        with self.blame("schedule(), the engine's"):
            step: Any = self.scheduler.schedule()
        self.scheduler._step = None  # the engine keeps the step here, and another `update_from_output` need not know
        if not isinstance(step, SchedulerOutput):
            self.lab.fail("what schedule returned", "a SchedulerOutput", step)
        limits = self.scheduler.config
        if step.total_num_scheduled_tokens > limits.max_num_batched_tokens:
            what = f"tokens of the step {told(step)}"
            want = f"at most {limits.max_num_batched_tokens}"
            self.lab.fail(what, want, step.total_num_scheduled_tokens, "the budget is what a step may compute in all")
        if len(self.batch) > limits.max_num_seqs:
            self.lab.fail("those who run", f"at most {limits.max_num_seqs}", self.batch)
        strangers = [name for name in step.num_scheduled_tokens if name not in self.batch or name in self.line]
        what = f"who is in the step {told(step)}, but not in the batch ({self.who})"
        self.lab.expect(what, [], strangers, why="whoever has given way is not asked again, and is not in the step")
        return step

    def finish(self, step: SchedulerOutput) -> list[EngineCoreOutput]:
        """Run the step and bring its results."""
        outputs = self.update(step, self.worker.run(step))
        for output in outputs:
            self.answers.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason:
                self.ended.append(output.request_id)
        return outputs

    def update(self, step: SchedulerOutput, sampled: dict[str, list[int]]) -> list[EngineCoreOutput]:
        """Bring the results of a step."""
        if self.engines_update:
            known = self.scheduler.requests
            in_step = {name: known[name] for name in step.num_scheduled_tokens if name in known}
            self.scheduler._step = engine._Step(0, step, in_step)  # the engine's own asks which step is under way
        with self.blame("update_from_output(...), the engine's"):
            outputs: Any = self.scheduler.update_from_output(step, sampled)
        if not isinstance(outputs, list) or not all(isinstance(output, EngineCoreOutput) for output in outputs):
            self.lab.fail("what update_from_output returned", "a list of EngineCoreOutput", outputs)
        return outputs

    @contextmanager
    def blame(self, what: str) -> Iterator[None]:
        """Say it in one line if the engine breaks down on what the learner's method has left behind."""
        try:
            yield
        except (LabTodo, LabFailure, KVCacheError):
            raise
        except Exception as error:
            file = self.lab.implementation.file
            if any(frame.filename == file for frame in traceback.extract_tb(error.__traceback__)):
                raise  # it happened in the learner's own lines
            why = "where a request stands is written in its status, and in the batch or the line: they must agree"
            self.lab.fail(f"{what}, on what your method left behind ({self.who})", "no exception", error, why)

    def step(self) -> str:
        """Run a step; return it as in "A 11, B 3"."""
        step = self.plan()
        as_told = told(step)
        self.finish(step)
        return as_told

    def steps(self, count: int) -> list[str]:
        """Run so many steps."""
        return [self.step() for _ in range(count)]

    def drain(self, bound: int) -> list[str]:
        """Run until everybody is done, which must be the case after `bound` steps."""
        steps: list[str] = []
        while self.scheduler.requests:
            if len(steps) == bound:
                what = f"requests that are not done after {bound} steps (the last step: {steps[-1] or 'nobody'})"
                self.lab.fail(what, [], list(self.scheduler.requests))
            steps.append(self.step())
        return steps

    def request(self, name: str) -> Request:
        """Return a request that is not finished."""
        return self.scheduler.requests[name]

    @property
    def who(self) -> str:
        """Who runs and who waits, in words."""
        return f"running: {', '.join(self.batch) or 'nobody'}; waiting: {', '.join(self.line) or 'nobody'}"

    @property
    def batch(self) -> list[str]:
        """Those who run."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def line(self) -> list[str]:
        """Those who wait."""
        return [request.request_id for request in self.scheduler.waiting]

    def known(self, *names: str) -> list[int]:
        """Return how many tokens each of them has."""
        return [self.request(name).num_tokens for name in names]

    def computed(self, *names: str) -> list[int]:
        """Return how many tokens of each are computed."""
        return [self.request(name).num_computed_tokens for name in names]

    def said(self, outputs: Sequence[EngineCoreOutput]) -> list[str]:
        """Return results in words: "A says [11]", with how it ended if it did."""
        return [
            f"{output.request_id} says {list(output.new_token_ids)}"
            + (f", {output.finish_reason}" if output.finish_reason else "")
            for output in outputs
        ]

    def table(self, name: str) -> list[int]:
        """Return the ids in the request's block table."""
        return list(self.kv.get_block_ids(name)[0])

    def free_queue(self) -> list[int]:
        """Return the ids in the free queue, the next to be handed out first."""
        return [block.block_id for block in self.kv.block_pool.free_block_queue.get_all_free_blocks()]

    def scramble(self) -> None:
        """Put the blocks of a new cache into another order, so that no number tells a block's place."""
        queue = self.kv.block_pool.free_block_queue
        blocks = queue.popleft_n(queue.num_free_blocks)
        queue.append_n(blocks[1::2] + blocks[::2][::-1])


def the_figure(lab: LabUnderTest, learners: str) -> Play:
    """Return the engine of the figure, with A and B in the line."""
    play = Play(lab, learners, 8, max_num_batched_tokens=14)
    play.arrive("A", range(11), max_tokens=6)
    play.arrive("B", range(100, 111), max_tokens=4)
    return play


def told(step: SchedulerOutput) -> str:
    """Return a step as in "A 11, B 3"."""
    return ", ".join(f"{name} {num_tokens}" for name, num_tokens in step.num_scheduled_tokens.items())


def refuses(lab: LabUnderTest, what: str, error: type[Exception], call: Callable[[], object]) -> None:
    """Make a call that must raise `error`."""
    try:
        result = call()
    except (LabTodo, LabFailure):
        raise
    except error:
        return
    except Exception as other:
        lab.fail(what, f"{error.__name__} raised", other)
    lab.fail(what, f"{error.__name__} raised", f"{result} returned")
