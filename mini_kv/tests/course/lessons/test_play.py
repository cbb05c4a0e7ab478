"""The engine of the page "Play": the same steps and the same events as `LLMEngine`, and what a reader may do wrong."""

import random
from pathlib import Path
from typing import Any

import pytest

from mini_kv import engine
from mini_kv.core.errors import ConfigError
from mini_kv.course.lessons.exhibits import HEADS, TAILS
from mini_kv.course.lessons.play import Levers, Play, make_play

ENGINE = Path(engine.__path__[0])
CHANCE = random.Random(1)
PROMPTS = [CHANCE.choice(HEADS) + CHANCE.choice(TAILS) + CHANCE.choice(TAILS) for _ in range(20)]


def make(model: str = "tiny", **levers: str) -> Play:
    return make_play(model, Levers.of(levers))


def step(play: Play, token_id: int = 300) -> dict[str, int]:
    """Make a step in which each text that needs one gets this token."""
    plan = play.plan()
    assert plan is not None
    tokens = {row["request_id"]: token_id for row in plan if row["samples"]}
    play.take(tokens)
    return tokens


def steps_of(story: Any) -> list[dict[str, Any]]:
    """Return a story's steps without block hashes: those of `LLMEngine` contain the weights' fingerprint."""
    steps: list[dict[str, Any]] = [story["start"], *story["steps"]]
    return [{key: value for key, value in each.items() if key not in ("names", "name")} for each in steps]


@pytest.mark.parametrize("caching", ["true", "false"])
def test_its_events_are_those_of_the_engine_with_a_model(caching: str) -> None:
    """20 texts in a pool that preempts: the same calls and blocks in each step, if the tokens are the same."""
    pytest.importorskip("torch", reason="the small model needs PyTorch: make test")
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.sampling import SamplingParams
    from mini_kv.tools.serve.live_story import LiveStory

    live = LiveStory(record=True)
    llm = LLM(
        ENGINE / "tiny",
        num_blocks=25,
        block_size=8,
        max_num_batched_tokens=32,
        enable_prefix_caching=caching == "true",
        parts={"make_manager": live.make_manager},
    ).llm_engine
    live.watch(llm)
    live.on_step(busy=False)
    play = make(num_blocks="24", enable_caching=caching)
    names = [f"{chr(ord('a') + number)}1" for number in range(20)]
    for name, prompt in zip(names, PROMPTS, strict=True):
        llm.add_request(name, prompt, SamplingParams(max_tokens=24, temperature=0))
        play.send(name[0], prompt)
    texts = dict(zip(names, PROMPTS, strict=True))
    while llm.has_unfinished_requests:
        deltas = llm.step()
        live.on_step(busy=False)
        for delta in deltas:
            texts[delta.request_id] += delta.new_text
        assert play.plan() is not None
        play.take({delta.request_id: delta.new_token_ids[0] for delta in deltas})
    assert {box.request_id: box.text for box in play.boxes.values()} == texts
    assert play.scheduler.num_preemptions == llm.scheduler.num_preemptions > 5
    ours, theirs = play.live.recorded(), live.recorded()
    assert ours is not None and theirs is not None
    told = [{key: value for key, value in each.items() if key != "say"} for each in steps_of(theirs)]
    assert [{key: value for key, value in each.items() if key != "say"} for each in steps_of(ours)] == told
    assert play.plan() is None


def test_a_plan_has_tokens_positions_and_tables() -> None:
    play = make()
    play.send("A", "A block is free when")
    assert play.plan() == [
        {"request_id": "A1", "token_ids": [66, 296, 278, 499, 525], "begin": 0, "tables": ([1],), "samples": True}
    ]
    play.take({"A1": 300})
    assert play.plan() == [{"request_id": "A1", "token_ids": [300], "begin": 5, "tables": ([1],), "samples": True}]


def test_a_long_text_is_computed_over_several_steps_and_samples_in_the_last() -> None:
    play = make(max_num_batched_tokens="8")
    play.send("A", "The cache keeps keys of every token. " * 2)
    assert [step(play) for _ in range(3)] == [{}, {}, {"A1": 300}]


def test_the_next_words_find_the_text_so_far() -> None:
    """The second request of a box begins with all that was written before."""
    play = make(max_tokens="8")
    play.send("A", "A request that waits has no blocks. It waits until")
    while play.boxes["A"].is_unfinished:
        step(play)
    before = play.boxes["A"].text
    play.send("A", " Then it runs.")
    step(play)
    box = play.telling()["boxes"]["A"]
    assert box["prompt"] == before + " Then it runs."
    assert (box["cached"], box["found"]) == (16, box["prompt"][: len(box["found"])])


def test_found_blocks_are_counted_by_the_box_that_computed_them() -> None:
    play = make(max_tokens="8")
    head = "A request that waits has no blocks. It waits until"
    for name, text in (("A", head), ("B", f"{head} then"), ("C", "A block")):
        play.send(name, text)
    while any(box.is_unfinished for box in play.boxes.values()):
        step(play)
    assert [box["found_in"] for box in play.telling()["boxes"].values()] == [{}, {"A": 1}, {}]
    play.send("B", " it runs.")
    step(play)
    assert play.telling()["boxes"]["B"]["found_in"] == {"A": 1, "B": 1}


def test_a_stopped_text_stays_and_a_cleared_one_goes_and_both_free_their_blocks() -> None:
    play = make()
    for name in "AB":
        play.send(name, "A block is free when")
    step(play)
    play.stop("A")
    play.leave("B")
    play.leave("C")
    assert play.plan() is None
    told = play.telling()
    assert told["counters"]["held"] == 0
    assert [told["boxes"][name]["text"][:20] for name in "AB"] == ["A block is free when", ""]
    assert told["log"][2:] == [f"step 1: {name} ends: it was stopped" for name in ("A1", "B1")]
    play.send("B", "A block")
    assert play.boxes["B"].request_id == "B2"


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "box A has no text"), ("a " * 600, "max_model_len is 512"), ("block " * 170, "20 blocks|pool")],
)
def test_what_cannot_be_sent_changes_nothing(words: str, message: str) -> None:
    play = make()
    with pytest.raises(ConfigError, match=message):
        play.send("A", words)
    assert (play.boxes, play.plan()) == ({}, None)
    play.send("A", "A block")
    with pytest.raises(ConfigError, match="box A is still being answered: stop it first"):
        play.send("A", "more")
    assert play.boxes["A"].text == "A block"


@pytest.mark.parametrize(
    ("lever", "text", "message"),
    [
        ("num_blocks", "many", "num_blocks is 'many', it must be a number from 1 to 9999"),
        ("num_blocks", "0", "num_blocks"),
        ("block_size", "0", "block_size"),
        ("max_num_batched_tokens", "0", "max_num_batched_tokens is 0"),
        ("policy", "lottery", "lottery"),
    ],
)
def test_a_lever_that_cannot_be_pulled_is_named(lever: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**{lever: text})
