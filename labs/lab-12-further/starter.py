"""lab-12, further: chunks, states, pages and sharers. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-12-further
    $env:LAB_IMPL="starter"; pytest labs/lab-12-further          (Windows, PowerShell)

Four functions on plain numbers, names and lists, in any order. Tokens are counted from 0, so when 5 tokens are
computed, token 5 is next. Block number k of a table holds tokens k * block_size and following.
"""

from collections.abc import Mapping, Sequence

from mini_kv.course import todo


def chunk_hit(cached: Sequence[bool], block_size: int, chunk_size: int) -> int:
    """Return the longest hit, in tokens, of a layer in which a token reads the tokens before it in its own chunk.

        chunks of 8       | 0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15 |
        blocks of 2         yes no  no  no    yes yes                       cached
        hit                                             12 tokens: token 12 reads 8 to 11, which are cached

    `cached[k]` is whether block k of the prompt is cached. A hit ends at the end of a block. It is good if every block
    that the next token reads is cached. The first token of a chunk reads no earlier token, so it needs no block. The
    result is the longest good hit. 0 tokens are always good.

    A chunk may begin in the middle of a block. Then the block is needed for its second half.

    Example: blocks of 2, chunks of 8. `[True, False, True]` is a hit of 2, `[False] * 4` one of 8.
    """
    todo("lab-12-further", "chunk_hit", "which tokens does the next one read, and which blocks are they in?")


def next_states(
    table: Sequence[int | None], num_computed_tokens: int, num_tokens: int, block_size: int
) -> list[int | None]:
    """Return a request's table in a group of states, for the step that computes up to `num_tokens` tokens.

        blocks of 4       before       null null  10          10 tokens are computed
                          after        null null  10   14     the step computes tokens 10 to 13
                          and then     null null null  15     the next one token 14

    A block holds one state, a summary of a number of tokens. In the table this number means the state. None is the null
    block: a place without a state.

    1. The step starts from the state of `num_computed_tokens` tokens, in the place of the last of them. All other
       states are freed: each becomes None, and its place stays. A step may be repeated. Then the table has a later
       state, too, maybe in a place after the last token of this step.
    2. It writes one state, of `num_tokens` tokens, in the place of the last of these, and none in between. If the step
       started from that place, the old state is overwritten.

    `table` is not changed. Example: `next_states([], 0, 10, 4)` is `[None, None, 10]`.
    """
    todo("lab-12-further", "next_states", "which state is read, which is written, and in which places?")


def unify_pages(
    token_bytes: Mapping[str, int], state_bytes: Mapping[str, int], block_size: int
) -> dict[str, tuple[int, int]]:
    """Return, for each layer, its tokens per block and the bytes of its blocks, which are the same for all.

    `token_bytes` has the attention layers, with the bytes of a token's keys and values. `state_bytes` has the layers
    with a state, with its bytes. There is at least one layer. All blocks have `block_size` tokens at first.

    1. A state has one size, whatever number of tokens its block has. If there are both kinds of layers, all blocks
       grow, to the smallest multiple of `block_size` at which the largest attention block is at least as large as the
       largest state. With attention only, or states only, they do not grow.
    2. The page is the largest block of all layers after step 1. Each block has the bytes of a page.
    3. An attention block that fits into the page a whole number of times takes that many times its tokens. Any other
       keeps its tokens and is padded.
    4. A smaller state keeps its tokens and is padded.

    Example, blocks of 16: `unify_pages({"a": 100, "b": 50}, {}, 16)` is `{"a": (16, 1600), "b": (32, 1600)}`.
    """
    todo("lab-12-further", "unify_pages", "how large is the largest block, and how do the others get there?")


def lay_out(groups: Sequence[Sequence[str]], kv_sharing: Mapping[str, str]) -> list[list[list[str]]]:
    """Return the layers that use each tensor: `result[tensor][group]` lists their names.

        groups        f0 f1 and w0                 result     tensor 0    [[f0], [w0]]
        kv_sharing    s reads what f1 writes                  tensor 1    [[f1, s], []]

    1. A block belongs to one group at a time, so the first layers of all groups can share one tensor, the second ones
       another, and so on. There are as many tensors as the largest group has layers.
    2. Where a group has no layer for a tensor, its list is empty.
    3. A layer of `kv_sharing`, name to owner, has no keys and values of its own, so no tensor and no block. It comes
       after its owner in the list. Several sharers of one owner are in the order of `kv_sharing`.
    """
    todo("lab-12-further", "lay_out", "which layers share one tensor, and which sharers read them?")
