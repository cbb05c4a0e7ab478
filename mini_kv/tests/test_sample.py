"""The sample of the tests that runs where all of them have run already, and the seed that follows from the tree."""

import pytest

from mini_kv.tests.tree import drawn, tree

pytest_plugins = ["pytester"]

MANY = """
import pytest

@pytest.mark.parametrize("number", range(200))
def test_number(number):
    pass
"""
NEEDS_TORCH = "import pytest\n\ntorch = pytest.importorskip('os')\n" + MANY


@pytest.mark.slow
def test_a_file_that_may_skip_runs_whole_and_of_the_others_a_quarter(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_plain=MANY, test_torch=NEEDS_TORCH)
    done = pytester.runpytest_subprocess("-p", "mini_kv.tests.sample", "-W", "ignore").parseoutcomes()
    assert 200 + 30 < done["passed"] < 200 + 70
    assert done["passed"] + done["deselected"] == 400


def test_the_same_tree_draws_the_same_and_over_many_trees_everything_has_its_turn() -> None:
    assert [drawn("test", 4, "tree") for _ in range(3)] == [drawn("test", 4, "tree")] * 3
    assert {drawn("test", 4, str(number)) for number in range(60)} == {0, 1, 2, 3}
    assert drawn("test", 10**9, "tree") != drawn("other test", 10**9, "tree")


def test_the_tree_is_an_id_or_zero_without_git() -> None:
    assert tree() == "0" or len(tree()) in (40, 64)
