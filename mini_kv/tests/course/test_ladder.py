"""lab-10's ladder: the answers of its forecast are measured, and its lanes are drawn, right or wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.course.given.kernels.compiled import compile_calls
from mini_kv.course.given.kernels.interpreter import interpreted
from mini_kv.course.given.kernels.memory_access import KernelMemory
from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.implementation import load_file
from mini_kv.course.labkit.lab import load_lab

ROOT = Path(__file__).parents[3]
LAB = load_lab(ROOT / "labs" / "lab-10-ladder")


@pytest.fixture
def torch():
    """PyTorch; and Triton must be there."""
    if LAB.missing is not None:
        pytest.skip(LAB.missing)
    import torch

    return torch


def answers() -> dict[str, str]:
    """Return the answers to the lab's predictions, by question."""
    return {question.id: question.answer for question in LAB.predictions}


def load_mutant(name: str, folder: Path):
    """Return the solution with one of the wrong versions, as a module for the interpreter."""
    mutant = next(mutant for mutant in load_mutants(LAB) if mutant.id == name)
    file = folder / "mutant.py"
    file.write_text(mutant.apply((LAB.solutions / "solution.py").read_text("utf-8")), "utf-8")
    with interpreted():
        return load_file(file)


@pytest.mark.slow
def test_the_forecast_is_measured(tmp_path: Path, torch):
    """Idle lanes, a softmax whose empty lanes hold zero, keys loaded for each head, bits per load."""
    target, source = torch.zeros(21), torch.zeros(21)
    memory = KernelMemory(target=target, source=source)
    with interpreted():
        solution = load_file(LAB.solutions / "solution.py")
    with memory.watch():
        solution.masked_copy(target, source, 8)
    idle = int((~memory.accesses[-1].is_active).sum())

    out = torch.zeros(1, 5)
    with KernelMemory().watch():
        load_mutant("zero-is-nothing", tmp_path).row_softmax(out, torch.zeros(1, 5))

    tensors = {"out": torch.zeros(2, 11), "query": torch.zeros(2, 6), "keys": torch.zeros(11, 6)}
    memory_of_keys = KernelMemory(**tensors)
    with memory_of_keys.watch():
        load_mutant("a-load-a-head", tmp_path).shared_load(*tensors.values(), 8)

    rows = torch.zeros(4, 1000)
    calls = {"masked_copy": [torch.zeros(4096), torch.zeros(4096), 1024], "row_softmax": [rows, rows]}
    found = compile_calls(str(LAB.solutions / "solution.py"), calls)
    assert {*found["masked_copy"].kernels[0].loads} == {128}
    assert answers() == {
        "how-many-lanes-do-nothing": f"{idle}",
        "a-lane-that-holds-zero": f"{out[0, 0]:g}",
        "keys-for-two-heads": f"{memory_of_keys.lanes_read()['keys']}",
        "how-wide-is-a-load": " ".join({f"{bits}" for bits in found["row_softmax"].kernels[0].loads}),
    }


@pytest.mark.slow
def test_lanes_of_right_and_of_wrong_kernels(tmp_path: Path, torch):
    """The README's picture, from a test that passes; a gather that keeps the tile's lanes, from one that fails."""
    told = play("story", "10-ladder", "test_3", "--plain", LAB_IMPL="solution")
    picture = (LAB.folder / "README.md").read_text("utf-8").partition("```text\n")[2].partition("```")[0]
    assert picture in told
    load_mutant("no-other", tmp_path)
    told = play("story", "10-ladder", "test_6", "--plain", LAB_IMPL=str(tmp_path / "mutant.py"))
    assert "program (0,) reads  scores  ooooo...\nprogram (0,) writes out     ooooo...\n" in told
    assert "got       [nan, nan, nan, nan, nan]" in told


def play(*arguments: str, **environment: str) -> str:
    """Return what `mini-kv` prints."""
    command = [sys.executable, "-m", "mini_kv.cli", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    ).stdout
