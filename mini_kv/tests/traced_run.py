"""A traced cache and a random life for it, for the tests of what is folded from its events."""

import random
from collections import deque
from collections.abc import Iterator

import pytest

from mini_kv.core.errors import KVCacheError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager

NUM_BLOCKS, BLOCK_SIZE = 9, 2


def traced_kv(
    num_blocks: int, block_size: int, *, snapshots: bool = False, strict: bool = True, enable_caching: bool = True
) -> TracedKVCacheManager:
    """Return a traced cache of one group."""
    recorder = Recorder(strict=strict)
    manager = KVCacheManager.for_full_attention(
        num_blocks, block_size, enable_caching=enable_caching, new_block=recorder.new_block
    )
    return TracedKVCacheManager(manager, recorder, snapshots=snapshots)


def random_life(seed: int, num_steps: int = 60, *, snapshots: bool = False) -> Iterator[TracedKVCacheManager]:
    """Yield a small, crowded cache after each public call of a random run; every call and every misuse occurs."""
    life = _Life(random.Random(seed), traced_kv(NUM_BLOCKS, BLOCK_SIZE, snapshots=snapshots))
    actions = (life.come, life.grow, life.leave, life.stop, life.evict, life.reset, life.misuse)
    for number in range(num_steps):
        action = life.rng.choices(actions, (9, 6, 6, 2, 1, 1, 1))[0]
        for _ in action(f"R{number}") if life.alive else life.come(f"R{number}"):
            yield life.kv


class _Life:
    """The random actions; each yields after a call of the cache."""

    def __init__(self, rng: random.Random, kv: TracedKVCacheManager) -> None:
        self.rng = rng
        self.kv = kv
        self.alive: list[Request] = []

    def come(self, name: str) -> Iterator[None]:
        """Admit a request, if it fits."""
        stem = self.rng.choice(((1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (2,)))
        tokens = stem[: self.rng.randint(1, 6)] + tuple(self.rng.choices((1, 2), k=self.rng.randint(0, 5)))
        request = self.kv.new_request(name, tokens)
        hit, num_hits = self.kv.get_computed_blocks(request)
        yield
        if self.kv.allocate_slots(request, request.num_tokens - num_hits, num_hits, hit) is not None:
            self.alive.append(request)
            request.num_computed_tokens = request.num_tokens
        yield

    def grow(self, _: str) -> Iterator[None]:
        """Let a request decode; one that cannot grow is over, and its last token was never computed."""
        request = self.rng.choice(self.alive)
        request.append_output_token_ids(self.rng.randint(1, 2))
        num_new_tokens = request.num_tokens - request.num_computed_tokens
        if self.kv.allocate_slots(request, num_new_tokens, num_lookahead_tokens=self.rng.randint(0, 1)) is not None:
            request.num_computed_tokens = request.num_tokens
        else:
            self.alive.remove(request)
            yield
            self.kv.free(request)
        yield

    def leave(self, _: str) -> Iterator[None]:
        """Free a request."""
        self.kv.free(self.alive.pop(self.rng.randrange(len(self.alive))))
        yield

    def stop(self, name: str) -> Iterator[None]:
        """Admit a request whose step is abandoned."""
        request = self.kv.new_request(name, [3, 3, 3, self.rng.randint(1, 9)])
        if self.kv.allocate_slots(request, 4) is not None:
            yield
            self.kv.withdraw_promises(request)
            yield
            self.kv.free(request)
        yield

    def evict(self, _: str) -> Iterator[None]:
        """Take three blocks out of the index."""
        self.kv.evict_blocks(self.rng.sample(range(1, NUM_BLOCKS), 3))
        yield

    def reset(self, _: str) -> Iterator[None]:
        """Empty the index, mostly after all requests have left; else it is refused."""
        if self.rng.random() < 0.7:
            while self.alive:
                self.kv.free(self.alive.pop())
                yield
        self.kv.reset_prefix_cache()
        yield

    def misuse(self, _: str) -> Iterator[None]:
        """Free a request that was never admitted."""
        with pytest.raises(KVCacheError):
            self.kv.free(self.kv.new_request("stranger", [1]))
        yield


def lived(seed: int, *, snapshots: bool = False) -> TracedKVCacheManager:
    """Return the cache at the end of such a life."""
    (kv,) = deque(random_life(seed, snapshots=snapshots), maxlen=1)
    return kv
