"""Answers the page "Will it fit?": `mini-kv plan` and `mini-kv why` for what the reader has chosen.

`kv_lab_worker.js` loads this file into Pyodide and calls `answer`; the fence calls it, too, for what the page shows
first. The page's fields are arguments of these commands, so that the commands it shows are what it has computed.
"""

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.tools.planning import plan_command
from mini_kv.tools.planning.fit import Fit
from mini_kv.tools.planning.plan_command import describe
from mini_kv.tools.traces.commands import why_command
from mini_kv.tools.traces.commands.why_command import Blocks

CONFIG = "config.json"
"""The name under which the reader's own file is known in answers and commands."""
_IN_BOTH = (
    "gpu",
    "tensor-parallel-size",
    "kv-cache-dtype",
    "block-size",
    "num-speculative-tokens",
    "gdn-prefill-backend",
)
"""Fields that are arguments of both commands."""
_IN_PLAN = ("max-len", "memory", "weights", "gpu-memory-utilization", "max-num-batched-tokens")
_IN_WHY = ("prompt-tokens",)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def answer(fields: str) -> str:
    """Return as JSON what `plan` and `why` say, each with its command, or the sentence in which it refuses.

    `fields`: JSON, an object of strings by the names above; and `model`, or `config`, the text of a config.json. An
    empty field is left out of the commands.
    """
    given: dict[str, str] = json.loads(fields)
    model = given.get("model", "")
    if given.get("config"):
        model = CONFIG
        Path(CONFIG).write_text(given["config"], encoding="utf-8")
    plan, why = ([model, *_arguments(given, (*_IN_BOTH, *own))] for own in (_IN_PLAN, _IN_WHY))
    return json.dumps(
        {
            "plan": _answered("plan", plan, plan_command.add_arguments, _plan),
            "why": _answered("why", why, why_command.add_arguments, _why),
        }
    )


def _arguments(given: dict[str, str], names: Sequence[str]) -> list[str]:
    """Return the fields that are not empty as arguments."""
    return [
        word
        for name in names
        for values in [given.get(name, "").replace(",", " ").split()]
        if values
        for word in (f"--{name}", *values)
    ]


def _answered(
    verb: str,
    arguments: Sequence[str],
    add_arguments: Callable[[argparse.ArgumentParser], None],
    compute: Callable[[argparse.Namespace], dict[str, Any]],
) -> dict[str, Any]:
    """Return what a command computes, or its error, beside the command."""
    command = {"command": f"mini-kv {shlex.join([verb, *arguments])}"}
    parser = _Parser(add_help=False)
    add_arguments(parser)
    try:
        return command | compute(parser.parse_args(arguments))
    except ConfigError as error:
        return command | {"error": str(error)}


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    fit = plan_command.plan(args)
    memory = fit.memory
    return {
        "fits": plan_command.fits(fit),
        "known": fit.config is not None,
        "speed": plan_command.speed(fit),
        "parameters": plan_command.weights(fit),
        "cut": " ".join(plan_command.lines_of_cut(args.model, fit.flags)).strip(),
        "card": memory.card and {"name": memory.card.name, "bytes": memory.card.memory},
        "cards": fit.flags.tensor_parallel_size,
        "weights": memory.weights,
        "kv": memory.kv,
        "rest": memory.rest,
        "figures": [
            ["bytes per block", f"{fit.bytes_per_block:,}"],
            [f"blocks per request of {fit.max_len:,} tokens", f"{fit.blocks_per_request:,}"],
            ["tokens in flight, for which windows reserve blocks", f"{fit.in_flight:,}"],
            *([["layers of the drafter", text]] if (text := plan_command.drafter(fit)) else []),
            *([] if fit.config is None else _room(fit, fit.config.num_blocks)),
        ],
        "layers": _layers(fit),
        "groups": _groups(fit),
        "caption": _caption(fit),
        "source": fit.model.source,
    }


def _room(fit: Fit, num_blocks: int) -> list[list[str]]:
    """Return the figures of a pool of known size."""
    return [
        ["blocks in the pool", f"{num_blocks:,}"],
        ["such requests at once", plan_command.two_decimals(fit.concurrency)],
        *([["with states", text]] if (text := plan_command.states(fit)) else []),
        ["tokens of all of them (vLLM: KV cache size)", f"{fit.capacity:,}"],
    ]


def _layers(fit: Fit) -> list[dict[str, Any]]:
    """Return each layer in the model's order: its kind and group, its page, and the share of it that it fills."""
    group_of = {name: number for number, group in enumerate(fit.groups) for name in group.layer_names}
    pages = {name: fit.groups[number].spec_of(name).page_size_bytes for name, number in group_of.items()}
    return [
        {
            "name": name,
            "kind": _kind(spec),
            "group": group_of[name],
            "page": pages[name] / max(pages.values()),
            "filled": _filled(spec, fit.groups[group_of[name]]) / pages[name],
        }
        for name, spec in fit.specs.items()
    ]


def _filled(spec: KVCacheSpec, group: KVCacheGroupSpec) -> int:
    """Return the bytes that a layer fills of its page of a block; the rest is padding."""
    if not isinstance(spec, AttentionSpec):
        return spec.page_size_bytes
    return spec.page_size_bytes * group.kv_cache_spec.block_size // spec.block_size


def _groups(fit: Fit) -> list[dict[str, Any]]:
    """Return what a block holds for each kind of layer of each group."""
    rows = []
    for number, group in enumerate(fit.groups):
        for own, layers in Counter(fit.specs[name] for name in group.layer_names).items():
            if isinstance(own, AttentionSpec):
                per_token = f"{own.page_size_bytes / own.block_size:,.2f}".removesuffix(".00")
                holds = f"{group.kv_cache_spec.block_size:,} tokens of {per_token} bytes"
            else:
                holds = f"one state of {own.page_size_bytes:,} bytes"
            rows.append(
                {"number": number, "layers": layers, "kind": _kind(own), "keeps": describe(own), "holds": holds}
            )
    return rows


def _caption(fit: Fit) -> str:
    """Return what the picture of the layers shows."""
    pages = {group.spec_of(name).page_size_bytes for group in fit.groups for name in group.layer_names}
    if len(pages) == 1:
        text = "Each column is a layer. Columns of one letter are a group: a block belongs to one group, and has"
        return f"{text} {pages.pop():,} bytes in each of its layers."
    tables = "Columns of one letter share a block table." if len(fit.groups) > 1 else "One block table serves them all."
    return f"Each column is what a layer keeps, as high as its page of a block. {tables}"


def _kind(spec: KVCacheSpec) -> str:
    """Return how a layer is drawn: `state`, `full` (all tokens are kept) or `part` (of a window or a chunk)."""
    if isinstance(spec, MambaSpec):
        return "state"
    return "part" if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec) else "full"


def _why(args: argparse.Namespace) -> dict[str, Any]:
    blocks, rows = why_command.answered(args)
    return {
        "said": why_command.answer(blocks),
        "helps": _joined(why_command.help_of_flags(args.model, blocks, rows)[2:]),
        "unit": blocks.unit,
        "shortest": blocks.shortest,
        "rows": why_command.as_dict(blocks, rows)["prompts"],
        "verdict": _verdict(blocks, rows),
    }


def _joined(lines: Sequence[str]) -> list[str]:
    """Return the entries of a list, each without its columns; an indented line goes on with the one before it."""
    joined: list[str] = []
    for line in lines:
        flag, _, effect = line.strip().partition("  ")
        if line.startswith("   "):
            joined[-1] += f" {flag}" if flag.startswith("(") else f": {flag}"
        else:
            joined.append(f"{flag}: {effect.strip()}" if effect else flag)
    return joined


def _verdict(blocks: Blocks, rows: Sequence[why_command.Hits]) -> str:
    """Return in a sentence what requests that share the first prefix find."""
    if not rows:
        return ""
    row = rows[0]
    shared = f"{row.num_tokens:,} shared tokens"
    if row.num_tokens < blocks.shortest - 1:
        is_drafted = blocks.flags.num_speculative_tokens > 0
        needed = f"two blocks of {blocks.unit:,}, and a hit drops one" if is_drafted else f"a block of {blocks.unit:,}"
        return f"{shared} are shorter than {needed}: nothing can be found."
    if not row.third:
        return f"Of {shared}, nothing is found."
    which = "second" if row.second == row.third else "third"
    rest = row.num_tokens - row.third
    found = f"{row.third:,} and computes the other {rest:,} again" if rest else "all of them"
    return f"Of {shared}, the {which} request finds {found}."
