"""lab-04, radix: another way. Each verb calls itself on a child; a parting makes three nodes new and cuts none."""

from collections.abc import Sequence

from mini_kv.course.given.small_tree import Block, SmallNode, SmallTree


def match(tree: SmallTree, tokens: Sequence[int]) -> list[int]:
    """Return the ids of the blocks that hold the longest beginning of these tokens, first block first."""
    return _match(tree.root, _blocks(tree, tokens))


def insert(tree: SmallTree, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
    """Enter the blocks of a prompt: `block_ids[i]` holds the i-th block of `tokens`, which fill them all."""
    _insert(tree.root, _blocks(tree, tokens), list(block_ids))


def remove(tree: SmallTree, block_id: int) -> None:
    """Forget a block, which has been evicted. A node of which nothing is left goes with it."""
    if not _remove(tree.root, block_id):
        raise ValueError(f"no block {block_id}")


def _blocks(tree: SmallTree, tokens: Sequence[int]) -> list[Block]:
    size = tree.block_size
    return [tuple(tokens[end - size : end]) for end in range(size, len(tokens) + 1, size)]


def _common(run: list[Block], path: list[Block]) -> int:
    return next((i for i, (a, b) in enumerate(zip(run, path, strict=False)) if a != b), min(len(run), len(path)))


def _match(node: SmallNode, path: list[Block]) -> list[int]:
    child = node.children.get(path[0]) if path else None
    if child is None:
        return []
    common = _common(child.run, path)
    found = [ids[0] for ids in child.block_ids[:common]]
    return found + (_match(child, path[common:]) if common == len(child.run) else [])


def _insert(node: SmallNode, path: list[Block], ids: list[int]) -> None:
    if not path:
        return
    child = node.children.get(path[0])
    if child is None:
        node.children[path[0]] = SmallNode(path, [[one] for one in ids])
        return
    common = _common(child.run, path)
    for twins, one in zip(child.block_ids[:common], ids, strict=False):
        if one not in twins:
            twins.append(one)
    if common < len(child.run) and common < len(path):
        rest = SmallNode(child.run[common:], child.block_ids[common:], child.children)
        child = SmallNode(child.run[:common], child.block_ids[:common], {rest.run[0]: rest})
        node.children[path[0]] = child
    if common == len(child.run):
        _insert(child, path[common:], ids[common:])


def _remove(node: SmallNode, block_id: int) -> bool:
    for key, child in list(node.children.items()):
        at = next((i for i, ids in enumerate(child.block_ids) if block_id in ids), None)
        if at is None:
            if _remove(child, block_id):
                return True
            continue
        _take_out(child, at, block_id)
        if not child.run:
            del node.children[key]
        return True
    return False


def _take_out(node: SmallNode, at: int, block_id: int) -> None:
    alone = node.block_ids[at] == [block_id]
    if alone and (at + 1 < len(node.run) or node.children):
        raise ValueError(f"block {block_id} has others behind it")
    node.block_ids[at] = [one for one in node.block_ids[at] if one != block_id]
    if alone:
        node.run, node.block_ids = node.run[:at], node.block_ids[:at]
