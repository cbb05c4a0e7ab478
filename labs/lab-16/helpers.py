"""The naive server of lab-16 and the eight attacks on it. Read them: each is a few lines. Below: what the tests use.

An attack gets a defence and a seed, plays both sides on a server with this defence, and returns whether it succeeded.
Ann and Bob are two tenants. Bob never sees Ann's prompts or KV: he sends prompts, and looks at the time or at files.
"""

import hashlib
import hmac
import io
import os
import pickle
import random
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, BinaryIO

from mini_kv.course import LabTodo
from mini_kv.course.given.toy_server import Defence, ExtraKey, Layout, ToyServer, true_kv
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.implementation import LoadError
from mini_kv.course.labkit.lives import all_different, in_another_process

ONE_CRC = (b"plumless", b"buckeroo")
"""Two texts with one CRC-32. If the bits in which they differ are flipped in other bytes, their CRC-32 stays too."""
DIGESTS = ("md5", "sha1", "sha256", "sha512", "blake2b")
LETTER = [11, 12, 13]
"""The beginning of all letters. After it are the four digits of a PIN, which are tokens 0 to 9, and a full stop."""
STOP = 10


# The naive configuration --------------------------------------------------------------------------------------------


def naive_namespace(secret: bytes, tenant: str, epoch: int) -> bytes:
    """All tenants and all versions of the weights share one namespace."""
    return b""


def naive_extra_keys(extra_keys: Sequence[ExtraKey]) -> bytes:
    """Join the texts without their kinds and lengths."""
    return "".join(text for _, text in extra_keys).encode("utf-8", "replace")


def naive_hash(parent: bytes, token_ids: Sequence[int], extra_keys: bytes) -> bytes:
    """Cut the digest to 16 bits."""
    return hashlib.sha256(parent + extra_keys + repr(list(token_ids)).encode()).digest()[:2]


def naive_tier_key(block_hash: bytes, token_ids: Sequence[int], group_id: int) -> bytes:
    """Name a file by the tokens of its block."""
    return hashlib.sha256(repr(list(token_ids)).encode()).digest()


def naive_seal(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
    """Pickle the block."""
    return pickle.dumps(payload)


def naive_open(file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> bytes | None:
    """Unpickle whatever the file holds."""
    return pickle.load(file)  # type: ignore[no-any-return]


NAIVE = Defence(naive_namespace, naive_extra_keys, naive_hash, naive_tier_key, naive_seal, naive_open)


# The attacks --------------------------------------------------------------------------------------------------------


def new_server(defence: Defence, rng: random.Random) -> ToyServer:
    """Return a server with a secret of its own."""
    return ToyServer(defence, rng.randbytes(32), rng)


def one_hash(defence: Defence, seed: int) -> bool:
    """Find two prompts with one hash. Have the first one computed, then see what a reader of the second one gets.

    Bob needs no server to search: he owns the software. 16 bits have 65,536 values, and he tries 1,200 prompts.
    """
    rng = random.Random(seed)
    server = new_server(defence, rng)
    server.block_size = 4
    root = defence.derive_namespace(server.secret, "Ann", 1)  # Bob works for Ann, so his prompts get her namespace
    nothing = defence.encode_extra_keys([])
    seen: dict[bytes, list[int]] = {}
    for first in range(1_200):
        tokens = [first, seed, 7, 7]
        other = seen.setdefault(defence.hash_block(root, tokens, nothing), tokens)
        if other is not tokens:
            server.ask("Ann", [*other, STOP])
            return server.ask("Ann", [*tokens, STOP]).kv != true_kv(1, [*tokens, STOP], [], 4, 8)
    return False


def timing(defence: Defence, seed: int) -> bool:
    """Find Ann's PIN digit by digit: the guess that takes less time than the others is cached."""
    rng = random.Random(seed)
    server = new_server(defence, rng)
    pin = [rng.randrange(10) for _ in range(4)]
    server.ask("Ann", [*LETTER, *pin, STOP])
    server.ask("Bob", [*LETTER, STOP])
    found: list[int] = []
    while len(found) < 4:
        times = [server.ask("Bob", [*LETTER, *found, digit, STOP]).milliseconds for digit in range(10)]
        if min(times) > median(times) - 0.5:
            return False  # no guess was faster
        found.append(times.index(min(times)))
    return found == pin


def file_names(defence: Defence, seed: int) -> bool:
    """Find Ann's PIN from the names of the files: run the same software elsewhere, and look which names it gives."""
    rng = random.Random(seed)
    server, copy = new_server(defence, rng), new_server(defence, rng)
    pin = [rng.randrange(10) for _ in range(4)]
    server.ask("Ann", [*LETTER, *pin, STOP])
    server.evict_all()
    found: list[int] = []
    for _ in range(4):
        for digit in range(10):
            before = set(copy.home)
            copy.ask("Ann", [*LETTER, *found, digit, STOP])
            copy.evict_all()
            new = set(copy.home) - before
            if new and new <= set(server.home):
                found.append(digit)
                break
    return found == pin


def alias(defence: Defence, seed: int) -> bool:
    """Ask with a salt, an image or an adapter whose text equals the name of an adapter."""
    rng = random.Random(seed)
    name = f"X{rng.randrange(1000)}"
    pairs: list[tuple[list[ExtraKey], list[ExtraKey]]] = [
        ([("lora", name)], [("cache_salt", name)]),
        ([("lora", name)], [("mm", name)]),
        ([("lora", f"{name}a"), ("mm", "b")], [("lora", name), ("mm", "ab")]),
    ]
    for first, second in pairs:
        server = new_server(defence, rng)
        prompt = [*LETTER, rng.randrange(10), STOP]
        server.ask("Ann", prompt, first)
        if server.ask("Ann", prompt, second).kv != true_kv(1, prompt, second, 1, 8):
            return True
    return False


def new_weights(defence: Defence, seed: int) -> bool:
    """Change the weights, and send a prompt again."""
    rng = random.Random(seed)
    server = new_server(defence, rng)
    server.epoch = rng.randrange(1, 1000)
    prompt = [*LETTER, rng.randrange(10), STOP]
    server.ask("Ann", prompt)
    server.epoch += 1
    return server.ask("Ann", prompt).kv != true_kv(server.epoch, prompt, [], 1, 8)


class Payload:
    """An object whose pickle makes a folder when it is loaded. A real attacker would put another call there."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def evil_file(defence: Defence, seed: int) -> bool:
    """Replace a file of the second home by a pickle that runs code: here, it makes a folder."""
    rng = random.Random(seed)
    server = new_server(defence, rng)
    prompt = [*LETTER, rng.randrange(10), STOP]
    server.ask("Ann", prompt)
    server.evict_all()
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "code-has-run"
        server.home = dict.fromkeys(server.home, pickle.dumps(Payload(marker)))
        server.ask("Ann", prompt)
        return marker.exists()


def swapped_files(defence: Defence, seed: int) -> bool:
    """Exchange the files of two blocks: both are whole, and each is another block."""
    rng = random.Random(seed)
    server = new_server(defence, rng)
    prompt = [*LETTER, rng.randrange(10), STOP]
    server.ask("Ann", prompt)
    server.evict_all()
    one, two = rng.sample(sorted(server.home), 2)
    server.home[one], server.home[two] = server.home[two], server.home[one]
    return server.ask("Ann", prompt).kv != true_kv(1, prompt, [], 1, 8)


def lost_salt(defence: Defence, seed: int) -> bool:
    """Ask for Ann's letter after her blocks have moved to the second home, where one tier may have lost the salt."""
    rng = random.Random(seed)
    server = new_server(defence, rng)
    letter = [*LETTER, *[rng.randrange(10) for _ in range(4)], STOP]
    server.ask("Ann", letter)
    server.evict_all()
    return server.ask("Bob", letter).num_cached_tokens > 0


ATTACKS: dict[str, tuple[str, Callable[[Defence, int], bool]]] = {
    "two prompts, one hash": ("hash_block", one_hash),
    "PIN from the time": ("derive_namespace", timing),
    "PIN from file names": ("derive_namespace", file_names),
    "an adapter's alias": ("encode_extra_keys", alias),
    "new weights, old KV": ("derive_namespace", new_weights),
    "a file that runs code": ("open_block_file", evil_file),
    "two files swapped": ("open_block_file", swapped_files),
    "salt lost in a tier": ("tier_key", lost_salt),
}
"""Each attack with the function that has to stop it."""


# The defences of a test ---------------------------------------------------------------------------------------------


def ideal() -> Defence:
    """Return six ideal functions: each new input gets random bytes, which are remembered. No program can do this."""
    rng = random.Random(16)
    memory: dict[str, bytes] = {}
    sealed: dict[tuple[bytes, bytes, bytes, Layout], bytes] = {}

    def recall(*inputs: object) -> bytes:
        return memory.setdefault(repr(inputs), rng.randbytes(32))

    def seal(secret: bytes, key: bytes, layout: Layout, payload: bytes) -> bytes:
        file = recall(secret, key, layout, payload)
        sealed[file, secret, key, layout] = payload
        return file

    return Defence(
        derive_namespace=lambda secret, tenant, epoch: recall("namespace", secret, tenant, epoch),
        encode_extra_keys=lambda extra_keys: recall("extra keys", list(extra_keys)),
        hash_block=lambda parent, token_ids, extra_keys: recall("hash", parent, list(token_ids), extra_keys),
        tier_key=lambda block_hash, token_ids, group_id: recall("key", block_hash, group_id),
        seal_block=seal,
        open_block_file=lambda file, secret, key, layout: sealed.get((file.read(), secret, key, layout)),
    )


def weak(function: str) -> Defence:
    """Return an ideal defence with one naive function. Files are written and read by a pair of functions."""
    names = {"seal_block", "open_block_file"} if function == "open_block_file" else {function}
    return replace(ideal(), **{name: getattr(NAIVE, name) for name in names})


def defence_with(lab: LabUnderTest, *functions: str) -> Defence:
    """Return an ideal defence with these functions of the learner."""
    return replace(ideal(), **{name: partial(call_checked, lab, name) for name in functions})


def learners(lab: LabUnderTest) -> Defence:
    """Return the defence of all six functions of the learner."""
    return defence_with(lab, *(field.name for field in fields(Defence)))


def call_checked(lab: LabUnderTest, name: str, *inputs: Any) -> Any:
    """Call a function of the learner. Its result must be bytes, or `None` for a miss of `open_block_file`."""
    function = partial(opened, lab) if name == "open_block_file" else getattr(lab, name)
    try:
        result = function(*inputs)
    except Exception:
        lab.charge(name)
        raise
    if isinstance(result, BaseException):
        lab.charge(name)
        why = "a miss is always safe, and the request that asked for the block must go on"
        lab.fail("what open_block_file did with a file that is not the block", None, result, why)
    if type(result) is not bytes and not (name == "open_block_file" and result is None):
        lab.charge(name)
        lab.fail(
            f"the type of what {name} returned",
            "bytes",
            InWords(type(result).__name__),
            "the server joins and compares bytes",
        )
    return result


def attack(lab: LabUnderTest, name: str, defence: Defence, seeds: Sequence[int], why: str = "") -> None:
    """Run an attack on a server with a naive function and on one with the learner's, and expect it to fail."""
    function, run = ATTACKS[name]
    lab.note(f"attack '{name}' on a naive {function}: succeeds for {sum(run(weak(function), s) for s in seeds)} seeds")
    expect_none(lab, name, sum(run(defence, seed) for seed in seeds), len(seeds), why)


def expect_none(lab: LabUnderTest, name: str, num_succeeded: int, num_seeds: int, why: str = "") -> None:
    """Expect that an attack on the learner's code has succeeded for none of the seeds."""
    want, got = (InWords(f"{number} of {num_seeds} times") for number in (0, num_succeeded))
    lab.expect(f"how often the attack '{name}' succeeds against your code", want, got, why)


def expect_different(lab: LabUnderTest, name: str, inputs: Sequence[tuple[Any, ...]], why: str = "") -> None:
    """Call a function of the learner with each input, and fail for those that share their bytes with an earlier one.

    Then call it again, the last input first. All calls get one list, which is filled anew: only its items may count.
    """
    results = [call_checked(lab, name, *each) for each in inputs]
    all_different(lab, [(f"{name}{told(each)}", result) for each, result in zip(inputs, results, strict=True)], why)
    one_list: list[Any] = []
    for each, result in zip(reversed(inputs), reversed(results), strict=True):
        one_list[:] = next((items for items in each if isinstance(items, list)), [])
        again = call_checked(lab, name, *(one_list if isinstance(items, list) else items for items in each))
        if again != result:
            want, got = InWords("the same bytes as before"), InWords("other bytes")
            why = "a result depends on the inputs only, not on earlier calls, nor on which list holds the items"
            lab.fail(f"{name}{told(each)} for the second time", want, got, why)


def told(inputs: tuple[Any, ...]) -> str:
    """Return inputs as the arguments of a call, long bytes and texts shortened."""
    texts = [
        f"{each[:4]!r}..{each[-1:]!r}" if isinstance(each, bytes) and len(each) > 8 else repr(each) for each in inputs
    ]
    return f"({', '.join(text if len(text) < 200 else f'{text[:80]}..{text[-20:]}' for text in texts)})"


def measured_bits(results: Sequence[bytes]) -> int:
    """Return how many bits these results have that are neither constant nor a copy of other bits.

    A column is the byte at one place of every result. A constant or repeated column adds nothing. A column with 16
    different values, as in hexadecimal digits, adds 4 bits. Needs about 1,000 results.
    """
    changes = [bytes(a ^ b for a, b in zip(each, results[0], strict=False)) for each in results]
    columns = set(zip(*changes, strict=False))
    return sum((len(set(column)) - 1).bit_length() for column in columns)


def expect_bits(lab: LabUnderTest, what: str, want: int, results: Sequence[bytes], why: str) -> None:
    """Expect that results have at least so many bits, and show how many were measured."""
    bits = measured_bits(results)
    lab.note(f"{what}: {bits} bits")
    if bits < want:
        lab.fail(
            f"{what}, measured on {len(results):,} of them",
            InWords(f"{want} bits or more"),
            InWords(f"{bits} bits"),
            why,
        )


def pieces_of(encoded: bytes) -> list[str]:
    """Return texts that are the end of these bytes, up to three bytes shorter: what the learner's code has written."""
    size = len(encoded)
    pieces = [encoded[start:end] for end in range(size - 3, size + 1) for start in range(end) if size <= 400]
    texts = [piece.decode(*how) for how in (("utf-8", "ignore"), ("ascii", "surrogateescape")) for piece in pieces]
    return list(dict.fromkeys(texts))


def names_by_extension(lab: LabUnderTest, secret: bytes) -> list[str]:
    """Return names whose namespace Bob computes from that of another name, without the secret: length extension.

    The result of SHA-256 is its state, so he goes on from it with the padding and more bytes. Here a copy of the
    learner's digest goes on. The longer name contains the padding, if two or three bytes are one character.
    """
    found = []
    for name in ("a" * size for size in range(3, 14)):
        namespace = call_checked(lab, "derive_namespace", secret, name, 1)
        called = called_in(partial(lab.derive_namespace, secret, name, 1))
        states: list[Any] = [getattr(call, "__self__", None) for call in called]
        states = [each for each in states if getattr(each, "name", "") == "sha256" and each.digest() == namespace]
        for state, size in product(states, range(32, 150)):
            padding = b"\x80" + bytes((55 - size) % 64) + (8 * size).to_bytes(8, "big")
            padding += bytes(-len(padding) % 6)
            (longer := state.copy()).update(padding)
            threes = [int.from_bytes(padding[place : place + 3], "little") for place in range(0, len(padding), 3)]
            texts = [padding.decode("utf-16-le", "surrogatepass"), "".join(chr(code % 0x110000) for code in threes)]
            longer_names = [name + text for text in texts]
            found += [each for each in longer_names if lab.derive_namespace(secret, each, 1) == longer.digest()]
    return found


def separators_of(encoded: bytes) -> list[str]:
    """Return the texts that the learner's code writes around the fields of an adapter `AAA` and an image `BBB`."""
    parts = re.fullmatch(rb"(.*)lora(.*)AAA(.*)mm(.*)BBB(.*)", encoded, re.DOTALL)
    return [part.decode("utf-8", "replace") for part in parts.groups()] if parts else []


def lists_with_lengths_that_wrap(lab: LabUnderTest, wraps_at: int) -> tuple[list[ExtraKey], list[ExtraKey]] | None:
    """Return two lists that have the same bytes if the learner's code cuts lengths, so that they wrap at this number.

    The first is an adapter `a` and images whose bytes are `wraps_at` in all. In the second the adapter's name contains
    these bytes, and its length is cut to 1. `None` if the learner's bytes are not a field after the other.
    """
    alone = call_checked(lab, "encode_extra_keys", [("lora", "a")])
    one_more = call_checked(lab, "encode_extra_keys", [("lora", "a"), ("mm", "x" * 60)])
    size_of_rest = len(one_more) - len(alone) - 60
    num_images = wraps_at // (size_of_rest + 60)
    num_letters = wraps_at - num_images * size_of_rest
    sizes = [(num_letters + number) // num_images for number in range(num_images)]
    images: list[ExtraKey] = [("lora", "a"), *(("mm", "x" * size) for size in sizes)]
    encoded = call_checked(lab, "encode_extra_keys", images)
    if not encoded.startswith(alone) or len(encoded) != len(alone) + wraps_at or not encoded.isascii():
        return None
    return images, [("lora", "a" + encoded[len(alone) :].decode())]


def blocks_that_frames_join(parent: bytes) -> list[tuple[bytes, list[int], bytes]]:
    """Return inputs of `hash_block` of which two have the same bytes if a field's length is missing or cut.

    For numbers of 4 and 8 bytes in both orders, and counts of 1 to 8 bytes, of tokens or of their bytes.
    """
    blocks: list[tuple[bytes, list[int], bytes]] = []
    for order, width, size in product("<>", "IQ", "BHIQ"):
        for unit in (1, struct.calcsize(width)):
            two = struct.pack(f"{order}{size}2{width}", 2 * unit, 7, 8)
            blocks += [(parent, [7, 8], struct.pack(order + size + width, unit, 5)), (parent + two, [5], b"")]
            if size in "BH":
                tokens = list(range(256 ** struct.calcsize(size) // unit + 1))
                others = struct.pack(f"{order}{len(tokens) - 1}{width}", *tokens[1:])
                blocks += [(parent, tokens, b""), (parent, [0], others)]
    return list({repr(each): each for each in blocks}.values())


def shapes_of(num_items: float) -> list[tuple[int, ...]]:
    """Return the shapes of up to three dimensions that have so many numbers."""
    sizes = [size for size in range(1, 25) if num_items % size == 0]
    return [shape for rank in (1, 2, 3) for shape in product(sizes, repeat=rank) if prod(shape) == num_items]


def files_made_of(one: bytes, two: bytes) -> list[bytes]:
    """Return each file that is the first one with a part of the second in the place of its own, and equals neither."""
    ends = range(len(one) + 1)
    made = {one[:start] + two[start:end] + one[end:] for start in ends for end in ends if start < end}
    return sorted(made - {one, two})


def with_each_byte_changed(data: bytes, step: int = 1) -> list[bytes]:
    """Return copies of the data, each with another byte changed: the first, and then every `step`-th, and the last."""
    places = dict.fromkeys([*range(0, len(data), step), len(data) - 1])
    return [data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :] for place in places]


def with_the_same_checksum(data: bytes) -> list[bytes]:
    """Return copies of the data, changed at each place, that have its CRC-32, its Adler-32, its sum or its XOR."""
    made = []
    for place in range(len(data) - 7):
        part = data[place : place + 8]
        crc = bytes(byte ^ one ^ two for byte, one, two in zip(part, *ONE_CRC, strict=True))
        adler = bytes((byte + step) % 256 for byte, step in zip(part, (1, -2, 1), strict=False))
        parts = (crc, adler, part[1::-1], bytes([part[0] ^ 1, part[1] ^ 1]))
        made += [data[:place] + each + data[place + len(each) :] for each in parts]
    return [each for each in dict.fromkeys(made) if each != data]


def called_in(run: Callable[[], object]) -> list[object]:
    """Call this, and return its calls: functions written in C, and the files of functions written in Python."""
    called: list[object] = []

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_filename)
        elif event == "c_call":
            called.append(argument)

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        run()
    finally:
        sys.setprofile(before)
    return called


def makes_an_hmac(called: Sequence[object]) -> bool:
    """Return whether a function of Python's `hmac` is among those that were called."""
    return hmac.digest.__code__.co_filename in called


class WatchedFile(io.BytesIO):
    """An open file that records reads of more than a limit and does not carry them out."""

    def __init__(self, data: bytes, limit: int) -> None:
        super().__init__(data)
        self.limit = limit
        self.too_large: list[str] = []

    def read(self, size: int | None = -1, /) -> bytes:
        """Read this many bytes, or record that it is too many."""
        if size is None or size < 0 or size > self.limit:
            self.too_large.append("read() without a limit" if size is None or size < 0 else f"read({size:,})")
            return b""
        return super().read(size)


class FailingFile(io.BytesIO):
    """An open file on a disk that fails after some reads."""

    def __init__(self, data: bytes, num_reads: int) -> None:
        super().__init__(data)
        self.num_reads = num_reads
        """Reads that still succeed. Below 0: the disk has failed."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, or raise the error of a failing disk."""
        self.num_reads -= 1
        if self.num_reads < 0:
            raise OSError(5, "Input/output error")
        return super().read(size)


def opened(lab: LabUnderTest, file: BinaryIO, secret: bytes, key: bytes, layout: Layout) -> object:
    """Return the result of the learner's `open_block_file`: the payload, `None`, or the exception that it raised."""
    try:
        return lab.open_block_file(file, secret, key, layout)
    except (LabTodo, LoadError):
        raise
    except Exception as error:
        return error


def sealed_sample(lab: LabUnderTest, secret: bytes, key: bytes, layout: Layout) -> bytes:
    """Return a file of the learner's `seal_block`, with a payload whose bytes are all different."""
    return call_checked(lab, "seal_block", secret, key, layout, bytes(range(layout.num_bytes)))  # type: ignore[no-any-return]


# The cost of isolation ----------------------------------------------------------------------------------------------


def hit_rate(defence: Defence, tenants: Sequence[str]) -> float:
    """Return the share of tokens found when four users of each tenant ask, all with the same system prompt.

    Each of 16 users sends 3 prompts: 24 tokens of system prompt, then 8 of a conversation that grows.
    """
    server = new_server(defence, random.Random(1))
    server.block_size = 4
    num_tokens = num_cached = 0
    for turn in range(1, 4):
        for user in range(16):
            prompt = [*range(24), *([100 + user] * 8 * turn), STOP]
            num_tokens += len(prompt)
            num_cached += server.ask(tenants[user % len(tenants)], prompt).num_cached_tokens
    return num_cached / num_tokens


# Another process ----------------------------------------------------------------------------------------------------

SAMPLES: dict[str, tuple[Any, ...]] = {
    "derive_namespace": (b"s" * 32, "Ann", 3),
    "encode_extra_keys": ([("lora", "sql"), ("mm", "9f3a")],),
    "hash_block": (b"p" * 32, [1, 2, 3, 4], b"x"),
    "tier_key": (b"h" * 32, [1, 2, 3, 4], 1),
}


def sample_of(code: Any, name: str) -> list[bytes]:
    """Return what a function of the learner makes of its sample."""
    return [getattr(code, name)(*SAMPLES[name])]


def expect_same_elsewhere(lab: LabUnderTest, name: str) -> None:
    """Call a function of the learner in a process with another PYTHONHASHSEED, and compare."""
    here = call_checked(lab, name, *SAMPLES[name])
    if sys.platform == "emscripten":
        return  # a browser has one process
    answer = {True: "the same bytes", False: "other bytes"}[in_another_process(lab, sample_of, name) == [here]]
    lab.expect(f"what {name} returns in another process", InWords("the same bytes"), InWords(answer))
