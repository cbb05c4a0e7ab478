"""A traced cache and a random life for it, for the tests of what is folded from traces."""

import random
from collections import deque
from collections.abc import Iterator

from mini_kv.core.errors import KVCacheError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.trace.recorder import Recorder
from mini_kv.trace.traced_manager import TracedKVCacheManager

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
    rng = random.Random(seed)
    kv = traced_kv(NUM_BLOCKS, BLOCK_SIZE, snapshots=snapshots)
    alive: list[Request] = []
    for number in range(num_steps):
        action = rng.choices(("come", "grow", "leave", "stop", "evict", "reset", "misuse"), (9, 6, 6, 2, 1, 1, 1))[0]
        if action == "come" or not alive:
            stem = rng.choice(((1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (2,)))
            tokens = stem[: rng.randint(1, 6)] + tuple(rng.choices((1, 2), k=rng.randint(0, 5)))
            request = kv.new_request(f"R{number}", tokens)
            hit, num_hits = kv.get_computed_blocks(request)
            yield kv
            if kv.allocate_slots(request, request.num_tokens - num_hits, num_hits, hit) is not None:
                alive.append(request)
                request.num_computed_tokens = request.num_tokens
        elif action == "grow":
            request = rng.choice(alive)
            request.append_output_token_ids(rng.randint(1, 2))
            num_new_tokens = request.num_tokens - request.num_computed_tokens
            if kv.allocate_slots(request, num_new_tokens, num_lookahead_tokens=rng.randint(0, 1)) is not None:
                request.num_computed_tokens = request.num_tokens
            else:  # it could not grow, so it is over; and its last token was never computed
                alive.remove(request)
                yield kv
                kv.free(request)
        elif action == "leave":
            kv.free(alive.pop(rng.randrange(len(alive))))
        elif action == "stop":
            request = kv.new_request(f"R{number}", [3, 3, 3, rng.randint(1, 9)])
            if kv.allocate_slots(request, 4) is not None:
                yield kv
                kv.withdraw_promises(request)
                yield kv
                kv.free(request)
        elif action == "evict":
            kv.evict_blocks(rng.sample(range(1, NUM_BLOCKS), 3))
        elif action == "reset":
            if rng.random() < 0.7:  # else it is refused, since somebody is there
                while alive:
                    kv.free(alive.pop())
                    yield kv
            kv.reset_prefix_cache()
        else:
            try:
                kv.free(kv.new_request("nobody", [1]))
            except KVCacheError:
                pass
            else:
                raise AssertionError("a request that was never admitted can be freed")
        yield kv


def lived(seed: int, *, snapshots: bool = False) -> TracedKVCacheManager:
    """Return the cache at the end of such a life."""
    (kv,) = deque(random_life(seed, snapshots=snapshots), maxlen=1)
    return kv
