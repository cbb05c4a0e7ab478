"""LAB_IMPL: the code that the tests run.

solution      the reference. It is the default, but in a student's tree that is an error
starter       the learner's file, labs/lab-NN/starter.py
engine        the same functions in mini_kv itself, if it has them
PATH.py       one file, for one lab
FOLDER        holds lab-NN.py, or lab-NN/starter.py, for any number of labs
some.module   a module that Python can import
"""

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_kv.course.labkit.lab import Lab, LabFunction, run_command
from mini_kv.messages import shown

_KEYWORDS = ("solution", "starter", "engine")


class ImplementationError(Exception):
    """LAB_IMPL names no code that can run: a usage error, in two lines."""


class LoadError(Exception):
    """The code exists but cannot be loaded, or lacks a function. The message is for its author."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """The code that runs in one lab: the learner's, the solution's or the engine's."""

    lab: Lab
    choice: str
    """The value of LAB_IMPL."""
    source: str
    """Path of the file, or name of the module."""
    load: Callable[[], ModuleType]

    @property
    def file(self) -> str:
        """Path of the code, as in a traceback."""
        module = sys.modules.get(self.source)
        return (module.__file__ if module is not None else None) or self.source

    @property
    def is_reference(self) -> bool:
        """Whether this is the project's own solution and not a learner's work."""
        return self.choice == "solution"


def check_choice(choice: str, invocation_dir: Path) -> None:
    """Raise `ImplementationError` unless the value of LAB_IMPL is valid."""
    path = str(invocation_dir / choice)  # os.path says no to a path that cannot be one; Path raises
    if choice in _KEYWORDS or os.path.isdir(path) or (path.endswith(".py") and os.path.isfile(path)):
        return
    if _module_exists(choice):
        return
    raise ImplementationError(
        f"LAB_IMPL={shown(choice)} is not a keyword, a file, a folder or a module.\n{_advice(choice)}"
    )


def _advice(choice: str) -> str:
    near = difflib.get_close_matches(choice[:60], _KEYWORDS, n=1)
    if near:
        return f"Did you mean LAB_IMPL={near[0]}?"
    return f"Choose {', '.join(_KEYWORDS)}, a .py file, a folder or a module."


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    except Exception:  # its package is there but breaks; the tests will say how
        return True


def resolve(choice: str, lab: Lab, num_labs: int, invocation_dir: Path) -> Implementation:
    """Return the code to run for this lab. Raises `ImplementationError` if this lab has no such code.

    Args:
        choice: the value of LAB_IMPL, accepted by `check_choice`.
        lab: the lab.
        num_labs: number of labs in this run. A single file fits only one.
        invocation_dir: base of a relative path.
    """
    if choice == "solution":
        file = lab.solutions / "solution.py"
        if not file.is_file():
            raise ImplementationError(
                f"{lab.lab_id}: LAB_IMPL does not name your code, and this edition comes without solutions.\n"
                f"Run your own code: {run_command(lab)}"
            )
        return _from_file(lab, choice, file)
    if choice == "starter":
        return _from_file(lab, choice, lab.starter)
    if choice == "engine":
        if lab.engine is None:
            raise ImplementationError(
                f"{lab.lab_id}: the engine has no counterpart of this lab.\nChoose solution or starter."
            )
        return _from_module(lab, choice, lab.engine)
    path = invocation_dir / choice
    if path.is_dir():
        files = [path / f"{lab.lab_id}.py", path / lab.lab_id / "starter.py"]
        found = [file for file in files if file.is_file()]
        if not found:
            raise ImplementationError(
                f"LAB_IMPL={choice!r} has no file for {lab.lab_id}.\n"
                f"It must contain {lab.lab_id}.py or {lab.lab_id}/starter.py."
            )
        return _from_file(lab, choice, found[0])
    if path.is_file():
        if num_labs > 1:
            raise ImplementationError(
                f"LAB_IMPL={choice!r} is one file, but {num_labs} labs are to run.\nName one: pytest labs/lab-05"
            )
        return _from_file(lab, choice, path)
    return _from_module(lab, choice, choice)


def _from_file(lab: Lab, choice: str, file: Path) -> Implementation:
    return Implementation(lab, choice, str(file.resolve()), lambda: load_file(file.resolve()))


def _from_module(lab: Lab, choice: str, name: str) -> Implementation:
    return Implementation(lab, choice, name, lambda: importlib.import_module(name))


def load_file(file: Path) -> ModuleType:
    """Return the file as a module, under a name made from its path. Two files called starter.py are two modules.

    Raises `LoadError` if it contains null bytes, as text in UTF-16 does.
    """
    if b"\0" in file.read_bytes():
        raise LoadError(f"{file.name} is not UTF-8 text (perhaps UTF-16): save it again, with the encoding UTF-8")
    name = f"mini_kv_lab_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its own module up while it is being made
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def get_function(module: ModuleType, function: LabFunction, source: str) -> Callable[..., Any]:
    """Return the learner's function. Raises `LoadError`, in one line, if it is missing."""
    found = getattr(module, function.name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise LoadError(f"{Path(source).name} has no function {function.signature}{_renamed(module, function.name)}")


def get_class(module: ModuleType, methods: Sequence[LabFunction], name: str, source: str) -> type:
    """Return the learner's class. Raises `LoadError`, in one line, if it or one of these methods is missing."""
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise LoadError(f"{Path(source).name} has no class {name}{_renamed(module, name)}")
    for method in methods:
        attribute = method.name.partition(".")[2]
        if not hasattr(found, attribute):
            raise LoadError(f"{name} has no method {method.signature}{_renamed(found, attribute)}")
    return found


def _renamed(owner: object, name: str) -> str:
    own = [other for other, value in vars(owner).items() if callable(value) and not other.startswith("__")]
    near = difflib.get_close_matches(name, own, n=1)
    return f"; did you rename it? There is {near[0]}" if near else ""
