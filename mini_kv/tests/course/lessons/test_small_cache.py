"""The cache under the reader's hands, without buttons: each press answers with a sentence, and the numbers follow."""

import pytest

from mini_kv.course.lessons.small_cache import LiveCache, found_in_turn, told
from mini_kv.story.metrics import MemoryUse
from mini_kv.story.story_text import story


def test_a_life_by_hand():
    """What notebook 04 tells its reader to try first: two tails are forgotten, the common tokens are not."""
    cache = LiveCache(num_blocks=11, block_size=4)
    assert cache.memory == MemoryUse(0, 0, 10)
    assert [
        cache.admit("0..15 100..103"),
        cache.admit("0..15 200..203"),
        cache.finish("A"),
        cache.finish("B"),
        cache.pressure(6),
        cache.admit("0..15 300..303"),
    ] == [
        "A: 0 of 20 tokens were found; new blocks: 1..5. Nothing had to be evicted.",
        "B: 16 of 20 tokens were found; new blocks: 6. Nothing had to be evicted.",
        "A is done. Free now, in this order: 5.",
        "B is done. Free now, in this order: 6 4..1.",
        "stranger 1: 0 of 24 tokens were found; new blocks: 7..10 5 6. Evicted for it: 5 6.",
        "C: 16 of 20 tokens were found; new blocks: 6. Evicted for it: 6.",
    ]
    assert cache.running == ["C"]
    assert cache.memory == MemoryUse(used=5, cached=5, empty=0)


def test_a_stranger_stays_until_something_else_is_pressed():
    """The evictions are the last thing that happened, so they are what the figure shows; then it leaves by itself."""
    cache = LiveCache(11, 4)
    cache.admit("0..31")
    cache.finish("A")
    cache.pressure(4)
    assert (cache.running, cache.memory) == ([], MemoryUse(used=4, cached=6, empty=0))
    assert [span.call for span in cache.spans][-1] == "allocate_slots"
    assert (
        cache.admit("no prompt")
        == "A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: no prompt"
    )
    assert cache.memory.used == 4, "what is no press sends no stranger away"
    cache.pressure(2)
    assert cache.told[-2] == "stranger 1 ends. No prompt will ever hit its blocks, but the cache cannot know that."
    assert cache.memory == MemoryUse(used=2, cached=8, empty=0)
    assert cache.finish("stranger 2") == "stranger 2 is not running."


def test_presses_as_text_and_prompts_in_turn():
    """What stands behind the questions of notebooks 02, 03 and 04."""
    assert told("admit 0..31", "finish A", "pressure 2", num_blocks=9).splitlines() == [
        "A: 0 of 32 tokens were found; new blocks: 1..8. Nothing had to be evicted.",
        "A is done. Free now, in this order: 8..1.",
        "stranger 1: 0 of 8 tokens were found; new blocks: 8 7. Evicted for it: 8 7.",
        "2 blocks used, 6 cached, 0 empty. Found so far: 0 of 40 tokens (0.00 %).",
    ]
    assert told() == "0 blocks used, 0 cached, 10 empty. Found so far: 0 of 0 tokens."
    assert found_in_turn(["0..32", "0..32"]).splitlines() == [
        "found by each, in turn: 0, 32",
        "by all of them together: 32 of 66 tokens (48.48 %)",
    ]
    assert found_in_turn(["0..31"] * 100).splitlines() == [
        "found by each, in turn: 0, 28, 28, ..., 28",
        "by all of them together: 2,772 of 3,200 tokens (86.62 %)",
    ]


def test_the_other_order_forgets_in_the_other_order():
    """Notebook 04, second and third thing to try: B first, and a stranger of six blocks leaves the common tokens."""
    cache = LiveCache(11, 4)
    cache.admit("0..15 100..103")
    cache.admit("0..15 200..203")
    cache.finish("B")
    cache.finish("A")
    assert cache.pressure(6).endswith("Evicted for it: 6 5.")
    assert cache.admit("0..15 100..103").startswith("C: 16 of 20")


def test_a_refusal_changes_nothing_and_keeps_the_name():
    """Notebook 04, fourth thing to try. Who is refused comes again as itself."""
    cache = LiveCache(11, 4)
    cache.admit("0..15 100..103")
    cache.admit("0..15 200..203")
    cache.finish("A")
    before = cache.memory
    assert cache.pressure(8) == "stranger 1 is refused: it needs 8 blocks, and 5 are free. Nothing has changed."
    assert cache.admit("500..599") == "C is refused: it needs 25 blocks, and 5 are free. Nothing has changed."
    assert (cache.memory, cache.running) == (before, ["B"])
    assert cache.admit("900").startswith("C: 0 of 1")


def test_a_partial_block_goes_to_the_front():
    """Notebook 04, fifth thing to try, and the only way to make empty memory grow in notebook 06."""
    cache = LiveCache(11, 4)
    cache.admit("0..17")
    assert cache.finish("A") == "A is done. Free now, in this order: 5..1."
    assert cache.kv.block_pool.free_block_queue.get_all_free_blocks()[0].block_id == 5
    assert cache.memory == MemoryUse(used=0, cached=4, empty=6)


def test_a_revived_prompt_and_a_stranger_in_between():
    """Notebook 03: all 8 blocks are free; a stranger takes the end of the prompt, 8 and 7, and 24 tokens are left."""
    cache = LiveCache(9, 4)
    cache.admit("0..31")
    cache.finish("A")
    assert cache.admit("0..31").startswith("B: 28 of 32 tokens were found; new blocks: 8.")
    assert cache.memory == MemoryUse(used=8, cached=0, empty=0)
    cache.finish("B")
    assert cache.pressure(2) == "stranger 1: 0 of 8 tokens were found; new blocks: 8 7. Evicted for it: 8 7."
    assert cache.admit("0..31").startswith("C: 24 of 32")


def test_only_the_last_to_leave_frees_what_is_shared():
    """Each has one block of its own at least, since its last token is always computed."""
    cache = LiveCache(11, 4)
    cache.admit("0..16")
    cache.admit("0..16")
    assert [cache.finish(name) for name in ("A", "A", "B", "")] == [
        "A is done. Free now, in this order: 5.",
        "A is not running.",
        "B is done. Free now, in this order: 6 4..1.",
        "No request is running: admit one first.",
    ]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("", "A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: "),
        ("5..3", "A prompt here has 1 to 400 tokens; this one has 0."),
        ("0..999999999", "A prompt here has 1 to 400 tokens; this one has 1000000000."),
        ("hello", "A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: hello"),
        ("-5", "A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: -5"),
        ("5000000000", "A prompt is numbers and runs of numbers, like 0..15 100..103; this is not: 5000000000"),
    ],
)
def test_what_is_no_prompt_gets_an_answer_and_changes_nothing(tokens, said):
    cache = LiveCache(11, 4)
    assert cache.admit(tokens) == said
    assert (story(cache.spans), cache.running) == ([], [])
