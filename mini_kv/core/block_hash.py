"""Block hashes: the chained digest of a block's tokens and of everything before them.

    root = H(version, namespace)            namespace: cache salt, model fingerprint, weights epoch
    h0   = H(root, extras 0, tokens 0)      extras: the other inputs of the KV: adapter, images
    h1   = H(h0,   extras 1, tokens 1)
    ...

Two blocks get the same hash only if all the tokens up to their end, all the extras and the namespace are equal. KV at a
position depends on exactly these inputs. So blocks with equal hashes can share KV.

The bytes that go into `H` are fixed here, field by field. Each field has a fixed width, or its length is first. So the
hashes are equal in all processes, Python versions and platforms. Different inputs always give different bytes.
"""

import hashlib
import importlib.util
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import TypeAlias, cast

from mini_kv.core.block import BlockHash, BlockHashWithGroupId
from mini_kv.core.errors import ConfigError, missing_package
from mini_kv.core.request import Request
from mini_kv.core.token_ids import pack_token_ids

HashFunction: TypeAlias = Callable[[bytes], bytes]
ExtraKey: TypeAlias = tuple[str | int, ...]
"""A tag and its values, such as `("lora", name, path)`."""

RequestBlockHasher: TypeAlias = Callable[[Request], list[BlockHash]]
"""Returns the hashes of a request's blocks that became full since the last call."""

RECIPE = b"mini_kv block hash v1"
"""Version of the recipe. Change it, and the golden vectors, whenever the hashed bytes change."""

_U32 = struct.Struct("<I")


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest, 32 bytes. No two inputs with the same digest are known."""
    return hashlib.sha256(data).digest()


def xxh3_128(data: bytes) -> bytes:
    """Return the XXH3 digest, 16 bytes. It is faster, but an attacker can make collisions.

    For a cache that serves a single tenant. Needs the package xxhash.
    """
    import xxhash  # not in the standard library: needed only where this function is chosen

    return xxhash.xxh3_128_digest(data)


HASH_FUNCTIONS: dict[str, HashFunction] = {"sha256": sha256, "xxh3_128": xxh3_128}
SINGLE_TENANT_HASHES = frozenset({"xxh3_128"})
"""Functions with collisions that an attacker can make. The manager refuses them together with a cache salt."""


def get_hash_function(name: str) -> HashFunction:
    """Return the hash function with this name. For an unknown name raise `ConfigError` with the choices."""
    if name not in HASH_FUNCTIONS:
        raise ConfigError(f"unknown hash function {name!r}; choose from {sorted(HASH_FUNCTIONS)}")
    if name == "xxh3_128" and importlib.util.find_spec("xxhash") is None:
        raise missing_package("xxh3_128", "xxhash")
    return HASH_FUNCTIONS[name]


def frame(*fields: bytes) -> bytes:
    """Join `fields`, each after its length (4 bytes little-endian), so that the result can be split again.

    Without the lengths, ("ab", "c") and ("a", "bc") would give the same bytes and the same block hash.
    """
    return b"".join(_U32.pack(len(field)) + field for field in fields)


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the bytes of the extra keys, framed. Strings and integers never give equal bytes."""
    return b"".join(frame(b"".join(frame(_encode_value(value)) for value in key)) for key in extra_keys)


def _frame_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the length of the extra keys, then their bytes. The tokens follow directly."""
    return frame(encode_extra_keys(extra_keys))


NO_EXTRA_KEYS = _frame_extra_keys(())
"""The bytes between parent and tokens in a block without extra keys: a length of 0."""


def _encode_value(value: str | int) -> bytes:
    if isinstance(value, str):
        # surrogatepass: every Python string has bytes of its own; none can stop the server with an encoding error.
        return b"s" + value.encode("utf-8", "surrogatepass")
    return b"i%d" % value


@lru_cache(maxsize=1024)
def root_block_hash(
    hash_function: HashFunction,
    cache_salt: str | None = None,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> BlockHash:
    """Return the parent hash of the first blocks in one namespace. Two namespaces never share a block hash."""
    salt: list[ExtraKey] = [] if cache_salt is None else [("cache_salt", cache_salt)]
    facts = [*salt, ("model", model_fingerprint), ("epoch", weights_epoch)]
    return BlockHash(hash_function(frame(RECIPE, encode_extra_keys(facts))))


NONE_HASH = root_block_hash(sha256)
"""Root of the empty namespace under SHA-256: the parent hash of the first block."""


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash,
    curr_block_token_ids: Sequence[int],
    extra_keys: Sequence[ExtraKey] = (),
) -> BlockHash:
    """Return the hash of one full block, given the hash of the block before it.

    Tests compare the faster `get_request_block_hasher` with it. Source: vLLM `hash_block_tokens`.
    """
    tokens = pack_token_ids(curr_block_token_ids)
    return BlockHash(hash_function(parent_block_hash + _frame_extra_keys(extra_keys) + tokens))


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return the extra keys of tokens `[start, end)`: the adapter and the images in the block. They also decide its KV.

        tokens     0 ....... start ........ end
        image            offset ======= offset + length       overlaps: ("mm", identifier, offset - start)

    Each image is listed with its place, because the same image one token later gives different KV.
    """
    keys: list[ExtraKey] = []
    if request.lora_request is not None:
        keys.append(("lora", request.lora_request.lora_name, request.lora_request.lora_path))
    keys += [
        ("mm", feature.identifier, feature.offset - start)
        for feature in request.mm_features
        if feature.offset < end and start < feature.offset + feature.length
    ]
    return keys


def get_request_block_hasher(
    block_size: int,
    hash_function: HashFunction = sha256,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
    num_hash_lookahead_tokens: int = 0,
) -> RequestBlockHasher:
    """Return a function that hashes the full blocks of a request that have no hash yet.

    Args:
        block_size: tokens per block.
        hash_function: see `HASH_FUNCTIONS`.
        model_fingerprint: any text that identifies the weights. It is part of the namespace.
        weights_epoch: version of the weights. Raise it when they change, and no earlier block hash matches.
        num_hash_lookahead_tokens: tokens after each block that its hash covers. A block is hashed when these exist.
    """

    def extra_keys_of(request: Request, start: int, end: int) -> list[ExtraKey]:
        covered = end + num_hash_lookahead_tokens
        extra_keys = generate_block_hash_extra_keys(request, start, covered)
        return [*extra_keys, *(("lookahead", token) for token in request.token_ids[end:covered])]

    def request_block_hasher(request: Request) -> list[BlockHash]:
        """Return the hashes of the blocks that became full since the last call. Costs O(new tokens)."""
        start = len(request.block_hashes) * block_size
        num_tokens = request.num_tokens - num_hash_lookahead_tokens
        if num_tokens < start + block_size:
            return []
        if request.block_hashes:
            parent: bytes = request.block_hashes[-1]
        else:
            parent = root_block_hash(hash_function, request.cache_salt, model_fingerprint, weights_epoch)
        packed = pack_token_ids(request.token_ids[start : num_tokens // block_size * block_size])
        has_extra_keys = (
            request.lora_request is not None or len(request.mm_features) > 0 or num_hash_lookahead_tokens > 0
        )
        extras = NO_EXTRA_KEYS
        block_hashes = []
        for offset in range(0, len(packed), 4 * block_size):
            if has_extra_keys:
                first = start + offset // 4
                extras = _frame_extra_keys(extra_keys_of(request, first, first + block_size))
            parent = hash_function(parent + extras + packed[offset : offset + 4 * block_size])
            block_hashes.append(parent)
        return cast(list[BlockHash], block_hashes)

    return request_block_hasher


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """Return the key of the index: the block hash, then the group's number as 4 bytes big-endian.

    A prefix has different KV in each group, so each group needs its own key. Source: vLLM, same name.
    """
    return BlockHashWithGroupId(block_hash + group_id.to_bytes(4, "big"))


def make_block_hashes_with_group_id(block_hashes: Iterable[BlockHash], group_id: int) -> Iterator[BlockHashWithGroupId]:
    """Return the keys of many blocks of one group. Each is made when it is read: a lookup reads none after a miss."""
    suffix = make_block_hash_with_group_id(BlockHash(b""), group_id)
    return map(add, block_hashes, repeat(suffix))


def get_block_hash(key: BlockHashWithGroupId) -> BlockHash:
    """Return the block hash in a key of the index."""
    return BlockHash(key[:-4])


def get_group_id(key: BlockHashWithGroupId) -> int:
    """Return the group's number in a key of the index."""
    return int.from_bytes(key[-4:], "big")
