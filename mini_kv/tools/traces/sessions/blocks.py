"""The turns of a session as a trace of blocks, for the engine's cache manager.

A block is identified by its tokens and all tokens before it, as in `mini_kv.core.block_hash`. The tokens themselves are
not known, so the text of a token is the stretch of its characters. Different models and conversations share no tokens
that the file lacks. Each prompt continues the one before, so that only the blocks after the common ones are made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.curve import lookups
from mini_kv.tools.traces.prompt_hashes import Prompt
from mini_kv.tools.traces.readers.mooncake import TraceRequest
from mini_kv.tools.traces.sessions.layout import Layout
from mini_kv.tools.traces.sessions.session import Session

_Key = tuple[int, tuple[tuple[str, str], ...]]
"""The block before, and the texts of a block."""


def as_trace(session: Session, layouts: Sequence[Layout], block_size: int) -> list[TraceRequest]:
    """Return a request for each turn. Raises `ConfigError` for a block size below 1."""
    if block_size < 1:
        raise ConfigError(f"block_size is {block_size}, it must be at least 1")
    numbers: dict[_Key, int] = {}
    chains: dict[tuple[int, str], list[int]] = {}
    models: dict[int, str] = {}
    trace = []
    first = min(turn.started for turn in session.turns)
    for index, (turn, layout) in enumerate(zip(session.turns, layouts, strict=True)):
        same_model = models.get(turn.conversation) == turn.model
        models[turn.conversation] = turn.model
        before = chains.get((turn.conversation, turn.model), []) if same_model else []
        chain = before[: layout.common // block_size]
        num_tokens = layout.num_tokens
        parent = chain[-1] if chain else 0
        for texts in _blocks(layout, len(chain) * block_size, block_size):
            key = (parent, ((turn.model, ""), *texts) if not parent else texts)
            parent = numbers.setdefault(key, len(numbers) + 1)
            chain.append(parent)
        chains[turn.conversation, turn.model] = chain
        partial = [-1 - index] if num_tokens % block_size else []
        trace.append(
            TraceRequest(turn.started - first, num_tokens, turn.num_output, tuple(chain + partial), block_size)
        )
    return trace


def crowd(trace: Sequence[TraceRequest], count: int) -> list[TraceRequest]:
    """Return the requests of `count` sessions like this one, in the order of their times.

    They begin one after the other, at equal distances, in the time that the session takes. They share no block: each
    has other texts.

    Args:
        trace: the requests of one session.
        count: at least 1.
    """
    numbers = max((number for request in trace for number in request.hash_ids), default=0) + 1
    span = max(request.timestamp for request in trace)
    requests = []
    for copy in range(count):
        for request in trace:
            ids = tuple(_own(number, copy, numbers, len(trace)) for number in request.hash_ids)
            requests.append(replace(request, timestamp=request.timestamp + copy * span // count, hash_ids=ids))
    return sorted(requests, key=lambda request: request.timestamp)


def _own(number: int, copy: int, numbers: int, num_requests: int) -> int:
    """Return the copy's number for a block. Negative ones are partial blocks, one per request."""
    return number + copy * numbers if number >= 0 else number - copy * num_requests


def blocks_needed(prompts: Sequence[Prompt], block_size: int) -> list[int]:
    """Return the smallest pool, the null block included, that finds all blocks that any pool finds, per prompt.

    In a pool of N blocks, other sessions may fill N minus this number before the prompt finds less.
    """
    return [max((need for _, _, need in needs), default=0) + 1 for needs in lookups(prompts, block_size)]


def _blocks(layout: Layout, start: int, block_size: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield the texts of each full block from a token on, which is the first of a block."""
    texts: list[tuple[str, str]] = []
    room, begin = block_size, 0
    for span in layout.spans:
        place = max(start - begin, 0)
        while place < span.num_tokens:
            end = min(place + room, span.num_tokens)
            texts.append((span.part.kind, span.piece(place, end)))
            room -= end - place
            place = end
            if room == 0:
                yield tuple(texts)
                texts, room = [], block_size
        begin += span.num_tokens
