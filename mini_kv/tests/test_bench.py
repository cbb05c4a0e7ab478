"""The benchmark: its report is whole, and each row does the work that it claims. Time is never asserted."""

import gc
import io
import json
import random
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise

import pytest

from mini_kv.core.request import Request
from mini_kv.dev.__main__ import all_rows, main, prepare
from mini_kv.dev.bookkeeping import QUICK, Figure, Target, tokens
from mini_kv.dev.measure import Spread, Stopwatch, spread, take_turns
from mini_kv.dev.peers import Cache, MiniKV, NoSuchWorkError, PeerError
from mini_kv.dev.report import Result, results

GROWTH = ["growth-pool", "growth-prompt", "growth-requests", "growth-groups"]
ROWS = ["churn", "hash", "request", "admit-held", "admit-revived", "admit-cold", "decode", "schedule", *GROWTH]


def run(*argv):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([*argv, "--peer", "none", "--quick"])
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "report.json"
    status, text, err = run("--json", str(path))
    assert (status, err) == (0, "")
    return text, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_report_has_every_row_and_figure_with_a_positive_median(report):
    _, found = report
    assert [row["name"] for row in found["rows"]] == ROWS
    promised = {row.name: [figure.name for figure in row.figures] for row in all_rows(QUICK, 0)}
    for row in found["rows"]:
        names = [figure["name"] for figure in row["figures"]]
        assert promised[row["name"]] == names
        for figure in row["figures"]:
            ours = figure["results"]["mini_kv"]
            assert 0 < ours["q1"] <= ours["median"] <= ours["q3"], (row["name"], figure["name"])
            assert figure["ratios"] == {}


@pytest.mark.slow
def test_the_text_says_how_it_was_made_and_has_all_rows_and_the_absent_peers(report):
    text, found = report
    header = found["header"]
    assert set(header) == {"machine", "python", "versions", "method", "seed", "command"}
    assert header["versions"].keys() == {"mini_kv"}
    shown = [header[field] for field in ("machine", "python", "command", "method")]
    shown += [row["title"] for row in found["rows"]]
    shown += [figure["name"] for row in found["rows"] for figure in row["figures"]]
    assert [words for words in shown if words not in text] == []
    (line,) = [line for line in text.splitlines() if line.startswith("absent")]
    assert all(peer in line for peer in ("vllm (pip install", "--nano-vllm CHECKOUT"))


@pytest.mark.slow
def test_a_target_against_an_absent_peer_is_open_and_one_in_absolute_terms_is_judged(report):
    _, found = report
    reached = {
        (row["name"], figure["name"]): [target["reached"] for target in figure["targets"]]
        for row in found["rows"]
        for figure in row["figures"]
    }
    assert reached["decode", "steps"] == [None]
    assert reached["admit-held", "requests"] == [None]
    assert reached["growth-prompt", "largest / smallest"] == []
    (pool,) = reached["growth-pool", "largest / smallest"]
    assert pool in {"goal", "must", "missed"}


def test_json_on_standard_output_is_nothing_but_json():
    status, out, err = run("--rows", "churn", "--json", "-")
    assert status == 0
    assert [row["name"] for row in json.loads(out)["rows"]] == ["churn"]
    assert "blocks/s" in err


def test_an_unknown_row_is_refused_with_the_names_of_the_rows():
    status, out, err = run("--rows", "chrun")
    assert (status, out) == (2, "")
    assert "chrun" in err
    assert all(name in err for name in ROWS)


def test_a_path_without_the_peers_checkout_is_refused(tmp_path):
    status, _, err = run("--nano-vllm", str(tmp_path))
    assert status == 2
    assert "not a checkout of nano-vllm" in err


# What the rows claim about their work.


class Recorder(MiniKV):
    """Our engine, and a list of what was asked of it."""

    def __init__(self):
        self.calls = []
        self.made = []

    def cache(self, num_blocks, block_size):
        inner = super().cache(num_blocks, block_size)
        self.made.append(inner)
        return Recorded(inner, self.calls)


class Recorded(Cache):
    def __init__(self, inner, calls):
        self.inner = inner
        self.calls = calls

    def submit(self, request_id, prompt):
        self.calls.append(("submit", len(prompt)))
        return self.inner.submit(request_id, prompt)

    def admit(self, request):
        hit = self.inner.admit(request)
        self.calls.append(("admit", request.num_tokens, hit, len(self.inner.kv.requests)))
        return hit

    def decode(self, requests, token_id):
        self.inner.decode(requests, token_id)
        self.calls.append(("decode", len(requests), self.inner.kv.block_pool.num_free_blocks))

    def start_scheduling(self, requests):
        step = self.inner.start_scheduling(requests)

        def recorded(token_id):
            step(token_id)
            self.calls.append(("step", {request.num_computed_tokens for request in requests}, len(requests)))

        return recorded

    def finish(self, request):
        self.inner.finish(request)
        self.calls.append(("finish",))

    def churn(self, num_blocks, times):
        self.inner.churn(num_blocks, times)
        self.calls.append(("churn", num_blocks, times))

    def scatter(self, rng):
        self.inner.scatter(rng)


def one_run(row_name):
    """Prepare the row, run it once, and return the recorder with the calls of that run."""
    recorder = Recorder()
    (row,) = [row for row in all_rows(QUICK, 0) if row.name == row_name]
    run_once = row.prepare(recorder)
    recorder.calls.clear()
    figures = run_once()
    assert set(figures) <= {figure.name for figure in row.figures}
    return recorder


@pytest.mark.parametrize(
    ("row", "shared", "held"),
    [("admit-held", 64, 4), ("admit-revived", 64, 1), ("admit-cold", 0, 4)],
)
def test_an_admission_row_hits_exactly_the_shared_tokens_and_holds_as_many_requests(row, shared, held):
    recorder = one_run(row)
    admits = [call for call in recorder.calls if call[0] == "admit"]
    assert admits == [("admit", 96, shared, held)] * QUICK.requests
    # Steady state: every idle block is cached, so each new one evicts.
    (cache,) = recorder.made
    idle = cache.kv.block_pool.free_block_queue.get_all_free_blocks()
    assert all(block.block_hash is not None for block in idle)


def test_a_decode_run_takes_every_16th_step_a_block_for_each_request_and_leaves_nothing_held():
    recorder = one_run("decode")
    free = [call[2] for call in recorder.calls if call[0] == "decode"]
    assert len(free) == QUICK.decode_steps
    # 40 tokens fill 2.5 blocks: the 9th step (token 49) opens the fourth block.
    taken = [before - after for before, after in pairwise(free)]
    assert [step for step, count in enumerate(taken, start=2) if count] == [9]
    assert taken[7] == QUICK.decode_running
    assert not recorder.made[0].kv.requests


def test_a_churn_run_moves_the_same_number_of_blocks_for_every_count():
    assert [call[1:] for call in one_run("churn").calls] == [(1, 160), (16, 10)]


def test_a_growth_run_revives_whole_prefixes_in_every_pool():
    recorder = one_run("growth-pool")
    admits = [call for call in recorder.calls if call[0] == "admit"]
    assert admits == [("admit", 129, 128, 1)] * (QUICK.growth_prefixes * len(QUICK.growth_pools))


def test_a_run_of_the_request_row_makes_a_checked_request_of_each_block_size():
    make_request = MiniKV().namer(16)
    assert make_request("a", list(range(40))) == 2
    with pytest.raises(ValueError, match="token"):
        make_request("b", [0, -1])


def test_a_run_of_the_schedule_row_computes_a_token_of_every_request_per_step():
    steps = [call for call in one_run("schedule").calls if call[0] == "step"]
    lengths = range(QUICK.decode_prompt_tokens + 1, QUICK.decode_prompt_tokens + QUICK.decode_steps + 1)
    assert steps == [("step", {length}, QUICK.decode_running) for length in lengths]


def test_a_run_of_growing_prompts_serves_one_of_each_length_and_finds_nothing():
    calls = [call for call in one_run("growth-prompt").calls if call[0] != "submit"]
    assert calls == [
        call for length in QUICK.growth_prompts for call in [("admit", length, 0, 1), ("finish",)]
    ]  # fmt: skip


def test_a_run_of_growing_batches_does_16_steps_of_each_and_of_the_largest_without_the_collector():
    sizes = [call[2] for call in one_run("growth-requests").calls if call[0] == "step"]
    assert sizes == [count for count in (*QUICK.growth_requests, QUICK.growth_requests[-1]) for _ in range(16)]
    assert gc.isenabled()


def test_growing_groups_are_one_of_full_attention_and_windows():
    caches = {count: MiniKV().hybrid_cache(100, 16, count, 48) for count in (1, 3)}
    kinds = {
        count: [type(group.kv_cache_spec).__name__ for group in vars(cache)["kv"].kv_cache_config.kv_cache_groups]
        for count, cache in caches.items()
    }
    window = "SlidingWindowSpec"
    assert kinds == {1: ["FullAttentionSpec"], 3: ["FullAttentionSpec", window, window]}


def test_a_peer_without_a_rows_work_is_left_out_of_it_and_a_line_says_why():
    class Unscheduled(Recorded):
        def start_scheduling(self, requests):
            raise NoSuchWorkError("its scheduler needs a GPU")

    class Other(MiniKV):
        name = "other"

        def cache(self, num_blocks, block_size):
            return Unscheduled(super().cache(num_blocks, block_size), [])

    (row,) = [row for row in all_rows(QUICK, 0) if row.name == "schedule"]
    runs, left_out = prepare(row, [MiniKV(), Other()])
    assert left_out == ["without other: its scheduler needs a GPU"]
    assert [set(result.spreads) for result in results(row, take_turns(runs, 1))] == [{"mini_kv"}] * 2


def test_other_work_than_the_rows_is_an_error_not_a_figure():
    class Hashless(Recorded):
        def submit(self, request_id, prompt):
            return Request(request_id, prompt)  # without block hashes nothing hits

    class Forgetful(MiniKV):
        def cache(self, num_blocks, block_size):
            return Hashless(super().cache(num_blocks, block_size), [])

    (row,) = [row for row in all_rows(QUICK, 0) if row.name == "admit-held"]
    with pytest.raises(PeerError, match="hits of admit-held"):
        row.prepare(Forgetful())


# Measuring.


def test_runs_take_turns_and_warm_ups_do_not_count():
    order = []

    def runner(name):
        def run_once():
            order.append(name)
            return {"figure": float(len(order))}

        return run_once

    values = take_turns({"A": runner("A"), "B": runner("B")}, repeats=3, warmups=1)
    assert order == ["A", "B", "B", "A", "A", "B", "B", "A"]
    assert values == {"A": {"figure": [4.0, 5.0, 8.0]}, "B": {"figure": [3.0, 6.0, 7.0]}}


def test_spread_is_median_and_quartiles():
    assert spread([5, 1, 3, 2, 4]) == Spread(3, 2, 4)
    assert spread([7.0]) == Spread(7, 7, 7)


def test_a_stopwatch_books_every_lap_on_its_phase():
    watch = Stopwatch()
    watch.start()
    watch.lap("a")
    watch.lap("b")
    watch.lap("a")
    assert list(watch.ns) == ["a", "b"]


def test_prompts_come_from_the_seed():
    assert tokens(random.Random(1), 9) == tokens(random.Random(1), 9) != tokens(random.Random(2), 9)


@pytest.mark.parametrize(
    ("more_is_better", "ours", "theirs", "ratio", "verdict"),
    [(True, 30, 10, 3, "goal"), (True, 10, 10, 1, "must"), (False, 10, 5, 0.5, "missed"), (False, 5, 15, 3, "goal")],
)
def test_a_ratio_above_one_means_that_ours_is_better_whatever_the_unit(more_is_better, ours, theirs, ratio, verdict):
    target = Target(1.0, 3.0, "vllm")
    figure = Figure("figure", "unit", more_is_better, (target,))
    result = Result(figure, {"mini_kv": spread([ours]), "vllm": spread([theirs])})
    assert result.ratios == {"vllm": ratio}
    assert result.verdict(target) == verdict
    assert result.verdict(Target(1.0, 3.0, "nano-vllm")) is None


@pytest.mark.parametrize("repeats", ["0", "32"])
def test_more_repeats_than_the_pools_last_for_are_refused_before_the_first_row(repeats, capsys):
    with pytest.raises(SystemExit):
        main(["--quick", "--peer", "none", "--repeats", repeats])
    assert f"argument --repeats: invalid choice: {repeats}" in capsys.readouterr().err
