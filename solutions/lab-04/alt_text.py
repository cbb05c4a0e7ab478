"""lab-04, another way: readable text all through. Netstrings, JSON, decimal tokens."""

import json
from collections.abc import Callable, Sequence

from mini_kv.core.block import BlockHash, BlockHashWithGroupId
from mini_kv.core.block_hash import ExtraKey, HashFunction, sha256
from mini_kv.core.request import Request


def frame(*fields: bytes) -> bytes:
    """Join `fields` so that they can be told apart again: as netstrings, b"2:ab,1:c,"."""
    return b"".join(b"%d:%b," % (len(field), field) for field in fields)


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the extra keys as bytes: JSON quotes texts, and not numbers.

    With `ensure_ascii`, JSON's default, two lone surrogates would be spelled like the one character that they encode.
    """
    text = json.dumps([list(key) for key in extra_keys], ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash,
    curr_block_token_ids: Sequence[int],
    extra_keys: Sequence[ExtraKey] = (),
) -> BlockHash:
    """Return the hash of one full block: its tokens in words, behind one line of JSON and the parent in hex.

    No JSON text has a line break in it, and no hexadecimal number a blank: so the three parts are told apart.
    """
    tokens = " ".join(str(int(token)) for token in curr_block_token_ids)
    head = f"block {parent_block_hash.hex()} "
    return BlockHash(hash_function(head.encode() + encode_extra_keys(extra_keys) + b"\n" + tokens.encode()))


def root_block_hash(
    hash_function: HashFunction,
    cache_salt: str | None = None,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> BlockHash:
    """Return the parent of all first blocks of one namespace: a JSON list of fixed length, null for no salt."""
    text = json.dumps([cache_salt, model_fingerprint, weights_epoch], ensure_ascii=False)
    return BlockHash(hash_function(b"root " + text.encode("utf-8", "surrogatepass")))


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return the adapter, and the images that cover a position of the block."""
    lora = request.lora_request
    adapter: list[ExtraKey] = [] if lora is None else [("lora", lora.lora_name, lora.lora_path)]
    images: list[ExtraKey] = [
        ("mm", image.identifier, image.offset - start)
        for image in request.mm_features
        if any(image.offset <= position < image.offset + image.length for position in range(start, end))
    ]
    return adapter + images


def get_request_block_hasher(
    block_size: int,
    hash_function: HashFunction = sha256,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> Callable[[Request], list[BlockHash]]:
    """Return a function that continues from the request's last hash."""

    def hasher(request: Request) -> list[BlockHash]:
        hashes = list(request.block_hashes)
        while (len(hashes) + 1) * block_size <= len(request.token_ids):
            start = len(hashes) * block_size
            if not hashes:
                parent = root_block_hash(hash_function, request.cache_salt, model_fingerprint, weights_epoch)
            else:
                parent = hashes[-1]
            tokens = request.token_ids[start : start + block_size]
            extra_keys = generate_block_hash_extra_keys(request, start, start + block_size)
            hashes.append(hash_block_tokens(hash_function, parent, tokens, extra_keys))
        return hashes[len(request.block_hashes) :]

    return hasher


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """Return the key of a block of this KV cache group in the index."""
    return BlockHashWithGroupId(bytes(block_hash) + bytes([group_id >> shift & 255 for shift in (24, 16, 8, 0)]))
