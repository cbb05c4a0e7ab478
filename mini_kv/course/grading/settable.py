"""Which attributes a hand-in may set: fields of the engine's objects and of its own classes, and never a method.

A method that is replaced on a class or an object of others can change a test's verdict. The replacement can be taken
back before the end, so that the judge does not see it.
"""

import ast
import importlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType

HERE = Path(__file__).parents[2]
ENGINE = ("core", "story")
"""Packages whose objects the tests pass to every hand-in. Their methods may not be set."""


class Settable:
    """The names of attributes that one file may set."""

    def __init__(self, nodes: Sequence[ast.AST], imported: Iterable[tuple[str, str]], data: Iterable[str]) -> None:
        """Read the file's classes.

        Args:
            nodes: of the file.
            imported: module and name of each class or function that it imports from the standard library. These
                modules are imported here, so they must be harmless.
            data: modules of the engine whose objects have fields for all.
        """
        own = {name for node in nodes if isinstance(node, ast.ClassDef) for name in _fields(node)}
        methods = _methods_of_the_engine()
        fields = {name for module in data for name in _fields_of(module)}
        self._of_imports = {method for module, name in imported for method in _methods_of(module, name)}
        self._of_others = fields | (own - methods) - self._of_imports

    def allows(self, target: ast.Attribute) -> bool:
        """Return whether this attribute may be set, on `self` or on another object."""
        if isinstance(target.value, ast.Name) and target.value.id == "self":
            return target.attr not in self._of_imports
        return target.attr in self._of_others


@lru_cache
def _methods_of_the_engine() -> frozenset[str]:
    """Return the names of all methods of the engine's classes."""
    classes = [owner for package in ENGINE for file in (HERE / package).rglob("*.py") for owner in _classes(file)]
    return frozenset(node.name for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef))


@lru_cache
def _fields_of(module: str) -> frozenset[str]:
    """Return the fields of the classes in a module of mini_kv."""
    file = file_of(module)
    return frozenset(name for owner in (_classes(file) if file is not None else ()) for name in _fields(owner))


def file_of(module: str) -> Path | None:
    """Return the file of a module of mini_kv, or `None` if it is not one."""
    path = HERE.parent / module.replace(".", "/")
    if module.partition(".")[0] != "mini_kv" or not module.replace(".", "").isidentifier():
        return None
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _classes(file: Path) -> Iterable[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.ClassDef)]


def _fields(owner: ast.ClassDef) -> Iterable[str]:
    """Yield the names that a class defines in its body, and those that its methods set on `self`."""
    for node in owner.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
    for inner in ast.walk(owner):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _methods_of(module: str, name: str) -> Iterable[str]:
    """Return the methods of a class of the standard library that are Python functions: others cannot be replaced."""
    found = getattr(importlib.import_module(module), name, None)
    return (
        [key for key, value in vars(found).items() if isinstance(value, FunctionType)]
        if isinstance(found, type)
        else []
    )
