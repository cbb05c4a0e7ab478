"""lab-17, another way: a tree of contents in place of hashes, and an ordered dict in place of a queue.

A node is a block's content: its tokens, below the node of the block before it. A prompt is a path. A node's number is
shown as its hash. The free blocks are the keys of an `OrderedDict`, from which any block can be removed at once.
"""

from collections import OrderedDict
from itertools import count
from typing import Any


class Node:
    """One content. It has the blocks that hold it, the oldest first."""

    numbers = count()

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.blocks: list[int] = []
        self.children: dict[Any, Node] = {}

    def child(self, what: Any) -> "Node":
        """Return the node that follows."""
        return self.children.setdefault(what, Node())


class Group:
    """The tables of one group of layers, and its tree."""

    def __init__(self, block_size: int, reach: int | None) -> None:
        self.block_size, self.reach = block_size, reach
        self.root = Node()
        self.tables: dict[str, list[int]] = {}

    def path(self, request: dict[str, Any]) -> list[Node]:
        """Return the nodes of the request's full blocks."""
        node = self.root.child((request["salt"], str(request["lora"])))
        tokens, nodes = request["tokens"], []
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            node = node.child(tuple(tokens[start : start + self.block_size]))
            nodes.append(node)
        return nodes

    def skipped(self, num_computed: int) -> int:
        """Return the number of first blocks that the token after these does not need."""
        return 0 if self.reach is None else max(0, num_computed + 1 - self.reach) // self.block_size

    def hit(self, nodes: list[Node]) -> list[int] | None:
        """Return the blocks of a hit of exactly these contents."""
        first = self.skipped(len(nodes) * self.block_size)
        if not all(node.blocks for node in nodes[first:]):
            return None
        return [0] * first + [node.blocks[0] for node in nodes[first:]]


class Cache:
    """The pool and its groups."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.caching = settings["enable_caching"]
        self.size = settings["block_size"]
        self.groups = [Group(self.size, group.get("reach")) for group in settings["groups"]]
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, settings["num_blocks"]))
        self.node_of: list[Node | None] = [None] * settings["num_blocks"]
        self.users = [0] * settings["num_blocks"]
        self.requests: dict[str, dict[str, Any]] = {}

    def start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Begin. The cache is new."""
        return {}

    def new(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make a request with empty tables."""
        self.requests[message["request"]] = {**message, "hit": []}
        for group in self.groups:
            group.tables[message["request"]] = []
        return {}

    def lookup(self, message: dict[str, Any]) -> dict[str, Any]:
        """Try all lengths of a hit, the longest first."""
        request = self.requests[message["request"]]
        most = (len(request["tokens"]) - 1) // self.size if self.caching else 0
        paths = [group.path(request)[:most] for group in self.groups]
        for length in range(most, -1, -1):
            hits = [group.hit(path[:length]) for group, path in zip(self.groups, paths, strict=True)]
            if None not in hits:
                request["hit"] = hits
                break
        return {"hit": length * self.size, "blocks": request["hit"]}

    def allocate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Count first, then change."""
        name, computed = message["request"], message["computed"] + message["hit"]
        end = computed + message["tokens"]
        hits = self.requests[name]["hit"] if message["hit_of"] else [[] for _ in self.groups]
        tables = [group.tables[name] for group in self.groups]
        missing = [max(0, -(-end // self.size) - len(t) - len(h)) for t, h in zip(tables, hits, strict=True)]
        adopted = {block for hit in hits for block in hit if block}
        slid = [
            [block for block in table[: group.skipped(computed)] if block]
            for group, table in zip(self.groups, tables, strict=True)
        ]
        num_slid = sum(self.users[block] == 1 for blocks in slid for block in blocks)
        if sum(missing) + len(adopted & self.free.keys()) > len(self.free) + num_slid:
            return {"granted": False}
        for group, table, blocks in zip(self.groups, tables, slid, strict=True):
            first = min(len(table), group.skipped(computed))
            table[:first] = [0] * first
            self.leave(blocks)
        for table, hit in zip(tables, hits, strict=True):
            table += hit
            for block in filter(None, hit):
                self.free.pop(block, None)
                self.users[block] += 1
        for table, number in zip(tables, missing, strict=True):
            table += [self.take() for _ in range(number)]
        self.publish(name, end)
        return {"granted": True}

    def take(self) -> int:
        """Take the first free block. Its content is gone."""
        block, _ = self.free.popitem(last=False)
        node = self.node_of[block]
        if node is not None:
            node.blocks.remove(block)
        self.node_of[block] = None
        self.users[block] = 1
        return block

    def publish(self, name: str, end: int) -> None:
        """Enter the full blocks of a request in the trees."""
        for group in self.groups if self.caching else ():
            nodes = group.path(self.requests[name])[: end // self.size]
            for block, node in zip(group.tables[name], nodes, strict=False):
                if block and self.node_of[block] is None:
                    self.node_of[block] = node
                    node.blocks.append(block)

    def append(self, message: dict[str, Any]) -> dict[str, Any]:
        """Add tokens to a request."""
        self.requests[message["request"]]["tokens"] += message["tokens"]
        return {}

    def free_request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Empty the tables of a request."""
        for group in self.groups:
            blocks = [block for block in group.tables[message["request"]] if block]
            group.tables[message["request"]].clear()
            self.leave(blocks)
        return {}

    def leave(self, blocks: list[int]) -> None:
        """Drop a use of each block, and queue those without one: the useless ones in front."""
        for block in blocks:
            self.users[block] -= 1
        freed = [block for block in blocks if self.users[block] == 0]
        self.free.update(dict.fromkeys(block for block in reversed(freed) if self.node_of[block]))
        for block in (block for block in freed if self.node_of[block] is None):
            self.free[block] = None
            self.free.move_to_end(block, last=False)


CALLS = {
    "start": Cache.start,
    "new": Cache.new,
    "lookup": Cache.lookup,
    "allocate": Cache.allocate,
    "append": Cache.append,
    "free": Cache.free_request,
}
cache: Cache


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one message of the protocol."""
    global cache  # noqa: PLW0603  the protocol has one cache at a time
    call = message["call"]
    if call == "start":
        if not {"caching off", "salts", "adapters", "windows", "groups"}.issuperset(message["settings"]["needs"]):
            return {"skip": "not built"}
        cache = Cache(message["settings"])
    if call not in CALLS:
        return {"skip": "not built"}
    result = CALLS[call](cache, message)
    tables = {name: [group.tables[name] for group in cache.groups] for name in cache.requests}
    hashes = [None if node is None else str(node.number) for node in cache.node_of]
    return {"result": result, "tables": tables, "free": [*cache.free], "hashes": hashes}
