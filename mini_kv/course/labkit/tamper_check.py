"""The functions that the judge stands on, to detect changes by the code that ran in the same process."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

JUDGE = ("mini_kv", "_pytest", "pytest", "pluggy")
"""The packages of the harness and of pytest."""
UNSTEADY = ("warnings", "triton")
"""Packages that replace their own functions while they run."""


def functions_of_the_judge() -> dict[str, Any]:
    """Return every function of mini_kv and pytest by name, as it is in its module or class now."""
    return _functions_of(lambda package: package in JUDGE)


def functions_of_all_modules() -> dict[str, Any]:
    """Return every function of every loaded module. Costs 20 ms, and 100 ms with torch.

    The harness and pytest stand on the standard library, so a change of any module can forge a result.
    """
    return _functions_of(lambda package: package not in UNSTEADY)


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions that are gone, or are other ones now."""
    return [name for name, thing in before.items() if now.get(name) is not thing]


def _functions_of(watches: Callable[[str], bool]) -> dict[str, Any]:
    """Return the functions of the loaded modules of some packages.

    For each class also return the names of its methods as one interned text. It is the same object until they change.
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some attributes of torch warn when they are read
        for module_name, module in list(sys.modules.items()):
            if not watches(module_name.partition(".")[0]):
                continue
            for name, thing in list(getattr(module, "__dict__", {}).items()):
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
