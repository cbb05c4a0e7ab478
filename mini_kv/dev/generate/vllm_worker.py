"""Answers prompts with vLLM, in its own Python: `python vllm_worker.py FOLDER`. Imports nothing of this project.

Standard input has one line of JSON per run, `[prompts, new_tokens]`. Standard output gets one per run,
`[seconds of CPU time, answers]`. vLLM's own output goes to standard error.
"""

import json
import os
import sys
import time
from typing import Any

SETTINGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "block_size": 32,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "disable_log_stats": True,
}
"""The same settings as our engine's. Blocks of 32 tokens are the smallest that vLLM supports on every CPU."""


def main() -> None:
    """Load the model and answer until the input ends."""
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    llm: Any = LLM(model=sys.argv[1], **SETTINGS)
    torch.set_num_threads(1)
    print("ready", file=answers_to, flush=True)
    for line in sys.stdin:
        prompts, new_tokens = json.loads(line)
        params = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True, detokenize=False)
        llm.reset_prefix_cache()
        begin = time.process_time()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        seconds = time.process_time() - begin
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps([seconds, answers]), file=answers_to, flush=True)


if __name__ == "__main__":
    main()
