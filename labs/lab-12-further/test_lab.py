"""lab-12, further: chunks, states, pages and sharers. Read the numbered tests in order.

A prompt's blocks are drawn as letters: of "x.x" the first and third block are cached.
"""

import random
from collections.abc import Sequence

from mini_kv.core.kv_cache_interface import KVCacheGroupSpec, MambaSpec
from mini_kv.core.kv_cache_planning import get_kv_cache_tensors
from mini_kv.course import points
from mini_kv.course.labkit.fixture import LabUnderTest
from mini_kv.course.labkit.lives import seeds

from .helpers import (
    EnginesStates,
    drawn,
    expect_hits,
    hit_of_the_engine,
    pages_of_the_engine,
    random_layers,
    random_plan,
)

# Chunks -------------------------------------------------------------------------------------------------------------


@points(2, "chunk_hit", rule=2)
def test_1_only_the_chunk_of_the_next_token_counts(lab: LabUnderTest) -> None:
    """Chunks of four blocks: after the second chunk's second block, the first chunk need not be cached."""
    why = "token 12 reads 8 to 11, which are in blocks 4 and 5"
    far = ("..xxxxxxxx", 20, "token 20 reads 16 to 19, and nothing of the first chunk")
    expect_hits(lab, 2, 8, [("....xx", 12, why), ("xxxxxx", 12, why), ("xxx", 6, "token 6 reads 0 to 5"), far])


@points(2, "chunk_hit", rule=2, after="test_1_only_the_chunk_of_the_next_token_counts")
def test_2_the_first_token_of_a_chunk_reads_nothing(lab: LabUnderTest) -> None:
    """At a chunk's end any prompt is a hit, cached or not."""
    why = "token 8 is the first of its chunk: it needs nothing that was there before"
    expect_hits(lab, 2, 8, [("....", 8, why), ("xx.x.", 8, why), ("...", 0, "token 6 reads 0 to 5")])


@points(1, "chunk_hit", rule=2, after="test_1_only_the_chunk_of_the_next_token_counts")
def test_3_a_gap_ends_nothing_but_the_hits_that_read_it(lab: LabUnderTest) -> None:
    """A hit whose next token reads the gap is not valid. A shorter one may be."""
    cases = [
        ("x.x", 2, "token 6 and token 4 read block 1, token 2 does not"),
        ("xxxxx.x", 10, "token 14 and token 12 read block 5"),
        ("..x.xxx", 14, "the gaps are in the first chunk, and token 14 is in the second"),
    ]
    expect_hits(lab, 2, 8, cases)


@points(2, "chunk_hit", rule=3, after="test_1_only_the_chunk_of_the_next_token_counts")
def test_4_a_chunk_may_begin_within_a_block(lab: LabUnderTest) -> None:
    """Chunks of 6, blocks of 4: token 6 is in the middle of block 1."""
    why = "token 8 reads 6 and 7, the second half of block 1"
    expect_hits(lab, 4, 6, [(".x", 8, why), ("x.", 4, why), ("..", 0, why), ("...", 12, "token 12 begins a chunk")])
    why = "chunks of 3 are shorter than a block: token 8 reads 6 and 7, token 4 reads 3"
    expect_hits(lab, 4, 3, [(".x", 8, why), ("x.", 4, why), ("..", 0, why), ("...", 12, "token 12 begins a chunk")])


# States -------------------------------------------------------------------------------------------------------------


Case = tuple[list[int | None], int, int, list[int | None], str]
"""A table, the tokens before and after the step, the expected table, why."""


def expect_tables(lab: LabUnderTest, cases: Sequence[Case]) -> None:
    """Ask for the table of each step, in blocks of 4. The given table must not have changed."""
    rows: list[tuple[str, object, object, str]] = []
    for table, num_computed, num_tokens, want, why in cases:
        given = list(table)
        got = lab.next_states(given, num_computed, num_tokens, 4)
        rows.append((f"after {table}, from {num_computed} to {num_tokens} tokens", want, got, why))
        rows.append((f"the table {table} that was given", table, given, "do not change your argument"))
    lab.expect_all(rows)


@points(2, "next_states", rule=4)
def test_5_a_step_writes_one_state(lab: LabUnderTest) -> None:
    """A prompt of ten tokens is computed at once: the places in between are null."""
    why = "the last token is number 9, in the third block of 4"
    cases: list[Case] = [([], 0, 10, [None, None, 10], why), ([], 0, 8, [None, 8], "token 7 is in the second block")]
    expect_tables(lab, cases)


@points(2, "next_states", rule=5, after="test_5_a_step_writes_one_state")
def test_6_within_a_block_the_state_is_written_over(lab: LabUnderTest) -> None:
    """A step that ends in the block where it started overwrites the state."""
    why = "the state is read and written in the same block"
    cases: list[Case] = [([2], 2, 3, [3], why), ([None, None, 10], 10, 12, [None, None, 12], why)]
    expect_tables(lab, cases)


@points(2, "next_states", rule=5, after="test_5_a_step_writes_one_state")
def test_7_a_step_across_a_blocks_end_holds_two(lab: LabUnderTest) -> None:
    """It holds the state that it starts from, and the one that it writes."""
    cases: list[Case] = [
        ([4], 4, 5, [4, 5], "the state of 4 tokens is read, that of 5 is written into the next block"),
        ([None, None, 10], 10, 22, [None, None, 10, None, None, 22], "no state is written on the way"),
        ([None, None, 10, 14], 10, 14, [None, None, 10, 14], "a step that is repeated starts from the state of 10"),
        ([4, None], 4, 7, [4, 7], "the state of 4 tokens is in place 0, and place 1 has none yet"),
    ]
    expect_tables(lab, cases)


@points(2, "next_states", rule=6, after="test_7_a_step_across_a_blocks_end_holds_two")
def test_8_what_a_step_does_not_start_from_is_given_back(lab: LabUnderTest) -> None:
    """No layer reads an older state, so a null block replaces it. The table keeps its length."""
    cases: list[Case] = [
        ([4, 5], 5, 6, [None, 6], "the state of 5 tokens includes the state of 4"),
        ([4, 8], 8, 9, [None, 8, 9], "the step starts from the state of 8, so the state of 4 is freed"),
        ([None, None, 10, 14], 14, 15, [None, None, None, 15], "10 goes, its place stays"),
        ([None, None, 10, 14], 10, 12, [None, None, 12, None], "14 goes, its place stays, though it is the last one"),
    ]
    expect_tables(lab, cases)


# Pages --------------------------------------------------------------------------------------------------------------


def expect_pages(
    lab: LabUnderTest,
    token_bytes: dict[str, int],
    state_bytes: dict[str, int],
    want: dict[str, tuple[int, int]],
    why: str,
    block_size: int = 16,
) -> None:
    """Ask for tokens and bytes of each layer's block. `block_size`: tokens per block at first."""
    got = lab.unify_pages(token_bytes, state_bytes, block_size)
    what = ", ".join(f"{layer} {size:,}" for layer, size in [*token_bytes.items(), *state_bytes.items()])
    seen = {layer: got.get(layer) for layer in want} if isinstance(got, dict) else got
    if not isinstance(seen, dict):
        lab.fail(f"pages of {what}", want, got, why)
    lab.expect_all([(f"(tokens, bytes) of {layer} beside {what}", want[layer], seen[layer], why) for layer in want])


@points(2, "unify_pages", rule=9)
def test_9_a_narrow_layer_takes_more_tokens(lab: LabUnderTest) -> None:
    """Half as many heads, half as many bytes per token, twice as many tokens."""
    want = {"full": (16, 65_536), "window": (32, 65_536), "tiny": (128, 65_536)}
    expect_pages(lab, {"window": 2048, "full": 4096, "tiny": 512}, {}, want, "the widest layer sets the bytes")


@points(1, "unify_pages", rule=9, after="test_9_a_narrow_layer_takes_more_tokens")
def test_10_what_does_not_fit_exactly_is_padded(lab: LabUnderTest) -> None:
    """65,536 bytes are not a multiple of 16 x 1,500, so that block keeps its tokens and has an empty end."""
    want = {"full": (16, 65_536), "odd": (16, 65_536)}
    expect_pages(lab, {"full": 4096, "odd": 1500}, {}, want, "65,536 is not a multiple of 24,000")
    want = {"full": (16, 1536), "half": (16, 1536)}
    why = "1,536 is not a multiple of 1,024, so the block keeps its 16 tokens and is padded"
    expect_pages(lab, {"full": 96, "half": 64}, {}, want, why)


@points(2, "unify_pages", rule=7, after="test_9_a_narrow_layer_takes_more_tokens")
def test_11_a_large_state_makes_all_blocks_grow(lab: LabUnderTest) -> None:
    """A state of 300,000 bytes: 16 tokens of attention are too small, 80 cover it. Then one that is covered exactly."""
    want = {"attention": (80, 327_680), "narrow": (160, 327_680), "state": (80, 327_680), "small": (80, 327_680)}
    why = "4 x 65,536 is less than 300,000, and 5 x 65,536 is not"
    expect_pages(lab, {"narrow": 2048, "attention": 4096}, {"state": 300_000, "small": 40_960}, want, why)
    want = {"attention": (32, 131_072), "state": (32, 131_072)}
    expect_pages(lab, {"attention": 4096}, {"state": 131_072}, want, "2 x 65,536 is 131,072: that covers it")
    why = "blocks of 24 tokens have 98,304 bytes, so 24 are too few and 48 cover it"
    want = {"attention": (48, 196_608), "state": (48, 196_608)}
    expect_pages(lab, {"attention": 4096}, {"state": 120_000}, want, why, block_size=24)


@points(1, "unify_pages", rule=9, after="test_9_a_narrow_layer_takes_more_tokens")
def test_12_a_small_state_is_padded(lab: LabUnderTest) -> None:
    """A state is not made of tokens, so more tokens cannot fill its block."""
    why = "a state has one size, whatever its block stands for"
    expect_pages(lab, {"attention": 4096}, {"state": 32_768}, {"attention": (16, 65_536), "state": (16, 65_536)}, why)
    expect_pages(lab, {}, {"large": 90, "small": 30}, {"large": (16, 90), "small": (16, 90)}, why)


# Tensors ------------------------------------------------------------------------------------------------------------


@points(2, "lay_out", rule=10)
def test_13_the_groups_lie_side_by_side(lab: LabUnderTest) -> None:
    """Three groups of two layers have two tensors. A group with fewer layers has an empty list."""
    even = lab.lay_out([("f0", "f1"), ("w0", "w2"), ("w1", "w3")], {})
    short = lab.lay_out([("w0", "w1", "w2"), ("f0",)], {})
    lab.expect_all(
        [
            ("tensors of f0 f1, w0 w2, w1 w3", [[["f0"], ["w0"], ["w1"]], [["f1"], ["w2"], ["w3"]]], even, ""),
            ("tensors of w0 w1 w2, f0", [[["w0"], ["f0"]], [["w1"], []], [["w2"], []]], short, "f has one layer"),
        ]
    )


@points(2, "lay_out", rule=11, after="test_13_the_groups_lie_side_by_side")
def test_14_who_shares_takes_no_block(lab: LabUnderTest) -> None:
    """Layers that read what another layer writes are listed after it and need no tensor of their own."""
    sharing = {"z": "f1", "s": "w0", "a": "f1"}
    got = lab.lay_out([("f0", "f1"), ("w0", "w1")], sharing)
    why = "z and a read f1's KV, s reads w0's: no extra tensor, no extra byte"
    lab.expect("tensors of f0 f1, w0 w1", [[["f0"], ["w0", "s"]], [["f1", "z", "a"], ["w1"]]], got, why)


# The property -------------------------------------------------------------------------------------------------------


@points(1, "chunk_hit", rule=1, stage="property", after="test_4_a_chunk_may_begin_within_a_block")
def test_hits_are_those_of_the_engine(lab: LabUnderTest) -> None:
    """Forty prompts with random blocks in the cache, looked up in the engine as well."""
    for seed in seeds(40):
        rng = random.Random(seed)
        cached = [rng.random() < 0.7 for _ in range(rng.randrange(1, 12))]
        block_size, chunk_size = rng.randrange(1, 5), rng.randrange(1, 12)
        what = f"hit of {drawn(cached)}, blocks of {block_size}, chunks of {chunk_size}"
        want = hit_of_the_engine(cached, block_size, chunk_size)
        lab.expect(what, want, lab.chunk_hit(cached, block_size, chunk_size))


@points(1, "next_states", rule=5, stage="property", after="test_8_what_a_step_does_not_start_from_is_given_back")
def test_states_lie_where_the_engines_lie(lab: LabUnderTest) -> None:
    """Forty requests in random steps. The table has None where the engine has the null block."""
    for seed in seeds(40):
        rng = random.Random(seed)
        block_size = rng.randrange(1, 6)
        engine, table, now = EnginesStates(block_size), list[int | None](), 0
        for _ in range(6):
            then = now + rng.choice([1, 1, rng.randrange(1, 12)])
            table = lab.next_states(table, now, then, block_size)
            want = engine.places_after(then)
            got = [state is not None for state in table]
            lab.expect(f"places with a state, blocks of {block_size}, from {now} to {then} tokens", want, got)
            now = then


@points(1, "unify_pages", rule=8, stage="property", after="test_12_a_small_state_is_padded")
def test_pages_are_those_of_the_engine(lab: LabUnderTest) -> None:
    """Forty random models of up to five layers."""
    for seed in seeds(40):
        token_bytes, state_bytes = random_layers(random.Random(seed))
        want = pages_of_the_engine(token_bytes, state_bytes, 16)
        expect_pages(lab, token_bytes, state_bytes, want, "what the engine plans")


@points(2, "lay_out", rule=10, stage="property", after="test_14_who_shares_takes_no_block")
def test_tensors_are_those_of_the_engine(lab: LabUnderTest) -> None:
    """Forty random plans. The layout does not depend on the spec."""
    spec = MambaSpec(block_size=1, shapes=((1,),), dtypes_bytes=(1,))
    for seed in seeds(40):
        groups, sharing = random_plan(random.Random(seed))
        want = get_kv_cache_tensors([KVCacheGroupSpec(group, spec) for group in groups], sharing)
        lab.expect(f"tensors of {groups}, sharing {sharing}", want, lab.lay_out(groups, sharing))
