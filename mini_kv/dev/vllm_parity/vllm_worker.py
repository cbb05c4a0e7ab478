"""Runs prompts on vLLM, in its own Python: `python vllm_worker.py FOLDER`. Imports nothing of this project.

Standard input has one JSON object: `prompts`, `max_tokens` (one per prompt), `settings` of vLLM's `LLM`. Standard
output gets one: vLLM's version, the tokens of each answer, the number of cached tokens of each prompt, and all batches
of KV events as hexadecimal text. vLLM's own output goes to standard error.
"""

import json
import os
import sys
import tempfile
from typing import Any


def main() -> None:
    """Run the prompts."""
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.load(sys.stdin)
    import torch
    import vllm  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        replay = f"ipc://{folder}/replay"
        events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events", "replay_endpoint": replay}
        llm: Any = vllm.LLM(model=sys.argv[1], kv_events_config=events, **task["settings"])
        params = [
            vllm.SamplingParams(max_tokens=most, temperature=0, ignore_eos=True, detokenize=False)
            for most in task["max_tokens"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answer = {
            "version": vllm.__version__,
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
            "batches": [payload.hex() for payload in _all_batches(replay, task["num_batches"])],
        }
    print(json.dumps(answer), file=answers_to, flush=True)


def _all_batches(endpoint: str, at_least: int) -> list[bytes]:
    """Return every published batch. Wait up to ten seconds for `at_least` batches."""
    import time

    import zmq

    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.connect(endpoint)
    found: list[bytes] = []
    for _ in range(100):
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        found = []
        while payload := socket.recv_multipart()[-1]:
            found.append(payload)
        if len(found) >= at_least:
            break
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    main()
