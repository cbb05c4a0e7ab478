"""What the notebooks ask: every answer is worked out on the engine, and every choice has its reason."""

from functools import cache
from importlib import import_module
from statistics import median
from types import ModuleType

import pytest

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.admission import AdmissionPolicy
from mini_kv.course.finale.divergence_demo import DivergenceDemo
from mini_kv.course.lessons.chain import PRESETS, chain
from mini_kv.course.lessons.curves import (
    follow_replay,
    hits_over_pool_sizes,
    hits_over_shared_tokens,
    small_trace,
    waste_over_block_sizes,
)
from mini_kv.course.lessons.misbehave import idle_seconds, serve
from mini_kv.course.lessons.planes import TEXTS, TIGHT, Dice, control_plane, run, shapes
from mini_kv.course.lessons.predict import LOCK, Predict, questions, seen
from mini_kv.course.lessons.small_cache import LiveCache
from mini_kv.course.lessons.tiers_in_letters import story
from mini_kv.course.lessons.timeline import PROMPT, long_among_short
from mini_kv.course.lessons.windows import find_with_holes, held_while_computing, hits_of_the_second_round
from mini_kv.policy.admission_strategies import Greedy, Strategy
from mini_kv.story.recorder import Recorder
from mini_kv.story.scenario import load_scenario, prefill
from mini_kv.story.traced_manager import TracedKVCacheManager, free_order_of
from mini_kv.tools.planning.cost import H200, decode_step, request_cost, served
from mini_kv.tools.traces.prefix_overlap import common_length
from mini_kv.tools.traces.timed_replay import replay_with_clock

LENGTHS = [237, 41, 1180, 96, 512, 2048, 18, 733]  # those of notebook 01
GEMMA = ("full", *["window 1024"] * 5)  # notebook 09's
KNIGHT, DATE = PRESETS[1], PRESETS[3]

LLAMA = served("llama-3-8b", 8.03e9, num_heads=32)


def a_cache(num_blocks: int) -> TracedKVCacheManager:
    recorder = Recorder()
    manager = KVCacheManager.for_full_attention(num_blocks, 4, new_block=recorder.new_block)
    return TracedKVCacheManager(manager, recorder)


def equal_prompts(num_requests: int, num_tokens: int) -> TracedKVCacheManager:
    kv = a_cache(1 + num_tokens * num_requests)
    for index in range(num_requests):
        prefill(kv, kv.new_request(str(index), range(num_tokens)))
    return kv


def hit_rate(num_requests: int) -> float:
    stats = equal_prompts(num_requests, 32).manager.prefix_cache_stats
    return 100 * stats.hits / stats.queries


def events_of_a_hit() -> str:
    mirrored = mirrored_or_skip()
    return "none" if mirrored.events_of("A", "A again")[1] == "A again: no event" else "some"


def difference_of_a_mirror() -> str:
    run = mirrored_or_skip().followed(kept=0)
    if run.is_right:
        return "it is right"
    return "it has blocks too many" if run.stale[-1] > run.missing[-1] else "it lacks blocks"


def difference_of_plans() -> str:
    first, second = (run(control_plane(TEXTS, levers=TIGHT), Dice(seed)) for seed in (0, 1))
    if [step.plan for step in first] == [step.plan for step in second]:
        return "nothing"
    return "only the token ids" if shapes(first) == shapes(second) else "the token ids and the block tables"


def first_to_differ() -> str:
    """Return the first step that differs with a queue that turns the list, and what happens in it."""
    one = DivergenceDemo("turns the list")
    assert one.divergence is not None and one.divergence.its.lines[-1] == "free I: freed 12..1"
    assert {what: one.first_steps[what] for what in ("the block tables", "the tokens that were found")} == {
        "the block tables": 7,
        "the tokens that were found": 11,
    }
    return f"step {one.divergence.its.number}: a request ends"


def mirrored_or_skip() -> ModuleType:
    pytest.importorskip("msgspec", reason="KV events need msgspec: make test, or pip install -e '.[events]'")
    return import_module("mini_kv.course.lessons.mirrored")


def hit_after_free(num_blocks: int) -> tuple[int | None, int]:
    """Return B's hit and the free blocks after it, when A with the same prompt has gone."""
    kv = a_cache(num_blocks)
    a = kv.new_request("A", range(32))
    prefill(kv, a)
    kv.free(a)
    return prefill(kv, kv.new_request("B", range(32))), kv.block_pool.num_free_blocks


def reuse_order() -> list[int]:
    """Return who goes first of those that carry a name."""
    cache = LiveCache(11, 4)
    cache.admit("0..15 100..103")
    cache.admit("0..15 200..203")
    cache.finish("A")
    cache.finish("B")
    blocks = cache.kv.block_pool.blocks
    return [block_id for block_id in free_order_of(cache.kv.block_pool) if blocks[block_id].block_hash is not None]


def first_difference_in_common() -> str:
    """Return between which tokens the prompts with a time in them begin to differ."""
    first, *others = (entry.token_ids for entry in serve("timestamp").trace)
    places = {common_length(first, other) for other in others}
    return "between token 16 and token 32" if all(16 <= place < 32 for place in places) else "elsewhere"


def more_keys_than_blocks(name: str) -> bool:
    case = serve(name)
    return max(case.seen.num_keys) > case.fault.num_blocks - 1


def median_age(max_num_seqs: int) -> float:
    """Return how long half of the evicted blocks lay unused at least."""
    return median(idle_seconds(serve("storm", max_num_seqs=max_num_seqs)))


def one_second_hit(num_tokens: int) -> int:
    return equal_prompts(2, num_tokens).manager.prefix_cache_stats.hits


def let_in(admission: AdmissionPolicy) -> int:
    """Return the step in which notebook 08's long request computes its first tokens."""
    return 1 + [moment.doing for moment in long_among_short(admission)["long"]].index(PROMPT)


@cache
def waits() -> list[tuple[float, int]]:
    """Return the mean and the longest wait of notebook 08's workload, without jumping and with it."""
    policies = Greedy(), Greedy(may_jump=True)
    reports = [replay_with_clock(small_trace(), 60, strategy=Strategy(one), ms_per_step=50) for one in policies]
    return [(int(report.mean_wait), report.longest_wait) for report in reports]


def prompt_to_answer(batch: int = 64) -> float:
    """Return what a prompt of 2,000 tokens costs, over what its answer of 300 costs."""
    cost = request_cost(LLAMA, H200, 2000, 300, batch=batch)
    return cost.prompt / cost.answer


def peak_of_a_window(chunk: int) -> int:
    return max(step.blocks[1] for step in held_while_computing(("full", "window 32"), 112, chunk))


def computed_at_last(memory_blocks: int) -> int:
    """Return how many tokens the last of three prompts computes, in a cache with a second home of this size."""
    *_, last = [step for step in story(memory_blocks=memory_blocks)["steps"] if "scheduled" in step]
    return int(last["scheduled"]["3"])


ANSWERS = {
    "empty-slots-of-237": lambda: str(waste_over_block_sizes([237], [16])[0].num_empty_slots),
    "table-entries": lambda: f"{waste_over_block_sizes(LENGTHS, [1])[0].num_slots:,}",
    "dashboard": lambda: f"{hit_rate(2):.4g} %",
    "hundred-readers": lambda: f"{hit_rate(100):.1f} %",
    "one-more-token": lambda: str(one_second_hit(33)),
    "after-a-minute": lambda: str(hit_after_free(11)[0]),
    "revived-is-paid": lambda: str(hit_after_free(9)[1]),
    "who-goes-first": lambda: ", ".join(map(str, reuse_order())),
    "seven-characters": lambda: str(chain(KNIGHT.first, KNIGHT.second, 4, "characters").num_shared_blocks),
    "three-bytes-each": lambda: str(chain(KNIGHT.first, KNIGHT.second, 16, "bytes").num_shared_blocks),
    "date-in-front": lambda: chain(DATE.first, DATE.second, 4).num_shared_blocks or "nothing",
    "empty-in-the-end": lambda: str(follow_replay(small_trace(), 120, concurrency=8)[-1].memory.empty),
    "six-words-in-steps": lambda: str(sum(step.call == "step" for step in load_scenario("guess-and-check").steps)),
    "twice-the-pool": lambda: (
        f"{100 * (hits_over_pool_sizes(small_trace(), [640])[0].hit_rate_of_prompt_tokens or 0):.1f} %"
    ),
    "long-waits-for-the-short": lambda: f"at step {let_in(Greedy(may_jump=True))}",
    "mean-and-longest": lambda: "it doubles" if waits()[1][1] > 2 * waits()[0][1] else "no",
    "one-shot": lambda: str(peak_of_a_window(112)),
    "small-steps": lambda: str(peak_of_a_window(16)),
    "where-both-can": lambda: str(find_with_holes(("full", "window 48"), 161, {0: [8], 1: [1, 5]}).num_tokens),
    "the-fifth": lambda: "nothing, none of them" if not any(hits_of_the_second_round(12_000, GEMMA, 5)) else "no",
    "sixty-four-in-a-step": lambda: f"{1e3 * decode_step(LLAMA, H200, 64, 1000).seconds:.1f} ms",
    "prompt-or-answer": lambda: "about the same" if 0.95 < prompt_to_answer() < 1.05 else "no",
    "changed-places": lambda: str(computed_at_last(memory_blocks=3)),
    "still-held": lambda: "blocks have leaked" if serve("leak").leaks() and not serve("none").leaks() else "no",
    "one-block-each": first_difference_in_common,
    "unused-in-a-storm": lambda: f"{max((16, 64), key=median_age)} at once",
    "events-of-a-hit": events_of_a_hit,
    "a-lost-message": difference_of_a_mirror,
    "more-keys": lambda: "no" if more_keys_than_blocks("stale-index") and not more_keys_than_blocks("none") else "yes",
    "who-was-lost": lambda: "its last" if computed_at_last(memory_blocks=2) == 5 else "no",
    "dice-in-place-of-a-model": difference_of_plans,
    "first-to-differ": first_to_differ,
    "other-hashes": lambda: "some" if DivergenceDemo("other hashes").divergence else "none",
    "two-wrong-parts": lambda: str(
        sum(one.is_right for one in DivergenceDemo("turns the list", "all or nothing").swaps().values())
    ),
    "fifteen-in-common": lambda: str(round(32 * hits_over_shared_tokens(32, 4)[15].warm)),
}
ABOUT_ATTENTION = {
    "the-second-chunk",
    "padding-read",
    "exp-of-ninety",
    "five-more",
    "large-channel",
    "scales-of-channels",
}
"""Worked out with torch, in tests/course/lessons/test_tensors.py."""
ABOUT_THE_ENGINE = {"who-is-asked", "three-answers", "ten-and-twenty", "usage-of-a-memory"}
"""The same, in tests/course/lessons/test_generation.py."""


def test_each_question_has_its_answer_worked_out_here():
    """A new question comes with the line above that proves it."""
    assert questions().keys() == ANSWERS.keys() | ABOUT_ATTENTION | ABOUT_THE_ENGINE


@pytest.mark.slow
@pytest.mark.parametrize("question_id", ANSWERS)
def test_the_answer_is_the_engine_s(question_id):
    assert questions()[question_id].answer == ANSWERS[question_id]()


@pytest.mark.slow
def test_what_the_questions_take_for_granted():
    """Numbers that stand in a question or in a reason."""
    assert sum(LENGTHS) == 4865
    assert waste_over_block_sizes(LENGTHS, [16])[0].num_slots // 16 == 306
    assert waste_over_block_sizes(LENGTHS, [16])[0].num_empty_slots == 31
    assert waste_over_block_sizes([237], [4096])[0].num_empty_slots == 3859
    assert hits_over_pool_sizes(small_trace(), [320, 640])[0].evictions == 268
    assert hits_over_pool_sizes(small_trace(), [320, 640])[1].evictions == 0
    last = follow_replay(small_trace(), 120, concurrency=8)[-1].memory
    assert (last.used, last.cached) == (80, 39)
    assert len(DATE.first) - len("Monday. ") == 61
    assert let_in(Greedy()) == 14
    assert waits() == [(1383, 3276), (483, 6792)]
    alone = {kind: find_with_holes([kind], 161, {0: holes}) for kind, holes in (("full", [8]), ("window 48", [1, 5]))}
    assert [found.num_tokens for found in alone.values()] == [128, 160]
    assert hits_of_the_second_round(12_000, GEMMA, 4) == [8192] * 4
    one, together = decode_step(LLAMA, H200, 1, 1000), decode_step(LLAMA, H200, 64, 1000)
    assert (f"{1e3 * one.seconds:.1f}", f"{64e3 * one.seconds:.0f}") == ("3.4", "216")
    assert 0.45 < together.kv / together.weights < 0.55
    assert (round(1e3 * request_cost(LLAMA, H200, 2000, 300, batch=64).prompt), round(1 / prompt_to_answer(1))) == (
        34,
        30,
    )


def test_a_choice_opens_to_its_reason_and_only_the_answer_is_right():
    """Nothing runs: `details` open in a page that was exported, and in a notebook that is not trusted."""
    page = Predict("dashboard")._repr_html_()
    assert page.count("<details") == page.count("<summary") == 4
    assert page.count("<strong>Yes.</strong>") == 1
    right = page.index("<strong>Yes.</strong>")
    assert page.rfind("<summary", 0, right) == page.index("<summary", page.index("<details"))  # the first choice
    assert page.index("43.75 %") < right < page.index("50 %")
    assert "<script" not in page


def test_what_the_engine_says_is_locked_until_a_choice_is_opened():
    """All of it stands in the page, below a line that goes away: a picture by itself, a text and a value as text."""
    picture = chain("abcd", "abcd", 4)
    page = Predict("dashboard", picture, "a < b", [1, 2])._repr_html_()
    locked = page.partition('<div class="kv-locked kv-trusted" hidden>')[2]
    assert locked.startswith(picture._repr_html_())
    assert locked.endswith(
        '>a &lt; b</pre><pre style="white-space:pre-wrap;font-family:monospace">[1, 2]</pre></div></div>'
    )
    assert page.index('class="kv-lock"') < page.index('class="kv-locked ')
    assert "kv-locked" not in Predict("dashboard")._repr_html_().replace(LOCK, "")


def test_a_picture_s_sentence_is_kept_with_its_question():
    assert seen("the-fifth") == "All of it, as long as there are four. With five and more, nothing."
    with pytest.raises(ValueError, match="has no sentence for the picture that answers dashboard"):
        seen("dashboard")


def test_an_unknown_question_names_the_known_ones():
    with pytest.raises(
        ValueError, match="no question 'nonsense'; there are: a-lost-message, after-a-minute, changed-places, dashboard"
    ):
        Predict("nonsense")
