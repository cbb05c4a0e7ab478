"""What a lab's files say of each other and of the engine still holds: fast, long before an audit runs the lab."""

import importlib
import inspect
import json
import re
import subprocess

import pytest
from mini_kv_book import generate
from mini_kv_book.places import DOCS, ROOT

from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import all_labs, load_lab

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


@pytest.mark.parametrize("lab", LABS)
def test_the_copy_of_a_starter_is_the_one_that_the_audit_writes(lab: str):
    """If this fails: python -m mini_kv.course.labkit.audit LAB --write. A starter that a learner edits has a commit."""
    loaded = load_lab(ROOT / "labs" / lab)
    copy = loaded.pristine_starter.read_bytes()
    if loaded.starter.read_bytes() != copy:
        committed = ["git", "show", f"HEAD:labs/{lab}/starter.py"]
        assert subprocess.run(committed, cwd=ROOT, capture_output=True, check=True).stdout == copy


def test_every_lab_has_the_chapter_that_teaches_it():
    """A lab without a chapter would have a page that leads nowhere."""
    chapters = {lab: load_lab(ROOT / "labs" / lab).chapter for lab in LABS}
    assert [lab for lab, name in chapters.items() if not (DOCS / "chapters" / f"{name}.md").is_file()] == []


def test_the_readme_lists_every_lab_and_no_other():
    """If this fails: make book-pages"""
    readme = generate.LIST_OF_LABS.read_text(encoding="utf-8")
    assert readme == generate.with_list_of_labs(readme)
    assert re.findall(r"^\| \[.*\]\((.+)/README.md", readme, re.MULTILINE) == [lab.lab_id for lab in all_labs(ROOT)]


def test_the_readme_lists_every_notebook_and_no_other():
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    titles = {name: json.loads(text)["cells"][0]["source"][0].strip("# \n") for name, text in texts.items()}
    needs = {name: generate.NEEDS["T" if "It needs torch" in text else "C"] for name, text in texts.items()}
    readme = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    rows = [f"| [{name[:2]} {titles[name]}]({name}) | {needs[name]} |" for name in texts]
    assert re.findall(r"^\| \[.*", readme, re.MULTILINE) == rows


@pytest.mark.prose
def test_the_two_terms_have_every_chapter():
    page = (DOCS / "teach" / "teaching.md").read_text(encoding="utf-8")
    terms = page.partition("## A term\n")[2].partition("\n## ")[0].lower()
    titles = [title for part in generate.chapters().values() for title in part.values()]
    assert [title for title in titles if title.lower().strip("?") not in terms] == []
