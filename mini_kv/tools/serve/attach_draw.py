"""A mirror as lines of text.

    43 blocks can be found, 1 of them a twin; 823 stored, 780 removed
    complete: no batch is missing
    ########2###
          ####
       #

Each column is a position in a prompt, and each row is a prompt's path. The common beginning of two prompts is drawn
once. The second prompt's own blocks begin below the position where the two differ.
"""

from collections.abc import Mapping

from mini_kv.story.vllm_source import PUBLISHED, VERSION
from mini_kv.tools.serve.mirror import Key, Mirror

MARKS = "#  a block    2, 3 ...  that many with one hash    ~  the blocks before are gone"


def state_lines(mirror: Mirror) -> list[str]:
    """Return the mirror's counts, and whether it is complete."""
    twins = {0: "", 1: ", 1 of them a twin"}.get(mirror.num_twins, f", {mirror.num_twins:,} of them twins")
    counts = f"{mirror.num_stored:,} stored, {mirror.num_removed:,} removed"
    lines = [f"{mirror.num_blocks:,} blocks can be found{twins}; {counts}"]
    if not mirror.gaps:
        return [*lines, "complete: no batch is missing"]
    more = "" if len(mirror.gaps) == 1 else f", and {len(mirror.gaps) - 1:,} more gaps before"
    unknown = f"; {mirror.num_unknown_removed:,} unknown blocks were removed" if mirror.num_unknown_removed else ""
    return [*lines, f"NOT COMPLETE: {mirror.gaps[-1]}{more}{unknown}"]


def source_lines(mirror: Mirror) -> list[str]:
    """Return for each kind of event that has arrived the function of vLLM that makes it, with a link to its code."""
    counts = {
        "BlockStored": mirror.num_stored,
        "BlockRemoved": mirror.num_removed + mirror.num_unknown_removed,
        "AllBlocksCleared": mirror.num_cleared,
    }
    lines = [
        f"  {name}: {PUBLISHED[name].symbol}, {PUBLISHED[name].url}" for name, count in counts.items() if count > 0
    ]
    return ["", f"In the source code of vLLM {VERSION}:", *lines] if lines else []


def metrics_line(metrics: Mapping[str, float] | str) -> str:
    """Return the server's own counters."""
    if isinstance(metrics, str):
        return metrics
    queries, hits = (metrics.get(f"vllm:prefix_cache_{name}_total", 0.0) for name in ("queries", "hits"))
    share = f" ({hits / queries:.1%})" if queries else ""
    return (
        f"the server counts: {hits:,.0f} of {queries:,.0f} prompt tokens found{share}; KV cache"
        f" {metrics.get('vllm:kv_cache_usage_perc', 0.0):.1%} used; {metrics.get('vllm:num_requests_running', 0):.0f}"
        f" running, {metrics.get('vllm:num_requests_waiting', 0):.0f} waiting"
    )


def tree_lines(mirror: Mirror, width: int, most: int) -> list[str]:
    """Return the blocks of the first group as rows, the largest first, in at most `most` lines."""
    group_id = min((key.group_id for key in mirror.blocks), default=0)
    children: dict[Key | None, list[Key]] = {}
    for key, block in mirror.blocks.items():
        if key.group_id == group_id:
            parent = block.parent if block.parent in mirror.blocks else None
            children.setdefault(parent, []).append(key)
    sizes = _sizes(children)
    rows: list[str] = []
    todo = [(0, root) for root in sorted(children.get(None, []), key=lambda key: sizes[key])]
    while todo:
        depth, key = todo.pop()
        row = " " * depth + ("~" if depth == 0 and mirror.blocks[key].parent is not None else "")
        at: Key | None = key
        while at is not None:
            copies = mirror.blocks[at].copies
            row += "#" if copies == 1 else str(min(copies, 9))
            depth += 1
            nexts = sorted(children.get(at, []), key=lambda key: sizes[key])
            at = nexts.pop() if nexts else None
            todo += [(depth, other) for other in nexts]
        rows.append(row if len(row) <= width else row[: width - 3] + "...")
    if len(rows) > most:
        rows[most - 1 :] = [f"... and {len(rows) - most + 1:,} more rows"]
    return rows


def _sizes(children: Mapping[Key | None, list[Key]]) -> dict[Key, int]:
    """Return for each key the number of blocks that follow from it, itself included."""
    order: list[Key] = [*children.get(None, [])]
    for key in order:  # grows while it is walked: parents before children
        order += children.get(key, [])
    sizes: dict[Key, int] = {}
    for key in reversed(order):
        sizes[key] = 1 + sum(sizes[child] for child in children.get(key, []))
    return sizes
