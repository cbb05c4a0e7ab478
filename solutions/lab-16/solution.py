"""lab-16: the reference solution."""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import BinaryIO

from mini_kv.course.given.toy_server import ExtraKey, Layout

MAGIC = b"kvblock1"
DIGEST_BYTES = 32


def frame(*fields: bytes) -> bytes:
    """Join fields, each after its length."""
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)


def derive_namespace(secret: bytes, tenant: str, epoch: int) -> bytes:
    """Return the parent of the first blocks of a tenant, for one version of the weights."""
    name = tenant.encode("utf-8", "surrogatepass")
    return hmac.digest(secret, frame(name, struct.pack("<Q", epoch)), "sha256")


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the bytes of these keys. Two different lists never have the same bytes."""
    fields = [text.encode("utf-8", "surrogatepass") for key in extra_keys for text in key]
    return frame(*fields)


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> bytes:
    """Return the hash of one full block, given the hash of the block before it and the encoded extra keys."""
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return hashlib.sha256(frame(parent, extra_keys, tokens)).digest()


def tier_key(block_hash: bytes, token_ids: Sequence[int], group_id: int) -> bytes:
    """Return the key of a block in the second home."""
    return block_hash + struct.pack(">I", group_id)


def seal_block(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    """Return the file of a block."""
    body = _header(key, layout) + payload
    return body + _digest(secret, body)


def open_block_file(file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> bytes | None:
    """Return the payload of a file if it is this block, sealed with this secret. Otherwise return `None`."""
    header = _header(key, layout)
    num_bytes = len(header) + layout.num_bytes + DIGEST_BYTES
    try:
        data = file.read(num_bytes + 1)
    except OSError:
        return None
    if len(data) != num_bytes or not data.startswith(header):
        return None
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if not hmac.compare_digest(_digest(secret, body), digest):
        return None
    return body[len(header) :]


def _header(key: bytes, layout: Layout) -> bytes:
    """Return the first bytes of a file: its kind and version, its key, its layout, its number of bytes."""
    shape = struct.pack(f"<{len(layout.shape)}Q", *layout.shape)
    return MAGIC + frame(key, layout.dtype.encode(), shape) + struct.pack("<Q", layout.num_bytes)


def _digest(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, "sha256")
