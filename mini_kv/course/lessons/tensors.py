"""The numbers for the notebooks on slots, online softmax and quantisation, computed by the code that they explain.

write_steps             a few steps written to a cache, with or without one of four mistakes, and read again
follow_blocks           attention block by block: the running values, and the weight of each block so far
share_of_the_second     two halves merged, by the larger weight of the second
split_everywhere        attention split in two at every position, compared with attention in one piece
errors_by_outlier       the error of 8 bits for keys with one large channel
bytes_of_a_number       the bytes of a number and its part of a scale
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from mini_kv.attention.block_table import compute_slot_mapping
from mini_kv.attention.kv_cache import PagedKVCache, allocate_kv_cache, gather_kv, reshape_and_cache
from mini_kv.attention.merge import merge_attn_states
from mini_kv.attention.options import AttentionOptions
from mini_kv.attention.reference import attend_once
from mini_kv.course.lessons.quantization_error import errors

BLOCK_SIZE = 4
NUM_BLOCKS = 9
TABLES = {"a": [2, 1], "b": [3, 4, 5]}
"""Block tables of the requests in the scenario `a-step-s-slots`. A test compares them."""
STEPS = ({"a": 5}, {"a": 1, "b": 7}, {"a": 1, "b": 3})
"""Tokens of each request per step."""
_PADDED = 8
"""Tokens of a batch. A smaller step is filled up with tokens whose slot is -1."""
MISTAKES = ("none", "positions from the step", "entry for block", "another's row", "padding at -1")


@dataclass(frozen=True, slots=True)
class Memory:
    """A cache after some steps. A token's name is its request and position, as in "b7". Padding is "pad"."""

    blocks: list[list[str]]
    """The last written token, by block and place. Empty: no token."""
    overwritten: list[tuple[str, str]]
    """Each overwritten token, and the token written over it, in order."""
    reads: dict[str, list[str]]
    """The tokens that each request reads, in order."""

    @property
    def wrong_reads(self) -> int:
        """Number of read tokens that are not the request's own at that position."""
        return sum(
            found != f"{name}{position}" for name, row in self.reads.items() for position, found in enumerate(row)
        )


def write_steps(mistake: str = "none") -> Memory:
    """Write `STEPS` to a cache of `NUM_BLOCKS` blocks, and read it. Raises `ValueError` for an unknown mistake."""
    if mistake not in MISTAKES:
        raise ValueError(f"no mistake {mistake!r}; there are: {', '.join(MISTAKES)}")
    kv_cache = allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE, 1, 1)
    names = ["", "pad"]  # what the numbers in the cache stand for
    overwritten = []
    computed = dict.fromkeys(TABLES, 0)
    for step in STEPS:
        tokens = [f"{name}{computed[name] + i}" for name, query_len in step.items() for i in range(query_len)]
        slots = _slots(step, computed, mistake)
        before = _names_in(kv_cache, names)
        names += tokens
        numbers = [names.index(token) for token in tokens] + [1] * (_PADDED - len(tokens))
        _write(torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1), kv_cache, slots, mistake)
        slots_now = zip(chain(*before), chain(*_names_in(kv_cache, names)), strict=True)
        overwritten += [(old, new) for old, new in slots_now if old and old != new]
        for name, query_len in step.items():
            computed[name] += query_len
    reads = {}
    for name, table in TABLES.items():
        rows = gather_kv(kv_cache.k_cache, torch.tensor(table), computed[name]).flatten()
        reads[name] = [names[int(number)] for number in rows.tolist()]
    return Memory(_names_in(kv_cache, names), overwritten, reads)


def _names_in(kv_cache: PagedKVCache, names: Sequence[str]) -> list[list[str]]:
    """Return the token in each slot, by block."""
    return [[names[int(number)] for number in block] for block in kv_cache.k_cache.flatten(1).tolist()]


def _slots(step: dict[str, int], computed: dict[str, int], mistake: str) -> Tensor:
    starts, rows = [0], []
    positions: list[int] = []
    for name, query_len in step.items():
        first = 0 if mistake == "positions from the step" else computed[name]
        starts.append(starts[-1] + query_len)
        positions += range(first, first + query_len)
        rows.append((TABLES[name] if mistake != "entry for block" else [0, 1, 2]) + [0])
    width = max(map(len, rows))
    tables = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int32)
    if mistake == "another's row":
        tables = tables[:1].expand(len(rows), -1)
    slots = compute_slot_mapping(torch.tensor(starts, dtype=torch.int32), torch.tensor(positions), tables, BLOCK_SIZE)
    return torch.cat([slots, torch.full((_PADDED - len(positions),), -1)])


def _write(key: Tensor, kv_cache: PagedKVCache, slots: Tensor, mistake: str) -> None:
    if mistake == "padding at -1":
        kv_cache.k_cache[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = key
    else:
        reshape_and_cache(key, key, kv_cache.k_cache, kv_cache.v_cache, slots)


@dataclass(frozen=True, slots=True)
class Carried:
    """The running values of an online softmax after a block."""

    largest: float
    """The largest score so far."""
    total: float
    """The sum of the exponentials so far, each of score minus `largest`."""
    shares: list[float]
    """Share of each block of the row in the result so far, 0.0 to 1.0, or 0 for later blocks."""


def follow_blocks(scores: Sequence[float], block_size: int) -> list[Carried]:
    """Return the running values after each block of a row of scores, by the engine's own attention and merge."""
    num_blocks = -(-len(scores) // block_size)
    out, lse = torch.zeros(1, 1, num_blocks, dtype=torch.float64), torch.full((1, 1), -math.inf, dtype=torch.float64)
    carried = []
    for block in range(num_blocks):
        in_block = torch.tensor(scores[block * block_size : (block + 1) * block_size], dtype=torch.float64)
        values = torch.zeros(len(in_block), num_blocks, dtype=torch.float64)
        values[:, block] = 1.0  # so that the result says which block it is made of
        query = torch.ones(1, dtype=torch.float64)
        part, part_lse = attend_once(query, in_block.unsqueeze(1), values, 0, AttentionOptions(scale=1.0))
        out, lse = merge_attn_states(out, lse, part.view(1, 1, -1), part_lse.view(1, 1))
        largest = max(scores[: (block + 1) * block_size])
        carried.append(Carried(largest, math.exp(lse.item() - largest), out.flatten().tolist()))
    return carried


def share_of_the_second(differences: Sequence[float]) -> list[float]:
    """Return the second half's share of the merged result, 0.0 to 1.0, by the difference of the two log-sum-exps."""
    lse_b = torch.tensor(differences, dtype=torch.float64).view(-1, 1)
    out_a = torch.zeros(len(differences), 1, 1, dtype=torch.float64)
    out, _ = merge_attn_states(out_a, torch.zeros_like(lse_b), torch.ones_like(out_a), lse_b)
    return [float(share) for share in out.flatten()]


def split_everywhere(num_tokens: int = 64, head_size: int = 32, seed: int = 0) -> list[float]:
    """Return the largest error of any number, for a cut before token 0, 1, ... and after the last, in float64."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(head_size, generator=generator, dtype=torch.float64)
    keys, values = (torch.randn(num_tokens, head_size, generator=generator, dtype=torch.float64) for _ in range(2))
    whole, _ = attend_once(query, keys, values, 0, AttentionOptions())
    found = []
    for cut in range(num_tokens + 1):
        halves = []
        for part in (slice(None, cut), slice(cut, None)):
            out, lse = attend_once(query, keys[part], values[part], 0, AttentionOptions())
            halves += [out.view(1, 1, -1), lse.view(1, 1)]
        merged, _ = merge_attn_states(*halves)
        found.append(float((merged.flatten() - whole).abs().max()))
    return found


def errors_by_outlier(outliers: Sequence[float], column: str = "others") -> dict[str, list[float]]:
    """Return a column of `quantization_error.errors` by scheme, over the size of the large channel."""
    labels = {"tensor": "a scale for all", "token": "a scale a token", "channel": "a scale a channel", "fp8": "fp8"}
    rows = [errors(outlier) for outlier in outliers]
    return {label: [row[scheme][column] for row in rows] for scheme, label in labels.items()}


def bytes_of_a_number(scheme: str, head_size: int = 128, block_size: int = 16) -> tuple[float, float]:
    """Return the bytes of a number, and those of its part of a float32 scale.

    >>> bytes_of_a_number("token"), bytes_of_a_number("channel")
    ((1.0, 0.03125), (1.0, 0.25))
    """
    if scheme == "bf16":
        return 2.0, 0.0
    numbers_a_scale = {"token": head_size, "channel": block_size, "fp8": math.inf, "tensor": math.inf}
    return 1.0, 4 / numbers_a_scale[scheme]
