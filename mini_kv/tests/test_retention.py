"""A retention interval: windows and states keep keys only where a hit is likely to end, as vLLM does by default."""

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.tests.test_windows_and_groups import prefill

WINDOW = SlidingWindowSpec(2, sliding_window=4)


def make(interval: int | None, *specs: KVCacheSpec) -> KVCacheManager:
    groups = tuple(KVCacheGroupSpec((f"group {i}",), spec) for i, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(60, groups, prefix_cache_retention_interval=interval))


def published(kv: KVCacheManager, group_id: int) -> list[int]:
    """Return the positions of the group's tables whose blocks are cached, in the order of publishing."""
    keys = [key for key, _ in kv.block_pool.cached_block_hash_to_block.items()]
    (request,) = kv.requests.values()
    names = kv.coordinator.single_type_managers[group_id].hashes_per_block(request.block_hashes)
    return [i for i, name in enumerate(names) if any(key == name + group_id.to_bytes(4, "big") for key in keys)]


@pytest.mark.parametrize(
    ("interval", "kept"),
    [(None, [0, 1, 2, 3, 4, 5]), (0, [4, 5]), (4, [0, 1, 2, 3, 4, 5]), (8, [2, 3, 4, 5])],
    ids=["everywhere", "end of the prompt", "each 4 tokens", "each 8 tokens"],
)
def test_a_window_keeps_what_a_hit_needs_at_each_place_of_the_interval(interval: int | None, kept: list[int]) -> None:
    """13 tokens: a hit ends at 12 at most, since the last token is always computed, and needs the 2 blocks before."""
    kv = make(interval, WINDOW)
    prefill(kv, "A", range(13))
    assert published(kv, 0) == kept


def test_the_same_prompt_is_found_again_and_a_longer_answer_is_not() -> None:
    kv = make(0, FullAttentionSpec(2), WINDOW)
    request = prefill(kv, "A", range(12))
    request.append_output_token_ids(*range(100, 107))
    assert kv.allocate_slots(request, 7) is not None
    request.num_computed_tokens += 7
    kv.free(request)
    assert kv.get_computed_blocks(kv.new_request("again", range(12)))[1] == 10
    next_turn = [*range(12), *range(100, 107), 50]
    assert kv.get_computed_blocks(kv.new_request("next turn", next_turn))[1] == 10  # 18, if all keys were kept


def test_where_two_prompts_part_the_second_leaves_what_the_third_finds() -> None:
    """Marconi's rule: a prefix that two have shared will be shared again."""
    kv = make(0, FullAttentionSpec(2), WINDOW)
    hits = []
    for name in range(3):
        request = kv.new_request(str(name), [*range(8), *range(100 * name, 100 * name + 8)])
        blocks, num_hit = kv.get_computed_blocks(request)
        hits.append(num_hit)
        assert kv.allocate_slots(request, 16 - num_hit, num_hit, blocks) is not None
        assert request.shared_prefix_boundary == [0, 8, 0][name]
        kv.free(request)
    assert hits == [0, 0, 8]


def test_prompts_may_part_right_before_the_last_token() -> None:
    """8 tokens are shared and the ninth is the last one: the place to keep is at 8, as far as a hit can reach."""
    kv = make(0, FullAttentionSpec(2), WINDOW)
    kv.free(prefill(kv, "A", [*range(8), *range(100, 108)]))
    assert prefill(kv, "B", [*range(8), 50]).shared_prefix_boundary == 8


def test_a_state_is_kept_at_the_end_of_the_prompt() -> None:
    states = MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,))
    kept = []
    for interval in (None, 0, 8):
        kv = make(interval, states)
        prefill(kv, "A", range(17), 4, 4, 4, 4, 1)
        kept.append(published(kv, 0))
    assert kept == [[0, 1, 2, 3], [3], [1, 3]]


def test_an_interval_that_cannot_work_is_refused() -> None:
    for interval, specs, words in (
        (-2, (WINDOW,), "0 or a multiple of the block size 2"),
        (3, (WINDOW,), "0 or a multiple of the block size 2"),
        (4, (FullAttentionSpec(2),), "no layer has a window or states"),
    ):
        with pytest.raises(ConfigError, match=words):
            make(interval, *specs)
    make(0, FullAttentionSpec(2))  # vLLM's default, for any model
