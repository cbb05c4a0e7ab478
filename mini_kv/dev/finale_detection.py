"""Measures the finale: it runs the checks on the wrong versions of the labs, and counts those that they detect.

    python -m mini_kv.dev.finale_detection                  all labs, which takes long
    python -m mini_kv.dev.finale_detection lab-05 lab-06    these labs
    python -m mini_kv.dev.finale_detection --hours 6        fewer workloads per check: quicker

A wrong version is used as a learner's file would be, among the solutions of the other labs. It is detected if a step
differs from the engine's. It is out of reach if its changed lines do not run in any workload, or if
solutions/finale.toml has the reason why no run shows it.
"""

import argparse
import ast
import difflib
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from mini_kv.course.finale.blame import Search
from mini_kv.course.finale.integration import (
    KERNELS,
    NUM_HOURS,
    Check,
    model_checks,
    random_checks,
    workloads_with_parts,
)
from mini_kv.course.finale.learner_files import by_name, own_parts
from mini_kv.course.finale.steps import Run, Workload
from mini_kv.course.labkit.audit import Mutant, load_mutants
from mini_kv.course.labkit.lab import Lab, all_labs, find_checkout

PATIENCE_S = 30
"""Seconds that a step of a wrong version may take. A busy machine needs several for a right one."""
DEAD = "its changed lines do not run"
"""The reason that is found by running the solution."""


class Detection(NamedTuple):
    """The first difference that the finale finds."""

    where: str
    what: str
    is_named: bool
    """Whether the report names the lab of the wrong version."""


@dataclass
class Count:
    """The wrong versions of one lab."""

    lab_id: str
    num_all: int = 0
    reasons: dict[str, list[str]] = field(default_factory=dict)
    """Wrong versions out of reach, by reason."""
    detected: list[str] = field(default_factory=list)
    not_named: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    """Wrong versions that are detected although solutions/finale.toml has a reason."""

    @property
    def num_reachable(self) -> int:
        """Wrong versions that a run can show."""
        return len(self.detected) + len(self.missed)

    def row(self) -> str:
        """Return the line of the table."""
        numbers = (self.num_all, self.num_reachable, len(self.detected), len(self.detected) - len(self.not_named))
        return _row(self.lab_id, *numbers, len(self.missed))


def _row(name: str, *cells: object) -> str:
    return f"{name:<10}" + "".join(f"{cell!s:>11}" for cell in cells)


HEAD = _row("", "versions", "reachable", "detected", "named", "missed")


class MutationRun:
    """Runs the checks on wrong versions. The engine's own runs are made once."""

    def __init__(self, root: Path, seed: int = 0, num_hours: int = NUM_HOURS) -> None:
        """Draw the workloads. Those with a model are there if there is PyTorch."""
        self.labs = all_labs(root)
        self._checks = [*random_checks(seed, num_hours), *(model_checks(seed) if find_spec("torch") else ())]
        self._references: dict[tuple[str, Workload], Run] = {}

    def checks(self, lab: Lab) -> list[Check]:
        """Return the checks for this lab. The one with kernels is slow, so only lab-10 gets it."""
        kernels = lab.needs == "K"
        return [check for check in self._checks if kernels or not check.has_model or set(KERNELS) <= {*check.left_out}]

    def folder(self, base: Path, lab: Lab, text: str) -> Path:
        """Write a learner's folder: this text for one lab, and the solutions of the others."""
        for other in self.labs:
            solution = other.solutions / "solution.py"
            if other.parts and (other.needs != "K" or other == lab):
                own = text if other == lab else solution.read_text(encoding="utf-8")
                (base / f"{other.lab_id}.py").write_text(own, encoding="utf-8")
        return base

    def detect(self, lab: Lab, folder: Path) -> Detection | None:
        """Run all checks until a step differs."""
        for check in self.checks(lab):
            all_parts = by_name(check.parts(str(folder), self.labs, folder))
            for number, (workload, parts) in enumerate(workloads_with_parts(check, all_parts), start=1):
                if not any(each.part.lab_id == lab.lab_id for each in parts.values()):
                    continue
                reference = self._reference(check, workload)
                run = Run(workload, own_parts(parts.values()), PATIENCE_S)
                divergence = run.first_divergence(reference)
                if divergence is not None:
                    what = divergence.what if run.error is None else type(run.error).__name__
                    report = "\n".join(Search(run, reference, parts).blame().lines)
                    is_named = re.search(rf"^(With|  lab).*{lab.lab_id}\b", report, re.MULTILINE) is not None
                    return Detection(f"{check.title}, run {number}", what, is_named)
        return None

    def lines_that_run(self, lab: Lab) -> set[int]:
        """Return the lines of the lab's solution that run in the checks."""
        with tempfile.TemporaryDirectory() as base:
            folder = self.folder(Path(base), lab, _solution(lab))
            file, seen = str((folder / f"{lab.lab_id}.py").resolve()), set[int]()

            def on_line(frame: FrameType, event: str, argument: object) -> Any:
                seen.add(frame.f_lineno)
                return on_line

            sys.settrace(lambda frame, event, argument: on_line if frame.f_code.co_filename == file else None)
            try:
                self.detect(lab, folder)
            finally:
                sys.settrace(None)
        return seen

    def _reference(self, check: Check, workload: Workload) -> Run:
        if (check.title, workload) not in self._references:
            self._references[check.title, workload] = check.reference(workload)
        return self._references[check.title, workload]


def _solution(lab: Lab) -> str:
    return (lab.solutions / "solution.py").read_text(encoding="utf-8")


def changed_lines(right: str, wrong: str) -> set[int]:
    """Return the lines of the right text that the wrong one changes, each with the rest of its statement."""
    changed: set[int] = set()
    for tag, first, end, _, _ in difflib.SequenceMatcher(
        None, right.splitlines(), wrong.splitlines(), autojunk=False
    ).get_opcodes():
        if tag != "equal":  # of an insertion, the line before it
            changed.update(range(first + 1, end + 1) if end > first else [first])
    for node in ast.walk(ast.parse(right)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else (node.end_lineno or node.lineno)
            statement = set(range(node.lineno, max(last, node.lineno) + 1))
            if statement & changed:
                changed |= statement
    return changed


def out_of_reach(root: Path) -> dict[tuple[str, str], str]:
    """Return the reasons of solutions/finale.toml, by lab and wrong version."""
    values = tomllib.loads((root / "solutions" / "finale.toml").read_text(encoding="utf-8"))
    return {
        (lab_id, mutant_id): group["reason"]
        for group in values["out_of_reach"]
        for lab_id, mutant_ids in group["versions"].items()
        for mutant_id in mutant_ids
    }


def measure(mutations: MutationRun, lab: Lab, known: dict[tuple[str, str], str], tell: Callable[[str], None]) -> Count:
    """Run the checks on every wrong version of a lab."""
    count = Count(lab.lab_id)
    right, lines = _solution(lab), mutations.lines_that_run(lab)
    for mutant in load_mutants(lab):
        if mutant.module is not None:  # the engine is wrong, not the learner
            continue
        count.num_all += 1
        wrong = mutant.apply(right)
        if lines and not changed_lines(right, wrong) & lines:
            count.reasons.setdefault(DEAD, []).append(mutant.id)
            continue
        with tempfile.TemporaryDirectory() as base:
            detection = mutations.detect(lab, mutations.folder(Path(base), lab, wrong))
        _note(count, mutant, detection, known.get((lab.lab_id, mutant.id)))
        tell(f"{lab.lab_id} {mutant.id}: {detection or 'not detected'}")
    return count


def _note(count: Count, mutant: Mutant, detection: Detection | None, reason: str | None) -> None:
    if detection is not None:
        count.detected.append(mutant.id)
        if not detection.is_named:
            count.not_named.append(mutant.id)
        if reason is not None:
            count.stale.append(mutant.id)
    elif reason is not None:
        count.reasons.setdefault(reason, []).append(mutant.id)
    else:
        count.missed.append(mutant.id)


def report(counts: Collection[Count]) -> Iterator[str]:
    """Yield the table, and the wrong versions that are not detected."""
    yield HEAD
    for count in counts:
        yield count.row()
    detected = sum(len(count.detected) for count in counts)
    reachable = sum(count.num_reachable for count in counts)
    named = detected - sum(len(count.not_named) for count in counts)
    yield _row("all", sum(count.num_all for count in counts), reachable, detected, named, reachable - detected)
    if reachable:
        yield f"{detected / reachable:.1%} of those in reach are detected."
    for count in counts:
        for reason, names in count.reasons.items():
            yield f"{count.lab_id} out of reach, {reason}: {len(names)}: {', '.join(names)}"
        for noun, names in (("missed", count.missed), ("not named", count.not_named), ("stale reason", count.stale)):
            if names:
                yield f"{count.lab_id} {noun}: {', '.join(names)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 if a detected version is not named, or a reason is stale."""
    parser = argparse.ArgumentParser(prog="python -m mini_kv.dev.finale_detection")
    parser.add_argument("labs", nargs="*", metavar="LAB", help="such as lab-05 (default: all with a part)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--hours", type=int, default=NUM_HOURS, metavar="N", help="hours of an act on dice")
    args = parser.parse_args(argv)
    root = find_checkout(Path.cwd())
    labs = {lab.lab_id: lab for lab in all_labs(root) if lab.missing is None and any(p.goes_to for p in lab.parts)}
    for lab_id in args.labs:
        if lab_id not in labs:
            parser.error(f"{lab_id} has no part in the finale. These have: {', '.join(labs)}")
    chosen = [labs[lab_id] for lab_id in args.labs or labs]
    mutations = MutationRun(root, args.seed, args.hours)
    known = out_of_reach(root)
    counts = [measure(mutations, lab, known, lambda line: print(line, file=sys.stderr, flush=True)) for lab in chosen]
    print("\n".join(report(counts)))
    return 1 if any(count.not_named or count.stale for count in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
