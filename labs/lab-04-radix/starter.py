"""lab-04, radix: the prefix index as a tree over tokens, written by you. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-04-radix
    $env:LAB_IMPL="starter"; pytest labs/lab-04-radix          (Windows, PowerShell)

A `SmallTree` has a `block_size` and a `root`; a `SmallNode` has a `run` (blocks, each a tuple of tokens), `block_ids`
(for each block of the run the ids of those that hold it, oldest first) and `children` (by the first block of their
run). After each of your functions, whatever it returned or raised:

- the root has no run; every other node has one, and an id at least for each block of it;
- a child stands under the first block of its run;
- what stands at a place is told by all tokens from the root to there: see `SmallTree.contents`.
"""

from collections.abc import Sequence

from mini_kv.course import todo
from mini_kv.course.given.small_tree import SmallTree


def match(tree: SmallTree, tokens: Sequence[int]) -> list[int]:
    """Return the ids of the blocks that hold the longest beginning of these tokens, first block first.

    Only whole blocks, and only from the beginning up to the first that is not there. Of several ids at a place the
    oldest. Changes nothing.

    Example, blocks of 2, where `1 2 3 4` stands in blocks 7 and 5: `match(tree, [1, 2, 3, 4, 9])` returns `[7, 5]`.
    """
    todo("lab-04-radix", "match", "follow the tokens from the root, a block at a time")


def insert(tree: SmallTree, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
    """Enter the blocks of a prompt: `block_ids[i]` holds the i-th block of `tokens`, which fill them all.

    An id that stands at its place already changes nothing. Another id than those that stand there becomes a twin,
    behind them. Where the prompt parts from what is there, in the middle of a run too, the tree gets a fork. A prompt
    costs two nodes at most, however long it is.
    """
    todo("lab-04-radix", "insert", "as far as it is known, then what is new; and a fork where a run has to be cut")


def remove(tree: SmallTree, block_id: int) -> None:
    """Forget a block, which has been evicted. A node of which nothing is left goes with it.

    Raises `ValueError`, and changes nothing, if the block is not in the tree, or if it is the only one at its place
    and something stands behind it: what is behind a gap could never be found.
    """
    todo("lab-04-radix", "remove", "where does it stand, is it alone there, and what is behind it")
