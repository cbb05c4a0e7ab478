"""The base of all parts: a model, prompts for it, an engine around it, and a clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.sampling import SamplingParams

SHAPES = {
    "small": ModelConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
    ),
    # The shape of Llama 3.2 1B (its config.json), with random weights: what a step costs does not depend on them.
    "1b": ModelConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        rope_theta=500_000.0,
    ),
}
"""Models with random weights. "tiny" is the package's checkpoint."""
SHAPE_NAMES = ("tiny", *SHAPES)
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of each part's work."""

    lengths: tuple[int, ...]
    """Tokens of text before the measured ones."""
    longest_without_cache: int
    steps: int
    """Tokens that are measured together."""
    prefix: tuple[int, int, int, int]
    """Number of prefixes, prompts per prefix, tokens of a prefix, unique tokens of each prompt."""
    batches: tuple[int, ...]
    context: int
    """Tokens of each request of a batch."""
    peers: tuple[tuple[int, int, int], ...]
    """Number of prompts, tokens of each, and the number of common tokens."""
    new_tokens: int
    """Tokens that each prompt of `peers` gets."""


QUICK = Sizes((8, 24), 8, 2, (2, 2, 16, 3), (1, 2), 8, ((2, 9, 0), (2, 24, 16)), 3)
CPU = Sizes(
    lengths=(32, 64, 128, 256, 512, 1024),
    longest_without_cache=1024,
    steps=8,
    prefix=(4, 8, 448, 32),
    batches=(1, 2, 4, 8, 16, 32, 64),
    context=128,
    peers=((16, 200, 0), (32, 200, 160), (64, 200, 0)),
    new_tokens=64,
)
GPU = Sizes(
    lengths=(256, 512, 1024, 2048, 4096),
    longest_without_cache=4096,
    steps=16,
    prefix=(4, 16, 1920, 128),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    context=1024,
    peers=((32, 512, 0), (64, 512, 384)),
    new_tokens=128,
)


@dataclass(frozen=True, slots=True)
class Setup:
    """A model, with its sizes and its clock."""

    shape: str
    model: TinyLlama
    sizes: Sizes
    clock: Callable[[], float]
    repeats: int
    seed: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights. A step reads them once, for any number of tokens."""
        return sum(weight.numel() * weight.dtype.itemsize for weight in self.model.parameters())

    @property
    def weight_flops_per_token(self) -> int:
        """Operations of a token with all matrices. The embedding is used as a matrix once, for the logits."""
        return 2 * sum(weight.numel() for weight in self.model.parameters() if weight.dim() == 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, over all layers."""
        return sum(spec.page_size_bytes for spec in self.model.get_kv_cache_spec(block_size=1).values())

    @property
    def attention_flops_per_token(self) -> int:
        """Operations of one query with one token of its past, over all layers."""
        config = self.model.config
        return 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim

    def prompts(self, count: int, length: int, shared: int = 0, seed: int = 0) -> list[list[int]]:
        """Return random prompts whose first `shared` tokens are equal. They do not depend on `seed`."""

        def tokens(seed: int, *shape: int) -> list[list[int]]:
            generator = torch.Generator().manual_seed(seed)
            found: list[list[int]] = torch.randint(1, self.model.vocab_size, shape, generator=generator).tolist()
            return found

        beginning = tokens(self.seed, 1, shared)[0]
        return [beginning + own for own in tokens(1000 * (seed + 1) + self.seed, count, length - shared)]

    def engine(self, num_requests: int, max_num_tokens: int, *, prefix_caching: bool = True) -> LLMEngine:
        """Return an engine with room for `num_requests` requests of `max_num_tokens` tokens, all at once."""
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=num_requests * -(-max_num_tokens // BLOCK_SIZE) + 1,
            enable_prefix_caching=prefix_caching,
            scheduler=SchedulerConfig(
                max_num_seqs=max(num_requests, 1),
                # On a CPU the fastest of 512, 1024 and 2048: activations of more fall out of the processor's cache.
                max_num_batched_tokens=8192 if self.model.device.type == "cuda" else 1024,
            ),
        )
        return LLMEngine(self.model, config=config)


def make_setup(shape: str, device: str, *, quick: bool, repeats: int, seed: int) -> Setup:
    """Return the setup of one shape on "cpu" or "cuda"."""
    sizes = QUICK if quick else GPU if device == "cuda" else CPU
    model = load_model(tiny_folder())[0].to(device) if shape == "tiny" else _random_model(SHAPES[shape], device, seed)
    # Longer than any of them has learned: what it says there is not looked at, only how fast.
    model.config = replace(model.config, max_position_embeddings=1 << 20)
    return Setup(shape, model, sizes, clock_of(device), repeats, seed)


def _random_model(config: ModelConfig, device: str, seed: int) -> TinyLlama:
    """Return a model with random weights of a size that keeps its numbers small. On a GPU it is in bfloat16."""
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device(device):
        model = TinyLlama(config).requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.normal_(0.0, 0.02, generator=generator)
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32).eval()


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock, in seconds. On a CPU it counts the process's own time, so that other processes do not count."""
    if device != "cuda":
        return time.process_time

    def synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronized


def greedy(max_tokens: int) -> SamplingParams:
    """Return parameters for exactly `max_tokens` tokens, the likeliest each."""
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return lines of text: the first column left-aligned, the others right-aligned, numbers with three digits."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    first, *widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *others in cells:
        padded = [cell.rjust(width) for cell, width in zip(others, widths, strict=True)]
        lines.append("  ".join([name.ljust(first), *padded]).rstrip())
    return lines


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
