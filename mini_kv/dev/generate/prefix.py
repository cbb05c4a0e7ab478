"""Prompts with equal prefixes: computed each time, shared within a round, and found from the round before.

The workload is a few long prefixes (instructions, a document) and many prompts with each. All arrive at once.
"""

from statistics import median
from typing import Any

from mini_kv.dev.generate.setup import Setup, greedy, table
from mini_kv.dev.measure import Run, take_turns

TITLE = "prompts with shared beginnings, prefix caching off and on"
_NEW_TOKENS = 4


def run(setup: Setup) -> list[dict[str, Any]]:
    """Return one row per case."""
    said: dict[str, list[list[int]]] = {}
    logged: dict[str, str] = {}
    cases = {"off": (False, False), "on, cold": (True, False), "on, warm": (True, True)}
    runs = {name: _case(setup, name, *case, said, logged) for name, case in cases.items()}
    values = take_turns(runs, setup.repeats)
    return [
        {
            "prefix caching": name,
            **{figure: median(found) for figure, found in values[name].items()},
            "same tokens": said[name] == said["off"],
            "log": logged[name],
        }
        for name in cases
    ]


def workload(setup: Setup, seed: int) -> list[list[int]]:
    """Return the prompts of one round. Each round has the same prefixes and its own ends."""
    num_beginnings, num_each, shared, own = setup.sizes.prefix
    beginnings = setup.prompts(num_beginnings, shared)
    ends = setup.prompts(num_beginnings * num_each, own, seed=seed)
    # In turns: neighbours do not share, as with users who do not know each other.
    return [beginnings[index % num_beginnings] + end for index, end in enumerate(ends)]


def _case(
    setup: Setup, name: str, caching: bool, warm: bool, said: dict[str, list[list[int]]], logged: dict[str, str]
) -> Run:
    prompts, earlier = workload(setup, seed=1), workload(setup, seed=2)
    num_tokens = sum(map(len, prompts))

    def once() -> dict[str, float]:
        engine = setup.engine(2 * len(prompts), len(prompts[0]) + _NEW_TOKENS, prefix_caching=caching)
        if warm:
            engine.generate(earlier, greedy(_NEW_TOKENS))
        hits = engine.kv_cache_manager.prefix_cache_stats.hits
        engine.stat_logger.line()  # its rates are of the time since the last line
        begin = setup.clock()
        for index, prompt in enumerate(prompts):
            engine.add_request(f"r{index}", prompt, greedy(_NEW_TOKENS))
        tokens: dict[str, list[int]] = {}
        first: dict[str, float] = {}
        while engine.has_unfinished_requests:
            deltas = engine.step()
            now = setup.clock() - begin
            for delta in deltas:
                tokens.setdefault(delta.request_id, []).extend(delta.new_token_ids)
                first.setdefault(delta.request_id, now)
            if deltas and len(first) == len(prompts) and name not in logged:
                logged[name] = engine.stat_logger.line()
        said[name] = [tokens[f"r{index}"] for index in range(len(prompts))]
        hits = engine.kv_cache_manager.prefix_cache_stats.hits - hits
        return {
            "prompt tokens/s": num_tokens / max(first.values()),
            "first token ms, median": 1e3 * median(first.values()),
            "first token ms, last": 1e3 * max(first.values()),
            "found": hits / num_tokens,
        }

    return once


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as text, and under them the line that each engine logged when all had their first token."""
    head = ["caching", "prompt tokens/s", "", "first token ms, median", "last", "found", "same tokens"]
    slowest, cells = rows[0]["prompt tokens/s"], []
    for row in rows:
        rate = row["prompt tokens/s"]
        first = (row["first token ms, median"], row["first token ms, last"])
        said = "yes" if row["same tokens"] else "no"
        cells.append([row["prefix caching"], rate, f"{rate / slowest:.1f}x", *first, f"{row['found']:.0%}", said])
    return [*table(head, cells), *(f"log, {row['prefix caching']}: {row['log']}" for row in rows)]
