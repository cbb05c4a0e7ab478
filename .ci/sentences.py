"""Draw sentences for a reader to judge: 50 of docstrings, 50 of messages, 50 of lab pages, 50 of chapters.

    python .ci/sentences.py 7            the same seed draws the same sentences of the same revision

Each line says where the sentence is. A program cannot tell whether a sentence is plain; it can only pick fairly.
"""

import ast
import random
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_EACH = 50
_SPOKEN = ("why", "idea", "ask", "seen", "lesson", "say", "if_true", "about", "text")
"""Keys of TOML files, and names of arguments in lab tests, whose values a learner reads."""


def sentences(text: str) -> Iterator[str]:
    r"""Yield the sentences of a text in Markdown, without code blocks, tables, lists of links and headings.

    >>> list(sentences("# A title\n\nOne block is free. Is it\ncached? It is."))
    ['One block is free.', 'Is it cached?']
    """
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        if not re.match(r"\s*([#|<>!?*-]|\d+\.|```|    )", paragraph):
            for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z`*\[])", " ".join(paragraph.split())):
                if len(sentence.split()) > 2:
                    yield sentence


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the sentences of the docstrings of public names."""
    for path in sorted((ROOT / "mini_kv").rglob("*.py")):
        if "tests" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and not _is_private(node):
                    doc = ast.get_docstring(node) or ""
                    yield from ((_place(path, node), sentence) for sentence in sentences(doc))


def messages() -> Iterator[tuple[str, str]]:
    """Yield what is said while a program runs: texts of exceptions, and in labs the whys, beliefs and questions."""
    for path in sorted((ROOT / "mini_kv").rglob("*.py")):
        if "tests" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    texts = [_shown(part) for part in node.exc.args if _is_text(part)]
                    yield from ((_place(path, node), text) for text in texts if len(text.split()) > 3)
    for path in sorted(ROOT.glob("labs/*/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in _SPOKEN and _is_text(node.value):
                yield _place(path, node.value), _shown(node.value)
    for path in sorted([*ROOT.glob("solutions/*/mutants.toml"), *ROOT.glob("labs/*/lab.toml")]):
        yield from ((_place(path), text) for text in _spoken(tomllib.loads(path.read_text("utf-8"))))


def pages(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of the pages that match."""
    for path in sorted(ROOT.glob(pattern)):
        yield from ((_place(path), sentence) for sentence in sentences(path.read_text("utf-8")))


def _spoken(values: object) -> Iterator[str]:
    """Yield the texts below the keys that a learner reads."""
    if isinstance(values, list):
        for value in values:
            yield from _spoken(value)
    elif isinstance(values, dict):
        for key, value in values.items():
            if isinstance(value, str):
                if key in _SPOKEN and len(value.split()) > 3:
                    yield " ".join(value.split())
            else:
                yield from _spoken(value)


def _is_private(node: ast.AST) -> bool:
    return getattr(node, "name", "module").startswith("_")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _shown(node: ast.expr) -> str:
    """Return a text as the source has it, with `{...}` where a value will stand."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values)


def _place(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", None)
    return f"{path.relative_to(ROOT)}{'' if line is None else f':{line}'}"


def main(seed: str) -> None:
    """Print the sentences that this seed draws."""
    kinds = {
        "docstrings": docstrings(),
        "messages": messages(),
        "lab pages": pages("labs/lab-*/README.md"),
        "chapters": pages("book/docs/chapters/*.md"),
    }
    for kind, found in kinds.items():
        all_of_them = list(found)
        print(f"\n## {kind}: {OF_EACH} of {len(all_of_them):,}\n")
        for place, sentence in random.Random(f"{seed} {kind}").sample(all_of_them, OF_EACH):
            print(f"{place}  {sentence}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "1")
