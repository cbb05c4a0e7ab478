"""The state of the house as one table in Markdown, to be compared before and after a change.

Code lines and public names of each package, the share of each lab's tests that is machinery (what is neither an import
nor a test with its decorators: helpers, constants), the longest functions, and those over the limit of complexity.

    python .ci/house.py [root]
"""

import ast
import sys
from pathlib import Path

from size import COMPLEXITY_BUDGET, Report, code_lines, measure_all, package_of, span, sums


def public_names(tree: ast.Module) -> list[str]:
    r"""Return the functions, classes and values that a module defines at its top level, those with a leading _ aside.

    >>> public_names(ast.parse("a, _b = 1, 2\nc: int = 3\ndef d(): pass\nclass E: pass"))
    ['a', 'c', 'd', 'E']
    """
    names = []
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names += [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def machinery(source: str) -> tuple[int, int]:
    """Return the code lines of a lab's tests outside its imports and test functions, and all of its code lines."""
    lines = code_lines(source)
    story: set[int] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            story |= span(node)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            story |= span(node).union(*(span(decorator) for decorator in node.decorator_list))
    return len(lines - story), len(lines)


def print_packages(root: Path, reports: list[Report]) -> None:
    """Print code lines and public names per package, and their sums."""
    names: dict[str, int] = {}
    for report in reports:
        if package := package_of(report.path):
            tree = ast.parse((root / report.path).read_text(encoding="utf-8"))
            names[package] = names.get(package, 0) + len(public_names(tree))
    lines = sums(reports)
    print("| package | code lines | public names |\n|---|---:|---:|")
    for package, size in lines.items():
        print(f"| {package} | {size:,} | {names[package]} |")
    print(f"| all | {sum(lines.values()):,} | {sum(names.values())} |")


def print_labs(root: Path) -> None:
    """Print how much of each lab's tests is no test."""
    print("\n| lab's tests | code lines | machinery |\n|---|---:|---:|")
    for path in sorted(root.glob("labs/lab-*/test_lab.py")):
        outside, size = machinery(path.read_text(encoding="utf-8"))
        print(f"| {path.parent.name} | {size} | {outside / size:.0%} |")


def print_functions(reports: list[Report]) -> None:
    """Print the ten longest functions of the packages, and all that decide too much."""
    functions = [(function, report.path) for report in reports for function in report.functions]
    longest = sorted(((f, path) for f, path in functions if package_of(path)), key=lambda each: -each[0].size)[:10]
    print("\n| longest functions | code lines |\n|---|---:|")
    for function, path in longest:
        print(f"| {path}: {function.name} | {function.size} |")
    print(f"\n| complexity above {COMPLEXITY_BUDGET} | decisions |\n|---|---:|")
    for function, path in sorted(functions, key=lambda each: -each[0].complexity):
        if function.complexity > COMPLEXITY_BUDGET:
            print(f"| {path}: {function.name} | {function.complexity} |")


def main(root: Path) -> None:
    """Print the table."""
    reports = measure_all(root)
    print_packages(root, reports)
    print_labs(root)
    print_functions(reports)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]).resolve())
