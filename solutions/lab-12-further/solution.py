"""lab-12, further: the reference solution."""

from collections.abc import Mapping, Sequence


def chunk_hit(cached: Sequence[bool], block_size: int, chunk_size: int) -> int:
    """Return the longest hit, in tokens, of a layer in which a token reads those before it in its own chunk."""
    for num_blocks in range(len(cached), 0, -1):
        num_tokens = num_blocks * block_size
        start = num_tokens // chunk_size * chunk_size
        if all(cached[start // block_size : num_blocks]):
            return num_tokens
    return 0


def next_states(
    table: Sequence[int | None], num_computed_tokens: int, num_tokens: int, block_size: int
) -> list[int | None]:
    """Return a request's table in a group of states, for the step that computes up to `num_tokens` tokens."""
    states: list[int | None] = [None] * len(table)
    if num_computed_tokens > 0:
        first = (num_computed_tokens - 1) // block_size
        states[first] = table[first]
    last = (num_tokens - 1) // block_size
    states += [None] * (last + 1 - len(states))
    states[last] = num_tokens
    return states


def unify_pages(
    token_bytes: Mapping[str, int], state_bytes: Mapping[str, int], block_size: int
) -> dict[str, tuple[int, int]]:
    """Return, for each layer, its tokens per block and the bytes of its blocks, which are the same for all."""
    if token_bytes and state_bytes:
        largest = max(token_bytes.values()) * block_size
        block_size *= -(-max(state_bytes.values()) // largest)
    page = max([size * block_size for size in token_bytes.values()] + list(state_bytes.values()))
    pages = dict.fromkeys(state_bytes, (block_size, page))
    for layer, size in token_bytes.items():
        fits = page % (size * block_size) == 0
        pages[layer] = (page // size if fits else block_size, page)
    return pages


def lay_out(groups: Sequence[Sequence[str]], kv_sharing: Mapping[str, str]) -> list[list[list[str]]]:
    """Return which layers use each tensor: `result[tensor][group]` lists them, by name."""
    tensors: list[list[list[str]]] = []
    for row in range(max(len(group) for group in groups)):
        owners = [list(group[row : row + 1]) for group in groups]
        for layers in owners:
            layers += [reader for reader, owner in kv_sharing.items() if owner in layers]
        tensors.append(owners)
    return tensors
