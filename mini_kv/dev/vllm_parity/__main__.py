"""`python -m mini_kv.dev.vllm_parity`: run 200 requests on our engine and on vLLM, and compare every block."""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mini_kv.core.errors import ConfigError
from mini_kv.dev.vllm_parity.engine_comparison import AGREE, compare
from mini_kv.dev.vllm_parity.running_server import ask_at, live_run
from mini_kv.dev.vllm_parity.workload import (
    BLOCK_SIZE,
    LIMITS,
    NUM_BLOCKS,
    Run,
    Work,
    gap,
    make_model,
    make_work,
    our_run,
)
from mini_kv.engine.checkpoint import save_model, tiny_folder
from mini_kv.tools.serve.attach import Subscriber
from mini_kv.tools.serve.kv_events import decode_batch

VARIABLE = "MINI_KV_VLLM_PYTHON"
"""Names the Python of an environment with vLLM."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SETTINGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
    "block_size": BLOCK_SIZE,
    "num_gpu_blocks_override": NUM_BLOCKS,
    "max_model_len": LIMITS.max_model_len,
    "max_num_seqs": LIMITS.max_num_seqs,
    "max_num_batched_tokens": LIMITS.max_num_batched_tokens,
    "async_scheduling": False,  # one step at a time, as here: a listed deviation
}
"""vLLM's settings, equal to those of our engine."""


def ask_vllm(python: str, work: Work, num_batches: int) -> dict[str, Any]:
    """Return vLLM's answers, as `vllm_worker` writes them. Raises `RuntimeError` with its last output if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), make_model(), "{}", torch.float32, eos_token_id=0)
        task = {
            "prompts": work.prompts,
            "max_tokens": work.max_tokens,
            "settings": SETTINGS,
            "num_batches": num_batches,
        }
        ended = subprocess.run(
            [python, str(Path(__file__).with_name("vllm_worker.py")), folder],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            env=os.environ | ENVIRONMENT,
            check=False,
        )
    if ended.returncode != 0:
        raise RuntimeError(f"vLLM ended with status {ended.returncode}:\n{ended.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def as_run(answer: dict[str, Any]) -> Run:
    """Return vLLM's answer as a run."""
    batches = [decode_batch(bytes.fromhex(payload)).events for payload in answer["batches"]]
    return Run(f"vLLM {answer['version']}", answer["tokens"], answer["cached"], batches)


def read_recording(path: Path) -> dict[str, Any]:
    """Return the answer of a recorded run."""
    answer: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return answer


def _save_checkpoint(folder: Path) -> None:
    """Write the model, and mini_kv's own tokenizer, for a server to load."""
    tokenizer_json = (tiny_folder() / "tokenizer.json").read_text(encoding="utf-8")
    save_model(folder, make_model(), tokenizer_json, torch.float32, eos_token_id=0)


def _compare_with_server(args: argparse.Namespace, work: Work) -> list[str]:
    """Query a running server and return the comparison. Raises `ConfigError`, `OSError` and `RuntimeError`."""
    subscriber = Subscriber(args.events, args.replay)
    try:
        theirs, _ = live_run(work, ask_at(args.server), subscriber, args.model)
    finally:
        subscriber.close()
    return compare(work, our_run(work, one_at_a_time=True), theirs, gap)


def _compare_with_vllm(args: argparse.Namespace, work: Work) -> list[str]:
    """Run vLLM, or read a recording. Return the result of the comparison. Raises `RuntimeError` and `ConfigError`."""
    python = os.environ.get(VARIABLE)
    if args.recorded is None and python is None:
        raise ConfigError(f"set {VARIABLE} to a Python that has vLLM, or add --recorded FILE or --server URL")
    ours = our_run(work)
    if python is None or args.recorded is not None:
        answer = read_recording(args.recorded)
    else:
        answer = ask_vllm(python, work, len(ours.batches))
    if args.record is not None:
        args.record.write_bytes(gzip.compress(json.dumps(answer).encode(), mtime=0))
    return compare(work, ours, as_run(answer), gap)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and return 0 if they agree, 1 if they differ, 2 without an engine to compare with."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.vllm_parity", description=__doc__)
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="compare with a recorded run, without vLLM")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write vLLM's run to a file")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="only write the model, for a server to load")
    parser.add_argument("--server", metavar="URL", help="compare with a server, its cache empty: http://HOST:PORT")
    parser.add_argument("--events", default="tcp://127.0.0.1:5557", metavar="ENDPOINT", help="the server's KV events")
    parser.add_argument("--replay", metavar="ENDPOINT", help="the address that sends missed batches again")
    parser.add_argument("--model", default="tiny", metavar="NAME", help="the model's name there (default: tiny)")
    args = parser.parse_args(argv)
    if args.checkpoint is not None:
        _save_checkpoint(args.checkpoint)
        return 0
    compared = _compare_with_vllm if args.server is None else _compare_with_server
    try:
        lines = compared(args, make_work())
    except (ConfigError, OSError, RuntimeError) as error:
        print(f"vllm_parity: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0 if lines[0] == AGREE else 1


if __name__ == "__main__":
    sys.exit(main())
