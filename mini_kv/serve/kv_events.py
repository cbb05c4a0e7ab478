"""What a cache tells others: a block can be found from now on, a block cannot be found any more, all are forgotten.

The words and the bytes are vLLM 0.33's (distributed/kv_events.py), so that a router written for vLLM can listen to us,
and `mini-kv attach` to vLLM. A message has three frames:

    topic | sequence number, 8 bytes, big-endian | batch: msgpack of [time, [event, ...], rank]

A batch is what one step has changed, in the order in which it happened. Needs the extra `events`.
"""

from typing import Any, TypeAlias

import msgspec

ExternalBlockHash: TypeAlias = int | bytes
"""A block hash as it is told: its last 8 bytes as a number; or all of its bytes, which is a switch of vLLM's."""

MEDIUM_GPU = "GPU"
"""Where a block lies that the engine itself holds, whatever its device is. vLLM's word."""

END_SEQ = (-1).to_bytes(8, "big", signed=True)
"""What ends the answer to a question for earlier batches."""


class KVCacheEvent(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """One event. On the wire a map of its fields, with its class's name as `type`."""


class BlockStored(KVCacheEvent, frozen=True):
    """Blocks of one request got their keys, one behind the other."""

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    """Hash of the block before the first of them; `None` at the beginning of a prompt."""
    token_ids: list[int]
    """Tokens of all these blocks, in a row."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    """Per block what decides its KV beside the tokens: the adapter, images, the cache salt in a first block."""
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
    """As many blocks as there are hashes lost their key. Another block may carry the same one still."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """No block can be found any more."""


AnyEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What one step has changed."""

    ts: float
    """Seconds since 1970."""
    events: list[AnyEvent]
    data_parallel_rank: int | None = None


class BadFrameError(ValueError):
    """A message with an unknown format. Its text is the reason."""


_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def encode_batch(batch: KVEventBatch) -> bytes:
    """Return the batch as the third frame of a message."""
    return msgspec.msgpack.encode(batch)


def decode_batch(payload: bytes) -> KVEventBatch:
    """Return the batch in a third frame. Fields that are not known here are passed over, as a newer vLLM may add some.

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
