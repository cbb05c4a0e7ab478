"""The tokens of each prompt that earlier prompts had: at its beginning, and after a difference.

A cache finds prefixes only. Tokens that two prompts share after the first difference are lost. There are three
usual reasons for that. Each has its own pattern in the tokens:

    a value that changes    head 17:04 rest        head 17:05 rest         a few tokens differ, then all agrees again
    another order           head A B C             head B A C              each has tokens that are later in the other
    another size            head <576 px> rest     head <288 px> rest      both have an image here, of other lengths
"""

import sys
from array import array
from bisect import bisect
from collections.abc import Hashable, Sequence
from itertools import compress, repeat
from typing import NamedTuple

from mini_kv.tools.traces.prompt_hashes import Trace, token_requests
from mini_kv.tools.traces.readers.mooncake import TraceRequest, number_prefixes
from mini_kv.tools.traces.readers.token_trace import TokenRequest

_GRAM = 16
"""Number of tokens that are never equal by chance in two places of a text."""
_MOST_CHANGED = 32
"""Tokens of the longest value that changes: a date and a time, or an identifier."""
LEAST_MATCH = 64
"""The fewest tokens after a difference that are reported: closing phrases and templates are shorter."""
_LOW_BYTE = 0 if sys.byteorder == "little" else 7
_IS_MULTIPLE_OF_4 = bytes(byte % 4 == 0 for byte in range(256))


class Shared(NamedTuple):
    """Tokens of the longest common prefix with an earlier prompt, by increasingly strict comparisons."""

    tokens: int
    images: int
    """The prefix with equal images, too."""
    adapter: int
    """The prefix with equal adapters, too."""
    names: int
    """The prefix with equal salts, too: all inputs of a block's hash."""


class ShiftedMatch(NamedTuple):
    """Tokens of a prompt that earlier prompts had, after a difference."""

    value: int = 0
    order: int = 0
    image: int = 0


class _EarlierPrompts:
    """Prompts so far. In sorted order the prompt with the longest common prefix is a neighbour."""

    def __init__(self) -> None:
        self._sorted: dict[Hashable, list[tuple[bytes, int]]] = {}

    def find_and_add(self, units: bytes, number: int, namespace: Hashable) -> tuple[int, int | None]:
        """Return the longest prefix shared with an earlier prompt, in units, and that prompt. Then add this prompt."""
        rows = self._sorted.setdefault(namespace, [])
        place = bisect(rows, (units, number))
        best: tuple[int, int | None] = (0, None)
        for other, earlier in rows[max(place - 1, 0) : place + 1]:
            best = max(best, (common_length(units, other) // 8, earlier), key=lambda found: found[0])
        rows.insert(place, (units, number))
        return best


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common prefix of two sequences. Costs O(length), at the speed of comparing slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def prefix_overlaps(trace: Trace) -> tuple[list[Shared], list[ShiftedMatch]]:
    """Return, for each request, what its prompt has in common with earlier ones.

    For a trace of hashes only the blocks are known, not the tokens.

    Costs O(tokens * log(requests)), or O(hashes).
    """
    entries = token_requests(trace)
    if not entries:
        return [Shared(n, n, n, n) for n in _shared_by_hashes(trace)], [ShiftedMatch()] * len(trace)
    earlier, deepest = _EarlierPrompts(), _Deepest()
    pictures: dict[str, int] = {}
    shared, behind = [], []
    for number, entry in enumerate(entries):
        tokens = array("Q", entry.token_ids).tobytes()
        named = _with_pictures(entry, pictures) if entry.images else tokens
        lengths = []
        for namespace, units in (
            ((), tokens),
            (("pictures",), named),
            ((entry.lora_name,), named),
            ((entry.lora_name, entry.cache_salt), named),
        ):
            length, nearest = earlier.find_and_add(units, number, namespace)
            lengths.append(length)
            if not namespace:
                candidates = {nearest, deepest.find_and_add(tokens, number)}
        shared.append(Shared(*lengths))
        found = [find_shifted_match(entry, entries[other], lengths[0]) for other in candidates if other is not None]
        behind.append(max(found, key=lambda found: (sum(found), found), default=ShiftedMatch()))
    return shared, behind


def _shared_by_hashes(trace: Trace) -> list[int]:
    """Return the tokens of the leading blocks that came before, the partial last one of a whole prompt included."""
    entries = [entry for entry in trace if isinstance(entry, TraceRequest)]
    known: set[int] = set()
    result = []
    for entry, prefixes in zip(entries, number_prefixes([entry.hash_ids for entry in entries]), strict=True):
        # With a prefix all shorter ones of it are known: so the first that is not can be found by halving.
        num_shared = bisect(prefixes, 0, key=lambda number: number not in known)
        known.update(prefixes)
        result.append(min(num_shared * entry.block_size, entry.input_length))
    return result


def _with_pictures(entry: TokenRequest, numbers: dict[str, int]) -> bytes:
    """Return the tokens, those of an image replaced by units that only the same image has."""
    units = array("Q", entry.token_ids)
    for first, length, digest in entry.images:
        number = numbers.setdefault(digest, len(numbers) + 1)
        for index in range(length):
            units[first + index] = (number << 32) + index
    return units.tobytes()


class _Deepest:
    """Finds the earlier prompt that contains the longest part of this prompt's end, at any position."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}

    def find_and_add(self, packed: bytes, number: int) -> int | None:
        """Return the last request with the last known gram of these tokens, 8 bytes each. Then add the tokens."""
        # Which grams are kept follows from the tokens themselves, so that a shifted text keeps the same ones.
        kept = packed[_LOW_BYTE::8].translate(_IS_MULTIPLE_OF_4)
        starts = compress(range(0, len(packed) - 8 * _GRAM + 1, 8), kept)
        grams = [packed[start : start + 8 * _GRAM] for start in starts]
        found = next((self._last[gram] for gram in reversed(grams) if gram in self._last), None)
        self._last.update(zip(grams, repeat(number)))
        return found


def find_shifted_match(entry: TokenRequest, other: TokenRequest, num_shared: int) -> ShiftedMatch:
    """Return the tokens that both prompts have after the first difference and after the first `num_shared` tokens."""
    mine, theirs = entry.token_ids, other.token_ids
    start = common_length(mine, theirs)
    ends = _ends_of_images(entry, other, start)
    if ends is not None:
        length = common_length(mine[ends[0] :], theirs[ends[1] :])
        return ShiftedMatch(image=length) if length >= LEAST_MATCH else ShiftedMatch()
    reordered = _reordered(mine[start:], theirs[start:])
    if reordered:
        return ShiftedMatch(order=max(start + reordered - num_shared, 0))
    place, place_there, total = start, start, 0
    while (found := _agree_again(mine, theirs, place, place_there)) is not None:
        place, place_there = found
        length = common_length(mine[place:], theirs[place_there:])
        if length < LEAST_MATCH:
            break
        total += max(place + length - max(place, num_shared), 0)
        place, place_there = place + length, place_there + length
    return ShiftedMatch(value=total)


def _ends_of_images(entry: TokenRequest, other: TokenRequest, place: int) -> tuple[int, int] | None:
    """If this place is inside images of different lengths that begin at the same token, return both ends."""
    for first, length, _ in entry.images:
        for first_there, length_there, _ in other.images:
            if first == first_there and length != length_there and first < place <= first + min(length, length_there):
                return first + length, first + length_there
    return None


def _agree_again(mine: tuple[int, ...], theirs: tuple[int, ...], place: int, there: int) -> tuple[int, int] | None:
    """Return the next places from which both prompts agree again, after at most `_MOST_CHANGED` tokens of each."""
    grams = {theirs[at : at + _GRAM]: at for at in range(there + _MOST_CHANGED, there - 1, -1)}
    for at in range(place, min(place + _MOST_CHANGED, len(mine) - _GRAM) + 1):
        if mine[at : at + _GRAM] in grams:
            return at, grams[mine[at : at + _GRAM]]
    return None


def _reordered(mine: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """Return the number of tokens from here on that both prompts have in another order, or 0 if there are none.

    Each prompt must begin here with tokens that the other prompt has later. A new text is not in the other prompt.
    """
    if len(mine) < LEAST_MATCH or len(theirs) < LEAST_MATCH:
        return 0
    if not _contains(theirs, mine[:_GRAM]) or not _contains(mine, theirs[:_GRAM]):
        return 0
    grams = {theirs[at : at + _GRAM] for at in range(len(theirs) - _GRAM + 1)}
    end = 0
    for at in range(len(mine) - _GRAM + 1):
        if at > end + _GRAM:  # further than from one part to the next
            break
        if mine[at : at + _GRAM] in grams:
            end = at + _GRAM
    return end if end >= LEAST_MATCH else 0


def _contains(tokens: tuple[int, ...], gram: tuple[int, ...]) -> bool:
    """Return whether the gram occurs among the tokens. Costs O(tokens), at the speed of `bytes.find`."""
    packed, wanted = array("Q", tokens).tobytes(), array("Q", gram).tobytes()
    start = packed.find(wanted)
    while start % 8 > 0:  # not where a token begins; -1 % 8 is 7
        if start < 0:
            return False
        start = packed.find(wanted, start + 1)
    return True
