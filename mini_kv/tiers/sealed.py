"""Seals the bytes of a block that leave the engine: opening them checks that they are right.

    b"mini_kv1" | bytes of the key | bytes of the payload | key ... | payload ... | digest of all before it, 32 bytes

Memory, disk and a server only keep and move such envelopes. A flipped bit, a half-written file, another
block, an old layout: each of these raises `DamagedError`, and the engine computes the block again. The
digest detects a damaged block, so fsync is not needed: the cache may lose blocks in a power cut, but never returns a
wrong block.

With a `secret`, the digest is an HMAC: a writer who does not know the secret can damage blocks on the server, but
cannot forge one.
"""

import hashlib
import hmac
import struct

from mini_kv.core.errors import KVCacheError

MAGIC = b"mini_kv1"
_HEAD = struct.Struct(f"<{len(MAGIC)}sIQ")
DIGEST_BYTES = 32
OVERHEAD_BYTES = _HEAD.size + DIGEST_BYTES
"""Bytes of an envelope besides its key and its payload."""


class DamagedError(KVCacheError):
    """These bytes are not the requested block. `reason` is the cause in a word."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not the block that was asked for: {reason}")
        self.reason = reason


def seal(key: bytes, payload: bytes, secret: bytes | None = None) -> bytes:
    """Return the envelope of a block. Costs a pass over its bytes (about 2 GB/s)."""
    body = b"".join((_HEAD.pack(MAGIC, len(key), len(payload)), key, payload))
    return body + _digest(memoryview(body), secret)


def unseal(key: bytes, envelope: object, num_bytes: int, secret: bytes | None = None) -> memoryview:
    """Return the payload of an envelope, which must belong to `key` and have `num_bytes` bytes.

    Raises `DamagedError` for any other bytes, and never another exception.
    """
    if not isinstance(envelope, bytes):
        raise DamagedError("no bytes")
    if len(envelope) != OVERHEAD_BYTES + len(key) + num_bytes:
        raise DamagedError("length")
    view = memoryview(envelope)
    if not hmac.compare_digest(_digest(view[:-DIGEST_BYTES], secret), view[-DIGEST_BYTES:]):
        raise DamagedError("digest")
    if _HEAD.unpack_from(envelope) != (MAGIC, len(key), num_bytes):
        raise DamagedError("layout")
    end_of_key = _HEAD.size + len(key)
    if view[_HEAD.size : end_of_key] != key:
        raise DamagedError("another block")
    return view[end_of_key:-DIGEST_BYTES]


def _digest(body: memoryview, secret: bytes | None) -> bytes:
    if secret is None:
        return hashlib.sha256(body).digest()
    return hmac.digest(secret, body, "sha256")
