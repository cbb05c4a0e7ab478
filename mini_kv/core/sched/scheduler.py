"""The scheduler: it gives requests tokens of each step's budget, and blocks for these tokens.

There is no prefill phase and no decode phase. Every request has known tokens and computed tokens:

        0            num_computed_tokens              num_tokens            + drafts
        |== KV exists ==|== known, KV to come =========|- - proposed - - - -|
                        |<- some of these in this step ->|

A step computes as many missing tokens of each request as the budget allows. Decoding computes one missing token.
Prefill computes a whole prompt, chunked prefill a part of it. All of them run in one batch.
"""

from collections.abc import Iterable, Mapping, Sequence

from mini_kv.core.checks import check_fork
from mini_kv.core.errors import SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.mamba_manager import mamba_block_aligned_split
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched import scheduler_checks
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig, check_limits
from mini_kv.core.sched.output import EngineCoreOutput, NewRequestData, SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy, create_request_queue
from mini_kv.core.sched.step import Step


class Scheduler:
    """Plans steps: the waiting queue, the running batch, and the rules between them.

    Call `schedule()`, let the worker compute that step, call `update_from_output()`, and repeat. If the worker
    failed, call `abandon_step()`. Requests may be added and aborted at any time in between.

    A refused call has changed nothing. After an interrupted call (Ctrl-C, out of memory) the next call
    restores the state: see `recover`.

    Source: vLLM `Scheduler` (v1/core/sched/scheduler.py).
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        config: SchedulerConfig | None = None,
        *,
        admission: AdmissionPolicy | None = None,
    ) -> None:
        """Start without requests.

        Args:
            kv_cache_manager: allocates and frees blocks. It may be a traced or observed manager.
            config: limits.
            admission: when a new request may enter while others run.

        Raises `ConfigError` if manager and limits cannot work together: see `check_limits`.
        """
        self.config = config or SchedulerConfig()
        check_limits(kv_cache_manager, self.config)
        self.kv_cache_manager = kv_cache_manager
        self.admission = admission or Greedy()
        self.waiting = create_request_queue(self.config.policy)
        self.running: list[Request] = []
        """The running requests in the order of admission: the last one is preempted first."""
        self.requests: dict[str, Request] = {}
        """All unfinished requests, by id."""
        self.step: Step | None = None
        """The step that is being planned or that the worker has. `None` between steps."""
        self.num_preemptions = 0
        self._num_arrived = 0
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._unknown_to_worker: set[str] = set()
        """Forked requests that no step has sent to the worker yet."""
        self.is_torn = False
        """Set by `_changing`. If the next call finds it set, the call before was interrupted."""
        self.need_mamba_block_aligned_split = (
            kv_cache_manager.enable_caching and kv_cache_manager.coordinator.has_states
        )
        """Whether a prompt's steps have to end where a state can be shared."""
        self._is_hashed_late = kv_cache_manager.num_hash_lookahead_tokens > 0
        """Whether a full block gets its hash only with the next token."""

    # Requests come and go.

    def add_request(
        self,
        request: Request,
        *,
        max_tokens: int = 16,
        stop_token_ids: Iterable[int] = (),
        priority: int = 0,
    ) -> None:
        """Add a new request to the waiting queue.

        Args:
            request: from the manager's `new_request`.
            max_tokens: output tokens after which it ends.
            stop_token_ids: output tokens after any of which it ends.
            priority: the smallest is served first, if the policy uses priorities.

        Raises `RepeatedRequestError` if the id is in use. Raises `ConfigError` if the request could never finish: it
        is too long for the model, for the pool, or for one step if prompts must not be split.
        """
        self._recover_if_torn()
        scheduler_checks.check_new(self.kv_cache_manager, self.config, self.requests, request, max_tokens)
        self._note_limits(request, max_tokens, frozenset(stop_token_ids), priority)
        with self._changing():
            self.waiting.add_request(request)
            self.requests[request.request_id] = request

    def _note_limits(self, request: Request, max_tokens: int, stop_token_ids: frozenset[int], priority: int) -> None:
        """Set a new request's arrival number, its limits, and its priority."""
        request.max_slots = scheduler_checks.max_slots(self.config, request, max_tokens)
        request.stop_token_ids = stop_token_ids
        request.priority = priority
        request.arrival = self._num_arrived
        self._num_arrived += 1

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests that wait, run, or are in the step that the worker has.

        An unknown id is ignored: its request may just have ended. During a step an aborted request's blocks keep their
        hashes, because the worker still computes them. None of them is allocated again before the step has ended.
        """
        self._recover_if_torn()
        found = [self.requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self.requests]
        with self._changing():
            for request in found:
                if request.status is RequestStatus.RUNNING:
                    self._take_blocks(request)
                else:
                    self.waiting.remove_request(request)
                self._finish(request, RequestStatus.FINISHED_ABORTED)

    def fork_request(self, parent_id: str, child: Request, *, max_tokens: int = 16) -> bool:
        """Start a new request from the tokens and blocks of a running one. Return whether there was room.

        For several samples of one prompt: the child's tokens are the parent's computed tokens and then one of its own.
        It runs at once. If `max_num_seqs` requests are running already, nothing changes and the result is `False`.

        Raises `SchedulerError` if the parent is not running or a step is under way. Raises the errors of `add_request`
        and `KVCacheManager.fork` too.
        """
        self._recover_if_torn()
        parent = scheduler_checks.check_parent(self.requests.get(parent_id), parent_id, self.step is not None)
        if len(self.running) == self.config.max_num_seqs:
            return False
        scheduler_checks.check_new(self.kv_cache_manager, self.config, self.requests, child, max_tokens)
        # The manager checks this as well, but by then a refusal would look like an interrupt.
        check_fork(self.kv_cache_manager.coordinator, self.kv_cache_manager.requests, parent, child)
        self._note_limits(child, max_tokens, parent.stop_token_ids, parent.priority)
        with self._changing():
            self.kv_cache_manager.fork(parent, child)
            child.num_computed_tokens = parent.num_computed_tokens
            child.status = RequestStatus.RUNNING
            self.running.append(child)
            self._unknown_to_worker.add(child.request_id)
            self.requests[child.request_id] = child
        return True

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self.requests)

    # One step.

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: first all running requests, then, if none was preempted, the waiting ones.

        Raises `SchedulerError` if the last step's results are still missing. Raises it too if requests wait, none runs
        and none can be admitted: no later step would change that.
        """
        self._recover_if_torn()
        if self.step is not None:
            raise SchedulerError("a step is under way: bring its results to update_from_output, or abandon_step")
        with self._changing():
            self.step = step = Step(self.config.max_num_batched_tokens)
            if len(self.requests) > 1:  # a request by itself takes the step from no other
                step.long_prefill_token_threshold = self.config.long_prefill_token_threshold
            num_preemptions = self.num_preemptions
            self._schedule_running(step)
            if self.num_preemptions == num_preemptions:  # else a preempted request would come straight back in
                self._schedule_waiting(step)
                scheduler_checks.check_progress(self.waiting, self.running)
            step.output.kv_cache_block_copies = self.kv_cache_manager.take_kv_cache_block_copies()
            step.output.finished_req_ids, self._finished_req_ids = self._finished_req_ids, []
            step.output.preempted_req_ids, self._preempted_req_ids = self._preempted_req_ids, []
        return step.output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Apply the results of the step: computed tokens, new tokens, finished requests.

        Args:
            scheduler_output: the step, as `schedule` returned it.
            sampled_token_ids: the new tokens of each request with all known tokens computed now: the right drafts,
                then one more token. Results for a request that was aborted meanwhile are ignored.

        Raises `SchedulerError` if this is not the step under way or the tokens do not fit it. Raises
        `InvalidTokenError` if a value is not a token id. In both cases the state is unchanged.
        """
        self._recover_if_torn()
        step = scheduler_checks.check_is_under_way(self.step, scheduler_output)
        requests = scheduler_checks.checked_results(step, sampled_token_ids)
        step.before_results = [(request, request.num_tokens, len(request.block_hashes)) for request in requests]
        num_scheduled_tokens, all_drafts = step.output.num_scheduled_tokens, step.output.scheduled_spec_decode_tokens
        with self._changing(ends_step=True):
            self.kv_cache_manager.finish_kv_cache_block_copies()
            outputs = []
            for request in requests:
                request_id = request.request_id
                request.num_computed_tokens += num_scheduled_tokens[request_id]
                sampled = sampled_token_ids.get(request_id)
                if sampled:
                    drafts = all_drafts.get(request_id)
                    if drafts is not None:  # slots of wrong ones are written again, with what should have stood there
                        request.num_computed_tokens -= len(drafts) + 1 - len(sampled)
                    outputs.append(self._append_output(request, sampled, drafts is not None))
            self.kv_cache_manager.confirm_promises()
        return outputs

    def abandon_step(self) -> None:
        """Give up the running step, which the worker has not completed. Do nothing if there is no such step.

        Its requests go back to the front of the waiting queue, in their order, and are computed again. Their blocks
        are freed. Keys that the step promised are removed, also from blocks that were freed meanwhile. The next step
        repeats the messages to the worker.
        """
        self._recover_if_torn()
        step = self.step
        if step is None:
            return
        with self._changing():
            self._finished_req_ids[:0] = step.output.finished_req_ids
            self._preempted_req_ids[:0] = step.output.preempted_req_ids
            self.step = None
            self.kv_cache_manager.withdraw_all_promises()
            self.kv_cache_manager.finish_kv_cache_block_copies()
            for request in reversed(list(self.running)):
                if request.request_id in step.requests:
                    self._preempt_request(request)

    def recover(self) -> None:
        """Start again after an interrupted call: all unfinished requests wait, with nothing computed or cached.

        They wait in the order of arrival. The next step tells the worker to drop them. The step under way is dropped,
        and tokens from its results are removed. The next call does all this by itself. If this call is interrupted
        too, call it again. Costs O(pool).
        """
        step = self.step or Step(0)
        for request, num_tokens, num_block_hashes in step.before_results:
            request.truncate(num_tokens, num_block_hashes)
            self.requests[request.request_id] = request  # also if it had ended
        self.kv_cache_manager.recover()
        unfinished = sorted(self.requests.values(), key=lambda request: request.arrival)
        self.running, self.waiting = [], create_request_queue(self.config.policy)
        for request in unfinished:
            request.status, request.num_computed_tokens, request.spec_token_ids = RequestStatus.WAITING, 0, []
            self.waiting.add_request(request)
        ended = dict.fromkeys([*step.output.finished_req_ids, *self._finished_req_ids])
        self._finished_req_ids = [request_id for request_id in ended if request_id not in self.requests]
        self._preempted_req_ids = [request.request_id for request in unfinished]
        self._unknown_to_worker = set()
        self.step, self.is_torn = None, False

    def _recover_if_torn(self) -> None:
        if self.is_torn:
            self.recover()

    def _changing(self, *, ends_step: bool = False) -> "_Changing":
        """Mark the state as torn within the block. `ends_step`: without an exception the step is over, too."""
        return _Changing(self, ends_step)

    def update_draft_token_ids(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Propose tokens for a running request. The next step computes them all and keeps those that are right.

        Raises `SchedulerError` if the request does not run, if its prompt is not done, or if a layer keeps states.
        """
        self._recover_if_torn()
        request = scheduler_checks.check_drafts(self.kv_cache_manager, self.requests.get(request_id), request_id)
        request.spec_token_ids = list(token_ids)

    # Requests that run.

    def _schedule_running(self, step: Step) -> None:
        cached, running = step.output.scheduled_cached_reqs, RequestStatus.RUNNING
        for request in list(self.running):
            if step.token_budget == 0:
                return
            if request.status is not running:
                continue  # it gave way to one before it
            num_new_tokens = min(self._num_wanted(request, request.num_computed_tokens, step), step.token_budget)
            if self.need_mamba_block_aligned_split:
                num_new_tokens = self._aligned_split(request, request.num_computed_tokens, num_new_tokens)
                if num_new_tokens == 0:
                    continue  # what is left of the budget does not reach the next block's end
            new_blocks = self._allocate_or_preempt(request, num_new_tokens)
            if new_blocks is None:
                continue  # it gave way itself
            if request.request_id in self._unknown_to_worker:
                self._unknown_to_worker.discard(request.request_id)
                self._introduce(request, step)
            else:
                block_ids = new_blocks.get_block_ids() if any(new_blocks.blocks) else None
                cached.add(request.request_id, block_ids, request.num_computed_tokens)
            self._count(request, num_new_tokens, step)

    def _allocate_or_preempt(self, request: Request, num_new_tokens: int) -> KVCacheBlocks | None:
        """Return the request's new blocks. Preempt until there are enough. `None`: it was preempted itself."""
        num_lookahead_tokens = self._num_lookahead_tokens(request, request.num_computed_tokens + num_new_tokens)
        while True:
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens, 0, None, num_lookahead_tokens)
            if new_blocks is not None:
                return new_blocks
            victim = self._victim()
            self._preempt_request(victim)
            if victim is request:
                return None

    def _victim(self) -> Request:
        """Return the request to preempt: the last one admitted, or the last one in priority."""
        if self.config.policy is SchedulingPolicy.PRIORITY:
            return max(self.running, key=lambda request: (request.priority, request.arrival))
        return self.running[-1]

    def _preempt_request(self, request: Request) -> None:
        """Free all blocks of a running request and put it back in the waiting queue: it will be computed again.

        Most of its full blocks keep their keys, so it finds them again unless they are reused first. If it was in the
        step that is being planned, it is removed from the step, and the keys of the blocks that the step would fill
        are removed. No other request uses one of them yet, because new requests are admitted after all running ones.
        """
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted_req_ids.append(request.request_id)
        if self.step is not None and request.request_id in self.step.requests:
            self.step.take_out(request.request_id)
            self.kv_cache_manager.withdraw_promises(request)
        self._take_blocks(request)
        self.waiting.prepend_request(request)

    def _take_blocks(self, request: Request) -> None:
        """Remove a request from the running batch and free its blocks."""
        self.running.remove(request)
        self.kv_cache_manager.free(request)
        self._unknown_to_worker.discard(request.request_id)
        request.num_computed_tokens = 0
        request.spec_token_ids = []

    # Requests that wait.

    def _schedule_waiting(self, step: Step) -> None:
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

    def _admit(self, request: Request, step: Step) -> bool:
        """Admit a waiting request with its hit and its first slots, if it may enter and enough blocks are free."""
        block_pool = self.kv_cache_manager.block_pool
        reserved_blocks = self.admission.reserved_blocks(block_pool, request) if self.running else 0
        if reserved_blocks is None:
            return False
        hit, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        num_wanted = self._num_wanted(request, num_hit_tokens, step)
        num_new_tokens = min(num_wanted, step.token_budget)
        if not self.config.enable_chunked_prefill and num_new_tokens < num_wanted:
            return False
        if self.need_mamba_block_aligned_split:
            coordinator = self.kv_cache_manager.coordinator
            request.shared_prefix_boundary = coordinator.shared_prefix_boundary(request, num_hit_tokens)
            num_new_tokens = self._aligned_split(request, num_hit_tokens, num_new_tokens)
            if num_new_tokens == 0:
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

    # Requests of both kinds.

    def _introduce(self, request: Request, step: Step) -> None:
        """Add all data of a request that is new to the worker to the step."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        data = NewRequestData(request.request_id, request.token_ids[:], block_ids, request.num_computed_tokens)
        step.output.scheduled_new_reqs.append(data)

    def _num_wanted(self, request: Request, num_computed_tokens: int, step: Step) -> int:
        """Return the number of the request's tokens that this step would compute without its budget."""
        num_wanted = request.num_tokens + len(request.spec_token_ids) - num_computed_tokens
        if 0 < step.long_prefill_token_threshold < num_wanted:
            num_wanted = step.long_prefill_token_threshold
        return min(num_wanted, request.max_slots - num_computed_tokens)

    def _aligned_split(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Return the number of these tokens to compute in a model with states. 0: none in this step."""
        limits = (self.config.max_num_batched_tokens, self.config.long_prefill_token_threshold)
        longest_step = min(limit for limit in limits if limit > 0)
        block_size = self.kv_cache_manager.block_size
        return mamba_block_aligned_split(request, num_computed_tokens, num_new_tokens, block_size, longest_step)

    def _num_lookahead_tokens(self, request: Request, num_tokens: int) -> int:
        """Return the number of slots beyond `num_tokens`: none beyond the request's last token."""
        num_lookahead_tokens = self.config.num_lookahead_tokens
        return min(num_lookahead_tokens, request.max_slots - num_tokens) if num_lookahead_tokens else 0

    def _count(self, request: Request, num_new_tokens: int, step: Step) -> None:
        """Add the request to the step, with its number of tokens and its drafts."""
        step.token_budget -= num_new_tokens
        step.requests[request.request_id] = request
        step.output.num_scheduled_tokens[request.request_id] = num_new_tokens
        if request.spec_token_ids:
            num_drafts = max(request.num_computed_tokens + num_new_tokens - request.num_tokens, 0)
            if num_drafts:
                step.output.scheduled_spec_decode_tokens[request.request_id] = request.spec_token_ids[:num_drafts]
            request.spec_token_ids = []  # unverified drafts are stale: the next step starts at another position

    def _append_output(self, request: Request, sampled: Sequence[int], has_drafts: bool) -> EngineCoreOutput:
        """Append the new tokens up to the one that ends the request, if there is one."""
        new_token_ids: list[int] = []
        status = None
        for token in sampled:
            request.append_output_token_ids(token)
            new_token_ids.append(token)
            if token in request.stop_token_ids:
                status = RequestStatus.FINISHED_STOPPED
                break
            if request.num_tokens > request.max_slots:
                status = RequestStatus.FINISHED_LENGTH_CAPPED
                break
        request.num_computed_tokens -= len(sampled) - len(new_token_ids)
        if has_drafts or self._is_hashed_late:  # a block that they completed could not be published before
            self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        if status is None:
            return EngineCoreOutput(request.request_id, new_token_ids)
        self._take_blocks(request)
        self._finish(request, status)
        return EngineCoreOutput(request.request_id, new_token_ids, status.value)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        self._finished_req_ids.append(request.request_id)
        del self.requests[request.request_id]


class _Changing:
    """Marks the state as torn while a call changes it. Only an end without an exception removes the mark."""

    __slots__ = ("ends_step", "scheduler")

    def __init__(self, scheduler: Scheduler, ends_step: bool) -> None:
        self.scheduler = scheduler
        self.ends_step = ends_step

    def __enter__(self) -> None:
        self.scheduler.is_torn = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:  # at once, as a torn state without its step could not take back the step's tokens
            step = None if self.ends_step else self.scheduler.step
            self.scheduler.step, self.scheduler.is_torn = step, False
