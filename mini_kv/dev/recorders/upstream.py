"""Plays the golden scenarios on another version of vLLM and writes down what changed. Run by `make upstream`.

    make upstream VERSION=0.32.0

It installs that vLLM into `.upstream/0.32.0`, runs the recorders there, and compares call by call with the recordings
that are held. `book/data/upstream.json` gets what differs, and the book's page `reference/upstream.md` shows it. With
the version that is held nothing may differ, and nothing is written.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mini_kv_book import upstream as names_held

from mini_kv.course.verify import manager, scheduler
from mini_kv.dev.recorders import record_names
from mini_kv.dev.recorders.compare_calls import changed_calls
from mini_kv.dev.recorders.compare_names import ROOT, changed_names, texts, users
from mini_kv.dev.recorders.planning import PLANNING

FOLDER = Path(__file__).parent
CHANGES = ROOT / "book" / "data" / "upstream.json"
"""What differs between the version that is held and another one."""
RECORDERS = {
    "manager": ("record", manager.RECORDING),
    "scheduler": ("record_scheduler", scheduler.RECORDING),
    "planning": ("record_planning", PLANNING),
}
"""By part: the module that records it, and the recording that is held."""

TORCH = "torch==2.13.0"
TORCH_FOR_CPU = ("--no-deps", "--retries=0", "--timeout=10", "--index-url=https://download.pytorch.org/whl/cpu", TORCH)
"""This build needs no CUDA. Where its address cannot be reached, the next step takes what the default index has."""
INSTALLED = (
    (TORCH,),
    ("--no-deps", "-r", str(FOLDER / "requirements.txt")),
    ("-r", str(FOLDER / "requirements-planning.txt")),
    ("--no-deps", "vllm=={version}"),
)
"""What pip is told, in this order. vLLM's own list of dependencies asks for CUDA packages that nothing here imports."""


def install(version: str, venv: Path) -> Path:
    """Install vLLM and what the recorders need, once, and return the environment's Python."""
    python = venv / "bin" / "python"
    if not (venv / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = (str(python), "-m", "pip", "install", "-q", "--no-warn-conflicts")
        subprocess.run([*pip, *TORCH_FOR_CPU], stderr=subprocess.DEVNULL, check=False)
        for arguments in INSTALLED:
            subprocess.run([*pip, *(argument.format(version=version) for argument in arguments)], check=True)
        subprocess.run([*pip, _transformers_for_vllm(python)], check=True)
        (venv / ".ready").touch()
    return python


def _transformers_for_vllm(python: Path) -> str:
    """Return which transformers the installed vLLM asks for: with another one some model classes cannot be built."""
    code = "from importlib.metadata import requires; print(*requires('vllm'), sep='\\n')"
    asked = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line for line in asked if line.startswith("transformers"))


def record(part: str, python: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a recorder and return what it recorded, and what it printed. Raises `RuntimeError` if it fails."""
    module, _ = RECORDERS[part]
    path = folder / f"{part}.json"
    command = [str(python), "-m", f"mini_kv.dev.recorders.{module}", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (folder / f"{part}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return load(path), done.stdout


def load(path: Path) -> dict[str, Any]:
    """Return the scenarios or plans of a recording, by name."""
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    scenarios: dict[str, Any] = recorded.get("scenarios", recorded)
    return scenarios


def changes_of(part: str, held: dict[str, Any], other: dict[str, Any], printed: str) -> dict[str, Any]:
    """Return what differs in a part: the calls or plans, and what the other version could not play, with the reason."""
    lines = printed.splitlines()
    left_out = {}
    for name in held.keys() - other.keys():
        start = f"not recorded: {name}: "
        left_out[name] = next((line.removeprefix(start) for line in lines if line.startswith(start)), "not recorded")
    if part == "planning":
        changes: Any = {name: plan for name, plan in other.items() if plan != held[name]}
    else:
        changes = changed_calls(held, other)
    return {"compared": len(other), "left_out": dict(sorted(left_out.items())), "changes": changes}


def compare(version: str, held: str, folder: Path, python: Path) -> dict[str, Any]:
    """Record every part and return what differs; a part whose recorder fails is named with its error."""
    old, new = sorted((version, held), key=lambda text: [int(number) for number in text.split(".")])
    found: dict[str, Any] = {"old": old, "new": new, "held": held}
    for part, (_, path) in RECORDERS.items():
        start = time.monotonic()
        try:
            other, printed = record(part, python, folder)
            found[part] = changes_of(part, load(path), other, printed)
        except RuntimeError as error:
            found[part] = {"failed": str(error)}
        print(f"{part}: {told(found[part])}, {time.monotonic() - start:.0f} s", flush=True)
    (package,) = (python.parents[1] / "lib").glob("*/site-packages/vllm")
    names = {held: names_held.recording(), version: json.loads(record_names.record(package))}
    written = texts()
    found["names"] = changed_names(names[old], names[new], lambda symbol: users(symbol, written))
    return found


def told(part: dict[str, Any]) -> str:
    """Return in words how much of a part differs."""
    if "failed" in part:
        return f"the recorder failed: {part['failed']}"
    return f"{len(part['changes'])} of {part['compared']} differ, {len(part['left_out'])} could not be played"


def write(found: dict[str, Any], path: Path = CHANGES) -> None:
    """Write what differs as JSON, one scenario, plan or name per line."""
    path.write_text(as_json(found) + "\n", encoding="utf-8")


def as_json(value: Any, depth: int = 3) -> str:
    """Return the value as JSON: the entries of the outer tables on a line each."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    entries = [f"{json.dumps(key, ensure_ascii=False)}: {as_json(item, depth - 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(entries) + "\n}"


def main(version: str) -> None:
    """Install, record, compare, and write what differs."""
    held = names_held.recording()["version"]
    folder = ROOT / ".upstream" / version
    start = time.monotonic()
    python = install(version, folder / "venv")
    print(f"vLLM {version} is installed in {folder.relative_to(ROOT)}, {time.monotonic() - start:.0f} s", flush=True)
    found = compare(version, held, folder, python)
    if version == held:
        print("this is the version that is held; nothing is written")
        return
    write(found)
    print(f"{CHANGES.relative_to(ROOT)}: what changed from {found['old']} to {found['new']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
