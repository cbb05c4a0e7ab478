"""What a lab is: a folder `labs/lab-NN` with a `lab.toml` that says the rest."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

NEEDS = {
    "C": "the standard library and pytest",
    "T": "PyTorch, on a CPU",
    "K": "Triton, interpreted or on a GPU",
}
"""What a lab can ask of the machine."""


@dataclass(frozen=True, slots=True)
class LabFunction:
    """A function that the learner writes."""

    name: str
    signature: str
    """As the tests call it, such as `prefill(kv, token_ids, request_id)`."""
    minutes: int
    vllm: str
    """Where the same is done upstream: symbol and file."""


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
    """What full marks are."""
    functions: tuple[LabFunction, ...]
    engine: str | None
    """Module of the engine that has the same functions; `None` if none has."""

    @property
    def starter(self) -> Path:
        """The learner's file."""
        return self.folder / "starter.py"

    @property
    def solutions(self) -> Path:
        """Folder of the reference solution; absent in a student edition."""
        return self.folder.parent.parent / "solutions" / self.lab_id


def load_lab(folder: Path) -> Lab:
    """Return the lab in `folder`. Raises `ValueError` that names the file for a `lab.toml` that is wrong."""
    file = folder / "lab.toml"
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        values["functions"] = tuple(LabFunction(**function) for function in values.pop("function"))
        values["prerequisites"] = tuple(values["prerequisites"])
        return Lab(lab_id=folder.name, folder=folder, engine=values.pop("engine", None), **values)
    except (OSError, TypeError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{file}: {error}") from error


def is_lab_test(path: Path) -> bool:
    """Return whether the test file belongs to a lab."""
    return path.parent.parent.name == "labs" and (path.parent / "lab.toml").is_file()
