"""`mini-kv curve TRACE`: the hit rate at every pool size, and the gain of more memory."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mini_kv.command_output import add_json_flag, one_line_errors, print_report
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_planning import bytes_per_block, get_kv_cache_groups
from mini_kv.progress_line import ProgressLine
from mini_kv.tools.planning.cost import H200, Card, prefill_seconds, served
from mini_kv.tools.planning.flags import Flags, add_card_flags, read_card_flags
from mini_kv.tools.traces.curve import Curve, CurvePoint, make_curve
from mini_kv.tools.traces.parallel import add_cell_arguments, run_cells
from mini_kv.tools.traces.plot import curve_svg, curve_text, page
from mini_kv.tools.traces.prompt_hashes import Trace, check_block_size, get_block_size, make_prompts
from mini_kv.tools.traces.readers.formats import add_trace_arguments, read_traffic
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.typed_numbers import number_above_zero, output_file, whole_number

GIB = 2**30
TITLE = "Hit rate over pool sizes"


class Memory(NamedTuple):
    """The bytes of a model's block, and the seconds to compute it."""

    title: str
    bytes_per_block: int
    prefill_seconds: Callable[[int, int], float] | None
    """See `mini_kv.tools.planning.cost`; `None` if the model's size is not known."""
    card: Card
    """The GPU of these seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    add_trace_arguments(parser)
    add_size_arguments(parser)
    about = "a row per block size, in place of one curve"
    parser.add_argument("--block-sizes", type=int, nargs="+", metavar="N", help=about)
    about = "parameters of a model of your own"
    parser.add_argument("--parameters", type=number_above_zero(10**15), metavar="N", help=about)
    add_cell_arguments(parser)
    add_json_flag(parser)
    about = "also write every size at which hits rise (.csv), the plot (.svg), or both (.html); may be repeated"
    parser.add_argument("--to", type=output_file(".csv", ".svg", ".html"), action="append", metavar="FILE", help=about)


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the sizes of the pool and its blocks."""
    parser.add_argument(
        "--num-blocks", type=whole_number(1, 10**9), metavar="N", help="blocks of your pool, with the null block"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="or GiB of your pool, with --model")
    parser.add_argument("--model", metavar="NAME", help="of mini-kv plan --list, or the path of a config.json")
    add_card_flags(parser)


def flags_of_model(args: argparse.Namespace, block_size: int) -> Flags:
    """Return the flags that change the model's blocks. Raises `ConfigError` for such a flag without a model."""
    flags = read_card_flags(args, block_size)
    if args.model is None and flags != Flags(block_size):
        raise ConfigError("--gpu, --kv-cache-dtype, --tensor-parallel-size and --gdn-prefill-backend need --model")
    return flags


@one_line_errors("curve", TraceError, ConfigError)
def run(args: argparse.Namespace) -> int:
    """Print the curve and return 0, or 2 with one line on stderr if the trace or an argument is wrong."""
    with ProgressLine(sys.stderr, "drawing the curve") as progress:
        trace = read_traffic(args)
        if args.block_sizes is not None:
            figures = _sweep(trace, args, progress)
        else:
            curve, memory = _curve(trace, args)
    if args.block_sizes is not None:
        return print_report(args, lambda: figures, lambda: _table(figures), wrap=False)
    num_blocks = args.num_blocks
    if args.memory is not None:
        num_blocks = blocks_in(args.memory, None if memory is None else memory.bytes_per_block)
    lines = report(curve, num_blocks, memory)
    points = [(size, curve.at(size).hit_rate) for size in curve.sizes(200)]
    marks = [(curve.knee(), "knee")] + ([] if num_blocks is None else [(num_blocks, "yours")])
    svg = curve_svg(TITLE, lines[1], points, marks)
    writers = {".svg": lambda: svg, ".html": lambda: page(TITLE, svg, lines), ".csv": lambda: _csv(curve)}
    for file in args.to or ():
        file.write_text(writers[file.suffix.lower()](), encoding="utf-8")
    if not args.json:
        print("\n".join([*curve_text(points), ""]))
    return print_report(args, lambda: as_dict(curve, num_blocks, memory), lambda: lines)


def _curve(trace: Trace, args: argparse.Namespace) -> tuple[Curve, Memory | None]:
    """Return the curve, and the memory of its blocks if there is a model."""
    block_size = get_block_size(trace, args.block_size)
    flags = flags_of_model(args, block_size)
    memory = None if args.model is None else _memory(args.model, flags, args.parameters)
    return make_curve(make_prompts(trace, block_size), block_size), memory


def _sweep(trace: Trace, args: argparse.Namespace, progress: ProgressLine) -> list[dict[str, Any]]:
    """Return the figures of the curve with blocks of each size."""
    of_one_curve = ("num_blocks", "memory", "model", "parameters", "to")
    given = [f"--{name.replace('_', '-')}" for name in of_one_curve if getattr(args, name) is not None]
    if given:
        raise ConfigError(f"{given[0]} needs one curve, but --block-sizes makes several")
    flags_of_model(args, 16)
    for size in args.block_sizes:
        check_block_size(trace, size)
    sizes = sorted(set(args.block_sizes))
    progress.total = len(sizes)
    return run_cells(_figures_of_curve, trace, sizes, jobs=args.jobs, dask=args.dask, on_progress=progress.show)


def _table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Return the hit rate of blocks of each size at best and at the knee."""
    lines = [f"{'block size':>10} {'at most':>9} {'in blocks':>11} {'knee':>9} {'in blocks':>11}"]
    for row in figures:
        most, knee = row["points"][-1], row["at"]
        lines.append(
            f"{row['block_size']:>10,} {100 * most['hit_rate']:>7.2f} % {most['num_blocks']:>11,}"
            f" {100 * knee['hit_rate']:>7.2f} % {knee['num_blocks']:>11,}"
        )
    return lines


def _figures_of_curve(trace: Trace, block_size: int) -> dict[str, Any]:
    return as_dict(make_curve(make_prompts(trace, block_size), block_size), None, None)


def _memory(name: str, flags: Flags, parameters: float | None) -> Memory:
    """Return the model's memory, with every layer keeping all tokens: the curve is that of one group."""
    model, specs = flags.load(name)
    groups = get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=True)
    if len(groups) > 1 or groups[0].kv_cache_spec.block_size != flags.block_size:
        raise ConfigError(f"{model.title} needs several groups of layers, a curve has one: use `mini-kv explain`")
    parameters = parameters or model.num_parameters
    seconds = None
    if parameters and model.num_heads:
        try:
            costs = served(name, parameters, model.num_heads)
            seconds = partial(prefill_seconds, costs, flags.card or H200)
        except ConfigError:  # windows cost less than the sum says
            seconds = None
    return Memory(model.title, bytes_per_block(groups), seconds, flags.card or H200)


def blocks_in(gib: float, bytes_per_block: int | None) -> int:
    """Return the blocks of a memory. Raises `ConfigError` without a model, or for an unusable size."""
    if bytes_per_block is None:
        raise ConfigError("--memory needs --model, which says how large a block is")
    if not 0 < gib <= 10**9:  # which NaN is not
        raise ConfigError(f"--memory is {gib:g}, it must be above 0 and at most 1,000,000,000 GiB")
    return int(gib * GIB) // bytes_per_block


def report(curve: Curve, num_blocks: int | None, memory: Memory | None) -> list[str]:
    """Return the lines of the report, sentences first."""
    all_of_it, knee = curve.at(curve.largest), curve.at(curve.knee())
    size = _sizes_in_words(memory)
    lines = [
        f"{len(curve.prompts):,} requests, {all_of_it.prompt_tokens:,} prompt tokens, blocks of {curve.block_size}"
        " tokens, one request at a time.",
        f"No pool finds more than {_percent(all_of_it)}, and {size(curve.largest)} are enough for that.",
        f"The knee: {size(knee.num_blocks)} find {_percent(knee)}. Up to there one more block finds more hits than an"
        " average block does, beyond it fewer.",
        f"A pool of fewer than {curve.smallest:,} blocks refuses the longest prompt.",
    ]
    yours = knee if num_blocks is None else curve.at(num_blocks)
    if num_blocks is not None:
        refused = f", and refuses {yours.requests_refused:,} requests" if yours.requests_refused else ""
        lines.append(f"Yours: {size(num_blocks)} find {_percent(yours)}{refused}.")
    more = curve.at(yours.num_blocks + _step(yours.num_blocks, memory))
    step = more.num_blocks - yours.num_blocks
    bought = f"{step:,} blocks more" if memory is None else f"The next GiB, {step:,} blocks,"
    text = f"{bought} would find {more.hit_tokens - yours.hit_tokens:,} tokens more: {_percent(more)}"
    seconds = _seconds_saved(yours, more, memory)
    if memory is not None and seconds is not None:
        text += f", and save at least {seconds:,.1f} s of prefill on one {memory.card.name}"
    return [*lines, text + "."]


def as_dict(curve: Curve, num_blocks: int | None, memory: Memory | None) -> dict[str, Any]:
    """Return all figures by name. The names do not change between versions."""
    yours = curve.at(curve.knee() if num_blocks is None else num_blocks)
    more = curve.at(yours.num_blocks + _step(yours.num_blocks, memory))
    return {
        "requests": len(curve.prompts),
        "block_size": curve.block_size,
        "bytes_per_block": None if memory is None else memory.bytes_per_block,
        "smallest": curve.smallest,
        "largest": curve.largest,
        "knee": curve.knee(),
        "at": _figures(yours),
        "next": {**_figures(more), "prefill_seconds_saved": _seconds_saved(yours, more, memory)},
        "points": [_figures(curve.at(size)) for size in curve.sizes(200)],
    }


def _figures(point: CurvePoint) -> dict[str, float]:
    return {**point._asdict(), "hit_rate": point.hit_rate}


def _step(num_blocks: int, memory: Memory | None) -> int:
    """Return the number of blocks of the next step: a GiB, or without a model a tenth more."""
    return max(1, num_blocks // 10 if memory is None else GIB // memory.bytes_per_block)


def _seconds_saved(yours: CurvePoint, more: CurvePoint, memory: Memory | None) -> float | None:
    if memory is None or memory.prefill_seconds is None or yours.requests_refused > more.requests_refused:
        return None
    return memory.prefill_seconds(more.hit_tokens - yours.hit_tokens, more.hit_places - yours.hit_places)


def _sizes_in_words(memory: Memory | None) -> Callable[[int], str]:
    if memory is None:
        return lambda num_blocks: f"{num_blocks:,} blocks"
    return lambda n: f"{n:,} blocks ({n * memory.bytes_per_block / GIB:,.1f} GiB of {memory.title})"


def _percent(point: CurvePoint) -> str:
    return f"{100 * point.hit_rate:.2f} % of the prompt tokens"


def _csv(curve: Curve) -> str:
    rises = [n for n in range(curve.smallest, curve.largest + 1) if curve.hit_blocks[n] > curve.hit_blocks[n - 1]]
    rows = [curve.at(size) for size in sorted({curve.smallest, *rises})]
    body = [f"{row.num_blocks},{row.hit_tokens},{row.prompt_tokens},{row.hit_rate:.6f}" for row in rows]
    return "\n".join(["num_blocks,hit_tokens,prompt_tokens,hit_rate", *body, ""])
