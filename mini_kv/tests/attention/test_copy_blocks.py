"""Whole blocks are copied as copy-on-write asks for: every layer, both planes, and the scales with them."""

import pytest
import torch

from mini_kv.attention.kv_cache import allocate_kv_cache, copy_blocks
from mini_kv.core.errors import ConfigError


def filled(dtype, layout="NHD"):
    """Return a cache in which every block holds its own number."""
    kv_cache = allocate_kv_cache(6, 4, 2, 3, dtype=dtype, layout=layout)
    numbers = torch.arange(6.0).view(-1, 1, 1, 1)
    kv_cache.data.copy_(numbers.unsqueeze(-1).expand(kv_cache.data.shape))
    if kv_cache.scales is not None:
        kv_cache.scales.copy_((10 * numbers).expand(kv_cache.scales.shape))
    return kv_cache


def contents(kv_cache):
    """Return the one number that each block holds, and the one scale."""
    scales = [] if kv_cache.scales is None else [s.unique().tolist() for s in kv_cache.scales]
    return [block.float().unique().tolist() for block in kv_cache.data], scales


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_copy_is_made_in_every_layer(dtype, layout):
    layers = [filled(dtype, layout), filled(dtype, layout)]
    copy_blocks([layer.data for layer in layers], [(2, 5), (1, 3)])
    for layer in layers:
        assert contents(layer) == ([[0], [1], [2], [1], [4], [2]], [])


def test_the_scales_travel_with_the_block():
    kv_cache = filled(torch.int8)
    copy_blocks([kv_cache.data, kv_cache.scales], [(2, 5)])
    assert contents(kv_cache) == ([[0], [1], [2], [3], [4], [2]], [[0], [10], [20], [30], [40], [20]])


def test_one_source_may_have_two_copies():
    kv_cache = filled(torch.float32)
    copy_blocks([kv_cache.data], [(2, 5), (2, 4)])
    assert contents(kv_cache)[0] == [[0], [1], [2], [3], [2], [2]]


def test_all_sources_are_read_before_a_target_is_written():
    kv_cache = filled(torch.float32)
    copy_blocks([kv_cache.data], [(1, 2), (2, 1)])
    assert contents(kv_cache)[0] == [[0], [2], [1], [3], [4], [5]]


def test_no_pairs_no_copies():
    kv_cache = filled(torch.float32)
    copy_blocks([kv_cache.data], [])
    assert contents(kv_cache)[0] == [[0], [1], [2], [3], [4], [5]]


@pytest.mark.parametrize("pairs", [[(1, 2), (3, 2)], [(1, 2), (6, 3)], [(1, 2), (3, -1)]])
def test_what_cannot_be_meant_is_refused_and_nothing_copied(pairs):
    layers = [filled(torch.float32), filled(torch.float32)]
    with pytest.raises(ConfigError):
        copy_blocks([layer.data for layer in layers], pairs)
    for layer in layers:
        assert contents(layer)[0] == [[0], [1], [2], [3], [4], [5]]
