"""The reading path "The engine in an evening" is the spine in pyproject.toml: its files, their order, their imports."""

import ast
import re

import pytest
from mini_kv_book import spine
from mini_kv_book.places import DOCS, ROOT

PAGE = (DOCS / "engine.md").read_text(encoding="utf-8")
REQUESTS = re.findall(r"^<!-- table (spine .+) -->$", PAGE, re.MULTILINE)


def test_the_page_has_the_files_of_the_spine_in_their_order():
    files = spine.spine()["files"]
    assert [request.split()[1] for request in REQUESTS] == files
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings[: len(files)] == [name.removesuffix(".py").partition("/")[2] for name in files]


def test_a_file_is_shown_with_its_code_lines_and_the_path_with_their_sum():
    lines = spine.code_lines()
    for request in REQUESTS:
        _, name, *symbols = request.split()
        assert f"), {lines[name]} lines. Read first: " in spine.stop_as_markdown(name, *symbols)
    assert spine.total() == f"The path has {len(lines)} files and {sum(lines.values()):,} lines of code."


def test_the_spine_imports_no_other_room():
    """Who reads the engine in one evening is sent nowhere else."""
    imported = {
        (node.module or "").split(".")[1]
        for name in spine.spine()["files"]
        for node in ast.walk(ast.parse((ROOT / "mini_kv" / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mini_kv")
    }
    assert imported == set(spine.spine()["rooms"])


def test_no_file_imports_one_that_is_read_later():
    seen: list[str] = []
    for name, others in spine.imports().items():
        assert others <= {*seen}
        seen.append(name)


def test_the_picture_has_every_file_and_no_arrow_that_follows_from_others():
    picture = spine.picture()
    for name, size in spine.code_lines().items():
        label = name.removesuffix(".py").rpartition("/")[2].replace("_kv_", "_<br>kv_")
        assert f'["{label}<br>{size}"]' in picture
    arrows = re.findall(r"(\w+) --> (\w+)", picture)
    assert ("block", "free_queue") in arrows
    assert ("block", "block_pool") not in arrows  # by way of the free queue


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("spine core/parts.py KVCacheParts", "core/parts.py is no file of the spine"),
        ("spine core/block.py KVCacheBlok", "mini_kv.core.block has no KVCacheBlok"),
    ],
)
def test_what_is_not_there_stops_the_build(request_, message):
    with pytest.raises(ValueError, match=message):
        spine.stop_as_markdown(*request_.split()[1:])
