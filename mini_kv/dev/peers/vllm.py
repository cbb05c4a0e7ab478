"""vLLM as a peer: its managers, and its scheduler with stand-ins for its configuration."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from mini_kv.dev.peers.base import Cache, ManagerCache, NoSuchWorkError, Peer, PeerError

_MAX_MODEL_LEN = 1 << 20


class VLLM(Peer):
    """An installed vLLM, as of 0.33, with the settings of its scheduler where they matter."""

    name = "vllm"

    def __init__(self) -> None:
        """Import it without output. Raises `PeerError` if it is not or only partly installed."""
        if importlib.util.find_spec("vllm") is None:
            raise PeerError("vLLM is not installed here")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        try:
            self.version = str(importlib.import_module("vllm.version").__version__)
            self._utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
            self._hashing = importlib.import_module("vllm.utils.hashing")
            self._interface = importlib.import_module("vllm.v1.kv_cache_interface")
            self._manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
            self.model_runner_output = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
            self.request_type = importlib.import_module("vllm.v1.request").Request
            self.sampling_params = importlib.import_module("vllm.sampling_params").SamplingParams(
                max_tokens=_MAX_MODEL_LEN
            )
            self._float16 = importlib.import_module("torch").float16
        except ImportError as error:
            raise PeerError(f"vLLM is installed, but cannot be imported: {error}") from error
        logging.getLogger("vllm").setLevel(logging.ERROR)  # else it warns at every xxhash hasher

    def block_hasher(self, function: str, block_size: int) -> Any:
        """Return vLLM's request block hasher. Its own name for `xxh3_128` is `xxhash`."""
        hash_function = self._hashing.get_hash_fn_by_name({"xxh3_128": "xxhash"}.get(function, function))
        self._utils.init_none_hash(hash_function)
        return self._utils.get_request_block_hasher(block_size, hash_function)

    def request(self, request_id: str, token_ids: list[int], block_hasher: Any) -> Any:
        """Return one of vLLM's requests. All share their sampling parameters."""
        return self.request_type(request_id, token_ids, self.sampling_params, None, block_hasher=block_hasher)

    def cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return a manager of one full-attention group that keeps hit statistics, as ours does."""
        return _VLLMCache(self, self._kv_cache_config(num_blocks, block_size), block_size)

    def hasher(self, function: str, block_size: int, token_ids: list[int]) -> Callable[[], int]:
        """Use the request block hasher. `xxh3_128` is vLLM's `xxhash`."""
        request = self.request("hash", token_ids, None)
        hash_blocks = self.block_hasher(function, block_size)
        return lambda: len(hash_blocks(request))

    def namer(self, block_size: int) -> Callable[[str, list[int]], int]:
        """Use its `Request`, which hashes its tokens and does not check them."""
        hasher = self.block_hasher("sha256", block_size)
        return lambda request_id, token_ids: len(self.request(request_id, token_ids, hasher).block_hashes)

    def hybrid_cache(self, num_blocks: int, block_size: int, num_groups: int, sliding_window: int) -> Cache:
        """Return a manager of `num_groups`. With retention interval `None` windows keep the blocks for a hit."""
        return _VLLMCache(self, self._kv_cache_config(num_blocks, block_size, num_groups, sliding_window), block_size)

    def new_manager(self, kv_cache_config: Any, block_size: int) -> Any:
        """Return a manager that keeps hit statistics, as ours does."""
        return self._manager.KVCacheManager(
            kv_cache_config,
            max_model_len=_MAX_MODEL_LEN,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=True,
            log_stats=True,
        )

    def new_scheduler(self, kv_cache_config: Any, block_size: int, max_tokens: int, max_seqs: int) -> Any:
        """Return its `Scheduler`, with a manager of its own. Raises `NoSuchWorkError` where it is not 0.33's."""
        try:
            return _scheduler(kv_cache_config, block_size, max_tokens, max_seqs)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise NoSuchWorkError(
                f"the scheduler of vLLM {self.version} is not configured as 0.33's: {error}"
            ) from error

    def _kv_cache_config(self, num_blocks: int, block_size: int, num_groups: int = 1, sliding_window: int = 0) -> Any:
        """Return a configuration of one group of full attention, and windows in the others."""
        shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": self._float16}
        specs = [self._interface.FullAttentionSpec(**shape)]
        specs += [self._interface.SlidingWindowSpec(**shape, sliding_window=sliding_window)] * (num_groups - 1)
        groups = [self._interface.KVCacheGroupSpec([f"layers {index}"], spec) for index, spec in enumerate(specs)]
        return self._interface.KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def _scheduler(kv_cache_config: Any, block_size: int, max_tokens: int, max_seqs: int) -> Any:
    """Return vLLM 0.33's `Scheduler`.

    The configurations of its parts are real, with their defaults. A stand-in replaces the object that contains them,
    because the real one needs a model's files. It describes a plain decoder without drafts. The manager of structured
    output is a real one that was never initialised, because no request uses it.
    """
    configs = importlib.import_module("vllm.config")
    limits = configs.SchedulerConfig(
        max_model_len=_MAX_MODEL_LEN,
        is_encoder_decoder=False,
        max_num_batched_tokens=max_tokens,
        max_num_seqs=max_seqs,
        async_scheduling=False,
    )
    ec_manager = importlib.import_module("vllm.config.ec_manager_config")
    cache_config = configs.CacheConfig(block_size=block_size)
    cache_config.num_gpu_blocks = kv_cache_config.num_blocks
    model = SimpleNamespace(
        max_model_len=_MAX_MODEL_LEN,
        runner_type="generate",
        is_diffusion=False,
        is_encoder_decoder=False,
        return_sampling_mask=False,
        supports_multimodal_inputs=False,
        uses_mrope=False,
    )
    whole = SimpleNamespace(
        scheduler_config=limits,
        cache_config=cache_config,
        parallel_config=configs.ParallelConfig(),
        observability_config=configs.ObservabilityConfig(),
        ec_manager_config=ec_manager.EncoderCacheManagerConfig(),
        aux_output_config=SimpleNamespace(enabled=False),
        model_config=model,
        ec_transfer_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        lora_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_concurrent_batches=1,
        max_in_flight_tokens=max_tokens,
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
    )
    manager = importlib.import_module("vllm.v1.structured_output").StructuredOutputManager
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    return scheduler(whole, kv_cache_config, manager.__new__(manager), block_size, log_stats=True)


class _VLLMCache(ManagerCache):
    def __init__(self, vllm: VLLM, kv_cache_config: Any, block_size: int) -> None:
        self.vllm = vllm
        self.kv_cache_config = kv_cache_config
        self.block_size = block_size
        self.kv = vllm.new_manager(kv_cache_config, block_size)
        self.block_hasher = vllm.block_hasher("sha256", block_size)

    def submit(self, request_id: str, prompt: list[int]) -> Any:
        return self.vllm.request(request_id, prompt, self.block_hasher)

    def admit(self, request: Any) -> int:
        blocks, num_hit, *_ = self.kv.get_computed_blocks(request)
        new_blocks = self.kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        if new_blocks is None:
            raise PeerError(f"{request.request_id} does not fit")
        self.kv.record_prefix_cache_stats(request, num_hit)
        request.num_computed_tokens = request.num_tokens
        return int(num_hit)

    def decode(self, requests: Sequence[Any], token_id: int) -> None:
        allocate_slots = self.kv.allocate_slots
        for request in requests:
            request.append_output_token_ids(token_id)
            new_blocks = allocate_slots(request, 1)
            if new_blocks is None:
                raise PeerError("the pool is too small for decoding")
            new_blocks.get_block_ids(allow_none=True)
            request.num_computed_tokens += 1

    def start_scheduling(self, requests: Sequence[Any]) -> Callable[[int], None]:
        budget = sum(request.num_tokens for request in requests)
        scheduler = self.vllm.new_scheduler(self.kv_cache_config, self.block_size, budget, len(requests))
        self.kv = scheduler.kv_cache_manager
        for request in requests:
            scheduler.add_request(request)
        model_runner_output = self.vllm.model_runner_output
        names = [request.request_id for request in requests]
        places = {name: place for place, name in enumerate(names)}

        def step(token_id: int) -> None:
            output = scheduler.schedule()
            if len(output.num_scheduled_tokens) != len(names):
                raise PeerError(f"vLLM planned {len(output.num_scheduled_tokens)} of {len(names)} requests")
            scheduler.update_from_output(output, model_runner_output(names, places, [[token_id] for _ in names]))

        step(0)
        return step

    def num_free_blocks(self) -> int:
        return int(self.kv.block_pool.get_num_free_blocks())
