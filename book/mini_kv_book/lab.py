"""The fence kv-lab: an editor that runs the real tests of a lab in the page, if the book has a browser's Python.

Where it has none, the reader sees the starter and how to run the lab at home; so does a browser without scripts.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mini_kv_book.fences import code
from mini_kv_book.fences import fence as as_fence
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import FenceError

SCRIPT = Path(__file__).with_name("assets") / "kv_lab.js"
PACKED = DOCS / "assets" / "kv-lab"
"""What `npm run labs` packs; the last file that it writes says that all of them are there."""


@as_fence
def fence(body: str, _md: Any) -> str:
    """Let the reader run the lab here, or say how to run it on one's own machine."""
    lab = body.strip()
    if not re.fullmatch(r"lab-\d\d(-\w+)?", lab) or not (ROOT / "labs" / lab).is_dir():
        raise FenceError(f"there is no lab {lab!r}")
    return element(lab, megabytes())


def megabytes() -> int | None:
    """Return what a reader's first run loads, in MB; `None` if this book has no Python for the page."""
    file = PACKED / "packed.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["megabytes"]) if file.is_file() else None


def element(lab: str, size: int | None) -> str:
    """Return `<kv-lab>`. Without `size`, or if the lab needs more than Python and pytest, the page cannot run it."""
    folder = ROOT / "labs" / lab
    toml, hints, predict = (_read_toml(folder / f"{name}.toml") for name in ("lab", "hints", "predict"))
    starter = (ROOT / "mini_kv" / "labkit" / "starters" / f"{lab}.txt").read_text(encoding="utf-8")
    here = size is not None and toml["needs"] == "C"
    about = {
        "points": toml["points"],
        "starter": starter,
        "hints": hints,
        "questions": predict["question"],
        "megabytes": size,
    }
    data = f'<script type="application/json">{_inert(about)}</script>' if here else ""
    return (
        f'<div><kv-lab lab="{lab}"{" python" if here else ""}>{data}'
        f"<p>On your own machine: edit <code>labs/{lab}/starter.py</code> in an editor that you know, and run "
        f"<code>make {lab}</code>. This is the starter:</p>"
        f"{code(starter, 'python')}</kv-lab></div>"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _inert(data: object) -> str:
    """Return JSON in which no character can end or open an element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
