"""The challenge: its page says what the code says, its solutions are green, and each fault is led to its sentence."""

import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from mini_kv.cli import main
from mini_kv.course.given.contract import PUBLIC, SENTENCES, Variant, draw, in_variant
from mini_kv.course.given.faulty_managers import FAULTY_MANAGERS
from mini_kv.course.grading.hidden_tests import fresh_copy
from mini_kv.course.labkit.course_settings import load_course
from mini_kv.course.labkit.lab import load_lab
from mini_kv.course.verify.board import badge, green_topics, sign, squares
from mini_kv.course.verify.compare import CORE, EXTRAS, Outcome, Verdict, play
from mini_kv.course.verify.diagnosis import sentence_of, state_before
from mini_kv.course.verify.likeness import FaultAdapter
from mini_kv.course.verify.program import Called, Message, Piped, Program
from mini_kv.course.verify.variant import VariantAdapter

ROOT = Path(__file__).parents[2]
LAB = ROOT / "labs" / "lab-17"
SOLUTIONS = ROOT / "solutions" / "lab-17"
PYTHON = SOLUTIONS / "solution.py"
VARIANTS = [Variant(cap, order, null) for cap in (1, 2) for order in (1, 2) for null in (1, 2)]


def answer_of(text: str) -> Callable[[Message], Any]:
    """Return the function `answer` of a program's text."""
    names: dict[str, Any] = {"__name__": "answer"}
    exec(compile(text, "answer.py", "exec"), names)
    return names["answer"]  # type: ignore[no-any-return]


def board_of(program: Program, variant: Variant = PUBLIC) -> dict[str, str]:
    """Return a sign per scenario, by topic."""
    return {
        topic: "".join(sign(play(recorded, program)) for recorded in of_topic)
        for topic, of_topic in squares(variant).items()
    }


def first_difference(program: Program) -> Outcome:
    scenarios = [recorded for of_topic in squares().values() for recorded in of_topic]
    return next(outcome for recorded in scenarios if (outcome := play(recorded, program)).verdict is Verdict.DIFFERS)


# The page -------------------------------------------------------------------------------------------------------------


def test_the_readme_has_the_sentences() -> None:
    assert load_lab(LAB).contract() == SENTENCES
    assert len(SENTENCES) == 20


def test_the_example_of_the_readme_is_what_happens() -> None:
    """Its two requests and the one that is refused, on the solution."""
    answer = answer_of(PYTHON.read_text(encoding="utf-8"))
    sizes = {"num_blocks": 10, "block_size": 4, "enable_caching": True, "groups": [{"kind": "full", "block_size": 4}]}
    answer({"call": "start", "settings": {**sizes, "needs": []}})

    def admit(name: str, tokens: list[int]) -> tuple[int, bool, list[list[int]], list[int]]:
        answer({"call": "new", "request": name, "tokens": tokens, "salt": None, "lora": None})
        hit = answer({"call": "lookup", "request": name})["result"]["hit"]
        slots = {"computed": 0, "hit": hit, "tokens": len(tokens) - hit, "hit_of": name}
        reply = answer({"call": "allocate", "request": name, **slots})
        return hit, reply["result"]["granted"], reply["tables"][name], [*reply["free"]]

    assert admit("A", [*range(10)]) == (0, True, [[1, 2, 3]], [4, 5, 6, 7, 8, 9])
    assert answer({"call": "free", "request": "A"})["free"] == [3, 4, 5, 6, 7, 8, 9, 2, 1]
    assert admit("B", [*range(12)]) == (8, True, [[1, 2, 3]], [4, 5, 6, 7, 8, 9])
    assert admit("C", [*range(100, 130)]) == (0, False, [[]], [4, 5, 6, 7, 8, 9])


def test_the_squares_need_no_more_than_the_contract() -> None:
    counts = {topic: len(of_topic) for topic, of_topic in squares().items()}
    assert counts == snapshot(
        {
            "cold": 8,
            "hits": 20,
            "sharing": 10,
            "freeing": 11,
            "eviction": 9,
            "refusal": 7,
            "caching-off": 1,
            "salts": 2,
            "windows": 1,
            "groups": 4,
        }
    )
    assert tuple(counts) == (*CORE, *EXTRAS)


# The solutions --------------------------------------------------------------------------------------------------------

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.mark.parametrize("name", ["solution.py", "alt_stamps.py", "alt_tree.py"])
def test_each_solution_in_python_is_green(name: str) -> None:
    board = board_of(Called(answer_of((SOLUTIONS / name).read_text(encoding="utf-8"))))
    assert {sign for signs in board.values() for sign in signs} == {"#"}


@needs_node
def test_the_solution_in_javascript_is_green_in_all_that_it_has_built() -> None:
    with Piped(["node", str(SOLUTIONS / "solution.js")]) as program:
        board = board_of(program)
    assert {topic for topic, signs in board.items() if {*signs} == {"#"}} == {*CORE, "caching-off", "salts"}
    assert {sign for topic in ("windows", "groups") for sign in board[topic]} == {"."}


@needs_gcc
def test_the_solution_in_c_builds_without_a_warning_and_is_green(tmp_path: Path) -> None:
    program = str(tmp_path / "cache")
    command = ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, str(SOLUTIONS / "solution.c")]
    subprocess.run(command, check=True)
    with Piped([program]) as piped:
        board = board_of(piped)
    assert {topic for topic, signs in board.items() if {*signs} == {"#"}} == {*CORE, "caching-off", "salts"}


def test_an_empty_file_has_hollow_squares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--challenge", str(LAB / "starter.py")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  cold         ........              0 of 8"
    assert lines[-1] == "  . 73 times: not built yet"


# Faults ---------------------------------------------------------------------------------------------------------------

SENTENCE_OF_RULE = {2: 7, 3: 4, 4: 10, 5: 3, 6: 4, 8: 16, 9: 16, 10: 16, 11: 11, 13: 1, 14: 13, 15: 13, 16: 12, 17: 15}
SENTENCE_OF_RULE |= {18: 15, 19: 5, 20: 5}
"""The sentence of the challenge that says what a sentence of lab-15's contract says."""
NOT_HERE = ("Lookahead tokens get slots.", "Requests with different", "Adapters with one name")
"""Faulty managers of lab-15 that the six topics cannot show."""


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTY_MANAGERS if not fault.breaks.startswith(NOT_HERE)],
    ids=lambda fault: fault.breaks[:40],
)
def test_a_known_fault_is_led_to_its_sentence(fault: Any) -> None:
    """By what a program of the challenge shows: tables, queue and hashes."""

    class Shows(FaultAdapter):
        def answer(self, message: Message) -> Message:
            reply = super().answer(message)
            return {name: reply[name] for name in ("result", "skip", "tables", "free", "hashes") if name in reply}

    outcome = first_difference(Shows(fault))
    assert sentence_of(outcome) == SENTENCE_OF_RULE[fault.rule]


FAULTS = tomllib.loads((Path(__file__).parent / "challenge_faults.toml").read_text(encoding="utf-8"))["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["idea"][:50])
def test_no_fault_of_a_reader_passes_and_each_is_led_to_its_sentence(fault: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / f"faulty.{fault['language']}"
    text = file.with_stem("solution").name
    text = (SOLUTIONS / text).read_text(encoding="utf-8")
    for right, wrong in fault["changes"]:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    if fault["language"] == "py":
        outcome = first_difference(Called(answer_of(text)))
    else:
        file.write_text(text, encoding="utf-8")
        with Piped(["node", str(file)]) as program:
            outcome = first_difference(program)
    assert sentence_of(outcome) in fault["breaks"]


def test_what_is_hidden_is_not_green() -> None:
    """A reply without hashes could pass by luck."""
    answer = answer_of(PYTHON.read_text(encoding="utf-8"))
    program = Called(lambda message: {name: value for name, value in answer(message).items() if name != "hashes"})
    board = board_of(program)
    assert {sign for signs in board.values() for sign in signs} == {"."}


def test_the_board_names_the_sentence_and_draws_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is drawn of the first difference is verify's: see test_verify."""
    text = PYTHON.read_text(encoding="utf-8").replace("useless + self.free + [", "self.free + useless + [")
    (tmp_path / "faulty.py").write_text(text, encoding="utf-8")
    assert main(["verify", "--challenge", "--only", "cold", str(tmp_path / "faulty.py")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "The contract of vLLM 0.33.0        # equal   x different   . not built",
        "  cold         x##x##xx              4 of 8",
        "",
        "The first difference",
        "====================",
        'cold: "cold, less than a block", call 5 of 9, free A',
    ]
    assert lines[16:18] == ["  free queue    vLLM     1..9", "                program  2..9 1    <--"]
    assert lines[20:] == [
        "",
        "  It breaks sentence 13 of the contract: Of the blocks that one `free` makes free, those that are",
        "  not cached go to the front of the free queue and those that are cached go to its end, both in the",
        "  order of sentence 12.",
        "",
        "  A known fault shows exactly this. The rule that it breaks: Free blocks that are not cached are",
        "  allocated before cached ones.",
        "",
        "  0..7: the tokens 0 to 7. rest: all tokens without a slot. hit=pass: `hit_of` is set. hit=adopt: and",
        "  `computed` counts the hit already. compute: the step has run. --scenario NAME prints every line.",
        "",
        "All differences",
        "===============",
        "   4  sentence 13 of the contract: Of the blocks that one `free` makes free, those that are not",
        "      cached go to the front of the free queue and those that are cached go to its end, both in the",
        "      order of sentence 12.",
    ]


def test_a_list_of_hashes_of_another_length_is_an_error_of_form() -> None:
    answer = answer_of(PYTHON.read_text(encoding="utf-8"))

    def short(message: Message) -> Message:
        reply: Message = answer(message)
        return reply | {"hashes": reply["hashes"][1:]} if "hashes" in reply else reply

    outcome = first_difference(Called(short))
    assert (outcome.reason, sentence_of(outcome)) == ("`hashes` has 9 entries, and the pool has 10 blocks", 0)


def test_a_file_without_the_function_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.py").write_text("print('hello')\n", encoding="utf-8")
    assert main(["verify", "--only", "cold", str(tmp_path / "other.py")]) == 1
    assert "the reply is not JSON: hello" in capsys.readouterr().out
    (tmp_path / "other.py").write_text("x = 1\n", encoding="utf-8")
    assert main(["verify", "--only", "cold", str(tmp_path / "other.py")]) == 1
    assert "other.py has no function `answer`" in capsys.readouterr().out


def test_state_before_is_what_both_sides_agree_on() -> None:
    text = PYTHON.read_text(encoding="utf-8").replace("useless + self.free + [", "self.free + useless + [")
    before = state_before(first_difference(Called(answer_of(text))))
    assert (before["tables"], before["free"]) == ("A: 1", "2..9")


# The badge ------------------------------------------------------------------------------------------------------------


def test_a_badge_has_the_topics_that_are_all_green(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PYTHON.read_text(encoding="utf-8").replace("blocks[0] for blocks", "blocks[-1] for blocks")
    (tmp_path / "newest.py").write_text(text, encoding="utf-8")
    file = tmp_path / "badge.svg"
    argv = ["verify", "--challenge", "--to", str(file), str(tmp_path / "newest.py")]
    assert main(argv) == 1
    title = re.search("<title>(.*)</title>", file.read_text(encoding="utf-8"))
    assert title is not None
    assert title[1] == snapshot("equal to vLLM 0.33: cold, freeing, refusal, caching-off, salts, windows, groups")


def test_without_a_green_topic_there_is_no_badge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "badge.svg"
    argv = ["verify", "--challenge", "--to", str(file), str(LAB / "starter.py")]
    assert main(argv) == 1
    assert capsys.readouterr().err == "mini-kv verify: no topic of lab-17 is equal, so there is no badge\n"
    assert not file.exists()


def test_a_badge_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["verify", "--only", "refusal", "--to", "/no/such/folder/b.svg", str(PYTHON)]
    assert main(argv) == 2
    assert capsys.readouterr().err == snapshot(
        "mini-kv verify: '/no/such/folder/b.svg' cannot be written: No such file or directory\n"
    )


def test_a_topic_with_a_square_that_was_not_played_is_not_on_the_badge() -> None:
    answer = answer_of(PYTHON.read_text(encoding="utf-8"))
    outcomes = [play(recorded, Called(answer)) for recorded in [*squares()["cold"], *squares()["hits"][1:]]]
    assert green_topics(outcomes) == ["cold"]
    assert "equal to vLLM 0.33: cold" in badge("0.33", ["cold"])


# A contract of a class ------------------------------------------------------------------------------------------------


def in_class(text: str, variant: Variant) -> str:
    """Return the public solution, changed to a variant's contract. It has one group, and no null block in a table."""
    kept = ("1", "self.block_size", "2 * self.block_size")[variant.cap]
    changes = {
        '(len(request["tokens"]) - 1)': f'(len(request["tokens"]) - {kept})',
        '[*range(1, settings["num_blocks"])]': f'[*range(settings["num_blocks"] - {variant.null == 1})]',
        "block and ": "",
        "filter(None, blocks)": "blocks",
        "in reversed(table) if block]": "in table]" if variant.order == 1 else "in reversed(table)]",
    }
    if variant.order == 2:
        changes["useless + self.free + ["] = "self.free + useless + ["
    for public, own in changes.items():
        assert public in text
        text = text.replace(public, own)
    return text


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_public_solution_fails_in_a_class_and_a_changed_one_passes(variant: Variant) -> None:
    """The public one passes no topic. The changed one follows the variant's sentences."""
    text = PYTHON.read_text(encoding="utf-8")
    public = board_of(Called(answer_of(text)), variant)
    assert [topic for topic, signs in public.items() if "#" in signs] == []
    own = board_of(Called(answer_of(in_class(text, variant))), variant)
    assert {sign for signs in own.values() for sign in signs} == {"#"}


def test_eight_contracts_are_drawn_and_zero_is_the_public_one() -> None:
    assert {draw(seed) for seed in range(1, 60)} == {*VARIANTS}
    assert draw(0) == PUBLIC
    assert draw(41) == draw(41)


def test_the_page_of_a_class_has_its_sentences() -> None:
    page = (LAB / "README.md").read_text(encoding="utf-8")
    own = in_variant(page, Variant(2, 2, 2))
    told = [line for line in own.splitlines() if line not in page.splitlines()]
    assert [line[:80] for line in told] == snapshot(
        [
            "1. The pool has `num_blocks` blocks of `block_size` tokens, numbered from 0. The",
            "2. The free queue begins as 0, 1, 2 and so on. A new block is always taken from ",
            "7. A hit has at most `num_tokens - 2 * block_size` tokens, in whole blocks.",
            "13. The blocks that one `free` makes free go to the end of the free queue, those",
            "    are cached, both in the order of sentence 12.",
            "This is the contract of your class. It differs from vLLM's in the sentences 1, 2",
        ]
    )
    assert in_variant(page, PUBLIC) == page
    with pytest.raises(ValueError, match="sentence 1 of the contract is 0 times in the page"):
        in_variant("no contract", Variant(1, 1, 1))


def test_the_tests_that_grade_a_class_follow_its_contract(tmp_path: Path) -> None:
    """As `mini-kv class grade` copies them: with the course's settings, beside the lab."""
    root = tmp_path / "course"
    shutil.copytree(LAB, root / "labs" / "lab-17", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "book").mkdir()
    settings = 'address = "https://example.org/kv/mini_kv"\nchallenge = 41\n'
    (root / "book" / "course.toml").write_text(settings, encoding="utf-8")
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, root / file)
    copy = tmp_path / "copy"
    copy.mkdir()
    fresh_copy(load_lab(root / "labs" / "lab-17"), copy, random.Random(1))
    assert load_course(copy).challenge == 41
    (copy / "hand-in.py").write_text(PYTHON.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "labs/lab-17"]
    told = subprocess.run(
        command, check=False, cwd=copy, env={**os.environ, "LAB_IMPL": "hand-in.py"}, capture_output=True, text=True
    )
    assert re.search(r"(\d+) of 50 points", told.stdout) is not None, told.stdout
    assert "  0 of 50 points" in told.stdout


def test_an_engine_with_public_options_is_vllm() -> None:
    """The adapter that records a class adds nothing of its own."""
    for of_topic in [squares()[topic] for topic in CORE]:
        for recorded in of_topic:
            assert play(recorded, VariantAdapter(PUBLIC)).verdict is Verdict.EQUAL
