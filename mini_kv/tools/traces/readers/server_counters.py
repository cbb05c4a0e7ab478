"""What a server counts: the text at /metrics, and the lines of its log. vLLM's and SGLang's, by their names.

    vllm:prefix_cache_queries_total{engine="0"} 34           prompt tokens that were looked up
    vllm:prefix_cache_hits_total{engine="0"} 16              of these, found
    vllm:cache_config_info{block_size="16",num_gpu_blocks="97",...} 1
    INFO ... GPU KV cache size: 109,376 tokens               at the start of the log
    INFO ... Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.3%, Prefix cache hit rate: 45.6%

Engines of one server are added up. Source: vLLM 0.33, v1/metrics/loggers.py and v1/core/kv_cache_utils.py; SGLang 0.5,
srt/metrics/collector.py and srt/managers.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mini_kv.core.errors import ConfigError

SECONDS = 10
"""The longest wait for a server's metrics."""
MAX_BYTES = 1 << 26
"""Bytes of the longest text that is read."""
LONGEST = "1e300"
"""Tokens that no prompt has: the bound of the last bucket."""
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """What is known of a server. `None`: neither text says it."""

    engine: str
    """vLLM or SGLang."""
    queries: int | None = None
    """Prompt tokens that were looked up."""
    hits: int | None = None
    """Of these, the tokens that were found."""
    requests: int | None = None
    """Requests that have ended."""
    running: int | None = None
    """Requests that run now."""
    prompt_tokens: int | None = None
    """Tokens of all prompts. Some are not looked up, such as those whose log-probabilities were asked for."""
    lengths: tuple[tuple[float, int], ...] = ()
    """Prompts by length: an upper bound in tokens, and the number of prompts up to it."""
    generated: int | None = None
    """Tokens of answers."""
    preemptions: int | None = None
    block_size: int | None = None
    """Tokens per block."""
    pool_tokens: int | None = None
    """Tokens that the pool holds."""
    caching: bool | None = None
    """Whether prefix caching is on."""
    drafts: int | None = None
    """Drafts per step. 1 if there are some and no text says how many."""
    rates: tuple[float, ...] = field(default=())
    """The logged hit rates in their order, each 0.0 to 1.0: vLLM's are of the last 1,000 requests."""
    max_model_len: int | None = None
    """Tokens of the longest request that the server takes."""
    computed: int | None = None
    """Of `prompt_tokens`, those that were computed. vLLM counts them by source, each once."""
    cached: int | None = None
    """Of `prompt_tokens`, those that this cache had, counted in the same way."""
    last_batch: float | None = None
    """SGLang's gauge of the hit rate, 0.0 to 1.0. Each batch of prompts sets it anew."""
    states_at_end: bool | None = None
    """Whether SGLang keeps a state only where a request ended."""
    model: str | None = None
    """The model's name."""
    external: tuple[int, int] = (0, 0)
    """Tokens that this cache lacked and a connector was asked for, and of these those that it had."""
    is_consumer: bool = False
    """Whether another server prefills, and this one decodes."""
    engines: int = 1
    """Engines of the server. Each has a cache of its own."""
    evicted: int | None = None
    """Tokens that SGLang evicted."""
    version: str | None = None
    """vLLM's version."""
    resets: int = 0
    """Times that the log says the cache was emptied."""

    def beside(self, other: "Counters") -> "Counters":
        """Return these counters, completed by the other text's."""
        missing = {name: getattr(other, name) for name in self.__slots__ if getattr(self, name) in (None, ())}
        is_consumer = self.is_consumer or other.is_consumer
        return replace(self, **missing, resets=self.resets + other.resets, is_consumer=is_consumer)


def read_source(source: str) -> str:
    """Return the text of a file or of an http address. Raises `ConfigError` if it cannot be read."""
    try:
        if source.startswith(("http://", "https://")):
            from urllib.request import urlopen  # the book's pages read no address, and load it slowly

            with urlopen(source, timeout=SECONDS) as answer:
                data: bytes = answer.read(MAX_BYTES)
        else:
            data = Path(source).read_bytes()[:MAX_BYTES]
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(f"{source}: {reason}") from error
    return data.decode("utf-8", errors="replace")


def read_metrics(text: str, source: str = "the metrics") -> Counters:
    """Return the counters of a text in Prometheus' format. Raises `ConfigError` if it is no server's that is known."""
    sums: dict[str, float] = defaultdict(float)
    buckets: dict[float, float] = defaultdict(float)
    info: dict[str, str] = {}
    model: str | None = None
    sources: dict[str, float] = defaultdict(float)
    engines: set[str] = set()
    for name, labels, value in _samples(text):
        sums[name] += value
        model = labels.get("model_name", model)
        engines |= {labels["engine"]} if "engine" in labels else set()
        if name == "vllm:request_prompt_tokens_bucket":
            bound = _number(labels.get("le", "").replace("+Inf", LONGEST))
            if bound is not None:
                buckets[bound] += value
        elif name.endswith(":cache_config_info"):
            info |= labels
        elif name == "vllm:prompt_tokens_by_source_total":
            sources[labels.get("source", "")] += value
    names = {name.partition(":")[0] for name in sums}
    if "vllm" in names:
        lengths = tuple(sorted((bound, int(count)) for bound, count in buckets.items()))
        computed, cached = (
            int(sources[source]) if source in sources else None for source in ("local_compute", "local_cache_hit")
        )
        counters = _vllm(sums, info, lengths)
        num_engines = max(len(engines), 1)
        pool = None if counters.pool_tokens is None else num_engines * counters.pool_tokens
        external = tuple(int(sums[f"vllm:external_prefix_cache_{name}_total"]) for name in ("queries", "hits"))
        counters = replace(counters, pool_tokens=pool, engines=num_engines, external=(external[0], external[1]))
        return replace(counters, computed=computed, cached=cached, model=model)
    if "sglang" in names:
        return replace(_sglang(sums, info), model=model)
    raise ConfigError(f"{source}: it has no metric of vLLM or SGLang (vllm:..., sglang:...)")


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each sample's name, labels and value."""
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        value = _number(found[3])
        if value is not None:
            yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _number(text: str) -> float | None:
    """Return a finite number of at least 0, or `None` for anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _vllm(sums: dict[str, float], info: dict[str, str], lengths: tuple[tuple[float, int], ...]) -> Counters:
    def number(name: str) -> int | None:
        return int(sums[f"vllm:{name}"]) if f"vllm:{name}" in sums else None

    effective, block_size, num_blocks = (
        _whole(info.get(name)) for name in ("effective_attention_block_size", "block_size", "num_gpu_blocks")
    )
    block_size = effective or block_size
    pool = block_size * (num_blocks - 1) if block_size and num_blocks else _whole(info.get("kv_cache_size_tokens"))
    return Counters(
        "vLLM",
        number("prefix_cache_queries_total"),
        number("prefix_cache_hits_total"),
        number("request_success_total"),
        number("num_requests_running"),
        number("prompt_tokens_total"),
        lengths,
        number("generation_tokens_total"),
        number("num_preemptions_total"),
        block_size,
        pool,
        {"True": True, "False": False}.get(info.get("enable_prefix_caching", "")),
        1 if sums.get("vllm:spec_decode_num_drafts_total") else None,
    )


def _sglang(sums: dict[str, float], info: dict[str, str]) -> Counters:
    def number(name: str) -> int | None:
        return int(sums[f"sglang:{name}"]) if f"sglang:{name}" in sums else None

    return Counters(
        "SGLang",
        number("prompt_tokens_total"),
        number("cached_tokens_total"),
        number("num_requests_total"),
        number("num_running_reqs"),
        number("prompt_tokens_total"),
        generated=number("generation_tokens_total"),
        preemptions=number("num_retracted_requests_total"),
        block_size=_whole(info.get("page_size")),
        pool_tokens=number("max_total_num_tokens"),
        last_batch=sums.get("sglang:cache_hit_rate"),
        evicted=number("evicted_tokens_total"),
    )


def read_log(text: str, source: str = "the log") -> Counters:
    """Return what the lines of a log say. Raises `ConfigError` if none of vLLM or SGLang is about the cache."""
    prefills = re.findall(r"#new-token: (\d+), #cached-token: (\d+)", text)
    pool = _first(r"KV cache size: ([\d,]+) tokens|max_total_num_tokens=(\d+)", text)
    rates = _rates(text)
    caching = re.findall(r"enable_prefix_caching['\"]?[=:]\s?(True|False)", text)
    off = "disable_radix_cache=True" in text
    if not (prefills or pool or rates or caching):
        raise ConfigError(f"{source}: it has no line of vLLM or SGLang about the KV cache")
    is_sglang = bool(prefills) or "max_total_num_tokens" in text
    computed, cached = (sum(int(pair[at]) for pair in prefills) for at in (0, 1))
    drafts = _first(r"num_spec(?:ulative)?_tokens['\"]?[=:]\s?(\d+)|speculative_num_draft_tokens=(\d+)", text)
    has_states = "mamba usage" in text or "mamba_scheduler_strategy=" in text
    return Counters(
        "SGLang" if is_sglang else "vLLM",
        computed + cached if prefills else None,
        cached if prefills else None,
        preemptions=sum(map(int, re.findall(r"#retracted_reqs: (\d+)", text))) if is_sglang else None,
        block_size=_first(r"[Ss]etting attention block size to ([\d,]+) tokens|page_size=(\d+)", text),
        pool_tokens=pool,
        caching=False if off or caching[-1:] == ["False"] else (True if caching or prefills else None),
        drafts=drafts,
        rates=rates,
        max_model_len=_first(r"max_(?:model|seq)_len['\"]?[=:]\s?(\d+)|context_len=(\d+)", text),
        states_at_end="extra_buffer" not in text if has_states else None,
        is_consumer="kv_consumer" in text,
        version=told[1] if (told := re.search(r"LLM engine \(v([\w.+]+)\)", text)) else None,
        model=named[1] if (named := re.search(r"\bmodel(?:_path)?='([^']+)'", text)) else None,
        resets=len(re.findall(r"Successfully reset prefix cache|Cache flushed", text)),
    )


def _rates(text: str) -> tuple[float, ...]:
    """Return the logged hit rates of the engine that logs most: engines of one server take lines in turn."""
    by_engine: dict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        rate = re.search(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?([\d.]+)%", line)
        if rate is not None:
            engine = re.search(r"Engine (\d+)", line)
            by_engine[engine[1] if engine else ""].append(float(rate[1]) / 100)
    return max(map(tuple, by_engine.values()), key=len, default=())


def _first(pattern: str, text: str) -> int | None:
    """Return the number of the last match of a pattern with a group per way to write it."""
    found = re.findall(pattern, text)
    words = [word for groups in found for word in ([groups] if isinstance(groups, str) else groups) if word]
    return _whole(words[-1]) if words else None


def _whole(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits.isdigit() else None
