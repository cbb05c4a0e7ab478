"""JavaScript: the committed figure is what its sources say, and the types of all scripts fit."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"


def node(*command: str, cwd: Path = BOOK) -> subprocess.CompletedProcess[str]:
    """Run a command of Node's and return it when it is done; skip where the book's npm packages are not installed."""
    if shutil.which("node") is None or not (BOOK / "node_modules" / "typescript").is_dir():
        pytest.skip("JavaScript: `make test` gets what it takes where Node and npm are; without make: `npm ci` in book")
    return subprocess.run(["node", *command], cwd=cwd, capture_output=True, text=True, encoding="utf-8", check=False)


def test_the_committed_figure_is_joined_from_its_sources(tmp_path: Path) -> None:
    """Notebooks, pip and Colab have no npm, so the joined file is committed: `npm run figure` in book/ writes it."""
    joined = tmp_path / "kv_story.js"
    done = node("join_figure.mjs", str(joined))
    assert done.returncode == 0, done.stderr
    assert joined.read_text(encoding="utf-8") == (ROOT / "mini_kv/story/kv_story.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("project", ["tsconfig.json", "tsconfig.page.json"])
def test_types_fit(project: str) -> None:
    """The figure's sources strictly, the pages' scripts as far as they say types. `npm run types` does the same."""
    done = node("node_modules/typescript/bin/tsc", "-p", project)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_type_that_does_not_fit_is_found(tmp_path: Path) -> None:
    """The settings look into JavaScript: a number where a text is said to be is an error."""
    sources = tmp_path / "source.js"
    sources.write_text("/** @type {string} */\nconst name = 7;\nexport { name };\n", encoding="utf-8")
    project = tmp_path / "tsconfig.json"
    project.write_text(f'{{"extends": "{(BOOK / "tsconfig.json").as_posix()}", "include": ["source.js"]}}')
    done = node("node_modules/typescript/bin/tsc", "-p", str(project))
    assert (done.returncode, "Type 'number' is not assignable to type 'string'" in done.stdout) == (2, True)
