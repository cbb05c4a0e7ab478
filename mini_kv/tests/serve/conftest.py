"""These tests need torch and a web server. Without them none is collected, and `test_serve_needs.py` says so."""

import importlib.util
from pathlib import Path

import pytest

NEEDED = ("torch", "safetensors", "starlette", "uvicorn", "prometheus_client", "openai")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore = [
    p.name for p in Path(__file__).parent.glob("test_*.py") if MISSING and p.name != "test_serve_needs.py"
]

if not MISSING:
    from mini_kv.tests.serve.endpoint import Endpoint

    @pytest.fixture
    def serve():
        """Make endpoints; when the test is done they end, and no block is held."""
        made = []

        def make(**options):
            made.append(Endpoint(**options))
            return made[-1]

        yield make
        for endpoint in made:
            endpoint.end()

    @pytest.fixture(scope="module")
    def shared():
        """An endpoint for tests that only ask."""
        endpoint = Endpoint()
        yield endpoint
        endpoint.end()
