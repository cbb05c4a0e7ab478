"""The arrangement of a lab's page: its contract beside the editor on the first screen, then its README."""

import ast
import re
import tomllib
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

from mini_kv.course.given.contract import Variant, draw, in_variant
from mini_kv.course.labkit.lab import load_lab, place_of
from mini_kv_book.course import course
from mini_kv_book.places import ROOT, anchor_of

CHALLENGE = "lab-17"
"""The lab whose contract is that of the class."""
_SPECIFICATION = ("What to implement", "The five rungs", "What the tests prove")
"""Sections beside the editor, below the contract."""
_NEEDS = re.compile(r"Needs\s+Python\s+and\s+pytest,\s+no\s+GPU,\s+no\s+PyTorch\.")
"""The sentence in a README with the requirements of a lab that a page can run."""


def arranged(lines: list[str], lab: str, solve: str, is_second: bool = False) -> list[str]:
    """Return the lines of a lab's README for its page: contract and editor, the specification, then the rest.

    Args:
        lines: the README's lines.
        lab: such as `lab-05`.
        solve: text of the link to the editor at the top of the page.
        is_second: whether it is the part 2 of the lab above it on the page.
    """
    sections = _sections_of(lines)
    heading, *opening = sections.pop("")
    code = "part-2-code" if is_second else "run-it-here"
    if is_second:  # the anchors are the first part's
        heading = f"#{heading} {{ #part-2 }}"
        for title, of in sections.items():
            of[0] += f" {{ #part-2-{anchor_of(title)} }}"
    spec = [title for title in sections if title in _SPECIFICATION]
    rest = [title for title in sections if title not in spec]
    return [
        *[heading, "", f"[{solve}](#{code}){{ .kv-solve }}", ""],
        *['<div class="kv-bench" markdown>', '<div class="kv-contract" markdown>', "", *contract(lab), "", "</div>"],
        *['<div class="kv-desk" markdown>', "", f"## Your code {{ #{code} }}", "", "```kv-lab", lab, "```", ""],
        *["</div>", '<div class="kv-spec" markdown>', "", *opening, "", _below(rest[:2], "part-2-" * is_second), ""],
        *chain(*(sections[title] for title in spec)),
        *["", "</div>", "</div>", ""],
        *chain(*(sections[title] for title in rest)),
    ]


def nothing_to_install(lines: list[str]) -> list[str]:
    r"""Return the lines of a README for a page that runs the lab. Its requirements are marked as those at home.

    >>> nothing_to_install(["45 minutes, difficulty 2 of 5. Needs Python and", "pytest, no GPU, no PyTorch. No more."])
    ['45 minutes, difficulty 2 of 5. Nothing to install here. To run it at home: Python and pytest. No more.']
    """
    return _NEEDS.sub("Nothing to install here. To run it at home: Python and pytest.", "\n".join(lines)).split("\n")


def _below(titles: list[str], part: str) -> str:
    """Return the sentence with links to sections that a reader may want before the editor."""
    links = [f"[{title}](#{part}{anchor_of(title)})" for title in titles]
    return f"Below: {', '.join(links)}."


def contract(lab: str) -> list[str]:
    """Return one sentence on the effect of each function of the lab, and the first example of a function."""
    functions = tomllib.loads((ROOT / "labs" / lab / "lab.toml").read_text(encoding="utf-8"))["function"]
    told = _docstrings_of(starter_of(lab))
    paragraphs = [[" ".join(part.split()) for part in told[one["name"]].split("\n\n")] for one in functions]
    lines = [f"- `{one['signature']}`<br>{first}" for one, (first, *_) in zip(functions, paragraphs, strict=True)]
    examples = [part for parts in paragraphs for part in parts if part.startswith("Example")]
    return [*lines, *(f"- {part.replace('Example', '**Example**', 1)}" for part in examples[:1])]


def starter_of(lab: str) -> str:
    """Return the empty file of a lab."""
    return load_lab(ROOT / "labs" / lab).pristine_starter.read_text(encoding="utf-8")


def _docstrings_of(source: str) -> dict[str, str]:
    r"""Return the docstrings of functions and methods, by their dotted names.

    >>> _docstrings_of('def f():\n    "A."\nclass C:\n    def m(self):\n        "B."')
    {'f': 'A.', 'C.m': 'B.'}
    """
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        functions = [one for one in inside if isinstance(one, ast.FunctionDef)]
        found |= {owner + function.name: ast.get_docstring(function) or "" for function in functions}
    return found


def _sections_of(lines: list[str]) -> dict[str, list[str]]:
    r"""Return the lines of each second-level section, by heading. Lines before the first have an empty heading.

    >>> _sections_of(["# A", "", "## B", "```", "## no heading", "```", "## C"])
    {'': ['# A', ''], 'B': ['## B', '```', '## no heading', '```'], 'C': ['## C']}
    """
    sections: dict[str, list[str]] = {"": []}
    title, inside = "", False
    for line in lines:
        inside ^= line.startswith("```")
        if line.startswith("## ") and not inside:
            title = line.removeprefix("## ")
            sections[title] = []
        sections[title].append(line)
    return sections


def section(lines: list[str], anchor: str) -> list[str]:
    r"""Return the section with this anchor, of whatever level, as one of the second. Raises `KeyError` for another one.

    >>> section(["## A", "", "### A b", "", "Words.", "## C"], "a-b")
    ['## A b', '', 'Words.', '']
    """
    places = [number for number, line in enumerate(lines) if line.startswith("##")]
    for start, end in pairwise([*places, len(lines)]):
        title = lines[start].lstrip("# ")
        if anchor_of(title) == anchor:
            return [f"## {title}", *lines[start + 1 : end], ""]
    raise KeyError(anchor)


@cache
def variant() -> Variant:
    """Return the variant of the contract that the class has."""
    return draw(course().challenge)


def with_contract(readme: str, own: Variant) -> str:
    """Return the README of lab-17 with the contract of a class, and an anchor at each of its sentences."""
    return re.sub(r"^(\d+)\. ", r'\1. <span id="sentence-\1"></span>', in_variant(readme, own), flags=re.MULTILINE)


def next_of(lab: str, folder: Path) -> str | None:
    """Return the lab after this one, a further part included, or `None` after the last."""
    labs = sorted((path.parent.name for path in folder.glob("lab-*/lab.toml")), key=place_of)
    place = labs.index(lab) + 1
    return labs[place] if place < len(labs) else None
