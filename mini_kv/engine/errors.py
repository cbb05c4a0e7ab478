"""The error of a model's files."""

from pathlib import Path

from mini_kv.core.errors import KVCacheError

LONGEST = 600
"""The most characters of a message, because names and values in a file may have any length."""


class CheckpointError(KVCacheError, ValueError):
    """A file of a checkpoint is missing, damaged, or needs a feature that this model does not have.

    The message is one line that any terminal can show, for any names and values in the file.
    """

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{_one_line(str(path))}: {_one_line(message)}")
        self.path = path


def _one_line(text: str) -> str:
    r"""Return the text in one line, without control characters, and cut if it is too long.

    >>> _one_line("a tensor \x1b[2J of\n two lines")
    'a tensor ?[2J of two lines'
    """
    text = " ".join(text[: 2 * LONGEST].split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."
