"""The workbook: labs, the finale, questions, a class, and what notebooks and chapters call.

A lab's files import from here: todo for the starter, points for the tests. The rooms, in reading order: `labkit`
(the harness: runs the tests on the learner's code and prints the error in a few drawn lines), `given` (what single labs
are given), `finale` (the engine with a learner's parts), `questions` (about a run of the learner's engine), `grading`
(a class: hand-ins, marks, the gradebook, a release), `lessons` (what notebooks and chapters call), `verify` (vLLM's
recorded answers as a suite for any engine), `commands` (the learner's and the instructor's commands of `mini-kv`).
"""

from mini_kv.course.labkit import LabTodo, points, todo

__all__ = ["LabTodo", "points", "todo"]
