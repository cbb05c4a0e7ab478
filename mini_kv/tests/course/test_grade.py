"""`mini-kv class grade`: no way of cheating raises a mark, changes another's, or ends in exit 0."""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mini_kv.course.commands.grade_command import run
from mini_kv.course.grading.grade import Grader, Mark, _Ran
from mini_kv.course.grading.gradebook import first_message
from mini_kv.course.grading.handins import (
    MAX_BYTES,
    MAX_PAGES,
    HandIn,
    find_handins,
    printable,
    read_handin,
    read_roster,
)
from mini_kv.course.grading.hidden_tests import Copy, with_canaries
from mini_kv.course.grading.isolation import Sandbox, find_sandbox
from mini_kv.course.grading.static_check import objections
from mini_kv.course.labkit.lab import all_labs, find_lab
from mini_kv.tests.course.attempts import all_attempts
from mini_kv.tests.course.cheats import ENGINES, REFUSED, RUN, SOLVED, SPIES, WITH_TORCH

ROOT = Path(__file__).resolve().parents[3]
LAB = find_lab("05", ROOT)
SOLUTION = (LAB.solutions / "solution.py").read_bytes()
ENGINE = "alt_engine.py"


@pytest.fixture(scope="module")
def grader():
    """With the walls that every system has: what they do not stop must be stopped all the same."""
    return Grader([LAB], Sandbox("process", ROOT), seconds=20)


def lenient():
    """Return one that runs what a teacher lets run by mistake."""
    return Grader([LAB], Sandbox("process", ROOT), seconds=20, accepted=["1/lab-05"])


def grade(grader, code, student="1", **page):
    code = code.encode() if isinstance(code, str) else code
    return grader.grade(HandIn(student, {"lab-05": code}, page={"lab-05": page} if page else {}), LAB)


# What honest work gets -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_solution_gets_all_points_and_a_starter_none(grader):
    right, empty = grade(grader, SOLUTION), grade(grader, LAB.pristine_starter.read_bytes())
    assert (right.status, right.score, right.why) == ("graded", 50, [])
    assert {test["state"] for test in right.tests.values()} == {"pass"}
    assert (empty.status, empty.score, {test["state"] for test in empty.tests.values()}) == ("graded", 0, {"todo"})


def test_a_belief_is_recognised(grader):
    wrong = SOLUTION.replace(b"return stats.hits / stats.queries", b"return 100 * stats.hits / stats.queries")
    mark = grade(grader, wrong)
    assert mark.beliefs == {"cache_hit_rate": "a rate is a percentage\nask: which range does the contract state?"}
    assert 0 < mark.score < 50


def test_what_came_from_the_page_is_counted_here(grader):
    page = {"forecasts": {"identical-prompt": "28 tokens", "what-b-costs": "8", "invented": "1"}}
    mark = grade(grader, SOLUTION, **page, hints={"prefill": 2, "ref_counts": "many"}, runs=7)
    assert mark.page == {"foreseen": 1, "asked": 2, "hints": 2, "runs": 7}


@pytest.mark.parametrize("lab", all_labs(ROOT), ids=lambda lab: lab.lab_id)
def test_the_look_lets_every_honest_solution_through(lab):
    """All solutions and starters; of the alternatives those that are the engine's own answer are named."""
    files = [lab.starter, *sorted(lab.solutions.glob("*.py"))]
    held = [file.name for file in files if objections(file.read_bytes(), lab)]
    assert held == [name for name in [ENGINE] if (lab.solutions / name).is_file() and lab.engine is None]


def test_the_engine_is_named_where_it_answers():
    lab = find_lab("06", ROOT)
    assert objections((lab.solutions / ENGINE).read_bytes(), lab) == [
        "line 32: lets the engine answer: super().allocate_slots",
        "line 40: lets the engine answer: super().free",
    ]
    inherits = (
        "from mini_kv.core import kv_cache_manager as engine\nclass KVCacheManager(engine.KVCacheManager):\n    x = 1\n"
    )
    assert objections(inherits.encode(), lab)[0] == "line 3: leaves KVCacheManager.allocate_slots to the engine"


@pytest.mark.parametrize("cheat", ENGINES)
def test_the_engine_is_named_under_another_name(cheat):
    method, why = ENGINES[cheat]
    code = (
        f"from mini_kv.core import kv_cache_manager as engine\nclass KVCacheManager(engine.KVCacheManager):\n{method}"
    )
    assert why in [words.partition(": ")[2] for words in objections(code.encode(), find_lab("06", ROOT))]


@pytest.mark.parametrize("cheat", WITH_TORCH)
def test_what_pytorch_would_do_for_a_cheat_is_held(cheat):
    assert objections(WITH_TORCH[cheat].encode(), find_lab("09", ROOT)) != []


@pytest.mark.parametrize("lab_id", SPIES)
def test_what_resets_a_count_of_the_tests_is_held(lab_id):
    said = objections(SPIES[lab_id].encode(), find_lab(lab_id, ROOT))
    assert [line for line in said if "uses an attribute of the tests: " in line] != []


def test_no_honest_attempt_is_held():
    assert [attempt.name for attempt in all_attempts() if objections(attempt.file().encode(), attempt.lab)] == []


def test_a_long_text_is_looked_at_in_one_go():
    """Two texts that a regular expression with a choice in it would look at for hours."""
    for text in ("_" * 100_000 + " ", "{" * 100_000):
        objections(f"x = {text!r}\ny = {text!r}.format(1)\n".encode(), LAB)


# What cheats get -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cheat", REFUSED)
def test_a_file_that_reaches_around_itself_is_held(cheat, grader):
    mark = grade(grader, SOLVED + REFUSED[cheat] if "coding" not in REFUSED[cheat] else REFUSED[cheat])
    assert (mark.status, mark.score, mark.tests) == ("held", 0, {})
    assert mark.why[0].startswith("lab-05.py, line ")


@pytest.mark.slow
@pytest.mark.parametrize("cheat", RUN)
def test_a_file_that_misbehaves_is_worth_what_is_right_in_it(cheat, grader):
    mark = grade(grader, SOLVED + RUN[cheat])
    assert mark.status in ("graded", "broken")
    assert mark.score == 0


FORCED = {
    "leaves at once, with success": "graded",
    "patches the comparison": "held",
    "patches expect": "held",
    "the engine's class made a dataclass": "held",
    "a slot of the engine's class": "held",
}


@pytest.mark.slow
@pytest.mark.parametrize("cheat", FORCED)
def test_what_a_ta_lets_run_by_mistake_still_gets_no_points(cheat):
    """The second line: nothing passes, or the judge notices that it was changed, or passes what cannot pass."""
    mark = grade(lenient(), SOLVED + REFUSED[cheat])
    assert (mark.status, mark.score) == (FORCED[cheat], 0)


@pytest.mark.slow
def test_where_there_is_a_namespace_a_submission_sees_and_writes_nothing_of_others(tmp_path):
    """And where there is none, the command says so in place of running."""
    (tmp_path / "other.py").write_text("mine")
    spy = f"""
import os
seen = [os.path.exists(p) for p in ({str(ROOT / "solutions" / "lab-05")!r}, {str(tmp_path / "other.py")!r})]
try: open({str(ROOT / "mini_kv" / "spy")!r}, "w"); seen.append(True)
except OSError: seen.append(False)
import socket
try: socket.create_connection(("127.0.0.1", 9), 1)
except ConnectionRefusedError: seen.append(True)
except OSError: seen.append(False)
raise ValueError(f"seen: {{seen}}")
"""
    try:
        walls = find_sandbox("bwrap", ROOT, [tmp_path])
    except ValueError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith("bwrap does not work here")
        return
    mark = grade(Grader([LAB], walls, 20, ["1/lab-05"]), spy)
    assert "seen: [False, False, False, " in next(iter(mark.tests.values()))["message"]
    if os.getuid() != 0:  # root's processes are not counted: there the bomb would go off until its time is over
        bomb = grade(Grader([LAB], walls, 3, ["1/lab-05"]), REFUSED["forks without end"])
        assert (bomb.status, bomb.score) == ("broken", 0)


def test_a_report_that_is_not_the_judges_holds_the_lab(grader):
    def line(*fields, word="w"):
        return " ".join([word, *(field.encode().hex() for field in fields)]) + "\n"

    def passed(name):
        return line("test", name, "pass", "", "prefill", "")

    names = list(grader.tests["lab-05"])
    for report, why in {
        line("end", word="x"): "its report has a line that is not from the judge",
        "w {}\n": "its report has a line that is not from the judge",
        line("test", "test_1_a", "won", "", "", ""): "its report has a line that is not from the judge",
        passed("test_of_mine"): "an unknown or repeated test: test_of_mine",
        2 * passed("test_1_a"): "a test has ended twice",
        passed("test_1_c"): "a test that no code can pass has passed",
        line("end"): "it reports its end before all tests have ended",
        line("end", "mini_kv.x"): "it changed other functions: mini_kv.x",
    }.items():
        copy = Copy({"test_1_a": names[0], "test_1_c": names[0]}, frozenset({"test_1_c"}))
        ran, mark = _Ran(copy), Mark("1", "lab-05", 50)
        ran.hear(report.encode(), "w")
        grader._count(mark, LAB, ran)
        assert (mark.status, mark.score, mark.why[0]) == ("held", 0, why)


def test_a_canary_is_a_copy_of_a_labs_test_and_its_name_does_not_tell():
    text = (LAB.folder / "test_lab.py").read_text(encoding="utf-8")
    changed, copy = with_canaries(text, random.Random(0))
    names, new = (re.findall(r"^def (test_\w+)", each, re.MULTILINE) for each in (text, changed))
    assert sorted(new) == sorted(copy.names)
    assert [copy.names[name] for name in new if name not in copy.canaries] == names
    assert len(copy.canaries) == 4
    beginnings = {re.sub(r"^(test_\d+_|test_).*", r"\1", name) for name in names}
    assert {re.sub(r"[0-9a-f]{10}$", "", name) for name in copy.canaries} <= beginnings
    assert all(re.fullmatch(r"test_(\d+_)?[0-9a-f]{10}", name) for name in new)
    assert copy.in_words(f"see {new[0]}") == f"see {copy.names[new[0]]}"


@pytest.mark.parametrize("lab", [lab for lab in all_labs(ROOT) if lab.needs == "C"], ids=lambda lab: lab.lab_id)
def test_canaries_fail_for_right_code_and_its_marks_are_full(lab):
    code = (lab.solutions / "solution.py").read_bytes()
    grader = Grader([lab], Sandbox("process", ROOT), seconds=60)
    mark = grader.grade(HandIn("1", {lab.lab_id: code}), lab)
    assert (mark.status, mark.score, mark.why) == ("graded", lab.points, [])


PATCHED = {
    "in a function": "def patch(encoder): encoder.encode = lambda self, o: ''\npatch(json.JSONEncoder)\n",
    "in a loop": "for e in [json.JSONEncoder]: e.encode = lambda self, o: ''\n",
    "in a loop's target": "for json.JSONEncoder.encode in [lambda self, o: '']: pass\n",
    "as self": "class A:\n    def p(self): self.encode = 1\nA.p(json.JSONEncoder)\n",
    "as a field of its own": "class A:\n    encode = 1\ndef patch(e): e.encode = 2\npatch(json.JSONEncoder)\n",
    "on the tests' cache": "def ref_counts(kv, request): kv.get_blocks = lambda name: name\n",
    "deleted": "def patch(encoder): del encoder.encode\npatch(json.JSONEncoder)\n",
}


HELD = """
def prefill(kv, token_ids, request_id):
    BEGIN
    before = kv.prefix_cache_stats.hits
    return ADMIT(token_ids, request_id), kv.prefix_cache_stats.hits - before
"""
"""The tests' caches have a method that admits a request without the learner's code."""


@pytest.mark.parametrize(
    ("begin", "admit"),
    [
        ("hold = 0", "kv.hold"),
        ("hold: int", "kv.hold"),
        ("hold = 0", "getattr(kv, 'hold')"),
        ("(match kv)", "admit"),
        ("class A:\n        hold = 0\n        def f(self): return self.hold", "kv.hold"),
    ],
)
def test_the_tests_own_way_to_admit_a_request_is_held_whatever_the_file_binds(begin, admit):
    begin = begin.replace("(match kv)", "match kv:\n        case object(hold=admit): pass")
    said = objections(HELD.replace("BEGIN", begin).replace("ADMIT", admit).encode(), LAB)
    assert [line for line in said if line.endswith("uses an attribute of the tests: hold")] != []


@pytest.mark.slow
def test_and_it_does_nothing_while_the_learners_function_runs():
    mark = grade(lenient(), SOLVED + HELD.replace("BEGIN", "pass").replace("ADMIT", "kv.hold"))
    assert mark.score <= 6
    assert "hold is for the tests" in first_message(mark)


@pytest.mark.parametrize("module", ["unittest.__main__", "this", "hand_ins.helper"])
def test_no_module_that_a_hand_in_names_is_imported_to_look_at_it(module, monkeypatch, tmp_path, capsys):
    (tmp_path / "hand_ins").mkdir()
    (tmp_path / "hand_ins" / "helper.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    said = objections(f"from {module} import prefill\n".encode(), LAB)
    assert said == [f"line 1: imports {module}.prefill"]
    assert module not in sys.modules and capsys.readouterr().out == ""


def test_a_file_that_runs_its_own_checks_and_prints_types_is_not_held():
    code = "print(type(3).__name__)\nclass A:\n    def f(self): self.hold = self.sizes = 1\n"
    assert objections(SOLUTION + f"{code}if __name__ == '__main__':\n    print(1)\n".encode(), LAB) == []


def test_the_manager_inside_a_tests_cache_may_not_be_replaced():
    said = objections(b"def ref_counts(kv, request): kv.manager = 1\n", LAB)
    assert said == ["line 1: sets kv.manager, which is not a field"]


@pytest.mark.parametrize("how", PATCHED)
def test_setting_an_attribute_that_is_no_field_is_held(how):
    said = objections(f"import json\n{PATCHED[how]}".encode(), LAB)
    assert [line for line in said if "which is not" in line] != []


@pytest.mark.slow
def test_a_patch_of_the_standard_library_is_seen_by_the_judge_and_not_by_the_report():
    """Accepted by mistake: the report is written without json, and each module is watched."""
    mark = grade(lenient(), f"import json\n{SOLVED}{PATCHED['in a function']}")
    assert (mark.status, mark.score) == ("held", 0)
    assert mark.why == ["it changed other functions: json.encoder.JSONEncoder.encode"]


def test_a_pointer_to_a_repository_counts_only_if_the_roster_gives_it(tmp_path):
    place, roster = tmp_path / "hand-ins", tmp_path / "roster.csv"
    place.mkdir()
    repository(tmp_path, place / "01.git")
    for name in ("02", "03", "04"):
        (place / f"{name}.url").write_text("01.git")
    roster.write_text("student,path\n03,01.git\n04,04.git\n")
    found = find_handins(place, ["lab-05"], read_roster(roster))
    assert [(handin.student, len(handin.code)) for handin in found] == [("01", 1), ("02", 0), ("03", 1), ("04", 0)]
    assert found[1].fault == ("02.url cannot be read: it points to 01.git, and no --roster gives this path for 02")
    roster.write_text("03,01.git\n03,02.git\n")
    with pytest.raises(ValueError, match="line 2"):
        read_roster(roster)


def test_the_isolation_that_is_left_is_told_with_the_reason(tmp_path, monkeypatch):
    """As an account that may not create namespaces."""
    for name, said in (("bwrap", "No permissions to create new namespace"), ("unshare", "Operation not permitted")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{name}: {said}' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    walls = find_sandbox("auto", ROOT, [])
    assert walls.kind == "process"
    assert walls.lacks == (
        "bwrap: bwrap: No permissions to create new namespace; unshare: unshare: Operation not permitted"
    )
    assert "end your other processes" in walls.in_words and walls.lacks in walls.in_words
    with pytest.raises(ValueError, match=r"bwrap does not work here: .*No permissions"):
        find_sandbox("bwrap", ROOT, [])


def test_a_file_in_utf_16_is_told_so(grader):
    mark = grade(grader, SOLUTION.decode().encode("utf-16"))
    assert (mark.status, mark.score) == ("graded", 0)
    assert "lab-05.py is not UTF-8 text (perhaps UTF-16)" in first_message(mark)


# What is handed in ---------------------------------------------------------------------------------------------------


def test_a_test_without_a_verdict_marks_the_lab_for_review_and_keeps_the_other_points(grader):
    first, *others = grader.tests["lab-05"]
    told = [("c", "fail", ""), (first, "no verdict", "this machine is busy"), *((name, "pass", "") for name in others)]
    ended = [[*each, "prefill", ""] for each in told]
    mark = Mark("1", "lab-05", 50)
    grader._count(mark, LAB, _Ran(Copy({}, frozenset({"c"})), ended=ended, over=True))
    assert (mark.status, mark.why) == ("no verdict", [f"{first}: this machine is busy"])
    assert mark.score == 50 - grader.tests["lab-05"][first]["points"]
    assert mark.tests[first]["state"] == "no verdict"


def test_a_process_that_is_ended_by_the_clock_has_no_verdict(grader):
    mark = Mark("1", "lab-05", 50)
    grader._count(mark, LAB, _Ran(Copy({}, frozenset({"c"})), is_late=True, status=-9))
    assert (mark.status, mark.why) == ("no verdict", ["its process had not ended after 640 s on the clock"])


def test_folders_zips_repositories_and_saved_pages_are_read_and_never_unpacked(tmp_path):
    place = tmp_path / "hand-ins"
    for name in ("01/lab-05.py", "02/labs/lab-05/starter.py", "02/conftest.py", "02/sitecustomize.py", "03/lab-06.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / "04").mkdir()
    (place / "04" / "lab-05.py").symlink_to("/etc/passwd")
    (place / "05").symlink_to("/etc")
    os.mkfifo(place / "06.json")
    with zipfile.ZipFile(place / "07.zip", "w") as archive:
        archive.writestr("../../lab-05.py", "climbs")
        archive.writestr("lab-05-further/starter.py", "fine")
    with zipfile.ZipFile(place / "08.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lab-05.py", "x" * (MAX_BYTES + 1))
    (place / "09.zip").write_text("no zip")
    saved = {"format": "mini_kv hand-in", "version": 1, "labs": {"lab-05": {"code": "c", "runs": 2}}}
    (place / "10.json").write_text(json.dumps(saved))
    repository(tmp_path, place / "11.git")
    (place / "12.url").write_text("file://11.git\n")
    found = {handin.student: handin for handin in find_handins(place, ["lab-05"], {"12": "11.git"})}
    assert {name: handin.code for name, handin in found.items()} == {
        "01": {"lab-05": b"01/lab-05.py"},
        "02": {"lab-05": b"02/labs/lab-05/starter.py"},
        "03": {"lab-06": b"03/lab-06.py"},
        "04": {},
        "05": {},
        "06": {},
        "07": {"lab-05": b"climbs", "lab-05-further": b"fine"},
        "08": {},
        "09": {},
        "10": {"lab-05": b"c"},
        "11": {"lab-05": b"in git"},
        "12": {"lab-05": b"in git"},
    }
    assert found["10"].page == {"lab-05": {"forecasts": None, "hints": None, "runs": 2}}
    assert [found[name].fault.partition(": ")[2] for name in ("05", "06", "08", "09")] == [
        "it is a link",
        "06.json is not a plain file",
        f"lab-05.py is larger than {MAX_BYTES:,} bytes",
        "File is not a zip file",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hand-ins", "work"]


def repository(tmp_path, bare):
    work = tmp_path / "work"
    (work / "labs" / "lab-05").mkdir(parents=True)
    (work / "labs" / "lab-05" / "starter.py").write_text("in git")
    for words in (
        ["init", "-q", str(work)],
        ["-C", str(work), "add", "."],
        ["-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "done"],
        ["clone", "-q", "--bare", str(work), str(bare)],
    ):
        subprocess.run(["git", *words], check=True)


def test_a_repository_that_is_handed_in_runs_no_program_and_leads_nowhere_else(tmp_path):
    """Git would fetch an object that is missing, by a program that the repository's own `config` names."""
    place = tmp_path / "hand-ins"
    place.mkdir()
    repository(tmp_path, place / "01.git")
    shutil.copytree(place / "01.git", place / "02.git")
    ran, config = tmp_path / "ran", place / "02.git" / "config"
    fetch = f"""
[extensions]
partialClone = origin
[remote "origin"]
promisor = true
url = "ext::touch {ran}"
[protocol "ext"]
allow = always
"""
    config.write_text("[core]\nrepositoryformatversion = 1\nbare = true\n" + fetch)
    for file in (place / "02.git" / "objects").glob("??/*"):
        if zlib.decompress(file.read_bytes()).startswith(b"blob"):
            file.unlink()
    (place / "03").mkdir()
    (place / "03" / "HEAD").write_text("ref: refs/heads/master")
    (place / "03" / "commondir").write_text("../01.git")
    shutil.copytree(place / "01.git", place / "04.git")
    shutil.rmtree(place / "04.git" / "objects")
    (place / "04.git" / "objects").symlink_to(place / "01.git" / "objects")
    own, fetching, common, linked = find_handins(place, ["lab-05"])
    assert own.code == {"lab-05": b"in git"}
    assert (fetching.code, fetching.fault[:36], ran.exists()) == ({}, "02.git cannot be read: git printed: ", False)
    for other in (common, linked):
        assert (other.code, other.fault.partition(": ")[2]) == ({}, "it uses objects of another repository")


def test_git_is_stopped_when_it_says_too_much(tmp_path):
    """Ten folders that are all the same tree, ten levels deep, are ten thousand million files in a few kilobytes."""
    bare = tmp_path / "bomb.git"
    repository(tmp_path, bare)
    git = ["git", f"--git-dir={bare}"]
    run_git = partial(subprocess.run, check=True, text=True, capture_output=True)
    blob = run_git([*git, "hash-object", "-w", "--stdin"], input="x").stdout.strip()
    tree = run_git([*git, "mktree"], input="".join(f"100644 blob {blob}\tf{n}\n" for n in range(10))).stdout.strip()
    for _ in range(9):
        lines = "".join(f"040000 tree {tree}\td{n}\n" for n in range(10))
        tree = run_git([*git, "mktree"], input=lines).stdout.strip()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = run_git([*git, *author, "commit-tree", tree, "-m", "x"]).stdout.strip()
    run_git([*git, "update-ref", "HEAD", commit])
    assert read_handin(bare, ["lab-05"], {}).fault == "bomb.git cannot be read: git printed: nothing; it was stopped"


def test_a_hand_in_that_breaks_its_reader_is_held_alone(tmp_path):
    """Packed so that it unpacks without limit; nested; named so that a terminal would obey it."""
    with zipfile.ZipFile(tmp_path / "01.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("lab-05.py", "x")
    with zipfile.ZipFile(tmp_path / "02.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("lab-05.py", "x" * 99)
    broken = (tmp_path / "02.zip").read_bytes()
    (tmp_path / "02.zip").write_bytes(broken[:40] + b"\xff" * 9 + broken[49:])
    (tmp_path / "03.json").write_text("[" * 100_000)
    (tmp_path / "\x1b[2J\n04").mkdir()
    (tmp_path / "\x1b[2J\n04" / "lab-05.py").write_text("x")
    (tmp_path / "06").mkdir()
    for number in range(MAX_PAGES + 1):
        (tmp_path / "06" / f"{number}.json").write_text("{}")
    (tmp_path / "07").mkdir()
    (tmp_path / "07" / "lab-05.py").write_text("one")
    saved = {"format": "mini_kv hand-in", "version": 1, "labs": {"lab-05": {"code": "another"}}}
    (tmp_path / "07" / "page.json").write_text(json.dumps(saved))
    os.mkfifo(tmp_path / "08.zip")
    found = find_handins(tmp_path, ["lab-05"])
    assert [(handin.student, handin.fault.partition(": ")[2][:58]) for handin in found] == [
        ("\\x1b[2J\\n04", ""),
        ("01", "it is packed in an unusual way: pack it as an ordinary zip"),
        ("02", "it is packed in an unusual way: pack it as an ordinary zip"),
        ("03", "not a saved page: maximum recursion depth exceeded while d"),
        ("06", "more than 200 files that could be a saved page"),
        ("07", "it contains lab-05 twice"),
        ("08", "08.zip is not a plain file"),
    ]
    assert printable("a file's name that is not UTF-8: \udcff") == "a file's name that is not UTF-8: \\udcff"


def test_what_a_page_claims_can_be_written_and_breaks_nothing(grader):
    """Numbers that are too long to be written, and a forecast that is too deep to be shown."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    code = REFUSED["leaves at once, with success"]
    counted = grade(grader, code, hints={"a": 10**4299 * 9, "b": 10**4299 * 9, "c": -1, "d": 2}, runs=10**4299)
    assert counted.page == {"foreseen": 0, "asked": 0, "hints": 2, "runs": 0}
    mark = grade(grader, code, forecasts={"what-b-costs": deep})
    assert (mark.status, mark.why[0][:38]) == ("held", "it could not be graded: RecursionError")


def test_a_file_for_a_lab_that_is_not_there_stops_nothing(tmp_path):
    """One student's lab-99.py: the others get their marks."""
    for name in ("01/lab-05.py", "02/lab-99.py"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_text("import os\n")
    assert run(arguments(tmp_path / "in", tmp_path / "out")) == 1
    marks = json.loads((tmp_path / "out" / "marks.json").read_text())["marks"]
    assert [(mark["student"], mark["status"]) for mark in marks] == [("01", "held"), ("02", "missing")]


@pytest.mark.slow
def test_the_command_ends_with_1_where_a_person_has_to_look(tmp_path):
    """One student's cheat is one line, and changes no other's mark."""
    for name, code in {"01": SOLUTION, "02": REFUSED["leaves at once, with success"].encode(), "03": SOLUTION}.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "lab-05.py").write_bytes(code)
    command = [sys.executable, "-m", "mini_kv", "class", "grade", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--to", str(tmp_path / "m.csv")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()[1:]]
    assert (done.returncode, done.stderr, lines) == (
        1,
        "",
        [
            "01 lab-05 50/50 ran 01: lab-05.py",
            "02 lab-05 0/50 no code ran held: 02: lab-05.py, line 1: imports os (and 2 more)",
            "03 lab-05 50/50 ran 03: lab-05.py",
            "3 hand-ins, 3 labs; 1 for you to review",
        ],
    )
    rows = (tmp_path / "m.csv").read_text().splitlines()
    assert [row.split(",")[:5] for row in rows[1:]] == [
        ["01", "lab-05", "graded", "50", "50"],
        ["02", "lab-05", "held", "0", "50"],
        ["03", "lab-05", "graded", "50", "50"],
    ]


def arguments(submissions, out):
    """Return the command's arguments: what it has without an option."""
    given = {"labs": None, "jobs": 1, "seconds": 20, "isolation": "process", "roster": None, "to": None}
    return argparse.Namespace(submissions=str(submissions), out=str(out), accept=[], **given)


def test_misuse_is_told_in_a_line(tmp_path, capsys):
    assert run(arguments(tmp_path / "none", "x")) == 2
    assert capsys.readouterr().err == f"mini-kv class grade: {tmp_path / 'none'} is not a folder\n"
