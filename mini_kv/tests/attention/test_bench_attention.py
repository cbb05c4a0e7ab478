"""The benchmark of attention: its rows are whole and do the work that they claim. Time is never asserted."""

import io
import json
from contextlib import redirect_stdout

import pytest
import torch

from mini_kv.dev.attention import cpu, gpu, gpu_peers
from mini_kv.dev.attention.__main__ import main
from mini_kv.dev.attention.shapes import Shape, decode, make_inputs, prefill
from mini_kv.dev.attention.timing import cpu_seconds
from mini_kv.dev.measure import Spread
from mini_kv.tests.attention.problem import relative_error

GIB = 2**30


@pytest.fixture
def one_thread():
    """The benchmark measures one thread; the other tests may have theirs back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_bytes_and_operations_of_the_headline():
    """32 requests of 4,096 tokens, 8 heads of keys of 128 numbers: 537 MB of keys and values in 16 bits."""
    shape = decode(32, 4096)
    assert shape.kv_bytes == 2 * 8 * 128 * 2 * 32 * 4096 == GIB // 2
    assert shape.bytes == GIB // 2 + 2 * 32 * 32 * 128 * 2 + 4 * 32 * 256
    assert shape.flops == 4 * 32 * 128 * 32 * 4096
    assert decode(32, 4096, cache_dtype=torch.int8).kv_bytes == GIB // 4 + 4 * 2 * 8 * 32 * 4096


def test_the_operations_of_a_prompt_leave_out_what_the_mask_hides():
    assert prefill(1, 3, num_heads=1, head_size=1).flops == 4 * (1 + 2 + 3)
    assert prefill(1, 2, 5, num_heads=1, head_size=1).flops == 4 * (6 + 7)


def test_the_inputs_lie_in_random_order_and_no_block_twice():
    inputs = make_inputs(Shape((1, 1), (40, 33), block_size=16), torch.device("cpu"), 0, with_contiguous=True)
    ids = inputs.metadata.block_tables[0].tolist() + inputs.metadata.block_tables[1].tolist()
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]
    assert ids != sorted(ids)
    assert inputs.keys is None


@pytest.mark.parametrize("shape", [decode(2, 33, dtype=torch.float32), prefill(1, 9, 20, dtype=torch.float32)])
def test_paged_and_contiguous_do_the_same_work(shape):
    """With the same numbers in both they give the same result: neither leaves anything out."""
    inputs = make_inputs(shape, torch.device("cpu"), 0, with_contiguous=True)
    assert inputs.keys is not None and inputs.values is not None
    for row, seq_len in enumerate(shape.seq_lens):
        blocks = inputs.metadata.block_tables[row].long()
        for plane, contiguous in enumerate((inputs.keys, inputs.values)):
            contiguous[row] = inputs.kv_cache.data[blocks, plane].flatten(0, 1)[:seq_len].transpose(0, 1)
    expected = cpu.contiguous(inputs)().clone()
    assert relative_error(cpu.paged(inputs), expected.double()) <= 1e-5


def test_a_ratio_below_its_target_reaches_it():
    row = cpu.Row("x", decode(1, 16), must=1.25, goal=1.1)
    for paged, verdict in ((1.0, "goal"), (1.2, "must"), (1.3, "missed")):
        ms = {"paged": Spread(paged, paged, paged), "contiguous": Spread(1.0, 1.0, 1.0)}
        assert cpu.Result(row, ms).verdict == verdict


@pytest.mark.slow
def test_the_command_prints_and_writes_the_rows(tmp_path, one_thread):
    out, path = io.StringIO(), tmp_path / "report.json"
    with redirect_stdout(out):
        rows = ["--rows", "fp32 64", "8 on 64"]
        status = main(["--device", "cpu", "--quick", "--repeats", "2", *rows, "--json", str(path)])
    report = json.loads(path.read_text(encoding="utf-8"))
    assert status == 0
    assert [row["row"] for row in report] == [
        "decode fp32 64 NHD",
        "decode fp32 64 HND",
        "prefill fp32 8 on 64",
        "prefill bf16 8 on 64",
    ]
    assert all(row["ms"]["paged"]["median"] > 0 and row["ratio"] > 0 for row in report)
    assert "decode fp32 64 NHD" in out.getvalue()


@pytest.mark.slow
def test_the_rows_of_a_gpu_are_checked_and_reported(monkeypatch):
    """With a CPU's clock and backend, on tiny sizes: what a GPU adds is its clock and its kernels."""
    monkeypatch.delitem(gpu_peers.PEERS, "flex")  # compiles for half a minute
    out = io.StringIO()
    names = ["decode B32 4k", "write", "ragged", "2k on 16k"]
    with redirect_stdout(out):
        report = gpu.run(0, quick=True, only=names, device="cpu", clock=cpu_seconds, backend="torch")
    rows = {row["row"]: row for row in report["rows"]}
    expected = [row.name for row in gpu.rows(quick=False) if any(name in row.name for name in names)]
    assert list(rows) == expected
    assert not [row for row in rows.values() if "failed" in row]
    assert rows["decode B32 4k"]["error"] < 2e-2
    assert rows["write 8k"]["error"] == 0.0
    assert 0 < rows["write 8k, int8"]["error"] < 0.02
    assert "flash" in rows["decode B32 4k"]["times_as_fast_as"]
    assert "of bfloat16" in out.getvalue()


def test_a_row_that_cannot_be_measured_does_not_cost_the_others():
    def broken(row, *_):
        raise RuntimeError("out of memory")

    with redirect_stdout(io.StringIO()):
        report = gpu.run(0, quick=True, only=["write"], device="cpu", clock=cpu_seconds, measure_row=broken)
    assert [row["failed"] for row in report["rows"]] == ["RuntimeError: out of memory"] * 3


def test_without_a_gpu_asking_for_one_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err


def test_tuning_times_the_plans_own_tiles_first_and_goes_on_where_some_do_not_fit():
    pytest.importorskip("triton", reason="the kernels need triton: make test, or pip install triton")
    from mini_kv.dev.attention.tune import tune

    def clock(calls):
        if clock_calls:
            raise RuntimeError("out of shared memory")
        clock_calls.append(calls)
        return cpu_seconds(calls)

    clock_calls: list[object] = []
    lines = tune("decode", decode(1, 16, dtype=torch.float32, num_heads=2, num_kv_heads=1), "cpu", clock, most=2)
    assert lines[0] == "decode" and len(lines) == 3
    assert lines[1].startswith("  tile 32   warps 4  stages 1") and lines[1].endswith(" us")
    assert lines[2].endswith("  RuntimeError")


@pytest.mark.slow
def test_the_engines_tokens_are_compared_with_the_cpus(capsys):
    from mini_kv.dev.attention import engine_on_gpu

    assert engine_on_gpu.main("cpu", ("torch", "plain")) == 0
    assert "plain on cpu: 4 of 4 texts of 64 tokens as on the CPU" in capsys.readouterr().out
