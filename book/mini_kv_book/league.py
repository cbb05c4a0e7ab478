"""The league of policies on real traces, recorded: the traces are not part of the project.

    <!-- table league -->
    <!-- table league league-agents -->

shows book/data/league.json, or league-agents.json: what `mini-kv league TRACE --json` printed, cut to the columns of
the table, with its command and the digest of the trace.
"""

import json
from typing import Any

from mini_kv.tools.traces.league import BELADY
from mini_kv_book.places import ROOT

DATA = ROOT / "book" / "data"


def percent(policy: str, num_blocks: int, name: str = "league") -> float:
    """Return the hits in percent of the prompt tokens. Raises `KeyError` for a missing recording."""
    return 100 * hit_rates(name)[policy][num_blocks]


def hit_rates(name: str = "league") -> dict[str, dict[int, float]]:
    """Return the hits as a share of the prompt tokens, by policy and by number of blocks."""
    found: dict[str, dict[int, float]] = {}
    for row in load(name)["rows"]:
        found.setdefault(row["policy"], {})[row["num_blocks"]] = row["hit_tokens"] / row["prompt_tokens"]
    return found


def load(name: str = "league") -> dict[str, Any]:
    """Return the recording."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def as_markdown(name: str = "league") -> str:
    """Return the table, the best of each size in bold, and below it where the figures come from."""
    recorded, rates = load(name), hit_rates(name)
    sizes = list(rates[BELADY])
    policies = [policy for policy in rates if policy != BELADY]
    best = {size: max(policies, key=lambda policy: rates[policy][size]) for size in sizes}
    lines = ["| blocks | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for policy in [*policies, BELADY]:
        cells = [f"{100 * rates[policy][size]:.1f}" for size in sizes]
        cells = [f"**{cell}**" if best[size] == policy else cell for size, cell in zip(sizes, cells, strict=True)]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    how = f"{recorded['requests']:,} requests, one at a time"
    return "\n".join([*lines, "", f"*Recorded on {recorded['date']} by `{recorded['command']}`: {how}.*"])
