"""What a lab's files say of each other and of the engine still holds: fast, long before an audit runs the lab."""

import importlib
import inspect
import tomllib

import pytest
from mini_kv_book.places import DOCS, ROOT

from mini_kv.labkit.audit import load_mutants
from mini_kv.labkit.lab import load_lab

LABS = sorted(path.parent.name for path in ROOT.glob("labs/lab-*/lab.toml"))


@pytest.mark.parametrize("lab", LABS)
def test_every_mutant_fits_the_text_that_it_changes(lab: str):
    """Its old text stands in exactly one place of the solution, or of the engine's module, in each spelling."""
    loaded = load_lab(ROOT / "labs" / lab)
    solution = (loaded.solutions / "solution.py").read_text(encoding="utf-8")
    misfits = []
    for mutant in load_mutants(loaded):
        text = solution if mutant.module is None else inspect.getsource(importlib.import_module(mutant.module))
        for spelling in mutant.all_spellings():
            try:
                spelling.apply(text)
            except ValueError as error:
                misfits.append(str(error))
    assert misfits == []


def test_every_lab_has_the_chapter_that_teaches_it():
    """`taught.toml` names one per lab; a lab without a chapter would have a page that leads nowhere."""
    chapters = tomllib.loads((ROOT / "book" / "data" / "taught.toml").read_text(encoding="utf-8"))["labs"]
    assert sorted(chapters) == LABS
    assert [name for name in chapters.values() if not (DOCS / "chapters" / f"{name}.md").is_file()] == []


@pytest.mark.parametrize("lab", LABS)
def test_only_test_lab_holds_tests(lab: str):
    """Tests are collected, shown and counted in `test_lab.py` alone."""
    besides = set((ROOT / "labs" / lab).glob("*.py")) - {ROOT / "labs" / lab / n for n in ("starter.py", "test_lab.py")}
    assert [path.name for path in besides if "def test_" in path.read_text(encoding="utf-8")] == []
