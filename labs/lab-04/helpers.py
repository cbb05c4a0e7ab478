"""Helpers of lab-04: hashes shown as letters, hash functions that count, random crowds of requests with a naive model.

A test only compares block hashes, so they are shown as letters, in the order in which they occur. Reading order:
`Letters` and `Meter`, the calls of the learner's functions, then the crowds of requests (`content` is the model), and
last the hashes that another process computes.
"""

import hashlib
import random
import string
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any

from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import COMES, Step, all_different, random_life

HashFunction = Callable[[bytes], bytes]
Hasher = Callable[[Request], list[Any]]


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest, 32 bytes."""
    return hashlib.sha256(data).digest()


def sha512(data: bytes) -> bytes:
    """Return the SHA-512 digest, 64 bytes."""
    return hashlib.sha512(data).digest()


def sixteen_bits(data: bytes) -> bytes:
    """Return the first 2 bytes of SHA-256. There are 65,536 such hashes in all."""
    return hashlib.sha256(data).digest()[:2]


PARENT = sha256(b"the hash of the block before")


class Letters:
    """Shows hashes as letters, in the order in which they occur."""

    def __init__(self) -> None:
        self.letter_of: dict[object, str] = {}

    def __call__(self, hashes: Sequence[object]) -> list[str]:
        """Return one letter per hash. Equal hashes share a letter."""
        return [self.letter_of.setdefault(one, string.ascii_letters[len(self.letter_of)]) for one in hashes]


class Meter:
    """A hash function that records its results and the sizes of its inputs."""

    def __init__(self, function: HashFunction) -> None:
        self.function = function
        self.returned: list[bytes] = []
        self.sizes: list[int] = []

    def __call__(self, data: bytes) -> bytes:
        """Return the hash of these bytes, and record it and their number."""
        self.sizes.append(len(data))
        self.returned.append(self.function(data))
        return self.returned[-1]

    def calls(self, work: Callable[[], object]) -> int:
        """Return how often this work calls the hash function."""
        before = len(self.returned)
        work()
        return len(self.returned) - before


def checked(lab: LabUnderTest, what: str, value: object) -> bytes:
    """Return the value, which must be bytes."""
    if type(value) is not bytes:
        lab.fail(f"type of: {what}", "bytes", InWords(type(value).__name__))
    return value


def hash_block(lab: LabUnderTest, function: HashFunction, parent: bytes, tokens: Sequence[int], *extra: Any) -> bytes:
    """Return the learner's hash of a block."""
    return checked(lab, "hash", lab.hash_block_tokens(function, parent, tokens, *extra))


def expect_hashes(lab: LabUnderTest, what: str, want: str, got: Sequence[object], why: str = "", rule: int = 0) -> None:
    """Compare hashes, given as letters: only which of them are equal counts."""
    lab.expect(f"{what} (one letter, one hash)", list(want), got, why, rule)


def make_hasher(lab: LabUnderTest, block_size: int, *arguments: Any) -> Hasher:
    """Return the learner's hasher, which must return a list of bytes whenever it is called."""
    hasher = lab.get_request_block_hasher(block_size, *arguments)
    if not callable(hasher):
        lab.fail("what get_request_block_hasher returned", "a function that takes a request", hasher)

    def call_hasher(of: Request) -> list[Any]:
        before = list(of.block_hashes)
        hashes = hasher(of)
        if type(hashes) is not list or any(type(one) is not bytes for one in hashes):
            got = hashes if type(hashes) is list else InWords(type(hashes).__name__)
            lab.fail("what the hasher returned", "a list of hashes, each of them bytes", got, rule=9)
        if of.block_hashes != before:
            want = "as before: the request itself appends what the hasher returns"
            lab.fail("the request's block_hashes after a call of the hasher", want, InWords("changed"), rule=9)
        return hashes

    return call_hasher


def request(hasher: Hasher, token_ids: Sequence[int], *, request_id: str = "A", **options: Any) -> Request:
    """Return a request with these tokens, whose blocks this hasher hashes."""
    return Request(request_id, token_ids, block_hasher=hasher, **options)


def call(function: str, *arguments: object) -> str:
    """Return the source text of the call."""
    return f"{function}({', '.join(map(ascii, arguments))})"


def expect_different(lab: LabUnderTest, found: Mapping[str, object]) -> None:
    """Fail for the first two calls that returned the same bytes, or for one that did not return bytes."""
    all_different(lab, [(call, checked(lab, call, value)) for call, value in found.items()])


def first_collision(lab: LabUnderTest, function: HashFunction) -> tuple[list[int], list[int]]:
    """Return the first two one-block prompts that share a hash. Fail if all of 2,000 differ."""
    seen: dict[bytes, list[int]] = {}
    tokens = [0, 1, 2, 3]
    while (other := seen.setdefault(hash_block(lab, function, PARENT, tokens), tokens)) is tokens:
        tokens = [tokens[0] + 1, 1, 2, 3]
        if tokens[0] == 2000:
            want = "some: there are 65,536 hashes in all"
            lab.fail("prompts that share a 16-bit hash, of 2,000", want, InWords("none"))
    return other, tokens


IMAGE_LENGTHS = {"cat": 1, "dog": 3, "map": 5}


GROWS = "grows"
OPTIONS: dict[str, dict[str, Sequence[Any]]] = {
    COMES: {
        "salt": (None, None, None, "X"),
        "adapter": (None, None, None, ("X", ""), ("X", "/new")),
        "image": (*[None] * 10, *((name, offset) for name in ("cat", "dog") for offset in range(5)), *[("map", 0)] * 5),
        "epoch": (0, 0, 0, 1),
    },
    GROWS: {"by": [tokens for size in (1, 2, 3) for tokens in product((1, 2), repeat=size)]},
}


def random_crowd(rng: random.Random) -> list[Step]:
    """Return requests over few tokens, salts, adapters and images, so that many of them are similar."""
    stems = ((1, 1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1, 2))
    return random_life(rng, 12, {COMES: 0.6, GROWS: 0.4}, stems=stems, max_tail=2, options=OPTIONS)


def arriving(step: Step, hashers: Sequence[Hasher]) -> Request:
    """Return the request of this step, with the hasher of its epoch."""
    lora, image = step.options["adapter"], step.options["image"]
    return request(
        hashers[step.options["epoch"]],
        step.tokens,
        request_id=step.name,
        cache_salt=step.options["salt"],
        lora_request=LoRARequest(*lora) if lora else None,
        mm_features=[MultiModalFeature(image[0], image[1], IMAGE_LENGTHS[image[0]])] if image else [],
    )


def play(lab: LabUnderTest, crowd: Sequence[Step]) -> None:
    """Play the crowd's steps on the learner's code, and fail at the first difference from the model."""
    block_size = 2
    hashers = [make_hasher(lab, block_size, sha256, "", epoch) for epoch in (0, 1)]
    requests: dict[str, Request] = {}
    arrivals: dict[str, Step] = {}
    hash_of: dict[Hashable, bytes] = {}
    owner_of: dict[bytes, tuple[Hashable, str]] = {}
    for step in crowd:
        if step.verb == COMES:
            arrivals[step.name], requests[step.name] = step, arriving(step, hashers)
        elif step.name in requests:
            requests[step.name].append_output_token_ids(*step.options["by"])
        else:
            continue
        one = requests[step.name]
        lab.expect(f"number of hashes of {step.name}", one.num_tokens // block_size, len(one.block_hashes))
        for index, found in enumerate(one.block_hashes):
            block = f"block {index} of {step.name}"
            facts = content(arrivals[step.name], one.token_ids[: (index + 1) * block_size])
            if hash_of.setdefault(facts, found) != found:
                other = owner_of[hash_of[facts]][1]
                lab.fail(f"hash of {block}", f"that of {other}: the same content", InWords("another hash"))
            owner, other = owner_of.setdefault(found, (facts, block))
            if owner != facts:
                lab.fail(f"hash of {block}", "a hash of its own", InWords(f"that of {other}: other content"))


def content(arrival: Step, token_ids: Sequence[int]) -> Hashable:
    """Return everything that decides the KV of the last of these tokens: the token and pixel of each position."""
    positions: list[Any] = []
    for position, token in enumerate(token_ids):
        pixel = None
        if arrival.options["image"] is not None:
            identifier, offset = arrival.options["image"]
            if offset <= position < offset + IMAGE_LENGTHS[identifier]:
                pixel = (identifier, position - offset)
        positions.append((token, pixel))
    return arrival.options["salt"], arrival.options["adapter"], arrival.options["epoch"], tuple(positions)


def some_hashes(code: Any) -> list[Any]:
    """Return hashes made with the functions of `code`: first of single parts, then of a request with all of them."""
    root = code.root_block_hash(sha256, "salt", "model", 1)
    block = code.hash_block_tokens(sha256, bytes(32), [1, 2, 3, 4])
    adapted = code.hash_block_tokens(sha256, bytes(32), [1, 2, 3, 4], [("lora", "sql", "/7")])
    full = request(
        code.get_request_block_hasher(4, sha256, "model", 1),
        range(8),
        cache_salt="salt",
        lora_request=LoRARequest("sql", "/7"),
        mm_features=[MultiModalFeature("cat", 1, 5)],
    )
    return [root, block, adapted, *full.block_hashes]
