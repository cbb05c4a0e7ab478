"""Scenarios are data: each one in the package plays as it says, and a bad one is told where it is bad."""

import pytest

from mini_kv.messages import choices
from mini_kv.story.frame import frame_of
from mini_kv.story.scenario import (
    Scenario,
    ScenarioError,
    ScenarioPlayer,
    Step,
    load_scenario,
    parse_scenario,
    parse_tokens,
    scenario_names,
)
from mini_kv.story.story_text import first_difference, story

HEAD = 'title = "T"\nnum_blocks = 5\nblock_size = 2\n'


def step(**values):
    """Return a step as TOML."""
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    return "\n".join(["[[step]]", *lines, ""])


A = step(call="prefill", request="A", tokens="1..3", say="a")


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_plays_as_it_says(name):
    """Each step adds exactly the lines that it expects, and none expects nothing."""
    scenario = load_scenario(name)
    player = ScenarioPlayer(scenario)
    played_steps = 0
    for number, played in enumerate(player.play(), start=1):
        difference = first_difference(played.step.expect, played.lines)
        assert difference is None, f"{name}, step {number}: {difference}"
        assert played.step.expect, f"{name}, step {number} expects nothing"
        assert played.frame == frame_of(player.kv.manager)
        played_steps += 1
    assert played_steps == len(scenario.steps) > 0
    assert scenario.title
    assert scenario.ending


def test_what_a_file_says_is_what_is_played():
    """Every field in its place; a caption of several lines becomes one."""
    text = f"{HEAD}enable_caching = false\nending = 'E'\n{A}{step(call='free', request='A', say='b', expect=['x'])}"
    text = text.replace("say = 'a'", "say = '''\na\n  caption\n'''")
    assert parse_scenario("name", text) == Scenario(
        name="name",
        title="T",
        num_blocks=5,
        block_size=2,
        enable_caching=False,
        steps=(Step("prefill", "a caption", (), "A", (1, 2, 3)), Step("free", "b", ("x",), "A")),
        ending="E",
    )


def test_a_step_carries_its_calls_its_state_and_its_hit():
    """Prefill, decode, free: the spans of each, and the tokens that it found."""
    text = (
        HEAD
        + A
        + step(call="decode", request="A", tokens="4 5", say="d")
        + step(call="prefill", request="B", tokens="1..5", say="b")
        + step(call="prefill", request="C", tokens="9", say="c")
        + step(call="free", request="A", say="f")
    )
    played = list(ScenarioPlayer(parse_scenario("name", text)).play())
    assert [story(one.spans) for one in played] == [
        ["lookup A: hit 0", "allocate A: allocated 1 2, cached 1"],
        ["allocate A: cached 2", "allocate A: allocated 3"],
        ["lookup B: hit 4", "allocate B: shared 1 2, allocated 4"],
        ["lookup C: hit 0", "allocate C: refused"],
        ["free A: freed 3, unshared 2 1"],
    ]
    assert [one.num_hits for one in played] == [0, 0, 4, 0, 0]
    assert [one.frame.free_order for one in played] == [[3, 4], [4], [], [], [3]]


def test_a_lookup_changes_nothing_and_a_reset_forgets():
    """A lookup takes nothing; after a reset, and under another salt, it finds nothing."""
    text = (
        HEAD
        + A
        + step(call="lookup", request="B", tokens="1..5", say="b")
        + step(call="lookup", request="B", tokens="1..5", salt="other", say="b")
        + step(call="reset", say="r")
        + step(call="free", request="A", say="f")
        + step(call="reset", say="r")
        + step(call="lookup", request="B", tokens="1..5", say="b")
    )
    played = list(ScenarioPlayer(parse_scenario("name", text)).play())
    assert [story(one.spans) for one in played[1:]] == [
        ["lookup B: hit 2"],
        ["lookup B: hit 0"],
        ["reset: refused"],
        ["free A: freed 2 1"],
        ["reset: evicted 1"],
        ["lookup B: hit 0"],
    ]
    assert [one.num_hits for one in played] == [0, 2, 0, 0, 0, 0, 0]
    assert played[0].frame == played[1].frame


def test_without_caching_nothing_is_found():
    """The switch in the file reaches the manager."""
    text = f"{HEAD}enable_caching = false\n{A}{step(call='prefill', request='B', tokens='1..3', say='b')}"
    played = list(ScenarioPlayer(parse_scenario("name", text)).play())
    assert story(played[1].spans) == ["lookup B: hit 0", "allocate B: allocated 3 4"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ()),
        ("7", (7,)),
        ("0..3", (0, 1, 2, 3)),
        ("5..5", (5,)),
        ("0..1 100 7..8 7", (0, 1, 100, 7, 8, 7)),
        ("  3\n 4 ", (3, 4)),
    ],
)
def test_tokens_are_runs_and_single_ones(text, tokens):
    """Both ends of a run belong to it."""
    assert parse_tokens(text) == tokens


def test_an_unknown_name_lists_the_choices():
    """A mistyped name is answered with the likely one, with some others, and with the command that lists all."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario("share-and-evcit")
    advice = choices("share-and-evcit", scenario_names(), "mini-kv story")
    assert str(caught.value) == f"no scenario 'share-and-evcit'; {advice}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + A + step(call="prefil", say="x"),
            "bad, step 2: call is 'prefil'; there are: prefill, lookup, decode, free, reset",
        ),
        (HEAD + step(say="x"), "bad, step 1: call is None; there are: prefill, lookup, decode, free, reset"),
        (HEAD + A + step(call="free", request="A"), "bad, step 2: say is missing or empty"),
        (HEAD + A + step(call="free", say="x", who="A", why="B"), "bad, step 2: unknown who, why"),
        (HEAD + step(call="prefill", say="x", tokens="1..b"), "bad, step 1: tokens are '1..b': invalid literal"),
        (HEAD + step(call="reset", say="x", invariant="I7"), "bad, step 1: unknown invariant"),
        (HEAD, "bad: 'step' is missing"),
        (A, "bad: 'title' is missing"),
        (HEAD.replace("block_size", "size") + A, "bad: 'block_size' is missing"),
        ("title =", "bad: Invalid value (at end of document)"),
    ],
)
def test_a_bad_file_is_told_where(text, message):
    """File, step, what is wrong, and the choices where there are any."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario("bad", text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (step(call="free", request="B", say="x"), "bad, step 2: this request 'B' holds no blocks"),
        (step(call="decode", request="B", tokens="1", say="x"), "bad, step 2: this request 'B' holds no blocks"),
        (step(call="decode", request="A", tokens="1..10", say="x"), "bad, step 2: no block is left for A"),
        (step(call="prefill", request="B", say="x"), "bad, step 2: request 'B' needs token ids"),
        (step(call="prefill", request="B", tokens="-1", say="x"), "bad, step 2: token 0 is -1"),
        (step(call="prefill", request="A", tokens="1", say="x"), "bad, step 2: request id 'A' is in use"),
    ],
)
def test_a_step_that_cannot_be_played_is_named(last, message):
    """What the cache refuses as misuse comes with file and step."""
    play = ScenarioPlayer(parse_scenario("bad", HEAD + A + last)).play()
    assert story(next(play).spans) == ["lookup A: hit 0", "allocate A: allocated 1 2, cached 1"]
    with pytest.raises(ScenarioError) as caught:
        next(play)
    assert str(caught.value).startswith(message)
