"""What may be skipped in CI, per system."""

import pytest

from mini_kv.tests.skips import skips_fail

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
