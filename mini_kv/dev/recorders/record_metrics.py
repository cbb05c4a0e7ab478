"""Lets vLLM 0.33 write its /metrics and its log for three requests, which the tests of `why --metrics` read.

A tool for maintainers, never part of CI: see record.py for the environment. From the top folder:

    /tmp/vllm-env/bin/python -m mini_kv.dev.recorders.record_metrics

vLLM's own loggers get the statistics that its engine would give them. Nothing runs a model.
"""

import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace as Settings

os.environ |= {"CUDA_VISIBLE_DEVICES": ""}

import prometheus_client
from vllm.config import CacheConfig, ObservabilityConfig  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.engine import FinishReason  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found, unused-ignore]
    LoggingStatLogger,
    PrometheusStatLogger,
)
from vllm.v1.metrics.stats import (  # type: ignore[import-not-found, unused-ignore]
    FinishedRequestStats,
    IterationStats,
    PrefillStats,
    PrefixCacheStats,
    SchedulerStats,
)

TARGET = Path(__file__).parents[2] / "tests/recorded/vllm-0.33-metrics.txt"
REQUESTS = ((23, 0), (32, 16), (41, 16))
"""Tokens of each prompt, and of these the tokens that were found."""
NUM_OUTPUT = 30
_OF_NO_USE = re.compile(r"_created\b|(?<!request_prompt_tokens)_bucket\b")
"""Times of the counters' birth, and the histograms that nothing reads."""


class Messages(logging.Handler):
    """Keeps the messages of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage())


def settings() -> Settings:
    """Return the settings that the loggers read: a pool of 200 blocks of 16 tokens, prefix caching on."""
    cache = CacheConfig(block_size=16, enable_prefix_caching=True)
    cache.num_gpu_blocks = 201
    none = dict.fromkeys(
        ("lora_config", "speculative_config", "kv_transfer_config", "ec_transfer_config", "watermark_config")
    )
    return Settings(
        model_config=Settings(served_model_name="m", max_model_len=4096, is_diffusion=False),
        observability_config=ObservabilityConfig(),
        cache_config=cache,
        device_config=Settings(device_type="cuda"),
        **none,
    )


def step(num_prompt: int, num_found: int) -> tuple[SchedulerStats, IterationStats]:
    """Return the statistics of a request that is prefilled, answered and ended at once."""
    iteration = IterationStats()
    prefill = PrefillStats(num_prompt, num_prompt - num_found, num_found, num_found)
    iteration.prompt_token_stats.update_from_output(prefill)
    iteration.num_generation_tokens = NUM_OUTPUT
    iteration.finished_requests.append(
        FinishedRequestStats(FinishReason.STOP, num_prompt_tokens=num_prompt, num_generation_tokens=NUM_OUTPUT)
    )
    found = PrefixCacheStats(requests=1, queries=num_prompt, hits=num_found)
    return SchedulerStats(prefix_cache_stats=found), iteration


def main() -> None:
    """Write the text and print the log's line."""
    logger = PrometheusStatLogger(settings(), [0])
    logger.log_engine_initialized()
    log = LoggingStatLogger(settings(), 0)
    said = Messages()
    logging.getLogger("vllm").addHandler(said)
    logging.getLogger("vllm").setLevel(logging.INFO)
    for request in REQUESTS:
        for receiver in (logger, log):
            receiver.record(*step(*request), engine_idx=0)
    log.log()
    text = prometheus_client.generate_latest().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:") and not _OF_NO_USE.search(line)]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("\n".join([*lines, *said.texts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
