"""Three of these files need torch, one safetensors, one matplotlib too. Without them they are not collected."""

import importlib.util

MISSING = {name for name in ("torch", "safetensors", "matplotlib") if importlib.util.find_spec(name) is None}
collect_ignore = ["test_tensors.py"] * ("torch" in MISSING)
collect_ignore += ["test_generation.py"] * bool(MISSING & {"torch", "safetensors"})
collect_ignore += ["test_levers.py"] * bool(MISSING & {"torch", "matplotlib"})
