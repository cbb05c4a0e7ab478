"""Two prompts and their block hashes: where the chains part, and how it is drawn."""

import pytest

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.course.lessons.chain import PRESETS, TOKENS, chain

NO_NAME = "A prompt that does not fill a block of 4 characters has no block hash, so there is nothing to share."
APART = "1 and 1 full blocks of 4 characters, and no block hash in common: the chains differ from the first block on."


def texts(row):
    return [block.text for block in row]


def shared(first, second, block_size, tokens="characters"):
    return chain(first, second, block_size, tokens).num_shared_blocks


def test_two_greetings():
    """Blocks of 4: one hash in common, a second block of its own, a rest without a hash."""
    hello = chain("Hello world", "Hello students", 4)
    assert [texts(row) for row in hello.rows] == [["Hell", "o wo", "rld"], ["Hell", "o st", "uden", "ts"]]
    assert [block.shared for block in hello.rows[0]] == [True, False, False]
    assert [block.name is None for block in hello.rows[1]] == [False, False, False, True]
    assert (
        hello.sentence == "2 and 3 full blocks of 4 characters. 1 block hash in common, then the chains are different."
    )


def test_the_hashes_are_the_engine_s():
    """What is drawn as shared is what the manager would find."""
    first, second = (list(map(ord, preset)) for preset in (PRESETS[2].first, PRESETS[2].second))
    kv = KVCacheManager.for_full_attention(100, 4)
    request = kv.new_request("first", first)
    kv.allocate_slots(request, len(first))
    request.num_computed_tokens = len(first)
    row = chain(PRESETS[2].first, PRESETS[2].second, 4).rows[0]
    assert [block.name for block in row if block.name] == [name.hex() for name in request.block_hashes]
    assert kv.get_computed_blocks(kv.new_request("second", second))[1] == 4 * shared(
        PRESETS[2].first, PRESETS[2].second, 4
    )


@pytest.mark.parametrize(
    ("preset", "tokens", "at_4", "at_8", "at_16"),
    [
        (0, "characters", 1, 0, 0),
        (1, "characters", 1, 0, 0),
        (1, "bytes", 5, 2, 1),
        (2, "characters", 13, 6, 3),
        (2, "words", 2, 1, 0),
        (3, "characters", 0, 0, 0),
    ],
)
def test_what_the_examples_share(preset, tokens, at_4, at_8, at_16):
    """The two well-known examples share something at a block size of 4 and nothing at 16, unless bytes are counted."""
    first, second = PRESETS[preset].first, PRESETS[preset].second
    assert [shared(first, second, size, tokens) for size in (4, 8, 16)] == [at_4, at_8, at_16]


def test_chains_that_parted_never_meet_again():
    """One character differs in the first block; all the equal ones behind it are worth nothing."""
    assert shared("Xello, it is a lovely day", "Hello, it is a lovely day", 4) == 0
    assert shared("Hello, it is a lovely day", "Hello, it is a lovely day", 4) == 6


def test_words_are_numbered_in_order_of_first_appearance():
    """The same word is the same token in both prompts, whatever follows it."""
    pair = chain("one two  one", "one two one", 1, "words")
    assert [texts(row) for row in pair.rows] == [["one ", "two  ", "one"], ["one ", "two ", "one"]]
    assert pair.num_shared_blocks == 3


def test_bytes_that_are_no_letters_are_shown_as_numbers():
    assert texts(chain("é<", "", 3, "bytes").rows[0]) == ["c3 a9 <"]


def test_text_cannot_become_part_of_the_page():
    page = chain("<b>&", "", 4)._repr_html_()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("first", "second", "block_size", "sentence"),
    [
        ("", "", 4, NO_NAME),
        ("abcd", "abc", 4, NO_NAME),
        ("abcd", "abce", 4, APART),
        ("abcd", "abcd", 2, "2 and 2 full blocks of 2 characters. 2 block hashes in common: all that both have."),
        ("abcdef", "abcd", 2, "3 and 2 full blocks of 2 characters. 2 block hashes in common: all that both have."),
    ],
)
def test_the_sentence_below(first, second, block_size, sentence):
    assert chain(first, second, block_size).sentence == sentence


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="block_size is 0: it must be at least 1"):
        chain("a", "b", 0)
    with pytest.raises(ValueError, match=f"tokens is 'syllables'; choose from {', '.join(TOKENS)}"):
        chain("a", "b", 1, "syllables")
