"""Makes traffic of six kinds from a seed. The kinds differ in the parts that prompts share.

    chat              [system][turn 1][answer][turn 2] ...          many users; each turn repeats all before it
    system-prompts    [one of few long beginnings][question]        many products behind one model
    agents            [tools][task][step][result][step] ...         a task's steps come close together
    rag               [system][documents, in the order found][question]
    agent-sessions    the same with pauses, subagents and rewritten histories: see `mini_kv.tools.traces.agent_sessions`
    coding            [file as it is now][cursor]                   the same file again and again, changed in one place

Tokens are numbers. Equal texts are equal numbers, and a cache sees no more of them. None of this traffic is real: it is
for experiments and tests.
"""

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

from mini_kv.core.errors import ConfigError
from mini_kv.messages import choices
from mini_kv.tools.traces.agent_sessions import agent_sessions
from mini_kv.tools.traces.readers.token_request import TokenRequest

Tokens: TypeAlias = tuple[int, ...]
_VOCABULARY = 100_000


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


def _text(rng: random.Random, shortest: int, longest: int) -> Tokens:
    return tuple(rng.randrange(_VOCABULARY) for _ in range(rng.randint(shortest, longest)))


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
