"""What `mini-kv serve` is tested with; where a package is missing, a skipped test says so."""

import importlib.util

import pytest


@pytest.mark.parametrize("package", ["torch", "safetensors", "starlette", "uvicorn", "prometheus_client", "openai"])
def test_it_is_here(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the server's tests need {package}: make test, or pip install {package}")
