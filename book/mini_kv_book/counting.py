"""Counts the lines of Python with code, for the reading path and `.ci/report.py`. Imports only the standard library."""

import ast
import io
import tokenize

_FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> set[int]:
    r"""Return the numbers of the lines with at least one token of code, without docstrings and comments.

    Raises `SyntaxError` or `tokenize.TokenError` if this is not Python.

    >>> sorted(code_lines('def f():\n    "Say."\n\n    # why\n    return 1\n'))
    [1, 5]
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _FREE:
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
