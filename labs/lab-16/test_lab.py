"""lab-16: break it, then defend it. Read the numbered tests in order.

Each attack runs twice: on a small server with one naive function, where it succeeds, and on one with yours. The other
functions of both servers are ideal, so only the function under test decides. The attacks are in helpers.py.
"""

import hashlib
import hmac
import io
from collections.abc import Sequence
from itertools import product

from mini_kv.course import points
from mini_kv.course.given.toy_server import ITEM_BYTES, ExtraKey, Layout
from mini_kv.course.labkit.fixture import InWords, LabUnderTest
from mini_kv.course.labkit.lives import seeds

from .helpers import (
    ATTACKS,
    DIGESTS,
    ONE_CRC,
    FailingFile,
    WatchedFile,
    attack,
    blocks_that_frames_join,
    call_checked,
    called_in,
    defence_with,
    expect_bits,
    expect_different,
    expect_none,
    expect_same_elsewhere,
    files_made_of,
    hit_rate,
    learners,
    lists_with_lengths_that_wrap,
    makes_an_hmac,
    names_by_extension,
    opened,
    pieces_of,
    sealed_sample,
    separators_of,
    shapes_of,
    weak,
    with_each_byte_changed,
    with_the_same_checksum,
)

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
PARENT = b"p" * 32
KEY, OTHER_KEY = b"k" * 36, b"k" * 35 + b"l"
LAYOUT = Layout("int8", (2, 4))
LARGE = Layout("int8", (256, 512))
FEW = [1, 2, 3, 4, 5]
ODD_TEXTS = ["?", "\\ud800", "\ufffd", "\ud800", "\udc00", "\U00010000", "é", "e\u0301"]
ALIKE_IN_UTF16 = ["\U00010000", "\ud800\udc00"]
LONG_TEXTS = [f"{'x' * size}{end}" for size in (64, 255, 256, 512, 65_536) for end in ("", "y")]
BLANKS = [b"\0", b" ", b"\t", b"\n", b"\r"]
WHY_NOT_UTF16 = "these are two Python texts that UTF-16 cannot tell apart"
WHY_NOT_REPLACED = "a text keeps all its characters: none is replaced, dropped or cut off"
SEPARATORS = [
    ":", ",", "=", "&", "\t", "::", ", ", ": ", "|", ";", "/", "\0", "\x1f", "\n", " ",
    "'", '"', "', '", '", "', "'), ('", "mm", "1", "2mm",
]  # fmt: skip


def kinds_opened(lab: LabUnderTest, files: Sequence[bytes], layout: Layout = LAYOUT) -> list[str]:
    """Return the types of the results for these files, other than that of `None`."""
    results = [opened(lab, io.BytesIO(each), SECRET, KEY, layout) for each in files]
    return sorted({type(each).__name__ for each in results} - {"NoneType"})


# The biography ------------------------------------------------------------------------------------------------------


@points(2, "derive_namespace", rule=1)
def test_1_a_namespace_is_the_same_each_time(lab: LabUnderTest) -> None:
    """Two calls for Ann. A namespace is the parent of her first block, and must be too long to guess."""
    one, two = (call_checked(lab, "derive_namespace", SECRET, "Ann", 1) for _ in range(2))
    if len(one) < 16:
        why = "a shorter one can be guessed, or is met twice"
        lab.fail("length of a namespace", InWords("16 bytes or more"), InWords(f"{len(one)} bytes"), why)
    lab.expect("two calls for Ann give one namespace", True, one == two)


@points(
    2,
    "derive_namespace",
    rule=2,
    after="test_1_a_namespace_is_the_same_each_time",
    why="a guess that is a hit takes less time",
)
def test_2_time_reveals_no_pin(lab: LabUnderTest) -> None:
    """Bob sends ten guesses for the next digit of Ann's PIN, and takes the fastest."""
    attack(lab, "PIN from the time", defence_with(lab, "derive_namespace"), FEW)


@points(2, "derive_namespace", rule=2, after="test_1_a_namespace_is_the_same_each_time")
def test_3_file_names_reveal_no_pin(lab: LabUnderTest) -> None:
    """Bob cannot read Ann's files. But he sees their names, and has the same software."""
    why = "Bob computed the name of Ann's file from a guess, without the server's secret"
    attack(lab, "PIN from file names", defence_with(lab, "derive_namespace"), FEW, why)


@points(
    2, "derive_namespace", rule=2, after="test_1_a_namespace_is_the_same_each_time", why="Ann got KV of the old weights"
)
def test_4_new_weights_find_no_old_kv(lab: LabUnderTest) -> None:
    """The weights change between two equal prompts."""
    attack(lab, "new weights, old KV", defence_with(lab, "derive_namespace"), FEW)


@points(2, "encode_extra_keys", rule=3, why="one request was given the KV of another")
def test_5_no_text_poses_as_an_adapter(lab: LabUnderTest) -> None:
    """A salt X, an image X and an adapter X. An adapter and an image whose texts are cut at another place."""
    attack(lab, "an adapter's alias", defence_with(lab, "encode_extra_keys"), FEW)


@points(3, "encode_extra_keys", rule=3, after="test_5_no_text_poses_as_an_adapter")
def test_6_every_list_of_extra_keys_has_bytes_of_its_own(lab: LabUnderTest) -> None:
    """No key, one key, two keys, two images in both orders, the same image twice."""
    lists = [
        [], [("lora", "X")], [("mm", "X")], [("cache_salt", "X")], [("lora", "")], [("mm", "")],
        [("lora", "X"), ("mm", "X")], [("mm", "X"), ("lora", "X")],
        [("mm", "cat"), ("mm", "dog")], [("mm", "dog"), ("mm", "cat")], [("mm", "cat")], [("mm", "dog")],
        [("mm", "cat"), ("mm", "cat")], [("mm", "catmm"), ("cat", "")],
        [("k", "x;y=z")], [("k", "x\\"), ("y\\", "z")], [("k", "x,y:z")], [("k", "x\\"), ("y", "z")],
        [("lora", "ab"), ("mm", "c")], [("lora", "a"), ("mm", "bc")], [("lora", "a"), ("mmb", "c")],
    ]  # fmt: skip
    expect_different(lab, "encode_extra_keys", [(each,) for each in lists], "two lists with equal bytes share KV")


@points(3, "hash_block", rule=4, why="of n possible hashes, the square root of n prompts are enough for a collision")
def test_7_no_two_prompts_have_one_hash(lab: LabUnderTest) -> None:
    """Bob tries 1,200 prompts. Of 65,536 hashes that is enough. Then the width is measured on 1,000 hashes."""
    attack(lab, "two prompts, one hash", defence_with(lab, "hash_block"), FEW)
    hashes = [call_checked(lab, "hash_block", PARENT, [first, 7, 7, 7], b"") for first in range(1_000)]
    why = "16 bits need 300 prompts, 64 bits five billion: an afternoon. 256 bits need more than all computers do"
    expect_bits(lab, "width of a hash without constant and repeated bytes", 256, hashes, why)


@points(2, "hash_block", rule=5, after="test_7_no_two_prompts_have_one_hash")
def test_8_everything_before_a_block_counts(lab: LabUnderTest) -> None:
    """Other tokens, another order, another parent (its first, middle or last byte), other extra keys."""
    parents = [PARENT, b"q" + PARENT[1:], PARENT[:16] + b"q" + PARENT[17:], PARENT[:-1] + b"q"]
    inputs = [(parent, tokens, b"") for parent in parents for tokens in ([1, 2], [2, 1], [1, 3], [3, 2])]
    inputs += [(PARENT, [1, 2], extras) for extras in (b"x", b"y", b"xy", *ONE_CRC, b"z" * 5_000, b"z" * 4_999 + b"y")]
    inputs += [(start + bytes(24), [1, 2], b"") for start in ONE_CRC]
    inputs += [(parent, [1, 2], parent) for parent in parents]  # in a XOR both would cancel out
    expect_different(lab, "hash_block", inputs, "KV depends on the tokens, on all before them, and on the extra keys")
    extras = [b"", b"x", b"X", b"\x80", b"\xff", *with_the_same_checksum(b"z" * 40), long := b"z" * 5_000]
    extras += [each for blank in BLANKS for each in (blank, b"x" + blank, blank + b"x")]
    extras += [hashlib.new(name, long).digest() for name in DIGESTS]
    parents = [*with_the_same_checksum(PARENT), *(PARENT + blank for blank in BLANKS)]
    fields = [(PARENT, [1, 2], each) for each in extras] + [(each, [1, 2], b"") for each in parents]
    fields += [(PARENT, tokens, b"") for tokens in ([1, 2, 0], [0, 1, 2], [1, 2, 2], [1])]
    expect_different(lab, "hash_block", fields, "a field keeps all its bytes: none is cut off, replaced or summed up")


@points(2, "tier_key", rule=6, why="Bob found Ann's blocks in the second home")
def test_9_no_tier_loses_the_salt(lab: LabUnderTest) -> None:
    """Ann's blocks are in the second home. Bob sends the same letter in his own namespace."""
    attack(lab, "salt lost in a tier", defence_with(lab, "tier_key"), FEW)


@points(2, "tier_key", rule=6, after="test_9_no_tier_loses_the_salt")
def test_10_each_group_and_each_byte_of_the_hash_count(lab: LabUnderTest) -> None:
    """A block hash, and others that differ in one byte, in four groups of layers. Then other tokens beside it."""
    hashes = [bytes(32), *(bytes(place) + b"\1" + bytes(31 - place) for place in range(32))]
    inputs = [(block_hash, [1, 2], group_id) for block_hash in hashes for group_id in (0, 1, 256, 65_536)]
    expect_different(lab, "tier_key", inputs, "a group of layers has other KV for the same prefix")
    near = {2**power + step for power in (0, 8, 16, 24, 31, 32) for step in (-2, -1, 0, 1)} | {10, 11, 101, 111}
    numbers = sorted(number for number in near if number >= 0)
    hashes = list({number.to_bytes(32, order): 0 for number in numbers for order in ("big", "little")})
    inputs = [(block_hash, [1, 2], group_id) for block_hash in hashes for group_id in numbers if group_id < 2**32]
    values = (*BLANKS, b"P", b"\x80", b"\xff")
    hashes = [PARENT[:place] + value + PARENT[place + 1 :] for place in range(32) for value in values]
    inputs += [(each, [1, 2], 0) for each in (PARENT, *hashes, *with_the_same_checksum(PARENT))]
    expect_different(lab, "tier_key", inputs, "hash and group are two fields, and each bit counts")
    size = max(len(call_checked(lab, "tier_key", PARENT, [1, 2], group_id)) for group_id in (0, 2**32 - 1))
    if size > 100:
        why = "in hexadecimal digits it is the name of a file"
        lab.fail("length of a key", InWords("100 bytes or fewer"), InWords(f"{size} bytes"), why)


@points(3, "seal_block", rule=7)
def test_11_a_sealed_block_opens(lab: LabUnderTest) -> None:
    """Blocks of zeros and of other bytes; one key twice. The first bytes of a file are its kind."""
    blocks = [(bytes(8), LAYOUT), (bytes(range(48)), Layout("float16", (2, 3, 4)))]
    for payload, layout in (*blocks, (b"kvblock1", LAYOUT), (b" \n\0\r", Layout("float32", (1,)))):
        file = call_checked(lab, "seal_block", SECRET, KEY, layout, payload)
        lab.expect("first 8 bytes of a file", b"kvblock1", file[:8], "kind and version of the format come first")
        got = opened(lab, io.BytesIO(file), SECRET, KEY, layout)
        lab.expect(f"payload of a file with a block of {layout.num_bytes} bytes", payload, got)


@points(2, "open_block_file", rule=10, after="test_11_a_sealed_block_opens")
def test_12_no_file_runs_code(lab: LabUnderTest) -> None:
    """Bob replaces Ann's files by pickles. Each makes a folder when it is loaded."""
    attack(lab, "a file that runs code", defence_with(lab, "seal_block", "open_block_file"), FEW)


@points(2, "open_block_file", rule=8, after="test_11_a_sealed_block_opens")
def test_13_a_file_belongs_to_one_key_and_layout(lab: LabUnderTest) -> None:
    """Two files change places. Then blocks are read with another key, and with another layout of as many bytes."""
    why = "both files are whole; each is another block"
    attack(lab, "two files swapped", defence_with(lab, "seal_block", "open_block_file"), FEW, why)
    file = call_checked(lab, "seal_block", SECRET, KEY, LAYOUT, b"12345678")
    large_file = call_checked(lab, "seal_block", SECRET, KEY, LARGE, bytes(LARGE.num_bytes))
    rows: list[tuple[str, object, object, str]] = []
    for label, key, layout in (
        ("another key", OTHER_KEY, LAYOUT),
        ("shape (4, 2) in place of (2, 4)", KEY, Layout("int8", (4, 2))),
        ("float8 in place of int8", KEY, Layout("float8", (2, 4))),
        ("float16 and half as many numbers", KEY, Layout("float16", (2, 2))),
    ):
        got = opened(lab, io.BytesIO(file), SECRET, key, layout)
        rows.append((f"result for {label}", None, got, "a block of as many bytes may mean something else"))
    got = opened(lab, io.BytesIO(large_file), SECRET, KEY, Layout("int8", (512, 256)))
    is_miss = InWords("None" if got is None else "a payload, or an error")
    rows.append(
        ("result for shape (512, 256) in place of (256, 512)", InWords("None"), is_miss, "a dimension may be over 255")
    )
    lab.expect_all(rows)
    for num_bytes in (8, 11, 12):
        layouts = [Layout(dtype, shape) for dtype, size in ITEM_BYTES.items() for shape in shapes_of(num_bytes / size)]
        joined = []
        for one, two in product(layouts, layouts):
            file = io.BytesIO(sealed_sample(lab, SECRET, KEY, one))
            if one != two and opened(lab, file, SECRET, KEY, two) is not None:
                joined.append(f"{one} as {two}")
        why = "each dimension of a shape counts, also a 1, and where it ends"
        lab.expect(f"layouts of {num_bytes} bytes that are opened as others", [], joined[:3], why)


@points(3, "open_block_file", rule=8, after="test_11_a_sealed_block_opens", why="a miss is always safe")
def test_14_a_changed_byte_is_a_miss(lab: LabUnderTest) -> None:
    """Each byte of a file is changed, one after the other. Then the file ends early, at each place, or late.

    In a file of 131,072 bytes each 1,000th byte is changed, and the last.
    """
    file = sealed_sample(lab, SECRET, KEY, LAYOUT)
    large_file = call_checked(lab, "seal_block", SECRET, KEY, LARGE, bytes(LARGE.num_bytes))
    rows: list[tuple[str, object, object, str]] = []
    not_sealed = "the server did not write these bytes, so this is not the file that it sealed"
    for label, damaged, why in (
        ("a changed byte", with_each_byte_changed(file), ""),
        ("the first bytes only", [file[:i] for i in range(len(file))], ""),
        ("bytes after the end", [file + more for more in (b"\0", b"x" * 40, file)], not_sealed),
    ):
        kinds = kinds_opened(lab, damaged)
        rows.append((f"results for {len(damaged)} files with {label}, other than None", [], kinds, why))
    damaged = with_each_byte_changed(large_file, 1_000)
    what = f"results for {len(damaged)} large files with a changed byte, other than None"
    rows.append((what, [], kinds_opened(lab, damaged, LARGE), "a seal covers every byte of the payload"))
    lab.expect_all(rows)


@points(2, "derive_namespace", rule=1, why="isolation costs hits, but not one's own")
def test_15_what_isolation_costs(lab: LabUnderTest) -> None:
    """16 users, 3 prompts each, one system prompt: as one tenant, as four, as sixteen."""
    rates = []
    for tenants in (1, 4, 16):
        rate = hit_rate(defence_with(lab, "derive_namespace"), [f"tenant {n}" for n in range(tenants)])
        lab.note(f"tenants among 16 users: {tenants:>2}   tokens cached: {rate:.1%}")
        rates.append(round(100 * rate, 1))
    lab.expect("hit rates in percent with 1, 4 and 16 tenants", [76.8, 73.2, 58.5], rates)


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "derive_namespace", rule=2, stage="adversary", after="test_1_a_namespace_is_the_same_each_time")
def test_names_that_look_alike_are_two_tenants(lab: LabUnderTest) -> None:
    """A digit of the name or of the epoch, case, spaces, accents, long names, a text that UTF-8 refuses."""
    names = [("Ann1", 2), ("Ann", 12), ("Ann", 2), ("Ann1", 12), ("1Ann", 2), ("Ann", 21), ("2Ann", 1), ("12Ann", 1)]
    names += [("Ann", epoch) for epoch in (0, 255, 256, 257, 65_536, 2**32, 2**63 - 1)]
    inputs = [(SECRET, name, epoch) for name, epoch in names] + [(OTHER_SECRET, "Ann", 1)]
    expect_different(lab, "derive_namespace", inputs, "the name and the epoch are two fields, and each has an end")
    texts = ["Ann", "ann", "ANN", " Ann", "Ann ", "Ann\0", *ODD_TEXTS, *LONG_TEXTS]
    expect_different(lab, "derive_namespace", [(SECRET, text, 1) for text in texts], WHY_NOT_REPLACED)
    expect_different(lab, "derive_namespace", [(SECRET, text, 1) for text in ALIKE_IN_UTF16], WHY_NOT_UTF16)
    epochs = {2**power + step for power in range(64) for step in (-1, 0, 1)}
    inputs = [(SECRET, "Ann", epoch) for epoch in sorted(epochs) if epoch < 2**63]
    expect_different(lab, "derive_namespace", inputs, "an epoch has 63 bits, and each of them counts")


@points(1, "derive_namespace", rule=2, stage="adversary", after="test_1_a_namespace_is_the_same_each_time")
def test_each_byte_of_the_secret_counts_in_a_namespace(lab: LabUnderTest) -> None:
    """The secret with one byte changed, for each of its 32 bytes, gives another namespace.

    So do secrets with one checksum. And no namespace follows from that of another name.
    """
    inputs = [(secret, "Ann", 1) for secret in (SECRET, *with_each_byte_changed(SECRET))]
    why = "the fewer bytes of the secret are used, the fewer Bob must guess: 4 bytes are an afternoon"
    expect_different(lab, "derive_namespace", inputs, why)
    inputs = [(secret, "Ann", 1) for secret in (SECRET, *with_the_same_checksum(SECRET))]
    expect_different(lab, "derive_namespace", inputs, "a checksum of the secret has few values: Bob tries them all")
    why = "a digest of the secret and the text can be continued without the secret: length extension"
    lab.expect("namespaces that follow from another name's", [], names_by_extension(lab, SECRET), why)


@points(1, "derive_namespace", rule=1, stage="adversary", after="test_1_a_namespace_is_the_same_each_time")
def test_a_namespace_is_the_same_after_a_restart(lab: LabUnderTest) -> None:
    """The second home outlives the server. Another process must find what this one has stored."""
    expect_same_elsewhere(lab, "derive_namespace")


@points(2, "encode_extra_keys", rule=3, stage="adversary", after="test_6_every_list_of_extra_keys_has_bytes_of_its_own")
def test_clients_choose_any_text(lab: LabUnderTest) -> None:
    """Texts with each pair of separators, and with those of your own bytes, long ones, one that UTF-8 refuses."""
    texts = ["Ann", "ann", " Ann", "Ann ", "Ann\0", *ODD_TEXTS, *LONG_TEXTS]
    expect_different(lab, "encode_extra_keys", [([("cache_salt", text)],) for text in texts], WHY_NOT_REPLACED)
    expect_different(lab, "encode_extra_keys", [([(kind, "")],) for kind in ("mm", "MM", "m", "mmm")], WHY_NOT_REPLACED)
    expect_different(lab, "encode_extra_keys", [([("cache_salt", text)],) for text in ALIKE_IN_UTF16], WHY_NOT_UTF16)
    lists: list[list[ExtraKey]] = [[("lora", "a"), ("mm", "b")]]
    lists += [[("lora", "2"), ("mm", "abcdefgh")], [("lora", "2mm8abcdefgh")]]  # lengths as digits: 1 and "2", or 12
    own = separators_of(call_checked(lab, "encode_extra_keys", [("lora", "AAA"), ("mm", "BBB")]))
    marks = [*SEPARATORS, *own]
    for mark in marks:
        lists += [[("lora", f"a{mark}b")], [("lora", f"a{mark}"), ("mm", "b")], [("lora", "a"), ("mm", f"{mark}b")]]
        lists += [[("lora", "a"), ("mm", "b"), (mark, "")]]
        for other in marks:
            lists += [[("lora", f"a{mark}mm{other}b")], [("mm", f"a{other}lora{mark}b")]]
    unique = [list(each) for each in dict.fromkeys(tuple(each) for each in lists)]
    why = "the end of a field cannot be seen: a client may send any separator, and digits that look like a length"
    expect_different(lab, "encode_extra_keys", [(each,) for each in unique], why)
    for each in ([("lora", "a"), ("mm", "b")], *([("lora", text)] for text in ("é", "\ud800", 'a"\0', LONG_TEXTS[2]))):
        others: list[list[ExtraKey]] = [
            [("lora", text)] for text in pieces_of(call_checked(lab, "encode_extra_keys", each))
        ]
        inputs = [(each,), *((other,) for other in others if other != each)]
        expect_different(lab, "encode_extra_keys", inputs, "a client may send a part of your own bytes as a text")


@points(1, "encode_extra_keys", rule=3, stage="adversary", after="test_6_every_list_of_extra_keys_has_bytes_of_its_own")
def test_no_length_of_a_text_wraps_around(lab: LabUnderTest) -> None:
    """An adapter `a` with images of 256 and of 65,536 bytes in all. An adapter whose name contains these bytes."""
    for wraps_at in (256, 65_536):
        lists = lists_with_lengths_that_wrap(lab, wraps_at)
        if lists is None:
            continue  # the code writes no field after the other, so no length can be cut in this way
        images, name = (call_checked(lab, "encode_extra_keys", each) for each in lists)
        what = (
            f"an adapter `a` with {len(lists[0]) - 1} images, and an adapter with a name of {wraps_at + 1:,} characters"
        )
        got = {True: "the same bytes for both", False: "two different results"}[images == name]
        why = f"a length that is cut wraps around: {wraps_at + 1:,} becomes 1. Texts may be of any length"
        lab.expect(what, InWords("two different results"), InWords(got), why)


@points(2, "hash_block", rule=5, stage="adversary", after="test_8_everything_before_a_block_counts")
def test_fields_of_a_block_stay_apart(lab: LabUnderTest) -> None:
    """Digits and bytes of neighbouring tokens, tokens whose bytes are extra keys, extra keys that end the parent."""
    blocks = [[1, 11], [11, 1], [111, 0], [258, 1], [2, 257], [1, 258], [2**32 - 1, 0]]
    blocks += [[2**power, 0] for power in range(32)] + [[0, 0]]
    inputs: list[tuple[object, ...]] = [(PARENT, tokens, b"") for tokens in blocks]
    for order in ("little", "big"):
        one = (1).to_bytes(4, order)
        inputs += [
            (PARENT, [7, 8], one),
            (PARENT, [1, 7, 8], b""),
            (PARENT, [7, 8, 1], b""),
            (PARENT + one, [7, 8], b""),
        ]
        length, seven = (4).to_bytes(2, order), (7).to_bytes(4, order)
        long = bytes(65_534) + length + seven  # as tokens; without `seven` and the length before it, an extra key
        tokens = [int.from_bytes(long[place : place + 4], order) for place in range(0, len(long), 4)]
        inputs += [(PARENT, [7], length + bytes(65_534)), (PARENT, tokens, b"")]
    inputs += [(PARENT, [7, 8], b"1"), (PARENT, [7, 8], b"[7, 8]"), (PARENT, [7, 8], b"7")]
    unique = {repr(each): each for each in inputs}
    expect_different(
        lab, "hash_block", list(unique.values()), "parent, extra keys and tokens are fields, to be framed apart"
    )
    expect_different(
        lab, "hash_block", blocks_that_frames_join(PARENT), "the number of tokens or bytes is cut or missing"
    )


@points(1, "hash_block", rule=4, stage="adversary", after="test_7_no_two_prompts_have_one_hash")
def test_a_hash_is_the_same_in_another_process(lab: LabUnderTest) -> None:
    """Python's `hash` of bytes and texts depends on the process, and its collisions can be computed."""
    expect_same_elsewhere(lab, "hash_block")


@points(1, "open_block_file", rule=8, stage="adversary", after="test_14_a_changed_byte_is_a_miss")
def test_no_file_is_made_of_two(lab: LabUnderTest) -> None:
    """Bob puts a part of one file into another, for each part: of another key, another shape, another `dtype`.

    Then a block's payload is the file of another block.
    """
    halves, fourths = Layout("float16", (4,)), Layout("float32", (2,))
    why = "the header was right and the payload was whole, but the code did not tie one to the other"
    rows: list[tuple[str, object, object, str]] = []
    for label, one, two in (
        ("another key", (KEY, LAYOUT), (OTHER_KEY, LAYOUT)),
        ("shape (4, 2) in place of (2, 4)", (KEY, LAYOUT), (KEY, Layout("int8", (4, 2)))),
        ("float32 in place of float16", (KEY, halves), (KEY, fourths)),
    ):
        files = [
            call_checked(lab, "seal_block", SECRET, *which, payload)
            for which, payload in ((one, b"12345678"), (two, b"abcdefgh"))
        ]
        accepted: list[object] = []
        for made in files_made_of(*files):
            for which in (one, two):
                result = opened(lab, io.BytesIO(made), SECRET, *which)
                if result is not None and result not in accepted:  # once, because how many depends on the format
                    accepted.append(result)
        rows.append((f"payloads of files made of two that were accepted, with {label}", [], accepted, why))
    wide = Layout("int8", (16, 16))
    inner = sealed_sample(lab, SECRET, OTHER_KEY, wide)
    outer = call_checked(lab, "seal_block", SECRET, KEY, wide, inner[: wide.num_bytes])
    why = "the header is where a file begins: what follows is the payload, which may look like any header"
    got = opened(lab, io.BytesIO(outer), SECRET, OTHER_KEY, wide)
    rows.append(("result for the key of the block in the payload", None, got, why))
    lab.expect_all(rows)


@points(1, "open_block_file", rule=9, stage="adversary", after="test_14_a_changed_byte_is_a_miss")
def test_only_the_server_can_seal(lab: LabUnderTest) -> None:
    """Bob has a secret of his own, or all bytes of the server's but one. Then the seal's width is measured."""
    forged = sealed_sample(lab, OTHER_SECRET, KEY, LAYOUT)
    got = opened(lab, io.BytesIO(forged), SECRET, KEY, LAYOUT)
    why = "a checksum without a secret finds accidents; an attacker changes a file and computes it again"
    lab.expect("result for a file with another server's secret", None, got, why, rule=8)
    forged_files = [sealed_sample(lab, secret, KEY, LAYOUT) for secret in with_each_byte_changed(SECRET)]
    accepted = [
        number for number, each in enumerate(forged_files) if opened(lab, io.BytesIO(each), SECRET, KEY, LAYOUT)
    ]
    why = "a seal with a part of the secret can be made by a person who knows this part"
    lab.expect("bytes of the secret that may be wrong, by number", [], accepted, why)
    files = [sealed_sample(lab, number.to_bytes(32, "big"), KEY, LAYOUT) for number in range(1_000)]
    why = "a seal of 16 bits needs 65,536 tries at most: Bob changes the payload, and tries each seal"
    expect_bits(lab, "bits of a file that depend on the secret", 128, files, why)
    forged_files = [sealed_sample(lab, secret, KEY, LAYOUT) for secret in with_the_same_checksum(SECRET)]
    file, versions = sealed_sample(lab, SECRET, KEY, LAYOUT), (b"kvblock0", b"kvblock1")
    forged_files += [
        new + file[8:i] + file[i + size :] for new in versions for size in (16, 32, 64) for i in range(8, len(file))
    ]
    kinds = kinds_opened(lab, forged_files)
    what = "results for files without a seal, or sealed with a secret of the same checksum, other than None"
    lab.expect(what, [], kinds, "a person who knows the format can write such a file, in each of its versions")
    files = [
        sealed_sample(lab, SECRET, KEY, LAYOUT),
        call_checked(lab, "seal_block", SECRET, KEY, LAYOUT, b"\n \0\t\r\n\0\n"),
    ]
    damaged = [each[:i] + blank + each[i + 1 :] for each in files for i in range(len(each)) for blank in BLANKS]
    damaged += [other for each in files for other in with_the_same_checksum(each)]
    kinds = kinds_opened(lab, [each for each in damaged if each not in files])
    why = "a seal covers each bit: no blank is cut off, and nothing is summed up before"
    lab.expect("results for files with other blanks or the same checksum, other than None", [], kinds, why)


@points(1, "seal_block", rule=9, stage="adversary", after="test_11_a_sealed_block_opens")
def test_the_seal_is_an_hmac(lab: LabUnderTest) -> None:
    """A block is sealed with two secrets: the files differ, and a function of Python's `hmac` must run."""
    one, two = (sealed_sample(lab, secret, KEY, LAYOUT) for secret in (SECRET, OTHER_SECRET))
    differ = InWords({True: "two files", False: "the same file"}[one != two])
    used = makes_an_hmac(called_in(lambda: sealed_sample(lab, SECRET, KEY, LAYOUT)))
    maker = InWords({True: "a function of hmac", False: "none of hmac"}[used])
    why = "from SHA-256 of secret and text, anyone can compute that of secret, text and more: length extension"
    lab.expect_all(
        [
            ("a block sealed with two secrets", InWords("two files"), differ, "everyone can compute such a seal"),
            ("what computes the seal", InWords("a function of hmac"), maker, why),
        ]
    )


@points(1, "open_block_file", rule=9, stage="adversary", after="test_14_a_changed_byte_is_a_miss")
def test_the_time_of_a_comparison_reveals_no_seal(lab: LabUnderTest) -> None:
    """A right file is opened: `hmac.compare_digest` must be called. Its time does not depend on the bytes."""
    file = sealed_sample(lab, SECRET, KEY, LAYOUT)
    used = hmac.compare_digest in called_in(lambda: opened(lab, io.BytesIO(file), SECRET, KEY, LAYOUT))
    why = "`==` ends at the first wrong byte, so its time tells Bob how many bytes of his seal are right"
    got = InWords({True: "hmac.compare_digest", False: "something else"}[used])
    lab.expect("what compares the seal", InWords("hmac.compare_digest"), got, why)


@points(1, "open_block_file", rule=11, stage="adversary", after="test_14_a_changed_byte_is_a_miss")
def test_a_file_is_not_read_beyond_a_block(lab: LabUnderTest) -> None:
    """A file of a terabyte, and files in which a length may be changed: no read asks for much more than a block."""
    file = sealed_sample(lab, SECRET, KEY, LAYOUT)
    limit = len(file) + 4_096
    changed = [file, *(file[:i] + bytes([file[i] ^ 0x40]) + file[i + 1 :] for i in range(len(file)))]
    too_large = []
    for each in changed:
        watched = WatchedFile(each, limit)
        opened(lab, watched, SECRET, KEY, LAYOUT)
        too_large += watched.too_large
    why = "the reader knows how long a block is; a file is as long as its writer likes"
    what = f"reads of more than {limit:,} bytes (the file has {len(file):,}, and 4,096 more are allowed)"
    lab.expect(what, [], list(dict.fromkeys(too_large))[:3], why)


@points(1, "open_block_file", rule=10, stage="adversary", after="test_14_a_changed_byte_is_a_miss")
def test_a_failing_disk_is_a_miss(lab: LabUnderTest) -> None:
    """Each read raises `OSError`, then all but the first, and so on. The request must not fail."""
    got = opened(lab, FailingFile(b"", 0), SECRET, KEY, LAYOUT)
    lab.expect(
        "result for a file that cannot be read", None, got, "a cache may be slow or empty, but never stops a request"
    )
    file = sealed_sample(lab, SECRET, KEY, LAYOUT)
    for num_reads in range(1, 6):
        disk = FailingFile(file, num_reads)
        got = opened(lab, disk, SECRET, KEY, LAYOUT)
        if disk.num_reads < 0:
            lab.expect(f"result for a disk that fails at read {num_reads + 1}", None, got, "each read may fail")


# The property -------------------------------------------------------------------------------------------------------


@points(1, "tier_key", rule=6, stage="property", after="test_9_no_tier_loses_the_salt")
def test_all_attacks_fail(lab: LabUnderTest) -> None:
    """Twenty seeds for each attack, on a server with one naive function and on one with all of yours."""
    defence = learners(lab)
    counts = {}
    for name, (function, run) in ATTACKS.items():
        naive = sum(run(weak(function), seed) for seed in range(20))
        counts[name] = sum(run(defence, seed) for seed in seeds(20))
        lab.note(f"{name:<22} naive {function:<18} {naive:>2} of 20   yours {counts[name]:>2} of 20")
    for name, count in counts.items():
        lab.charge(ATTACKS[name][0])
        expect_none(lab, name, count, 20)
