"""The learner's parts as a patch for vLLM's own source: `mini-kv finale --as-patch FILE --vllm FOLDER`.

    queue            FreeKVCacheBlockQueue (v1/core/kv_cache_utils.py) is replaced
    index            BlockHashToBlockMap (v1/core/block_pool.py) is replaced
    full_attention   in FullAttentionManager.find_longest_cache_hit (v1/core/single_type_kv_cache_manager.py) the loop
                     over full blocks is replaced, and hits inside a block, drafts and alignment stay vLLM's

mini_kv has no code of vLLM: `vllm_source` reads the user's own tree, and finds the places by name. `excerpt` takes the
learner's text, with all that it uses.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from mini_kv.course.finale.found import Found
from mini_kv.course.finale.inside_vllm.excerpt import (
    Excerpt,
    Import,
    LearnerText,
    NotPortableError,
    first_line,
)
from mini_kv.course.finale.inside_vllm.vllm_source import MANAGERS, PATCHED, POOL, UTILS, Source, check_version

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
Subject: [PATCH] Core: parts from the labs of mini_kv
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
if max_length < 0:
    raise ValueError("An empty prompt is refused, as before.")
# In each group, the longest run of cached full blocks from the start. The
# hit is in all groups.
hits = [
    {LOOKUP}(block_pool, block_size, group_id).find_longest_cache_hit(
        full_block_hashes, max_length
    )
    for group_id in kv_cache_group_ids
]
num_hits = min(map(len, hits))
computed_blocks: tuple[list[KVCacheBlock], ...] = tuple(
    list(hit[:num_hits]) for hit in hits
)"""


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

    def replace(self, path: str, added: Mapping[str, str], needed: str, imports: Collection[Import] = ()) -> Excerpt:
        """Put the class in the place of vLLM's, with added methods, which need one of the learner's."""
        text = self.file.text_of(self.node)
        missing = [indent(each, self.indentation) for name, each in added.items() if name not in self.methods]
        longer = "\n".join([text, *missing])
        excerpt = self.excerpt(text, self.name)
        if needed not in self.methods:
            raise NotPortableError(f"it has no method {needed}")
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


def _alias(alias: str, attribute: str) -> dict[str, str]:
    return {} if alias == attribute else {alias: ALIAS.format(alias=alias, attribute=attribute)}


def put_queue(part: LearnerPart) -> Excerpt:
    """Replace vLLM's free queue. Its tests read two sentinels."""
    added = {"iter_blocks_after": ITER_BLOCKS_AFTER}
    sentinels = part.attributes("KVCacheBlock")
    if len(sentinels) in (1, 2):  # one, in a ring
        added |= _alias("fake_free_list_head", sentinels[0]) | _alias("fake_free_list_tail", sentinels[-1])
    return part.replace(UTILS, added, "get_all_free_blocks", [Import("collections.abc", "Iterator", "Iterator")])


def put_index(part: LearnerPart) -> Excerpt:
    """Replace vLLM's index. Its tests read a dict."""
    attributes = part.attributes()
    added = _alias("_cache", attributes[0]) if len(attributes) == 1 else {}
    return part.replace(POOL, {"contain": CONTAIN} | added, "items")


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
    source.drop_import("itertools")
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
    mail = MAIL.format(parts="\n".join(f"- {part}" for part in parts))
    return mail + "".join(source.diff() for source in sources.values()), lines
