"""What the READMEs show is what the commands print."""

import importlib.util
import io
import re
import tomllib
from pathlib import Path

import pytest

from mini_kv import __version__
from mini_kv.course.labkit.lab import load_lab
from mini_kv.story.scenario import load_scenario
from mini_kv.story.terminal import play_in_terminal

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / name / "README.md" for name in ("mini_kv", "labs", "notebooks", "book")]
LABS = sorted(ROOT.glob("labs/lab-*/README.md"))
READMES = [ROOT / "README.md", *ROOMS, *LABS]


def test_the_drawing_in_the_readme_is_made_by_the_engine():
    """The block marked as output of a story stands in that story's output, line for line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- output of: mini-kv story (\S+) -->\n```text\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in shown] == ["share-and-evict"]
    for name, drawing in shown:
        out = io.StringIO()
        play_in_terminal(load_scenario(name), out)
        assert drawing in out.getvalue()


def test_every_command_for_a_newcomer_says_how_it_is_checked():
    """`.ci/run` runs the commands of these pages in a fresh clone. Here they are only read, which takes no time."""
    spec = importlib.util.spec_from_file_location("readme_commands", ROOT / ".ci/readme_commands.py")
    assert spec is not None
    assert spec.loader is not None
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    pages = [*READMES, ROOT / "book/docs/reference/commands.md", ROOT / ".github/CONTRIBUTING.md"]
    assert sum(len(list(commands.blocks(page))) for page in pages) > 50


def test_the_newest_version_of_the_page_of_changes_is_the_projects_and_the_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "book/docs/reference/changes.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)$", page, flags=re.MULTILINE)[0] == project["version"] == __version__


def test_the_program_in_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]):
    """Each block of Python is run, and prints the lines that it announces."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(programs) == 1
    for program in programs:
        exec(program, {})
        announced = [line.removeprefix("# prints: ") for line in program.splitlines() if line.startswith("# prints: ")]
        assert capsys.readouterr().out.splitlines() == announced != []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_links_into_the_repository_resolve(readme: Path):
    """Every relative link leads to a file or folder that exists."""
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", readme.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (readme.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_named_paths_exist(readme: Path):
    """Every path of the repository that the text names in code font is there."""
    named = re.findall(r"`((?:mini_kv|labs|solutions)/[\w./-]+)`", readme.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.prose
@pytest.mark.parametrize("readme", LABS, ids=lambda path: path.parent.name)
def test_every_lab_says_where_its_work_is_used(readme: Path):
    """One paragraph. It names the command that runs the lab's parts, every such part, and each that is not used."""
    (used,) = re.findall(r"\*\*Where is my work used\?\*\* (.*?)\n\n", readme.read_text(encoding="utf-8"), re.DOTALL)
    parts = load_lab(readme.parent).parts
    runs = any(not part.never for part in parts)
    assert ("`mini-kv generate " in used) == any(part.only_for != "finale" for part in parts if not part.never)
    assert ("`mini-kv finale " in used) == any(part.only_for == "finale" for part in parts)
    names = {part.name.partition(".")[2] or part.name for part in parts}
    assert {name for name in names if f"`{name}`" not in used} == (set() if runs else names)
