"""The levers of the notebooks: each is an experiment with one number, run by the engine at every position.

waste_lever           01  tokens per block, over the empty slots of some requests
pool_lever            07  blocks of a pool, over the hits of a trace
budget_lever          08  tokens per step, over the timeline of requests
window_lever          09  size of a window, over the blocks of a request
mistake_lever         10  a mistake in the slots, over the content of each slot
score_lever           11  the largest score of the last block, over the weight of each block
outlier_lever         12  size of one channel, over the error of the others
context_lever         15  tokens of the past, over the words per second of a batch
link_lever            16  bytes per second of a link, over the time to compute or to reload a prefix
storm_lever           18  requests at once, over the unused time of a block before its eviction
swap_lever            20  the replaced part, over the first step that differs
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.lessons.challenge import Challenge
from mini_kv.course.lessons.chart import bar_chart, line_chart, stacked_chart, timeline_chart
from mini_kv.course.lessons.curves import follow_replay, group_by_overlap, waste_over_block_sizes
from mini_kv.course.lessons.lever import Lever, Shown
from mini_kv.course.lessons.misbehave import idle_seconds, serve
from mini_kv.course.lessons.slot_map import SlotMap
from mini_kv.course.lessons.timeline import OUT, long_among_short
from mini_kv.course.lessons.windows import held_at_each_token, held_while_computing
from mini_kv.tiers.reload_cost import ReloadCost
from mini_kv.tools.planning.cost import Card, Served, request_cost, tokens_per_second
from mini_kv.tools.traces.readers.mooncake import TraceRequest


def waste_lever(lengths: Sequence[int]) -> Lever:
    """Return a lever over the block size. Its chart has the used and the empty slots of each request."""
    pictures, shares = {}, {}
    for block_size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        empty = [-length % block_size for length in lengths]
        total = waste_over_block_sizes(lengths, [block_size])[0]
        shares[f"{block_size:,}"] = total.share
        pictures[f"{block_size:,}"] = bar_chart(
            f"Blocks of {block_size:,}",
            f"{total.num_empty_slots:,} slots stay empty, {total.share:.1%} of the reserved slots; "
            f"the block tables have {total.num_slots // block_size:,} entries.",
            [f"{length:,}" for length in lengths],
            {"tokens": lengths, "empty slots": empty},
            labels=("tokens of the request", "slots"),
            shares=False,
        )
    largest = [label for label, share in shares.items() if share < 0.01][-1:]
    challenge = Challenge("Find the largest block that wastes less than one per cent.", lambda label: label in largest)
    return Lever("tokens per block", pictures, start=1, challenge=challenge)


def pool_lever(trace: Sequence[TraceRequest]) -> Lever:
    """Return a lever over the size of the pool: the hits of the trace, by the part shared with an earlier prompt."""
    pictures, found = {}, {}
    for num_blocks in (40, 60, 80, 120, 160, 240, 320, 640):
        followed = follow_replay(trace, num_blocks)
        groups = group_by_overlap(followed)
        hits, tokens = sum(one.num_hit_tokens for one in followed), sum(one.num_tokens for one in followed)
        found[str(num_blocks)] = hits
        pictures[str(num_blocks)] = bar_chart(
            f"A pool of {num_blocks} blocks",
            f"{hits / tokens:.1%} of all prompt tokens are found.",
            [group.label for group in groups],
            {"found": [one.hit_share for one in groups], "forgotten since": [one.lost_share for one in groups]},
            labels=("in common with an earlier prompt", "of the prompts' tokens"),
        )
    enough = next(label for label, hits in found.items() if hits == max(found.values()))
    challenge = Challenge("Find the smallest of these pools that finds all that can be found.", lambda at: at == enough)
    return Lever("blocks of the pool", pictures, start=2, challenge=challenge)


def budget_lever() -> Lever:
    """Return a lever over the tokens of a step: the timeline of a long request among short ones."""
    pictures, steps = {}, {}
    for budget in (4, 8, 12, 16, 24, 32, 48, 64):
        rows = long_among_short(limits=SchedulerConfig(max_num_batched_tokens=budget))
        pairs = [pair for row in rows.values() for pair in pairwise(moment.doing for moment in row)]
        thrown_out = sum(after == OUT != before for before, after in pairs)
        steps[str(budget)] = max(map(len, rows.values()))
        pictures[str(budget)] = timeline_chart(
            f"At most {budget} tokens per step",
            f"All is done after {steps[str(budget)]} steps; thrown out: {thrown_out} times.",
            rows,
            labels=("step", "request"),
        )
    least = min(steps.values())
    enough = next(label for label, number in steps.items() if number - least < number / 10)
    challenge = Challenge(
        "Find the smallest budget from which no larger one saves one step in ten.", lambda at: at == enough
    )
    return Lever("tokens per step", pictures, start=2, challenge=challenge)


def window_lever(num_tokens: int = 112, num_more: int = 32, chunk: int = 16) -> Lever:
    """Return a lever over the size of a window: its blocks in use at each token, and those of full attention."""
    pictures, most = {}, {}
    for window in (16, 32, 48, 64, 96, 128):
        held = held_while_computing(("full", f"window {window}"), num_tokens, chunk, num_more=num_more)
        full, slides = held_at_each_token(held, 0), held_at_each_token(held, 1)
        most[str(window)] = max(slides)
        pictures[str(window)] = line_chart(
            f"A window of {window} tokens",
            f"In the end full attention holds {full[-1]} blocks, the window {slides[-1]}; it never held more than "
            f"{max(slides)}.",
            range(1, len(full) + 1),
            {"full": full, f"window {window}": slides},
            labels=("token", "blocks held"),
            steps=True,
            shares=False,
        )
    half = [label for label, number in most.items() if number <= full[-1] / 2][-1]
    challenge = Challenge(
        "Find the largest window that never holds more than half of all blocks.", lambda at: at == half
    )
    return Lever("tokens of the window", pictures, start=1, challenge=challenge)


def mistake_lever() -> Lever:
    """Return a lever over mistakes in the slots: the content of each slot after three steps."""
    from mini_kv.course.lessons.tensors import MISTAKES, write_steps

    pictures, silent = {}, []
    for mistake in MISTAKES:
        memory = write_steps(mistake)
        lost = len(memory.overwritten)
        said = f"{lost} tokens were written over." if lost else "No token was written over."
        if not lost and mistake != "none":
            silent.append(mistake)
        pictures[mistake] = SlotMap(said, memory.blocks, memory.overwritten)
    challenge = Challenge(
        "Find the mistake that a test misses if it counts only the overwritten tokens.", lambda at: at in silent
    )
    return Lever("mistake", pictures, challenge=challenge)


def score_lever(scores: Sequence[float], block_size: int = 4) -> Lever:
    """Return a lever over the largest score of the last block: the weight of each block after each block."""
    from mini_kv.course.lessons.tensors import follow_blocks

    pictures, shares_of_last = {}, {}
    first = len(scores) - block_size
    largest = max(range(first, len(scores)), key=lambda i: scores[i])
    for score in range(9):
        after = follow_blocks([score if i == largest else one for i, one in enumerate(scores)], block_size)
        shares = {f"block {n + 1}": [carried.shares[n] for carried in after] for n in range(len(after))}
        shares_of_last[str(score)] = after[-1].shares[-1]
        pictures[str(score)] = stacked_chart(
            f"The last block's largest score is {score}",
            f"In the end the last block is worth {after[-1].shares[-1]:.0%} of the result.",
            shares,
            labels=("after block", "share of the result"),
        )
    half = next(label for label, share in shares_of_last.items() if share >= 0.5)
    given = str(min(8, max(0, round(scores[largest]))))
    start = 8 if given == half else int(given)
    challenge = Challenge("Find the smallest score at which the last block is worth half.", lambda at: at == half)
    return Lever("largest score of the last block", pictures, start=start, challenge=challenge)


def outlier_lever() -> Lever:
    """Return a lever over the size of one channel: the error of the others, by the numbers that share a scale."""
    from mini_kv.course.lessons.tensors import errors_by_outlier

    pictures, worst_of = {}, {}
    for outlier in (1, 2, 4, 8, 16, 32, 64):
        errors = {name: values[0] for name, values in errors_by_outlier([outlier]).items()}
        worst = max(errors, key=lambda name: errors[name])
        worst_of[f"{outlier} times"] = worst
        pictures[f"{outlier} times"] = bar_chart(
            f"One channel of 128 is {outlier} times as large",
            f"The largest error of the others is {errors[worst]:.1%}, with {worst}.",
            [*errors],
            {"error of the other channels": list(errors.values())},
            labels=("8 bits", "error"),
        )
    other = next(label for label, worst in worst_of.items() if worst != "fp8")
    challenge = Challenge("Find the smallest size at which fp8 is not the worst.", lambda at: at == other)
    return Lever("size of the channel", pictures, challenge=challenge)


def context_lever(model: Served, card: Card) -> Lever:
    """Return a lever over the tokens of the past: the most words per second of a batch, on a card of this kind."""
    batches = [2**i for i in range(11)]
    pictures, most = {}, {}
    for context in (0, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000):
        rates = [tokens_per_second(model, card, batch, context) for batch in batches]
        fits = {rate: batch for batch, rate in zip(batches, rates, strict=True) if not math.isnan(rate)}
        most[f"{context:,}"] = max(fits)
        pictures[f"{context:,}"] = line_chart(
            f"{context:,} tokens of past each",
            f"At most {max(fits):,.0f} tokens per second, with {fits[max(fits)]:,} requests in a step.",
            batches,
            {"at the most": rates},
            labels=("requests in a step", "tokens per second"),
            log="xy",
            shares=False,
        )
    halved = next(label for label, rate in most.items() if rate <= most["0"] / 2)
    challenge = Challenge("Find the shortest past that halves the rate without one.", lambda at: at == halved)
    return Lever("tokens of the past", pictures, challenge=challenge)


def link_lever(model: Served, card: Card, seconds_at_once: float = 1e-3) -> Lever:
    """Return a lever over a link's speed: the time of a prefix, computed on a card of this kind or reloaded.

    `seconds_at_once`: time of a reload before the first byte.
    """
    num_tokens = [2**i for i in range(4, 14)]
    per_token = request_cost(model, card, prompt_tokens=2000, answer_tokens=1, batch=1).prompt / 2000
    pictures, least = {}, {}
    for gigabytes in (1, 2, 4, 8, 12, 16, 25, 50, 100):
        cost = ReloadCost(per_token, 1 / (gigabytes * 1e9), seconds_at_once)
        crossover = cost.crossover_tokens(model.kv_bytes_per_token)
        least[f"{gigabytes} GB/s"] = crossover
        per_reloaded = model.kv_bytes_per_token * cost.seconds_per_byte
        pictures[f"{gigabytes} GB/s"] = line_chart(
            f"A link of {gigabytes} GB per second",
            f"From {crossover:,} tokens on it takes less time to reload than to compute."
            if crossover
            else "It always takes less time to compute: reloading takes longer for each token.",
            num_tokens,
            {
                "compute": [1e3 * per_token * n for n in num_tokens],
                "reload": [1e3 * (seconds_at_once + per_reloaded * n) for n in num_tokens],
            },
            labels=("tokens of the prefix", "milliseconds"),
            log="xy",
            shares=False,
        )
    enough = next(label for label, number in least.items() if number is not None and number <= 500)
    challenge = Challenge("Find the slowest link over which 500 tokens are worth reloading.", lambda at: at == enough)
    return Lever("speed of the link", pictures, challenge=challenge)


def storm_lever() -> Lever:
    """Return a lever over the limit of requests at once: the age at which blocks are evicted, and its cost."""
    ages = {"below 1 s": (0, 1), "1 to 2": (1, 2), "2 to 4": (2, 4), "4 to 8": (4, 8), "above": (8, math.inf)}
    pictures, thrown_out = {}, {}
    for limit in (8, 12, 16, 20, 24, 32, 48, 64):
        case = serve("storm", max_num_seqs=limit)
        idle = idle_seconds(case)
        thrown_out[str(limit)] = case.seen.scheduler.num_preemptions
        pictures[str(limit)] = bar_chart(
            f"At most {limit} requests at once",
            f"{thrown_out[str(limit)]} times a request is thrown out; {case.seen.tokens_computed:,} tokens are "
            f"computed in {len(case.seen.usage):,} steps.",
            list(ages),
            {"evicted blocks": [sum(low <= age < high for age in idle) for low, high in ages.values()]},
            labels=("time unused before it was evicted", "blocks"),
            shares=False,
        )
    largest = [label for label, number in thrown_out.items() if number == 0][-1:]
    challenge = Challenge("Find the largest limit at which no request is thrown out.", lambda at: at in largest)
    return Lever("requests at once", pictures, start=len(pictures) - 2, challenge=challenge)


class Swapped(Shown, Protocol):
    """A run in which one part has been replaced."""

    @property
    def is_right(self) -> bool:
        """Whether the run is right."""


def swap_lever(swaps: Mapping[str, Swapped]) -> Lever:
    """Return a lever over the part that the engine's own replaces. `swaps`: the run by part, at first by none."""
    challenge = Challenge("Find the part at fault.", lambda name: swaps[name].is_right)
    return Lever("replaced by the engine's own", swaps, challenge=challenge)
