"""What can be wrong with a model's files."""

import json
from pathlib import Path
from typing import Any

from mini_kv.core.errors import KVCacheError


class CheckpointError(KVCacheError, ValueError):
    """A file of a checkpoint is missing, damaged, or asks for what this model does not have."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file with settings. Raises `CheckpointError` if it is missing or holds something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(path, "there is no such file, and without it nobody knows the model's sizes") from None
    except ValueError as error:
        raise CheckpointError(path, f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(path, f"is not an object with settings, but {type(data).__name__}")
    return data
