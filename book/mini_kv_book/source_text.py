"""Source text of Python: its code lines, its form in a page's column, the drawings in a docstring.

Imports only the standard library, for `.ci/report.py`.
"""

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize

COLUMNS = 88  # the widest line that a page shows without a break, at 1280 px
_IS_DRAWN = re.compile(r"\S {2,}\S|>>>|[|]|^(Args|Raises|Returns):$")  # columns inside a line: it stays as it was drawn
_BEGINS = re.compile(r"[\w`*.]+: |- ")  # an argument, or an item


def narrow(code: str) -> str:
    """Return the code with no line longer than `COLUMNS`, but for drawings and long strings.

    ruff breaks the code, comments and docstrings are filled.
    """
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


def with_drawings(text: str) -> str:
    r"""Indent each paragraph that has columns: three spaces or more inside an unindented line.

    >>> with_drawings("Free.\n\nfree  next-> 10 <-last         the queue").splitlines()[-1]
    '    free  next-> 10 <-last         the queue'
    """
    paragraphs = re.split(r"\n(?=\n)", text)
    for index, paragraph in enumerate(paragraphs):
        if re.search(r"^\S.* {3,}\S", paragraph, re.MULTILINE):
            paragraphs[index] = re.sub(r"^(?=.)", "    ", paragraph, flags=re.MULTILINE)
    return "\n".join(paragraphs)


_FREE = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER")


def code_lines(source: str) -> set[int]:
    r"""Return the numbers of the lines with at least one token of code, without docstrings and comments.

    Raises `SyntaxError` or `tokenize.TokenError` if this is not Python.

    >>> sorted(code_lines('def f():\n    "Say."\n\n    # why\n    return 1\n'))
    [1, 5]
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] not in _FREE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A statement that is only a string: a docstring, or the note below an attribute.
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines -= span(node)
    return lines


def span(node: ast.stmt | ast.expr) -> set[int]:
    """Return the numbers of the lines from the first to the last of a statement or an expression."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
