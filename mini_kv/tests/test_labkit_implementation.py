"""LAB_IMPL: whose code runs, and two lines of help where it names nothing that can run."""

import os

import pytest

from mini_kv.course.labkit.implementation import ImplementationError, check_choice
from mini_kv.tests.throwaway_lab import LAB_TOML, SOLUTION, TEST_LAB, ThrowawayLab

pytest_plugins = ["pytester"]


@pytest.fixture
def lab(pytester, monkeypatch):
    return ThrowawayLab(pytester, monkeypatch)


def ran(run):
    """Return whose code the scoreboard says that it was."""
    (line,) = (line for line in run.out.splitlines() if line.startswith("code that ran: "))
    return line.removeprefix("code that ran: ").replace(os.sep, "/")


def usage_error(run):
    """Return the two lines of a usage error, the whole of it."""
    assert run.status == 4
    assert run.states == {}
    assert "::" not in run.out
    assert "Traceback" not in run.err + run.out
    assert "INTERNALERROR" not in run.err + run.out
    assert run.err.startswith("ERROR: ")
    return run.err.removeprefix("ERROR: ").rstrip("\n").split("\n")


# What can be named ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "file", "code"),
    [
        ("elsewhere/attempt.py", "elsewhere/attempt.py", "elsewhere/attempt.py"),
        ("{root}/attempt.py", "attempt.py", "attempt.py"),
        ("starter", "labs/lab-77/starter.py", "labs/lab-77/starter.py"),
        ("mine", "mine/lab-77.py", "mine/lab-77.py"),
        ("copy", "copy/lab-77/starter.py", "copy/lab-77/starter.py"),
        ("labs", "labs/lab-77/starter.py", "labs/lab-77/starter.py"),
        ("package.work", "package/work.py", "package.work"),
    ],
)
def test_a_file(lab, choice, file, code):
    """By its path, relative or full, in the lab's folder, in a folder with a file or a folder a lab, or as a module."""
    lab.write(file, SOLUTION)
    lab.monkeypatch.syspath_prepend(str(lab.root))
    choice = choice.format(root=lab.root.as_posix())
    run = lab.run(choice)
    assert (run.status, run.letters, ran(run)) == (0, "PPPP", f"{code} (LAB_IMPL={choice})")


def test_a_folder_serves_several_labs(lab):
    """Each lab finds its own file in it."""
    lab.add_lab("lab-78", TEST_LAB)
    lab.write("mine/lab-77.py", SOLUTION)
    lab.write("mine/lab-78/starter.py", SOLUTION.replace("2 * number", "number"))
    run = lab.run("mine", target="labs")
    lines = [line for line in run.out.splitlines() if line.startswith("code that ran: ")]
    assert [line.replace(os.sep, "/") for line in lines] == [
        "code that ran: mine/lab-77.py (LAB_IMPL=mine)",
        "code that ran: mine/lab-78/starter.py (LAB_IMPL=mine)",
    ]
    assert "8 passed" not in run.out
    assert "1 failed, 7 passed" in run.out


def test_the_engine(lab):
    """Where `lab.toml` names the engine's part, that runs."""
    lab.write("labs/lab-77/lab.toml", f'engine = "engine_part"\n{LAB_TOML}')
    lab.write("engine_part.py", SOLUTION)
    lab.monkeypatch.syspath_prepend(str(lab.root))
    run = lab.run("engine")
    assert (run.status, run.letters) == (0, "PPPP")
    assert ran(run) == "engine_part (LAB_IMPL=engine)"


@pytest.mark.parametrize("choice", [None, "", "solution"], ids=["unset", "empty", "solution"])
def test_nothing_named_is_the_solution(lab, choice):
    """Unset, set to nothing, or said: the reference runs, and the last line says that it was not yours."""
    run = lab.run(choice)
    assert run.status == 0
    solution = os.path.join("solutions", "lab-77", "solution.py")
    assert run.scoreboard.splitlines()[:2] == [
        f"lab-77  10 of 10 points for the reference solution, {solution}",
        f"  This was not your code. Run yours:  {_run_yours()}",
    ]


def _run_yours():
    return '$env:LAB_IMPL="starter"; pytest labs/lab-77' if os.name == "nt" else "LAB_IMPL=starter pytest labs/lab-77"


def test_a_broken_solution_is_shown_in_full(lab):
    """A run of the solutions shows the whole board, and whose code ran."""
    lab.write("solutions/lab-77/solution.py", SOLUTION.replace("2 * number", "number"))
    run = lab.run(None)
    assert (run.status, run.letters) == (1, "PPPF")
    assert ran(run) == "solutions/lab-77/solution.py, the reference solution (LAB_IMPL is not set to yours)"


def test_the_header_says_it_first(lab):
    """Before any test runs: which code, and what the variable holds."""
    assert "labs run: starter (LAB_IMPL=starter)" in lab.run("starter").out.splitlines()
    assert "labs run: solution, where there is one (LAB_IMPL is not set)" in lab.run("").out.splitlines()


# What cannot ---------------------------------------------------------------------------------------------------------


ADVICE = "Choose solution, starter, engine, a .py file, a folder or a module."


@pytest.mark.parametrize(
    ("choice", "shown", "advice"),
    [
        *[(word, repr(word), ADVICE) for word in ("mine/attempt.py", "no.such.module", "..x", "a..b", "?", "~/x.py")],
        *[(word, f"{word[:60]!r}...", ADVICE) for word in ("x" * 5000, "/" + "x" * 5000 + ".py", "x" * 5000 + ".y")],
        ("d/" * 3000, f"{'d/' * 30!r}...", ADVICE),
        ("two words", "'two words'", ADVICE),
        ("startr", "'startr'", "Did you mean LAB_IMPL=starter?"),
        ("Starter", "'Starter'", "Did you mean LAB_IMPL=starter?"),
        ("soluton", "'soluton'", "Did you mean LAB_IMPL=solution?"),
        ("engin", "'engin'", "Did you mean LAB_IMPL=engine?"),
    ],
    ids=lambda value: value[:20],
)
def test_nothing_of_that_name(lab, choice, shown, advice):
    """Two lines: the beginning of what was typed, and the choices, or the keyword that was meant."""
    said = usage_error(lab.run(choice))
    assert said == [f"LAB_IMPL={shown} is not a keyword, a file, a folder or a module.", advice]


@pytest.mark.parametrize("folder", [".", "mine"])
def test_a_folder_with_nothing_for_this_lab(lab, folder):
    """Which names it should hold."""
    lab.write("mine/lab-78.py", SOLUTION)
    assert usage_error(lab.run(folder)) == [
        f"LAB_IMPL={folder!r} has no file for lab-77.",
        "It must contain lab-77.py or lab-77/starter.py.",
    ]


@pytest.mark.parametrize("choice", ["a\0b", "a\0b.py", "\0", "starter\0"])
def test_a_name_with_a_nul(lab, choice):
    """No environment holds one, but a page, a test or a program may pass it on."""
    with pytest.raises(ImplementationError) as caught:
        check_choice(choice, lab.root)
    assert str(caught.value).startswith(f"LAB_IMPL={choice!r} is not a keyword, a file, a folder or a module.")


def test_an_edition_without_solutions(lab):
    """A student's copy has none: unset must not pass in silence."""
    (lab.root / "solutions/lab-77/solution.py").unlink()
    assert usage_error(lab.run(None)) == [
        "lab-77: LAB_IMPL does not name your code, and this edition comes without solutions.",
        "Run your own code: LAB_IMPL=starter pytest labs/lab-77",
    ]


def test_one_file_for_two_labs(lab):
    """Whose file is it?"""
    lab.add_lab("lab-78", TEST_LAB)
    lab.write("mine.py", SOLUTION)
    first, second = usage_error(lab.run("mine.py", target="labs"))
    assert first == "LAB_IMPL='mine.py' is one file, but 2 labs are to run."
    assert second.startswith("Name one: pytest labs/lab-")


def test_a_lab_without_a_part_in_the_engine(lab):
    """The engine has nothing to show here."""
    assert usage_error(lab.run("engine")) == [
        "lab-77: the engine has no counterpart of this lab.",
        "Choose solution or starter.",
    ]


def test_a_bad_lab_toml_is_named(lab):
    """For who writes a lab: the file, and what is missing in it."""
    file = lab.write("labs/lab-77/lab.toml", LAB_TOML.replace("points = 10", ""))
    (line,) = usage_error(lab.run("starter"))
    assert line.startswith(f"{file}: ")
    assert "points" in line


def test_a_test_without_points_is_refused(lab):
    """For who writes a lab: every test says what it is worth."""
    lab.write("labs/lab-77/test_lab.py", f"{TEST_LAB}\n\ndef test_more(lab):\n    assert lab\n")
    run = lab.run("starter")
    assert run.status == 4
    assert (
        run.err.rstrip()
        == "ERROR: labs/lab-77/test_lab.py::test_more has no @points: every test of a lab needs its points"
    )


# Loading -------------------------------------------------------------------------------------------------------------


def test_a_module_whose_package_breaks_is_there(lab):
    """What is wrong with it is said by the first test, once, and not as a crash of pytest."""
    lab.write("broken/__init__.py", "1 / 0\n")
    lab.write("broken/work.py", SOLUTION)
    lab.monkeypatch.syspath_prepend(str(lab.root))
    run = lab.run("broken.work")
    assert "INTERNALERROR" not in run.out + run.err
    assert (run.status, run.letters) == (1, "FWWW")
    assert "ZeroDivisionError" in run.message


def test_a_dataclass_can_be_made(lab):
    """A module loaded by path is known to Python by a name: `@dataclass` looks itself up there."""
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    assert lab.run_code(f"{imports}\n\n@dataclass\nclass Pair:\n    a: int\n\n\n{SOLUTION}").letters == "PPPP"


def test_two_files_of_one_name_are_two_modules(lab):
    """Each lab runs its own `starter.py`."""
    lab.add_lab("lab-78", TEST_LAB)
    lab.write("labs/lab-77/starter.py", SOLUTION)
    run = lab.run("starter", target="labs")
    assert "4 passed, 4 todo" in run.out


def test_the_code_is_loaded_once_and_by_no_other_test(lab):
    """One import for all tests; tests outside of labs never touch it."""
    lab.write("test_other.py", "def test_other():\n    pass\n")
    lab.write("mine.py", 'print("here I am")\n' + SOLUTION)
    run = lab.run("mine.py", "-s", target=".")
    assert run.out.count("here I am") == 1
    assert "5 passed" in run.out
    lab.write("mine.py", "1 / 0\n")
    assert lab.run("mine.py", target="test_other.py").status == 0


CLASS_LAB_TOML = LAB_TOML.replace('"double"', '"Doubler.double"').replace("double(numbers)", "Doubler.double(numbers)")
CLASS_TEST = """
from mini_kv.course import points


@points(10, "Doubler.double")
def test_1(lab):
    lab.expect("the doubles", [2], lab.Doubler().double([1]))
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Doubler:\n    def double(self, numbers):\n        return [2 * n for n in numbers]\n", None),
        ("", "mine.py has no class Doubler"),
        ("class Doubled:\n    pass\n", "mine.py has no class Doubler; did you rename it? There is Doubled"),
        ("def Doubler():\n    pass\n", "mine.py has no class Doubler; did you rename it? There is Doubler"),
        ("class Doubler:\n    pass\n", "Doubler has no method Doubler.double(numbers)"),
        (
            "class Doubler:\n    def doubles(self, numbers):\n        pass\n",
            "Doubler has no method Doubler.double(numbers); did you rename it? There is doubles",
        ),
    ],
)
def test_a_class_to_write(lab, code, said):
    """Where a lab's functions are methods, the learner's class is handed out; what it lacks is named in one line."""
    lab.write("labs/lab-77/lab.toml", CLASS_LAB_TOML)
    lab.write("labs/lab-77/test_lab.py", CLASS_TEST)
    run = lab.run_code(code)
    if said is None:
        assert run.status == 0
    else:
        assert run.message.splitlines() == ["lab-77  test_1", said]


def test_a_file_with_the_imports_of_an_older_starter(lab):
    """`mini_kv.labkit` re-exports the same objects."""
    older = "from mini_kv.labkit import todo\nfrom mini_kv.labkit.detective.queues import MakeQueue\n"
    lab.write(
        "older.py",
        f"{older}import mini_kv.course.given.faulty_queues as now\nassert MakeQueue is now.MakeQueue\n{SOLUTION}",
    )
    assert lab.run("older.py").letters == "PPPP"
