"""lab-12, further: right in another way. A hit is looked for chunk by chunk, and places are computed one by one."""

from collections.abc import Mapping, Sequence


def chunk_hit(cached: Sequence[bool], block_size: int, chunk_size: int) -> int:
    """Return the longest hit, in tokens, of a layer in which a token reads those before it in its own chunk."""
    longest, unbroken_from = 0, 0
    for block, is_cached in enumerate(cached):
        if not is_cached:
            unbroken_from = block + 1
        end = (block + 1) * block_size
        if end % chunk_size == 0 or unbroken_from <= (end - end % chunk_size) // block_size:
            longest = end
    return longest


def next_states(
    table: Sequence[int | None], num_computed_tokens: int, num_tokens: int, block_size: int
) -> list[int | None]:
    """Return a request's table in a group of states, for the step that computes up to `num_tokens` tokens."""
    ends = [num_tokens] if num_computed_tokens == 0 else [num_computed_tokens, num_tokens]
    places = {(end - 1) // block_size: end for end in ends}
    return [places.get(place) for place in range(max(len(table), max(places) + 1))]


def unify_pages(
    token_bytes: Mapping[str, int], state_bytes: Mapping[str, int], block_size: int
) -> dict[str, tuple[int, int]]:
    """Return, for each layer, its tokens per block and the bytes of its blocks, which are the same for all."""
    widest = max(token_bytes.values(), default=0)
    state = max(state_bytes.values(), default=0)
    tokens = block_size
    while widest > 0 and widest * tokens < state:
        tokens += block_size
    page = max(widest * tokens, state)
    pages = dict.fromkeys([*token_bytes, *state_bytes], (tokens, page))
    for layer, size in token_bytes.items():
        times, rest = divmod(page, size * tokens)
        if rest == 0:
            pages[layer] = (tokens * times, page)
    return pages


def lay_out(groups: Sequence[Sequence[str]], kv_sharing: Mapping[str, str]) -> list[list[list[str]]]:
    """Return which layers use each tensor: `result[tensor][group]` lists them, by name."""
    tensors: list[list[list[str]]] = [[[] for _ in groups] for _ in range(max(map(len, groups)))]
    home: dict[str, list[str]] = {}
    for number, group in enumerate(groups):
        for row, layer in enumerate(group):
            home[layer] = tensors[row][number]
            home[layer].append(layer)
    for reader, owner in kv_sharing.items():
        home[owner].append(reader)
    return tensors
