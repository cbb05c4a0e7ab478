"""The messages between scheduler and worker: ids and numbers to the worker, tokens back.

    Scheduler                                          worker (tensors, model)
    schedule()        -- SchedulerOutput ------------> block tables, slots, one forward pass
    update_from_output(output, sampled_token_ids) <--- the next token of each request that got one

Nothing else is exchanged, so a worker can be another process. A cache outside the engine (vLLM: a KV connector) uses
the same messages: its scheduler half writes `kv_connector_metadata`, and its worker half reads it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """All data of a request that is new to the worker, or that the worker dropped when it was preempted.

    Source: vLLM `NewRequestData` (v1/core/sched/output.py).
    """

    request_id: str
    token_ids: Sequence[int]
    """Prompt, then the output before a preemption."""
    block_ids: tuple[list[int], ...]
    """Its block tables, per group."""
    num_computed_tokens: int
    """Number of tokens that are computed already: the prefix hit."""


@dataclass(slots=True)
class CachedRequestData:
    """Changes of the requests that the worker knows, since their last step: one list per field.

    All requests share one object: an object per request would cost as much as allocating its slots. Source: vLLM
    `CachedRequestData` (v1/core/sched/output.py).
    """

    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    """Per request: the blocks added to its tables, per group. `None`: no block, as in most steps of decoding."""
    num_computed_tokens: list[int] = field(default_factory=list)

    def add(self, request_id: str, new_block_ids: tuple[list[int], ...] | None, num_computed_tokens: int) -> None:
        """Add a request."""
        self.req_ids.append(request_id)
        self.new_block_ids.append(new_block_ids)
        self.num_computed_tokens.append(num_computed_tokens)

    def drop(self, request_id: str) -> None:
        """Remove a request, if it is there. Costs O(requests)."""
        if request_id in self.req_ids:
            index = self.req_ids.index(request_id)
            del self.req_ids[index], self.new_block_ids[index], self.num_computed_tokens[index]

    def __iter__(self) -> Iterator[tuple[str, tuple[list[int], ...] | None, int]]:
        return zip(self.req_ids, self.new_block_ids, self.num_computed_tokens, strict=True)


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step: its requests, their numbers of tokens, and their blocks.

    Source: vLLM `SchedulerOutput` (v1/core/sched/output.py).
    """

    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """Number of tokens that this step computes per request, drafts included, in the order of the batch."""
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    """Drafts among them: proposed tokens that this step checks."""
    kv_cache_block_copies: list[tuple[int, int]] = field(default_factory=list)
    """Blocks to copy, as (source, target), before anything of the step is written: copy-on-write."""
    preempted_req_ids: list[str] = field(default_factory=list)
    """Requests that lost their blocks while this step was planned."""
    finished_req_ids: list[str] = field(default_factory=list)
    """Requests that ended since the last step. The worker may drop them."""
    kv_connector_metadata: object = None
    """Moves between the pool and the tiers below it, for the connector's worker half. Usually `None`."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Number of tokens that this step computes."""
        return sum(self.num_scheduled_tokens.values())

    def drop(self, request_id: str) -> None:
        """Remove a request from the step, as if it had not been scheduled."""
        self.num_scheduled_tokens.pop(request_id, None)
        self.scheduled_spec_decode_tokens.pop(request_id, None)
        self.scheduled_new_reqs = [data for data in self.scheduled_new_reqs if data.request_id != request_id]
        self.scheduled_cached_reqs.drop(request_id)


@dataclass(slots=True)  # as many of them: not frozen either
class EngineCoreOutput:
    """The result of one step for one request.

    Source: vLLM `EngineCoreOutput` (v1/engine/__init__.py).
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    """`"stop"`, `"length"`, or `None` while the request is unfinished."""
