"""Train the small models that come with mini_kv on the repository's own sentences.

    python -m mini_kv.dev.training.train [--windows] [--steps N] [--out FOLDER]

Run it in a checkout. It reads the prose, learns a vocabulary from it, trains, and writes the folder. Every 25th text
is never trained on. The loss on these texts shows how well the model generalises. A model of this size memorises a lot
of such a short text. That is intended: it only has to write words.
"""

import argparse
import hashlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention
from torch.utils.hooks import RemovableHandle

from mini_kv.attention.options import AttentionOptions
from mini_kv.dev.training.prose import read_prose
from mini_kv.dev.training.train_tokenizer import learn_merges, tokenizer_json
from mini_kv.engine.checkpoint import TOKENIZER, load_model, save_model, tiny_folder
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.tokenizer import Tokenizer

_EOS, _EOS_ID = "<|end|>", 0
_HELD_OUT = "held_out.txt"
CONFIG = ModelConfig(
    vocab_size=1024,  # the end of a text, 256 bytes, 767 merges
    hidden_size=160,
    intermediate_size=384,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
)
WITH_WINDOWS = replace(CONFIG, sliding_window=32, window_layers=(0, 1))
"""Two layers have a window of 32 tokens, which is two blocks of 16. The last one has full attention."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of the training. The defaults made both checkpoints in `mini_kv/engine`."""

    steps: int = 2200
    batch_size: int = 4
    piece: int = 512
    """Tokens of a piece of text."""
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.3
    dropout: float = 0.1
    """Dropout: random share of the additions to the residual stream that is left out.

    This and `weight_decay` keep the model from learning by heart a text that it reads dozens of times.
    """
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Number of training tokens in all."""
        return self.steps * self.batch_size * self.piece

    def rate(self, step: int) -> float:
        """Return the learning rate: a linear rise, then half a cosine down to a twentieth."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)


class Pieces:
    """The past during training: all pieces of a batch at once, each of them causal, without a cache."""

    def __init__(self, length: int) -> None:
        """Prepare for pieces of `length` tokens."""
        self.length = length

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return the attention of the queries over their own pieces."""
        # [tokens, heads, size] -> [pieces, heads, length, size], as torch's attention wants it
        q, k, v = (x.unflatten(0, (-1, self.length)).transpose(1, 2) for x in (query, key, value))
        scale = options.scale_for(query.shape[-1])
        window = options.sliding_window
        mask = None if window is None else seen_by_window(self.length, window)
        seen = scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=True)
        return seen.transpose(1, 2).flatten(0, 1)


@cache
def seen_by_window(length: int, window: int) -> Tensor:
    """Return `[length, length]`, bool: the tokens (columns) that each token (row) attends to, including itself."""
    ago = torch.arange(length)[:, None] - torch.arange(length)
    return (ago >= 0) & (ago < window)


def piece_loss(model: TinyLlama, pieces: Tensor) -> Tensor:
    """Return the mean loss in nats per token of `[n, length + 1]`, each given the tokens before it in its piece."""
    num_pieces, length = pieces.shape[0], pieces.shape[1] - 1
    positions = torch.arange(length).repeat(num_pieces)
    everywhere = torch.arange(num_pieces * length)
    logits = model(pieces[:, :-1].reshape(-1), positions, Pieces(length), everywhere)
    return cross_entropy(logits, pieces[:, 1:].reshape(-1))


@torch.no_grad()
def text_loss(model: TinyLlama, tokenizer: Tokenizer, texts: list[str]) -> float:
    """Return the mean loss in nats per token of the texts, without each first token. Long texts are cut."""
    total, count = 0.0, 0
    for text in texts:
        ids = tokenizer.encode(text)[: model.config.max_position_embeddings + 1]
        total += float(piece_loss(model, torch.tensor([ids]))) * (len(ids) - 1)
        count += len(ids) - 1
    return total / count


def train(
    config: ModelConfig, recipe: Recipe, tokenizer: Tokenizer, learn: list[str], held_out: list[str]
) -> TinyLlama:
    """Return a trained model, and print the loss during the training."""
    torch.manual_seed(recipe.seed)
    shuffle = random.Random(recipe.seed)
    model = new_model(config)
    hooks = _add_dropout(model, recipe.dropout)
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() == 1]  # norms, which nothing should pull towards zero
    groups = [{"params": wide, "weight_decay": recipe.weight_decay}, {"params": narrow, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    sections = [[*tokenizer.encode(text), _EOS_ID] for text in learn]
    start, recent = time.perf_counter(), 0.0
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        loss = piece_loss(model, draw_pieces(sections, recipe, shuffle))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = loss.item() if step == 0 else 0.95 * recent + 0.05 * loss.item()
        if (step + 1) % 100 == 0 or step + 1 == recipe.steps:
            apart = text_loss(model, tokenizer, held_out)
            seconds = time.perf_counter() - start
            print(f"step {step + 1:5}  loss {recent:.3f}  held out {apart:.3f}  {seconds:5.0f} s", flush=True)
    for hook in hooks:
        hook.remove()
    return model


def _add_dropout(model: TinyLlama, share: float) -> list[RemovableHandle]:
    """Add dropout to the model. Removing the returned hooks ends it."""

    def forget(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return dropout(output, share, training=torch.is_grad_enabled())

    adds = ("embed_tokens", "self_attn", "mlp")
    return [module.register_forward_hook(forget) for name, module in model.named_modules() if name.endswith(adds)]


def new_model(config: ModelConfig) -> TinyLlama:
    """Return a model with small random weights."""
    model = TinyLlama(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            # What is added to the stream is added once a layer, so it begins smaller the more layers there are.
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.num_hidden_layers) if adds else 0.02)
    return model


def draw_pieces(sections: list[list[int]], recipe: Recipe, shuffle: random.Random) -> Tensor:
    """Return `[batch_size, piece + 1]`: each begins somewhere in a section and continues with other sections."""
    pieces = []
    for _ in range(recipe.batch_size):
        piece: list[int] = []
        begin = None
        while len(piece) <= recipe.piece:
            section = sections[shuffle.randrange(len(sections))]
            if begin is None:
                begin = shuffle.randrange(len(section))
            piece += section[begin:] if not piece else section
        pieces.append(piece[: recipe.piece + 1])
    return torch.tensor(pieces)


def main(argv: Sequence[str] | None = None) -> None:
    """Train on this repository and write the folder."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.training.train", description="Train a small model.")
    parser.add_argument("--windows", action="store_true", help="the model with windows in two of its three layers")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="default: the model's own folder in mini_kv/engine")
    args = parser.parse_args(argv)
    args.out = args.out or tiny_folder(windows=args.windows)
    if args.steps < 1:
        parser.error(f"--steps is {args.steps}, it must be at least 1")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # Python's words for a NUL in a path are a ValueError
        parser.error(f"cannot write to {str(args.out)!r}: {error}")
    config = WITH_WINDOWS if args.windows else CONFIG
    make_checkpoint(args.out, read_prose(Path(__file__).parents[3]), config, Recipe(steps=args.steps))


def make_checkpoint(folder: Path, prose: list[str], config: ModelConfig, recipe: Recipe) -> None:
    """Learn vocabulary and weights, and write the folder: the model, the held-out texts, and a page about both."""
    held_out = prose[12::25]
    learn = [text for text in prose if text not in held_out]
    digest = hashlib.sha256("\n".join(prose).encode()).hexdigest()
    print(f"{len(prose)} texts, {sum(map(len, prose)):,} characters, sha256 {digest}")

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = tokenizer_json(learn_merges(learn, config.vocab_size - 1 - 256), _EOS)
    (folder / TOKENIZER).write_text(vocabulary, encoding="utf-8", newline="\n")
    (folder / _HELD_OUT).write_text("\n\n\n".join(held_out) + "\n", encoding="utf-8", newline="\n")
    tokenizer = Tokenizer.from_file(folder / TOKENIZER, _EOS_ID)
    save_model(folder, train(config, recipe, tokenizer, learn, held_out), vocabulary, torch.bfloat16, _EOS_ID)

    model, _ = load_model(folder)  # as it was rounded
    losses = [text_loss(model, tokenizer, texts) for texts in (learn, held_out)]
    (folder / "README.md").write_text(card(model, recipe, digest, losses), encoding="utf-8", newline="\n")


def card(model: TinyLlama, recipe: Recipe, digest: str, losses: list[float]) -> str:
    """Return the page about the weights."""
    c = model.config
    weights = sum(weight.numel() for weight in model.parameters())
    windows, option = "", ""
    if c.window_layers:
        layers = " and ".join(map(str, c.window_layers))
        windows = f"Layers {layers} see the last {c.sliding_window} tokens alone; the others see all.\n"
        option = "--windows "
    return f"""# A small model that writes like this repository

A Llama of {c.num_hidden_layers} layers, {c.num_attention_heads} heads that ask and {c.num_key_value_heads} that keep: \
{weights:,} weights in bfloat16, for texts of up to {c.max_position_embeddings} tokens.
{windows}
It has read nothing but mini_kv's own sentences, {recipe.tokens:,} tokens of them, most of them many times, and half
remembers them. What it writes looks like sense and is none: it is here so that an engine has something to generate.

    made by     python -m mini_kv.dev.training.train {option}--steps {recipe.steps}
    seed        {recipe.seed}, with torch {torch.__version__}
    prose       {digest} (SHA-256)
    surprise    {losses[0]:.2f} nats a token on what it has read, {losses[1]:.2f} on {_HELD_OUT}, which it has not;
                a guess among all tokens would be {math.log(c.vocab_size):.2f}

The weights are under the licence of the prose that they were learned from, CC BY 4.0: see `LICENSE-docs`.
"""


if __name__ == "__main__":
    main()
