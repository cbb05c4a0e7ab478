"""The events that a cache publishes: a block was cached, a block is no longer cached, the cache was emptied.

Names and bytes are those of vLLM 0.33 (distributed/kv_events.py). So a router written for vLLM can listen to mini_kv,
and `mini-kv attach` can listen to vLLM. A message has three frames:

    topic | sequence number, 8 bytes, big-endian | batch: msgpack of [time, [event, ...], rank]

A batch has the changes of one step, in their order. Needs the extra `events`.
"""

from typing import Any, TypeAlias

import msgspec

ExternalBlockHash: TypeAlias = int | bytes
"""A block hash as published: its last 8 bytes as a number, or all its bytes, depending on vLLM's configuration."""

MEDIUM_GPU = "GPU"
"""The medium of a block in the engine's own memory, on any device. Source: vLLM."""

LATEST_S = 1e12
"""Seconds of the largest time of a batch, in about 30,000 years."""

END_SEQ = (-1).to_bytes(8, "big", signed=True)
"""The number in the frame that ends the answer to a request for earlier batches."""


class KVCacheEvent(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """One event. On the wire a map of its fields, with its class's name as `type`."""


class BlockStored(KVCacheEvent, frozen=True):
    """Consecutive blocks of one request were cached."""

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    """Hash of the block before the first stored block, or `None` at the beginning of a prompt."""
    token_ids: list[int]
    """Tokens of all stored blocks, concatenated."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    """Per block the extra keys of its hash: the adapter, images, the cache salt in a first block."""
    group_idx: int | None = None
    """The KV cache group."""
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    # What follows is vLLM's alone: tiers and other machines, sessions, hashes that look ahead. Ours leaves it out.
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent, frozen=True):
    """One block per hash is no longer cached. Another block with the same hash may still be cached."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """The index of cached blocks was emptied."""


def check_time(seconds: float) -> None:
    """Raise `ValueError` for a time that is not a number of a calendar's size. Later no trace could have it."""
    if not abs(seconds) <= LATEST_S:
        raise ValueError(f"its time is {seconds}, it must be seconds since 1970")


AnyEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """The changes of one step."""

    ts: float
    """Seconds since 1970."""
    events: list[AnyEvent]
    data_parallel_rank: int | None = None

    def __post_init__(self) -> None:
        check_time(self.ts)


class BadFrameError(ValueError):
    """A message with an unknown format. Its text is the reason."""


_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def encode_batch(batch: KVEventBatch) -> bytes:
    """Return the batch as the third frame of a message."""
    return msgspec.msgpack.encode(batch)


def decode_batch(payload: bytes) -> KVEventBatch:
    """Return the batch in a third frame. Unknown fields are ignored, since a newer vLLM may add some.

    Raises `BadFrameError`.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrameError(f"a batch of {len(payload):,} bytes cannot be read: {error}") from None


def sequence_number(frame: bytes) -> int:
    """Return the number in a second frame, below 0 at the end of a replay. Raises `BadFrameError`."""
    if len(frame) != 8:
        raise BadFrameError(f"a sequence number has 8 bytes, this one has {len(frame):,}")
    return int.from_bytes(frame, "big", signed=True)


def external_block_hash(block_hash: bytes) -> int:
    """Return the published form of a hash: its last 8 bytes. Source: vLLM `maybe_convert_block_hash`."""
    return int.from_bytes(block_hash[-8:], "big")
