"""Predictions: what can be measured on a step, and that the right answer is never a matter of opinion."""

import pytest

from mini_kv.story.scenario import ScenarioError, ScenarioPlayer, load_scenario, parse_scenario, scenario_names
from mini_kv.story.step_questions import (
    MEASURES,
    OF_ONE_BLOCK,
    all_measures,
    measure_step,
    parse_prediction,
    right_choice,
)

QUESTION = {"ask": "How many?", "measure": "new_blocks", "choice": [{"value": 1}, {"value": 8, "if_true": "so"}]}


def played(name):
    """Return the steps of a scenario of the package, played."""
    return list(ScenarioPlayer(load_scenario(name)).play())


def one_prefill(tokens):
    """Return a scenario of one step, in a pool of two blocks of two tokens."""
    head = 'title = "T"\nnum_blocks = 3\nblock_size = 2\n'
    return f'{head}[[step]]\ncall = "prefill"\nrequest = "A"\ntokens = "{tokens}"\nsay = "a"\n'


def test_every_measure_on_a_step_that_revives_and_evicts():
    """D finds 16 of its 20 tokens, takes block 7 from its old prefix, and leaves 6 at the front of the queue."""
    step = played("share-and-evict")[6]
    assert {name: measure_step(name, step.spans, step.frame) for name in MEASURES} == {
        "new_blocks": 1,
        "adopted_blocks": 4,
        "hit_tokens": 16,
        "computed_tokens": 4,
        "num_evicted": 1,
        "allocated": [7],
        "shared": [],
        "revived": [1, 2, 3, 4],
        "freed": [],
        "evicted": [7],
        "free_blocks": 5,
        "free_order": [6, 5, 9, 8, 10],
        "next_free": 6,
        "last_free": 10,
        "named_blocks": 10,
        "twins": 0,
        "refused": False,
    }
    assert [measure_step(f"{name} of 9", step.spans, step.frame) for name in OF_ONE_BLOCK] == [0, True, 3]
    assert [measure_step(f"{name} of 7", step.spans, step.frame) for name in OF_ONE_BLOCK] == [1, True, 0]


def test_measures_of_sharing_and_freeing_and_of_a_refusal():
    """What the step above has none of."""
    steps = played("share-and-evict")
    assert measure_step("shared", steps[1].spans, steps[1].frame) == [1, 2, 3, 4, 5, 6, 7]
    assert [measure_step("twins", step.spans, step.frame) for step in steps[:2]] == [0, 2]  # 8 and 9: the same tokens
    assert measure_step("freed", steps[3].spans, steps[3].frame) == [9, 7, 6, 5, 4, 3, 2, 1]
    (refused,) = ScenarioPlayer(parse_scenario("full", one_prefill("1..9"))).play()
    assert measure_step("refused", refused.spans, refused.frame) is True
    assert measure_step("computed_tokens", refused.spans, refused.frame) == 0


def test_a_queue_that_is_empty_has_no_ends():
    """0 stands for no block: the null block is never in the queue."""
    (full,) = ScenarioPlayer(parse_scenario("full", one_prefill("1..4"))).play()
    assert measure_step("next_free", full.spans, full.frame) == measure_step("last_free", full.spans, full.frame) == 0


@pytest.mark.parametrize("name", scenario_names())
def test_every_question_of_the_package_has_one_right_answer(name):
    """Measured on the played step; each of the others says what would have had to be true."""
    asked = [step for step in played(name) if step.step.predict is not None]
    assert asked, f"{name} asks nothing"
    for step in asked:
        assert step.step.predict is not None and step.right_choice is not None
        measured = measure_step(step.step.predict.measure, step.spans, step.frame)
        same = [choice.value == measured for choice in step.step.predict.choices]
        assert same.index(True) == step.right_choice
        assert [bool(choice.if_true) for choice in step.step.predict.choices] == [not right for right in same]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asks": 1}, "unknown asks"),
        ({"ask": ""}, "ask is missing"),
        ({"choice": []}, "choice is missing"),
        ({"measure": "blocks"}, f"measure is 'blocks'; there are: {', '.join(all_measures())}"),
        ({"measure": "ref_cnt"}, "measure is 'ref_cnt'"),
        ({"measure": "new_blocks of 3"}, "measure is 'new_blocks of 3'"),
        ({"choice": [{"value": 1}]}, "there must be two choices or more"),
        ({"choice": [{"value": 1}, {"value": 1}]}, "there must be two choices or more, all different"),
        ({"choice": [{"value": "1"}, {"value": 2}]}, "a choice has the value '1'"),
        ({"choice": [{"value": 1, "so": 2}, {"value": 2}]}, "a choice has unknown so"),
    ],
)
def test_a_question_that_cannot_be_asked(change, message):
    """What is wrong, and what there is to choose from."""
    with pytest.raises(ValueError) as caught:
        parse_prediction({**QUESTION, **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([{"value": 2, "if_true": "a"}, {"value": 8, "if_true": "b"}], "new_blocks is 1, and 0 choices say so"),
        ([{"value": True}, {"value": 8, "if_true": "b"}], "new_blocks is 1, and 0 choices say so"),
        ([{"value": 1}, {"value": 8}], "the choice '8' is wrong and has no if_true"),
        ([{"value": 1, "if_true": "a"}, {"value": 8, "if_true": "b"}], "the choice '1' is right and has an if_true"),
    ],
)
def test_an_answer_that_the_engine_does_not_give(choices, message):
    """The engine decides."""
    step = played("share-and-evict")[1]
    with pytest.raises(ValueError) as caught:
        right_choice(parse_prediction({**QUESTION, "choice": choices}), step.spans, step.frame)
    assert str(caught.value) == message


def test_a_scenario_says_where_its_question_is_wrong():
    """When it is read, or when it is played."""
    head = one_prefill("1")
    asks = '[step.predict]\nask = "?"\nmeasure = "new_blocks"\nchoice = [{value = 3, if_true = "a"}, {value = 2}]'
    with pytest.raises(ScenarioError) as caught:
        parse_scenario("bad", head + asks.replace("new_blocks", "blocks"))
    assert str(caught.value).startswith("bad, step 1, predict: measure is 'blocks'")
    with pytest.raises(ScenarioError) as caught:
        list(ScenarioPlayer(parse_scenario("bad", head + asks)).play())
    assert str(caught.value) == "bad, step 1: new_blocks is 1, and 0 choices say so"
