"""Builds the book as `make site` does, and says where its pages are."""

import os
import subprocess
import sys
from pathlib import Path

from mini_kv_book.places import ROOT

PREFIX = "/mini_kv/"  # GitHub Pages serves a project's site below its name


def build(site: Path, tree: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Build the book of `tree` into `site`, strictly. Never with -q: it silences the warnings that strict counts."""
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'book'}", **env}
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(tree / "book/mkdocs.yml"), "-d", str(site)]
    return subprocess.run(command, env=env, cwd=tree, capture_output=True, encoding="utf-8", check=False)


def page_names(site: Path) -> list[str]:
    """Return the addresses of all pages, below the site's. A page that only leads to another is not one."""
    pages = [path for path in site.rglob("index.html") if b'http-equiv="refresh"' not in path.read_bytes()]
    folders = sorted(path.parent.relative_to(site).as_posix() for path in pages)
    return ["" if folder == "." else f"{folder}/" for folder in folders]
