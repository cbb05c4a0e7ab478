"""The functions of the judge (mini_kv and pytest), to detect changes by the code that ran in the same process."""

import sys
from typing import Any


def functions_of_the_judge() -> dict[str, Any]:
    """Return every function of mini_kv and pytest by name, as it is in its module or class now.

    For each class also return the names of its methods as one interned text. It is the same object until they change.
    """
    found = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("mini_kv", "_pytest", "pytest", "pluggy") or module is None:
            continue
        for name, thing in list(vars(module).items()):
            if callable(thing):
                found[f"{module_name}.{name}"] = thing
            if isinstance(thing, type) and thing.__module__ == module_name:
                own = {n: m for n, m in list(vars(thing).items()) if _is_method(m)}
                found |= {f"{module_name}.{name}.{inner}": method for inner, method in own.items()}
                found[f"the methods of {module_name}.{name}"] = sys.intern(" ".join(sorted(own)))
    return found


def _is_method(thing: object) -> bool:
    """Return whether a class attribute is called or computed: a function, a property, a slot."""
    return callable(thing) or hasattr(thing, "__get__")
