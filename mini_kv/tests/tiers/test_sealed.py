"""Envelopes: what went in comes out, and nothing else opens."""

import random

import pytest

from mini_kv.tiers.sealed import OVERHEAD_BYTES, DamagedError, seal, unseal

KEY, OTHER_KEY = b"k" * 36, b"q" * 36
PAYLOAD = random.Random(1).randbytes(100)


def reason(key: bytes, envelope: object, num_bytes: int = 100, secret: bytes | None = None) -> str | None:
    """Return why it does not open; `None` if it does."""
    try:
        unseal(key, envelope, num_bytes, secret)
    except DamagedError as error:
        return error.reason
    return None


def test_what_goes_in_comes_out() -> None:
    """And takes a fixed number of bytes more."""
    envelope = seal(KEY, PAYLOAD)
    assert bytes(unseal(KEY, envelope, 100)) == PAYLOAD
    assert len(envelope) == OVERHEAD_BYTES + len(KEY) + 100


def test_an_envelope_opens_for_its_own_key_alone() -> None:
    """A server that answers another question, a file under another name."""
    envelope = seal(KEY, PAYLOAD)
    assert reason(OTHER_KEY, envelope) == "another block"
    assert reason(KEY + b"k", envelope) == "length"
    assert reason(KEY, envelope, num_bytes=99) == "length"
    assert reason(KEY[:-1], envelope, num_bytes=101) == "layout"  # the same length in all, cut elsewhere


@pytest.mark.parametrize("answer", [None, 7, "text", [], b"", b"-LOADING\r\n", bytearray(seal(KEY, PAYLOAD))])
def test_an_answer_that_is_no_envelope(answer: object) -> None:
    """Whatever a server says."""
    assert reason(KEY, answer) in ("no bytes", "length")


def test_a_secret_is_needed_to_forge() -> None:
    """One who can write to the server, but does not know it, cannot make an envelope that opens."""
    assert reason(KEY, seal(KEY, PAYLOAD, b"ours"), secret=b"ours") is None
    assert reason(KEY, seal(KEY, PAYLOAD), secret=b"ours") == "digest"
    assert reason(KEY, seal(KEY, PAYLOAD, b"theirs"), secret=b"ours") == "digest"
    assert reason(KEY, seal(KEY, PAYLOAD, b"ours")) == "digest"


def test_every_single_bit_counts() -> None:
    """Each of the bits, flipped alone."""
    envelope = seal(KEY, PAYLOAD)
    opened = []
    for position in range(8 * len(envelope)):
        damaged = bytearray(envelope)
        damaged[position // 8] ^= 1 << position % 8
        if reason(KEY, bytes(damaged)) is None:
            opened.append(position)
    assert opened == []
