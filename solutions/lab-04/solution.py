"""lab-04: the reference solution."""

from collections.abc import Callable, Sequence

from mini_kv.core.block import BlockHash, BlockHashWithGroupId
from mini_kv.core.block_hash import ExtraKey, HashFunction, sha256
from mini_kv.core.request import Request

RECIPE = b"lab-04 block hash v1"


def frame(*fields: bytes) -> bytes:
    """Join `fields` so that they can be told apart again."""
    return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the extra keys as bytes: other keys give other bytes."""
    encoded = []
    for key in extra_keys:
        values = [encode_value(value) for value in key]
        encoded.append(frame(*values))
    return frame(*encoded)


def encode_value(value: str | int) -> bytes:
    """Return the value's bytes, with a letter for its type in front."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    return b"i" + str(int(value)).encode()


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash,
    curr_block_token_ids: Sequence[int],
    extra_keys: Sequence[ExtraKey] = (),
) -> BlockHash:
    """Return the hash of one full block, given the hash of the block before it."""
    tokens = b"".join(token.to_bytes(4, "little") for token in curr_block_token_ids)
    extras = encode_extra_keys(extra_keys)
    return BlockHash(hash_function(frame(parent_block_hash, extras, tokens)))


def root_block_hash(
    hash_function: HashFunction,
    cache_salt: str | None = None,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> BlockHash:
    """Return the parent of all first blocks of one namespace."""
    facts: list[ExtraKey] = [("model", model_fingerprint), ("epoch", weights_epoch)]
    if cache_salt is not None:
        facts.append(("cache_salt", cache_salt))
    return BlockHash(hash_function(frame(RECIPE, encode_extra_keys(facts))))


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return what decides the KV of the request's tokens `[start, end)` beside the tokens themselves."""
    keys: list[ExtraKey] = []
    lora = request.lora_request
    if lora is not None:
        keys.append(("lora", lora.lora_name, lora.lora_path))
    for feature in request.mm_features:
        if feature.offset < end and feature.offset + feature.length > start:
            keys.append(("mm", feature.identifier, feature.offset - start))
    return keys


def get_request_block_hasher(
    block_size: int,
    hash_function: HashFunction = sha256,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> Callable[[Request], list[BlockHash]]:
    """Return a function that hashes those full blocks of a request that have no hash yet."""

    def request_block_hasher(request: Request) -> list[BlockHash]:
        num_hashed = len(request.block_hashes)
        num_full = request.num_tokens // block_size
        if num_hashed == num_full:
            return []
        if num_hashed > 0:
            parent = request.block_hashes[-1]
        else:
            parent = root_block_hash(hash_function, request.cache_salt, model_fingerprint, weights_epoch)
        new_hashes = []
        for index in range(num_hashed, num_full):
            start, end = index * block_size, (index + 1) * block_size
            extra_keys = generate_block_hash_extra_keys(request, start, end)
            parent = hash_block_tokens(hash_function, parent, request.token_ids[start:end], extra_keys)
            new_hashes.append(parent)
        return new_hashes

    return request_block_hasher


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """Return the key of a block of this KV cache group in the index."""
    return BlockHashWithGroupId(block_hash + group_id.to_bytes(4, "big"))
