"""The learner's parts as a patch for vLLM's own source: `mini-kv finale --as-patch FILE --vllm FOLDER`.

    queue            FreeKVCacheBlockQueue (v1/core/kv_cache_utils.py) is replaced
    index            BlockHashToBlockMap (v1/core/block_pool.py) is replaced
    full_attention   in FullAttentionManager.find_longest_cache_hit (v1/core/single_type_kv_cache_manager.py) the loop
                     over full blocks is replaced, and hits inside a block, drafts and alignment stay vLLM's

mini_kv has no code of vLLM. The user's own source tree is read, and nothing is written there. The places are found by
name, with `ast`. vLLM is not imported.
"""

import ast
import difflib
import hashlib
import re
import subprocess
import symtable
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from mini_kv.labkit.inside_vllm.excerpt import (
    BUILTINS,
    Excerpt,
    Import,
    LearnerText,
    NotPortableError,
    PythonText,
    first_line,
    imports_of,
)
from mini_kv.labkit.lab import UnknownLabError, shown
from mini_kv.labkit.own_engine.found import Found

PATCHED = "0.33.0"
"""The release whose source this module knows."""
GET_IT = f"Get vLLM {PATCHED}: git clone --depth 1 --branch v{PATCHED} https://github.com/vllm-project/vllm"
UTILS_MODULE = "vllm.v1.core.kv_cache_utils"
UTILS, POOL, MANAGERS = (
    f"vllm/v1/core/{name}.py" for name in ("kv_cache_utils", "block_pool", "single_type_kv_cache_manager")
)
IN_UTILS = ("BlockHash", "BlockHashWithGroupId", "KVCacheBlock", "make_block_hash_with_group_id")
"""What vLLM has under the name that mini_kv took from it. All are in `UTILS`."""
IDENTITY = "@dataclass(slots=True, eq=False)"
"""As in mini_kv a block equals no other, so that it can be in a set: a learner's queue may have one."""

ERRORS = {
    "OutOfBlocksError": '''\
class OutOfBlocksError(ValueError):
    """More blocks are requested than are free. Callers expect the ValueError of vLLM's own queue."""

    def __init__(self, requested: int, free: int) -> None:
        super().__init__(f"{requested} blocks requested, {free} free" if free else "No free blocks available")
        self.requested = requested
        self.free = free''',
    "BlockStateError": '''\
class BlockStateError(RuntimeError, AssertionError):
    """A block's links or hash forbid the call. vLLM's own code raises RuntimeError, or an assertion fails."""

    def __init__(self, message: str, block_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.block_ids = list(block_ids)''',
}
"""mini_kv's errors that a part may raise, as classes for `UTILS`."""
ITER_BLOCKS_AFTER = '''
def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
    """Yield the free blocks behind the cursor, or all of them. The lab does not have this method."""
    blocks = iter(self.get_all_free_blocks())
    while cursor is not None and next(blocks, cursor) is not cursor:
        pass
    yield from blocks'''
CONTAIN = '''
def contain(self, key: BlockHashWithGroupId, block_id: int) -> bool:
    """Return whether this block is under the key. The lab does not have this method."""
    block = self.get_one_block(key)
    if block is None or block.block_id == block_id:
        return block is not None
    return any(other.block_id == block_id for other in dict(self.items())[key])'''
ALIAS = '''
@property
def {alias}(self):
    """The attribute `{attribute}`, under the name that vLLM's tests read."""
    return self.{attribute}'''
GROUP = '''\
@dataclass
class GroupOfLayers:
    """What a lookup knows of the group of layers in which it looks."""

    block_pool: BlockPool
    block_size: int
    kv_cache_group_id: int'''
MAIL = f"""\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A reader of mini_kv <reader@mini-kv.invalid>
Subject: [PATCH] [Core] Parts from the labs of mini_kv
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

In vLLM {PATCHED} these parts are now those of the labs:

{{parts}}

Each one has the methods besides that vLLM calls and the lab does not
teach. A block equals no other block, as in the labs, so that it can be
in a set. The lookup finds full blocks. What follows in the same method
is unchanged: hits inside a block, drafts, alignment.
---

"""
"""The head of the patch. Without a date, equal parts make equal files."""
LOOKUP = "FullAttentionLookup"
LOOK_UP = f"""\
# In each group, the longest run of cached full blocks from the start. The
# hit is in all groups.
hashes = list(itertools.islice(full_block_hashes, max_length // block_size))
hits = [
    {LOOKUP}(block_pool, block_size, group_id).find_longest_cache_hit(
        hashes, max_length
    )
    for group_id in kv_cache_group_ids
]
num_hits = min(map(len, hits))
computed_blocks: tuple[list[KVCacheBlock], ...] = tuple(
    list(hit[:num_hits]) for hit in hits
)"""


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

    def edited(self) -> str:
        """Return the file with all edits."""
        lines: list[str] = []
        line = 1
        for first, after, text in sorted(self._edits, key=lambda edit: edit[:2]):
            lines += [*self.lines[line - 1 : first - 1], *text.split("\n")]
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


class LearnerPart:
    """A part in the learner's file, and the files of vLLM into which it is put."""

    def __init__(self, found: Found, sources: Mapping[str, Source]) -> None:
        """Read the learner's file. Raises `NotPortableError` if the part is not a class there."""
        self.sources, self.name = sources, found.part.name
        self.file = LearnerText(Path(found.source))
        node = self.file.class_named(self.name)
        if node is None:
            raise NotPortableError("it is not written as a class")
        self.node = node
        self.methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}

    def excerpt(self, text: str, name: str) -> Excerpt:
        """Return the class, as `text`, with what it uses."""
        return self.file.excerpt(text, name, self.node.lineno, (*IN_UTILS, *ERRORS))

    def replace(self, path: str, added: Sequence[str], needed: str, imports: Sequence[Import] = ()) -> Excerpt:
        """Put the class in the place of vLLM's, with added methods, which need one of the learner's."""
        if needed not in self.methods:
            raise NotPortableError(f"it has no method {needed}")
        text = self.file.text_of(self.node)
        longer = "\n".join([text, *(indent(each, self.indentation) for each in added)])
        excerpt = self.excerpt(text, self.name)
        texts = [longer if each == text else each for each in excerpt.texts]
        excerpt = replace(excerpt, texts=texts, imports=excerpt.imports | set(imports))
        source = self.sources[path]
        theirs = source.theirs(self.name)
        source.put(excerpt, first_line(theirs), (theirs.end_lineno or 0) + 1, self.name)
        return excerpt

    @property
    def indentation(self) -> str:
        """Spaces or tabs before the methods."""
        line = self.file.lines[self.node.body[-1].lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def attributes(self, made_by: str = "") -> list[str]:
        """Return the attributes that `__init__` sets, in order. `made_by`: only those that this class makes."""
        found = []
        for node in ast.walk(self.methods["__init__"]) if "__init__" in self.methods else ():
            match node:
                case ast.Assign(targets=[ast.Attribute(ast.Name("self"), attribute)], value=value):
                    found.append((attribute, ast.unparse(value)))
                case ast.AnnAssign(target=ast.Attribute(ast.Name("self"), attribute), value=ast.expr() as value):
                    found.append((attribute, ast.unparse(value)))
        return [attribute for attribute, value in found if value.startswith(f"{made_by}(" if made_by else "")]


def _alias(alias: str, attribute: str) -> list[str]:
    return [ALIAS.format(alias=alias, attribute=attribute)] if alias != attribute else []


def put_queue(part: LearnerPart) -> Excerpt:
    """Replace vLLM's free queue. Its tests read two sentinels."""
    added = [ITER_BLOCKS_AFTER]
    sentinels = part.attributes("KVCacheBlock")
    if len(sentinels) in (1, 2):  # one, in a ring
        added += _alias("fake_free_list_head", sentinels[0]) + _alias("fake_free_list_tail", sentinels[-1])
    return part.replace(UTILS, added, "get_all_free_blocks", [Import("collections.abc", "Iterator", "Iterator")])


def put_index(part: LearnerPart) -> Excerpt:
    """Replace vLLM's index. Its tests read a dict."""
    attributes = part.attributes()
    added = _alias("_cache", attributes[0]) if len(attributes) == 1 else []
    return part.replace(POOL, [CONTAIN, *added], "items")


def put_lookup(part: LearnerPart) -> Excerpt:
    """Put the learner's lookup before vLLM's `FullAttentionManager`, and call it there."""
    source, node = part.sources[MANAGERS], part.node
    theirs = source.theirs("FullAttentionManager")
    first, after = _loop_over_full_blocks(source, theirs)
    known = {"block_pool", "block_size", "kv_cache_group_id", *part.methods}
    for each in ast.walk(node):
        owner = ast.unparse(each.value) if isinstance(each, ast.Attribute) else ""
        if isinstance(each, ast.Attribute) and (owner == "super()" or (owner == "self" and each.attr not in known)):
            raise NotPortableError(f"it uses {ast.unparse(each)}, which a lookup in vLLM does not have")
    header = part.file.lines[node.lineno - 1 : first_line(node.body[0]) - 1]
    comments = [line for line in header if line.lstrip().startswith("#")]
    plain = part.file.text_of(node).replace("\n".join(header), "\n".join([f"class {LOOKUP}:", *comments]), 1)
    excerpt = part.excerpt(plain, LOOKUP)
    texts = [text.replace(f"class {LOOKUP}:", f"class {LOOKUP}(GroupOfLayers):", 1) for text in excerpt.texts]
    excerpt = replace(
        excerpt,
        texts=[GROUP, *texts],
        defined=excerpt.defined | {"GroupOfLayers"},
        imports=excerpt.imports | {Import("dataclasses", "dataclass", "dataclass")},
    )
    source.put(excerpt, first_line(theirs), first_line(theirs))
    source.edit(first, after, indent(LOOK_UP, " " * 8))
    return excerpt


def _loop_over_full_blocks(source: Source, manager: ast.ClassDef) -> tuple[int, int]:
    """Return the first line of the loop that finds full blocks, with its empty lists, and the line after it."""
    for method in manager.body:
        if isinstance(method, ast.FunctionDef) and method.name == "find_longest_cache_hit":
            for lists, loop in pairwise(method.body):
                if ast.unparse(lists).startswith("computed_blocks:") and isinstance(loop, ast.For):
                    return lists.lineno, (loop.end_lineno or 0) + 1
    raise source.unlike("loop over full blocks in FullAttentionManager.find_longest_cache_hit")


def _put_what_parts_share(utils: Source, borrowed: Collection[str]) -> None:
    """Let a block equal no other, and add the errors that the parts raise."""
    block = utils.theirs("KVCacheBlock")
    if [ast.unparse(each) for each in block.decorator_list] != ["dataclass(slots=True)"]:
        raise utils.unlike("@dataclass(slots=True) class KVCacheBlock")
    utils.edit(first_line(block), block.lineno, IDENTITY)
    before = first_line(utils.theirs("FreeKVCacheBlockQueue"))
    for name, text in ERRORS.items():
        if name in borrowed and name not in utils.bound:
            utils.edit(before, before, text + "\n\n")
            utils.import_names([Import("collections.abc", "Sequence", "Sequence")])


PLACES: Mapping[str, tuple[str, Callable[[LearnerPart], Excerpt]]] = {
    "queue": (UTILS, put_queue),
    "index": (POOL, put_index),
    "full_attention": (MANAGERS, put_lookup),
}
"""By place in `OwnParts`: the file of vLLM, and what puts the part there."""


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


def patch_of(found: Iterable[Found], folder: Path) -> tuple[str, list[str]]:
    """Return the patch, and a line per part: where it is, or why it is left out. Without any part there is no patch.

    Args:
        found: parts that have a place in `PLACES`.
        folder: the folder that has vLLM's folder `vllm`.

    Raises `UnknownLabError` if the folder does not have the known source.
    """
    check_version(folder)
    sources = {path: Source(folder, path) for path, _ in PLACES.values()}
    lines, parts = [], []
    borrowed: set[str] = set()
    for each in found:
        path, put = PLACES[each.part.goes_to]
        try:
            if each.value is None:
                raise NotPortableError(each.why)
            borrowed |= put(LearnerPart(each, sources)).borrowed
            parts.append(f"{each.part} in {path}")
            lines.append(f"  {each.part!s:<38} {path}")
        except NotPortableError as error:
            lines.append(f"  {each.part!s:<38} left out: {error}")
    if not parts:
        return "", lines
    _put_what_parts_share(sources[UTILS], borrowed)
    return MAIL.format(parts="\n".join(f"- {part}" for part in parts)) + "".join(
        source.diff() for source in sources.values()
    ), lines
