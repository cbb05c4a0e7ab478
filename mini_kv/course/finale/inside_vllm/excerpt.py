"""A part's text in the learner's file, with all that it uses there.

The text is taken as it is written, comments included. A name that it takes from mini_kv must have a counterpart in
vLLM, and all other imports must be from Python's standard library. `NotPortableError` gives the reason otherwise.
"""

import ast
import builtins
import symtable
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
BUILTINS = frozenset(dir(builtins))


class NotPortableError(Exception):
    """This part's text cannot be moved into vLLM, with the reason."""


def _root(module: str) -> str:
    return module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `from module import name as bound`, or `import module as bound` if `name` is empty."""

    module: str
    name: str
    bound: str

    def __str__(self) -> str:
        renamed = f" as {self.bound}" if self.bound != (self.name or _root(self.module)) else ""
        return f"from {self.module} import {self.name}{renamed}" if self.name else f"import {self.module}{renamed}"

    @property
    def is_standard(self) -> bool:
        """Whether it is from Python's standard library."""
        return _root(self.module) in sys.stdlib_module_names


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The definitions that a part needs, in the order of the file."""

    texts: Sequence[str]
    defined: frozenset[str]
    """The names of these definitions."""
    imports: frozenset[Import]
    """What they import from the standard library."""
    borrowed: frozenset[str]
    """What they import from mini_kv. vLLM has it under the same name."""


def imports_of(statements: Iterable[ast.AST]) -> list[Import]:
    """Return the names that these statements import."""
    found = []
    for node in statements:
        match node:
            case ast.Import():
                found += [Import(each.name, "", each.asname or _root(each.name)) for each in node.names]
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                found += [Import(module, each.name, each.asname or each.name) for each in node.names]
    return found


def names_defined(statement: Definition) -> set[str]:
    """Return the names that a definition gives to its module."""
    match statement:
        case ast.Assign():
            targets: list[ast.expr] = statement.targets
        case ast.AnnAssign():
            targets = [statement.target]
        case _:
            return {statement.name}
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def global_names(text: str) -> set[str]:
    """Return the names that this text looks up in its module, at any depth."""
    tables = [symtable.symtable(text, "", "exec")]
    names: set[str] = set()
    for table in tables:  # it grows
        tables += table.get_children()
        in_module = table.get_type() == "module"
        names |= {
            each.get_name() for each in table.get_symbols() if each.is_referenced() and (in_module or each.is_global())
        }
    return names


class PythonText:
    """The text of a Python file, by lines and as a tree."""

    def __init__(self, text: str) -> None:
        """Parse the text. Raises `SyntaxError` if it is not Python."""
        self.text = text
        self.lines = text.split("\n")
        self.tree = ast.parse(text)
        self.imports = {each.bound: each for each in imports_of(self.tree.body)}
        self.definitions = [node for node in self.tree.body if isinstance(node, Definition)]

    def class_named(self, name: str) -> ast.ClassDef | None:
        """Return the class of this name, or `None` if there is none."""
        classes = (node for node in self.definitions if isinstance(node, ast.ClassDef) and node.name == name)
        return next(classes, None)

    def text_of(self, node: Definition) -> str:
        """Return a definition with its decorators and the comments above it."""
        first = first_line(node)
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first - 1 : node.end_lineno])


def first_line(node: ast.stmt) -> int:
    """Return the line in which a statement begins, with its decorators."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.lineno


class LearnerText(PythonText):
    """The learner's file of a lab."""

    def __init__(self, file: Path) -> None:
        """Read the file, which has been loaded before."""
        super().__init__(file.read_text(encoding="utf-8"))

    def excerpt(self, text: str, name: str, line: int, borrowable: Collection[str]) -> Excerpt:
        """Return a class with the definitions and imports that it uses.

        Args:
            text: the class, as it will be in vLLM.
            name: its name there.
            line: its line in the file.
            borrowable: what vLLM has under the same name as mini_kv.

        Raises `NotPortableError` if something that it uses cannot be moved.
        """
        texts, defined, used = {line: text}, {name}, set[str]()
        waiting = global_names(text)
        while waiting:
            used |= waiting
            found = [each for each in self.definitions if names_defined(each) & waiting and each.lineno not in texts]
            texts |= {each.lineno: self.text_of(each) for each in found}
            defined |= {name for each in found for name in names_defined(each)}
            waiting = {name for each in found for name in global_names(texts[each.lineno])} - used
        imports = {self.imports[name] for name in used & self.imports.keys()}
        for missing in sorted(used - defined - self.imports.keys() - BUILTINS):
            raise NotPortableError(f"it uses {missing}, which is not defined or imported at the top level of your file")
        borrowed = {each for each in imports if not each.is_standard}
        for each in sorted(borrowed, key=str):
            _check_borrowed(each, borrowable)
        self._check_other_imports(texts.values())
        return Excerpt(
            [texts[line] for line in sorted(texts)],
            frozenset(defined),
            frozenset(imports - borrowed),
            frozenset(each.name for each in borrowed),
        )

    def _check_other_imports(self, texts: Iterable[str]) -> None:
        """Raise if there are imports that cannot be moved by name."""
        if any(each.module == "__future__" for each in self.imports.values()):
            raise NotPortableError("`from __future__` would hold for all of vLLM's file: remove it")
        for each in (found for text in texts for found in imports_of(ast.walk(ast.parse(text)))):
            if not each.is_standard:
                raise NotPortableError(f"`{each}` is inside a function: move it to the top of your file")


def _check_borrowed(imported: Import, borrowable: Collection[str]) -> None:
    """Raise unless vLLM has this name of mini_kv's."""
    if imported.name == "todo":
        raise NotPortableError("a function that it uses is still TODO")
    if not imported.module.startswith("mini_kv") or imported.name not in borrowable:
        raise NotPortableError(f"it needs `{imported}`, for which vLLM has no counterpart")
    if imported.bound != imported.name:
        raise NotPortableError(f"it renames {imported.name}: import it under its own name")
