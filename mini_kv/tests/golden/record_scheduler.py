"""Plays the scheduler's golden scenarios on vLLM 0.33's own scheduler and writes down what can be seen.

A tool for maintainers, as record.py is; the environment is the same, see there. From the top folder:

    /tmp/vllm-env/bin/python -m mini_kv.tests.golden.record_scheduler

No model is loaded. `Scheduler`, `KVCacheManager`, `Request` and all configurations are vLLM's own but one: the model's
configuration, which wants a checkpoint, has a stand-in that answers the few questions that a scheduler asks it.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.config import (  # type: ignore[import-not-found, unused-ignore]
    CacheConfig,
    DeviceConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found, unused-ignore]
from vllm.utils.hashing import sha256  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.core.single_type_kv_cache_manager import (  # type: ignore[import-not-found, unused-ignore]
    register_all_kvcache_specs,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.request import Request, RequestStatus  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found, unused-ignore]

from mini_kv.tests.golden.common import Call
from mini_kv.tests.golden.play_scheduler import DEFAULTS, LIMITS, RECORDING, Loop, Part, Step, load_scenarios, perform
from mini_kv.tests.golden.record import block_sizes_of, cache_config_of, groups_of, record, write

COMMAND = "python -m mini_kv.tests.golden.record_scheduler"


def vllm_config_of(settings: dict[str, Any]) -> Any:
    """Return vLLM's configuration; the model's is a stand-in."""
    num_drafts, groups = settings["num_speculative_tokens"], groups_of(settings)
    config = VllmConfig(
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            **{name: settings[name] for name in (*LIMITS, "policy", "watermark")},
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=CacheConfig(
            block_size=min(group.block_size for group in groups),  # as vLLM's engine sets it
            mamba_cache_mode="align" if any(group.kind == "state" for group in groups) else "none",
            enable_prefix_caching=settings["enable_caching"],
            prefix_cache_retention_interval=settings["retention_interval"],
        ),
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=num_drafts, prompt_lookup_max=2)
        if num_drafts
        else None,
    )
    config.cache_config.num_gpu_blocks = settings["num_blocks"]
    config.model_config = SimpleNamespace(
        max_model_len=settings["max_model_len"],
        runner_type="generate",
        is_diffusion=False,
        is_encoder_decoder=False,
        multimodal_config=None,
        supports_multimodal_inputs=False,
        uses_mrope=False,
        skip_tokenizer_init=True,
        return_sampling_mask=False,
    )
    return config


class VLLM(Loop):
    """vLLM's scheduler, between an engine that hands it requests and a worker that has run."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Build the scheduler."""
        super().__init__(settings)
        config = vllm_config_of(settings)
        scheduler_block_size, hash_block_size = block_sizes_of(settings)
        self.scheduler = Scheduler(
            config,
            cache_config_of(settings, settings["retention_interval"]),
            StructuredOutputManager(config),
            block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
        )
        # vLLM derives the number from the model that drafts; there is none here.
        self.scheduler.num_lookahead_tokens = settings["num_lookahead_tokens"]
        self.block_hasher = get_request_block_hasher(hash_block_size, sha256) if settings["enable_caching"] else None

    def add_request(self, call: Call, token_ids: list[int], max_tokens: int, stop: list[int], priority: int) -> Any:
        """Add it; the order in which requests come is their time of arrival."""
        request = Request(
            call.handle,
            token_ids,
            SamplingParams(max_tokens=max_tokens, stop_token_ids=stop),
            None,
            arrival_time=float(len(self.requests)),
            cache_salt=call.option("salt"),
            priority=priority,
            block_hasher=self.block_hasher,
        )
        self.scheduler.add_request(request)
        return request

    def plan(self) -> Step:
        """Plan a step."""
        output: Any = self.scheduler.schedule()
        told = {data.req_id: (data.num_computed_tokens, data.block_ids) for data in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        told |= {
            handle: (num_computed_tokens, block_ids)
            for handle, num_computed_tokens, block_ids in zip(
                cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
            )
        }
        parts = [
            Part(
                handle,
                told[handle][0],
                num_new_tokens,
                self.requests[handle].num_tokens,
                output.scheduled_spec_decode_tokens.get(handle, []),
                told[handle][1],
            )
            for handle, num_new_tokens in output.num_scheduled_tokens.items()
        ]
        return Step(output, parts, output.finished_req_ids, output.preempted_req_ids)

    def take_in(self, step: Step, sampled: dict[str, list[int]]) -> list[tuple[str, Sequence[int], str | None]]:
        """Bring the results back, as a worker does."""
        handles = [part.handle for part in step.parts]
        worker_output = ModelRunnerOutput(
            req_ids=handles,
            req_id_to_index={handle: index for index, handle in enumerate(handles)},
            sampled_token_ids=[list(sampled.get(handle, ())) for handle in handles],
        )
        outputs = self.scheduler.update_from_output(step.output, worker_output)
        return [
            (
                output.request_id,
                output.new_token_ids,
                None if output.finish_reason is None else str(output.finish_reason),
            )
            for client in outputs.values()
            for output in client.outputs
        ]

    def finish(self, handle: str) -> None:
        """Abort a request."""
        self.scheduler.finish_requests(handle, RequestStatus.FINISHED_ABORTED)

    def propose(self, handle: str, token_ids: list[int]) -> None:
        """Propose tokens, as the engine does after a step."""
        self.scheduler.update_draft_token_ids(DraftTokenIds([handle], [token_ids]))

    def num_computed_tokens(self, request: Any) -> int:
        """Return what the request says."""
        return int(request.num_computed_tokens)


def main() -> None:
    """Record all scenarios."""
    register_all_kvcache_specs(None)
    init_none_hash(sha256)
    recorded = [(scenario, record(scenario, VLLM(scenario.settings), perform)) for scenario in load_scenarios()]
    write(RECORDING, COMMAND, recorded, DEFAULTS)


if __name__ == "__main__":
    main()
