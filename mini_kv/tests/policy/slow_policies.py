"""The policies once more, slow and obvious: everything that happened is kept, and every answer is read out of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mini_kv.core.block import KVCacheBlock
from mini_kv.policy.eviction import EvictionPolicy, Policy
from mini_kv.policy.ranked import FIFO, LFU, LeafFirst, LFUWithoutAgeing
from mini_kv.policy.recent_then_used import RecentThenUsed


class Event(NamedTuple):
    """Something that the policy was told of a block: it was filled, hit, came to wait, left, or was evicted."""

    what: str
    block: KVCacheBlock
    number: float


class Slow(EvictionPolicy):
    """Keeps a list of events; the victim is the least worth of all that wait."""

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.events: list[Event] = []
        super().__init__(blocks)

    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        """Return what the block is worth, from all that has happened to it."""
        raise NotImplementedError

    def record_miss(self, blocks: Sequence[KVCacheBlock], position: int) -> None:
        self.events += [Event("filled", block, position + i) for i, block in enumerate(blocks)]

    def record_hit(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.events += [Event("hit", block, 0) for block in blocks]

    def enter(self, block: KVCacheBlock) -> None:
        self.events.append(Event("waits", block, 0))

    def leave(self, block: KVCacheBlock) -> None:
        pass

    def victim(self) -> KVCacheBlock:
        block = min(self._waiting, key=self.worth)
        self.events.append(Event("evicted", block, self.worth(block)[0]))
        return block

    def in_order(self) -> list[KVCacheBlock]:
        return sorted(self._waiting, key=self.worth)

    def life(self, block: KVCacheBlock) -> list[tuple[int, Event]]:
        """Return the events of what stands in the block now, with their times."""
        events = [(time, event) for time, event in enumerate(self.events) if event.block is block]
        filled = [i for i, (_, event) in enumerate(events) if event.what == "filled"]
        return events[filled[-1] :] if filled else events

    def last_wait(self, block: KVCacheBlock) -> int:
        return max(time for time, event in self.life(block) if event.what == "waits")

    def uses(self, block: KVCacheBlock) -> int:
        return sum(event.what in ("filled", "hit") for _, event in self.life(block))


class SlowFIFO(Slow):
    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        return (min(time for time, event in self.life(block) if event.what == "waits"),)


class SlowLFUWithoutAgeing(Slow):
    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        return self.uses(block), self.last_wait(block)


class SlowLFU(Slow):
    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        last_use = max(time for time, event in self.life(block) if event.what in ("filled", "hit"))
        evicted = [event.number for event in self.events[:last_use] if event.what == "evicted"]
        return self.uses(block) + (evicted[-1] if evicted else 0), self.last_wait(block)


class SlowLeafFirst(Slow):
    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        return -self.life(block)[0][1].number, self.last_wait(block)


class SlowRecentThenUsed(Slow):
    """Old once is old until the next use; so the horizon is looked at whenever a block is evicted, and no sooner."""

    def worth(self, block: KVCacheBlock) -> tuple[float, ...]:
        last_wait = self.last_wait(block)
        came_since = sum(event.what == "waits" for event in self.events[last_wait + 1 :])
        recent = came_since < int(RecentThenUsed.share * self.num_blocks)
        return (1, last_wait) if recent else (0, self.uses(block), last_wait)


TWINS: dict[str, tuple[Policy, Callable[[Sequence[KVCacheBlock]], Slow]]] = {
    "fifo": (FIFO, SlowFIFO),
    "lfu": (LFU, SlowLFU),
    "lfu without ageing": (LFUWithoutAgeing, SlowLFUWithoutAgeing),
    "leaf-first": (LeafFirst, SlowLeafFirst),
    "hybrid": (RecentThenUsed, SlowRecentThenUsed),
}
