"""A small model runs on one thread of torch, and nothing else does."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.contiguous import generate_alone
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import TinyLlama
from mini_kv.engine.model_runner import ModelRunner
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.threads import SMALL_MODEL, is_small, one_thread
from mini_kv.tests.engine.small_models import small_model

GREEDY = SamplingParams(max_tokens=3, temperature=0)


@pytest.fixture(autouse=True)
def three_threads():
    """Set a number that nothing in mini_kv would choose."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Large(TinyLlama):
    """Says that it has more weights than it has."""

    def named_parameters(self, *args: object, **options: object) -> Iterator[tuple[str, Tensor]]:  # type: ignore[override]
        yield "zeros that take no memory", torch.zeros(1).expand(SMALL_MODEL + 1)


class Counts(ModelRunner):
    """Notes how many threads each step has."""

    def execute_model(self, output):
        self.counts = [*getattr(self, "counts", []), torch.get_num_threads()]
        return super().execute_model(output)


@pytest.mark.parametrize(("large", "threads"), [(False, 1), (True, 3)])
def test_a_step_has_one_thread_if_the_model_is_small_and_in_between_there_are_as_many_as_before(large, threads):
    model = small_model()
    if large:
        model.__class__ = Large
    llm = LLMEngine(model, config=EngineConfig(num_blocks=9), make_runner=Counts)
    outside = [torch.get_num_threads() for _ in llm.stream([[1, 2]], GREEDY)]
    assert isinstance(llm.model_runner, Counts)
    assert (llm.model_runner.counts, outside, torch.get_num_threads()) == ([threads] * 3, [3] * 3, 3)


def test_the_model_by_itself_does_the_same():
    model, counts = small_model(), []

    class Past:
        num_tokens = 0

        def __call__(self, layer, query, key, value, options):
            counts.append(torch.get_num_threads())
            return query

        def end_step(self, num_new_tokens):
            pass

    generate_alone(model, [1], 1, Past())
    assert (counts, torch.get_num_threads()) == ([1, 1], 3)


def test_the_threads_come_back_after_an_exception():
    with pytest.raises(KeyboardInterrupt), one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 3


def test_the_model_that_comes_with_mini_kv_is_small():
    model, _ = load_model(tiny_folder())
    assert sum(weights.numel() for weights in model.parameters()) == 902_240
    assert is_small(model)
