"""These tests need torch. Without it none of them is collected, and `test_engine_needs_torch.py` says so."""

import importlib.util
from pathlib import Path

HAS_TORCH = importlib.util.find_spec("torch") is not None
WITHOUT_TORCH = {"test_engine_needs_torch.py", "test_tokenizer.py"}
collect_ignore = (
    [] if HAS_TORCH else [p.name for p in Path(__file__).parent.glob("test_*.py") if p.name not in WITHOUT_TORCH]
)
