"""`mini-kv plan MODEL`: the layout of a model's KV cache in a given amount of memory, before any request."""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from mini_kv.core.kv_cache_planning import bytes_per_block, get_kv_cache_tensors
from mini_kv.tools.planning.fit import GIB, GPU_MEMORY_UTILIZATION, Fit, Memory, make_fit, memory_of, on_card
from mini_kv.tools.planning.flags import LARGEST, NO_DRAFTER, Flags, add_flags, check_number, read_flags
from mini_kv.tools.planning.models import Model, load_model

MEMORY = 16.0
"""GiB of the cache, if neither a memory nor a GPU is given."""
BUDGET = 8192
"""Tokens per step, if nothing is given: those of vLLM's server on an H100."""
HYBRID = {"on": False, "off": True, "auto": None}
HOW_TO_SAY_WEIGHTS = (
    "Give --weights in GB, or put the model's model.safetensors.index.json into the folder of the config."
)
MAX_ROWS = 12
BAR = 60
"""Characters in the bar of a card's memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_flags(parser)
    about = "of the longest request, in tokens"
    parser.add_argument("--max-len", "--max-model-len", type=int, metavar="N", help=about)
    about = "of the cache (default: what --gpu has left, or 16)"
    parser.add_argument("--memory", type=float, metavar="GIB", help=about)
    add_json_flag(parser)
    rarer = parser.add_argument_group("other values than the GPU's and the model's")
    about = "all weights, in 10^9 bytes, with --gpu (default: the index's, or counted)"
    rarer.add_argument("--weights", type=float, metavar="GB", help=about)
    share, about = GPU_MEMORY_UTILIZATION, f"of the GPU that may be used (default: {GPU_MEMORY_UTILIZATION})"
    rarer.add_argument("--gpu-memory-utilization", type=float, default=share, metavar="SHARE", help=about)
    about = f"tokens per step (default: the GPU's, or {BUDGET})"
    rarer.add_argument("--max-num-batched-tokens", type=int, metavar="N", help=about)
    about = "one step in flight, in place of two"
    rarer.add_argument("--no-async-scheduling", action="store_true", help=about)
    about = "off: all layers keep all tokens, in one group"
    rarer.add_argument("--hybrid", choices=list(HYBRID), default="auto", help=about)


@one_line_errors("plan", ConfigError)
def run(args: argparse.Namespace) -> int:
    """Print the plan. Return 0, 1 if not one request fits, or 2 with one line on stderr if no plan is possible."""
    fit = plan(args)
    lines = _plan_lines(fit, lines_of_cut(args.model, fit.flags))
    print_report(args, lambda: as_dict(fit), lambda: lines)
    return int(fit.config is not None and fit.longest < fit.max_len)


def plan(args: argparse.Namespace) -> Fit:
    """Return the plan for the arguments. Raises `ConfigError` for an unusable one, or if there is no plan."""
    flags = read_flags(args)
    check_number("max_len", 1 if args.max_len is None else args.max_len)
    budget = args.max_num_batched_tokens
    if budget is None:
        budget = BUDGET if flags.card is None else flags.card.max_num_batched_tokens
    check_number("max_num_batched_tokens", budget)
    model, specs = flags.load(args.model)
    return make_fit(
        model,
        flags,
        specs,
        _memory(args, model, flags),
        max_len=model.max_model_len if args.max_len is None else args.max_len,
        max_num_batched_tokens=budget,
        num_steps=1 if args.no_async_scheduling else 2,
        disable_hybrid=HYBRID[args.hybrid],
    )


def _memory(args: argparse.Namespace, model: Model, flags: Flags) -> Memory:
    """Return the memory that the arguments set."""
    for name in ("memory", "weights"):
        size, unit = getattr(args, name), "GiB" if name == "memory" else "GB"
        if size is not None and not 0 < size <= LARGEST:  # which NaN is not
            raise ConfigError(f"--{name} is {size:g}, it must be above 0 and at most {LARGEST:,} {unit}")
    if not 0 < args.gpu_memory_utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization is {args.gpu_memory_utilization:g}, it must be above 0, at most 1")
    if flags.card is None:
        if args.weights is not None:
            raise ConfigError("--weights needs --gpu, whose memory they are taken from")
        return Memory(int((MEMORY if args.memory is None else args.memory) * GIB))
    weights, cards = None if args.weights is None else args.weights * 1e9, flags.tensor_parallel_size
    if args.memory is not None:
        return on_card(int(args.memory * GIB), flags.card, model, cards, weights)
    return memory_of(flags.card, model, cards, args.gpu_memory_utilization, weights)


def lines_of_cut(name: str, flags: Flags) -> list[str]:
    """Return the effect of a cut over cards on keys and values, or nothing for one card."""
    size = flags.tensor_parallel_size
    if size == 1:
        return []
    each = f"Each of {size} cards keeps"
    specs = load_model(name, flags.block_size).kv_cache_spec
    if all(isinstance(spec, MLAAttentionSpec) for spec in specs.values()):
        return [f"{each} all of it: a latent vector serves all heads.", ""]
    heads = sorted({spec.num_kv_heads for spec in specs.values() if isinstance(spec, AttentionSpec)})
    kept = ", ".join(f"{max(1, number // size)} of {number}" for number in heads)
    short = [number for number in heads if number < size]
    more = f" Each head is kept {size // short[0]} times: a request takes as much of each." if short else ""
    return [f"{each} {kept} KV heads per layer.{more}", ""]


def _plan_lines(fit: Fit, cut: Sequence[str]) -> list[str]:
    """Return the lines of the plan: the answer, the cut over cards, one per group, the totals, the tensors."""
    groups, memory, model = fit.groups, fit.memory, fit.model
    size = max(len(group.layer_names) for group in groups)
    lines = [
        fits(fit),
        *([HOW_TO_SAY_WEIGHTS, ""] if fit.config is None else []),
        *_bar(memory, fit.flags.tensor_parallel_size),
        *cut,
        f"{model.title}: {sum(len(g.layer_names) for g in groups)} layers own KV, {len(model.kv_sharing)} share it",
        "",
    ]
    width = max(18, *(len(describe(group.kv_cache_spec)) for group in groups))
    for group_id, group in enumerate(groups):
        spec, num_layers = group.kv_cache_spec, len(group.layer_names)
        most = spec.max_admission_blocks_per_request(fit.in_flight, fit.max_len)
        padding = f" + {size - num_layers} empty" if num_layers < size and not _is_packed(groups) else ""
        layers = f"{num_layers} layers{padding}"
        lines.append(
            f"group {group_id}  {layers:<20}  {describe(spec):<{width}}  blocks of {spec.block_size} tokens,"
            f" at most {most:,} a request"
        )
    lines += [
        "",
        *([f"weights      {text}: --weights takes another size"] if (text := weights(fit)) else []),
        f"block        {fit.bytes_per_block:,} bytes: {_pages(groups, size)}",
        *_pool(fit),
        f"request      of {fit.max_len:,} tokens: at most {fit.blocks_per_request:,} blocks,"
        f" {fit.blocks_per_request * fit.bytes_per_block / GIB:.2f} GiB, with {_in_flight(fit)} in flight",
        *_concurrency(fit),
        *([f"states       {text}"] if (text := states(fit)) else []),
        *_limit(fit),
        *([f"drafter      {text}"] if (text := drafter(fit)) else []),
        *([f"speed        {text}"] if (text := speed(fit)) else []),
        f"padding      {_padding(groups, size)}",
        "",
        *_tensor_lines(groups, model.kv_sharing),
        "",
        f"source: {model.source}",
    ]
    return lines


def _in_flight(fit: Fit) -> str:
    """Return the steps in flight and their tokens."""
    steps = "one step" if fit.num_steps == 1 else "two steps"
    return f"{steps} of {fit.max_num_batched_tokens:,} tokens"


def _pool(fit: Fit) -> list[str]:
    """Return the number of blocks, or nothing if the memory is not known."""
    if fit.config is None or fit.memory.kv is None:
        return []
    return [f"pool         {fit.config.num_blocks:,} blocks in {_gib(fit.memory.kv)} GiB, one of them the null block"]


def _concurrency(fit: Fit) -> list[str]:
    """Return the number of requests that fit, or nothing if the memory is not known."""
    if fit.config is None:
        return []
    return [f"concurrency  {two_decimals(fit.concurrency)} such requests at once, {fit.capacity:,} tokens"]


def states(fit: Fit) -> str:
    """Return the most requests at once that states allow, or an empty string without states or memory."""
    if fit.config is None or fit.max_num_seqs is None:
        return ""
    remark = f"with CUDA graphs, vLLM does not start with --max-num-seqs above {fit.config.num_blocks:,}"
    if fit.memory.card is not None and fit.memory.card.max_num_seqs > fit.config.num_blocks:
        remark += f", and its default is {fit.memory.card.max_num_seqs:,}"
    return f"at most {fit.max_num_seqs:,} requests at once, however short: {remark}"


def fits(fit: Fit) -> str:
    """Return the answer in a sentence."""
    card, cards = fit.memory.card, fit.flags.tensor_parallel_size
    where = "" if fit.memory.kv is None else f"in {_gib(fit.memory.kv)} GiB{'' if cards == 1 else ' on each card'}"
    if card is not None:
        where = f"on one {card.name}" if cards == 1 else f"on {cards} {card.name} GPUs"
    if fit.config is None:
        return f"The room {where} is not known, because the weights cannot be counted: {fit.model.weights_unknown}."
    if fit.longest < fit.max_len:
        most = f"the longest that fits has {fit.longest:,}" if fit.longest else "not one token does"
        return f"A request of {fit.max_len:,} tokens does not fit {where}: {most}."
    requests = "1 request" if int(fit.concurrency) == 1 else f"{int(fit.concurrency):,} requests"
    return f"Room for {requests} of {fit.max_len:,} tokens {where}."


def speed(fit: Fit) -> str:
    """Return the bound of tokens per second in a sentence, or an empty string without the GPU or the weights."""
    batch, card = int(fit.concurrency), fit.memory.card
    if card is None or fit.memory.active_weights is None or not batch:
        return ""
    one, all_of_them = fit.tokens_per_second(1), fit.tokens_per_second(batch)
    if one is None or all_of_them is None:
        return "no bound is known: sparse layers read some of the tokens, and drafts give several per step"
    read = f"a step reads the weights and the cache at {card.bandwidth / 1e12:g} TB/s"
    if batch == 1:
        return f"at most {one:,.0f} tokens/s from a request at its full length: {read}"
    return (
        f"at most {all_of_them:,.0f} tokens/s from {batch:,} requests at their full length, {one:,.0f} from one: {read}"
    )


def weights(fit: Fit) -> str:
    """Return the size of the weights and how it is known, or an empty string without the GPU or the size."""
    model, memory = fit.model, fit.memory
    if memory.card is not None and model.weights_from and model.weight_bytes:
        total = memory.weights * fit.flags.tensor_parallel_size
        is_given = not math.isclose(total, model.weight_bytes)
        return f"{total / 1e9:,.1f} GB, {'as given' if is_given else model.weights_from}"
    if fit.memory.card is None or not (model.num_parameters and model.active_share and model.weight_bytes):
        return ""
    total = model.num_parameters / model.active_share
    each = f"{model.weight_bytes / total:.2g} bytes each"
    return f"{total / 1e9:,.4g} billion parameters of {each}"


def _limit(fit: Fit) -> list[str]:
    """Return a remark if the longest request is longer than the model allows, or if the file does not say it."""
    most = fit.model.max_model_len_limit
    if most is None and fit.max_len == fit.model.max_model_len:
        return [
            f"limit        the file says no length: vLLM takes {fit.max_len:,} tokens, or what --max-model-len says"
        ]
    if most is None or fit.max_len <= most:
        return []
    return [f"limit        the model has {most:,} tokens at most: vLLM refuses a longer --max-model-len"]


def drafter(fit: Fit) -> str:
    """Return which layers are counted for the drafter, or an empty string without drafts or if it keeps no KV."""
    given, own = fit.flags.drafter, fit.model.num_drafter_layers
    if not fit.flags.num_speculative_tokens or given == NO_DRAFTER:
        return ""
    if given is not None:
        return f"the layers of {given} are counted"
    if own:
        return f"{own} of the model's own layers {'is' if own == 1 else 'are'} counted for it"
    return f"not counted: give its config.json with --drafter, or {NO_DRAFTER} if it keeps no KV"


def _bar(memory: Memory, cards: int) -> list[str]:
    """Return a bar of the use of a GPU's memory, and its key, or nothing if the GPU is not known."""
    if memory.card is None or memory.kv is None:
        return []
    weights, kv = (round(BAR * part / memory.card.memory) for part in (memory.weights, memory.kv))
    parts = {"# weights": memory.weights, "= KV cache": memory.kv, ". not used": memory.rest}
    key = "   ".join(f"{name} {part / 1e9:,.1f} GB" for name, part in parts.items())
    each = "" if cards == 1 else ", each"
    size = f"{memory.card.memory / 1e9:g} GB{each}"
    return ["", f"|{('#' * weights + '=' * kv).ljust(BAR, '.')[:BAR]}|  {size}", f" {key}", ""]


def two_decimals(number: float) -> str:
    """Return a number with two decimals, rounded down: 15.998 requests are not 16."""
    return f"{math.floor(100 * number) / 100:,.2f}"


def _gib(num_bytes: int) -> str:
    """Return a number of GiB without needless digits."""
    return f"{round(num_bytes / GIB, 2):g}"


def as_dict(fit: Fit) -> dict[str, Any]:
    """Return all figures by name."""
    memory = fit.memory
    return {
        "model": fit.model.title,
        "gpu": None if memory.card is None else memory.card.name,
        "gpu_bytes": None if memory.card is None else memory.card.memory,
        "weight_bytes": memory.weights or None,
        "kv_cache_bytes": memory.kv,
        "block_bytes": fit.bytes_per_block,
        "weights_from": fit.model.weights_from or None,
        "num_blocks": fit.config and fit.config.num_blocks,
        "max_len": fit.max_len,
        "blocks_per_request": fit.blocks_per_request,
        "concurrency": fit.config and fit.concurrency,
        "kv_cache_tokens": fit.config and fit.capacity,
        "tokens_in_flight": fit.in_flight,
        "longest": fit.config and fit.longest,
        "max_num_seqs": fit.max_num_seqs,
        "drafter_layers": sum(name.startswith("drafter.") for name in fit.specs),
        "tokens_per_second_of_one": fit.tokens_per_second(1),
        "tokens_per_second_of_all": fit.tokens_per_second(int(fit.concurrency)),
        "groups": [
            {
                "layers": list(group.layer_names),
                "keeps": describe(group.kv_cache_spec),
                "block_size": group.kv_cache_spec.block_size,
            }
            for group in fit.groups
        ],
        "source": fit.model.source,
    }


def _pages(groups: Sequence[KVCacheGroupSpec], size: int) -> str:
    """Return the pages of a block. There are as many as the largest group has layers. They may differ in size."""
    spec = max(groups, key=lambda group: group.page_size_bytes).kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return f"{size} layers of {spec.page_size_bytes:,}"
    counts = Counter(layer.page_size_bytes for layer in spec.kv_cache_specs.values())
    return ", ".join(f"{number} layers of {page:,}" for page, number in counts.items())


def _is_packed(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether a block is contiguous, with the pages of one group's layers."""
    return len(groups) > 1 and isinstance(groups[0].kv_cache_spec, UniformTypeKVCacheSpecs)


def _padding(groups: Sequence[KVCacheGroupSpec], size: int) -> str:
    """Return the empty part of the blocks: unused pages, or unused bytes if pages differ."""
    places, used = size * len(groups), sum(len(group.layer_names) for group in groups)
    what = "places"
    if _is_packed(groups):
        places, used = bytes_per_block(groups) * len(groups), sum(group.page_size_bytes for group in groups)
        what = "bytes"
    return f"{places - used:,} of {places:,} {what} are empty: {100 * (places - used) / places:.1f} %"


def describe(spec: KVCacheSpec) -> str:
    """Return the kind of attention in two words, or both kinds of a mixed group."""
    match spec:
        case SlidingWindowMLASpec(dtype_bytes=4):
            return f"last {spec.sliding_window:,} uncompressed"
        case UniformTypeKVCacheSpecs():
            return " and ".join(dict.fromkeys(map(describe, spec.kv_cache_specs.values())))
        case SlidingWindowSpec():
            return f"window of {spec.sliding_window:,}"
        case ChunkedLocalAttentionSpec():
            return f"chunks of {spec.attention_chunk_size:,}"
        case MLAAttentionSpec(cache_role="indexer"):
            return "indexer keys"
        case MLAAttentionSpec():
            return "latent vectors"
        case MambaSpec():
            return "state"
        case _:
            return "full attention"


def _tensor_lines(groups: Sequence[KVCacheGroupSpec], kv_sharing: dict[str, str]) -> list[str]:
    """Return a drawing of the tensors: a row per tensor, a column per group, + for layers that share an owner's KV."""
    if _is_packed(groups):
        return ["one tensor: a block is a stretch of it, with a page for each layer of the block's group"]
    tensors = get_kv_cache_tensors(groups, kv_sharing)
    cells = [
        [names[0] + f" +{len(names) - 1}" * (len(names) > 1) if names else "." for names in row] for row in tensors
    ]
    width = max(len(cell) for row in cells for cell in row)
    width = max(width, len(f"group {len(groups) - 1}"))
    head = "  ".join(f"group {i}".ljust(width) for i in range(len(groups)))
    lines = [f"{'':<11}{head}".rstrip()]
    rows = [f"tensor {i:<4}" + "  ".join(cell.ljust(width) for cell in row) for i, row in enumerate(cells)]
    if len(rows) > MAX_ROWS:
        rows = [*rows[: MAX_ROWS - 2], f"           .. {len(rows) - MAX_ROWS + 1} more ..", rows[-1]]
    return lines + [row.rstrip() for row in rows]
