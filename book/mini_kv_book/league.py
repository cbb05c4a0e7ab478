"""The league of policies on the real trace, recorded: the trace is not part of the project.

    <!-- table league -->

shows book/data/league.json: what `mini-kv league TRACE --json` printed, cut to the columns of the table, with its
command and the digest of the trace.
"""

import json
from typing import Any

from mini_kv.policy.catalogue import POLICIES
from mini_kv.traces.league import BELADY
from mini_kv_book.places import ROOT

PATH = ROOT / "book" / "data" / "league.json"


def percent(policy: str, num_blocks: int) -> float:
    """Return the hits in percent of the prompt tokens. Raises `KeyError` for a missing recording."""
    return 100 * hit_rates()[policy][num_blocks]


def hit_rates() -> dict[str, dict[int, float]]:
    """Return the hits as a share of the prompt tokens, by policy and by number of blocks."""
    found: dict[str, dict[int, float]] = {}
    for row in load()["rows"]:
        found.setdefault(row["policy"], {})[row["num_blocks"]] = row["hit_tokens"] / row["prompt_tokens"]
    return found


def load() -> dict[str, Any]:
    """Return the recording."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def as_markdown() -> str:
    """Return the table, the best of each size in bold, and below it where the figures come from."""
    recorded = load()
    sizes = list(hit_rates()[BELADY])
    best = {size: max(POLICIES, key=lambda policy: percent(policy, size)) for size in sizes}
    lines = ["| blocks | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for policy in [*POLICIES, BELADY]:
        cells = [f"{percent(policy, size):.1f}" for size in sizes]
        cells = [f"**{cell}**" if best[size] == policy else cell for size, cell in zip(sizes, cells, strict=True)]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    how = f"{recorded['requests']:,} requests, one at a time"
    return "\n".join([*lines, "", f"*Recorded on {recorded['date']} by `{recorded['command']}`: {how}.*"])
