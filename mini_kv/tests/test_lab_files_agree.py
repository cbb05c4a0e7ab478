"""What a lab's files say of each other and of the engine still holds: fast, long before an audit runs the lab."""

import importlib
import inspect
import json
import re
import tomllib

import pytest
from mini_kv_book import generate
from mini_kv_book.places import DOCS, ROOT

from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import load_lab

LABS = sorted(path.parent.name for path in ROOT.glob("labs/lab-*/lab.toml"))
NEEDS = {"C": "Python", "T": "PyTorch, on a CPU", "K": "Triton, on Linux; no GPU"}


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
    assert [lab for lab, told in chapters.items() if not (DOCS / "chapters" / f"{told['chapter']}.md").is_file()] == []


def rows_of(folder: str) -> list[str]:
    """Return the lines that list what is in a folder: title, address, what it needs, a lab's minutes."""
    if folder == "labs":
        about = {lab: load_lab(ROOT / "labs" / lab) for lab in LABS}
        return [
            f"| [{lab[4:6]} {one.title}]({lab}/README.md) | {NEEDS[one.needs]} | {one.minutes} |"
            for lab, one in about.items()
        ]
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob("*.ipynb"))}
    titles = {name: json.loads(text)["cells"][0]["source"][0].strip("# \n") for name, text in texts.items()}
    needs = {name: NEEDS["T" if "It needs torch" in text else "C"] for name, text in texts.items()}
    return [f"| [{name[:2]} {titles[name]}]({name}) | {needs[name]} |" for name in texts]


@pytest.mark.parametrize("folder", ["labs", "notebooks"])
def test_the_readme_lists_every_lab_and_every_notebook_and_no_other(folder: str):
    readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*", readme, re.MULTILINE) == rows_of(folder)


@pytest.mark.prose
def test_the_two_terms_have_every_chapter_and_every_lab():
    page = (DOCS / "teach" / "teaching.md").read_text(encoding="utf-8")
    terms = page.partition("## A term\n")[2].partition("\n## ")[0].lower()
    titles = [title for part in generate.chapters().values() for title in part.values()]
    missing = [title for title in titles if title.lower().strip("?") not in terms]
    assert missing + [lab for lab in LABS if not re.search(rf"{lab}(?![\w-])", terms)] == []
