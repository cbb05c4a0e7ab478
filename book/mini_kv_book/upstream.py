"""vLLM's recorded names and defaults, for checks of the pages' statements about vLLM without vLLM."""

import json
from functools import cache
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[1] / "data" / "vllm-0.33.json"


@cache
def recording() -> dict[str, Any]:
    """Return the recording of `record_vllm`."""
    recorded: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return recorded


def default(setting: str) -> str:
    """Return the default of `Class.setting`, as in vLLM's source. Raises `KeyError` for an unknown one."""
    cls, name = setting.split(".")
    settings: dict[str, str] = recording()["config"][cls]
    return settings.get(settings[name], settings[name])  # some defaults are named by a constant of the class


def has_setting(setting: str) -> bool:
    """Return whether vLLM has `Class.setting`."""
    cls, name = setting.split(".")
    return name in recording()["config"].get(cls, {})


def choices(name: str) -> list[str]:
    """Return the values that a setting may have, such as `choices("CacheDType")`."""
    values: list[str] = recording()["literals"][name]
    return values


def files_with(symbol: str) -> list[str]:
    """Return the files, below `vllm/`, that define `symbol`: `name`, `Class` or `Class.member`, inherited or not."""
    found = [file for file, names in recording()["symbols"].items() if symbol in names]
    cls, _, member = symbol.partition(".")
    if not found and member:
        for base in recording()["bases"].get(cls, []):
            found = found or files_with(f"{base}.{member}")
    return found
