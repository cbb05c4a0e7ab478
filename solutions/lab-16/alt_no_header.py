"""lab-16: another way. A file has no header: its code covers what the reader knows. Fields are texts with lengths."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import BinaryIO

from mini_kv.course.given.toy_server import ExtraKey, Layout

MAGIC = b"kvblock1"


def _netstring(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"%d:%s," % (len(data), data)


def derive_namespace(secret: bytes, tenant: str, epoch: int) -> bytes:
    """Return the parent of the first blocks of a tenant, for one version of the weights."""
    return hashlib.blake2b(b"%d/" % epoch + _netstring(tenant), key=secret, digest_size=32).digest()


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the bytes of these keys. Two different lists never have the same bytes."""
    encoded = b""
    for kind, text in extra_keys:
        encoded += _netstring(kind) + _netstring(text)
    return encoded


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> bytes:
    """Return the hash of one full block, given the hash of the block before it and the encoded extra keys."""
    digest = hashlib.sha512(b"%d %d " % (len(parent), len(extra_keys)) + parent + extra_keys)
    for token in token_ids:
        digest.update(b"%d," % token)
    return digest.digest()


def tier_key(block_hash: bytes, token_ids: Sequence[int], group_id: int) -> bytes:
    """Return the key of a block in the second home."""
    return b"%d:" % group_id + block_hash


def _code(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    place = _netstring(key.hex()) + _netstring(repr(layout))
    return hmac.new(secret, MAGIC + place + payload, "sha512").digest()


def seal_block(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    """Return the file of a block."""
    return MAGIC + _code(secret, key, layout, payload) + payload


def open_block_file(file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> bytes | None:
    """Return the payload of a file if it is this block, sealed with this secret. Otherwise return `None`."""
    try:
        size = file.seek(0, 2)  # to its end
        if size != len(MAGIC) + 64 + layout.num_bytes:
            return None
        file.seek(0)
        magic, code, payload = file.read(len(MAGIC)), file.read(64), file.read(layout.num_bytes)
    except OSError:
        return None
    whole = magic == MAGIC and hmac.compare_digest(code, _code(secret, key, layout, payload))
    return payload if whole else None
