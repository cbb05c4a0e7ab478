"""What the chapters on the engine and notebooks 13 to 15 show."""

from dataclasses import replace

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.course.lessons.challenge import CHALLENGES
from mini_kv.course.lessons.generation import (
    TEXTS,
    CountedPast,
    alone_and_in_company,
    answer,
    ask_in_turn,
    guesses,
    play,
    run_prompts,
    scenario_prompt,
    three_pasts,
    time_of_batches,
    time_of_words,
    watch,
    with_guesses,
)
from mini_kv.course.lessons.notebook import PromptPlayer
from mini_kv.course.lessons.predict import questions
from mini_kv.course.lessons.watched import ForgetsNewBlocks, WatchedEngine, WatchedRunner, tiny
from mini_kv.engine.contiguous import NoCache, generate_alone
from mini_kv.engine.sampling import SamplingParams
from mini_kv.story.scenario import ScenarioPlayer, load_scenario
from mini_kv.tests.test_predictions import ABOUT_THE_ENGINE

SCENARIO = load_scenario("from-prompt-to-text")


def test_the_figure_and_the_engine_make_the_same_calls_and_leave_the_same_memory():
    """The scenario's own player knows no model. Lines, tables and queue are the engine's, step for step."""
    by_itself, by_the_engine = list(ScenarioPlayer(SCENARIO).play()), list(play(SCENARIO))
    assert [step.lines for step in by_the_engine] == [step.lines for step in by_itself]
    for one, other in zip(by_itself, by_the_engine, strict=True):
        assert (one.scheduled, one.right_choice) == (other.scheduled, other.right_choice)
        assert (one.frame.tables, one.frame.free_order) == (other.frame.tables, other.frame.free_order)
        assert [span.call for span in one.spans] == [span.call for span in other.spans]


def test_the_captions_end_with_what_is_asked_and_what_is_said():
    said = [step.step.say for step in play(SCENARIO)]
    _, tokenizer = tiny()
    assert said[0].endswith(f"A: “{tokenizer.decode(scenario_prompt(range(10)))}”")
    assert "The model says: A “" in said[1]
    assert "\n" not in "".join(said)


def test_step_three_is_a_word_of_a_a_word_of_b_and_ten_tokens_of_c():
    batch = watch(SCENARIO)[2].batch
    assert "".join(token.request_id for token in batch) == "AB" + "C" * 10
    assert [token.position for token in batch] == [11, 15, *range(10)]
    assert [token.slot for token in batch] == [15, 23, *range(24, 34)]
    assert [token.is_asked for token in batch] == [True, True] + [False] * 10
    assert "".join(token.text for token in batch[2:]) == tiny()[1].decode(scenario_prompt(range(200, 210)))


def test_a_scenario_with_a_smaller_pool_is_played_with_its_preemptions():
    tight = replace(SCENARIO, num_blocks=11, steps=tuple(replace(step, predict=None) for step in SCENARIO.steps))
    preempted = [step.preempted for step in play(tight)]
    assert preempted == [step.preempted for step in ScenarioPlayer(tight).play()]
    assert any(preempted)


@pytest.mark.slow
def test_all_pasts_say_the_same_and_pay_differently():
    told = three_pasts(TEXTS[0], 12)
    num_prompt_tokens = len(tiny()[1].encode(TEXTS[0]))
    lengths = range(num_prompt_tokens, num_prompt_tokens + 12)
    assert list(told) == ["no cache", "contiguous", "blocks"]
    assert len({tuple(past.token_ids) for past in told.values()}) == 1
    assert [past.num_computed_tokens for past in told.values()] == [sum(lengths), lengths[-1], lengths[-1]]


@pytest.mark.slow
def test_guesses_save_steps_and_change_no_word():
    told = with_guesses("A block is", 40)
    (steps, text), (fewer, same) = told.values()
    assert text == same
    assert (steps, fewer) == (40, 27)


def test_company_changes_the_rounding_and_not_the_word():
    found = alone_and_in_company(TEXTS[0], TEXTS[1:], bits=64)
    assert found.largest_difference < 1e-9 < found.gap
    assert alone_and_in_company(TEXTS[0], TEXTS[1:]).largest_difference < 1e-3


def test_guesses_are_in_order_and_sharper_when_it_is_cold():
    warm, cold = guesses(TEXTS[2], 4), guesses(TEXTS[2], 4, temperature=0.5)
    assert [word for word, _ in warm] == [word for word, _ in cold]
    assert sorted((p for _, p in warm), reverse=True) == [p for _, p in warm]
    assert cold[0][1] > warm[0][1]


def test_a_mistake_is_found_by_poison_and_by_nothing_else():
    right, wrong = answer(TEXTS[0], 8), answer(TEXTS[0], 8, ForgetsNewBlocks)
    assert right and wrong and "Error" not in right + wrong
    assert answer(TEXTS[0], 8, WatchedRunner, debug_poison=True) == right
    assert answer(TEXTS[0], 8, ForgetsNewBlocks, debug_poison=True).startswith("PoisonedKVError: request 'A': NaN")


def test_the_second_of_two_equal_prompts_finds_it_and_the_line_counts_both():
    cold, warm = ask_in_turn([TEXTS[0] * 2] * 2)
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == (warm.num_tokens - 1) // 16 * 16 > 0
    assert cold.line.endswith("Prefix cache hit rate: 0.0%")
    assert warm.line.endswith(f"Prefix cache hit rate: {warm.num_cached_tokens / 2 / warm.num_tokens:.1%}")
    assert [asked.num_cached_tokens for asked in ask_in_turn([TEXTS[0]] * 2, enable_prefix_caching=False)] == [0, 0]


@pytest.mark.slow
def test_the_readers_prompts_share_what_they_have_in_common():
    prompts = [TEXTS[0], TEXTS[0], TEXTS[2]]
    cached, not_cached = run_prompts(prompts), run_prompts(prompts, enable_prefix_caching=False)
    assert cached.texts == not_cached.texts
    assert list(cached.texts) == ["A", "B", "C"]
    assert all(text.startswith(prompt) for text, prompt in zip(cached.texts.values(), prompts, strict=True))
    assert cached.num_prompt_tokens == not_cached.num_prompt_tokens
    assert cached.num_computed_tokens < not_cached.num_computed_tokens


def test_a_prompt_that_can_never_fit_is_refused():
    with pytest.raises(ConfigError, match=r"needs .* blocks"):
        run_prompts([TEXTS[0]], num_blocks=3)


def sampled_three_times() -> WatchedEngine:
    watched = WatchedEngine(num_blocks=14)
    params = SamplingParams(max_tokens=6, temperature=0.8, seed=3, ignore_eos=True)
    watched.engine.add_request("A", scenario_prompt(range(10)), params, n=3)
    watched.step()
    watched.step()
    return watched


def passes_without_a_cache() -> int:
    past = CountedPast(NoCache())
    generate_alone(tiny()[0], scenario_prompt(range(10)), 20, past)
    return past.num_computed_tokens


def usage_said_after_ten() -> str:
    line = ask_in_turn([TEXTS[0] * 3] * 10)[-1].line
    assert "Prefix cache hit rate: 7" in line or "Prefix cache hit rate: 8" in line
    return line.partition("KV cache usage: ")[2].partition(",")[0].replace("%", " %")


ANSWERS = {
    "who-is-asked": lambda: str(sum(token.is_asked for token in watch(SCENARIO)[2].batch)),
    "three-answers": lambda: str(13 - sampled_three_times().kv.block_pool.num_free_blocks),
    "ten-and-twenty": lambda: str(passes_without_a_cache()),
    "usage-of-a-memory": usage_said_after_ten,
}


@pytest.mark.slow
def test_the_answers_of_the_notebooks_are_the_engine_s():
    assert ANSWERS.keys() == ABOUT_THE_ENGINE
    assert {name: questions()[name].answer for name in ANSWERS} == {name: work() for name, work in ANSWERS.items()}


def test_words_and_batches_are_timed_one_by_one():
    times = time_of_words(3)
    assert {name: len(words) for name, words in times.items()} == {"no cache": 3, "contiguous": 3}
    assert all(ms > 0 for words in times.values() for ms in words)
    assert len(time_of_batches((1, 2), num_words=2)) == 2


@pytest.mark.notebooks
def test_a_field_for_prompts_says_what_the_engine_says_and_keeps_the_figure_when_it_refuses():
    player = PromptPlayer(run_prompts, [TEXTS[0], TEXTS[0]])
    cached, not_cached = (run_prompts([TEXTS[0]] * 2, 25, caching) for caching in (True, False))
    assert f"<b>{cached.num_computed_tokens}</b> tokens went through the model" in player.said.value
    player.caching.value = False
    assert f"<b>{not_cached.num_computed_tokens}</b> tokens went through the model" in player.said.value
    shown = player.figure.story
    player.pool.value = 5
    assert "the pool has 5" in player.said.value
    assert player.figure.story == shown


def test_the_challenges_of_prompts():
    """A pool that is too small for two answers; a prompt between two that are alike, which evicts all of the first."""
    texts = ["A block that no request holds is free. Who?", "A block that no request holds is free. Why?"]
    thrown_out, nothing_spared = (CHALLENGES[name].met for name in ("thrown out", "nothing spared"))
    roomy, tight = run_prompts(texts, 33), run_prompts(texts, 10, max_tokens=12)
    assert (thrown_out(roomy), thrown_out(tight)) == (False, True)
    assert (roomy.num_cached_tokens, nothing_spared(roomy)) == (8, False)
    assert not nothing_spared(run_prompts(texts, 33, enable_prefix_caching=False))
    between = ["A block that no request holds is free.", "The scheduler counts tokens and blocks, never keys."]
    assert nothing_spared(run_prompts([*between, "A block that no request holds is gone."], 5, max_tokens=4))
