"""The fence kv-planes: the plans of one run, executed by PyTorch during the build and by JavaScript in the page.

The body is one line of fields as in an address: levers of `mini_kv/course/lessons/play.py`, `model`, and the texts `a`,
`b` and `c`. Without scripts, or without the packed model, the reader sees the plans and the words of PyTorch.
"""

from html import escape
from typing import Any

from mini_kv_book.fences import fence as as_fence
from mini_kv_book.kept import result_of
from mini_kv_book.lab import PACKED, inert
from mini_kv_book.runs import run_planes


@as_fence
def fence(body: str, _md: Any) -> str:
    """Record the run with PyTorch, and show it."""
    record = result_of(run_planes, body.strip())
    return element(record, model_bytes(record["model"]))


def model_bytes(model: str) -> int | None:
    """Return the size of the weights that the site serves, or `None` if it serves none."""
    file = PACKED / model / "model.safetensors"
    return file.stat().st_size if file.is_file() else None


def element(record: dict[str, Any], size: int | None) -> str:
    """Return `<kv-planes>`. `size`: bytes of the model's weights. Without it the page cannot execute the plans."""
    rows = "".join(_row(number, step, record["words"]) for number, step in enumerate(record["steps"], start=1))
    table = (
        "<table><thead><tr><th>Step</th><th>Plan: positions</th><th>PyTorch</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    if size is None:
        return f"<div><kv-planes>{table}</kv-planes></div>"
    data = inert(record | {"megabytes": round(size / 1e6)})
    return f'<div><kv-planes model><script type="application/json">{data}</script>{table}</kv-planes></div>'


def _row(number: int, step: dict[str, Any], words: dict[str, str]) -> str:
    """Return one step as a row of the table."""
    plan = ", ".join(f"{row['request_id']} {_positions(row)}" for row in step["plan"])
    said = ", ".join(f"{name} {words[str(token)]!r}" for name, token in step["tokens"].items()) or "no token"
    cells = (f"{number}", plan, f"{said} ({step['ms']} ms)")
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _positions(row: dict[str, Any]) -> str:
    """Return the positions of a request's new tokens."""
    first, last = row["begin"], row["begin"] + len(row["token_ids"]) - 1
    return f"{first}" if first == last else f"{first}\u2013{last}"
