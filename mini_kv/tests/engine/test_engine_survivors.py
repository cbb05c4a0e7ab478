"""Bugs of the engine's loop and runner that the tests once let through: a story for each that fails on it."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.kv_memory import allocate_kv_cache_tensors
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.output_processor import CompletionOutput, RequestOutput
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.small_models import VOCAB_SIZE
from mini_kv.tests.engine.test_llm_engine import MODEL, PROMPT, SAID, engine, greedy


def test_all_that_is_known_of_a_request_comes_with_its_output():
    llm = engine()
    llm.generate([PROMPT], greedy(3))
    assert llm.generate([PROMPT], greedy(3)) == [
        RequestOutput("1", PROMPT, [CompletionOutput(0, SAID[:3], "", "length")], num_cached_tokens=4)
    ]
    assert (llm.stats.num_steps, llm.stats.num_generation_tokens) == (6, 6)
    assert (llm.stats.num_prompt_tokens, llm.stats.num_scheduled_tokens) == (10, 5 + 2 + 1 + 2)


def test_samples_without_a_stop_have_as_many_tokens_as_they_may():
    (output,) = engine().generate([PROMPT], SamplingParams(max_tokens=4, temperature=1.5, seed=3), n=4)
    assert [(len(out.token_ids), out.finish_reason) for out in output.outputs] == [(4, "length")] * 4


def test_a_further_sample_may_end_with_its_first_token():
    stops = tuple(range(0, VOCAB_SIZE, 2))
    (output,) = engine().generate([PROMPT], SamplingParams(temperature=3.0, seed=1, stop_token_ids=stops), n=8)
    assert {len(out.token_ids) for out in output.outputs[1:]} > {1}
    assert {out.finish_reason for out in output.outputs if out.token_ids[-1] in stops} == {"stop"}


def test_a_seed_says_the_same_whatever_came_before():
    llm, params = engine(), SamplingParams(max_tokens=8, temperature=2.0, seed=7)
    first, second = (llm.generate([PROMPT], params)[0].outputs[0].token_ids for _ in range(2))
    assert first == second


def test_by_priority_the_smallest_is_served_first_and_the_default_is_0():
    limits = SchedulerConfig(max_num_seqs=1, policy=SchedulingPolicy.PRIORITY)
    llm = LLMEngine(MODEL, config=EngineConfig(block_size=4, num_blocks=20, scheduler=limits))
    llm.add_request("last", PROMPT, greedy(1), priority=2)
    llm.add_request("second", PROMPT, greedy(1), priority=1)
    llm.add_request("first", PROMPT, greedy(1))
    assert [[delta.request_id for delta in llm.step()] for _ in range(3)] == [["first"], ["second"], ["last"]]


def test_a_step_of_no_tokens_has_no_logits():
    request_ids, logits = engine().model_runner.execute_model(SchedulerOutput())
    assert (request_ids, list(logits.shape)) == ([], [0, VOCAB_SIZE])


def test_a_runner_by_itself_chooses_its_backend():
    runner = ModelRunner(MODEL, engine().kv_cache_manager.kv_cache_config, max_num_seqs=1, max_model_len=8)
    assert runner.backend == engine().model_runner.backend == "auto"


def test_a_layer_that_keeps_something_else_is_named():
    state = KVCacheGroupSpec(("layer.3",), MambaSpec(4, shapes=((2,),), dtypes_bytes=(8,)))
    with pytest.raises(ConfigError, match=r"^layer\.3 keeps no keys and values, but MambaSpec$"):
        allocate_kv_cache_tensors(MODEL, KVCacheConfig(4, (state,)))
