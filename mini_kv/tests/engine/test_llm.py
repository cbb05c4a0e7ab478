"""`LLM`: a folder, and what it says."""

import re

import pytest

from mini_kv import LLM, ConfigError, EngineConfig, SamplingParams, SchedulerConfig
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.errors import CheckpointError
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.prompt_tokens import PromptError

GREEDY = SamplingParams(max_tokens=8, temperature=0)
TEXT = "A block is free when"


@pytest.fixture(scope="module")
def llm():
    return LLM(block_size=4)


def test_one_line_says_what_the_engine_says(llm):
    (output,) = llm.generate(TEXT, GREEDY)
    model, tokenizer = load_model(tiny_folder())
    (right,) = LLMEngine(model, tokenizer, EngineConfig(num_blocks=65)).generate([TEXT], GREEDY)
    assert (output.prompt, output.prompt_token_ids) == (TEXT, tokenizer.encode(TEXT))
    assert output.outputs == right.outputs
    assert output.finished and output.outputs[0].finish_reason == "length"


@pytest.mark.slow
def test_prompts_come_in_each_of_vllms_forms(llm):
    ids = llm.get_tokenizer().encode(TEXT)
    forms = [TEXT, ids, {"prompt": TEXT}, {"prompt_token_ids": ids}, [TEXT], [ids], [{"prompt": TEXT}]]
    outputs = [llm.generate(form, GREEDY) for form in forms]
    assert [len(each) for each in outputs] == [1] * 7
    assert len({tuple(each[0].outputs[0].token_ids) for each in outputs}) == 1
    assert [each[0].prompt for each in outputs] == [TEXT, None, TEXT, None, TEXT, None, TEXT]


def test_a_prompt_that_was_read_before_is_found_and_each_has_its_parameters(llm):
    longer = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    params = [longer, SamplingParams(max_tokens=2, temperature=0, logprobs=1)]
    first, second = llm.generate(["The cache remembers what it has read"] * 2, params, n=2)
    assert [len(sample.token_ids) for sample in (*first.outputs, *second.outputs)] == [8, 8, 2, 2]
    (again,) = llm.generate("The cache remembers what it has read", GREEDY)
    whole_blocks = (len(again.prompt_token_ids) - 1) // 4
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 4 * whole_blocks)
    logprobs = second.outputs[0].logprobs
    assert logprobs is not None and [list(each) for each in logprobs] == [[t] for t in second.outputs[0].token_ids]


def test_the_length_is_the_models_and_the_pool_holds_a_text_of_it(llm):
    """512 tokens, prompt and answer; of the pool's 64 MiB, the least that is taken, that is a small part."""
    assert llm.max_model_len == 512
    (output,) = llm.generate([[7] * 500], SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (12, "length")
    assert LLM(max_model_len=64).max_model_len == 64


def test_sizes_and_limits_have_vllms_names():
    config = EngineConfig.from_engine_args(
        block_size=8,
        num_gpu_blocks_override=40,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        max_model_len=100,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        kv_cache_dtype="fp8",
        seed=5,
    )
    limits = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=64, max_model_len=100, enable_chunked_prefill=False)
    assert config == EngineConfig(8, 40, enable_prefix_caching=False, scheduler=limits, kv_cache_dtype="fp8", seed=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu_memory_utilization": 0.9}, "there is no option gpu_memory_utilization: no forward is measured"),
        (
            {"tensor_parallel_size": 2},
            "there is no option tensor_parallel_size: the engine is one process",
        ),
        ({"enable_lora": True}, "there is no option enable_lora: there are no adapters"),
        ({"max_seqs": 3}, "there is no option max_seqs: there are: backend, block_size, debug_poison, enable_chunked_"),
        ({"scheduler": None}, "there is no option scheduler: there are: "),
        ({"block_size": 0}, "block_size is 0, it must be at least 1"),
        ({"dtype": "int8"}, "dtype is 'int8', it must be auto or one of float64, float32, float16, bfloat16"),
    ],
)
def test_an_option_that_is_not_here_is_named_with_the_reason(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        LLM(**options)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (7, "prompts is int: it must be a text, token ids, or a list of these"),
        (b"bytes", "prompts is bytes: it must be a text, token ids, or a list of these"),
        ({"text": "a"}, "a prompt has the keys ['text'], it must have prompt or prompt_token_ids"),
        ([TEXT, ""], "is empty: there is nothing to continue"),
        ("good " * 200_000, "the model reads at most 512, answer included"),
    ],
)
def test_what_is_no_prompt_is_refused_and_the_next_one_is_answered(prompts, said, llm):
    with pytest.raises(PromptError, match=re.escape(said)):
        llm.generate(prompts, GREEDY)
    assert llm.generate(TEXT, GREEDY)[0].finished
    assert llm.generate([]) == []


def test_a_folder_that_is_not_there_is_named_and_nothing_is_downloaded(tmp_path):
    with pytest.raises(CheckpointError, match=re.escape("meta-llama/Llama-3.2-1B/config.json: there is no such file")):
        LLM("meta-llama/Llama-3.2-1B")


def test_the_small_model_has_learned_no_chat(llm):
    with pytest.raises(ConfigError, match="this is not a chat model: its tokenizer has no chat template"):
        llm.chat([{"role": "user", "content": "hello"}])


@pytest.mark.slow
def test_tiers_are_an_option_and_give_the_same_words(tmp_path):
    """Memory and disk bring back what a pool of eight blocks lost. The next engine finds what had gone down to disk."""
    prompts = [[number, *range(40, 60)] for number in range(4)]
    plain = LLM(block_size=4, num_blocks=9)
    right = [plain.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    tiers = {"memory_bytes": 60_000, "disk_folder": str(tmp_path), "disk_bytes": 8 << 20, "seconds_to_wait": 5.0}
    hits = []
    for _ in range(2):
        with LLM(block_size=4, num_blocks=9, kv_tiers=tiers) as llm:
            for _ in range(2):
                outputs = [llm.generate([prompt], GREEDY)[0] for prompt in prompts]
                assert [output.outputs[0].token_ids for output in outputs] == right
                hits.append([output.num_cached_tokens for output in outputs])
    assert hits == [[0] * 4, [20] * 4, [20, 0, 0, 0], [20] * 4]


@pytest.mark.parametrize(
    ("tiers", "problem"),
    [
        ({"disk": "x"}, "kv_tiers has no option disk: there are memory_bytes, disk_folder, disk_bytes, server"),
        ({"memory_bytes": 0}, "memory_bytes is 0, it must be at least 1"),
        ({"reload": "never"}, "reload is 'never', it must be 'always' or 'cheaper'"),
        ({"is_cluster": True}, "is_cluster needs a server tier, but no server is given"),
    ],
)
def test_tiers_that_cannot_be_are_refused_by_name(tiers, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        LLM(kv_tiers=tiers)
