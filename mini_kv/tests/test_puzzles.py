"""Puzzles: each can be solved in as many calls as it grants and in no fewer; what the player types and reads."""

import io

import pytest

from mini_kv.core.invariants import LEDGER
from mini_kv.course.commands.puzzle_command import play, puzzle_list
from mini_kv.story.puzzle import Puzzle, PuzzlePlayer, load_puzzle, parse_puzzle, puzzle_names, solves
from mini_kv.story.scenario import ScenarioError

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

    return resources.files("mini_kv.story").joinpath(f"puzzles/{name}.toml").read_text(encoding="utf-8")


def test_a_call_that_is_not_possible_changes_nothing():
    """Not even where the call had begun: a decoded token that finds no block is taken back."""
    full = source("let-it-slide").replace("num_blocks = 7", "num_blocks = 3").replace("window 6", "full")
    player = PuzzlePlayer(parse_puzzle("full", full))
    before = player.before[-1].frame
    with pytest.raises(ValueError, match=r"decode A is not possible now \(no block is left for A\)"):
        player.call("decode A")
    with pytest.raises(ValueError, match=r"free B is not possible now \(this request 'B' holds no blocks"):
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

A  Tell me a story | about two foxes who | learn to fly kites.
B  How do I keep | my bread from burning?
C  Which planet has the | most moons of all?

A came with 12 words, which fill three blocks. A is done. Its blocks went to
the back of the queue, the last one first. They keep their block hashes.

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

Block 3 has the end of A's prompt, so it went into the queue before blocks 2
and 1. It is the first of them to be reused.
"""
    )


def test_a_player_may_err_ask_begin_again_and_leave():
    solved, text = session("prefill Q", "6", "free C", "hint", "prefill A", "again", "prefill A", "free B", "2", "quit")
    assert solved is None
    assert text.count("there is no call") == 2
    never = "this request 'C' holds no blocks: never admitted, or freed already"
    assert f"free C is not possible now ({never}); it does not count\n" in text
    assert "A free block keeps its block hash until it is reused." in text
    assert text.count("Goal, in at most 2 calls") == 3  # at first, after `again`, and after two calls that missed it
    assert (
        """
Not reached, and 2 calls made. B found 0 of its 8 words: block 1 of its prompt
is not cached. The rule: a hit is a chain from the first block; the index
holds full blocks only, computed or promised. B took blocks 5 6 from the front
of the free queue. Evicted blocks, by number: none. The goal needs 3.

From the beginning:
"""
        in text
    )
    assert session() == (None, session()[1])  # the end of the input leaves, too


def reasons(name: str, *calls: str) -> list[str]:
    """Return why each of these calls did what it did."""
    player, told = PuzzlePlayer(load_puzzle(name)), []
    for call in calls:
        player.call(call)
        told.append(player.reason())
    return told


PREFIX = f"The rule: {LEDGER['I5'].removeprefix('prefix: ')}."
CAP = f"The rule: {LEDGER['I7'].removeprefix('cap: ')}."
TAIL_FIRST = "The rule: a request's tail is evicted before its head."


@pytest.mark.parametrize(
    ("name", "calls", "told"),
    [
        (
            "twelve-of-sixteen",
            ["lookup B", "lookup C", "lookup D", "lookup E"],
            [
                f"B found 0 of its 20 words: block 1 of its prompt is not cached. {PREFIX}",
                f"C found 16 of its 17 words, the most that it may find. {CAP}",
                f"D found 12 of its 16 words, the most that it may find. {CAP}",
                f"E found 8 of its 20 words: block 3 of its prompt is not cached after this beginning. {PREFIX}",
            ],
        ),
        (
            "refused",
            ["prefill C", "free C", "prefill B", "prefill D"],
            [
                f"C found 0 of its 4 words, the most that it may find. {CAP} "
                "C took block 4 from the front of the free queue.",
                f"Block 4 went to the back of the free queue, the last of the prompt first. {TAIL_FIRST}",
                f"B found 0 of its 8 words: block 1 of its prompt is not cached. {PREFIX} "
                "B took blocks 5 6 from the front of the free queue.",
                f"D found 12 of its 20 words: block 4 of its prompt is not cached after this beginning. {PREFIX} "
                "D was refused: it needs 2 new blocks. 4 blocks are free, and 3 of them are blocks that it found "
                "itself. The rule: None or an exception leaves the whole state as it was.",
            ],
        ),
        (
            "in-order",
            ["prefill A", "prefill C", "free A", "free C"],
            [
                f"A found 0 of its 8 words: block 1 of its prompt is not cached. {PREFIX} "
                "A took blocks 1 2 from the front of the free queue.",
                f"C found 8 of its 11 words, the most that it may find. {CAP} "
                "C took block 3 from the front of the free queue.",
                "Blocks 2 1 stayed in use by another request. The rule: ref_cnt is the number of tables "
                f"that hold the block, and never negative. {TAIL_FIRST}",
                "Block 3 had no block hash and went to the front of the free queue. Blocks 2 1 went to the back of "
                f"the free queue, the last of the prompt first. {TAIL_FIRST}",
            ],
        ),
        (
            "let-it-slide",
            ["decode A", "decode A"],
            [
                "A took block 3 from the front of the free queue.",
                f"Block 1 left the window of A. The rule: {LEDGER['I8'].partition(': ')[2]}. A needed no new block.",
            ],
        ),
        (
            "short-memory",  # its fault shows here
            ["prefill A", "free A"],
            [
                f"A found 0 of its 8 words: block 1 of its prompt is not cached. {PREFIX} "
                "A took blocks 1 2 from the front of the free queue.",
                f"Blocks 2 1 went to the front of the free queue, the last of the prompt first. {TAIL_FIRST}",
            ],
        ),
    ],
)
def test_every_call_says_what_it_did_and_by_which_rule(name, calls, told):
    """From the engine's own numbers, not from a table of texts."""
    assert reasons(name, *calls) == told


def test_what_the_goal_still_needs_is_said_for_every_puzzle():
    """After one call, with the measure in words; each puzzle that takes more than one call still needs something."""
    unmet = {}
    for name, (first, *more) in SOLUTIONS.items():
        player = PuzzlePlayer(load_puzzle(name))
        player.call(first)
        if more:
            unmet[name] = player.unmet()
    assert unmet == {
        "make-room": ["Evicted blocks, by number: none. The goal needs 3."],
        "twins": ["Blocks whose block hash another block has, too: 0. The goal needs 2."],
        "hold-on": ["Requests that use block 1: 1. The goal needs 3.", "Blocks that are free: 3. The goal needs 0."],
        "let-it-slide": ["Requests that use block 1: 1. The goal needs 0."],
        "refused": ["A request was refused: no. The goal needs yes."],
        "too-good": ["A lookup found more or less than in a correct cache: no. The goal needs yes."],
        "in-order": ["The free queue from its front, by number: 2 3 4 5. The goal needs 4 5 3 2 1."],
        "short-memory": ["A lookup found more or less than in a correct cache: no. The goal needs yes."],
        "save-the-head": ["Words that were computed: 16. The goal needs 36."],
    }


def test_a_strip_has_the_words_their_blocks_and_the_first_word_that_differs():
    """B differs at its third word, C only after A's end, D nowhere; what a lookup found is there as blocks."""
    player = PuzzlePlayer(load_puzzle("twelve-of-sixteen"))
    player.call("lookup E")
    strips = {strip.request: strip for strip in player.strips()}
    assert strips["A"].blocks == [
        ["You", "are", "a", "friendly"],
        ["cook.", "Answer", "in", "one"],
        ["short", "sentence.", "What", "goes"],
        ["with", "fresh", "tomato", "soup?"],
    ]
    shown = [(s.request, s.block_ids, s.num_found, s.differs_at, s.differs_from) for s in strips.values()]
    assert shown == [
        ("A", [1, 2, 3, 4], 0, None, ""),
        ("B", [], 0, 2, "A"),
        ("C", [], 0, 16, "A"),
        ("D", [], 0, None, ""),
        ("E", [1, 2], 2, 11, "A"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"prefill A"', '"evict A"', "there is no 'evict A'"),
        ("num_blocks", 'fault = "gone"\nnum_blocks', "there is no 'gone'"),
        ('goal = "', 'gaol = "', "'goal'"),
        ("[[step]]", "[[stop]]", "'step' is missing"),
        ("=", "", "line 1"),
    ],
)
def test_a_file_that_is_no_puzzle_is_refused_with_its_name(old, new, says):
    with pytest.raises(ScenarioError, match="broken") as error:
        parse_puzzle("broken", source("make-room").replace(old, new))
    assert says in str(error.value)
