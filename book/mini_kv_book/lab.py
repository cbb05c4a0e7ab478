"""The fence kv-lab: where a lab's page says how to run the lab."""

import re
from typing import Any

from mini_kv_book.fences import fence as as_fence
from mini_kv_book.places import ROOT
from mini_kv_book.runs import FenceError


@as_fence
def fence(body: str, _md: Any) -> str:
    """Say how to run the lab on one's own machine."""
    lab = body.strip()
    if not re.fullmatch(r"lab-\d\d", lab) or not (ROOT / "labs" / lab).is_dir():
        raise FenceError(f"there is no lab {lab!r}")
    return f"<p>On your own machine: <code>make {lab}</code>.</p>"
