"""Most tests of the engine need torch; whoever has none is told so once."""

import importlib.util

import pytest


def test_torch_is_here():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the engine needs torch: make test, or pip install torch")
