"""How a lab's page is arranged: its README, with the editor beside what it asks for."""

from itertools import chain
from pathlib import Path

SPECIFICATION = ("What to implement", "The five rungs", "What the tests prove")
"""Sections that stand beside the editor."""
AFTER = ("Files", "Run")
"""How it is done at home: after the editor, although a README says it before."""


def arranged(lines: list[str], lab: str) -> list[str]:
    """Return the lines of a lab's README as its page has them: why, then specification and editor, then the rest."""
    sections = sections_of(lines)
    titles = list(sections)
    spec = [title for title in titles if title in SPECIFICATION]
    later = [*AFTER, *titles[titles.index(spec[0]) :]]
    after = [title for title in dict.fromkeys(later) if title in sections and title not in spec]
    first = [title for title in titles if title not in {*spec, *after}]
    return [
        *chain(*(sections[title] for title in first)),
        *['<div class="kv-bench" markdown>', '<div class="kv-spec" markdown>', ""],
        *chain(*(sections[title] for title in spec)),
        *["", "</div>", '<div class="kv-desk" markdown>', "", "## Run it here", ""],
        *["```kv-lab", lab, "```", "", "</div>", "</div>", ""],
        *chain(*(sections[title] for title in after)),
    ]


def sections_of(lines: list[str]) -> dict[str, list[str]]:
    r"""Return the lines below each second heading with that heading, those before the first under an empty name.

    >>> sections_of(["# A", "", "## B", "```", "## no heading", "```", "## C"])
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


def next_of(lab: str, folder: Path) -> str | None:
    """Return the lab after this one, a further part included; `None` after the last."""
    labs = sorted(path.parent.name for path in folder.glob("lab-*/lab.toml"))
    place = labs.index(lab) + 1
    return labs[place] if place < len(labs) else None
