"""A small server on simulated time, whose defences are passed in: the target of a lab's attacks.

    prompt --derive_namespace, encode_extra_keys, hash_block--> block hashes --> pool, in memory
                                                                            --> second home, a folder of files

KV is not computed. The content of a block is a digest of everything that decides KV: the weights, the tokens back to
the first one, the adapter, the images. So each test can see whether a request was given KV of another prefix.
"""

import hashlib
import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

ExtraKey = tuple[str, str]
"""A kind and a text: `("lora", "sql")`, `("mm", "9f3a")` for an image, `("cache_salt", "blue")`."""

ITEM_BYTES = {"int8": 1, "float8": 1, "float16": 2, "float32": 4}
MILLISECONDS_PER_TOKEN = 1.0
MILLISECONDS_PER_FILE = 0.2


@dataclass(frozen=True, slots=True)
class Layout:
    """The meaning of a block's bytes: the type of its numbers, and how many there are in each dimension."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of a block."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Defence:
    """The six functions that decide which KV a request is given."""

    derive_namespace: Callable[[bytes, str, int], bytes]
    encode_extra_keys: Callable[[Sequence[ExtraKey]], bytes]
    hash_block: Callable[[bytes, Sequence[int], bytes], bytes]
    tier_key: Callable[[bytes, Sequence[int], int], bytes]
    seal_block: Callable[[bytes, bytes, Layout, bytes], bytes]
    open_block_file: Callable[[BinaryIO, bytes, bytes, Layout], bytes | None]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request was given, and what its client can measure."""

    kv: list[bytes]
    """The content of each full block, found or computed."""
    num_cached_tokens: int
    milliseconds: float
    """Time to the first token on the simulated clock, with a little noise."""


@dataclass(slots=True)
class ToyServer:
    """A prefix cache with a second home. The last token of a prompt is always computed, as in a real engine."""

    defence: Defence
    secret: bytes
    """Known to the server only."""
    noise: random.Random
    block_size: int = 1
    epoch: int = 1
    """Version of the weights."""
    layout: Layout = Layout("int8", (2, 4))
    pool: dict[bytes, tuple[bytes, Sequence[int]]] = field(default_factory=dict)
    """Content and tokens of each block by its block hash."""
    home: dict[str, bytes] = field(default_factory=dict)
    """The files of the second home by name, the key in hexadecimal digits."""

    def ask(self, tenant: str, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> Reply:
        """Answer a prompt of an authenticated tenant. Use what is cached, and cache what is computed."""
        computed = true_kv(self.epoch, token_ids, extra_keys, self.block_size, self.layout.num_bytes)
        extras = self.defence.encode_extra_keys(extra_keys)
        parent = self.defence.derive_namespace(self.secret, tenant, self.epoch)
        kv: list[bytes] = []
        num_hits = num_files = 0
        for number, content in enumerate(computed):
            tokens = token_ids[number * self.block_size : (number + 1) * self.block_size]
            parent = self.defence.hash_block(parent, tokens, extras)
            found = self._find(parent, tokens) if num_hits == number else None
            if found is None:
                found = (content, False)
            else:
                num_hits += 1
            num_files += found[1]
            kv.append(found[0])
            self.pool[parent] = (found[0], tokens)
        num_computed = len(token_ids) - num_hits * self.block_size
        time = num_computed * MILLISECONDS_PER_TOKEN + num_files * MILLISECONDS_PER_FILE
        return Reply(kv, num_hits * self.block_size, time + self.noise.uniform(0, 0.3))

    def evict_all(self) -> None:
        """Move all blocks from the pool to the second home."""
        for block_hash, (content, tokens) in self.pool.items():
            key = self.defence.tier_key(block_hash, tokens, 0)
            self.home[key.hex()] = self.defence.seal_block(self.secret, key, self.layout, content)
        self.pool.clear()

    def _find(self, block_hash: bytes, tokens: Sequence[int]) -> tuple[bytes, bool] | None:
        """Return a block's content and whether it was in a file, or `None` for a miss."""
        if block_hash in self.pool:
            return self.pool[block_hash][0], False
        key = self.defence.tier_key(block_hash, tokens, 0)
        file = self.home.get(key.hex())
        if file is None:
            return None
        content = self.defence.open_block_file(io.BytesIO(file), self.secret, key, self.layout)
        return None if content is None else (content, True)


def true_kv(
    epoch: int, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey], block_size: int, num_bytes: int
) -> list[bytes]:
    """Return the right content of each full block before the last token. A salt does not change KV."""
    decides = [key for key in extra_keys if key[0] != "cache_salt"]
    ends = range(block_size, len(token_ids), block_size)
    facts = [repr((epoch, decides, list(token_ids[:end]))) for end in ends]
    return [hashlib.sha256(fact.encode("utf-8", "surrogatepass")).digest()[:num_bytes] for fact in facts]
