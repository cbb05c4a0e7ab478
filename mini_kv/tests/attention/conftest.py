"""These tests need torch. Without it none of them is collected, and `test_needs_torch.py` says so."""

import importlib.util
import os
from pathlib import Path

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore = [] if HAS_TORCH else [p.name for p in Path(__file__).parent.glob("test_*.py")]
if "test_needs_torch.py" in collect_ignore:
    collect_ignore.remove("test_needs_torch.py")

# Beside a GPU, too: the tests' tensors are on the CPU, and `mini-kv doctor --gpu` asks what only a GPU can answer.
os.environ["TRITON_INTERPRET"] = "1"  # read when the first kernel is defined, and then for good
