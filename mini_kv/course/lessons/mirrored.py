"""A cache, and a mirror of it that misses messages.

run = followed(kept=16)      200 prompts through a small pool; the events go to a mirror, and some are lost
run.missing, run.stale       after each message: cached blocks that the mirror lacks, and evicted ones that it has
mirror_lever()               the same over the number of messages that the server keeps
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache

from mini_kv.core.block_hash import get_block_hash
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.course.lessons.challenge import Challenge
from mini_kv.course.lessons.chart import line_chart
from mini_kv.course.lessons.lever import Lever
from mini_kv.tools.serve.kv_events import KVEventBatch, encode_batch, external_block_hash
from mini_kv.tools.serve.kv_events_manager import EventsKVCacheManager
from mini_kv.tools.serve.mirror import Follower, Mirror

NUM_PROMPTS, NUM_BLOCKS, BLOCK_SIZE = 200, 61, 4
AWAY = range(120, 132)
"""Numbers of consecutive messages that are lost, as when a network is down."""
LOSS = 0.05
"""Share of the other messages that are lost."""


@dataclass
class Followed:
    """A run, and the difference between the mirror and the cache after each message."""

    missing: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    mirror: Mirror = field(default_factory=Mirror)
    num_asked_for: int = 0

    @property
    def is_right(self) -> bool:
        """Whether the mirror is equal to the cache after the last message."""
        return self.missing[-1] == self.stale[-1] == 0


def events_of(*names: str) -> list[str]:
    """Return the events of prompts in a cache of five blocks of 4. Equal first letters: equal 13 tokens."""
    kv = EventsKVCacheManager(KVCacheConfig(6, (KVCacheGroupSpec(("layers",), FullAttentionSpec(4)),)))
    lines = []
    for name in names:
        first = 100 * ord(name[0])
        _send(kv, name, [*range(first, first + 13)])
        told = [f"{type(event).__name__} of {len(getattr(event, 'block_hashes', ()))}" for event in kv.take_events()]
        lines.append(f"{name}: {', '.join(told) or 'no event'}")
    return lines


def _send(kv: EventsKVCacheManager, name: str, token_ids: list[int]) -> None:
    """Look a prompt up, compute the rest, and free its blocks."""
    request = kv.new_request(name, token_ids)
    prefill(kv, request)
    kv.free(request)


@cache
def followed(kept: int, seed: int = 0) -> Followed:
    """Send prompts that begin like one of six texts through a small pool, and mirror its events.

    `kept`: the number of past messages that the server still has when the mirror asks for missing ones.
    """
    chance = random.Random(seed)
    group = KVCacheGroupSpec(("layers",), FullAttentionSpec(BLOCK_SIZE))
    kv = EventsKVCacheManager(KVCacheConfig(NUM_BLOCKS, (group,)))
    texts = [[chance.randrange(1000) for _ in range(40)] for _ in range(6)]
    sent: deque[tuple[int, bytes, bytes]] = deque(maxlen=kept)
    run = Followed()
    follower = Follower(run.mirror, lambda first: [(head, body) for number, head, body in sent if number >= first])
    for number in range(NUM_PROMPTS):
        token_ids = chance.choice(texts)[: chance.randrange(8, 40)] + [chance.randrange(1000) for _ in range(8)]
        _send(kv, str(number), token_ids)
        head, body = number.to_bytes(8, "big"), encode_batch(KVEventBatch(float(number), kv.take_events()))
        if number not in AWAY and chance.random() >= LOSS:
            follower.receive([b"", head, body])
        sent.append((number, head, body))
        true: Counter[int | bytes] = Counter(
            external_block_hash(get_block_hash(block.block_hash)) for block in kv.block_pool.blocks if block.block_hash
        )
        told: Counter[int | bytes] = Counter({key.block_hash: copies for key, copies in run.mirror.copies().items()})
        run.missing.append((true - told).total())
        run.stale.append((told - true).total())
    run.num_asked_for = follower.num_asked_for
    return run


def mirror_lever() -> Lever:
    """Return a lever over the number of messages that the server keeps: how wrong the mirror is, message by message."""
    pictures, right = {}, []
    for kept in (0, 1, 2, 4, 8, 16, 32):
        run = followed(kept)
        every = range(0, NUM_PROMPTS, 4)
        pictures[str(kept)] = line_chart(
            f"The server keeps {kept} messages",
            f"{run.num_asked_for} messages are asked for. At the end the mirror lacks {run.missing[-1]} blocks,"
            f" and has {run.stale[-1]} that are evicted.",
            [*every],
            {
                "only in the cache": [run.missing[number] for number in every],
                "only in the mirror": [run.stale[number] for number in every],
            },
            labels=("messages", "blocks"),
            shares=False,
        )
        right += [str(kept)] * run.is_right
    challenge = Challenge(
        "Find the smallest number at which the mirror is right at the end.", lambda at: at == right[0]
    )
    return Lever("messages kept", pictures, challenge=challenge)
