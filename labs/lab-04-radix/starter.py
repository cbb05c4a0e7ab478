"""lab-04, radix: the prefix index as a tree over tokens, written by you. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-04-radix
    $env:LAB_IMPL="starter"; pytest labs/lab-04-radix          (Windows, PowerShell)

A `SmallTree` has a `block_size` and a `root`. A `SmallNode` has a `run` (blocks, each a tuple of tokens), `block_ids`
(for each block of the run the ids of the blocks with its content, oldest first) and `children` (a dict by the first
block of their run). `SmallNode(run, block_ids, children)` makes one. Each argument may be left out, and is then empty.
After each of your functions, whether it returned or raised:

- The root has no run. Every other node has a run, and at least one id for each block of it.
- A child has the first block of its run as its key.
- All tokens from the root to a block are its place: see `SmallTree.contents`. An id is at one place at most.
"""

from collections.abc import Sequence

from mini_kv.course import todo
from mini_kv.course.given.small_tree import SmallNode, SmallTree  # noqa: F401  # insert needs SmallNode


def match(tree: SmallTree, tokens: Sequence[int]) -> list[int]:
    """Return the ids of the blocks with the longest beginning of these tokens, first block first.

    Only whole blocks count, from the first up to the first that is missing. Of several ids at a place return the
    oldest. Changes nothing.

    Example, blocks of 2, where `1 2 3 4` is in blocks 7 and 5: `match(tree, [1, 2, 3, 4, 9])` returns `[7, 5]`.
    """
    todo("lab-04-radix", "match", "which child is next, and where does the search end?")


def insert(tree: SmallTree, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
    """Add the blocks of a prompt: `block_ids[i]` has the i-th block of `tokens`. The tokens fill exactly these blocks.

    An id that is at its place already is not added again. Another id becomes a twin, after those that are there. Where
    the prompt differs from the tree, also in the middle of a run, the tree gets a fork. A prompt adds two nodes at
    most, however long it is. No id of the prompt is at another place: the caller removes an evicted block first.
    """
    todo("lab-04-radix", "insert", "which blocks are in the tree, which are new, and is a run cut?")


def remove(tree: SmallTree, block_id: int) -> None:
    """Remove a block, which has been evicted. A node whose run is empty afterwards is removed too.

    Raises `ValueError`, and changes nothing, if the block is not in the tree, or if it is the only one at its place and
    blocks follow it. A block after a gap could never be found.
    """
    todo("lab-04-radix", "remove", "where is it, does it have a twin, does a block follow it?")
