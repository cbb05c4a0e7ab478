"""The size report: code lines and complexity per file and package, against the budgets in `.ci/budgets.toml`.

A code line holds at least one token of code. Blank lines, comments and docstrings are free: explaining costs nothing.
Exits 1 when something is over its budget.

    python .ci/size.py [root]           the report
    python .ci/size.py --set [root]     the numbers of all packages as they may stand in budgets.toml: none rises
"""

import ast
import io
import math
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FILE_BUDGET = 400
FUNCTION_BUDGET = 60  # one screen
COMPLEXITY_BUDGET = 12
AIR = 1.05
"""What `--set` leaves to grow."""

WHAT_NOW = (
    "Over budget: look for what the change makes unnecessary, or add a [[rise]] with its reason to .ci/budgets.toml."
)

_FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCH = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case | _FUNCTION


class Function(NamedTuple):
    """A function or method, its nested functions included."""

    name: str
    line: int
    size: int
    complexity: int


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


def span(node: ast.stmt | ast.expr) -> set[int]:
    """Return the numbers of the lines from the first to the last of a statement or an expression."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def complexity(function: ast.AST) -> int:
    r"""Return 1 plus the number of decisions: branches as ruff's C901 counts them, and those inside expressions.

    An expression decides by each further operand of `and` and `or`, and by each `for` and `if` of a comprehension.

    >>> complexity(ast.parse("def f(a):\n  if a and a[0] or not a:\n    return [b for b in a if b]").body[0])
    6
    """
    decisions = 0
    for node in ast.walk(function):
        if isinstance(node, _BRANCH):
            decisions += 1  # the function itself is the first
        elif isinstance(node, ast.BoolOp):
            decisions += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            decisions += 1 + len(node.ifs)
    return decisions


def measure(path: Path) -> Report:
    """Count one file."""
    source = path.read_text(encoding="utf-8")
    lines = code_lines(source)
    functions = [
        Function(node.name, node.lineno, len(lines & span(node)), complexity(node))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _FUNCTION)
    ]
    return Report(path, len(lines), functions)


def measure_all(root: Path) -> list[Report]:
    """Count every Python file below the top level: package, tests, book, labs, solutions and tools."""
    folders = ("mini_kv", "book", "labs", "solutions", ".ci")
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [measure(p)._replace(path=p.relative_to(root)) for p in paths if "node_modules" not in p.parts]


def package_of(path: Path) -> str | None:
    """Return the package whose budget a file counts for: a folder of mini_kv/, "." for mini_kv/ itself, or "book".

    >>> package_of(Path("mini_kv/core/sched/output.py")), package_of(Path("mini_kv/cli.py"))
    ('core', '.')
    >>> package_of(Path("mini_kv/tests/test_cli.py"))
    """
    match path.parts:
        case ("book", *_):
            return "book"
        case ("mini_kv", "tests", *_):
            return None
        case ("mini_kv", folder, _, *_):
            return folder
        case ("mini_kv", _):
            return "."
    return None


def folder_of(package: str) -> str:
    """Return where a package lies.

    >>> folder_of("core"), folder_of("."), folder_of("book")
    ('mini_kv/core', 'mini_kv', 'book')
    """
    return {"book": "book", ".": "mini_kv"}.get(package, f"mini_kv/{package}")


def sums(reports: list[Report]) -> dict[str, int]:
    """Return the code lines of each package."""
    found: dict[str, int] = {}
    for report in reports:
        if package := package_of(report.path):
            found[package] = found.get(package, 0) + report.size
    return dict(sorted(found.items()))


def budget_of(package: str, budgets: dict[str, Any]) -> int | None:
    """Return a package's number and its rises; None where it has no number."""
    number = budgets["packages"].get(package)
    rises = [rise["lines"] for rise in budgets.get("rise", []) if rise["package"] == package]
    return None if number is None else number + sum(rises)


def spine_size(reports: list[Report], budgets: dict[str, Any]) -> int:
    """Return the code lines of the spine's files."""
    files = [Path("mini_kv", name) for name in budgets["spine"]["files"]]
    return sum(report.size for report in reports if report.path in files)


def over_budget(reports: list[Report], budgets: dict[str, Any]) -> list[str]:
    """Return one sentence for everything that is too big, and for a rise without a reason."""
    packages = sums(reports)
    held = [(folder_of(package), size, budget_of(package, budgets) or 0) for package, size in packages.items()]
    held.append(("the spine", spine_size(reports, budgets), budgets["spine"]["lines"]))
    held.append(("the whole", sum(packages.values()), budgets["whole"]))
    held += [(str(report.path), report.size, FILE_BUDGET) for report in reports if package_of(report.path)]
    found = [f"{what}: {size} code lines, the budget is {budget}" for what, size, budget in held if size > budget]
    found += [f"{rise['package']} rose without a reason" for rise in budgets.get("rise", []) if not rise.get("reason")]
    for report in reports:
        found += too_much(report)
    return found


def too_much(report: Report) -> list[str]:
    """Return one sentence for each function of a file that is too long or too complex; in tests length is free."""
    found = []
    for name, line, size, decisions in report.functions:
        where = f"{report.path}:{line}: {name}"
        if size > FUNCTION_BUDGET and package_of(report.path):
            found.append(f"{where} has {size} code lines, one screen is {FUNCTION_BUDGET}")
        if decisions > COMPLEXITY_BUDGET:
            found.append(f"{where} has complexity {decisions}, the limit is {COMPLEXITY_BUDGET}")
    return found


def show(reports: list[Report], budgets: dict[str, Any]) -> None:
    """Print the sizes of files, of packages with their budgets, and why a budget has risen."""
    print(f"{'code lines':>10}  {'longest function':<44}  file")
    for report in reports:
        if package_of(report.path):
            longest = max(report.functions, key=lambda f: f.size, default=None)
            shown = f"{longest.size:>4}  {longest.name}" if longest else ""
            print(f"{report.size:>10}  {shown:<44}  {report.path}")
    packages = sums(reports)
    print(f"\n{'code lines':>10}  {'budget':>6}  package")
    for package, size in packages.items():
        print(f"{size:>10}  {budget_of(package, budgets) or 'none':>6}  {package}")
    print(f"{sum(packages.values()):>10}  {budgets['whole']:>6}  all")
    print(f"{spine_size(reports, budgets):>10}  {budgets['spine']['lines']:>6}  the spine: block to llm_engine")
    for rise in budgets.get("rise", []):
        print(f"{rise['package']} rose by {rise['lines']}: {rise.get('reason')}")


def main(arguments: list[str]) -> int:
    """Print the report of the tree, or with `--set` its numbers; return the exit status."""
    root = Path(*[argument for argument in arguments if argument != "--set"][:1]).resolve()
    reports = measure_all(root)
    budgets = tomllib.loads((root / ".ci/budgets.toml").read_text(encoding="utf-8"))
    if "--set" in arguments:
        print("[packages]")
        for package, size in sums(reports).items():
            key = package if package.isalpha() else f'"{package}"'
            print(f"{key} = {min(math.ceil(size * AIR), budgets['packages'].get(package, budgets['whole']))}")
        return 0
    show(reports, budgets)
    problems = over_budget(reports, budgets)
    print("\n".join(["", WHAT_NOW, "", *problems]) if problems else "\nsize: within budget")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
