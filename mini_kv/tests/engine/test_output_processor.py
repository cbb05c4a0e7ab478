"""One sample on its way: its numbers, and what is told of it."""

from mini_kv.engine.output_processor import RequestState, SampleState, sample_name
from mini_kv.engine.sampling import SamplingParams, draw


def sample(index: int) -> SampleState:
    return SampleState(RequestState("a", [1, 2], SamplingParams(), 7, frozenset(), 0, None, 3), index, None)


def test_each_token_has_the_number_of_its_seed_its_sample_and_its_place():
    state = sample(2)
    numbers = []
    for token_id in (5, 6, 7):
        numbers.append(state.draw())
        state.take(token_id, None)
    assert numbers == [draw(7, 2, place) for place in range(3)]


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    delta = sample(1).take(5, "length")
    assert (delta.request_id, delta.index, delta.new_token_ids) == ("a", 1, [5])
    assert (delta.new_text, delta.finish_reason) == ("", "length")


def test_the_first_sample_has_the_requests_own_name():
    assert [sample_name("a", index) for index in range(3)] == ["a", "a/1", "a/2"]
    assert [sample(index).name for index in range(2)] == ["a", "a/1"]
