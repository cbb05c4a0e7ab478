"""Text is shown when it can no longer change: whole characters, and no beginning of what ends it."""

import itertools
from collections.abc import Sequence

import pytest

from mini_kv.engine.detokenizer import IncrementalDetokenizer


class Letters:
    """Token 0 is "a", token 1 is "b", and so on."""

    def __init__(self, eos_token_id: int | None = None) -> None:
        self.eos_token_id = eos_token_id

    @staticmethod
    def text(ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token_id) for token_id in ids)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.text(ids).encode()


class Bytes:
    """A token is a byte."""

    eos_token_id: int | None = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return bytes(ids)


def shown_after_each(token_ids: Sequence[int], stop: tuple[str, ...] = ()) -> list[str]:
    """Return what each token adds to what is shown, and, if the text has not come to an end, what the end adds."""
    detokenizer, shown = IncrementalDetokenizer(Bytes(), stop), [""]
    for token_id in token_ids:
        has_ended = detokenizer.append(token_id)
        shown.append(detokenizer.text)
        if has_ended:
            break
    else:
        detokenizer.finish()
        shown.append(detokenizer.text)
    return [after[len(before) :] for before, after in itertools.pairwise(shown)]


def test_a_character_is_shown_when_its_last_byte_has_come():
    assert shown_after_each("aß€".encode()) == ["a", "", "ß", "", "", "€", ""]


def test_bytes_that_are_no_character_are_shown_as_such():
    assert shown_after_each(b"a\xff\xe2\x82") == ["a", "\ufffd", "", "", "\ufffd"]


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("a#9", ("###",), ["a", "", "#9", ""]),
        ("a##9", ("###",), ["a", "", "", "##9", ""]),
        ("a###9", ("###",), ["a", "", "", ""]),
        ("aab", ("aac",), ["", "", "aab", ""]),
        ("aaab", ("aab",), ["", "", "a", ""]),
        ("a#", ("###",), ["a", "", "#"]),
        ("xyz", ("yz", "xyzz"), ["", "", "x"]),
        ("ab", ("b", "ab"), ["", ""]),
    ],
)
def test_what_may_become_a_stop_string_waits(text, stop, shown):
    assert shown_after_each(text.encode(), stop) == shown


class Words(Bytes):
    """A token is a word of this row."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return self.words[ids[0]].encode()


def test_a_stop_string_may_end_within_a_token():
    """At the first of its places, and nothing behind it is ever shown."""
    detokenizer = IncrementalDetokenizer(Words("No", " one. T. x"), (". ",))
    assert (detokenizer.append(0), detokenizer.text) == (False, "No")
    assert (detokenizer.append(1), detokenizer.text) == (True, "No one")
    detokenizer.finish()
    assert detokenizer.text == "No one"


def test_all_that_may_become_a_stop_string_waits_however_it_comes():
    detokenizer = IncrementalDetokenizer(Words("a##", "#", "b"), ("####",))
    assert [(detokenizer.append(token_id), detokenizer.text) for token_id in range(3)] == [
        (False, "a"), (False, "a"), (False, "a###b")
    ]  # fmt: skip


def test_what_waited_is_shown_once():
    detokenizer = IncrementalDetokenizer(Bytes(), ("##",))
    for token_id in b"a#":
        detokenizer.append(token_id)
    for _ in range(2):
        detokenizer.finish()
        assert detokenizer.text == "a#"
