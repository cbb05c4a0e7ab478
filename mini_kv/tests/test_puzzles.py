"""Puzzles: each can be solved in as many calls as it grants and in no fewer; what the player types and reads."""

import io

import pytest

from mini_kv.labkit.commands.puzzle import play, puzzle_list
from mini_kv.trace.puzzle import Puzzle, PuzzlePlayer, load_puzzle, parse_puzzle, puzzle_names, solves
from mini_kv.trace.scenario import ScenarioError

SOLUTIONS = {
    "twelve-of-sixteen": ["lookup D"],
    "make-room": ["prefill B", "prefill C"],
    "twins": ["prefill A", "prefill B"],
    "hold-on": ["prefill A", "prefill B", "prefill C"],
    "let-it-slide": ["decode A", "decode A"],
    "refused": ["prefill B", "prefill D"],
    "too-good": ["prefill A", "lookup C"],
    "in-order": ["prefill B", "prefill A", "free A", "free B"],
    "short-memory": ["prefill A", "free A", "prefill B", "lookup A"],
    "save-the-head": ["prefill B", "free B", "prefill A", "free A", "prefill C"],
}
"""One solution each; the easiest first."""
CALLS_GO_WRONG = {"too-good": "alone", "short-memory": "front"}
MAKE_ROOM = load_puzzle("make-room")


def possible(puzzle: Puzzle, made: list[str]) -> bool:
    """Return whether these calls can be made one after the other."""
    player = PuzzlePlayer(puzzle)
    try:
        for call in made:
            player.call(call)
    except ValueError:
        return False
    return True


def test_there_are_ten_and_each_is_listed_with_its_minutes():
    assert puzzle_names() == list(SOLUTIONS)
    first, *lines = puzzle_list({"twins": 2})
    assert first == "type  mini-kv puzzle NAME  with one of these"
    assert lines[:3] == [
        "  twelve-of-sixteen   2 minutes   Twelve of sixteen",
        "  make-room           2 minutes   Make room",
        "  twins               3 minutes   Twins   solved in 2 calls",
    ]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_it_is_solved_in_as_many_calls_as_it_grants_and_in_no_fewer(name):
    puzzle = load_puzzle(name)
    assert solves(puzzle, SOLUTIONS[name])
    assert len(SOLUTIONS[name]) == puzzle.most_calls
    ways: list[list[str]] = [[]]
    for _ in range(puzzle.most_calls - 1):  # all that can be done with fewer calls
        ways = [[*way, call] for way in ways for call in puzzle.calls if possible(puzzle, [*way, call])]
        assert [way for way in ways if solves(puzzle, way)] == []


@pytest.mark.parametrize("name", CALLS_GO_WRONG)
def test_without_its_fault_a_cache_betrays_nothing(name):
    puzzle = load_puzzle(name)
    assert puzzle.fault == CALLS_GO_WRONG[name]
    player = PuzzlePlayer(puzzle)
    for call in SOLUTIONS[name]:
        player.call(call)
    assert player.betrayed
    right = parse_puzzle(name, source(name).replace(f'fault = "{puzzle.fault}"\n', ""))
    assert not solves(right, SOLUTIONS[name])


def source(name: str) -> str:
    from importlib import resources

    return resources.files("mini_kv.trace").joinpath(f"puzzles/{name}.toml").read_text(encoding="utf-8")


def test_a_call_that_is_not_possible_changes_nothing():
    """Not even where the call had begun: a decoded token that finds no block is taken back."""
    full = source("let-it-slide").replace("num_blocks = 7", "num_blocks = 3").replace("window 6", "full")
    player = PuzzlePlayer(parse_puzzle("full", full))
    before = player.before[-1].frame
    with pytest.raises(ValueError, match="decode A is not possible now"):
        player.call("decode A")
    with pytest.raises(ValueError, match="free B is not possible now"):
        PuzzlePlayer(load_puzzle("in-order")).call("free B")
    assert (player.calls, player.made) == ([], [])
    freed = player.call("free A")
    assert (before.free_order, freed.frame.free_order, freed.lines) == ([], [2, 1], ["free A: freed 2 1"])


def session(*lines: str) -> tuple[int | None, str]:
    """Return in how many calls the first puzzle with room was solved, and what was written."""
    out = io.StringIO()
    return play(MAKE_ROOM, out, io.StringIO("".join(f"{line}\n" for line in lines))), out.getvalue()


def test_a_player_reads_what_happened_the_goal_and_what_to_type():
    solved, text = session("prefill B", "3")
    assert solved == 2
    assert (
        text
        == """\
Make room
=========
6 blocks of 4 tokens.   #=cached  xN=ref_cnt

A  0..11
B  100..107
C  200..207

A comes with 12 tokens: three blocks. A is done. Its blocks go to the back of
the queue, the last of them first, with their keys.

    free  next-> 4 5 6 3# 2# 1# <-last

Goal, in at most 2 calls: Evict block 3, and no other.
Type a call or its number: 1 prefill A, 2 prefill B, 3 prefill C, 4 free B,
5 free C; or: again, hint, quit

1>     lookup B: hit 0
    allocate B: allocated 4 5, cached 4 5

    B     [4x1#] [5x1#]
    free  next-> 6 3# 2# 1# <-last

2>     lookup C: hit 0
    allocate C: allocated 6 3, evicted 3, cached 6 3

    B     [4x1#] [5x1#]
    C     [6x1#] [3x1#]
    free  next-> 2# 1# <-last

Solved in 2 calls.

Block 3 held the end of A, so it went into the queue before 2 and 1, and it is
the first of them to go.
"""
    )


def test_a_player_may_err_ask_begin_again_and_leave():
    solved, text = session("prefill Q", "6", "free C", "hint", "prefill A", "again", "prefill A", "free B", "2", "quit")
    assert solved is None
    assert text.count("there is no call") == 2
    assert "free C is not possible now; it does not count\n" in text
    assert "Who stands in front of it?" in text
    assert text.count("Goal, in at most 2 calls") == 3  # at first, after `again`, and after two calls that missed it
    assert "Not reached, and 2 calls made. From the beginning:\n" in text
    assert session() == (None, session()[1])  # the end of the input leaves, too


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"prefill A"', '"evict A"', "there is no 'evict A'"),
        ("num_blocks", 'fault = "gone"\nnum_blocks', "there is no 'gone'"),
        ('goal = "', 'gaol = "', "'goal'"),
        ("[[step]]", "[[stop]]", "'step' is missing"),
        ("=", "", "line 1"),
        ('"0..11"\nB', '"0..x"\nB', "'x'"),
    ],
)
def test_a_file_that_is_no_puzzle_is_refused_with_its_name(old, new, says):
    with pytest.raises(ScenarioError, match="broken") as error:
        parse_puzzle("broken", source("make-room").replace(old, new))
    assert says in str(error.value)
