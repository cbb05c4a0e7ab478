"""lab-16: another way. All facts are JSON; a file's header is parsed, but only after its code was right."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import BinaryIO

from mini_kv.course.given.toy_server import ExtraKey, Layout

MAGIC = b"kvblock1"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def derive_namespace(secret: bytes, tenant: str, epoch: int) -> bytes:
    """Return the parent of the first blocks of a tenant, for one version of the weights."""
    of_epoch = hmac.digest(secret, b"epoch %d" % epoch, "sha256")
    return hmac.digest(of_epoch, tenant.encode("utf-8", "surrogatepass"), "sha256")


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the bytes of these keys. Two different lists never have the same bytes."""
    return _json(list(extra_keys))


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> bytes:
    """Return the hash of one full block, given the hash of the block before it and the encoded extra keys."""
    return hashlib.blake2b(_json([parent.hex(), list(token_ids), extra_keys.hex()])).digest()


def tier_key(block_hash: bytes, token_ids: Sequence[int], group_id: int) -> bytes:
    """Return the key of a block in the second home."""
    return hashlib.sha256(_json([block_hash.hex(), group_id])).digest()


def seal_block(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    """Return the file of a block."""
    header = _json({"key": key.hex(), "dtype": layout.dtype, "shape": layout.shape})
    body = header + b"\n" + payload
    return MAGIC + hmac.digest(secret, MAGIC + body, "sha256") + body


def open_block_file(file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> bytes | None:
    """Return the payload of a file if it is this block, sealed with this secret. Otherwise return `None`."""
    try:
        data = file.read(layout.num_bytes + 2_000)
    except OSError:
        return None
    magic, code, body = data[:8], data[8:40], data[40:]
    if not hmac.compare_digest(hmac.digest(secret, magic + body, "sha256"), code):
        return None
    header, _, payload = body.partition(b"\n")
    facts = json.loads(header)
    is_it = facts == {"key": key.hex(), "dtype": layout.dtype, "shape": list(layout.shape)}
    return payload if is_it and magic == MAGIC and len(payload) == layout.num_bytes else None
