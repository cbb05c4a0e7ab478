"""lab-04: the block hash, what a prefix is found by. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-04
    $env:LAB_IMPL="starter"; pytest labs/lab-04          (Windows, PowerShell)

Blocks of 4, a request of 10 tokens. This is what your functions build, with H for the hash function:

    root = H(version, salt, model, epoch)                     root_block_hash
    h0   = H(root, what else decides block 0, tokens 0 to 3)  hash_block_tokens
    h1   = H(h0,   what else decides block 1, tokens 4 to 7)  hash_block_tokens
           tokens 8 and 9 do not fill a block: no hash yet

Three rules hold for all of it:

- Two block hashes are equal exactly if everything that went into them is equal, back to the root.
- A block hash depends on values only. An integer's Python type does not matter (NumPy's are allowed, and `True` is 1),
  nor whether two equal texts are one object, nor the process, the machine, or the request's id.
- A block hash costs one call of the hash function, and is the whole result of that call.

The layout of the bytes that go into H is yours: no test looks at them. Only the key of `make_block_hash_with_group_id`
is fixed to the byte.
"""

from collections.abc import Callable, Sequence

from mini_kv.core.block import BlockHash, BlockHashWithGroupId
from mini_kv.core.block_hash import ExtraKey, HashFunction, sha256
from mini_kv.core.request import Request
from mini_kv.course import todo


def frame(*fields: bytes) -> bytes:
    """Join `fields` so that they can be separated again: other fields, or another number of them, give other bytes.

    A field may be empty, may be longer than 255 bytes, and may contain whatever you use to mark its end or its length.

    Example: `frame(b"ab", b"cd")`, `frame(b"abc", b"d")` and `frame(b"abcd")` differ. So do `frame()` and `frame(b"")`.
    """
    todo("lab-04", "frame", "how can a reader find where each field ends?")


def encode_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Return the extra keys as bytes. Keys that differ in number, order, value or type must give different bytes.

    An extra key is a tuple of texts and numbers, such as `("lora", "sql", "/adapters/7")`. The text "1" is not the
    number 1. Every `str` has bytes of its own. One with a lone surrogate, which UTF-8 refuses, must neither raise nor
    become another text (look up the error handler "surrogatepass"). Numbers may be negative and of any size.

    Example: `[("a", "b")]` and `[("a",), ("b",)]` differ, because one fact with two values is not two facts.
    """
    todo("lab-04", "encode_extra_keys", "how do the bytes show types, and where a key ends?")


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash,
    curr_block_token_ids: Sequence[int],
    extra_keys: Sequence[ExtraKey] = (),
) -> BlockHash:
    """Return the block hash of a full block, given the block hash before it.

    Tokens are integers, 0 <= token < 2**32. The parent's hash, the extra keys and the tokens all decide the hash, and
    none of the three can be mistaken for a part of another. Calls `hash_function` once and returns its whole result.

    Example: [5, 6, 7, 8] has one hash after the hash of [1, 2, 3, 4], another after the root, as the first block of a
    prompt, and a third after the hash of [0, 0, 0, 0].
    """
    todo("lab-04", "hash_block_tokens", "which three things are hashed, and how are they kept apart?")


def root_block_hash(
    hash_function: HashFunction,
    cache_salt: str | None = None,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> BlockHash:
    """Return the parent of all first blocks of one namespace. Requests of two namespaces never share a hash.

    A namespace is a salt, if there is one, a model and an epoch. No salt (`None`) is not the empty salt. The salt "m"
    is not the model "m". The root is the same in every process. Calls `hash_function` once. (The engine also hashes a
    version of its recipe.)

    Example: tenants with the salts "a" and "b" have two roots, so not one of their block hashes is the same.
    """
    todo("lab-04", "root_block_hash", "how do you keep a salt apart from a model?")


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return what decides the KV of the request's tokens `[start, end)` beside the tokens themselves.

    - First `("lora", lora_name, lora_path)` of `request.lora_request`, unless that is None. A name alone can be given
      to other weights.
    - Then `("mm", identifier, place)` for each of `request.mm_features` that overlaps `[start, end)`, in their order.
      `place` is the offset counted from `start`. It is negative if the image began in an earlier block.

    The identifier is used whole. A feature covers the positions `[offset, offset + length)`.

    Example, an image "cat" of 5 tokens at offset 2, no adapter: the block [0, 4) has `[("mm", "cat", 2)]`, the block
    [4, 8) has `[("mm", "cat", -2)]`, the block [8, 12) has `[]`.
    """
    todo("lab-04", "generate_block_hash_extra_keys", "which images overlap this block?")


def get_request_block_hasher(
    block_size: int,
    hash_function: HashFunction = sha256,
    model_fingerprint: str = "",
    weights_epoch: int = 0,
) -> Callable[[Request], list[BlockHash]]:
    """Return a function that hashes those full blocks of a request that are not hashed yet.

    The function that you return is called with a request when the request is made and each time it grows. It returns a
    list of the new hashes, in order, and changes nothing: the caller appends them to `request.block_hashes`. The hashes
    of a request are the chain at the top of this file. They do not depend on how it grew, token by token or at once.

    A request has `token_ids`, `num_tokens`, `block_hashes` and `cache_salt`. One hasher serves all requests, which take
    turns in any order. A request may have hashes that another hasher has made.

    The steps are for you to find. Cost: one call of `hash_function` per new block, and at most one for the root before
    a request's first block (a hasher may keep roots). No call while no block has become full.

    Example, blocks of 4: a request of 7 tokens gets 1 hash. With 1 token more it gets the second, in one call. With 3
    more it gets none.
    """
    todo("lab-04", "get_request_block_hasher", "which blocks have no hash yet, and what is the first one's parent?")


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    r"""Return the key under which the index has a block of this KV cache group.

    It is the hash, then the group's number as 4 bytes, big-endian. (Layers of different kinds form groups, and one
    prefix has other KV in each of them.) `get_block_hash` and `get_group_id` of the engine split the key again.

    Example: the hash b"hash" in group 258 gives b"hash\x00\x00\x01\x02".
    """
    todo("lab-04", "make_block_hash_with_group_id", "in which bytes is the group?")
