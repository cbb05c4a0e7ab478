"""What is asked of both Pythons, the browser's and this one: everything that a page about mini_kv would compute.

`python driver.py` prints the answers as JSON; `run.mjs` does the same in Pyodide. The working directory is a copy of
the repository. Nothing here may differ between the two, so paths are relative and the terminal's width is fixed.
"""

import contextlib
import importlib
import importlib.abc
import io
import json
import os
import pkgutil
import platform
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

LAB = Path("labs/lab-05")
SOLUTIONS = Path("solutions/lab-05")
WRONG = ("never-looks", "hit-counted-twice")
"""Wrong versions of `mutants.toml`: one gives a wrong answer, one makes the engine raise at a line of the learner's."""

HEAVY = frozenset({"torch", "numpy", "triton", "xxhash"})


class Wanted(importlib.abc.MetaPathFinder):
    """Notes who asks for a heavy package, installed or not: an import inside `try` would leave no other mark."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        self.names |= {fullname.partition(".")[0]} & HEAVY


def answers() -> dict[str, Any]:
    """Return everything; only `python`, `seconds` and what pytest says of the two may differ."""
    wanted = Wanted()
    sys.meta_path.insert(0, wanted)
    started = time.perf_counter()
    result: dict[str, Any] = {"modules": modules()}
    imported = time.perf_counter()
    result |= {"scenarios": scenarios(), "puzzles": puzzles(), "sha256": digests("sha256")}
    told = time.perf_counter()
    result["labs"] = {name: lab(name) for name in ("solution", "starter", *WRONG)}
    ran = time.perf_counter()
    result["helps"] = helps()
    result["wanted"] = sorted(wanted.names)
    result["xxh3_128"] = digests("xxh3_128")
    result["wanted for xxh3_128"] = sorted(wanted.names)
    result["python"] = [sys.implementation.name, platform.python_version(), sys.platform, sys.maxsize]
    result["seconds"] = {"import": imported - started, "stories and digests": told - imported, "lab-05": ran - told}
    return result


def modules() -> list[str]:
    """Import all of core, story and labkit; return the names."""
    names = ["mini_kv", "mini_kv.story.text", "mini_kv.story.terminal"]
    for package in ("mini_kv.core", "mini_kv.story", "mini_kv.course.labkit"):
        path = importlib.import_module(package).__path__
        names += [package, *(f"{package}.{module.name}" for module in pkgutil.iter_modules(path))]
    for name in names:
        importlib.import_module(name)
    return sorted(names)


def scenarios() -> dict[str, Any]:
    """Play every scenario: story, frame and drawing per step, and the whole as the terminal shows it."""
    from mini_kv.story.scenario import ScenarioPlayer, load_scenario, scenario_names
    from mini_kv.story.terminal import draw_step, play_in_terminal

    played = {}
    for name in scenario_names():
        scenario = load_scenario(name)
        steps = list(ScenarioPlayer(scenario).play())
        terminal = io.StringIO()
        play_in_terminal(scenario, terminal)
        played[name] = {
            "stories": [step.lines for step in steps],
            "expected stories": [list(step.step.expect) for step in steps],
            "frames": [asdict(step.frame) for step in steps],
            "drawings": [draw_step(step, str(number), colour=True) for number, step in enumerate(steps, start=1)],
            "terminal": terminal.getvalue(),
        }
    return played


def puzzles() -> dict[str, Any]:
    """Make all calls of every puzzle that can be made; return the story that the page draws, and what is measured."""
    from mini_kv.story.figure import puzzle_data
    from mini_kv.story.puzzle import PuzzlePlayer, load_puzzle, puzzle_names

    played = {}
    for name in puzzle_names():
        player = PuzzlePlayer(load_puzzle(name))
        for call in player.puzzle.calls:
            with contextlib.suppress(ValueError):
                player.call(call)
        measured = {measure: player.measure(measure) for measure, _ in player.puzzle.reach}
        played[name] = {"calls": player.calls, "story": puzzle_data(player), "measured": measured}
    return played


def digests(hash_name: str) -> dict[str, list[str]]:
    """Return the block hashes of the golden cases that use this function, by the case's name."""
    from mini_kv.core.block_hash import get_hash_function, get_request_block_hasher
    from mini_kv.core.request import LoRARequest, MultiModalFeature, Request

    golden = json.loads(Path("mini_kv/tests/golden_block_hashes.json").read_text(encoding="ascii"))
    names = {}
    for case in golden:
        if case["hash"] != hash_name:
            continue
        hasher = get_request_block_hasher(
            case["block_size"], get_hash_function(hash_name), case["model_fingerprint"], case["weights_epoch"]
        )
        request = Request(
            "golden",
            case["token_ids"],
            block_hasher=hasher,
            cache_salt=case["cache_salt"],
            lora_request=LoRARequest(*case["lora"]) if case["lora"] else None,
            mm_features=[MultiModalFeature(*image) for image in case["images"]],
        )
        names[case["name"]] = [block_hash.hex() for block_hash in request.block_hashes]
    return names


def lab(name: str) -> dict[str, Any]:
    """Run the lab's tests with pytest on the solution, the starter or a mutant; return exit status and report."""
    import pytest

    choice = write_mutant(name) if name in WRONG else name
    os.environ |= {"LAB_IMPL": choice, "COLUMNS": "100"}
    report = io.StringIO()
    with contextlib.redirect_stdout(report):
        # As in audit.py: the plugin is imported already and holds no assertion to rewrite. A page needs no cache.
        options = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = pytest.main([str(LAB), *options])
    return {"status": int(status), "report": report.getvalue().splitlines()}


def write_mutant(name: str) -> str:
    """Write the wrong version of the solution to a file; return its path."""
    mutants = tomllib.loads((SOLUTIONS / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    (mutant,) = (mutant for mutant in mutants if mutant["id"] == name)
    right = (SOLUTIONS / "solution.py").read_text(encoding="utf-8")
    file = Path(f"{name}.py")
    file.write_text(right.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    return str(file)


def helps() -> dict[str, list[str]]:
    """Return what the learner's commands say after these runs: progress, hints, questions, the story of a test."""
    from mini_kv.course.commands.hint_command import give_hint
    from mini_kv.course.commands.predict_command import ask_predictions
    from mini_kv.course.commands.status_command import status_lines
    from mini_kv.course.commands.story_command import tell_test
    from mini_kv.course.labkit.lab import load_lab
    from mini_kv.course.labkit.learner_state import read_state

    lab_05 = load_lab(LAB.resolve())
    out = {name: io.StringIO() for name in ("hint", "predict", "story")}
    give_hint(lab_05, lab_05.functions[0].name, out["hint"])
    ask_predictions(lab_05, out["predict"], io.StringIO("28\n" * 20))  # right for some, wrong for most
    os.environ["LAB_IMPL"] = f"{WRONG[0]}.py"
    tell_test(lab_05, "test_2", out["story"], None)
    status = status_lines([lab_05], read_state(lab_05.state, "progress"))
    return {"status": status} | {name: text.getvalue().splitlines() for name, text in out.items()}


if __name__ == "__main__":
    print(json.dumps(answers()))
