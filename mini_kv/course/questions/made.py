"""Five questions from the learner's files: their code runs, and five of the questions about the runs are chosen."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.course.finale.learner_files import LabFile, last_line, own_parts, short, why_not
from mini_kv.course.labkit.lab import Lab
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError, time_limit
from mini_kv.course.questions.of_cache import questions_of_hits, questions_of_prefill, questions_of_slots
from mini_kv.course.questions.of_hashes import questions_of_hashes
from mini_kv.course.questions.of_policy import questions_of_policy
from mini_kv.course.questions.of_pool import questions_of_pool
from mini_kv.course.questions.of_queue import questions_of_queue
from mini_kv.course.questions.of_steps import questions_of_steps
from mini_kv.course.questions.of_windows import questions_of_windows
from mini_kv.course.questions.question import Question

NUM_QUESTIONS = 5
NUM_RUNS, MAX_RUNS = 8, 60
"""Runs of each lab's code, from which its questions are chosen. There are more if these give too few."""
ENOUGH = 20
"""Questions from which five are chosen."""
LIMIT_S = 20
"""Seconds for the runs of a lab."""


class Learner:
    """The learner's files of the labs with questions, loaded as far as possible."""

    def __init__(self, choice: str, labs: Sequence[Lab], invocation_dir: Path, limit: float = LIMIT_S) -> None:
        """Load the files. `choice` is starter, solution or a folder, as in LAB_IMPL."""
        self.choice, self.limit = choice, limit
        self.files = {
            lab.lab_id: LabFile(lab, choice, len(labs), invocation_dir, limit) for lab in labs if lab.questions
        }

    def missing(self, lab_id: str) -> str:
        """Return the reason why the lab gives no questions, or an empty string."""
        file = self.files[lab_id]
        todo = [function.name for function in file.lab.functions if function.name in file.todo]
        if file.module is None or not todo:
            return file.problem
        return f"{file.lab.short_name(todo[0])} is still TODO"

    def own(self, model: str) -> OwnParts:
        """Return the parts of all finished labs that fit this kind of model."""
        finished = [file for lab_id, file in self.files.items() if not self.missing(lab_id)]
        return own_parts(file.find(part) for file in finished for part in file.lab.parts if not why_not(part, model))

    def get(self, lab_id: str, name: str) -> Any:
        """Return the learner's class or function."""
        return getattr(self.files[lab_id].module, name)

    def questions(self, lab_id: str, rng: random.Random) -> Iterator[Question]:
        """Return questions about one run of the lab's code, drawn from this source of random choices."""
        return MAKERS[self.files[lab_id].lab.questions](rng, self, lab_id)

    def digest(self, lab_ids: Sequence[str]) -> str:
        """Return a digest of the content of these labs' files. Line ends do not count."""
        texts = [Path(self.files[lab_id].source).read_text(encoding="utf-8").splitlines() for lab_id in lab_ids]
        return hashlib.sha256(repr(texts).encode()).hexdigest()[:12]


Maker = Callable[[random.Random, Learner, str], Iterator[Question]]

MAKERS: dict[str, Maker] = {
    "queue": lambda rng, learner, lab: questions_of_queue(rng, learner.get(lab, "FreeKVCacheBlockQueue")),
    "pool": lambda rng, learner, lab: questions_of_pool(rng, learner.get(lab, "BlockPool")),
    "hashes": lambda rng, learner, lab: questions_of_hashes(rng, learner.get(lab, "get_request_block_hasher")),
    "prefill": lambda rng, learner, lab: questions_of_prefill(
        rng, learner.own("one group"), learner.get(lab, "prefill"), learner.get(lab, "ref_counts")
    ),
    "slots": lambda rng, learner, lab: questions_of_slots(rng, learner.own("one group")),
    "hits": lambda rng, learner, lab: questions_of_hits(rng, learner.own("one group")),
    "steps": lambda rng, learner, lab: questions_of_steps(rng, learner.own("one group")),
    "windows": lambda rng, learner, lab: questions_of_windows(rng, learner.own("windows")),
    "policy": lambda rng, learner, lab: questions_of_policy(rng, learner.get(lab, "LFU")),
}
"""The function that makes a lab's questions from a source of random choices, by `questions` in its `lab.toml`."""


@dataclass(frozen=True, slots=True)
class Five:
    """The chosen questions, and what is needed to make them again."""

    questions: list[Question]
    missing: dict[str, str]
    """Labs without questions, each with the reason."""
    digest: str
    """Digest of the files that the questions were made from."""
    number: int


def five_questions(learner: Learner, number: int, lab_ids: Sequence[str]) -> Five:
    """Return five questions, or fewer if the labs give no more. The same files and number give the same questions."""
    offered: dict[str, list[Question]] = {}
    missing: dict[str, str] = {}
    for lab_id in lab_ids:
        reason = learner.missing(lab_id)
        if not reason:
            offered[lab_id], reason = _try_lab(learner, number, lab_id)
        if reason:
            missing[lab_id] = reason
    digest = learner.digest(list(offered))
    return Five(choose(random.Random(f"{digest} {number}"), offered), missing, digest, number)


def _try_lab(learner: Learner, number: int, lab_id: str) -> tuple[list[Question], str]:
    """Return the questions of a lab, and the error if its code stops."""
    questions: list[Question] = []
    try:
        with time_limit(learner.limit, learner.limit):
            seed = f"{learner.digest([lab_id])} {number} {lab_id}"
            for run in range(MAX_RUNS):
                if run >= NUM_RUNS and len(questions) >= ENOUGH:
                    break
                questions += learner.questions(lab_id, random.Random(f"{seed} {run}"))
    except TookTooLongError:
        return [], f"it does not return within {learner.limit:g} s"
    except (Exception, SystemExit) as error:
        line = last_line(error, {file.source for file in learner.files.values()})
        at = f", at {short(line[0])}:{line[1]}" if line else ""
        return [], f"it stops with {type(error).__name__}: {error}{at}"
    return questions, "" if questions else "its runs have no moment worth a question"


def choose(rng: random.Random, offered: Mapping[str, Sequence[Question]]) -> list[Question]:
    """Return five of the questions: of as many labs and kinds as possible, and of each kind one with the most merit."""
    left = {lab_id: _by_kind(rng, questions) for lab_id, questions in offered.items()}
    turns = [lab_id for lab_id in left if left[lab_id]]
    rng.shuffle(turns)
    chosen: list[Question] = []
    while turns and len(chosen) < NUM_QUESTIONS:
        lab_id = turns.pop(0)
        kinds = left[lab_id]
        kind = next(iter(kinds))
        chosen.append(kinds[kind][0])
        kinds[kind] = kinds.pop(kind)  # the next question of this kind is after the other kinds
        left[lab_id] = _about_other_states(kinds, chosen[-1])
        if left[lab_id]:
            turns.append(lab_id)
    return sorted(chosen, key=lambda question: question.lab_id)


def _about_other_states(kinds: Mapping[str, Sequence[Question]], chosen: Question) -> dict[str, list[Question]]:
    """Leave out the questions about the state of the chosen one: they could give away its answer."""
    others = {kind: [each for each in those if each.state != chosen.state] for kind, those in kinds.items()}
    return {kind: those for kind, those in others.items() if those}


def _by_kind(rng: random.Random, questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Return the questions by kind, kinds in random order, each with the most merit first."""
    different = list({(question.ask, question.state): question for question in questions}.values())
    rng.shuffle(different)
    kinds: dict[str, list[Question]] = {}
    for question in different:
        kinds.setdefault(question.kind, []).append(question)
    return {kind: sorted(those, key=lambda question: -question.merit) for kind, those in kinds.items()}
