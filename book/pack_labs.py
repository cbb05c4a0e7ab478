"""Packs, inside Pyodide: its library, mini_kv, the labs and pytest, with their bytecode.

    stdlib.zip      the part of the library with which Python starts
    course.zip.xz   what all pages import: mini_kv, and the part of the library that they use
    pages.zip.xz    what all pages but those with pytest import
    tests.zip.xz    pytest, labkit and the labs, and the part of the library that they use
    rest.zip.xz     the rest of the library and of the packages: kv_lab_worker.js loads it when a learner imports it

Nothing of solutions/ is read: what goes in is named here, one by one. Compressed as a whole, an archive is a third
smaller than with its files compressed one by one.
"""

import importlib._bootstrap_external as bootstrap
import importlib.util
import io
import json
import lzma
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

_REPO = Path("/repo")
_PYTHON_OF_THE_PAGE = tuple(
    f"{name}_page.py" for name in ("lab", "puzzle", "plan", "play", "finale", "session", "challenge")
)
_OF_COURSE = ("labkit", "given", "finale", "questions", "commands")
_FILES = (
    *("conftest.py", "pyproject.toml", "book/course.toml", "mini_kv/course/__init__.py", "mini_kv/labkit/__init__.py"),
    *(f"mini_kv/{name}.py" for name in ("__init__", "command_output", "installer", "interrupts", "messages")),
    *("mini_kv/progress_line.py", "mini_kv/typed_numbers.py", "mini_kv/tests/skips.py", "mini_kv/tools/__init__.py"),
    *(f"mini_kv/{room}/**/*.py" for room in ("core", "policy", "story", "tools/planning")),
    *(f"mini_kv/course/{room}/**/*.py" for room in _OF_COURSE),
    *(f"mini_kv/story/{name}" for name in ("*.json", "languages/*.json", "puzzles/*.toml")),
    "mini_kv/tools/planning/*.toml",
    # the pages "Why is my hit rate 0?", "Will it fit?" and the agent's session
    *(f"mini_kv/tools/traces/{name}" for name in ("*.py", "readers/*.py", "sessions/*.py", "session-*.jsonl")),
    *(f"mini_kv/tools/traces/commands/{name}.py" for name in ("__init__", "why_command")),
    # the page "Play": the model is computed in JavaScript
    *(f"mini_kv/course/lessons/{name}.py" for name in ("__init__", "play")),
    *(f"mini_kv/tools/serve/{name}.py" for name in ("__init__", "live_story")),
    *(f"mini_kv/engine/{name}.py" for name in ("__init__", "detokenizer", "engine_stats", "errors", "tokenizer")),
    *(f"mini_kv/engine/hf/{name}.py" for name in ("__init__", "tokenizer_patterns")),
    *(f"mini_kv/engine/{model}/{name}.json" for model in ("tiny", "tiny_windows") for name in ("config", "tokenizer")),
    # the page "The finale", for lab-14
    *(f"mini_kv/tiers/{name}.py" for name in ("__init__", "memory_tier", "reload_cost")),
    # lab-17 and the page "Write a KV cache": nothing of the scheduler
    "mini_kv/course/verify/*.py",
    *(f"mini_kv/course/verify/adapters/{name}.py" for name in ("__init__", "mini_kv_manager", "specs")),
    *(f"mini_kv/course/verify/scenarios/{name}" for name in ("scenarios.toml", "scenarios-[!s]*.toml")),
    "mini_kv/course/verify/scenarios/vllm-*-manager.json",
)
"""What the pages read of the repository, beside the labs."""
_OF_A_LAB = ("README.md", "lab.toml", "test_lab.py", "fingerprints.json")
"""No starter: the page brings the learner's text."""
_OF_TESTS = re.compile(
    rf"packages/|labs/|mini_kv/course/(verify|{'|'.join(_OF_COURSE)})/|book/|conftest\.py"
    r"|(__pycache__/)?(lab|finale|challenge)_page\."
)
_OF_PAGES = re.compile(r"mini_kv/(tools|course/lessons|engine)/|(__pycache__/)?\w+_page\.")
Files = dict[str, bytes]


def course() -> Files:
    """Return the course's files: those of mini_kv with its puzzles, and of every lab that needs no more than pytest."""
    paths = [path for pattern in _FILES for path in _REPO.glob(pattern)]
    for folder in _REPO.glob("labs/lab-*"):
        paths += of_a_lab(folder) if folder.name not in closed() else [folder / "lab.toml"]
    files = {str(path.relative_to(_REPO)): path.read_bytes() for path in paths}
    for name in [name for name in files if name.endswith("README.md")]:
        files[name] = b"## The contract\n" + files[name].partition(b" The contract\n")[2].partition(b"\n#")[0]
    for name in _PYTHON_OF_THE_PAGE:
        files[name] = (_REPO / "book/mini_kv_book/assets" / name).read_bytes()
    return files | _bytecode_beside(files)


def closed() -> set[str]:
    """Return the labs that `book/course.toml` does not show today; `course_settings` of labkit reads the same."""
    file = _REPO / "book/course.toml"
    labs = tomllib.loads(file.read_text(encoding="utf-8"))["labs"] if file.is_file() else {}
    return {*labs.get("hidden", ()), *(lab for lab, day in labs.get("opens", {}).items() if day > date.today())}


def of_a_lab(folder: Path) -> list[Path]:
    """Return the files that a lab brings; if it needs more than pytest, what another lab names it by."""
    if tomllib.loads((folder / "lab.toml").read_text(encoding="utf-8"))["needs"] != "C":
        return [folder / "lab.toml"]
    return [*(folder / name for name in _OF_A_LAB), *folder.glob("helpers.py"), *folder.glob("chance.py")]


def _bytecode_beside(files: Files) -> Files:
    """Return the bytecode of the Python files, at the paths where Python looks for it."""
    return {
        importlib.util.cache_from_source(name): bytecode(source, "/course/" + name)
        for name, source in files.items()
        if name.endswith(".py")
    }


def wheels() -> Files:
    """Return what pip downloaded, as bytecode: no page shows the sources."""
    files: Files = {}
    for wheel in (_REPO / "book/node_modules/.wheels").glob("*-none-any.whl"):
        files |= {f"packages/{name}": data for name, data in unpacked(wheel)}
    return compiled(files, "/course/", set(files))


def licences() -> bytes:
    """Return the texts of the packages' licences, each below the name of its file."""
    texts = [
        name.encode() + b"\n\n" + data
        for wheel in sorted((_REPO / "book/node_modules/.wheels").glob("*-none-any.whl"))
        for name, data in unpacked(wheel)
        if ".dist-info/licenses/" in name
    ]
    return b"\n\n----\n\n".join(texts)


def archives() -> dict[str, Files]:
    """Return each archive's files.

    Pages run here, first those without pytest: what they import of the library and the packages goes into their
    archives, all else into `rest`.
    """
    files = course() | wheels()
    for name, data in files.items():
        path = Path("/course", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.chdir("/course")
    sys.path[:0] = ["/course", "/course/packages"]
    importlib.import_module("session_page").run('{"example": "codex"}', "", lambda words, state: None)
    importlib.import_module("puzzle_page").look("twins", [])
    importlib.import_module("plan_page").answer('{"model": "qwen-3.5-4b", "prompt-tokens": "480"}')
    importlib.import_module("play_page")
    of_pages, course_of_pages = imported("/lib/python314.zip/"), imported("/course/")
    answer = json.loads(importlib.import_module("lab_page").run("lab-05", "", lambda test, state: None))
    if not answer["lines"]:
        raise SystemExit(f"what was packed cannot run lab-05:\n{answer['report']}")
    importlib.import_module("finale_page").run("0", "{}", lambda run, state: None)
    importlib.import_module("challenge_page").run("python", "", lambda square, sign: None)
    of_all = imported("/lib/python314.zip/")
    packages = {f"packages/{name}c" for name in imported("/course/packages/")}
    at_boot = set(Path("/at_boot").read_text(encoding="utf-8").split())
    packed: dict[str, Files] = {name: {} for name in ("stdlib", "course", "pages", "tests", "rest")}
    for name, data in compiled(dict(unpacked(Path("/stdlib.zip"))), "", of_all).items():
        source = name.removesuffix("c")
        users = (("stdlib", at_boot), ("course", of_pages), ("tests", of_all))
        where = next((archive for archive, sources in users if source in sources), "rest")
        packed[where][name if where == "stdlib" else f"library/{name}"] = data
    for name, data in files.items():
        unused = name.startswith("packages/") and name.endswith(".pyc") and name not in packages
        of_tests = _OF_TESTS.match(name) and source_of(name) not in course_of_pages
        where = "tests" if of_tests else "pages" if _OF_PAGES.match(name) else "course"
        packed["rest" if unused else where][name] = data
    elsewhere = ("pages", "tests", "rest")
    found = [f"{name} {archive}.zip.xz" for archive in elsewhere for name in module_names(packed[archive])]
    packed["course"]["archives.txt"] = "\n".join(found).encode()
    return packed


def source_of(name: str) -> str:
    """Return the source file of bytecode, and any other name unchanged."""
    return importlib.util.source_from_cache(name) if "__pycache__/" in name else name


def imported(folder: str) -> set[str]:
    """Return the files in this folder that Python has imported, as sources."""
    origins = [module.__spec__.origin or "" for module in list(sys.modules.values()) if module.__spec__ is not None]
    return {origin.removeprefix(folder).removesuffix("c") for origin in origins if origin.startswith(folder)}


def module_names(files: Files) -> Iterator[str]:
    """Yield the names of the modules in these files."""
    for name in files:
        if name.endswith((".py", ".pyc")) and "__pycache__/" not in name:
            yield re.sub(r"^(library|packages)/|(/__init__)?\.pyc?$", "", name).replace("/", ".")


def unpacked(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a zip archive."""
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                yield info.filename, opened.read(info)


def compiled(files: Files, root: str, chosen: set[str]) -> Files:
    """Return the files, with bytecode in place of the chosen sources."""
    out: Files = {}
    for name, data in files.items():
        if name.endswith(".py") and name in chosen:
            out[name + "c"] = bytecode(data, root + name)
        else:
            out[name] = data
    return out


def bytecode(source: bytes, path: str) -> bytes:
    """Return a .pyc that is never compared with its source: the two come out of one archive."""
    code = compile(source, path, "exec", dont_inherit=True)
    return bytes(bootstrap._code_to_hash_pyc(code, importlib.util.source_hash(source), checked=False))


def zipped(files: Files, method: int) -> bytes:
    """Return a zip archive; the same files give the same bytes. Files of one kind are neighbours."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(files, key=lambda file: (Path(file).suffix, file)):
            archive.writestr(zipfile.ZipInfo(file), files[file], method, 9)
    return out.getvalue()


Path("/out").mkdir(exist_ok=True)
for name, files in archives().items():
    if name == "stdlib":
        Path("/out/stdlib.zip").write_bytes(zipped(files, zipfile.ZIP_DEFLATED))
    else:
        Path(f"/out/{name}.zip.xz").write_bytes(lzma.compress(zipped(files, zipfile.ZIP_STORED)))
Path("/out/licences.txt").write_bytes(licences())
