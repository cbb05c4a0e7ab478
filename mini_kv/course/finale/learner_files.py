"""Finds the parts that the labs declare in the learner's files: finished ones, and why others cannot be used."""

import ast
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_kv.course.finale.steps import STEP_LIMIT_S
from mini_kv.course.labkit.implementation import (
    Implementation,
    ImplementationError,
    LoadError,
    get_class,
    get_function,
    resolve,
)
from mini_kv.course.labkit.lab import NOT_FOR, Lab, LabPart
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError, time_limit


@dataclass(frozen=True, slots=True)
class Found:
    """A part, and its definition in the learner's file."""

    part: LabPart
    value: Any = None
    """The class (of a method, too) or function, or `None` if the engine's own is used."""
    source: str = ""
    """Path of the learner's file."""
    line: int = 1
    """The line in which its definition begins."""
    why: str = ""
    """The reason why it is not used."""

    @property
    def place(self) -> str:
        """File and line of the definition."""
        return f"{short(self.source)}:{self.line}"


def find_parts(
    choice: str,
    labs: Sequence[Lab],
    invocation_dir: Path,
    model: str,
    limit: float = STEP_LIMIT_S,
    in_finale: bool = False,
) -> list[Found]:
    """Return every part found in the learner's files. An error in a file is stored, not raised.

    Args:
        choice: `starter`, `solution` or a folder, as in LAB_IMPL.
        labs: all labs.
        invocation_dir: base of a relative path.
        model: the kind of model that is to run, a key of `NOT_FOR`.
        limit: seconds in which a file must be loaded.
        in_finale: whether the parts that only the finale uses count.
    """
    found: list[Found] = []
    for lab in labs:
        wanted = any(not why_not(part, model, in_finale) for part in lab.parts)
        file = LabFile(lab, choice, len(labs), invocation_dir, limit) if wanted else None
        for part in lab.parts:
            why = why_not(part, model, in_finale)
            found.append(Found(part, why=why) if why or file is None else file.find(part))
    return found


def why_not(part: LabPart, model: str, in_finale: bool = False) -> str:
    """Return the reason why the part is not used with this kind of model, or an empty string."""
    usable = ("", model, "finale") if in_finale else ("", model)
    return part.never or (NOT_FOR[part.only_for] if part.only_for not in usable else "")


def own_parts(found: Iterable[Found]) -> OwnParts:
    """Return the values of these parts, each in the place that its `lab.toml` names."""
    return OwnParts(**{each.part.goes_to: each.value for each in found if each.value is not None})


def by_name(found: Iterable[Found]) -> dict[str, Found]:
    """Return the parts that are used, by name."""
    return {str(each.part): each for each in found if each.value is not None}


class LabFile:
    """The learner's file of one lab, loaded as far as possible."""

    def __init__(self, lab: Lab, choice: str, num_labs: int, invocation_dir: Path, limit: float) -> None:
        """Load the file. If that fails, store the reason."""
        self.lab = lab
        self.source = self.problem = ""
        self.module: ModuleType | None = None
        self.todo: set[str] = set()
        """Functions and methods that still raise TODO."""
        self.lines: dict[str, int] = {}
        """First line of each function, class and method."""
        try:
            implementation = resolve(choice, lab, num_labs, invocation_dir)
        except ImplementationError as error:
            there_are_none = f"there is no {lab.lab_id}.py and no {lab.lab_id}/starter.py"
            self.problem = str(error).splitlines()[0] if choice == "solution" else there_are_none
            return
        self.source = implementation.source
        if lab.missing is not None:
            self.problem = lab.missing
            return
        try:
            self._read_and_load(implementation, limit)
        except SyntaxError as error:
            self.problem = f"{type(error).__name__} in line {error.lineno}: {error.msg}"
        except TookTooLongError:
            self.problem = f"loading the file takes longer than {limit} s"
        except (Exception, SystemExit) as error:
            line = last_line(error, {self.source})
            self.problem = f"{type(error).__name__}{f' in line {line[1]}' if line else ''}: {error}"

    def _read_and_load(self, implementation: Implementation, limit: float) -> None:
        text = Path(self.source).read_text(encoding="utf-8")
        starter = self.lab.pristine_starter  # the page has none: it sends no text that nobody has changed
        if starter.is_file() and text == starter.read_text(encoding="utf-8"):
            self.todo.update(function.name for function in self.lab.functions)
        tree = ast.parse(text, self.source)
        for node in tree.body:
            self._note(node, "")
        with time_limit(limit, limit), self.lab.loading():
            self.module = implementation.load()

    def _note(self, node: ast.stmt, owner: str) -> None:
        match node:
            case ast.ClassDef():
                self.lines[node.name] = node.lineno
                for statement in node.body:
                    self._note(statement, f"{node.name}.")
            case ast.FunctionDef():
                self.lines[owner + node.name] = node.lineno
                calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
                if any(isinstance(function, ast.Name) and function.id == "todo" for function in calls):
                    self.todo.add(owner + node.name)

    def find(self, part: LabPart) -> Found:
        """Return the part, with the reason if it cannot be used."""
        if self.module is None:
            return Found(part, source=self.source, why=self.problem)
        unfinished = [name for name in (part.name, *part.needs) if name in self.todo]
        if unfinished:
            name = self.lab.short_name(unfinished[0])
            return Found(
                part,
                source=self.source,
                line=self.lines[unfinished[0]],
                why="still TODO" if name == part.name else f"{name}: still TODO",
            )
        functions = [function for function in self.lab.functions if function.name in (part.name, *part.needs)]
        methods = [function for function in functions if "." in function.name]
        try:
            if methods:
                value: object = get_class(self.module, methods, part.name.partition(".")[0], self.source)
            else:
                for function in functions:  # those that it calls, too
                    get_function(self.module, function, self.source)
                value = getattr(self.module, part.name)
        except LoadError as error:
            return Found(part, source=self.source, why=str(error))
        return Found(part, value, self.source, self.lines.get(part.name, 1))


def last_line(error: BaseException, sources: set[str]) -> tuple[str, int, str] | None:
    """Return the innermost line of these files that was running: file, line and text, or `None` if none was."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in sources:
            return frame.filename, frame.lineno or 0, frame.line or ""
    return None


def short(path: str) -> str:
    """Return the path for typing: relative if it is below the working directory."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path
