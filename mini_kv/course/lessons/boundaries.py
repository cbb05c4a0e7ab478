"""The requests that a decode step visits, counted on the real engine: all running ones, or those in a calendar.

With blocks of 16 tokens a request needs a block in one step of 16. The step follows from its length:

    length 40      step 9, 25, 41, ...       (40 + 9 = 49 tokens open the fourth block)
    length 47      step 2, 18, 34, ...

A calendar holds, per step, the requests that open a block in it. A step visits only the requests in its entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request


@dataclass(frozen=True, slots=True)
class Decode:
    """The result of a number of decode steps."""

    visits: tuple[int, ...]
    """Number of requests that each step visited."""
    tables: tuple[tuple[int, ...], ...]
    """The blocks of each request at the end."""


def visit_all(lengths: Sequence[int], num_steps: int, block_size: int = 16) -> Decode:
    """Ask the manager for a slot of every request in every step. `lengths`: tokens per prompt."""
    kv, requests = _running(lengths, num_steps, block_size)
    for step in range(1, num_steps + 1):
        for request in requests:
            _compute_up_to(kv, request, step)
    return Decode((len(requests),) * num_steps, _tables(kv, requests))


def visit_by_calendar(lengths: Sequence[int], num_steps: int, block_size: int = 16) -> Decode:
    """Ask the manager only for the requests that open a block in this step. The blocks are those of `visit_all`.

    A full block is cached when the next one is opened, one step later than in `visit_all`.
    """
    kv, requests = _running(lengths, num_steps, block_size)
    calendar: dict[int, list[Request]] = {}
    for request in requests:
        to_boundary = -request.num_tokens % block_size
        calendar.setdefault(to_boundary + 1, []).append(request)
    visits = []
    for step in range(1, num_steps + 1):
        crossing = calendar.pop(step, [])
        for request in crossing:
            _compute_up_to(kv, request, step)
        calendar[step + block_size] = crossing
        visits.append(len(crossing))
    return Decode(tuple(visits), _tables(kv, requests))


def _running(lengths: Sequence[int], num_steps: int, block_size: int) -> tuple[KVCacheManager, list[Request]]:
    """Return a cache with one computed request per length, and room for the steps."""
    num_blocks = 1 + sum(-(-(length + num_steps) // block_size) for length in lengths)
    kv = KVCacheManager.for_full_attention(num_blocks, block_size)
    requests: list[Request] = []
    for length in lengths:
        first = 1_000_000 * len(requests)  # no two prompts have a block in common
        request = kv.new_request(str(len(requests)), range(first, first + length))
        kv.allocate_slots(request, length)
        request.num_computed_tokens = length
        requests.append(request)
    return kv, requests


def _compute_up_to(kv: KVCacheManager, request: Request, step: int) -> None:
    """Give the request the tokens up to this step's, and a slot for the last. The others have slots."""
    num_tokens = request.num_prompt_tokens + step
    request.append_output_token_ids(*range(request.num_tokens, num_tokens))
    request.num_computed_tokens = num_tokens - 1
    kv.allocate_slots(request, 1)
    request.num_computed_tokens = num_tokens


def _tables(kv: KVCacheManager, requests: Sequence[Request]) -> tuple[tuple[int, ...], ...]:
    """Return the ids of the blocks of each request."""
    return tuple(tuple(kv.get_block_ids(request.request_id)[0]) for request in requests)
