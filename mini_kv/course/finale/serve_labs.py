"""The learner's parts for `mini-kv serve --labs PATH`. The command passes them to the server's engine."""

import os
from pathlib import Path
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.course.finale.assembly import seams
from mini_kv.course.finale.command import table
from mini_kv.course.finale.learner_files import find_parts, own_parts
from mini_kv.course.labkit.lab import UnknownLabError, all_labs, find_checkout
from mini_kv.messages import shown


def parts_of_labs(choice: str, has_windows: bool) -> tuple[list[str], dict[str, Any]]:
    """Return the table with the owner of each part, and the arguments of an `LLMEngine` with these parts.

    The parts fit the small model, which has one group of layers. With `has_windows` they fit its variant with windows.

    Raises `ConfigError` if there are no labs, or if `choice` does not exist.
    """
    if choice not in ("starter", "solution") and not os.path.isdir(choice):
        raise ConfigError(f"--labs {shown(choice)}: it is neither starter nor solution, and there is no such folder")
    try:
        root = find_checkout(Path.cwd())
    except UnknownLabError as error:
        raise ConfigError(str(error)) from None
    found = find_parts(choice, all_labs(root), Path.cwd(), "windows" if has_windows else "one group")
    return table(found, "solution" if choice == "solution" else "yours"), seams(own_parts(found))
