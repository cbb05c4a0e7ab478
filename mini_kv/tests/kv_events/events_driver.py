"""A scheduler under random use whose events go through a wire that loses some, to a mirror at the other end."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from mini_kv.core.block_hash import get_block_hash, get_group_id
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.tests.scheduler_driver import Run
from mini_kv.tools.serve.kv_events import MEDIUM_GPU, AnyEvent, KVEventBatch, encode_batch, external_block_hash
from mini_kv.tools.serve.kv_events_manager import EventsKVCacheManager
from mini_kv.tools.serve.kv_events_publisher import PublishingScheduler
from mini_kv.tools.serve.mirror import Follower, Key, Mirror


class LossyWire:
    """A publisher that keeps its last batches and loses some on the way."""

    def __init__(self, loss: float, num_kept: int, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.num_kept = num_kept
        self.sent: list[bytes] = []
        self.num_lost = self.num_events = 0
        self.mirror = Mirror()
        self.follower = Follower(self.mirror, self.replay)

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Send a batch, or lose it."""
        if not events:
            return
        self.num_events += len(events)
        self.sent.append(encode_batch(KVEventBatch(float(len(self.sent)), list(events), 0)))
        if self.rng.random() < self.loss:
            self.num_lost += 1
        else:
            self.send(len(self.sent) - 1)

    def send(self, number: int) -> None:
        """Deliver a batch, for the first time or once more."""
        self.follower.receive([b"", number.to_bytes(8, "big"), self.sent[number]])

    def replay(self, first: int) -> list[tuple[bytes, bytes]]:
        """Return what is kept."""
        kept = range(max(first, len(self.sent) - self.num_kept), len(self.sent))
        return [(number.to_bytes(8, "big"), self.sent[number]) for number in kept]


def driven(config: Any, seed: int, wire: LossyWire) -> Run:
    """Return a scheduler under random use whose cache tells its events to `wire`."""
    scheduler_class: Any = partial(PublishingScheduler, publisher=wire)
    manager_class: Any = EventsKVCacheManager
    return Run(config, seed, check_every=50, manager_class=manager_class, scheduler_class=scheduler_class)


def pool_keys(kv: KVCacheManager) -> dict[Key, int]:
    """Return what a whole picture of the cache is."""
    keys = [block.block_hash for block in kv.block_pool.blocks if block.block_hash is not None]
    return dict(Counter(Key(external_block_hash(get_block_hash(key)), get_group_id(key), MEDIUM_GPU) for key in keys))


def take_events(run: Run) -> list[AnyEvent]:
    """Return what no batch has told yet: what happened after the last step."""
    assert isinstance(run.kv, EventsKVCacheManager)
    return run.kv.take_events()
