"""lab-11, another way: the batch is a deque that is eaten from both ends; results change the lists last."""

from collections import deque
from collections.abc import Mapping, Sequence

from mini_kv.core.errors import SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.output import EngineCoreOutput, NewRequestData, SchedulerOutput


class Scheduler(engine.Scheduler):
    """The engine's scheduler; each method works out its answer first and changes the lists last."""

    def schedule(self) -> SchedulerOutput:
        step = self._begin_step()
        to_serve = deque(self.running)
        while to_serve and self._left(step):
            request = to_serve.popleft()
            wanted = min(request.num_tokens - request.num_computed_tokens, self._left(step))
            blocks = self.kv_cache_manager.allocate_slots(request, wanted)
            while blocks is None:
                victim = to_serve.pop() if to_serve else request
                step.preempted_req_ids.append(victim.request_id)
                self._preempt_request(victim)
                if victim is request:
                    break
                blocks = self.kv_cache_manager.allocate_slots(request, wanted)
            else:
                self._add_running(step, request, wanted, blocks)
        while not step.preempted_req_ids and self._enters(step):
            pass
        return step

    def _left(self, step: SchedulerOutput) -> int:
        return self.config.max_num_batched_tokens - step.total_num_scheduled_tokens

    def _enters(self, step: SchedulerOutput) -> bool:
        """Let the first in line in; return whether it could."""
        if not self.waiting or not self._left(step) or len(self.running) == self.config.max_num_seqs:
            return False
        kept = self.admission.reserved_blocks(self.kv_cache_manager.block_pool, self.waiting.peek_request())
        if not self.running:
            kept = 0
        if kept is None:
            return False
        request = self.waiting.pop_request()
        hit, request.num_computed_tokens = self.kv_cache_manager.get_computed_blocks(request)
        wanted = min(request.num_tokens - request.num_computed_tokens, self._left(step))
        if (
            self.kv_cache_manager.allocate_slots(
                request, wanted, new_computed_blocks=hit, full_sequence_must_fit=True, reserved_blocks=kept
            )
            is None
        ):
            request.num_computed_tokens = 0
            self.waiting.prepend_request(request)
            return False
        request.status = RequestStatus.RUNNING
        self.running = [*self.running, request]
        self._add_newcomer(step, request, wanted)
        return True

    def _preempt_request(self, request: Request) -> None:
        self.running = [other for other in self.running if other is not request]
        self.waiting.prepend_request(request)
        request.num_computed_tokens, request.status = 0, RequestStatus.PREEMPTED
        for counted in (request, self):
            counted.num_preemptions += 1
        self.kv_cache_manager.free(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        progress = []
        for name, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request, sampled = self.requests[name], list(sampled_token_ids.get(name, []))
            lacking = request.num_tokens - request.num_computed_tokens - num_tokens
            if (lacking > 0 and sampled) or (lacking == 0 and len(sampled) != 1):
                raise SchedulerError(f"{name} still lacks {lacking} tokens, and brings {sampled}")
            progress.append((request, num_tokens, sampled))
        outputs = []
        for request, num_tokens, sampled in progress:
            request.num_computed_tokens += num_tokens
            request.append_output_token_ids(*sampled)
            if sampled:
                outputs.append(EngineCoreOutput(request.request_id, sampled, self._reason(request)))
        for output in outputs:
            if output.finish_reason is not None:
                request = self.requests[output.request_id]
                self.kv_cache_manager.free(request)
                self._finish(request, RequestStatus(output.finish_reason))
        self.running = [request for request in self.running if request.request_id in self.requests]
        return outputs

    def _reason(self, request: Request) -> str | None:
        if request.token_ids[-1] in request.stop_token_ids:
            return "stop"
        return "length" if request.num_tokens == request.max_slots + 1 else None

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
