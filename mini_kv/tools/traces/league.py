"""Eviction policies side by side: one trace, replayed under each of them in pools of several sizes.

Every number is a replay through the real cache manager, so it includes the engine's rules: blocks in use, the last
token that is always computed, the partial block. The policy of the last row knows the future and is an upper bound.

How certain a difference between two policies is: intervals from sessions that are drawn again, with replacement.

    sessions of the trace       a  b  c  d
    drawn, 1,000 times          b  d  b  a      the hits of these, under one policy and under the other

A trace has a few sessions of many. With other sessions the difference would be another. The interval has 95 of 100 of
the drawn differences. The hits of a session stay those of the replay, in which the sessions shared one pool. Source:
Efron, "Bootstrap methods: another look at the jackknife" (1979).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mini_kv.core.errors import ConfigError
from mini_kv.policy.belady import belady
from mini_kv.policy.catalogue import find_policy
from mini_kv.policy.eviction import Policy, parts_of
from mini_kv.tools.traces.parallel import run_cells
from mini_kv.tools.traces.prompt_hashes import Prompt, make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest, name_blocks
from mini_kv.tools.traces.replay import ReplayReport, replay

BELADY = "belady"
"""The name of the row that knows the future."""
_NUM_DRAWS = 1000


class SessionHits(NamedTuple):
    """The result of one session in one replay."""

    prompt_tokens: int
    hit_tokens: int


@dataclass(frozen=True)
class Standing:
    """The result of one policy in one pool."""

    policy: str
    num_blocks: int
    """Size of the pool, the null block included."""
    report: ReplayReport
    sessions: Mapping[str, SessionHits] = field(default_factory=dict)
    """The result by session. Requests without a session count as one."""


def league(
    trace: Sequence[TraceRequest],
    sizes: Sequence[int],
    policies: Sequence[str],
    *,
    jobs: int | None = None,
    dask: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Standing]:
    """Replay the trace under each policy in a pool of each size and return the standings, by policy and then by size.

    Args:
        trace: at least one request.
        sizes: blocks of each pool, the null block included.
        policies: names as `find_policy` takes them, or `BELADY`.
        jobs: as in `run_cells`.
        dask: as in `run_cells`.
        on_progress: as in `run_cells`.

    Raises `ConfigError` for an unknown policy before anything is replayed. Costs one replay per standing: 0.5 to 1.5 s
    for a trace of 280,000 blocks.
    """
    for policy in policies:
        if policy != BELADY:
            find_policy(policy)
    cells = [(policy, size) for policy in policies for size in sizes]
    return run_cells(_replay, _Traffic(trace), cells, jobs=jobs, dask=dask, on_progress=on_progress)


def default_sizes(trace: Sequence[TraceRequest], count: int = 8) -> list[int]:
    """Return `count` pool sizes in equal ratios, from room for the longest prompt to room for all."""
    smallest = 2 + max(entry.num_blocks for entry in trace)
    distinct = {name for names in name_blocks(trace) for name in names}
    largest = max(smallest, 2 + len(distinct))
    if count < 2 or largest == smallest:
        return [largest]
    ratio = (largest / smallest) ** (1 / (count - 1))
    return sorted({round(smallest * ratio**i) for i in range(count)})


@dataclass(frozen=True)
class _Traffic:
    """A trace and its prompts, which a process makes once for all of its cells."""

    trace: Sequence[TraceRequest]

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The requests with their block hashes."""
        return make_prompts(self.trace, self.trace[0].block_size)


def _replay(traffic: _Traffic, cell: tuple[str, int]) -> Standing:
    policy, size = cell
    sessions: dict[str, SessionHits] = {}

    def count(entry: TraceRequest, num_hits: int) -> None:
        so_far = sessions.get(entry.session_id, SessionHits(0, 0))
        sessions[entry.session_id] = SessionHits(
            so_far.prompt_tokens + entry.input_length, so_far.hit_tokens + num_hits
        )

    parts = parts_of(_policy(traffic, policy, size))
    report = replay(traffic.trace, size, parts=parts, prompts=traffic.prompts, on_admitted=count)
    return Standing(policy, size, report, sessions)


def _policy(traffic: _Traffic, name: str, size: int) -> Policy:
    if name != BELADY:
        return find_policy(name)
    pairs = zip(traffic.trace, traffic.prompts, strict=True)
    return belady([prompt.block_hashes for entry, prompt in pairs if entry.num_blocks < size])


def checked_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the sizes, smallest first, each once. Raises `ConfigError` for one below 2."""
    for size in sizes:
        if size < 2:
            raise ConfigError(f"a pool of {size} blocks: the null block takes one, so at least 2")
    return sorted(set(sizes))


class Interval(NamedTuple):
    """Points that a policy finds more than another, in percent of the prompt tokens."""

    points: float
    low: float
    high: float


def compare(policy: Mapping[str, SessionHits], base: Mapping[str, SessionHits], seed: int) -> Interval:
    """Return the difference between two replays of one trace, by session, and its 95 % interval.

    The same arguments give the same interval. Costs O(sessions), 1,000 times.
    """
    sessions = sorted(base)
    rng = random.Random(seed)
    drawn = sorted(_points(policy, base, rng.choices(sessions, k=len(sessions))) for _ in range(_NUM_DRAWS))
    tail = _NUM_DRAWS // 40
    return Interval(_points(policy, base, sessions), drawn[tail], drawn[-1 - tail])


def _points(policy: Mapping[str, SessionHits], base: Mapping[str, SessionHits], sessions: list[str]) -> float:
    gain = sum(policy[name].hit_tokens - base[name].hit_tokens for name in sessions)
    return 100 * gain / sum(base[name].prompt_tokens for name in sessions)
