"""The table of vLLM's settings. Their effects are described here, their defaults are recorded from vLLM."""

import tomllib
from pathlib import Path

from mini_kv_book.upstream import default

DATA = Path(__file__).parents[1] / "data" / "serving_options.toml"


def options() -> list[dict[str, str]]:
    """Return the settings: `setting`, `flag`, `group`, what it `does`, `when` to touch it, and a `default` in words."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return [option | {"group": group} for group, members in data.items() for option in members]


def as_markdown(group: str) -> str:
    """Return the table of one group. Raises `ValueError` if there is no such group."""
    members = [option for option in options() if option["group"] == group]
    if not members:
        raise ValueError(f"there is no group of options {group!r}")
    lines = ["| option | default | what it does | when to touch it |", "|---|---|---|---|"]
    for option in members:
        recorded = default(option["setting"]).strip("'\"")
        value = option.get("default", f"`{recorded}`")
        lines.append(f"| `{option['flag']}` | {value} | {option['does']} | {option['when']} |")
    return "\n".join(lines)
