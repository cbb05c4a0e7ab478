"""The shortest failing case: still failing, and nothing in it that could be left out."""

import random

import pytest

from mini_kv.course.labkit.shrink import shrink


def contains(*needed):
    """Return a check that fails for a case with all of these, in this order."""

    def fails(case):
        rest = iter(case)
        return all(step in rest for step in needed)

    return fails


@pytest.mark.parametrize("needed", [(7,), (0,), (99,), (0, 99), (3, 4, 5), (10, 50, 90), (98, 99)])
def test_only_what_is_needed_is_left(needed):
    """Of a hundred steps exactly the guilty ones, in their order."""
    assert shrink(range(100), contains(*needed)) == list(needed)


@pytest.mark.parametrize(("case", "fails", "shortest"), [([], bool, []), ([5], bool, [5]), ([5], lambda _: True, [])])
def test_the_shortest_cases(case, fails, shortest):
    """Nothing, one step that is needed, one step that is not."""
    assert shrink(case, fails) == shortest


def test_a_step_that_can_go_only_after_a_later_one_has_gone():
    """It goes round again until a whole round finds nothing: `a` must stay as long as `b` is there."""

    def fails(case):
        return "x" in case and ("a" in case or "b" not in case)

    assert shrink(["a", "b", "x"], fails) == ["x"]


def test_no_single_step_can_be_left_out():
    """Whatever the failure, the result still fails, and without any one of its steps it does not."""
    rng = random.Random(0)
    for _ in range(200):
        case = [rng.randint(0, 9) for _ in range(rng.randint(1, 30))]
        limit, parity = rng.randint(1, 40), rng.randint(0, 1)

        def fails(steps, limit=limit, parity=parity):
            return sum(steps) >= limit and len([step for step in steps if step > 5]) % 2 == parity

        if not fails(case):
            continue
        shortest = shrink(case, fails)
        assert fails(shortest)
        assert not [index for index in range(len(shortest)) if fails(shortest[:index] + shortest[index + 1 :])]


def test_the_case_itself_is_left_alone():
    """It is copied: the caller still has the long one."""
    case = [1, 2, 3]
    shrink(case, contains(2))
    assert case == [1, 2, 3]


def test_it_does_not_take_forever():
    """A thousand steps of which three matter: a few hundred tries, not a million."""
    tries = []

    def fails(case):
        tries.append(len(case))
        return contains(100, 500, 900)(case)

    assert shrink(range(1000), fails) == [100, 500, 900]
    assert len(tries) < 300
