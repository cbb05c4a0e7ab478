"""The fence kv-lab: an editor that runs the real tests of a lab in the page, if the book has a browser's Python.

Without it, or without scripts, the reader sees the starter and the commands to run the lab at home.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mini_kv_book.bench import next_of
from mini_kv_book.course import closed_sentence
from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.places import DOCS, ROOT, chinese_edition, language_of, said
from mini_kv_book.runs import FenceError
from mini_kv_book.taught import chapter_of, title_of

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = (
    "kv_page.js",
    "kv_parts.js",
    "kv_python.js",
    "kv_text.js",
    "kv_lab.js",
    "kv_puzzle.js",
    "kv_plan.js",
    "kv_play.js",
    "kv_claims.js",
    "kv_finale.js",
    "kv_challenge.js",
    "kv_session.js",
    "kv_planes.js",
    "kv_runner.js",
    "kv_gpu.js",
    "kv_gpu.wgsl",
)
"""What the site serves of them: the first is in every page, and loads the others where they are needed."""
HOME = "On your own machine: edit {0} in an editor that you know, and run {1}. This is the starter:"
PACKED = DOCS / "assets" / "kv-lab"
"""What `npm run labs` packs; the last file that it writes says that all of them are there."""


@as_fence
def fence(body: str, md: Any) -> str:
    """Return the editor of the lab, or the commands to run it on the reader's own machine."""
    lab = body.strip()
    if not re.fullmatch(r"lab-\d\d(-\w+)?", lab) or not (ROOT / "labs" / lab).is_dir():
        raise FenceError(f"there is no lab {lab!r}")
    if closed := closed_sentence(lab):
        return f"<p>{closed}</p>"
    return element(lab, megabytes(), language_of(md))


def megabytes() -> int | None:
    """Return the download of a reader's first run in MB, or `None` if this book has no Python for the page."""
    file = PACKED / "packed.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["megabytes"]) if file.is_file() else None


def runs_here(needs: str, size: int | None) -> bool:
    """Return whether a lab runs in its page: Python and pytest are enough, and a Python is packed for it."""
    return needs == "C" and size is not None


def element(lab: str, size: int | None, lang: str = "en") -> str:
    """Return `<kv-lab>`. Without `size`, or if the lab needs more than Python and pytest, the page cannot run it."""
    folder = ROOT / "labs" / lab
    toml = _read_toml(folder / "lab.toml")
    starter = (ROOT / "mini_kv" / "course" / "labkit" / "starters" / f"{lab}.txt").read_text(encoding="utf-8")
    here = runs_here(toml["needs"], size)
    about = {
        "points": toml["points"],
        "starter": starter,
        "hints": {one["name"]: {"levels": one["hints"]} for one in toml["function"]},
        "questions": toml["prediction"],
        "megabytes": size,
        "on": ways_on(lab),
    }
    if lang != "en":
        about |= _in_chinese(lab, about)
    home = said(lang, HOME).format(f"<code>labs/{lab}/starter.py</code>", f"<code>make {lab}</code>")
    data = f'<script type="application/json">{inert(about)}</script>' if here else ""
    return (
        f'<div><kv-lab lab="{lab}"{" python" if here else ""}>{data}'
        f"<p>{home}</p>{code(starter, 'python')}</kv-lab></div>"
    )


def _in_chinese(lab: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return the element's Chinese texts: its own words, the lab's questions and hints."""
    path = ROOT / "book" / "data" / f"zh-{lab}.toml"
    if not path.is_file():
        raise FenceError(f"{lab} is not told in Chinese: there is no book/data/{path.name}")
    told = _read_toml(path)
    questions = [asked | words for asked, words in zip(about["questions"], told["question"], strict=True)]
    words = chinese_edition()["lab"]
    return {"lang": "zh", "words": words, "questions": questions, "hints": told["hints"], "on": told["on"]}


def ways_on(lab: str) -> list[list[str]]:
    """Return the next pages after a passed lab: kind, title and link, from the lab's page."""
    chapter, follows = chapter_of(lab), next_of(lab, ROOT / "labs")
    ways = [["The chapter", title_of(chapter), f"../../chapters/{chapter}/"], ["At home", f"make {lab}", "#run"]]
    if follows is None:
        return ways
    second = _read_toml(ROOT / "labs" / lab / "lab.toml").get("second_part")
    link = "#part-2" if follows == second else f"../{follows}/"
    return [["Next", _read_toml(ROOT / "labs" / follows / "lab.toml")["title"], link], *ways]


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def inert(data: object) -> str:
    """Return JSON in which no character can end or open an element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
