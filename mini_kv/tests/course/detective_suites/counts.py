"""A student's checks: hits and free blocks are counted, and no id is ever read."""

from mini_kv.course.given.manager_under_test import prefill


def check_sharing(make_manager):
    """Two prompts with the same beginning."""
    kv = make_manager(20, 4)
    prefill(kv, kv.new_request("A", range(12)))
    assert prefill(kv, kv.new_request("B", range(14))) == 12
    assert kv.block_pool.num_free_blocks == 19 - 3 - 1


def check_slots(make_manager):
    """The number of blocks of prompts of 1 to 12 tokens."""
    for length in range(1, 13):
        kv = make_manager(20, 4)
        prefill(kv, kv.new_request("A", range(length)))
        assert kv.block_pool.num_free_blocks == 19 - (length + 3) // 4


def check_refusals(make_manager):
    """Two blocks too many."""
    kv = make_manager(5, 4)
    prefill(kv, kv.new_request("A", range(8)))
    assert prefill(kv, kv.new_request("B", range(20, 36))) is None
    assert kv.block_pool.num_free_blocks == 2


def check_freeing(make_manager):
    """All blocks are free at the end."""
    kv = make_manager(20, 4)
    requests = [kv.new_request(name, range(10)) for name in "ABC"]
    for request in requests:
        prefill(kv, request)
    for request in requests:
        kv.free(request)
    assert kv.block_pool.num_free_blocks == 19


def check_eviction(make_manager):
    """An evicted prompt is a miss."""
    kv = make_manager(4, 4)
    for name, start in (("A", 0), ("B", 50), ("C", 0)):
        request = kv.new_request(name, range(start, start + 12))
        assert prefill(kv, request) == 0
        kv.free(request)


def check_identity(make_manager):
    """Salts and adapters are never mixed."""
    kv = make_manager(20, 4)
    prefill(kv, kv.new_request("A", range(8), cache_salt="a"))
    assert prefill(kv, kv.new_request("B", range(8), cache_salt="b")) == 0
    assert prefill(kv, kv.new_request("C", range(1, 9), cache_salt="a")) == 0
