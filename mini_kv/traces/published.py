"""Published traces: fetched from their address, and accepted only with the published digest."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from mini_kv.core.errors import ConfigError

_SECONDS = 30.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Published:
    """A file that does not change: an address with a revision in it, and the digest of its content."""

    address: str
    sha256: str
    num_bytes: int
    about: str
    licence: str


_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake"

PUBLISHED = {
    "conversation": Published(
        f"{_MOONCAKE}/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        3_029_533,
        "an hour of a production service's conversations, 12,031 requests: a real trace",
        "Apache-2.0, github.com/kvcache-ai/Mooncake",
    ),
}
"""By name."""


def fetch(published: Published, target: Path) -> None:
    """Write the published file to `target`. On failure `target` is unchanged.

    Raises `ConfigError` if the address cannot be reached, or if the received file differs from the published one.
    """
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as beside:
            try:
                with urllib.request.urlopen(published.address, timeout=_SECONDS) as answer:
                    while num_bytes <= published.num_bytes and (chunk := answer.read(_CHUNK)):
                        beside.write(chunk)
                        digest.update(chunk)
                        num_bytes += len(chunk)
                beside.close()
                if digest.hexdigest() != published.sha256:
                    problem = "returned a file that differs from the published one: it is not kept"
                    raise ConfigError(f"{published.address} {problem}")
                os.replace(beside.name, target)
            finally:
                beside.close()
                Path(beside.name).unlink(missing_ok=True)
    except urllib.error.URLError as error:
        raise ConfigError(f"{published.address} cannot be reached: {error.reason}") from None
    except (TimeoutError, ConnectionError) as error:
        raise ConfigError(f"{published.address} broke off: {error or type(error).__name__}") from None
