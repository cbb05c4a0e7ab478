"""A student's checks: what the engine printed is what must come."""

from mini_kv.course.given.manager_under_test import prefill


def check_sharing(make_manager):
    """The tables, as they were printed."""
    kv = make_manager(10, 4)
    prefill(kv, kv.new_request("A", range(8)))
    prefill(kv, kv.new_request("B", range(8)))
    assert kv.get_block_ids("A") == ([1, 2],)
    assert kv.get_block_ids("B") == ([1, 3],)


def check_slots(make_manager):
    """The tables while an answer grows."""
    kv = make_manager(10, 4)
    a = kv.new_request("A", range(7))
    prefill(kv, a)
    printed = [[1, 2], [1, 2], [1, 2, 3]]
    for table in printed:
        assert kv.get_block_ids("A")[0] == table
        a.append_output_token_ids(9)
        kv.allocate_slots(a, 1)
        a.num_computed_tokens += 1


def check_refusals(make_manager):
    """The pool after a refusal."""
    kv = make_manager(4, 4)
    a = kv.new_request("A", range(8))
    prefill(kv, a)
    kv.free(a)
    b = kv.new_request("B", range(14))
    assert prefill(kv, b) is None
    assert kv.block_pool.num_free_blocks == 3
    assert prefill(kv, kv.new_request("C", range(12))) == 8
    assert kv.get_block_ids("C") == ([1, 2, 3],)


def check_freeing(make_manager):
    """The next request gets the same blocks."""
    kv = make_manager(4, 4)
    a = kv.new_request("A", range(6))
    prefill(kv, a)
    kv.free(a)
    prefill(kv, kv.new_request("B", range(50, 62)))
    assert kv.get_block_ids("B") == ([2, 3, 1],)


def check_eviction(make_manager):
    """The blocks in the order in which they are evicted."""
    kv = make_manager(4, 4)
    a = kv.new_request("A", range(12))
    prefill(kv, a)
    kv.free(a)
    prefill(kv, kv.new_request("B", range(50, 58)))
    assert kv.get_block_ids("B") == ([3, 2],)
    assert kv.get_computed_blocks(kv.new_request("C", range(12)))[0].get_block_ids() == ([1],)


def check_identity(make_manager):
    """The block hashes are different."""
    kv = make_manager(10, 4)
    a = kv.new_request("A", range(4), cache_salt="a")
    b = kv.new_request("B", range(4), cache_salt="b")
    assert a.block_hashes != b.block_hashes
