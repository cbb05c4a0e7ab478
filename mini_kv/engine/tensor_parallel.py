"""A model split over several cards: each card keeps some heads, and only the keys and values of these heads.

    python -m mini_kv.engine.tensor_parallel --size 2 "A block is free when"

    8 query heads, 2 KV heads       one card        two cards           four cards
    queries                         0..7            0..3 | 4..7         0 1 | 2 3 | 4 5 | 6 7
    keys and values                 0 1             0    | 1            0   | 0   | 1   | 1    heads have run out

A block of the pool has the same id on every card. On each card it has that card's heads of the same tokens. So one
table, one plan and one hash are enough for all. With more cards than KV heads, each head is kept more than once, and
further cards add no capacity. After attention and after the feed-forward network the cards add up their partial
results.

Here each card is a process on a CPU with its own scheduler. All have the same requests, so all plans are equal.
vLLM plans once and sends the plan to its workers. It also splits embedding and logits, which are whole here.

Source: Megatron-LM (Shoeybi et al., 2019, arxiv.org/abs/1909.08053); vLLM `ModelConfig.get_num_kv_heads`,
`QKVParallelLinear`, `RowParallelLinear`.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from mini_kv.core.errors import ConfigError
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class CardReport:
    """The result of one card: the answers, which are equal on all cards, and the size of its blocks."""

    token_ids: list[list[int]]
    """Of each answer."""
    num_kv_heads: int
    """Number of KV heads per layer on this card."""
    bytes_per_block: int


def heads_of(num_heads: int, num_kv_heads: int, rank: int, size: int) -> tuple[range, range]:
    """Return the query heads and the KV heads that one of `size` cards keeps.

    Raises `ConfigError` unless the query heads can be split evenly, and KV heads likewise or each to as many cards.
    """
    if num_heads % size:
        raise ConfigError(f"{num_heads} query heads cannot be split evenly over {size} cards")
    if num_kv_heads % size and size % num_kv_heads:
        raise ConfigError(f"{num_kv_heads} KV heads cannot be split evenly over {size} cards")
    queries = num_heads // size
    kept = max(1, num_kv_heads // size)
    first = rank * num_kv_heads // size
    return range(rank * queries, (rank + 1) * queries), range(first, first + kept)


class AddedUp(nn.Module):
    """A projection with a split input: each card multiplies its part, and the results are added up over all cards."""

    def __init__(self, part: nn.Module) -> None:
        """Take this card's columns."""
        super().__init__()
        self.part = part

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the whole result, the same on every card. Waits for the other cards."""
        result: Tensor = self.part(hidden)
        distributed.all_reduce(result)
        return result


def cut(model: TinyLlama, rank: int, size: int) -> TinyLlama:
    """Return one card's part of the model: its heads and its share of the feed-forward network.

    Raises `ConfigError` as `heads_of`, and if the feed-forward network cannot be split evenly.
    """
    whole = model.config
    if whole.intermediate_size % size:
        raise ConfigError(
            f"{whole.intermediate_size} rows of the feed-forward network cannot be split evenly over {size} cards"
        )
    queries, kv = heads_of(whole.num_attention_heads, whole.num_key_value_heads, rank, size)
    rows = whole.intermediate_size // size
    config = replace(whole, num_attention_heads=len(queries), num_key_value_heads=len(kv), intermediate_size=rows)
    part = TinyLlama(config).to(model.dtype)
    part.load_state_dict({name: _share(name, weight, whole, rank, size) for name, weight in model.state_dict().items()})
    for name in [name for name, _ in part.named_modules() if name.endswith(("o_proj", "down_proj"))]:
        part.set_submodule(name, AddedUp(part.get_submodule(name)))
    return part.eval()


def _share(name: str, weight: Tensor, config: ModelConfig, rank: int, size: int) -> Tensor:
    """Return one card's part of a weight: rows if it makes heads, columns if it reads them, or all of it."""
    queries, kv = heads_of(config.num_attention_heads, config.num_key_value_heads, rank, size)
    rows = config.intermediate_size // size
    of_mlp = slice(rank * rows, (rank + 1) * rows)
    of_queries = slice(queries.start * config.head_dim, queries.stop * config.head_dim)
    of_kv = slice(kv.start * config.head_dim, kv.stop * config.head_dim)
    match name.split(".")[-2]:
        case "q_proj":
            return weight[of_queries]
        case "k_proj" | "v_proj":
            return weight[of_kv]
        case "gate_proj" | "up_proj":
            return weight[of_mlp]
        case "o_proj":
            return weight[:, of_queries]
        case "down_proj":
            return weight[:, of_mlp]
        case _:
            return weight


def generate(
    prompts: Sequence[str],
    params: SamplingParams,
    size: int,
    config: EngineConfig | None = None,
    folder: Path | None = None,
) -> list[CardReport]:
    """Answer the prompts with `size` processes together, and return the result of each card. Takes seconds to start.

    `folder`: a checkpoint of ours, by default the small model. It is read in float64, so that another order of
    additions gives the same text. Raises the errors of `cut`, before any process is started.
    """
    source = folder or tiny_folder()
    model, _ = load_model(source)
    for rank in range(size):
        heads_of(model.config.num_attention_heads, model.config.num_key_value_heads, rank, size)
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as meeting:
        arguments = (size, meeting, source, list(prompts), params, config or EngineConfig())
        with context.Pool(size) as pool:
            return pool.starmap(_one_card, [(rank, *arguments) for rank in range(size)], chunksize=1)


def _one_card(
    rank: int, size: int, meeting: str, folder: Path, prompts: list[str], params: SamplingParams, config: EngineConfig
) -> CardReport:
    """Run one card: connect to the other cards, keep a part of the model, and run the engine on it."""
    distributed.init_process_group("gloo", init_method=f"file://{meeting}/meet", rank=rank, world_size=size)
    try:
        torch.set_num_threads(1)
        model, tokenizer = load_model(folder, torch.float64)
        part = cut(model, rank, size)
        engine = LLMEngine(part, tokenizer, config)
        answers = engine.generate(prompts, params)
        specs = part.get_kv_cache_spec(config.block_size).values()
        token_ids = [answer.outputs[0].token_ids for answer in answers]
        return CardReport(token_ids, part.config.num_key_value_heads, sum(spec.page_size_bytes for spec in specs))
    finally:
        distributed.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the answers and the share of each card. Return 2, with an error on stderr, if the model cannot be split."""
    parser = argparse.ArgumentParser(
        prog="python -m mini_kv.engine.tensor_parallel", description=__doc__.splitlines()[0]
    )
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--size", type=int, default=2, metavar="N", help="cards, a process each (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=24, metavar="N")
    options = parser.parse_args(argv)
    try:
        if not 1 <= options.size <= 64:
            raise ConfigError(f"--size is {options.size}, it must be from 1 to 64")
        params = SamplingParams(max_tokens=options.max_tokens, temperature=0.0)
        cards = generate(options.prompts, params, options.size)
    except ConfigError as error:
        print(f"tensor_parallel: {error}", file=sys.stderr)
        return 2
    _, tokenizer = load_model(tiny_folder())
    for prompt, token_ids in zip(options.prompts, cards[0].token_ids, strict=True):
        print(prompt + tokenizer.decode(token_ids))
    for rank, card in enumerate(cards):
        print(f"card {rank}: {card.num_kv_heads} KV heads, {card.bytes_per_block:,} bytes per block")
    return 0


if __name__ == "__main__":
    sys.exit(main())
