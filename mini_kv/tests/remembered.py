"""What an object still knows: for tests that nothing of a request is kept when it is gone."""

import gc
from types import FunctionType, ModuleType


def remembered(root: object) -> set[str]:
    """Return every string that can be reached from an object, in whatever attribute it lies."""
    strings: set[str] = set()
    seen: set[int] = set()
    todo = [root]
    while todo:
        thing = todo.pop()
        if isinstance(thing, str):
            strings.add(thing)
        elif id(thing) not in seen and not isinstance(thing, (type, FunctionType, ModuleType)):
            seen.add(id(thing))
            todo += gc.get_referents(thing)
            todo += thing if isinstance(thing, dict) else ()  # get_referents leaves out keys that are strings
    return strings
