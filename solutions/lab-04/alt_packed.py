"""lab-04, another way: stop bytes for lengths, tokens packed once, the root of each salt kept, `accumulate`."""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from mini_kv.core.block import BlockHash, BlockHashWithGroupId
from mini_kv.core.block_hash import ExtraKey, HashFunction, sha256
from mini_kv.core.request import Request


def frame(*fields: bytes) -> bytes:
    """Join `fields` so that they can be told apart again: a zero in a field becomes 0 1, and 0 0 ends the field."""
    return b"".join(field.replace(b"\0", b"\0\1") + b"\0\0" for field in fields)


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the extra keys as one flat list of fields: for each key its number of values, then type and value."""
    fields = []
    for key in extra_keys:
        fields.append(b"%d" % len(key))
        for value in key:
            kind = b"text" if isinstance(value, str) else b"number"
            fields += [kind, f"{value}".encode("utf-32-be", "surrogatepass")]
    return frame(*fields)


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash,
    curr_block_token_ids: Sequence[int],
    extra_keys: Sequence[ExtraKey] = (),
) -> BlockHash:
    """Return the hash of one full block, given the hash of the block before it."""
    packed = struct.pack(f">{len(curr_block_token_ids)}Q", *curr_block_token_ids)
    return _hash(hash_function, parent_block_hash, packed, extra_keys)


def _hash(hash_function: HashFunction, parent: BlockHash, packed: bytes, extra_keys: Sequence[ExtraKey]) -> BlockHash:
    """Return the digest of the tokens, behind their length, then the extra keys, then the parent."""
    return BlockHash(hash_function(struct.pack(">Q", len(packed)) + packed + encode_extra_keys(extra_keys) + parent))


def root_block_hash(
    hash_function: HashFunction,
    cache_salt: str | None = None,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> BlockHash:
    """Return the parent of all first blocks of one namespace: the salts are a list of none or one."""
    salts = () if cache_salt is None else (cache_salt,)
    return BlockHash(hash_function(b"root" + encode_extra_keys([salts, (model_fingerprint, weights_epoch)])))


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return the adapter, and each image whose intersection with the block is not empty."""
    keys: list[ExtraKey] = []
    if (lora := request.lora_request) is not None:
        keys += [("lora", lora.lora_name, lora.lora_path)]
    for image in request.mm_features:
        if max(start, image.offset) < min(end, image.offset + image.length):
            keys += [("mm", image.identifier, image.offset - start)]
    return keys


def get_request_block_hasher(
    block_size: int,
    hash_function: HashFunction = sha256,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> Callable[[Request], list[BlockHash]]:
    """Return a function that packs the new tokens once and cuts the blocks out of the bytes."""

    @lru_cache(maxsize=64)
    def root(cache_salt: str | None) -> BlockHash:
        return root_block_hash(hash_function, cache_salt, model_fingerprint, weights_epoch)

    def hasher(request: Request) -> list[BlockHash]:
        first = len(request.block_hashes) * block_size
        starts = range(first, request.num_tokens - block_size + 1, block_size)
        if not starts:
            return []
        packed = struct.pack(f">{len(starts) * block_size}Q", *request.token_ids[first : starts[-1] + block_size])

        def next_hash(parent: BlockHash, start: int) -> BlockHash:
            keys = generate_block_hash_extra_keys(request, start, start + block_size)
            return _hash(hash_function, parent, packed[8 * (start - first) : 8 * (start - first + block_size)], keys)

        parent = request.block_hashes[-1] if first else root(request.cache_salt)
        return list(accumulate(starts, next_hash, initial=parent))[1:]

    return hasher


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """Return the key of a block of this KV cache group in the index."""
    return BlockHashWithGroupId(b"".join((block_hash, group_id.to_bytes(4, byteorder="big"))))
