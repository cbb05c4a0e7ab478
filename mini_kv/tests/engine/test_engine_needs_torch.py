"""Most tests of the engine need torch and safetensors; where one is missing, a skipped test says so."""

import importlib.util

import pytest


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_it_is_here(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the engine needs {package}: make test, or pip install {package}")
