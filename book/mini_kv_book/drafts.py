"""The recorded shares of right drafts, and the saved steps.

    <!-- table drafts -->

shows book/data/drafts.json: `python -m mini_kv.dev.draft_acceptance --json book/data/drafts.json`.
"""

import json
from typing import Any

from mini_kv_book.places import ROOT

PATH = ROOT / "book" / "data" / "drafts.json"


def as_markdown() -> str:
    """Return the table."""
    recorded: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    lines = ["| text | tokens | steps without drafts | with drafts | drafts | of them right |", "|---|" + "---:|" * 5]
    for name, row in recorded.items():
        share = row["num_accepted_tokens"] / max(1, row["num_draft_tokens"])
        cells = [row["num_tokens"], row["steps"], row["steps_with_drafts"], row["num_draft_tokens"]]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + f" | {row['num_accepted_tokens']}, {share:.0%} |")
    return "\n".join(lines)
