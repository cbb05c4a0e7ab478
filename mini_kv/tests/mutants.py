"""Measures what the tests let through: mutmut's small changes to one package, the fast tests on each.

    pip install mutmut==3.8.1                                   # into the environment of `make test`
    python -m mini_kv.tests.mutants core --sample 300 --seed 1

From the repository's root, on a copy. Modules, tests and changes that no test can see: equivalent_mutants.toml.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from difflib import unified_diff
from pathlib import Path

LIST = Path(__file__).with_name("equivalent_mutants.toml")
LISTS = tomllib.loads(LIST.read_text(encoding="utf-8"))


def make_copy(copy: Path, package: str) -> None:
    """Put what mutmut needs into an empty folder."""
    for name in ("mini_kv", "labs", "solutions"):
        shutil.copytree(name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "conftest.py").write_text('pytest_plugins = ["mini_kv.tests.skips"]\n')
    settings = LISTS["mutmut"] | LISTS["package"][package]
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]  # such JSON is TOML too
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    (copy / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines]), encoding="utf-8")


def mutmut(copy: Path, *arguments: str) -> str:
    """Run mutmut in the copy, with few random operations; return what it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MINI_KV_OPERATIONS": "300"}
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False).stdout


def exit_codes(copy: Path) -> dict[str, int | None]:
    """Return how the tests ended on each mutant: 0 for a survivor, `None` where they have not run."""
    files = sorted((copy / "mutants").rglob("*.meta"))
    return {name: code for file in files for name, code in json.loads(file.read_text())["exit_code_by_key"].items()}


def changed_lines(diff: str) -> list[str]:
    """Return the lines that a diff takes out and puts in, without their indentation."""
    return [line[0] + line[1:].strip() for line in diff.splitlines() if re.match(r"[+-](?![+-]{2})", line)]


def listed_changes() -> list[list[str]]:
    """Return the listed mutants as `changed_lines` would."""
    changes = []
    for entry in LISTS["equivalent"]:
        source = (LIST.parents[1] / entry["module"]).read_text(encoding="utf-8")
        for new in entry["new"]:
            after = source.replace(entry["old"], new)
            changes.append(changed_lines("\n".join(unified_diff(source.splitlines(), after.splitlines(), n=0))))
    return changes


def is_wording(change: list[str]) -> bool:
    """Return whether only the words of a sentence have changed, or how `zip` looks at lengths that are always equal."""
    lines = [re.sub(r", *(strict=\w+)? *\)", ")", line[1:]) for line in change]
    if len(lines) == 2 and re.search(r'"[^"]* [^"]*"', lines[0]):
        lines = [line.replace("XX", "").lower() for line in lines]
    return len(lines) == 2 and lines[0] == lines[1]


def main() -> None:
    """Print every mutant that should have been killed, and how many were."""
    parser = argparse.ArgumentParser(description="Measure what the tests let through.")
    parser.add_argument("package", choices=sorted(LISTS["package"]))
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    equivalent = listed_changes()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        make_copy(copy, options.package)
        mutmut(copy, "run", "none")  # it makes all mutants before it finds that none has this name
        names = sorted(exit_codes(copy))
        chosen = random.Random(options.seed).sample(names, min(options.sample, len(names)))
        mutmut(copy, "run", "--max-children", "1", *chosen)
        codes = exit_codes(copy)
        if all(codes[name] is None for name in chosen):
            sys.exit("mutmut has run no mutant: do all the tests that are listed pass?")
        diffs = [mutmut(copy, "show", name) for name in chosen if codes[name] in (0, 33, None)]  # 33: no test
    missed = [diff for diff in diffs if changed_lines(diff) not in equivalent and not is_wording(changed_lines(diff))]
    killed = len(chosen) - len(diffs)
    print(*missed, f"{options.package}: {len(chosen)} of {len(names)} mutants, seed {options.seed}", sep="\n")
    print(f"{len(diffs) - len(missed)} equivalent; of the others {killed} of {killed + len(missed)} killed")


if __name__ == "__main__":
    main()
