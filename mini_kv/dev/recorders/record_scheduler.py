"""Plays the scheduler's golden scenarios on vLLM 0.33's own scheduler and writes down what can be seen.

A tool for maintainers, as record.py is; the environment is the same, see there. From the top folder:

    /tmp/vllm-env/bin/python -m mini_kv.dev.recorders.record_scheduler

No model is loaded. `Scheduler`, `KVCacheManager`, `Request` and all configurations are vLLM's own but one: the model's
configuration, which wants a checkpoint, has a stand-in that answers the few questions that a scheduler asks it.
"""

import sys
from pathlib import Path
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

from mini_kv.course.verify import scheduler
from mini_kv.course.verify.adapters.mini_kv_scheduler import LIMITS, SchedulerAdapter
from mini_kv.dev.recorders import generate_scheduler
from mini_kv.dev.recorders.record import block_sizes_of, cache_config_of, record, write
from mini_kv.dev.recorders.versions import playable

COMMAND = "python -m mini_kv.dev.recorders.record_scheduler"


def _vllm_config_of(settings: dict[str, Any]) -> Any:
    """Return vLLM's configuration; the model's is a stand-in."""
    num_drafts, groups = settings["num_speculative_tokens"], settings["groups"]
    config = VllmConfig(
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            **{name: settings[name] for name in (*LIMITS, "policy", "watermark")},
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=CacheConfig(
            block_size=min(group["block_size"] for group in groups),  # as vLLM's engine sets it
            mamba_cache_mode="align" if any(group["kind"] == "state" for group in groups) else "none",
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


class VLLM(SchedulerAdapter):
    """vLLM's scheduler, between an engine that hands it requests and a worker that has run."""

    def make_scheduler(self, settings: dict[str, Any]) -> Any:
        """Build the scheduler."""
        config = _vllm_config_of(settings)
        scheduler_block_size, hash_block_size = block_sizes_of(settings)
        made = Scheduler(
            config,
            cache_config_of(settings, settings["retention_interval"]),
            StructuredOutputManager(config),
            block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
        )
        # vLLM derives the number from the model that drafts; there is none here.
        made.num_lookahead_tokens = settings["num_lookahead_tokens"]
        self.block_hasher = get_request_block_hasher(hash_block_size, sha256) if settings["enable_caching"] else None
        return made

    def do_add(self, message: dict[str, Any]) -> None:
        """Add a request; the order in which requests come is their time of arrival."""
        request = Request(
            message["request"],
            message["tokens"],
            SamplingParams(max_tokens=message["max_tokens"], stop_token_ids=message["stop"]),
            None,
            arrival_time=float(len(self.requests)),
            cache_salt=message["salt"],
            priority=message["priority"],
            block_hasher=self.block_hasher,
        )
        self.scheduler.add_request(request)
        self.requests[message["request"]] = request

    def told(self) -> dict[str, tuple[int, Any]]:
        """Return each request's computed tokens and new blocks."""
        told = {data.req_id: (data.num_computed_tokens, data.block_ids) for data in self.step.scheduled_new_reqs}
        cached = self.step.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        return told | {handle: (num_computed, block_ids) for handle, num_computed, block_ids in rows}

    def do_update(self, message: dict[str, Any]) -> dict[str, Any]:
        """Bring the results back, as a worker does."""
        step, self.step = self.step, None
        handles = list(step.num_scheduled_tokens)
        worker_output = ModelRunnerOutput(
            req_ids=handles,
            req_id_to_index={handle: index for index, handle in enumerate(handles)},
            sampled_token_ids=[message["sampled"].get(handle, []) for handle in handles],
        )
        outputs = self.scheduler.update_from_output(step, worker_output)
        return {
            "outputs": [
                {
                    "request": output.request_id,
                    "tokens": list(output.new_token_ids),
                    "finish": None if output.finish_reason is None else str(output.finish_reason),
                }
                for client in outputs.values()
                for output in client.outputs
            ]
        }

    def do_draft(self, message: dict[str, Any]) -> None:
        """Propose tokens, as the engine does after a step."""
        self.scheduler.update_draft_token_ids(DraftTokenIds([message["request"]], [message["tokens"]]))

    def do_abort(self, message: dict[str, Any]) -> None:
        """Abort a request."""
        self.scheduler.finish_requests(message["request"], RequestStatus.FINISHED_ABORTED)

    def num_in_step(self, handle: str) -> int:
        """Return nothing: vLLM counts a step's tokens when it plans the step."""
        return 0


def main(path: Path = scheduler.RECORDING) -> None:
    """Record all scenarios."""
    register_all_kvcache_specs(None)
    init_none_hash(sha256)
    players = playable(generate_scheduler.scenarios(), lambda settings: scheduler.Player(VLLM(), settings))
    recorded = [(scenario, record(scenario, player)) for scenario, player in players]
    write(path, COMMAND, recorded, generate_scheduler.generated())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
