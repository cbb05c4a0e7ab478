"""The table of names: every public symbol of the engine beside the symbol of vLLM that does the same.

Made from the code: modules are walked, names are looked up in the recording of vLLM's. Only what has another name
upstream is listed by hand, below.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType

import mini_kv.core
from mini_kv_book.upstream import files_with

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


PREFIX = "mini_kv.core."


def modules() -> list[ModuleType]:
    """Return the engine's modules that have a counterpart, in the reading order of `mini_kv.core`."""
    walked = pkgutil.walk_packages(mini_kv.core.__path__, PREFIX)
    found = [info.name for info in walked if not info.ispkg and info.name.removeprefix(PREFIX) not in _SKIPPED]
    reading_order = re.findall(r"`([a-z_.]+)`", mini_kv.core.__doc__ or "")

    def place(name: str) -> tuple[int, str]:
        leaf = name.rpartition(".")[2]
        return (reading_order.index(leaf) if leaf in reading_order else len(reading_order), name)

    return [importlib.import_module(name) for name in sorted(found, key=place)]


def _symbols_of(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public classes and functions that the module defines, in the order of its text."""
    for name, value in vars(module).items():
        is_new_type = hasattr(value, "__supertype__")
        own = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        if own and (is_new_type or isinstance(value, type | FunctionType)):
            yield name, value


def _members_of(cls: type) -> list[str]:
    """Return the public methods and attributes that a class adds itself."""
    return [name for name in vars(cls) if not name.startswith("_")]


def _upstream_of(module: str, name: str) -> tuple[str, list[str], str]:
    """Return the name upstream, the files that define it, and a remark; an empty name if there is none."""
    renamed, remark = RENAMED.get(f"{module}.{name}", (name, ""))
    return (renamed, files_with(renamed), remark) if renamed else ("", [], remark)


def best(files: list[str], module: str) -> str:
    """Return the file to name: the one that is called like our module, if there is one."""
    same = [file for file in files if file.endswith(f"/{module.rpartition('.')[2]}.py")]
    return (same or files)[0]


def as_markdown() -> str:
    """Return a section per module: its symbols, vLLM's, and which members of each class have the same name."""
    sections = []
    for module in modules():
        short = module.__name__.removeprefix(PREFIX)
        page = f"../api/{module.__name__}.md"
        table = [
            f"| [{name}]({page}) | {_upstream_cell(short, name)} | {_members_cell(short, name, value)} |"
            for name, value in _symbols_of(module)
        ]
        first = (inspect.getdoc(module) or "").splitlines()[0]
        head = [f"## core.{short}", "", first, "", "| name | in vLLM 0.33 | members and remarks |", "|---|---|---|"]
        sections.append("\n".join([*head, *table]))
    return "\n\n".join(sections)


def _upstream_cell(module: str, name: str) -> str:
    upstream, files, _ = _upstream_of(module, name)
    if not files:
        return "only here"
    return best(files, module) if upstream == name else f"`{upstream}`, {best(files, module)}"


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _members_cell(module: str, name: str, value: object) -> str:
    _, files, remark = _upstream_of(module, name)
    remarks = [remark or ("" if files else _first_line(value))]
    if isinstance(value, type):
        same, other, ours = [], [], []
        for member in _members_of(value):
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
