"""lab-11, another way: count blocks before asking for them, so that `allocate_slots` never has to say no.

The plan is made in numbers first (who needs how many blocks, who must go for it), then carried out.
"""

from collections.abc import Mapping, Sequence

from mini_kv.core.errors import SchedulerError
from mini_kv.core.kv_cache_manager import KVCacheBlocks
from mini_kv.core.request import Request, RequestStatus
from mini_kv.core.sched import scheduler as engine
from mini_kv.core.sched.output import EngineCoreOutput, NewRequestData, SchedulerOutput


class Scheduler(engine.Scheduler):
    """The engine's scheduler, which looks before it leaps."""

    def schedule(self) -> SchedulerOutput:
        step = self._begin_step()
        pool = self.kv_cache_manager.block_pool
        left = self.config.max_num_batched_tokens
        served: list[Request] = []
        while len(served) < len(self.running):
            request = self.running[len(served)]
            num_tokens = min(left, request.num_tokens - request.num_computed_tokens)
            while request in self.running and self._num_missing(request, num_tokens) > pool.num_free_blocks:
                step.preempted_req_ids.append(self.running[-1].request_id)
                self._preempt_request(self.running[-1])
            if request in self.running and num_tokens > 0:
                blocks = self.kv_cache_manager.allocate_slots(request, num_tokens)
                assert blocks is not None, "they have been counted"
                self._add_running(step, request, num_tokens, blocks)
                left -= num_tokens
            served.append(request)
        if step.preempted_req_ids:
            return step
        for request in list(self.waiting):
            num_tokens = self._num_tokens_to_enter(request, left)
            if num_tokens == 0:
                break
            self._enter_batch(step, request, num_tokens)
            left -= num_tokens
        return step

    def _num_missing(self, request: Request, num_tokens: int) -> int:
        """Return how many blocks a running request needs beyond its own."""
        held = len(self.kv_cache_manager.get_block_ids(request.request_id)[0])
        needed = -(-(request.num_computed_tokens + num_tokens) // self.kv_cache_manager.block_size)
        return needed - held

    def _num_tokens_to_enter(self, request: Request, left: int) -> int:
        """Return how many tokens a waiting request may compute now; 0: it has to wait."""
        if left == 0 or len(self.running) >= self.config.max_num_seqs:
            return 0
        kv = self.kv_cache_manager
        kept: int | None = 0
        if self.running:
            kept = self.admission.reserved_blocks(kv.block_pool, request)
        if kept is None:
            return 0
        hit, num_hit_tokens = kv.get_computed_blocks(request)
        num_tokens = min(left, request.num_tokens - num_hit_tokens)
        num_revived = sum(block.ref_cnt == 0 for block in hit.blocks[0])
        num_now = -(-(num_hit_tokens + num_tokens) // kv.block_size) - len(hit.blocks[0])
        num_in_all = -(-request.num_tokens // kv.block_size) - len(hit.blocks[0])
        fits = num_revived + max(num_now + kept, num_in_all) <= kv.block_pool.num_free_blocks
        return num_tokens if fits else 0

    def _enter_batch(self, step: SchedulerOutput, request: Request, num_tokens: int) -> None:
        hit, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        self.kv_cache_manager.allocate_slots(request, num_tokens, num_hit_tokens, hit)
        self.waiting.remove_request(request)
        self.running.append(request)
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, num_hit_tokens
        self._add_newcomer(step, request, num_tokens)

    def _preempt_request(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        del self.running[self.running.index(request)]
        self.kv_cache_manager.free(request)
        self.waiting.prepend_request(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, sampled_token_ids: Mapping[str, Sequence[int]]
    ) -> list[EngineCoreOutput]:
        reached = {
            name: self.requests[name].num_computed_tokens + num_tokens
            for name, num_tokens in scheduler_output.num_scheduled_tokens.items()
        }
        through = [name for name, num_tokens in reached.items() if num_tokens == self.requests[name].num_tokens]
        for name in reached:
            if len(sampled_token_ids.get(name, ())) != through.count(name):
                raise SchedulerError(f"request {name!r}: {sampled_token_ids.get(name)}")
        for name, num_tokens in reached.items():
            self.requests[name].num_computed_tokens = num_tokens
        return [self._say(self.requests[name], sampled_token_ids[name][0]) for name in through]

    def _say(self, request: Request, token: int) -> EngineCoreOutput:
        request.append_output_token_ids(token)
        if token not in request.stop_token_ids and request.num_tokens <= request.max_slots:
            return EngineCoreOutput(request.request_id, [token])
        status = RequestStatus.FINISHED_LENGTH_CAPPED
        if token in request.stop_token_ids:
            status = RequestStatus.FINISHED_STOPPED
        self.kv_cache_manager.free(request)
        self.running.remove(request)
        self._finish(request, status)
        return EngineCoreOutput(request.request_id, [token], status.value)

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
