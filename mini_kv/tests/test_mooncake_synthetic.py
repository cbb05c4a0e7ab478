"""Synthetic traces: valid, the same every time, and with the reuse that they promise."""

import itertools
from pathlib import Path

import pytest

from mini_kv.tools.traces import synthetic
from mini_kv.tools.traces.readers.mooncake import read_trace

SMALL = Path(synthetic.__file__).with_name("small.jsonl")


def test_the_checked_in_trace_is_what_its_command_writes(tmp_path):
    """The command stands in the docstring of `mini_kv.tools.traces.synthetic`."""
    again = tmp_path / "small.jsonl"
    assert synthetic.main(["--seed", "1", str(again)]) == 0
    assert again.read_bytes() == SMALL.read_bytes()


def test_seeds_differ(tmp_path):
    assert synthetic.generate(1, 50) != synthetic.generate(2, 50)


@pytest.mark.parametrize("seed", range(5))
def test_a_generated_trace_is_valid(tmp_path, seed):
    path = tmp_path / "trace.jsonl"
    assert synthetic.main(["--seed", str(seed), "--requests", "77", str(path)]) == 0
    trace = read_trace(path)
    assert trace == synthetic.generate(seed, 77)
    assert len(trace) == 77


def test_an_id_stands_for_a_prefix_and_ids_appear_in_order():
    """As in the published traces: one predecessor per id, and numbers without gaps."""
    before: dict[int, int | None] = {}
    for request in synthetic.generate(3, 300):
        for previous, hash_id in zip((None, *request.hash_ids), request.hash_ids, strict=False):
            assert hash_id <= len(before)
            assert before.setdefault(hash_id, previous) == previous


def test_the_turns_of_a_chat_repeat_the_past():
    dice = synthetic.Dice(5)
    head = dice.segment((1000, 1000))
    turns: list[synthetic.Turn] = []
    while len(turns) < 3:
        turns = synthetic._conversation(dice, 0, head)
    for earlier, later in itertools.pairwise(turns):
        assert later.prompt[: len(earlier.prompt)] == earlier.prompt
        assert later.prompt[len(earlier.prompt)].length == earlier.output_length
        assert later.timestamp >= earlier.timestamp + synthetic.THINK_MS[0]


def test_blocks_of_two_prompts_with_a_common_head():
    """A head of 600 tokens: block 0 lies in it and is shared; block 1 begins in it and is not."""
    head, a, b = synthetic.Segment(0, 600), synthetic.Segment(1, 500), synthetic.Segment(2, 500)
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    assert synthetic._hash_ids((head, a), known) == (0, 1, 2)
    assert synthetic._hash_ids((head, b), known) == (0, 3, 4)
    assert synthetic._hash_ids((head, a), known) == (0, 1, 2)
    assert synthetic._hash_ids((head, a, b), known) == (0, 1, 5, 6)  # 1100 tokens end in 2; 1600 do not


def test_no_requests_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        synthetic.main(["--requests", "0", str(tmp_path / "trace.jsonl")])
    assert caught.value.code == 2
    assert "--requests must be at least 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
