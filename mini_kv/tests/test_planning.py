"""The plan of a cache: groups, equal blocks, how many there are, who shares a tensor; and `mini-kv plan`."""

from dataclasses import replace
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.kv_cache_planning import (
    blocks_per_request,
    bytes_per_block,
    get_kv_cache_config,
    get_kv_cache_groups,
    get_kv_cache_tensors,
    get_max_concurrency,
    group_size,
    with_cache_dtype,
)
from mini_kv.tools.planning.cut import on_one_card
from mini_kv.tools.planning.models import load_model, model_names
from mini_kv.tools.planning.states import mamba2

FULL = FullAttentionSpec(16, num_kv_heads=8, head_size=128)
WINDOW = SlidingWindowSpec(16, num_kv_heads=8, head_size=128, sliding_window=1024)


def layers(**kinds: tuple[int, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the layers' specs, by kind the given number of them, named full.0, full.1 and so on."""
    return {f"{kind}.{i}": spec for kind, (number, spec) in kinds.items() for i in range(number)}


def sizes(specs: dict[str, KVCacheSpec], **options: Any) -> list[int]:
    return [len(group.layer_names) for group in get_kv_cache_groups(specs, **options)]


# Groups.


def test_a_regular_ratio_leaves_no_place_empty() -> None:
    """10 full and 20 windows: three groups of 10, dealt out in turn."""
    groups = get_kv_cache_groups(layers(full=(10, FULL), window=(20, WINDOW)))
    assert [len(group.layer_names) for group in groups] == [10, 10, 10]
    assert [group.layer_names[:3] for group in groups] == [
        ("full.0", "full.1", "full.2"),
        ("window.0", "window.2", "window.4"),
        ("window.1", "window.3", "window.5"),
    ]


@pytest.mark.parametrize(
    ("num_full", "num_window", "want"),
    [
        (13, 12, [13, 12]),
        (12, 13, [12, 13]),
        (20, 29, [20, 29]),  # 29 < 1.5 * 20: one group has 9 places empty
        (20, 30, [20, 15, 15]),  # 30 is not
        (4, 28, [4] * 8),
        (1, 5, [1] * 6),
        (10, 52, [10, 9, 9, 9, 9, 8, 8]),  # padding is spread: 8 of 70 places are empty, at most 2 in a group
        (32, 0, [32]),
    ],
)
def test_nearly_equal_numbers_take_the_larger(num_full: int, num_window: int, want: list[int]) -> None:
    """If there are less than 1.5 times as many of one kind as of another, a group is as large as the larger."""
    assert sizes(layers(full=(num_full, FULL), window=(num_window, WINDOW))) == want
    assert group_size(list(filter(None, [num_full, num_window]))) == max(want)


# Blocks of one size: # is 8 KiB of a layer's page, . is padding.
#
#     full attention, 8 heads           16 tokens   ########
#     a window, 4 heads                 16 tokens   ####
#         beside full attention         32 tokens   ########
#     a window, 3 heads                 16 tokens   ###
#         beside full attention         16 tokens   ###.....
#     a state of 304 KiB                            ######################################
#         beside full attention                     ######################################..
#     full attention beside that state  80 tokens   ########################################


def test_smaller_layers_get_longer_blocks() -> None:
    """Windows of 4 heads beside full attention of 8: 32 tokens of the one are as many bytes as 16 of the other."""
    small = SlidingWindowSpec(16, num_kv_heads=4, head_size=128, sliding_window=1024)
    full, window = get_kv_cache_groups(layers(full=(6, FULL), window=(6, small)))
    assert (full.kv_cache_spec.block_size, window.kv_cache_spec.block_size) == (16, 32)
    assert isinstance(window.kv_cache_spec.block_size, int)  # blocks are counted with it
    assert full.kv_cache_spec.page_size_bytes == window.kv_cache_spec.page_size_bytes == 2 * 16 * 8 * 128 * 2
    # A request of 1,000 tokens in one step: cdiv(1000, 16) + cdiv(1000, 32) blocks of 6 * 65,536 bytes.
    assert blocks_per_request((full, window), 1000, 1000) == 63 + 32
    assert bytes_per_block((full, window)) == 6 * 65_536


def test_what_does_not_divide_is_padded() -> None:
    """3 heads beside 8: 65,536 bytes are no multiple of 24,576, so 40,960 of each page are empty."""
    odd = SlidingWindowSpec(16, num_kv_heads=3, head_size=128, sliding_window=1024)
    _, window = get_kv_cache_groups(layers(full=(2, FULL), window=(2, odd)))
    spec = window.kv_cache_spec
    assert isinstance(spec, SlidingWindowSpec)
    assert (spec.block_size, spec.real_page_size_bytes, spec.page_size_bytes) == (16, 24_576, 65_536)


def test_a_state_makes_all_blocks_longer_and_is_padded() -> None:
    """304 KiB of state, 64 KiB for 16 tokens: 80 tokens take 320 KiB, and 16 KiB of each state's page are empty."""
    state = MambaSpec(16, shapes=((8192, 3), (8192, 16)), dtypes_bytes=(2, 2))
    assert state.page_size_bytes == 304 * 1024
    groups = get_kv_cache_groups(layers(full=(4, FULL), state=(28, state)))
    assert [len(group.layer_names) for group in groups] == [4] * 8
    assert {group.kv_cache_spec.block_size for group in groups} == {80}
    assert {group.kv_cache_spec.page_size_bytes for group in groups} == {320 * 1024}
    spec = groups[1].kv_cache_spec
    assert isinstance(spec, MambaSpec)
    assert spec.real_page_size_bytes == 304 * 1024


# Layers of one type: # is 8 KiB of a layer's page.
#
#     full attention, 8 heads           16 tokens   ########
#     full attention, 3 heads           16 tokens   ###         one table, a page of its own size in each tensor


def test_layers_that_need_equally_many_blocks_share_a_table_and_keep_their_sizes() -> None:
    """8 and 3 heads, both full attention: one group, 65,536 and 24,576 bytes per block, and nothing is padded."""
    few = FullAttentionSpec(16, num_kv_heads=3, head_size=128)
    specs = layers(full=(2, FULL), few=(1, few))
    (group,) = get_kv_cache_groups(specs)
    assert group == KVCacheGroupSpec(("full.0", "full.1", "few.0"), UniformTypeKVCacheSpecs(16, specs))
    assert [group.spec_of(name).page_size_bytes for name in group.layer_names] == [65_536, 65_536, 24_576]
    assert group.kv_cache_spec.page_size_bytes == bytes_per_block([group]) == 2 * 65_536 + 24_576
    assert get_kv_cache_tensors([group]) == [[["full.0"]], [["full.1"]], [["few.0"]]]
    assert blocks_per_request([group], 1000, 512) == 63


def test_windows_are_of_one_type_if_they_reach_equally_far() -> None:
    far = SlidingWindowSpec(16, num_kv_heads=8, head_size=128, sliding_window=2048)
    narrow = SlidingWindowSpec(16, num_kv_heads=4, head_size=128, sliding_window=1024)
    assert sizes(layers(window=(2, WINDOW), narrow=(3, narrow))) == [5]
    assert sizes(layers(window=(2, WINDOW), far=(2, far))) == [2, 2]


def test_a_group_of_one_type_is_managed_as_its_first_layer_is() -> None:
    """1,000 tokens of full attention are 63 blocks of 16, whatever the layers keep; a drafter may be in the group."""
    few = FullAttentionSpec(16, num_kv_heads=3, head_size=128)
    (group,) = get_kv_cache_groups(layers(full=(2, FULL), few=(1, few)))
    kv = KVCacheManager(KVCacheConfig(100, (replace(group, is_eagle_group=True),)))
    request = kv.new_request("A", range(1000))
    assert kv.allocate_slots(request, 1000) is not None
    assert kv.get_block_ids("A") == (list(range(1, 64)),)


# Blocks of unequal pages, one after the other: vectors that stand for 4 tokens each, and what is kept beside them.

LATENT = MLAAttentionSpec(64, num_kv_heads=1, head_size=256, tokens_per_state=4)
PENDING = SlidingWindowMLASpec(4, num_kv_heads=1, head_size=512, sliding_window=8)
INDEX = SlidingWindowMLASpec(4, num_kv_heads=1, head_size=64, sliding_window=8)
NEAR = SlidingWindowMLASpec(16, num_kv_heads=1, head_size=256, sliding_window=128)


def test_a_vector_of_four_tokens_takes_a_quarter_of_the_bytes() -> None:
    assert LATENT.page_size_bytes == 16 * 256 * 2
    assert NEAR.page_size_bytes == 16 * 256 * 2  # one vector per token, and not a key and a value


@pytest.mark.parametrize(
    ("num_near", "num_latent", "num_pending", "want"),
    [
        (3, 3, 3, [3, 3, 6]),
        (5, 3, 3, [3, 2, 3, 6]),  # room for 3 repeats leaves 1 place empty; 4: 3 + 1 + 1; 5: 2 + 2
        (9, 4, 4, [5, 4, 4, 8]),  # 4 leaves 3; 5: 1 + 1 + 1, and of two that leave as many, the larger is taken
        (3, 2, 1, [1, 1, 1, 1, 1, 2]),  # 1 leaves none
    ],
)
def test_kinds_that_need_more_places_are_split(
    num_near: int, num_latent: int, num_pending: int, want: list[int]
) -> None:
    """A pattern of pages of two sizes is in one group, and sets the room; other kinds are dealt out to groups."""
    specs = layers(
        near=(num_near, NEAR), latent=(num_latent, LATENT), pending=(num_pending, PENDING), index=(num_pending, INDEX)
    )
    assert sizes(specs) == want


def test_a_block_is_as_large_as_its_largest_group() -> None:
    specs = layers(near=(3, NEAR), latent=(2, LATENT), pending=(2, PENDING), index=(2, INDEX))
    groups = get_kv_cache_groups(specs)
    assert [group.layer_names for group in groups] == [
        ("near.0", "near.2"),
        ("near.1",),
        ("latent.0", "latent.1"),
        ("pending.0", "pending.1", "index.0", "index.1"),
    ]
    assert [group.page_size_bytes for group in groups] == [16_384, 8_192, 16_384, 2 * (4096 + 512)]
    assert bytes_per_block(groups) == 16_384
    config = get_kv_cache_config(groups, 100 * 16_384)
    kv = KVCacheManager(config, max_in_flight_tokens=64)
    request = kv.new_request("A", range(64))
    assert kv.allocate_slots(request, 64) is not None
    assert [len(table) for table in kv.get_block_ids("A")] == [4, 4, 1, 16]


def test_compressed_layers_need_groups_and_keep_their_form() -> None:
    specs = layers(near=(1, NEAR), latent=(1, LATENT))
    with pytest.raises(ConfigError, match="layers whose vectors stand for several tokens need groups"):
        get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=True)
    model = load_model("deepseek-v4-flash").kv_cache_spec
    assert with_cache_dtype(model, "fp8") == model == with_cache_dtype(model, "auto")
    with pytest.raises(ConfigError, match="block_size is 512: compressed layers are planned in blocks of 256 tokens"):
        load_model("deepseek-v4-flash", block_size=512)


# The switch.


def test_the_switch_has_three_positions() -> None:
    """On, off, and as vLLM would: groups, but not for attention in chunks."""
    chunks = ChunkedLocalAttentionSpec(16, num_kv_heads=8, head_size=128, attention_chunk_size=8192)
    windows, chunked = layers(full=(10, FULL), window=(20, WINDOW)), layers(full=(12, FULL), chunks=(36, chunks))
    for switch, want in ((False, [10, 10, 10]), (True, [30]), (None, [10, 10, 10])):
        assert sizes(windows, disable_hybrid_kv_cache_manager=switch) == want
    for switch, want in ((False, [12] * 4), (True, [48]), (None, [48])):
        assert sizes(chunked, disable_hybrid_kv_cache_manager=switch) == want


def test_off_keeps_everything_in_full() -> None:
    """One group of full attention; windows alone stay windows; states cannot."""
    (group,) = get_kv_cache_groups(layers(full=(2, FULL), window=(2, WINDOW)), disable_hybrid_kv_cache_manager=True)
    assert group.kv_cache_spec == FULL
    (alone,) = get_kv_cache_groups(layers(window=(2, WINDOW)), disable_hybrid_kv_cache_manager=True)
    assert alone.kv_cache_spec == WINDOW
    state = MambaSpec(16, shapes=((4,),), dtypes_bytes=(2,))
    with pytest.raises(ConfigError, match="state"):
        get_kv_cache_groups(layers(full=(2, FULL), state=(2, state)), disable_hybrid_kv_cache_manager=True)
    latent = MLAAttentionSpec(16, num_kv_heads=1, head_size=576)
    (group,) = get_kv_cache_groups(layers(latent=(3, latent)), disable_hybrid_kv_cache_manager=True)
    assert group.kv_cache_spec == latent  # which is full attention, with one vector per token and not two
    with pytest.raises(ConfigError, match=r"^no layer owns any KV"):
        get_kv_cache_groups({})


# Memory, concurrency.


def test_memory_to_blocks() -> None:
    """10 layers of 64 KiB per block: 1 GiB holds 1,638 blocks and a rest; less than two blocks hold nothing."""
    groups = get_kv_cache_groups(layers(full=(10, FULL), window=(20, WINDOW)))
    assert bytes_per_block(groups) == 655_360
    assert get_kv_cache_config(groups, 2**30).num_blocks == 1638
    assert get_kv_cache_config(groups, 2 * 655_360).num_blocks == 2
    with pytest.raises(ConfigError, match="655,360"):
        get_kv_cache_config(groups, 2 * 655_360 - 1)


def test_the_planned_number_of_requests_is_let_in() -> None:
    """Memory for exactly 3 of the longest requests: three are let in by the gate, whole, and the fourth is not."""
    groups = get_kv_cache_groups(layers(full=(2, FULL), window=(4, WINDOW)))
    per_request = blocks_per_request(groups, 4096, 512)
    assert per_request == 256 + 2 * (96 + 1)  # cdiv(1023 + 512, 16) + 1
    config = get_kv_cache_config(groups, (3 * per_request + 1) * bytes_per_block(groups))
    assert get_max_concurrency(config, 4096, 512) == 3.0
    kv = KVCacheManager(config, max_in_flight_tokens=512)
    requests = [kv.new_request(str(n), range(5000 * n, 5000 * n + 4096)) for n in range(4)]
    for start in range(0, 4096, 512):
        for request in requests[:3]:
            assert kv.allocate_slots(request, 512, full_sequence_must_fit=True) is not None
            request.num_computed_tokens = start + 512
    assert kv.allocate_slots(requests[3], 512, full_sequence_must_fit=True) is None


# Tensors.


def test_a_tensor_is_shared_by_one_layer_of_each_group() -> None:
    """The design note's three groups: tensor 0 belongs to full.0, window.0 and window.1, not to window.10."""
    groups = get_kv_cache_groups(layers(full=(10, FULL), window=(20, WINDOW)))
    tensors = get_kv_cache_tensors(groups)
    assert len(tensors) == 10
    assert tensors[0] == [["full.0"], ["window.0"], ["window.1"]]
    assert tensors[9] == [["full.9"], ["window.18"], ["window.19"]]


def test_layers_that_share_kv_own_nothing() -> None:
    """They stand behind their owner in its place, and take no memory."""
    groups = get_kv_cache_groups(layers(full=(1, FULL), window=(3, WINDOW)))
    sharing = {"full.1": "full.0", "window.3": "window.2", "window.4": "window.2"}
    assert get_kv_cache_tensors(groups, sharing) == [
        [["full.0", "full.1"], ["window.0"], ["window.1"], ["window.2", "window.3", "window.4"]]
    ]
    assert get_kv_cache_tensors(get_kv_cache_groups(layers(full=(2, FULL), window=(5, WINDOW))))[1] == [
        ["full.1"], ["window.3"], ["window.4"], []
    ]  # fmt: skip


# Real models.


def test_real_models() -> None:
    """What their sources say, grouped: layers per group, layers that share, tokens per block."""
    found = {}
    for name in model_names():
        model = load_model(name)
        groups = get_kv_cache_groups(model.kv_cache_spec, disable_hybrid_kv_cache_manager=False)
        found[name] = (
            [len(group.layer_names) for group in groups],
            len(model.kv_sharing),
            {group.kv_cache_spec.block_size for group in groups},
        )
        assert len(model.source) > 40
    assert found == {
        "llama-3-8b": ([32], 0, {16}),
        "qwen-3-4b": ([36], 0, {16}),
        "gemma-3-27b": ([9, 9, 9, 9, 8, 8, 10], 0, {16}),
        "gemma-3n-e4b": ([4] * 5, 15, {16}),
        "llama-4-scout": ([12] * 4, 0, {16}),
        "gpt-oss-120b": ([18, 18], 0, {16}),
        "deepseek-v3": ([61], 0, {16}),
        "deepseek-v3.2": ([122], 0, {64}),
        "glm-5": ([156], 0, {64}),
        "jamba": ([4] * 8, 0, {80}),
        "qwen-3.5-4b": ([8] * 4, 0, {576}),
        "qwen-3.5-9b": ([8] * 4, 0, {576}),
        "qwen-3.5-27b": ([16] * 4, 0, {832}),
        "qwen-3.5-35b-a3b": ([10] * 4, 0, {1088}),
        "qwen-3.5-122b-a10b": ([12] * 4, 0, {2112}),
        "qwen-3.5-397b-a17b": ([15] * 4, 0, {2112}),
        "qwen-3-next-80b-a3b": ([12] * 4, 0, {576}),
        "nemotron-3-nano-30b-a3b": ([6, 6, 6, 5, 6], 0, {2096}),
        "nemotron-3-super-120b-a12b": ([8] * 6, 0, {4160}),
        "nemotron-h-56b": ([9, 9, 9, 9, 9, 9, 10], 0, {4128}),
        "falcon-h1-7b": ([44] * 2, 0, {1568}),
        "granite-4-h-tiny": ([4] * 10, 0, {400}),
        "granite-4-h-1b": ([4] * 10, 0, {400}),
        "lfm2-8b-a1b": ([6] * 4, 0, {16}),
        "gemma-4-26b-a4b": ([5] * 6, 0, {16, 32}),
        "mimo-v2-flash": ([9, 8, 8, 8, 8, 7], 0, {16, 32}),
        "kimi-linear-48b-a3b": ([7, 7, 6, 7], 0, {1920}),
        "kimi-k3": ([23, 23, 23, 24], 0, {5760}),
        "nemotron-super-49b": ([49], 0, {16}),
        "deepseek-v4-flash": ([22, 21, 62, 42, 20], 0, {4, 8, 64, 256}),
        "deepseek-v4-pro": ([31, 30, 91, 31, 60], 0, {4, 8, 64, 256}),
        "gpt-oss-20b": ([12] * 2, 0, {16}),
        "command-r7b": ([8] * 4, 0, {16}),
        "qwen-3-30b-a3b": ([48], 0, {16}),
        "mistral-nemo-12b": ([40], 0, {16}),
        "llama-3.1-8b": ([32], 0, {16}),
        "llama-3.1-70b": ([80], 0, {16}),
        "qwen-2.5-7b": ([28], 0, {16}),
        "qwen-3-8b": ([36], 0, {16}),
        "mixtral-8x7b": ([32], 0, {16}),
        "mistral-7b-v0.3": ([32], 0, {16}),
        "qwen-3-0.6b": ([28], 0, {16}),
        "qwen-3-1.7b": ([28], 0, {16}),
        "qwen-3-32b": ([64], 0, {16}),
        "qwen-3-235b-a22b": ([94], 0, {16}),
        "qwen-3-coder-480b-a35b": ([62], 0, {16}),
        "qwen-3-vl-8b": ([36], 0, {16}),
        "llama-3.1-405b": ([126], 0, {16}),
        "llama-4-maverick": ([12] * 4, 0, {16}),
        "mixtral-8x22b": ([56], 0, {16}),
        "kimi-k2": ([61], 0, {16}),
        "kimi-k2.5": ([61], 0, {16}),
        "minimax-m2.5": ([62], 0, {16}),
        "glm-5.2": ([99], 0, {64}),
    }


def test_one_vector_per_token_and_layer_has_no_factor_of_two_and_every_card_keeps_all_of_it() -> None:
    """What LMCache counts for DeepSeek-V3: 70,272 bytes per token. A card of eight keeps as much."""
    specs = load_model("deepseek-v3").kv_cache_spec
    latent = MLAAttentionSpec(16, num_kv_heads=1, head_size=512 + 64)
    assert set(specs.values()) == {latent}
    assert sum(spec.page_size_bytes for spec in specs.values()) == 16 * 70_272
    assert 2 * latent.page_size_bytes == FullAttentionSpec(16, num_kv_heads=1, head_size=512 + 64).page_size_bytes
    assert on_one_card(specs, 8) == specs
    narrow = with_cache_dtype(specs, "int8_per_token_head")["latent.0"]
    assert narrow.page_size_bytes == 16 * (576 + 4)


def test_of_a_latent_vector_the_plan_says_that_every_card_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for size in ("1", "8"):
        assert main(["plan", "deepseek-v3", "--tensor-parallel-size", size]) == 0
        told.append(capsys.readouterr().out.splitlines())
    said = [
        f"{told[0][0][:-1]} on each card.",
        "Each of 8 cards keeps all of it: a latent vector serves all heads.",
        "",
    ]
    assert told[1] == said + told[0][1:]


def test_a_sparse_layer_keeps_a_latent_vector_and_an_indexers_vector() -> None:
    """DeepSeek-V3.2, per token and layer: 576 numbers of 16 bits, and 128 of 8 bits with a scale; 656 + 132 in fp8."""
    specs = load_model("deepseek-v3.2", block_size=100).kv_cache_spec
    assert {name: spec.page_size_bytes for name, spec in specs.items() if name.endswith(".60")} == {
        "latent.60": 128 * 1152,
        "indexer.60": 128 * 132,
    }
    assert on_one_card(specs, 8) == specs
    narrow = with_cache_dtype(specs, "fp8")
    assert [narrow[name].page_size_bytes for name in ("latent.60", "indexer.60")] == [128 * 656, 128 * 132]
    with pytest.raises(ConfigError, match="sparse layers keep latent vectors as auto or fp8 only"):
        with_cache_dtype(specs, "int8_per_token_head")


def test_the_plan_of_a_sparse_model_has_pages_of_two_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "deepseek-v3.2", "--memory", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == (
        "group 0  122 layers            latent vectors and indexer keys  blocks of 64 tokens, at most 2,560 a request"
    )
    assert lines[5] == "block        5,012,736 bytes: 61 layers of 73,728, 61 layers of 8,448"
    assert lines[9] == "padding      0 of 122 places are empty: 0.0 %"
    assert [line.split() for line in lines[12:14]] == [["tensor", "0", "latent.0"], ["tensor", "1", "indexer.0"]]


def test_the_plan_of_compressed_layers_counts_empty_bytes_and_draws_no_tensors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "deepseek-v4-flash", "--memory", "40", "--max-num-batched-tokens", "2048"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  blocks of ")[0].rstrip() for line in lines[3:8]] == [
        "group 0  22 layers             window of 128",
        "group 1  21 layers             window of 128",
        "group 2  62 layers             indexer keys and latent vectors",
        "group 3  42 layers             last 8 uncompressed",
        "group 4  20 layers             last 128 uncompressed",
    ]
    assert lines[9] == "block        1,002,240 bytes: 21 layers of 8,640, 21 layers of 37,440, 20 layers of 1,728"
    assert lines[13:16] == [
        "padding      871,488 of 5,011,200 bytes are empty: 17.4 %",
        "",
        "one tensor: a block is a stretch of it, with a page for each layer of the block's group",
    ]


def test_gemma_3n_shares_with_the_last_of_each_kind() -> None:
    sharing = load_model("gemma-3n-e4b").kv_sharing
    assert set(sharing.items()) == {(f"full.{i}", "full.3") for i in (4, 5, 6)} | {
        (f"window.{i}", "window.15") for i in range(16, 28)
    }


def test_a_plan_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups, totals, tensors, source."""
    words = ["--memory", "20", "--max-len", "32768", "--max-num-batched-tokens", "1024"]
    assert main(["plan", "gemma-3-27b", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Room for 5 requests of 32,768 tokens in 20 GiB.", "Gemma 3 27B: 62 layers own KV, 0 share it"]
    assert lines[3] == ("group 0  9 layers + 1 empty    window of 1,024     blocks of 16 tokens, at most 193 a request")
    assert lines[9].startswith("group 6  10 layers             full attention ")
    assert lines[9].endswith(" blocks of 16 tokens, at most 2,048 a request")
    assert lines[11:16] == [
        "block        1,310,720 bytes: 10 layers of 131,072",
        "pool         16,384 blocks in 20 GiB, one of them the null block",
        "request      of 32,768 tokens: at most 3,206 blocks, 3.91 GiB, with two steps of 1,024 tokens in flight",
        "concurrency  5.11 such requests at once, 167,447 tokens",
        "padding      8 of 70 places are empty: 11.4 %",
    ]
    assert lines[18].split() == ["tensor", "0", *(f"window.{i}" for i in range(6)), "full.0"]
    assert lines[27].split() == ["tensor", "9", *["."] * 6, "full.9"]
    assert lines[-1].startswith("source: ")


def test_a_long_drawing_loses_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3-8b"]) == 0
    out = capsys.readouterr().out
    assert "           .. 21 more ..\ntensor 31  full.31\n" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["gpt-5"],
        ["jamba", "--hybrid", "off"],
        *[["llama-3-8b", "--memory", value] for value in ("0", "-1", "nan", "inf", "1e400", "1e300", "1e-300")],
        *[["llama-3-8b", option, "9" * 400] for option in ("--max-len", "--max-num-batched-tokens", "--block-size")],
        *[["llama-3-8b", option, "0"] for option in ("--max-len", "--block-size")],
    ],
)
def test_a_plan_that_cannot_be(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr, and status 2."""
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mini-kv plan: ")
    assert captured.err.count("\n") == 1


def test_one_card_of_several_keeps_its_heads_and_says_when_they_have_run_out(capsys):
    """As vLLM counts them: the KV heads divided by the cards, and one at least."""
    layer = {"0": FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)}
    sizes = {size: on_one_card(layer, size)["0"].page_size_bytes for size in (1, 2, 4, 8, 16)}
    assert sizes == {1: 65_536, 2: 32_768, 4: 16_384, 8: 8_192, 16: 8_192}
    assert main(["plan", "llama-3-8b", "--tensor-parallel-size", "2"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1] == "Each of 2 cards keeps 4 of 8 KV heads per layer."
    assert "pool         16,384 blocks in 16 GiB" in told
    assert main(["plan", "llama-3-8b", "--tensor-parallel-size", "16"]) == 0
    assert "Each head is kept 2 times: a request takes as much of each." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "size", "says"),
    [
        ("llama-3-8b", "3", "has 8 KV heads: 3 cards cannot share them evenly"),
        ("llama-3-8b", "0", "--tensor-parallel-size is 0, it must be from 1 to 1,000,000,000"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(capsys, model, size, says):
    assert main(["plan", model, "--tensor-parallel-size", size]) == 2
    assert says in capsys.readouterr().err


def test_groups_of_mamba_2_that_the_cards_do_not_divide_are_as_many_as_cards() -> None:
    """Each card then keeps one whole group. Of 8 heads of 16 it keeps its share. A group has two vectors of 32."""
    sizes = {"heads": 8, "head_size": 16, "state_size": 32, "kernel": 4}
    inputs = {(groups, cards): mamba2(cards, 0, groups=groups, **sizes)[0] for groups in (1, 4, 6) for cards in (1, 4)}
    assert inputs == {
        (1, 1): (3, 128 + 2 * 32),
        (1, 4): (3, 32 + 2 * 32),
        (4, 1): (3, 128 + 4 * 2 * 32),
        (4, 4): (3, 32 + 2 * 32),
        (6, 1): (3, 128 + 6 * 2 * 32),
        (6, 4): (3, 32 + 2 * 32),
    }
