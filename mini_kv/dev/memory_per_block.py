"""Bytes per block, measured in a process that does nothing else.

`python -m mini_kv.dev.memory_per_block PEER BLOCKS SEED` prints one JSON object. It is a process of its own, because
memory freed by other rows would be reused without being counted.
"""

import gc
import json
import os
import random
import sys
import tracemalloc
from pathlib import Path

from mini_kv.dev.bookkeeping import BLOCK_SIZE, tokens
from mini_kv.dev.peers import Cache, Peer, make_peer

_BLOCKS_A_REQUEST = 50


def weigh(peer: Peer, num_blocks: int, seed: int) -> dict[str, float]:
    """Return the bytes of an idle block, by `tracemalloc` and (on Linux) by RSS, and the additional bytes of a key."""
    figures = {}
    rss = _resident_bytes()
    pool = peer.pool(num_blocks)
    if rss is not None:
        figures["idle block, RSS"] = ((_resident_bytes() or 0) - rss) / num_blocks
    del pool
    gc.collect()

    tracemalloc.start()
    before = _traced_bytes()
    pool = peer.pool(num_blocks)
    figures["idle block"] = (_traced_bytes() - before) / num_blocks
    del pool

    cache = peer.cache(num_blocks, BLOCK_SIZE)
    rng = random.Random(seed)
    # The first request also brings what is made once and stays.
    fill(cache, "first", tokens(rng, 1))
    before = _traced_bytes()
    num_requests = (num_blocks - 2) // _BLOCKS_A_REQUEST
    for index in range(num_requests):
        fill(cache, str(index), tokens(rng, _BLOCKS_A_REQUEST * BLOCK_SIZE))
    figures["more if cached"] = (_traced_bytes() - before) / (num_requests * _BLOCKS_A_REQUEST)
    tracemalloc.stop()
    return figures


def fill(cache: Cache, request_id: str, prompt: list[int]) -> None:
    """Run and end a request. Only its full blocks remain, cached."""
    request = cache.submit(request_id, cache.prompt(prompt))
    cache.admit(request)
    cache.finish(request)


def _traced_bytes() -> int:
    """Return the bytes of all live Python objects that were made since `tracemalloc.start`."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _resident_bytes() -> int | None:
    """Return the memory of this process that is in RAM, or `None` where there is no /proc."""
    try:
        statm = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return None
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    name, blocks, seed_text, *path = sys.argv[1:]
    print(json.dumps(weigh(make_peer(name, Path(path[0]) if path else None), int(blocks), int(seed_text))))
