"""The places in the engine where a learner's part can stand.

A `lab.toml` says of each part where it goes, by the name of a field below. `own_engine.assembly` hands what stands in
the fields to the constructors of the engine: `KVCacheParts`, `RunnerParts`, and the manager's and scheduler's own.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OwnParts:
    """A learner's classes and functions by place. `None`: the engine's own stands there."""

    queue: Any = None
    """The pool's free queue, made of the free blocks."""
    counts: Any = None
    """A pool without an index: takes blocks, touches them, counts them."""
    index: Any = None
    """The index: from a key to the blocks that carry it."""
    pool: Any = None
    """A pool whose blocks get keys and lose them."""
    hasher: Any = None
    """Makes the function that hashes the blocks of a request."""
    full_attention: Any = None
    """The manager of a group of layers that see all tokens."""
    sliding_window: Any = None
    """The manager of a group of layers with a window."""
    coordinator: Any = None
    """Brings several groups to one hit."""
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
    """Writes as `write` does, in a step in which each request has one new token; a Triton kernel."""
    decode_kernel: Any = None
    """Attends in such a step; a Triton kernel."""
