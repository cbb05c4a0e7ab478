"""Most of these tests need torch and safetensors. Without them they are not collected, and one test says so."""

import importlib.util
from pathlib import Path

MISSING = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
NEED_NEITHER = {"test_engine_needs_torch.py", "test_tokenizer.py"}
collect_ignore = [p.name for p in Path(__file__).parent.glob("test_*.py") if MISSING and p.name not in NEED_NEITHER]
