"""The tests of the Hugging Face adapter need transformers; where it is missing, one skipped test says so."""

import importlib.util

import pytest


def test_transformers_is_here():
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the Hugging Face adapter needs {name}: make test, or in a checkout, pip install -e '.[hf]'")
