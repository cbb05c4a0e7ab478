"""lab-17: a KV cache from an empty file. Blocks are numbers. What is known of them is in lists and dicts.

In reading order: the hashes of a request, the lookup, the allocation, freeing, and the messages.
"""

import json
from math import ceil
from typing import Any

NOT_BUILT = "there are salts, adapters, windows and groups, and caching can be off"
BUILT = {"caching off", "salts", "adapters", "windows", "groups"}


class Cache:
    """A pool of blocks, its free queue, and the index from a block hash to its blocks."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Make an empty cache."""
        self.block_size: int = settings["block_size"]
        self.groups: list[dict[str, Any]] = settings["groups"]
        self.caching: bool = settings["enable_caching"]
        self.refs = [0] * settings["num_blocks"]
        self.hashes: list[str | None] = [None] * settings["num_blocks"]
        self.free: list[int] = [*range(1, settings["num_blocks"])]
        self.index: dict[str, list[int]] = {}
        self.requests: dict[str, dict[str, Any]] = {}

    def hash_of(self, request: dict[str, Any], group: int, place: int) -> str:
        """Return all that decides the KV of a block: its group, the namespace, and the tokens up to its end."""
        tokens = request["tokens"][: (place + 1) * self.block_size]
        return json.dumps([group, request["salt"], request["lora"], tokens])

    def first_needed(self, group: dict[str, Any], num_computed: int) -> int:
        """Return the first block of a group that the token after `num_computed` others needs."""
        if group["kind"] == "full":
            return 0
        reach: int = group["reach"]
        return max(0, num_computed - reach + 1) // self.block_size

    def lookup(self, request: dict[str, Any]) -> list[list[int]]:
        """Return the blocks of the longest hit: of each group, the null block where none is needed."""
        num_blocks = (len(request["tokens"]) - 1) // self.block_size if self.caching else 0
        while num_blocks > 0:
            hit = [self.hit_of(request, group, num_blocks) for group in range(len(self.groups))]
            if all(blocks is not None for blocks in hit):
                return [blocks for blocks in hit if blocks is not None]
            num_blocks -= 1
        return [[] for _ in self.groups]

    def hit_of(self, request: dict[str, Any], group: int, num_blocks: int) -> list[int] | None:
        """Return a group's blocks of a hit of this length, or nothing if one of them is not cached."""
        first = self.first_needed(self.groups[group], num_blocks * self.block_size)
        found = [self.index.get(self.hash_of(request, group, place)) for place in range(first, num_blocks)]
        return [0] * first + [blocks[0] for blocks in found if blocks] if all(found) else None

    def allocate(self, request: dict[str, Any], hit: list[list[int]], num_computed: int, num_tokens: int) -> Any:
        """Give slots to `num_tokens` tokens, `num_computed` of them computed. Return the new blocks, or nothing."""
        unused = [self.unused(request, group, num_computed) for group in range(len(self.groups))]
        num_new = [
            max(0, ceil(num_tokens / self.block_size) - len(table) - len(blocks))
            for table, blocks in zip(request["tables"], hit, strict=True)
        ]
        revived = [block for blocks in hit for block in blocks if block and self.refs[block] == 0]
        num_freed = sum(self.refs[table[place]] == 1 for table, places in unused for place in places)
        if sum(num_new) + len(revived) > len(self.free) + num_freed:
            return None
        for table, places in unused:
            blocks = [table[place] for place in reversed(places)]
            for place in places:
                table[place] = 0
            self.drop(blocks)
        self.free = [block for block in self.free if block not in revived]
        for table, blocks in zip(request["tables"], hit, strict=True):
            for block in filter(None, blocks):
                self.refs[block] += 1
            table += blocks
        new = [[self.take() for _ in range(number)] for number in num_new]
        for group, (table, blocks) in enumerate(zip(request["tables"], new, strict=True)):
            table += blocks
            self.cache(request, group, min(num_tokens, len(request["tokens"])) // self.block_size)
        return new

    def unused(self, request: dict[str, Any], group: int, num_computed: int) -> tuple[list[int], list[int]]:
        """Return a group's table, and the places in it that no further token needs."""
        table = request["tables"][group]
        first = self.first_needed(self.groups[group], num_computed)
        return table, [place for place, block in enumerate(table[:first]) if block]

    def take(self) -> int:
        """Take the block at the front of the free queue. It loses its hash."""
        block = self.free.pop(0)
        block_hash = self.hashes[block]
        if block_hash is not None:
            self.index[block_hash].remove(block)
        self.hashes[block] = None
        self.refs[block] = 1
        return block

    def cache(self, request: dict[str, Any], group: int, num_full: int) -> None:
        """Give the full blocks of a table their hashes."""
        for place in range(num_full if self.caching else 0):
            block = request["tables"][group][place]
            if block and self.hashes[block] is None:
                block_hash = self.hash_of(request, group, place)
                self.hashes[block] = block_hash
                self.index.setdefault(block_hash, []).append(block)

    def drop(self, blocks: list[int]) -> None:
        """Drop a reference of each block. Those that nobody has any more become free, in this order."""
        for block in blocks:
            self.refs[block] -= 1
        freed = [block for block in blocks if self.refs[block] == 0]
        useless = [block for block in freed if self.hashes[block] is None]
        self.free = useless + self.free + [block for block in freed if block not in useless]

    def end(self, request: dict[str, Any]) -> None:
        """Free the tables of a request, group by group, each from its end."""
        for table in request["tables"]:
            self.drop([block for block in reversed(table) if block])
            table.clear()


cache: Cache


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one message of the protocol."""
    global cache  # noqa: PLW0603  the protocol has one cache at a time
    call = message["call"]
    if call == "start":
        if {*message["settings"]["needs"]} - BUILT:
            return {"skip": NOT_BUILT}
        cache = Cache(message["settings"])
        return reply({})
    if call == "new":
        request = {name: message[name] for name in ("tokens", "salt", "lora")}
        cache.requests[message["request"]] = request | {"tables": [[] for _ in cache.groups], "hit": []}
        return reply({})
    if call not in ("lookup", "allocate", "append", "free"):
        return {"skip": f"{call} is not built"}
    request = cache.requests[message["request"]]
    if call == "lookup":
        request["hit"] = cache.lookup(request)
        return reply({"hit": len(request["hit"][0]) * cache.block_size, "blocks": request["hit"]})
    if call == "allocate":
        hit = request["hit"] if message["hit_of"] else [[] for _ in cache.groups]
        num_computed = message["computed"] + message["hit"]
        new = cache.allocate(request, hit, num_computed, num_computed + message["tokens"])
        return reply({"granted": False} if new is None else {"granted": True, "blocks": new})
    if call == "append":
        request["tokens"] = request["tokens"] + message["tokens"]
    else:
        cache.end(request)
    return reply({})


def reply(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with all that can be seen."""
    tables = {name: request["tables"] for name, request in cache.requests.items()}
    return {"result": result, "tables": tables, "free": cache.free, "hashes": cache.hashes}
