"""The rows: what is measured, and against which target.

A row prepares one runner per peer; a runner does the row's work once and returns its figures. Every runner checks
while it runs that the work was the row's: the hits are those that follow from the prompts, for every peer.
"""

import json
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.bench.measure import Run, Stopwatch
from mini_kv.bench.peers import Cache, NanoVLLM, Peer, PeerError

_PACKAGE_ROOT = Path(__file__).parents[2]
"""Where `python -m mini_kv...` finds this package, installed or not."""
_VOCABULARY = range(128_000)
BLOCK_SIZE = 16
"""Tokens per block, in every row but hashing."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach: at least a multiple of a peer's speed, or at most an absolute value."""

    must: float
    goal: float
    versus: str | None = None
    """The peer whose speed is the unit; `None` if the figure itself must not exceed the values."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a row."""

    name: str
    unit: str
    more_is_better: bool
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work and the figures that it gives."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    prepare: Callable[[Peer], Run]
    deterministic: bool = False
    """True if one run tells all: nothing is timed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all rows: blocks, tokens, requests. The defaults are the sizes that the targets are for."""

    repeats: int = 15
    churn_block_counts: tuple[int, ...] = (1, 16, 96, 1024)
    churn_total: int = 20_000
    """Blocks per run, whatever the count."""
    hash_tokens: int = 8192
    hash_block_sizes: tuple[int, ...] = (16, 64, 256)
    pool_blocks: int = 20_000
    shared_tokens: int = 1024
    unique_tokens: int = 512
    held: int = 64
    requests: int = 64
    """Requests per run."""
    decode_running: int = 256
    decode_prompt_tokens: int = 512
    decode_steps: int = 64
    growth_pools: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    growth_prefix_blocks: int = 64
    growth_prefixes: int = 12
    growth_rounds: int = 3
    growth_limit_us: float = 50_000.0
    memory_blocks: int = 100_000


QUICK = Sizes(
    repeats=3,
    churn_block_counts=(1, 16),
    churn_total=160,
    hash_tokens=256,
    hash_block_sizes=(16, 64),
    pool_blocks=200,
    shared_tokens=64,
    unique_tokens=32,
    held=4,
    requests=8,
    decode_running=8,
    decode_prompt_tokens=40,
    decode_steps=20,
    growth_pools=(80, 800),
    growth_prefix_blocks=8,
    growth_prefixes=4,
    growth_rounds=1,
    memory_blocks=1_000,
)
"""Small sizes, for a look at the table and for the tests: their figures mean nothing."""


def tokens(rng: random.Random, count: int) -> list[int]:
    """Return a random prompt."""
    return rng.choices(_VOCABULARY, k=count)


def churn(sizes: Sizes, seed: int) -> Row:
    """Return the row of the bare pool: take k blocks without keys, give them back."""

    def prepare(peer: Peer) -> Run:
        cache = peer.cache(sizes.pool_blocks, BLOCK_SIZE)

        def run() -> dict[str, float]:
            watch = Stopwatch()
            for count in sizes.churn_block_counts:
                times = max(1, sizes.churn_total // count)
                watch.start()
                cache.churn(count, times)
                watch.lap(f"k = {count:,}")
            return {
                f"k = {count:,}": count * max(1, sizes.churn_total // count) / watch.ns[f"k = {count:,}"] * 1e3
                for count in sizes.churn_block_counts
            }

        return run

    figures = tuple(
        Figure(f"k = {count:,}", "M blocks/s", True, Target(1.0, 1.5, "vllm") if count == 96 else None)
        for count in sizes.churn_block_counts
    )
    return Row("churn", f"take k blocks and give them back, pool {sizes.pool_blocks:,}", figures, prepare)


def hashing(sizes: Sizes, seed: int) -> Row:
    """Return the row of hashing all blocks of one long prompt."""
    cases = [(function, size) for function in ("sha256", "xxh3_128") for size in sizes.hash_block_sizes]

    def prepare(peer: Peer) -> Run:
        prompt = tokens(random.Random(seed), sizes.hash_tokens)
        hashers = {case: peer.hasher(*case, prompt) for case in cases}

        def run() -> dict[str, float]:
            watch = Stopwatch()
            figures = {}
            for (function, block_size), hash_prompt in hashers.items():
                case = f"{function}, block {block_size}"
                watch.start()
                num_hashes = hash_prompt()
                watch.lap(case)
                expect(num_hashes, sizes.hash_tokens // block_size, f"{peer.name}: names of {case}")
                figures[case] = sizes.hash_tokens / watch.ns[case] * 1e3
            return figures

        return run

    figures = tuple(
        Figure(
            f"{function}, block {block_size}",
            "M tokens/s",
            True,
            Target(1.0, 3.0, "vllm") if function == "sha256" else None,
        )
        for function, block_size in cases
    )
    return Row("hash", f"name the blocks of {sizes.hash_tokens:,} tokens", figures, prepare)


def admission(name: str, sizes: Sizes, seed: int, *, held: int, shared: int, target: Target | None) -> Row:
    """Return a row of requests that come and go while `held` of them hold their blocks; the oldest leaves first.

    The pool is small enough that every new block evicts an old one. `shared` tokens at the head of every prompt are
    the same; with one request held at a time, no request holds them in between and each admission revives them.
    """
    total = sizes.shared_tokens + sizes.unique_tokens

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        head = tokens(rng, shared)
        cache = peer.cache(sizes.pool_blocks, BLOCK_SIZE)
        live: deque[Any] = deque()

        def serve(count: int, watch: Stopwatch) -> None:
            prompts = [(f"{rng.getrandbits(64):x}", head + tokens(rng, total - shared)) for _ in range(count)]
            hits = []
            watch.start()
            for request_id, prompt in prompts:
                request = cache.submit(request_id, prompt)
                watch.lap("submit")
                hits.append(cache.admit(request))
                watch.lap("admit")
                live.append(request)
                if len(live) >= held:
                    cache.finish(live.popleft())
                watch.lap("finish")
            expect(hits, [shared] * count, f"{peer.name}: hits of {name}")

        cache.finish(_warm_head(cache, head + tokens(rng, total - shared)))
        serve(held + 1 + sizes.pool_blocks * BLOCK_SIZE // (total - shared), Stopwatch())

        def run() -> dict[str, float]:
            watch = Stopwatch()
            serve(sizes.requests, watch)
            us = {phase: ns / sizes.requests / 1e3 for phase, ns in watch.ns.items()}
            return {"requests": 1e6 / sum(us.values()), **us}

        return run

    figures = (
        Figure("requests", "1/s", True, target),
        *(Figure(phase, "us", False) for phase in ("submit", "admit", "finish")),
    )
    title = f"{shared:,} shared + {total - shared:,} unique tokens, {held} held at once, pool {sizes.pool_blocks:,}"
    return Row(name, title, figures, prepare)


def decode(sizes: Sizes, seed: int) -> Row:
    """Return the row of decoding: every step gives each running request a slot for one more token."""

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        num_blocks = 4 * sizes.decode_running * (
            (sizes.decode_prompt_tokens + sizes.decode_steps) // BLOCK_SIZE + 1
        )  # fmt: skip
        cache = peer.cache(num_blocks, BLOCK_SIZE)

        def run() -> dict[str, float]:
            prompts = [tokens(rng, sizes.decode_prompt_tokens) for _ in range(sizes.decode_running)]
            requests = [cache.submit(f"{rng.getrandbits(64):x}", prompt) for prompt in prompts]
            for request in requests:
                expect(cache.admit(request), 0, f"{peer.name}: hit of a prompt that no other request has")
            sampled = tokens(rng, sizes.decode_steps)
            watch = Stopwatch()
            watch.start()
            for token_id in sampled:
                cache.decode(requests, token_id)
            watch.lap("decode")
            for request in requests:
                cache.finish(request)
            us = watch.ns["decode"] / sizes.decode_steps / sizes.decode_running / 1e3
            return {"us per request": us, "steps": 1e6 / (us * sizes.decode_running)}

        return run

    figures = (
        Figure("steps", "1/s", True, Target(1.0, 20.0, "vllm")),
        Figure("us per request", "us", False),
    )
    title = f"a step of {sizes.decode_running} running: append a token, a slot for it, ids of new blocks"
    return Row("decode", title, figures, prepare)


def scheduling(sizes: Sizes, seed: int) -> Row:
    """Return the row of whole steps: plan one, and take its tokens in. Peers do `decode`, a part of that."""

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        blocks_a_request = (sizes.decode_prompt_tokens + (1 << 10)) // BLOCK_SIZE + 1
        cache = peer.cache(sizes.decode_running * blocks_a_request + 1, BLOCK_SIZE)

        def run() -> dict[str, float]:
            prompts = [tokens(rng, sizes.decode_prompt_tokens) for _ in range(sizes.decode_running)]
            requests = [cache.submit(f"{rng.getrandbits(64):x}", prompt) for prompt in prompts]
            step = cache.start_scheduling(requests)
            sampled = tokens(rng, sizes.decode_steps)
            watch = Stopwatch()
            watch.start()
            for token_id in sampled:
                step(token_id)
            watch.lap("schedule")
            for request in requests:
                cache.finish(request)
            us = watch.ns["schedule"] / sizes.decode_steps / sizes.decode_running / 1e3
            return {"us per request": us, "steps": 1e6 / (us * sizes.decode_running)}

        return run

    figures = (
        Figure("steps", "1/s", True, Target(1.0, 1.0, "vllm")),
        Figure("us per request", "us", False),
    )
    title = f"a scheduler's step of {sizes.decode_running} running, plan and update; peers: their allocation path alone"
    return Row("schedule", title, figures, prepare)


def growth(sizes: Sizes, seed: int) -> Row:
    """Return the row that asks whether a hit costs more in a larger pool.

    Each pool is scattered and filled with prefixes that no request holds; some of these, spread over the pool's memory,
    are revived and freed in turn. A peer that needs long in one pool skips the larger ones.
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
                figures["largest / smallest"] = us[sizes.growth_pools[-1]] / us[sizes.growth_pools[0]]
            return figures

        return run

    figures = (
        *(Figure(f"pool {num_blocks:,}", "us", False) for num_blocks in sizes.growth_pools),
        Figure("largest / smallest", "x", False, Target(3.0, 1.5)),
    )
    title = f"admit + finish a request that revives {sizes.growth_prefix_blocks} blocks"
    return Row("growth", title, figures, prepare)


def memory(sizes: Sizes, seed: int) -> Row:
    """Return the row of bytes per block; each peer is weighed in a process of its own."""

    def prepare(peer: Peer) -> Run:
        command = [sys.executable, "-m", "mini_kv.bench.memory", peer.name, str(sizes.memory_blocks), str(seed)]
        if isinstance(peer, NanoVLLM):
            command.append(str(peer.path))

        def run() -> dict[str, float]:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_PACKAGE_ROOT)
            if done.returncode:
                raise PeerError(f"{peer.name} could not be weighed: {done.stderr.strip().splitlines()[-1:]}")
            figures: dict[str, float] = json.loads(done.stdout)
            return figures

        return run

    figures = (
        Figure("idle block", "bytes", False, Target(136, 120)),
        Figure("idle block, RSS", "bytes", False),
        Figure("more if cached", "bytes", False),
    )
    return Row("memory", f"bytes per block, of {sizes.memory_blocks:,}", figures, prepare, deterministic=True)


def all_rows(sizes: Sizes, seed: int) -> list[Row]:
    """Return every row, in the order of the table."""
    shared = sizes.shared_tokens
    target = Target(1.0, 3.0, "vllm")
    return [
        churn(sizes, seed),
        hashing(sizes, seed),
        admission("admit-held", sizes, seed, held=sizes.held, shared=shared, target=target),
        admission("admit-revived", sizes, seed, held=1, shared=shared, target=target),
        admission("admit-cold", sizes, seed, held=sizes.held, shared=0, target=None),
        decode(sizes, seed),
        scheduling(sizes, seed),
        growth(sizes, seed),
        memory(sizes, seed),
    ]


def expect(found: object, expected: object, what: str) -> None:
    """Raise `PeerError` if a peer did other work than the row is about: its time would compare nothing."""
    if found != expected:
        raise PeerError(f"{what}: {found}, expected {expected}")


def _warm_head(cache: Cache, prompt: Sequence[int]) -> Any:
    """Admit the very first request, which cannot hit, and return it."""
    request = cache.submit("first", list(prompt))
    expect(cache.admit(request), 0, "hit of the first request")
    return request


def _revive(peer: Peer, cache: Cache, prompts: list[list[int]]) -> float:
    """Admit and finish a request per prompt, which hits all but its last token; return microseconds per request."""
    requests = [cache.submit(f"revive {index}", prompt) for index, prompt in enumerate(prompts)]
    hits = []
    watch = Stopwatch()
    watch.start()
    for request in requests:
        hits.append(cache.admit(request))
        cache.finish(request)
    watch.lap("revive")
    expect(hits, [len(prompt) - 1 for prompt in prompts], f"{peer.name}: hits of prefixes that lie idle")
    return watch.ns["revive"] / len(prompts) / 1e3


def _filled(
    peer: Peer, num_blocks: int, prefix_tokens: int, num_kept: int, rng: random.Random
) -> tuple[Cache, list[list[int]]]:
    """Return a cache with four fifths of it idle prefixes, and prompts that continue `num_kept` of these by a token."""
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
