"""Debug mode: the same answers as the plain manager, and a loud end as soon as something is off."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.block_pool import BlockPool
from mini_kv.core.errors import AllocationError, BlockStateError, UnknownRequestError
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.story.debug import DebugKVCacheManager, leak_report, manager_state
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_text import story
from mini_kv.story.traced_manager import TracedKVCacheManager


def make(
    parts: KVCacheParts | None = None, manager_class: type[KVCacheManager] = KVCacheManager
) -> DebugKVCacheManager:
    config = KVCacheConfig(6, (KVCacheGroupSpec(("layers",), FullAttentionSpec(2)),))
    return DebugKVCacheManager(manager_class(config, parts=parts))


def make_with(group_class: type[FullAttentionManager]) -> DebugKVCacheManager:
    """Return a cache whose one group has this manager."""
    return make(KVCacheParts(manager_classes={FullAttentionSpec: group_class}))


def admit(kv: KVCacheManager, name: str, *token_ids: int) -> Request:
    request = kv.new_request(name, token_ids)
    blocks, num_hit = kv.get_computed_blocks(request)
    assert kv.allocate_slots(request, len(token_ids) - num_hit, num_hit, blocks) is not None
    request.num_computed_tokens = len(token_ids)
    return request


def play(kv: KVCacheManager) -> list[Any]:
    """Do everything once; return all answers and states."""
    seen: list[Any] = []
    a = admit(kv, "A", 1, 1, 2, 2, 3)
    seen.append(manager_state(kv))
    b = admit(kv, "B", 1, 1, 9)
    too_long = kv.new_request("C", [5] * 9)
    seen += [kv.get_computed_blocks(b)[1], kv.allocate_slots(too_long, 9), kv.reset_prefix_cache()]
    b.num_computed_tokens = 0
    seen += [kv.withdraw_promises(b), manager_state(kv)]
    kv.free(b)
    kv.evict_blocks(iter([1]))
    kv.free(a)
    seen += [kv.reset_prefix_cache(), manager_state(kv)]
    return seen


def test_debug_mode_gives_the_same_answers() -> None:
    """It looks on; answers and states are those of the plain manager."""
    plain = KVCacheManager.for_full_attention(num_blocks=6, block_size=2)
    assert play(make()) == play(plain)


def test_state_is_plain_values() -> None:
    """What is compared before and after: a copy that later calls do not change."""
    kv = make()
    admit(kv, "A", 1, 1, 2)
    state = manager_state(kv)
    parts = ["blocks", "free queue", "index", "tables", "published", "skipped", "copies", "statistics"]
    assert list(state) == parts  # an error about a change names them
    assert state["free queue"] == [3, 4, 5]
    assert [ref_cnt for ref_cnt, _ in state["blocks"]] == [0, 1, 1, 0, 0, 0]
    assert list(state["index"].values()) == [[1]]
    assert state["tables"] == {"A": ([1, 2],)}
    assert state["statistics"] == (1, 3, 0)
    admit(kv, "B", 4, 4, 4)
    assert state["tables"] == {"A": ([1, 2],)}


def test_errors_pass_through_and_the_history_says_so() -> None:
    """Misuse raises what it always raises; a later finding shows the last calls, at most HISTORY of them."""
    kv = make()
    a = admit(kv, "A", 1, 1, 2)
    with pytest.raises(UnknownRequestError):
        kv.free(kv.new_request("X", [1]))
    with pytest.raises(BlockStateError):
        kv.evict_blocks([99])
    with pytest.raises(AllocationError):
        kv.allocate_slots(a, 0)
    kv.get_computed_blocks(a)
    kv.block_pool.blocks[1].ref_cnt = 7
    with pytest.raises(InvariantViolationError) as error:
        kv.withdraw_promises(a)
    assert error.value.violation.invariant_id == "I1"
    assert error.value.history == [
        "free(X) raised",
        "evict_blocks([99]) raised",
        "allocate_slots(A, 0) raised",
        "get_computed_blocks(A)",
        "withdraw_promises(A)",
    ]


def test_what_is_torn_can_be_recovered() -> None:
    """The links of the free queue are broken, which no other call would let pass."""
    kv = make()
    a = admit(kv, "A", 1, 1, 2)
    kv.block_pool.blocks[4].next_free_block = None
    with pytest.raises(BlockStateError):
        kv.get_computed_blocks(a)
    kv.recover()
    assert (kv.requests, kv.usage) == ({}, 0.0)
    admit(kv, "A", 1, 1, 2)


def violated(kv: KVCacheManager, request: Request, call: str, *arguments: Any) -> tuple[str, str]:
    """Return the number of the invariant that the call breaks, and what is said."""
    with pytest.raises(InvariantViolationError) as error:
        getattr(kv, call)(request, *arguments)
    return error.value.violation.invariant_id, error.value.violation.message


@pytest.mark.parametrize("num_tokens", [3, 1])
def test_a_hit_beyond_the_cap(num_tokens: int) -> None:
    """I7: a lookup that covers the whole prompt, or part of a block."""

    class Generous(KVCacheManager):
        def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
            return self.empty_kv_cache_blocks, num_tokens

    kv = make(manager_class=Generous)
    message = f"the hit of A covers {num_tokens} of its 3 tokens"
    assert violated(kv, kv.new_request("A", [1, 1, 2]), "get_computed_blocks") == ("I7", message)


def test_a_refusal_that_leaks() -> None:
    """I11: None, and yet a block was taken."""

    class Leaky(FullAttentionManager):
        def get_num_blocks_to_allocate(self, request_id: str, *_: object) -> int:
            if request_id == "B":
                self.block_pool.get_new_blocks(1)
            return 99 if request_id == "B" else 2

    kv = make_with(Leaky)
    admit(kv, "A", 1, 1, 2)
    invariant_id, message = violated(kv, kv.new_request("B", [5]), "allocate_slots", 1)
    assert invariant_id == "I11"
    assert message == "allocate_slots(B, 1) should have changed nothing, but it changed the blocks and the free queue"


def test_a_call_that_came_back_is_told_by_what_it_did() -> None:
    """The check raised, and not the call: its line in the story says what happened to the blocks."""

    class Leaky(FullAttentionManager):
        def get_num_blocks_to_allocate(self, *_: object) -> int:
            self.block_pool.get_new_blocks(1)
            return 99

    recorder = Recorder()
    kv = TracedKVCacheManager(
        make(KVCacheParts(new_block=recorder.new_block, manager_classes={FullAttentionSpec: Leaky})), recorder
    )
    with pytest.raises(InvariantViolationError):
        kv.allocate_slots(kv.new_request("A", [5]), 1)
    assert story(kv.spans) == ["allocate A: allocated 1"]


def test_an_exception_that_leaks() -> None:
    """I11: an error, and yet the state has changed."""

    class HalfWay(BlockPool):
        def evict_blocks(self, block_ids: Iterable[int]) -> None:
            self._maybe_evict_cached_block(self.blocks[1])
            raise BlockStateError("half way", list(block_ids))

    kv = TracedKVCacheManager(make(KVCacheParts(make_pool=HalfWay)), Recorder())
    a = admit(kv, "A", 1, 1, 2)
    with pytest.raises(InvariantViolationError) as error:
        kv.evict_blocks([1, 2])
    assert error.value.violation.invariant_id == "I11"
    assert error.value.violation.message.startswith("evict_blocks([1, 2]) raised should have changed nothing")
    assert a.request_id in kv.requests
    assert kv.spans[-1].error == "BlockStateError"  # what was raised, and not what found out about it


def test_a_lookup_that_changes_something() -> None:
    """I11: a question that takes a block out of the free queue."""

    class Greedy(FullAttentionManager):
        def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
            self.block_pool.get_new_blocks(1)
            return []

    kv = make_with(Greedy)
    assert violated(kv, kv.new_request("A", [1, 1, 2]), "get_computed_blocks")[0] == "I11"


def test_a_table_that_is_rewritten() -> None:
    """I8: a table grows at its end; what stands in it stays."""

    class Shuffling(FullAttentionManager):
        def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
            new_blocks = super().allocate_new_blocks(request_id, num_tokens)
            if num_tokens == 5:
                self.req_to_blocks[request_id].reverse()
            return new_blocks

        def cache_blocks(self, *_: object) -> None:
            """Publish nothing: a rewritten table would be a broken prefix, too."""

    kv = make_with(Shuffling)
    a = admit(kv, "A", 1, 1, 2)
    a.append_output_token_ids(2, 3)
    assert violated(kv, a, "allocate_slots", 2) == ("I8", "the table of A was [1, 2] and is [3, 2, 1]")


def test_a_leak_names_the_call_that_took_the_block() -> None:
    """I14: the last request is gone and a block is held; the report says since when."""
    kv = make()
    a = admit(kv, "A", 1, 1, 2)
    kv.block_pool.touch([kv.block_pool.blocks[2]])
    assert leak_report(kv, {}) == ""  # A is still admitted
    assert violated(kv, a, "free") == (
        "I14",
        "no request is left, but these are held: block 2 (ref_cnt 1), taken by allocate_slots(A, 3)",
    )
    assert leak_report(kv, {}) == "block 2 (ref_cnt 1), taken by no known call"


def test_a_leak_names_each_block_and_the_call_that_took_it() -> None:
    kv = make()
    a = admit(kv, "A", 1, 1, 2)
    a.append_output_token_ids(2, 3)
    kv.allocate_slots(a, 2)
    kv.block_pool.touch([kv.block_pool.blocks[block_id] for block_id in (2, 3)])
    assert violated(kv, a, "free") == (
        "I14",
        "no request is left, but these are held: block 2 (ref_cnt 1), taken by allocate_slots(A, 3); "
        "block 3 (ref_cnt 1), taken by allocate_slots(A, 2)",
    )
