"""A belief is named per function: by an exact match of what the function's own tests saw, or not at all."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET

import pytest

from mini_kv.course.labkit.audit import (
    Audit,
    audit_mutants,
    digest_of_files,
    load_mutants,
    main,
    sample_of,
    watch,
    write_fingerprints,
)
from mini_kv.course.labkit.failure import MAX_LINES, with_belief
from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.labkit.misconception import Stored, load_stored, store
from mini_kv.tests.throwaway_lab import LAB_TOML, ROOT, SOLUTION, TEST_LAB, ThrowawayLab

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

MORE_TESTS = '''

@points(0, "double", stage="property")
def test_random_doubles(lab):
    """Numbers from a list that might be drawn."""
    lab.expect("the double", [14], lab.double([7]))
'''

WAITING_TEST = '''

@points(0, "prefill", after="test_4_double")
def test_5_after_double(lab):
    """Only when the doubles are right."""
    kv = lab.make_kv(num_blocks=9, block_size=2)
    lab.expect("computed tokens of A", 2, lab.prefill(kv, [1, 2], "A").num_computed_tokens)
'''

MUTANTS = r"""
[[mutant]]
id = "never-shares"
idea = "who is the first to ask has a table of its own"
seen = "here"
old = "kv.allocate_slots(request, len(token_ids) - num_cached, num_cached, blocks)"
new = "kv.allocate_slots(request, len(token_ids))"

[[mutant]]
id = "once"
idea = "a double is the number that one has"
ask = "what is the double of 1?"
seen = "here"
old = "[2 * number for number in numbers]"
new = "list(numbers)"
spellings = ["[number for number in numbers]", ["2 * number", "1 * number"]]

[[mutant]]
id = "refuses"
idea = "what has to be doubled is refused"
ask = "which numbers are refused?"
seen = "here"
old = "    return [2 * number for number in numbers]\n"
new = "    raise ValueError('no')\n"
spellings = ["    if numbers:\n        raise ValueError(f'not {numbers}')\n"]
"""

BOTH = SOLUTION.replace("len(token_ids) - num_cached, num_cached, blocks", "len(token_ids)").replace("2 * ", "")
"""Two faults, one in each function."""
SHARES = "your code acts as if who is the first to ask has a table of its own"
ONCE = "your code acts as if a double is the number that one has"
REFUSES = "ask: which numbers are refused?"
"""An exception is one sign, so its belief is no claim."""


@pytest.fixture
def lab(pytester, monkeypatch):
    """A lab whose mutants have been run, and whose fingerprints are stored."""
    throwaway = ThrowawayLab(pytester, monkeypatch)
    store_names(throwaway, TEST_LAB + MORE_TESTS)
    return throwaway


def store_names(lab: ThrowawayLab, test_lab: str) -> None:
    """Give the lab these tests, and store what they see of each mutant."""
    lab.write("labs/lab-77/test_lab.py", test_lab)
    audit = audited(lab, MUTANTS)
    assert audit.findings == []
    write_fingerprints(audit)


def audited(lab: ThrowawayLab, mutants: str, sample: str | None = None) -> Audit:
    """Return the audit of these mutants, or of a sample of them."""
    lab.write("solutions/lab-77/mutants.toml", mutants)
    audit = Audit(load_lab(lab.root / "labs/lab-77"))
    modules = set(sys.modules)
    audit_mutants(audit, watch(audit.lab), sample)
    for name in set(sys.modules) - modules:  # the next run may have other tests
        del sys.modules[name]
    return audit


def named(run) -> dict[str, str]:
    """Return the belief by the test in whose failure it stands."""
    told = {
        test: [line for line in text.splitlines() if line.startswith(("your code", "ask: "))]
        for test, text in run.items()
    }
    return {test: lines[0] for test, lines in told.items() if lines}


def test_the_name_stands_in_the_failure(lab):
    """As a belief, after the reason and in front of the places, with a question where there is a good one."""
    assert lab.run_code(SOLUTION.replace("2 * ", "")).messages["test_4_double"] == (
        "lab-77  test_4_double\n"
        "the doubles\n"
        "   expected  [2, 4, 6]\n"
        "   got       [1, 2, 3]\n"
        "              ^  ^  ^\n"
        "why: twice as much\n"
        f"{ONCE}\n"
        "ask: what is the double of 1?"
    )


def test_after_one_sign_the_belief_is_a_question(lab):
    """An exception, or one wrong value, has more causes than one."""
    raised = lab.run_code(SOLUTION.replace("return [2 * number for number in numbers]", "raise ValueError"))
    assert raised.messages["test_4_double"].splitlines()[-2:] == [REFUSES, "at:  mine.py:10  raise ValueError"]


def test_two_faults_in_two_functions_have_two_names(lab):
    """What one function's tests saw says nothing of the other's."""
    assert named(lab.run_code(BOTH).messages) == {"test_2_warm": SHARES, "test_4_double": ONCE}


def test_what_is_still_to_do_elsewhere_hides_no_name(lab):
    """A learner writes one function after the other."""
    code = SOLUTION.replace("2 * ", "") + '\n\nfrom mini_kv.course import todo\nprefill = lambda *_: todo("", "", "")\n'
    run = lab.run_code(code)
    assert (run.letters, named(run.messages)) == ("TTTFF", {"test_4_double": ONCE})


@pytest.mark.parametrize(
    ("spelled", "belief"),
    [
        ("return list(numbers)", ONCE),
        ("return [n + 0 for n in numbers]", ONCE),
        ("return [*numbers]", ONCE),
        ("return [4 * n for n in numbers]", None),
        ("raise ValueError", REFUSES),
        ("raise ValueError('as you like it')", REFUSES),
        ("raise TypeError", None),
        ("return int('no number')", None),
    ],
)
def test_what_the_tests_saw_decides_and_not_how_it_is_spelled(lab, spelled, belief):
    """Another value is met with silence, and so is what Python raised by itself. A learner's own words play no part."""
    code = SOLUTION.replace("return [2 * number for number in numbers]", spelled)
    assert named(lab.run_code(code).messages) == ({"test_4_double": belief} if belief else {})


def test_a_random_test_alone_gives_no_name(lab):
    """What it draws depends on a seed."""
    run = lab.run_code(SOLUTION.replace("2 * number for", "number if number > 6 else 2 * number for"))
    assert (run.letters, named(run.messages)) == ("PPPPF", {})


def test_a_random_test_beside_others_plays_no_part(lab):
    """It would see something else with the next seed."""
    run = lab.run_code(SOLUTION.replace("2 * number for", "number % 6 for"))
    assert "got       [1]" in run.messages["test_random_doubles"]
    assert named(run.messages) == {"test_4_double": ONCE}


@pytest.mark.parametrize("args", [["-k", "1_cold or 2_warm"], ["--deselect", "labs/lab-77/test_lab.py::test_1_cold"]])
def test_a_part_of_a_functions_tests_is_met_with_silence(lab, args):
    """They do not show the whole picture; those of another function may be left out."""
    run = lab.run_code(BOTH, *args)
    assert "test_2_warm" in run.messages
    assert SHARES not in named(run.messages).values()
    assert named(lab.run_code(BOTH, "-k", "doubl").messages) == {"test_4_double": ONCE}


def test_one_that_waits_for_another_function_is_met_with_silence(lab):
    """Of `prefill` a test is missing that the mutant passes: only when `double` is right can there be a name."""
    store_names(lab, TEST_LAB + WAITING_TEST)
    run = lab.run_code(BOTH)
    assert (run.states["test_5_after_double"], named(run.messages)) == ("WAIT 0/0", {"test_4_double": ONCE})
    run = lab.run_code(BOTH.replace("[number for", "[2 * number for"))
    assert (run.states["test_5_after_double"], named(run.messages)) == ("PASS 0/0", {"test_2_warm": SHARES})


def test_a_timeout_says_as_much_about_the_machine(lab):
    """No name, though the other tests are those of a mutant."""
    endless = SOLUTION.replace("    return [2 *", "    while True:\n        pass\n    return [2 *")
    run = lab.run_apart(endless, "--lab-seconds=0.1", environment=os.environ)
    assert (run.states["test_4_double"], named(run.messages)) == ("FAIL 0/4", {})


def test_what_is_written_to_files_carries_the_names(lab):
    """In the message and by itself in our JSON, as a property in JUnit's; with -vv too."""
    paths = ("--lab-json=ours.json", "--junitxml=junit.xml")
    run = lab.run_code(BOTH, "-vv", *paths)
    assert f"{ONCE}\nask: what is the double of 1?" in run.out
    ours = json.loads((lab.root / "ours.json").read_text(encoding="utf-8"))["tests"]
    assert named({test["test"]: test["message"] for test in ours}) == {"test_2_warm": SHARES, "test_4_double": ONCE}
    assert [test["belief"] for test in ours if test["belief"]] == [
        "who is the first to ask has a table of its own",
        "a double is the number that one has\nask: what is the double of 1?",
    ]
    properties = ET.parse(lab.root / "junit.xml").getroot().iter("property")
    assert {each.get("name"): each.get("value") for each in properties} == {
        "lab-77 prefill": SHARES,
        "lab-77 double": f"{ONCE}\nask: what is the double of 1?",
    }


def test_two_processes_give_the_same_names(lab):
    """None of them has seen all tests; the one that gathers them has."""
    pytest.importorskip("xdist", reason="needs pytest-xdist: make test")
    lab.monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shared = lab.run_code(BOTH, "-p", "xdist", "-n", "2", "--dist=loadfile")
    assert named(shared.messages) == {"test_2_warm": SHARES, "test_4_double": ONCE}


def test_calls_and_drawing_give_way_to_the_name():
    """Fifteen lines are fifteen lines, and each beginning keeps its meaning."""
    calls = [
        "   calls     allocate A: allocated 1..3",
        "             free A: freed 3..1",
        "             free A: raised",
    ]
    drawn = [
        "   state     #=cached  xN=ref_cnt",
        *(f"     {name}     [1x1]" for name in "ABCDE"),
        "     free  next-> 9",
    ]
    message = ["lab-77  test_1_cold", "a count", *calls, *drawn, "why: so", "at:  mine.py:7  kv.free(request)"]
    told = with_belief("\n".join([*message, "hint: mini-kv hint 77"]), "a block is free\nask: who holds it?")
    assert told.splitlines() == [
        *message[:2],
        "   calls     free A: raised",
        *drawn,
        "why: so",
        "your code acts as if a block is free",
        "ask: who holds it?",
        *message[-1:],
        "hint: mini-kv hint 77",
    ]
    assert len(told.splitlines()) == MAX_LINES


def test_a_table_is_seen_as_a_whole_and_told_by_its_first_difference(lab):
    """Two wrong functions that agree in the first row and differ in the last are two ideas."""
    rows = "(f'the double of {n}', [2 * n], lab.double([n]), 'twice as much') for n in (1, 2, 4)"
    single = 'lab.expect("the doubles", [2, 4, 6], lab.double([1, 2, 3]))'
    assert single in TEST_LAB
    store_names(lab, TEST_LAB.replace(single, f"lab.expect_all({rows})"))
    once = lab.run_code(SOLUTION.replace("2 * ", ""))
    assert once.message.splitlines()[1:4] == ["the double of 1", "   expected  [2]", "   got       [1]"]
    assert named(once.messages) == {"test_4_double": ONCE}
    other = lab.run_code(SOLUTION.replace("2 * number", "min(number, 3)"))
    assert (other.message, named(other.messages)) == (once.message.partition("\nyour code")[0], {})


# The audit ----------------------------------------------------------------------------------------------------------


def test_a_spelling_that_gets_anothers_name_is_a_finding(lab):
    """Each spelling is run, and looked up under all names."""
    wrong = MUTANTS.replace('["2 * number", "1 * number"]', '["2 * number", "number // 0"], "int(numbers)"')
    wrong = wrong.replace("if numbers:\\n        raise ValueError(f'not {numbers}')", "return list(numbers)")
    audit = audited(lab, wrong)
    assert audit.findings == [
        "mutant refuses-2 gets another belief for double: a double is the number that one has",
    ]
    assert {"once", "once-2", "once-3", "once-4", "refuses", "refuses-2"} < audit.kills.keys()


def test_a_spelling_that_no_test_catches_is_a_finding(lab):
    """It is as good as a mutant of its own."""
    audit = audited(lab, MUTANTS.replace("1 * number", "number * 2"))
    assert audit.findings == ["mutant once-3 survives", "mutant once-3 gets no belief"]


def test_a_function_that_only_suffers_must_not_be_named_for_it(lab):
    """`prefill` calls `double` here: its tests see what they see of `prefill`'s own mutant."""
    right = SOLUTION.replace(
        "kv.allocate_slots(request,",
        "\n    if double([1]) == [1]:\n        num_cached = 0\n    kv.allocate_slots(request,",
    )
    right = right.replace("num_cached, num_cached, blocks", "num_cached, num_cached, blocks if num_cached else None")
    lab.write("solutions/lab-77/solution.py", right)
    mutants = MUTANTS.replace(", num_cached, blocks)", ", num_cached, blocks if num_cached else None)")
    assert (
        "mutant once gets another belief for prefill: who is the first to ask has a table of its own"
        in audited(lab, mutants).findings
    )


def test_a_wrong_version_is_read_beside_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab-05", "--show", "hit-not-passed"]) == 0
    told, *differences = capsys.readouterr().out.split("--- solution.py\n")
    assert told == (
        "lab-05: as if the manager remembers which blocks it found\n"
        "ask: which call raises the reference counts of the blocks that were found?\n"
        "seen: seed 000, allocate(): hits are counted and never referenced\n"
    )
    changed = [[line for line in one.splitlines() if line[0] in "-+"] for one in differences]
    right = "-    if kv.allocate_slots(request, num_new_tokens, new_computed_blocks=blocks) is None:"
    assert changed == [
        ["+++ hit-not-passed", right, "+    if kv.allocate_slots(request, num_new_tokens) is None:"],
        [
            "+++ hit-not-passed-2",
            right,
            "+    if kv.allocate_slots(request, num_new_tokens, new_computed_blocks=None) is None:",
        ],
        ["+++ hit-not-passed-3", right, "+    if kv.allocate_slots(request, num_new_tokens, 0) is None:"],
    ]


def test_a_wrong_version_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab-05", "--show", "hit-not-past"])
    said = "error: lab-05 has no wrong version 'hit-not-past'. did you mean hit-not-passed?"
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


THAT_RAN = '''
from pathlib import Path


def note(test):
    """Write down that this test runs."""
    with Path(__file__).with_name("ran.txt").open("a", encoding="utf-8") as file:
        file.write(test + "\\n")

'''


@pytest.mark.parametrize(
    ("at_the_end", "again"),
    [
        ("", ["test_4_double"]),
        ("\n\nTWO = double([1])\n", ["test_1_cold", "test_2_warm", "test_3_three", "test_4_double"]),
    ],
    ids=["run in its own test alone", "run as the file is loaded"],
)
def test_a_wrong_function_is_tried_on_the_tests_that_run_it(pytester, monkeypatch, at_the_end, again):
    """The others pass with it as they pass without it. What runs as the file is loaded may matter to all."""
    lab = ThrowawayLab(pytester, monkeypatch)
    noting = re.sub(
        r"^def (test_\w+)\(lab\):\n( +\"\"\".*\"\"\"\n)",
        r"def \1(lab):\n\2    note('\1')\n",
        TEST_LAB,
        flags=re.MULTILINE,
    )
    lab.write("labs/lab-77/test_lab.py", THAT_RAN + noting)
    lab.write("solutions/lab-77/solution.py", SOLUTION + at_the_end)

    audit = audited(
        lab, MUTANTS[MUTANTS.index('[[mutant]]\nid = "once"') : MUTANTS.index('[[mutant]]\nid = "refuses"')]
    )

    ran = (lab.root / "labs/lab-77/ran.txt").read_text(encoding="utf-8").split()
    assert ran[4:] == again * 3  # the first four: the solution, watched; then three ways to write the mutant
    assert audit.kills == {name: ["test_4_double"] for name in ["once", "once-2", "once-3"]}
    assert audit.scores == dict.fromkeys(["once", "once-2", "once-3"], "6/10")


# A sample -----------------------------------------------------------------------------------------------------------

ALL = ["never-shares", "once", "once-2", "once-3", "refuses", "refuses-2"]


def test_a_sample_is_a_quarter_chosen_by_the_seed():
    """Rounded up. The same seed chooses the same again, another seed others, and forty seeds leave out none."""
    found = load_lab(ROOT / "labs/lab-05")
    mutants = load_mutants(found)
    assert len(mutants) == 47
    chosen = [[mutant.id for mutant in sample_of(found, mutants, seed)] for seed in map(str, range(40))]
    assert {len(ids) for ids in chosen} == {12}
    assert chosen[0] == [mutant.id for mutant in sample_of(found, mutants, "0")] != chosen[1]
    assert {id_ for ids in chosen for id_ in ids} == {mutant.id for mutant in mutants}


def test_a_sample_is_played_and_the_other_beliefs_are_taken_as_stored(lab):
    audit = audited(lab, MUTANTS, "3")
    assert (len(audit.kills), audit.played_all, audit.findings) == (2, False, [])
    assert audit.notes == ["2 of 6 wrong versions played, chosen by 3"]
    assert audit.beliefs == load_stored(audit.lab).beliefs


def test_a_wrong_version_that_a_changed_test_lets_pass_is_found_with_any_seed(lab):
    """A file of the lab has changed, so all are played."""
    lab.write("labs/lab-77/test_lab.py", TEST_LAB.replace("lab.double([1, 2, 3])", "[2, 4, 6]"))
    audit = audited(lab, MUTANTS, "3")
    assert (list(audit.kills), audit.played_all) == (ALL, True)
    survivors = ["once", "once-2", "once-3", "refuses", "refuses-2"]
    assert audit.findings == [
        f"mutant {name} {fault}" for name in survivors for fault in ("survives", "gets no belief")
    ]


def test_a_lab_with_a_finding_is_played_whole_until_it_is_mended(lab):
    """What is stored then has no digest."""
    survives = MUTANTS.replace("1 * number", "number * 2")
    write_fingerprints(audited(lab, survives))
    audit = audited(lab, survives, "3")
    assert (list(audit.kills), audit.played_all) == (ALL, True)
    assert audit.findings == ["mutant once-3 survives", "mutant once-3 gets no belief"]


def test_the_digest_changes_with_what_matters_to_a_wrong_version(pytester, monkeypatch):
    """Not with the learner's file, with texts for people, or with the way in which a checkout ends its lines."""
    lab = ThrowawayLab(pytester, monkeypatch)
    found = load_lab(lab.root / "labs/lab-77")
    digests = [digest_of_files(found)]
    for file in ("labs/lab-77/starter.py", "labs/lab-77/README.md"):
        lab.write(file, "# changed\n")
    lab.write("labs/lab-77/lab.toml", f'{LAB_TOML}hints = ["a", "b", "c"]\n\n[[prediction]]\nid = "how-many"\n')
    test_lab = found.folder / "test_lab.py"
    test_lab.write_bytes(test_lab.read_bytes().replace(b"\n", b"\r\n"))
    assert digest_of_files(found) == digests[0]
    for file in (
        "labs/lab-77/test_lab.py",
        "labs/lab-77/helpers.py",
        "labs/lab-77/lab.toml",
        "solutions/lab-77/solution.py",
        "solutions/lab-77/alt_other.py",
        "solutions/lab-77/mutants.toml",
    ):
        lab.write(file, "# changed\n")
        digests.append(digest_of_files(found))
    assert len(set(digests)) == 7


def test_a_sample_is_compared_with_the_stored_beliefs(lab):
    """A belief that is missing there is added, so that the two differ. Another belief is a finding."""
    found = load_lab(lab.root / "labs/lab-77")
    stored = load_stored(found)
    store(found, Stored(stored.digest, {}))
    audit = audited(lab, MUTANTS, "3")
    assert audit.findings == []
    assert {name: len(known) for name, known in audit.beliefs.items()} == {"prefill": 1, "double": 1}
    store(found, Stored(stored.digest, {"double": dict.fromkeys(stored.beliefs["double"], "another")}))
    name = list(audit.kills)[1]
    assert audited(lab, MUTANTS, "3").findings == [f"mutant {name} gets another belief for double: another"]
