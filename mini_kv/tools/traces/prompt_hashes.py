"""The cache's view of a request: its number of tokens, and the hashes of its full blocks."""

from collections.abc import Sequence
from typing import NamedTuple

from mini_kv.core.block import BlockHash
from mini_kv.core.block_hash import get_request_block_hasher
from mini_kv.core.errors import ConfigError
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.tools.traces.readers.mooncake import TraceRequest, name_blocks
from mini_kv.tools.traces.readers.token_trace import TokenRequest

Trace = Sequence[TraceRequest] | Sequence[TokenRequest]
"""A trace of hashes, or one of tokens."""


class Prompt(NamedTuple):
    """A prompt in the cache's view."""

    num_tokens: int
    block_hashes: Sequence[BlockHash]
    """Hashes of the full blocks: equal hashes mean equal blocks after equal prefixes."""


def token_requests(trace: Trace) -> list[TokenRequest]:
    """Return the requests of a trace of tokens. For a trace of hashes return none."""
    return [entry for entry in trace if isinstance(entry, TokenRequest)]


def get_block_size(trace: Trace, block_size: int | None) -> int:
    """Return the tokens per block: as requested, or 16 for tokens and the trace's own for hashes.

    Raises `ConfigError` if the trace cannot be split into such blocks.
    """
    if not isinstance(trace[0], TraceRequest):
        block_size = 16 if block_size is None else block_size
        check_block_size(trace, block_size)
        return block_size
    given = trace[0].block_size
    if block_size not in (None, given):
        raise ConfigError(f"a trace of hashes has blocks of {given} tokens: it cannot be cut into {block_size}")
    return given


def check_block_size(trace: Trace, block_size: int) -> None:
    """Raise `ConfigError` unless `make_prompts` can split the trace into such blocks."""
    if block_size < 1:
        raise ConfigError(f"block_size is {block_size}, it must be at least 1")
    if isinstance(trace[0], TraceRequest) and block_size % trace[0].block_size:
        raise ConfigError(
            f"a trace of hashes has blocks of {trace[0].block_size} tokens: {block_size} is not a multiple"
        )


def make_prompts(trace: Trace, block_size: int) -> list[Prompt]:
    """Return the prompts of a trace, with a hash per full block. Costs O(tokens), or O(hashes).

    A trace of hashes can be cut into multiples of its own blocks: a hash stands for all tokens before its end.
    """
    hashes = [entry for entry in trace if isinstance(entry, TraceRequest)]
    if hashes:
        num_own = block_size // hashes[0].block_size
        chains = [chain[num_own - 1 :: num_own] for chain in name_blocks(hashes)]
        return [Prompt(entry.input_length, chain) for entry, chain in zip(hashes, chains, strict=True)]
    hasher = get_request_block_hasher(block_size)
    return [Prompt(entry.input_length, hasher(new_request(entry))) for entry in token_requests(trace)]


def as_hashes(trace: Trace, block_size: int | None = None) -> list[TraceRequest]:
    """Return the trace as a trace of hashes, with equal numbers for equal blocks after equal prefixes.

    `block_size`, and the `ConfigError` for it, are as in `get_block_size`. Costs O(tokens).
    """
    size = get_block_size(trace, block_size)
    hashes = [entry for entry in trace if isinstance(entry, TraceRequest)]
    if hashes:
        return hashes
    numbers: dict[BlockHash | int, int] = {}
    for index, (entry, prompt) in enumerate(zip(token_requests(trace), make_prompts(trace, size), strict=True)):
        chain: list[BlockHash | int] = list(prompt.block_hashes)
        if prompt.num_tokens % size:
            chain.append(index)  # the partial block, which is never shared
        ids = tuple(numbers.setdefault(name, len(numbers)) for name in chain)
        hashes.append(TraceRequest(entry.timestamp, prompt.num_tokens, entry.output_length, ids, size))
    return hashes


def new_request(entry: TokenRequest) -> Request:
    """Return the request of a line, without hashes."""
    return Request(
        "",
        entry.token_ids,
        cache_salt=entry.cache_salt,
        lora_request=None if entry.lora_name is None else LoRARequest(entry.lora_name, ""),
        mm_features=[MultiModalFeature(digest, first, length) for first, length, digest in entry.images],
    )
