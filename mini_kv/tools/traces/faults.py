"""Adds two faults to a trace: a salt per user, and the time of day near the beginning of the prompt.

    salt-per-user     [system][turn 1] ...           equal tokens have different block hashes for each user
    timestamp         [head][02:13:28][system] ...   all blocks after the time have new block hashes

Both faults are invisible in a single request, because its answer is right. Only a trace shows their cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mini_kv.tools.traces.readers.token_request import TokenRequest
from mini_kv.tools.traces.seen import common_length

HEAD = 24
"""Tokens before the time of day."""
_NAME = 8
"""Number of tokens after the common prefix that identify a user."""


def salt_per_user(trace: Sequence[TokenRequest]) -> list[TokenRequest]:
    """Return the trace with a salt per user. A user's requests have equal tokens after the common prefix."""
    common = min(common_length(trace[0].token_ids, entry.token_ids) for entry in trace)
    users: dict[tuple[int, ...], str] = {}
    salted = []
    for entry in trace:
        name = entry.token_ids[common : common + _NAME]
        salted.append(replace(entry, cache_salt=users.setdefault(name, f"user-{len(users)}")))
    return salted


def timestamp(trace: Sequence[TokenRequest]) -> list[TokenRequest]:
    """Return the trace with the time of each request, to the millisecond, after the first `HEAD` tokens."""
    return [
        replace(entry, token_ids=entry.token_ids[:HEAD] + _clock(entry.timestamp) + entry.token_ids[HEAD:])
        for entry in trace
    ]


def _clock(milliseconds: int) -> tuple[int, ...]:
    """Return a time of day as tokens: hours, minutes, seconds, thousandths."""
    seconds, thousandths = divmod(milliseconds, 1000)
    return seconds // 3600 % 24, seconds // 60 % 60, seconds % 60, thousandths


FAULTS: dict[str, Callable[[Sequence[TokenRequest]], list[TokenRequest]]] = {
    "salt-per-user": salt_per_user,
    "timestamp": timestamp,
}
"""By name."""
