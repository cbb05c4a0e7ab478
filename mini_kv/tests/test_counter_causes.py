"""What a server's counters and log explain: situations made on purpose, each with the cause that made it.

A small server keeps vLLM's counters while mini_kv's own manager finds, evicts and forgets. Only its texts are read.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mini_kv_book.upstream import recording

from mini_kv import KVCacheManager
from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.counter_causes import SOURCES, BlockLengths, Cause, explain_counters
from mini_kv.tools.traces.readers.server_counters import Counters, read_log, read_metrics, read_source

BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SYSTEM = list(range(40))


class Server:
    """A server of full attention in blocks of `block_size`, whose requests come one after another."""

    def __init__(self, num_blocks: int = 200, block_size: int = 16, *, caching: bool = True, answer: int = 1) -> None:
        self.kv = KVCacheManager.for_full_attention(num_blocks, block_size, enable_caching=caching)
        self.block_size, self.num_blocks, self.caching, self.answer = block_size, num_blocks, caching, answer
        self.lengths: list[int] = []
        self.found: list[int] = []
        self.preemptions = 0
        self.lines = [f"GPU KV cache size: {block_size * (num_blocks - 1):,} tokens"]
        self.more = ""

    def ask(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Compute a prompt and free it; return what it found."""
        name = f"r{len(self.lengths)}"
        request = self.kv.new_request(name, list(prompt), cache_salt=salt)
        blocks, num_found = self.kv.get_computed_blocks(request)
        allocated = self.kv.allocate_slots(request, request.num_tokens - num_found, num_found, blocks)
        assert allocated is not None
        request.num_computed_tokens = request.num_tokens
        self.kv.free(request)
        self.lengths.append(len(prompt))
        self.found.append(num_found)
        rate = 100 * sum(self.found[-10:]) / sum(self.lengths[-10:])  # vLLM's is of the last 1,000
        self.lines.append(f"Running: 1 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: {rate:.1f}%")
        return num_found

    @property
    def metrics(self) -> str:
        """The counters in vLLM's words. Without prefix caching nothing is looked up."""
        values = {
            "prefix_cache_queries_total": sum(self.lengths) * self.caching,
            "prefix_cache_hits_total": sum(self.found),
            "request_success_total": len(self.lengths),
            "num_requests_running": 0,
            "prompt_tokens_total": sum(self.lengths),
            "num_preemptions_total": self.preemptions,
            "generation_tokens_total": self.answer * len(self.lengths),
        }
        lines = [f'vllm:{name}{{engine="0",model_name="m"}} {float(value)}' for name, value in values.items()]
        for bound in (*BOUNDS, float("inf")):
            count = sum(length <= bound for length in self.lengths)
            le = "+Inf" if bound == float("inf") else float(bound)
            lines.append(f'vllm:request_prompt_tokens_bucket{{engine="0",le="{le}",model_name="m"}} {float(count)}')
        sizes = f'block_size="{self.block_size}",num_gpu_blocks="{self.num_blocks}"'
        lines.append(f"vllm:cache_config_info{{{sizes}}} 1.0")
        return "\n".join(["# HELP vllm:prefix_cache_queries_total Tokens.", *lines, self.more, ""])

    def cause(self, blocks: BlockLengths | None = None, *, log: bool = False) -> tuple[Cause, bool]:
        """Return what the texts explain, and whether it is sure."""
        counters = read_metrics(self.metrics)
        if log:
            counters = counters.beside(read_log("\n".join(self.lines)))
        answer = explain_counters(counters, blocks or BlockLengths(self.block_size + 1, self.block_size + 1))
        assert all(answer.sentences)
        return answer.cause, answer.is_sure


def own(number: int, length: int = 60) -> list[int]:
    """Return tokens that no other prompt has."""
    return [1000 * (number + 1) + place for place in range(length)]


# Eighteen situations.


def test_1_no_request_has_come() -> None:
    assert Server().cause() == (Cause.NO_REQUEST, True)


def test_2_prefix_caching_is_off() -> None:
    """The counters alone leave another cause open. The log does not."""
    server = Server(caching=False)
    for number in range(3):
        server.ask(SYSTEM + own(number))
    assert server.cause() == (Cause.NOT_ASKED, False)
    server.lines.insert(0, "Initializing engine with config: ... enable_prefix_caching=False, ...")
    assert server.cause(log=True) == (Cause.OFF, True)


def test_3_prompts_are_shorter_than_a_block() -> None:
    server = Server(num_blocks=10, block_size=528)
    assert [server.ask(SYSTEM + own(number)) for number in range(5)] == [0] * 5
    assert server.cause() == (Cause.SHORT, True)


def test_4_prompts_are_long_enough_but_for_the_drafts() -> None:
    """Of 20 tokens a block of 16 would be found. With drafts it takes two blocks and a token."""
    server = Server()
    for _ in range(5):
        server.ask(SYSTEM[:20])
    server.found = [0] * 5
    assert server.cause(BlockLengths(2 * 16 + 1, 17)) == (Cause.DRAFTS, True)
    server.ask(SYSTEM[:4])
    server.found = [0] * 6
    answer = explain_counters(read_metrics(server.metrics), BlockLengths(2 * 16 + 1, 17))
    said = "At least 1 of the prompts are shorter: they find nothing without drafts either."
    assert (answer.cause, answer.sentences[-1]) == (Cause.DRAFTS, said)


def test_5_a_second_request_shows_a_state_where_to_be_kept() -> None:
    server = Server()
    server.ask(own(1))
    server.ask(own(2))
    assert server.cause(BlockLengths(17, 17, is_late=True)) == (Cause.LATE, False)
    server.ask(own(3))
    assert server.cause(BlockLengths(17, 17, is_late=True)) == (Cause.DIFFERENT_OR_LATE, False)


def test_6_each_user_has_a_salt() -> None:
    """Counters cannot tell a salt from another first word: both are named, and nothing was evicted."""
    server = Server()
    assert [server.ask(SYSTEM + own(number), salt=f"user {number}") for number in range(5)] == [0] * 5
    assert server.cause() == (Cause.DIFFERENT, False)


def test_7_the_time_is_in_front() -> None:
    server = Server()
    assert [server.ask([7000 + number, *SYSTEM]) for number in range(5)] == [0] * 5
    assert server.cause() == (Cause.DIFFERENT, False)


def test_8_the_pool_is_too_small_for_two_turns_of_all_users() -> None:
    """Three users in turn, in a pool for two: each comes back after its blocks were used again. Others would, too."""
    server = Server(num_blocks=8)
    found = [server.ask(own(number % 3)) for number in range(12)]
    assert found == [0] * 12
    assert server.cause() == (Cause.EVICTED_OR_NEW, False)


def test_9_requests_are_preempted() -> None:
    server = Server()
    for number in range(5):
        server.ask(SYSTEM + own(number))
    server.preemptions = 3
    assert server.cause() == (Cause.EVICTED, False)


def test_10_all_that_can_be_found_is_found() -> None:
    """The rest is each request's own, and the pool was never full."""
    server = Server()
    assert [server.ask(SYSTEM + own(number)) for number in range(5)] == [0, 32, 32, 32, 32]
    assert server.cause() == (Cause.ALL_FOUND, True)


def test_11_the_rate_falls_to_0_after_a_reset() -> None:
    server = Server()
    for number in range(12):
        server.ask(SYSTEM + own(number))
    server.kv.reset_prefix_cache()
    server.lines.append("Successfully reset prefix cache")
    for number in range(12):
        server.ask([9000 + number, *SYSTEM])
    assert server.cause(log=True) == (Cause.RESET, False)


def test_12_the_rate_falls_to_0_while_the_pool_has_room_or_has_none() -> None:
    """The date moves to the front. In a pool that is too small, the counters would be the same for evictions."""
    for num_blocks, cause in ((400, Cause.DIFFERENT), (30, Cause.EVICTED_OR_NEW)):
        server = Server(num_blocks=num_blocks)
        for number in range(12):
            server.ask(SYSTEM + own(number, 20))
        for number in range(12):
            server.ask([9000 + number, *SYSTEM])
        assert server.cause(log=True) == (cause, False)
    assert explain_counters(read_log("\n".join(server.lines[1:])), BlockLengths(17, 17)).cause is Cause.UNKNOWN


def test_13_a_request_is_looked_up_again_at_each_try() -> None:
    """As older versions of vLLM count: more lookups than the pool can hold beyond the prompts that were counted."""
    again = Counters("vLLM", 12_800, 11_500, 30, 4, 3200, (), 900, 0, 16, 2000, computed=1440, cached=1440)
    answer = explain_counters(again, BlockLengths(17, 17))
    assert (answer.cause, answer.is_sure, answer.record) == (Cause.COUNTED_AGAIN, True, "")
    assert answer.sentences[0] == "12,800 tokens were looked up for 3,200 tokens of prompts: 4.0 times each."
    assert answer.sentences[-1] == "By source, 1,440 of 3,200 tokens of prompts came from this cache: 45.0%."
    unknown = explain_counters(replace(again, cached=None, pool_tokens=None), BlockLengths(17, 17))
    assert unknown.cause is not Cause.COUNTED_AGAIN  # so many prompts may be on their way
    preempted = explain_counters(replace(again, cached=None, pool_tokens=None, preemptions=3), BlockLengths(17, 17))
    assert (preempted.cause, preempted.is_sure, preempted.record) == (Cause.COUNTED_AGAIN, False, SOURCES)


def test_14_no_request_may_be_as_long_as_a_block() -> None:
    """However long the prompts are that users would like to send."""
    counters = Counters("vLLM", 10_608, 0, 3, 0, 10_608, block_size=8320, max_model_len=4096)
    answer = explain_counters(counters, BlockLengths(8321, 8321))
    assert (answer.cause, answer.is_sure) == (Cause.SHORT, True)
    assert answer.sentences[0] == "The server takes requests of at most 4,096 tokens (--max-model-len)."


def test_15_a_state_is_kept_only_where_a_request_ended() -> None:
    """SGLang's strategy no_buffer: the same prompt again finds nothing, and this says nothing about prompts."""
    states = Counters("SGLang", 7660, 0, 5, 0, 7660, generated=640, states_at_end=True)
    assert explain_counters(states, BlockLengths(2, 2)).cause is Cause.STATES
    buffered = replace(states, states_at_end=False)
    assert explain_counters(buffered, BlockLengths(2, 2)).cause is Cause.DIFFERENT


def test_16_sglangs_gauge_is_of_the_last_batch() -> None:
    """Its counters say what was found since the start, and what was evicted."""
    counters = Counters("SGLang", 1200, 900, 5, 0, 1200, generated=90, last_batch=0.0)
    said = explain_counters(counters, BlockLengths(2, 2)).sentences[0]
    assert said == (
        "900 of 1,200 tokens of prompts were found: 75.0%."
        " The gauge sglang:cache_hit_rate (0.0%) is of the last batch alone."
    )
    answer = explain_counters(replace(counters, evicted=7000, block_size=1, pool_tokens=400), BlockLengths(2, 2))
    assert (answer.cause, answer.sentences[1]) == (Cause.EVICTED_OR_NEW, "SGLang evicted 7,000 tokens.")
    assert answer.record.endswith("and mini-kv explain LOG --num-blocks 401 --block-size 1")


def test_17_new_weights_emptied_the_cache() -> None:
    """The log says so. Without it the counters look like any others."""
    counters = Counters("SGLang", 1200, 700, 5, 0, 1200, generated=90, pool_tokens=4000, resets=2)
    answer = explain_counters(counters, BlockLengths(2, 2))
    assert (answer.cause, answer.is_sure) == (Cause.RESET, False)
    assert answer.sentences[1].startswith("The log says that the cache was emptied 2 times")
    nothing = explain_counters(replace(counters, hits=0), BlockLengths(2, 2))
    assert nothing.cause is Cause.RESET


def test_18_another_server_prefills() -> None:
    """All that this one lacks comes from there. So its own rate says nothing of what prompts share."""
    counters = Counters("vLLM", 256_000, 32_000, 60, 0, 256_000, external=(224_000, 224_000), is_consumer=True)
    answer = explain_counters(counters, BlockLengths(17, 17))
    assert (answer.cause, answer.sentences[1:]) == (
        Cause.UNKNOWN,
        (
            "A connector was asked for 224,000 tokens that this cache lacked, and had 224,000.",
            "Another server prefills for this one (kv_consumer): its counters say what prompts share.",
        ),
    )


# What is not known is not said.


def test_nothing_is_excluded_that_the_counters_do_not_exclude() -> None:
    """If a number is missing, or with windows, a pool that looks large enough proves nothing."""
    whole = Counters("vLLM", 1000, 100, 10, 0, 1000, (), 10, 0, 16, 5000)
    assert explain_counters(whole, BlockLengths(17, 17)).is_sure
    missing: dict[str, Any]
    for name in ("generated", "preemptions", "requests", "running", "prompt_tokens", "pool_tokens", "block_size"):
        missing = {name: None}
        assert explain_counters(replace(whole, **missing), BlockLengths(17, 17)).cause is Cause.UNKNOWN, name
    assert explain_counters(whole, BlockLengths(17, 17, is_plain=False)).cause is Cause.UNKNOWN
    assert not explain_counters(whole, BlockLengths(33, 17)).is_sure  # the rest may be what drafts drop
    many = replace(whole, requests=900)  # each wastes a part of a block
    assert explain_counters(many, BlockLengths(17, 17)).cause is Cause.UNKNOWN
    elsewhere = replace(whole, prompt_tokens=9000)  # of prompts that are not looked up
    assert explain_counters(elsewhere, BlockLengths(17, 17)).cause is Cause.EVICTED_OR_NEW
    assert explain_counters(replace(whole, engines=2), BlockLengths(17, 17)).cause is Cause.UNKNOWN


def test_every_metric_that_is_read_is_vllms() -> None:
    server = Server()
    server.ask(SYSTEM)
    names = {line.partition("{")[0] for line in server.metrics.splitlines() if line.startswith("vllm:")}
    read = {name.removesuffix("_total").removesuffix("_bucket") for name in names}
    assert read <= set(recording()["metrics"])


# The texts.

VLLM_LOG = """
INFO 11-28 10:00:00 [core.py:94] Initializing a V1 LLM engine (v0.33.0) with config: enable_prefix_caching=True,
speculative_config=SpeculativeConfig(method='mtp', model=None, num_spec_tokens=2), max_seq_len=4096, ...
INFO 11-28 10:00:01 [config.py:301] Setting attention block size to 528 tokens to ensure that attention page size is >=
INFO 11-28 10:00:09 [kv_cache_utils.py:1216] GPU KV cache size: 109,376 tokens, Maximum concurrency ...
INFO 11-28 10:01:00 [loggers.py:123] Engine 000: Running: 3 reqs, Prefix cache hit rate: 45.6%, MM cache hit rate: 9.0%
INFO 11-28 10:01:30 [loggers.py:123] Engine 001: Running: 0 reqs, Prefix cache hit rate: 88.0%
WARNING 11-28 10:01:40 [block_pool.py:884] Failed to reset prefix cache because some blocks (3) are not freed yet
INFO 11-28 10:02:00 [loggers.py:123] Engine 000: Prefix cache hit rate: 0.0%, External prefix cache hit rate: 7.0%
"""
SGLANG_LOG = """
[2026-11-28 10:00:00] server_args=ServerArgs(page_size=1, disable_radix_cache=False, mamba_scheduler_strategy='auto')
[2026-11-28 10:00:09] max_total_num_tokens=109376, chunked_prefill_size=8192, context_len=262144
[2026-11-28 10:01:00] Prefill batch. #new-seq: 1, #new-token: 600, #cached-token: 0, token usage: 0.01
[2026-11-28 10:01:01] Prefill batch. #new-seq: 2, #new-token: 200, #cached-token: 400, token usage: 0.02
[2026-11-28 10:01:02] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.7
"""
SGLANG_METRICS = """
sglang:prompt_tokens_total{model_name="m"} 1200.0
sglang:cached_tokens_total{model_name="m"} 400.0
sglang:generation_tokens_total{model_name="m"} 90.0
sglang:num_requests_total{model_name="m"} 3.0
sglang:max_total_num_tokens{model_name="m"} 109376.0
sglang:cache_hit_rate{model_name="m"} 0.25
sglang:evicted_tokens_total{model_name="m"} 70.0
"""


def test_logs_and_metrics_of_both_engines_are_read() -> None:
    assert read_log(VLLM_LOG) == Counters(
        "vLLM",
        block_size=528,
        pool_tokens=109_376,
        caching=True,
        drafts=2,
        rates=(0.456, 0.0),
        max_model_len=4096,
        version="0.33.0",
    )
    assert read_log(SGLANG_LOG) == Counters(
        "SGLang",
        1200,
        400,
        preemptions=2,
        block_size=1,
        pool_tokens=109_376,
        caching=True,
        max_model_len=262_144,
        states_at_end=True,
    )
    assert read_metrics(SGLANG_METRICS) == Counters(
        "SGLang", 1200, 400, 3, None, 1200, generated=90, pool_tokens=109_376, last_batch=0.25, evicted=70, model="m"
    )


def test_what_vllm_itself_wrote_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Its metrics and its log's line for three requests, as dev/recorders/record_metrics.py had it write them."""
    file = Path(__file__).with_name("recorded") / "vllm-0.33-metrics.txt"
    text = file.read_text(encoding="utf-8")
    counters = read_metrics(text)
    bounds = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 1e300)
    assert counters == Counters(
        "vLLM",
        queries=96,
        hits=32,
        requests=3,
        running=0,
        prompt_tokens=96,
        lengths=tuple((float(bound), 3 if bound >= 50 else 0) for bound in bounds),
        generated=90,
        preemptions=0,
        block_size=16,
        pool_tokens=3200,
        caching=True,
        computed=64,
        cached=32,
        model="m",
    )
    assert read_log(text).rates == (33.3 / 100,)
    assert main(["why", "qwen-3-8b", "--metrics", str(file), "--log", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "The cause: the cache finds what it can. This is certain.",
        "32 of 96 tokens of prompts were found: 33.3%.",
        "Nothing was evicted: 154 tokens were written, and the pool holds 3,200.",
    ]


def test_the_block_of_attention_counts_if_the_metrics_have_one() -> None:
    """In a hybrid model vLLM may have made it longer than asked for."""
    labels = 'block_size="16",effective_attention_block_size="784",num_gpu_blocks="11"'
    counters = read_metrics(f"vllm:cache_config_info{{{labels}}} 1.0")
    assert (counters.block_size, counters.pool_tokens) == (784, 7840)


def test_the_model_is_the_servers_if_none_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text names it: the metrics, or the log's first lines."""
    log = tmp_path / "server.log"
    log.write_text(VLLM_LOG.replace("config: ", "config: model='Qwen/Qwen3.5-4B', "), encoding="utf-8")
    assert main(["why", "--gpu", "a100", "--log", str(log)]) == 0
    assert "The server's blocks have 528 tokens" in capsys.readouterr().out
    log.write_text(VLLM_LOG, encoding="utf-8")
    assert main(["why", "--log", str(log)]) == 2
    assert capsys.readouterr().err == "mini-kv why: MODEL is missing, and no text of a server names it\n"


def test_a_model_that_is_not_known_is_no_reason_to_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows from its blocks is left out. A model that the user gives must be known."""
    server = Server()
    for number in range(5):
        server.ask(own(number))
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(server.metrics, encoding="utf-8")
    assert main(["why", "--metrics", str(metrics)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The cause: different prompts, or no state or window where they part.")
    assert "The model m is not known: MODEL, a name or its config.json, tells its blocks." in lines
    assert main(["why", "m", "--metrics", str(metrics)]) == 2
    assert "unknown model 'm'" in capsys.readouterr().err


def test_engines_of_one_server_are_added_and_other_lines_passed_over() -> None:
    lines = [
        f'vllm:prefix_cache_{name}_total{{engine="{engine}"}} 50' for name in ("queries", "hits") for engine in "01"
    ]
    odd = ["vllm:prefix_cache_hits_total one", "# TYPE vllm:x counter", "", "go_goroutines 12", 'a{b="}"} 1', "\x00"]
    counters = read_metrics("\n".join([*lines, *odd]))
    assert counters == Counters("vLLM", 100, 100, engines=2)
    assert explain_counters(replace(counters, hits=50), BlockLengths(17, 17)).sentences == (
        "50 of 100 tokens of prompts were found: 50.0%.",
        "The server has 2 engines, with a cache each."
        " A request that goes to another engine than the one it shares with finds nothing there.",
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-5", "1e999", "ten", ""])
def test_a_number_that_cannot_be_is_passed_over(value: str) -> None:
    lines = ["vllm:prefix_cache_queries_total 50", f"vllm:prefix_cache_hits_total {value}"]
    buckets = [f'vllm:request_prompt_tokens_bucket{{le="{value}"}} 3', "vllm:request_prompt_tokens_bucket 3"]
    counters = read_metrics("\n".join([*lines, *buckets]))
    lengths = ((1e300, 3),) if value == "+Inf" else ()  # the last bucket has this bound
    assert (counters.queries, counters.hits, counters.lengths) == (50, None, lengths)


def test_numbers_that_contradict_each_other_explain_nothing() -> None:
    answer = explain_counters(Counters("vLLM", 50, 60), BlockLengths(17, 17))
    assert (answer.cause, answer.is_sure) == (Cause.UNKNOWN, False)


def test_a_text_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text"
    for text, flag, said in (
        ("go_goroutines 12\n", "--metrics", "it has no metric of vLLM or SGLang (vllm:..., sglang:...)"),
        ("nginx: worker started\n", "--log", "it has no line of vLLM or SGLang about the KV cache"),
    ):
        file.write_text(text, encoding="utf-8")
        assert main(["why", "qwen-3-8b", flag, str(file)]) == 2
        assert capsys.readouterr().err == f"mini-kv why: {file}: {said}\n"
    assert main(["why", "qwen-3-8b", "--metrics", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"mini-kv why: {tmp_path / 'none'}: No such file or directory\n"
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/metrics: "):
        read_source("http://127.0.0.1:9/metrics")


def test_the_command_prints_the_cause_before_the_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The drafts that the log names count: the shortest prompt has two blocks."""
    metrics, log = tmp_path / "metrics.txt", tmp_path / "server.log"
    server = Server(num_blocks=10, block_size=528)
    for number in range(5):
        server.ask(SYSTEM + own(number))
    metrics.write_text(server.metrics, encoding="utf-8")
    log.write_text(VLLM_LOG, encoding="utf-8")
    assert main(["why", "Qwen/Qwen3.5-4B", "--gpu", "a100", "--metrics", str(metrics), "--log", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "The cause: short prompts. This is certain.",
        "All 5 prompts have at most 100 tokens. The shortest that finds anything has 1,057.",
        "",
    ]
    same = "give the server's --gpu, --tensor-parallel-size and --kv-cache-dtype for the same"
    assert lines[3] == f"The server's blocks have 528 tokens, and 544 in vLLM 0.33 as planned: {same}."
    assert main(["why", "qwen-3-8b", "--metrics", str(metrics), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["counters"]
    assert (told["cause"], told["is_sure"]) == ("short prompts", True)
