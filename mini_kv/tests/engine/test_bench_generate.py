"""The benchmark of generation: its rows are whole and do the work that they claim. Time is never asserted."""

import importlib.util
import io
import json
from contextlib import redirect_stdout
from datetime import date
from types import SimpleNamespace

import pytest
import torch

from mini_kv.dev.generate import batch, cache, peers, prefix
from mini_kv.dev.generate.__main__ import main, measure
from mini_kv.dev.generate.setup import QUICK, SHAPES, Setup, clock_of, make_setup
from mini_kv.engine.contiguous import NoCache
from mini_kv.engine.model import TinyLlama


@pytest.fixture(autouse=True)
def one_thread():
    """The benchmark measures one thread; the other tests may have theirs back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def setup():
    return make_setup("tiny", "cpu", quick=True, repeats=1, seed=0)


def test_the_weights_and_the_kv_of_the_1b_shape_are_those_of_llama_3_2_1b():
    """1,235,814,400 weights, and 32 KiB per token: 16 layers, keys and values, 8 heads of 64 numbers in 16 bits."""
    with torch.device("meta"):
        model = TinyLlama(SHAPES["1b"]).to(torch.bfloat16)
    found = Setup("1b", model, QUICK, clock_of("cpu"), 1, 0)
    assert found.weight_bytes == 2 * 1_235_814_400
    assert found.kv_bytes_per_token == 16 * 2 * 8 * 64 * 2 == 32_768
    assert found.attention_flops_per_token == 16 * 4 * 32 * 64


def test_prompts_share_what_they_are_told_to_and_no_more(setup):
    one, two = setup.prompts(2, 24, shared=16)
    assert one[:16] == two[:16]
    assert one[16] != two[16]
    assert setup.prompts(1, 24, shared=16, seed=1)[0][:16] == one[:16]
    assert setup.prompts(1, 24, shared=16, seed=1)[0][16:] != one[16:]


@pytest.mark.slow
def test_all_three_pasts_say_the_same(setup):
    first, second = cache.run(setup)
    assert [first["tokens"], second["tokens"]] == [8, 24]
    assert first["same tokens"] and second["same tokens"]
    assert {name for name in first if name.endswith("ms")} == {"no cache ms", "contiguous ms", "paged ms"}
    assert "no cache ms" not in second  # longer than is measured without
    assert cache.lines([first, second])[2].split()[:2] == ["24", "-"]


@pytest.mark.slow
def test_what_is_found_in_the_cache_is_what_was_there(setup):
    """Two beginnings of 16 tokens, two prompts of 19 with each. Cold, the second of each pair finds a block."""
    rows = {row["prefix caching"]: row for row in prefix.run(setup)}
    assert [row["found"] for row in rows.values()] == [0.0, 2 * 16 / (4 * 19), 4 * 16 / (4 * 19)]
    assert all(row["same tokens"] for row in rows.values())
    assert "Running: 4 reqs, Waiting: 0 reqs" in rows["on, cold"]["log"]
    assert rows["on, cold"]["log"].endswith("Prefix cache hit rate: 42.1%")
    assert rows["off"]["log"].endswith("Prefix cache hit rate: 0.0%")


@pytest.mark.slow
def test_a_step_reads_the_weights_once_and_the_kv_of_every_request(setup):
    one, two = batch.run(setup, copy_bytes=2**20)
    assert [one["requests"], two["requests"]] == [1, 2]
    assert one["weight bytes per step"] == two["weight bytes per step"] == setup.weight_bytes
    assert one["KV bytes per step"] == one["context"] * setup.kv_bytes_per_token
    assert two["KV bytes per step"] == 2 * two["context"] * setup.kv_bytes_per_token
    # 8 tokens of prompt, the first token of the answer, and one round that is not counted, of 2 steps:
    # behind them the two steps that are measured.
    assert one["context"] == 8 + 2 + 1
    for row in (one, two):
        assert row["tokens/s"] == pytest.approx(row["requests"] / row["ms per step"] * 1e3)
        assert 0 < row["share of copy"] <= row["share of floor"] * 1.001


@pytest.mark.slow
def test_without_transformers_ours_is_measured_and_the_table_says_who_is_missing(setup, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    row = peers.run(setup)[0]
    assert list(row["seconds"]) == ["mini_kv"]
    assert peers.lines([row])[-1] == "transformers: the package transformers is not installed"


@pytest.mark.slow
def test_a_ratio_reaches_its_target_or_misses_it(setup):
    def peer(prompts):
        return 1.0, [[0]] * len(prompts)

    row = peers.run(setup, lambda _: ({peers.CONTINUOUS: peer}, {}))[0]
    assert row["must"] is None  # of tiny sizes nothing is asked
    row["must"] = peers.MUST
    for seconds, verdict in ((0.4, "2.50x"), (0.6, "1.67x")):
        row["times as fast as"][peers.CONTINUOUS] = 1.0 / seconds
        line = peers.lines([row])[3]
        assert verdict in line
        assert line.endswith("must 2x: reached" if seconds < 0.5 else "must 2x: missed")


@pytest.mark.slow
def test_a_peer_that_fails_says_why_and_costs_the_others_nothing(setup):
    def broken(prompts):
        raise RuntimeError("no room\nand much more text")

    row = peers.run(setup, lambda _: ({"one batch": broken}, {}))[0]
    assert list(row["seconds"]) == ["mini_kv"]
    assert peers.lines([row])[-1] == "one batch: RuntimeError: no room"


def test_where_two_answers_part_ways_the_gap_of_the_best_logits_is_told(setup):
    prompt = setup.prompts(1, 9)[0]
    text = torch.tensor([*prompt, 5])
    with torch.inference_mode():
        logits = setup.model.forward(text, torch.arange(10), NoCache(), torch.tensor([9]))[0]
    best, second = logits.topk(2).values.tolist()
    assert peers.widest_gap(setup, [prompt], [[5, 6, 7]], [[5, 8, 7]]) == best - second
    assert peers.widest_gap(setup, [prompt], [[5, 6]], [[5, 6]]) is None
    assert peers.widest_gap(setup, [prompt], [[5, 6]], [[5]]) == float("inf")


@pytest.mark.slow
def test_the_command_prints_and_writes_its_parts(tmp_path):
    out, path = io.StringIO(), tmp_path / "report.json"
    with redirect_stdout(out):
        options = ["--device", "cpu", "--quick", "--repeats", "1", "--parts", "prefix", "cache", "--shape", "tiny"]
        status = main([*options, "--json", str(path)])
    report = json.loads(path.read_text(encoding="utf-8"))
    assert status == 0
    assert [(part["part"], part["shape"], len(part["rows"])) for part in report["parts"]] == [
        ("prefix", "tiny", 3),
        ("cache", "tiny", 2),
    ]
    assert report["date"] == date.today().isoformat() and "torch" in report["header"]["versions"]
    for text in (prefix.TITLE, cache.TITLE, "log, on, warm: Avg prompt throughput", "load average before and after"):
        assert text in out.getvalue()


def test_a_part_that_runs_out_of_memory_says_so_and_raises_nothing(setup):
    """So that the parts after it are measured."""

    def broken(setup):
        raise RuntimeError("out of memory\nmore")

    out = io.StringIO()
    with redirect_stdout(out):
        found = measure("cache", SimpleNamespace(TITLE="more than there is", run=broken), setup)
    assert found == {"part": "cache", "title": "more than there is", "shape": setup.shape, "failed": "out of memory"}
    assert out.getvalue().endswith("failed: out of memory\n")


def test_without_a_gpu_asking_for_one_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
