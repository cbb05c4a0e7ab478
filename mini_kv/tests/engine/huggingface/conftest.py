"""These tests need torch and transformers. Without them none is collected, and `test_needs_transformers.py` says so."""

import importlib.util
from pathlib import Path

import pytest

HAS_BOTH = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
collect_ignore = [] if HAS_BOTH else [p.name for p in Path(__file__).parent.glob("test_*.py")]
if "test_needs_transformers.py" in collect_ignore:
    collect_ignore.remove("test_needs_transformers.py")

if HAS_BOTH:
    import torch

    from mini_kv.tests.engine.huggingface import checkpoints

    @pytest.fixture(scope="session")
    def made(tmp_path_factory):
        """A checkpoint of each architecture with what transformers says to its prompts, made when first asked for."""
        known = {}

        def get(name):
            if name not in known:
                known[name] = checkpoints.make(name, tmp_path_factory.mktemp(name))
            return known[name]

        return get

    @pytest.fixture(autouse=True, scope="session")
    def one_thread():
        """Tensors this small are done before a second thread has woken up."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)
