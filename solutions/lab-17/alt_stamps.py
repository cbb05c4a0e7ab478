"""lab-17, another way: no queue, no references, no index. A block knows its hash and two stamps, all else is searched.

Free blocks are sorted by a stamp of the moment at which they became free: one that goes to the front gets a stamp below
all others. Of two blocks with one hash the one with the lower stamp of caching is found. Slow, and short.
"""

from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Any

KNOWN = {"caching off", "salts", "adapters", "windows", "groups"}


@dataclass
class Block:
    """What is known of a block."""

    number: int
    freed: int
    """Free blocks with a low stamp are taken first."""
    content: tuple[Any, ...] | None = None
    cached: int = 0


@dataclass
class Request:
    """A request: its tables, one per group, and the hit of its last lookup."""

    tokens: tuple[int, ...]
    namespace: str
    tables: list[list[Block]]
    hit: list[list[Block]] = field(default_factory=list)


@dataclass
class Pool:
    """All blocks and requests."""

    settings: dict[str, Any]
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the blocks. The null block is the first."""
        self.size: int = self.settings["block_size"]
        self.blocks = [Block(number, number) for number in range(self.settings["num_blocks"])]
        self.null = self.blocks[0]
        self.clock, self.front = count(len(self.blocks)), count(-1, -1)

    def free(self) -> list[Block]:
        """Return the free blocks, the next one first."""
        used = {id(block) for request in self.requests.values() for table in request.tables for block in table}
        return sorted((block for block in self.blocks[1:] if id(block) not in used), key=lambda block: block.freed)

    def content(self, request: Request, group: int, place: int) -> tuple[Any, ...]:
        """Return what a block has to hold: group, namespace, and all tokens up to its end."""
        return group, request.namespace, request.tokens[: (place + 1) * self.size]

    def find(self, content: tuple[Any, ...]) -> Block | None:
        """Return the block that has had this content for the longest time."""
        return min((block for block in self.blocks if block.content == content), key=lambda b: b.cached, default=None)

    def begin(self, group: int, num_computed: int) -> int:
        """Return the first place of a group's table that a token after `num_computed` others needs."""
        reach = self.settings["groups"][group].get("reach")
        return max(0, num_computed - reach + 1) // self.size if reach else 0

    def lookup(self, request: Request) -> int:
        """Find the longest hit and keep it. Return its tokens."""
        request.hit = [[] for _ in request.tables]
        most = (len(request.tokens) - 1) // self.size if self.settings["enable_caching"] else 0
        for num_blocks in range(most, 0, -1):
            tries = []
            for group in range(len(request.tables)):
                first = self.begin(group, num_blocks * self.size)
                found = [self.find(self.content(request, group, place)) for place in range(first, num_blocks)]
                tries.append([self.null] * first + [block for block in found if block])
            if all(len(blocks) == num_blocks for blocks in tries):
                request.hit = tries
                return num_blocks * self.size
        return 0

    def allocate(self, request: Request, hit: list[list[Block]], computed: int, end: int) -> bool:
        """Give the request slots for `end` tokens. Return whether there were enough blocks."""
        before = [list(table) for table in request.tables]
        for group, (table, blocks) in enumerate(zip(request.tables, hit, strict=True)):
            self.slide(table, self.begin(group, computed))
            table += blocks
        free = self.free()
        needed = [max(0, ceil(end / self.size) - len(table)) for table in request.tables]
        if sum(needed) > len(free):
            request.tables = before
            return False
        for group, (table, number) in enumerate(zip(request.tables, needed, strict=True)):
            new, free = free[:number], free[number:]
            for block in new:
                block.content = None
            table += new
            if self.settings["enable_caching"]:
                self.publish(request, group, min(end, len(request.tokens)) // self.size)
        return True

    def slide(self, table: list[Block], first: int) -> None:
        """Free the blocks of a table before this place, the last one first."""
        gone = [block for block in table[:first] if block is not self.null]
        table[:first] = [self.null] * len(table[:first])
        self.stamp(gone[::-1])

    def publish(self, request: Request, group: int, num_full: int) -> None:
        """Give the full blocks of a table their content."""
        for place, block in enumerate(request.tables[group][:num_full]):
            if block is not self.null and block.content is None:
                block.content, block.cached = self.content(request, group, place), next(self.clock)

    def stamp(self, blocks: list[Block]) -> None:
        """Stamp those of the blocks that are in no table now. Of those for the front the first has to be lowest."""
        free = {id(block) for block in self.free()}
        freed = [block for block in blocks if id(block) in free]
        for block in reversed([block for block in freed if block.content is None]):
            block.freed = next(self.front)
        for block in (block for block in freed if block.content is not None):
            block.freed = next(self.clock)

    def end(self, request: Request) -> None:
        """Empty the tables of a request."""
        tables = [[block for block in table if block is not self.null] for table in request.tables]
        for table, blocks in zip(request.tables, tables, strict=True):
            table.clear()
            self.stamp(blocks[::-1])


pool = Pool({"block_size": 1, "num_blocks": 1})


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one message of the protocol."""
    global pool  # noqa: PLW0603  the protocol has one cache at a time
    match message:
        case {"call": "start", "settings": settings}:
            if set(settings["needs"]) - KNOWN:
                return {"skip": "not built"}
            pool = Pool(settings)
            return shown({})
        case {"call": "new", "request": name, "tokens": tokens}:
            tables: list[list[Block]] = [[] for _ in pool.settings["groups"]]
            pool.requests[name] = Request(tuple(tokens), str((message["salt"], message["lora"])), tables)
            return shown({})
        case {"call": "lookup", "request": name}:
            return shown({"hit": pool.lookup(pool.requests[name])})
        case {"call": "allocate", "request": name, "computed": computed, "hit": hit, "tokens": tokens}:
            request = pool.requests[name]
            blocks = request.hit if message["hit_of"] else [[] for _ in request.tables]
            return shown({"granted": pool.allocate(request, blocks, computed + hit, computed + hit + tokens)})
        case {"call": "append", "request": name, "tokens": tokens}:
            pool.requests[name].tokens += tuple(tokens)
            return shown({})
        case {"call": "free", "request": name}:
            pool.end(pool.requests[name])
            return shown({})
    return {"skip": "not built"}


def shown(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the state."""
    names = {
        name: [[block.number for block in table] for table in request.tables] for name, request in pool.requests.items()
    }
    hashes = [None if block.content is None else str(block.content) for block in pool.blocks]
    return {"result": result, "tables": names, "free": [block.number for block in pool.free()], "hashes": hashes}
