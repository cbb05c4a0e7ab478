"""lab-12, further: right in another way. Each function looks for the first answer that fits."""

from collections.abc import Mapping, Sequence
from itertools import count, zip_longest


def chunk_hit(cached: Sequence[bool], block_size: int, chunk_size: int) -> int:
    """Return the longest hit, in tokens, of a layer in which a token reads those before it in its own chunk."""
    end = len(cached) * block_size
    while end > 0:
        needed = range(end // chunk_size * chunk_size // block_size, end // block_size)
        missing = [block for block in needed if not cached[block]]
        if not missing:
            break
        end = missing[-1] * block_size  # all that end behind it, in its chunk, need it too
    return end


def next_states(
    table: Sequence[int | None], num_computed_tokens: int, num_tokens: int, block_size: int
) -> list[int | None]:
    """Return a request's table in a group of states, for the step that computes up to `num_tokens` tokens."""
    states = [state if state == num_computed_tokens else None for state in table]
    while len(states) * block_size < num_tokens:
        states.append(None)
    states[(num_tokens - 1) // block_size] = num_tokens
    return states


def unify_pages(
    token_bytes: Mapping[str, int], state_bytes: Mapping[str, int], block_size: int
) -> dict[str, tuple[int, int]]:
    """Return, for each layer, its tokens per block and the bytes of its blocks, which are the same for all."""
    largest, state = max(token_bytes.values(), default=0), max(state_bytes.values(), default=0)
    tokens = next(n for n in count(block_size, block_size) if not largest or largest * n >= state)
    page = max(largest * tokens, state)
    per_block = {layer: tokens if page % (size * tokens) else page // size for layer, size in token_bytes.items()}
    return {layer: (per_block.get(layer, tokens), page) for layer in [*token_bytes, *state_bytes]}


def lay_out(groups: Sequence[Sequence[str]], kv_sharing: Mapping[str, str]) -> list[list[list[str]]]:
    """Return which layers use each tensor: `result[tensor][group]` lists them, by name."""
    readers: dict[str, list[str]] = {}
    for reader, owner in kv_sharing.items():
        readers.setdefault(owner, []).append(reader)
    rows = zip_longest(*groups)
    return [[[] if layer is None else [layer, *readers.get(layer, [])] for layer in row] for row in rows]
