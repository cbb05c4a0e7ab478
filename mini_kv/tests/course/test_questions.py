"""`mini-kv questions`: five questions about a learner's own engine, and the sheet for an oral exam.

The answers come from the learner's code, so they are checked by a second computation that shares no code with it:
`naive_answers`. `MINI_KV_OPERATIONS` sets the number of questions (a hundredth of it, at least 300).
"""

import io
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.course.commands.questions_command import ask_questions, print_questions
from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import all_labs
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.questions.made import MAKERS, Learner, choose, five_questions
from mini_kv.course.questions.of_cache import questions_of_hits
from mini_kv.course.questions.of_queue import questions_of_queue
from mini_kv.course.questions.of_steps import questions_of_steps
from mini_kv.course.questions.question import MAX_LINES, Question, is_answer
from mini_kv.course.questions.sheet import MARKS, sheet
from mini_kv.tests.course.naive_answers import naive_answer

ROOT = Path(__file__).parents[3]
LABS = [lab.lab_id for lab in all_labs(ROOT) if lab.questions]
NUM_QUESTIONS = max(300, int(os.environ.get("MINI_KV_OPERATIONS", "30000")) // 100)
ALTERNATIVES = sorted(file for lab in LABS for file in (ROOT / "solutions" / lab).glob("alt_*.py"))

LAST_BLOCK_FIRST = '''"""A free queue that hands out the block at the back."""

from mini_kv.core import free_queue


class FreeKVCacheBlockQueue(free_queue.FreeKVCacheBlockQueue):
    def popleft(self):
        return self.popleft_n(1)[0]

    def popleft_n(self, n):
        blocks = self.get_all_free_blocks()[::-1][:n]
        for block in blocks:
            self.remove(block)
        return blocks
'''

TWO = [
    Question("lab-03", "reference count", "How many tables?", ("A  [1x2 ]",), "2", ("free_blocks([1])",), ()),
    Question("lab-11", "waiting order", "Who waits?", ("waiting  C", "waiting  D"), "C D", ("free(C): done",), ()),
]


def learner(choice: str | Path) -> Learner:
    return Learner(str(choice), all_labs(ROOT), ROOT)


def endless_questions(who: Learner, lab_ids: list[str]) -> Iterator[Question]:
    """Yield questions of these labs in turn, without end."""
    seed = 0
    while True:
        for lab_id in lab_ids:
            yield from who.questions(lab_id, random.Random(f"{lab_id} {seed}"))
        seed += 1


def wrong_answers(who: Learner, lab_ids: list[str], number: int) -> list[Question]:
    """Return those of the first questions of each lab whose answer is not the naive one."""
    asked: list[Question] = []
    for lab_id in lab_ids:
        source = endless_questions(who, [lab_id])
        asked += [next(source) for _ in range(-(-number // len(lab_ids)))]
    return [question for question in asked if question.answer != naive_answer(question)]


def naive_or_none(question: Question) -> str | None:
    """Return the naive answer, or `None` if the naive model cannot repeat the calls of wrong code."""
    try:
        return naive_answer(question)
    except (KeyError, ValueError):
        return None


def from_engine(questions: Iterator[Question], kind: str) -> Question:
    return next(question for question in questions if question.kind == kind)


def test_a_question_about_the_queue() -> None:
    """Three calls on the learner's queue, then the next three blocks; the proof is the queue after each call."""
    question = from_engine(questions_of_queue(random.Random(2), FreeKVCacheBlockQueue), "next three")
    assert question.state == (
        "queue  next-> 1 2 9 3 8 <-last",
        "in no queue: 6 5 7 4",
        "1. popleft_n(2)",
        "2. append_n([2, 1])",
        "3. prepend_n([7, 4])",
    )
    assert question.ask == "Then popleft_n(3) is called. Which blocks does it return, in order?"
    assert question.answer == "7 4 9"
    assert question.proof == (
        "popleft_n(2)           next-> 9 3 8 <-last",
        "append_n([2, 1])       next-> 9 3 8 2 1 <-last",
        "prepend_n([7, 4])      next-> 7 4 9 3 8 2 1 <-last",
        "popleft_n(3)           returns 7 4 9",
    )


def test_a_question_about_an_eviction() -> None:
    """The state shows which blocks can be found by which tokens. The answer is what the new request overwrites."""
    question = from_engine(questions_of_hits(random.Random(8), OwnParts()), "evicted")
    assert question.state == (
        "E     [1x1#] [10x1#]",
        "free  next-> 7 6# 5# 4# 3# 9# 2# 8# <-last",
        "E  fzds cgzf",
        "A  1:fzds -:cv  (ended)",
        "B  3:qllm 4:evcg 5:agkx 6:bgcx -:n  (ended)",
        "D  1:fzds 2:cgzf 9:lplo -:w  (ended)",
        "C  8:fzds  (ended)",
    )
    assert question.ask == 'F is admitted with the prompt "qllm bxns f". Which blocks does that evict, in order?'
    assert question.answer == "6"
    assert question.proof[:2] == (
        "get_computed_blocks(F): 4 tokens, blocks 3",
        "allocate_slots(F, 5): new blocks 7 6",
    )


def test_a_question_about_a_preemption() -> None:
    """No block is free, and A needs one."""
    question = from_engine(questions_of_steps(random.Random(0), OwnParts()), "preempted")
    assert question.state[:4] == (
        "running  A  vtkg wzwu fpxw l  (13 tokens, 12 computed)",
        "running  B  vtkg nkuh zwxw jyzp  (16 tokens, 15 computed)",
        "running  C  vtkg xzdi gx  (10 tokens, 9 computed)",
        "waiting  D  vtkg svwz zv  (10 tokens, 0 computed)",
    )
    assert question.answer == "C"
    assert question.proof[:3] == (
        "allocate_slots(A, 1): None",
        "free(C): done",
        "allocate_slots(A, 1): new blocks 8",
    )


def test_every_answer_of_the_solutions_is_the_naive_one() -> None:
    assert wrong_answers(learner("solution"), list(LABS), NUM_QUESTIONS) == []


@pytest.mark.parametrize("file", ALTERNATIVES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_answer_of_an_alternative_solution_is_the_naive_one(file: Path, tmp_path: Path) -> None:
    (tmp_path / f"{file.parent.name}.py").write_bytes(file.read_bytes())
    assert wrong_answers(learner(tmp_path), [file.parent.name], 30) == []


def test_the_answers_follow_the_learners_code(tmp_path: Path) -> None:
    """A queue that hands out the last block first: every answer is read from the back of the queue."""
    (tmp_path / "lab-02.py").write_text(LAST_BLOCK_FIRST, encoding="utf-8")
    source = endless_questions(learner(tmp_path), ["lab-02"])
    for question in (next(source) for _ in range(40)):
        order = [line.split() for line in question.proof if "<-last" in line][-1]
        ids = [word for word in order[order.index("next->") :] if word.isdecimal()]
        answer = question.answer.split()
        assert answer == (ids if question.kind == "queue order" else ids[::-1][: len(answer)])


def test_the_learners_queue_is_in_the_questions_of_later_labs(tmp_path: Path) -> None:
    """lab-07 of the solution, on the queue of the learner: the new blocks are those at the back."""
    (tmp_path / "lab-02.py").write_text(LAST_BLOCK_FIRST, encoding="utf-8")
    (tmp_path / "lab-07.py").write_bytes((ROOT / "solutions/lab-07/solution.py").read_bytes())
    with_both = five_questions(learner(tmp_path), 0, ["lab-07"])
    (tmp_path / "lab-02.py").unlink()
    alone = five_questions(learner(tmp_path), 0, ["lab-07"])
    assert len(with_both.questions) == len(alone.questions) == 5
    assert with_both.questions != alone.questions
    assert [question for question in alone.questions if question.answer != naive_answer(question)] == []
    assert [question for question in with_both.questions if question.answer != naive_answer(question)] != []


def test_no_question_is_trivial_and_every_kind_occurs() -> None:
    """The answer is never nothing, the state is short, and each kind of question is made."""
    who = learner("solution")
    kinds: dict[str, Counter[str]] = {lab_id: Counter() for lab_id in LABS}
    for lab_id in LABS:
        for seed in range(30):
            for question in who.questions(lab_id, random.Random(f"kinds {seed}")):
                kinds[lab_id][question.kind] += 1
                assert question.answer not in ("", "0", "none")
                assert len(question.state) <= MAX_LINES
    assert {lab_id: sorted(found) for lab_id, found in kinds.items()} == {
        "lab-02": ["next block", "next three", "queue order"],
        "lab-03": ["free blocks", "free queue", "reference count"],
        "lab-04": ["different hashes", "equal hashes", "hash calls"],
        "lab-05": ["block table", "cached tokens", "reference counts"],
        "lab-06": ["blocks needed", "cached blocks", "new blocks"],
        "lab-07": ["evicted", "free queue", "hit", "revived"],
        "lab-11": ["preempted", "tokens of a request", "tokens of the step", "waiting order"],
        "lab-12": ["blocks left of the window", "common hit", "layers per group", "window's table"],
        "lab-13": ["evicted letters", "found letters"],
    }


def test_the_same_file_and_number_give_the_same_five(tmp_path: Path) -> None:
    """Line ends do not count. Another number, or one more comment, gives other questions."""
    text = (ROOT / "solutions/lab-03/solution.py").read_text(encoding="utf-8")

    def asked(content: str, number: int) -> list[Question]:
        (tmp_path / "lab-03.py").write_bytes(content.encode())
        return five_questions(learner(tmp_path), number, ["lab-03"]).questions

    first = asked(text, 0)
    assert len(first) == 5
    assert asked(text.replace("\n", "\r\n"), 0) == first
    assert asked(text, 1) != first
    assert asked(f"{text}# mine\n", 0) != first


def test_five_questions_are_of_five_labs_and_five_kinds() -> None:
    """With one lab its kinds take turns, and no two questions show the same state."""
    for number in range(3):
        five = five_questions(learner("solution"), number, LABS).questions
        assert len({question.lab_id for question in five}) == 5
        assert [question.lab_id for question in five] == sorted(question.lab_id for question in five)
    for lab_id in LABS:
        assert [len(five_questions(learner("solution"), number, [lab_id]).questions) for number in range(2)] == [5, 5]
    of_one = five_questions(learner("solution"), 0, ["lab-07"]).questions
    assert len({question.kind for question in of_one}) == 4
    assert len({question.state for question in of_one}) == 5
    assert choose(random.Random(0), {"lab-03": TWO[:1]}) == TWO[:1]


def test_every_lab_with_questions_has_a_function_that_makes_them() -> None:
    assert {lab.questions for lab in all_labs(ROOT)} - {""} == set(MAKERS)


def test_an_unfinished_lab_gives_no_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A line per lab: the function that is still TODO, or the missing file. Exit 1 if there is no question at all."""
    for lab_id in LABS[:2]:
        starter = ROOT / "mini_kv/course/labkit/starters" / f"{lab_id}.txt"
        (tmp_path / f"{lab_id}.py").write_bytes(starter.read_bytes())
    assert main(["questions", "--labs", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[:3] == [
        "lab-02 gives no questions: __init__ is still TODO",
        "lab-03 gives no questions: num_free_blocks is still TODO",
        "lab-04 gives no questions: there is no lab-04.py and no lab-04/starter.py",
    ]


def test_code_that_stops_gives_no_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line of the learner's file that was running is named."""
    text = (ROOT / "solutions/lab-03/solution.py").read_text(encoding="utf-8")
    broken = text.replace("            block.ref_cnt = 1\n", "            block.ref_cnt = 1 // 0\n")
    (tmp_path / "lab-03.py").write_text(broken, encoding="utf-8")
    place = broken.splitlines().index("            block.ref_cnt = 1 // 0") + 1
    assert main(["questions", "--labs", str(tmp_path), "--lab", "3"]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("lab-03 gives no questions: it stops with ZeroDivisionError: ")
    assert line.endswith(f"lab-03.py:{place}")


@pytest.mark.parametrize("lab_id", LABS)
def test_wrong_code_gives_its_own_answers_or_a_reason(lab_id: str, tmp_path: Path) -> None:
    """Wrong versions of each solution. The second computation disagrees with some of them, or cannot follow."""
    [lab] = [lab for lab in all_labs(ROOT) if lab.lab_id == lab_id]
    text = (lab.solutions / "solution.py").read_text(encoding="utf-8")
    other_answers = 0
    for mutant in [mutant for mutant in load_mutants(lab) if mutant.module is None][::3]:
        (tmp_path / f"{lab_id}.py").write_text(mutant.apply(text), encoding="utf-8")
        five = five_questions(learner(tmp_path), 0, [lab_id])
        assert len(five.questions) == 5 or five.missing[lab_id].startswith(("it stops with ", "its runs have "))
        other_answers += sum(question.answer != naive_or_none(question) for question in five.questions)
    assert other_answers > 0


def test_the_questions_are_asked_one_after_the_other() -> None:
    """A wrong answer, then a right one in another spelling. Each is followed by the calls that prove the answer."""
    out = io.StringIO()
    ask_questions(TWO, out, io.StringIO("3 blocks\ncd\n"))
    assert out.getvalue().splitlines() == [
        "",
        MARKS,
        "[1/2] lab-03, reference count",
        "  A  [1x2 ]",
        "How many tables?",
        "(Enter skips) > No. Your code gives: 2",
        "    free_blocks([1])",
        "",
        "[2/2] lab-11, waiting order",
        "  waiting  C",
        "  waiting  D",
        "Who waits?",
        "(Enter skips) > Right: C D",
        "    free(C): done",
        "",
        "1 of 2 right",
    ]


def test_a_question_can_be_skipped_and_the_end_of_input_ends_them() -> None:
    out = io.StringIO()
    ask_questions(TWO, out, io.StringIO("\n"))
    assert "(Enter skips) > Skipped." in out.getvalue()
    assert out.getvalue().endswith("(Enter skips) > \n\n0 of 0 right\n")


def test_without_a_terminal_the_questions_are_printed() -> None:
    """Without answers, unless `--answers` asks for them."""
    out = io.StringIO()
    print_questions(TWO, False, out)
    assert "free(C)" not in out.getvalue()
    print_questions(TWO, True, out)
    assert "Who waits?\nAnswer: C D\n    free(C): done\n" in out.getvalue()


@pytest.mark.parametrize(
    ("given", "answer", "right"),
    [
        ("3, 7, 2", "3 7 2", True),
        ("[3 7 2]", "3 7 2", True),
        ("372", "3 7 2", False),
        ("8 tokens", "8", True),
        ("block 5", "5", True),
        ("b,a", "B A", True),
        ("BA", "B A", True),
        ("AB", "B A", False),
        ("7 3", "3 7", False),
    ],
)
def test_an_answer_may_be_spelled_in_several_ways(given: str, answer: str, right: bool) -> None:
    assert is_answer(given, answer) == right


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labs", "nowhere"], "--labs 'nowhere': it is neither starter nor solution, and there is no such folder"),
        (["--lab", "99"], "no lab '99'; there are: lab-01, "),
        (["--lab", "8"], "--lab '8': this lab has no questions; there are: lab-02, lab-03, "),
        (["--labs", "solution", "--to", "no/such/folder.html"], "'no/such/folder.html' cannot be written: "),
    ],
)
def test_wrong_words_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", *words]) == 2
    assert capsys.readouterr().err.startswith(f"mini-kv questions: {message}")


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "1000000", "9" * 5000])
def test_a_wrong_number_is_named(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["questions", f"--seed={number}"])
    shown = f"'{number}'" if len(number) < 60 else f"'{number[:60]}'..."
    assert f"argument --seed: {shown} is not a whole number from 0 to 999,999" in capsys.readouterr().err


def test_the_sheet_has_the_questions_on_one_page_and_the_answers_on_the_next() -> None:
    """Text of the learner's is escaped; nothing is loaded, and no script runs."""
    question = Question("lab-03", "reference count", "A < B?", ("state <b>",), "42", ("proof & calls",), ())
    page = sheet([question], "made from <mine>")
    asked, told = page.split('<div class="answers">')
    assert "A &lt; B?" in asked
    assert "state &lt;b&gt;" in asked
    assert "Name:" in asked
    assert "42" not in asked.partition("</style>")[2]
    assert "proof &amp; calls" not in asked
    assert "<b>42</b>" in told
    assert "proof &amp; calls" in told
    assert page.count("made from &lt;mine&gt;") == 2
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_no_tensor_library_is_needed(tmp_path: Path) -> None:
    """The command runs in a process where torch, numpy and Triton cannot be imported. A sheet is written."""
    script = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'triton'):\n"
        "    sys.modules[name] = None\n"
        "from mini_kv.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "questions", "--labs", "solution", "--to", str(tmp_path / "sheet.html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"open {tmp_path / 'sheet.html'} in a browser\n"
    assert (tmp_path / "sheet.html").read_text(encoding="utf-8").count("<section>") == 10


def test_the_line_below_the_questions_makes_them_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", "--labs", "solution", "--lab", "05", "--seed", "7", "--answers"]) == 0
    first = capsys.readouterr().out
    found = re.search(r"The same questions again: mini-kv (.*) \(code [0-9a-f]{12}\)\n$", first)
    assert found
    assert main([*found[1].split(), "--answers"]) == 0
    assert capsys.readouterr().out == first
