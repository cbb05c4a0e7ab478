"""`mini-kv plan MODEL`: the layout of a model's KV cache in a given amount of memory, before any request."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

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
from mini_kv.core.kv_cache_planning import (
    blocks_per_request,
    bytes_per_block,
    get_kv_cache_config,
    get_kv_cache_groups,
    get_kv_cache_tensors,
    get_max_concurrency,
)
from mini_kv.planning.flags import LARGEST, add_flags, check_number, read_flags
from mini_kv.planning.models import Model, load_model

GIB = 2**30
HYBRID = {"on": False, "off": True, "auto": None}
MAX_ROWS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_flags(parser)
    parser.add_argument("--memory", type=float, default=16.0, metavar="GIB", help="memory for the cache (default: 16)")
    parser.add_argument("--max-len", type=int, metavar="N", help="tokens of the longest request (default: the model's)")
    parser.add_argument("--step", type=int, default=8192, metavar="N", help="most tokens per step (default: 8192)")
    parser.add_argument(
        "--hybrid",
        choices=list(HYBRID),
        default="auto",
        help="off: keep all tokens of every layer, in one group (default: auto, which is off for chunked attention)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; return 0, or 2 with one line on stderr if no plan is possible."""
    try:
        flags = read_flags(args)
        check_number("max_len", 1 if args.max_len is None else args.max_len)
        check_number("step", args.step)
        if not 0 < args.memory <= LARGEST:  # which NaN is not
            raise ConfigError(f"--memory is {args.memory:g}, it must be above 0 and at most {LARGEST:,} GiB")
        model, specs = flags.load(args.model)
        max_len = args.max_len if args.max_len is not None else model.max_model_len
        if max_len is None:
            raise ConfigError(f"{args.model} does not say max_position_embeddings: give --max-len")
        groups = get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=HYBRID[args.hybrid])
        lines = _plan_lines(model, groups, int(args.memory * GIB), max_len, args.step)
        whole = load_model(args.model, flags.block_size).kv_cache_spec
        print("\n".join([*_lines_of_cut(whole, flags.tensor_parallel_size), *lines]))
    except ConfigError as error:
        print(f"mini-kv plan: {error}", file=sys.stderr)
        return 2
    return 0


def _lines_of_cut(specs: dict[str, KVCacheSpec], size: int) -> list[str]:
    """Return what a cut over cards does to keys and values; nothing for one card."""
    if size == 1:
        return []
    if all(isinstance(spec, MLAAttentionSpec) for spec in specs.values()):
        return [f"one of {size} cards: a latent vector serves all heads, so each is kept on every card", ""]
    heads = sorted({spec.num_kv_heads for spec in specs.values() if isinstance(spec, AttentionSpec)})
    kept = ", ".join(f"{max(1, number // size)} of {number}" for number in heads)
    short = [number for number in heads if number < size]
    said = (
        f"; they have run out: each is kept {size // short[0]} times, and more cards buy no more room" if short else ""
    )
    return [f"one of {size} cards, with {kept} KV heads per layer{said}", ""]


def _plan_lines(model: Model, groups: Sequence[KVCacheGroupSpec], memory: int, max_len: int, step: int) -> list[str]:
    """Return the lines of the plan: one per group, then the totals, then the tensors."""
    config = get_kv_cache_config(groups, memory)
    size = max(len(group.layer_names) for group in groups)
    concurrency = get_max_concurrency(config, max_len, step)
    lines = [
        _fits(concurrency, max_len, memory),
        f"{model.title}: {sum(len(g.layer_names) for g in groups)} layers own KV, {len(model.kv_sharing)} share it",
        "",
    ]
    width = max(18, *(len(describe(group.kv_cache_spec)) for group in groups))
    for group_id, group in enumerate(groups):
        spec, num_layers = group.kv_cache_spec, len(group.layer_names)
        most = spec.max_admission_blocks_per_request(step, max_len)
        padding = f" + {size - num_layers} empty" if num_layers < size and not _is_packed(groups) else ""
        layers = f"{num_layers} layers{padding}"
        lines.append(
            f"group {group_id}  {layers:<20}  {describe(spec):<{width}}  blocks of {spec.block_size} tokens,"
            f" at most {most:,} a request"
        )
    per_block = bytes_per_block(groups)
    per_request = blocks_per_request(groups, max_len, step)
    lines += [
        "",
        f"block        {per_block:,} bytes: {_pages(groups, size)}",
        f"pool         {config.num_blocks:,} blocks in {memory / GIB:g} GiB, one of them the null block",
        f"request      of {max_len:,} tokens, in steps of at most {step:,}: at most {per_request:,} blocks,"
        f" {per_request * per_block / GIB:.2f} GiB",
        f"concurrency  {concurrency:.2f} such requests at once",
        f"padding      {_padding(groups, size)}",
        "",
        *_tensor_lines(groups, model.kv_sharing),
        "",
        f"source: {model.source}",
    ]
    return lines


def _fits(concurrency: float, max_len: int, memory: int) -> str:
    """Return the answer in a sentence."""
    if concurrency < 1:
        return f"A request of {max_len:,} tokens does not fit in {memory / GIB:g} GiB."
    requests = "1 request" if int(concurrency) == 1 else f"{int(concurrency):,} requests"
    return f"Room for {requests} of {max_len:,} tokens in {memory / GIB:g} GiB."


def _pages(groups: Sequence[KVCacheGroupSpec], size: int) -> str:
    """Return the pages that a block has: as many as the largest group has layers, all equally large, or not."""
    spec = max(groups, key=lambda group: group.page_size_bytes).kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return f"{size} layers of {spec.page_size_bytes:,}"
    counts = Counter(layer.page_size_bytes for layer in spec.kv_cache_specs.values())
    return ", ".join(f"{number} layers of {page:,}" for page, number in counts.items())


def _is_packed(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether a block is one stretch of bytes, with the pages of one group's layers."""
    return len(groups) > 1 and isinstance(groups[0].kv_cache_spec, UniformTypeKVCacheSpecs)


def _padding(groups: Sequence[KVCacheGroupSpec], size: int) -> str:
    """Return how much of the blocks is empty: places of layers, or bytes where pages differ."""
    places, used = size * len(groups), sum(len(group.layer_names) for group in groups)
    what = "places"
    if _is_packed(groups):
        places, used = bytes_per_block(groups) * len(groups), sum(group.page_size_bytes for group in groups)
        what = "bytes"
    return f"{places - used:,} of {places:,} {what} are empty: {100 * (places - used) / places:.1f} %"


def describe(spec: KVCacheSpec) -> str:
    """Return the kind of attention in two words, or both kinds of a group that has two."""
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
