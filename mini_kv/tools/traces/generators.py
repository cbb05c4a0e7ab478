"""Makes traffic of six kinds from a seed, and adds faults to it. The kinds differ in the parts that prompts share.

    chat              [system][turn 1][answer][turn 2] ...          many users; each turn repeats all before it
    system-prompts    [one of few long beginnings][question]        many products behind one model
    agents            [tools][task][step][result][step] ...         a task's steps come close together
    rag               [system][documents, in the order found][question]
    agent-sessions    the same with pauses, subagents and rewritten histories: see `agent_sessions`
    coding            [file as it is now][cursor]                   the same file again and again, changed in one place

    salt-per-user     [system][turn 1] ...           a fault: equal tokens have different block hashes for each user
    timestamp         [head][02:13:28][system] ...   a fault: all blocks after the time have new block hashes

Tokens are numbers. Equal texts are equal numbers, and a cache sees no more of them. None of this traffic is real: it is
for experiments and tests. Both faults are invisible in a single request, because its answer is right. Only a trace
shows their cost.
"""

import heapq
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TypeAlias

from mini_kv.core.errors import ConfigError
from mini_kv.messages import choices
from mini_kv.tools.traces.prefix_overlap import common_length
from mini_kv.tools.traces.readers.token_trace import TokenRequest

Tokens: TypeAlias = tuple[int, ...]
_VOCABULARY = 100_000
_NUM_SESSIONS = 8
_MEAN_REQUESTS = 65
_SUBAGENT_REQUESTS = 11
HEAD = 24
"""Tokens before the time of day."""
_USER = 8
"""Number of tokens after the common prefix that identify a user."""


def generate(kind: str, num_requests: int, seed: int = 0) -> list[TokenRequest]:
    """Return this number of requests. The same arguments give the same trace, anywhere.

    Raises `ConfigError` for an unknown kind, or for less than one request.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no traffic of the kind {kind!r}; {choices(kind, list(KINDS))}")
    if num_requests < 1:
        raise ConfigError(f"num_requests is {num_requests}, it must be at least 1")
    return list(islice(KINDS[kind](random.Random(f"{kind} {seed}")), num_requests))


def format_tokens(request: TokenRequest) -> str:
    """Return the request as a line of a trace of tokens, without a newline. Images and adapters are left out."""
    fields = {"timestamp": request.timestamp, "token_ids": request.token_ids, "output_length": request.output_length}
    salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    return json.dumps({**fields, **salt})


def _tokens(rng: random.Random, length: int, vocabulary: int = _VOCABULARY) -> Tokens:
    return tuple(rng.randrange(vocabulary) for _ in range(length))


def _text(rng: random.Random, shortest: int, longest: int) -> Tokens:
    return _tokens(rng, rng.randint(shortest, longest))


def _chat(rng: random.Random) -> Callable[[], tuple[Tokens, int]]:
    """Conversations. A recent one probably continues next. Now and then one ends and another begins."""
    system = _text(rng, 300, 300)
    conversations: list[Tokens] = [system] * 20

    def next_prompt() -> tuple[Tokens, int]:
        who = min(int(rng.expovariate(0.25)), 19)
        if rng.random() < 0.1:
            conversations[who] = system
        prompt = conversations.pop(who) + _text(rng, 10, 120)
        answer = _text(rng, 30, 250)
        conversations.insert(0, prompt + answer)
        return prompt, len(answer)

    return next_prompt


def _system_prompts(rng: random.Random) -> Callable[[], tuple[Tokens, int]]:
    """Eight products, some of them popular, each with a long beginning of its own."""
    beginnings = [_text(rng, 400, 2000) for _ in range(8)]

    def next_prompt() -> tuple[Tokens, int]:
        product = min(int(rng.paretovariate(0.9)) - 1, 7)
        return beginnings[product] + _text(rng, 10, 150), rng.randint(20, 300)

    return next_prompt


def _agents(rng: random.Random) -> Callable[[], tuple[Tokens, int]]:
    """Tasks in progress. Each step's prompt is the last prompt, the model's answer and a tool's result."""
    tools = _text(rng, 1500, 1500)
    tasks: list[Tokens] = []

    def next_prompt() -> tuple[Tokens, int]:
        if not tasks or (len(tasks) < 6 and rng.random() < 0.15):
            tasks.append(tools + _text(rng, 40, 200))
        which = rng.randrange(len(tasks))
        prompt = tasks[which]
        call = _text(rng, 20, 80)
        tasks[which] = prompt + call + _text(rng, 50, 800)
        if rng.random() < 0.08 or len(prompt) > 12_000:
            del tasks[which]
        return prompt, len(call)

    return next_prompt


def _rag(rng: random.Random) -> Callable[[], tuple[Tokens, int]]:
    """Documents that a search has found, best first. Often they are the same, but seldom in the same order."""
    system = _text(rng, 200, 200)
    documents = [_text(rng, 250, 600) for _ in range(60)]

    def next_prompt() -> tuple[Tokens, int]:
        found = [documents[min(int(rng.paretovariate(0.5)) - 1, 59)] for _ in range(4)]
        context = tuple(token for document in dict.fromkeys(found) for token in document)
        return system + context + _text(rng, 10, 60), rng.randint(40, 200)

    return next_prompt


def _coding(rng: random.Random) -> Callable[[], tuple[Tokens, int]]:
    """Files in an editor: the text before the cursor, with a few words changed since the last time."""
    files = [list(_text(rng, 800, 4000)) for _ in range(5)]

    def next_prompt() -> tuple[Tokens, int]:
        file = files[min(int(rng.expovariate(0.8)), 4)]
        cursor = rng.randint(len(file) // 2, len(file))
        if rng.random() < 0.3:
            file[rng.randrange(cursor)] = rng.randrange(_VOCABULARY)
        file[cursor:cursor] = _text(rng, 5, 40)
        return tuple(file[:cursor]), rng.randint(5, 60)

    return next_prompt


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
    history: Tokens
    requests_left: int
    parent: "_Session | None" = None


def agent_sessions(
    rng: random.Random, lengths: Lengths = SIXTEENTH, vocabulary: int = _VOCABULARY
) -> Iterator[TokenRequest]:
    """Yield the requests of eight sessions of coding agents at once, by time, without end.

        [system prompt and tools][task][answer][result] ...     each request repeats the whole history and adds to it
        [system prompt and tools][summary] ...                  a history that is too long is rewritten
        [subagent's tools][its task] ...                        a subagent runs while its parent waits

    Eight sessions run at once. A session that ends is followed by another. The figures of the 710 published sessions of
    at most 4 MiB (github.com/callanjfox/kv-cache-tester), of which lengths here are a sixteenth:

        requests of a session                     median 45, nine tenths below 156
        tokens of a prompt; of an answer          median 104,644; 216
        system prompt and tools; a first prompt   median 15,035; 24,522
        growth per request                        median 656 tokens, nine tenths below 3,493
        a history is rewritten                    at a median of 150,852 tokens, to 33,902
        time to the next request, tool runs       median 17 s, nine tenths below 92 s
        time to the next request, user is next    median 221 s, nine tenths below 2,995 s; one request in 18
        a subagent                                median 11 requests, 10,335 tokens in the first, 7 s apart

    Three things are different. All sessions share the system prompt and the tools, which the published ids cannot show.
    One request in a hundred starts a subagent, not one in 800, so that a short trace has some. And every session begins
    with a new history, while a quarter of the published ones begin above 104,189 tokens. So the median prompt is half
    as long.
    """

    def text(length: int) -> Tokens:
        return _tokens(rng, length, vocabulary)

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


Requests: TypeAlias = Callable[[random.Random], Iterator[TokenRequest]]


def _ten_per_second(kind: Callable[[random.Random], Callable[[], tuple[Tokens, int]]]) -> Requests:
    """Return the function that sends the prompts of a kind at random times, about ten per second."""

    def requests(rng: random.Random) -> Iterator[TokenRequest]:
        next_prompt = kind(rng)
        clock = 0.0
        while True:
            clock += rng.expovariate(10.0)
            prompt, num_answer_tokens = next_prompt()
            yield TokenRequest(round(1000 * clock), prompt, num_answer_tokens)

    return requests


KINDS: dict[str, Requests] = {
    "chat": _ten_per_second(_chat),
    "system-prompts": _ten_per_second(_system_prompts),
    "agents": _ten_per_second(_agents),
    "agent-sessions": agent_sessions,
    "rag": _ten_per_second(_rag),
    "coding": _ten_per_second(_coding),
}
"""By name."""


def _salt_per_user(trace: Sequence[TokenRequest]) -> list[TokenRequest]:
    """Return the trace with a salt per user. A user's requests have equal tokens after the common prefix."""
    common = min(common_length(trace[0].token_ids, entry.token_ids) for entry in trace)
    users: dict[Tokens, str] = {}
    salted = []
    for entry in trace:
        name = entry.token_ids[common : common + _USER]
        salted.append(replace(entry, cache_salt=users.setdefault(name, f"user-{len(users)}")))
    return salted


def timestamp(trace: Sequence[TokenRequest]) -> list[TokenRequest]:
    """Return the trace with the time of each request, to the millisecond, after the first `HEAD` tokens."""
    return [
        replace(entry, token_ids=entry.token_ids[:HEAD] + _clock(entry.timestamp) + entry.token_ids[HEAD:])
        for entry in trace
    ]


def _clock(milliseconds: int) -> Tokens:
    """Return a time of day as tokens: hours, minutes, seconds, thousandths."""
    seconds, thousandths = divmod(milliseconds, 1000)
    return seconds // 3600 % 24, seconds // 60 % 60, seconds % 60, thousandths


FAULTS: dict[str, Callable[[Sequence[TokenRequest]], list[TokenRequest]]] = {
    "salt-per-user": _salt_per_user,
    "timestamp": timestamp,
}
"""By name."""
