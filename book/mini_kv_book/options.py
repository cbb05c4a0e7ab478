"""What an engine takes, beside vLLM's options of the same names, and what it does not take.

    <!-- table options here -->
    <!-- table options elsewhere -->

The names and reasons are the engine's own (`mini_kv.engine.config`), vLLM's defaults are recorded.
"""

from dataclasses import Field, fields
from typing import Any

from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import NOT_HERE, EngineConfig
from mini_kv_book.upstream import default, has_setting, recording

OTHER_NAMES = {
    "num_blocks": "CacheConfig.num_gpu_blocks_override",
    "kv_cache_dtype": "CacheConfig.cache_dtype",
}
"""Where vLLM has the same under another name."""


def as_markdown(which: str) -> str:
    """Return a table. Raises `ValueError` unless it is `here` or `elsewhere`."""
    if which not in ("here", "elsewhere"):
        raise ValueError(f"there are the tables `options here` and `options elsewhere`, and no {which!r}")
    return here() if which == "here" else elsewhere()


def here() -> str:
    """Return a row per option of ours: its default, and vLLM's."""
    lines = ["| option | default here | in vLLM 0.33 |", "|---|---|---|"]
    for config in (EngineConfig, SchedulerConfig):
        for field in fields(config):
            if field.name != "scheduler":
                lines.append(f"| `{field.name}` | {_ours(field)} | {_theirs(field.name)} |")
    return "\n".join(lines)


def elsewhere() -> str:
    """Return a row per option that vLLM has and we do not, with the reason that an error gives."""
    lines = ["| option of vLLM | flag | here |", "|---|---|---|"]
    for name, why in NOT_HERE.items():
        flag = "--" + name.replace("_", "-")
        lines.append(f"| `{name}` | {f'`{flag}`' if flag in recording()['flags'] else 'gone'} | {why} |")
    return "\n".join(lines)


def _ours(field: "Field[Any]") -> str:
    return f"`{getattr(field.default, 'value', field.default)}`"


def _theirs(name: str) -> str:
    """Return vLLM's default; where no class of its that was recorded has the option, the flag, if there is one."""
    settings = [OTHER_NAMES.get(name, ""), f"CacheConfig.{name}", f"SchedulerConfig.{name}"]
    for setting in filter(has_setting, filter(None, settings)):
        value = default(setting).strip("'")
        return f"`{value}`, `{setting}`" if name in OTHER_NAMES else f"`{value}`"
    flag = "--" + name.replace("_", "-")
    return f"`{flag}`" if flag in recording()["flags"] else "ours alone"
