"""The size report: code lines per file and package, against the budgets of the project.

A code line holds at least one token of code. Blank lines, comments and docstrings are free: nobody should pay
for explaining. Exits 1 when something is over its budget.

    python .ci/size.py [root]
"""

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

PACKAGE_BUDGETS = {
    "core": 1950,
    "core/sched": 560,
    "labkit": 1200,
    "labkit/audit.py": 260,
    "labkit/kernels": 175,
    "labkit/own_engine": 600,
}
"""Code lines, tests and benchmarks aside; a file that is named has a budget of its own."""
FILE_BUDGET = 400
FUNCTION_BUDGET = 60  # one screen

_FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Function(NamedTuple):
    """A function or method, its nested functions included."""

    name: str
    line: int
    size: int


class Report(NamedTuple):
    """The sizes of one file."""

    path: Path
    size: int
    functions: list[Function]


def code_lines(source: str) -> set[int]:
    r"""Return the numbers of the lines that hold code.

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


def span(node: ast.stmt) -> set[int]:
    """Return the numbers of the lines from the first to the last of a statement."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def measure(path: Path) -> Report:
    """Count one file."""
    source = path.read_text(encoding="utf-8")
    lines = code_lines(source)
    functions = [
        Function(node.name, node.lineno, len(lines & span(node)))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Report(path, len(lines), functions)


def package_of(path: Path) -> str:
    """Return the folders below mini_kv/ in which a file lies, "." for mini_kv/ itself, or what it has a budget as.

    >>> package_of(Path("mini_kv/core/sched/output.py")), package_of(Path("mini_kv/cli.py"))
    ('core/sched', '.')
    """
    *inside, name = path.parts[path.parts.index("mini_kv") + 1 :]
    own = "/".join([*inside, name])
    return own if own in PACKAGE_BUDGETS else "/".join(inside) or "."


def over_budget(reports: list[Report], sums: dict[str, int]) -> list[str]:
    """Return one sentence for everything that is too big."""
    found = [
        f"mini_kv/{package}: {sums.get(package, 0)} code lines, the budget is {budget}"
        for package, budget in PACKAGE_BUDGETS.items()
        if sums.get(package, 0) > budget
    ]
    for report in reports:
        if report.size > FILE_BUDGET:
            found.append(f"{report.path}: {report.size} code lines, the budget is {FILE_BUDGET}")
        found += [
            f"{report.path}:{f.line}: {f.name} has {f.size} code lines, one screen is {FUNCTION_BUDGET}"
            for f in report.functions
            if f.size > FUNCTION_BUDGET
        ]
    return found


def main(root: Path) -> int:
    """Print the table for `root`/mini_kv and return the exit status."""
    paths = sorted(p.relative_to(root) for p in (root / "mini_kv").rglob("*.py") if "tests" not in p.parts)
    reports = [measure(root / p)._replace(path=p) for p in paths]
    sums: dict[str, int] = {}
    for report in reports:
        if package_of(report.path) != "bench":
            sums[package_of(report.path)] = sums.get(package_of(report.path), 0) + report.size
    print(f"{'code lines':>10}  {'longest function':<44}  file")
    for report in reports:
        longest = max(report.functions, key=lambda f: f.size, default=None)
        shown = f"{longest.size:>4}  {longest.name}" if longest else ""
        print(f"{report.size:>10}  {shown:<44}  {report.path}")
    print(f"\n{'code lines':>10}  {'budget':>6}  package")
    for package, size in sorted(sums.items()):
        print(f"{size:>10}  {PACKAGE_BUDGETS.get(package, '-'):>6}  {package}")
    print(f"{sum(sums.values()):>10}  {'-':>6}  all")
    problems = over_budget(reports, sums)
    print("\n".join(["", *problems]) if problems else "\nsize: within budget")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
