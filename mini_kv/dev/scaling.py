"""The rows about scaling: costs by the size of the pool, a prompt, the requests, the groups of layers.

    python -m mini_kv.dev --rows growth-pool growth-prompt growth-requests growth-groups

Each row's last figure is the largest case over the smallest: 1 is a flat curve.
"""

import gc
import random
from collections.abc import Sequence
from functools import partial

from mini_kv.dev.bookkeeping import BLOCK_SIZE, Figure, Row, Sizes, Target, expect, new_requests, step_us, tokens
from mini_kv.dev.measure import Run, Stopwatch
from mini_kv.dev.peers import Cache, Peer

_RATIO = "largest / smallest"
_DECODE_TOKENS = 64
"""Tokens of each prompt in the rows on requests and groups."""
_RUNNING = 64
"""Requests of a step in the row on groups."""
_WINDOW = 48
"""Tokens of a window."""
_MOST_STEPS = 1 << 10
"""Steps for which a pool has blocks: twice 16 for each of `MOST_REPEATS` rounds and for the round before them."""
MOST_REPEATS = 31


def pools(sizes: Sizes, seed: int) -> Row:
    """Return the row on the cost of a hit by the size of the pool.

    Each pool is scattered and filled with cached-free prefixes. Some of these, spread over the pool's memory, are
    revived and freed in turn. A peer that is slow in one pool skips the larger ones.
    """
    prefix_tokens = sizes.growth_prefix_blocks * BLOCK_SIZE

    def prepare(peer: Peer) -> Run:
        pools = {}
        for num_blocks in sizes.growth_pools:
            cache, prompts = _filled(peer, num_blocks, prefix_tokens, sizes.growth_prefixes, random.Random(seed))
            if _revive(peer, cache, prompts) > sizes.growth_limit_us:
                break
            pools[num_blocks] = (cache, prompts)

        def run() -> dict[str, float]:
            us = {
                num_blocks: sum(_revive(peer, *pool) for _ in range(sizes.growth_rounds)) / sizes.growth_rounds
                for num_blocks, pool in pools.items()
            }
            figures = {f"pool {num_blocks:,}": value for num_blocks, value in us.items()}
            if len(us) == len(sizes.growth_pools):
                figures[_RATIO] = us[sizes.growth_pools[-1]] / us[sizes.growth_pools[0]]
            return figures

        return run

    figures = (
        *(Figure(f"pool {num_blocks:,}", "us", False) for num_blocks in sizes.growth_pools),
        Figure(_RATIO, "x", False, (Target(3.0, 1.5),)),
    )
    title = f"admit + finish a request that revives {sizes.growth_prefix_blocks} blocks"
    return Row("growth-pool", title, figures, prepare)


def prompts(sizes: Sizes, seed: int) -> Row:
    """Return the row on the cost of a token by the length of the prompt: one request at a time, without a hit.

    The longest prompt fills the pool, so that each new block evicts an old one from the second round on.
    """

    def prepare(peer: Peer) -> Run:
        cache = peer.cache(sizes.growth_prompts[-1] // BLOCK_SIZE + 8, BLOCK_SIZE)
        rng = random.Random(seed)
        longest = tokens(rng, sizes.growth_prompts[-1])

        def admit(num_tokens: int) -> float:
            longest[0] = rng.randrange(1 << 30)  # all names hang on the first token, so nothing hits
            prompt = longest[:num_tokens]
            watch = Stopwatch()
            watch.start()
            request = cache.submit(f"{rng.getrandbits(64):x}", prompt)
            num_hit = cache.admit(request)
            cache.finish(request)
            watch.lap("admit")
            expect(num_hit, 0, f"{peer.name}: hit of a prompt with a unique prefix")
            return watch.ns["admit"] / num_tokens

        for num_tokens in sizes.growth_prompts:
            admit(num_tokens)
        return lambda: _with_ratio({f"prompt {count:,}": admit(count) for count in sizes.growth_prompts})

    title = "admit + finish a request without a hit, per token of its prompt"
    return Row("growth-prompt", title, _figures("prompt", sizes.growth_prompts, "ns"), prepare)


def requests(sizes: Sizes, seed: int) -> Row:
    """Return the row on the cost of a request by the size of the batch, over whole steps of the scheduler.

    The cost grows for two reasons. A step keeps a few containers per request alive until it ends. So the collector runs
    dozens of times within a step of 10,000 and finds nothing. The figure without the collector shows its share. The
    rest is most likely due to cache misses, which are not counted here: 10,000 requests and their tables exceed the
    processor's second-level cache.
    """
    largest = sizes.growth_requests[-1]
    quiet = f"requests {largest:,}, GC off"

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        steps = {}
        for count in sizes.growth_requests:
            cache = peer.cache(count * _blocks_a_request() + 1, BLOCK_SIZE)
            steps[count] = cache.start_scheduling(new_requests(cache, rng, count, _DECODE_TOKENS))

        def run() -> dict[str, float]:
            costs = {
                f"requests {count:,}": step_us(step, sizes.growth_steps, count, rng) for count, step in steps.items()
            }
            gc.disable()
            without = step_us(steps[largest], sizes.growth_steps, largest, rng)
            gc.enable()
            return {**_with_ratio(costs), quiet: without}

        return run

    figures = (*_figures("requests", sizes.growth_requests, "us"), Figure(quiet, "us", False))
    return Row("growth-requests", "a scheduler's step, whole, per request", figures, prepare)


def groups(sizes: Sizes, seed: int) -> Row:
    """Return the row on the cost of a group of layers: one of full attention, the others windows."""

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        caches = {}
        for count in sizes.growth_groups:
            cache = peer.hybrid_cache(_RUNNING * _blocks_a_request() * count + 1, BLOCK_SIZE, count, _WINDOW)
            running = new_requests(cache, rng, _RUNNING, _DECODE_TOKENS)
            for request in running:
                expect(cache.admit(request), 0, f"{peer.name}: hit of a prompt that no other request has")
            caches[count] = (cache, running)

        return lambda: _with_ratio(
            {
                f"groups {count:,}": step_us(partial(cache.decode, running), sizes.growth_steps, _RUNNING, rng)
                for count, (cache, running) in caches.items()
            }
        )

    title = f"decode of {_RUNNING} running, per request: a group of full attention, the others windows of {_WINDOW}"
    return Row("growth-groups", title, _figures("groups", sizes.growth_groups, "us"), prepare)


def scaling_rows(sizes: Sizes, seed: int) -> list[Row]:
    """Return the four rows."""
    return [pools(sizes, seed), prompts(sizes, seed), requests(sizes, seed), groups(sizes, seed)]


def _figures(what: str, counts: Sequence[int], unit: str) -> tuple[Figure, ...]:
    """Return a figure per case and that of the whole curve."""
    return (*(Figure(f"{what} {count:,}", unit, False) for count in counts), Figure(_RATIO, "x", False))


def _with_ratio(costs: dict[str, float]) -> dict[str, float]:
    """Return the costs, smallest case first, with the last over the first."""
    values = list(costs.values())
    return {**costs, _RATIO: values[-1] / values[0]}


def _blocks_a_request() -> int:
    """Return the most blocks that a request reaches in any run of the benchmark."""
    return (_DECODE_TOKENS + _MOST_STEPS) // BLOCK_SIZE + 1


def _revive(peer: Peer, cache: Cache, prompts: list[list[int]]) -> float:
    """Admit and finish a request per prompt, with a hit on all but its last token. Return microseconds per request."""
    requests = [cache.submit(f"revive {index}", prompt) for index, prompt in enumerate(prompts)]
    hits = []
    watch = Stopwatch()
    watch.start()
    for request in requests:
        hits.append(cache.admit(request))
        cache.finish(request)
    watch.lap("revive")
    expect(hits, [len(prompt) - 1 for prompt in prompts], f"{peer.name}: hits of cached-free prefixes")
    return watch.ns["revive"] / len(prompts) / 1e3


def _filled(
    peer: Peer, num_blocks: int, prefix_tokens: int, num_kept: int, rng: random.Random
) -> tuple[Cache, list[list[int]]]:
    """Return a cache with four fifths of it cached-free, and prompts that continue `num_kept` prefixes by a token."""
    cache = peer.cache(num_blocks, BLOCK_SIZE)
    cache.scatter(rng)
    # A fifth stays unused: where a freed block without a key goes to the back of the queue (nano-vllm), each request
    # walks one block further through the pool, and a full one would evict what is to be revived.
    num_prefixes = num_blocks * 4 // 5 // (prefix_tokens // BLOCK_SIZE + 1)
    if num_prefixes < num_kept:
        raise ValueError(f"a pool of {num_blocks} blocks holds {num_prefixes} prefixes, {num_kept} are needed")
    kept = {index * num_prefixes // num_kept for index in range(num_kept)}
    prompts = []
    for index in range(num_prefixes):
        prompt = tokens(rng, prefix_tokens + 1)
        request = cache.submit(f"fill {index}", prompt)
        expect(cache.admit(request), 0, f"{peer.name}: hit of a prefix seen for the first time")
        cache.finish(request)
        if index in kept:
            prompts.append(prompt)
    return cache, prompts
