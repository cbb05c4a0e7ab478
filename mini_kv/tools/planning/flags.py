"""vLLM's arguments about a model, for `plan` and `why`, with the same names and meaning."""

import argparse
from dataclasses import dataclass, replace
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheSpec
from mini_kv.core.kv_cache_planning import CACHE_DTYPES, with_cache_dtype
from mini_kv.tools.planning.cost import CARDS, Card
from mini_kv.tools.planning.models import Model, load_model, model_names
from mini_kv.tools.planning.states import GDN_PREFILL_BACKENDS

NO_DRAFTER = "none"
"""A drafter without KV, such as one that looks for repeated text."""
LARGEST = 1_000_000_000
"""The largest number that an option takes: tokens, cards, GiB."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The arguments of vLLM that change a layer's KV, by vLLM's names."""

    block_size: int = 16
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    num_speculative_tokens: int = 0
    gdn_prefill_backend: str = "flashinfer"
    drafter: str | None = None
    """A config.json of the model that makes the drafts, or `NO_DRAFTER`. `None`: the model itself, if it can."""
    card: Card | None = None
    """The GPU, or `None` if not given. It decides the backend above if that is not given."""

    def load(self, name: str) -> tuple[Model, dict[str, KVCacheSpec]]:
        """Return the model of that name or file, and one card's share of each layer. Errors: `load_model`'s."""
        model = load_model(
            name,
            self.block_size,
            self.tensor_parallel_size,
            self.num_speculative_tokens,
            self.gdn_prefill_backend,
            self.drafter is None,
        )
        layers = model.kv_cache_spec
        if self.drafter not in (None, NO_DRAFTER):
            drafter = load_model(self.drafter, self.block_size, self.tensor_parallel_size).kv_cache_spec.values()
            layers = layers | {f"drafter.{number}": spec for number, spec in enumerate(drafter)}
        asked = {self.kv_cache_dtype, model.kv_cache_dtype} - {"auto"}
        if len(asked) > 1:
            raise ConfigError(f"{name} asks for a cache in {model.kv_cache_dtype}: leave --kv-cache-dtype out")
        return model, with_cache_dtype(layers, asked.pop() if asked else "auto")


def add_flags(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the model, and the arguments that `read_flags` reads."""
    about = "a config.json, or a name: Qwen/Qwen3-8B, or one that --list prints"
    parser.add_argument("model", metavar="MODEL", nargs=nargs, help=about)
    parser.add_argument("--list", action=_ListModels, nargs=0, help="print the names of models, and plan nothing")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block (default: 16)")
    about = "drafts per step (default: 0)"
    parser.add_argument("--num-speculative-tokens", type=int, default=0, metavar="N", help=about)
    about = (
        f"config.json of what drafts, such as EAGLE's, or {NO_DRAFTER} if it keeps no KV (default: the model itself)"
    )
    parser.add_argument("--drafter", metavar="FILE", help=about)
    add_card_flags(parser)


class _ListModels(argparse.Action):
    """Prints the names of models and ends the command, which then needs no model."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and exit."""
        print("\n".join(model_names()), flush=True)
        parser.exit()


def add_card_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `read_card_flags` reads: those that change only a model's blocks."""
    parser.add_argument("--gpu", type=str.lower, choices=list(CARDS), metavar="NAME", help=", ".join(CARDS))
    group = parser.add_argument_group("how the model runs, as in vLLM")
    about = f"of keys and values: {', '.join(CACHE_DTYPES)}"
    group.add_argument("--kv-cache-dtype", choices=CACHE_DTYPES, metavar="NAME", default="auto", help=about)
    about = "GPUs that share the model (default: 1)"
    group.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help=about)
    about = f"{', '.join(GDN_PREFILL_BACKENDS)} (default: the GPU's)"
    group.add_argument("--gdn-prefill-backend", choices=list(GDN_PREFILL_BACKENDS), metavar="NAME", help=about)


def read_flags(args: argparse.Namespace) -> Flags:
    """Return the flags. Raises `ConfigError` for a number out of range."""
    check_number("block_size", args.block_size)
    check_number("num_speculative_tokens", args.num_speculative_tokens, 0)
    if args.drafter is not None and not args.num_speculative_tokens:
        raise ConfigError("--drafter needs --num-speculative-tokens: without drafts nothing drafts")
    flags = read_card_flags(args, args.block_size)
    return replace(flags, num_speculative_tokens=args.num_speculative_tokens, drafter=args.drafter)


def read_card_flags(args: argparse.Namespace, block_size: int) -> Flags:
    """Return the flags, without drafts. Raises `ConfigError` for a number out of range."""
    check_number("tensor_parallel_size", args.tensor_parallel_size)
    card = CARDS.get(args.gpu)
    backend = args.gdn_prefill_backend or ("flashinfer" if card is None or card.exports_states else "triton")
    return Flags(block_size, args.kv_cache_dtype, args.tensor_parallel_size, gdn_prefill_backend=backend, card=card)


def check_number(name: str, value: int, least: int = 1, most: int = LARGEST) -> None:
    """Raise `ConfigError` if an option's number is out of range."""
    if not least <= value <= most:
        raise ConfigError(f"--{name.replace('_', '-')} is {value}, it must be from {least} to {most:,}")
