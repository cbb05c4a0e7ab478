"""Several data planes under one control plane: PyTorch, dice, counts, and a plan with one wrong number."""

import random
import shutil
from typing import Any

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.course.lessons.exhibits import HEADS, TAILS
from mini_kv.course.lessons.planes import (
    SENTENCES,
    TEXTS,
    TIGHT,
    Bigrams,
    Dice,
    OneWrongBlock,
    Plan,
    Trigrams,
    answers,
    blocks_in_use,
    control_plane,
    dice_story,
    num_tokens_of,
    plan_bytes,
    run,
    shapes,
)
from mini_kv.course.lessons.play import Levers, Play

CHANCE = random.Random(1)
PROMPTS = {chr(ord("A") + n): CHANCE.choice(HEADS) + CHANCE.choice(TAILS) + CHANCE.choice(TAILS) for n in range(20)}
SMALL = Levers(num_blocks=24)
FOUR = {
    "A": "A block is free when no request",
    "B": "A block is cached when its hash",
    "C": "A request that waits has",
    "D": "A block is free when no",
}


def torch_plane() -> Any:
    return pytest.importorskip("mini_kv.course.lessons.torch_plane", reason="the small model needs PyTorch: make test")


def sentences() -> list[int]:
    return control_plane({}).tokenizer.encode(SENTENCES)


# PyTorch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "levers"),
    [
        ("tiny", SMALL),
        ("tiny", Levers(num_blocks=24, enable_caching=False)),
        ("tiny", Levers(num_blocks=40, block_size=4, max_num_batched_tokens=8)),
        ("tiny_windows", Levers(num_blocks=100, max_tokens=64)),
    ],
    ids=["caching", "no caching", "small blocks and steps", "windows"],
)
def test_pytorch_generates_the_engine_s_own_words_in_a_pool_that_preempts(model: str, levers: Levers) -> None:
    torch_runner = torch_plane().torch_runner
    from mini_kv.engine.checkpoint import tiny_folder
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.sampling import SamplingParams

    play = control_plane(PROMPTS, model, levers)
    run(play, torch_runner(levers, model))
    llm = LLM(tiny_folder(windows=model == "tiny_windows"))
    outputs = llm.generate(list(PROMPTS.values()), SamplingParams(max_tokens=levers.max_tokens, temperature=0))
    assert list(answers(play).values()) == [output.outputs[0].text for output in outputs]
    assert play.scheduler.num_preemptions > 5
    assert blocks_in_use(play) == 0


def test_a_played_run_has_what_the_page_shows_before_and_after_each_step() -> None:
    played = torch_plane().played(TEXTS, "tiny", TIGHT)
    steps = run(control_plane(TEXTS, levers=TIGHT), torch_plane().torch_runner(TIGHT))
    assert played["tokens"] == [step.tokens for step in steps]
    assert len(played["story"]["steps"]) == len(steps) == len(played["told"]) - 1
    assert [told["counters"]["steps"] for told in played["told"]] == list(range(len(steps) + 1))
    assert played["told"][-1]["boxes"]["B"]["found_in"] == {"A": 1}


def test_a_record_has_what_the_page_needs_to_execute_it_again() -> None:
    record = torch_plane().recorded(TEXTS, "tiny", TIGHT)
    assert {name: record[name] for name in ("model", "num_blocks", "block_size", "groups")} == {
        "model": "tiny",
        "num_blocks": 6,
        "block_size": 8,
        "groups": [0, 0, 0],
    }
    assert len(record["steps"]) == 12
    assert all(step["ms"] > 0 for step in record["steps"])
    said = dict.fromkeys(TEXTS, "")
    for step in record["steps"]:
        for request_id, token in step["tokens"].items():
            said[request_id[0]] += record["words"][str(token)]
    play = control_plane(TEXTS, levers=TIGHT)
    run(play, torch_plane().torch_runner(TIGHT))
    assert said == answers(play)


def test_node_executes_a_record_with_the_same_tokens_or_says_that_it_is_missing() -> None:
    record = torch_plane().recorded(TEXTS, "tiny", TIGHT)
    said = torch_plane().in_node(record)
    missing = "Node.js is not installed. The chapter's page executes the same plans in your browser."
    equal = "20 of 20 tokens of JavaScript are equal to those of PyTorch."
    assert said == (missing if shutil.which("node") is None else equal)


def test_pytorch_and_dice_get_the_same_plans_but_for_the_tokens() -> None:
    """Also the preemption and the hits are the same."""
    play = control_plane(TEXTS, levers=TIGHT)
    steps = run(play, torch_plane().torch_runner(TIGHT))
    assert shapes(steps) == shapes(run(control_plane(TEXTS, levers=TIGHT), Dice()))
    assert play.scheduler.num_preemptions == 1
    assert [row["begin"] for row in steps[-1].plan] == [16]


def test_one_wrong_block_id_raises_nothing_and_changes_the_words_of_both_requests() -> None:
    """In one step, B's table has a block of A: B reads A's keys, and A reads later what B has written there."""
    plane = torch_plane()
    steps = run(control_plane(plane.TWO, levers=plane.ROOMY), plane.torch_runner(plane.ROOMY))
    assert {row["request_id"]: row["tables"] for row in steps[5].plan} == {"A1": ([1, 3],), "B1": ([2, 4],)}
    changed = {block_id: plane.with_wrong_block(block_id).changed for block_id in (None, 3, 4, 5)}
    assert changed == {None: (), 3: ("A", "B"), 4: (), 5: ("B",)}
    assert plane.with_wrong_block(3).sentence == "Changed: A and B."


def test_the_lever_starts_at_the_right_block_and_has_a_block_that_changes_both_texts() -> None:
    lever = torch_plane().wrong_block_lever()
    assert [*lever.pictures][lever.start] == "4"
    assert lever.pictures["4"].sentence == "Changed: nothing."
    assert "3" in lever.met


# Without tensors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_dice_leave_no_block_in_use_and_no_invariant_is_violated(seed: int) -> None:
    """`run` checks the invariants after each step."""
    play = control_plane(PROMPTS, levers=SMALL)
    run(play, Dice(seed))
    assert blocks_in_use(play) == 0
    assert play.scheduler.num_preemptions > 5
    assert all(not box.is_unfinished for box in play.boxes.values())


def test_the_same_dice_draw_the_same_words() -> None:
    first, second, other = (control_plane(TEXTS) for _ in range(3))
    run(first, Dice(1))
    run(second, Dice(1))
    run(other, Dice(2))
    assert answers(first) == answers(second) != answers(other)


def test_a_plan_does_not_depend_on_the_data_plane_but_by_its_tokens() -> None:
    """Same tokens up, same plans down: one run's tokens are replayed by a runner that knows nothing else."""

    class Replay:
        def __init__(self, tokens: list[dict[str, int]]) -> None:
            self.tokens = iter(tokens)

        def execute(self, plan: Plan) -> dict[str, int]:
            return next(self.tokens)

    steps = run(control_plane(PROMPTS, levers=SMALL), Dice(3))
    again = run(control_plane(PROMPTS, levers=SMALL), Replay([step.tokens for step in steps]))
    assert [step.plan for step in again] == [step.plan for step in steps]


def test_bigrams_follow_the_last_token() -> None:
    runner = Bigrams([1, 2, 3, 1, 2, 4, 2, 3])
    row = {"request_id": "A1", "token_ids": [9, 2], "begin": 0, "tables": ([1],), "samples": True}
    assert runner.execute([row, row | {"request_id": "B1", "token_ids": [8], "samples": False}]) == {"A1": 3}
    assert runner.next_token(7) == 0


def counted(levers: Levers, texts: dict[str, str] = FOUR) -> Play:
    play = control_plane(texts, levers=levers)
    run(play, Trigrams(sentences(), levers))
    return play


def test_trigrams_write_the_sentences_that_they_have_counted() -> None:
    assert answers(counted(Levers(max_tokens=8))) == {
        "A": " holds it. A block is free when",
        "B": " is in the index. A block is",
        "C": " no blocks. A block is free when",
        "D": " request holds it. A block is free",
    }


def test_trigrams_read_from_blocks_what_a_hit_has_left_out_of_the_plan() -> None:
    """Six tokens in blocks of five, sent twice: the second plan has one token, and the one before is in a block."""
    levers = Levers(block_size=5, max_tokens=2)
    text = "The scheduler counts tokens and the"
    for is_kept, word in ((True, " cache"), (False, " index")):
        play = counted(levers, {"A": text})
        assert answers(play) == {"A": " cache counts"}
        runner = Trigrams(sentences(), levers)  # with an empty memory
        if is_kept:
            run(control_plane({"A": text}, levers=levers), runner)
        play.leave("A")
        play.send("A", text)
        steps = run(play, runner)
        assert [len(step.plan[0]["token_ids"]) for step in steps] == [1, 1]
        assert answers(play)["A"].startswith(word)


def test_trigrams_have_the_same_words_in_any_pool() -> None:
    small = Levers(num_blocks=8, block_size=4, max_tokens=16, max_num_batched_tokens=8)
    tight, roomy = counted(small), counted(Levers(num_blocks=64, max_tokens=16, enable_caching=False))
    assert tight.scheduler.num_preemptions > 0
    assert answers(tight) == answers(roomy)


def test_the_story_of_the_dice_is_one_of_twelve_steps() -> None:
    story = dice_story()
    assert story["title"] == "Two texts, continued by dice"
    assert story["num_blocks"] == 6


# Plans ---------------------------------------------------------------------------------------------------------------


def test_a_plan_is_measured_in_bytes_and_in_tokens() -> None:
    row = {"request_id": "A1", "token_ids": [66], "begin": 8, "tables": ([1, 3],), "samples": True}
    assert plan_bytes([row]) == len('[{"request_id":"A1","token_ids":[66],"begin":8,"tables":[[1,3]],"samples":true}]')
    assert num_tokens_of([row, row | {"token_ids": [1, 2]}]) == 9 + 10


def test_a_wrong_block_changes_a_copy_of_the_plan() -> None:
    row = {"request_id": "A1", "token_ids": [66], "begin": 8, "tables": ([1, 3],), "samples": True}
    faulty = OneWrongBlock(Dice(), step=1, request_id="A1", column=1, block_id=2)
    assert faulty.changed([row])[0]["tables"] == [[1, 2]]
    assert row["tables"] == ([1, 3],)


def test_a_text_that_does_not_fit_is_refused_before_a_step() -> None:
    with pytest.raises(ConfigError, match="pool"):
        control_plane({"A": "block " * 50}, levers=Levers(num_blocks=2))


def test_no_table_of_full_attention_has_the_null_block() -> None:
    steps = run(control_plane(FOUR), Dice())
    assert min(block for step in steps for row in step.plan for block in row["tables"][0]) == 1
