"""Re-exports what starters of 0.2.0 imported from here. It is in `mini_kv.course` now. Goes in 0.3.0."""

import sys
from importlib import import_module

from mini_kv.course import LabTodo, points, todo

__all__ = ["LabTodo", "points", "todo"]

MOVED = {
    "mini_kv.labkit": "mini_kv.course",
    "mini_kv.labkit.detective": "mini_kv.course.given",
    "mini_kv.labkit.detective.admissions": "mini_kv.course.given.faulty_admissions",
    "mini_kv.labkit.detective.manager_under_test": "mini_kv.course.given.manager_under_test",
    "mini_kv.labkit.detective.queues": "mini_kv.course.given.faulty_queues",
    "mini_kv.labkit.second_home": "mini_kv.course.given.second_home",
    "mini_kv.labkit.small_pool": "mini_kv.course.given.small_pool",
    "mini_kv.labkit.small_tree": "mini_kv.course.given.small_tree",
    "mini_kv.labkit.toy_server": "mini_kv.course.given.toy_server",
}
"""The old and the new name of each module that a starter imported."""

for old, new in MOVED.items():
    sys.modules.setdefault(old, import_module(new))
