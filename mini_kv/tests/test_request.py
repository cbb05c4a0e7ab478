"""Requests: tokens are checked once, at the door, and become plain integers."""

import enum
from collections.abc import Sequence
from typing import cast

import pytest

from mini_kv.core.block import BlockHash
from mini_kv.core.errors import InvalidTokenError, KVCacheError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.core.token_ids import MAX_TOKEN_ID, checked_token_ids


class Index:
    """What NumPy's integers look like to Python: no int, but usable as one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Color(enum.IntEnum):
    RED = 5


def test_a_new_request() -> None:
    """Nothing is computed, nothing was looked up, and all tokens are the prompt's."""
    request = Request("A", [3, 1, 4])
    assert (request.request_id, list(request.token_ids), request.num_tokens) == ("A", [3, 1, 4], 3)
    assert (request.num_prompt_tokens, request.num_computed_tokens, request.num_cached_tokens) == (3, 0, None)
    assert request.block_hashes == []
    assert repr(request) == "Request('A', 3 tokens, 0 computed)"


def test_output_is_added_at_the_end() -> None:
    """The prompt's length stays; the caller's list is not the request's."""
    prompt = [1, 2]
    request = Request("A", prompt)
    request.append_output_token_ids(3, 4)
    request.append_output_token_ids()
    assert (list(request.token_ids), request.num_tokens, request.num_prompt_tokens) == ([1, 2, 3, 4], 4, 2)
    assert prompt == [1, 2]


def test_blocks_are_hashed_as_they_fill() -> None:
    """A block's hash is there with its last token, and stays."""
    request = KVCacheManager.for_full_attention(num_blocks=4, block_size=2).new_request("A", [1])
    counts, names = [len(request.block_hashes)], []
    for token in (2, 3, 4, 5):
        request.append_output_token_ids(token)
        counts.append(len(request.block_hashes))
        names.append(list(request.block_hashes))
    assert counts == [0, 1, 1, 2, 2]
    assert names[3][:1] == names[0]


def test_a_request_from_a_trace_brings_its_hashes() -> None:
    """Traces know lengths and prefix ids, no tokens."""
    names = [BlockHash(b"one"), BlockHash(b"two")]
    request = Request("A", num_tokens=9, block_hashes=names)
    assert (list(request.token_ids), request.num_tokens, request.num_prompt_tokens) == ([], 9, 9)
    assert request.block_hashes == [b"one", b"two"]
    assert request.block_hashes is not names


def test_a_request_needs_tokens_or_their_number() -> None:
    """No tokens, both, too few, or hashes to be made of tokens that are not there: refused at once."""
    hasher = KVCacheManager.for_full_attention(num_blocks=4, block_size=2)._block_hasher
    for token_ids, num_tokens in (([], None), ([1], 1)):
        with pytest.raises(ValueError, match="request 'A' needs token ids, or num_tokens if they are not known"):
            Request("A", token_ids, num_tokens=num_tokens)
    with pytest.raises(ValueError, match="request 'A' has 0 tokens, it needs at least 1"):
        Request("A", num_tokens=0)
    assert Request("A", num_tokens=1).num_tokens == 1
    with pytest.raises(ValueError, match="request 'A' has no token ids to hash: set its block_hashes instead"):
        Request("A", num_tokens=4, block_hasher=hasher)  # all such requests would share one hash


@pytest.mark.parametrize("token", [-1, 2**32, True, False, 1.0, "1", None, Index(-1), Index(2**32)])
def test_bad_tokens_are_refused_with_their_place(token: object) -> None:
    """The error says which token and what it was; an append that fails adds nothing."""
    with pytest.raises(InvalidTokenError) as at_the_start:
        Request("A", cast(list[int], [7, 8, token, 9]))
    assert (at_the_start.value.index, at_the_start.value.value) == (2, token)
    assert isinstance(at_the_start.value, KVCacheError)
    assert isinstance(at_the_start.value, ValueError)

    request = Request("A", [7, 8])
    with pytest.raises(InvalidTokenError) as later:
        request.append_output_token_ids(9, cast(int, token))
    assert (later.value.index, later.value.value) == (3, token)
    assert (list(request.token_ids), request.num_tokens, request.block_hashes) == ([7, 8], 2, [])


@pytest.mark.parametrize(
    "token_ids",
    [
        [5, 0, MAX_TOKEN_ID],
        (5, 0, MAX_TOKEN_ID),
        [Index(5), Index(0), Index(MAX_TOKEN_ID)],
        [Color.RED, 0, MAX_TOKEN_ID],
    ],
)
def test_whatever_counts_becomes_plain_integers(token_ids: Sequence[int]) -> None:
    """Types vanish at the door, so that no key can depend on one."""
    checked = checked_token_ids(token_ids, first_index=0)
    assert list(checked) == [5, 0, 4294967295]
    assert set(map(type, checked)) == {int}


def test_no_tokens_are_fine_to_append() -> None:
    """A step may yield nothing."""
    assert list(checked_token_ids([], first_index=0)) == []
