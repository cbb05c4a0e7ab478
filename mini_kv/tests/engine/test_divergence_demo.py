"""The hour of the chapter and the notebook on the finale, with each of its changed parts."""

import pytest

from mini_kv.course.finale.divergence_demo import CHANGED, DivergenceDemo, engines_story
from mini_kv.course.finale.integration import model_checks
from mini_kv.course.finale.steps import Run
from mini_kv.course.given.faulty_parts import AllOrNothing
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.lessons.levers import swap_lever
from mini_kv.course.lessons.notebook import Beside

QUEUE, LOOKUP, SCHEDULER = "lab-02 FreeKVCacheBlockQueue", "lab-07 FullAttentionManager", "lab-11 Scheduler"


def first(name):
    """Return the number of the first step that differs, and what differs in it."""
    divergence = DivergenceDemo(name).divergence
    return (divergence.its.number, divergence.what) if divergence else None


def test_each_wrong_part_differs_and_the_right_one_does_not():
    assert {name: first(name) for name in CHANGED} == {
        "turns the list": (5, "the free queue"),
        "all or nothing": (11, "the tokens that were found"),
        "no parent": (57, "the block hashes"),
        "lets the next pass": (3, "the waiting requests"),
        "other hashes": None,
    }
    assert DivergenceDemo("other hashes").report == "72 steps: the same cache, batches and tokens as mini_kv's."


def test_a_wrong_hash_may_be_the_only_difference_of_an_hour():
    assert DivergenceDemo("no parent").first_steps == {}


def test_the_first_difference_is_six_steps_before_the_first_lost_hit():
    steps = DivergenceDemo("turns the list").first_steps
    assert (steps["the free queue"], steps["the block tables"], steps["the tokens that were found"]) == (5, 7, 11)
    assert [*steps.values()] == sorted(steps.values())


@pytest.mark.parametrize(
    ("name", "sentence", "part"),
    [
        ("turns the list", "Step 5 differs: the free queue. Place 3: block 11 in mini_kv, block 1 in yours.", QUEUE),
        (
            "all or nothing",
            "Step 11 differs: the tokens that were found. B: 28 tokens in mini_kv, 0 tokens in yours.",
            LOOKUP,
        ),
        (
            "no parent",
            "Step 57 differs: the block hashes. Block 1: hash 48 in mini_kv, hash 33 in yours."
            " Hashes are numbered by their first use.",
            "lab-04 get_request_block_hasher",
        ),
        ("lets the next pass", "Step 3 differs: the waiting requests. Place 1: J in mini_kv, G in yours.", SCHEDULER),
    ],
)
def test_the_report_begins_with_the_value_on_both_sides_and_the_part(name, sentence, part):
    demo = DivergenceDemo(name)
    first, second, *rest = demo.report.splitlines()
    assert first == sentence
    assert second.startswith(f"With {part} from mini_kv the run is right: faulty_parts.py:")
    assert demo.difference is not None
    assert demo.difference.place == (demo.parts[part].source, demo.parts[part].line)
    assert [line for line in rest if not line.startswith(" ")] == ["", "mini_kv:", "", "yours:"]


def test_of_two_wrong_parts_none_helps_alone():
    both = DivergenceDemo("turns the list", "all or nothing").difference
    assert both is not None
    _, said, one, other = both.said
    assert said == "No single part helps. These are wrong even alone:"
    assert [line.partition(":")[0] for line in (one, other)] == [f"  {QUEUE}", f"  {LOOKUP}"]


def test_both_sides_are_equal_until_the_first_difference():
    its, mine = DivergenceDemo("turns the list").sides(more=6)
    assert (its["at"], mine["at"], len(its["steps"]), len(mine["steps"])) == (5, 5, 11, 11)
    same = [a == b for a, b in zip(its["steps"], mine["steps"], strict=True)]
    assert same.index(False) == 4
    whole = engines_story()
    assert (len(whole["steps"]), whole["num_blocks"]) == (72, 14)
    assert Beside(its, mine)._repr_html_().count("</kv-story></div>") == 2


def test_one_position_of_the_lever_is_right():
    lever = swap_lever(DivergenceDemo("turns the list").swaps())
    assert lever.met == [QUEUE]
    assert {name: picture.sentence for name, picture in lever.pictures.items()} == {
        "none": "Step 5 differs: the free queue.",
        QUEUE: "72 steps, all equal to the engine's.",
        "lab-04 get_request_block_hasher": "Step 5 differs: the free queue.",
        LOOKUP: "Step 5 differs: the free queue.",
        "lab-11 Scheduler": "Step 5 differs: the free queue.",
    }


@pytest.mark.slow
def test_a_lookup_that_finds_less_changes_no_word():
    """With the small model, as in the chapter."""
    pytest.importorskip("torch", reason="the small model needs PyTorch: make test")
    [workload] = model_checks(seed=0)[0].workloads
    right, wrong = Run(workload).complete(), Run(workload, OwnParts(full_attention=AllOrNothing)).complete()
    assert right.answers == wrong.answers
    assert len(right.answers) == 36
    found = [sum(sum(step.found.values()) for step in run.steps) for run in (right, wrong)]
    assert found == [1416, 800]


def test_an_unknown_part_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=f"no part 'nonsense'; there are: {', '.join(CHANGED)}"):
        DivergenceDemo("nonsense")
