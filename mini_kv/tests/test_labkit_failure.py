"""What a student reads when something is wrong: at most 15 lines, compared as whole texts."""

import json
import os
import re
import textwrap
from typing import Any

import pytest

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import InvariantViolationError, Violation
from mini_kv.course.labkit.failure import (
    MAX_CHARACTERS,
    MAX_LINES,
    WIDTH,
    compared,
    describe,
    in_words,
    num_signs,
    parts_of,
)
from mini_kv.course.labkit.fixture import LabFailure, same
from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.labkit.scoreboard import LabResult
from mini_kv.tests.throwaway_lab import LAB_TOML, ROOT, SOLUTION, ThrowawayLab

pytest_plugins = ["pytester"]


@pytest.fixture
def lab(pytester, monkeypatch):
    return ThrowawayLab(pytester, monkeypatch)


def changed(old, new):
    """Return the solution with a mistake."""
    assert SOLUTION.count(old) == 1
    return SOLUTION.replace(old, new)


def in_double(*lines):
    """Return the solution with another body of `double`, which begins in line 10."""
    return changed("    return [2 * number for number in numbers]\n", "".join(f"    {line}\n" for line in lines))


def test_the_parts_of_a_failure_begin_with_their_words():
    """A page shows them apart: what is wrong, expected and got with marks, the drawing, the belief, the reason."""
    message = """lab-05  test_5
free queue, all nine
still cached
   I2 free queue
   expected  [8, 9]
   got       [9, 8]
              ^  ^
   calls     free B: freed 9
             free A: freed 8
   state     #=cached  xN=ref_cnt
     free  next-> 9 8 <-last
why: tables are freed
     from tail to head
your code acts as if order does not matter
ask: which goes first?
at:  labs/lab-05/starter.py:4  kv.free(request)
hint: mini-kv hint 05 prefill"""
    assert parts_of(message) == {
        "what": ["free queue, all nine", "still cached", "   I2 free queue"],
        "expected": ["   expected  [8, 9]", "   got       [9, 8]", "              ^  ^"],
        "calls": ["   calls     free B: freed 9", "             free A: freed 8"],
        "state": ["   state     #=cached  xN=ref_cnt", "     free  next-> 9 8 <-last"],
        "why": ["why: tables are freed", "     from tail to head"],
        "your": ["your code acts as if order does not matter"],
        "ask": ["ask: which goes first?"],
        "at": ["at:  labs/lab-05/starter.py:4  kv.free(request)"],
        "hint": ["hint: mini-kv hint 05 prefill"],
    }


@pytest.mark.parametrize(
    ("error", "signs"),
    [
        (ValueError("any"), 1),
        (LabFailure("a number", 1, 2), 1),
        (LabFailure("one item of a list", [1, 2, 3], [1, 9, 3]), 1),
        (LabFailure("two items of a list", [1, 2, 3], [9, 2, 9]), 2),
        (LabFailure("two items too few", [1, 2, 3], [1]), 2),
        (LabFailure("another type", [1, 2, 3], 7), 1),
        (LabFailure("a table of three rows", 1, 2, seen=[1, 5, 7]), 3),
    ],
    ids=lambda value: getattr(value, "what", ""),
)
def test_a_sign_is_a_wrong_item_of_a_list_or_a_row_of_a_table(error: Exception, signs: int):
    assert num_signs(error) == signs


WRONG = {
    "a wrong list": changed("2 * number", "number"),
    "a list that is too short": in_double("return [2]"),
    "a list that is too long": in_double("return [2, 4, 6, 8]"),
    "an empty list": in_double("return []"),
    "None": in_double("pass"),
    "another type": in_double("return (2, 4, 6)"),
    "equal to everything": in_double("class Any:", "    __eq__ = lambda *_: True", "return Any()"),
    "many lines": in_double("class Tall(str):", '    __repr__ = lambda self: "tall\\n" * 99', "return Tall()"),
    "a wide value": in_double("return 'x' * 5000"),
    "an exception": in_double("half = numbers / 2", "return half"),
    "an exception further down": in_double("return helper(numbers)") + "\n\ndef helper(x):\n    return x['no']\n",
    "an exception without words": in_double("assert numbers == []"),
    "an exception with many words": in_double("raise ValueError('no ' * 999)"),
    "an endless recursion": in_double("return double(numbers)"),
    "an exit": in_double("import sys", "sys.exit(0)"),
    "not implemented": in_double("raise NotImplementedError"),
    "a wrong signature": changed("def double(numbers)", "def double(numbers, factor)"),
    "another name": changed("def double", "def doubel"),
    "no function at all": "",
    "no function but a number": changed("def double(numbers):\n    return", "double =").replace("numbers]", "(1, 2)]"),
    "a syntax error": in_double("return [2 *"),
    "a wrong indent": in_double("x = 1", "    return x"),
    "an import that is not there": "import nunpy\n" + SOLUTION,
    "an import that raises": SOLUTION + "\n1 / 0\n",
    "an import that exits": SOLUTION + "\nraise SystemExit(0)\n",
    "an import that asks": "name = input('who?')\n" + SOLUTION,
    "a wrong argument": changed("len(token_ids) - num_cached", "0"),
    "a hit counted twice": changed("    kv.alloc", "    request.num_computed_tokens = num_cached\n    kv.alloc"),
    "a wrong table": changed("num_cached, num_cached, blocks", "0").replace("len(token_ids) - 0", "len(token_ids)"),
    "a second free": changed(
        "    return request\n", "    kv.free(request)\n    kv.free(request)\n    return request\n"
    ),
    "a broken count": changed("    return request\n", "    kv.block_pool.blocks[2].ref_cnt += 1\n    return request\n"),
    "a broken queue": changed(
        "    return request\n",
        "    kv.block_pool.free_block_queue.remove(kv.block_pool.blocks[8])\n    return request\n",
    ),
}


MESSAGES = {
    "a wrong list": """the doubles
   expected  [2, 4, 6]
   got       [1, 2, 3]
              ^  ^  ^
why: twice as much""",
    "a list that is too short": "the doubles\n   expected  [2, 4, 6]\n   got       [2]\nwhy: twice as much",
    "a list that is too long": """the doubles
   expected  [2, 4, 6]
   got       [2, 4, 6, 8]
                       ^
why: twice as much""",
    "an empty list": "the doubles\n   expected  [2, 4, 6]\n   got       []\nwhy: twice as much",
    "another type": "the doubles\n   expected  [2, 4, 6]\n   got       (2, 4, 6)\nwhy: twice as much",
    "an exception": """TypeError: unsupported operand type(s) for /: 'list' and 'int'
at:  mine.py:10  half = numbers / 2""",
    "an exception further down": """TypeError: list indices must be integers or slices, not str
at:  mine.py:14  return x['no']""",
    "an exception without words": "AssertionError\nat:  mine.py:10  assert numbers == []",
    "an exit": "the code called exit()\nat:  mine.py:11  sys.exit(0)",
    "not implemented": "NotImplementedError\nat:  mine.py:10  raise NotImplementedError",
    "a wrong signature": "double must be callable as double(numbers): missing a required argument: 'factor'",
    "another name": "mine.py has no function double(numbers); did you rename it? There is doubel",
    "no function but a number": "mine.py has no function double(numbers)",
    "a syntax error": "SyntaxError: '[' was never closed\n   mine.py:10  return [2 *",
    "a wrong indent": "IndentationError: unexpected indent\n   mine.py:11  return x",
    "an import that is not there": "ModuleNotFoundError: No module named 'nunpy'\nat:  mine.py:1  import nunpy",
    "an import that raises": "ZeroDivisionError: division by zero\nat:  mine.py:12  1 / 0",
    "an import that exits": "the code called exit()\nat:  mine.py:12  raise SystemExit(0)",
    "a wrong table": """B's block table
   expected  [1, 2, 4]
   got       [4, 5, 6]
              ^  ^  ^
   calls     allocate A: allocated 1..3, cached 1..3
             lookup B: hit 4
             allocate B: allocated 4..6, cached 4..6
   state     #=cached  xN=ref_cnt
     A     [1x1#] [2x1#] [3x1#]
     B     [4x1#] [5x1#] [6x1#]
     free  next-> 7 8 <-last
why: the last block is never shared""",
    "a second free": """UnknownRequestError: this request 'A' holds no blocks: never admitted, or freed already
   calls     allocate A: allocated 1..3, cached 1..3
             free A: freed 3..1
             free A: raised UnknownRequestError
   state     #=cached  xN=ref_cnt
     free  next-> 4 5 6 7 8 3# 2# 1# <-last
why: six tokens fill three blocks of two
at:  mine.py:7  kv.free(request)""",
    "a broken queue": """I2 broken: no table holds block 8, but it is not in the free queue: it is lost
   I2 free queue: exactly the blocks that no table holds, each once, linked both ways
   calls     lookup A: hit 0
             allocate A: allocated 1..3, cached 1..3
   state     #=cached  xN=ref_cnt
     A     [1x1#] [2x1#] [3x1#]
     free  next-> 4 5 6 7 <-last
why: six tokens fill three blocks of two""",
}
"""The whole text for some of them, below lab and test: what, expected, got, marks, calls, state, why, where."""
LETTERS = dict.fromkeys(("a syntax error", "an import that raises", "an import that exits"), "FWWW")
LETTERS["another name"] = "PPPF"
"""A file that cannot be loaded is one failure, not four; a missing function hinders its own tests alone."""


@pytest.mark.parametrize("name", WRONG)
def test_fifteen_lines_and_no_traceback(lab, name):
    """Whatever is wrong: short, narrow, headed by lab and test; what does not help is not there; the run goes on."""
    run = lab.run_code(WRONG[name])
    assert run.status == 1
    assert run.messages
    assert "INTERNALERROR" not in run.out
    assert "Traceback" not in run.out
    for test, message in run.messages.items():
        lines = message.partition("\n---")[0].splitlines()
        assert len(lines) <= MAX_LINES == 15
        assert max(map(len, lines)) <= WIDTH == 100
        assert lines[0] == f"lab-77  {test}"
        assert [line for line in lines if line != line.rstrip() or not line] == []
    assert len(run.states) == 4
    assert run.letters == LETTERS.get(name, run.letters) != "PPPP"
    if name in MESSAGES:
        assert run.message.partition("\n")[2] == MESSAGES[name]


def test_of_a_text_of_ten_million_characters_the_beginning_is_read():
    """To break all of it into lines takes a time that grows with the square of its length."""
    assert in_words(ValueError("x" * 10_000_000)) == f"ValueError: {'x' * 10_000_000}"[:MAX_CHARACTERS]
    assert in_words(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "error",
    [
        LabFailure("word " * 100_000, 1, 2),
        InvariantViolationError(Violation("I2", "word " * 100_000)),
        KVCacheError("word " * 100_000),
    ],
    ids=["what a test compares", "a broken invariant", "an error of the engine"],
)
def test_of_each_long_text_only_the_beginning_is_broken_into_lines(error: Exception, monkeypatch):
    broken: list[int] = []

    def wrap(text: str, *args: Any, **options: Any) -> list[str]:
        broken.append(len(text))
        return real(text, *args, **options)

    real = textwrap.wrap
    monkeypatch.setattr(textwrap, "wrap", wrap)
    result = LabResult(load_lab(ROOT / "labs" / "lab-05"), "test_1", 1, "prefill", "biography", None)
    assert describe(error, result, "why not", None, "mine.py") is not None
    assert max(broken) == MAX_CHARACTERS


def test_an_invariant_comes_before_any_list(lab):
    """The table is wrong as well, but a leaked block is the nearer cause."""
    code = WRONG["a wrong table"].replace(
        "    return request", "    kv.block_pool.blocks[7].ref_cnt += 1\n    return request"
    )
    (message,) = lab.run_code(code).messages.values()
    assert message.splitlines()[1] == "I1 broken: block 7 has ref_cnt 1 but is held by no table"
    assert "expected" not in message


LARGE = """
from mini_kv.course import points

WHY = "because " * 40


@points(10, "prefill", why=WHY)
def test_large(lab):
    kv = lab.make_kv(num_blocks=1000, block_size=2)
    for number in range({requests}):
        lab.prefill(kv, list(range(number, number + {tokens})), f"request-{{number}}")
    table = kv.get_block_ids("request-0")[0]
    lab.expect({what!r}, {want}, table)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("requests", "tokens"), [(1, 60), (2, 60), (30, 2), (30, 60)])
@pytest.mark.parametrize("what", ["a table", "something that takes a long time to say " * 30])
def test_a_thousand_blocks_fit_in_fifteen_lines(lab, requests, tokens, what):
    """Long tables, many tables, a long queue, a long reason: what gives way is the calls and the middle of things."""
    lab.write("labs/lab-77/test_lab.py", LARGE.format(requests=requests, tokens=tokens, what=what, want="[*table, 7]"))
    lines = lab.run_code(SOLUTION).message.splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    assert lines[0] == "lab-77  test_large"
    assert lines[1].startswith(what[:40].strip())
    assert [line for line in lines if line.startswith("   expected  [")]
    assert {"because"} >= set(lines[-1].split()) - {"why:"}


@pytest.mark.parametrize(
    ("want", "expected", "got", "omitted"),
    [
        ("[*table[:35], 99, *table[36:]]", "[34, 35, 99, 37, 38, 39, 40]", "[34, 35, 36, 37, 38, 39, 40]", 33),
        ("table[:-1]", "[38, 39]", "[38, 39, 40]", 37),
    ],
    ids=["one differs", "one ends"],
)
def test_the_difference_of_two_long_lists_is_seen(lab, want, expected, got, omitted):
    """Forty ids are too many for a line: what is equal gives way, and the first difference stays in sight."""
    lab.write("labs/lab-77/test_lab.py", LARGE.format(requests=1, tokens=80, what="a table", want=want))
    assert lab.run_code(SOLUTION).message.splitlines()[1:6] == [
        "a table",
        f"   expected  {expected}",
        f"   got       {got}",
        "                      ^^",
        f"             the first {omitted} of both are equal and omitted",
    ]


@pytest.mark.parametrize(("value", "kind"), [(iter([1]), "list_iterator"), ((x for x in "a"), "generator")])
def test_an_iterator_is_shown_as_one(value, kind):
    """Its address would say nothing, and that it can be walked through once says it all."""
    told = f"   got       an iterator ({kind}), which can be read only once"
    assert compared([1], value) == ["   expected  [1]", told]


def test_what_was_nan_and_still_is_has_not_changed():
    """An argument that a wrong step has filled with NaN must not look as if the next step had written to it."""
    nan = float("nan")
    assert same([1.5, nan], [1.5, nan])
    assert not same([1.5, nan], [1.5, 0.0])
    assert not same([1.5, 0.0], [1.5, nan])


def test_an_object_that_equals_all_is_not_equal_inside_a_dict():
    """The values of a dict are compared with their types, as items of a list are."""

    class Equal:
        def __eq__(self, other):
            return True

        __hash__ = None  # type: ignore[assignment]

    assert same({"A": [1], "B": 2.0}, {"B": 2, "A": [1]})
    assert not same({"A": 1}, {"A": Equal()})
    assert not same({"A": 1}, {"A": True})
    assert not same({"A": 1}, {"B": 1})


def test_prints_are_shown(lab):
    """What the learner prints while a test runs stands under its failure; a passing run stays quiet."""
    code = SOLUTION.replace("    return [", "    print('here:', numbers)\n    return [")
    assert "here:" not in lab.run_code(code).out
    (message,) = lab.run_code(code.replace("2 * number", "number")).messages.values()
    first, _, printed = message.partition("\n---")
    assert first.endswith("why: twice as much")
    assert printed.splitlines()[1:] == ["here: [1, 2, 3]"]


def test_prints_while_loading_are_shown(lab):
    """So is what the file prints before it breaks."""
    assert lab.run_code("print('so far')\n1 / 0\n").message.splitlines()[-1] == "so far"


def test_a_traceback_for_who_wants_one(lab):
    """-vv: all of it, and the message in short below."""
    out = lab.run_code(WRONG["an exception further down"], "-vv").out
    assert "mine.py:14: TypeError" in out
    assert "return helper(numbers)" in out
    assert "--- In short ---" in out
    assert "\nat:  mine.py:14  return x['no']\n" in out


def test_a_test_that_breaks_down_says_where(lab):
    """On a learner's code in the usual form, for the code may be the cause; on our own as it is: that is our bug."""
    lab.write(
        "labs/lab-77/test_lab.py",
        "from mini_kv.course import points\n\n\n@points(10, 'double')\ndef test_bad(lab):\n    lab.double([]).typo\n",
    )
    run = lab.run_code(SOLUTION)
    assert run.states == {"test_bad": "FAIL 0/10"}
    assert run.message.replace(os.sep, "/").splitlines() == [
        "lab-77  test_bad",
        "the test raised an error while it read the result of your code",
        "   AttributeError: 'list' object has no attribute 'typo'",
        "at:  labs/lab-77/test_lab.py:6  lab.double([]).typo",
    ]
    message = lab.run("solution").message.replace(os.sep, "/")
    assert "labs/lab-77/test_lab.py:6: AttributeError" in message


def test_a_test_of_several_functions_charges_the_one_at_fault(lab):
    """The last one that it named before the difference: its are the points, and the hint is for it."""
    test = "    lab.charge('helper')\n    lab.expect('twice 1', [2], lab.double([1]))\n    lab.charge('double')\n"
    lab.write(
        "labs/lab-77/test_lab.py",
        "from mini_kv.course import points\n\n\n@points(10, 'helper')\n"
        f"def test_both(lab):\n{test}    lab.expect('twice 2', [5], lab.double([2]))\n",
    )
    lab.write("labs/lab-77/lab.toml", f'{LAB_TOML}hints = ["Twice what?"]\n')
    message = lab.run_code(SOLUTION).message
    assert "hint: mini-kv hint 77 double" in message


CONTRACT = """# lab-77

## What to implement

### The contract

1. `double` returns a list.
2. Each number of it is **twice** the given one, less than 2**32 and 2**63,
   in the given order.

## Run
"""
RULES = """from mini_kv.course import points


@points(10, "double", rule=1)
def test_double(lab):
    lab.expect("kind", list, type(lab.double([1])))
    lab.expect("twice 1", [2], lab.double([1]), rule=2)
"""


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        ("tuple(numbers)", "breaks rule 1 of the contract: `double` returns a list."),
        (
            "numbers",
            "breaks rule 2 of the contract: Each number of it is twice the given one, less than 2**32 and 2**63,",
        ),
        ("1 // 0", "breaks rule 1 of the contract: `double` returns a list."),
    ],
)
def test_without_a_belief_a_failure_has_the_sentence_of_the_contract_that_is_broken(lab, result, rule):
    """That of the test, or of the comparison if it names another one."""
    lab.write("labs/lab-77/README.md", CONTRACT)
    lab.write("labs/lab-77/test_lab.py", RULES)
    run = lab.run_code(changed("[2 * number for number in numbers]", result))
    assert [line for line in run.message.splitlines() if line.startswith("breaks")] == [rule]


def test_a_file_that_cannot_be_loaded_breaks_no_rule(lab):
    lab.write("labs/lab-77/README.md", CONTRACT)
    lab.write("labs/lab-77/test_lab.py", RULES)
    assert "breaks rule" not in lab.run_code(f"{SOLUTION}\n1 // 0\n").out


def test_a_second_part_that_is_missing_is_no_error(lab):
    """As in a folder with one lab alone."""
    lab.write("labs/lab-77/lab.toml", f'second_part = "lab-77-further"\n{LAB_TOML}')
    assert lab.run("starter").letters == "TTTT"


IN_A_LIBRARY = "import sched\n    loop = sched.scheduler(int, int)\n    loop.enter(1, 1, int)\n    loop.run()\n"
"""A scheduler whose clock stands still."""
ENDLESS = {
    "in a function": (changed("    return [", "    while True:\n        pass\n    return ["), "PPPF", "mine.py:1[01]"),
    "on loading": (f"{SOLUTION}\nwhile True:\n    pass\n", "FWWW", "mine.py:1[23]"),
    "in a library": (
        changed("    return [", f"    {IN_A_LIBRARY}    return ["),
        "PPPF",
        "mine.py:13",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends(lab, name):
    """A time limit, and the learner's line that was running; the other tests run. (5 s as a rule, less here.)"""
    code, letters, place = ENDLESS[name]
    run = lab.run_apart(code, "--lab-seconds=0.1", environment=os.environ)
    assert (run.status, run.letters) == (1, letters)
    lines = run.message.splitlines()
    reason = "an endless loop, or a slow machine (--lab-seconds 30 allows more)"
    assert lines[1] == f"no end after 0.1 s of computing: {reason}"
    assert re.match(f"at:  {place}  ", lines[2])
    assert len(lines) == 3


@pytest.mark.slow
def test_what_swallows_even_the_end_ends_python(lab):
    """Nothing else ends it. The failure is told with its line, and what was asked for is written."""
    loop = (
        "while True:\n        try:\n            while True:\n                pass\n        except:\n            pass\n"
    )
    code = changed("    return [", f"    {loop}    return [")
    run = lab.run_apart(code, "--lab-seconds=0.1", "--lab-json=out.json", environment=os.environ)
    assert (run.status, run.letters) == (1, "PPPF")
    lines = run.out[run.out.index("lab-77  test_4_double") :].splitlines()
    assert lines[1].startswith("an endless loop that catches every exception")
    assert re.match(r"at:  mine.py:1[0-5]  ", lines[2])
    tests = json.loads((lab.root / "out.json").read_text(encoding="utf-8"))["tests"]
    assert [test["state"] for test in tests] == ["pass", "pass", "pass", "fail"]


@pytest.mark.slow
def test_a_busy_machine_costs_nothing(lab):
    """What counts is what the process computes: to wait three times as long as that is no failure."""
    code = changed("    return [", "    import time\n    time.sleep(0.6)\n    return [")
    run = lab.run_apart(code, "--lab-seconds=0.2", environment=os.environ)
    assert (run.status, run.letters) == (0, "PPPP")


@pytest.mark.slow
def test_a_lab_needs_no_plugin_for_its_time(lab):
    """Without pytest-timeout its marks and its setting mean nothing, do no harm, and a loop is ended all the same."""
    test_lab = (lab.root / "labs/lab-77/test_lab.py").read_text(encoding="utf-8")
    lab.write("labs/lab-77/test_lab.py", f"import pytest\n\npytestmark = pytest.mark.timeout(0.2)\n{test_lab}")
    lab.write("pytest.ini", f"{(lab.root / 'pytest.ini').read_text(encoding='utf-8')} --strict-markers\ntimeout = 60\n")
    run = lab.run_apart(SOLUTION, "-p", "no:timeout", environment=os.environ)
    assert (run.status, run.letters, run.err) == (0, "PPPP", "")
    run = lab.run_apart(ENDLESS["in a function"][0], "-p", "no:timeout", "--lab-seconds=0.1", environment=os.environ)
    assert (run.status, run.letters) == (1, "PPPF")
    assert "no end after 0.2 s of computing" in run.out  # a test that needs longer says so by its mark


SLOPPY = {
    "a file left open": ("log = open('debug.txt', 'a')", "log.write('x')"),
    "a file left open in a cycle": ("log = open('debug.txt', 'a')", "cycle = [log]", "cycle.append(cycle)"),
    "an old way": ("import warnings", "warnings.warn('old', DeprecationWarning)"),
    "a pattern": ("'\\d'",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOPPY)
def test_a_warning_costs_no_point(lab, name):
    """Where every warning of the project's own tests is an error, a learner's is none, and is not printed."""
    lab.write("pytest.ini", f"{(lab.root / 'pytest.ini').read_text(encoding='utf-8')}filterwarnings = error\n")
    code = in_double(*SLOPPY[name], "return [2 * number for number in numbers]")
    run = lab.run_apart(f"import gc\n\ngc.disable()\n{code}", environment=os.environ)
    assert (run.status, run.letters, run.err) == (0, "PPPP", "")
    assert not re.search(r"Warning|\d warning", run.out)
