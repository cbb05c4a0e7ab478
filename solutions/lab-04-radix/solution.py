"""lab-04, radix: the reference solution."""

from collections.abc import Iterator, Sequence

from mini_kv.course.given.small_tree import Block, SmallNode, SmallTree


def match(tree: SmallTree, tokens: Sequence[int]) -> list[int]:
    """Return the ids of the blocks that hold the longest beginning of these tokens, first block first."""
    found: list[int] = []
    for node, num_equal in walk(tree, cut(tokens, tree.block_size)):
        found += [ids[0] for ids in node.block_ids[:num_equal]]
    return found


def insert(tree: SmallTree, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
    """Enter the blocks of a prompt: `block_ids[i]` holds the i-th block of `tokens`, which fill them all."""
    path = cut(tokens, tree.block_size)
    node, num_equal, at = tree.root, 0, 0
    for node, num_equal in walk(tree, path):
        for ids in node.block_ids[:num_equal]:
            if block_ids[at] not in ids:
                ids.append(block_ids[at])
            at += 1
    if at == len(path):
        return
    if num_equal < len(node.run):
        split(node, num_equal)
    node.children[path[at]] = SmallNode(path[at:], [[block_id] for block_id in block_ids[at:]])


def remove(tree: SmallTree, block_id: int) -> None:
    """Forget a block, which has been evicted. A node of which nothing is left goes with it."""
    for parent, node in edges(tree.root):
        for place, ids in enumerate(node.block_ids):
            if block_id not in ids:
                continue
            is_last = place == len(node.run) - 1
            if len(ids) == 1 and (not is_last or node.children):
                raise ValueError(f"block {block_id} cannot go before those behind it")
            ids.remove(block_id)
            if not ids:
                first = node.run[0]
                node.run.pop()
                node.block_ids.pop()
                if not node.run:
                    del parent.children[first]
            return
    raise ValueError(f"block {block_id} is not in the tree")


def cut(tokens: Sequence[int], block_size: int) -> list[Block]:
    """Return the full blocks of a prompt."""
    num_full = len(tokens) // block_size
    return [tuple(tokens[i * block_size : (i + 1) * block_size]) for i in range(num_full)]


def walk(tree: SmallTree, path: list[Block]) -> Iterator[tuple[SmallNode, int]]:
    """Yield the nodes on the way, below the root, each with how many blocks of its run the path has."""
    node, at = tree.root, 0
    while at < len(path) and path[at] in node.children:
        node = node.children[path[at]]
        num_equal = 0
        while num_equal < len(node.run) and at < len(path) and node.run[num_equal] == path[at]:
            num_equal, at = num_equal + 1, at + 1
        yield node, num_equal
        if num_equal < len(node.run):
            return


def split(node: SmallNode, at: int) -> None:
    """Cut a node in two: it keeps its first `at` blocks, and a new child has the rest and all that was below."""
    lower = SmallNode(node.run[at:], node.block_ids[at:], node.children)
    node.run, node.block_ids, node.children = node.run[:at], node.block_ids[:at], {lower.run[0]: lower}


def edges(root: SmallNode) -> Iterator[tuple[SmallNode, SmallNode]]:
    """Yield each node below the root with its parent."""
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for child in parent.children.values():
            yield parent, child
            waiting.append(child)
