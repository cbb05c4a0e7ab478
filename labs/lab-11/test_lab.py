"""lab-11: who runs next? Read the numbered tests in order: tests 1 to 9 are the figure `mini-kv story who-runs-next`.

There a step may compute 14 tokens, and there are seven blocks of 4. A has a prompt of 11 tokens and wants 6, B has 11
others and wants 4, C arrives later with 3. The model of these tests samples the number of tokens that it has read: A's
tokens are 0 to 10, and its answer begins 11, 12. "A 11, B 3" is a step in which A computes 11 tokens and B 3.

Only the method of the test is yours. The other two are the engine's (see `make_scheduler` in helpers.py). The worker
uses only the contents of your steps. It records which request wrote each slot, and fails if a request reads another's.
"""

from functools import partial

from mini_kv.core.errors import SchedulerError
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import free_queue, refuses, table
from mini_kv.policy.admission_strategies import Hysteresis

from .chance import compare_lives, mixed
from .helpers import PREEMPT, SCHEDULE, UPDATE, Play, the_figure, told

# The biography ------------------------------------------------------------------------------------------------------


@points(1, f"Scheduler.{SCHEDULE}", rule=1)
def test_1_the_budget_is_handed_out_from_the_front(lab: LabUnderTest) -> None:
    """A and B wait with 11 tokens each, and a step may compute 14. B begins with the other 3."""
    play = the_figure(lab, SCHEDULE)
    step = play.schedule()
    lab.expect("the first step", "A 11, B 3", told(step))
    lab.expect("those who run", ["A", "B"], play.running)
    lab.expect("those who wait", [], play.waiting)
    states = [play.scheduler.requests[name].status.value for name in "AB"]
    why = "its status says where a request is: in the batch it is RUNNING"
    lab.expect("status of A and B", ["running", "running"], states, why)
    got = [table(play.kv, "A"), table(play.kv, "B")]
    lab.expect("tables of A and B", [[1, 2, 3], [4]], got, why="11 tokens need 3 blocks, B's first 3 need one")
    play.finish(step)


@points(1, f"Scheduler.{SCHEDULE}", rule=1)
def test_2_prompts_and_answers_share_a_batch(lab: LabUnderTest) -> None:
    """A decodes while B is still in its prompt. Both do one kind of work: compute known tokens."""
    play = the_figure(lab, SCHEDULE)
    lab.expect("the first three steps", ["A 11, B 3", "A 1, B 8", "A 1, B 1"], play.steps(3))


@points(2, f"Scheduler.{UPDATE}", rule=10, why="B's prompt lacks 8 tokens")
def test_3_a_token_comes_when_all_known_ones_are_computed(lab: LabUnderTest) -> None:
    """The first step is done: A 11 of 11 tokens, B 3 of 11. Which request has a new token?"""
    play = the_figure(lab, UPDATE)
    lab.expect("what the first step brought", ["A says [11]"], play.results())
    why = "the new token is known and not computed: it is the input of the next step"
    lab.expect("known tokens of A and B", [12, 11], play.known("A", "B"), rule=11)
    lab.expect("computed tokens of A and B", [11, 3], play.computed("A", "B"), why, rule=9)
    lab.expect("what the second step brought", ["A says [12]", "B says [11]"], play.results())
    lab.expect("computed tokens of A and B", [12, 11], play.computed("A", "B"))


@points(2, f"Scheduler.{SCHEDULE}", rule=2, why="the last request is preempted, even if it needs the block")
def test_4_the_last_to_come_gives_way(lab: LabUnderTest) -> None:
    """B's thirteenth token needs a block, and none is free. C, which has just arrived, would need one too."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", 3, max_tokens=2)
    step = play.schedule()
    lab.expect("the fourth step", "A 1", told(step))
    lab.expect("who gave way", ["B"], step.preempted_req_ids, why="the worker is told whose blocks are no longer there")
    lab.expect("those who run", ["A"], play.running)
    why = "B's blocks are free now, but no request enters in a step that preempts one"
    lab.expect("those who wait", ["B", "C"], play.waiting, why, rule=3)
    play.finish(step)


@points(2, f"Scheduler.{PREEMPT}", rule=7)
def test_5_a_preempted_request_loses_its_blocks_and_keeps_its_tokens(lab: LabUnderTest) -> None:
    """The same moment, slowly: B has 13 tokens, 12 of them computed, in blocks 4 5 6. It is preempted."""
    play = the_figure(lab, PREEMPT)
    play.steps(3)
    play.arrive("C", 3, max_tokens=2)
    b = play.scheduler.requests["B"]
    play.preempt("B")
    lab.expect("free queue without B", [6, 5, 4], free_queue(play.kv))
    lab.expect("those who run", ["A"], play.running, why="B has no blocks, so it is removed from the batch")
    lab.expect("those who wait", ["B", "C"], play.waiting, why="B arrived before all waiting requests")
    lab.expect("B's status", "preempted", b.status.value)
    lab.expect("B's computed tokens", 0, b.num_computed_tokens, why="its KV was in the freed blocks", rule=8)
    lab.expect("B's known tokens", 13, b.num_tokens, rule=8)
    lab.expect("preemptions of B, and of all", [1, 1], [b.num_preemptions, play.scheduler.num_preemptions], rule=8)
    _, num_hit_tokens = play.kv.get_computed_blocks(b)
    lab.expect("tokens that B would find now", 12, num_hit_tokens, why="freed blocks stay cached until reuse")


@points(1, f"Scheduler.{SCHEDULE}", rule=5)
def test_6_the_first_in_line_is_never_passed(lab: LabUnderTest) -> None:
    """Three blocks are free. B needs four blocks, C after it only one."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", 3, max_tokens=2)
    lab.expect("the next two steps", ["A 1", "A 1"], play.steps(2))
    lab.expect("those who wait", ["B", "C"], play.waiting)
    lab.expect("B's computed tokens", [0], play.computed("B"), why="its hit of 12 was looked up, and B was refused")


@points(6, f"Scheduler.{UPDATE}", rule=12)
def test_7_the_last_token_ends_a_request_and_is_never_computed(lab: LabUnderTest) -> None:
    """A's sixth token is sampled. Must token 17 be computed? Its keys and values would never be read."""
    play = the_figure(lab, UPDATE)
    play.steps(5)
    why = "A has 16 tokens and 16 slots: the next one is its last, and needs no slot"
    lab.expect("requests that are not finished after five steps", ["A", "B"], list(play.scheduler.requests), why)
    lab.expect("A's slots, at most", 16, play.scheduler.requests["A"].max_slots, why="11 + 6, minus the last token")
    lab.expect("what the sixth step brought", ["A says [16], length"], play.results())
    lab.expect("those who run", [], play.running)
    lab.expect("requests that are not finished", ["B"], list(play.scheduler.requests))
    lab.expect("free queue", [6, 5, 4, 7, 3, 2, 1], free_queue(play.kv), why="B's blocks were freed first")


@points(1, f"Scheduler.{SCHEDULE}", rule=6)
def test_8_a_preempted_request_comes_back_with_a_hit(lab: LabUnderTest) -> None:
    """A has ended. B is admitted again with 13 tokens, and 12 of them are a hit. C is admitted after it."""
    play = the_figure(lab, SCHEDULE)
    play.steps(3)
    play.arrive("C", 3, max_tokens=2)
    play.steps(3)
    step = play.schedule()
    lab.expect("the seventh step", "B 1, C 3", told(step))
    lab.expect("tables of B and C", [[4, 5, 6, 7], [3]], [table(play.kv, "B"), table(play.kv, "C")])
    lab.expect("computed tokens of B and C", [12, 0], play.computed("B", "C"), why="the step itself has not run yet")
    play.finish(step)
    lab.expect("the eighth step", "B 1, C 1", play.step())
    lab.expect("requests that are not finished", [], list(play.scheduler.requests))


@points(2, f"Scheduler.{PREEMPT}", rule=8, why="it is admitted like a new request")
def test_9_a_preempted_request_goes_on_where_it_stopped(lab: LabUnderTest) -> None:
    """All eight steps, with your `_preempt_request` in the middle."""
    play = the_figure(lab, PREEMPT)
    got = play.steps(3)
    play.arrive("C", 3, max_tokens=2)
    want = ["A 11, B 3", "A 1, B 8", "A 1, B 1", "A 1", "A 1", "A 1", "B 1, C 3", "B 1, C 1"]
    lab.expect("the eight steps", want, got + play.steps(5))
    why = "it continued after its last sampled token"
    lab.expect("what B has said in all", [11, 12, 13, 14], play.answers["B"], why)


@points(1, f"Scheduler.{SCHEDULE}", rule=4)
def test_10_a_full_hit_leaves_a_token_to_compute(lab: LabUnderTest) -> None:
    """A's 9 tokens are cached, blocks of 4. B has the same 9, C the first 8 of them, D one more than A."""
    play = Play(lab, SCHEDULE)
    for name, tokens, want in (("A", 9, "A 9"), ("B", 9, "B 1"), ("C", 8, "C 4"), ("D", 10, "D 2")):
        play.arrive(name, range(tokens), max_tokens=1)
        lab.expect(f"the step in which {name} is alone, with {tokens} tokens", want, play.step())


@points(1, f"Scheduler.{SCHEDULE}", rule=5, why="requests admitted in this step run, too")
def test_11_max_num_seqs_limits_how_many_run(lab: LabUnderTest) -> None:
    """Two may run at once. Four wait, each with one token, and want two."""
    play = Play(lab, SCHEDULE, max_num_seqs=2)
    for name in "ABCD":
        play.arrive(name, 1, max_tokens=2)
    lab.expect("four steps", ["A 1, B 1", "A 1, B 1", "C 1, D 1", "C 1, D 1"], play.steps(4))


@points(2, f"Scheduler.{SCHEDULE}", rule=4, why="reserved blocks are for running requests")
def test_12_reserved_blocks_are_kept_back_only_while_others_run(lab: LabUnderTest) -> None:
    """Eight blocks of 4, two of them reserved while others run. A takes four, B would take three, or two."""
    for num_tokens, want in ((9, "A 1"), (8, "A 1, B 8")):
        play = Play(lab, SCHEDULE, 9, reserved_blocks=2)
        play.arrive("A", 14, max_tokens=2)
        play.step()
        play.arrive("B", num_tokens, max_tokens=1)
        lab.expect(f"the step in which B could enter, with {num_tokens} tokens and 4 blocks free", want, play.step())
    play = Play(lab, SCHEDULE, 9, reserved_blocks=2)
    play.arrive("A", 30, max_tokens=1)
    why = "no request runs, so no block is reserved; otherwise A would wait forever"
    lab.expect("the step in which A, alone, needs all eight blocks", "A 30", play.step(), why)


@points(6, f"Scheduler.{SCHEDULE}", rule=2, why="a later request never preempts the first")
def test_13_every_request_ends_in_the_order_of_arrival(lab: LabUnderTest) -> None:
    """Six requests that each grow to four blocks, in a pool of seven. In which order do they end?"""
    play = Play(lab, SCHEDULE, 8)
    for name in "ABCDEF":
        play.arrive(name, 5, max_tokens=11)
    steps = play.drain(66)
    lab.expect("who has ended, in this order", list("ABCDEF"), play.ended, why="first come, first served")
    why = "a request that gave way waits until there is room for all of it"
    lab.expect("preemptions", 4, play.scheduler.num_preemptions, why)
    lab.expect("steps", 33, len(steps))


@points(2, f"Scheduler.{UPDATE}", rule=12)
def test_14_a_stop_token_ends_the_answer(lab: LabUnderTest) -> None:
    """A may sample ten tokens, but 13 ends it. B may sample two, and 12, its last, is a stop token too."""
    play = Play(lab, UPDATE)
    play.arrive("A", 11, max_tokens=10, stop=[13])
    play.arrive("B", 11, max_tokens=2, stop=[12])
    got = [play.results() for _ in range(3)]
    want = [["A says [11]", "B says [11]"], ["A says [12]", "B says [12], stop"], ["A says [13], stop"]]
    lab.expect("what three steps brought", want, got)
    lab.expect("free blocks", 19, play.kv.block_pool.num_free_blocks)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, f"Scheduler.{SCHEDULE}", rule=1, stage="adversary")
def test_a_step_uses_its_whole_budget_and_no_more(lab: LabUnderTest) -> None:
    """A decodes, B has 6 tokens, C has 1. Steps of 1, of 6, 7 and 8 tokens."""
    got = []
    for budget in (1, 6, 7, 8):
        play = Play(lab, SCHEDULE, max_num_batched_tokens=budget)
        play.arrive("A", 1, max_tokens=9)
        play.step()
        play.arrive("B", 6, max_tokens=9)
        play.arrive("C", 1, max_tokens=9)
        got.append(play.step())
    lab.expect("the second step, for budgets of 1, 6, 7, 8", ["A 1", "A 1, B 5", "A 1, B 6", "A 1, B 6, C 1"], got)


@points(1, f"Scheduler.{SCHEDULE}", rule=1, stage="adversary")
def test_a_prompt_in_pieces_takes_what_answers_leave(lab: LabUnderTest) -> None:
    """Steps of three tokens. A and B have 4 tokens, C has 1, and each wants three."""
    play = Play(lab, SCHEDULE, max_num_batched_tokens=3)
    for name, num_tokens in (("A", 4), ("B", 4), ("C", 1)):
        play.arrive(name, num_tokens, max_tokens=3)
    want = ["A 3", "A 1, B 2", "A 1, B 2", "A 1, B 1, C 1", "B 1, C 1", "C 1"]
    lab.expect("all steps", want, play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", rule=4, stage="adversary")
def test_a_newcomer_needs_blocks_for_its_whole_prompt(lab: LabUnderTest) -> None:
    """Five blocks are free, and a step computes 4 tokens. B has 20 tokens, 21, or 24. C after it has 4."""
    got = []
    for num_tokens in (20, 21, 24):
        play = Play(lab, SCHEDULE, 8, max_num_batched_tokens=5)
        play.arrive("A", 5, max_tokens=4)
        play.step()
        play.arrive("B", num_tokens, max_tokens=1)
        play.arrive("C", 4, max_tokens=1)
        got.append(play.step())
    lab.expect("the step in which B could enter, with 20, 21, 24 tokens", ["A 1, B 4", "A 1", "A 1"], got)


@points(1, f"Scheduler.{SCHEDULE}", rule=4, stage="adversary", why="one block less than needed is too few")
def test_exactly_enough_blocks_are_enough(lab: LabUnderTest) -> None:
    """A and B need 3 blocks each, C needs 1. Pools of 5, 6, 7 and 8 blocks."""
    got = []
    for num_blocks in (5, 6, 7, 8):
        play = Play(lab, SCHEDULE, num_blocks + 1)
        for name, num_tokens in (("A", 12), ("B", 12), ("C", 4)):
            play.arrive(name, num_tokens, max_tokens=1)
        got.append(play.step())
    want = ["A 12", "A 12, B 12", "A 12, B 12, C 4", "A 12, B 12, C 4"]
    lab.expect("the first step in pools of 5, 6, 7, 8", want, got)


@points(1, f"Scheduler.{SCHEDULE}", rule=2, stage="adversary", why="preempt from the end of self.running")
def test_two_give_way_in_one_step_and_keep_their_order(lab: LabUnderTest) -> None:
    """A needs a second block and B a third. C and D, which arrived last, hold one each, and no other is free."""
    play = Play(lab, SCHEDULE, 6)
    for name, num_tokens in (("A", 4), ("B", 8), ("C", 1), ("D", 1)):
        play.arrive(name, num_tokens, max_tokens=3)
    lab.expect("the first step", "A 4, B 8, C 1, D 1", play.step())
    play.arrive("E", 1, max_tokens=3)
    step = play.schedule()
    lab.expect("the second step", "A 1, B 1", told(step))
    lab.expect("who gave way, in this order", ["D", "C"], step.preempted_req_ids)
    lab.expect("those who run", ["A", "B"], play.running)
    lab.expect("those who wait", ["C", "D", "E"], play.waiting, why="each goes to the front, so C is before D")
    play.finish(step)
    lab.expect("the other steps", ["A 1, B 1", "C 2, D 2, E 1", "C 1, D 1, E 1", "E 1"], play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", rule=3, stage="adversary", why="it could be the preempted one")
def test_no_request_enters_in_a_step_that_preempts(lab: LabUnderTest) -> None:
    """A and B have the same prompt and answer. A needs a block, and B's preemption frees two: one is left.

    B's tokens are cached in A's blocks, and the free block is all it needs. B waits until the next step.
    """
    play = Play(lab, SCHEDULE, 7)
    for name in "AB":
        play.arrive(name, range(9), max_tokens=10)
    lab.expect("the first eight steps", ["A 9, B 1"] + ["A 1, B 1"] * 7, play.steps(8))
    lab.expect("tables of A and B", [[1, 2, 3, 5], [1, 2, 4, 6]], [table(play.kv, "A"), table(play.kv, "B")])
    lab.expect("the other steps", ["A 1", "A 1, B 1", "B 1"], play.drain(9))


@points(1, f"Scheduler.{SCHEDULE}", rule=4, stage="adversary", why="a later request hits blocks computed in this step")
def test_newcomers_share_blocks_within_a_step(lab: LabUnderTest) -> None:
    """A and B have the same 9 tokens and wait. C's first block is the same as theirs."""
    play = Play(lab, SCHEDULE)
    for name, tokens in (("A", range(9)), ("B", range(9)), ("C", [*range(4), 7])):
        play.arrive(name, tokens)
    step = play.schedule()
    lab.expect("the first step", "A 9, B 1, C 1", told(step))
    lab.expect("tables of A, B, C", [[1, 2, 3], [1, 2, 4], [1, 5]], [table(play.kv, name) for name in "ABC"])
    play.finish(step)


@points(1, f"Scheduler.{SCHEDULE}", rule=5, stage="adversary", why="it is tried again")
def test_a_refused_newcomer_is_unchanged(lab: LabUnderTest) -> None:
    """B has a hit of one block and no room for the rest. It is refused twice, then aborted, and C is admitted."""
    play = Play(lab, SCHEDULE, 5)
    play.arrive("A", 12, max_tokens=4)
    play.step()
    play.arrive("B", [*range(4), *range(100, 112)], max_tokens=1)
    play.arrive("C", 1, max_tokens=1)
    b = play.scheduler.requests["B"]
    for number in ("first", "second"):
        lab.expect(f"the step of the {number} refusal", "A 1", play.step())
        lab.expect("B's status and computed tokens", ["waiting", 0], [b.status.value, b.num_computed_tokens])
        lab.expect("those who wait", ["B", "C"], play.waiting)
    play.abort("B")
    play.abort("A")
    lab.expect("the step without A and B", "C 1", play.step())


@points(1, f"Scheduler.{SCHEDULE}", rule=4, stage="adversary", why="0 is not None: it admits and reserves no blocks")
def test_no_request_enters_while_admission_says_none(lab: LabUnderTest) -> None:
    """Admission stops when more than half of the pool is in use, and resumes below a quarter."""
    play = Play(lab, SCHEDULE, 9, admission=Hysteresis(high=0.5, low=0.25))
    play.arrive("A", 17, max_tokens=3)
    play.arrive("B", 1, max_tokens=2)
    lab.expect("all steps", ["A 17", "A 1", "A 1", "B 1", "B 1"], play.drain(9), why="B is admitted after A ends")


@points(1, f"Scheduler.{SCHEDULE}", rule=1, stage="adversary")
def test_lengths_around_two_blocks_and_other_block_sizes(lab: LabUnderTest) -> None:
    """Blocks of 1, 3, 4 and 16, prompts around two blocks, sent twice, steps of 5 tokens."""
    for block_size in (1, 3, 4, 16):
        for length in (2 * block_size - 1, 2 * block_size, 2 * block_size + 1):
            play = Play(lab, SCHEDULE, 9, block_size, max_num_batched_tokens=5, next_token=mixed)
            for name in "AB":
                play.arrive(name, range(length), max_tokens=2)
                lacking = length if name == "A" else length - (length - 1) // block_size * block_size
                want = [f"{name} {min(5, lacking - start)}" for start in range(0, lacking, 5)] + [f"{name} 1"]
                what = f"the steps of {name}, {length} tokens in blocks of {block_size}, at most 5 tokens in each step"
                lab.expect(what, want, play.drain(99), why="A computes all of it, B the tokens after the hit")


@points(1, f"Scheduler.{SCHEDULE}", rule=6, stage="adversary")
def test_running_requests_can_be_aborted(lab: LabUnderTest) -> None:
    """A answers, B is in its prompt, C waits. They are aborted between two steps, and all blocks are free."""
    for order in ("ABC", "CBA", "BAC"):
        play = Play(lab, SCHEDULE, 9, max_num_batched_tokens=5)
        for name, num_tokens in (("A", 4), ("B", 12), ("C", 1)):
            play.arrive(name, num_tokens)
        play.steps(2)
        for name in order:
            play.abort(name)
        lab.expect("free blocks", 8, play.kv.block_pool.num_free_blocks)
        lab.expect("a step without requests", "", play.step())


@points(1, f"Scheduler.{PREEMPT}", rule=7, stage="adversary")
def test_a_preemption_leaves_shared_blocks_to_the_others(lab: LabUnderTest) -> None:
    """B shares two blocks with A and is preempted, then A as well. Predict the queue."""
    play = Play(lab, PREEMPT, 7)
    play.arrive("A", range(9))
    play.arrive("B", [*range(8), 9, 9])
    play.step()
    play.preempt("B")
    why = "block 4 was not full, so it is not cached"
    lab.expect("free queue without B", [4, 5, 6], free_queue(play.kv), why)
    play.preempt("A")
    lab.expect("free queue without A and B", [3, 4, 5, 6, 2, 1], free_queue(play.kv))
    lab.expect("those who wait", ["A", "B"], play.waiting)
    lab.expect("the next step", "A 2, B 3", play.step(), why="each hits the two blocks that they share")


@points(1, f"Scheduler.{PREEMPT}", rule=7, stage="adversary")
def test_preempted_requests_can_be_aborted(lab: LabUnderTest) -> None:
    """B is preempted in the middle of its prompt, C in its answer. They are aborted, and A continues."""
    play = Play(lab, PREEMPT, 12, max_num_batched_tokens=8)
    for name, num_tokens in (("A", 4), ("C", 1), ("B", 20)):
        play.arrive(name, num_tokens)
    play.steps(2)
    play.preempt("C")
    lab.expect("those who run", ["A", "B"], play.running, why="C was preempted, from the middle of the batch")
    play.preempt("B")
    lab.expect("those who wait", ["B", "C"], play.waiting)
    for name in "BC":
        play.abort(name)
    lab.expect("free blocks", 9, play.kv.block_pool.num_free_blocks)
    lab.expect("the other steps", ["A 1", "A 1"], play.drain(9))


@points(1, f"Scheduler.{UPDATE}", rule=10, stage="adversary")
def test_results_that_do_not_fit_change_nothing(lab: LabUnderTest) -> None:
    """A has a new token, B has none. Results: one for B as well, none for A, two for A. Then the right ones."""
    play = the_figure(lab, UPDATE)
    step = play.schedule()
    wrong: list[dict[str, list[int]]] = [{"A": [11], "B": [7]}, {}, {"A": []}, {"A": [11, 12]}]
    for results in wrong:
        what = f"update_from_output({told(step)}; {results})"
        refuses(lab, what, SchedulerError, partial(play.update_from_output, step, results))
        lab.expect(f"known tokens of A and B after {what}", [11, 11], play.known("A", "B"))
        lab.expect(f"computed tokens of A and B after {what}", [0, 0], play.computed("A", "B"))
    lab.expect("what the step brought", ["A says [11]"], play.finish(step))


@points(2, f"Scheduler.{UPDATE}", rule=12, stage="adversary")
def test_requests_end_in_the_middle_of_the_batch(lab: LabUnderTest) -> None:
    """Five run. B, C and E end with their only token."""
    play = Play(lab, UPDATE)
    for name, max_tokens in zip("ABCDE", (2, 1, 1, 2, 1), strict=True):
        play.arrive(name, 1, max_tokens=max_tokens)
    want = ["A says [1]", "B says [1], length", "C says [1], length", "D says [1]", "E says [1], length"]
    lab.expect("what the first step brought", want, play.results())
    lab.expect("those who run", ["A", "D"], play.running)
    step = play.schedule()
    lab.expect("whom the worker may forget", ["B", "C", "E"], step.finished_req_ids)
    lab.expect("what the second step brought", ["A says [2], length", "D says [2], length"], play.finish(step))


# The property -------------------------------------------------------------------------------------------------------


@points(1, f"Scheduler.{SCHEDULE}", rule=1, stage="property", why="see NaiveScheduler.schedule")
def test_schedule_agrees_with_a_naive_scheduler(lab: LabUnderTest) -> None:
    """Forty random sequences on a small engine, each compared step by step with a model made of plain lists."""
    compare_lives(lab, SCHEDULE)


@points(1, f"Scheduler.{PREEMPT}", rule=8, stage="property", why="see NaiveScheduler.schedule")
def test_preempt_request_agrees_with_a_naive_scheduler(lab: LabUnderTest) -> None:
    """The same, with your `_preempt_request`."""
    compare_lives(lab, PREEMPT)


@points(1, f"Scheduler.{UPDATE}", rule=9, stage="property", why="see NaiveScheduler.finish")
def test_update_from_output_agrees_with_a_naive_scheduler(lab: LabUnderTest) -> None:
    """The same, with your `update_from_output`."""
    compare_lives(lab, UPDATE)


@points(1, f"Scheduler.{SCHEDULE}", rule=1, stage="property", why="your three methods together")
def test_your_three_methods_agree_with_a_naive_scheduler(lab: LabUnderTest) -> None:
    """The same, with all three."""
    compare_lives(lab, "")
