"""The tests of attention over blocks need torch; where it is missing, one skipped test says so."""

import importlib.util

import pytest


def test_torch_is_here():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("attention over blocks needs torch: make test, or pip install torch")
