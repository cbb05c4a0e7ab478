"""Makes sessions of coding agents from a seed, in the proportions of the published ones.

    [system prompt and tools][task][answer][result] ...     each request repeats the whole history and adds to it
    [system prompt and tools][summary] ...                  a history that is too long is rewritten
    [subagent's tools][its task] ...                        a subagent runs while its parent waits

Eight sessions run at once. A session that ends is followed by another. The figures of the 710 published sessions of at
most 4 MiB (github.com/callanjfox/kv-cache-tester), of which lengths here are a sixteenth:

    requests of a session                     median 45, nine tenths below 156
    tokens of a prompt; of an answer          median 104,644; 216
    system prompt and tools; a first prompt   median 15,035; 24,522
    growth per request                        median 656 tokens, nine tenths below 3,493
    a history is rewritten                    at a median of 150,852 tokens, to 33,902
    time to the next request, tool runs       median 17 s, nine tenths below 92 s
    time to the next request, user is next    median 221 s, nine tenths below 2,995 s; one request in 18
    a subagent                                median 11 requests, 10,335 tokens in the first, 7 s apart

Three things are different. All sessions share the system prompt and the tools, which the published ids cannot show. One
request in a hundred starts a subagent, not one in 800, so that a short trace has some. And every session begins with a
new history, while a quarter of the published ones begin above 104,189 tokens. So the median prompt is half as long.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from mini_kv.tools.traces.readers.token_request import TokenRequest

_NUM_SESSIONS = 8
_MEAN_REQUESTS = 65
_SUBAGENT_REQUESTS = 11


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens. Those of answers and results are medians."""

    tools: int
    """The system prompt and the tools, the same in all sessions."""
    subagent_tools: int
    task: int
    answer: int
    result: int
    longest_growth: int
    """The most tokens of an answer, and of a result."""
    limit: int
    """A longer history is rewritten."""
    summary: int


SIXTEENTH = Lengths(
    tools=940,
    subagent_tools=490,
    task=590,
    answer=14,
    result=18,
    longest_growth=1500,
    limit=9400,
    summary=1200,
)
"""A sixteenth of the published lengths."""


@dataclass(slots=True)
class _Session:
    history: tuple[int, ...]
    requests_left: int
    parent: "_Session | None" = None


def agent_sessions(
    rng: random.Random, lengths: Lengths = SIXTEENTH, vocabulary: int = 100_000
) -> Iterator[TokenRequest]:
    """Yield the requests of eight sessions at once, by time, without end."""

    def text(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    tools, subagent_tools = text(lengths.tools), text(lengths.subagent_tools)
    serial = count()
    waiting: list[tuple[float, int, _Session]] = []

    def wait(session: _Session, until: float) -> None:
        heapq.heappush(waiting, (until, next(serial), session))

    def new_session() -> _Session:
        return _Session(tools + text(lengths.task), 1 + int(rng.expovariate(1 / _MEAN_REQUESTS)))

    for _ in range(_NUM_SESSIONS):
        wait(new_session(), rng.uniform(0.0, 60.0))
    while True:
        now, _, session = heapq.heappop(waiting)
        answer = text(_around(rng, lengths.answer, 1.1, lengths.longest_growth))
        yield TokenRequest(round(1000 * now), session.history, len(answer))
        session.requests_left -= 1
        if session.requests_left == 0:
            wait(session.parent or new_session(), now + _pause(rng, session))
            continue
        if len(session.history) > lengths.limit:
            session.history = tools + text(lengths.summary)
        else:
            session.history += answer + text(_around(rng, lengths.result, 1.4, lengths.longest_growth))
        if session.parent is None and rng.random() < 0.01:
            session = _Session(subagent_tools + text(lengths.task // 8 + 1), _SUBAGENT_REQUESTS, parent=session)
        wait(session, now + _pause(rng, session))


def _pause(rng: random.Random, session: _Session) -> float:
    """Return the seconds to the next request: for a tool, for a subagent's tool, or for the user."""
    if session.parent is not None:
        return 4 + rng.lognormvariate(math.log(3), 1.3)
    if rng.random() < 1 / 18:
        return rng.lognormvariate(math.log(221), 2.0)
    return 7 + rng.lognormvariate(math.log(10), 1.7)


def _around(rng: random.Random, median: int, spread: float, longest: int) -> int:
    """Return a length from 1 to `longest`: often near the median, and seldom many times as long."""
    return min(longest, max(1, round(rng.lognormvariate(math.log(median), spread))))
