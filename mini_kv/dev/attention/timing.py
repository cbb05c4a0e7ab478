"""Times a set of calls, each on tensors of its own, so that no call finds its tensors in a cache."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Calls = Sequence[Callable[[], object]]


def cpu_seconds(calls: Calls) -> float:
    """Return the CPU time of this thread per call. Set torch to one thread before."""
    start = time.thread_time()
    for call in calls:
        call()
    return (time.thread_time() - start) / len(calls)


def gpu_seconds(calls: Calls, replays: int = 7) -> float:
    """Return the GPU's time per call: the median of replays of one captured graph, without the cost of launches.

    Calls that cannot be captured are launched one by one, and their launches are part of the time.
    """
    for call in calls:  # compiles, and fills the allocator
        call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        run: Callable[[], object] = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()

        def run() -> None:
            for call in calls:
                call()

    run()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return float(statistics.median(times))
