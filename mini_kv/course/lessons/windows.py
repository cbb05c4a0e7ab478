"""Blocks and hits of groups of layers, counted on the real engine: the numbers of *windows and groups*.

    held_while_computing      blocks in use per group, in every step of one prompt
    held_at_each_token        the same for one group, one value per token: a line of a chart
    find_with_holes           the hit of a prompt if some of its blocks are missing
    hits_of_the_second_round  conversations that take turns, and the hit of each at its second turn
    shares_found_again        the same for several numbers of conversations: a line of a chart

Groups are named as in a scenario: "full", "window 32", "chunk 8".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.scenario import parse_group

_NEW_TOKEN = 1_000_000
"""The output token of every request here. No prompt has it."""
NUM_TOKENS = 8192
"""Default length of a conversation in tokens."""


@dataclass(frozen=True, slots=True)
class Held:
    """The blocks of a request in one of its steps."""

    num_tokens: int
    """Computed tokens after the step."""
    blocks: tuple[int, ...]
    """Blocks of each group, null blocks left out."""


@dataclass(frozen=True, slots=True)
class Found:
    """The hit of a prompt."""

    num_tokens: int
    table: tuple[tuple[int, ...], ...]
    """The block ids, one row per group. 0 is the null block."""


def _cache_of(num_blocks: int, groups: Sequence[str], block_size: int) -> KVCacheManager:
    """Return a cache of these groups. `num_blocks` includes the null block."""
    specs = [
        KVCacheGroupSpec((f"{index}: {name}",), parse_group(name, block_size)) for index, name in enumerate(groups)
    ]
    return KVCacheManager(KVCacheConfig(num_blocks, tuple(specs)))


def held_while_computing(
    groups: Sequence[str], num_tokens: int, chunk: int, *, num_more: int = 0, block_size: int = 16
) -> list[Held]:
    """Compute a prompt in steps of at most `chunk` tokens and return the blocks in use, one entry per step.

    Args:
        groups: the kinds of layers.
        num_tokens: length of the prompt.
        chunk: most tokens of a step, at least 1.
        num_more: tokens to generate after it, one per step.
        block_size: tokens per block, in every group.
    """
    if chunk < 1:
        raise ConfigError(f"chunk is {chunk}, it must be at least 1")
    num_blocks = 1 + len(groups) * -(-(num_tokens + num_more) // block_size)
    kv = _cache_of(num_blocks, groups, block_size)
    request = kv.new_request("A", range(num_tokens))
    result = list(_compute(kv, request, chunk))
    for _ in range(num_more):
        request.append_output_token_ids(_NEW_TOKEN)
        result += _compute(kv, request, chunk)
    return result


def held_at_each_token(held: Sequence[Held], group: int) -> list[int]:
    """Return the number of a group's blocks in use at each computed token, from the first."""
    result: list[int] = []
    for step in held:
        result += [step.blocks[group]] * (step.num_tokens - len(result))
    return result


def find_with_holes(
    groups: Sequence[str], num_tokens: int, holes: Mapping[int, Sequence[int]], *, block_size: int = 16
) -> Found:
    """Return the hit of a repeated prompt, after some of its blocks were evicted.

    Args:
        groups: the kinds of layers.
        num_tokens: length of the prompt. Its last token is never part of a hit.
        holes: the missing blocks of a group, by its index, counted from the prompt's first, from 0.
        block_size: tokens per block, in every group.
    """
    kv = _cache_of(1 + len(groups) * -(-num_tokens // block_size), groups, block_size)
    request = kv.new_request("A", range(num_tokens))
    list(_compute(kv, request, num_tokens))
    missing = {
        make_block_hash_with_group_id(request.block_hashes[position], group)
        for group, positions in holes.items()
        for position in positions
    }
    kv.evict_blocks([block.block_id for block in kv.block_pool.blocks if block.block_hash in missing])
    blocks, num_hit_tokens = kv.get_computed_blocks(kv.new_request("B", range(num_tokens)))
    return Found(num_hit_tokens, tuple(map(tuple, blocks.get_block_ids())))


def hits_of_the_second_round(
    num_blocks: int,
    groups: Sequence[str],
    num_conversations: int,
    *,
    num_tokens: int = NUM_TOKENS,
    chunk: int = 2048,
    block_size: int = 16,
) -> list[int]:
    """Run two turns of conversations with different content. Return the hit of each at its second turn.

    Args:
        num_blocks: size of the pool, the null block included.
        groups: the kinds of layers.
        num_conversations: how many take turns. Between two turns no conversation references a block.
        num_tokens: length of each. At its second turn it is a token longer.
        chunk: most tokens of a step.
        block_size: tokens per block, in every group.
    """
    kv = _cache_of(num_blocks, groups, block_size)
    hits = []
    for turn in range(2):
        for index in range(num_conversations):
            first = index * _NEW_TOKEN
            request = kv.new_request(f"{index}, turn {turn}", range(first, first + num_tokens + turn))
            hits.append(kv.get_computed_blocks(request)[1])
            list(_compute(kv, request, chunk))
            kv.free(request)
    return hits[num_conversations:]


def shares_found_again(num_blocks: int, groups: Sequence[str], numbers: Iterable[int]) -> list[float]:
    """Return for each number of conversations the hit rate of their second turns, 0.0 to 1.0."""
    hits = [hits_of_the_second_round(num_blocks, groups, number) for number in numbers]
    return [sum(found) / (len(found) * NUM_TOKENS) for found in hits]


def _compute(kv: KVCacheManager, request: Request, chunk: int) -> Iterator[Held]:
    """Look up a new request, and compute its missing tokens. Yield its blocks after each step."""
    if request.num_computed_tokens == 0:
        hit, num_hit_tokens = kv.get_computed_blocks(request)
    else:
        hit, num_hit_tokens = None, 0
    while request.num_computed_tokens < request.num_tokens:
        num_new = min(chunk, request.num_tokens - request.num_computed_tokens - num_hit_tokens)
        if kv.allocate_slots(request, num_new, num_hit_tokens, hit) is None:
            raise ConfigError(
                f"the pool is too small for request {request.request_id!r} of {request.num_tokens} tokens"
            )
        request.num_computed_tokens += num_hit_tokens + num_new
        hit, num_hit_tokens = None, 0
        table = kv.get_block_ids(request.request_id)
        yield Held(request.num_computed_tokens, tuple(sum(block_id > 0 for block_id in ids) for ids in table))
