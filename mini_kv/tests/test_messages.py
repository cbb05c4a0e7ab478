"""The parts of messages that all commands share: lists of names that are cut, and lines that are wrapped."""

import io

import pytest

from mini_kv.messages import choices, listed, wrapped

NAMES = [f"model-{letter}" for letter in "abcdefghij"]


def test_a_short_list_of_names_is_printed_whole():
    assert choices("model-z", NAMES[:3]) == "did you mean model-c? there are: model-a, model-b, model-c"


def test_a_long_list_of_names_is_cut_and_says_where_all_of_them_are():
    assert listed(NAMES, "mini-kv plan --list") == (
        "model-a, model-b, model-c, model-d, model-e, model-f, model-g, model-h ... and 2 more: mini-kv plan --list"
    )


def test_a_long_list_begins_with_the_names_most_like_the_typed_one():
    names = [*NAMES, "sieve"]
    told = "did you mean sieve? there are: sieve, model-a, model-b, model-c, model-d, model-e, model-f, model-g"
    assert choices("siev", names) == f"{told} ... and 3 more"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("short", ["short"]),
        ("", [""]),
        (
            "speed        at most 1,000 tokens/s from 20 requests",
            ["speed        at most 1,000 tokens/s from", "             20 requests"],
        ),
        ("a" * 60, ["a" * 60]),
    ],
    ids=["short", "empty", "label", "one long word"],
)
def test_a_line_is_wrapped_at_the_width_of_the_terminal_below_its_text(line, lines, monkeypatch):
    monkeypatch.setenv("COLUMNS", "41")
    assert list(wrapped([line], Terminal())) == lines


def test_in_a_file_a_sentence_is_one_line():
    assert list(wrapped(["word " * 30], io.StringIO())) == ["word " * 30]
