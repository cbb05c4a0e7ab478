"""What of a solution no text for learners may have, and how it is looked for."""

import random
from pathlib import Path

from mini_kv.course.grading.solution_leaks import Runs, bare, secrets

TWO_METHODS = """
class {}:
    def find(self):
        {} = self.first()
        if not one:
            return None
        two = self.second(one)
        return one, two
"""


def test_runs_are_found_together_as_one_by_one():
    drawn = random.Random(68)
    texts = ["".join(drawn.choices("ab", k=drawn.randrange(60))) for _ in range(300)]
    for shortest in (1, 2, 3, 6, 9):
        runs = ["".join(drawn.choices("ab", k=drawn.randrange(shortest, 12))) for _ in range(20)]
        looked_for = Runs(runs)
        for text in texts:
            assert looked_for.found_in(text) == {run for run in runs if run in text}


def test_of_methods_of_one_name_each_is_a_secret(tmp_path: Path):
    (tmp_path / "solutions/lab-01").mkdir(parents=True)
    classes = [TWO_METHODS.format("Full", "one"), TWO_METHODS.format("Window", "last")]
    (tmp_path / "solutions/lab-01/solution.py").write_text("".join(classes), encoding="utf-8")
    guarded = secrets(tmp_path)
    where = "solutions/lab-01/solution.py: find"
    assert [guarded.found_in(bare(text)) for text in classes] == [[where], [where]]
    assert guarded.found_in(bare("class Other:\n    pass\n")) == []
