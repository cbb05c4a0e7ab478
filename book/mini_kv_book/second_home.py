"""The recorded time to the first token, computed or reloaded.

    <!-- table tiers -->

shows book/data/tiers.json: `python -m mini_kv.dev.tiers --server ADDRESS --json book/data/tiers.json`.
"""

import json
from typing import Any

from mini_kv_book.places import ROOT

PATH = ROOT / "book" / "data" / "tiers.json"


def as_markdown() -> str:
    """Return the table, with times shorter than computing in bold, and the crossovers."""
    recorded: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    rows: dict[str, dict[str, float]] = recorded["milliseconds"]
    lengths = list(rows["computed"])
    lines = [
        "| known tokens | " + " | ".join(lengths) + " | reloading is quicker from |",
        "|---|" + "---:|" * len(lengths) + "---|",
    ]
    for name, row in rows.items():
        cells = [
            f"**{row[length]:.1f}**" if row[length] < rows["computed"][length] else f"{row[length]:.1f}"
            for length in lengths
        ]
        crossing = recorded["crossover"].get(name)
        title = "computed again" if crossing is None else f"from {name}"
        tail = "" if crossing is None else _crossing(crossing)
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {tail} |")
    note = f"Median of {recorded['repeats']} runs on one machine, in turns. In bold: quicker than computing."
    return "\n".join([*lines, "", note])


def _crossing(crossing: dict[str, int | None]) -> str:
    """Return the length from which on reloading was faster, and the predicted one."""
    measured, predicted = crossing["measured"], crossing["predicted"]
    return f"{measured or 'no length on'}, predicted {predicted or 'none'}"
