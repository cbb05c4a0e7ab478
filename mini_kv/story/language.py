"""The figure's words by language, and stories told in another language than English.

`languages/en.json` and `languages/zh.json` hold the words of figure and still. The script contains the same files.
`zh_story.json` holds the words of the engine's own lines: the calls, and their effects on blocks.

    words("zh")["free"]             # '空闲队列'
    line_in("zh", "prefill B")      # '预填充 B'
"""

import json
import re
from functools import cache
from importlib import resources
from typing import Any


@cache
def words(lang: str) -> dict[str, Any]:
    """Return the words of the figure. Raises `FileNotFoundError` for a language without a file."""
    return _read(lang)


def fill(text: str, *values: object) -> str:
    """Put values for `{0}`, `{1}` into a text, as the script does."""
    return text.format(*values)


def line_in(lang: str, line: str) -> str:
    """Return a line of a story, or the name of a step, in this language, translated word by word."""
    if lang == "en":
        return line
    known: dict[str, str] = _read(f"{lang}_story")["line"] | words(lang)["kinds"]
    pattern = "|".join(sorted(known, key=len, reverse=True))  # the longer first: "nothing changed"
    return re.sub(rf"[:,] |\b(?:{pattern})\b", lambda found: known[found[0]], line)


@cache
def _read(name: str) -> dict[str, Any]:
    path = resources.files("mini_kv.story").joinpath("languages", f"{name}.json")
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read
