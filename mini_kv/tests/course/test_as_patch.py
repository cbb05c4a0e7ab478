"""`mini-kv finale --as-patch FILE --vllm FOLDER`: a patch for vLLM's source, here for a few lines with its names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.messages import shown

REPOSITORY = Path(__file__).parents[3]
SOLUTIONS = REPOSITORY / "solutions"
GET_IT = "Get vLLM 0.33.0: git clone --depth 1 --branch v0.33.0 https://github.com/vllm-project/vllm"
UTILS, POOL, MANAGERS = (
    f"vllm/v1/core/{name}.py" for name in ("kv_cache_utils", "block_pool", "single_type_kv_cache_manager")
)
TREE = {
    "vllm/__init__.py": "",
    "vllm/_version.py": "__version__ = version = '0.33.0'\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/core/__init__.py": "",
    UTILS: '''\
"""Blocks."""

import os
from dataclasses import dataclass
from typing import NewType

from vllm.v1 import core

BlockHash = NewType("BlockHash", bytes)
BlockHashWithGroupId = NewType("BlockHashWithGroupId", bytes)


@dataclass(slots=True)
class KVCacheBlock:
    block_id: int
    prev_free_block: "KVCacheBlock | None" = None
    next_free_block: "KVCacheBlock | None" = None


class FreeKVCacheBlockQueue:
    """Not the learner's."""


def what_comes_after() -> tuple:
    return os, core
''',
    POOL: '''\
from vllm.v1.core.kv_cache_utils import BlockHash, BlockHashWithGroupId, FreeKVCacheBlockQueue, KVCacheBlock


class BlockHashToBlockMap:
    """Not the learner's."""


class BlockPool:
    def __init__(self, num_blocks):
        self.queue = FreeKVCacheBlockQueue([KVCacheBlock(i) for i in range(num_blocks)])
        self.index = BlockHashToBlockMap()

    def get_cached_block(self, block_hash: BlockHash, group_ids):
        found = [self.index.get_one_block(BlockHashWithGroupId(block_hash + b"%d" % i)) for i in group_ids]
        return None if None in found else found
''',
    MANAGERS: """\
import itertools

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock


class FullAttentionManager:
    @classmethod
    def find_longest_cache_hit(cls, full_block_hashes, max_length, kv_cache_group_ids, block_pool, block_size):
        computed_blocks: tuple[list[KVCacheBlock], ...] = tuple([] for _ in kv_cache_group_ids)
        for _ in itertools.count():
            raise AssertionError("not the learner's")
        return computed_blocks, len(computed_blocks[0]) * block_size
""",
}
USED = """
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

pool = BlockPool(num_blocks=5)
queue, index = pool.queue, pool.index
b0, b1 = queue.popleft_n(2)
queue.prepend_n([b1])
queue.append(b0)
print([block.block_id for block in queue.get_all_free_blocks()], queue.num_free_blocks)
print([block.block_id for block in queue.iter_blocks_after(None)])
print([block.block_id for block in queue.iter_blocks_after(b1)])
print(list(queue.iter_blocks_after(KVCacheBlock(9))))
print(queue.fake_free_list_head.next_free_block is b1, queue.fake_free_list_tail.prev_free_block is b0)
errors = [(ValueError, lambda: queue.popleft_n(9)), ((RuntimeError, AssertionError), lambda: queue.append(b0))]
for kinds, call in errors:
    try:
        call()
    except kinds as error:
        print(type(error).__name__, error)
print(KVCacheBlock(3) == KVCacheBlock(3), len({b0, b1}))

for key, block in [(b"x0", b0), (b"x0", b1), (b"x1", b0), (b"y0", b1)]:
    index.insert(key, block)
print([index.contain(b"x0", number) for number in (0, 1, 2)], index.contain(b"z0", 0), index.get_one_block(b"x0") is b0)
print(len(index._cache))


def hit(max_length, groups):
    found, length = FullAttentionManager.find_longest_cache_hit([b"x", b"y", b"z"], max_length, groups, pool, 4)
    return [[block.block_id for block in blocks] for blocks in found], length


print(hit(12, [0]), hit(7, [0]), hit(12, [0, 1]), hit(3, [0]))
try:
    hit(-1, [0])
except ValueError as error:
    print(error)
"""
PRINTED = """\
[1, 2, 3, 4, 0] 5
[1, 2, 3, 4, 0]
[2, 3, 4, 0]
[]
True True
OutOfBlocksError 9 blocks requested, 5 free
BlockStateError blocks [0] are in the free queue already
False 2
[True, True, False] False True
3
([[0, 1]], 8) ([[0]], 4) ([[0], [0]], 4) ([[]], 0)
An empty prompt is refused, as before.
"""
LOOP = "loop over full blocks in FullAttentionManager.find_longest_cache_hit"
ALL_IN = f"""\
  lab-02 FreeKVCacheBlockQueue           {UTILS}
  lab-07 BlockHashToBlockMap             {POOL}
  lab-07 FullAttentionManager            {MANAGERS}
"""


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.fixture
def vllm(tmp_path):
    """Return a folder with a few lines that have vLLM's names, as a package that has been built."""
    folder = tmp_path / "checkout"
    for path, text in TREE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def labs(tmp_path):
    """Return a folder with the solutions as a learner's files."""
    folder = tmp_path / "labs"
    folder.mkdir()
    for lab_id in ("lab-02", "lab-07"):
        shutil.copy(SOLUTIONS / lab_id / "solution.py", folder / f"{lab_id}.py")
    return folder


def change(file, old, new):
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


def git(folder, *arguments):
    named = ["git", "-c", "user.name=A", "-c", "user.email=a@b.invalid", "-C", str(folder), *arguments]
    return subprocess.run(named, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def commit_all(folder, *tags):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "vLLM")
    for tag in tags:
        git(folder, "tag", tag)


def as_patch(labs, vllm):
    """Return the exit status and the file."""
    file = vllm.parent / "mine.patch"
    return main(["finale", "--labs", str(labs), "--as-patch", str(file), "--vllm", str(vllm)]), file


def left_out(labs, vllm, capsys):
    """Return the reasons by part, where two other parts are put in."""
    assert as_patch(labs, vllm)[0] == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if "left out" in line]
    return {part: why.removeprefix("left out: ") for _, part, why in rows}


# The patch.


def test_git_applies_the_patch_and_the_parts_work_in_their_places(vllm, tmp_path, capsys):
    commit_all(vllm, "v0.33.0")
    status, file = as_patch("solution", vllm)
    assert (status, capsys.readouterr().out) == (0, f"{ALL_IN}git -C {vllm} am {file}\n")
    assert not git(vllm, "status", "--porcelain")
    git(vllm, "am", str(file))
    assert git(vllm, "log", "-1", "--format=%an: %s") == "A reader of mini_kv: Core: parts from the labs of mini_kv\n"
    assert "itertools" not in (vllm / MANAGERS).read_text(encoding="utf-8")
    assert git(vllm, "diff", "--stat=72", "HEAD~").splitlines()[-1].startswith(" 3 files changed")
    assert not [line for line in git(vllm, "show", "--format=").splitlines() if line[0] == "+" and "mini_kv" in line]
    done = subprocess.run([sys.executable, "-c", USED], cwd=vllm, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (PRINTED, "")


def test_the_same_parts_make_the_same_patch(vllm):
    _, file = as_patch("solution", vllm)
    first = file.read_bytes()
    as_patch("solution", vllm)
    assert file.read_bytes() == first


def test_comments_helpers_constants_and_imports_of_the_learner_go_along(vllm, labs):
    queue = labs / "lab-02.py"
    change(queue, "from itertools import pairwise\n", "import json as js\nfrom itertools import pairwise\n")
    change(
        queue,
        "class FreeKV",
        "# Zählt die Blöcke.\nSTART = js.loads('0')\nUNUSED = 1\n\n\n# Meine Schlange.\nclass FreeKV",
    )
    change(queue, "self.num_free_blocks = len(blocks)", "self.num_free_blocks = START + len(blocks)  # gezählt")
    commit_all(vllm)
    _, file = as_patch(labs, vllm)
    git(vllm, "am", str(file))
    patched = (vllm / UTILS).read_text(encoding="utf-8")
    assert "\n# Zählt die Blöcke.\nSTART = js.loads('0')\n\n\n# Meine Schlange.\nclass FreeKV" in patched
    assert "START + len(blocks)  # gezählt\n" in patched
    assert "UNUSED" not in patched
    head = "import json as js\nimport os\nfrom collections.abc import Iterator\nfrom collections.abc import Sequence\n"
    assert f"{head}from dataclasses import dataclass\nfrom itertools import pairwise\nfrom typing" in patched
    done = subprocess.run([sys.executable, "-c", USED], cwd=vllm, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (PRINTED, "")


@pytest.mark.parametrize(("solution", "has_sentinels"), [("alt_ring", True), ("alt_ordered_dict", False)])
def test_vllms_names_of_the_sentinels_are_added_if_there_are_any(vllm, labs, solution, has_sentinels):
    shutil.copy(SOLUTIONS / "lab-02" / f"{solution}.py", labs / "lab-02.py")
    _, file = as_patch(labs, vllm)
    assert ("fake_free_list_head" in file.read_text(encoding="utf-8")) == has_sentinels


# Parts that are left out.


def test_a_part_that_is_not_finished_is_left_out_and_vllms_own_stays(vllm, labs, capsys):
    shutil.copy(REPOSITORY / "labs" / "lab-02" / "starter.py", labs / "lab-02.py")
    commit_all(vllm)
    assert left_out(labs, vllm, capsys) == {"FreeKVCacheBlockQueue": "__init__: still TODO"}
    git(vllm, "am", str(vllm.parent / "mine.patch"))
    assert '    """Not the learner\'s."""' in (vllm / UTILS).read_text(encoding="utf-8")


def test_a_method_that_only_the_tests_of_the_lab_need_must_be_finished_too(vllm, labs, capsys):
    change(labs / "lab-02.py", "from mini_kv.core.errors", "from mini_kv.course import todo\nfrom mini_kv.core.errors")
    change(
        labs / "lab-02.py",
        "        blocks = []\n",
        "        blocks = []\n        todo('', '', '')\n",
    )
    assert left_out(labs, vllm, capsys) == {"FreeKVCacheBlockQueue": "a function that it uses is still TODO"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def _tie(", "def what_comes_after(", f"{UTILS} has another what_comes_after: rename yours"),
        ("def _tie(", "def max(", f"{UTILS} has another max: rename yours"),
        ("import pairwise", "import pairwise as os", f"{UTILS} has another os: rename yours"),
    ],
)
def test_a_name_that_vllm_has_is_not_taken(vllm, labs, capsys, old, new, why):
    file = labs / "lab-02.py"
    change(file, old, new)
    was, now = old.split()[1].rstrip("("), new.split()[-1].rstrip("(")
    text = file.read_text(encoding="utf-8").replace(f"{was}(", f"{now}(")
    file.write_text(text, encoding="utf-8")
    assert left_out(labs, vllm, capsys) == {"FreeKVCacheBlockQueue": why}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "import KVCacheBlock\n",
            "import KVCacheBlock\nfrom mini_kv.core.request import Request\nOTHER = Request\n",
            "it needs `from mini_kv.core.request import Request`, for which vLLM has no counterpart",
        ),
        (
            "import KVCacheBlock\n",
            "import KVCacheBlock\nimport pytest\nOTHER = pytest\n",
            "it needs `import pytest`, for which vLLM has no counterpart",
        ),
        (
            "import KVCacheBlock\n",
            "import KVCacheBlock\nif True:\n    OTHER = 1\n",
            "it uses OTHER, which is not defined or imported at the top level of your file",
        ),
        (
            "import KVCacheBlock\n",
            "import KVCacheBlock\nfrom mini_kv.core.block import BlockHash as OTHER\n",
            "it renames BlockHash: import it under its own name",
        ),
        (
            "import KVCacheBlock\n",
            "import KVCacheBlock\ndef OTHER():\n    from mini_kv.core.block import BlockHash\n",
            "`from mini_kv.core.block import BlockHash` is inside a function: move it to the top of your file",
        ),
        (
            "from collections.abc import Sequence\n",
            "from __future__ import annotations\nfrom collections.abc import Sequence\nOTHER = 1\n",
            "`from __future__` would hold for all of vLLM's file: remove it",
        ),
    ],
)
def test_a_part_that_needs_what_vllm_has_not_is_left_out(vllm, labs, capsys, old, new, why):
    change(labs / "lab-02.py", old, new)
    change(labs / "lab-02.py", "        blocks = []\n", "        blocks = []\n        OTHER\n")
    assert left_out(labs, vllm, capsys) == {"FreeKVCacheBlockQueue": why}


def test_parts_that_are_the_engines_own_or_no_class_are_left_out(vllm, labs, capsys):
    (labs / "lab-02.py").write_text("from mini_kv.core.free_queue import FreeKVCacheBlockQueue\n", encoding="utf-8")
    change(
        labs / "lab-07.py", "class BlockHashToBlockMap:", "class BlockHashToBlockMap(block_pool.BlockHashToBlockMap):"
    )
    block_pool = "it needs `from mini_kv.core import block_pool`, for which vLLM has no counterpart"
    assert left_out(labs, vllm, capsys) == {
        "FreeKVCacheBlockQueue": "it is not written as a class",
        "BlockHashToBlockMap": block_pool,
    }


@pytest.mark.parametrize("use", ["self.kv_cache_spec", "super().find_longest_cache_hit"])
def test_a_lookup_that_uses_more_of_the_engines_manager_is_left_out(vllm, labs, capsys, use):
    change(
        labs / "lab-07.py",
        "        hit: list[KVCacheBlock] = []\n",
        f"        hit: list[KVCacheBlock] = []\n        {use}\n",
    )
    why = f"it uses {use}, which a lookup in vLLM does not have"
    assert left_out(labs, vllm, capsys) == {"FullAttentionManager": why}


def test_an_index_without_items_is_left_out(vllm, labs, capsys):
    change(labs / "lab-07.py", "    def items(self)", "    def all_items(self)")
    assert left_out(labs, vllm, capsys) == {"BlockHashToBlockMap": "it has no method items"}


def test_without_any_part_no_patch_is_written(vllm, capsys):
    status, file = as_patch("starter", vllm)
    assert capsys.readouterr().out == (
        "  lab-02 FreeKVCacheBlockQueue           left out: __init__: still TODO\n"
        "  lab-07 BlockHashToBlockMap             left out: get_one_block: still TODO\n"
        "  lab-07 FullAttentionManager            left out: find_longest_cache_hit: still TODO\n"
        "No part can be put into vLLM, and no patch is written.\n"
    )
    assert (status, file.exists()) == (1, False)


# Bad input.


def refused(labs, vllm, capsys):
    """Return the error message. No file is written."""
    status, file = as_patch(labs, vllm)
    assert (status, file.exists()) == (2, False)
    return capsys.readouterr().err.removeprefix("mini-kv finale: ").removesuffix("\n")


def test_a_folder_without_vllm_is_refused(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "nowhere"):
        told = refused("solution", folder, capsys)
        assert told == f"--vllm {shown(str(folder))}: there is no folder vllm in it. {GET_IT}"


def test_another_version_is_refused(vllm, capsys):
    (vllm / "vllm" / "_version.py").write_text("__version__ = version = '0.32.0+cpu'\n", encoding="utf-8")
    assert refused("solution", vllm, capsys) == f"--vllm {shown(str(vllm))} is vLLM 0.32.0. {GET_IT}"
    (vllm / "vllm" / "_version.py").unlink()
    assert refused("solution", vllm, capsys) == f"--vllm {shown(str(vllm))} is vLLM without a version. {GET_IT}"
    commit_all(vllm, "v0.33.1")
    assert refused("solution", vllm, capsys) == f"--vllm {shown(str(vllm))} is vLLM 0.33.1. {GET_IT}"


@pytest.mark.parametrize(
    ("path", "old", "new", "missing"),
    [
        (UTILS, "class FreeKVCacheBlockQueue", "class Other", "class FreeKVCacheBlockQueue"),
        (UTILS, "class KVCacheBlock", "class Other", "class KVCacheBlock"),
        (UTILS, "@dataclass(slots=True)", "@dataclass", "@dataclass(slots=True) class KVCacheBlock"),
        (POOL, "class BlockHashToBlockMap", "class Other", "class BlockHashToBlockMap"),
        (MANAGERS, "class FullAttentionManager", "class Other", "class FullAttentionManager"),
        (MANAGERS, "def find_longest", "def find_other", LOOP),
        (MANAGERS, "for _ in itertools.count()", "if itertools", LOOP),
    ],
)
def test_a_file_that_lacks_one_of_the_places_is_refused(vllm, capsys, path, old, new, missing):
    change(vllm / path, old, new)
    assert refused("solution", vllm, capsys) == f"{path} has no {missing} like that of vLLM 0.33.0. {GET_IT}"


def test_a_missing_file_and_one_that_is_not_python_are_refused(vllm, capsys):
    (vllm / POOL).write_text("class", encoding="utf-8")
    told = f"--vllm {shown(str(vllm))}: there is no readable {POOL}. {GET_IT}"
    assert refused("solution", vllm, capsys) == told
    (vllm / POOL).unlink()
    assert refused("solution", vllm, capsys) == told


def test_a_patch_that_cannot_be_written_is_an_error(vllm, capsys):
    assert main(["finale", "--labs", "solution", "--as-patch", str(vllm), "--vllm", str(vllm)]) == 2
    assert capsys.readouterr().err == f"mini-kv finale: {shown(str(vllm))} cannot be written: Is a directory\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--as-patch", "x"], f"--as-patch FILE and --vllm FOLDER need each other. {GET_IT}"),
        (["--vllm", "x"], f"--as-patch FILE and --vllm FOLDER need each other. {GET_IT}"),
        (
            ["--as-patch", "x", "--vllm", "x", "--inside-vllm"],
            "--as-patch plays nothing: leave out --inside-vllm and --film",
        ),
        (
            ["--as-patch", "x", "--vllm", "x", "--film", "y"],
            "--as-patch plays nothing: leave out --inside-vllm and --film",
        ),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(capsys, arguments, told):
    assert main(["finale", *arguments]) == 2
    assert capsys.readouterr().err == f"mini-kv finale: {told}\n"
