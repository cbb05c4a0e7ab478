"""The engine's promises to its user: stop conditions, streams, several samples, bad input, the line in the log."""

import re
from typing import Any

import pytest
import torch

from mini_kv.core.errors import ConfigError, RepeatedRequestError
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.engine_stats import CachingMetrics, StatLogger
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.prompt_tokens import PromptError
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.small_models import VOCAB_SIZE, alone, small_model
from mini_kv.tests.engine.test_detokenizer import Letters

MODEL = small_model()
PROMPT = [3, 1, 4, 1, 5]
SAID = alone(MODEL, [PROMPT], 12)[0]


def engine(tokenizer=None, **options) -> LLMEngine:
    limits = {name: options.pop(name) for name in ("max_num_seqs", "max_model_len") if name in options}
    config = EngineConfig(block_size=4, num_blocks=20, scheduler=SchedulerConfig(**limits), **options)
    return LLMEngine(MODEL, tokenizer, config)


def greedy(max_tokens: int = 12, **options) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **options)


def only(outputs):
    """Return the one sample of the one prompt: its tokens, its text, why it ended."""
    ((sample,),) = (output.outputs for output in outputs)
    return sample.token_ids, sample.text, sample.finish_reason


def test_it_ends_after_max_tokens():
    assert only(engine().generate([PROMPT], greedy(5))) == (SAID[:5], "", "length")


def test_it_ends_where_the_model_can_read_no_further():
    assert only(engine(max_model_len=9).generate([PROMPT], greedy())) == (SAID[:4], "", "length")


@pytest.mark.parametrize("said", [1 << 20, 100, 64, 9])
def test_it_reads_no_further_than_the_model_has_learned_whatever_the_engine_is_told(said):
    model = small_model(max_position_embeddings=64)
    config = EngineConfig(block_size=4, num_blocks=100, scheduler=SchedulerConfig(max_model_len=said))
    llm = LLMEngine(model, config=config)
    assert llm.config.scheduler.max_model_len == min(said, 64)
    tokens, _, reason = only(llm.generate([PROMPT], greedy(1000)))
    assert (len(PROMPT) + len(tokens), reason) == (min(said, 64), "length")


def test_a_prompt_that_is_longer_than_the_model_has_learned_is_refused():
    llm = LLMEngine(small_model(max_position_embeddings=64), config=EngineConfig(block_size=4, num_blocks=100))
    said = "the prompt of request '0' has 64 tokens; the model reads at most 64, answer included"
    with pytest.raises(PromptError, match=f"^{said}$"):
        llm.generate([[1] * 64])
    assert len(only(llm.generate([[1] * 63], greedy()))[0]) == 1


def test_text_that_is_none_is_refused():
    model, tokenizer = load_model(tiny_folder())
    llm = LLMEngine(model, tokenizer)
    with pytest.raises(PromptError, match="the prompt of request '0' is not a text: 'utf-8' codec can't encode"):
        llm.generate(["\ud800"])
    assert not llm.has_unfinished_requests


def test_a_stop_token_ends_it_and_is_told_but_not_shown():
    end = SAID.index(SAID[4])
    llm = engine(Letters())
    text = Letters.text(SAID[:end])
    assert only(llm.generate([PROMPT], greedy(stop_token_ids=(SAID[4],)))) == (SAID[: end + 1], text, "stop")


def test_the_token_that_ends_a_text_ends_it_unless_it_is_ignored():
    end = SAID.index(SAID[3])
    tokenizer = Letters(eos_token_id=SAID[3])
    text = Letters.text(SAID[:end])
    assert only(engine(tokenizer).generate([PROMPT], greedy())) == (SAID[: end + 1], text, "stop")
    assert only(engine(tokenizer).generate([PROMPT], greedy(ignore_eos=True)))[0] == SAID


def test_a_stop_string_that_spans_tokens_ends_it_and_is_never_shown_in_part():
    text = Letters.text(SAID)
    stop = text[4:7]
    shown = ""
    llm = engine(Letters())
    for delta in llm.stream([PROMPT], greedy(stop=(stop, "not said"))):
        shown += delta.new_text
        assert text.startswith(shown) and len(shown) <= text.index(stop)
    assert (shown, delta.finish_reason) == (text[: text.index(stop)], "stop")
    assert llm.kv_cache_manager.usage == 0.0 and not llm.scheduler.has_unfinished_requests


def test_a_stream_brings_what_generate_returns():
    prompts = [PROMPT, [2, 7, 1, 8], PROMPT[:3]]
    params = SamplingParams(max_tokens=6, seed=4)
    wanted = engine(Letters()).generate(prompts, params, n=2)
    texts = {(i, index): "" for i in range(3) for index in range(2)}
    for delta in engine(Letters()).stream(prompts, params, n=2):
        texts[int(delta.request_id), delta.index] += delta.new_text
    assert texts == {(i, out.index): out.text for i, output in enumerate(wanted) for out in output.outputs}


def test_who_stops_listening_aborts_what_is_left():
    llm = engine()
    stream = llm.stream([PROMPT, PROMPT[:2]], greedy())
    next(stream)
    stream.close()
    assert not llm.has_unfinished_requests and llm.kv_cache_manager.usage == 0.0
    assert only(llm.generate([PROMPT], greedy()))[0] == SAID


@pytest.mark.parametrize("seats", [1, 2, 8])
def test_samples_end_each_in_its_own_time_however_few_may_run_at_once(seats):
    params = SamplingParams(max_tokens=9, temperature=1.5, seed=2, stop_token_ids=tuple(range(0, VOCAB_SIZE, 6)))
    roomy = engine(max_num_seqs=8).generate([PROMPT], params, n=5)[0].outputs
    assert [(out.index, out.token_ids, out.finish_reason) for out in roomy] == [
        (out.index, out.token_ids, out.finish_reason)
        for out in engine(max_num_seqs=seats).generate([PROMPT], params, n=5)[0].outputs
    ]
    assert len({len(out.token_ids) for out in roomy}) > 1
    assert {out.finish_reason for out in roomy} <= {"stop", "length"}


def test_one_token_each_is_n_samples_of_one_row_of_logits():
    llm = engine()
    outputs = llm.generate([PROMPT], SamplingParams(max_tokens=1, seed=1), n=6)[0].outputs
    assert [out.finish_reason for out in outputs] == ["length"] * 6
    assert len({out.token_ids[0] for out in outputs}) > 1
    assert (llm.stats.num_steps, llm.stats.num_scheduled_tokens) == (1, len(PROMPT))


def test_requests_without_a_seed_differ_and_the_engines_seed_brings_them_back():
    params = SamplingParams(max_tokens=8, temperature=2.0)
    first, second = (out.outputs[0].token_ids for out in engine().generate([PROMPT, PROMPT], params))
    assert first != second
    assert [out.outputs[0].token_ids for out in engine().generate([PROMPT, PROMPT], params)] == [first, second]
    assert engine(seed=1).generate([PROMPT], params)[0].outputs[0].token_ids != first


def test_an_aborted_request_says_nothing_more_and_the_others_go_on():
    llm = engine()
    llm.add_request("stays", PROMPT, greedy())
    llm.add_request("goes", PROMPT[:2], SamplingParams(), n=3)
    llm.step()
    llm.abort("goes")
    llm.abort("never came")
    said = []
    while llm.has_unfinished_requests:
        said += [(delta.request_id, *delta.new_token_ids) for delta in llm.step()]
    assert said == [("stays", token) for token in SAID[1:]]
    assert llm.step() == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt of request '1' is empty"),
        ("text", "the prompt of request '1' is text, and there is no tokenizer"),
        ([1, VOCAB_SIZE], f"token 1 of request '1' is {VOCAB_SIZE}; the model knows 0 to {VOCAB_SIZE - 1}"),
        ([1, -1], f"token 1 of request '1' is -1; the model knows 0 to {VOCAB_SIZE - 1}"),
        *[
            (value, f"the prompt of request '1' is {type(value).__name__}: it must be text or a list of token ids")
            for value in (b"abc", bytearray(b"abc"), memoryview(b"abc"), {1, 2}, {1: 2}, 5, None, torch.tensor([1, 2]))
        ],
        *[
            ([1, value], f"token 1 of request '1' is {value!r}, which is not an integer")
            for value in ("a", b"a", True, torch.tensor(True), 1.5)
        ],
        ([1] * 60, "request '1' of 60 tokens leaves no room for output: max_model_len is 60"),
        ([1] * 58, "the pool has 5"),
    ],
)
def test_if_one_prompt_is_bad_none_is_added(prompt, message):
    """The good one before it is taken back, and the engine is as it was."""
    config = EngineConfig(block_size=4, num_blocks=6, scheduler=SchedulerConfig(max_model_len=60))
    llm = LLMEngine(MODEL, config=config)
    with pytest.raises((PromptError, ConfigError), match=re.escape(message)):
        llm.generate([PROMPT, prompt], greedy())
    assert not llm.has_unfinished_requests and not llm.scheduler.has_unfinished_requests
    assert llm.stats.num_steps == 0
    assert only(llm.generate([PROMPT], greedy()))[0] == SAID


def test_misuse_is_told_where_it_happens():
    llm = engine()
    with pytest.raises(PromptError, match=re.escape("prompts is a string, not a list of them: write ['hello']")):
        llm.generate("hello")
    no_lists: list[Any] = [b"abc", 5, {1: [2]}, iter([[1]])]
    for prompts in no_lists:
        with pytest.raises(PromptError, match=f"prompts is {type(prompts).__name__}: it must be a list"):
            llm.generate(prompts)
    with pytest.raises(ConfigError, match="there are 1 prompts and 2 params"):
        llm.generate([PROMPT], [greedy(), greedy()])
    with pytest.raises(ConfigError, match="n of request '0' is 0"):
        llm.generate([PROMPT], n=0)
    with pytest.raises(ConfigError, match="but the engine has no tokenizer"):
        llm.generate([PROMPT], greedy(stop=("x",)))
    llm.add_request("a", PROMPT, n=3)
    for name in ("a", "a/2"):
        with pytest.raises(RepeatedRequestError, match=f"request id '{name}' is in use"):
            llm.add_request(name, PROMPT)
    with pytest.raises(ConfigError, match="are not done: call step until they are"):
        llm.generate([PROMPT])
    with pytest.raises(ConfigError, match="both set the size of the pool"):
        EngineConfig(num_blocks=4, kv_cache_memory_bytes=1000)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, it must be at least 1"),
        ({"temperature": -0.1}, "temperature is -0.1, it must be 0 or a positive number"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1, it must be at least 1, or 0 for all tokens"),
        ({"top_p": 0.0}, "top_p is 0.0, it must be above 0.0 and at most 1.0"),
        ({"top_p": 1.01}, "top_p is 1.01, it must be above 0.0 and at most 1.0"),
        ({"stop": "###"}, "stop is a string: write ('###',)"),
        ({"stop": ("",)}, "a text in stop is empty"),
    ],
)
def test_parameters_that_cannot_work_are_refused_when_they_are_made(wrong, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        SamplingParams(**wrong)


def test_a_name_is_free_again_when_all_samples_are_done():
    llm = engine()
    llm.add_request(
        "a", PROMPT, SamplingParams(max_tokens=9, temperature=1.5, seed=2, stop_token_ids=tuple(range(0, 40, 6))), n=5
    )
    ended = []
    while 0 not in ended:
        ended += [delta.index for delta in llm.step() if delta.finish_reason]
    assert len(ended) < 5
    with pytest.raises(RepeatedRequestError):
        llm.add_request("a", PROMPT)
    while llm.has_unfinished_requests:
        llm.step()
    llm.add_request("a", PROMPT)


def test_memory_in_bytes_becomes_blocks():
    """Two layers, keys and values, 4 tokens, 2 heads, 8 numbers of 8 bytes: 2,048 bytes per block."""
    llm = LLMEngine(MODEL, config=EngineConfig(block_size=4, kv_cache_memory_bytes=21_000))
    assert llm.kv_cache_manager.kv_cache_config.num_blocks == 10
    assert [list(tensor.shape) for tensor in llm.model_runner.kv_cache_tensors] == [[10, 128], [10, 128]]


def test_layers_of_different_groups_share_their_memory():
    """One full and one windowed layer: two groups, and one tensor that both look at."""
    model = small_model(sliding_window=5, window_layers=(1,))
    llm = LLMEngine(model, config=EngineConfig(block_size=4, num_blocks=10))
    (tensor,) = llm.model_runner.kv_cache_tensors
    (full, group_of_full), (window, group_of_window) = llm.model_runner.layers
    assert (group_of_full, group_of_window) == (0, 1)
    assert full.data.data_ptr() == window.data.data_ptr() == tensor.data_ptr()
    assert list(full.data.shape) == [10, 2, 4, 2, 8]


def test_the_line_in_the_log():
    llm = engine()
    times = iter([10.0, 12.0, 12.0])
    logger = StatLogger(llm.scheduler, llm.stats, clock=lambda: next(times))
    llm.add_request("a", [*PROMPT, 1, 2, 3, 4], greedy(max_tokens=4))
    llm.step()
    llm.add_request("b", [*PROMPT, 1, 2, 3, 9], greedy(max_tokens=4))
    llm.add_request("c", [7], greedy(max_tokens=4))
    llm.step()
    llm.add_request("d", [8], greedy(max_tokens=4))
    # 9 + 9 + 1 prompt tokens and 1 + 3 new ones in two seconds; a and b share two blocks, and c has one: 5 of 19.
    # Two blocks of four tokens are found: 8 of the 19 tokens of a, b and c.
    assert logger.line() == (
        "Avg prompt throughput: 9.5 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
        "Waiting: 1 reqs, KV cache usage: 26.3%, Prefix cache hit rate: 42.1%"
    )
    assert logger.line().startswith("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s")


def test_the_hit_rate_is_of_the_last_requests() -> None:
    metrics = CachingMetrics(max_recent_requests=2)
    rates = [metrics.hit_rate]
    for num_tokens, num_hits in ((100, 0), (50, 50), (50, 25), (50, 25)):
        metrics.observe(num_tokens, num_hits)
        rates.append(metrics.hit_rate)
    assert rates == [0.0, 0.0, 50 / 150, 0.75, 0.5]
