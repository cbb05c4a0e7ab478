"""lab-05, examples: the reference solution."""

from mini_kv.course.given.faulty_admissions import MakeCache


def check_prefill(make_cache: MakeCache) -> None:
    """Give examples for `prefill`."""
    twice = make_cache(6, 4)
    assert twice.prefill(range(9), "A") == 0, "nothing is cached yet"
    assert twice.prefill(range(8), "B") == 4, "the last token is computed"
    shared = make_cache(6, 4)
    shared.prefill(range(8), "A")
    shared.prefill(range(8), "B")
    assert shared.table("B")[0] == shared.table("A")[0], "the table begins with the hit"
    longer = make_cache(8, 4)
    longer.prefill(range(8), "A")
    longer.prefill(range(12), "B")
    assert len(longer.table("B")) == 3, "a block for each four tokens"
    counted = make_cache(6, 4)
    counted.prefill(range(8), "A")
    counted.prefill(range(8), "B")
    assert counted.computed("B") == 8, "the whole prompt"
    full = make_cache(3, 4)
    full.prefill(range(8), "A")
    full.free("A")
    assert full.prefill(range(90, 106), "C") is None, "four blocks of three"
    assert full.num_free() == 3, "a refusal takes nothing"
    assert full.prefill(range(8), "D") == 4, "a refusal evicts nothing"


def check_ref_counts(make_cache: MakeCache) -> None:
    """Give examples for `ref_counts`."""
    cache = make_cache(6, 4)
    cache.prefill(range(8), "A")
    assert cache.ref_counts("A") == [1, 1], "A alone"
    cache.prefill([0, 1, 2, 3, 9, 9], "B")
    assert cache.ref_counts("B") == [2, 1], "the first block is shared"


def check_hit_rate(make_cache: MakeCache) -> None:
    """Give examples for `hit_rate`."""
    assert make_cache(6, 4).hit_rate() == 0.0, "before the first request"
    cache = make_cache(6, 4)
    cache.prefill(range(8), "A")
    cache.prefill(range(8), "B")
    assert cache.hit_rate() == 0.25, "4 of 16 tokens"
