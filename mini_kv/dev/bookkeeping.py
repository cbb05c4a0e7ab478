"""The rows of the benchmark, with their targets.

A row prepares one runner per peer. A runner does the row's work once and returns its figures. Every runner checks the
work: for every peer the hits are those that follow from the prompts.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mini_kv.dev.measure import Run, Stopwatch
from mini_kv.dev.peers import Cache, Peer, PeerError

_VOCABULARY = range(128_000)
BLOCK_SIZE = 16
"""Tokens per block, in every row but hashing."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure: at least a multiple of a peer's speed, or at most an absolute value."""

    must: float
    goal: float
    versus: str | None = None
    """The peer whose speed is the unit, or `None` if the figure itself must not exceed the values."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a row."""

    name: str
    unit: str
    more_is_better: bool
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work and its figures."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    prepare: Callable[[Peer], Run]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all rows: blocks, tokens, requests. The targets apply to the defaults."""

    repeats: int = 15
    churn_block_counts: tuple[int, ...] = (1, 16, 96, 1024)
    churn_total: int = 20_000
    """Blocks per run, for every count."""
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
    growth_prompts: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    growth_requests: tuple[int, ...] = (10, 100, 1_000, 10_000)
    growth_groups: tuple[int, ...] = (1, 2, 4, 8)
    growth_steps: int = 16
    """Steps per run: each request opens one block in 16 of them."""


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
    growth_prompts=(100, 1_000),
    growth_requests=(2, 8),
    growth_groups=(1, 2),
)
"""Small sizes, for a view of the table and for the tests. Their figures mean nothing."""


def tokens(rng: random.Random, count: int) -> list[int]:
    """Return a random prompt."""
    return rng.choices(_VOCABULARY, k=count)


def churn(sizes: Sizes, seed: int) -> Row:
    """Return the row of the bare pool: allocate k blocks without hashes, free them."""

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

    targets = {1: (Target(1.0, 1.3, "vllm"),), 96: (Target(1.0, 1.5, "vllm"),)}
    figures = tuple(
        Figure(f"k = {count:,}", "M blocks/s", True, targets.get(count, ())) for count in sizes.churn_block_counts
    )
    return Row("churn", f"allocate k blocks and free them, pool {sizes.pool_blocks:,}", figures, prepare)


def hashing(sizes: Sizes, seed: int) -> Row:
    """Return the row of hashing all blocks of one long prompt."""
    cases = [(function, size) for function in ("sha256", "xxh3_128") for size in sizes.hash_block_sizes]

    def prepare(peer: Peer) -> Run:
        prompt = tokens(random.Random(seed), sizes.hash_tokens)
        calls = {f"{function}, block {size}": (size, peer.hasher(function, size, prompt)) for function, size in cases}
        return _hashing_run(peer, sizes, calls)

    figures = tuple(Figure(f"{function}, block {block_size}", "M tokens/s", True) for function, block_size in cases)
    return Row("hash", f"name the blocks of {sizes.hash_tokens:,} tokens that are checked already", figures, prepare)


def naming(sizes: Sizes, seed: int) -> Row:
    """Return the row of a request with its block hashes. Our check of the tokens is part of the time."""

    def prepare(peer: Peer) -> Run:
        prompt = tokens(random.Random(seed), sizes.hash_tokens)
        names = {size: f"block {size}" for size in sizes.hash_block_sizes}
        calls = {name: (size, partial(peer.namer(size), name, prompt)) for size, name in names.items()}
        return _hashing_run(peer, sizes, calls)

    targets = {16: Target(2.0, 2.5, "vllm"), 64: Target(1.4, 2.0, "vllm"), 256: Target(1.2, 2.0, "vllm")}
    figures = tuple(
        Figure(f"block {block_size}", "M tokens/s", True, (targets[block_size],))
        for block_size in sizes.hash_block_sizes
    )
    title = f"a request of {sizes.hash_tokens:,} tokens and its block hashes, SHA-256; ours checks the tokens, too"
    return Row("request", title, figures, prepare)


def _hashing_run(peer: Peer, sizes: Sizes, calls: Mapping[str, tuple[int, Callable[[], int]]]) -> Run:
    """Return a run of calls that hash the prompt's blocks, each with its block size."""

    def run() -> dict[str, float]:
        watch = Stopwatch()
        for case, (block_size, hash_blocks) in calls.items():
            watch.start()
            num_hashes = hash_blocks()
            watch.lap(case)
            expect(num_hashes, sizes.hash_tokens // block_size, f"{peer.name}: names of {case}")
        return {case: sizes.hash_tokens / ns * 1e3 for case, ns in watch.ns.items()}

    return run


def admission(
    name: str, sizes: Sizes, seed: int, *, held: int, shared: int, targets: Mapping[str, tuple[Target, ...]]
) -> Row:
    """Return a row of requests that start and end while `held` of them are running. The oldest ends first.

    The pool is small enough that every new block evicts an old one. `shared` tokens at the head of every prompt are
    the same. With one running request at a time they are free in between, and each admission revives them.
    `targets` are those of each figure.
    """
    total = sizes.shared_tokens + sizes.unique_tokens

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        head = tokens(rng, shared)
        cache = peer.cache(sizes.pool_blocks, BLOCK_SIZE)
        live: deque[Any] = deque()

        def serve(count: int, watch: Stopwatch) -> None:
            token_ids = [head + tokens(rng, total - shared) for _ in range(count)]
            prompts = [(f"{rng.getrandbits(64):x}", prompt) for prompt in token_ids]
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
        Figure("requests", "1/s", True, targets.get("requests", ())),
        *(Figure(phase, "us", False, targets.get(phase, ())) for phase in ("submit", "admit", "finish")),
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
            requests = new_requests(cache, rng, sizes.decode_running, sizes.decode_prompt_tokens)
            for request in requests:
                expect(cache.admit(request), 0, f"{peer.name}: hit of a prompt that no other request has")
            return _steps_run(cache, requests, partial(cache.decode, requests), sizes, rng)

        return run

    title = f"a step of {sizes.decode_running} running: append a token, a slot for it, ids of new blocks"
    return Row("decode", title, _steps_figures(Target(4.0, 6.0, "vllm")), prepare)


def scheduling(sizes: Sizes, seed: int) -> Row:
    """Return the row of whole steps of the engine's own scheduler: plan one, and process its tokens."""

    def prepare(peer: Peer) -> Run:
        rng = random.Random(seed)
        blocks_a_request = (sizes.decode_prompt_tokens + (1 << 10)) // BLOCK_SIZE + 1
        cache = peer.cache(sizes.decode_running * blocks_a_request + 1, BLOCK_SIZE)
        (first,) = new_requests(cache, rng, 1, sizes.decode_prompt_tokens)
        cache.start_scheduling([first])  # a peer without a scheduler says so here
        cache.finish(first)

        def run() -> dict[str, float]:
            requests = new_requests(cache, rng, sizes.decode_running, sizes.decode_prompt_tokens)
            return _steps_run(cache, requests, cache.start_scheduling(requests), sizes, rng)

        return run

    title = f"a whole scheduler's step of {sizes.decode_running} running: plan it and process its tokens"
    return Row("schedule", title, _steps_figures(Target(3.6, 5.0, "vllm")), prepare)


def step_us(step: Callable[[int], None], num_steps: int, num_requests: int, rng: random.Random) -> float:
    """Do the steps of a run and return microseconds per request and step."""
    sampled = tokens(rng, num_steps)
    watch = Stopwatch()
    watch.start()
    for token_id in sampled:
        step(token_id)
    watch.lap("step")
    return watch.ns["step"] / num_steps / num_requests / 1e3


def _steps_run(
    cache: Cache, requests: Sequence[Any], step: Callable[[int], None], sizes: Sizes, rng: random.Random
) -> dict[str, float]:
    """Time the steps of the running requests, end them, and return the figures."""
    us = step_us(step, sizes.decode_steps, sizes.decode_running, rng)
    for request in requests:
        cache.finish(request)
    return {"us per request": us, "steps": 1e6 / (us * sizes.decode_running)}


def _steps_figures(target: Target) -> tuple[Figure, ...]:
    return Figure("steps", "1/s", True, (target,)), Figure("us per request", "us", False)


def admissions(sizes: Sizes, seed: int) -> list[Row]:
    """Return the rows of admissions: with a shared prefix in use, with one revived each time, and without one."""
    shared = sizes.shared_tokens
    both = {"requests": (Target(1.8, 2.2, "vllm"),)}
    revived = {"requests": (Target(1.0, 2.2, "vllm"),), "finish": (Target(1.0, 1.3, "vllm"),)}
    return [
        admission("admit-held", sizes, seed, held=sizes.held, shared=shared, targets=both),
        admission("admit-revived", sizes, seed, held=1, shared=shared, targets=revived),
        admission("admit-cold", sizes, seed, held=sizes.held, shared=0, targets=both),
    ]


def new_requests(cache: Cache, rng: random.Random, count: int, num_tokens: int) -> list[Any]:
    """Return `count` new requests with random prompts and ids."""
    prompts = [tokens(rng, num_tokens) for _ in range(count)]
    return [cache.submit(f"{rng.getrandbits(64):x}", prompt) for prompt in prompts]


def expect(found: object, expected: object, what: str) -> None:
    """Raise `PeerError` if a peer did other work than the row's. Its time would not be comparable."""
    if found != expected:
        raise PeerError(f"{what}: {found}, expected {expected}")


def _warm_head(cache: Cache, prompt: list[int]) -> Any:
    """Admit the very first request, which cannot hit, and return it."""
    request = cache.submit("first", prompt)
    expect(cache.admit(request), 0, "hit of the first request")
    return request
