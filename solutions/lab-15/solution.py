"""lab-15: six checks. Each makes a story on a manager, and asserts what the contract says about it."""

from collections.abc import Callable, Iterable
from typing import Any

from mini_kv.core.request import LoRARequest, Request
from mini_kv.course.given.manager_under_test import ManagerUnderTest, prefill

MakeManager = Callable[[int, int], ManagerUnderTest]


def check_sharing(make_manager: MakeManager) -> None:
    """Two requests with one prompt share the full blocks of all tokens but the last."""
    kv = make_manager(20, 4)
    admit(kv, "A", range(16))
    assert found(kv, range(16)) == 12, "A's 16 tokens, while A still runs"
    admit(kv, "B", range(16))
    assert table(kv, "B")[:3] == table(kv, "A")[:3], "the hit is in both tables"
    assert table(kv, "B")[3] != table(kv, "A")[3], "B computes its last block itself"
    assert found(kv, range(17)) == 16
    assert found(kv, [*range(6), 99, 99, 99]) == 4


def check_slots(make_manager: MakeManager) -> None:
    """A table has a slot per token, and no block more. Only full blocks are found."""
    for length in range(1, 10):
        kv = make_manager(20, 4)
        a = admit(kv, "A", range(length))
        for _ in range(6):
            assert len(table(kv, "A")) == -(-a.num_tokens // 4), f"{a.num_tokens} tokens"
            a.append_output_token_ids(7)
            assert kv.allocate_slots(a, 1) is not None
            a.num_computed_tokens += 1

    kv = make_manager(20, 4)
    b = kv.new_request("B", range(12))
    kv.allocate_slots(b, 6)
    assert found(kv, range(12)) == 4, "6 of the 12 tokens of B are computed"
    c = kv.new_request("C", range(50, 54))
    kv.allocate_slots(c, 4, num_lookahead_tokens=3)
    assert len(table(kv, "C")) == 2, "4 tokens and 3 lookahead slots"


def check_refusals(make_manager: MakeManager) -> None:
    """A refusal comes if a block is missing, not before, and changes nothing."""
    kv = make_manager(6, 4)
    kv.free(admit(kv, "A", range(16)))
    b = kv.new_request("B", range(24))
    assert prefill(kv, b) is None, "4 free blocks of the hit and 2 new ones are needed, 5 are free"
    assert kv.block_pool.num_free_blocks == 5
    assert table(kv, "B") == []
    assert found(kv, range(17)) == 16
    c = kv.new_request("C", range(20))
    assert prefill(kv, c) == 16, "4 free blocks of the hit and a new one are needed, 5 are free"
    assert kv.block_pool.num_free_blocks == 0
    c.append_output_token_ids(99)
    assert kv.allocate_slots(c, 1) is None, "C needs a block, none is free"
    assert len(table(kv, "C")) == 5


def check_freeing(make_manager: MakeManager) -> None:
    """A block is free when the last table that has it is freed."""
    kv = make_manager(8, 4)
    assert kv.block_pool.num_free_blocks == 7
    a = admit(kv, "A", range(6))
    b = admit(kv, "B", range(9))
    kv.free(a)
    assert kv.block_pool.num_free_blocks == 4, "B has three blocks, one of them was in both tables"
    c = admit(kv, "C", range(50, 66))
    assert not set(table(kv, "B")) & set(table(kv, "C")), "B still has its blocks"
    assert 0 not in table(kv, "C")
    kv.free(c)
    kv.free(b)
    assert kv.block_pool.num_free_blocks == 7


def check_eviction(make_manager: MakeManager) -> None:
    """Evicted blocks are not found. The uncached go first, then the longest free, and of a request the tail."""
    kv = make_manager(4, 4)
    kv.free(admit(kv, "A", range(12)))
    kv.free(admit(kv, "B", range(50, 62)))
    assert found(kv, range(13)) == 0, "B has taken all blocks of A"
    assert found(kv, range(50, 63)) == 12, "B was the last in these blocks"

    kv = make_manager(4, 4)
    kv.free(admit(kv, "A", range(12)))
    admit(kv, "B", [99])
    assert found(kv, range(13)) == 8, "B has taken the last block of A"

    kv = make_manager(5, 4)
    kv.free(admit(kv, "A", range(8)))
    kv.free(admit(kv, "B", range(50, 58)))
    admit(kv, "C", [99])
    assert (found(kv, range(9)), found(kv, range(50, 59))) == (4, 8), "A was freed before B"

    kv = make_manager(3, 4)
    a = admit(kv, "A", range(4))
    admit(kv, "B", range(4))
    kv.free(a)
    admit(kv, "C", [99])
    assert found(kv, range(5)) == 4, "the block of A is evicted, B has an equal one"

    kv = make_manager(4, 4)
    a = admit(kv, "A", range(4))
    b = admit(kv, "B", [99])
    kv.free(a)
    kv.free(b)
    admit(kv, "C", range(50, 55))
    assert found(kv, range(5)) == 4, "two blocks that are not cached are free"


def check_identity(make_manager: MakeManager) -> None:
    """Only the same tokens after the same tokens are shared, with the same salt and adapter."""
    kv = make_manager(40, 4)
    admit(kv, "A", range(8), cache_salt="one")
    assert found(kv, range(9), cache_salt="one") == 8
    assert found(kv, range(9), cache_salt="two") == 0
    assert found(kv, range(9)) == 0

    law, med = LoRARequest("law", "/law"), LoRARequest("med", "/med")
    admit(kv, "B", range(8), lora_request=law)
    assert found(kv, range(9), lora_request=law) == 8
    assert found(kv, range(9), lora_request=med) == 0
    assert found(kv, range(9), lora_request=LoRARequest("law", "/other")) == 0, "other weights with the same name"
    assert found(kv, range(9)) == 0

    admit(kv, "C", range(50, 58))
    assert found(kv, [*range(54, 58), 99]) == 0, "the second block of C, without the first"
    assert found(kv, [1, 2, 3, 4, *range(54, 58), 99]) == 0, "the second block of C, after another one"

    admit(kv, "D", [1, 23, 4, 5])
    assert found(kv, [12, 3, 4, 5, 6]) == 0, "the same digits are not the same tokens"


# What the checks share ----------------------------------------------------------------------------------------------


def admit(kv: ManagerUnderTest, name: str, token_ids: Iterable[int], **identity: Any) -> Request:
    """Compute a prompt at once, and return its request."""
    request = kv.new_request(name, list(token_ids), **identity)
    assert prefill(kv, request) is not None, f"there is room for {name}"
    return request


def found(kv: ManagerUnderTest, token_ids: Iterable[int], **identity: Any) -> int:
    """Return the number of tokens that a new request would hit."""
    return kv.get_computed_blocks(kv.new_request("probe", list(token_ids), **identity))[1]


def table(kv: ManagerUnderTest, name: str) -> list[int]:
    """Return the request's block ids."""
    return kv.get_block_ids(name)[0]
