"""A student's checks: small pools and exact numbers. Twins, partial blocks and the look of tokens are forgotten."""

from mini_kv.core.request import LoRARequest
from mini_kv.course.given.manager_under_test import prefill


def send(kv, name, tokens, **identity):
    """Admit a prompt."""
    request = kv.new_request(name, tokens, **identity)
    assert prefill(kv, request) is not None
    return request


def hit(kv, tokens, **identity):
    """Look a prompt up."""
    return kv.get_computed_blocks(kv.new_request("probe", tokens, **identity))[1]


def check_sharing(make_manager):
    """Length and blocks of a hit, while the first request runs."""
    kv = make_manager(10, 2)
    send(kv, "A", [1, 2, 3, 4])
    assert hit(kv, [1, 2, 3, 4]) == 2
    assert hit(kv, [1, 2, 3, 4, 5]) == 4
    send(kv, "B", [1, 2, 3, 4, 5])
    assert kv.get_block_ids("B")[0][:2] == kv.get_block_ids("A")[0]


def check_slots(make_manager):
    """Token by token, from an empty table."""
    kv = make_manager(10, 2)
    a = kv.new_request("A", range(7))
    for computed in range(1, 8):
        kv.allocate_slots(a, 1)
        a.num_computed_tokens = computed
        assert len(kv.get_block_ids("A")[0]) == (computed + 1) // 2
        assert hit(kv, range(7)) == min(computed // 2 * 2, 6)
    b = kv.new_request("B", [8, 8])
    kv.allocate_slots(b, 2, num_lookahead_tokens=2)
    assert len(kv.get_block_ids("B")[0]) == 2


def check_refusals(make_manager):
    """One block too few, then exactly enough."""
    kv = make_manager(4, 2)
    kv.free(send(kv, "A", [1, 2, 3, 4]))
    assert prefill(kv, kv.new_request("B", [1, 2, 3, 4, 5, 6, 7])) is None
    assert kv.block_pool.num_free_blocks == 3
    send(kv, "C", [1, 2, 3, 4, 5])
    assert kv.block_pool.num_free_blocks == 0


def check_freeing(make_manager):
    """Two holders; the second one keeps its blocks."""
    kv = make_manager(6, 2)
    a = send(kv, "A", [1, 2, 3])
    b = send(kv, "B", [1, 2, 4])
    kv.free(a)
    assert kv.block_pool.num_free_blocks == 3
    kv.free(b)
    assert kv.block_pool.num_free_blocks == 5


def check_eviction(make_manager):
    """Old content, new content, tail first, oldest first."""
    kv = make_manager(5, 2)
    kv.free(send(kv, "A", [1, 1, 1, 1]))
    kv.free(send(kv, "B", [2, 2, 2, 2]))
    send(kv, "C", [3])
    assert hit(kv, [1, 1, 1, 1, 1]) == 2
    assert hit(kv, [2, 2, 2, 2, 2]) == 4
    kv.free(send(kv, "D", [4, 4, 4, 4, 4, 4]))
    assert hit(kv, [1, 1, 1]) == 0
    assert hit(kv, [4, 4, 4, 4, 4, 4, 4]) == 6


def check_identity(make_manager):
    """One input at a time."""
    kv = make_manager(10, 2)
    send(kv, "A", [1, 2, 3, 4], cache_salt="x")
    assert hit(kv, [1, 2, 3, 4, 5], cache_salt="x") == 4
    assert hit(kv, [1, 2, 3, 4, 5], cache_salt="y") == 0
    assert hit(kv, [3, 4, 5], cache_salt="x") == 0
    assert hit(kv, [1, 2, 3, 4, 5], cache_salt="x", lora_request=LoRARequest("law", "/law")) == 0
