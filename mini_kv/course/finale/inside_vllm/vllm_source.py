"""vLLM's own source, and edits of it as git shows them.

It is read as text. vLLM is not imported, and nothing is written into its folder.
"""

import ast
import difflib
import hashlib
import re
import subprocess
import symtable
from collections.abc import Iterable
from pathlib import Path

from mini_kv.course.finale.inside_vllm.excerpt import (
    BUILTINS,
    Excerpt,
    Import,
    NotPortableError,
    PythonText,
    global_names,
    imports_of,
)
from mini_kv.course.labkit.lab import UnknownLabError
from mini_kv.messages import shown

PATCHED = "0.33.0"
"""The release whose source this module knows."""
GET_IT = f"Get vLLM {PATCHED}: git clone --depth 1 --branch v{PATCHED} https://github.com/vllm-project/vllm"
UTILS_MODULE = "vllm.v1.core.kv_cache_utils"
UTILS, POOL, MANAGERS = (
    f"vllm/v1/core/{name}.py" for name in ("kv_cache_utils", "block_pool", "single_type_kv_cache_manager")
)


def check_version(folder: Path) -> None:
    """Raise `UnknownLabError` unless the folder has vLLM's source in the release that this module knows."""
    if not (folder / "vllm").is_dir():
        raise UnknownLabError(f"--vllm {shown(str(folder))}: there is no folder vllm in it. {GET_IT}")
    version = _version_by_git(folder) or _version_by_file(folder)
    if version != PATCHED:
        raise UnknownLabError(f"--vllm {shown(str(folder))} is vLLM {version or 'without a version'}. {GET_IT}")


def _version_by_git(folder: Path) -> str:
    """Return the version of a checkout by its tag, or an empty string if there is no checkout or no tag."""
    if not (folder / ".git").exists():
        return ""  # git would look in the folders above
    command = ["git", "-C", str(folder), "describe", "--tags", "--match", "v*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return told.stdout.strip().removeprefix("v")


def _version_by_file(folder: Path) -> str:
    """Return the version of a package that has been built, or an empty string."""
    file = folder / "vllm" / "_version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    version = re.search(r"^__version__ = .*?'([^'+]+)", text, re.MULTILINE)
    return version[1] if version else ""


class Source(PythonText):
    """A file of vLLM's, and the edits that put parts into it."""

    def __init__(self, folder: Path, path: str) -> None:
        """Read the file. Raises `UnknownLabError` if it cannot be read."""
        self.path = path
        try:
            super().__init__((folder / path).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            raise UnknownLabError(f"--vllm {shown(str(folder))}: there is no readable {path}. {GET_IT}") from None
        symbols = symtable.symtable(self.text, path, "exec").get_symbols()
        self.bound = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
        """The names of the module."""
        self._edits: list[tuple[int, int, str]] = []
        """The first line, the line after the last one, and the text in their place."""

    def theirs(self, name: str) -> ast.ClassDef:
        """Return vLLM's class of this name. Raises `UnknownLabError` if there is none."""
        node = self.class_named(name)
        if node is None:
            raise self.unlike(f"class {name}")
        return node

    def unlike(self, what: str) -> UnknownLabError:
        """Return the error for a file that lacks something that vLLM has."""
        return UnknownLabError(f"{self.path} has no {what} like that of vLLM {PATCHED}. {GET_IT}")

    def put(self, excerpt: Excerpt, first: int, after: int, replaced: str = "") -> None:
        """Put definitions in the place of some lines, and add what they import.

        Raises `NotPortableError` and changes nothing if a name is taken. `replaced`: the name that they may take.
        """
        differs = {each.bound for each in excerpt.imports if self.imports.get(each.bound) != each}
        for name in sorted((excerpt.defined | differs) & (self.bound | BUILTINS) - {replaced}):
            raise NotPortableError(f"{self.path} has another {name}: rename yours")
        self.edit(first, after, "\n\n\n".join(excerpt.texts) + ("\n\n" if first == after else ""))
        self.bound |= excerpt.defined
        self.import_names(excerpt.imports)
        if self.path != UTILS:
            self.import_names(Import(UTILS_MODULE, name, name) for name in excerpt.borrowed)

    def import_names(self, imports: Iterable[Import]) -> None:
        """Import these names, each at its place in the alphabet, if they are not there yet."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for each in sorted(set(imports), key=str):
            if each.bound not in self.bound:
                self.bound.add(each.bound)
                behind = (node.lineno for node in nodes if _order(imports_of([node])[0]) > _order(each))
                line = next(behind, (nodes[-1].end_lineno or 0) + 1)
                self.edit(line, line, str(each))

    def edit(self, first: int, after: int, text: str) -> None:
        """Put a text in the place of the lines from `first` on. With `after == first` it is put before that line."""
        self._edits.append((first, after, text))

    def drop_import(self, module: str) -> None:
        """Remove `import module` if the edits leave it without use."""
        lines = [node.lineno for node in self.tree.body if ast.unparse(node) == f"import {module}"]
        if module not in global_names(self.edited()):
            for line in lines:
                self.edit(line, line + 1, "")

    def edited(self) -> str:
        """Return the file with all edits."""
        lines: list[str] = []
        line = 1
        for first, after, text in sorted(self._edits, key=lambda edit: edit[:2]):
            lines += [*self.lines[line - 1 : first - 1], *(text.split("\n") if text else ())]
            line = after
        return "\n".join([*lines, *self.lines[line - 1 :]])

    def diff(self) -> str:
        """Return the edits as git shows them, or nothing if there are none."""
        if not self._edits:
            return ""
        old, new = self.text, self.edited()
        a, b = f"a/{self.path}", f"b/{self.path}"
        rows = difflib.unified_diff(_lines(old), _lines(new), a, b, lineterm="")
        head = f"diff --git {a} {b}\nindex {_blob_id(old)}..{_blob_id(new)} 100644"
        return "\n".join([head, *rows, ""])


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _order(imported: Import) -> tuple[bool, bool, str]:
    """Return the place of an import in vLLM's files: Python's own modules, `import` before `from`, by name."""
    return not imported.is_standard, bool(imported.name), imported.module


def _blob_id(text: str) -> str:
    """Return git's id of a file, with which `git am --3way` finds the version that the patch is for."""
    content = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
