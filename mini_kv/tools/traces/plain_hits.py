"""Hits of one group of full attention, one request at a time, without running the real manager.

`mini_kv.tools.traces.runs.run_prompts` runs the real manager, with any groups. Tests compare the two. Here each block
costs one or two dict lookups.
"""

from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

from mini_kv.core.block import BlockHash
from mini_kv.tools.traces.curve import Stack
from mini_kv.tools.traces.prompt_hashes import Prompt


class LostBlock(NamedTuple):
    """A block that was evicted before it would have been hit."""

    num_more: int
    """Number of additional blocks with which the pool would have kept it."""
    waited: int
    """Milliseconds from its last use to the lookup."""


def hits_without_eviction(prompts: Sequence[Prompt], block_size: int) -> list[int]:
    """Return the hit tokens of each request if nothing is ever evicted. Costs O(blocks)."""
    known: set[BlockHash] = set()
    hits = []
    for prompt in prompts:
        # Whoever knows a block knows all blocks before it: so the first unknown one can be found by halving.
        num_known = bisect(prompt.block_hashes, 0, key=lambda block_hash: block_hash not in known)
        hits.append(min(num_known, (prompt.num_tokens - 1) // block_size) * block_size)
        known.update(prompt.block_hashes)
    return hits


def hits_in_pool(
    prompts: Sequence[Prompt], timestamps: Sequence[int], block_size: int, num_blocks: int
) -> tuple[list[int | None], list[LostBlock]]:
    """Return the hit tokens of each request in a pool, the null block included, and the blocks that were lost.

    `None`: the prompt is larger than the pool. A lost block is one that a larger pool would have kept until it was
    looked up. Costs as much as `make_curve`.
    """
    fits = [-(-prompt.num_tokens // block_size) < num_blocks for prompt in prompts]
    stack = Stack([prompt.num_tokens // block_size for prompt, fit in zip(prompts, fits, strict=True) if fit])
    touched: list[int] = []
    """The arrival time of each request in the stack."""
    hits: list[int | None] = []
    lost = []
    for prompt, timestamp, fit in zip(prompts, timestamps, fits, strict=True):
        if not fit:
            hits.append(None)
            continue
        num_usable = (prompt.num_tokens - 1) // block_size
        num_hits = 0
        for _, request, need in stack.needs(prompt.block_hashes[:num_usable]):
            if need < num_blocks:
                num_hits += 1
            else:
                lost.append(LostBlock(need + 1 - num_blocks, timestamp - touched[request]))
        hits.append(num_hits * block_size)
        stack.touch(prompt.block_hashes, num_usable, prompt.num_tokens % block_size > 0)
        touched.append(timestamp)
    return hits, lost
