"""Runs the cells of a table, here or elsewhere: one after the other, in processes, or on the workers of a Dask cluster.

A cell is a function of the shared data (a trace) and of one value (a policy and a size). It depends on nothing
else, so the table is the same on every machine. More than one process needs the extra sweep.
"""

import argparse
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeVar

from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra
from mini_kv.interrupts import ignored_by_children
from mini_kv.typed_numbers import whole_number

Shared = TypeVar("Shared")
Cell = TypeVar("Cell")
Result = TypeVar("Result")


def add_cell_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the place of the run: `jobs` and `dask` of `run_cells`."""
    group = parser.add_argument_group("several processes")
    about = "processes (default: one per core with the extra sweep)"
    group.add_argument("--jobs", type=whole_number(1, 1000), metavar="N", help=about)
    group.add_argument("--dask", metavar="ADDRESS", help="a Dask cluster that you trust: tcp://10.0.0.1:8786")


def run_cells(
    function: Callable[[Shared, Cell], Result],
    shared: Shared,
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    dask: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return `function(shared, cell)` of each cell, in order.

    Args:
        function: a function of a module, so that other processes can import it.
        shared: data that all cells read and none changes. It is sent once to each worker.
        cells: at least one.
        jobs: processes on this machine. `None`: one per core, or only this one without the extra sweep.
        dask: address of a scheduler with workers that have mini_kv installed. Then `jobs` is not used.
        on_progress: called after each cell with the number of cells done.

    Raises `ConfigError` if the extra is missing, or if the address does not answer.
    """
    if dask is None and (jobs == 1 or len(cells) == 1 or (jobs is None and not _has_extra())):
        return _run_here(function, shared, cells, on_progress)
    if not _has_extra():
        option = "--dask" if dask is not None else "--jobs above 1"
        raise ConfigError(f"{option} needs the extra sweep: {install_extra('sweep')}")
    packed = pickle.dumps(shared)
    with _processes(min(jobs or os.cpu_count() or 1, len(cells))) if dask is None else _cluster(dask, packed):
        return _run_elsewhere(function, packed, cells, on_progress)


def _has_extra() -> bool:
    return all(find_spec(package) is not None for package in ("joblib", "distributed"))


def _run_here(
    function: Callable[[Shared, Cell], Result],
    shared: Shared,
    cells: Sequence[Cell],
    on_progress: Callable[[int], None] | None,
) -> list[Result]:
    return _noted((function(shared, cell) for cell in cells), on_progress)


def _run_elsewhere(
    function: Callable[[Any, Cell], Result],
    packed: bytes,
    cells: Sequence[Cell],
    on_progress: Callable[[int], None] | None,
) -> list[Result]:
    """Return the results of the cells, run by the configured backend of joblib."""
    import joblib

    parallel = joblib.Parallel(return_as="generator", batch_size=1)
    return _noted(parallel(joblib.delayed(_run_packed)(function, packed, cell) for cell in cells), on_progress)


def _noted(finished: Iterable[Result], on_progress: Callable[[int], None] | None) -> list[Result]:
    """Return the results, and report how many there are after each."""
    results = []
    for result in finished:
        results.append(result)
        if on_progress is not None:
            on_progress(len(results))
    return results


def _run_packed(function: Callable[[Any, Cell], Result], packed: bytes, cell: Cell) -> Result:
    return function(_unpacked(packed), cell)


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Any:
    """Return the unpacked value. A worker unpacks it once, for the first of its cells."""
    return pickle.loads(packed)


@contextmanager
def _processes(number: int) -> Iterator[None]:
    """Let joblib run on processes of this machine, which end with the block."""
    from multiprocessing import resource_tracker

    import joblib
    from joblib.externals.loky import get_reusable_executor

    with joblib.parallel_config(backend="loky", n_jobs=number):
        try:
            if sys.platform != "win32":
                resource_tracker.ensure_running()  # now: before Python 3.12 its start ends the block of Ctrl-C
            with ignored_by_children():  # joblib starts a process with each of the first cells
                joblib.Parallel(batch_size=1)(joblib.delayed(int)() for _ in range(number))
            yield
        finally:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)


@contextmanager
def _cluster(address: str, packed: bytes) -> Iterator[None]:
    """Let joblib run on the workers of a Dask cluster."""
    import joblib
    from distributed import Client

    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dask {address}: no scheduler answers there ({error})") from None
    with client, joblib.parallel_config(backend="dask", client=client, n_jobs=-1, scatter=[packed]):
        yield
