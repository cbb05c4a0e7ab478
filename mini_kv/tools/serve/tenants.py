"""The tenants of a server: one per key, with one salt each. Only requests of one tenant share blocks.

    key of Ann --HMAC with a secret of this process--> salt of Ann      clients do not know their salts, so they
    key of Bob ---------------------------------------> salt of Bob      cannot find the blocks of other tenants

A client that could choose any salt could look up the blocks of another tenant. Source: vLLM's `cache_salt`, which
a client sends. Here a client's `cache_salt` only divides its own tenant's part of the cache.
"""

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256

from mini_kv.tools.serve.protocol import RequestError


class Tenants:
    """The keys of a server. Without keys the server serves every client, and all share one cache."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode() for key in dict.fromkeys(keys)]
        self._secret = secrets.token_bytes(32)

    @property
    def are_several(self) -> bool:
        """Whether counts must be hidden from other tenants."""
        return len(self._keys) > 1

    def key_of(self, authorization: str | None) -> bytes | None:
        """Return the request's key, or `None` if the server has no keys. Raises `RequestError` for an invalid key."""
        if not self._keys:
            return None
        scheme, _, given = (authorization or "").partition(" ")
        # Every key is compared, each in constant time: how long it takes says nothing of any.
        found = [key for key in self._keys if hmac.compare_digest(key, given.strip().encode())]
        if scheme.lower() != "bearer" or not found:
            message = "this server needs a valid key in the header Authorization: Bearer KEY"
            raise RequestError(message, status=401, code="invalid_api_key")
        return found[0]

    def cache_salt(self, key: bytes | None, wanted: str | None) -> str | None:
        """Return a digest of the tenant's key and the client's own salt. Without a key return the client's salt."""
        if key is None:
            return wanted
        framed = (
            len(key).to_bytes(4, "big") + key + (b"" if wanted is None else b"+" + wanted.encode("utf-8", "replace"))
        )
        return hmac.new(self._secret, framed, sha256).hexdigest()
