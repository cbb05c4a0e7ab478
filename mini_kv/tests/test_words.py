"""Code and its docstrings, comments and messages name who acts, and say "per" and "block hash".

The book and the labs' READMEs are read at leisure and keep their voice; this holds what is read in a hurry.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THESE = {Path(__file__).relative_to(ROOT), Path("mini_kv/tests/test_prose.py")}
STARTERS = ROOT / "mini_kv/labkit/starters"

_COUNTED = (
    "tokens|blocks|slots|bytes|rows?|lists?|numbers?|times|cells?|ids|us|ms|heads|layers|records?|values?|runs?|one"
    "|(?:one|a) (?:block|token|slot|tile|program|entry|line)"
)
_UNIT = (
    "block|token|group|step|request|layer|slot|row|head|tensor|page|sequence|table|tile|line|part|lab|module|workload"
)
BANNED = {
    "who acts": r"(?<!hello )(?<![a-z])(?:(?:no|some|every|any)(?:body|one)|who(?:m)?ever)(?![a-z])",
    "how many": r"(?<![a-z])(?<!not )so[-_ ](?:manieth|many|much of each)(?![a-z])",
    "per": rf"\b(?:{_COUNTED}) an? (?:{_UNIT})\b(?! (?:has|have|is|gets|holds|lost|may|needs)\b)",
    "block hash": r"\bblocks?'s? names?\b|\bnames? of (?:(?:the|its|their|a|one|all) )?(?:full )?blocks?\b"
    r"|\b(?:has|have|had|without|with) (?:a|no) name\b|\bnameless\b|\bnamed blocks?\b"
    r"|\b(?:loses?|lost|gets?|keeps?|takes?) (?:its|their) names?\b",
}
"""What a plain sentence says, and the pattern of sentences that do not."""
_BANNED = re.compile("|".join(BANNED.values()), re.IGNORECASE)


def sources() -> list[Path]:
    """Return the files that are held: Python and JavaScript, of the labs tests, helpers and starters as they are given.

    Not labs/*/starter.py: a learner writes in them.
    """
    kinds = {".py", ".js", ".mjs"}
    labs = [
        *ROOT.glob("labs/*/test_lab.py"),
        *ROOT.glob("labs/*/helpers.py"),
        *ROOT.glob("labs/*/chance.py"),
        *ROOT.glob("labs/*/compiler.py"),
        *STARTERS.glob("*.txt"),
    ]
    found = [path for folder in ("mini_kv", "book", "solutions", ".ci") for path in (ROOT / folder).rglob("*")]
    found = [path for path in found if path.suffix in kinds and not {*path.parts} & {"node_modules", "site", "docs"}]
    return sorted(path.relative_to(ROOT) for path in [*found, *labs, ROOT / ".ci/run"])


def banned_in(text: str) -> list[str]:
    """Return the banned words of a text with the numbers of their lines."""
    return [f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in _BANNED.finditer(text)]


@pytest.mark.parametrize(
    "sentence",
    [
        "walk the blocks that nobody holds",
        "whoever asks first is served",
        "def test_nobody_waits():",
        "every so-manieth of them",
        "return the tables, a list a group",
        "tokens a block",
        "Return one block a request.",
        "a block without a name goes to the front",
        "Names of the full blocks, from the first on.",
        "a freed block keeps its name",
    ],
)
def test_a_riddle_is_found(sentence: str) -> None:
    assert len(banned_in(f"{sentence}\n")) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "the blocks that no request holds",
        "once a step, 1e9 bytes a second",
        "which blocks a request has",
        "how many times a block lost its key",
        "Hello world, Hello everyone",
        "give the request a block",
        "the name of a tensor",
        "no one of them is free",
        "with a hash of their own",
    ],
)
def test_a_plain_sentence_is_not(sentence: str) -> None:
    assert banned_in(sentence) == []


def test_words_are_plain() -> None:
    """In every file but the two tests that have to name what they look for."""
    held = {
        path.as_posix(): banned_in((ROOT / path).read_text(encoding="utf-8")) for path in sources() if path not in THESE
    }
    assert {path: found for path, found in held.items() if found} == {}
