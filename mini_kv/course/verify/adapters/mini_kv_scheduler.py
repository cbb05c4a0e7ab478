"""mini_kv's `Scheduler` behind the protocol."""

from typing import Any

from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.verify.adapter import Adapter
from mini_kv.course.verify.adapters.specs import spec_of
from mini_kv.course.verify.vllm_names import ids_of, visible_blocks

LIMITS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
)
"""Settings that are options of `SchedulerConfig` by the same name, in vLLM and in mini_kv."""


class SchedulerAdapter(Adapter):
    """Stands between an engine that adds requests and a worker that runs the steps."""

    part = "scheduler"
    scheduler: Any

    def do_start(self, message: dict[str, Any]) -> None:
        """Make a new scheduler."""
        self.requests: dict[str, Any] = {}
        self.step: Any = None
        self.scheduler = self.make_scheduler(message["settings"])

    def make_scheduler(self, settings: dict[str, Any]) -> Any:
        """Return a scheduler with these settings."""
        limits = {name: settings[name] for name in LIMITS}
        config = SchedulerConfig(
            **limits,
            num_lookahead_tokens=settings["num_lookahead_tokens"],
            policy=SchedulingPolicy(settings["policy"]),
        )
        groups = tuple(KVCacheGroupSpec((f"group {i}",), spec_of(g)) for i, g in enumerate(settings["groups"]))
        manager = KVCacheManager(
            KVCacheConfig(settings["num_blocks"], groups, settings["retention_interval"]),
            enable_caching=settings["enable_caching"],
            max_in_flight_tokens=config.max_num_batched_tokens + config.num_lookahead_tokens,
            watermark=settings["watermark"],
        )
        return Scheduler(manager, config)

    def do_add(self, message: dict[str, Any]) -> None:
        """Add a request."""
        manager, handle = self.scheduler.kv_cache_manager, message["request"]
        request = manager.new_request(handle, message["tokens"], cache_salt=message["salt"])
        options = {"max_tokens": message["max_tokens"], "stop_token_ids": message["stop"]}
        self.scheduler.add_request(request, **options, priority=message["priority"])
        self.requests[handle] = request

    def do_schedule(self, message: dict[str, Any]) -> dict[str, Any]:
        """Plan a step."""
        self.step = self.scheduler.schedule()
        told, drafts = self.told(), self.step.scheduled_spec_decode_tokens
        return {
            "steps": [
                {
                    "request": handle,
                    "computed": told[handle][0],
                    "tokens": num_tokens,
                    "drafts": list(drafts.get(handle, [])),
                    "blocks": ids_of(told[handle][1] or []),
                }
                for handle, num_tokens in self.step.num_scheduled_tokens.items()
            ],
            "finished": list(self.step.finished_req_ids),
            "preempted": list(self.step.preempted_req_ids),
        }

    def told(self) -> dict[str, tuple[int, Any]]:
        """Return each request's computed tokens and new blocks."""
        told = {data.request_id: (data.num_computed_tokens, data.block_ids) for data in self.step.scheduled_new_reqs}
        return told | {name: (computed, new) for name, new, computed in self.step.scheduled_cached_reqs}

    def do_update(self, message: dict[str, Any]) -> dict[str, Any]:
        """Bring the results of the step back."""
        step, self.step = self.step, None
        outputs = self.scheduler.update_from_output(step, message["sampled"])
        return {
            "outputs": [
                {"request": output.request_id, "tokens": list(output.new_token_ids), "finish": output.finish_reason}
                for output in outputs
            ]
        }

    def do_draft(self, message: dict[str, Any]) -> None:
        """Propose tokens."""
        self.scheduler.update_draft_token_ids(message["request"], message["tokens"])

    def do_abort(self, message: dict[str, Any]) -> None:
        """Abort a request."""
        self.scheduler.finish_requests([message["request"]])

    def do_reset(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forget all hashes, if no block is held."""
        return {"reset": self.scheduler.kv_cache_manager.reset_prefix_cache()}

    def visible(self) -> dict[str, Any]:
        """Return the requests and the blocks. A step's tokens count as computed, as in vLLM."""
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "waiting": [request.request_id for request in self.scheduler.waiting],
            "computed": {
                name: [request.num_computed_tokens + self.num_in_step(name), request.num_tokens]
                for name, request in self.requests.items()
                if name in self.scheduler.requests
            },
            **visible_blocks(self.scheduler.kv_cache_manager, self.requests),
        }

    def num_in_step(self, handle: str) -> int:
        """Return the request's tokens of the step under way. mini_kv counts them when its results come back."""
        return self.step.num_scheduled_tokens.get(handle, 0) if self.step else 0
