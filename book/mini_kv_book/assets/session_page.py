"""Reads a session file of a coding agent in the page, and holds its turns against the caches. Nothing leaves the page.

`kv_lab_worker.js` loads this file into Pyodide and calls `run`. The session that was read last is kept for the next
question. The fence calls `answer` for the examples, which the page shows without Python.
"""

import json
from collections.abc import Callable
from typing import Any

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.curve import make_curve
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.sessions.analysis import BLOCK_SIZE, Analysis, analyse
from mini_kv.tools.traces.sessions.blocks import as_trace, crowd
from mini_kv.tools.traces.sessions.layout import lay_out
from mini_kv.tools.traces.sessions.session import Session
from mini_kv.tools.traces.sessions.session_formats import example_path, read_session
from mini_kv.tools.traces.sessions.session_report import unseen

_NUM_SIZES = 24
"""Pool sizes of the curve."""
_MOST_BLOCKS = 500_000
"""The most blocks of all prompts together that are looked up in a pool. More are counted in larger blocks."""

_kept: list[Session] = []


def run(asked: str, text: str, say: Callable[[str, str], None]) -> str:
    """Return the result for a session as JSON, or `{"error": ...}`. Either has the question's `number`.

    Args:
        asked: a JSON object. `name`: the file's name, with its text in `text`. `example`: the format of an example.
            Neither: the session that was read last. `block_size`, `ttl`: of the caches. `pools`: return what pools
            of several sizes find in `count` such sessions.
        text: the text of a file.
        say: is told what is computed now.
    """
    question = json.loads(asked)
    try:
        session = _session(question, text, say)
        block_size = question.get("block_size") or BLOCK_SIZE
        say("computing the caches", "")
        if question.get("pools"):
            result: dict[str, Any] = {"pools": _pools(session, block_size, question["count"])}
        else:
            result = answer(analyse(session, block_size=block_size, ttl=question.get("ttl")))
    except (TraceError, ConfigError) as error:
        result = {"error": str(error)}
    return json.dumps({**result, "number": question.get("number")})


def answer(analysis: Analysis) -> dict[str, Any]:
    """Return the figures, and what the page says of the tokens before the first text."""
    return {**analysis.as_dict(), "unseen": unseen(analysis)}


def _session(question: dict[str, Any], text: str, say: Callable[[str, str], None]) -> Session:
    """Return the session that is asked about, and keep it."""
    if example := question.get("example"):
        path = example_path(example)
        _kept[:] = [read_session(path.read_bytes().splitlines(keepends=True), path.name, example)]
    elif name := question.get("name"):
        say("reading the file", "")
        _kept[:] = [read_session(text.encode().splitlines(keepends=True), name)]
    return _kept[0]


def _pools(session: Session, block_size: int, count: int) -> dict[str, Any]:
    """Return the tokens that pools of several sizes find in several such sessions.

    The blocks are larger than asked for if there would be too many.
    """
    layouts = lay_out(session)
    while count * sum(layout.num_tokens for layout in layouts) > _MOST_BLOCKS * block_size:
        block_size *= 2
    trace = crowd(as_trace(session, layouts, block_size), count)
    curve = make_curve(make_prompts(trace, block_size), block_size)
    points = [curve.at(size) for size in curve.sizes(_NUM_SIZES)]
    return {
        "count": count,
        "block_size": curve.block_size,
        "tokens": curve.prompt_tokens,
        "points": [[point.num_blocks, point.hit_tokens] for point in points],
    }
