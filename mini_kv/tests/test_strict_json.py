"""JSON that means one thing only: what is refused, and with which words."""

import json

import pytest

from mini_kv.core.strict_json import MAX_DEPTH, loads


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text", ['{"a": [1, -2.5e3, true, null, "ä"]}', "[]", "7", '{"a": {"b": 1}, "b": {"a": 1}}', nested(MAX_DEPTH)]
)
def test_what_means_one_thing_is_read_as_python_reads_it(text):
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ('{"a": 1, "b": 2, "a": 1}', "an object has the key 'a' twice"),
        ('[{"b": {"": 1, "": 2}}]', "an object has the key '' twice"),
        ("NaN", "NaN is not a number of JSON"),
        ('{"a": -Infinity}', "-Infinity is not a number of JSON"),
        ("[1e400]", "the number 1e400 is too large"),
        ("[-1e400]", "the number -1e400 is too large"),
        (nested(MAX_DEPTH + 1), "brackets are nested more than 64 deep"),
        (nested(100_000), "brackets are nested more than 64 deep"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "brackets are nested more than 64 deep"),
    ],
)
def test_what_does_not_is_refused(text, message):
    with pytest.raises(ValueError) as caught:
        loads(text)
    assert str(caught.value) == message


def test_a_number_of_thousands_of_digits_is_refused():
    with pytest.raises(ValueError, match="4300 digits"):
        loads("9" * 5000)
