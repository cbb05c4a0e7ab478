"""Checks a hand-in's code before it runs: names that no lab needs, and calls that let the engine give the answer.

Tests and submission share a process, so code with access to the internals of Python or pytest could forge results. A
file with such code is not run. It is held until a person has read the listed lines. Labs need few names. None needs
`sys`, `open` or `setattr`, so a file with one of them is suspicious. The list of allowed names is short on purpose.
"""

import ast
import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from string import Formatter
from types import ModuleType
from typing import Any

from mini_kv.course.grading.settable import Settable, file_of
from mini_kv.course.labkit.lab import PACKAGES, Lab
from mini_kv.labkit import MOVED


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _words(
    """__future__ bisect collections collections.abc copy dataclasses functools hashlib heapq hmac itertools json math
    random struct typing"""
)
"""Modules of the standard library whose public names any hand-in may use."""
DATA = _words("""mini_kv.core.block mini_kv.core.errors mini_kv.core.kv_cache_interface mini_kv.core.request
    mini_kv.core.token_ids""")
"""Modules of the engine that contain no lab's answer."""
INSIDE = _words(
    """__import__ attrgetter breakpoint compile copyright credits delattr eval evaluate evaluate_forward_ref exec
    Formatter format_map ForwardRef get_type_hints globals help input license load_library locals make_dataclass
    methodcaller open redirect_stderr redirect_stdout setattr singledispatch singledispatchmethod TypedDict
    update_wrapper vars wraps _evaluate
    _os _pytest _sys bltns builtins codecs copyreg ctypes gc hub importlib inspect io operator os pathlib posix pytest
    serialization shutil signal socket subprocess sys tempfile threading types utils warnings
    cpp_extension ctypeslib distributed f2py from_file fromfile fx genfromtxt loadtxt memmap multiprocessing onnx
    package savetxt savez tofile
    ag_code ag_frame cr_code cr_frame f_back f_builtins f_code f_globals f_locals gi_code gi_frame mro tb_frame
    tb_next"""
)
"""Names that give access to other code: functions, modules (some inside others, as `dataclasses.sys`), frames."""
DUNDERS = _words(
    """__init__ __post_init__ __name__ __doc__ __len__ __iter__ __next__ __contains__ __getitem__ __all__ __slots__
    __hash__ __debug__ __main__"""
)
"""Allowed names with two underscores."""
OPERATORS = _words("""__add__ __bool__ __call__ __delitem__ __eq__ __float__ __ge__ __gt__ __index__ __int__ __le__
    __lt__ __mul__ __ne__ __radd__ __repr__ __reversed__ __rmul__ __setitem__ __str__ __sub__""")
"""Further methods with two underscores that a class may define."""
PLAIN = _words("bool bytes dict float frozenset int list set str tuple")
"""Types that `type(x)` may be compared with by `==` and `in`: their comparison runs no code of the other operand."""
OF_THE_TESTS = _words("""asked hashes_are_asked_for hold is_silent made_requests num_asked num_looks num_null_freed
    own_id returned sizes watch""")
"""Attributes of the tests' caches, blocks and hash functions: counts, and `hold`, which admits a request."""


def objections(code: bytes, lab: Lab) -> list[str]:
    """Return a sentence per line that a person has to read before this code may run.

    Code that is not Python has no objections. It fails in its tests, with Python's own message.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _with_new_names(ast.parse(code))
            starter = ast.parse(lab.pristine_starter.read_text(encoding="utf-8"))
            found = {(getattr(node, "lineno", 1), words) for node, words in _Look(lab, starter, tree).all()}
    except SyntaxError:
        return []
    except (MemoryError, RecursionError, ValueError) as error:
        return [f"line 1: cannot be read: {type(error).__name__}"]
    return [f"line {line}: {words}" for line, words in sorted(found)]


Found = Iterator[tuple[ast.AST, str]]


class _Look:
    """The check of one file."""

    def __init__(self, lab: Lab, starter: ast.Module, tree: ast.Module) -> None:
        self.lab = lab
        self.nodes = list(ast.walk(tree))
        self.nodes += _spelled_out(self.nodes)
        self.taught = [function.name.rpartition(".")[::2] for function in lab.functions]
        """Class, or "", and name of each function that the lab teaches."""
        self.given = set(_imports(starter))
        self.imported = {name: module for module, name in _bound(tree)}
        """The module of each name that an import binds, and of each other name for the same object."""
        for _ in range(3):
            self.imported |= dict(self._other_words())
        self.modules = dict(_modules(tree))
        """The module of each name that is bound to a whole module."""
        self.made = {name for node in self.nodes for name in _binds(node)}
        self.bases, self.harmless = _in_bases(self.nodes), _harmless(self.nodes, PLAIN - self.made)
        self.owners = {id(node.value) for node in self.nodes if isinstance(node, ast.Attribute)}
        """The ids of all nodes whose attributes are read."""
        self.decorators = _decorators(self.nodes)
        harmless = [pair for pair in (*_imports(tree), *self._read_of_modules()) if pair[0] in FREE]
        given = [module for module, _ in self.given if module.startswith("mini_kv.course.given.")]
        self.settable = Settable(self.nodes, harmless, [*DATA, *given])

    def _other_words(self) -> Iterator[tuple[str, str]]:
        """Yield other names for an imported object, or for a class derived from it, with its module."""
        for node in self.nodes:
            values: Sequence[ast.expr]
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                values = [node.value]
            elif isinstance(node, ast.ClassDef) and not self._is_taught(node.name):
                names, values = [node.name], node.bases
            else:
                continue
            roots = [root.id for root in map(_root, values) if isinstance(root, ast.Name) and root.id in self.imported]
            yield from ((name, self.imported[root]) for name in names for root in roots)

    def _read_of_modules(self) -> Iterator[tuple[str, str]]:
        """Yield module and name of each attribute that is read from a whole module."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and self._module_of(node.value):
                yield self._module_of(node.value), node.attr

    def _is_taught(self, class_name: str) -> bool:
        return any(class_name == owner for owner, _ in self.taught)

    def _module_of(self, node: ast.expr) -> str:
        """Return the name of the module that this expression is, or ""."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, "")
        module = f"{self._module_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
        return module if module in FREE else ""

    def all(self) -> Found:
        """Yield every objection with the node that it is about."""
        kinds: dict[type, Callable[[Any], Found]] = {
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._item,
            ast.Constant: self._constant,
            ast.MatchClass: self._pattern,
            ast.alias: self._alias,
            ast.ClassDef: self._class,
        }
        for node in self.nodes:
            for name in _binds(node):
                if name.startswith("__") and name not in DUNDERS | OPERATORS:
                    yield node, f"says {name}"
                if self._is_taught(name) and not isinstance(node, ast.ClassDef):
                    yield node, f"rebinds {name}"
            if type(node) in kinds:
                yield from kinds[type(node)](node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Found:
        for module, name in _imports(ast.Module([node], [])):
            whole = f"{module}.{name}" if name else module
            parts = [part for part in whole.split(".") if part != "__future__"]
            inside = any(part in INSIDE or part.startswith("_") for part in parts)
            if getattr(node, "level", 0) or name == "*" or inside:
                yield node, f"imports {whole or 'from its own folder'}"
            elif (module, name) not in self.given and not self._is_free(module, name):
                doubt = ", which the starter does not: may the answer be in it?" if module[:7] == "mini_kv" else ""
                yield node, f"imports {whole}{doubt}"

    def _alias(self, node: ast.alias) -> Found:
        if node.name == "dataclass" and node.asname:
            yield node, "uses dataclass, but not as a class decorator"

    def _is_free(self, module: str, name: str) -> bool:
        if module.partition(".")[0] == "mini_kv":
            known = DATA | {given for given, _ in self.given} - {self.lab.engine}
            return module in known and not self._teaches(name) and name in _public(module)
        if module in FREE:
            return not name or name in _public(module) or f"{module}.{name}" in FREE
        return module.partition(".")[0] in PACKAGES[self.lab.needs]

    def _name(self, node: ast.Name) -> Found:
        yield from ((node, words) for words in _inside(node.id))
        if node.id == "getattr" and id(node) not in self.harmless:
            yield node, "uses getattr with a name that is computed at run time"
        elif node.id == "type" and id(node) not in self.harmless:
            yield node, "uses type for more than a comparison"
        elif node.id == "super" and id(node) not in self.harmless:
            yield node, "uses super for more than a method"
        elif node.id in self.modules and id(node) not in self.owners:
            yield node, f"passes {self.modules[node.id]} on"
        elif node.id == "dataclass" and id(node) not in self.decorators:
            yield node, "uses dataclass, but not as a class decorator"
        if isinstance(node.ctx, ast.Del) and self._teaches(node.id):
            yield node, f"deletes {node.id}"

    def _constant(self, node: ast.Constant) -> Found:
        """Object to a string with the name of an internal attribute. A string with spaces is only a sentence."""
        if isinstance(node.value, str) and not re.search(r"\s", node.value):
            yield from ((node, words) for name in re.findall(r"__\w+?__", node.value) for words in _inside(name))

    def _attribute(self, node: ast.Attribute) -> Found:
        yield from ((node, words) for words in _inside(node.attr) or ["uses getattr"] * (node.attr == "getattr"))
        yield from ((node, words) for words in self._odd(node))
        root, whole = _root(node), self._module_of(node.value)
        module = self.imported.get(root.id, "") if isinstance(root, ast.Name) else ""
        if module and not isinstance(node.ctx, ast.Load):
            yield node, f"changes {_shown(node)}, which is not its own"
        elif not isinstance(node.ctx, ast.Load) and not self.settable.allows(node):
            yield node, f"sets {_shown(node)}, which is not a field"
        elif module and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node, f"reaches into {module}: {node.attr}"
        elif whole and not self._is_open(whole, node.attr):
            yield node, f"reaches into {whole}: {node.attr}"
        if not self._teaches(node.attr) or id(node) in self.bases:
            return
        if module.startswith("mini_kv") or (isinstance(root, ast.Name) and root.id == "super"):
            yield node, f"lets the engine answer: {_shown(node)}"

    def _item(self, node: ast.Subscript) -> Found:
        root = _root(node)
        if isinstance(root, ast.Name) and root.id in self.imported and not isinstance(node.ctx, ast.Load):
            yield node, f"changes {_shown(node)}, which is not its own"

    def _odd(self, node: ast.Attribute) -> Iterator[str]:
        """Yield the objections to an attribute that does more than its name suggests."""
        if node.attr == "format" and not (isinstance(node.value, ast.Constant) and _names_no_inside(node.value.value)):
            yield "uses format, whose fields can read attributes of an object"
        if node.attr in ("load", "save") and self._module_of(node.value) in ("torch", "numpy"):
            yield f"reads or writes a file: {_shown(node)}"
        if node.attr == "name" and not isinstance(node.ctx, ast.Load) and "dataclasses" in self.imported.values():
            yield "changes a name, and the name of a dataclass's field is run as code"
        if node.attr in OF_THE_TESTS and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield f"uses an attribute of the tests: {node.attr}"
        if isinstance(node.ctx, ast.Del) and self._teaches(node.attr):
            yield f"deletes {node.attr}"
        if node.attr == "dataclass" and id(node) not in self.decorators:
            yield "uses dataclass, but not as a class decorator"

    def _is_open(self, module: str, name: str) -> bool:
        """Return whether this attribute of a whole module may be read."""
        if module in FREE or module.partition(".")[0] == "mini_kv":
            return name in _public(module) or f"{module}.{name}" in FREE or (module, name) in self.given
        return True

    def _pattern(self, node: ast.MatchClass) -> Found:
        for name in node.kwd_attrs:
            yield from ((node.cls, words) for words in _inside(name))
            if name in OF_THE_TESTS:
                yield node.cls, f"uses an attribute of the tests: {name}"
            if self._teaches(name):
                yield node.cls, f"lets the engine answer: {name}"
        if node.patterns:
            yield node.cls, "matches attributes without their names"

    def _teaches(self, name: str) -> bool:
        return not name.startswith("__") and any(name in pair for pair in self.taught)

    def _class(self, node: ast.ClassDef) -> Found:
        """Object to a class of the lab that inherits one of its methods from the engine's class."""
        if any(keyword.arg in (None, "metaclass") for keyword in node.keywords):
            yield node, "says metaclass"
        if self._is_taught(node.name) and node.decorator_list:
            yield node, f"rebinds {node.name}"
        roots = [root.id for root in map(_root, node.bases) if isinstance(root, ast.Name)]
        if any(self.imported.get(root, "").startswith("mini_kv") for root in roots):
            own = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
            for owner, name in self.taught:
                if owner == node.name and name not in own:
                    yield node.body[0], f"leaves {owner}.{name} to the engine"


def _in_bases(nodes: Sequence[ast.AST]) -> set[int]:
    bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    return {id(inner) for base in bases for inner in ast.walk(base)}


def _harmless(nodes: Sequence[ast.AST], plain: frozenset[str]) -> set[int]:
    """Return the ids of the harmless uses of `type`, `getattr` and `super`.

    `type` in a comparison, as in `type(x) is int`, and in `type(x).__name__`; `getattr` with a constant name; `super()`
    with a method after it.
    """
    found = set()
    for node in nodes:
        if isinstance(node, ast.Compare):
            found |= {id(call.func) for call in _types_compared(node, plain)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            called = _called(node.value)
            is_name = called == "type" and node.attr == "__name__" and isinstance(node.ctx, ast.Load)
            found |= {id(node.value.func)} if called == "super" or is_name else set()
        elif isinstance(node, ast.Call) and _called(node) == "getattr" and isinstance(node.args[1], ast.Constant):
            found.add(id(node.func))
    return found


def _types_compared(node: ast.Compare, plain: frozenset[str]) -> list[ast.Call]:
    """Return the calls in a comparison, unless `==` or `in` shows their results to something that is not plain."""
    sides = [node.left, *node.comparators]
    calls = [side for side in sides if isinstance(side, ast.Call) and _called(side) == "type" and len(side.args) == 1]
    others = [part for side in sides if side not in calls for part in _parts(side)]
    by_identity = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
    return calls if by_identity or all(isinstance(o, ast.Name) and o.id in plain for o in others) else []


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def _called(call: ast.Call) -> str:
    """Return the name of the called function. `getattr` counts only with a second argument."""
    if not isinstance(call.func, ast.Name) or (call.func.id == "getattr" and len(call.args) < 2):
        return ""
    return call.func.id


def _spelled_out(nodes: Sequence[ast.AST]) -> list[ast.AST]:
    """Return `x.name` for each `getattr(x, "name")`, because the same objections apply to both."""
    found: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) == "getattr" and isinstance(node.args[1], ast.Constant):
            attribute = ast.Attribute(node.args[0], str(node.args[1].value), ast.Load())
            found.append(ast.copy_location(attribute, node))
    return found


def _decorators(nodes: Sequence[ast.AST]) -> set[int]:
    """Return the ids of the decorators of classes: `@dataclass`, `@dataclasses.dataclass(frozen=True)`."""
    above = [decorator for node in nodes if isinstance(node, ast.ClassDef) for decorator in node.decorator_list]
    return {id(node.func if isinstance(node, ast.Call) else node) for node in above}


def _binds(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node binds: by a definition, an import or a pattern."""
    if isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif not isinstance(node, ast.keyword):
        names = [getattr(node, field, None) for field in ("name", "arg", "rest")]
        yield from (name for name in names if isinstance(name, str))


def _names_no_inside(text: object) -> bool:
    """Return whether this is a format string whose fields read no attribute and no item."""
    if not isinstance(text, str):
        return False
    fields = [(field or "", spec or "") for _, field, spec, _ in Formatter().parse(text)]
    return not any("." in field or "[" in field or "{" in spec for field, spec in fields)


def _inside(name: str) -> list[str]:
    """Return the objection to a name or an attribute."""
    return [f"says {name}"] if name in INSIDE or (name.startswith("__") and name not in DUNDERS) else []


def _with_new_names(tree: ast.Module) -> ast.Module:
    """Rename modules that a starter of 0.2.0 imported, in place. Return the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            node.module = MOVED.get(node.module or "", node.module)
    return tree


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the module and the name, or "", of everything that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the module of each name that an import binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.asname or alias.name) for alias in node.names)


def _modules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that is bound to a whole module, and that module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
            yield from ((first, first) for alias in node.names for first in [alias.name.partition(".")[0]])
        elif isinstance(node, ast.ImportFrom):
            wholes = [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
            yield from ((name, whole) for name, whole in wholes if whole in FREE or file_of(whole) is not None)


@lru_cache
def _public(module: str) -> frozenset[str]:
    """Return the public names of a module: those that it defines, or documents if it is in the standard library."""
    file = file_of(module)
    if file is not None:
        names = [name for node in ast.parse(file.read_bytes()).body for name in _defines(node)]
    else:
        found = importlib.import_module(module)
        plain = [name for name, thing in vars(found).items() if not isinstance(thing, ModuleType)]
        names = getattr(found, "__all__", plain)
    return frozenset(name for name in names if not name.startswith("_"))


def _defines(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _shown(node: ast.expr) -> str:
    """Return an expression without the content of its brackets."""
    words: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        brackets = "()" if isinstance(node, ast.Call) else "[]"
        words.append(f".{node.attr}" if isinstance(node, ast.Attribute) else brackets)
        node = node.func if isinstance(node, ast.Call) else node.value
    words.append(node.id if isinstance(node, ast.Name) else "...")
    return "".join(reversed(words))


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
