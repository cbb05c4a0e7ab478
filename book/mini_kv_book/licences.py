"""The table of Python packages that the site carries for its labs, with their versions and licences."""

import re

from mini_kv_book.places import DOCS, ROOT

TEXTS = DOCS / "assets" / "kv-lab" / "LICENCES.txt"
"""File that `npm run labs` writes beside the packages."""

WHEELS = {
    "iniconfig": ("MIT", "reads pytest's settings"),
    "packaging": ("Apache-2.0 OR BSD-2-Clause", "compares versions for pytest"),
    "pluggy": ("MIT", "how pytest calls its plugins"),
    "pygments": ("BSD-2-Clause", "colours pytest's messages"),
    "pytest": ("MIT", "runs the tests of a lab in the page"),
}
"""Per package: the licence in its wheel, and its use in the labs."""


def pinned() -> dict[str, str]:
    """Return the version of every package that constraints.txt pins."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE))


def as_markdown() -> str:
    """Return the table, and a link to the texts of the licences if this site carries them."""
    versions = pinned()
    rows = [f"| {name} {versions[name]} | {licence} | {use} |" for name, (licence, use) in WHEELS.items()]
    table = ["| package | licence | what it does here |", "|---|---|---|", *rows]
    if TEXTS.is_file():
        table += ["", "All their texts are in [one file](../assets/kv-lab/LICENCES.txt)."]
    return "\n".join(table)
