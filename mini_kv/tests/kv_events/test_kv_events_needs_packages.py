"""What the events need is there."""

import importlib.util

import pytest


def test_events_need_msgspec_and_zmq_and_an_engine_that_has_some():
    for package in ("msgspec", "zmq", "torch", "safetensors"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"KV events need {package}: make test")
