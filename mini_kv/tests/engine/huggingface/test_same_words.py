"""The engine says what transformers' own `generate` says: whatever is cached, cut, preempted or forked on the way.

Twenty prompts for each architecture, greedily, in float64 (see `checkpoints`); memory that no request may read is NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import ContiguousCache, NoCache, generate_alone
from mini_kv.engine.hf.hf_checkpoint import load_huggingface
from mini_kv.engine.hf.hf_model import SUPPORTED
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.huggingface.checkpoints import (
    LENGTHS,
    NUM_FAMILIES,
    NUM_NEW_TOKENS,
    SMALLEST_GAP,
    load_reference,
)

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0)
ROOMY = EngineConfig(block_size=4, num_blocks=400, debug_poison=True)
CUT = replace(ROOMY, scheduler=SchedulerConfig(max_num_batched_tokens=16))
WITHOUT_CACHE = replace(CUT, enable_prefix_caching=False)


class Watched(ModelRunner):
    """Remembers what it was told to do."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.num_hit_tokens = self.num_cut_prompts = self.num_copies = 0

    def execute_model(self, output):
        self.num_copies += len(output.kv_cache_block_copies)
        for new in output.scheduled_new_reqs:
            self.num_hit_tokens += new.num_computed_tokens
            left = len(new.token_ids) - new.num_computed_tokens
            self.num_cut_prompts += output.num_scheduled_tokens[new.request_id] < left
        return super().execute_model(output)


@dataclass(frozen=True, slots=True)
class Run:
    """What an engine said, and what happened meanwhile."""

    answers: list[list[int]]
    num_hit_tokens: int
    num_cut_prompts: int
    num_preemptions: int
    num_copies: int


def run(checkpoint, config, prompts: Sequence[list[int]], n=1, params=GREEDY):
    model, _ = load_huggingface(checkpoint.folder, dtype=checkpoint.dtype)
    engine = LLMEngine(model, None, config, make_runner=Watched)
    runner = engine.model_runner
    assert isinstance(runner, Watched)
    outputs = engine.generate(prompts, params, n=n)
    answers = [sample.token_ids for output in outputs for sample in output.outputs]
    return Run(
        answers, runner.num_hit_tokens, runner.num_cut_prompts, engine.scheduler.num_preemptions, runner.num_copies
    )


def tight(checkpoint):
    """Return a pool that holds little more than the longest request: a group of full layers, one or two of windows."""
    model, _ = load_huggingface(checkpoint.folder, dtype=checkpoint.dtype)
    specs = model.get_kv_cache_spec(block_size=4).values()
    num_full, num_windows = (sum(isinstance(s, FullAttentionSpec) is full for s in specs) for full in (True, False))
    full_blocks = -(-(max(LENGTHS) + NUM_NEW_TOKENS) // 4)
    return replace(CUT, num_blocks=2 + full_blocks + 10 * num_windows if num_full and num_windows else 4 + full_blocks)


@pytest.mark.parametrize("name", SUPPORTED)
def test_twenty_prompts_that_share_prefixes_get_the_answers_of_transformers(name, made):
    checkpoint = made(name)
    assert len(checkpoint.prompts) == 20
    assert checkpoint.smallest_gap > SMALLEST_GAP
    one_of_each_family = SchedulerConfig(max_num_seqs=NUM_FAMILIES)
    happened = run(checkpoint, replace(ROOMY, scheduler=one_of_each_family), checkpoint.prompts)
    assert happened.answers == checkpoint.answers
    # A family's prompts begin alike: 5, 14, 21, 30, 37 tokens find 0, 4, 12, 20, 28 of the one before in the cache.
    assert happened.num_hit_tokens == NUM_FAMILIES * (0 + 4 + 12 + 20 + 28)


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.slow
def test_so_they_do_if_prompts_are_cut_with_the_cache_and_without(name, made):
    checkpoint = made(name)
    with_cache, without = (run(checkpoint, config, checkpoint.prompts) for config in (CUT, WITHOUT_CACHE))
    assert with_cache.answers == without.answers == checkpoint.answers
    assert with_cache.num_cut_prompts > 5
    assert without.num_cut_prompts > 5
    assert with_cache.num_hit_tokens > 0 == without.num_hit_tokens


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.slow
def test_so_they_do_if_the_pool_is_so_small_that_requests_are_preempted(name, made):
    checkpoint = made(name)
    short = run(checkpoint, tight(checkpoint), checkpoint.prompts)
    assert short.answers == checkpoint.answers
    assert short.num_preemptions > 0


class KeepsLogits(ModelRunner):
    """Remembers the logits of every step, by request."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.logits: dict[str, list[torch.Tensor]] = {}
        self.on_logits = self._keep

    def _keep(self, request_ids, logits):
        for request_id, row in zip(request_ids, logits, strict=True):
            self.logits.setdefault(request_id, []).append(row)


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.slow
def test_in_float32_the_logits_of_every_step_are_those_of_transformers_to_a_ten_thousandth(name, made):
    """Prompts in pieces, with hits, against one forward of transformers over each prompt and its answer."""
    checkpoint = made(name)
    model, _ = load_huggingface(checkpoint.folder, dtype=torch.float32)
    engine = LLMEngine(model, None, CUT, make_runner=KeepsLogits)
    assert isinstance(engine.model_runner, KeepsLogits)
    outputs = engine.generate(checkpoint.prompts, GREEDY)
    theirs = load_reference(checkpoint.folder, torch.float32)
    furthest = 0.0
    for output, prompt, answer in zip(outputs, checkpoint.prompts, checkpoint.answers, strict=True):
        assert output.outputs[0].token_ids == answer
        with torch.inference_mode():
            right = theirs(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        ours = torch.stack(engine.model_runner.logits[output.request_id])
        furthest = max(furthest, float((ours - right).abs().max()))
    assert furthest < 1e-4


def test_preempted_requests_that_find_none_of_their_blocks_cached_get_the_answers_of_transformers(made):
    checkpoint = made("gemma3_text")
    short = run(checkpoint, replace(tight(checkpoint), enable_prefix_caching=False), checkpoint.prompts)
    assert short.answers == checkpoint.answers
    assert short.num_preemptions > 0 == short.num_hit_tokens


WITHOUT_STATES = [name for name in SUPPORTED if name != "minimax"]


@pytest.mark.parametrize("name", WITHOUT_STATES)
@pytest.mark.slow
def test_three_samples_forked_from_one_prompt_say_the_same_three_times(name, made):
    checkpoint = made(name)
    forked = run(checkpoint, CUT, checkpoint.prompts, n=3)
    assert forked.answers == [answer for answer in checkpoint.answers for _ in range(3)]
    assert forked.num_copies > 0


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_samples_that_part_ways_after_the_fork_are_those_of_an_engine_without_forks_or_cache(name, made):
    checkpoint, drawn = made(name), SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=1.0, seed=3)
    forked = run(checkpoint, CUT, checkpoint.prompts, n=3, params=drawn)
    alone = replace(ROOMY, enable_prefix_caching=False, scheduler=SchedulerConfig(max_num_seqs=1))
    by_itself = run(checkpoint, alone, checkpoint.prompts[-4:], n=3, params=drawn)
    assert forked.num_copies > 0 == by_itself.num_copies
    assert forked.answers[-12:] == by_itself.answers
    assert len({tuple(answer) for answer in forked.answers}) > 50  # of 60: they do part ways


@pytest.mark.parametrize("name", WITHOUT_STATES)
@pytest.mark.slow
def test_a_contiguous_cache_and_no_cache_say_the_same(name, made):
    checkpoint = made(name)
    model, _ = load_huggingface(checkpoint.folder, dtype=checkpoint.dtype)
    answers = [
        generate_alone(model, prompt, NUM_NEW_TOKENS, ContiguousCache(model, len(prompt) + NUM_NEW_TOKENS))
        for prompt in checkpoint.prompts
    ]
    assert answers == checkpoint.answers
    longest, right = checkpoint.prompts[-1], checkpoint.answers[-1]
    assert generate_alone(model, longest, NUM_NEW_TOKENS, NoCache()) == right


@pytest.mark.parametrize("windows", [False, True])
def test_the_small_model_that_comes_along_says_the_same_by_way_of_transformers(windows):
    """Its sister with windows, too: transformers knows that one as a Ministral."""
    ours, our_tokenizer = load_model(tiny_folder(windows=windows), dtype=torch.float64)
    theirs, their_tokenizer = load_huggingface(tiny_folder(windows=windows), dtype=torch.float64, untested=windows)
    assert their_tokenizer is not None
    to_the_end = replace(GREEDY, ignore_eos=True)
    texts = ["The cache remembers keys and values", "Two people ask the same question", "A block is"]
    said = [
        [output.outputs[0].text for output in LLMEngine(model, tokenizer, CUT).generate(texts, to_the_end)]
        for model, tokenizer in ((ours, our_tokenizer), (theirs, their_tokenizer))
    ]
    assert said[0] == said[1]
    assert all(said[0])
