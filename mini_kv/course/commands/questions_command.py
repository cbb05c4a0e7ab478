"""`mini-kv questions`: five questions about the learner's own engine. Its run gives the answers."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mini_kv.course.commands import write_page
from mini_kv.course.labkit.lab import all_labs, find_checkout, find_lab
from mini_kv.course.questions.made import Five, Learner, five_questions
from mini_kv.course.questions.question import Question, is_answer
from mini_kv.course.questions.sheet import MARKS, sheet
from mini_kv.messages import listed, shown, wrapped
from mini_kv.typed_numbers import output_file, whole_number

_MAX_NUMBER = 999_999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the learner's files, the lab, the number, and the forms of the output."""
    parser.add_argument(
        "--labs",
        metavar="PATH",
        default="starter",
        help="the word starter (default), the word solution, or a folder with lab-NN.py or lab-NN/starter.py",
    )
    parser.add_argument("--lab", metavar="LAB", help="questions of this lab only, such as 05")
    parser.add_argument(
        "--seed",
        metavar="N",
        type=whole_number(0, _MAX_NUMBER),
        default=0,
        help="another number gives other questions (default: 0)",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--answers", action="store_true", help="print all questions with their answers")
    instead.add_argument(
        "--to", type=output_file(".html"), metavar="FILE", help="write a page to print, for an oral exam"
    )


def run(args: argparse.Namespace) -> int:
    """Ask, print or write the questions. Return 0, 1 if no lab gives any, or 2 if the arguments cannot be used."""
    try:
        five = _make(args)
        for lab_id, reason in five.missing.items():
            command = f"mini-kv run {lab_id.removeprefix('lab-')}"
            print(f"{lab_id} gives no questions: {reason}" + (f" ({command})" if args.labs == "starter" else ""))
        if not five.questions:
            return 1
        source = _source(args, five)
        if args.to is not None:
            write_page(args.to, sheet(five.questions, source))
            return 0
    except (ValueError, OSError) as error:
        print(f"mini-kv questions: {error}", file=sys.stderr)
        return 2
    if args.answers or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_questions(five.questions, args.answers, sys.stdout)
    else:
        ask_questions(five.questions, sys.stdout, sys.stdin)
    print(f"\n{source}")
    return 0


def _make(args: argparse.Namespace) -> Five:
    """Return the questions. Raises `ValueError` if the files or the lab do not exist."""
    root = find_checkout(Path.cwd())
    if args.labs not in ("starter", "solution") and not os.path.isdir(args.labs):
        message = "it is neither starter nor solution, and there is no such folder"
        raise ValueError(f"--labs {shown(args.labs)}: {message}")
    labs = all_labs(root)
    lab_ids = with_questions = [lab.lab_id for lab in labs if lab.questions]
    if args.lab is not None:
        lab_ids = [find_lab(args.lab, root).lab_id]
        if lab_ids[0] not in with_questions:
            raise ValueError(f"--lab {shown(args.lab)}: this lab has no questions; there are: {listed(with_questions)}")
    return five_questions(Learner(args.labs, labs, Path.cwd()), args.seed, lab_ids)


def _source(args: argparse.Namespace, five: Five) -> str:
    """Return a line about the code and the number that give the same questions again."""
    of_lab = "" if args.lab is None else f" --lab {args.lab}"
    command = f"mini-kv questions --labs {shlex.quote(args.labs)}{of_lab} --seed {five.number}"
    return f"The same questions again: {command} (code {five.digest})"


def print_questions(questions: Sequence[Question], with_answers: bool, out: TextIO) -> None:
    """Print all questions, with or without their answers."""
    for number, question in enumerate(questions, start=1):
        out.write(_asked(number, questions))
        if with_answers:
            out.write(f"Answer: {question.answer}\n{_proof(question)}")


def ask_questions(questions: Sequence[Question], out: TextIO, answers: TextIO) -> None:
    """Ask one question after another. After each answer print the engine's own and the calls that gave it."""
    num_right = num_given = 0
    for number, question in enumerate(questions, start=1):
        out.write(f"{_asked(number, questions)}(Enter skips) > ")
        out.flush()
        line = answers.readline()
        if not line:
            out.write("\n")
            break
        if not line.strip():
            out.write("Skipped.\n")
            continue
        is_right = is_answer(line, question.answer)
        num_given += 1
        num_right += is_right
        verdict = "Right" if is_right else "No. Your code gives"
        out.write(f"{verdict}: {question.answer}\n{_proof(question)}")
    out.write(f"\n{num_right} of {num_given} right\n")


def _asked(number: int, questions: Sequence[Question]) -> str:
    """Return a question with its state. The first one has the legend."""
    question = questions[number - 1]
    legend = f"{MARKS}\n" if number == 1 else ""
    state = "".join(f"  {line}\n" for line in question.state)
    ask = "\n".join(wrapped([question.ask], sys.stdout))
    return f"\n{legend}[{number}/{len(questions)}] {question.lab_id}, {question.kind}\n{state}{ask}\n"


def _proof(question: Question) -> str:
    return "".join(f"    {line}\n" for line in question.proof)
