"""Token ids: checked once when they arrive, packed as bytes where they are hashed."""

import operator
import struct
from array import array
from collections.abc import Sequence

from mini_kv.core.errors import InvalidTokenError

MAX_TOKEN_ID = 2**32 - 1


def checked_token_ids(token_ids: Sequence[int], first_index: int) -> list[int]:
    """Return the tokens as plain `int`; raises `InvalidTokenError` for the first that is none.

    NumPy's integers are welcome and become plain ones: a key must not depend on a Python type. Booleans are refused,
    although Python counts them as integers: a mask that slips in as a prompt should not get a cache entry.
    """
    if set(map(type, token_ids)) == {int}:  # the usual case, with no loop in Python
        try:
            array("I", token_ids)  # 4 bytes each, unsigned: refuses what does not fit
            return list(token_ids)
        except OverflowError:
            pass  # the loop below finds the guilty one
    checked = []
    for index, token in enumerate(token_ids):
        try:
            value = operator.index(token)
        except TypeError:
            raise InvalidTokenError(first_index + index, token) from None
        # A NumPy bool has no __index__; Python's has.
        if isinstance(token, bool) or not 0 <= value <= MAX_TOKEN_ID:
            raise InvalidTokenError(first_index + index, token)
        checked.append(value)
    return checked


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Return the tokens as 4 bytes each, little-endian. Serialising is most of the cost of a key, so do it once."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)
