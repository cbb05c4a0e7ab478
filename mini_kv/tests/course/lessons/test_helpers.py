"""Several requests at once or none of them, and blocks that go back whatever happens."""

import pytest

from mini_kv.core.errors import RepeatedRequestError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.lessons.helpers import allocate_together, held
from mini_kv.story.debug import DebugKVCacheManager, manager_state


def make_kv(num_blocks: int) -> KVCacheManager:
    return DebugKVCacheManager(KVCacheManager.for_full_attention(num_blocks, 4))


def prompts(kv: KVCacheManager, **tokens: range) -> list[Request]:
    return [kv.new_request(name, list(ids)) for name, ids in tokens.items()]


def test_a_batch_is_admitted_whole_and_later_ones_share_with_earlier_ones():
    kv = make_kv(12)
    batch = prompts(kv, A=range(9), B=range(9), C=range(100, 105))
    assert allocate_together(kv, batch) == [0, 8, 0]
    assert [kv.get_block_ids(name)[0] for name in "ABC"] == [[1, 2, 3], [1, 2, 4], [5, 6]]


@pytest.mark.parametrize(("num_free", "hits"), [(5, [0, 0]), (4, None)])
def test_one_block_too_few_refuses_all_of_them_and_changes_nothing(num_free: int, hits: list[int] | None):
    kv = make_kv(num_free + 1)
    batch = prompts(kv, A=range(12), B=range(100, 108))
    before = manager_state(kv)
    assert allocate_together(kv, batch) == hits
    if hits is None:
        assert manager_state(kv) == before


def test_a_block_that_two_of_them_revive_is_paid_for_once():
    kv = make_kv(5)
    (a,) = prompts(kv, A=range(8))
    with held(kv, a):
        assert allocate_together(kv, [a]) == [0]
        a.num_computed_tokens = 8
    batch = prompts(kv, B=range(9), C=range(9))  # blocks 1 and 2, and one of its own each: 4 of 4
    assert allocate_together(kv, batch) == [8, 8]


def test_a_hit_on_a_held_block_does_not_count_as_revived():
    """B and C share two blocks with A, which costs nothing: each needs one more, and there is one."""
    kv = make_kv(4)
    (a,) = prompts(kv, A=range(8))
    assert allocate_together(kv, [a]) == [0]
    a.num_computed_tokens = 8
    before = manager_state(kv)
    assert allocate_together(kv, prompts(kv, B=range(9), C=range(9))) is None
    assert manager_state(kv) == before


def test_an_id_that_is_in_use_or_comes_twice_is_refused_before_anything_is_taken():
    kv = make_kv(12)
    (a,) = prompts(kv, A=range(4))
    assert allocate_together(kv, [a]) == [0]
    before = manager_state(kv)
    batches = {"A": [*prompts(kv, B=range(4)), kv.new_request("A", [1])], "B": prompts(kv, B=range(4)) * 2}
    for name, batch in batches.items():
        with pytest.raises(RepeatedRequestError) as error:
            allocate_together(kv, batch)
        assert error.value.request_id == name
    assert manager_state(kv) == before


def test_blocks_go_back_when_the_body_fails_and_keys_of_what_was_never_written_with_them():
    kv = make_kv(6)
    (a,) = prompts(kv, A=range(9))

    def fail() -> None:
        with held(kv, a):
            allocate_together(kv, [a])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert kv.block_pool.num_free_blocks == 5
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 0


def test_what_was_computed_keeps_its_names_and_a_second_end_is_none():
    kv = make_kv(6)
    (a,) = prompts(kv, A=range(9))
    with held(kv, a):
        allocate_together(kv, [a])
        a.num_computed_tokens = 9
        kv.free(a)
    assert kv.get_computed_blocks(kv.new_request("B", range(9)))[1] == 8
