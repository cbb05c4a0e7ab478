"""The slider of a lever: one picture is there without scripts, the others wait."""

import re

import pytest

from mini_kv.course.lessons.lever import Lever


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
