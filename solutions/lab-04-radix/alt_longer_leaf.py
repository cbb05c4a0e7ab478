"""lab-04, radix: another way. A leaf that a prompt goes beyond grows longer; nodes that no fork parts are joined."""

from collections.abc import Sequence

from mini_kv.course.given.small_tree import SmallNode, SmallTree


def match(tree: SmallTree, tokens: Sequence[int]) -> list[int]:
    """Return the ids of the blocks that hold the longest beginning of these tokens, first block first."""
    size, node, place, found = tree.block_size, tree.root, 0, []
    for start in range(0, len(tokens) - size + 1, size):
        block = tuple(tokens[start : start + size])
        if place == len(node.run):
            if block not in node.children:
                break
            node, place = node.children[block], 0
        if node.run[place] != block:
            break
        found.append(node.block_ids[place][0])
        place += 1
    return found


def insert(tree: SmallTree, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
    """Enter the blocks of a prompt: `block_ids[i]` holds the i-th block of `tokens`, which fill them all."""
    size, node, place = tree.block_size, tree.root, 0
    for i, block_id in enumerate(block_ids):
        block = tuple(tokens[i * size : (i + 1) * size])
        if place == len(node.run):
            if block in node.children:
                node, place = node.children[block], 0
            elif node is not tree.root and not node.children:
                node.run.append(block)
                node.block_ids.append([])
            else:
                node.children[block] = SmallNode([block], [[]])
                node, place = node.children[block], 0
        elif node.run[place] != block:
            rest = SmallNode(node.run[place:], node.block_ids[place:], node.children)
            new = SmallNode([block], [[]])
            node.run, node.block_ids = node.run[:place], node.block_ids[:place]
            node.children = {rest.run[0]: rest, block: new}
            node, place = new, 0
        if block_id not in node.block_ids[place]:
            node.block_ids[place].append(block_id)
        place += 1


def remove(tree: SmallTree, block_id: int) -> None:
    """Forget a block, which has been evicted. A node of which nothing is left goes with it."""
    waiting = [tree.root]
    while waiting:
        parent = waiting.pop()
        waiting += parent.children.values()
        for key, node in parent.children.items():
            for place, ids in enumerate(node.block_ids):
                if block_id in ids:
                    _take_out(node, place, block_id)
                    if not node.run:
                        del parent.children[key]
                        _join(tree.root, parent)
                    return
    raise ValueError(f"block {block_id} is not here")


def _take_out(node: SmallNode, place: int, block_id: int) -> None:
    if node.block_ids[place] != [block_id]:
        node.block_ids[place].remove(block_id)
    elif place < len(node.run) - 1 or node.children:
        raise ValueError(f"block {block_id} is in the middle")
    else:
        del node.run[place], node.block_ids[place]


def _join(root: SmallNode, node: SmallNode) -> None:
    if node is root or len(node.children) != 1:
        return
    [child] = node.children.values()
    node.run += child.run
    node.block_ids += child.block_ids
    node.children = child.children
