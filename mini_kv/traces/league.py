"""Eviction policies side by side: one trace, replayed under each of them in pools of several sizes.

Every number is a replay through the real cache manager, so it counts whatever the engine counts: blocks that are held,
the last token that is always computed, the partial block. The last row knows the future and cannot be beaten.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.policy.belady import belady
from mini_kv.policy.catalogue import find_policy
from mini_kv.policy.eviction import Policy, parts_of
from mini_kv.traces.readers.mooncake import TraceRequest, name_blocks
from mini_kv.traces.replay import ReplayReport, replay

BELADY = "belady"
"""The name of the row that knows the future."""


@dataclass(frozen=True)
class Standing:
    """What one policy has made of the trace in one pool."""

    policy: str
    num_blocks: int
    """Size of the pool, the null block included."""
    report: ReplayReport


def league(
    trace: Sequence[TraceRequest],
    sizes: Sequence[int],
    policies: Sequence[str],
    *,
    num_processes: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Standing]:
    """Replay the trace under each policy in a pool of each size; return the standings, by policy and then by size.

    Args:
        trace: at least one request.
        sizes: blocks of each pool, the null block included.
        policies: names as `find_policy` takes them, or `BELADY`.
        num_processes: processes to share the work; `None`: one per core, 1: none but this.
        on_progress: called after each replay with the number of replays done.

    Raises `ConfigError` for a policy that there is not, before anything is replayed. Costs one replay per standing: 0.5
    to 1.5 s for a trace of 280,000 blocks.
    """
    for policy in policies:
        if policy != BELADY:
            find_policy(policy)
    work = [(policy, size) for policy in policies for size in sizes]
    done: dict[tuple[str, int], ReplayReport] = {}
    for key, report in _replays(trace, work, min(_checked(num_processes), len(work))):
        done[key] = report
        if on_progress is not None:
            on_progress(len(done))
    return [Standing(policy, size, done[policy, size]) for policy, size in work]


def _checked(num_processes: int | None) -> int:
    """Return how many processes are to work."""
    if num_processes is not None and num_processes < 1:
        raise ConfigError(f"--processes is {num_processes}: at least 1 has to work")
    return num_processes or os.cpu_count() or 1


def _replays(
    trace: Sequence[TraceRequest], work: list[tuple[str, int]], num_processes: int
) -> Iterator[tuple[tuple[str, int], ReplayReport]]:
    """Yield each replay as it is done, with what it was of."""
    if num_processes == 1:
        for policy, size in work:
            yield (policy, size), _replay(trace, policy, size)
        return
    with ProcessPoolExecutor(num_processes, initializer=_take_trace, initargs=(trace,)) as pool:
        futures = {pool.submit(_replay_taken, policy, size): (policy, size) for policy, size in work}
        for future in as_completed(futures):
            yield futures[future], future.result()


def default_sizes(trace: Sequence[TraceRequest], count: int = 8) -> list[int]:
    """Return `count` pool sizes in equal ratios, from room for the longest prompt to room for all."""
    smallest = 2 + max(entry.num_blocks for entry in trace)
    distinct = {name for names in name_blocks(trace) for name in names}
    largest = max(smallest, 2 + len(distinct))
    if count < 2 or largest == smallest:
        return [largest]
    ratio = (largest / smallest) ** (1 / (count - 1))
    return sorted({round(smallest * ratio**i) for i in range(count)})


def _replay(trace: Sequence[TraceRequest], policy: str, size: int) -> ReplayReport:
    return replay(trace, size, parts=parts_of(_policy(trace, policy, size)))


def _policy(trace: Sequence[TraceRequest], name: str, size: int) -> Policy:
    if name != BELADY:
        return find_policy(name)
    admitted = (names for entry, names in zip(trace, name_blocks(trace), strict=True) if entry.num_blocks < size)
    return belady(admitted)


_taken: list[TraceRequest] = []
"""In a process of the pool: the trace, sent once and not with every replay."""


def _take_trace(trace: Sequence[TraceRequest]) -> None:
    _taken[:] = trace


def _replay_taken(policy: str, size: int) -> ReplayReport:
    return _replay(_taken, policy, size)


def checked_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the sizes, smallest first, each once. Raises `ConfigError` for one below 2."""
    for size in sizes:
        if size < 2:
            raise ConfigError(f"a pool of {size} blocks: the null block takes one, so at least 2")
    return sorted(set(sizes))
