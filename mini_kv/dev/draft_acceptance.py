"""Drafts on three kinds of text: the share that is right, and the number of saved steps.

    python -m mini_kv.dev.draft_acceptance [--json FILE]

It runs the small model in float64, so that other machines find the same tokens. There are 8 prompts of each kind, one
by one, with 80 new tokens each:

    told again    a prefix, the model's text after it, and the same prefix once more
    chat          three different questions, and the model's answers to the first two
    random        random token ids, with an answer at temperature 1
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.drafts import SpeculativeConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.prompt_tokens import Prompt
from mini_kv.engine.sampling import SamplingParams

LOOKUP = SpeculativeConfig(4, prompt_lookup_min=2, prompt_lookup_max=4)
_BEGINNINGS = (
    "A block is",
    "The cache",
    "A request",
    "The scheduler",
    "Memory",
    "The free queue",
    "A prefix",
    "Two requests",
)
NUM_TOKENS = 80
_GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of drafts on one kind of text."""

    num_tokens: int
    steps: int
    """Steps without drafts."""
    steps_with_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


def engine(speculative_config: SpeculativeConfig | None = None) -> LLMEngine:
    """Return an engine around the small model."""
    model, tokenizer = load_model(tiny_folder(), dtype=torch.float64)
    return LLMEngine(model, tokenizer, EngineConfig(num_blocks=300, speculative_config=speculative_config))


def workloads(plain: LLMEngine) -> dict[str, tuple[list[Prompt], SamplingParams]]:
    """Return the prompts of each kind, and the sampling of their answers."""
    answers = [output.outputs[0].text for output in plain.generate(_BEGINNINGS, _GREEDY)]
    told = dict(zip(_BEGINNINGS, answers, strict=True))
    again: list[Prompt] = [f"{beginning}{answer}\n\n{beginning}" for beginning, answer in told.items()]
    chats: list[Prompt] = [
        "\n\n".join([one + told[one], other + told[other], third])
        for one, other, third in zip(
            _BEGINNINGS, _BEGINNINGS[1:] + _BEGINNINGS, _BEGINNINGS[2:] + _BEGINNINGS, strict=False
        )
    ]
    rng = random.Random(1)
    noise: list[Prompt] = [[rng.randrange(plain.model.vocab_size) for _ in range(60)] for _ in _BEGINNINGS]
    drawn = replace(_GREEDY, temperature=1.0, seed=1)
    return {"told again": (again, _GREEDY), "chat": (chats, _GREEDY), "random": (noise, drawn)}


def measure() -> dict[str, Row]:
    """Return a row for each kind of text. Raises `AssertionError` if a single token differs."""
    rows = {}
    for name, (prompts, params) in workloads(engine()).items():
        plain, drafting = engine(), engine(LOOKUP)
        for prompt in prompts:
            said, also = (llm.generate([prompt], params)[0].outputs[0].token_ids for llm in (plain, drafting))
            assert said == also, f"{name}: other words with drafts than without"
        stats = drafting.stats
        rows[name] = Row(
            stats.num_generation_tokens,
            plain.stats.num_steps,
            stats.num_steps,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.draft_acceptance", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    args = parser.parse_args(argv)
    rows = measure()
    print(f"{'':<12}{'tokens':>8}{'steps':>8}{'with drafts':>13}{'drafts':>8}{'right':>7}")
    for name, row in rows.items():
        counts = f"{row.num_tokens:>8}{row.steps:>8}{row.steps_with_drafts:>13}"
        print(f"{name:<12}{counts}{row.num_draft_tokens:>8}{row.num_accepted_tokens:>7}")
    if args.json is not None:
        record = {name: asdict(row) for name, row in rows.items()}
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
