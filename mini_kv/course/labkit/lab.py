"""A lab: a folder `labs/lab-NN`, or `lab-NN-further` for its continuation, with a `lab.toml`."""

import ast
import importlib.util
import os
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.installer import install
from mini_kv.messages import choices, did_you_mean, shown

Entry = TypeVar("Entry")

NEEDS = {
    "C": "the standard library and pytest",
    "T": "PyTorch, on a CPU",
    "K": "Triton, interpreted or on a GPU",
}
"""The levels of requirements that a lab can declare, by the letter in its `lab.toml`."""
PACKED_LABS = Path(__file__).with_name("labs.zip")
"""The labs, in an installed wheel: `mini-kv labs` writes them."""
PACKAGES = {"C": (), "T": ("torch",), "K": ("torch", "triton", "numpy")}
"""Packages that each level needs."""


@dataclass(frozen=True, slots=True)
class LabFunction:
    """A function that the learner writes."""

    name: str
    signature: str
    """The call in the tests, such as `prefill(kv, token_ids, request_id)`."""
    minutes: int
    vllm: str
    """Symbol and file of the equivalent in vLLM."""
    hints: tuple[str, ...] = ()
    """Three, each plainer: a question, the idea, the step in words."""
    also: tuple[str, ...] = ()
    """Other names under which a learner may ask for the hints."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question that the learner answers before running the lab."""

    id: str
    test: str
    """The test that shows the answer."""
    ask: str
    answer: str
    why: str
    wrong: dict[str, str] = field(default_factory=dict)
    """By wrong answer, the condition under which it would be right."""


_PLACES = tuple(place.name for place in fields(OwnParts))
NOT_FOR = {
    "one group": "it gives slots to one group of layers, and this model has several",
    "windows": "not needed by this model: no layer has a window (add --windows)",
    "finale": "used by mini-kv finale alone",
}
"""Requirements of a part on the model, each with the reason why it is not used with another model."""


@dataclass(frozen=True, slots=True)
class LabPart:
    """A class, method or function of a lab that the engine can use in place of its own, or the reason why it cannot."""

    lab_id: str
    name: str
    goes_to: str = ""
    """The place in the engine: a field of `OwnParts`."""
    methods: tuple[str, ...] = ()
    """Methods that must be finished, if it is a class."""
    calls: tuple[str, ...] = ()
    """Functions of the same file that it calls, and that must be finished."""
    never: str = ""
    """Why the engine does not take it, if it has no place."""
    only_for: str = ""
    """The required kind of model, a key of `NOT_FOR`. Empty: any."""

    def __post_init__(self) -> None:
        if bool(self.goes_to) == bool(self.never):
            raise ValueError("it needs goes_to, or never with the reason, and not both")
        if self.goes_to and self.goes_to not in _PLACES:
            raise ValueError(f"goes_to is {self.goes_to!r}: {choices(self.goes_to, _PLACES)}")
        if self.only_for and self.only_for not in NOT_FOR:
            raise ValueError(f"only_for is {self.only_for!r}: there are {', '.join(NOT_FOR)}")

    def __str__(self) -> str:
        return f"{self.lab_id} {self.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the methods and functions that must be finished before the engine uses this part."""
        return (*(f"{self.name}.{method}" for method in self.methods), *self.calls)


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab."""

    lab_id: str
    """Name of its folder, such as `lab-05`."""
    folder: Path
    title: str
    minutes: int
    difficulty: int
    needs: str
    """A key of `NEEDS`."""
    prerequisites: tuple[str, ...]
    points: int
    """Points of all tests together."""
    functions: tuple[LabFunction, ...]
    lesson: str = ""
    """The lesson of the lab in a sentence, shown after full marks."""
    question: str = ""
    """A further question, asked after full marks."""
    engine: str | None = None
    """Module of the engine that has the same functions, or `None` if none has."""
    parts: tuple[LabPart, ...] = ()
    """The lab's classes and functions that the engine can use in place of its own."""
    predictions: tuple[Prediction, ...] = ()
    chapter: str = ""
    """The book's chapter that it belongs to: a file's name without its suffix."""
    says: str = ""
    """One sentence for the list of the labs."""
    picture: str = ""
    """A scenario's name and a step, for the list. Empty: the chapter's picture."""
    questions: str = ""
    """The maker of its questions about the learner's own run, or nothing."""
    loaded_in: str = ""
    """`module:function` of the context in which the learner's file is loaded, or nothing."""
    audited_in: str = ""
    """`module:function` of the context around an audit, or nothing."""
    second_part: str = ""
    """The lab that is its part 2, or nothing. Its tests run after this lab's as soon as its starter is begun."""

    def short_name(self, function: str) -> str:
        """Return the function's name without its class, unless two classes of the lab have that name."""
        short = function.rpartition(".")[2]
        alike = [other for other in self.functions if other.name.rpartition(".")[2] == short]
        return short if len(alike) < 2 else function

    def loading(self) -> AbstractContextManager[None]:
        """Return the context in which the learner's file is loaded."""
        return _context(self.loaded_in)

    def auditing(self) -> AbstractContextManager[None]:
        """Return the context around an audit of the lab."""
        return _context(self.audited_in)

    @property
    def is_further(self) -> bool:
        """Whether it continues the lab of its number. It is graded like any, but not counted among the labs."""
        return self.lab_id.count("-") > 1

    @property
    def root(self) -> Path:
        """The repository."""
        return self.folder.parent.parent

    @property
    def state(self) -> Path:
        """Folder of the learner's state. It may be missing."""
        return self.root / ".mini_kv"

    @property
    def missing(self) -> str | None:
        """The missing packages and the command that installs them, or `None` if none is missing."""
        missing = [package for package in PACKAGES[self.needs] if importlib.util.find_spec(package) is None]
        if not missing:
            return None
        get = [install("torch --index-url https://download.pytorch.org/whl/cpu")] if "torch" in missing else []
        if missing != ["torch"]:
            get.append(f"{install('triton numpy')} (on Linux; elsewhere use WSL or Colab)")
        return f"{self.lab_id} needs {NEEDS[self.needs]}: {', then '.join(get)}"

    @property
    def starter(self) -> Path:
        """The learner's file."""
        return self.folder / "starter.py"

    @property
    def pristine_starter(self) -> Path:
        """The course's starter, independent of the learner's `starter.py`."""
        return Path(__file__).parent / "starters" / f"{self.lab_id}.txt"

    @property
    def is_begun(self) -> bool:
        """Whether the learner's file exists and differs from the course's starter."""
        return self.starter.is_file() and self.starter.read_bytes() != self.pristine_starter.read_bytes()

    def lacking(self) -> list[str]:
        """Return the functions to write whose names are missing in the learner's file, or none if it is unreadable."""
        try:
            text = self.starter.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return []
        return [f.name for f in self.functions if not re.search(rf"\b{f.name.rpartition('.')[2]}\b", text)]

    def contract(self) -> tuple[str, ...]:
        """Return the numbered sentences under the README's heading "The contract", without the marks of Markdown.

        A sentence may go on in indented lines. Nothing if there is no README.
        """
        file = self.folder / "README.md"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        _, _, section = text.partition(" The contract\n")
        section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
        items = re.findall(r"^\d+\. (.+(?:\n   +.+)*)", section, re.MULTILINE)
        return tuple(re.sub(r"(?<!\w)\*\*(.+?)\*\*(?!\w)", r"\1", " ".join(item.split())) for item in items)

    def tests(self) -> list[str]:
        """Return the names of the lab's tests in order."""
        return tests_in((self.folder / "test_lab.py").read_text(encoding="utf-8"))

    @property
    def solutions(self) -> Path:
        """Folder of the reference solution; absent in a student edition."""
        return self.root / "solutions" / self.lab_id


def _context(name: str) -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = pkgutil.resolve_name(name)() if name else nullcontext()
    return context


def load_lab(folder: Path) -> Lab:
    """Return the lab in `folder`. Raises `ValueError` for an invalid `lab.toml`, with the file and the entry."""
    file = folder / "lab.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        functions = _entries(LabFunction, values, "function")
        parts = _entries(LabPart, values, "part", lab_id=folder.name)
        predictions = _entries(Prediction, values, "prediction")
        lists = {"functions": functions, "parts": parts, "predictions": predictions}
        lab = _entry(Lab, values, "", lab_id=folder.name, folder=folder, **lists)
        if not functions:
            raise ValueError("there is no [[function]]: list what the learner writes")
        if lab.needs not in NEEDS:
            raise ValueError(f"needs is {lab.needs!r}: there are {', '.join(NEEDS)}")
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error
    return lab


def _entries(kind: type[Entry], values: dict[str, Any], name: str, **given: Any) -> tuple[Entry, ...]:
    """Take the tables of this name out of the file's values. Return an entry for each."""
    tables = values.pop(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{name} must be written [[{name}]]")
    titles = [table.get("name", table.get("id", number)) for number, table in enumerate(tables, 1)]
    return tuple(_entry(kind, table, f"{name} {title}: ", **given) for table, title in zip(tables, titles, strict=True))


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    int: ("a whole number, at least 1", lambda value: type(value) is int and value >= 1),
    tuple[str, ...]: ("a list of texts", lambda value: isinstance(value, list) and _are_texts(value)),
    dict[str, str]: ("a table of texts", lambda value: isinstance(value, dict) and _are_texts(value.values())),
}
_KINDS[str | None] = _KINDS[str]
"""The types of the entries' fields: how an error calls each, and whether a value of the file fits."""


def _entry(kind: type[Entry], values: dict[str, Any], where: str, **given: Any) -> Entry:
    """Return an entry of these values. Raises `ValueError`, which begins with `where`, for a wrong key or type."""
    known = {place.name: place for place in fields(kind) if place.name not in given}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"{where}there is no key {name!r}. {did_you_mean(name, list(known))}".rstrip())
    for name, place in known.items():
        is_optional = place.default is not MISSING or place.default_factory is not MISSING
        if name not in values and not is_optional:
            raise ValueError(f"{where}{name} is missing")
        words, fits = _KINDS[place.type]
        if name in values and not fits(values[name]):
            raise ValueError(f"{where}{name} must be {words}")
    taken = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return kind(**taken, **given)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


class UnknownLabError(ValueError):
    """The lab or the course's checkout does not exist. For a lab the message lists the existing labs."""


def find_checkout(start: Path) -> Path:
    """Return the nearest folder from `start` upwards that contains labs.

    Raises `UnknownLabError` if there is none. The message has the path of this mini_kv's checkout, if it has one, or
    the command that writes the labs.
    """
    for folder in (start, *start.parents):
        if _lab_files(folder):
            return folder
    own = Path(__file__).parents[3]
    here = "`mini-kv labs FOLDER` writes them" if PACKED_LABS.is_file() else "call this in a clone of the repository"
    where = f"call this in {own}" if _lab_files(own) else here
    raise UnknownLabError(f"there are no labs in {start} or above it: {where}")


def find_lab(name: str, start: Path) -> Lab:
    """Return the lab called `5`, `05`, `lab-05` or `5-further`, near `start`. Raises `UnknownLabError`."""
    labs = all_labs(find_checkout(start))
    number, dash, further = name.removeprefix("lab-").partition("-")
    for lab in labs:
        if lab.lab_id == f"lab-{number.rjust(2, '0')}{dash}{further}":
            return lab
    raise UnknownLabError(f"no lab {shown(name)}; {choices(name, [lab.lab_id for lab in labs], 'mini-kv status')}")


def all_labs(root: Path) -> list[Lab]:
    """Return the labs of the checkout in order."""
    return [load_lab(file.parent) for file in _lab_files(root)]


def _lab_files(root: Path) -> list[Path]:
    return sorted(root.glob("labs/lab-*/lab.toml"), key=lambda file: place_of(file.parent.name))


def place_of(lab_id: str) -> tuple[str, bool, str]:
    """Return a key that sorts labs by number. Examples are before their lab, further parts after it."""
    return lab_id[: len("lab-00")], not lab_id.endswith("-examples"), lab_id


def relative(path: str | Path, start: str | Path = ".") -> str:
    """Return the path relative to `start`, or the path itself if it is on another drive of Windows."""
    try:
        return os.path.relpath(path, start)
    except ValueError:
        return str(path)


def run_command(lab: Lab) -> str:
    """Return the command that runs the learner's own file, in the syntax of this machine's shell."""
    folder = relative(lab.folder)
    return f'$env:LAB_IMPL="starter"; pytest {folder}' if os.name == "nt" else f"LAB_IMPL=starter pytest {folder}"


def tests_in(text: str) -> list[str]:
    """Return the names of the tests in a test file in order. A case of a parametrized test has its id as its name."""
    names: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            cases = [one for one in node.decorator_list if "parametrize" in ast.unparse(one).partition("(")[0]]
            inside = [part.value for case in cases for part in ast.walk(case) if isinstance(part, ast.Constant)]
            ids = [text for text in inside if isinstance(text, str) and text.startswith("test_")]
            names += ids if cases else [node.name]
    return list(dict.fromkeys(names))  # `after=` in a case repeats an earlier name


def is_lab_test(path: Path) -> bool:
    """Return whether the test file belongs to a lab."""
    return path.parent.parent.name == "labs" and (path.parent / "lab.toml").is_file()
