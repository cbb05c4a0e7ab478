"""lab-11: the reference solution."""

from collections.abc import Mapping, Sequence

from mini_kv.core.errors import SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.output import EngineCoreOutput, NewRequestData, SchedulerOutput


class Scheduler(engine.Scheduler):
    """The engine's scheduler, with our rules for who runs."""

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: first those who run, then, if none gave way, those who wait."""
        step = self._begin_step()
        token_budget = self._catch_up(step, self.config.max_num_batched_tokens)
        if not step.preempted_req_ids:
            self._let_in(step, token_budget)
        return step

    def _catch_up(self, step: SchedulerOutput, token_budget: int) -> int:
        """Let those who run catch up; return what is left of the budget."""
        index = 0
        while index < len(self.running) and token_budget > 0:  # the batch may get shorter meanwhile
            request = self.running[index]
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, token_budget)
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                victim = self.running[-1]
                self._preempt_request(victim)
                step.preempted_req_ids.append(victim.request_id)
                continue  # the same request again, unless it was the victim
            self._add_running(step, request, num_new_tokens, new_blocks)
            token_budget -= num_new_tokens
            index += 1
        return token_budget

    def _let_in(self, step: SchedulerOutput, token_budget: int) -> None:
        """Let those who wait enter, from the front of the line, as far as tokens, seats and blocks go."""
        kv = self.kv_cache_manager
        while self.waiting and token_budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek_request()
            reserved_blocks = self.admission.reserved_blocks(kv.block_pool, request) if self.running else 0
            if reserved_blocks is None:
                break
            hit, num_hit_tokens = kv.get_computed_blocks(request)
            num_new_tokens = min(request.num_tokens - num_hit_tokens, token_budget)
            new_blocks = kv.allocate_slots(
                request,
                num_new_tokens,
                num_hit_tokens,
                hit,
                full_sequence_must_fit=True,
                reserved_blocks=reserved_blocks,
            )
            if new_blocks is None:
                break
            self.waiting.pop_request()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_hit_tokens
            self._add_newcomer(step, request, num_new_tokens)
            token_budget -= num_new_tokens

    def _preempt_request(self, request: Request) -> None:
        """Take all blocks from a running request and send it back to the front of the line."""
        self.kv_cache_manager.free(request)
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        """Take in what the worker has done."""
        num_scheduled_tokens = scheduler_output.num_scheduled_tokens
        for request_id, num_tokens in num_scheduled_tokens.items():
            request = self.requests[request_id]
            is_through = request.num_computed_tokens + num_tokens == request.num_tokens
            num_sampled = len(sampled_token_ids.get(request_id, ()))
            if num_sampled != is_through:
                raise SchedulerError(f"{num_sampled} new tokens for request {request_id!r}")
        outputs = []
        for request_id, num_tokens in num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += num_tokens
            for token in sampled_token_ids.get(request_id, ()):
                request.append_output_token_ids(token)
                status = self._status_after(request, token)
                outputs.append(EngineCoreOutput(request_id, [token], status.value if status else None))
                if status:
                    self.running.remove(request)
                    self.kv_cache_manager.free(request)
                    self._finish(request, status)
        return outputs

    def _status_after(self, request: Request, token: int) -> RequestStatus | None:
        """Return how the request ends with this token, if it does."""
        if token in request.stop_token_ids:
            return RequestStatus.FINISHED_STOPPED
        if request.num_tokens > request.max_slots:
            return RequestStatus.FINISHED_LENGTH_CAPPED
        return None

    def _begin_step(self) -> SchedulerOutput:
        """Return a step without requests. Given."""
        step = SchedulerOutput(finished_req_ids=self._finished_req_ids)
        self._finished_req_ids = []
        return step

    def _add_running(
        self, step: SchedulerOutput, request: Request, num_new_tokens: int, new_blocks: KVCacheBlocks
    ) -> None:
        """Note a request that the worker knows. Given."""
        block_ids = new_blocks.get_block_ids()
        step.scheduled_cached_reqs.add(request.request_id, block_ids, request.num_computed_tokens)
        step.num_scheduled_tokens[request.request_id] = num_new_tokens

    def _add_newcomer(self, step: SchedulerOutput, request: Request, num_new_tokens: int) -> None:
        """Note a request that the worker does not know. Given."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        data = NewRequestData(request.request_id, list(request.token_ids), block_ids, request.num_computed_tokens)
        step.scheduled_new_reqs.append(data)
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
