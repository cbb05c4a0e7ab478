"""What the READMEs show is what the commands print."""

import io
import json
import re
from pathlib import Path

import pytest

from mini_kv.trace.scenario import load_scenario
from mini_kv.viz.terminal import play_in_terminal

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("labs/lab-*/README.md"))]


def test_the_drawing_in_the_readme_is_made_by_the_engine():
    """The block marked as output of a story stands in that story's output, line for line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- output of: mini-kv story (\S+) -->\n```text\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in shown] == ["share-and-evict"]
    for name, drawing in shown:
        out = io.StringIO()
        play_in_terminal(load_scenario(name), out)
        assert drawing in out.getvalue()


def test_as_many_recordings_are_promised_as_there_are():
    """In the README and in the chapter that tells how they were made."""
    golden = json.loads((ROOT / "mini_kv/tests/golden/vllm-0.33.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    chapter = (ROOT / "book/docs/chapters/20-reading-vllm.md").read_text(encoding="utf-8")
    count = str(len(golden["scenarios"]))
    assert re.findall(r"(\d+) traces recorded from vLLM", readme) == [count]
    assert re.findall(r"has played (\d+)\s+scenarios", chapter) == [count]


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
