"""Records vLLM's names and defaults, so that the book's tables can be checked without vLLM.

A tool for maintainers, never part of CI. It reads vLLM's source files and imports none of them, so any Python will do
and vLLM needs no dependencies. From the top folder:

    pip download --no-deps vllm==0.33.0 -d /tmp/vllm && unzip -q /tmp/vllm/*.whl -d /tmp/vllm
    python -m mini_kv.dev.recorders.record_names /tmp/vllm/vllm

Only names, the defaults of the settings, and the lines of a few functions are recorded: no text, no code. The lines are
for the links of `mini_kv.story.vllm_source`, which are in a file beside it, since `mini_kv` reads nothing of the book.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mini_kv.story.vllm_source import VERSION, all_places, event_symbols

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "book" / "data" / "vllm-0.33.json"
LINES = ROOT / "mini_kv" / "story" / "vllm_source.json"

MODULES = (
    "config/cache.py",
    "config/scheduler.py",
    "config/speculative.py",
    "entrypoints/llm.py",
    "logprobs.py",
    "sampling_params.py",
    "model_executor/layers/attention/attention.py",
    "utils/hashing.py",
    "utils/math_utils.py",
    "utils/mem_utils.py",
    "utils/argparse_utils.py",
    "transformers_utils/model_arch_config_convertor.py",
    "lora/request.py",
    "multimodal/inputs.py",
    "plugins/__init__.py",
    "platforms/interface.py",
    "v1/request.py",
    "v1/kv_cache_interface.py",
    "v1/kv_cache_spec_registry.py",
    "v1/kv_cache_layout.py",
    "v1/outputs.py",
    "entrypoints/serve/utils/api_utils.py",
    "v1/engine/__init__.py",
    "v1/engine/async_llm.py",
    "v1/engine/core.py",
    "v1/engine/core_client.py",
    "v1/engine/detokenizer.py",
    "v1/engine/llm_engine.py",
    "v1/engine/output_processor.py",
    "v1/engine/parallel_sampling.py",
    "v1/executor/abstract.py",
    "v1/executor/multiproc_executor.py",
    "v1/executor/uniproc_executor.py",
    "v1/sample/sampler.py",
    "v1/spec_decode/ngram_proposer.py",
    "v1/core/*.py",
    "v1/core/sched/*.py",
    "v1/metrics/stats.py",
    "v1/metrics/loggers.py",
    "v1/metrics/perf.py",
    "v1/worker/block_table.py",
    "v1/worker/gpu_input_batch.py",
    "v1/worker/gpu_model_runner.py",
    "v1/worker/gpu_worker.py",
    "v1/worker/worker_base.py",
    "v1/worker/gpu/block_table.py",
    "v1/kv_offload/base.py",
    "v1/kv_offload/factory.py",
    "v1/kv_offload/tiering/fs/io.py",
    "v1/kv_offload/tiering/fs/manager.py",
    "v1/attention/backends/utils.py",
    "v1/attention/ops/triton_unified_attention.py",
    "v1/attention/ops/merge_attn_states.py",
    "v1/attention/ops/triton_merge_attn_states.py",
    "v1/attention/ops/triton_reshape_and_cache_flash.py",
    "distributed/kv_events.py",
    "distributed/kv_transfer/kv_connector/v1/base.py",
)
"""The files of vLLM whose names are recorded: those that this project refers to."""

CONFIGS = tuple(f"config/{name}.py" for name in ("cache", "scheduler", "kv_transfer", "kv_events", "observability"))


def main() -> None:
    """Read vLLM's sources and write the recording down."""
    parser = argparse.ArgumentParser(description="Record the names and defaults of an unpacked vLLM.")
    parser.add_argument("vllm", type=Path, help="the folder vllm/ of the unpacked wheel")
    root = parser.parse_args().vllm
    recorded = record(root)
    RECORDING.write_text(recorded, encoding="utf-8")
    LINES.write_text(record_lines(root), encoding="utf-8")
    symbols = json.loads(recorded)["symbols"]
    print(f"{sum(map(len, symbols.values()))} names in {len(symbols)} files")


def record(root: Path) -> str:
    """Return the recording of the package in the folder `root`, as it is stored."""
    files = sorted(file for pattern in MODULES for file in root.glob(pattern) if file.stat().st_size)
    symbols = {file.relative_to(root).as_posix(): sorted(_names_in(file)) for file in files}
    recording = {
        "version": VERSION,
        "command": "python -m mini_kv.dev.recorders.record_names",
        "sizes": {"v1/core": _size_of(root / "v1" / "core")},
        "symbols": symbols,
        "bases": {cls: bases for file in files for cls, bases in _bases_in(file).items()},
        "parameters": {name: _parameters_in(root / name) for name in symbols if name.startswith("v1/core/")},
        "config": {cls: fields for name in CONFIGS for cls, fields in _settings_in(root / name).items()},
        "literals": {name: values for file in CONFIGS for name, values in _literals_in(root / file).items()},
        "flags": _strings_in(root / "engine/arg_utils.py", "--[a-z-]+"),
        "metrics": _strings_in(root / "v1/metrics/loggers.py", "vllm:[a-z_]+"),
    }
    return _a_line_each(recording)


def record_lines(root: Path) -> str:
    """Return the lines of the functions that events and causes link to, as they are stored.

    Raises `KeyError` for a function that the package in the folder `root` does not have.
    """
    lines: dict[str, dict[str, int]] = {}
    for place in all_places():
        lines.setdefault(place.file, {})[place.symbol] = _lines_in(root / place.file)[place.symbol]
    return _a_line_each({"version": VERSION, "events": event_symbols(), "lines": lines})


def _lines_in(file: Path) -> dict[str, int]:
    """Return the line at which each function and method of a module begins."""
    lines = {}
    for node in parse(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[node.name] = node.lineno
        elif isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)]
            lines |= {f"{node.name}.{method.name}": method.lineno for method in methods}
    return lines


def _size_of(folder: Path) -> dict[str, int]:
    """Return the numbers of Python files and lines in a folder."""
    texts = [file.read_text(encoding="utf-8") for file in folder.rglob("*.py")]
    return {"files": len(texts), "lines": sum(text.count("\n") for text in texts)}


def _a_line_each(recording: dict[str, Any]) -> str:
    """Return the recording as JSON with a line for each file and class, so that a new version can be compared."""
    lines = []
    for name, value in recording.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value[key])}" for key in value)
            lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse(file: Path) -> ast.Module:
    """Return the file's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"))


def _names_in(file: Path) -> Iterator[str]:
    """Yield the names of a module: its classes, their methods and attributes, its functions and constants."""
    for node in parse(file).body:
        yield from _assigned(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{name}" for name in members(node))


def _bases_in(file: Path) -> dict[str, list[str]]:
    """Return the base classes of each class, by their plain names."""
    classes = [node for node in parse(file).body if isinstance(node, ast.ClassDef) and node.bases]
    return {cls.name: [base.id for base in cls.bases if isinstance(base, ast.Name)] for cls in classes}


def _parameters_in(file: Path) -> dict[str, list[str]]:
    """Return the parameters of each public function and method of a module, without `self`."""
    found: dict[str, list[str]] = {}
    for node in parse(file).body:
        cls = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(function.name):
                arguments = function.args
                names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                found[cls + function.name] = [name for name in names if name not in ("self", "cls")]
    return found


def is_public(name: str) -> bool:
    """Return whether the name of a function is public; `__init__` is, too."""
    return name == "__init__" or not name.startswith("_")


def members(cls: ast.ClassDef) -> set[str]:
    """Return a class's methods and attributes, those that `__init__` sets included."""
    names: set[str] = set()
    for node in cls.body:
        names.update(_assigned(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            if node.name == "__init__":
                names.update(
                    target.attr
                    for target in ast.walk(node)
                    if isinstance(target, ast.Attribute)
                    and isinstance(target.ctx, ast.Store)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                )
    return names


def _assigned(node: ast.stmt) -> list[str]:
    """Return the plain names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _settings_in(file: Path) -> dict[str, dict[str, str]]:
    """Return the default of every setting, as its source text, by class."""
    return {
        cls.name: {
            node.target.id: _default_of(node.value)
            for node in cls.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        }
        for cls in parse(file).body
        if isinstance(cls, ast.ClassDef) and cls.name.endswith("Config")
    }


def _default_of(value: ast.expr) -> str:
    """Return the default's text: of `Field(default=0.92, gt=0)`, that is `0.92`."""
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg in ("default", "default_factory"):
                return ast.unparse(keyword.value)
    return ast.unparse(value)


def _literals_in(file: Path) -> dict[str, list[str]]:
    """Return the choices of every `Name = Literal[...]`."""
    return {
        name: [str(constant.value) for constant in ast.walk(node.value) if isinstance(constant, ast.Constant)]
        for node in parse(file).body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal[")
        for name in _assigned(node)
    }


def _strings_in(file: Path, pattern: str) -> list[str]:
    """Return the strings of a file that the pattern matches as a whole: the flags of the server, or its metrics."""
    strings = {node.value for node in ast.walk(parse(file)) if isinstance(node, ast.Constant)}
    return sorted(text for text in strings if isinstance(text, str) and re.fullmatch(pattern, text))


if __name__ == "__main__":
    main()
