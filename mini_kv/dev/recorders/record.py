"""Plays the golden scenarios on vLLM 0.33 and writes down what can be seen after every call.

A tool for maintainers, never part of CI: it needs vLLM, mini_kv's tests need only what it wrote. From the top folder:

    python3 -m venv /tmp/vllm-env
    /tmp/vllm-env/bin/pip install --no-deps vllm==0.33.0
    /tmp/vllm-env/bin/pip install torch==2.13.0      # Linux: add --index-url https://download.pytorch.org/whl/cpu
    /tmp/vllm-env/bin/pip install --no-deps -r mini_kv/dev/recorders/requirements.txt
    /tmp/vllm-env/bin/python -m mini_kv.dev.recorders.record

vLLM's own list of dependencies asks for CUDA packages that its bookkeeping never imports: hence `--no-deps` and the
list in requirements.txt. Nothing of vLLM is replaced or stubbed. No GPU is needed; it takes about 20 seconds.

`make upstream VERSION=0.33.0` does all this in one command and compares; with another version it shows what changed.
"""

import math
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found, unused-ignore]
from vllm.multimodal.inputs import (  # type: ignore[import-not-found, unused-ignore]
    MultiModalFeatureSpec,
    PlaceholderRange,
)
from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found, unused-ignore]
from vllm.utils.hashing import sha256  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.core.kv_cache_manager import KVCacheManager  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.single_type_kv_cache_manager import (  # type: ignore[import-not-found, unused-ignore]
    register_all_kvcache_specs,
)
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found, unused-ignore]
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus  # type: ignore[import-not-found, unused-ignore]

from mini_kv.course.verify import manager
from mini_kv.course.verify.scenario_language import Scenario, State
from mini_kv.course.verify.vllm_names import ManagerWithVLLMNames
from mini_kv.dev.recorders import generate
from mini_kv.dev.recorders.recording import as_json
from mini_kv.dev.recorders.versions import options_of, playable

COMMAND = "python -m mini_kv.dev.recorders.record"


def spec_of(group: dict[str, Any]) -> Any:
    """Return vLLM's spec of a group."""
    if group["kind"] == "state":
        return MambaSpec(group["block_size"], shapes=((1,),), dtypes=(torch.bfloat16,), mamba_cache_mode="align")
    shape = {"block_size": group["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": torch.bfloat16}
    match group["kind"]:
        case "window":
            return SlidingWindowSpec(**shape, sliding_window=group["reach"])
        case "chunks":
            return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group["reach"])
        case _:
            return FullAttentionSpec(**shape)


def block_sizes_of(settings: dict[str, Any]) -> tuple[int, int]:
    """Return the block sizes that all groups have in common: of steps, and of hashes."""
    sizes = [group["block_size"] for group in settings["groups"]]
    return math.lcm(*sizes), math.gcd(*sizes)


def cache_config_of(settings: dict[str, Any], retention_interval: int | None) -> Any:
    """Return vLLM's configuration of the cache."""
    return KVCacheConfig(
        num_blocks=settings["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer {i}"], spec_of(group), is_eagle_group=i in settings.get("drafter_groups", ()))
            for i, group in enumerate(settings["groups"])
        ],
        prefix_cache_retention_interval=retention_interval,
    )


class VLLM(ManagerWithVLLMNames):
    """vLLM's manager, called in the order in which vLLM's scheduler calls it."""

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Build the manager, with dense retention: every full block gets its key, as before sparse retention came."""
        lookahead, enable_caching = settings["num_hash_lookahead_tokens"], settings["enable_caching"]
        scheduler_block_size, hash_block_size = block_sizes_of(settings)
        options = options_of(KVCacheManager, num_hash_lookahead_tokens=lookahead)
        self.block_hasher = get_request_block_hasher(hash_block_size, sha256, **options) if enable_caching else None
        return KVCacheManager(
            cache_config_of(settings, retention_interval=None),
            max_model_len=settings["max_model_len"],
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=settings["max_in_flight_tokens"],
            enable_caching=enable_caching,
            log_stats=True,
            watermark=settings["watermark"],
            use_eagle=bool(settings["drafter_groups"]) and lookahead == 0,
            **options,
        )

    def do_new(self, message: dict[str, Any]) -> None:
        """Make a request."""
        lora = message["lora"]
        self.requests[message["request"]] = Request(
            message["id"],
            message["tokens"],
            SamplingParams(max_tokens=1000),
            None,
            mm_features=[
                MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, length))
                for identifier, offset, length in message["images"]
            ],
            lora_request=LoRARequest(lora[0], 1, lora[1]) if lora else None,
            cache_salt=message["salt"],
            block_hasher=self.block_hasher,
        )

    def allocate_slots(self, request: Any, message: dict[str, Any], hit: Any) -> Any:
        """Allocate; a request that is let in is marked as running and recorded, as `Scheduler.schedule` does."""
        new_blocks = super().allocate_slots(request, message, hit)
        if new_blocks is not None and request.status != RequestStatus.RUNNING:
            request.status = RequestStatus.RUNNING
            if hit is not None:
                self.manager.record_prefix_cache_stats(request, message["hit"] or request.num_computed_tokens)
        return new_blocks

    def do_compute(self, message: dict[str, Any]) -> None:
        """Let states that were published in this step be adopted in the next."""
        super().do_compute(message)
        self.manager.new_step_starts()

    do_abort = ManagerWithVLLMNames.do_free  # vLLM takes no promise back

    def do_preempt(self, message: dict[str, Any]) -> None:
        """Note it as `Scheduler._preempt_request` does."""
        super().do_preempt(message)
        request = self.requests[message["request"]]
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1

    def do_stats(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the three counters, then those of requests that had been preempted, if any."""
        stats = self.manager.prefix_cache_stats
        preempted = [stats.preempted_requests, stats.preempted_queries, stats.preempted_hits]
        shown = {"stats": [stats.requests, stats.queries, stats.hits]}
        return {**shown, "preempted_stats": preempted} if stats.preempted_requests else shown


def record(scenario: Scenario, player: Any) -> list[tuple[str, State]]:
    """Play the scenario and return each call with the fields that it changed; the result is always among them."""
    calls = []
    before: State = {}
    for call in scenario.calls:
        after = player.perform(call)
        calls.append(
            (call.text, {key: after[key] for key in after if key == "result" or before.get(key) != after[key]})
        )
        before = after
    return calls


def write(
    path: Path, command: str, recorded: list[tuple[Scenario, list[tuple[str, State]]]], generated: list[Scenario]
) -> None:
    """Write the recording."""
    header = {
        "what": "every call of the golden scenarios on vLLM: its result and the fields of the state that it changed",
        "vllm": version("vllm"),
        "torch": version("torch").partition("+")[0],
        "python": platform.python_version(),
        "hash": "sha256",
        "command": command,
        "scenarios": len(recorded),
        "calls": sum(len(calls) for _, calls in recorded),
    }
    path.write_text(as_json(header, recorded, generated), encoding="utf-8")
    print(f"{header['scenarios']} scenarios, {header['calls']} calls: {path.name}")


def main(path: Path = manager.RECORDING) -> None:
    """Record all scenarios."""
    register_all_kvcache_specs(None)
    init_none_hash(sha256)
    players = playable(generate.scenarios(), lambda settings: manager.Player(VLLM(), settings))
    recorded = [(scenario, record(scenario, player)) for scenario, player in players]
    write(path, COMMAND, recorded, generate.generated())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
