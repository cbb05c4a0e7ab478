"""What a hand-in's code says before it runs: what no lab needs, and where the engine is asked for the answer.

Tests and submission share a process, so who reaches the interpreter's or pytest's inside could write any verdict. A
file that reaches for it is not run: it is held until a person has read the lines that are named. Labs need little:
`sys`, `open` or `setattr` in one of them is no misfortune of style. The list of what is free is short on purpose.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mini_kv.labkit.lab import PACKAGES, Lab


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _words(
    """__future__ bisect collections collections.abc copy dataclasses functools hashlib heapq itertools json math
    random struct typing"""
)
"""Modules of the standard library that any hand-in may import."""
DATA = _words("""mini_kv.core.block mini_kv.core.errors mini_kv.core.kv_cache_interface mini_kv.core.request
    mini_kv.core.token_ids""")
"""Modules of the engine that hold no lab's answer."""
INSIDE = _words(
    """__import__ attrgetter breakpoint compile delattr eval evaluate_forward_ref exec Formatter ForwardRef
    get_type_hints globals input load_library locals make_dataclass methodcaller open redirect_stderr redirect_stdout
    setattr singledispatch singledispatchmethod update_wrapper vars wraps
    _os _pytest _sys bltns builtins codecs copyreg ctypes gc hub importlib inspect io operator os pathlib posix pytest
    serialization shutil signal socket subprocess sys tempfile threading types utils warnings
    ag_frame cr_frame f_back f_builtins f_code f_globals f_locals gi_code gi_frame mro tb_frame tb_next"""
)
"""What reaches around the code: functions, modules (some hide in others, as `dataclasses.sys`), frames."""
DUNDERS = _words(
    """__init__ __post_init__ __name__ __doc__ __len__ __iter__ __next__ __contains__ __getitem__ __all__ __slots__
    __hash__ __debug__"""
)
"""Names with two underscores that may be said."""


def objections(code: bytes, lab: Lab) -> list[str]:
    """Return a sentence per line that a person has to read before this code may run; none for code without fault.

    Code that is no Python has none: it fails in its tests, with Python's own words.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            starter = ast.parse(lab.pristine_starter.read_text(encoding="utf-8"))
            found = {(node.lineno, words) for node, words in _Look(lab, starter, tree).all()}
    except SyntaxError:
        return []
    except (MemoryError, RecursionError, ValueError) as error:
        return [f"line 1: cannot be read: {type(error).__name__}"]
    return [f"line {line}: {words}" for line, words in sorted(found)]


Found = Iterator[tuple[ast.expr | ast.stmt, str]]


class _Look:
    """One look at one file."""

    def __init__(self, lab: Lab, starter: ast.Module, tree: ast.Module) -> None:
        self.lab, self.tree = lab, tree
        self.nodes = list(ast.walk(tree))
        self.taught = [function.name.rpartition(".")[::2] for function in lab.functions]
        """Class, or "", and name of each function that the lab teaches."""
        self.given = set(_imports(starter))
        self.imported = {name: module for module, name in _bound(tree)}
        """The module behind each name that an import binds, and behind each other word for it."""
        for _ in range(3):
            self.imported |= dict(self._other_words())
        self.bases, self.compared = _in_bases(self.nodes), _compared(self.nodes)
        self.constants = _constants(self.nodes)

    def _other_words(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in self.imported:
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                yield from ((name, self.imported[node.value.id]) for name in names)

    def all(self) -> Found:
        """Yield every objection with the node that it is about."""
        kinds: dict[type, Callable[[Any], Found]] = {
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Constant: self._constant,
            ast.MatchClass: lambda node: ((node.cls, words) for name in node.kwd_attrs for words in _inside(name)),
            ast.ClassDef: self._class,
        }
        for node in self.nodes:
            if type(node) in kinds:
                yield from kinds[type(node)](node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Found:
        for module, name in _imports(ast.Module([node], [])):
            whole = f"{module}.{name}" if name else module
            if getattr(node, "level", 0) or name == "*" or name in INSIDE:
                yield node, f"imports {whole or 'from its own folder'}"
            elif (module, name) not in self.given and not self._is_free(module, name):
                doubt = ", which the starter does not: may the answer be in it?" if module[:7] == "mini_kv" else ""
                yield node, f"imports {whole}{doubt}"

    def _is_free(self, module: str, name: str) -> bool:
        if module.partition(".")[0] == "mini_kv":
            known = DATA | {given for given, _ in self.given} - {self.lab.engine}
            return module in known and not self._teaches(name) and not name.startswith("_")
        return module in FREE or module.partition(".")[0] in PACKAGES[self.lab.needs]

    def _name(self, node: ast.Name) -> Found:
        if node.id == "getattr":
            if id(node) in self.constants:
                yield from ((node, words) for words in _inside(self.constants[id(node)]))
            else:
                yield node, "says getattr, and the name is made when it runs"
        elif node.id == "type" and id(node) not in self.compared:
            yield node, "says type for more than a comparison"
        elif isinstance(node.ctx, ast.Load) or node.id.startswith("__"):
            yield from ((node, words) for words in _inside(node.id))

    def _constant(self, node: ast.Constant) -> Found:
        """Object to a text that names the inside of something; one with spaces is a sentence about it."""
        if isinstance(node.value, str) and re.fullmatch(r"\S*__\w+__\S*", node.value):
            yield from ((node, words) for name in re.findall(r"__\w+?__", node.value) for words in _inside(name))

    def _attribute(self, node: ast.Attribute) -> Found:
        yield from ((node, words) for words in _inside(node.attr) or ["says getattr"] * (node.attr == "getattr"))
        root = _root(node)
        module = self.imported.get(root.id, "") if isinstance(root, ast.Name) else ""
        if module and not isinstance(node.ctx, ast.Load):
            yield node, f"changes {ast.unparse(node)}, which is not its own"
        elif module and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node, f"reaches into {module}: {node.attr}"
        if not self._teaches(node.attr) or id(node) in self.bases:
            return
        if module.startswith("mini_kv") or ast.unparse(node.value).startswith("super("):
            yield node, f"lets the engine answer: {ast.unparse(node)}"

    def _teaches(self, name: str) -> bool:
        return not name.startswith("__") and any(name in pair for pair in self.taught)

    def _class(self, node: ast.ClassDef) -> Found:
        """Object to a class of the lab that leaves one of its methods to the class that it is made from."""
        roots = [root.id for root in map(_root, node.bases) if isinstance(root, ast.Name)]
        if any(self.imported.get(root, "").startswith("mini_kv") for root in roots):
            own = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
            for owner, name in self.taught:
                if owner == node.name and name not in own:
                    yield node.body[0], f"leaves {owner}.{name} to the engine"


def _in_bases(nodes: Sequence[ast.AST]) -> set[int]:
    bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    return {id(inner) for base in bases for inner in ast.walk(base)}


def _compared(nodes: Sequence[ast.AST]) -> set[int]:
    """Return the ids of what is called in a comparison, as `type` in `type(x) is int`."""
    sides = [side for node in nodes if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)]
    return {id(side.func) for side in sides if isinstance(side, ast.Call) and len(side.args) == 1}


def _constants(nodes: Sequence[ast.AST]) -> dict[int, str]:
    """Return the second argument of each call that has a constant there, by the id of what is called."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    return {id(call.func): str(call.args[1].value) for call in calls if isinstance(call.args[1], ast.Constant)}


def _inside(name: str) -> list[str]:
    """Return what is said against a name or an attribute."""
    return [f"says {name}"] if name in INSIDE or (name.startswith("__") and name not in DUNDERS) else []


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the module and the name, or "", of everything that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the module behind each name that an import binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.asname or alias.name) for alias in node.names)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
