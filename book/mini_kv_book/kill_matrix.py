"""Which test catches which wrong belief: runs every lab's mutants and writes down which tests caught them.

    PYTHONPATH=book python -m mini_kv_book.kill_matrix              every lab
    PYTHONPATH=book python -m mini_kv_book.kill_matrix lab-05       this lab; the others stay as recorded

It takes minutes, so it is not part of a build: the result is kept, and a test compares it with the labs' mutants and
tests. It holds what a mutant's author believes and the names of the tests, and no code, so that a student's book may
show it.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from mini_kv.course.labkit.lab import Lab, load_lab

RECORDING = Path(__file__).parents[1] / "data" / "kill_matrix.json"
LABS = Path(__file__).parents[2] / "labs"


class Kill(TypedDict):
    """A belief and the tests that refute it."""

    idea: str
    in_engine: bool
    """Whether it is a bug of the engine, put in to see whether the lab's story notices, and no learner's mistake."""
    caught_by: list[str]


def load() -> dict[str, dict[str, Kill]]:
    """Return the matrix as it was recorded: lab, mutant, the wrong belief and the tests that refute it."""
    matrix: dict[str, dict[str, Kill]] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return matrix


def _kills_of(folder: Path) -> dict[str, Kill]:
    """Run the lab's audit and return its part of the matrix. Raises `ValueError` for a lab that is not sound."""
    from mini_kv.course.labkit.audit import audit_lab, load_mutants  # with pytest, which the book's build does not need

    audit = audit_lab(folder)
    if audit.findings:
        raise ValueError(f"{folder.name} is not sound: {'; '.join(audit.findings)}")
    return {
        mutant.id: Kill(idea=mutant.idea, in_engine=mutant.module is not None, caught_by=audit.kills[mutant.id])
        for mutant in load_mutants(load_lab(folder))
    }


def as_markdown() -> str:
    """Return a section per lab: the beliefs that each test refutes, and folded the first failing test per belief."""
    return "\n\n".join(section(load_lab(LABS / lab), kills) for lab, kills in load().items() if (LABS / lab).is_dir())


def section(lab: Lab, kills: dict[str, Kill]) -> str:
    """Return one lab's section."""
    learners = [kill for kill in kills.values() if not kill["in_engine"]]
    bugs = len(kills) - len(learners)
    engine = (
        f" {bugs} more are bugs of the engine, put there to see whether the lab's story notices them." if bugs else ""
    )
    first = Counter(kill["caught_by"][0] for kill in kills.values())
    alone = Counter(kill["caught_by"][0] for kill in kills.values() if len(kill["caught_by"]) == 1)
    every = Counter(test for kill in kills.values() for test in kill["caught_by"])
    in_order = sorted(every, key=lab.tests().index)
    table = [f"| {sentence(test)} | {every[test]} | {first[test]} | {alone[test]} |" for test in in_order]
    beliefs = [
        f"    | {_plain(kill['idea'])} | {sentence(kill['caught_by'][0])} | {len(kill['caught_by'])} |"
        for kill in learners
    ]
    return "\n".join(
        [
            f"## {lab.lab_id}: {lab.title} {{ #{lab.lab_id} }}",
            "",
            f"{len(learners)} beliefs.{engine} [The lab](../../../labs/{lab.lab_id}/README.md)",
            "",
            "| test | refutes | as the first | alone |",
            "|---|---:|---:|---:|",
            *table,
            "",
            f'??? note "All {len(learners)} beliefs, and the test that each meets first"',
            "",
            "    | who believes | meets first | and in all |",
            "    |---|---|---:|",
            *beliefs,
        ]
    )


def _plain(text: str) -> str:
    """Return the text so that Markdown leaves it alone inside a table."""
    return re.sub(r"([*_|<])", r"\\\1", text)


def sentence(test: str) -> str:
    """Return a test's name as the sentence that it is.

    >>> sentence("test_3_reference_counts_show_the_sharing")
    '3 reference counts show the sharing'
    """
    return test.removeprefix("test_").replace("_", " ")


def main(names: Sequence[str]) -> None:
    """Audit these labs, or all of them, and write the matrix, a line per mutant."""
    labs, recorded = [], json.loads(RECORDING.read_text(encoding="utf-8"))
    for folder in sorted(LABS.glob("lab-*")):
        kills = recorded[folder.name] if names and folder.name not in names else _kills_of(folder)
        lines = ",\n".join(f"  {json.dumps(mutant)}: {json.dumps(kill)}" for mutant, kill in kills.items())
        labs.append(f" {json.dumps(folder.name)}: {{\n{lines}\n }}")
        print(f"{folder.name}: {len(kills)} mutants{'' if not names or folder.name in names else ', as recorded'}")
    RECORDING.write_text("{\n" + ",\n".join(labs) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
