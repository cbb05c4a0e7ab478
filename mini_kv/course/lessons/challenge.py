"""Challenges: tasks for a notebook's controls, each with a check on the engine's state.

    Challenge("Make one block stand in three rows.", _three_rows)      checked after each press of a player's button

The check gets the control's subject: the cache of a `LivePlayer`, the chain of a `ChainExplorer`, the run of a
`PromptPlayer`, the label of a lever's position. A notebook names its challenge by a key of `CHALLENGES`. The
challenges of levers are defined with the levers.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from mini_kv.course.lessons.chain import Chain
from mini_kv.course.lessons.small_cache import LiveCache
from mini_kv.story.metrics import memory_over_time


@dataclass(frozen=True, slots=True)
class Challenge:
    """A task, and whether it is done."""

    ask: str
    met: Callable[[Any], bool]

    def line(self, solved: bool) -> str:
        """Return the challenge as a line under the controls, done or open."""
        state = "<b>Done.</b>" if solved else "Open."
        return f'<div class="kv-challenge"><b>Challenge.</b> {html.escape(self.ask)} {state}</div>'


def _three_rows(cache: LiveCache) -> bool:
    """Return whether three running requests share one block."""
    return any(block.ref_cnt >= 3 for block in cache.kv.block_pool.blocks if not block.is_null)


def _half_is_left(cache: LiveCache) -> bool:
    """Return whether a repeated prompt found one half of itself, because the other half had been evicted."""
    seen = set()
    for one in cache.admitted:
        if one.prompt in seen and 2 * one.num_hits == len(one.prompt):
            return True
        seen.add(one.prompt)
    return False


def _only_what_is_common(cache: LiveCache) -> bool:
    """Return whether two prompts with 16 common tokens would each find these and no more, with no running request."""
    prompts = list({one.prompt for one in cache.admitted if len(one.prompt) > 17})
    if cache.running or _longest_common_beginning(prompts) != 16:
        return False
    # One token more, since the last one of a prompt is never found: so a last block that is still there counts.
    return all(cache.would_find([*prompt, 0]) == 16 for prompt in prompts)


def _empty_grows(cache: LiveCache) -> bool:
    """Return whether one call increased the number of empty blocks."""
    memory = memory_over_time([span.edges for span in cache.spans], cache.num_blocks)
    return any(after.empty > before.empty for before, after in pairwise(memory))


def same_end(chain: Chain) -> bool:
    """Return whether the chains differ after three blocks, although the last full blocks of both have the same text."""
    full = [[block for block in row if block.name is not None] for row in chain.rows]
    if not all(full) or chain.num_shared_blocks != 3:
        return False
    first, second = (row[-1] for row in full)
    return first.text == second.text and first.name != second.name


def thrown_out(run: Any) -> bool:
    """Return whether a request was preempted. All requests have their answers by then."""
    return bool(run.num_preemptions > 0)


def nothing_spared(run: Any) -> bool:
    """Return whether the cache was on without a hit, although two texts begin with the same 20 characters."""
    alike = _longest_common_beginning(list(run.texts.values())) >= 20
    return bool(alike and run.scenario.enable_caching and run.num_cached_tokens == 0)


def _longest_common_beginning(sequences: Sequence[Sequence[object]]) -> int:
    """Return the length of the longest prefix that two texts share, or 0 for a single text."""
    longest = 0
    for first, second in combinations(sequences, 2):
        same = [a == b for a, b in zip(first, second, strict=False)]
        longest = max(longest, [*same, False].index(False))
    return longest


CHALLENGES = {
    "three rows": Challenge("Make one block stand in three rows.", _three_rows),
    "half is left": Challenge("Let a repeated prompt find exactly one half of itself.", _half_is_left),
    "only what is common": Challenge(
        "Make the cache evict all of two prompts except the 16 tokens that they have in common.", _only_what_is_common
    ),
    "empty grows": Challenge("Make the number of empty blocks grow.", _empty_grows),
    "same end": Challenge(
        "Write two prompts that share three blocks, and whose last full blocks have equal texts but different hashes.",
        same_end,
    ),
    "thrown out": Challenge("Make the pool so small that a request is preempted, and still answers.", thrown_out),
    "nothing spared": Challenge(
        "With prefix caching on, let two prompts begin with the same 20 characters and find nothing.", nothing_spared
    ),
}
