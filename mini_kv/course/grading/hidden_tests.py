"""A fresh copy of a lab's tests under new names, with a few that no code can pass."""

import ast
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from mini_kv.course.labkit import course_settings
from mini_kv.course.labkit.lab import Lab, tests_in

FALSE = (
    'lab.expect("the result", 3, 5)',
    'lab.expect("the blocks", [1, 2], [1, 3])',
    'lab.expect("the result", 7, type("Row", (), {"__eq__": lambda *_: True, "__hash__": None})())',
    'raise AssertionError("the result")',
)
"""A canary is a copy of one of the lab's tests with one of these lines, which fails for all code.

In every second one it is the first line, in the others the last. If a canary passes, the submission has changed the
judge. One line has an object that equals everything.
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """The names of the tests in a copy."""

    names: dict[str, str]
    """The lab's name of each test, by its name in the copy. Both begin with the same number."""
    canaries: frozenset[str]
    """The tests that no code can pass, by their names in the copy."""

    def in_words(self, text: str) -> str:
        """Return a text with the lab's names in place of the copy's."""
        return re.sub(r"test_\w+", lambda found: self.names.get(found[0], found[0]), text)


def fresh_copy(lab: Lab, folder: Path, dice: random.Random) -> Copy:
    """Copy the files for the lab's tests to `folder`. Draw new names for all tests, and the canaries among them."""
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copyfile(lab.root / file, folder / file)
    settings = lab.root / course_settings.FILE
    if settings.is_file():  # lab-17's contract depends on it
        (folder / course_settings.FILE).parent.mkdir()
        shutil.copyfile(settings, folder / course_settings.FILE)
    place = folder / "labs" / lab.lab_id
    ignore = shutil.ignore_patterns("starter.py", "__pycache__")
    shutil.copytree(lab.folder, place, ignore=ignore)
    text, copy = with_canaries((place / "test_lab.py").read_text(encoding="utf-8"), dice)
    (place / "test_lab.py").write_text(text, encoding="utf-8")
    return copy


def with_canaries(text: str, dice: random.Random) -> tuple[str, Copy]:
    """Return the text of a test file under new names, with a canary per line of `FALSE`, and the names."""
    lines = text.splitlines()
    tests = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"]
    sources = {test.name: "\n".join(lines[_first_line(test) - 1 : test.end_lineno]) for test in tests}
    renamed = {name: _new_name(name, dice) for name in {*sources, *tests_in(text)}}
    after: dict[str, list[str]] = {name: [] for name in sources}
    canaries = {}
    for number, line in enumerate(FALSE):
        model = dice.choice([test for test in tests if _runs_to_its_end(test)])
        name = _new_name(model.name, dice)
        canaries[name] = model.name
        copied = sources[model.name].replace(f"def {model.name}(", f"def {name}(", 1).splitlines()
        begin = model.body[1 if ast.get_docstring(model) else 0].lineno - _first_line(model)
        copied.insert(begin if number % 2 else len(copied), f"    {line}")
        after[dice.choice(list(sources))].append("\n".join(copied))
    parts, end = [], 0
    for test in tests:
        parts += ["\n".join(lines[end : test.end_lineno]), *after[test.name]]
        end = test.end_lineno or 0
    whole = "\n\n\n".join([*parts, "\n".join(lines[end:])])
    named = re.sub(r"\btest_\w+", lambda found: renamed.get(found[0], found[0]), whole)
    return named + "\n", Copy({new: old for old, new in renamed.items()} | canaries, frozenset(canaries))


def _new_name(name: str, dice: random.Random) -> str:
    """Return a name with the same number. The message of a failure names a test by its number."""
    number = re.match(r"test_(\d+_)?", name)
    return f"{number[0] if number else 'test_'}{dice.getrandbits(40):010x}"


def _runs_to_its_end(test: ast.FunctionDef) -> bool:
    """Return whether this is a plain test on the fixture `lab`, with or without `torch`, and without a `return`."""
    names = [
        call.func.id for call in test.decorator_list if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    plain = names == ["points"] and {each.arg for each in test.args.args} in ({"lab"}, {"lab", "torch"})
    return plain and not any(isinstance(node, ast.Return) for node in ast.walk(test))


def _first_line(test: ast.FunctionDef) -> int:
    return min([test.lineno, *(decorator.lineno for decorator in test.decorator_list)])
