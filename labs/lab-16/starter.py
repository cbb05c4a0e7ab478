"""lab-16: break it, then defend it. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-16
    $env:LAB_IMPL="starter"; pytest labs/lab-16          (Windows, PowerShell)

The server that calls these functions is in mini_kv/course/given/toy_server.py, with `ExtraKey` and `Layout`. The
attacks are in labs/lab-16/helpers.py.
"""

from collections.abc import Sequence
from typing import BinaryIO

from mini_kv.course import todo
from mini_kv.course.given.toy_server import ExtraKey, Layout

MAGIC = b"kvblock1"
"""First bytes of a file: the format and its version."""


def derive_namespace(secret: bytes, tenant: str, epoch: int) -> bytes:
    """Return the parent of the first blocks of a tenant, for one version of the weights.

    At least 16 bytes. Equal inputs give equal bytes, in every process. If the tenant or the epoch differs, so do the
    bytes. Without `secret`, 32 bytes that only the server knows, the namespace cannot be computed, nor with a part of
    it. A tenant's name is any Python text, lone surrogates included. An epoch is a number from 0 to 2**63 - 1.
    """
    todo("lab-16", "derive_namespace", "which inputs decide who may share, and who must not be able to compute it?")


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the bytes of these keys. Two different lists never have the same bytes.

    A key is a kind and a text, such as `("lora", "sql")` or `("cache_salt", "blue")`. Clients choose the texts: any
    Python text, lone surrogates included. The order of the keys counts, and a key may occur twice.
    """
    todo("lab-16", "encode_extra_keys", "could a reader get the list back from the bytes?")


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> bytes:
    """Return the hash of one full block, given the hash of the block before it and the encoded extra keys.

    At least 32 bytes, the same in every process. A block has at least one token. Token ids are from 0 to 2**32 - 1.
    `parent` and `extra_keys` may have any length. No two inputs with the same hash can be found. A shorter digest that
    is repeated or padded is not wider than before.
    """
    todo("lab-16", "hash_block", "what decides the KV of these tokens, and how wide must the hash be?")


def tier_key(block_hash: bytes, token_ids: Sequence[int], group_id: int) -> bytes:
    """Return the key of a block in the second home, at most 100 bytes.

    Two blocks have the same key only if they have the same block hash (32 bytes) and the same group of layers. Group
    ids are from 0 to 2**32 - 1.
    """
    todo("lab-16", "tier_key", "which of the three arguments does the second home need?")


def seal_block(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    """Return the file of a block. It begins with `MAGIC`. The rest of the format is yours.

    `open_block_file` must be able to notice any change, also one by a person who can write files and has this program,
    but not all 32 bytes of the secret. The seal is an HMAC, made with Python's `hmac`. At least 128 bits of the file
    depend on the secret. `layout.dtype` is a text, `layout.shape` a tuple of numbers from 1 to 2**32 - 1,
    `layout.num_bytes` the length of the payload.
    """
    todo("lab-16", "seal_block", "what must the file prove, and to whom?")


def open_block_file(file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> bytes | None:
    """Return the payload of a file if it is this block, sealed with this secret. Otherwise return `None`.

    Whatever the file holds, no exception is raised and none of its bytes are run. Each single call of `read` asks for
    at most the bytes of such a block's file and 4,096 more. A `read` returns fewer bytes only at the end of the file. A
    file that cannot be read (`OSError`) is a miss. The seal is compared with `hmac.compare_digest`: the time of `==`
    reveals how many bytes of a seal are right.
    """
    todo("lab-16", "open_block_file", "what do you know of the file before you read it?")
