r"""A radix tree as the prefix index: it keeps the tokens themselves where the engine keeps one hash per block.

                       root
                        |
             [1 2 3 4 | 5 6 7 8]   blocks 1, 2          a node is a run of whole blocks,
              /               \                           and its children continue differently
        [9 9 9 9]          [5 5 5 5 | 6 6 6 6]
        block 3            blocks 4, 7

A lookup follows a prompt from the root as far as its tokens agree, a block at a time. So its result equals that of the
chain of hashes: the blocks of the longest cached prefix. Nothing is hashed, so there are no collisions, and all cached
continuations of a block are found at once. The cost: the tree stores every token of every cached block, and each lookup
compares them. It is only for comparison. The engine's own index is `BlockHashToBlockMap`.

Source: RadixAttention (Zheng et al., SGLang, arxiv.org/abs/2312.07104); SGLang `RadixCache`, whose edges hold tokens
and not whole blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Block = tuple[int, ...]
"""The tokens of a full block."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of blocks that all prompts below have in common."""

    run: list[Block]
    twins: list[list[int]]
    """The ids of the blocks with this content, per block of the run, the oldest first. Never empty."""
    parent: "Node | None" = None
    children: dict[Block, "Node"] = field(default_factory=dict)
    """The children by the first block of their run. No two children begin with the same block."""


class RadixIndex:
    """The index from the tokens of a prompt to the blocks of its cached prefix."""

    def __init__(self, block_size: int) -> None:
        """Begin with an empty tree. `block_size`: tokens per block."""
        self.block_size = block_size
        self.root = Node([], [])
        self._node_of: dict[int, Node] = {}
        """The node of each block."""

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest cached prefix, first block first. Costs O(tokens that agree)."""
        found: list[int] = []
        for node, num_equal in self._walk(self._cut(tokens)):
            found += [twins[0] for twins in node.twins[:num_equal]]
        return found

    def insert(self, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
        """Enter the blocks of a prompt's prefix, in order. Blocks that are already in the tree are unchanged.

        A block with the content of another block becomes its twin. Raises `ValueError`, and changes nothing, if the
        tokens do not fill these blocks, or if a block is already in the tree with other content.
        """
        path = self._cut(tokens)
        if len(path) != len(block_ids) or len(tokens) % self.block_size:
            raise ValueError(f"{len(tokens)} tokens do not fill {len(block_ids)} blocks of {self.block_size}")
        known = list(self._walk(path))
        places = [(node, i) for node, num_equal in known for i in range(num_equal)]
        for i, block_id in enumerate(block_ids):
            if block_id in self._node_of and (i >= len(places) or block_id not in places[i][0].twins[places[i][1]]):
                raise ValueError(f"block {block_id} is in the tree with other content")
        for (node, i), block_id in zip(places, block_ids, strict=False):
            if block_id not in node.twins[i]:
                node.twins[i].append(block_id)
                self._node_of[block_id] = node
        if len(places) < len(path):
            self._grow(known, path[len(places) :], block_ids[len(places) :])

    def remove(self, block_id: int) -> None:
        """Remove a block that was evicted. Costs O(blocks of its run).

        Raises `ValueError`, and changes nothing, if the block is not in the tree, or if it has no twin and blocks after
        it are cached. A lookup finds no block after a gap, so tails must be removed first.
        """
        node = self._node_of.get(block_id)
        if node is None:
            raise ValueError(f"block {block_id} is not in the tree")
        place = next(i for i, twins in enumerate(node.twins) if block_id in twins)
        is_last = place == len(node.run) - 1
        if node.twins[place] == [block_id] and (not is_last or node.children):
            raise ValueError(f"block {block_id} cannot go before those behind it")
        node.twins[place].remove(block_id)
        del self._node_of[block_id]
        if not node.twins[place]:
            first = node.run[0]
            node.run.pop()
            node.twins.pop()
            if not node.run and node.parent is not None:
                del node.parent.children[first]

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes but the root, a parent before its children."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _cut(self, tokens: Sequence[int]) -> list[Block]:
        """Return the full blocks of a prompt."""
        ends = range(0, len(tokens) + 1, self.block_size)
        return [tuple(tokens[start:end]) for start, end in pairwise(ends)]

    def _walk(self, path: list[Block]) -> Iterator[tuple[Node, int]]:
        """Yield the nodes on the way, root first, each with how many of its blocks the path has."""
        node, at = self.root, 0
        yield node, 0
        while at < len(path) and (child := node.children.get(path[at])) is not None:
            num_equal = 0
            while num_equal < len(child.run) and path[at : at + 1] == [child.run[num_equal]]:
                num_equal, at = num_equal + 1, at + 1
            yield child, num_equal
            if num_equal < len(child.run):
                return
            node = child

    def _grow(self, known: list[tuple[Node, int]], run: list[Block], block_ids: Sequence[int]) -> None:
        """Add a new run where the path leaves the tree. If it leaves in the middle of a node, split the node."""
        node, num_equal = known[-1]
        if num_equal < len(node.run):
            self._split(node, num_equal)
        new = Node(run, [[block_id] for block_id in block_ids], node)
        node.children[run[0]] = new
        self._node_of.update(dict.fromkeys(block_ids, new))

    def _split(self, node: Node, at: int) -> None:
        """Split a node. It keeps its first `at` blocks. A new child gets the other blocks and all children."""
        lower = Node(node.run[at:], node.twins[at:], node, node.children)
        for child in lower.children.values():
            child.parent = lower
        for twins in lower.twins:
            self._node_of.update(dict.fromkeys(twins, lower))
        node.run, node.twins, node.children = node.run[:at], node.twins[:at], {lower.run[0]: lower}
