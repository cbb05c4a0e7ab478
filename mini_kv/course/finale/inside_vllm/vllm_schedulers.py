"""The schedulers that vLLM's engine core can have: its own with the learner's parts in it, or the learner's own.

vLLM takes the class of its scheduler as an argument (`scheduler_cls`). No module and no class of vLLM is changed: the
parts are set on the objects that the scheduler has just built.

Imports vLLM. Source: vLLM 0.32 `Scheduler`, `SchedulerInterface` (v1/core/sched/) and `EngineCore.step`.
"""

from collections.abc import Sequence
from typing import Any

from vllm.v1.core import kv_cache_utils  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.core.sched.interface import (  # type: ignore[import-not-found, unused-ignore]
    PauseState,
    SchedulerInterface,
)
from vllm.v1.core.sched.output import (  # type: ignore[import-not-found, unused-ignore]
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.engine import (  # type: ignore[import-not-found, unused-ignore]
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
)

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.finale.assembly import make_manager, make_scheduler
from mini_kv.course.finale.steps import Step, names_of
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.story.frame import Frame, frame_of, frame_of_pool
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import Span, TracedKVCacheManager

ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def scheduler_class(place: str, own: OwnParts) -> type:
    """Return the class of a scheduler in which these parts are. `place`: as in `VllmWorkload`."""
    parts, base = own, {"parts": PartsInVllm, "orders": OwnScheduler}[place]

    class WithParts(base):  # type: ignore[misc, valid-type]  # a class that is known when the command runs
        """The scheduler with these parts."""

        own = parts

    return WithParts


def _step(
    number: int,
    orders: Any,
    token_ids: dict[str, list[int]],
    frame: Frame,
    waiting: list[str],
    num_preemptions: int,
    spans: Sequence[Span] = (),
) -> Step:
    cached = orders.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    found = {new.req_id: new.num_computed_tokens for new in orders.scheduled_new_reqs}
    return Step(
        number=number,
        spans=spans,
        found=found | {name: computed[name] for name in sorted(cached.resumed_req_ids)},
        scheduled=list(orders.num_scheduled_tokens.items()),
        waiting=waiting,
        num_preemptions=num_preemptions,
        frame=frame,
        token_ids=token_ids,
    )


class Block(kv_cache_utils.KVCacheBlock):  # type: ignore[misc]  # vLLM need not be installed
    """vLLM's block. Like mini_kv's it equals no other, so that it can be in a set: a learner's queue may have one."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class PartsInVllm(Scheduler):  # type: ignore[misc]  # vLLM need not be installed
    """vLLM's scheduler and cache. The free queue, the index and the lookup are the learner's, if there are any."""

    own = OwnParts()

    def __init__(self, *args: Any, **options: Any) -> None:
        """Replace the parts before the first request."""
        super().__init__(*args, **options)
        self._orders = SchedulerOutput.make_empty()
        self._num_preemptions = 0
        pool = self.kv_cache_manager.block_pool
        for block in pool.blocks:
            block.__class__ = Block
        if self.own.queue is not None:
            for block in pool.blocks:
                block.prev_free_block = block.next_free_block = None
            pool.free_block_queue = self.own.queue(pool.blocks[1:])  # the null block has been taken
        if self.own.index is not None:
            pool.cached_block_hash_to_block = _index(self.own.index)
        if self.own.full_attention is not None:
            manager = self.kv_cache_manager.coordinator.single_type_managers[0]
            manager.find_longest_cache_hit = _lookup(self.own.full_attention, pool, manager.block_size)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Plan a step, and keep the orders."""
        self._orders = super().schedule(throttle_prefills)
        return self._orders

    def _preempt_request(self, *args: Any, **options: Any) -> None:
        self._num_preemptions += 1
        super()._preempt_request(*args, **options)

    def step_made(self, number: int, token_ids: dict[str, list[int]]) -> Step:
        """Return the step that has just ended, with the cache as it is now."""
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        held = {name: blocks for name, blocks in manager.req_to_blocks.items() if blocks}
        tables = {name: [[block.block_id for block in blocks]] for name, blocks in held.items()}
        frame = frame_of_pool(self.kv_cache_manager.block_pool, tables)
        orders, self._orders = self._orders, SchedulerOutput.make_empty()
        return _step(number, orders, token_ids, frame, names_of(list(self.waiting)), self._num_preemptions)


def _index(index: Any) -> Any:
    """Return an object of the learner's class, with the method that lab-07 does not teach."""

    class Index(index):  # type: ignore[misc]  # a class that is known when the command runs
        """The learner's index."""

        def contain(self, key: Any, block_id: int) -> bool:
            """Return whether this block is under the key. Source: vLLM `BlockHashToBlockMap.contain`."""
            block = self.pop(key, block_id)
            return block is not None and self.insert(key, block) is None

    return Index()


def _lookup(full_attention: Any, pool: Any, block_size: int) -> Any:
    """Return the learner's lookup as vLLM calls it."""
    manager = full_attention.__new__(full_attention)
    manager.block_pool, manager.block_size, manager.kv_cache_group_id = pool, block_size, 0

    def find_longest_cache_hit(
        block_hashes: Sequence[BlockHash], max_length: int, **_: Any
    ) -> tuple[tuple[list[KVCacheBlock]], int]:
        """Return the blocks of the hit per group, and its tokens."""
        hit = manager.find_longest_cache_hit(block_hashes, max_length)
        return (hit,), len(hit) * block_size

    return find_longest_cache_hit


class OwnScheduler(SchedulerInterface):  # type: ignore[misc]  # vLLM need not be installed
    """The learner's scheduler and cache. Their plans are translated into orders for vLLM's model runner."""

    own = OwnParts()

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *_: Any, **options: Any) -> None:
        """Build cache and scheduler in vLLM's sizes."""
        limits = vllm_config.scheduler_config
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        group = KVCacheGroupSpec(
            tuple(kv_cache_config.kv_cache_groups[0].layer_names),
            FullAttentionSpec(spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype.itemsize),
        )
        recorder = Recorder(strict=False)
        manager = make_manager(
            self.own,
            KVCacheConfig(kv_cache_config.num_blocks, (group,)),
            new_block=recorder.new_block,
            enable_caching=vllm_config.cache_config.enable_prefix_caching,
            max_in_flight_tokens=limits.max_num_batched_tokens,
        )
        self._kv = TracedKVCacheManager(manager, recorder)
        self._scheduler = make_scheduler(
            self.own,
            self._kv,
            SchedulerConfig(
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_model_len=vllm_config.model_config.max_model_len,
            ),
        )
        self._requests: dict[str, Any] = {}
        """vLLM's requests, which the model runner reads."""
        self._known: set[str] = set()
        """The requests that the model runner knows."""
        self._ended: set[str] = set()
        """Requests that ended since the last plan."""
        self._plan: Any = None
        self._orders = SchedulerOutput.make_empty()
        self.connector = self.ec_connector = None

    # Requests come and go.

    def add_request(self, request: Any) -> None:
        """Add vLLM's request to the learner's waiting queue."""
        self._requests[request.request_id] = request
        params = request.sampling_params
        self._scheduler.add_request(
            self._kv.new_request(request.request_id, request.prompt_token_ids),
            max_tokens=params.max_tokens,
            stop_token_ids=params.stop_token_ids,
        )

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[Any]:
        """Abort requests, or all of them (`None`), and return them."""
        if request_ids is None:
            request_ids = list(self._requests)
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._scheduler.finish_requests(names)
        return [self._end(name) for name in names if name in self._requests]

    def _end(self, request_id: str) -> Any:
        if request_id in self._known:
            self._known.remove(request_id)
            self._ended.add(request_id)
        return self._requests.pop(request_id)

    # One step.

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Let the learner's scheduler plan a step, and return the plan as orders for the model runner."""
        self._plan = plan = self._scheduler.schedule()
        again = [data for data in plan.scheduled_new_reqs if data.request_id in self._known]
        first = [data for data in plan.scheduled_new_reqs if data.request_id not in self._known]
        resumed = [(data.request_id, data.block_ids, data.num_computed_tokens) for data in again]
        rows = [*plan.scheduled_cached_reqs, *resumed]
        names = [name for name, _, _ in rows]
        self._orders = SchedulerOutput.make_empty()
        self._orders.scheduled_new_reqs = [self._introduced(data) for data in first]
        self._orders.scheduled_cached_reqs = CachedRequestData(
            req_ids=names,
            resumed_req_ids={data.request_id for data in again},
            new_token_ids=[],
            all_token_ids={name: list(self._requests[name].all_token_ids) for name in names},
            new_block_ids=[block_ids for _, block_ids, _ in rows],
            num_computed_tokens=[num_computed_tokens for _, _, num_computed_tokens in rows],
            num_output_tokens=[self._requests[name].num_output_tokens for name in names],
        )
        self._orders.num_scheduled_tokens = dict(plan.num_scheduled_tokens)
        self._orders.total_num_scheduled_tokens = plan.total_num_scheduled_tokens
        self._orders.preempted_req_ids = set(plan.preempted_req_ids)
        self._orders.finished_req_ids, self._ended = self._ended, set()
        return self._orders

    def _introduced(self, data: Any) -> Any:
        """Return all that the model runner needs of a request that it does not know."""
        self._known.add(data.request_id)
        request = self._requests[data.request_id]
        request.num_computed_tokens = data.num_computed_tokens
        return NewRequestData.from_request(request, data.block_ids)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        """Bring the sampled tokens to the learner's scheduler, and return its results as vLLM's."""
        rows = model_runner_output.sampled_token_ids
        sampled = {
            name: list(rows[at]) for name, at in model_runner_output.req_id_to_index.items() if rows and len(rows[at])
        }
        outputs = []
        for result in self._scheduler.update_from_output(self._plan, sampled):
            name = result.request_id
            self._requests[name].append_output_token_ids(list(result.new_token_ids))
            finish_reason = ENDS[result.finish_reason] if result.finish_reason else None
            outputs.append(EngineCoreOutput(name, list(result.new_token_ids), finish_reason=finish_reason))
            if finish_reason is not None:
                self._end(name)
        return {0: EngineCoreOutputs(outputs=outputs)}

    def step_made(self, number: int, token_ids: dict[str, list[int]]) -> Step:
        """Return the step that has just ended, with the cache as it is now."""
        spans, self._kv.spans = list(self._kv.spans), []
        waiting = names_of(list(self._scheduler.waiting))
        frame, num_preemptions = frame_of(self._kv.manager), self._scheduler.num_preemptions
        orders, self._orders = self._orders, SchedulerOutput.make_empty()
        return _step(number, orders, token_ids, frame, waiting, num_preemptions, spans)

    # What vLLM's engine asks besides.

    def has_finished_requests(self) -> bool:
        """Return whether the model runner has not been told yet of a request that ended."""
        return bool(self._ended)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests that run or wait."""
        return len(self._requests)

    def get_request_counts(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait."""
        return len(self._scheduler.running), len(self._scheduler.waiting)

    def get_grammar_bitmask(self, scheduler_output: Any) -> None:
        """Return nothing: no request has a grammar."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Do nothing: there are no drafts."""

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: Any) -> None:
        """Do nothing: there are no drafts."""

    @property
    def pause_state(self) -> Any:
        """The scheduler never pauses."""
        return PauseState.UNPAUSED

    def set_pause_state(self, pause_state: Any) -> None:
        """Do nothing: this engine is never paused."""

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget what is cached, if no request holds a block."""
        return bool(self._kv.reset_prefix_cache())

    def reset_encoder_cache(self) -> None:
        """Do nothing: there are no images."""

    def make_stats(self) -> None:
        """Return no statistics."""

    def shutdown(self) -> None:
        """Do nothing: nothing is open."""
