"""Drafts: what is proposed, what is kept, and that the words are those of an engine without them."""

import random
from dataclasses import replace

import pytest
import torch

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.drafts import NgramProposer, SpeculativeConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.small_models import VOCAB_SIZE, alone, first_samples, prompts_with_shared_prefixes
from mini_kv.tests.engine.test_says_the_same import CONFIGS, MODELS, engine

EAGER = SpeculativeConfig(4, prompt_lookup_min=1, prompt_lookup_max=3)
"""Proposes as soon as one token was there before: often, and often wrongly."""
GREEDY = SamplingParams(max_tokens=12, temperature=0)


def with_drafts(llm: LLMEngine, config: SpeculativeConfig = EAGER) -> LLMEngine:
    """Return another engine like this one, but with drafts."""
    return LLMEngine(llm.model, llm.tokenizer, replace(llm.config, speculative_config=config))


def texts(llm: LLMEngine, prompts, params=GREEDY, n=1):
    """Return what the engine says."""
    return [sample.token_ids for output in llm.generate(prompts, params, n=n) for sample in output.outputs]


# What is proposed.


@pytest.mark.parametrize(
    ("text", "lengths", "most", "drafts"),
    [
        ("abcdeab", (2, 3), 4, "cdea"),
        ("abcdeab", (3, 3), 4, ""),  # "eab" stands there once
        ("abcdeab", (2, 3), 2, "cd"),
        ("abcdeab", (2, 3), 0, ""),
        ("abxabyab", (2, 3), 4, "xaby"),  # of two places the first
        ("cabxabycab", (2, 3), 4, "xaby"),  # the longer end counts: "cab" before the x
        ("abxcaby.cab", (2, 2), 1, "x"),
        ("abxcaby.cab", (2, 3), 1, "y"),
        ("aaaa", (2, 3), 4, "a"),  # an end may overlap with its earlier place
        ("abab", (1, 2), 4, "ab"),
        ("ab", (2, 3), 4, ""),
        ("a", (1, 5), 4, ""),
    ],
)
def test_what_stood_behind_the_same_end_is_proposed(text, lengths, most, drafts):
    proposer = NgramProposer(SpeculativeConfig(4, prompt_lookup_min=lengths[0], prompt_lookup_max=lengths[1]))
    assert "".join(map(chr, proposer.propose([ord(letter) for letter in text], most))) == drafts


# What is kept.


class Counts:
    """A model that says the next number, from 0 to 9 and from the start again, and needs no cache for it."""

    vocab_size, max_position_embeddings, settings = 10, 100, "counts"
    dtype, device = torch.float32, torch.device("cpu")

    def named_parameters(self):
        return iter(())

    def get_kv_cache_spec(self, block_size):
        return {"layer": FullAttentionSpec(block_size, dtype_bytes=4)}

    def forward(self, token_ids, positions, attend, logits_indices):
        return torch.nn.functional.one_hot((token_ids[logits_indices] + 1) % 10, 10).float()


def test_right_drafts_make_five_tokens_a_step():
    """After 0 to 9 and 0, 1 all is foreseen: a step for the prompt, then 5 tokens each; at last there is room for 2."""
    llm = LLMEngine(Counts(), config=EngineConfig(4, 40, speculative_config=EAGER))
    assert texts(llm, [[*range(10), 0, 1]], SamplingParams(max_tokens=18, temperature=0)) == [
        [2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    ]
    stats = llm.stats
    assert (stats.num_steps, stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 13, 13)
    assert (stats.num_generation_tokens, stats.num_scheduled_tokens) == (18, 12 + 4 + 13)


def test_from_the_first_wrong_draft_on_none_is_kept():
    """The text has 3 after 2 once, and then 9 after 3: drafts 3, 9, 9, 9 are right, wrong, wrong, wrong."""
    llm = LLMEngine(Counts(), config=EngineConfig(4, 40, speculative_config=SpeculativeConfig(4, prompt_lookup_min=1)))
    assert texts(llm, [[2, 3, 9, 9, 9, 1]], SamplingParams(max_tokens=3, temperature=0)) == [[2, 3, 4]]
    assert (llm.stats.num_draft_tokens, llm.stats.num_accepted_tokens, llm.stats.num_steps) == (1, 1, 2)


@pytest.mark.parametrize(("min_tokens", "said"), [(3, [1, 2, 3, 4]), (4, [1, 2, 3, 0, 1, 2, 3, 4])])
def test_what_must_not_come_yet_is_forbidden_place_by_place(min_tokens, said):
    """4 ends the text, and 4 is the fourth token: of five places in one step it is allowed from one of them on."""
    llm = LLMEngine(Counts(), config=EngineConfig(4, 40, speculative_config=EAGER))
    params = SamplingParams(max_tokens=12, temperature=0, stop_token_ids=(4,), min_tokens=min_tokens)
    assert texts(llm, [[*range(10), 0]], params) == [said]
    assert llm.stats.num_steps < len(said)


class Digits:
    """Each token is its digit."""

    eos_token_id: int | None = None

    def encode(self, text):
        return [int(letter) for letter in text]

    def decode_bytes(self, token_ids):
        return "".join(map(str, token_ids)).encode()


def test_a_text_that_ends_a_request_in_the_midst_of_a_step_is_its_end():
    """1, then 2 3 4 5 6 in one step; the text ends before "34", and what the step has behind it is not told."""
    llm = LLMEngine(Counts(), Digits(), EngineConfig(4, 40, speculative_config=EAGER))
    params = SamplingParams(max_tokens=12, temperature=0, stop=("34",), logprobs=0)
    said = llm.generate(["01234567890"], params)[0].outputs[0]
    assert (said.text, said.token_ids, said.finish_reason) == ("12", [1, 2, 3, 4], "stop")
    assert said.logprobs is not None and [list(each) for each in said.logprobs] == [[1], [2], [3], [4]]
    assert (llm.stats.num_steps, llm.stats.num_generation_tokens) == (2, 4)
    assert llm.kv_cache_manager.usage == 0.0 and not llm.has_unfinished_requests


# The words stay.


@pytest.mark.slow
@pytest.mark.parametrize("config_name", CONFIGS)
@pytest.mark.parametrize("model_name", MODELS)
def test_the_words_are_those_of_no_cache(model_name, config_name):
    """Chunks, preemptions, windows, priorities; NaN wherever none may read; nothing is held in the end."""
    prompts = prompts_with_shared_prefixes(10)
    llm = with_drafts(engine(model_name, config_name))
    assert texts(llm, prompts) == alone(MODELS[model_name], prompts, 12)
    assert 0 < llm.stats.num_accepted_tokens < llm.stats.num_draft_tokens
    assert llm.kv_cache_manager.usage == 0.0
    if config_name == "few blocks" and model_name != "windows everywhere":
        assert llm.scheduler.num_preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("model_name", MODELS)
def test_no_wrong_draft_is_ever_found_in_the_cache(model_name):
    """A second round hits as much as after an engine without drafts, and says the same: names are of right tokens."""
    prompts = prompts_with_shared_prefixes(12)
    answers = alone(MODELS[model_name], prompts, 12)
    longer = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    found = []
    for llm in (engine(model_name, "roomy"), with_drafts(engine(model_name, "roomy"))):
        assert texts(llm, prompts) == answers
        outputs = llm.generate(longer, GREEDY)
        found.append([output.num_cached_tokens or 0 for output in outputs])
        assert first_samples(outputs) == alone(MODELS[model_name], longer, 12)
    assert found[0] == found[1]
    assert min(found[0]) > 0


@pytest.mark.slow
def test_what_is_drawn_is_the_same_and_so_are_log_probabilities_and_forks():
    """Seeds, tails that are cut, tokens that must not come yet, tokens that end it, three samples each."""
    prompts = prompts_with_shared_prefixes(8)
    plain = engine("one full layer of three", "few blocks")
    drafting = with_drafts(plain)
    for choice in (
        SamplingParams(max_tokens=12, temperature=0.4, seed=3, logprobs=2),
        SamplingParams(max_tokens=12, temperature=1.0, top_k=3, seed=4),
        SamplingParams(max_tokens=12, temperature=0, stop_token_ids=(3, 7, 20), min_tokens=4, logprobs=0),
        SamplingParams(max_tokens=12, temperature=0.7, min_p=0.2, top_p=0.9, stop_token_ids=(1,)),
    ):
        ours, theirs = (llm.generate(prompts, replace(choice, seed=9), n=3) for llm in (drafting, plain))
        for one, other in zip(ours, theirs, strict=True):
            for mine, right in zip(one.outputs, other.outputs, strict=True):
                assert (mine.token_ids, mine.finish_reason) == (right.token_ids, right.finish_reason)
                assert (mine.logprobs is None) is (choice.logprobs is None)
                for at, also in zip(mine.logprobs or (), right.logprobs or (), strict=True):
                    assert {token: seen.rank for token, seen in at.items()} == {
                        t: seen.rank for t, seen in also.items()
                    }
                    assert [seen.logprob for seen in at.values()] == pytest.approx(
                        [seen.logprob for seen in also.values()], abs=1e-9
                    )
    assert drafting.stats.num_accepted_tokens > 0


@pytest.mark.slow
def test_two_hundred_prompts_with_everything_at_once():
    """Short pools that preempt, windows, chunks, seeds, stops, samples, 1 to 6 drafts: all texts are the plain ones."""
    rng = random.Random(7)
    num_accepted = num_preemptions = num_prompts = 0
    for model_name in MODELS:
        for config_name in ("few blocks", "prompts in small chunks"):
            prompts = prompts_with_shared_prefixes(25, seed=rng.randrange(1000))
            params = [
                SamplingParams(
                    max_tokens=rng.randrange(1, 14),
                    temperature=rng.choice((0, 0, 0.3, 1.0)),
                    seed=number,
                    stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.choice((0, 1)))),
                )
                for number in range(len(prompts))
            ]
            plain = engine(model_name, config_name)
            lowest = rng.randrange(1, 3)
            drafting = with_drafts(plain, SpeculativeConfig(rng.randrange(1, 7), "ngram", 3, lowest))
            n = rng.choice((1, 2))
            assert texts(drafting, prompts, params, n) == texts(plain, prompts, params, n)
            num_accepted += drafting.stats.num_accepted_tokens
            num_preemptions += drafting.scheduler.num_preemptions
            num_prompts += len(prompts)
    assert num_prompts == 200 and num_accepted > 40 and num_preemptions > 20


# Options.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0, it must be from 1 to 64"),
        (
            {"num_speculative_tokens": 4, "method": "eagle"},
            "it must be 'ngram', which takes drafts from the text itself",
        ),
        (
            {"num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 2},
            "prompt_lookup_min is 3 and prompt_lookup_max 2: they must be at least 1, and the first no larger",
        ),
        ({"num_speculative_tokens": 4, "model": "x"}, "speculative_config has no option model: there are num_specul"),
        ({"prompt_lookup_max": 2}, "speculative_config needs num_speculative_tokens"),
    ],
)
def test_options_that_cannot_be_are_named(options, said):
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_engine_args(speculative_config=options)
    assert said in str(error.value)


def test_options_have_the_names_and_defaults_of_vllm():
    five = EngineConfig.from_engine_args(speculative_config={"num_speculative_tokens": 3}).speculative_config
    assert five == SpeculativeConfig(3, "ngram", prompt_lookup_max=5, prompt_lookup_min=5)
    two = EngineConfig.from_engine_args(
        speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    )
    assert two.speculative_config == SpeculativeConfig(3, "ngram", prompt_lookup_max=2, prompt_lookup_min=2)


def test_drafts_share_the_budget_of_a_step():
    """6 tokens per step for two requests: the second one's drafts are cut."""
    limits = SchedulerConfig(max_num_batched_tokens=6)
    llm = LLMEngine(Counts(), config=EngineConfig(4, 40, scheduler=limits, speculative_config=EAGER))
    params = SamplingParams(max_tokens=9, temperature=0)
    assert texts(llm, [[*range(10)], [*range(10), 0]], params) == [[*range(9)], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert llm.stats.num_accepted_tokens == llm.stats.num_draft_tokens > 0


@pytest.mark.parametrize("budget", [4, 8, 16])
@pytest.mark.parametrize("n", [1, 3])
def test_nothing_is_proposed_before_the_first_own_token(n, budget):
    """A chunk ends one token before the prompt's end. The next step computes one token, and the samples begin there."""
    limits = SchedulerConfig(max_num_batched_tokens=budget)
    llm = LLMEngine(Counts(), config=EngineConfig(4, 40, scheduler=limits, speculative_config=EAGER))
    params = SamplingParams(max_tokens=6, temperature=0)
    assert texts(llm, [[*range(10), *range(7)]], params, n=n) == [[7, 8, 9, 0, 1, 2]] * n
    assert llm.stats.num_accepted_tokens == llm.stats.num_draft_tokens > 0
