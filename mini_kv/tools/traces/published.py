"""Published traces: fetched from their addresses, and accepted only with the published digests."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mini_kv.core.errors import ConfigError

_SECONDS = 30.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file that does not change: an address with a revision in it, and the digest of its content."""

    address: str
    sha256: str
    num_bytes: int
    """The size. Of a larger file no more is read."""


@dataclass(frozen=True, slots=True)
class Published:
    """A trace: one file, kept unchanged, or several files of one line each, which become the lines of one."""

    files: tuple[PublishedFile, ...]
    about: str
    licence: str


_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake"
_AGENTS = "https://raw.githubusercontent.com/callanjfox/kv-cache-tester"
_AGENTS_REVISION = "94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf"


def agent_sessions() -> tuple[PublishedFile, ...]:
    """Return the 20 sessions of `agents.sha256`, a random sample of the published sessions of at most 4 MiB.

    These are 710 of the 739 files. The names are `sorted(random.Random(0).sample(sorted(names), 20))`.
    """
    lines = Path(__file__).with_name("agents.sha256").read_text(encoding="utf-8").splitlines()
    files = []
    for sha256, num_bytes, name in map(str.split, lines):
        files.append(PublishedFile(f"{_AGENTS}/{_AGENTS_REVISION}/traces/{name}", sha256, int(num_bytes)))
    return tuple(files)


PUBLISHED = {
    "conversation": Published(
        (
            PublishedFile(
                f"{_MOONCAKE}/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/conversation_trace.jsonl",
                "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
                3_029_533,
            ),
        ),
        "an hour of a production service's conversations, 12,031 requests: a real trace",
        "Apache-2.0, github.com/kvcache-ai/Mooncake",
    ),
    "agents": Published(
        agent_sessions(),
        "20 sessions of coding agents, 1,501 requests, 13 MB: a random sample of 710 published ones",
        "Apache-2.0, github.com/callanjfox/kv-cache-tester",
    ),
}
"""By name."""


def fetch(published: Published, target: Path) -> None:
    """Write the published trace to `target`. On failure `target` is unchanged.

    Raises `ConfigError` if an address cannot be reached, or if a received file differs from the published one.
    """
    line_end = b"\n" if len(published.files) > 1 else b""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as beside:
        try:
            for file in published.files:
                for chunk in _content(file):
                    beside.write(chunk)
                beside.write(line_end)
            beside.close()
            os.replace(beside.name, target)
        finally:
            beside.close()
            Path(beside.name).unlink(missing_ok=True)


def _content(file: PublishedFile) -> Iterator[bytes]:
    """Yield the content. Raises `ConfigError`, at the latest after the last chunk, if it is not as published."""
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(file.address, timeout=_SECONDS) as answer:
            while num_bytes <= file.num_bytes and (chunk := answer.read(_CHUNK)):
                yield chunk
                digest.update(chunk)
                num_bytes += len(chunk)
    except urllib.error.URLError as error:
        raise ConfigError(f"{file.address} cannot be reached: {error.reason}") from None
    except (TimeoutError, ConnectionError) as error:
        raise ConfigError(f"{file.address} broke off: {error or type(error).__name__}") from None
    if digest.hexdigest() != file.sha256:
        raise ConfigError(f"{file.address} returned a file that differs from the published one: it is not kept")
