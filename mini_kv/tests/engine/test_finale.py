"""`mini-kv finale`: rush hours through the learner's parts, and the first step that differs from the engine's own."""

import re

import pytest

from mini_kv.cli import main
from mini_kv.labkit.audit import load_mutants
from mini_kv.labkit.own_engine.finale import Act, scenes
from mini_kv.labkit.own_engine.rush_hour import Hour
from mini_kv.tests.engine.test_own_engine import LABS, NEEDS_TRITON, REPOSITORY, SOLUTIONS, folder_of

PURE = [lab.lab_id for lab in LABS if any(part.goes_to for part in lab.parts) and lab.needs != "K"]
"""The labs with parts in the engine, but for the kernels."""


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def played(hour):
    """Return a run of this hour on the engine's own parts."""
    act = Act(hour)
    assert [step.number for step in act.run()] == [*range(1, len(act.steps) + 1)]
    assert act.error is None
    return act


def with_mutant(tmp_path, lab_id, mutant_id):
    """Return a folder with all solutions, one of them with a mutant."""
    folder = folder_of(tmp_path, *PURE)
    [mutant] = [each for each in load_mutants(lab_of(lab_id)) if each.id == mutant_id]
    file = folder / f"{lab_id}.py"
    file.write_text(mutant.apply((SOLUTIONS / lab_id / "solution.py").read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def lab_of(lab_id):
    return next(lab for lab in LABS if lab.lab_id == lab_id)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rush_hour_shares_evicts_and_preempts_and_leaves_nothing_behind(seed):
    for scene in scenes(seed)[:3]:
        act = played(scene.hour)
        assert act.rush is not None
        engine = act.rush.engine
        assert engine.scheduler.num_preemptions > 0
        assert engine.stats.recent_requests.hit_rate > 0.5
        assert engine.kv_cache_manager.block_pool.num_free_blocks == (scene.hour.config.num_blocks or 0) - 1
        assert len(act.rush.texts) == len(scene.hour.visits())


def test_the_same_seed_makes_the_same_hour_and_another_seed_another_one():
    one, other = played(Hour(0)), played(Hour(1))
    assert one.again(one.own, one.limit).agrees_with(one)
    assert not one.again(one.own, one.limit).agrees_with(other)


def test_the_solutions_pass_all_acts_and_get_their_numbers(capsys, tmp_path):
    film = tmp_path / "film.html"
    assert main(["finale", "--labs", str(folder_of(tmp_path, *PURE)), "--film", str(film)]) == 0
    told = capsys.readouterr().out
    assert re.findall(r"Act (\d)\. .*: (\d+) parts", told) == [("1", "15"), ("2", "17"), ("3", "13"), ("4", "15")]
    assert told.count("the same cache, batches, words and logits as mini_kv's.") == 4
    rows = dict(re.findall(r"^(\w[\w ]*?) +\d+ +(\d+) +\d+% +\d+ +[\d.]+$", told, re.MULTILINE))
    assert list(rows) == ["yours", "no prefix caching", "rows of 234 tokens", "one at a time"]
    assert int(rows["yours"]) * 2 < int(rows["no prefix caching"])
    assert told.endswith(f"wrote {film}\n")
    assert "The rush hour of seed 0" in film.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_TRITON is not None, reason=str(NEEDS_TRITON))
def test_the_solutions_with_their_kernels_pass_all_acts(capsys):
    assert main(["finale", "--labs", "solution"]) == 0
    assert "Act 4. Six requests on your kernels: 17 parts" in capsys.readouterr().out


def test_a_cache_that_finds_nothing_says_the_same_words_and_does_not_pass(capsys, tmp_path):
    folder = folder_of(tmp_path, *PURE)
    file = folder / "lab-07.py"
    text = file.read_text(encoding="utf-8")
    old = "max_cache_hit_length = "
    assert text.count(old) == 1
    file.write_text(text.replace(old, f"{old}0 * "), encoding="utf-8")
    assert main(["finale", "--labs", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "differs: the tokens that were found." in told
    assert f"With lab-07 KVCacheManager from mini_kv the run is right: {file}:" in told
