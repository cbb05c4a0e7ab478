"""A student's checks: good questions, always in a pool of 100 blocks."""

from mini_kv.core.request import LoRARequest
from mini_kv.course.given.manager_under_test import prefill


def table(kv, name):
    """Return the ids."""
    return kv.get_block_ids(name)[0]


def check_sharing(make_manager):
    """The hit is shared, and it never has the last token."""
    kv = make_manager(100, 16)
    prefill(kv, kv.new_request("A", range(64)))
    assert prefill(kv, kv.new_request("B", range(65))) == 64
    assert table(kv, "A") == table(kv, "B")[:4]
    hit, tokens = kv.get_computed_blocks(kv.new_request("C", range(64)))
    assert tokens == 48
    assert hit.get_block_ids()[0] == table(kv, "A")[:3]


def check_slots(make_manager):
    """15, 16 and 17 tokens, and one more."""
    kv = make_manager(100, 16)
    for name, length, want in (("A", 15, 1), ("B", 16, 1), ("C", 17, 2)):
        request = kv.new_request(name, [ord(name)] * length)
        prefill(kv, request)
        assert len(table(kv, name)) == want
        request.append_output_token_ids(1)
        kv.allocate_slots(request, 1)
        assert len(table(kv, name)) == (length + 1 + 15) // 16


def check_refusals(make_manager):
    """99 blocks are enough for 99 blocks."""
    kv = make_manager(100, 16)
    prefill(kv, kv.new_request("A", range(99 * 16)))
    assert kv.block_pool.num_free_blocks == 0
    assert prefill(kv, kv.new_request("B", [7])) is None


def check_freeing(make_manager):
    """The blocks of two holders."""
    kv = make_manager(100, 16)
    requests = {name: kv.new_request(name, range(40)) for name in "AB"}
    for request in requests.values():
        prefill(kv, request)
    kv.free(requests["A"])
    assert kv.block_pool.num_free_blocks == 99 - 3
    kv.free(requests["B"])
    assert kv.block_pool.num_free_blocks == 99


def check_eviction(make_manager):
    """A hundred prompts of two blocks each; the first ones are gone, the last ones are not."""
    kv = make_manager(100, 4)
    for number in range(60):
        request = kv.new_request(str(number), [number] * 8)
        prefill(kv, request)
        kv.free(request)
    assert kv.get_computed_blocks(kv.new_request("first", [0] * 9))[1] == 0
    assert kv.get_computed_blocks(kv.new_request("last", [59] * 9))[1] == 8


def check_identity(make_manager):
    """Salt, adapter, position."""
    kv = make_manager(100, 4)
    prefill(kv, kv.new_request("A", range(8)))
    for options in ({"cache_salt": "x"}, {"lora_request": LoRARequest("l", "/l")}):
        assert kv.get_computed_blocks(kv.new_request("B", range(9), **options))[1] == 0
    assert kv.get_computed_blocks(kv.new_request("C", [*range(4, 8), 0]))[1] == 0
