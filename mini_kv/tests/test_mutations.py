"""The tool that plays one-line mutations: `python -m mini_kv.tests.mutations`."""

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="mutations are played with limits of CPU time, which Windows does not have")

from mini_kv.tests.mutations.__main__ import HOME, make_parser, play
from mini_kv.tests.mutations.draw import Mutation, apply, draw, find, js_changes, python_changes

POOL = '''"""Counts 10 blocks."""

__all__ = ["take"]


def take(free: list[int], n: int = 1) -> bool:
    if len(free) < n:
        raise ValueError(f"{n - 1} of 2")
    free.clear()
    return True
'''
PAGE = """// if (x) 1 < 2
function show(steps) {
  if (steps.length > 2) draw("1 < 2");
  draw(steps);
}
"""
FILES = {"mini_kv/core/pool.py": POOL, "mini_kv/story/page.js": PAGE}
IS_FULL = Mutation(
    "core-01", "comparison turned", "mini_kv/core/pool.py", "take", 0, "    if len(free) < n:", "    if len(free) >= n:"
)


def test_a_seed_draws_always_the_same_from_all_rooms():
    drawn = draw(FILES, 8, seed=1)
    assert drawn == draw(FILES, 8, seed=1)
    assert len(drawn) == len({(mutation.file, mutation.old) for mutation in drawn}) == 5  # there are no more lines
    assert {mutation.id.rpartition("-")[0] for mutation in drawn} == {"core", "story-js"}


def test_what_changes_in_python():
    """Nothing in messages, annotations and `__all__`."""
    assert {(kind, new.strip()) for kind, _, new in python_changes(POOL)} == {
        ("comparison turned", "if len(free) >= n:"),
        ("comparison turned", "if len(free) <= n:"),
        ("branch swapped", "if not (len(free) < n):"),
        ("call removed", "pass"),
        ("constant plus one", "def take(free: list[int], n: int = 2) -> bool:"),
    }


def test_what_changes_in_a_script():
    """Nothing in strings and comments."""
    assert {(kind, new.strip()) for kind, _, new in js_changes(PAGE)} == {
        ("comparison turned", 'if (steps.length <= 2) draw("1 < 2");'),
        ("comparison turned", 'if (steps.length >= 2) draw("1 < 2");'),
        ("constant plus one", 'if (steps.length > 3) draw("1 < 2");'),
        ("branch swapped", 'if (!(steps.length > 2)) draw("1 < 2");'),
        ("call removed", ";"),
    }


def test_one_line_changes():
    place = find(IS_FULL, FILES)
    assert place == ("mini_kv/core/pool.py", 6)
    assert apply(IS_FULL, POOL, 6) == POOL.replace(" < n:", " >= n:")


def test_a_line_is_found_in_another_file_by_its_function():
    moved = "class Pool:\n" + "\n".join(f"    {line}" for line in POOL.split("\n"))
    place = find(IS_FULL, {"mini_kv/tiers/moved.py": moved})
    assert place == ("mini_kv/tiers/moved.py", 7)
    assert apply(IS_FULL, moved, 7) == moved.replace(" < n:", " >= n:")


@pytest.mark.parametrize("renamed", [{"take": "give"}, {" < n": " < 1 + n"}], ids=["its function", "the line"])
def test_a_line_is_gone_if_it_or_its_function_has_changed(renamed: dict[str, str]):
    ((old, new),) = renamed.items()
    assert find(IS_FULL, {"mini_kv/core/pool.py": POOL.replace(old, new)}) is None


def test_a_line_is_gone_if_there_are_several():
    assert find(IS_FULL, {"mini_kv/core/a.py": POOL, "mini_kv/tiers/b.py": POOL}) is None


def commit(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    as_somebody = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*as_somebody, "commit", "-qm", "files"]):
        subprocess.run(["git", *command], cwd=root, check=True)


@pytest.mark.slow  # it starts pytest five times
def test_what_was_caught_may_not_survive(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A test that is deleted is missed if no other one catches the same."""
    load = (
        "from pathlib import Path\nspace = {}\nexec(Path('mini_kv/core/pool.py').read_text(), space)  # mini_kv.core\n"
    )
    one, other = (f"def test_{name}(): assert space['take']([1]) is True\n" for name in ("one", "other"))
    entry = json.dumps([IS_FULL._asdict(), IS_FULL._replace(id="core-02", where="gone")._asdict()])
    files = {"mini_kv/core/pool.py": POOL, f"{HOME}/list.json": entry}
    test = "mini_kv/tests/test_pool.py"

    commit(tmp_path, {**files, test: load + one + other})
    assert play(tmp_path, make_parser().parse_args(["play", "--which", "new"])) == 0
    assert capsys.readouterr().out == f"core-01: {test}::test_one\ncore-02: gone\ncaught before and not now: none\n"

    commit(tmp_path, {test: load + other})
    assert play(tmp_path, make_parser().parse_args(["play"])) == 0
    assert capsys.readouterr().out == f"core-01: {test}::test_other\ncaught before and not now: none\n"

    commit(tmp_path, {test: load})
    assert play(tmp_path, make_parser().parse_args(["play"])) == 1
    said = f"core-01: NOT CAUGHT, before by {test}::test_other\ncaught before and not now: core-01\n"
    assert capsys.readouterr().out == said


@pytest.mark.slow  # it starts pytest three times
def test_a_test_that_fails_now_and_then_catches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    once = "from pathlib import Path\nran = Path.home() / 'ran'  # mini_kv.core\n"
    once += "def test_once():\n    failed = ran.exists()\n    ran.touch()\n    assert failed\n"
    entry = json.dumps([IS_FULL._asdict()])
    files = {"mini_kv/core/pool.py": POOL, f"{HOME}/list.json": entry, "mini_kv/tests/test_pool.py": once}
    commit(tmp_path, files)
    assert play(tmp_path, make_parser().parse_args(["play", "--which", "new"])) == 0
    assert capsys.readouterr().out == "core-01: survived\ncaught before and not now: none\n"
