"""A simple radix tree for a learner's verbs: nodes with runs of blocks, and views of the whole tree."""

from dataclasses import dataclass, field

Block = tuple[int, ...]
"""The tokens of a full block."""


@dataclass(slots=True, eq=False)
class SmallNode:
    """A run of blocks that all prompts below it share."""

    run: list[Block] = field(default_factory=list)
    block_ids: list[list[int]] = field(default_factory=list)
    """For each block of the run the ids of the blocks with its KV, oldest first."""
    children: dict[Block, "SmallNode"] = field(default_factory=dict)
    """The child nodes, by the first block of the child's run."""


class SmallTree:
    """A root without a run, and the nodes below it."""

    def __init__(self, block_size: int) -> None:
        """Begin empty. `block_size`: tokens per block."""
        self.block_size = block_size
        self.root = SmallNode()

    def contents(self) -> dict[tuple[int, ...], list[int]]:
        """Return the block ids of each position in the tree, by all tokens from the root to it."""
        found: dict[tuple[int, ...], list[int]] = {}
        waiting: list[tuple[tuple[int, ...], SmallNode]] = [((), self.root)]
        while waiting:
            path, node = waiting.pop()
            for block, ids in zip(node.run, node.block_ids, strict=False):
                path += block
                found[path] = list(ids)
            waiting += [(path, child) for child in node.children.values()]
        return dict(sorted(found.items()))

    def faults(self) -> list[str]:
        """Return the faults in the tree's structure (runs, ids, keys of children), or an empty list."""
        found, waiting = [], [(child, key) for key, child in self.root.children.items()]
        if self.root.run or self.root.block_ids:
            found.append("the root has a run")
        while waiting:
            node, key = waiting.pop()
            if not node.run:
                found.append("a node has an empty run")
            elif node.run[0] != key:
                found.append(f"a child that begins with {node.run[0]} stands under {key}")
            if len(node.run) != len(node.block_ids) or not all(node.block_ids):
                found.append(f"a run of {len(node.run)} blocks has the ids {node.block_ids}")
            waiting += [(child, name) for name, child in node.children.items()]
        return sorted(found)

    def num_nodes(self) -> int:
        """Return the number of nodes below the root."""
        waiting, number = [self.root], -1
        while waiting:
            waiting += waiting.pop().children.values()
            number += 1
        return number
