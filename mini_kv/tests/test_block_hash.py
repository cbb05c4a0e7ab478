"""Block hashes: the recipe, byte by byte, and that no two prefixes share one."""

import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_kv.core.block import BlockHash
from mini_kv.core.block_hash import (
    HASH_FUNCTIONS,
    NONE_HASH,
    ExtraKey,
    encode_extra_keys,
    frame,
    generate_block_hash_extra_keys,
    get_block_hash,
    get_group_id,
    get_hash_function,
    get_request_block_hasher,
    hash_block_tokens,
    make_block_hash_with_group_id,
    root_block_hash,
    sha256,
    xxh3_128,
)
from mini_kv.core.errors import ConfigError, KVCacheError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import LoRARequest, MultiModalFeature, Request
from mini_kv.core.token_ids import pack_token_ids

GOLDEN_FILE = Path(__file__).with_name("golden_block_hashes.json")
GOLDEN: list[dict[str, Any]] = json.loads(GOLDEN_FILE.read_text(encoding="ascii"))


def engine_hashes(case: dict[str, Any]) -> list[str]:
    """Return the engine's hashes of a golden case's blocks."""
    hasher = get_request_block_hasher(
        case["block_size"], get_hash_function(case["hash"]), case["model_fingerprint"], case["weights_epoch"]
    )
    request = Request(
        "golden",
        case["token_ids"],
        block_hasher=hasher,
        cache_salt=case["cache_salt"],
        lora_request=LoRARequest(*case["lora"]) if case["lora"] else None,
        mm_features=[MultiModalFeature(*image) for image in case["images"]],
    )
    return [name.hex() for name in request.block_hashes]


def from_scratch_hashes(case: dict[str, Any]) -> list[str]:
    """Return the same hashes by a second implementation, from the recipe's words and nothing of the engine.

    A field is its length, 4 bytes little-endian, then its bytes. A value is a field: "s" and UTF-8 (lone surrogates as
    they are), or "i" and decimal digits. A fact is a field of values, its tag first. The root is the digest of the
    version as a field and of all facts of the namespace as one field. A block is the digest of the digest before it,
    its facts as one field, and its tokens as 4 bytes little-endian each.
    """
    digest: Callable[[bytes], bytes] = (
        xxh3_128 if case["hash"] == "xxh3_128" else lambda data: hashlib.sha256(data).digest()
    )

    def field(data: bytes) -> bytes:
        return len(data).to_bytes(4, "little") + data

    def fact(*values: str | int) -> bytes:
        parts = b""
        for value in values:
            if isinstance(value, str):
                parts += field(b"s" + value.encode("utf-8", "surrogatepass"))
            else:
                parts += field(b"i" + str(value).encode("ascii"))
        return field(parts)

    namespace = b"" if case["cache_salt"] is None else fact("cache_salt", case["cache_salt"])
    namespace += fact("model", case["model_fingerprint"]) + fact("epoch", case["weights_epoch"])
    parent = digest(field(b"mini_kv block hash v1") + field(namespace))
    hashes, size = [], case["block_size"]
    for start in range(0, len(case["token_ids"]) - size + 1, size):
        facts = fact("lora", *case["lora"]) if case["lora"] else b""
        for identifier, offset, length in case["images"]:
            if any(start <= position < start + size for position in range(offset, offset + length)):
                facts += fact("mm", identifier, offset - start)
        tokens = b"".join(struct.pack("<I", token) for token in case["token_ids"][start : start + size])
        parent = digest(parent + field(facts) + tokens)
        hashes.append(parent.hex())
    return hashes


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden_vectors(case: dict[str, Any]) -> None:
    """A key written today is found tomorrow: the file holds what the recipe gave when it was fixed."""
    assert case["block_hashes"] == from_scratch_hashes(case) == engine_hashes(case)
    assert len(case["block_hashes"]) == len(case["token_ids"]) // case["block_size"] > 0


def test_golden_names_are_all_different() -> None:
    """Each case changes one thing, so each has hashes of its own."""
    hashes = [name for case in GOLDEN for name in case["block_hashes"]]
    assert len(set(hashes)) == len(hashes)


def test_none_hash_is_fixed() -> None:
    """The root of the empty namespace, spelled out: upstream's was random once, and no two processes agreed."""
    assert NONE_HASH == root_block_hash(sha256) == root_block_hash(sha256, None, "", 0)
    assert NONE_HASH.hex() == "2f217a671dbc40ff996767d24d7cf2fa121f07f88b9f271c8df9ed1ab2338afd"


@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_gives_the_same_hashes(seed: str) -> None:
    """Python's own hash differs from process to process; a block's hash does not."""
    script = (
        "import json; from mini_kv.core.block_hash import *; from mini_kv.core.request import Request; "
        "r = Request('A', list(range(8)), block_hasher=get_request_block_hasher(4), cache_salt='s'); "
        "print(json.dumps([name.hex() for name in r.block_hashes]))"
    )
    root = str(Path(__file__).parents[2])
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    here = Request("A", list(range(8)), block_hasher=get_request_block_hasher(4), cache_salt="s")
    assert json.loads(output) == [name.hex() for name in here.block_hashes]


def hashed(token_ids: Sequence[int], block_size: int = 4, **options: Any) -> list[BlockHash]:
    return Request("A", token_ids, block_hasher=get_request_block_hasher(block_size), **options).block_hashes


class Index:
    """An integer of another type, as NumPy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def integer_types() -> list[Callable[[int], Any]]:
    types: list[Callable[[int], Any]] = [int, Index]
    try:
        import numpy as np
    except ImportError:  # the engine does not need it; Index stands for it
        return types
    return [*types, np.int64, np.int32, np.uint32]


@pytest.mark.parametrize("integer", integer_types())
def test_names_depend_on_values_only(integer: Callable[[int], Any]) -> None:
    """str() of a token differs between int and np.int64, and so did the keys of one tutorial."""
    token_ids = [integer(token) for token in (7, 0, 2**31 - 1, 5)]
    assert hashed(token_ids) == hashed([7, 0, 2**31 - 1, 5])


def test_extra_keys_of_a_block() -> None:
    """The adapter counts in every block, an image in those that it overlaps, with its place in them."""
    request = Request(
        "A",
        [0] * 16,
        lora_request=LoRARequest("sql", "/adapters/7"),
        mm_features=[MultiModalFeature("cat", 2, 4), MultiModalFeature("dog", 8, 4)],
    )
    # tokens    0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 ...
    # images        c c   c c       d d  d  d
    adapter = ("lora", "sql", "/adapters/7")
    blocks = [generate_block_hash_extra_keys(request, start, start + 4) for start in (0, 4, 8, 12)]
    assert blocks == [
        [adapter, ("mm", "cat", 2)],
        [adapter, ("mm", "cat", -2)],
        [adapter, ("mm", "dog", 0)],
        [adapter],
    ]


def test_what_else_decides_the_kv_changes_the_name() -> None:
    """Same tokens, and each of these facts differs: no two of the hashes are equal (I13)."""
    lora, image = LoRARequest, MultiModalFeature
    namespaces: list[dict[str, Any]] = [
        {},
        {"cache_salt": ""},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"lora_request": lora("a", "")},
        {"lora_request": lora("", "a")},
        {"lora_request": lora("ab", "c")},
        {"lora_request": lora("a", "bc")},
        {"cache_salt": "a", "lora_request": lora("a", "")},
        {"mm_features": [image("a", 0, 1)]},
        {"mm_features": [image("a", 1, 1)]},
        {"mm_features": [image("b", 0, 1)]},
        {"mm_features": [image("a", 0, 1), image("b", 1, 1)]},
        {"mm_features": [image("b", 0, 1), image("a", 1, 1)]},
    ]
    hashes = [hashed([1, 2, 3, 4], **namespace)[0] for namespace in namespaces]
    roots = [
        root_block_hash(sha256, salt, model, epoch)
        for salt, model, epoch in itertools.product((None, "", "0", "m"), ("", "0", "m"), (0, 1, 10))
    ]
    assert len(set(hashes)) == len(namespaces)
    assert len(set(roots)) == 36


def test_an_image_changes_nothing_before_it() -> None:
    """What precedes the image is shared with prompts that have none; what follows is not, by the chain."""
    plain = hashed([1] * 12)
    with_image = hashed([1] * 12, mm_features=[MultiModalFeature("cat", 5, 2)])
    assert [a == b for a, b in zip(plain, with_image, strict=True)] == [True, False, False]


def test_the_whole_prefix_is_in_the_hash() -> None:
    """One token changed: its block and all that follow have other hashes, those before the same."""
    plain = hashed([1] * 12)
    for position in range(12):
        other = hashed([2 if index == position else 1 for index in range(12)])
        same = [a == b for a, b in zip(plain, other, strict=True)]
        assert same == [index < position // 4 for index in range(3)]


def test_only_full_blocks_have_hashes() -> None:
    """7 tokens in blocks of 4: one hash."""
    assert [len(hashed([1] * number)) for number in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_fast_hasher_equals_its_slow_twin(block_size: int) -> None:
    """The hasher packs once and slices; `hash_block_tokens` takes block by block; and growth gives the same hashes."""
    options: dict[str, Any] = {
        "cache_salt": "salt",
        "lora_request": LoRARequest("sql", "/7"),
        "mm_features": [MultiModalFeature("cat", 5, 20)],
    }
    tokens = [(token * 2654435761) % 2**32 for token in range(70)]
    hasher = get_request_block_hasher(block_size, sha256, "model", 3)
    request = Request("A", tokens[:1], block_hasher=hasher, **options)
    for token in tokens[1:]:
        request.append_output_token_ids(token)

    parent, hashes = root_block_hash(sha256, "salt", "model", 3), []
    for start in range(0, 70 - block_size + 1, block_size):
        extras = generate_block_hash_extra_keys(request, start, start + block_size)
        parent = hash_block_tokens(sha256, parent, tokens[start : start + block_size], extras)
        hashes.append(parent)

    assert request.block_hashes == hashes
    assert Request("B", tokens, block_hasher=hasher, **options).block_hashes == hashes
    assert hasher(request) == []


def test_a_hash_with_lookahead_covers_the_next_token_and_waits_for_it() -> None:
    """Twelve tokens are three blocks, and the last of them has no next token yet; an image behind a block counts."""
    hasher = get_request_block_hasher(4, num_hash_lookahead_tokens=1)
    cat = MultiModalFeature("cat", 4, 2)
    request = Request("A", range(12), block_hasher=hasher, mm_features=[cat])
    slow = [hash_block_tokens(sha256, NONE_HASH, range(4), [("mm", "cat", 4), ("lookahead", 4)])]
    slow.append(hash_block_tokens(sha256, slow[0], range(4, 8), [("mm", "cat", 0), ("lookahead", 8)]))
    assert request.block_hashes == slow
    request.append_output_token_ids(99)
    assert request.block_hashes == [*slow, hash_block_tokens(sha256, slow[1], range(8, 12), [("lookahead", 99)])]


def test_a_hasher_of_no_model_in_particular_starts_from_none_hash() -> None:
    """Left out, fingerprint and epoch are those of the empty namespace, not of another one."""
    assert hashed([1, 2, 3, 4]) == [hash_block_tokens(sha256, NONE_HASH, [1, 2, 3, 4])]


def test_growth_hashes_new_blocks_only() -> None:
    """A request that decodes for an hour hashes each block once."""
    calls = []

    def counting(data: bytes) -> bytes:
        calls.append(data)
        return sha256(data)

    request = Request("A", [1] * 40, block_hasher=get_request_block_hasher(4, counting))
    assert len(calls) == 11  # the root and 10 blocks
    request.append_output_token_ids(1, 1, 1)
    request.append_output_token_ids(1)
    assert len(calls) == 12


# Framing: what can be read back cannot be mistaken for something else.


def unframe(data: bytes) -> list[bytes]:
    fields = []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        assert len(data) >= end
        fields.append(data[4:end])
        data = data[end:]
    return fields


def decode_extra_keys(data: bytes) -> list[ExtraKey]:
    def value(field: bytes) -> str | int:
        text = field[1:]
        return text.decode("utf-8", "surrogatepass") if field[:1] == b"s" else int(text)

    return [tuple(value(field) for field in unframe(key)) for key in unframe(data)]


any_text = st.text(st.characters(exclude_categories=[]), max_size=5)  # lone surrogates too
extra_keys = st.lists(st.lists(any_text | st.integers(), max_size=4).map(tuple), max_size=4)
tokens_of_a_block = st.lists(st.integers(0, 2**32 - 1), max_size=5)


@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=5))
def test_framed_fields_can_be_told_apart_again(fields: list[bytes]) -> None:
    """frame() has an inverse, so two lists of fields never become the same bytes."""
    assert unframe(frame(*fields)) == fields


@settings(derandomize=True, database=None, deadline=None)
@given(extra_keys)
def test_extra_keys_can_be_read_back(keys: list[ExtraKey]) -> None:
    """The encoding has an inverse: no adapter can be called so that it looks like a salt, or like two facts."""
    assert decode_extra_keys(encode_extra_keys(keys)) == keys


@settings(derandomize=True, database=None, deadline=None)
@given(st.binary(min_size=32, max_size=32), tokens_of_a_block, extra_keys)
def test_a_blocks_bytes_can_be_read_back(parent: bytes, token_ids: list[int], keys: list[ExtraKey]) -> None:
    """The bytes that go into the digest give back parent, extras and tokens: equal digests mean equal inputs."""
    data = hash_block_tokens(lambda data: data, BlockHash(parent), token_ids, keys)
    length = int.from_bytes(data[32:36], "little")
    packed = data[36 + length :]
    assert data[:32] == parent
    assert decode_extra_keys(data[36 : 36 + length]) == keys
    assert [item[0] for item in struct.iter_unpack("<I", packed)] == token_ids


def test_strings_and_integers_never_look_alike() -> None:
    """The text "1" and the number 1, the empty text and no text, one pair and two singles: all different bytes."""
    alike: list[list[ExtraKey]] = [
        [], [()], [("",)], [("", "")], [("",), ("",)], [(1,)], [("1",)], [("i1",)], [(-1,)], [("-1",)], [(11,)],
        [(1, 1)], [(1,), (1,)], [("ab", "c")], [("a", "bc")], [("abc",)], [("a",), ("bc",)], [("é",)], [("e\u0301",)],
        [("\ud800",)], [("\udc00",)], [("\U00010000",)], [("\ud800\udc00",)],
    ]  # fmt: skip
    assert len({encode_extra_keys(keys) for keys in alike}) == len(alike)


def test_tokens_have_a_fixed_width() -> None:
    """Little-endian, 4 bytes each, on every platform: 1, 11 is not 11, 1 and not 111."""
    assert pack_token_ids([1, 256, 2**32 - 1]) == bytes([1, 0, 0, 0, 0, 1, 0, 0, 255, 255, 255, 255])
    assert pack_token_ids([]) == b""


# Keys of the index, and the choice of the digest.


def test_each_group_has_a_key_of_its_own() -> None:
    """One prefix, two groups of layers: other KV, other key; both parts can be read back."""
    name = BlockHash(sha256(b"prefix"))
    keys = [make_block_hash_with_group_id(name, group_id) for group_id in (0, 1, 258)]
    assert [key[-4:] for key in keys] == [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\1\2"]
    assert [get_group_id(key) for key in keys] == [0, 1, 258]
    assert [get_block_hash(key) for key in keys] == [name] * 3


def test_choice_of_the_digest() -> None:
    """Two functions by name, and an error that hashes them."""
    assert {name: len(get_hash_function(name)(b"")) for name in HASH_FUNCTIONS} == {"sha256": 32, "xxh3_128": 16}
    with pytest.raises(ConfigError) as error:
        get_hash_function("md5")
    assert "['sha256', 'xxh3_128']" in str(error.value)
    assert isinstance(error.value, KVCacheError)


def test_a_digest_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when the cache is built, with the command that helps; the default needs nothing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        get_hash_function("xxh3_128")
    assert str(error.value).startswith("xxh3_128 needs ")
    assert str(error.value).endswith("pip install xxhash")
    assert get_hash_function("sha256") is sha256


def test_a_digest_that_can_be_forged_is_for_one_tenant() -> None:
    """A tenant who can make xxh3 collide could read another's cache: it is refused together with a salt."""
    kv = KVCacheManager.for_full_attention(num_blocks=4, block_size=2, hash_name="xxh3_128")
    assert [len(name) for name in kv.new_request("A", [1, 2]).block_hashes] == [16]
    with pytest.raises(ConfigError, match="xxh3_128 is for a single tenant"):
        kv.new_request("B", [1, 2], cache_salt="tenant")
