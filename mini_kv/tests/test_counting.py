"""What counts as a line of code: the page of the engine and `make report` show these numbers."""

import doctest

import pytest
from mini_kv_book import source_text


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# a comment\n\nx = 1  # another\n", 1),
        ('"""A docstring\n\nof three lines."""\nx = 1\n', 1),
        ("class A:\n    x: int\n    'a note below an attribute'\n", 2),
        ("text = '''a string\nthat is\ndata'''\n", 3),
        ("call(\n    1,\n\n    # why\n    2,\n)\n", 4),
    ],
)
def test_a_code_line_holds_code(source, lines):
    assert len(source_text.code_lines(source)) == lines


def test_the_example_in_its_docstring():
    assert doctest.testmod(source_text).failed == 0
