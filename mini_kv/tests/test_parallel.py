"""Cells of a table give the same results here, in processes and on a Dask cluster, and leave no process behind."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra
from mini_kv.tools import traces
from mini_kv.tools.traces.parallel import run_cells

SMALL = str(Path(traces.__file__).with_name("small.jsonl"))
LEAGUE = ("replay", SMALL, "--num-blocks", "60", "100", "--policy", "lru", "sieve")
NEEDED = f"the extra sweep: {install_extra('sweep')}"


def sum_up_to(shared: Sequence[int], cell: int) -> int:
    """Return the sum of the first values."""
    return sum(shared[:cell])


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return what a command prints."""
    assert main(list(argv)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_serial_cells_report_their_progress_in_order() -> None:
    told: list[int] = []
    assert run_cells(sum_up_to, [1, 2, 3], [3, 0, 2], jobs=1, on_progress=told.append) == [6, 0, 3]
    assert told == [1, 2, 3]


@pytest.mark.slow
def test_processes_print_the_same_tables_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    """`replay` of two policies and of two strategies, and `curve`, each in two processes and in this one."""
    pytest.importorskip("joblib", reason=NEEDED)
    psutil = pytest.importorskip("psutil", reason="processes are counted: pip install psutil")
    for command in (
        LEAGUE,
        ("curve", SMALL, "--block-sizes", "512", "1024"),
        ("replay", SMALL, "--num-blocks", "600", "--admission", "greedy", "--admission", "jumping"),
    ):
        assert printed(capsys, *command, "--jobs", "2") == printed(capsys, *command, "--jobs", "1")
    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert [line for line in children if "loky" in line and "tracker" not in line] == []


@pytest.mark.slow
def test_a_dask_cluster_of_two_workers_prints_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    """To the letter; and both workers have ended with their cluster."""
    distributed = pytest.importorskip("distributed", reason=NEEDED)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        workers = [worker.process.pid for worker in cluster.workers.values()]
        table = printed(capsys, *LEAGUE, "--dask", cluster.scheduler_address)
    assert table == printed(capsys, *LEAGUE, "--jobs", "1")
    assert len(workers) == 2
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []


def test_curves_of_several_block_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """A row per size, each as the curve of that size alone has it; a trace of hashes is cut into multiples."""
    table = printed(capsys, "curve", SMALL, "--block-sizes", "2048", "512", "--jobs", "1")
    assert table.splitlines() == [
        "block size   at most   in blocks      knee   in blocks",
        "       512   66.18 %         187   45.28 %          67",
        "     2,048   52.42 %          44   35.35 %          18",
    ]
    figures = json.loads(printed(capsys, "curve", SMALL, "--block-sizes", "512", "--jobs", "1", "--json"))
    assert figures == [json.loads(printed(capsys, "curve", SMALL, "--json"))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-sizes", "100"), "a trace of hashes has blocks of 512 tokens: 100 is not a multiple"),
        (("--num-blocks", "60"), "--num-blocks needs one curve, but --block-sizes makes several"),
        (
            ("--kv-cache-dtype", "fp8"),
            "--gpu, --kv-cache-dtype, --tensor-parallel-size and --gdn-prefill-backend need --model",
        ),
    ],
)
def test_a_wrong_sweep_is_one_line(options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curve", SMALL, "--block-sizes", "512", *options]) == 2
    assert capsys.readouterr() == ("", f"mini-kv curve: {message}\n")


def test_without_the_extra_one_process_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is refused with the words to type."""
    monkeypatch.setitem(sys.modules, "joblib", None)  # as if it were not installed
    assert run_cells(sum_up_to, [1, 2], [1, 2]) == run_cells(sum_up_to, [1, 2], [1, 2], jobs=1) == [1, 3]
    for options, option in (({"jobs": 2}, "--jobs above 1"), ({"dask": "tcp://127.0.0.1:1"}, "--dask")):
        with pytest.raises(ConfigError) as caught:
            run_cells(sum_up_to, [1, 2], [1, 2], **options)
        assert str(caught.value) == f"{option} needs {NEEDED}"


@pytest.mark.slow
def test_an_address_where_no_scheduler_is(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and exit status 2."""
    pytest.importorskip("distributed", reason=NEEDED)
    address = "nonsense://127.0.0.1:9"
    assert main([*LEAGUE, "--dask", address]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mini-kv replay: --dask {address}: no scheduler answers there (")
    assert captured.err.count("\n") == 1
