"""The instruments of steps, kernels and seconds: each shows one idea with controls, with all numbers from the engine.

softmax_in_tiles      the two running numbers, under movable scores, tile by tile
tiles_over_blocks     the loads of a kernel's program, tile by tile, from scattered blocks
roofline              operations per byte of a step, by requests and context
timetable             the tokens of each request per step, under a budget of tokens
eight_clients         the lanes of eight clients with one beginning, in pools of several sizes
strategies_as_dots    admission strategies by waiting and by tokens computed twice, with a movable watermark
one_more_word         measured times of a word, in true proportion
bus                   the seconds of a step, and the share of each request
reload_or_recompute   the time to reload a prefix from a tier, and to compute it again
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.lessons.instrument import Control, Instrument, Mark, View, handle
from mini_kv.course.lessons.instruments import QUARTERS, WIDTH, axis, numbers, text
from mini_kv.course.lessons.timeline import AGAIN, ANSWER, OUT, PROMPT, WAITS, Arrival, Moment, timeline
from mini_kv.policy.admission_strategies import Strategy, strategies
from mini_kv.tiers.reload_cost import ReloadCost
from mini_kv.tools.planning.cost import Card, Served, decode_step, largest_batch, prefill_seconds
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.timed_replay import ClockReport, replay_with_clock


def softmax_in_tiles() -> Instrument:
    """Return six scores in three tiles. The reader drags the second score of each tile, and adds the tiles."""
    from mini_kv.course.lessons.tensors import follow_blocks

    fixed = (1.0, 2.0, 0.5)
    followed = cache(lambda *scores: follow_blocks(scores, 2))

    def draw(come: int, *dragged: int) -> View:
        scores = [score for pair in zip(fixed, map(float, dragged), strict=True) for score in pair]
        marks = {}
        for index, score in enumerate(scores):
            tile = index // 2
            left = 14 + 36 * index + 26 * tile
            height = 4 + 24 * score
            of = COLOURS[tile] if tile <= come else "dash soft"
            marks[f"bar {index}"] = Mark("rect", x=left, y=172 - height, width=26, height=height, of=of)
            marks[f"score {index}"] = text(left + 13, 167 - height, f"{score:g}", "mid")
        for tile in range(3):
            left = 8 + 98 * tile
            of = "line soft" if tile <= come else "dash soft"
            marks[f"tile {tile}"] = Mark("rect", x=left, y=2, width=74, height=174, of=of)
            marks[f"name {tile}"] = text(left + 37, 193, f"tile {tile + 1}", "mid soft")
            marks[f"hand {tile}"] = handle(left + 38, 48, 36, 120, up=tile + 1)
        after = followed(*scores)
        now = after[come]
        x = 8.0
        for tile, share in enumerate(now.shares):
            marks[f"share {tile}"] = Mark("rect", x=x, y=204, width=392 * share, height=20, of=COLOURS[tile])
            x += 392 * share
        marks |= axis("share in the result so far", QUARTERS, lambda share: 8 + 392 * share, 226, write=".0%")
        marks["largest"] = text(312, 40, f"largest {now.largest:g}", "big")
        marks["total"] = text(312, 62, f"total {now.total:.2f}", "big")
        before = after[come - 1].largest if come else now.largest
        if come:
            marks["shrink"] = text(312, 92, "what came before", "soft")
            marks["by"] = text(312, 108, f"is shrunk by {math.exp(before - now.largest):.2f}", "soft")
        if not come:
            said = "The first tile: its largest score is subtracted from both."
        elif before < now.largest:
            said = f"A larger score has come: both sums are shrunk before tile {come + 1} is added."
        else:
            said = f"Tile {come + 1} has no larger score: nothing is shrunk, its weights are added."
        return View(marks, (said,))

    controls = [Control("tiles that have come", ("1", "2", "3"), start=1)]
    controls += [
        Control(f"score in tile {tile}", numbers(*range(6)), start=start) for tile, start in ((1, 2), (2, 4), (3, 1))
    ]
    return Instrument("Softmax in tiles", controls, draw, (WIDTH, 266))


COLOURS = ("blue", "orange", "green", "pink")


def tiles_over_blocks(seq_len: int = 54, block_size: int = 16) -> Instrument:
    """Return a request's tokens as a program of the kernel loads them, tile by tile, from scattered blocks."""
    table = (5, 2, 7, 3)
    kv_blocks, unit = range(1, 9), 6.5

    def draw(tile: int, size: int) -> View:
        tile_size = (8, 16, 32)[size]
        num_tiles = -(-seq_len // tile_size)
        first = min(tile, num_tiles - 1) * tile_size
        marks = axis("token", range(0, seq_len, 8), lambda token: unit * token, 66) | {
            "row": text(0, 12, f"the request: {seq_len} tokens, and the block of each", "soft"),
            "memory": text(0, 128, "the memory, block by block", "soft"),
        }
        loaded = range(first, min(first + tile_size, seq_len))
        marks["tokens"] = Mark("rect", x=0, y=40, width=unit * seq_len, height=24, of="pale")
        marks["lane"] = Mark("rect", x=unit * first, y=40, width=unit * tile_size, height=24, of="line", stroke_width=2)
        marks["load"] = Mark("rect", x=unit * first, y=40, width=unit * len(loaded), height=24, of="blue")
        for entry in range(1, len(table)):
            marks[f"end {entry}"] = Mark("path", d=f"M{unit * block_size * entry} 24v42", of="line soft")
        for entry, block in enumerate(table):
            marks[f"entry {entry}"] = text(unit * block_size * entry + 6, 34, f"block {block}")
        for block in kv_blocks:
            x = 52 * (block - 1)
            of = "line" if block in table else "dash soft"
            marks[f"box {block}"] = Mark("rect", x=x, y=136, width=48, height=30, of=of)
            marks[f"id {block}"] = text(x + 24, 184, f"{block}", "mid")
            if block in table:
                start = table.index(block) * block_size
                inside = [position for position in loaded if start <= position < start + block_size]
                here = x + 3 * (inside[0] - start) if inside else x
                marks[f"part {block}"] = Mark("rect", x=here, y=137, width=3 * len(inside), height=28, of="blue")
        blocks = sorted({table[position // block_size] for position in loaded}, key=table.index)
        masked = tile_size - len(loaded)
        return View(marks, (
            f"Tile {min(tile, num_tiles - 1) + 1} of {num_tiles}: positions ", f"{first} to {first + len(loaded) - 1}",
            ", from block ", " and ".join(map(str, blocks)),
            f"; {masked} lanes are masked and load nothing." if masked else ".",
        ))  # fmt: skip

    controls = (
        Control("tile", numbers(*range(1, 8)), start=1),
        Control("tokens per tile", ("8", "16", "32"), start=2, choice=True),
    )
    return Instrument("What a tile loads", controls, draw, (WIDTH, 190))


def roofline(model: Served, card: Card) -> Instrument:
    """Return a step of decoding as a dot below a card's roof, by its requests and their tokens."""
    batches, contexts = [2**i for i in range(10)], [0, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    left, top, width, height, low, high, least = 44, 26, 360, 190, 0.5, 1024.0, 1 / 1000
    ridge = card.flops / card.bandwidth

    def across(intensity: float) -> float:
        return left + width * math.log(intensity / low) / math.log(high / low)

    def above(share: float) -> float:
        return top + height * math.log(min(1.0, share)) / math.log(least)

    roof = "M" + "L".join(f"{across(x):.0f} {above(x / ridge):.0f}" for x in (low, ridge, high))

    def draw(requests: int, behind: int) -> View:
        batch, context = batches[requests], contexts[behind]
        step = decode_step(model, card, batch, context)
        intensity = step.arithmetic * card.flops / ((step.weights + step.kv) * card.bandwidth)
        fits = context == 0 or batch <= largest_batch(model, card, context)
        x, y = across(intensity), above(intensity / ridge)
        used = min(1.0, intensity / ridge)
        marks = {
            "frame": Mark("path", d=f"M{left} {top}v{height}h{width}", of="line soft"),
            "roof": Mark("path", d=roof, of="line", stroke_width=2),
            "ridge": Mark("path", d=f"M{across(ridge):.0f} {top}v{height}", of="dash soft"),
            "name": text(across(ridge) - 5, top + height - 8, f"the ridge: {ridge:.0f} operations per byte", "end"),
            "dot": Mark("circle", cx=x, cy=y, r=7, of="blue" if fits else "dash", stroke_width=2),
            "room": text(x + 12, y + 16, "" if fits else "no room"),
        }
        marks |= axis("operations per byte", (1, 4, 16, 64, 256, 1024), across, top + height)
        marks |= axis("% of the arithmetic used", (0.1, 1, 10, 100), lambda used: above(used / 100), left, up=True)
        says = (
            f"{batch} request{'s' * (batch > 1)} of {context:,} tokens each: ", f"{intensity:.1f}",
            " operations per byte, ", f"{used:.1%}", " of the arithmetic is used, ",
            f"{batch / step.seconds:,.0f} tokens per second at the most." if fits else "if their caches had room.",
        )  # fmt: skip
        return View(marks, says)

    controls = (
        Control("requests", numbers(*batches), start=3),
        Control("tokens of each", numbers(*contexts), start=3),
    )
    return Instrument(f"A step of {model.name} on an {card.name}", controls, draw, (WIDTH, 254))


def timetable() -> Instrument:
    """Return the tokens of each request in each step, as bars under the budget."""
    sizes = {"A": (1, 12, 7), "B": (1, 9, 8), "C": (2, 40, 4), "D": (5, 6, 5)}
    arrivals = [
        Arrival(step, name, range(1000 * index, 1000 * index + prompt), max_tokens=answer)
        for index, (name, (step, prompt, answer)) in enumerate(sizes.items())
    ]
    budgets = (4, 8, 12, 16, 24, 32, 48)
    tables = [
        timeline(arrivals, num_blocks=40, block_size=4, limits=SchedulerConfig(max_num_batched_tokens=budget))
        for budget in budgets
    ]
    num_steps = [max(map(len, table.values())) for table in tables]
    left, bottom, wide, tall = 28, 190, 390 / max(num_steps), 164 / max(budgets)

    def draw(at: int) -> View:
        marks, below = {}, [0] * num_steps[at]
        for (name, moments), colour in zip(tables[at].items(), COLOURS, strict=True):
            bars = ""
            for step, moment in enumerate(moments):
                if moment.num_tokens:
                    x, y = left + wide * step, bottom - tall * below[step]
                    up = tall * moment.num_tokens
                    bars += f"M{x:.1f} {y:.1f}v{-up:.1f}h{wide - 1.5:.1f}v{up:.1f}"
                    below[step] += moment.num_tokens
            marks[name] = Mark("path", d=bars, of=colour)
        for index, (name, colour) in enumerate(zip(sizes, COLOURS, strict=True)):
            marks[f"{name} box"] = Mark("rect", x=105 * index, y=250, width=15, height=15, of=colour)
            marks[f"{name} name"] = text(105 * index + 21, 262, f"{name}: {sizes[name][1]} + {sizes[name][2]}")
        y = bottom - tall * budgets[at]
        marks["frame"] = Mark("path", d=f"M{left} {bottom - 164}v164h390", of="line soft")
        marks["budget"] = Mark("path", d=f"M{left} {y:.1f}h390", of="dash", stroke_width=2)
        marks["says"] = text(WIDTH, y - 6, f"budget: {budgets[at]}", "end")
        marks["legend"] = text(0, 242, "from below, tokens of prompt + answer:", "soft")
        marks |= axis("step", (1, *range(5, max(num_steps) + 1, 5)), lambda step: left + wide * (step - 0.5), bottom)
        marks |= axis("tokens", range(0, 49, 12), lambda number: bottom - tall * number, left, up=True)
        marks["hand"] = handle(left, bottom - 164, 390, 164, up=0)
        answers = [next(i for i, moment in enumerate(row) if moment.doing == "answer") for row in tables[at].values()]
        return View(marks, (
            f"All is done after {num_steps[at]} steps, of at most {max(below)} tokens. The first word of A's answer is "
            f"there after step {answers[0]}, of C's, the long one, after step {answers[2]}.",
        ))  # fmt: skip

    return Instrument(
        "The batch as a timetable", (Control("tokens per step", numbers(*budgets), start=2),), draw, (WIDTH, 268)
    )


def eight_clients() -> Instrument:
    """Return the lanes of eight clients whose prompts begin alike, in a pool of a size that the reader sets."""
    shared, pools = 24, (24, 19, 16, 13, 10, 7)
    names = [f"{number}" for number in range(1, 9)]
    arrivals = [
        Arrival(1 if name == "1" else 2, name, [*range(shared), 1000 + int(name)], max_tokens=12) for name in names
    ]
    tables = [timeline(arrivals, num_blocks + 1, block_size=8) for num_blocks in pools]
    most = max(len(table["1"]) for table in tables)
    left, top, tall, wide = 128, 56, 26, (WIDTH - 128) / most

    def frame() -> dict[str, Mark]:
        marks = {"card": Mark("rect", x=24, y=top, width=72, height=8 * tall - 4, rx=4, of="blue", fill_opacity=0.35)}
        for line, words in enumerate((f"{shared} tokens", "of every", "prompt")):
            marks[f"card, {words}"] = text(60, top + 3.4 * tall + 18 * line, words, "mid")
        marks["signs"] = text(0, 12, "blue: prompt, ring: first word, grey: a word per step,", "soft")
        marks["other signs"] = text(0, 32, "dashes: waits, cross: preempted, orange: again", "soft")
        for row, name in enumerate(names):
            marks[f"name {name}"] = text(8, top + tall * row + 16, name, "mid")
            marks[f"own {name}"] = text(left - 8, top + tall * row + 16, "+1", "end soft")
        ticks = (1, *range(5, most + 1, 5))
        return marks | axis("step", ticks, lambda step: left + wide * (step - 0.5), top + 8 * tall)

    def draw(at: int) -> View:
        paths = dict.fromkeys((ANSWER, PROMPT, AGAIN, WAITS, OUT), "")
        lanes = {name: _lane(tables[at][name]) for name in names}
        for row, lane in enumerate(lanes.values()):
            y = top + tall * row
            for step, doing in enumerate(lane.doing):
                x = left + wide * step
                if doing in (PROMPT, ANSWER, AGAIN):
                    paths[doing] += f"M{x:.1f} {y}h{wide - 1:.1f}v{tall - 6}h{1 - wide:.1f}z"
                elif doing:
                    paths[WAITS] += f"M{x:.1f} {y + 10}h{wide - 1:.1f}"
            paths[OUT] += "".join(f"M{left + wide * step + 1:.1f} {y + 4}l12 12m0 -12l-12 12" for step in lane.outs)
        marks = frame() | {
            ANSWER: Mark("path", d=paths[ANSWER], fill="currentColor", fill_opacity=0.2),
            PROMPT: Mark("path", d=paths[PROMPT], of="blue"),
            AGAIN: Mark("path", d=paths[AGAIN], of="orange"),
            WAITS: Mark("path", d=paths[WAITS], of="dash", stroke_width=1.5),
            OUT: Mark("path", d=paths[OUT], of="line", stroke_width=2.5),
        }
        for row, (name, lane) in enumerate(lanes.items()):
            place = {"cx": left + wide * lane.first - 2, "cy": top + tall * row + 10}
            marks[f"first {name}"] = Mark("circle", **place, r=4, fill="#fff", stroke="#111", stroke_width=2)
        firsts = [lane.first for lane in lanes.values()]
        num_outs = sum(len(lane.outs) for lane in lanes.values())
        found = sum(shared + 1 - lane.num_computed for lane in lanes.values())
        return View(marks, (
            f"{found} of {8 * shared + 8} prompt tokens are found: the card is computed once. The first words are ",
            f"there after steps {min(firsts)} to {max(firsts)}, all is done after step {len(tables[at]['1'])}. ",
            f"Preemptions: {num_outs}.",
        ))  # fmt: skip

    control = Control("blocks in the pool", numbers(*pools), start=1)
    return Instrument("Eight clients, one beginning", (control,), draw, (WIDTH, top + 8 * tall + 40))


class _Lane(NamedTuple):
    """A request in each step: what it does, and what is marked."""

    doing: list[str]
    first: int
    """The step after which its first word is there, from 1."""
    outs: list[int]
    """The steps that preempted it, from 0."""
    num_computed: int
    """Tokens of its prompt that were computed for the first time."""


def _lane(moments: Sequence[Moment]) -> _Lane:
    """Return the lane of a request's line in a timeline."""
    doing = [moment.doing for moment in moments]
    prompt = [step for step, what in enumerate(doing) if what == PROMPT]
    outs = [step for step, (old, new) in enumerate(pairwise(doing), start=1) if new == OUT != old]
    return _Lane(doing, prompt[-1] + 1, outs, sum(moments[step].num_tokens for step in prompt))


def strategies_as_dots(trace: Sequence[TraceRequest], num_blocks: int, ms_per_step: int) -> Instrument:
    """Return admission strategies as dots, by waiting and by tokens computed twice. The reader sets the watermark."""
    run = partial(replay_with_clock, trace, num_blocks, ms_per_step=ms_per_step)
    fixed = {name: run(strategy=strategy) for name, strategy in strategies().items() if not strategy.watermark}
    shares = [math.ceil(100 * kept / num_blocks) / 100 for kept in range(11)]
    marked = [run(strategy=Strategy(watermark=share)) for share in shares]
    left, top, width, none, bottom, low, high = 62, 24, 340, 190, 218, 500, 100_000
    ten_powers = (1000, 10_000, 100_000)
    beside = {"greedy": (-10, 4, "end"), "jumping": (0, 22, "mid")}

    def waited(report: ClockReport, longest: int) -> int:
        return report.longest_wait if longest else round(report.mean_wait)

    most = [math.ceil(max(waited(one, at) for one in (*fixed.values(), *marked)) / 1000) * 1000 for at in (0, 1)]

    def height_of(tokens: float) -> float:
        return top + (none - 34 - top) * math.log(high / tokens) / math.log(high / low) if tokens else none

    def place(report: ClockReport, longest: int) -> tuple[float, float]:
        return left + width * waited(report, longest) / most[longest], height_of(report.tokens_recomputed)

    def scales(longest: int) -> dict[str, Mark]:
        marks = {"frame": Mark("path", d=f"M{left} {top}V{bottom}h{width}", of="line soft")}
        marks |= axis("tokens computed twice, by factors of ten", (0, *ten_powers), height_of, left, up=True)
        name = f"steps from arrival to admission, {'the longest wait' if longest else 'on average'}"
        steps = range(0, most[longest] + 1, 1000)
        return marks | axis(name, steps, lambda wait: left + width * wait / most[longest], bottom)

    def draw(at: int, longest: int) -> View:
        marks = scales(longest)
        trail = [f"{x:.1f} {y:.1f}" for x, y in (place(report, longest) for report in marked)]
        marks["trail"] = Mark("path", d="M" + "L".join(trail), of="line", stroke_opacity=0.4)
        stops = "".join(f"M{stop}h0" for stop in trail)
        marks["stops"] = Mark("path", d=stops, of="line", stroke_width=5, stroke_linecap="round", stroke_opacity=0.4)
        for name, report in fixed.items():
            x, y = place(report, longest)
            right, down, of = beside.get(name, (10, 4, ""))
            marks[name] = Mark("circle", cx=x, cy=y, r=6, of="blue")
            marks[f"{name} label"] = text(x + right, y + down, name.partition("-")[0], of)
        x, y = place(marked[at], longest)
        marks["watermark"] = Mark("circle", cx=x, cy=y, r=8, of="orange", stroke="currentColor")
        marks["watermark label"] = text(x, y + 22, f"watermark {shares[at]:.0%}", "mid big")
        first, last = place(marked[0], longest)[0], place(marked[-1], longest)[0]
        marks["hand"] = handle(first, top, last - first, bottom - top, across=0)
        tokens, wait = marked[at].tokens_recomputed, waited(marked[at], longest)
        more = f", {wait - waited(marked[0], longest):,} more than under greedy." if at else ", as under greedy."
        return View(marks, (
            f"{at or 'No'} block{'s' * (at > 1)} must stay free when a request enters: ",
            f"{tokens:,}" if tokens else "no", " tokens are computed twice, and the ",
            "longest" if longest else "mean", " wait is ", f"{wait:,} steps", more,
        ))  # fmt: skip

    controls = (
        Control("watermark", [f"{share:.0%}" for share in shares], start=6),
        Control("wait", ("mean", "longest"), choice=True),
    )
    return Instrument("Waiting, or computing twice", controls, draw, (WIDTH, 256))


def _time_axis(most: float, at: float) -> dict[str, Mark]:
    """Return an axis of round numbers below bars of 400, the longest of which takes `most` milliseconds."""
    step = next(step for step in (500, 200, 100, 50, 20, 10, 5, 2, 1) if most >= 3 * step)
    return axis("milliseconds", range(0, int(most) + 1, step), lambda time: 400 * time / most, at)


def one_more_word(rows: Sequence[Mapping[str, float]]) -> Instrument:
    """Return measured times of one more word, in true proportion. `rows`: as recorded by `mini_kv.dev.generate`."""
    most = max(row.get("no cache ms", 0.0) for row in rows)
    longest = max(row["tokens"] for row in rows)
    names = {"no cache ms": "without a cache", "contiguous ms": "with one, in a row", "paged ms": "with one, in blocks"}

    def draw(at: int) -> View:
        row, marks = rows[at], {"text": text(0, 14, "the text before it", "soft")}
        marks |= _time_axis(most, 186)
        marks["words"] = Mark("rect", x=0, y=20, width=400 * row["tokens"] / longest, height=16, of="pale")
        for index, ((key, name), colour) in enumerate(zip(names.items(), ("pink", "blue", "green"), strict=True)):
            y = 66 + 46 * index
            time = row.get(key)
            marks[f"{key} name"] = text(0, y, name if time else f"{name}: not measured", "soft")
            wide = max(0.6, 400 * (time or 0) / most)
            marks[f"{key} bar"] = Mark("rect", x=0, y=y + 6, width=wide, height=16, of=colour)
            marks[f"{key} time"] = text(WIDTH, y, f"{time:,.1f} ms" if time else "", "end big")
        return View(marks, ("With ", f"{row['tokens']:,}", " tokens before it. All bars of one kind have one scale."))

    control = Control("tokens before it", [f"{row['tokens']:,}" for row in rows])
    return Instrument("One more word", (control,), draw, (WIDTH, 224))


def bus(model: Served, card: Card) -> Instrument:
    """Return the time of a decode step, and the share of each request in it."""
    batches, contexts = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (0, 1_000, 4_000, 8_000, 32_000)
    scale = 400 / 40e-3

    def draw(requests: int, behind: int) -> View:
        batch, context = batches[requests], contexts[behind]
        step = decode_step(model, card, batch, context)
        room = largest_batch(model, card, context) if context else batch
        marks = {"time": text(0, 14, "fetch the weights (blue), then the caches (orange)", "soft")}
        weights, caches = scale * step.weights, scale * step.kv
        marks["weights"] = Mark("rect", x=0, y=20, width=weights, height=22, of="blue")
        marks["caches"] = Mark("rect", x=weights, y=20, width=min(caches, 400 - weights), height=22, of="orange")
        marks["beside"] = text(0, 62, "at the same time: compute (green)", "soft")
        marks["compute"] = Mark("rect", x=0, y=68, width=min(400.0, scale * step.arithmetic), height=22, of="green")
        marks["each"] = text(0, 112, "the share of each request in the step", "soft")
        marks["seat"] = Mark("rect", x=0, y=118, width=max(0.6, scale * step.seconds / batch), height=22, of="pink")
        marks |= _time_axis(40, 148)
        if batch > room:
            said = f"There is room for {room} of them besides the weights."
        else:
            said = f"{batch / step.seconds:,.0f} tokens per second in all, {1 / step.seconds:,.0f} for each."
        riders = f"{batch} request{'s' * (batch > 1)} of {context:,} tokens each: "
        return View(
            marks,
            (riders, f"{1e3 * step.seconds:.1f} ms for the step, {1e3 * step.seconds / batch:.2f} ms for each. ", said),
        )

    controls = (Control("requests", numbers(*batches)), Control("tokens of each", numbers(*contexts), start=1))
    return Instrument("The bus", controls, draw, (WIDTH, 186))


def reload_or_recompute(model: Served, card: Card) -> Instrument:
    """Return the time to reload a prefix from a tier, and the time to compute it again."""
    links = {"memory, 50 GB/s": 50e9, "disk, 5 GB/s": 5e9, "network, 10 Gbit/s": 1.25e9}
    waits = {"0.1 ms": 1e-4, "1 ms": 1e-3, "10 ms": 1e-2}
    lengths = (16, 32, 64, 128, 256, 512, 1024, 2048)
    per_token = prefill_seconds(model, card, 1, 0)
    scale = 400 / (lengths[-1] * per_token)

    def draw(link: int, wait: int, at: int) -> View:
        at_once, num_tokens = [*waits.values()][wait], lengths[at]
        price = ReloadCost(per_token, 1 / [*links.values()][link], at_once)
        num_bytes = num_tokens * model.kv_bytes_per_token
        compute, copy = num_tokens * per_token, num_bytes * price.seconds_per_byte
        marks = {"compute name": text(0, 14, f"compute {num_tokens:,} tokens again", "soft")}
        marks["compute"] = Mark("rect", x=0, y=20, width=max(0.6, scale * compute), height=22, of="blue")
        marks["compute time"] = text(WIDTH, 14, f"{1e3 * compute:,.1f} ms", "end big")
        what = f"reload {num_bytes / 2**20:,.0f} MiB: wait (pink), then copy (orange)"
        marks["reload name"] = text(0, 72, what, "soft")
        waited = min(400.0, scale * at_once)
        marks["wait"] = Mark("rect", x=0, y=78, width=max(0.6, waited), height=22, of="pink")
        copied = max(0.6, min(400 - waited, scale * copy))
        marks["copy"] = Mark("rect", x=waited, y=78, width=copied, height=22, of="orange")
        marks["reload time"] = text(WIDTH, 72, f"{1e3 * (at_once + copy):,.1f} ms", "end big")
        marks |= _time_axis(400e3 / scale, 108)
        shortest = price.crossover_tokens(model.kv_bytes_per_token)
        quicker = "Reload it." if price.is_worth_it(num_tokens, num_bytes) else "Compute it again."
        copied_token = 1e6 * model.kv_bytes_per_token * price.seconds_per_byte
        told = (
            f"From {shortest:,} tokens on, reloading is quicker."
            if shortest
            else f"Reloading is never quicker: a token takes {copied_token:.0f} µs to copy, and {1e6 * per_token:.0f}"
            " to compute."
        )
        return View(marks, (quicker, " ", told))

    controls = (
        Control("from", [*links], choice=True),
        Control("before the first byte", [*waits], start=1, choice=True),
        Control("tokens", numbers(*lengths), start=5),
    )
    return Instrument("Reload, or compute again?", controls, draw, (WIDTH, 146))
