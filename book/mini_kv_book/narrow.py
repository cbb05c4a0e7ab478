"""Source text for a page's column: code as ruff breaks it at 88 columns, comments and docstrings filled to the same."""

import re
import subprocess
import sys
import textwrap

COLUMNS = 88  # the widest line that a page shows without a break, at 1280 px
_IS_DRAWN = re.compile(r"\S {2,}\S|>>>|[|]|^(Args|Raises|Returns):$")  # columns inside a line: it stays as it was drawn
_BEGINS = re.compile(r"[\w`*.]+: |- ")  # an argument, or an item


def narrow(code: str) -> str:
    """Return the code with no line longer than `COLUMNS`, but for drawings and long strings."""
    lines = _formatted("\n".join(_with_comments_above(code.splitlines()))).splitlines()
    out: list[str] = []
    for is_text, paragraph in _paragraphs(lines):
        out += _filled(paragraph) if is_text and max(map(len, paragraph)) > COLUMNS else paragraph
    return "\n".join(out)


def _with_comments_above(lines: list[str]) -> list[str]:
    """Return the lines with the comment behind a code that is too long put above it: ruff would break the code."""
    out: list[str] = []
    for line in lines:
        found = re.fullmatch(r"( *)(\S.*?)  (# .*)", line)
        out += [found[1] + found[3], found[1] + found[2]] if found and len(line) > COLUMNS else [line]
    return out


def _formatted(code: str) -> str:
    """Return the code in ruff's form; what is no module by itself stays as it is."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={COLUMNS}", "-"]
    done = subprocess.run(command, input=code, capture_output=True, encoding="utf-8", check=False)
    return done.stdout if done.returncode == 0 else code


def _paragraphs(lines: list[str]) -> list[tuple[bool, list[str]]]:
    """Return the lines in groups, each with whether it is text: a paragraph of a docstring or of comments."""
    groups: list[tuple[bool, list[str]]] = []
    is_text = inside = False
    for line in lines:
        text = line.strip()
        was_text, was_inside = is_text, inside
        inside ^= text.count('"""') == 1
        is_text = (inside or was_inside or text.startswith(("# ", '"""'))) and bool(text) and not _IS_DRAWN.search(text)
        follows = is_text and was_text and _indent(groups[-1][1][0]) == _indent(line) and not _BEGINS.match(text)
        if follows and was_inside == inside and not text.startswith('"""'):
            groups[-1][1].append(line)
        else:
            groups.append((is_text, [line]))
    return groups


def _indent(line: str) -> str:
    """Return what a line begins with: its indentation, and the sign of a comment."""
    found = re.match(r" *(?:# )?", line)
    return found[0] if found else ""


def _filled(paragraph: list[str]) -> list[str]:
    """Return the paragraph in lines of at most `COLUMNS`."""
    indent = _indent(paragraph[0])
    text = " ".join(line[len(indent) :].strip() for line in paragraph)
    return textwrap.wrap(text, COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
