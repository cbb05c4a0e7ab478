"""The scheduler: at each step it hands out tokens to requests, and blocks to hold them.

There is no prefill phase and no decode phase. Every request has tokens that are known and tokens that are computed:

        0            num_computed_tokens              num_tokens            + drafts
        |== KV exists ==|== known, KV to come =========|- - proposed - - - -|
                        |<- some of these in this step ->|

A step lets every request catch up by as much as the budget allows. One token behind is what is called decoding; a whole
prompt behind, prefill; a part of it, chunked prefill. All of them run in one batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mini_kv.core.errors import ConfigError, RepeatedRequestError, SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.output import CachedRequestData, EngineCoreOutput, NewRequestData, SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy, create_request_queue


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the engine.

    Source: vLLM `SchedulerConfig` (config/scheduler.py), same names and defaults where we have the option.
    """

    max_num_batched_tokens: int = 2048
    """Tokens that one step may compute, over all requests: the token budget."""
    max_num_seqs: int = 128
    """Requests that may run at once."""
    max_model_len: int = 1 << 20
    """Tokens of the longest request, prompt and output."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step, so that one long prompt leaves room for others; 0: no limit."""
    num_lookahead_tokens: int = 0
    """Slots to give each request beyond its tokens, for drafts."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    scheduler_reserve_full_isl: bool = True
    """Whether a request enters only if all of its tokens fit, not just the chunk that this step computes."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must not be negative")


@dataclass(slots=True)
class _Step:
    """A step while it is being planned."""

    token_budget: int
    output: SchedulerOutput = field(default_factory=SchedulerOutput)

    def take_out(self, request_id: str) -> None:
        """Undo that the request was scheduled; its tokens are in the budget again."""
        self.token_budget += self.output.num_scheduled_tokens.get(request_id, 0)
        self.output.drop(request_id)


class Scheduler:
    """Waiting line, running batch, and the rules between them.

    Use it in turns: `schedule()`, let the worker compute that step, `update_from_output()`, and again. Requests may be
    added and aborted at any time in between.

    Source: vLLM `Scheduler` (v1/core/sched/scheduler.py).
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        config: SchedulerConfig | None = None,
        *,
        admission: AdmissionPolicy | None = None,
    ) -> None:
        """Start with nobody waiting and nobody running.

        Args:
            kv_cache_manager: gives and takes blocks; a traced or watched one will do.
            config: limits.
            admission: when a newcomer may enter while others run.

        Raises `ConfigError` if the manager's formula for admission expects smaller steps than these.
        """
        self.kv_cache_manager = kv_cache_manager
        self.config = config or SchedulerConfig()
        max_in_flight = kv_cache_manager.max_in_flight_tokens
        if max_in_flight is not None and max_in_flight < self.config.max_num_batched_tokens:
            message = f"the manager plans for steps of {max_in_flight} tokens at most (max_in_flight_tokens)"
            raise ConfigError(f"{message}; max_num_batched_tokens is {self.config.max_num_batched_tokens}")
        self.admission = admission or Greedy()
        self.waiting = create_request_queue(self.config.policy)
        self.running: list[Request] = []
        """In the order of admission: the last one gives way first."""
        self.requests: dict[str, Request] = {}
        """Everybody who is not finished."""
        self.num_preemptions = 0
        self._num_arrived = 0
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._unknown_to_worker: set[str] = set()
        """Forked requests that no step has named yet."""
        self._step: _Step | None = None
        """The step that is being planned, or that the worker has; `None` between steps."""

    # Requests come and go.

    def add_request(
        self,
        request: Request,
        *,
        max_tokens: int = 16,
        stop_token_ids: Iterable[int] = (),
        priority: int = 0,
    ) -> None:
        """Put a new request in the waiting line.

        Args:
            request: from the manager's `new_request`.
            max_tokens: output tokens after which it ends.
            stop_token_ids: output tokens after any of which it ends.
            priority: smaller is served first, if the policy looks at it.

        Raises `RepeatedRequestError` if the id is in use, and `ConfigError` if the request could never finish: too
        long for the model, for the pool, or for one step where prompts must not be cut.
        """
        self._check_new(request, max_tokens)
        self._enter(request, max_tokens, frozenset(stop_token_ids), priority)
        self.waiting.add_request(request)

    def _enter(self, request: Request, max_tokens: int, stop_token_ids: frozenset[int], priority: int) -> None:
        """Note what the scheduler must know of a request."""
        request.max_slots = self._max_slots(request, max_tokens)
        request.stop_token_ids = stop_token_ids
        request.priority = priority
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request

    def _max_slots(self, request: Request, max_tokens: int) -> int:
        """Return how many of a request's tokens will be computed: all but the very last, which nothing follows."""
        return min(request.num_tokens + max_tokens, self.config.max_model_len) - 1

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests, wherever they stand: waiting, running, or in the step that the worker has.

        An unknown id is ignored: its request may have ended by itself a moment ago. Whoever built on KV that an aborted
        request was about to write is preempted.
        """
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None:
                continue
            if request.status is RequestStatus.RUNNING:
                self._take_blocks(request)
            else:
                self.waiting.remove_request(request)
            self._finish(request, RequestStatus.FINISHED_ABORTED)

    def fork_request(self, parent_id: str, child: Request, *, max_tokens: int = 16) -> bool:
        """Let a new request go on from where a running one stands, on the same blocks; return whether there was room.

        For several samples of one prompt: the child's tokens are what the parent has computed, then its own first one.
        It runs at once and has no other claim: `False`, with nothing changed, if `max_num_seqs` are running already.

        Raises `SchedulerError` if the parent is not running or a step is under way, and what `add_request` and
        `KVCacheManager.fork` raise.
        """
        parent = self.requests.get(parent_id)
        if parent is None or parent.status is not RequestStatus.RUNNING:
            raise SchedulerError(f"request {parent_id!r} is not running: it has nothing to share")
        if self._step is not None:
            raise SchedulerError("a step is under way: fork between steps")
        if len(self.running) == self.config.max_num_seqs:
            return False
        self._check_new(child, max_tokens)
        self.kv_cache_manager.fork(parent, child)
        self._enter(child, max_tokens, parent.stop_token_ids, parent.priority)
        child.num_computed_tokens = parent.num_computed_tokens
        child.status = RequestStatus.RUNNING
        self.running.append(child)
        self._unknown_to_worker.add(child.request_id)
        return True

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.requests)

    # One step.

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: first everybody who runs, then, if nobody had to give way, newcomers.

        Raises `SchedulerError` if the last step's results have not been brought back.
        """
        if self._step is not None:
            raise SchedulerError("a step is under way: call update_from_output with its results first")
        self._step = step = _Step(self.config.max_num_batched_tokens)
        num_preemptions = self.num_preemptions
        self._schedule_running(step)
        if self.num_preemptions == num_preemptions:  # else who was just thrown out would come straight back in
            self._schedule_waiting(step)
        step.output.kv_cache_block_copies = self.kv_cache_manager.take_kv_cache_block_copies()
        step.output.finished_req_ids, self._finished_req_ids = self._finished_req_ids, []
        step.output.preempted_req_ids, self._preempted_req_ids = self._preempted_req_ids, []
        return step.output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Take in what the step computed: progress, new tokens, who has ended.

        Args:
            scheduler_output: the step, as `schedule` returned it.
            sampled_token_ids: for each request whose known tokens are all computed now, its new ones: the drafts that
                were right, then one token more. Results for a request that was aborted meanwhile are ignored.

        Raises `SchedulerError`, with nothing changed, if this is not the step under way or the tokens do not fit it.
        """
        if self._step is None or scheduler_output is not self._step.output:
            raise SchedulerError("these are not the results of the step under way")
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, [])
            _check_sampled(self.requests[request_id], num_tokens, drafts, sampled_token_ids.get(request_id, ()))
        self._step = None
        self.kv_cache_manager.finish_kv_cache_block_copies()
        outputs = []
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += num_tokens
            sampled = sampled_token_ids.get(request_id, ())
            if sampled:
                drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, [])
                # Slots of wrong drafts are written again, with what should have stood there.
                request.num_computed_tokens -= len(drafts) + 1 - len(sampled)
                outputs.append(self._append_output(request, sampled))
        return outputs

    def update_draft_token_ids(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Propose tokens for a running request; the next step computes them all and keeps those that are right."""
        request = self.requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            raise SchedulerError(f"request {request_id!r} is not running: there is nothing to propose for it")
        if request.num_computed_tokens < request.num_tokens - 1:
            raise SchedulerError(f"request {request_id!r} is still in its prompt: there is nothing to propose for it")
        request.spec_token_ids = list(token_ids)

    # Those who run.

    def _schedule_running(self, step: _Step) -> None:
        for request in list(self.running):
            if step.token_budget == 0:
                return
            if request.status is not RequestStatus.RUNNING:
                continue  # it gave way to one before it
            num_new_tokens = self._num_new_tokens(request, request.num_computed_tokens, step.token_budget)
            new_blocks = self._allocate_or_preempt(request, num_new_tokens)
            if new_blocks is None:
                continue  # it gave way itself
            if request.request_id in self._unknown_to_worker:
                self._unknown_to_worker.discard(request.request_id)
                self._introduce(request, step)
            else:
                block_ids = new_blocks.get_block_ids()
                data = CachedRequestData(request.request_id, block_ids, request.num_computed_tokens)
                step.output.scheduled_cached_reqs.append(data)
            self._count(request, num_new_tokens, step)

    def _allocate_or_preempt(self, request: Request, num_new_tokens: int) -> KVCacheBlocks | None:
        """Return the request's new blocks, throwing out others until there are enough; `None` if it was thrown out."""
        while True:
            num_lookahead_tokens = self._num_lookahead_tokens(request, request.num_computed_tokens + num_new_tokens)
            new_blocks = self.kv_cache_manager.allocate_slots(
                request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens
            )
            if new_blocks is not None:
                return new_blocks
            victim = self._victim()
            self._preempt_request(victim)
            if victim is request:
                return None

    def _victim(self) -> Request:
        """Return who gives way: the last that was admitted, or the last in priority."""
        if self.config.policy is SchedulingPolicy.PRIORITY:
            return max(self.running, key=lambda request: (request.priority, request.arrival))
        return self.running[-1]

    def _preempt_request(self, request: Request) -> None:
        """Take all of a running request's blocks and put it back in the waiting line: it will be computed again.

        Most of its full blocks keep their keys, so unless others need the memory first, much of it is found again.
        """
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted_req_ids.append(request.request_id)
        self._take_blocks(request)
        self.waiting.prepend_request(request)

    def _take_blocks(self, request: Request) -> None:
        """Take a request out of the running batch, and out of the step if it is in it, and free its blocks.

        If its part of the step will not be computed now, the keys of the blocks that it was about to fill are taken
        back first, and whoever adopted one of these is preempted too.
        """
        self.running.remove(request)
        built_on_it: list[str] = []
        if self._step is not None and request.request_id in self._step.output.num_scheduled_tokens:
            self._step.take_out(request.request_id)
            built_on_it = self.kv_cache_manager.withdraw_promises(request)
        self.kv_cache_manager.free(request)
        self._unknown_to_worker.discard(request.request_id)
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        for request_id in reversed(built_on_it):  # each goes to the front of the line, so the first comes last
            other = self.requests[request_id]
            if other.status is RequestStatus.RUNNING:
                self._preempt_request(other)

    # Those who wait.

    def _schedule_waiting(self, step: _Step) -> None:
        jumped: list[Request] = []
        while self.waiting and step.token_budget > 0 and len(self.running) < self.config.max_num_seqs:
            if self._admit(self.waiting.peek_request(), step):
                self.running.append(self.waiting.pop_request())
            elif self.admission.may_jump:
                jumped.append(self.waiting.pop_request())
            else:
                break
        for request in reversed(jumped):
            self.waiting.prepend_request(request)

    def _admit(self, request: Request, step: _Step) -> bool:
        """Give a waiting request its hit and its first slots, if it may enter and they are there."""
        reserved_blocks = self.admission.reserved_blocks(self.kv_cache_manager.block_pool) if self.running else 0
        if reserved_blocks is None:
            return False
        hit, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        num_new_tokens = self._num_new_tokens(request, num_hit_tokens, step.token_budget)
        if not self.config.enable_chunked_prefill and num_hit_tokens + num_new_tokens < request.num_tokens:
            return False
        new_blocks = self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_hit_tokens,
            hit,
            self._num_lookahead_tokens(request, num_hit_tokens + num_new_tokens),
            full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            reserved_blocks=reserved_blocks,
            has_scheduled_reqs=bool(self.running),
        )
        if new_blocks is None:
            return False
        request.num_computed_tokens = num_hit_tokens
        request.status = RequestStatus.RUNNING
        self._introduce(request, step)
        self._count(request, num_new_tokens, step)
        return True

    # Both.

    def _introduce(self, request: Request, step: _Step) -> None:
        """Tell the worker all that there is to know of a request."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        data = NewRequestData(request.request_id, list(request.token_ids), block_ids, request.num_computed_tokens)
        step.output.scheduled_new_reqs.append(data)

    def _num_new_tokens(self, request: Request, num_computed_tokens: int, token_budget: int) -> int:
        """Return how many tokens of the request this step computes: as many as it lacks, within the limits."""
        num_lacking = request.num_tokens + len(request.spec_token_ids) - num_computed_tokens
        if self.config.long_prefill_token_threshold:
            num_lacking = min(num_lacking, self.config.long_prefill_token_threshold)
        return min(num_lacking, token_budget, request.max_slots - num_computed_tokens)

    def _num_lookahead_tokens(self, request: Request, num_tokens: int) -> int:
        """Return how many slots to give beyond `num_tokens`: none for tokens that it will not live to see."""
        return min(self.config.num_lookahead_tokens, request.max_slots - num_tokens)

    def _count(self, request: Request, num_new_tokens: int, step: _Step) -> None:
        """Note in the step that the request runs, with how many tokens and which drafts."""
        step.token_budget -= num_new_tokens
        step.output.num_scheduled_tokens[request.request_id] = num_new_tokens
        num_drafts = max(request.num_computed_tokens + num_new_tokens - request.num_tokens, 0)
        if num_drafts:
            step.output.scheduled_spec_decode_tokens[request.request_id] = request.spec_token_ids[:num_drafts]
        request.spec_token_ids = []  # what is not checked now was proposed for a place that will have moved

    def _append_output(self, request: Request, sampled: Sequence[int]) -> EngineCoreOutput:
        """Append the new tokens up to the one that ends the request, if there is one."""
        new_token_ids: list[int] = []
        for token in sampled:
            request.append_output_token_ids(token)
            new_token_ids.append(token)
            if token in request.stop_token_ids:
                return self._end(request, new_token_ids, RequestStatus.FINISHED_STOPPED)
            if request.num_tokens > request.max_slots:
                return self._end(request, new_token_ids, RequestStatus.FINISHED_LENGTH_CAPPED)
        return EngineCoreOutput(request.request_id, new_token_ids)

    def _end(self, request: Request, new_token_ids: list[int], status: RequestStatus) -> EngineCoreOutput:
        self._take_blocks(request)
        self._finish(request, status)
        return EngineCoreOutput(request.request_id, new_token_ids, status.value)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        del self.requests[request.request_id]
        self._finished_req_ids.append(request.request_id)

    def _check_new(self, request: Request, max_tokens: int) -> None:
        """Raise if the id is in use, or `ConfigError` if the request could never be done, however long it waited."""
        config = self.config
        if request.request_id in self.requests:
            raise RepeatedRequestError(request.request_id)
        if max_tokens < 1:
            raise ConfigError(f"max_tokens of request {request.request_id!r} is {max_tokens}, it must be at least 1")
        who = f"request {request.request_id!r} of {request.num_tokens} tokens"
        if request.num_tokens >= config.max_model_len:
            raise ConfigError(f"{who} leaves no room for output: max_model_len is {config.max_model_len}")
        if not config.enable_chunked_prefill and request.num_tokens > config.max_num_batched_tokens:
            message = f"{who} does not fit into a step of {config.max_num_batched_tokens} (max_num_batched_tokens)"
            raise ConfigError(f"{message}, and enable_chunked_prefill is off")
        max_slots = self._max_slots(request, max_tokens)
        num_needed = self.kv_cache_manager.num_blocks_needed(max_slots)
        num_blocks = len(self.kv_cache_manager.block_pool.blocks) - 1
        if num_needed > num_blocks:
            message = f"{who} needs {num_needed} blocks when it has grown to {max_slots + 1}; the pool has {num_blocks}"
            raise ConfigError(message)


def _check_sampled(request: Request, num_tokens: int, drafts: Sequence[int], sampled: Sequence[int]) -> None:
    """Raise `SchedulerError` unless these new tokens can be what the step computed for the request."""
    num_computed_tokens = request.num_computed_tokens + num_tokens
    if num_computed_tokens < request.num_tokens:
        if sampled:
            raise SchedulerError(f"request {request.request_id!r} is still in its prompt, but has a new token")
        return
    num_accepted = len(sampled) - 1
    if not 0 <= num_accepted <= len(drafts) or list(sampled[:num_accepted]) != list(drafts[:num_accepted]):
        message = f"new tokens of request {request.request_id!r} are {list(sampled)}; its drafts were {list(drafts)}:"
        raise SchedulerError(f"{message} expected are those that were right, and one token more")
