"""A checkpoint's files of JSON, read as input from others, which may be damaged, or made to do harm.

An ordinary file, not too large, UTF-8, JSON that means one thing only, an object; or else one sentence that says what
it is instead. A link may leave the checkpoint's folder: Hugging Face's cache consists of links to files that are named
by their content. A name that stands in a file may not: its author knows nothing of the folders around it.

Standard library only.
"""

import json
import stat
from pathlib import Path
from typing import Any

from mini_kv import strict_json
from mini_kv.engine.errors import CheckpointError

_MAX_CONFIG_BYTES = 1 << 20
"""Largest file with settings; published ones have a few KiB."""
MAX_INDEX_BYTES = 16 << 20
"""Largest index of a checkpoint that lies in several files."""
MAX_TOKENIZER_BYTES = 64 << 20
"""Largest tokenizer; that of Gemma 3, with 262,144 tokens, has 33 MB."""


def read_json(
    path: Path, max_bytes: int = _MAX_CONFIG_BYTES, *, needed_for: str = "the model's sizes"
) -> dict[str, Any]:
    """Return the object in a file with settings. Raises `CheckpointError` if it is missing or holds something else."""
    check_file(path, max_bytes, needed_for=needed_for)
    try:
        data = strict_json.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(path, f"is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(path, f"is not JSON: {error}") from None
    except ValueError as error:
        raise CheckpointError(path, f"is not JSON that can be read: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(path, f"is not an object with settings, but {type(data).__name__}")
    return data


def check_file(path: Path, max_bytes: int, *, needed_for: str) -> None:
    """Raise `CheckpointError` for a file that is missing, too large, or no file: a pipe could be read for ever."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(path, f"there is no such file, and {needed_for} are read from it") from None
    except (OSError, ValueError) as error:  # Python's words for a NUL in a path are a ValueError
        raise CheckpointError(path, f"cannot be read: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(path, "is no ordinary file")
    if status.st_size > max_bytes:
        raise CheckpointError(path, f"has {status.st_size:,} bytes, and a file of its kind has at most {max_bytes:,}")
