"""The levers: a picture per position, made by the engine; one is there without scripts, a move shows another."""

import re

import pytest

from mini_kv.lessons.curves import small_trace
from mini_kv.lessons.lever import Lever
from mini_kv.lessons.levers import budget_lever, context_lever, pool_lever, waste_lever, window_lever
from mini_kv.planning.cost import H200, served
from mini_kv.traces.replay import replay


class Word:
    """A picture of a word."""

    def __init__(self, text):
        self.text = self.sentence = text

    def _repr_html_(self):
        return f"<p>{self.text}</p>"


def shown(markup):
    """Return the labels of the pictures, and those that are not hidden."""
    frames = re.findall(r'<div data-at="([^"]*)"( hidden)?>', markup)
    return [label for label, _ in frames], [label for label, hidden in frames if not hidden]


def test_one_picture_is_shown_and_the_others_wait():
    """The slider says where it stands; labels cannot become markup."""
    markup = Lever("size", {"one": Word("1"), "<two>": Word("2"), "three": Word("3")}, start=1)._repr_html_()
    assert shown(markup) == (["one", "&lt;two&gt;", "three"], ["&lt;two&gt;"])
    assert 'max="2" value="1" aria-valuetext="&lt;two&gt;"' in markup
    assert "<output><b>&lt;two&gt;</b></output>" in markup


@pytest.mark.parametrize(
    ("positions", "start", "said"), [(1, 0, "at least two positions, not 1"), (3, 3, "start at 3")]
)
def test_a_lever_that_cannot_move_is_refused(positions, start, said):
    with pytest.raises(ValueError, match=said):
        Lever("size", {str(number): Word("") for number in range(positions)}, start)


def sentences(lever):
    return {label: picture.sentence for label, picture in lever.pictures.items()}


def test_what_the_levers_say_is_what_the_engine_did():
    """Counted another way: a remainder, a replay, the blocks of a window."""
    told = sentences(waste_lever([237, 41]))
    assert told["16"] == "10 slots stay empty, 3.5% of what is set aside; the block tables have 18 entries."
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
