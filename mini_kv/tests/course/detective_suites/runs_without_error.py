"""A student's checks: every call is made once, and an error would be an error."""

from mini_kv.course.given.manager_under_test import prefill


def check_sharing(make_manager):
    """Send a prompt twice."""
    kv = make_manager(10, 4)
    a, b = kv.new_request("A", range(10)), kv.new_request("B", range(10))
    prefill(kv, a)
    prefill(kv, b)
    assert kv.get_block_ids("B") is not None


def check_slots(make_manager):
    """Decode a few tokens."""
    kv = make_manager(10, 4)
    a = kv.new_request("A", range(6))
    prefill(kv, a)
    for token in range(10):
        a.append_output_token_ids(token)
        assert kv.allocate_slots(a, 1) is not None
        a.num_computed_tokens += 1


def check_refusals(make_manager):
    """A prompt that is far too long."""
    kv = make_manager(4, 4)
    assert prefill(kv, kv.new_request("A", range(100))) is None


def check_freeing(make_manager):
    """Come and go."""
    kv = make_manager(10, 4)
    for name in "ABC":
        request = kv.new_request(name, range(9))
        prefill(kv, request)
        kv.free(request)
    assert kv.block_pool.num_free_blocks > 0


def check_eviction(make_manager):
    """More prompts than fit."""
    kv = make_manager(5, 4)
    for start in range(0, 100, 10):
        request = kv.new_request(str(start), range(start, start + 10))
        assert prefill(kv, request) is not None
        kv.free(request)


def check_identity(make_manager):
    """Two salts."""
    kv = make_manager(10, 4)
    assert prefill(kv, kv.new_request("A", range(8), cache_salt="a")) == 0
    prefill(kv, kv.new_request("B", range(8), cache_salt="b"))
