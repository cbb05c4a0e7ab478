"""`python -m mini_kv.dev.attention.engine_on_gpu`: compare the small model's tokens on a GPU with those on a CPU."""

import sys

import torch

from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams

PROMPTS = ["The block", "The cache of a", "Once the pool is full,", "The block table"]


def tokens(device: str, backend: str) -> list[list[int]]:
    """Return the model's greedy tokens for each prompt, in one batch."""
    model, tokenizer = load_model(tiny_folder())
    engine = LLMEngine(model.to(torch.device(device)), tokenizer, EngineConfig(num_blocks=256, backend=backend))
    outputs = engine.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=64))
    return [output.outputs[0].token_ids for output in outputs]


def main(device: str = "cuda", backends: tuple[str, ...] = ("triton", "torch")) -> int:
    """Print a line per backend and return 1 if one differs."""
    expected, status = tokens("cpu", "torch"), 0
    for backend in backends:
        found = tokens(device, backend)
        equal = sum(one == other for one, other in zip(found, expected, strict=True))
        print(f"{backend} on {device}: {equal} of {len(PROMPTS)} texts of 64 tokens as on the CPU")
        status |= equal != len(PROMPTS)
    return status


if __name__ == "__main__":
    sys.exit(main())
