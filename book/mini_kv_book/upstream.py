"""vLLM's recorded names and defaults, and the tables that hold ours beside them. Needs neither MkDocs nor vLLM.

    <!-- table names -->                every public symbol of the engine beside vLLM's
    <!-- table options here -->         our options beside vLLM's; `elsewhere`: those that we do not have
    <!-- table serving memory -->       vLLM's settings of one group, described in `book/data/serving_options.toml`
    <!-- table source-lens events -->   links into vLLM's code for kinds of events; `causes`: for causes of lost hits

The names and reasons are the engine's own. vLLM's names and defaults are recorded by `record_names`. Names that differ
are listed by hand.
"""

import importlib
import inspect
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mini_kv.core
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.engine.config import NOT_HERE, EngineConfig
from mini_kv.story.vllm_source import CAUSES, EVENTS, Place
from mini_kv_book.recorded import table

RECORDING = Path(__file__).parents[1] / "data" / "vllm-0.33.json"
_SERVING = RECORDING.with_name("serving_options.toml")


@cache
def recording() -> dict[str, Any]:
    """Return the recording of `record_names`."""
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


# Names ----------------------------------------------------------------------------------------------------------------

RENAMED = {
    "block_hash.sha256": ("sha256", "the same digest; ours takes bytes, theirs pickles an object first"),
    "block_hash.xxh3_128": ("xxhash", "the same family of digests, again of bytes"),
    "block_hash.root_block_hash": ("init_none_hash", "ours has the namespace in it"),
    "block_hash.get_hash_function": ("get_hash_fn_by_name", "other names to choose from"),
    "request.MultiModalFeature": ("MultiModalFeatureSpec", "ours keeps the identity and the place"),
    "kv_cache_manager.KVCacheManager.withdraw_promises": ("", "upstream: pull request #43569, open"),
    "block_pool.BlockPool.num_free_blocks": ("BlockPool.get_num_free_blocks", "an attribute here"),
    "block_pool.BlockPool.usage": ("BlockPool.get_usage", "an attribute here"),
    "block_pool.BlockHashToBlockMap.clear": ("", "upstream makes a new map instead"),
}
"""Ours, below `mini_kv.core`; the name upstream, or "" where there is none on purpose; a remark."""
_SKIPPED = ("errors", "invariants")
"""Modules for teaching and checks. vLLM has no counterpart of them."""
_CORE = "mini_kv.core."


def modules() -> list[ModuleType]:
    """Return the engine's modules that have a counterpart, in the reading order of `mini_kv.core`."""
    walked = pkgutil.walk_packages(mini_kv.core.__path__, _CORE)
    found = [info.name for info in walked if not info.ispkg and info.name.removeprefix(_CORE) not in _SKIPPED]
    reading_order = re.findall(r"`([a-z_.]+)`", mini_kv.core.__doc__ or "")

    def place(name: str) -> tuple[int, str]:
        leaf = name.rpartition(".")[2]
        return (reading_order.index(leaf) if leaf in reading_order else len(reading_order), name)

    return [importlib.import_module(name) for name in sorted(found, key=place)]


def names() -> str:
    """Return a section per module: its symbols, vLLM's, and which members of each class have the same name."""
    sections = []
    for module in modules():
        short = module.__name__.removeprefix(_CORE)
        page = f"../api/{module.__name__}.md"
        rows = [
            (f"[{name}]({page})", _upstream_cell(short, name), _members_cell(short, name, value))
            for name, value in _symbols_of(module)
        ]
        shown = table(["name", "in vLLM 0.33", "members and remarks"], rows, of_words=True)
        sections.append(f"## core.{short}\n\n{_first_line(module)}\n\n{shown}")
    return "\n\n".join(sections)


def _symbols_of(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public classes and functions that the module defines, in the order of its text."""
    for name, value in vars(module).items():
        is_new_type = hasattr(value, "__supertype__")
        own = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        if own and (is_new_type or isinstance(value, type | FunctionType)):
            yield name, value


def _upstream_of(module: str, name: str) -> tuple[str, list[str], str]:
    """Return the name upstream, the files that define it, and a remark; an empty name if there is none."""
    renamed, remark = RENAMED.get(f"{module}.{name}", (name, ""))
    return (renamed, files_with(renamed), remark) if renamed else ("", [], remark)


def _upstream_cell(module: str, name: str) -> str:
    """Return the file upstream, the one called like our module if there is one, and the name if it differs."""
    upstream, files, _ = _upstream_of(module, name)
    if not files:
        return "only here"
    same = [file for file in files if file.endswith(f"/{module.rpartition('.')[2]}.py")]
    file = (same or files)[0]
    return file if upstream == name else f"`{upstream}`, {file}"


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _members_cell(module: str, name: str, value: object) -> str:
    _, files, remark = _upstream_of(module, name)
    remarks = [remark or ("" if files else _first_line(value))]
    if isinstance(value, type):
        same, other, ours = [], [], []
        for member in [member for member in vars(value) if not member.startswith("_")]:
            upstream, found, _ = _upstream_of(module, f"{name}.{member}")
            if not found or not files:
                ours.append(f"`{member}`")
            elif upstream.endswith(f".{member}"):
                same.append(f"`{member}`")
            else:
                other.append(f"`{member}` is `{upstream.rpartition('.')[2]}`")
        remarks += [
            f"the same: {', '.join(same)}" if same else "",
            "; ".join(other),
            f"only here: {', '.join(ours)}" if ours else "",
        ]
    return "; ".join(filter(None, remarks))


# Options --------------------------------------------------------------------------------------------------------------

_OTHER_NAMES = {
    "num_blocks": "CacheConfig.num_gpu_blocks_override",
    "kv_cache_dtype": "CacheConfig.cache_dtype",
}
"""Where vLLM has the same under another name."""


def options(which: str) -> str:
    """Return our options, `here`, or those that we do not have, `elsewhere`. Raises `KeyError` for another word."""
    return {"here": options_here, "elsewhere": options_elsewhere}[which]()


def options_here() -> str:
    """Return a row per option of ours: its default, and vLLM's."""
    ours = [
        field for config in (EngineConfig, SchedulerConfig) for field in fields(config) if field.name != "scheduler"
    ]
    rows = [(f"`{field.name}`", _ours(field), _theirs(field.name)) for field in ours]
    return table(["option", "default here", "in vLLM 0.33"], rows, of_words=True)


def options_elsewhere() -> str:
    """Return a row per option that vLLM has and we do not, with the reason that an error gives."""
    rows = [(f"`{name}`", _flag_of(name) or "gone", why) for name, why in NOT_HERE.items()]
    return table(["option of vLLM", "flag", "here"], rows, of_words=True)


def _flag_of(option: str) -> str:
    """Return the server's flag for an option, or "" if there is none."""
    flag = "--" + option.replace("_", "-")
    return f"`{flag}`" if flag in recording()["flags"] else ""


def _ours(field: "Field[Any]") -> str:
    return f"`{getattr(field.default, 'value', field.default)}`"


def _theirs(name: str) -> str:
    """Return vLLM's default; where no class of its that was recorded has the option, the flag, if there is one."""
    settings = [_OTHER_NAMES.get(name, ""), f"CacheConfig.{name}", f"SchedulerConfig.{name}"]
    for setting in filter(has_setting, filter(None, settings)):
        value = default(setting).strip("'")
        return f"`{value}`, `{setting}`" if name in _OTHER_NAMES else f"`{value}`"
    return _flag_of(name) or "ours alone"


def serving_options() -> list[dict[str, str]]:
    """Return vLLM's settings: `setting`, `flag`, `group`, what it `does`, `when` to touch it, a `default` in words."""
    data = tomllib.loads(_SERVING.read_text(encoding="utf-8"))
    return [option | {"group": group} for group, members in data.items() for option in members]


def serving(group: str) -> str:
    """Return the table of one group. Raises `ValueError` if there is no such group."""
    members = [option for option in serving_options() if option["group"] == group]
    if not members:
        raise ValueError(f"there is no group of options {group!r}")
    rows = []
    for option in members:
        recorded = default(option["setting"]).strip("'\"")
        rows.append((f"`{option['flag']}`", option.get("default", f"`{recorded}`"), option["does"], option["when"]))
    return table(["option", "default", "what it does", "when to touch it"], rows, of_words=True)


# Links into vLLM's code -----------------------------------------------------------------------------------------------


def source_lens(which: str) -> str:
    """Return the table of `events` or `causes`. Raises `KeyError` for another word."""
    tables: dict[str, Mapping[str, Place]] = {
        "events": {str(kind): place for kind, place in EVENTS.items()},
        "causes": CAUSES,
    }
    rows = [
        (name, f"[`{place.symbol}`]({place.url})", f"{place.sentence}{_here(place)}")
        for name, place in tables[which].items()
    ]
    return table([which[:-1], "in vLLM 0.33", "what happens there"], rows, of_words=True)


def _here(place: Place) -> str:
    """Return the counterpart, if it has another name than in vLLM."""
    return "" if place.here.endswith(f".{place.symbol}") else f" Here: `{place.here}`."
