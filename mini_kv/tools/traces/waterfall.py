"""From all prompt tokens down to the hits, one loss per row. The rows add up exactly.

1. tokens       those that began an earlier prompt, and those that occurred in one after a difference (`prefix_overlap`)
2. hashes       the same tokens with the same images, adapter and salt
3. blocks       whole blocks of them, but never the prompt's last token
4. groups       the hits of every group of layers, with unlimited memory: the real manager
5. memory       the hits in a pool of a certain size: the real manager, or `curve` for one group of full attention
6. serving      the hits while other requests run, minus tokens computed again after preemption: the real scheduler
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.tools.traces.belady_bound import belady_hit_blocks
from mini_kv.tools.traces.curve import LostBlock, hits_in_pool
from mini_kv.tools.traces.prefix_overlap import Shared, ShiftedMatch, prefix_overlaps
from mini_kv.tools.traces.prompt_hashes import Prompt, Trace, token_requests
from mini_kv.tools.traces.runners import ANSWER, Arrival, Setup, make_requests, scheduled, sequential

SMALL_BLOCK = 16
"""Tokens per block, vLLM's default. Shorter prefixes are hardly worth sharing."""


@dataclass(frozen=True, slots=True)
class ServedRun:
    """The result of a run through the scheduler."""

    hits: list[int | None]
    """Hit tokens of each request at its first admission. `None`: refused."""
    num_preemptions: int
    tokens_again: int
    """Tokens that preempted requests had computed, or hit, and did not find again at their next admission."""


class Row(NamedTuple):
    """A line of a waterfall: a total, or a loss before the next total."""

    name: str
    label: str
    tokens: int
    is_total: bool = False


@dataclass(frozen=True)
class Waterfall:
    """The hits of a trace and the causes of its losses."""

    has_tokens: bool
    """Whether the trace has tokens. With hashes some losses cannot be determined."""
    num_requests: int
    setup: Setup
    rows: list[Row]
    shared: list[Shared]
    unlimited: list[int]
    """Hit tokens of each request if nothing is ever evicted."""
    hits: list[int | None]
    """Hit tokens of each request in the pool, one request at a time. `None`: refused."""
    lost: list[LostBlock]
    """Filled for models of one group of full attention."""
    belady: int | None
    """Hit tokens that no policy can exceed in this pool. Filled for the same models."""
    served: ServedRun | None
    sixteen: int
    """Tokens that blocks of 16, vLLM's default, would find in the same shared prefixes, and these blocks do not.

    The tokens of the row `short-block` are not included."""

    def tokens(self, name: str) -> int:
        """Return the tokens of a row, or 0 if no row has that name."""
        return sum(row.tokens for row in self.rows if row.name == name)


def make_waterfall(
    trace: Trace,
    prompts: Sequence[Prompt],
    setup: Setup,
    *,
    concurrency: int = 1,
    observed: Sequence[int] | None = None,
) -> Waterfall:
    """Return the hits of a trace and the causes of its losses.

    Args:
        trace: at least one request, of hashes or of tokens.
        prompts: its prompts, by `make_prompts` with the setup's `hash_block_size`.
        setup: groups and pool. Of hashes the groups' blocks must be multiples of the trace's.
        concurrency: above 1 the scheduler runs too, which needs a pool of a certain size.
        observed: per request the hit tokens that a server has reported, if there are any.
    """
    shared, behind = prefix_overlaps(trace)
    unlimited, hits, lost = _one_at_a_time(trace, prompts, setup)
    served = None
    if concurrency > 1:
        served = serve(prompts, [entry.output_length for entry in trace], setup, concurrency)

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

    belady = None
    if _is_plain(setup) and setup.num_blocks is not None:
        size = setup.hash_block_size
        belady = min(size * belady_hit_blocks(prompts, size, setup.num_blocks), sum(unlimited))
    has_tokens = bool(token_requests(trace))
    sixteen = _more_with_sixteen(prompts, shared, setup) if has_tokens else 0
    return Waterfall(has_tokens, len(prompts), setup, rows, shared, unlimited, hits, lost, belady, served, sixteen)


def _one_at_a_time(
    trace: Trace, prompts: Sequence[Prompt], setup: Setup
) -> tuple[list[int], list[int | None], list[LostBlock]]:
    """Return the hits of each request without eviction and in the pool, and the blocks that were lost, if known."""
    if _is_plain(setup):
        times, size = [entry.timestamp for entry in trace], setup.hash_block_size
        in_all, lost = hits_in_pool(prompts, times, size, sys.maxsize)
        hits = in_all
        if setup.num_blocks is not None:
            hits, lost = hits_in_pool(prompts, times, size, setup.num_blocks)
        return [hit or 0 for hit in in_all], hits, lost
    in_all = list(sequential(replace(setup, num_blocks=None).make_manager(prompts), prompts))
    hits = in_all if setup.num_blocks is None else list(sequential(setup.make_manager(prompts), prompts))
    return [hit or 0 for hit in in_all], hits, []


def serve(prompts: Sequence[Prompt], answers: Sequence[int], setup: Setup, concurrency: int) -> ServedRun:
    """Serve the prompts with answers of these lengths, at most `concurrency` unfinished at once.

    Costs O(blocks * concurrency + requests * concurrency): steps in which nothing happens are skipped.
    """
    config = SchedulerConfig(max_num_batched_tokens=setup.step, max_num_seqs=concurrency)
    scheduler = Scheduler(setup.make_manager(prompts), config)
    requests = list(make_requests(prompts))
    arrivals = [Arrival(request, max(answer, 1)) for request, answer in zip(requests, answers, strict=True)]
    preempted: set[str] = set()
    tokens_again = 0
    for computed, output, results in scheduled(scheduler, [one for one in arrivals if one.can_run(scheduler)]):
        tokens_again += sum(computed[request_id] for request_id in output.preempted_req_ids)
        tokens_again -= sum(
            data.num_computed_tokens for data in output.scheduled_new_reqs if data.request_id in preempted
        )
        preempted.update(output.preempted_req_ids)
        if all(result.finish_reason is None for result in results):
            _skip_quiet_steps(scheduler, output)
    return ServedRun([request.num_cached_tokens for request in requests], scheduler.num_preemptions, tokens_again)


def _skip_quiet_steps(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Give all requests the tokens of the next steps at once, up to the first step that could do anything else.

    The last step must not have admitted, preempted or ended a request. Then the next steps admit none either, because
    the pool does not change while all running requests have quiet steps (`KVCacheManager.num_quiet_steps`).
    """
    if output.scheduled_new_reqs or output.preempted_req_ids:
        return
    num_steps = sys.maxsize
    for request in scheduler.running:
        num_quiet = scheduler.kv_cache_manager.num_quiet_steps(request)
        is_decoding = request.num_computed_tokens + 1 == request.num_tokens
        was_in_step = request.request_id in output.num_scheduled_tokens
        num_until_end = min(num_quiet, request.max_slots - request.num_tokens)
        num_steps = min(num_steps, num_until_end if is_decoding and was_in_step else 0)
    if num_steps > 0:
        for request in scheduler.running:
            request.append_output_token_ids(*[ANSWER] * num_steps)
            request.num_computed_tokens += num_steps


def _seen_rows(prompts: Sequence[Prompt], shared: Sequence[Shared], behind: Sequence[ShiftedMatch]) -> list[Row]:
    """Return the losses from all tokens to those of a prefix of an earlier prompt with equal extra keys."""
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
    """Return the losses whose cause is the size of the pool."""
    refused = sum(most for most, hit in zip(unlimited, hits, strict=True) if hit is None)
    found = sum(hit or 0 for hit in hits)
    return [
        Row("refused", "prompt larger than the pool", refused),
        Row("evicted", "evicted before reuse", sum(unlimited) - refused - found),
        Row("hits", f"hits in {num_blocks:,} blocks", found, True),
    ]


def _served_rows(served: ServedRun, one_at_a_time: int, concurrency: int) -> list[Row]:
    """Return the losses whose cause is other requests running at the same time."""
    first = sum(hit or 0 for hit in served.hits)
    return [
        Row("running", "room that running requests took", one_at_a_time - first),
        Row("served", f"hits with {concurrency:,} at once", first, True),
        Row("preempted", "computed again after a preemption", served.tokens_again),
        Row("net", "saved in the end", first - served.tokens_again, True),
    ]


def _is_plain(setup: Setup) -> bool:
    return len(setup.groups) == 1 and type(setup.groups[0].kv_cache_spec).__name__ == "FullAttentionSpec"


def _block_rows(
    prompts: Sequence[Prompt], shared: Sequence[Shared], unlimited: Sequence[int], setup: Setup
) -> list[Row]:
    """Return the losses between the shared tokens and the hits of all groups."""
    size, boundary = setup.hash_block_size, setup.boundary
    shortest = min(size, SMALL_BLOCK) if setup.has_given_blocks else size
    short = short_block = tail = last = alignment = groups = 0
    for prompt, one, hit in zip(prompts, shared, unlimited, strict=True):
        if one.names < shortest:
            short += one.names
        elif one.names < boundary:
            short_block += one.names
        else:
            full = one.names // size * size
            capped = min(full, (prompt.num_tokens - 1) // size * size)
            aligned = capped // boundary * boundary
            tail += one.names - full
            last += full - capped
            alignment += capped - aligned
            groups += aligned - hit
    return [
        Row("short", f"too short to share: less than {shortest}", short),
        Row("short-block", f"shorter than a block of {boundary:,}", short_block),
        Row("tail", f"tail of a block of {size}", tail),
        Row("last", "the last token is always computed", last),
        Row("alignment", f"groups agree every {boundary:,} only", alignment),
        Row("groups", "a group has no window or state there", groups),
    ]


def _more_with_sixteen(prompts: Sequence[Prompt], shared: Sequence[Shared], setup: Setup) -> int:
    size, more = setup.hash_block_size, 0
    for prompt, one in zip(prompts, shared, strict=True):
        if not setup.has_given_blocks or one.names >= setup.boundary:
            usable = min(one.names, prompt.num_tokens - 1)
            more += max(usable // SMALL_BLOCK * SMALL_BLOCK - usable // size * size, 0)
    return more
