"""A model cut over processes says what the whole one says, and each keeps its heads alone."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.lessons.watched import exact, tiny
from mini_kv.engine import tensor_parallel
from mini_kv.engine.checkpoint import tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tensor_parallel import generate, heads_of

HELD_OUT = (tiny_folder() / "held_out.txt").read_text(encoding="utf-8")
PROMPTS = [f"A block that no request holds is free. {HELD_OUT[i : i + 40]}" for i in range(0, 20 * 97, 97)]
PARAMS = SamplingParams(max_tokens=16, temperature=0.0)
TIGHT = EngineConfig(num_blocks=14, block_size=8, scheduler=SchedulerConfig(max_num_batched_tokens=24))
"""Chunks, hits, and a pool in which requests are preempted."""


@pytest.fixture(scope="module")
def whole():
    """What one process says, and whether it preempted."""
    engine = LLMEngine(exact(), tiny()[1], TIGHT)
    said = [answer.outputs[0].token_ids for answer in engine.generate(PROMPTS, PARAMS)]
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.kv_cache_manager.prefix_cache_stats.hits > 0
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("size", "num_kv_heads"), [(2, 1), (4, 1)])
def test_cards_say_together_what_one_says_and_keep_their_heads_alone(whole, size, num_kv_heads):
    """Twenty prompts. With four cards the two KV heads have run out: a block is no smaller than with two."""
    cards = generate(PROMPTS, PARAMS, size, TIGHT)
    assert len(PROMPTS) == 20
    assert [card.token_ids for card in cards] == [whole] * size
    assert {card.num_kv_heads for card in cards} == {num_kv_heads}
    all_heads = sum(spec.page_size_bytes for spec in exact().get_kv_cache_spec(8).values())
    assert {card.bytes_per_block for card in cards} == {all_heads // 2}


def test_who_keeps_which_heads():
    """Query heads with the KV head that they read; where these have run out, neighbours keep the same one."""
    dealt = {size: [heads_of(8, 2, rank, size) for rank in range(size)] for size in (1, 2, 4)}
    assert dealt[1] == [(range(8), range(2))]
    assert dealt[2] == [(range(4), range(1)), (range(4, 8), range(1, 2))]
    assert dealt[4] == [
        (range(2), range(1)), (range(2, 4), range(1)), (range(4, 6), range(1, 2)), (range(6, 8), range(1, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((8, 2, 0, 3), "8 query heads cannot be split evenly over 3 cards"),
        ((12, 4, 0, 6), "4 KV heads cannot be split evenly over 6 cards"),
    ],
)
def test_heads_that_cannot_be_dealt_out_are_refused(sizes, says):
    with pytest.raises(ConfigError, match=says):
        heads_of(*sizes)


@pytest.mark.slow
def test_the_command(capsys):
    assert tensor_parallel.main(["--size", "2", "--max-tokens", "4", "A block is free when"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A block is free when it is full."
    assert lines[-2:] == ["card 0: 1 KV heads, 24,576 bytes per block", "card 1: 1 KV heads, 24,576 bytes per block"]
    assert tensor_parallel.main(["--size", "3", "x"]) == 2
    assert capsys.readouterr().err == "tensor_parallel: 4 query heads cannot be split evenly over 3 cards\n"
    assert tensor_parallel.main(["--size", "0", "x"]) == 2
