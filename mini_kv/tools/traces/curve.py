"""Hits at every pool size, from one pass over a trace. They equal those of `replay` with one request at a time.

The default queue evicts the least recently used block first, so a larger pool holds all blocks of a smaller one, and
more (Mattson and others, 1970, doi.org/10.1147/sj.92.0078). For each lookup there is one number: the smallest
pool in which it is a hit. The counts of these numbers give the hits at every pool size:

    blocks by last use    c4  c3  b9  b8  b7  a2  a1 | a3 ...        a2 is the sixth: a hit in pools of 6 and more
                          newest                   oldest

A request frees its blocks tail first, so the blocks that it touched are together, its head first. Consecutive blocks
that one request touched last are therefore at consecutive depths, and a tree with one entry per request (Fenwick, 1994,
doi.org/10.1002/spe.4380240306) gives the depth of all of them together.

Further rules of the engine, and their effect here:

    the null block        a pool of n blocks can hold n - 1
    a partial block       has no hash: it takes the room of one block while its request runs, and is reused first
    a refused prompt      is larger than the pool, and changes nothing: such pools are computed one by one
    the last token        is always computed. A prompt of full blocks that are all cached computes its last block again,
                          in a second block with the same hash. Lookups return the oldest of these that is left, and
                          which one that is depends on the size of the pool: see `Stack`
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from mini_kv.core.block import BlockHash
from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.prompt_hashes import Prompt


class LostBlock(NamedTuple):
    """A block that was evicted before it would have been hit."""

    num_more: int
    """Number of additional blocks with which the pool would have kept it."""
    waited: int
    """Milliseconds from its last use to the lookup."""


class CurvePoint(NamedTuple):
    """The hits in a pool of one size."""

    num_blocks: int
    """Size of the pool, the null block included."""
    hit_tokens: int
    prompt_tokens: int
    """Tokens of the prompts that the pool can hold."""
    requests_refused: int
    """Requests whose prompt is larger than the pool."""
    hit_places: int
    """Sum of the positions of all hit tokens in their prompts, counted from 1: the attention work that was saved."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were hits, 0.0 to 1.0."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True)
class Curve:
    """Hits by pool size."""

    prompts: Sequence[Prompt]
    block_size: int
    smallest: int
    """Smallest pool, the null block included, that holds every prompt."""
    hit_blocks: list[int]
    """Hit blocks by pool size, from `smallest` on. A larger pool than the last one finds no more."""
    hit_offsets: list[int]
    """The positions of these blocks in their prompts, summed."""
    _smaller: dict[int, CurvePoint] = field(default_factory=dict)

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.num_tokens for prompt in self.prompts)

    @cached_property
    def largest(self) -> int:
        """Smallest pool, the null block included, that finds all that any pool finds."""
        return max(self.smallest, bisect_left(self.hit_blocks, self.hit_blocks[-1]))

    def at(self, num_blocks: int) -> CurvePoint:
        """Return the hits of a pool of this size, null block included. Costs O(1), or a pass if it refuses prompts."""
        if num_blocks < 2:
            raise ConfigError(f"num_blocks is {num_blocks}: the null block takes one, so it must be at least 2")
        if num_blocks >= self.smallest:
            return self._point(num_blocks, min(num_blocks, len(self.hit_blocks) - 1))
        if num_blocks not in self._smaller:
            fitting = [prompt for prompt in self.prompts if _num_blocks(prompt, self.block_size) < num_blocks]
            point = CurvePoint(num_blocks, 0, 0, 0, 0)
            if fitting:
                point = make_curve(fitting, self.block_size).at(num_blocks)
            self._smaller[num_blocks] = point._replace(requests_refused=len(self.prompts) - len(fitting))
        return self._smaller[num_blocks]

    def _point(self, num_blocks: int, index: int) -> CurvePoint:
        hits, size = self.hit_blocks[index], self.block_size
        places = size * size * self.hit_offsets[index] + hits * size * (size + 1) // 2
        return CurvePoint(num_blocks, hits * size, self.prompt_tokens, 0, places)

    def knee(self) -> int:
        """Return the pool size up to which one more block adds more hits than an average block, and beyond it fewer.

        It is the point of the curve farthest above the straight line from no block to `largest`.
        """
        hits, largest = self.hit_blocks, self.largest
        return max(range(self.smallest, largest + 1), key=lambda size: hits[size] * largest - hits[largest] * size)

    def sizes(self, most: int) -> list[int]:
        """Return up to `most` pool sizes from `smallest` to `largest`, each larger by about the same factor."""
        ratio = (self.largest / self.smallest) ** (1 / (most - 1))
        return sorted({round(self.smallest * ratio**i) for i in range(most)} | {self.largest})


def make_curve(prompts: Sequence[Prompt], block_size: int) -> Curve:
    """Return the hits of these prompts, one at a time and in this order, at every pool size.

    Costs O(blocks + runs * log(requests)), where a run is a stretch of a prompt that one request touched last.
    """
    if not prompts:
        raise ConfigError("there is no request to draw a curve of")
    # By pool size. A depth is never larger than the blocks of all prompts and one.
    counts = [0] * (sum(prompt.num_tokens // block_size for prompt in prompts) + 3)
    offsets = [0] * len(counts)
    for needs in lookups(prompts, block_size):
        for offset, _, need in needs:
            counts[need + 1] += 1  # and the null block
            offsets[need + 1] += offset
    smallest = 1 + max(_num_blocks(prompt, block_size) for prompt in prompts)
    size = max(smallest, len(counts) - 1)
    del counts[size + 1 :], offsets[size + 1 :]
    counts += [0] * (size + 1 - len(counts))
    offsets += [0] * (size + 1 - len(offsets))
    return Curve(prompts, block_size, smallest, list(accumulate(counts)), list(accumulate(offsets)))


def _num_blocks(prompt: Prompt, block_size: int) -> int:
    return -(-prompt.num_tokens // block_size)


def hits_in_pool(
    prompts: Sequence[Prompt], timestamps: Sequence[int], block_size: int, num_blocks: int
) -> tuple[list[int | None], list[LostBlock]]:
    """Return the hit tokens of each request in a pool, the null block included, and the blocks that were lost.

    `None`: the prompt is larger than the pool. A lost block is one that a larger pool would have kept until it was
    looked up. Costs as much as `make_curve`.
    """
    fitting = [number for number, prompt in enumerate(prompts) if _num_blocks(prompt, block_size) < num_blocks]
    hits: list[int | None] = [None] * len(prompts)
    lost = []
    for number, needs in zip(fitting, lookups([prompts[number] for number in fitting], block_size), strict=True):
        hits[number] = block_size * sum(need < num_blocks for _, _, need in needs)
        lost += [
            LostBlock(need + 1 - num_blocks, timestamps[number] - timestamps[fitting[request]])
            for _, request, need in needs
            if need >= num_blocks
        ]
    return hits, lost


def lookups(prompts: Sequence[Prompt], block_size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield for each prompt, one at a time and in this order, what `Stack.needs` yields for its usable blocks."""
    stack = Stack([prompt.num_tokens // block_size for prompt in prompts])
    for prompt in prompts:
        num_usable = (prompt.num_tokens - 1) // block_size
        yield list(stack.needs(prompt.block_hashes[:num_usable]))
        stack.touch(prompt.block_hashes, num_usable, prompt.num_tokens % block_size > 0)


class _Copy(NamedTuple):
    """One of several blocks with the same hash."""

    threshold: int
    """Pools with fewer blocks do not have it: there this block was touched again, or evicted."""
    request: int
    """Number of the request that touched it last."""
    offset: int
    """Its position in that request's prompt."""


class Stack:
    """All blocks by their last use, for pools of all sizes at once.

    Where a hash has several blocks, a lookup touches the one that was published first, of those that the pool has:

        blocks of a hash, by publication    x1     x2     x3
        smallest pool that has it           90     70     40
        touched in a pool of                90..   70..   40..     in each pool one comes to the top, then in all pools
                                                                   first in this order, whichever it was
        left where it was                   -      90..   70..     in the pools that touched another
    """

    def __init__(self, num_full: Sequence[int]) -> None:
        """Start empty. `num_full`: the number of full blocks of each request."""
        self._num_full = num_full
        self._tree = [0] * (len(num_full) + 1)
        """Fenwick tree: the blocks that each request touched last, without those that have a threshold."""
        self._newest: dict[BlockHash, int] = {}
        """The request that touched a block of this hash last."""
        self._copies: dict[BlockHash, list[_Copy]] = {}
        """The blocks of a hash that has several, in the order of publication."""
        self._leftovers: list[_Copy] = []
        """All of these that have a threshold, by it."""
        self._request = 0
        self._partial = 0
        """1 if the last request's partial block has taken the room of one block."""
        self._total = 0

    def needs(self, block_hashes: Sequence[BlockHash]) -> Iterator[tuple[int, int, int]]:
        """Yield for each block that occurred before: its position, the request that touched it last, and its need.

        The need is the number of blocks that a pool must hold so that the block is a hit.
        """
        start = 0
        for request, length in self._runs(block_hashes):
            depth = self._depth(request, start)
            for offset in range(start, start + length):
                need = depth + offset - start
                yield offset, request, self._with_leftovers(need, request, offset) if self._leftovers else need
            start += length

    def touch(self, block_hashes: Sequence[BlockHash], num_usable: int, has_partial_block: bool) -> None:
        """Put the blocks of the next request on top. From `num_usable` on a block is computed whether cached or not."""
        if self._copies:
            for offset, block_hash in enumerate(block_hashes[:num_usable]):
                if block_hash in self._copies:
                    self._touch_first(block_hash, offset)
        for request, length in list(self._runs(block_hashes[:num_usable])):
            self._add(request, -length)
        for offset, block_hash in enumerate(block_hashes[num_usable:], num_usable):  # at most one
            if block_hash in self._newest:
                copies = self._copies.setdefault(block_hash, [_Copy(0, self._newest[block_hash], offset)])
                copies.append(_Copy(0, self._request, offset))
        self._newest.update(dict.fromkeys(block_hashes, self._request))
        self._add(self._request, len(block_hashes))
        self._partial = int(has_partial_block)
        self._request += 1

    def _runs(self, block_hashes: Sequence[BlockHash]) -> Iterator[tuple[int, int]]:
        """Yield the runs of blocks that occurred before: the request that touched them last, and their number."""
        for request, run in groupby(map(self._newest.get, block_hashes)):
            if request is None:  # what follows it was never there either
                return
            yield request, len(list(run))

    def _touch_first(self, block_hash: BlockHash, offset: int) -> None:
        """Touch, in pools of each size, the block that was published first. The newest block stays in the tree."""
        copies = self._copies.pop(block_hash)
        needs = [max(copy.threshold, self._need_of_copy(copy, self._newest[block_hash])) for copy in copies]
        cut = needs[0]
        left = []
        for copy, need in zip(copies[1:], needs[1:], strict=True):
            left.append(copy._replace(threshold=cut) if need < cut else copy)
            cut = min(cut, need)
        for copy in copies:
            if copy.threshold:
                self._leftovers.remove(copy)
            elif copy.request != self._newest[block_hash]:
                self._add(copy.request, -1)
        for copy in left:
            if copy.threshold:
                insort(self._leftovers, copy)
            else:
                self._add(copy.request, 1)
        if left:
            self._copies[block_hash] = [_Copy(0, self._request, offset), *left]

    def _depth(self, request: int, offset: int) -> int:
        """Return the blocks that a pool must hold to have the block that the request touched last at this position."""
        return self._num_blocks_from(request) - self._num_full[request] + offset + 1 + self._partial

    def _need_of_copy(self, copy: _Copy, newest: int) -> int:
        depth = self._depth(copy.request, copy.offset)
        if copy.threshold or copy.request != newest:  # what its request touched above it was touched again later
            depth = self._num_blocks_from(copy.request + 1) + 1 + self._partial
        return self._with_leftovers(depth, copy.request, copy.offset)

    def _with_leftovers(self, need: int, request: int, offset: int) -> int:
        """Return `need` and one for each leftover above this place, in pools that have it."""
        for copy in self._leftovers:
            if copy.threshold > need:
                break
            if copy.request > request or (copy.request == request and copy.offset < offset):
                need += 1
        return need

    def _add(self, request: int, number: int) -> None:
        self._total += number
        index = request + 1
        while index < len(self._tree):
            self._tree[index] += number
            index += index & -index

    def _num_blocks_from(self, request: int) -> int:
        """Return the number of blocks that were touched last by this request or a later one."""
        before = 0
        while request:
            before += self._tree[request]
            request -= request & -request
        return self._total - before
