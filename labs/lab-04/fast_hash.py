"""Block hashes made with xxh3-64, on purpose: how fast they are, how two of them collide, where the engine refuses.

    python labs/lab-04/fast_hash.py                             (the engine's functions)
    python labs/lab-04/fast_hash.py labs/lab-04/starter.py      (yours)

It gives no points. Needs the package xxhash; without it, only SHA-256 is measured.

Why a pair can be written down: of an input of 17 to 128 bytes, xxh3-64 takes pairs of 8-byte words, XORs each word with
a constant that is published with the algorithm, and multiplies the two. A first word equal to its constant makes the
product 0, whatever the second word is. The last pair of the input is its last 16 bytes: the four tokens of a block of
4, where a layout puts them last, 4 bytes little-endian each.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from mini_kv.core import block_hash
from mini_kv.core.block_hash import HashFunction, get_hash_function, sha256
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course import LabTodo
from mini_kv.course.labkit.implementation import load_file

ZERO_WORD = [3_916_289_246, 3_684_143_235]
"""The constant of the last pair's first word, bytes 16 to 23 of XXH3's default secret, as two tokens."""
P, Q = [*ZERO_WORD, 0, 1], [*ZERO_WORD, 0, 2]
"""Two blocks of 4 with one xxh3-64 hash after any parent."""

WIDE_P = [7, 7, 7, 1_323_727_307, 2_028_323_020, 7, 7, 7, 7, 7, 7, 3_142_723_644, 3_405_824_913, *[7] * 19]
"""A block of 32 in the engine's layout: the tokens 3, 4 and 11, 12 make two products of xxh3-128 zero as well."""
WIDE_Q = [token ^ 2**31 if index in {6, 14} else token for index, token in enumerate(WIDE_P)]
"""With one xxh3-128 hash: the two changes, of the words behind the zeros, cancel out."""


def xxh3_64(data: bytes) -> bytes:
    """Return the XXH3 digest of 64 bits, 8 bytes."""
    import xxhash  # not in the standard library

    return xxhash.xxh3_64_digest(data)


def tokens_per_second(work: Callable[[], object], num_tokens: int, repeats: int = 7) -> float:
    """Return the millions of tokens per second of the fastest of `repeats` calls, each of which hashes all tokens."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return num_tokens / min(seconds) / 1e6


def speeds(code: ModuleType, function: HashFunction, num_tokens: int, block_size: int = 16) -> tuple[float, float]:
    """Return the speed of hashing the blocks of a prompt with `code`, and of the hash function alone on their bytes."""
    request = Request("A", range(num_tokens))
    hasher = code.get_request_block_hasher(block_size, function)
    block = bytes(len(function(b"")) + 4 + 4 * block_size)  # a parent, a length, the tokens

    def only_the_digest() -> None:
        for _ in range(num_tokens // block_size):
            function(block)

    block_hashes = tokens_per_second(lambda: hasher(request), num_tokens)
    return block_hashes, tokens_per_second(only_the_digest, num_tokens)


def tokens_taken(kv: KVCacheManager, first: Request, second: Request) -> int:
    """Compute the whole of `first`, then return how many tokens of `second` the cache says are computed already."""
    kv.allocate_slots(first, first.num_tokens)
    return kv.get_computed_blocks(second)[1]


def tokens_taken_of_q(code: ModuleType, function: HashFunction) -> int:
    """Return how many of the 9 tokens Q 5 6 7 8 9 the cache takes from P 5 6 7 8 9, with the hashes of `code`."""
    hasher = code.get_request_block_hasher(4, function)
    requests = [Request(name, [*block, 5, 6, 7, 8, 9], block_hasher=hasher) for name, block in (("P", P), ("Q", Q))]
    return tokens_taken(KVCacheManager.for_full_attention(8, 4), *requests)


def tokens_taken_of_wide_q(hash_name: str) -> int:
    """Return how many of the 33 tokens of WIDE_Q and 9 a cache with this setting takes from WIDE_P and 9."""
    kv = KVCacheManager.for_full_attention(8, 32, hash_name=hash_name)
    return tokens_taken(kv, kv.new_request("P", [*WIDE_P, 9]), kv.new_request("Q", [*WIDE_Q, 9]))


def refusals() -> list[tuple[str, str]]:
    """Return two settings and the sentence with which the engine refuses each."""

    def with_a_salt() -> object:
        kv = KVCacheManager.for_full_attention(8, 4, hash_name="xxh3_128")
        return kv.new_request("A", [1, 2, 3, 4], cache_salt="tenant")

    settings: dict[str, Callable[[], object]] = {
        'hash_name="xxh3_64"': lambda: get_hash_function("xxh3_64"),
        'hash_name="xxh3_128" and a request with a cache_salt': with_a_salt,
    }
    refused = []
    for setting, attempt in settings.items():
        try:
            attempt()
        except ConfigError as error:
            refused.append((setting, str(error)))
    return refused


def print_collision(code: ModuleType, functions: Mapping[str, HashFunction]) -> None:
    """Print the hashes of P and Q, and what a cache takes for computed of Q's prompt after P's."""
    print(f"\n2. Two blocks, P = {P} and Q = {Q}")
    for name, function in functions.items():
        root = code.root_block_hash(function)
        p, q = (code.hash_block_tokens(function, root, tokens).hex() for tokens in (P, Q))
        print(f"   {name:9} P {p[:16]}  Q {q[:16]}  {'one hash' if p == q else 'two hashes'}")
    for name, function in functions.items():
        print(f"   {name:9} after P 5 6 7 8 9, hit of the 9 tokens Q 5 6 7 8 9: {tokens_taken_of_q(code, function)}")


def print_wide_collision() -> None:
    """Print the same for the engine's own xxh3_128, in a block of 32."""
    print("   A pair made for 128 bits, in a block of 32, and one more token")
    for name in ("sha256", "xxh3_128"):
        print(f"   {name:9} after WIDE_P 9, hit of the 33 tokens WIDE_Q 9: {tokens_taken_of_wide_q(name)}")


def report(code: ModuleType, functions: Mapping[str, HashFunction], num_tokens: int = 50_000) -> None:
    """Print the speed of each function, the collision, and the refusals."""
    print(f"1. A prompt of {num_tokens:,} tokens, blocks of 16, millions of tokens per second")
    for name, function in functions.items():
        block_hashes, digest = speeds(code, function, num_tokens)
        print(f"   {name:9} block hashes {block_hashes:7.1f}    the hash function alone {digest:7.1f}")
    print_collision(code, functions)
    if "xxh3_64" in functions:
        print_wide_collision()
    else:
        print("   xxh3_64   not shown, it needs the package xxhash: pip install xxhash")
    print("\n3. What the engine says")
    for setting, sentence in refusals():
        print(f"   {setting}\n      ConfigError: {sentence}")


def main(arguments: list[str]) -> None:
    """Report on the engine's functions, or on those of the file named."""
    functions: dict[str, HashFunction] = {"sha256": sha256}
    if importlib.util.find_spec("xxhash") is not None:
        functions["xxh3_64"] = xxh3_64
    code = load_file(Path(arguments[0])) if arguments else block_hash
    try:
        report(code, functions)
    except LabTodo as missing:
        sys.exit(f"still to be written: {missing}")


if __name__ == "__main__":
    main(sys.argv[1:])
