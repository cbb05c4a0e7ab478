"""Tests that share costly work run in one process: pytest-xdist has to know the groups that they are marked with."""

import pytest

pytest_plugins = ["pytester"]

SIX_GROUPS = """
import os

import pytest


@pytest.mark.parametrize("group", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in "abcdef"])
@pytest.mark.parametrize("half", [1, 2])
def test_half(half, group):
    print(f"half of {group} in {os.getpid()}")
"""


@pytest.mark.slow
def test_both_halves_of_a_group_run_in_one_process(pytester: pytest.Pytester) -> None:
    """As `make audit` runs them. Otherwise each lab is audited twice, and nothing else says so."""
    pytest.importorskip("xdist")
    pytester.makepyfile(SIX_GROUPS)
    done = pytester.runpytest_subprocess("-p", "xdist", "-n", "2", "--dist", "loadgroup", "-rP")
    done.assert_outcomes(passed=12)
    ran = [line.split() for line in done.outlines if line.startswith("half of ")]
    process = {group: pid for _, _, group, _, pid in ran}
    assert len(ran) == 12
    assert [(group, pid) for _, _, group, _, pid in ran if process[group] != pid] == []
