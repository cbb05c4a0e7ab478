"""The loss of quality by a cache in 8 bits: perplexity on text that the model has not learned, and changed words.

    python -m mini_kv.dev.quantized_quality FILE... [--json FILE]

The small model reads the files in pieces of 256 tokens, once per form of its cache. Each token is predicted from keys
and values as the cache gives them back.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_planning import CACHE_DTYPES, get_kv_cache_groups, with_cache_dtype
from mini_kv.core.sched.output import NewRequestData, SchedulerOutput
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.interface import Attend, CausalLM
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.sampling import SamplingParams

PIECE = 256
"""Tokens per piece of text."""
_BLOCK_SIZE = 16


@torch.inference_mode()
def log_likelihoods(model: CausalLM, token_ids: list[int], cache_dtype: str) -> list[float]:
    """Return the logarithm of the probability of each token but the first, given those before it in the cache."""
    specs = with_cache_dtype(model.get_kv_cache_spec(_BLOCK_SIZE), cache_dtype)
    groups = get_kv_cache_groups(specs)
    num_blocks = -(-len(token_ids) // _BLOCK_SIZE)
    config = KVCacheConfig(1 + num_blocks * len(groups), groups)
    every_token = cast(CausalLM, _AllLogits(model))
    runner = ModelRunner(every_token, config, max_num_seqs=1, max_model_len=len(token_ids))
    tables = tuple([1 + group * num_blocks + i for i in range(num_blocks)] for group in range(len(groups)))
    step = SchedulerOutput([NewRequestData("0", token_ids, tables, 0)], num_scheduled_tokens={"0": len(token_ids)})
    _, logits = runner.execute_model(step)
    found = logits.double().log_softmax(-1)[:-1].gather(1, torch.tensor(token_ids[1:])[:, None])
    return [float(value) for value in found[:, 0]]


class _AllLogits:
    """A model that returns the logits of every token, not only of the last one."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, _: Tensor) -> Tensor:
        """Return `[num_tokens, vocab_size]`."""
        return self._model.forward(token_ids, positions, attend, torch.arange(len(token_ids)))


def perplexity(model: CausalLM, token_ids: list[int], cache_dtype: str) -> float:
    """Return the perplexity: the geometric mean of 1 / probability."""
    found: list[float] = []
    for start in range(0, len(token_ids) - 1, PIECE):
        found += log_likelihoods(model, token_ids[start : start + PIECE], cache_dtype)
    return math.exp(-sum(found) / len(found))


def _first_different_words(prompts: Sequence[list[int]], cache_dtype: str, max_tokens: int) -> list[int | None]:
    """Return for each prompt the index of the first different new token, from 0, or `None` without a difference."""
    model, tokenizer = load_model(tiny_folder())
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    said = [
        [output.outputs[0].token_ids for output in LLMEngine(model, tokenizer, config).generate(prompts, params)]
        for config in (EngineConfig(num_blocks=1000), EngineConfig(num_blocks=1000, kv_cache_dtype=cache_dtype))
    ]
    return [
        next((index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        for one, other in zip(*said, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 0 measured, 2 unusable arguments."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.quantized_quality", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="texts that the model has not learned")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    args = parser.parse_args(argv)
    model, tokenizer = load_model(tiny_folder())
    try:
        token_ids = [token for path in args.files for token in tokenizer.encode(path.read_text(encoding="utf-8"))]
    except OSError as error:
        print(f"mini_kv.dev.quantized_quality: {error}", file=sys.stderr)
        return 2
    if len(token_ids) < 2 * PIECE:
        print(
            f"mini_kv.dev.quantized_quality: {len(token_ids)} tokens are too few: {2 * PIECE} at least",
            file=sys.stderr,
        )
        return 2
    prompts = [token_ids[start : start + 32] for start in range(0, len(token_ids) - 32, len(token_ids) // 20)][:20]
    rows = {}
    for cache_dtype in CACHE_DTYPES:
        differ = _first_different_words(prompts, cache_dtype, 64)
        rows[cache_dtype] = {
            "perplexity": round(perplexity(model, token_ids, cache_dtype), 4),
            "texts_that_differ": sum(index is not None for index in differ),
            "first_difference": min((index for index in differ if index is not None), default=None),
        }
    print(f"{len(token_ids):,} tokens; {len(prompts)} texts of 64 new tokens, greedily")
    print(f"{'':<20} perplexity   texts that differ   first other token")
    for name, row in rows.items():
        print(f"{name:<20} {row['perplexity']:10.4f}   {row['texts_that_differ']:17}   {row['first_difference']}")
    if args.json is not None:
        record = {"num_tokens": len(token_ids), "num_texts": len(prompts), "rows": rows}
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
