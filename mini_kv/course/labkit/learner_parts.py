"""The places in the engine for a learner's parts.

A `lab.toml` gives the place of each part, by the name of a field below. `finale.assembly` passes the fields to the
constructors of the engine: `KVCacheParts`, `RunnerParts`, and the manager's and scheduler's own.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OwnParts:
    """A learner's classes and functions by place. `None`: the engine uses its own."""

    answer: Any = None
    """Answers messages: a whole cache."""
    page_size: Any = None
    """Computes the bytes of a block in one layer, and so the number of blocks in a memory."""
    admit: Any = None
    """Admits a prompt without a scheduler."""
    ref_counts: Any = None
    """Reads the reference counts of a request's blocks."""
    hit_rate: Any = None
    """Computes the hit rate from the counters."""
    home_store: Any = None
    """Stores an evicted content in a second home."""
    home_lease: Any = None
    """Finds a content there and keeps it."""
    home_release: Any = None
    """Ends such a lease."""
    promote: Any = None
    """Moves contents from there into free blocks."""
    crossover: Any = None
    """Computes how long a prompt must be to be worth moving."""
    policy: Any = None
    """An eviction policy, in place of the free queue."""
    queue: Any = None
    """The pool's free queue, made of the free blocks."""
    counts: Any = None
    """A pool without an index: takes blocks, touches them, counts them."""
    frees: Any = None
    """The pool whose `free_blocks` frees in a run without a cache. It ignores block hashes."""
    index: Any = None
    """The index, from a key to its blocks."""
    pool: Any = None
    """A pool that caches and evicts blocks."""
    hasher: Any = None
    """Makes the function that hashes the blocks of a request."""
    full_attention: Any = None
    """The manager of a group of full-attention layers."""
    sliding_window: Any = None
    """The manager of a group of layers with a window."""
    coordinator: Any = None
    """Finds one hit for several groups."""
    group_layers: Any = None
    """Makes the groups of layers."""
    slots: Any = None
    """A manager that gives requests slots."""
    lookup: Any = None
    """A manager that looks prompts up."""
    stats: Any = None
    """The counters of the prefix cache."""
    scheduler: Any = None
    block_table: Any = None
    slot_mapping: Any = None
    """Computes the slots of a step's tokens from their positions."""
    write: Any = None
    """Writes keys and values to their slots."""
    decode: Any = None
    """Attention of one new token per request."""
    prefill: Any = None
    """Attention of several new tokens of a request."""
    write_kernel: Any = None
    """A Triton kernel that writes as `write` does, in a step with one new token per request."""
    decode_kernel: Any = None
    """A Triton kernel that attends in such a step."""
