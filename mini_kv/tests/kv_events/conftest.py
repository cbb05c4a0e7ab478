"""These tests need the extra `events`, and torch. Without them they are not collected, and one test says so."""

import importlib.util
from pathlib import Path

PACKAGES = ("msgspec", "zmq", "torch", "safetensors")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
collect_ignore = [p.name for p in Path(__file__).parent.glob("test_*.py") if MISSING and "needs" not in p.name]
