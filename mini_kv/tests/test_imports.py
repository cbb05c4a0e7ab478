"""The core stands alone: no tensor library is loaded, and importing takes no time worth noticing.

And what a package says of its modules names all of them.
"""

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mini_kv
from mini_kv.installer import install_torch

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "triton", "xxhash", "matplotlib", "transformers"}
LIMIT_S = 0.1
NEEDS_TORCH = {"LLM", "LLMEngine", "RequestOutput", "SamplingParams"}
QUOTING = (".github/CONTRIBUTING.md", "mini_kv/README.md")


def import_in_a_new_process(module: str) -> tuple[float, set[str]]:
    """Return the import's CPU time in seconds and which top-level modules are loaded after it."""
    script = (
        "import sys, time; start = time.process_time(); "
        f"import {module}; seconds = time.process_time() - start; import json; "
        "print(json.dumps([seconds, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    seconds, loaded = json.loads(output)
    return seconds, set(loaded)


@pytest.mark.parametrize(
    "module", ["mini_kv", "mini_kv.core.kv_cache_manager", "mini_kv.story.debug", "mini_kv.engine.config"]
)
def test_no_heavy_package_is_loaded(module: str) -> None:
    """The bookkeeping runs in a browser, where none of them is at hand; xxhash is loaded by who asks for it."""
    _, loaded = import_in_a_new_process(module)
    assert "mini_kv" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.prose
def test_the_rule_of_layers_is_quoted_as_it_is_checked() -> None:
    """`make lint` checks what pyproject.toml says; who reads of it elsewhere reads the same."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers, _, _, alone, _ = settings["tool"]["importlinter"]["contracts"]
    rule = f"`{' > '.join(layers['layers']).replace(' | ', ', ')}`"
    alone_names = [f"`{name.removeprefix('mini_kv.')}`" for name in alone["source_modules"]]
    never = f"{', '.join(alone_names)} never import {', '.join(alone['forbidden_modules'])}"
    texts = {name: " ".join((ROOT / name).read_text("utf-8").split()) for name in QUOTING}
    assert [name for name, text in texts.items() if rule not in text] == [], f"should quote {rule}"
    assert never in texts[".github/CONTRIBUTING.md"]


def test_importing_is_quick() -> None:
    """The best of several new processes, since a busy machine can only make it slower."""
    assert min(import_in_a_new_process("mini_kv")[0] for _ in range(5)) < LIMIT_S


def test_the_front_door_has_every_name_and_no_other() -> None:
    """Each name is the one of its home, and type checkers see the same ones."""
    source = ast.parse((ROOT / "mini_kv/__init__.py").read_text("utf-8"))
    imported = [
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mini_kv.")
        for alias in node.names
    ]
    homes = [name for names in mini_kv._HOMES.values() for name in names]
    assert sorted(homes) == sorted({*imported} - {"install_torch"})
    assert set(homes) - set(mini_kv.__all__) == (set() if importlib.util.find_spec("torch") else NEEDS_TORCH)
    assert set(mini_kv.__all__) <= set(homes)
    assert set(mini_kv.__all__) <= set(dir(mini_kv))
    for home, names in mini_kv._HOMES.items():
        if home.startswith("core"):
            assert [getattr(mini_kv, name) for name in names] == [
                getattr(importlib.import_module(f"mini_kv.{home}"), name) for name in names
            ]
    with pytest.raises(AttributeError, match="has no attribute 'KVCache'"):
        _ = mini_kv.KVCache


def without_torch(*statements: str) -> list[str]:
    """Return what statements print, or the error of each, in a new process where torch cannot be imported."""
    script = f"""
import sys
sys.modules["torch"] = None
import inspect, mini_kv
homes = {{name for names in mini_kv._HOMES.values() for name in names}}
for statement in {statements!r}:
    try:
        exec(statement)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True)
    return done.stdout.splitlines()


def test_the_front_door_stands_open_without_torch() -> None:
    """Code that looks around finds the names that need no torch. For the others the error says how to get torch."""
    names = sorted({name for names in mini_kv._HOMES.values() for name in names} - NEEDS_TORCH)
    assert (
        without_torch(
            "from mini_kv import *",
            "print(*sorted(homes & globals().keys()))",
            "print(*sorted(homes & dict(inspect.getmembers(mini_kv)).keys()))",
            "print(*sorted(name for name in homes if hasattr(mini_kv, name)))",
        )
        == [" ".join(names)] * 3
    )
    for name in sorted(NEEDS_TORCH):
        problem = f"mini_kv.{name} needs torch: {install_torch()}"
        assert without_torch(f"mini_kv.{name}", f"from mini_kv import {name}") == [
            f"AttributeError: {problem}",
            f"ModuleNotFoundError: {problem}",
        ]


def test_the_front_door_is_lazy() -> None:
    """Ten milliseconds and no engine room: the best of several new processes."""
    timed = [import_in_a_new_process("mini_kv") for _ in range(5)]
    assert min(seconds for seconds, _ in timed) < 0.01
    assert timed[0][1] & HEAVY == set()


def test_installing_mini_kv_installs_nothing_else() -> None:
    """Not even xxhash: it is an extra, for who asks for the hash function xxh3_128."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == []
    assert project["optional-dependencies"]["xxhash"] == ["xxhash>=3.5"]


PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for folder in ("mini_kv", "book/mini_kv_book")
    for path in (ROOT / folder).rglob("__init__.py")
    if path.parent != ROOT / "mini_kv"  # the front door: its map is `mini_kv/README.md`
)


def modules_of(package: Path) -> list[str]:
    """Return the modules and packages that lie in a package, without `__init__`."""
    files = [path.stem for path in package.glob("*.py") if path.stem != "__init__"]
    return sorted(files + [path.parent.name for path in package.glob("*/__init__.py")])


@pytest.mark.prose
@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_of_a_package_names_each_of_its_modules_and_no_other(package: str) -> None:
    """Between backticks, in the docstring of its `__init__`; read as text, since some packages need torch."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
    named = re.findall(r"`(\w+)`", ast.get_docstring(tree) or "")
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert sorted(name for name in named if name not in own) == modules_of(ROOT / package)


@pytest.mark.prose
def test_the_map_of_the_house_names_each_package() -> None:
    """The table in `mini_kv/README.md`: first column."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "mini_kv/README.md").read_text("utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    rooms = [path.name for path in (ROOT / "mini_kv").iterdir() if path.is_dir() and not path.name.startswith("__")]
    assert sorted(named) == sorted(rooms)
