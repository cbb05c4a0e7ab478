"""lab-01: how big is a token? Read the numbered tests in order: they are its biography.

LLAMA_2_70B has 80 layers, 64 query heads and 8 KV heads of 128 elements. An element has 2 bytes.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import check_all, seeds

LLAMA_2_70B = {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8}
LLAMA_2_7B = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}  # a file from before GQA
WITH_AND_WITHOUT = ("without a cache", "with a cache")

# The biography ------------------------------------------------------------------------------------------------------


@points(3, "token_forwards", rule=1, why="no step sees the last output token, so it never goes through the model")
def test_1_what_the_cache_saves(lab: LabUnderTest) -> None:
    """Four tokens, then 2,048: the cache saves 2,096,128 of 2,098,176 passes."""
    for num_output_tokens, want in ((4, (10, 4)), (2048, (2_098_176, 2_048))):
        what = f"passes of a token for {request(1, num_output_tokens)}"
        expect_pair(lab, what, WITH_AND_WITHOUT, want, lab.token_forwards(1, num_output_tokens))


@points(3, "token_forwards", rule=1)
def test_2_a_prompt_and_one_word(lab: LabUnderTest) -> None:
    """For one word, the cache saves nothing. For a hundred words, it saves 103,851 of 104,950 passes."""
    for num_output_tokens, want in ((1, (1_000, 1_000)), (2, (2_001, 1_001)), (100, (104_950, 1_099))):
        what = f"passes of a token for {request(1_000, num_output_tokens)}"
        expect_pair(lab, what, WITH_AND_WITHOUT, want, lab.token_forwards(1_000, num_output_tokens))


@points(4, "attention_scores", rule=2)
def test_3_what_the_cache_does_not_save(lab: LabUnderTest) -> None:
    """The cache saves the work for old keys and values, not the attention. Scores still grow with the square."""
    for num_prompt_tokens, num_output_tokens, want in (
        (4, 1, (16, 16)),
        (4, 3, (16 + 25 + 36, 16 + 5 + 6)),
        (1, 4, (30, 10)),
        (1, 2048, (2_865_409_024, 2_098_176)),
    ):
        what = f"scores for {request(num_prompt_tokens, num_output_tokens)}"
        expect_pair(lab, what, WITH_AND_WITHOUT, want, lab.attention_scores(num_prompt_tokens, num_output_tokens))


@points(4, "kv_bytes_per_token", rule=3)
def test_4_how_big_is_a_token(lab: LabUnderTest) -> None:
    """A token of Llama 2 7B takes 524,288 bytes, more than the 327,680 bytes of a token of Llama 2 70B."""
    what = "bytes of a token, 4 layers, 3 KV heads of 8 elements, 2 bytes each"
    lab.expect(what, 384, lab.kv_bytes_per_token(4, 3, 8, 2))
    lab.expect("bytes of a token of Llama 2 7B, 32 KV heads", 524_288, lab.kv_bytes_per_token(32, 32, 128, 2))
    lab.expect("bytes of a token of Llama 2 70B, 8 KV heads", 327_680, lab.kv_bytes_per_token(80, 8, 128, 2))
    lab.expect("bytes of a token if it had 64 KV heads", 2_621_440, lab.kv_bytes_per_token(80, 64, 128, 2))


@points(4, "kv_shape", rule=4)
def test_5_read_it_off_the_config(lab: LabUnderTest) -> None:
    """8 KV heads in the 70B model, all 32 in the 7B model, and a head that is larger than its share of hidden_size."""
    only_kv_heads = "the cache stores keys and values; only KV heads have them: here 8, and 64 query heads share them"
    why = {"KV heads": only_kv_heads, "head size": "the 64 query heads share 8,192 evenly, so each head has 128"}
    expect_fields(lab, "Llama 2 70B", (80, 8, 128), lab.kv_shape(LLAMA_2_70B), why)
    why = {
        "KV heads": "a config that names no KV heads has as many as query heads: 32",
        "head size": "the 32 query heads share 4,096 evenly, so each head has 128",
    }
    expect_fields(lab, "Llama 2 7B, which names no KV heads", (32, 32, 128), lab.kv_shape(LLAMA_2_7B), why)
    why = {"head size": "a head_dim in the config is the head size: 128, although 2,560 / 32 is 80"}
    qwen_3_4b = {
        **LLAMA_2_70B,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "head_dim": 128,
    }
    expect_fields(lab, "Qwen3 4B", (36, 8, 128), lab.kv_shape(qwen_3_4b), why)


@points(3, "gb_and_gib", rule=7, why="a GB is 1,000,000,000 bytes, a GiB is 1,073,741,824: seven per cent more")
def test_6_seventy_billion_three_ways(lab: LabUnderTest) -> None:
    """One model, 4,096 tokens: two wrong figures of a guide, 10.74 GB and 5.37 GB, and the right one, 1.34 GB."""
    for belief, num_bytes, want in (
        ("if all 64 heads had keys and values", 10_737_418_240, (10.73741824, 10.0)),
        ("if, besides, there were keys and no values", 5_368_709_120, (5.36870912, 5.0)),
        ("as it is, with 8 KV heads", 1_342_177_280, (1.34217728, 1.25)),
    ):
        expect_pair(lab, f"4,096 tokens, {belief}", ("in GB", "in GiB"), want, lab.gb_and_gib(num_bytes))


@points(3, "cdiv", rule=8, why="a partly filled block counts as a whole block; an empty block is not allocated")
def test_7_blocks_are_whole(lab: LabUnderTest) -> None:
    """How many blocks of 16 do 237 tokens need, and 239, 240, 241, 1 and 0?"""
    for num_tokens, want in ((237, 15), (239, 15), (240, 15), (241, 16), (1, 1), (0, 0)):
        lab.expect(f"blocks of 16 for {num_tokens} tokens", want, lab.cdiv(num_tokens, 16))


@points(3, "page_size_bytes", rule=9)
def test_8_a_block_in_one_layer(lab: LabUnderTest) -> None:
    """One block of Llama 2 70B is 64 KiB in each of 80 layers."""
    lab.expect("bytes of a block, 4 tokens, 3 KV heads of 8, 2 bytes each", 384, lab.page_size_bytes(4, 3, 8, 2))
    lab.expect("bytes of a block of 16 tokens, Llama 2 70B", 65_536, lab.page_size_bytes(16, 8, 128, 2))


@points(
    4,
    "waste",
    rule=10,
    after="test_7_blocks_are_whole",
    why="for each request: its slots (max_len, or those of its own blocks) less its tokens",
)
def test_9_reserved_and_empty(lab: LabUnderTest) -> None:
    """A request of 237 tokens, where 4,096 are allowed, leaves 3,859 slots empty, or 3."""
    names = ("contiguous", "paged")
    expect_pair(lab, "empty slots for 237 tokens", names, (3_859, 3), lab.waste([237], 16, 4_096))
    expect_pair(lab, "empty slots for 240 tokens, 15 full blocks", names, (3_856, 0), lab.waste([240], 16, 4_096))
    what = "empty slots for four requests of 237, 240, 241 and 4,096 tokens"
    expect_pair(lab, what, names, (11_570, 18), lab.waste([237, 240, 241, 4_096], 16, 4_096))


@points(4, "max_concurrency", rule=11, after="test_7_blocks_are_whole")
def test_10_how_many_fit(lab: LabUnderTest) -> None:
    """10 GiB are 2,048 blocks of Llama 2 70B, eight times 256. How many requests of 4,096 tokens fit? Not eight."""
    why_seven = "2,047 blocks can be handed out, and each request takes 256: seven, and 255 blocks are left over"
    why_136 = "each request takes 15 blocks to itself, the last one with 3 slots to spare"
    why_one = "15 blocks can be handed out, and 237 tokens take all of them"
    why_none = "12 blocks can be used, and 12 times 8,192 is 98,304: such a request would wait forever"
    cases = (
        (4_096, 2_048, 16, 7, why_seven),
        (237, 2_048, 16, 136, why_136),
        (237, 16, 16, 1, why_one),
        (106_496, 13, 8_192, 0, why_none),
        (106_496, 14, 8_192, 1, ""),
    )
    lab.expect_all(
        (
            f"requests of {max_len:,} tokens in {num_blocks:,} blocks of {block_size:,}",
            want,
            lab.max_concurrency(num_blocks, max_len, block_size),
            why,
        )
        for max_len, num_blocks, block_size, want, why in cases
    )


# The adversary ------------------------------------------------------------------------------------------------------


@points(1, "kv_bytes_per_token", rule=3, stage="adversary", why="an element of int8 or fp8 has one byte, of fp32 four")
def test_elements_of_one_and_four_bytes(lab: LabUnderTest) -> None:
    """The same 70B model with its cache in fewer or more bits, and one KV head for all query heads."""
    for dtype_bytes, want in ((1, 163_840), (4, 655_360)):
        what = f"bytes of a token of Llama 2 70B, {dtype_bytes} an element"
        lab.expect(what, want, lab.kv_bytes_per_token(80, 8, 128, dtype_bytes))
    lab.expect("bytes of a token of Gemma 2B, 1 KV head of 256 elements", 18_432, lab.kv_bytes_per_token(18, 1, 256, 2))
    lab.expect("bytes of the smallest token that there is", 2, lab.kv_bytes_per_token(1, 1, 1, 1))


@points(2, "kv_shape", rule=5, stage="adversary", why="in a config.json, null means the same as absent")
def test_configs_as_they_come(lab: LabUnderTest) -> None:
    """Fields that are None, one KV head for all query heads, and a head_dim below hidden_size / heads."""
    silent = {**LLAMA_2_7B, "num_key_value_heads": None}
    expect_fields(lab, "Llama 2 7B, num_key_value_heads None", (32, 32, 128), lab.kv_shape(silent))
    silent = {**LLAMA_2_70B, "head_dim": None}
    why = {
        "KV heads": "num_key_value_heads names 8, with and without a head_dim",
        "head size": "head_dim is None, so the 64 query heads share 8,192 evenly",
    }
    expect_fields(lab, "Llama 2 70B, head_dim None", (80, 8, 128), lab.kv_shape(silent), why)
    one = {"head_dim": 256, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1}
    expect_fields(lab, "Gemma 2B, one KV head", (18, 1, 256), lab.kv_shape({**one, "hidden_size": 2048}))
    small = {**LLAMA_2_70B, "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128}
    why = {"head size": "a head_dim in the config is the head size, although 5,120 / 32 is 160"}
    expect_fields(lab, "a model with head_dim 128", (80, 8, 128), lab.kv_shape(small), why)


@points(1, "gb_and_gib", rule=7, stage="adversary", why="do not round: a few per cent can decide whether a model fits")
def test_a_card_of_80_gb(lab: LabUnderTest) -> None:
    """80 GB are 74.5 GiB, and small amounts are not nothing."""
    for told, num_bytes, want in (
        ("80,000,000,000 bytes", 80_000_000_000, (80.0, 74.50580596923828)),
        ("327,680 bytes, one token", 327_680, (0.00032768, 0.00030517578125)),
        ("no bytes", 0, (0.0, 0.0)),
    ):
        expect_pair(lab, told, ("in GB", "in GiB"), want, lab.gb_and_gib(num_bytes), second_first=True)


@points(
    2,
    "cdiv",
    rule=8,
    stage="adversary",
    why="tokens are counted from 0: token b is the first that needs a second block",
)
def test_edges_and_large_numbers(lab: LabUnderTest) -> None:
    """One less, exactly full, one more, for blocks of 1, 3, 4 and 16. Then numbers that a float cannot hold."""
    for block_size in (1, 3, 4, 16):
        for full in (block_size, 2 * block_size, 7 * block_size):
            for num_tokens in (full - 1, full, full + 1):
                want = len(range(0, num_tokens, block_size))
                lab.expect(f"blocks of {block_size} for {num_tokens} tokens", want, lab.cdiv(num_tokens, block_size))
    why = "integer division is exact at any size; a float is exact only up to 2**53"
    for num_tokens, want in ((2**60, 2**56), (2**60 + 1, 2**56 + 1), (2**62 - 1, 2**58), (16 * 10**400, 10**400)):
        lab.expect(f"blocks of 16 for {num_tokens} tokens", want, lab.cdiv(num_tokens, 16), why)


@points(
    1,
    "page_size_bytes",
    rule=9,
    stage="adversary",
    why="FullAttentionSpec in mini_kv/core counts the bytes of a block as well",
)
def test_the_engine_counts_the_same(lab: LabUnderTest) -> None:
    """Blocks of 1, 3, 4 and 16 tokens, one head or many, one byte or four: the result is the engine's."""
    for shape in ((1, 1, 1, 1), (3, 1, 64, 2), (4, 8, 128, 1), (16, 8, 128, 4), (16, 32, 80, 2)):
        want = lab.engine(FullAttentionSpec)(*shape).page_size_bytes
        what = "bytes of a block, {} tokens, {} KV heads of {}, {} an element".format(*shape)
        lab.expect(what, want, lab.page_size_bytes(*shape))


@points(
    2,
    "waste",
    rule=10,
    stage="adversary",
    after="test_7_blocks_are_whole",
    why="a block is taken when a token needs a slot, and not before",
)
def test_waste_around_a_full_block(lab: LabUnderTest) -> None:
    """One token less, exactly full, one more. The engine allocates blocks for the same requests."""
    names = ("contiguous", "paged")
    expect_pair(lab, "empty slots for no request at all", names, (0, 0), lab.waste([], 16, 100))
    expect_pair(lab, "empty slots for 0 tokens", names, (100, 0), lab.waste([0], 16, 100))
    for block_size in (1, 3, 4, 16):
        lengths = [2 * block_size - 1, 2 * block_size, 2 * block_size + 1]
        kv = lab.make_kv(num_blocks=10, block_size=block_size, enable_caching=False)
        for number, length in enumerate(lengths):
            kv.hold([number] * length, f"R{number}")
        held = 9 - kv.block_pool.num_free_blocks
        want = (9 * block_size - sum(lengths), held * block_size - sum(lengths))
        what = f"empty slots for {lengths} tokens in blocks of {block_size}, max_len {3 * block_size}"
        expect_pair(lab, what, names, want, lab.waste(lengths, block_size, 3 * block_size))


@points(
    2,
    "max_concurrency",
    rule=11,
    stage="adversary",
    after="test_7_blocks_are_whole",
    why="the engine's own pool took this many requests and refused the next one",
)
def test_a_running_engine_agrees(lab: LabUnderTest) -> None:
    """Pools with one block too few, just enough, one too many. The engine admits requests until it refuses one."""
    for block_size, max_len in ((4, 8), (4, 9), (4, 12), (1, 3), (3, 7), (16, 17)):
        one = -(-max_len // block_size)
        for num_gpu_blocks in (one, one + 1, one + 2, 3 * one, 3 * one + 1, 3 * one + 2):
            if num_gpu_blocks < 2:
                continue
            kv = lab.make_kv(num_blocks=num_gpu_blocks, block_size=block_size, enable_caching=False)
            num_running = 0
            while kv.allocate_slots(kv.new_request(f"R{num_running}", [num_running] * max_len), max_len) is not None:
                num_running += 1
            what = f"requests of {max_len} tokens that {num_gpu_blocks} blocks of {block_size} can take"
            lab.expect(what, num_running, lab.max_concurrency(num_gpu_blocks, max_len, block_size))


# The property -------------------------------------------------------------------------------------------------------


@points(1, "token_forwards", rule=1, stage="property")
def test_random_requests_pass_through_the_model(lab: LabUnderTest) -> None:
    """Forty random requests, each generated word by word by a model made of plain lists."""

    def check(heap: Sequence[str]) -> None:
        num_prompt_tokens, num_output_tokens = heap.count("prompt"), heap.count("output")
        if num_prompt_tokens and num_output_tokens:
            want = tuple(generate(num_prompt_tokens, num_output_tokens, cache)[0] for cache in (False, True))
            what = f"passes of a token for {request(num_prompt_tokens, num_output_tokens)}"
            expect_pair(lab, what, WITH_AND_WITHOUT, want, lab.token_forwards(num_prompt_tokens, num_output_tokens))

    check_all(check, [random_heap(seed, prompt=12, output=12) for seed in seeds(40)])


@points(1, "attention_scores", rule=2, stage="property")
def test_random_requests_are_scored(lab: LabUnderTest) -> None:
    """The same forty requests, and the scores counted."""

    def check(heap: Sequence[str]) -> None:
        num_prompt_tokens, num_output_tokens = heap.count("prompt"), heap.count("output")
        if num_prompt_tokens and num_output_tokens:
            want = tuple(generate(num_prompt_tokens, num_output_tokens, cache)[1] for cache in (False, True))
            what = f"scores for {request(num_prompt_tokens, num_output_tokens)}"
            expect_pair(lab, what, WITH_AND_WITHOUT, want, lab.attention_scores(num_prompt_tokens, num_output_tokens))

    check_all(check, [random_heap(seed, prompt=12, output=12) for seed in seeds(40)])


@points(1, "waste", rule=10, stage="property", after="test_7_blocks_are_whole")
def test_random_batches_leave_slots_empty(lab: LabUnderTest) -> None:
    """Forty random batches, laid out slot by slot: one more block whenever there is no empty slot."""
    rngs = map(random.Random, seeds(40))
    batches = [[rng.randint(0, 24) for _ in range(rng.randint(1, 6))] for rng in rngs]
    for block_size in (1, 3, 4, 16):

        def check(lengths: Sequence[int], block_size: int = block_size) -> None:
            num_empty = 0
            for length in lengths:
                slots: list[str] = []
                for _token in range(length):
                    if "empty" not in slots:
                        slots += ["empty"] * block_size
                    slots[slots.index("empty")] = "token"
                num_empty += slots.count("empty")
            want = (sum(24 - length for length in lengths), num_empty)
            what = f"empty slots for {list(lengths)} tokens in blocks of {block_size}, max_len 24"
            expect_pair(lab, what, ("contiguous", "paged"), want, lab.waste(list(lengths), block_size, 24))

        check_all(check, batches)


@points(1, "max_concurrency", rule=11, stage="property", after="test_7_blocks_are_whole")
def test_random_pools_are_filled(lab: LabUnderTest) -> None:
    """Forty random pools, allocated block by block until one more request does not fit."""

    def check(heap: Sequence[str]) -> None:
        num_gpu_blocks, max_len, block_size = heap.count("block"), heap.count("token"), heap.count("slot")
        if num_gpu_blocks > 1 and max_len and block_size:
            rooms = [0]  # slots of each request; the last one does not have enough yet
            for _block in range(1, num_gpu_blocks):  # block 0 is the null block
                rooms[-1] += block_size
                if rooms[-1] >= max_len:
                    rooms.append(0)
            tokens = "1 token" if max_len == 1 else f"{max_len} tokens"
            what = f"requests of {tokens} in {num_gpu_blocks} blocks of {block_size}"
            lab.expect(what, len(rooms) - 1, lab.max_concurrency(num_gpu_blocks, max_len, block_size))

    check_all(check, [random_heap(seed, block=20, token=12, slot=5) for seed in seeds(40)])


# Helpers of the tests above ------------------------------------------------------------------------------------------


def random_heap(seed: int, **most: int) -> list[str]:
    """Return a list with at least one item of each kind. Items can be left out one by one."""
    rng = random.Random(seed)
    return [kind for kind, limit in most.items() for _ in range(rng.randint(1, limit))]


def generate(num_prompt_tokens: int, num_output_tokens: int, use_cache: bool) -> tuple[int, int]:
    """Generate the tokens one by one. Return the passes of a token through the model, and the scores."""
    seen, cached = ["token"] * num_prompt_tokens, 0
    passes = scores = 0
    for _step in range(num_output_tokens):
        for _query in seen[cached:]:
            passes += 1
            for _key in seen:
                scores += 1
        if use_cache:
            cached = len(seen)
        seen.append("token")
    return passes, scores


def request(num_prompt_tokens: int, num_output_tokens: int) -> str:
    """Return a request in words."""
    prompt = f"{num_prompt_tokens:,} prompt token{'s' if num_prompt_tokens > 1 else ''}"
    return f"{prompt} and {num_output_tokens:,} output token{'s' if num_output_tokens > 1 else ''}"


def expect_pair(
    lab: LabUnderTest, what: str, names: tuple[str, str], want: tuple[Any, ...], got: Any, *, second_first: bool = False
) -> None:
    """Compare a pair number by number, so that a message speaks of one."""
    if type(got) is not tuple or len(got) != 2:
        lab.fail(what, f"a tuple ({names[0]}, {names[1]})", got, f"such as {want}: two numbers, in this order")
    for index in (1, 0) if second_first else (0, 1):
        lab.expect(f"{what}, {names[index]}", want[index], got[index])


def expect_fields(
    lab: LabUnderTest, whose: str, want: tuple[int, int, int], got: Any, why: Mapping[str, str] | None = None
) -> None:
    """Compare a shape field by field. `why` has the reason for a field, if there is one."""
    if type(got) is not tuple or len(got) != 3:
        lab.fail(
            f"shape of {whose}", "a tuple (layers, KV heads, head size)", got, f"here {want}: numbers, in this order"
        )
    why = why or {}
    lab.expect(f"layers of {whose}", want[0], got[0])
    lab.expect(f"KV heads of {whose}", want[1], got[1], why.get("KV heads", ""), rule=5)
    lab.expect(f"head size of {whose}", want[2], got[2], why.get("head size", ""), rule=6)
