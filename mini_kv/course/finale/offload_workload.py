"""A random workload with a second home: evicted contents go down to it, and prompts bring them up again.

The functions of lab-14 move the contents. At the end are the same functions by mini_kv's own tier: `MemoryTier` decides
what is used, leased and evicted. Both work on one `SecondHome`, so each function can be the learner's or mini_kv's.
All else is the workload without a scheduler. Imports no torch.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_kv.core.block import BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import make_block_hashes_with_group_id
from mini_kv.core.request import Request
from mini_kv.course.finale.random_requests import NAMES
from mini_kv.course.finale.random_workload import PrefillEngine, PrefillWorkload
from mini_kv.course.finale.steps import Step
from mini_kv.course.given.second_home import Block, Entry, Pool, SecondHome, digest_of
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.reload_cost import ReloadCost

CONTENT_BYTES = 4
"""Bytes that stand for the keys and values of a block."""


@dataclass(frozen=True, slots=True)
class OffloadWorkload(PrefillWorkload):
    """A workload without a scheduler, with a second home."""

    def engine(self, own: OwnParts) -> "OffloadEngine":
        """Return a cache and a home with these parts."""
        return OffloadEngine(self, own)


class OffloadEngine(PrefillEngine):
    """A cache and a home that run one workload. Before a prompt is admitted, what the home has of it is brought up."""

    def __init__(self, workload: OffloadWorkload, own: OwnParts) -> None:
        """Build the cache and an empty home."""
        super().__init__(workload, own)
        self._dice = random.Random(f"home {workload.seed}")
        self.home = SecondHome(self._dice.randrange(1, self._dice.choice((4, self.sizes.num_blocks))))
        self._seconds_at_once = self._dice.choice((0.0, 0.5, 1.0)) * self.sizes.block_size
        self._seconds_per_byte = self._dice.choice((0.0, 0.0, 0.25, 0.25, 0.5, 1.0))
        self._names: dict[BlockHashWithGroupId, str] = {}
        """Contents get names in the order of their first use, because hashes may differ between right engines."""
        self._contents: dict[int, bytes] = {}
        """The bytes in each cached block."""
        self._readers: list[str] = []
        """The contents on which others have a lease."""
        self._moved: list[BlockHashWithGroupId | None] = []
        """The contents that the last `promote` was to move down, in this step."""

    def step_made(
        self, scheduled: Sequence[tuple[str, int]] = (), counters: Mapping[str, float] | None = None, **seen: Any
    ) -> Step:
        """Return a step with the cache and the home as they are now."""
        home = [_entry_line(key, entry) for key, entry in self.home.entries.items()]
        return super().step_made(scheduled, counters, home=home, **seen)

    def end_or_admit(self, running: dict[str, Request]) -> Iterator[str]:
        """End a request or admit a prompt, after the other users of the home. Then store what was evicted."""
        yield from self._others()
        self._moved = []
        waiting = {block.block_id: block.block_hash for block in self._free_blocks()}
        yield from super().end_or_admit(running)
        for block_id, key in waiting.items():
            if key is not None and key not in self._moved and self._is_evicted(key):
                is_stored = (self.own.home_store or store)(self.home, self._name(key), self._contents[block_id])
                yield f"{self._name(key)} goes down: {is_stored}"
        self._note_contents()
        yield f"damaged so far: {self.home.num_damaged}"

    def admit(self, token_ids: list[int], name: str) -> tuple[Request, int] | None:
        """Bring up what the home has of this prompt, if that is worth it. Then admit the prompt."""
        request = self.kv.new_request(name, token_ids)
        hit, num_hit_tokens = self.kv.get_computed_blocks(request)
        size = self.sizes.block_size
        missing = request.block_hashes[num_hit_tokens // size : (request.num_tokens - 1) // size]
        keys = list(make_block_hashes_with_group_id(missing, 0))
        least = (self.own.crossover or crossover)(1.0, self._seconds_per_byte, self._seconds_at_once, 2)
        if least is not None and least <= len(keys) * size:
            self._promote(list(hit.blocks[0]), keys)
            self._note_contents()
        return super().admit(token_ids, name)

    def _promote(self, hit: list[KVCacheBlock], keys: Sequence[BlockHashWithGroupId]) -> None:
        """Put contents of the home into free blocks. They stay free, so the lookup of the prompt finds them."""
        pool = self.kv.block_pool
        pool.touch(hit)  # or the hit could be replaced by what comes after it
        free = self._free_blocks()
        view = Pool({block.block_id: self._seen(block) for block in free}, [block.block_id for block in free])
        names = {self._name(key): key for key in keys}
        ids, wanted = list(view.free_queue), list(names)
        table = list((self.own.promote or promote)(self.home, view, wanted))
        if wanted != list(names):
            raise ValueError(f"promote changed its argument keys to {wanted}")
        if ids[: len(table)] != table or view.free_queue != ids[len(table) :]:
            raise ValueError(f"promote returned {table} and left {view.free_queue}, the free queue was {ids}")
        self._moved = [block.block_hash for block in free[: len(table)]]
        came = pool.get_new_blocks(len(table)) if table else []
        for block in came:
            now = view.blocks[block.block_id]
            block.block_hash = names[now.key or ""]
            pool.cached_block_hash_to_block.insert(block.block_hash, block)
            self._contents[block.block_id] = now.payload
        pool.free_blocks(reversed([*hit, *came]))

    def _others(self) -> Iterator[str]:
        """Let others lease an entry, end a lease, or damage an entry."""
        keys = list(self.home.entries)
        if keys and self._dice.random() < 0.15:
            entry = self.home.entries[self._dice.choice(keys)]
            entry.payload = bytes([entry.payload[0] ^ 1]) + entry.payload[1:]
        if keys and self._dice.random() < 0.3:
            key = self._dice.choice(keys)
            found = (self.own.home_lease or lease)(self.home, key)
            self._readers += [] if found is None else [key]
            yield f"{key} leased: {found!r}"
        if self._dice.random() < 0.3:
            key = self._dice.choice([*self._readers, *keys, NAMES[0]])
            yield f"{key} released: {self._release(key)}"

    def _release(self, key: str) -> str:
        if key in self._readers:
            self._readers.remove(key)
        try:
            (self.own.home_release or release)(self.home, key)
        except ValueError:
            return "ValueError"
        return "yes"

    def _note_contents(self) -> None:
        """Note the bytes of the blocks that are newly cached."""
        for block in self.kv.block_pool.blocks:
            if block.block_hash is None:
                self._contents.pop(block.block_id, None)
            else:
                self._contents.setdefault(block.block_id, _content_of(self._name(block.block_hash)))

    def _free_blocks(self) -> list[KVCacheBlock]:
        return list(self.kv.block_pool.free_block_queue.get_all_free_blocks())

    def _is_evicted(self, key: BlockHashWithGroupId) -> bool:
        return self.kv.block_pool.cached_block_hash_to_block.get_one_block(key) is None

    def _seen(self, block: KVCacheBlock) -> Block:
        """Return the block as lab-14 sees it."""
        if block.block_hash is None:
            return Block()
        return Block(self._name(block.block_hash), self._contents[block.block_id])

    def _name(self, key: BlockHashWithGroupId) -> str:
        return self._names.setdefault(key, f"content {len(self._names)}")


def _content_of(name: str) -> bytes:
    """Return the bytes that stand for the keys and values of a content."""
    return digest_of(name, b"")[:CONTENT_BYTES]


def _entry_line(key: str, entry: Entry) -> str:
    """Return an entry of the home as text."""
    state = "" if digest_of(key, entry.payload) == entry.digest else ", damaged"
    return f"{key} ({entry.num_leases} leases{state})"


def store(home: SecondHome, key: str, payload: bytes) -> bool:
    """Take a content in, as the most recently used. Return whether it is there now."""
    tier, new = _tier_of(home, len(payload)), Entry(payload, digest_of(key, payload))
    if tier.store(key.encode(), new.digest + payload) is None:
        return False
    _put_in_order(home, {key: new, **home.entries}, tier)
    return True


def lease(home: SecondHome, key: str) -> bytes | None:
    """Return a content that is there and undamaged, as the most recently used, and keep it until `release`."""
    entry = home.entries.get(key)
    if entry is None:
        return None
    tier = _tier_of(home, len(entry.payload))
    tier.lookup(key.encode())
    is_right = digest_of(key, entry.payload) == entry.digest
    if is_right:
        entry.num_leases += 1
    else:
        home.num_damaged += 1
        tier.discard(key.encode())
    _put_in_order(home, dict(home.entries), tier)
    return entry.payload if is_right else None


def release(home: SecondHome, key: str) -> None:
    """End one lease. Raises `ValueError` if there is none on this key."""
    entry = home.entries.get(key)
    if entry is None or entry.num_leases == 0:
        raise ValueError(f"{key} is not leased")
    entry.num_leases -= 1


def promote(home: SecondHome, pool: Pool, keys: Sequence[str]) -> list[int]:
    """Move the longest beginning of these contents into free blocks. Return the blocks."""
    payloads: list[bytes] = []
    for key in keys[: len(pool.free_queue)]:
        payload = lease(home, key)
        if payload is None:
            break
        payloads.append(payload)
    for key, _ in zip(keys, payloads, strict=False):
        release(home, key)
        del home.entries[key]
    table = [pool.free_queue.pop(0) for _ in payloads]
    for block_id, key, payload in zip(table, keys, payloads, strict=False):
        block = pool.blocks[block_id]
        if block.key is not None:
            store(home, block.key, block.payload)
        block.key, block.payload = key, payload
    return table


def crossover(
    seconds_per_token: float, seconds_per_byte: float, seconds_at_once: float, bytes_per_token: int
) -> int | None:
    """Return the least number of tokens that take less time to reload than to compute, or `None`."""
    return ReloadCost(seconds_per_token, seconds_per_byte, seconds_at_once).crossover_tokens(bytes_per_token)


def _tier_of(home: SecondHome, num_bytes: int) -> MemoryTier:
    """Return a tier with the entries and leases of the home. `num_bytes`: of each payload."""
    tier = MemoryTier(home.capacity * len(digest_of("", b"") + bytes(num_bytes)))
    for key, entry in home.entries.items():
        tier.store(key.encode(), entry.digest + entry.payload)
    for key, entry in home.entries.items():
        held = tier.lookup(key.encode())
        if held is not None and entry.num_leases == 0:
            tier.release(held)
    return tier


def _put_in_order(home: SecondHome, entries: dict[str, Entry], tier: MemoryTier) -> None:
    """Keep of these entries what the tier has, in its order."""
    home.entries.clear()
    home.entries.update((key.decode(), entries[key.decode()]) for key in tier.in_order())
