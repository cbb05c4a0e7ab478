"""Compares a learner's answer with the right one, in any spelling."""

import re

from mini_kv.course.labkit.lab import Prediction


def plain(answer: str) -> str:
    """Return the answer without case, spaces, commas, brackets, a unit or a percent sign."""
    return " ".join(re.sub(r"[\[\](),%]|tokens?|blocks?|percent", " ", answer.lower()).split())


def is_right(question: Prediction, answer: str) -> bool:
    """Return whether this is the question's answer."""
    return plain(answer) == plain(question.answer)
