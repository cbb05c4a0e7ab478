"""The numbers of the notebooks on slots, online softmax and quantisation."""

import math
import re
from pathlib import Path

import pytest
import torch

from mini_kv.course.lessons import tensors
from mini_kv.course.lessons.predict import questions
from mini_kv.course.lessons.quantization_error import errors
from mini_kv.course.lessons.tensors import (
    MISTAKES,
    STEPS,
    TABLES,
    errors_by_outlier,
    follow_blocks,
    share_of_the_second,
    split_everywhere,
    write_steps,
)
from mini_kv.story.scenario import ScenarioPlayer, load_scenario
from mini_kv.tests.test_predictions import ABOUT_ATTENTION


def test_the_steps_are_those_of_the_figure():
    """Tables and tokens are what the engine does with the scenario of the chapter and the notebook."""
    player = ScenarioPlayer(load_scenario("a-step-s-slots"))
    played = list(player.play())
    scheduled = [step.scheduled for step in played if step.scheduled is not None]
    assert [{name.lower(): n for name, n in step.items()} for step in scheduled[1:]] == list(STEPS)
    assert {name: player.kv.manager.get_block_ids(name.upper())[0] for name in TABLES} == TABLES


def test_written_rightly_every_request_reads_its_own_kv():
    memory = write_steps()
    assert memory.blocks[:6] == [
        ["", "", "", ""],
        ["a4", "a5", "a6", ""],
        ["a0", "a1", "a2", "a3"],
        ["b0", "b1", "b2", "b3"],
        ["b4", "b5", "b6", "b7"],
        ["b8", "b9", "", ""],
    ]
    assert (memory.overwritten, memory.wrong_reads) == ([], 0)


def test_positions_counted_from_the_step_write_over_the_beginning():
    memory = write_steps("positions from the step")
    assert memory.overwritten == [("a0", "a5"), ("a5", "a6"), ("b0", "b7"), ("b1", "b8"), ("b2", "b9")]
    assert memory.reads["a"] == ["a6", "a1", "a2", "a3", "a4", "", ""]
    assert memory.wrong_reads == 9


@pytest.mark.parametrize("mistake", ["entry for block", "another's row"])
def test_two_requests_that_are_sent_to_the_same_slots_write_over_each_other(mistake):
    memory = write_steps(mistake)
    assert ("b6", "a6") in memory.overwritten
    assert {new[0] for _, new in memory.overwritten} == {"a", "b"}
    assert memory.wrong_reads == 16


def test_padding_written_at_minus_one_is_not_read_yet():
    """It lies in the last slot of the last block, which a young pool has not handed out."""
    memory = write_steps("padding at -1")
    assert memory.blocks[-1] == ["", "", "", "pad"]
    assert (memory.overwritten, memory.wrong_reads) == ([], 0)


def test_an_unknown_mistake_names_the_known_ones():
    with pytest.raises(ValueError, match=f"no mistake 'x'; there are: {', '.join(MISTAKES)}"):
        write_steps("x")


def test_what_is_carried_is_the_softmax_of_what_was_seen():
    scores = [1.0, 2.0, 0.0, 1.0, 3.0, 2.0, 1.0, 0.0, 5.0]
    after = follow_blocks(scores, 4)
    assert [carried.largest for carried in after] == [2.0, 3.0, 5.0]
    for number, carried in enumerate(after, start=1):
        seen = scores[: 4 * number]
        weights = torch.softmax(torch.tensor(seen, dtype=torch.float64), 0).tolist()
        expected = [sum(weights[4 * block : 4 * block + 4]) for block in range(3)]
        assert carried.shares == pytest.approx(expected)
        assert carried.total == pytest.approx(sum(math.exp(score - max(seen)) for score in seen))


def test_the_second_half_weighs_what_a_sigmoid_says():
    assert share_of_the_second([0.0, 1.0, 5.0]) == pytest.approx([0.5, 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-5))])


def test_a_cut_anywhere_changes_nothing():
    """Before the first and behind the last token, too, where one half is empty."""
    found = split_everywhere(num_tokens=9)
    assert len(found) == 10
    assert max(found) < 1e-14


def test_a_large_channel_costs_those_who_share_its_scale():
    found = errors_by_outlier([1.0, 64.0])
    assert found["a scale a token"][1] > 10 * found["a scale a token"][0]
    assert found["a scale a channel"][1] == pytest.approx(found["a scale a channel"][0])


def test_the_chapter_quotes_what_the_command_prints():
    """`python -m mini_kv.course.lessons.quantization_error`: the book without torch has its table."""
    chapter = Path(__file__).parents[4] / "book" / "docs" / "chapters" / "the-kernel.md"
    quoted = re.findall(r"^(tensor|token|channel|fp8) +(.+)$", chapter.read_text(encoding="utf-8"), re.MULTILINE)
    for (scheme, cells), (expected_scheme, row) in zip(quoted, errors(60.0).items(), strict=True):
        assert scheme == expected_scheme
        found = [float(cell.rstrip("%")) / (100 if cell.endswith("%") else 1) for cell in cells.split()]
        assert found == pytest.approx(list(row.values()), rel=0.01)


def float32_exp(score):
    return "infinity" if torch.exp(torch.tensor(score)).isinf() else "a number"


ANSWERS = {
    "padding-read": lambda: str(write_steps("padding at -1").wrong_reads),
    "the-second-chunk": lambda: write_steps("positions from the step").reads["b"][0],
    "exp-of-ninety": lambda: float32_exp(90.0),
    "five-more": lambda: f"{share_of_the_second([5.0])[0]:.1%}",
    "large-channel": lambda: f"{errors_by_outlier([60.0])['a scale a token'][0]:.1%}",
    "scales-of-channels": lambda: f"{tensors.bytes_of_a_number('channel')[1]:.0%}",
}


def test_every_question_about_attention_has_its_proof_here():
    assert ANSWERS.keys() == ABOUT_ATTENTION


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_what_the_engine_says(name):
    assert questions()[name].answer == ANSWERS[name]()
