"""What may be skipped in CI, per system."""

import pytest

from mini_kv.tests.skips import skips_fail

pytest_plugins = ["pytester"]

TRITON = "the kernels need triton: make test, or pip install triton"
LAB = "lab-10 needs Triton, interpreted or on a GPU: pip install triton numpy (on Linux; elsewhere use WSL or Colab)"
SERVER = "missing: a valkey-server or redis-server"


@pytest.mark.parametrize(
    ("system", "reason", "fails"),
    [
        ("linux", TRITON, True),
        ("linux", SERVER, True),
        ("darwin", TRITON, False),
        ("darwin", LAB, False),
        ("darwin", SERVER, True),
        ("win32", SERVER, False),
    ],
)
def test_in_ci_a_skip_fails_unless_its_system_may_lack_the_thing(system, reason, fails, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert skips_fail(reason, system) is fails


def test_at_home_no_skip_fails(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("MINI_KV_NO_SKIP", raising=False)
    assert not skips_fail(SERVER, "linux")


@pytest.mark.slow
def test_after_a_red_snapshot_stands_how_words_are_changed(pytester: pytest.Pytester):
    pytester.makepyfile(
        test_words="from inline_snapshot import snapshot\ndef test_words(): assert 'new' == snapshot('old')\n",
        test_numbers="def test_numbers(): assert 1 == 2\n",
    )
    told = pytester.runpytest_subprocess("-p", "mini_kv.tests.skips", "-p", "no:inline_snapshot")
    mending = [line for line in told.outlines if "make snapshots" in line]
    assert mending == ["if only words have changed: make snapshots ARGS=test_words.py"]


@pytest.mark.slow
def test_in_ci_a_file_that_skips_itself_fails_too(pytester: pytest.Pytester, monkeypatch):
    pytester.makepyfile(test_other="import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n")
    for ci, outcomes in (("true", {"errors": 1}), ("", {"skipped": 1})):
        monkeypatch.setenv("CI", ci)
        monkeypatch.delenv("MINI_KV_NO_SKIP", raising=False)
        assert pytester.runpytest_subprocess("-p", "mini_kv.tests.skips").parseoutcomes() == outcomes
