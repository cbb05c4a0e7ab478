"""The notebooks' levers: what each position says, counted another way. They need matplotlib and torch."""

import pytest

from mini_kv.course.lessons.curves import small_trace
from mini_kv.course.lessons.levers import (
    budget_lever,
    context_lever,
    mistake_lever,
    outlier_lever,
    pool_lever,
    score_lever,
    storm_lever,
    waste_lever,
    window_lever,
)
from mini_kv.tools.planning.cost import H200, served
from mini_kv.tools.traces.replay import replay

pytestmark = pytest.mark.slow


def sentences(lever):
    return {label: picture.sentence for label, picture in lever.pictures.items()}


def test_what_the_levers_say_is_what_the_engine_did():
    """Counted another way: a remainder, a replay, the blocks of a window."""
    told = sentences(waste_lever([237, 41, 1180]))
    assert told["16"] == "14 slots stay empty, 1.0% of the reserved slots; the block tables have 92 entries."
    trace = small_trace()
    for num_blocks, sentence in sentences(pool_lever(trace)).items():
        assert (
            sentence
            == f"{replay(trace, int(num_blocks)).hit_rate_of_prompt_tokens:.1%} of all prompt tokens are found."
        )
    steps = [int(sentence.split()[4]) for sentence in sentences(budget_lever()).values()]
    assert steps == [50, 35, 32, 30, 28, 28, 27, 27]
    for window, sentence in sentences(window_lever()).items():
        assert sentence.endswith(f"it never held more than {min(9, int(window) // 16 + 1)}.")
    llama = served("llama-3-8b", num_parameters=8.03e9, num_heads=32)
    assert sentences(context_lever(llama, H200))["8,000"] == (
        "At most 3,694 tokens per second, with 64 requests in a step."
    )


def test_the_levers_of_tensors():
    """Four mistakes and none; nine scores; seven sizes of a channel: what each position says."""
    said = [
        [picture.sentence for picture in lever.pictures.values()]
        for lever in (mistake_lever(), score_lever([0, 0, 0, 0], block_size=2), outlier_lever())
    ]
    assert [sentence.split()[0] for sentence in said[0]] == ["No", "5", "6", "6", "No"]
    assert said[1][0] == "In the end the last block is worth 50% of the result."
    assert said[2][-1] == "The largest error of the others is 39.3%, with a scale for all."


def test_the_lever_of_the_storm():
    """Each position is a run of its own; the challenge is the last one without a preemption."""
    lever = storm_lever()
    told = {label: int(sentence.split()[0]) for label, sentence in sentences(lever).items()}
    assert told == {"8": 0, "12": 0, "16": 0, "20": 4, "24": 12, "32": 29, "48": 28, "64": 40}
    assert lever.met == ["16"]
