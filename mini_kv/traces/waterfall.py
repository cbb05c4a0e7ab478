"""From all prompt tokens down to the hits, one loss per row; the rows add up to the token.

1. tokens       what earlier prompts began with; and what stood in them behind a difference (`seen`)
2. names        the same tokens with the same images, adapter and salt
3. blocks       whole blocks of them, but never the prompt's last token
4. groups       what every group of layers finds, with memory for everything: the real manager (`runs`)
5. memory       what a pool of a certain size finds: the real manager again
6. serving      what is found with others running, and computed again after preemption: the real scheduler
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from mini_kv.traces.curve import Stack
from mini_kv.traces.prompt_hashes import Prompt, Trace, make_prompts, token_requests
from mini_kv.traces.runs import ServedRun, Setup, belady_hit_blocks, run_prompts, run_served
from mini_kv.traces.seen import Behind, Shared, shared_and_behind


class Row(NamedTuple):
    """A line of a waterfall: what is left, or what is lost on the way to the next total."""

    name: str
    label: str
    tokens: int
    is_total: bool = False


class LostBlock(NamedTuple):
    """A block that was evicted before it would have been hit."""

    num_more: int
    """How many blocks more the pool must have to have kept it."""
    waited: int
    """Milliseconds from its last use to the lookup."""


@dataclass(frozen=True)
class Waterfall:
    """Where the hits of a trace went."""

    has_tokens: bool
    """Whether the trace says the tokens; of hashes some losses cannot be told."""
    num_requests: int
    setup: Setup
    rows: list[Row]
    shared: list[Shared]
    unlimited: list[int]
    """Hit tokens of each request if nothing is ever evicted."""
    hits: list[int | None]
    """Hit tokens of each request in the pool, one request at a time; `None`: refused."""
    lost: list[LostBlock]
    """Filled for models of one group of full attention."""
    belady: int | None
    """Hit tokens that no policy can exceed in this pool; likewise."""
    served: ServedRun | None
    sixteen: int
    """Tokens that blocks of 16, vLLM's default, would find in the same shared beginnings, and these blocks do not."""

    def tokens(self, name: str) -> int:
        """Return the tokens of a row, or 0 if no row has that name."""
        return sum(row.tokens for row in self.rows if row.name == name)


def make_waterfall(
    trace: Trace, setup: Setup, *, concurrency: int = 1, observed: Sequence[int] | None = None
) -> Waterfall:
    """Return where the hits of a trace went.

    Args:
        trace: at least one request, of hashes or of tokens.
        setup: groups and pool. Of hashes the groups' blocks must be multiples of the trace's.
        concurrency: above 1, the scheduler runs too: needs a pool of a certain size.
        observed: per request the hit tokens that a server has reported, if there are any.
    """
    prompts = make_prompts(trace, setup.hash_block_size)
    shared, behind = shared_and_behind(trace)
    unlimited = [hit or 0 for hit in run_prompts(prompts, Setup(setup.groups, None, setup.step, setup.retention))]
    hits = list[int | None](unlimited) if setup.num_blocks is None else run_prompts(prompts, setup)
    served = None
    if concurrency > 1:
        served = run_served(prompts, [entry.output_length for entry in trace], setup, concurrency)

    rows = [
        *_seen_rows(prompts, shared, behind),
        *_block_rows(prompts, shared, unlimited, setup),
        Row("unlimited", "hits if nothing were evicted", sum(unlimited), True),
    ]
    if setup.num_blocks is not None:
        rows += _pool_rows(unlimited, hits, setup.num_blocks)
    if served is not None:
        rows += _served_rows(served, rows[-1].tokens, concurrency)
    if observed is not None:
        rows.append(Row("server", "fewer on the server", rows[-1].tokens - sum(observed)))
        rows.append(Row("observed", "hits that the server reported", sum(observed), True))

    lost, belady = [], None
    if _is_plain(setup) and setup.num_blocks is not None:
        size = setup.hash_block_size
        lost = lost_blocks(prompts, [entry.timestamp for entry in trace], size, setup.num_blocks)
        belady = min(size * belady_hit_blocks(prompts, size, setup.num_blocks), sum(unlimited))
    has_tokens = bool(token_requests(trace))
    sixteen = _more_with_sixteen(prompts, shared, setup.hash_block_size) if has_tokens else 0
    return Waterfall(has_tokens, len(prompts), setup, rows, shared, unlimited, hits, lost, belady, served, sixteen)


def _seen_rows(prompts: Sequence[Prompt], shared: Sequence[Shared], behind: Sequence[Behind]) -> list[Row]:
    """Return what is lost between all tokens and those whose beginning came before, under the same names."""
    totals = [sum(column) for column in zip(*shared, strict=True)]
    num_tokens = sum(prompt.num_tokens for prompt in prompts)
    return [
        Row("prompt", "all prompt tokens", num_tokens, True),
        Row("never", "never seen before", num_tokens - totals[0] - sum(map(sum, behind))),
        Row("value", "seen, behind a value that changed", sum(one.value for one in behind)),
        Row("order", "seen, in another order", sum(one.order for one in behind)),
        Row("image-size", "seen, behind an image of another size", sum(one.image for one in behind)),
        Row("seen", "began an earlier prompt", totals[0], True),
        Row("images", "same tokens, another image", totals[0] - totals[1]),
        Row("adapters", "same tokens, another adapter", totals[1] - totals[2]),
        Row("salts", "same tokens, another salt", totals[2] - totals[3]),
    ]


def _pool_rows(unlimited: Sequence[int], hits: Sequence[int | None], num_blocks: int) -> list[Row]:
    """Return what is lost because memory ends somewhere."""
    refused = sum(most for most, hit in zip(unlimited, hits, strict=True) if hit is None)
    found = sum(hit or 0 for hit in hits)
    return [
        Row("refused", "prompt larger than the pool", refused),
        Row("evicted", "evicted before reuse", sum(unlimited) - refused - found),
        Row("hits", f"hits in {num_blocks:,} blocks", found, True),
    ]


def _served_rows(served: ServedRun, one_at_a_time: int, concurrency: int) -> list[Row]:
    """Return what is lost because others run at the same time."""
    first = sum(hit or 0 for hit in served.hits)
    return [
        Row("running", "room that running requests took", one_at_a_time - first),
        Row("served", f"hits with {concurrency:,} at once", first, True),
        Row("preempted", "withdrawn on preemption: computed again", served.tokens_again),
        Row("net", "saved in the end", first - served.tokens_again, True),
    ]


def _is_plain(setup: Setup) -> bool:
    return len(setup.groups) == 1 and type(setup.groups[0].kv_cache_spec).__name__ == "FullAttentionSpec"


def _block_rows(
    prompts: Sequence[Prompt], shared: Sequence[Shared], unlimited: Sequence[int], setup: Setup
) -> list[Row]:
    """Return what is lost between the shared tokens and what all groups find of them."""
    size = setup.hash_block_size
    boundary = lcm(*(group.kv_cache_spec.block_size for group in setup.groups))
    short = tail = last = alignment = groups = 0
    for prompt, one, hit in zip(prompts, shared, unlimited, strict=True):
        full = one.names // size * size
        capped = min(full, (prompt.num_tokens - 1) // size * size)
        aligned = capped // boundary * boundary
        if full == 0:
            short += one.names
        tail += one.names - full if full else 0
        last += full - capped
        alignment += capped - aligned
        groups += aligned - hit
    return [
        Row("short", f"too short to share: less than {size}", short),
        Row("tail", f"tail of a block of {size}", tail),
        Row("last", "the last token is always computed", last),
        Row("alignment", f"groups agree every {boundary} only", alignment),
        Row("groups", "a group has no window or state there", groups),
    ]


def _more_with_sixteen(prompts: Sequence[Prompt], shared: Sequence[Shared], size: int) -> int:
    more = 0
    for prompt, one in zip(prompts, shared, strict=True):
        with_sixteen = min(one.names, prompt.num_tokens - 1) // 16 * 16
        more += max(with_sixteen - min(one.names, prompt.num_tokens - 1) // size * size, 0)
    return more


def lost_blocks(
    prompts: Sequence[Prompt], timestamps: Sequence[int], block_size: int, num_blocks: int
) -> list[LostBlock]:
    """Return the blocks that a larger pool would have kept for the lookup that came; one group of full attention."""
    fitting = [
        (prompt, timestamp)
        for prompt, timestamp in zip(prompts, timestamps, strict=True)
        if -(-prompt.num_tokens // block_size) < num_blocks
    ]
    stack = Stack([prompt.num_tokens // block_size for prompt, _ in fitting])
    lost = []
    for prompt, timestamp in fitting:
        num_usable = (prompt.num_tokens - 1) // block_size
        for _, request, need in stack.needs(prompt.block_hashes[:num_usable]):
            if need >= num_blocks:
                lost.append(LostBlock(need + 1 - num_blocks, timestamp - fitting[request][1]))
        stack.touch(prompt.block_hashes, num_usable, prompt.num_tokens % block_size > 0)
    return lost
