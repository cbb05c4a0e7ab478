"""Token ids: checked and packed once, when they arrive."""

import operator
import sys
from array import array
from collections.abc import Sequence

from mini_kv.core.errors import InvalidTokenError

MAX_TOKEN_ID = 2**32 - 1
_BYTE_ORDER = sys.byteorder
"""Byte order of the machine, and so of its arrays."""


def checked_token_ids(token_ids: Sequence[int], first_index: int) -> "array[int]":
    """Return the tokens packed, 4 bytes each. Raises `InvalidTokenError` for the first value that is not a token.

    Packing is the check: an array refuses a value that is not an integer or does not fit, without a loop in Python.
    NumPy's integers become plain integers, because a block hash must not depend on a Python type. Booleans are refused,
    although Python counts them as integers: they are a sign that a mask was passed as a prompt.
    """
    if len(token_ids) == 0:
        return array("I")
    token_ids = list(token_ids)  # an array would take bytes for tokens that are packed already
    try:
        packed = array("I", token_ids)
    except (TypeError, OverflowError):
        raise _invalid(token_ids, first_index) from None
    if _has_boolean(token_ids, packed.tobytes()):
        raise _invalid(token_ids, first_index)
    return packed


def _has_boolean(token_ids: list[int], packed: bytes) -> bool:
    """Return whether one of the tokens is a boolean. A packed boolean is 0 or 1, so only zeros and ones are checked."""
    for value in (0, 1):
        pattern = value.to_bytes(4, _BYTE_ORDER)
        start = packed.find(pattern)
        while start >= 0:
            if isinstance(token_ids[start // 4], bool):
                return True
            start = packed.find(pattern, start // 4 * 4 + 4)
    return False


def _invalid(token_ids: list[int], first_index: int) -> InvalidTokenError:
    """Return the error for the first value that is not a token."""
    index = next(index for index, token in enumerate(token_ids) if not _is_token_id(token))
    return InvalidTokenError(first_index + index, token_ids[index])


def _is_token_id(token: int) -> bool:
    try:
        value = operator.index(token)
    except TypeError:  # a NumPy bool is among these; Python's is an integer
        return False
    return not isinstance(token, bool) and 0 <= value <= MAX_TOKEN_ID


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Return the tokens as 4 bytes each, little-endian."""
    packed = array("I", token_ids)
    if _BYTE_ORDER == "big":
        packed.byteswap()
    return packed.tobytes()
