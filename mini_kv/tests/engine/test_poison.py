"""Debug mode: memory that holds no KV is full of NaN, so a runner that reads it is found, and by name."""

import re

import pytest

from mini_kv.attention.metadata import AttentionMetadata
from mini_kv.attention.options import AttentionOptions
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model_runner import Batch, ModelRunner
from mini_kv.engine.poison import PoisonedKVError
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.small_models import alone, first_samples, prompts_with_shared_prefixes, small_model

GREEDY = SamplingParams(max_tokens=8, temperature=0)
MODEL = small_model()
WINDOWED = small_model(sliding_window=5, window_layers=(1,))


class ReadsTooFar(ModelRunner):
    """Believes that every request is one token longer than it is."""

    def _make_metadata(self, batch: Batch) -> list[AttentionMetadata]:
        batch.seq_lens = [length + 1 for length in batch.seq_lens]
        return super()._make_metadata(batch)


class KeepsStaleRows(ModelRunner):
    """Leaves the first block of the row's previous request in it."""

    def _update_states(self, output: SchedulerOutput) -> None:
        before = [table.block_table.clone() for table in self.block_tables]
        super()._update_states(output)
        for new in output.scheduled_new_reqs:
            row = self.requests[new.request_id].row
            for table, old in zip(self.block_tables, before, strict=True):
                if old[row, 0] > 0:
                    table.block_table[row, 0] = old[row, 0]


class ForgetsNewBlocks(ModelRunner):
    """Does not look at the blocks that a decoding request gets."""

    def _update_states(self, output: SchedulerOutput) -> None:
        cached = output.scheduled_cached_reqs
        cached.new_block_ids = [None] * len(cached.new_block_ids)
        super()._update_states(output)


class LooksLeftOfTheWindow(ModelRunner):
    """Treats layers with a window as if they saw everything."""

    def __init__(self, *args, wrap_attend, **options):
        def see_all(attend, batch):
            checked = wrap_attend(attend, batch)
            return lambda layer, query, key, value, _: checked(layer, query, key, value, AttentionOptions())

        super().__init__(*args, wrap_attend=see_all, **options)


def engine(runner: type[ModelRunner], *, poison: bool, model=MODEL) -> LLMEngine:
    config = EngineConfig(
        block_size=4,
        num_blocks=60,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=2),
        debug_poison=poison,
    )
    return LLMEngine(model, config=config, make_runner=runner)


def test_a_sound_runner_does_not_notice_the_poison():
    prompts = prompts_with_shared_prefixes(6)
    outputs = engine(ModelRunner, poison=True).generate(prompts, GREEDY)
    assert first_samples(outputs) == alone(MODEL, prompts, 8)


@pytest.mark.parametrize("runner", [ReadsTooFar, KeepsStaleRows, ForgetsNewBlocks])
def test_a_planted_bug_is_found_only_with_the_poison(runner):
    """Without it the engine goes on and writes something: that is why such bugs live long."""
    prompts = prompts_with_shared_prefixes(6)
    outputs = engine(runner, poison=False).generate(prompts, GREEDY)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8] * 6

    with pytest.raises(PoisonedKVError):
        engine(runner, poison=True).generate(prompts, GREEDY)


def test_the_error_names_the_request_the_layer_and_the_token():
    llm = engine(ReadsTooFar, poison=True)
    llm.add_request("victim", [1, 2, 3], GREEDY)
    message = "request 'victim': NaN or infinity in layer 0, at its token 0: it read memory that was never written"
    with pytest.raises(PoisonedKVError, match=re.escape(message)) as found:
        llm.step()
    assert found.value.request_id == "victim"


def test_a_layer_that_looks_left_of_its_window_reads_what_was_given_back():
    prompt = list(range(20))
    said = engine(ModelRunner, poison=True, model=WINDOWED).generate([prompt], GREEDY)
    assert first_samples(said) == alone(WINDOWED, [prompt], 8)

    with pytest.raises(PoisonedKVError, match="in layer 1"):
        engine(LooksLeftOfTheWindow, poison=True, model=WINDOWED).generate([prompt], GREEDY)


def test_a_model_that_computes_nan_itself_is_found_at_the_logits():
    model = small_model()
    model.model.norm.weight[0] = float("nan")
    llm = LLMEngine(model, config=EngineConfig(num_blocks=8, debug_poison=True))
    with pytest.raises(PoisonedKVError, match="in its logits"):
        llm.generate([[1, 2, 3]], GREEDY)
