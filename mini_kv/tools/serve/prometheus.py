"""The metrics at /metrics, with vLLM's names, so that a dashboard made for vLLM also shows this engine.

Gauges and counters are read from the engine on request. Times are recorded as they occur. Sums are over all tenants.
They are meant for the operator of the server.

Source: vLLM 0.33 `PrometheusStatLogger` (v1/metrics/loggers.py): names, kinds and buckets.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.output_processor import DeltaOutput
from mini_kv.tools.serve.engine_loop import Ticket

_TO_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_LABELS = ("model_name", "engine")


class Metrics:
    """The metrics of one server. It is a watcher of the server's loop."""

    def __init__(self, engine: LLMEngine, model_name: str) -> None:
        self._engine = engine
        self._values = (model_name, "0")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

        def seconds(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", about, _LABELS, buckets=buckets, registry=self._registry)
            return made.labels(*self._values)

        self._to_first = seconds("time_to_first_token_seconds", "Time to the first token.", _TO_FIRST)
        self._between = seconds("inter_token_latency_seconds", "Time between two tokens of a text.", _TOKEN)
        self._whole = seconds("e2e_request_latency_seconds", "Time from a request to its last token.", _REQUEST)
        self._ended = Counter(
            "vllm:request_success", "Texts by finish reason.", (*_LABELS, "finished_reason"), registry=self._registry
        )
        self._last: dict[tuple[str, int], float] = {}

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return generate_latest(self._registry)

    def on_request(self, ticket: Ticket) -> None:
        """Do nothing. The ticket has the time of arrival."""

    def on_token(self, ticket: Ticket, delta: DeltaOutput) -> None:
        """Record the time of a token, and the reason at the end of a text."""
        now, sample = time.perf_counter(), (delta.request_id, delta.index)
        if ticket.first_token is None:
            ticket.first_token = now
            self._to_first.observe(now - ticket.arrived)
        elif sample in self._last:
            self._between.observe(now - self._last[sample])
        self._last[sample] = now
        if delta.finish_reason is not None:
            del self._last[sample]
            self._whole.observe(now - ticket.arrived)
            self._ended.labels(*self._values, delta.finish_reason).inc()

    def on_step(self, busy: bool) -> None:
        """Drop the times of aborted texts."""
        if not busy:
            self._last.clear()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read from the engine. Called by the registry."""
        scheduler, stats = self._engine.scheduler, self._engine.stats
        manager = self._engine.kv_cache_manager
        found = manager.prefix_cache_stats
        gauges = {
            "num_requests_running": ("Requests in the running batch.", len(scheduler.running)),
            "num_requests_waiting": ("Requests that wait for admission.", len(scheduler.waiting)),
            "kv_cache_usage_perc": ("Share of the pool's blocks that are in use (1: all).", manager.usage),
        }
        counters = {
            "prefix_cache_queries": ("Prompt tokens that were looked up.", found.queries),
            "prefix_cache_hits": ("Prompt tokens that were found.", found.hits),
            "num_preemptions": ("Requests that were preempted.", scheduler.num_preemptions),
            "prompt_tokens": ("Prompt tokens of accepted requests.", stats.num_prompt_tokens),
            "generation_tokens": ("Tokens that were generated.", stats.num_generation_tokens),
        }
        for name, (about, value) in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", about, labels=_LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, (about, value) in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", about, labels=_LABELS)
            counter.add_metric(self._values, value)
            yield counter
        sizes = {"block_size": str(manager.block_size), "num_gpu_blocks": str(len(manager.block_pool.blocks))}
        info = GaugeMetricFamily("vllm:cache_config_info", "Sizes of the cache.", labels=["engine", *sizes])
        info.add_metric(["0", *sizes.values()], 1)
        yield info
