"""From a block table to slots: where each token's key and value are written, and read again."""

import pytest
import torch

from mini_kv.attention.block_table import BlockTable, compute_slot_mapping
from mini_kv.attention.kv_cache import gather_kv, reshape_and_cache
from mini_kv.attention.metadata import build_metadata
from mini_kv.core.errors import ConfigError


def slots(query_start_loc, positions, block_table, block_size):
    table = torch.tensor(block_table, dtype=torch.int32)
    starts = torch.tensor(query_start_loc, dtype=torch.int32)
    return compute_slot_mapping(starts, torch.tensor(positions), table, block_size)


def test_a_slot_is_the_physical_block_and_the_place_in_it():
    assert slots([0, 6], range(6), [[7, 3]], 4).tolist() == [28, 29, 30, 31, 12, 13]


def test_each_request_goes_through_its_own_row():
    """A chunk in the middle of request 0, one decode of request 1, nothing of request 2, a new request 3."""
    table = [[7, 3, 9], [4, 5, 0], [6, 0, 0], [2, 0, 0]]
    found = slots([0, 3, 4, 4, 6], [3, 4, 5, 6, 0, 1], table, 4)
    assert found.tolist() == [31, 12, 13, 22, 8, 9]


def test_slots_beyond_32_bits_are_counted_right():
    """The ids fit int32; times the block size they do not."""
    found = slots([0, 1], [5], [[0, 2**31 - 1]], 4)
    assert (found.dtype, found.tolist()) == (torch.int64, [(2**31 - 1) * 4 + 1])


def test_no_tokens_no_slots():
    assert slots([0, 0], [], [[7, 3]], 4).tolist() == []


def test_the_rows_are_allocated_once():
    table = BlockTable(max_num_reqs=2, max_num_blocks_per_req=4, block_size=16)
    memory = table.block_table.data_ptr()
    table.add_row([7, 3], 0)
    table.append_row([9], 0)
    table.append_row([], 0)
    table.add_row([5], 1)
    assert table.block_table[0, :3].tolist() == [7, 3, 9]
    assert table.block_table[1, :1].tolist() == [5]
    assert table.num_blocks_per_row == [3, 1]
    assert (table.block_table.dtype, table.block_table.data_ptr()) == (torch.int32, memory)


def test_a_row_that_is_added_again_starts_anew():
    table = BlockTable(1, 4, 16)
    table.add_row([7, 3, 9], 0)
    table.add_row([1], 0)
    table.append_row([2], 0)
    assert (table.num_blocks_per_row, table.block_table[0, :2].tolist()) == ([2], [1, 2])


def test_a_row_may_be_filled_to_its_end_and_no_further():
    table = BlockTable(1, 2, 16)
    table.add_row([7, 3], 0)
    with pytest.raises(ConfigError, match="row 0 would have 3 blocks; the table is 2 wide"):
        table.append_row([9], 0)
    with pytest.raises(ConfigError):
        table.add_row([1, 2, 3], 0)
    assert (table.num_blocks_per_row, table.block_table.tolist()) == ([2], [[7, 3]])


def test_a_row_moves_over_another():
    table = BlockTable(2, 3, 16)
    table.add_row([7, 3], 1)
    table.add_row([1, 2, 4], 0)
    table.move_row(1, 0)
    table.append_row([8], 0)
    assert (table.num_blocks_per_row[0], table.block_table[0].tolist()) == (3, [7, 3, 8])


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_table_without_room_is_refused(sizes):
    with pytest.raises(ConfigError, match="it must be at least 1"):
        BlockTable(*sizes)


def numbered(num_tokens):
    """Keys that name their token, and values that are their negatives; 2 heads of 3 elements."""
    key = torch.arange(1.0, num_tokens + 1).view(-1, 1, 1).expand(-1, 2, 3).clone()
    return key, -key


def test_what_is_written_in_pieces_is_read_as_one():
    key, value = numbered(6)
    k_cache, v_cache = torch.zeros(10, 4, 2, 3), torch.zeros(10, 4, 2, 3)
    mapping = slots([0, 6], range(6), [[7, 3]], 4)
    for part in (slice(0, 3), slice(3, 4), slice(4, 6)):
        reshape_and_cache(key[part], value[part], k_cache, v_cache, mapping[part])
    row = torch.tensor([7, 3, 1], dtype=torch.int32)
    assert gather_kv(k_cache, row, 6).equal(key)
    assert gather_kv(v_cache, row, 6).equal(value)
    assert k_cache.count_nonzero() == 6 * 2 * 3


def test_slot_minus_one_is_not_written():
    """As an index, -1 would be the last slot of the cache, which may hold a request's KV."""
    key, value = numbered(3)
    k_cache, v_cache = torch.zeros(2, 2, 2, 3), torch.zeros(2, 2, 2, 3)
    reshape_and_cache(key, value, k_cache, v_cache, torch.tensor([-1, 2, -1]))
    assert k_cache[:, :, 0, 0].tolist() == [[0, 0], [2, 0]]
    assert v_cache[:, :, 0, 0].tolist() == [[0, 0], [-2, 0]]


def test_reading_no_tokens_gives_none():
    assert gather_kv(torch.zeros(3, 4, 2, 3), torch.tensor([1], dtype=torch.int32), 0).shape == (0, 2, 3)


def test_the_metadata_of_a_mixed_batch():
    tables = torch.tensor([[7, 3, 0], [4, 5, 6], [1, 0, 0]], dtype=torch.int32)
    metadata = build_metadata([6, 1, 0], [6, 10, 4], tables, 4)
    assert metadata.slot_mapping.tolist() == [28, 29, 30, 31, 12, 13, 25]
    assert metadata.seq_lens.tolist() == [6, 10, 4]
    assert metadata.query_start_loc.tolist() == [0, 6, 7, 7]
    assert (metadata.max_query_len, metadata.max_seq_len, metadata.num_reqs) == (6, 10, 3)
    assert (metadata.slot_mapping.dtype, metadata.query_start_loc.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "message"),
    [
        ([5], [4], "request 0 has 5 new tokens and is 4 long"),
        ([1, -1], [4, 4], "request 1 has -1 new tokens"),
        ([1, 1], [4, 9], "request 1 is 9 tokens long; its row has room for 8"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(query_lens, seq_lens, message):
    tables = torch.zeros(len(seq_lens), 2, dtype=torch.int32)
    with pytest.raises(ConfigError, match=message):
        build_metadata(query_lens, seq_lens, tables, 4)
