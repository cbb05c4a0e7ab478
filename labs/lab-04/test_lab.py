"""lab-04: the block hash, what a prefix is found by. Read the numbered tests in order: they show what goes into it.

No test looks at the bytes that you hash. Hashes are shown as letters: one letter, one hash. Only the key of the index,
in test 12, is fixed to the byte.
"""

import array
import itertools
import random
import struct
import sys
from functools import partial
from typing import Any

import pytest

from mini_kv.core.block_hash import get_block_hash, get_group_id
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.course import points
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import check_life, in_another_process, seeds

from .helpers import (
    PARENT,
    Letters,
    Meter,
    call,
    checked,
    expect_different,
    expect_hashes,
    first_collision,
    hash_block,
    make_hasher,
    play,
    random_crowd,
    request,
    sha256,
    sha512,
    sixteen_bits,
    some_hashes,
)

BLOCK_SIZE = 4
SAME_VALUES = "equal values must give equal bytes: two requests never pass the same object, but share blocks"


# The biography ------------------------------------------------------------------------------------------------------


@points(3, "hash_block_tokens", rule=4)
def test_1_a_full_block_has_a_hash(lab: LabUnderTest) -> None:
    """A hash has the width of its hash function. Equal blocks have equal hashes, different blocks different ones."""
    for function, width in ((sha256, 32), (sha512, 64)):
        meter = Meter(function)
        found = hash_block(lab, meter, PARENT, [1, 2, 3, 4])
        lab.expect(f"bytes in a hash made with {function.__name__}", width, len(found))
        why = "the hash function that you are given makes the hash, in one call"
        lab.expect(f"calls of {function.__name__} for one hash", 1, len(meter.returned), why)
        if found != meter.returned[-1]:
            lab.fail("the hash", f"what {function.__name__} returned", InWords("other bytes of the same length"))
    blocks = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5], [4, 3, 2, 1]]
    hashes = [hash_block(lab, sha256, PARENT, block) for block in blocks]
    expect_hashes(lab, f"hashes of {blocks}", "aabc", Letters()(hashes), rule=5)


@points(3, "hash_block_tokens", rule=5)
def test_2_same_block_after_another_prefix_has_another_hash(lab: LabUnderTest) -> None:
    """5 6 7 8 after 1 2 3 4, after 0 0 0 0, and alone: the same tokens have three hashes."""
    after_1234 = hash_block(lab, sha256, PARENT, [1, 2, 3, 4])
    after_0000 = hash_block(lab, sha256, PARENT, [0, 0, 0, 0])
    hashes = [hash_block(lab, sha256, parent, [5, 6, 7, 8]) for parent in (after_1234, after_0000, PARENT)]
    expect_hashes(lab, "hashes of 5 6 7 8 after 1 2 3 4, after 0 0 0 0, and alone", "abc", Letters()(hashes))
    parents = [PARENT, b"!" + PARENT[1:], PARENT[:-1] + b"!"]
    hashes = [hash_block(lab, sha256, parent, [5, 6, 7, 8]) for parent in parents]
    expect_hashes(lab, "hashes after three parents that differ in their first or last byte", "abc", Letters()(hashes))


@points(3, "get_request_block_hasher", rule=9)
def test_3_only_full_blocks_have_hashes(lab: LabUnderTest) -> None:
    """One token less than a block, a block, one token more, in blocks of 1, 3, 4 and 16 tokens."""
    for block_size in (1, 3, 4, 16):
        hasher = make_hasher(lab, block_size)
        lengths = [k * block_size + d for k in (1, 3) for d in (-1, 0, 1) if k * block_size + d > 0]
        lab.expect(
            f"number of hashes of requests of {lengths} tokens, blocks of {block_size}",
            [length // block_size for length in lengths],
            [len(request(hasher, list(range(length))).block_hashes) for length in lengths],
        )


@points(4, "get_request_block_hasher", rule=11, why="each block is hashed once, when it becomes full")
def test_4_a_growing_request_hashes_its_new_blocks_only(lab: LabUnderTest) -> None:
    """10 tokens, then 9 one by one, then 9 at once. Predict the number of calls of the hash function."""
    meter = Meter(sha256)
    grown = request(make_hasher(lab, BLOCK_SIZE, meter), list(range(10)))
    if len(meter.returned) not in (2, 3):
        lab.fail("calls of the hash function for 10 tokens, blocks of 4", "3: the root, 2 blocks", len(meter.returned))
    single = [meter.calls(partial(grown.append_output_token_ids, token)) for token in range(10, 19)]
    at_once = meter.calls(partial(grown.append_output_token_ids, *range(19, 28)))
    hasher = make_hasher(lab, BLOCK_SIZE, meter)
    short = [meter.calls(partial(request, hasher, list(range(length)))) for length in (1, 2, 3)]
    nothing = "no block has become full"
    what = "calls of the hash function for"
    once = "a block costs one call, when it becomes full; its parent's hash is there already"
    rows: list[tuple[str, object, object, str]] = [
        (f"{what} the 11th to the 19th token", [0, 1, 0, 0, 0, 1, 0, 0, 0], single, once),
        (f"{what} 9 tokens more at once, the 20th to the 28th", 3, at_once, once),
        (f"{what} requests of 1, 2 and 3 tokens, blocks of 4", [0, 0, 0], short, nothing),
    ]
    lab.expect_all(rows)
    letters = Letters()
    prompt = letters(request(make_hasher(lab, BLOCK_SIZE), list(range(28))).block_hashes)
    expect_hashes(lab, "hashes of a request that came with all 28 tokens", "abcdefg", prompt, rule=10)
    found = letters(grown.block_hashes)
    expect_hashes(lab, "hashes of the one that grew to the same 28 tokens", "abcdefg", found, rule=10)
    meter = Meter(sha256)
    request(make_hasher(lab, BLOCK_SIZE, meter), [7] * 400)
    if meter.sizes[-1] > 2 * meter.sizes[-99]:
        why = "the parent's hash stands for all the tokens before the block; they need not be hashed again"
        lab.fail("bytes hashed for the 100th block", "as many as for the 2nd", InWords("more than twice as many"), why)


@points(3, "frame", rule=1)
def test_5_fields_can_be_told_apart_again(lab: LabUnderTest) -> None:
    """ "ab" and "c" are not "a" and "bc", and no field is not an empty one."""
    fields: list[tuple[bytes, ...]] = [
        (), (b"",), (b"", b""), (b"abc",), (b"ab", b"c"), (b"a", b"bc"), (b"a", b"b", b"c"), (b"", b"abc"),
        (b"abc", b""),
    ]  # fmt: skip
    expect_different(lab, {call("frame", *some): lab.frame(*some) for some in fields})
    same = [lab.frame(one := b"ab", one), lab.frame(one, bytes(bytearray(one)))]
    expect_hashes(lab, "frame of b'ab' twice, and of b'ab' and its copy", "aa", Letters()(same), SAME_VALUES)


@points(3, "encode_extra_keys", rule=2)
def test_6_facts_can_be_told_apart_again(lab: LabUnderTest) -> None:
    """The text "1" is not the number 1. One fact with two values is not two facts. An adapter is not a salt."""
    keys: list[list[tuple[str | int, ...]]] = [
        [], [()], [("",)], [("", "")], [("",), ("",)],
        [("a", "b")], [("b", "a")], [("a",), ("b",)], [("b",), ("a",)], [("ab",)], [("a",)], [("a",), ()],
        [("lora", "X")], [("cache_salt", "X")], [("lora", "ab", "c")], [("lora", "a", "bc")],
        [("mm", "cat", 1)], [("mm", "cat", "1")], [("mm", "cat", 11)], [("mm", "cat", 1, 1)], [("mm", "cat1")],
    ]  # fmt: skip
    expect_different(lab, {call("encode_extra_keys", some): lab.encode_extra_keys(some) for some in keys})
    same = [lab.encode_extra_keys([("a", 1)]), lab.encode_extra_keys((("a", 1),))]
    expect_hashes(
        lab, "bytes of [('a', 1)] and of (('a', 1),)", "aa", Letters()(same), why="a list and a tuple give equal bytes"
    )
    same = [lab.encode_extra_keys([("sql", "sql")]), lab.encode_extra_keys([("sql", "".join("sql"))])]
    expect_hashes(lab, "bytes of 'sql' twice, and of 'sql' and its copy", "aa", Letters()(same), SAME_VALUES)


@points(2, "hash_block_tokens", rule=5, why="other weights or another image are other KV")
def test_7_extra_keys_are_part_of_the_hash(lab: LabUnderTest) -> None:
    """With one parent and the same tokens, another adapter or another image gives another hash."""
    keys: list[list[tuple[str | int, ...]]] = [
        [],
        [("lora", "sql", "/7")],
        [("lora", "sql", "/8")],
        [("mm", "cat", 0)],
        [("mm", "cat", 1)],
        [("mm", "dog", 0)],
        [("lora", "sql", "/7"), ("mm", "cat", 0)],
    ]
    hashes = {f"hash of 1 2 3 4 with {some}": hash_block(lab, sha256, PARENT, [1, 2, 3, 4], some) for some in keys}
    expect_different(lab, hashes)
    nothing: list[tuple[Any, ...]] = [([],), ((),), ()]
    plain = [hash_block(lab, sha256, PARENT, [1, 2, 3, 4], *arguments) for arguments in nothing]
    expect_hashes(lab, "hashes of 1 2 3 4 with [], with (), without extra keys", "aaa", Letters()(plain))


@points(4, "generate_block_hash_extra_keys", rule=8, why="an adapter is in every block, an image in some")
def test_8_what_else_decides_a_block(lab: LabUnderTest) -> None:
    """An adapter is in each block, an image only in the blocks that it covers.

    tokens    0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15
    images        c c   c c       d d  d  d
    """
    images = [MultiModalFeature("cat", 2, 4), MultiModalFeature("dog", 8, 4)]
    adapter = ("lora", "sql", "/adapters/7")
    blocks = [(0, 4), (4, 8), (8, 12), (12, 16)]
    want: list[list[Any]] = [[("mm", "cat", 2)], [("mm", "cat", -2)], [("mm", "dog", 0)], []]

    plain = Request("A", range(16), mm_features=images)
    adapted = Request("B", range(16), mm_features=images, lora_request=LoRARequest("sql", "/adapters/7"))
    for (start, end), keys in zip(blocks, want, strict=True):
        got = lab.generate_block_hash_extra_keys(plain, start, end)
        lab.expect(f"extra keys of the tokens {start} to {end - 1}, no adapter", keys, got)
        got = lab.generate_block_hash_extra_keys(adapted, start, end)
        lab.expect(f"extra keys of the tokens {start} to {end - 1} with an adapter", [adapter, *keys], got)


@points(3, "root_block_hash", rule=7, why="the root is in all hashes after it")
def test_9_each_namespace_has_a_root_of_its_own(lab: LabUnderTest) -> None:
    """Similar salts, models and epochs have different roots."""
    hashes = {}
    for salt, model, epoch in itertools.product((None, "", "0", "m", "ma"), ("", "0", "m", "am"), (0, 1, 10)):
        root = lab.root_block_hash(sha256, salt, model, epoch)
        hashes[f"root of salt {salt!r}, model {model!r}, epoch {epoch}"] = root
    expect_different(lab, hashes)
    lab.expect("bytes in a root made with sha512", 64, len(checked(lab, "root", lab.root_block_hash(sha512))))
    again = [lab.root_block_hash(sha256, cache_salt="s") for _ in range(2)]
    expect_hashes(lab, "roots of one namespace, asked for twice", "aa", Letters()(again))


@points(3, "get_request_block_hasher", rule=10, why="a fact left out shares a block by mistake")
def test_10_what_decides_the_kv_decides_the_hash(lab: LabUnderTest) -> None:
    """One prompt of three blocks, with several salts, adapters, images and models. Which hashes are equal?"""
    letters = Letters()
    rows: list[tuple[str, object, object, str]] = []

    def expect(circumstance: str, want: str, *namespace: Any, why: str = "", **options: Any) -> None:
        hasher = make_hasher(lab, BLOCK_SIZE, sha256, *namespace)
        found = letters(request(hasher, list(range(12)), **options).block_hashes)
        what = f"hashes of 0 to 11 {circumstance}; a b c is what it has with nothing else (one letter, one hash)"
        rows.append((what, list(want), found, why))

    expect("with nothing else", "abc")
    why = "a hash that contains the request's id equals no other request's hash, so there is never a hit"
    expect("once more, in a request of another id", "abc", request_id="B", why=why)
    expect("with the salt X", "def", cache_salt="X")
    expect("with the adapter X", "ghi", lora_request=LoRARequest("X", ""))
    expect("with the adapter X from /new", "jkl", lora_request=LoRARequest("X", "/new"))
    expect("with a cat at 5, in the second block", "amn", mm_features=[MultiModalFeature("cat", 5, 2)])
    expect("with a dog at 5", "aop", mm_features=[MultiModalFeature("dog", 5, 2)])
    expect("with the cat one token later", "aqr", mm_features=[MultiModalFeature("cat", 6, 2)])
    expect("with the model M", "stu", "M")
    expect("with the model M, weights of epoch 1", "vwx", "M", 1)
    roots = Letters()([lab.root_block_hash(sha256, salt) for salt in (None, "X")])
    rows.append(("roots without a salt and with the salt X (one letter, one hash)", ["a", "b"], roots, ""))
    lab.expect_all(rows)


@points(2, "get_request_block_hasher", rule=6, why="begin with the first that differs")
def test_11_another_process_gives_the_same_hashes(lab: LabUnderTest) -> None:
    """Python's own hash has a random seed in each process. A block hash must have none."""
    letters = Letters()
    here = letters(some_hashes(lab))
    expect_hashes(
        lab, "hashes of a root, a block, a block with an adapter, and of a request's two blocks", "abcde", here
    )
    if sys.platform == "emscripten":
        return  # a browser has one process
    what = "hashes of a root, a block, a block with an adapter, and of a request's two blocks, in another process"
    expect_hashes(lab, what, "abcde", letters(in_another_process(lab, some_hashes)))


@points(2, "make_block_hash_with_group_id", rule=12)
def test_12_each_group_has_a_key_of_its_own(lab: LabUnderTest) -> None:
    """The key is the hash, then the group in 4 bytes. The engine can split it again."""
    for group_id, tail in ((0, b"\0\0\0\0"), (1, b"\0\0\0\1"), (258, b"\0\0\1\2")):
        key = lab.make_block_hash_with_group_id(b"hash", group_id)
        lab.expect(f"key of b'hash' in group {group_id}", b"hash" + tail, key, why="4 bytes, big-endian, as in vLLM")
    key = lab.make_block_hash_with_group_id(PARENT, 2**20)
    lab.expect("hash and group, read back", [PARENT, 2**20], [get_block_hash(key), get_group_id(key)])


# The adversary ------------------------------------------------------------------------------------------------------


@points(2, "hash_block_tokens", rule=5, stage="adversary", why="give all tokens one width")
def test_tokens_of_any_size_stay_apart(lab: LabUnderTest) -> None:
    """65 and 321 have different hashes, and so have 1, 11 and 11, 1: a token needs more than one byte or two."""
    blocks = [
        [65, 1], [321, 1], [65 + 2**16, 1], [65 + 2**24, 1], [1, 11], [11, 1], [111, 0], [11, 10],
        [258, 1, 1, 1], [2, 257, 1, 1], [513, 1], [1, 513], [1, 2, 1],
        [0, 0], [0], [0, 0, 0], [256, 0], [0, 1], [1, 0], [2**31, 0], [2**32 - 1, 0], [0, 2**32 - 1],
    ]  # fmt: skip
    expect_different(lab, {f"hash of {block}": hash_block(lab, sha256, PARENT, block) for block in blocks})


@points(1, "hash_block_tokens", rule=5, stage="adversary", why="frame them apart")
def test_no_tokens_spell_an_adapter(lab: LabUnderTest) -> None:
    """Tokens whose bytes are those of an adapter, before a block or after it, do not give the adapter's hash."""
    tokens = [5, 6, 7, 8]
    for padding in range(4):
        adapter = [("lora", "x" * padding, "/7")]
        encoded = checked(lab, "what encode_extra_keys returned", lab.encode_extra_keys(adapter))
        if len(encoded) % 4 == 0:
            victim = hash_block(lab, sha256, PARENT, tokens, adapter)
            for order in "<>":
                spelt = list(struct.unpack(f"{order}{len(encoded) // 4}I", encoded))
                for forged in (spelt + tokens, tokens + spelt):
                    what = f"hashes of 5 6 7 8 with an adapter, and of {len(forged)} tokens that spell it, without one"
                    hashes = [victim, hash_block(lab, sha256, PARENT, forged)]
                    expect_hashes(lab, what, "ab", Letters()(hashes))


@points(1, "hash_block_tokens", rule=6, stage="adversary")
def test_hashes_depend_on_values_only(lab: LabUnderTest) -> None:
    """Tokens in a list, a tuple, an array or as NumPy-like integers have one hash, and so have equal texts."""

    class NumPyLike(int):
        def __repr__(self) -> str:
            return f"np.int64({int(self)})"

        __str__ = int.__repr__

    tokens = [7, 0, 2**31, 5]
    kinds = [tokens, tuple(tokens), array.array("Q", tokens), [NumPyLike(token) for token in tokens]]
    hashes = [hash_block(lab, sha256, PARENT, kind) for kind in kinds]
    expect_hashes(lab, "hashes of a block as a list, a tuple, an array, NumPy-like integers", "aaaa", Letters()(hashes))
    texts = [[("sql", "sql")], [("sql", "".join("sql"))]]
    hashes = [hash_block(lab, sha256, PARENT, tokens, keys) for keys in texts]
    expect_hashes(lab, "hashes with the key 'sql' twice, and 'sql' and its copy", "aa", Letters()(hashes), SAME_VALUES)


@points(1, "hash_block_tokens", rule=6, stage="adversary", why="the recipe sets the byte order")
def test_a_machine_of_the_other_byte_order_agrees(lab: LabUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is the same where `sys.byteorder` and the default of `struct.pack` are the other byte order."""
    hashes = [hash_block(lab, sha256, PARENT, [1, 2, 3, 4], [("mm", "cat", 2)])]
    other, mark = ("big", ">") if sys.byteorder == "little" else ("little", "<")
    pack = struct.pack

    def pack_there(format: str, *values: Any) -> bytes:
        return pack(format if format[:1] in ("<", ">", "!") else mark + format.lstrip("@="), *values)

    with monkeypatch.context() as machine:
        machine.setattr(sys, "byteorder", other)
        machine.setattr(struct, "pack", pack_there)
        there = lab.hash_block_tokens(sha256, PARENT, [1, 2, 3, 4], [("mm", "cat", 2)])
    hashes.append(checked(lab, "hash", there))
    expect_hashes(lab, "hashes of a block on a little-endian and on a big-endian machine", "aa", Letters()(hashes))


@points(2, "hash_block_tokens", rule=4, stage="adversary", why="the given function makes the hash")
def test_sixteen_bits_are_soon_used_up(lab: LabUnderTest) -> None:
    """Of some hundreds of prompts, two share a 16-bit hash. Comparing a block's own tokens does not detect it.

    An index compares each block's own tokens before it trusts a hash. P and S = 5 6 7 8 after it are computed. Then Q,
    which has P's hash, is looked up: its tokens differ, so it is computed, and the index has Q under that hash from
    then on. Last, Q with S after it is looked up.
    """
    p, q = first_collision(lab, sixteen_bits)
    s = [5, 6, 7, 8]
    given = []
    for function in (sixteen_bits, sha256):
        name_p, name_q = hash_block(lab, function, PARENT, p), hash_block(lab, function, PARENT, q)
        name_ps, name_qs = hash_block(lab, function, name_p, s), hash_block(lab, function, name_q, s)
        index = {name_p: ("P", p), name_ps: ("S after P", s)}
        index[name_q] = ("Q", q)
        found = [index[key] for key, tokens in ((name_q, q), (name_qs, s)) if index.get(key, ("", []))[1] == tokens]
        given.append([block for block, _ in found])
    lab.expect(
        "the blocks that Q with S after it is given, with 16 bits and with SHA-256",
        [["Q", "S after P"], ["Q"]],
        given,
        why="P and Q share a hash, so S after P and S after Q do; the check of S's tokens does not compare P and Q",
    )


@points(1, "hash_block_tokens", rule=5, stage="adversary", why="the order of blocks counts")
def test_the_order_of_blocks_counts(lab: LabUnderTest) -> None:
    """A B C, B A C, C alone and A A C have four last hashes."""
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
    hashes = []
    for chain in ([a, b, c], [b, a, c], [c], [a, a, c], [a, b, c]):
        last = PARENT
        for block in chain:
            last = hash_block(lab, sha256, last, block)
        hashes.append(last)
    expect_hashes(lab, "last hashes of A B C, B A C, C, A A C, A B C", "abcda", Letters()(hashes))


@points(1, "frame", rule=1, stage="adversary", why="a field may contain any bytes")
def test_no_field_looks_like_two(lab: LabUnderTest) -> None:
    """Long fields, separators, lengths in digits, and a field that is itself a frame are all different."""
    framed = checked(lab, "what frame returned", lab.frame(b"a", b"b"))
    half = framed[: len(framed) // 2]
    long = checked(lab, "what frame returned", lab.frame(b"y" * 255))
    plain = [(b"a", b"b"), (b"1a8bbbbbbbb",), (b"1", b"a", b"bbbbbbbb")]
    for mark in (b"\0", b",", b"|", b":", b"\n", b" ", b"\x1f", b"\xff", b"\\"):
        plain += [(b"a" + mark + b"b",), (b"a" + mark, b"b"), (b"a", mark + b"b"), (b"a", mark, b"b")]
        plain += [(b"a" + 2 * mark + b"b",), (b"a" + 3 * mark + b"b",)]
    fields: dict[str, tuple[bytes, ...]] = {call("frame", *some): some for some in plain}
    fields |= {
        "frame(frame(b'a', b'b'))": (framed,),
        "frame of both halves of frame(b'a', b'b')": (half, framed[len(half) :]),
        "frame(frame(frame(b'a', b'b')))": (checked(lab, "what frame returned", lab.frame(framed)),),
        "frame(b'', 255 * b'y')": (b"", 255 * b"y"),
        "frame(frame(255 * b'y'))": (long,),
        "frame(70_000 * b'x')": (70_000 * b"x",),
    }
    expect_different(lab, {label: lab.frame(*some) for label, some in fields.items()})


@points(1, "encode_extra_keys", rule=3, stage="adversary", why="clients choose texts")
def test_every_text_and_number_has_bytes_of_its_own(lab: LabUnderTest) -> None:
    """Texts that UTF-8 refuses, accents in two spellings, quotes, numbers below zero and beyond 64 bits all differ."""
    texts = [
        "", "?", "\ufffd", "\ud800", "\udc00", "\\ud800", "\U00010000", "\ud800\udc00", "é", "e\u0301", '"', "',", "0",
    ]  # fmt: skip
    numbers = [0, 1, -1, -2, 255, 256, 2**31, -(2**31), 2**32, 2**32 + 1, 2**63, -(2**63), 2**64, 2**64 + 1, -(10**30)]
    keys: list[tuple[str | int, ...]] = [("mm", number) for number in numbers] + [("mm", text) for text in texts]
    for mark in ("", "s", "i", "str", "int", "s:", "i:", "\0", ",", "|", ":", "/", "', '", '", "', "\n"):
        keys += [(f"a{mark}b",), (f"a{mark}", "b"), (f"a{mark}1",), ("a", f"{mark}1")]
    keys += [("a", "sb"), ("a", 1)]
    for some in (dict.fromkeys(keys[:6]), dict.fromkeys(keys)):
        expect_different(lab, {call("encode_extra_keys", [key]): lab.encode_extra_keys([key]) for key in some})


@points(1, "generate_block_hash_extra_keys", rule=8, stage="adversary")
def test_images_of_any_size_and_place(lab: LabUnderTest) -> None:
    """All small images in all small blocks. Their identifiers begin and end alike."""
    ids = ["c0ffee" * 8 + "0000" + "beef" * 4, "c0ffee" * 8 + "1111" + "beef" * 4]
    for start, size, offset, length in itertools.product((0, 3, 4), (1, 3, 4), range(10), (1, 2, 9)):
        images = [MultiModalFeature(ids[0], offset, length), MultiModalFeature(ids[1], offset + length, 2)]
        a = Request("A", range(24), mm_features=images)
        want = [
            ("mm", image.identifier, image.offset - start)
            for image in images
            if set(range(start, start + size)) & set(range(image.offset, image.offset + image.length))
        ]
        places = f"[{offset}, {offset + length}) and [{offset + length}, {offset + length + 2})"
        what = f"extra keys of the block [{start}, {start + size}), images at {places}"
        lab.expect(what, want, lab.generate_block_hash_extra_keys(a, start, start + size))


@points(1, "get_request_block_hasher", rule=10, stage="adversary", why="a hasher reads its state from the request")
def test_one_hasher_serves_all_requests(lab: LabUnderTest) -> None:
    """A and B grow in turns. C is made with A's first two hashes."""
    letters = Letters()
    hasher = make_hasher(lab, BLOCK_SIZE)
    a, b = request(hasher, [1] * 5), request(hasher, [2] * 5)
    for _ in range(4):
        a.append_output_token_ids(1, 1)
        b.append_output_token_ids(2, 2)
    expect_hashes(lab, "hashes of A, which grew while B did", "abc", letters(a.block_hashes))
    expect_hashes(lab, "hashes of B, which grew while A did", "def", letters(b.block_hashes))
    alone = request(make_hasher(lab, BLOCK_SIZE), [2] * 13)
    expect_hashes(lab, "hashes of B's 13 tokens with a hasher of their own", "def", letters(alone.block_hashes))
    c = Request("C", [1] * 13, block_hashes=a.block_hashes[:2], block_hasher=hasher)
    expect_hashes(lab, "hashes of C, made with A's first two", "abc", letters(c.block_hashes))


# The property -------------------------------------------------------------------------------------------------------


@points(
    3,
    "get_request_block_hasher",
    rule=10,
    stage="property",
    after="test_3_only_full_blocks_have_hashes",
    why="see `content`",
)
def test_random_requests_share_exactly_what_they_may(lab: LabUnderTest) -> None:
    """In forty small random crowds of requests, two blocks have one hash exactly if their content is the same."""
    for seed in seeds(40):
        check_life(
            lab, partial(play, lab), random_crowd(random.Random(seed)), f"in the crowd of seed {seed}, shortened to"
        )
