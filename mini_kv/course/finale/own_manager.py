"""Runs the checks of lab-15 on a manager that is made of the learner's own parts.

python -m mini_kv.course.finale.own_manager              the parts and the checks of your starters
python -m mini_kv.course.finale.own_manager solution     those of the solutions
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.course.finale.assembly import make_manager
from mini_kv.course.finale.learner_files import find_parts, own_parts
from mini_kv.course.given.outcomes import Check, run_check
from mini_kv.course.labkit import LabTodo
from mini_kv.course.labkit.implementation import ImplementationError, LoadError, check_choice, get_function, resolve
from mini_kv.course.labkit.lab import all_labs, find_checkout
from mini_kv.course.labkit.learner_parts import OwnParts
from mini_kv.course.labkit.time_limit import TookTooLongError, time_limit

LIMIT_S = 5
"""Seconds that one check may compute."""
ELSEWHERE = ("scheduler", "group_layers")
"""Places of parts that are not in a manager."""


def manager_of(own: OwnParts) -> Callable[[int, int], Any]:
    """Return a function that makes managers of one group of full attention with these parts."""

    def make(num_blocks: int, block_size: int) -> Any:
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(block_size))
        return make_manager(own, KVCacheConfig(num_blocks, (group,)))

    return make


def verdict(check: Check, own: OwnParts) -> str:
    """Return what the check says about a manager with these parts."""
    try:
        with time_limit(LIMIT_S, 10 * LIMIT_S):
            outcome = run_check(check, manager_of(own))
    except LabTodo:
        return "still TODO"
    except TookTooLongError:
        return f"no end after {LIMIT_S} s"
    if outcome.mistake is not None:
        return f"{type(outcome.mistake).__name__}: {outcome.mistake}"
    if outcome.accused is not None:
        return f"accused: {outcome.said}"
    return f"passed, with {outcome.told}"


def report(choice: str, root: Path) -> Iterator[str]:
    """Yield the parts that are used, then a line per check.

    Raises `ImplementationError` or `LoadError` if there are no such files, or a check is missing.
    """
    check_choice(choice, root)
    labs = [lab for lab in all_labs(root) if lab.needs == "C"]
    lab = next(lab for lab in labs if lab.lab_id == "lab-15")
    implementation = resolve(choice, lab, len(labs), root)
    module = implementation.load()
    checks = {each.name: get_function(module, each, implementation.source) for each in lab.functions}
    found = find_parts(choice, labs, root, "one group")
    used = [each for each in found if each.value is not None and each.part.goes_to not in ELSEWHERE]
    yield "parts of the manager, the others are the engine's own:"
    yield from (f"  {each.part}  {each.place}" for each in used)
    if not used:
        yield "  none of yours is finished"
    own = own_parts(used)
    yield from (f"{name:<16} {verdict(check, own)}" for name, check in checks.items())


def main(words: Sequence[str]) -> int:
    """Print the report for `starter`, `solution` or a folder, and return the exit status."""
    choice = words[0] if words else "starter"
    try:
        for line in report(choice, find_checkout(Path.cwd())):
            print(line)
    except (ImplementationError, LoadError, SyntaxError, ValueError) as error:
        print(f"own_manager: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
