"""`mini-kv finale --inside-vllm`: beside a recorded run of vLLM here, and inside vLLM where it is installed."""

import stat
import sys

import pytest

from mini_kv.cli import main
from mini_kv.course.finale.inside_vllm import VARIABLE
from mini_kv.course.finale.inside_vllm.recorded import read, write
from mini_kv.course.finale.inside_vllm.vllm_checks import recorded_check
from mini_kv.course.finale.integration import Finale
from mini_kv.course.finale.steps import Run
from mini_kv.tests.engine.test_own_engine import LABS, REPOSITORY, SOLUTIONS, folder_of, spoil

IN_CORE = ["lab-02", "lab-03", "lab-04", "lab-06", "lab-07", "lab-11"]
EQUAL = "114 steps: the same cache, batches and words as vLLM's"


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def beside_the_recorded_run(folder):
    finale = Finale(str(folder), LABS, [recorded_check()])
    return "\n".join(finale.lines(is_verbose=True))


# The recorded run.


def test_the_recorded_run_of_vllm_shares_preempts_and_leaves_nothing_behind():
    version, seed, run = read()
    assert (version, seed, len(run.steps)) == ("0.32.0", 0, 114)
    assert run.steps[-1].num_preemptions == 11
    assert sum(sum(step.found.values()) for step in run.steps) == 512
    assert not run.steps[-1].frame.tables


def test_mini_kv_makes_each_step_of_the_recorded_run():
    _, _, recorded = read()
    run = Run(recorded.workload)
    assert run.first_divergence(recorded) is None
    assert len(run.steps) == 114


def test_a_run_is_read_as_it_was_written(tmp_path):
    _, _, recorded = read()
    ours = Run(recorded.workload).complete()
    write(ours, "0.32.0", 0, tmp_path / "ours.json")
    _, _, again = read(tmp_path / "ours.json")
    assert again.steps == recorded.steps


def test_without_vllm_the_solutions_are_compared_with_the_recorded_run(capsys, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["finale", "--labs", "solution", "--inside-vllm"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("vLLM is not installed here.")
    assert f"Act 1. A recorded run of vLLM 0.32.0: right, {EQUAL}\n" in told
    assert told.endswith("\nThe act is right.\n")


def test_a_queue_that_puts_all_blocks_to_the_back_is_named_with_the_step(tmp_path):
    folder = folder_of(tmp_path, *IN_CORE)
    front = "_tie(self._head, *blocks, _after(self._head))"
    file = spoil(folder, "lab-02", front, "_tie(_before(self._tail), *blocks, self._tail)")
    told = beside_the_recorded_run(folder)
    assert "differs: the free queue." in told
    assert "\nvLLM:\n" in told and "\nyours:\n" in told
    assert f"With lab-02 FreeKVCacheBlockQueue from mini_kv the run is right: {file}:10" in told


def test_a_scheduler_that_never_preempts_the_last_one_is_named(tmp_path):
    folder = folder_of(tmp_path, *IN_CORE)
    assert (SOLUTIONS / "lab-11" / "solution.py").read_text(encoding="utf-8").count("self.running[-1]") == 1
    spoil(folder, "lab-11", "self.running[-1]", "self.running[0]")
    assert "With lab-11 Scheduler from mini_kv the run is right" in beside_the_recorded_run(folder)


# Bad input.


def test_another_seed_and_a_film_are_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main(["finale", "--inside-vllm", "--seed", "3"]) == 2
    refused = "mini-kv finale: --seed 3: the recorded run has seed 0. Another one needs vLLM.\n"
    assert capsys.readouterr().err == refused
    film = tmp_path / "film.html"
    assert main(["finale", "--inside-vllm", "--to", str(film)]) == 2
    assert "leave out --to or --inside-vllm" in capsys.readouterr().err
    assert not film.exists()


def test_a_python_that_does_not_exist_is_named(capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    assert main(["finale", "--inside-vllm"]) == 2
    assert capsys.readouterr().err == f"mini-kv finale: {VARIABLE} is '/nowhere/python': No such file or directory\n"


@pytest.mark.slow
def test_a_python_without_vllm_is_named(capfd, monkeypatch):
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert main(["finale", "--inside-vllm"]) == 2
    told = f"mini-kv finale: {sys.executable} has no vLLM that can be imported: No module named 'vllm'\n"
    assert capfd.readouterr().err == told


def test_the_python_of_vllm_gets_the_labs_the_seed_and_this_mini_kv(capfd, monkeypatch, tmp_path):
    """An executable in the place of vLLM's Python: it prints what it was called with."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, sys\nprint(os.environ['PYTHONPATH'], *sys.argv[1:])\nsys.exit(1)\n"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(VARIABLE, str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert main(["finale", "--labs", "solution", "--inside-vllm", "--seed", "3"]) == 1
    told = "-m mini_kv.course.finale.inside_vllm --labs solution --seed 3"
    assert capfd.readouterr().out == f"{REPOSITORY} {told}\n"
