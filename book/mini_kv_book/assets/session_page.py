"""Reads a session file of a coding agent in the page, and holds its turns against the caches. Nothing leaves the page.

`kv_lab_worker.js` loads this file into Pyodide and calls `run`. The session that was read last is kept for the next
question.
"""

import json
from collections.abc import Callable
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.curve import Curve, make_curve
from mini_kv.tools.traces.league import BELADY, league
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceError, TraceRequest
from mini_kv.tools.traces.sessions.analysis import BLOCK_SIZE, analyse
from mini_kv.tools.traces.sessions.blocks import as_trace, crowd
from mini_kv.tools.traces.sessions.layout import lay_out
from mini_kv.tools.traces.sessions.session import Session
from mini_kv.tools.traces.sessions.session_formats import example_path, read_session
from mini_kv.tools.traces.sessions.session_report import unseen

_NUM_SIZES = 24
"""Pool sizes of the curve."""
_SIZES_OF_POLICIES = 3
_POLICIES = ("lru", "lfu", "sieve", BELADY)
_MOST_BLOCKS = 500_000
"""The most blocks of all prompts together that are looked up in a pool. More are counted in larger blocks."""

_kept: list[Session] = []


def run(asked: str, text: str, say: Callable[[str, str], None]) -> str:
    """Return the result for a session as JSON, or `{"error": ...}`.

    Args:
        asked: a JSON object. `name`: the file's name, with its text in `text`. `example`: the format of an example.
            Neither: the session that was read last. `block_size`, `ttl`: of the caches. `pools`: return what pools
            of several sizes find in `count` such sessions. `policies`: return the same for each eviction policy.
        text: the text of a file.
        say: is told what is computed now.
    """
    question = json.loads(asked)
    try:
        session = _session(question, text, say)
        block_size, count = question.get("block_size") or BLOCK_SIZE, question.get("count") or 1
        if question.get("policies"):
            return json.dumps({"standings": _standings(session, block_size, count, say)})
        if question.get("pools"):
            return json.dumps({"pools": _pools(session, block_size, count)})
        say("computing the caches", "")
        analysis = analyse(session, block_size=block_size, ttl=question.get("ttl"))
        return json.dumps({**analysis.as_dict(), "unseen": unseen(analysis)})
    except (TraceError, ConfigError) as error:
        return json.dumps({"error": str(error)})


def _session(question: dict[str, Any], text: str, say: Callable[[str, str], None]) -> Session:
    """Return the session that is asked about, and keep it."""
    if example := question.get("example"):
        path = example_path(example)
        _kept[:] = [read_session(path.read_bytes().splitlines(keepends=True), path.name, example)]
    elif name := question.get("name"):
        say("reading the file", "")
        _kept[:] = [read_session(text.encode().splitlines(keepends=True), name)]
    return _kept[0]


def _crowd(session: Session, block_size: int, count: int) -> tuple[list[TraceRequest], Curve]:
    """Return the requests of several such sessions, and the tokens that each pool finds in them.

    The blocks are larger than asked for if there would be too many.
    """
    layouts = lay_out(session)
    while count * sum(layout.num_tokens for layout in layouts) > _MOST_BLOCKS * block_size:
        block_size *= 2
    trace = crowd(as_trace(session, layouts, block_size), count)
    return trace, make_curve(make_prompts(trace, block_size), block_size)


def _pools(session: Session, block_size: int, count: int) -> dict[str, Any]:
    """Return the tokens that pools of several sizes find."""
    _, curve = _crowd(session, block_size, count)
    points = [curve.at(size) for size in curve.sizes(_NUM_SIZES)]
    return {
        "count": count,
        "block_size": curve.block_size,
        "tokens": curve.prompt_tokens,
        "points": [[point.num_blocks, point.hit_tokens] for point in points],
    }


def _standings(session: Session, block_size: int, count: int, say: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Return what each policy finds in pools of several sizes."""
    trace, curve = _crowd(session, block_size, count)
    sizes = curve.sizes(_SIZES_OF_POLICIES)
    num_cells = len(_POLICIES) * len(sizes)
    standings = league(
        trace, sizes, _POLICIES, jobs=1, on_progress=lambda done: say(f"replay {done} of {num_cells}", "")
    )
    return [
        {"policy": each.policy, "num_blocks": each.num_blocks, "hit_tokens": each.report.hit_tokens}
        for each in standings
    ]
