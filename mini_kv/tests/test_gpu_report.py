"""`mini-kv doctor --gpu`: what it says without a GPU, and what it writes with one."""

import importlib.util
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mini_kv.cli import main
from mini_kv.course.commands.gpu_report import Part, obstacle, parts, report, run, run_part

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def card(monkeypatch):
    """A GPU that is not there; its compute capability may be changed."""
    torch = pytest.importorskip("torch", reason="a GPU is found by torch: make test")
    pytest.importorskip("triton", reason="the report is of triton's kernels: make test, or pip install triton")
    found = SimpleNamespace(capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: found.capability)
    return found


def test_without_a_gpu_one_sentence_says_so_and_that_torch_works(capsys, monkeypatch, tmp_path):
    if importlib.util.find_spec("torch") is not None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "report.txt"
    assert main(["doctor", "--gpu", "--to", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and not out.exists()
    [line] = captured.err.splitlines()
    assert line.startswith("mini-kv doctor --gpu: ") and "attention with torch and the rest of the course" in line


def test_a_card_that_is_too_old_is_told_by_its_name(card, capsys):
    card.capability = (7, 5)
    assert main(["doctor", "--gpu"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "A card has compute capability 7.5, and the kernels need 8.0; attention with torch" in line
    card.capability = (8, 0)
    assert obstacle() is None


def test_one_file_has_the_card_and_what_every_part_printed(card, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "report.txt"
    assert run(out, lambda root, part, seconds: f"{part.arguments[-1]} ran") == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("card      A card, compute capability 9.0\nversions  Python ")
    for part in parts("9.0"):
        assert f"\n== {part.title}\n{part.arguments[-1]} ran\n" in text
    assert f"written: {out}. It contains the GPU's name" in capsys.readouterr().out


def test_each_part_gets_the_time_that_is_left(card):
    given = []

    def run_one(root, part, seconds):
        given.append(seconds)
        time.sleep(0.01)
        return ""

    report(ROOT, 100.0, run_one)
    assert given == sorted(given, reverse=True) and given[-1] < 100.0


@pytest.mark.slow
def test_a_part_that_fails_or_takes_too_long_says_so_and_costs_no_other():
    assert run_part(ROOT, Part("", ("-c", "print('half'); raise SystemExit(3)")), 30.0) == "half\n(exit status 3)"
    endless = Part("", ("-uc", "print('half'); import time; time.sleep(60)"))
    assert run_part(ROOT, endless, 1.0) == "half\n(cut off after 1 seconds)"


@pytest.mark.parametrize("part", parts("9.0"), ids=lambda part: part.title)
def test_every_part_is_a_program_that_is_there(part):
    if part.arguments[0] != "-m":
        assert (ROOT / part.arguments[0]).is_file()
    else:
        path = ROOT.joinpath(*part.arguments[1].split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
