"""`mini-kv finale`: rush hours through the learner's parts, and the first step that differs from the engine's own."""

import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from mini_kv.cli import main
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.finale.arrivals import arrivals
from mini_kv.course.finale.blame import Search
from mini_kv.course.finale.hour_workload import HourWorkload
from mini_kv.course.finale.integration import WINDOWS, Finale, model_checks, random_checks
from mini_kv.course.finale.learner_files import Found, last_line, own_parts, short
from mini_kv.course.finale.model_workload import ModelWorkload
from mini_kv.course.finale.offload_workload import OffloadWorkload
from mini_kv.course.finale.random_workload import RandomWorkload, random_workloads
from mini_kv.course.finale.steps import Run
from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import LabPart
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError
from mini_kv.installer import pip
from mini_kv.story.edge import EdgeKind
from mini_kv.tests.engine.test_own_engine import LABS, NEEDS_TRITON, REPOSITORY, SOLUTIONS, folder_of
from mini_kv.tests.tree import drawn

PURE = [lab.lab_id for lab in LABS if any(part.goes_to for part in lab.parts) and lab.needs != "K"]
"""The labs with parts in the engine, but for the kernels."""
ON_DICE = [lab.lab_id for lab in LABS if any(part.goes_to for part in lab.parts) and lab.needs == "C"]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def finale_of(folder, num_hours=60):
    """Return the acts on dice with the parts of a folder."""
    finale = Finale(str(folder), LABS, random_checks(0, num_hours))
    return finale, "\n".join(finale.lines())


def until_the_first_fault(folder):
    """Return what is said of the first act that is wrong, or nothing if all acts on dice are right."""
    played = Finale(str(folder), LABS, random_checks(0, 18)).play()
    return next(("\n".join(act.difference.said) for act in played if act.difference is not None), "")


def folder_with(tmp_path, lab_id, text):
    """Return a folder with all solutions, and this text as the file of one lab."""
    folder = folder_of(tmp_path, *ON_DICE)
    (folder / f"{lab_id}.py").write_text(text, encoding="utf-8")
    return folder


def solution(lab_id):
    return (SOLUTIONS / lab_id / "solution.py").read_text(encoding="utf-8")


# The hours.


def test_hours_on_dice_meet_what_an_engine_meets():
    counts: Counter[str] = Counter()
    for workload in [*random_workloads(0, 20), *random_workloads(0, 20, WINDOWS)]:
        run = Run(workload).complete()
        ids = [
            name for step in run.steps for line in step.messages for name in [line.split(":")[0]] if "tokens [" in line
        ]
        counts["ids that come again"] += len(ids) > len(set(ids))
        counts["hits"] += sum(bool(found) for step in run.steps for found in step.found.values())
        counts["preemptions"] += run.steps[-1].num_preemptions
        counts["waits"] += sum(len(step.waiting) for step in run.steps)
        edges = [edge for step in run.steps for span in step.spans for edge in span.edges]
        counts.update(edge.kind for edge in edges)
        assert not run.steps[-1].frame.tables
        assert len(run.steps[-1].frame.free_order) == len(run.steps[-1].frame.blocks) - 1
    kinds = (EdgeKind.EVICTED, EdgeKind.REVIVED, EdgeKind.SHARED, EdgeKind.UNSHARED)
    for what in ("ids that come again", "hits", "preemptions", "waits", *kinds):
        assert counts[what] >= 30, what
    assert counts[EdgeKind.ILLEGAL] == 0


@pytest.mark.parametrize("windows", [False, True])
def test_the_hour_of_the_model_shares_and_preempts_and_leaves_nothing_behind(windows):
    run = Run(ModelWorkload(windows=windows, num_blocks=106 if windows else 43)).complete()
    assert run.steps[-1].num_preemptions > 0
    assert sum(sum(step.found.values()) for step in run.steps) > 800
    assert not run.steps[-1].frame.tables


@pytest.mark.parametrize("kind", [RandomWorkload, ModelWorkload])
def test_the_same_seed_makes_the_same_hour_and_another_seed_another_one(kind):
    one, other = Run(kind(0)).complete(), Run(kind(1)).complete()
    assert one.again(one.own, one.limit).agrees_with(one)
    assert not one.again(one.own, one.limit).agrees_with(other)


# Right parts.

NEXT = "What is next: the whole cache from an empty file, labs/lab-17, in any language."


TITLES = [
    "Prompts without a scheduler",
    "Dice instead of a model",
    "Dice, and layers with windows",
    "Dice, and drafts",
    "Dice, and an eviction policy",
    "Prompts, and a second home",
    "Forks and windows, and no cache",
    "A cache from an empty file",
    "A model",
    "A model with windows",
    "Several answers to one prompt",
    "A model with large scores",
    "Six requests on your kernels",
]


NUMBERS = {
    "yours": [81, 1037, 1184, 2, 104],
    "no prefix caching": [110, 2263, 0, 9, 568],
    "a row per request": [587, 1959, 0, 0, 6844],
    "one at a time": [582, 1047, 912, 0, 6834],
}
"""Steps, tokens computed and found, preemptions, and waiting requests summed over the steps."""


def numbers_told(told):
    """Return the table at the end: the numbers of each row."""
    rows = re.findall(r"^(\w[\w ]*?) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$", told, re.MULTILINE)
    return {name: [int(number) for number in numbers] for name, *numbers in rows}


def test_the_solutions_pass_all_acts_and_get_their_numbers(capsys, tmp_path):
    film = tmp_path / "film.html"
    folder = folder_of(tmp_path, *PURE)
    assert main(["finale", "--labs", str(folder), "--hours", "3", "--to", str(film)]) == 0
    told = capsys.readouterr().out
    assert re.findall(r"^Act \d+\. (.*): right, ", told, re.MULTILINE) == TITLES
    assert told.count("the same cache, batches and tokens as mini_kv's") == 7
    assert told.count("240 steps: the same hits, tables, queue and hashes as mini_kv's") == 1
    assert told.count("the same cache, batches, words and logits as mini_kv's") == 5
    assert numbers_told(told) == NUMBERS
    assert told.endswith(f"\nAll 13 acts are right.\n{NEXT}\nopen {film} in a browser\n")
    assert "The rush hour of seed 0" in film.read_text(encoding="utf-8")


def test_the_acts_on_dice_play_where_torch_cannot_be_imported_and_end_with_the_learners_numbers(tmp_path):
    program = "import sys; sys.modules['torch'] = None; from mini_kv.cli import main; sys.exit(main(sys.argv[1:]))"
    film = tmp_path / "film.html"
    words = ["finale", "--labs", str(folder_of(tmp_path, *ON_DICE)), "--hours", "3", "--to", str(film)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    without = f"The acts with a model need PyTorch: {pip()} install torch\n"
    assert done.stdout.endswith(f"\nAll 8 acts are right.\n{without}{NEXT}\nopen {film} in a browser\n")
    assert numbers_told(done.stdout) == NUMBERS
    assert "Random requests, seed 0" in film.read_text(encoding="utf-8")


def test_engines_with_less_answer_the_same_requests_with_the_same_words():
    """Two clients leave at a step of the clock, so their answers are as long as the engine is quick."""
    hour = HourWorkload(0)
    asked = {arrival.request_id: arrival.leaves for arrival in arrivals(0)}
    right = Run(hour).complete().answers
    for workload in hour.others().values():
        answers = Run(workload).complete().answers
        assert {name: answers.get(name) for name in asked if asked[name] is None} == {
            name: right[name] for name in asked if asked[name] is None
        }


@pytest.mark.slow
@pytest.mark.parametrize("lab_id", ON_DICE)
def test_other_right_ways_make_the_same_steps(lab_id, tmp_path):
    alternatives = sorted((SOLUTIONS / lab_id).glob("alt_*.py"))
    assert len(alternatives) >= 2
    for file in alternatives:
        finale, told = finale_of(folder_with(tmp_path, lab_id, file.read_text(encoding="utf-8")), num_hours=3)
        assert finale.is_right, f"{file.name}\n{told}"


@pytest.mark.slow
@pytest.mark.skipif(NEEDS_TRITON is not None, reason=str(NEEDS_TRITON))
def test_the_solutions_with_their_kernels_pass_all_acts(capsys):
    assert main(["finale", "--labs", "solution", "--hours", "1"]) == 0
    told = capsys.readouterr().out
    assert f"{os.path.join('solutions', 'lab-10', 'solution.py')}: reshape_and_cache, paged_attention_decode" in told
    assert "Act 13. Six requests on your kernels: right" in told


# What is played.


def counted(function, name, calls):
    """Return a function that does the same and counts its calls."""

    @functools.wraps(function)
    def counting(*args, **options):
        calls[name] += 1
        return function(*args, **options)

    return counting


def counted_class(value, part, calls):
    """Return a subclass that counts how often each of the part's methods is taken from an object."""
    names = {name.rpartition(".")[2]: f"{part.lab_id} {name}" for name in part.needs or [part.name]}

    class Counting(value):  # type: ignore[misc,valid-type]  # a class that is known when the test runs
        def __init__(self, *args, **options):
            calls[names.get("__init__", "")] += 1
            super().__init__(*args, **options)

        def __getattribute__(self, name):
            calls[names.get(name, "")] += 1
            return super().__getattribute__(name)

    return Counting


def with_counts(found, calls):
    """Return a part that counts the calls of each of its methods, and of each function that it calls."""
    part, value = found.part, found.value
    if isinstance(value, type):
        return replace(found, value=counted_class(value, part, calls))
    for name in part.calls:
        value.__globals__[name] = counted(value.__globals__[name], f"{part.lab_id} {name}", calls)
    return replace(found, value=counted(value, str(part), calls))


def calls_in(checks):
    """Play the first hours of these acts with the solutions. Return the calls of each part, method and function."""
    calls: Counter[str] = Counter()
    for check in checks:
        found = [with_counts(each, calls) for each in check.parts("solution", LABS, REPOSITORY) if each.value]
        for workload in check.workloads[:3]:
            assert Run(workload, own_parts(found)).complete().error is None
    return calls


def never_called(labs, calls):
    """Return what of these labs' parts no act called: the names of methods and functions."""
    names: set[str] = set()
    for part in (part for lab in labs for part in lab.parts if not part.never):
        needed = part.needs if part.methods else (part.name, *part.calls)
        names |= {f"{part.lab_id} {name}" for name in needed}
    return {name for name in names if not calls[name]}


def without_a_place(labs):
    """Return the names that a run lists as not played, with the reason."""
    return {str(part) for lab in labs for part in lab.parts if part.never}


def test_each_part_and_method_is_called_in_an_act_or_listed_as_not_played():
    labs = [lab for lab in LABS if lab.needs == "C"]
    silent = never_called(labs, calls_in(random_checks(0, 9)))
    assert silent == {"lab-02 FreeKVCacheBlockQueue.append", "lab-02 FreeKVCacheBlockQueue.popleft"}
    assert silent <= without_a_place(labs)


@pytest.mark.slow
def test_each_function_on_tensors_is_called_in_an_act_with_a_model():
    labs = [lab for lab in LABS if lab.needs == "T"]
    assert never_called(labs, calls_in(model_checks(0)[:2])) == set()


# Wrong parts.


def test_each_act_plays_an_hour_however_few_there_are(tmp_path):
    wrong = "\n\ndef prefill(kv, token_ids, request_id):\n    return 1 // 0\n"
    (tmp_path / "lab-05.py").write_text(solution("lab-05") + wrong, encoding="utf-8")
    finale, told = finale_of(tmp_path, num_hours=1)
    assert "ZeroDivisionError" in told
    assert not finale.is_right


def test_a_cache_that_finds_nothing_is_drawn_beside_the_engines_and_named(tmp_path):
    old = "max_cache_hit_length = "
    assert solution("lab-07").count(old) == 1
    folder = folder_with(tmp_path, "lab-07", solution("lab-07").replace(old, f"{old}0 * "))
    finale, told = finale_of(folder, num_hours=3)
    assert not finale.is_right
    assert told.endswith("\n2 of 8 acts are right.")
    assert "differs: the tokens that were found." in told and "yours:" not in told
    both_sides = "\n".join(Finale(str(folder), LABS, random_checks(0, 3)).lines(is_verbose=True))
    assert "\nmini_kv:\n  lookup" in both_sides and "\nyours:\n  lookup" in both_sides
    assert f"With lab-07 KVCacheManager from mini_kv the run is right: {folder / 'lab-07.py'}:" in told


def test_an_error_is_reported_with_the_learners_line(tmp_path):
    text = solution("lab-11").replace("        self.num_preemptions += 1\n", "        self.num_preemption += 1\n")
    folder = folder_with(tmp_path, "lab-11", text)
    finale, told = finale_of(folder, num_hours=6)
    assert not finale.is_right
    assert "Your engine stopped in step" in told and "AttributeError" in told
    assert re.search(r"at .*lab-11\.py:\d+  self\.num_preemption \+= 1", told)


def test_an_engine_that_cannot_be_built_is_drawn_without_steps_beside_the_other(capsys, tmp_path):
    wrong = solution("lab-02").replace("        self._head = KVCacheBlock(-1)\n", "        raise KeyError('head')\n", 1)
    (tmp_path / "lab-02.py").write_text(wrong, encoding="utf-8")
    film = tmp_path / "film.html"
    assert main(["finale", "--labs", str(tmp_path), "--hours", "1", "--to", str(film)]) == 1
    told = capsys.readouterr().out
    assert "Your engine stopped in step 1: KeyError" in told
    assert told.count("With lab-02 FreeKVCacheBlockQueue from mini_kv the run is right") == 1
    stories = re.findall(r'<script type="application/json">(.*?)</script>', film.read_text(encoding="utf-8"))
    assert [len(json.loads(story)["steps"]) for story in stories] == [1, 0]


def loop(*_args, **_options):
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


class NeverBuilt(Scheduler):
    __init__ = loop


class NeverAdds(Scheduler):
    add_request = loop


class NeverPlans(Scheduler):
    schedule = loop


class NeverUpdates(Scheduler):
    update_from_output = loop


@pytest.mark.parametrize("endless", [NeverBuilt, NeverAdds, NeverPlans, NeverUpdates])
def test_a_part_that_never_returns_is_ended_at_its_line_and_named(endless):
    workload = RandomWorkload(0)
    found = Found(LabPart("lab-11", "Scheduler", "scheduler"), endless, __file__)
    run = Run(workload, OwnParts(scheduler=endless), limit=0.2)
    reference = Run(workload).complete()
    divergence = run.first_divergence(reference)
    assert divergence is not None and divergence.what == "it ends early"
    assert isinstance(run.error, TookTooLongError)
    line = last_line(run.error, {__file__})
    assert line is not None and line[2] in ("while True:", "pass", "try:", "continue")
    blame = Search(run, reference, {"lab-11 Scheduler": found}).blame()
    assert blame.names == ["lab-11 Scheduler"]
    assert blame.lines == [f"With lab-11 Scheduler from mini_kv the run is right: {short(__file__)}:1"]


def test_who_watches_is_told_of_each_run_and_of_each_step_with_a_model(tmp_path):
    folder = folder_of(tmp_path, *PURE)
    told: list[str] = []
    checks = [random_checks(0, 6)[0], replace(model_checks(0)[3], workloads=[ModelWorkload(num_requests=1)])]
    finale = Finale(str(folder), LABS, checks, told.append)
    assert [act.verdict for act in finale.play()] == ["right", "right"]
    assert told[:3] == ["Act 1, run 1", "Act 1, run 2", "Act 2, run 1"]
    assert told[3:] == [f"Act 2, run 1, step {number + 1}" for number in range(len(told) - 3)]


def test_a_part_that_is_not_written_is_named_and_the_engine_plays_it(tmp_path):
    starter = (REPOSITORY / "labs" / "lab-11" / "starter.py").read_text(encoding="utf-8")
    finale, told = finale_of(folder_with(tmp_path, "lab-11", starter), num_hours=3)
    assert finale.is_right
    assert re.search(r"lab-11\.py: Scheduler \(mini_kv's: .*still TODO\)", told)


SAMPLE = {
    "lab-01": "block-of-keys",
    "lab-02": (
        "count-starts-at-zero one-way-links numbers-for-blocks taken-in-reverse one-call-one-count "
        "each-before-the-last half-a-gap"
    ),
    "lab-03": (
        "percent no-first-reference only-the-held-are-counted freed-for-all each-in-front-of-the-last "
        "null-block-is-a-double-free"
    ),
    "lab-04": ("no-parent salt-in-the-last-block partial-block-hashed hasher-has-a-memory first-block-is-the-parent"),
    "lab-05": (
        "never-looks asks-for-all-tokens not-marked-computed returns-new-tokens room-to-grow "
        "only-shared-blocks tail-first per-request"
    ),
    "lab-06": (
        "room-for-the-answer cached-a-step-later hit-to-be-cached cached-one-token-late all-of-them-again "
        "still-on-the-list one-token-early pool-will-say-no revived-hit-is-free"
    ),
    "lab-07": (
        "hashes-from-the-start duplicate-skipped hashed-but-not-entered rounded-up no-cap "
        "cap-on-the-count-only bare-blocks misses-for-queries whole-blocks-only"
    ),
    "lab-11": (
        "hit-counted-twice one-seat-too-many front-of-the-batch oldest-gives-way walks-the-old-batch "
        "nobody-gives-way prompt-only budget-for-each freed-twice"
    ),
    "lab-12": "rounded-up head-first cached-are-kept",
    "lab-13": "uses-outlive-their-content held-blocks-are-not-counted",
    "lab-14": "leased-goes damaged-stays one-lease-for-all nothing-goes-down",
}
"""Wrong versions of the labs. Each breaks a contract that a run can reach. Half of a lab's are played, by the tree.

With MINI_KV_LONG all of them.
"""


@pytest.mark.slow
@pytest.mark.parametrize("lab_id", SAMPLE)
def test_wrong_versions_are_detected_and_their_lab_is_named(lab_id, tmp_path):
    mutants = {mutant.id: mutant for mutant in load_mutants(next(lab for lab in LABS if lab.lab_id == lab_id))}
    names = SAMPLE[lab_id].split()
    if not os.environ.get("MINI_KV_LONG"):
        names = names[drawn(f"wrong versions of {lab_id}", min(2, len(names))) :: 2]
    for name in names:
        told = until_the_first_fault(folder_with(tmp_path, lab_id, mutants[name].apply(solution(lab_id))))
        assert re.search(rf"^(With|  lab)[^\n]*{lab_id}[^\n]*:\d+$", told, re.MULTILINE), f"{name}\n{told}"


def test_a_softmax_without_its_maximum_is_wrong_only_where_scores_are_large(tmp_path):
    lab = next(lab for lab in LABS if lab.lab_id == "lab-09")
    wrong = next(mutant for mutant in load_mutants(lab) if mutant.id == "no-maximum").apply(solution("lab-09"))
    (tmp_path / "lab-09.py").write_text(wrong, encoding="utf-8")
    checks = [check for check in model_checks(0) if check.title in ("A model", "A model with large scores")]
    finale = Finale(str(tmp_path), LABS, checks)
    told = "\n".join(finale.lines())
    assert [act.verdict for act in finale.acts] == ["right", "differs"]
    assert re.search(r"With all of lab-09 from mini_kv the run is right|With lab-09 ", told)


# The command.


def test_before_the_first_lab_no_act_is_played(tmp_path):
    finale, told = finale_of(tmp_path, num_hours=3)
    assert (finale.num_played, finale.is_right, finale.story) == (0, True, None)
    assert [act.verdict for act in finale.acts] == ["not played"] * 8
    assert told.endswith("No part is yours yet. Begin with a lab: mini-kv run 01")


def test_a_folder_that_is_not_there_is_refused(capsys):
    assert main(["finale", "--labs", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "mini-kv finale: --labs 'nowhere': it is neither starter nor solution, nor a folder\n"
    )


def test_a_film_that_cannot_be_written_is_refused_before_the_first_act(capsys, tmp_path):
    assert main(["finale", "--labs", "solution", "--to", str(tmp_path / "no" / "film.html")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mini-kv finale: ") and err.endswith("cannot be written: No such file or directory\n")


def test_contents_go_down_to_the_second_home_and_come_up_again():
    lines = [
        line for seed in range(20) for step in Run(OffloadWorkload(seed)).complete().steps for line in step.messages
    ]
    for what in ("goes down: True", "goes down: False", "leased: b", "leased: None", "released: yes", "ValueError"):
        assert sum(what in line for line in lines) >= 30, what


def test_a_wrong_second_home_is_shown_and_its_function_is_named(tmp_path):
    text = solution("lab-14").replace("entry.num_leases == 0), None)", "True), None)")
    folder = folder_with(tmp_path, "lab-14", text)
    finale, told = finale_of(folder, num_hours=6)
    assert not finale.is_right
    assert re.search(r"With lab-14 store from mini_kv the run is right: .*lab-14\.py:\d+", told)


def test_contents_that_promote_moves_down_in_another_order_are_a_difference(tmp_path):
    old = "for key, payload in going_down:"
    assert solution("lab-14").count(old) == 1
    (tmp_path / "lab-14.py").write_text(solution("lab-14").replace(old, "for key, payload in reversed(going_down):"))
    check = next(check for check in random_checks(0) if check.title == "Prompts, and a second home")
    told = "\n".join(Finale(str(tmp_path), LABS, [check]).lines())
    assert "differs: the second home." in told
    assert "With lab-14 promote from mini_kv the run is right" in told


def test_the_acts_have_other_hours_with_another_seed():
    first, second = ([check.workloads for check in [*random_checks(seed), *model_checks(seed)]] for seed in (0, 1))
    assert all(not set(a) & set(b) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
def test_a_torch_that_is_installed_in_part_leaves_the_acts_with_a_model_out(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libtorch.so is missing')", encoding="utf-8")
    command = [sys.executable, "-m", "mini_kv", "finale", "--labs", "solution", "--hours", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = "PyTorch is installed in part (libtorch.so is missing): the acts with a model are left out."
    assert done.stdout.splitlines()[0] == said


def test_a_wrong_cache_behind_messages_has_no_pool_to_draw(capsys, tmp_path):
    lab = next(lab for lab in LABS if lab.lab_id == "lab-17")
    wrong = next(mutant for mutant in load_mutants(lab) if mutant.id == "newest-in-first-out").apply(solution("lab-17"))
    (tmp_path / "lab-17.py").write_text(wrong, encoding="utf-8")
    film = tmp_path / "film.html"
    assert main(["finale", "--labs", str(tmp_path), "--hours", "3", "--to", str(film)]) == 1
    told = capsys.readouterr().out
    assert "Act 8. A cache from an empty file: differs" in told
    assert "\nNo act has a pool to draw, so nothing is written to " in told
