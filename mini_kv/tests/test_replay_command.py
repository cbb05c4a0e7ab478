"""`mini-kv replay`: what it prints and where, its exit status, and nothing half done."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.policy.admission_strategies import strategies
from mini_kv.progress_line import ProgressLine
from mini_kv.tools import traces
from mini_kv.tools.traces.commands.replay_command import add_arguments
from mini_kv.tools.traces.commands.replay_command import run as run_replay
from mini_kv.tools.traces.league import league
from mini_kv.tools.traces.readers.mooncake import read_trace

STARTER_OF_LAB_13 = Path(__file__).parents[1] / "course" / "labkit" / "starters" / "lab-13.txt"
LFU_OF_LAB_13 = Path(__file__).parents[2] / "solutions" / "lab-13" / "solution.py"
SMALL = str(Path(traces.__file__).with_name("small.jsonl"))


def run(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run_replay(parser.parse_args(argv))


class Terminal(io.StringIO):
    """A stream that says it is a terminal; optionally Ctrl-C comes in the middle of a write."""

    def __init__(self, interrupted_at=None):
        super().__init__()
        self.writes = 0
        self.interrupted_at = interrupted_at

    def isatty(self):
        return True

    def write(self, text):
        self.writes += 1
        super().write(text)
        if self.writes == self.interrupted_at:
            super().write("^C")  # what a terminal shows of it
            raise KeyboardInterrupt
        return len(text)

    def line(self):
        """What a person sees in the last line."""
        cells: list[str] = []
        column = 0
        for character in self.getvalue():
            if character == "\r":
                column = 0
            else:
                cells[column : column + 1] = [character]
                column += 1
        return "".join(cells).rstrip()


def test_the_report(capsys):
    assert run(SMALL, "--num-blocks", "100", "--concurrency", "4") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[:-1] == [
        "200 requests, 585 different full blocks of 512 tokens",
        "pool of 100 blocks (one is the null block), at most 4 running at once",
        "",
        "hit rate by tokens    51.33 %  529,408 of 1,031,342 prompt tokens were in the cache",
        "hit rate by blocks    53.88 %  1,034 of 1,919 full blocks of prompts (partial ones are never cached)",
        "found nothing              22  requests: 0 of their 87,820 tokens",
        "found less than 1/4        30  requests: 31,232 of their 227,285 tokens",
        "found 1/4 to 3/4           87  requests: 202,240 of their 373,674 tokens",
        "found 3/4 or more          61  requests: 295,936 of their 342,563 tokens",
        "refused requests            0  are larger than the pool: 0 prompt tokens, left out above",
        "evictions                 790  cached blocks whose memory was used again",
        "peak usage            73.74 %  73 blocks were held at once",
    ]
    assert lines[-1].startswith("time ")


def test_without_a_size_the_pool_is_unbounded(capsys):
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    assert "pool of 2,118 blocks" in out
    assert "hit rate by tokens    66.18 %" in out


def test_rates_of_nothing_are_a_dash(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}')
    assert run(str(trace), "--num-blocks", "2") == 0
    out = capsys.readouterr().out
    assert "hit rate by tokens          -  0 of 0 prompt tokens" in out
    assert "refused requests            1  are larger than the pool: 600 prompt tokens" in out


def test_the_keys_of_the_json_report_are_kept(capsys):
    assert run(SMALL, "--num-blocks", "100", "--concurrency", "4", "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report.pop("seconds") > 0
    assert report == {
        "num_blocks": 100,
        "block_size": 512,
        "concurrency": 4,
        "requests": 200,
        "requests_refused": 0,
        "found": [
            {"share": "nothing", "requests": 22, "prompt_tokens": 87_820, "hit_tokens": 0},
            {"share": "less than 1/4", "requests": 30, "prompt_tokens": 227_285, "hit_tokens": 31_232},
            {"share": "1/4 to 3/4", "requests": 87, "prompt_tokens": 373_674, "hit_tokens": 202_240},
            {"share": "3/4 or more", "requests": 61, "prompt_tokens": 342_563, "hit_tokens": 295_936},
        ],
        "prompt_tokens": 1_031_342,
        "prompt_tokens_refused": 0,
        "hit_tokens": 529_408,
        "hit_rate_of_prompt_tokens": 529_408 / 1_031_342,
        "full_blocks": 1919,
        "hit_blocks": 1034,
        "hit_rate_of_full_blocks": 1034 / 1919,
        "distinct_blocks": 585,
        "evictions": 790,
        "peak_held_blocks": 73,
        "peak_usage": 73 / 99,
    }


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nothing_but_the_report_is_printed_when_stderr_is_no_terminal(capsys, options):
    assert run(SMALL, *options) == 0
    assert capsys.readouterr().err == ""


def test_the_progress_bar_is_gone_when_the_report_comes(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(SMALL) == 0
    assert " 50 % [##########          ]" in terminal.getvalue()
    assert "100 % [####################]" in terminal.getvalue()
    assert terminal.line() == ""
    assert "\n" not in terminal.getvalue()


def test_the_progress_bar_is_drawn_only_when_it_changes():
    terminal = Terminal()
    bar = ProgressLine(terminal)
    bar.total = 1000
    for done in range(1001):
        bar.show(done)
    assert terminal.writes == 101
    assert terminal.line() == "100 % [####################]"


def test_ctrl_c_leaves_a_clean_line_and_says_130(monkeypatch, capsys):
    terminal = Terminal(interrupted_at=30)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["replay", SMALL]) == 130
    assert terminal.line() == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--num-blocks", "1"], "num_blocks is 1: the null block takes one, so it must be at least 2"),
        (["--concurrency", "0"], "concurrency is 0, it must be at least 1"),
        (["--policy", "mine.py:Hybrid"], "--policy mine.py:Hybrid: there is no file mine.py"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_2(capsys, options, problem):
    assert run(SMALL, *options) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"mini-kv replay: {problem}\n")


def test_another_policy_finds_what_the_league_says(capsys):
    """By name, and as a class in a file; the default is the engine's own."""
    hits = {}
    for policy in ("lru", "seen-twice", f"{LFU_OF_LAB_13}:LFU"):
        assert run(SMALL, "--num-blocks", "80", "--policy", policy, "--json") == 0
        hits[policy] = json.loads(capsys.readouterr().out)["hit_tokens"]
    trace = read_trace(SMALL)
    names = ["lru", "seen-twice", "lfu"]
    standings = league(trace, [80], names, jobs=1)
    assert list(hits.values()) == [standing.report.hit_tokens for standing in standings]
    assert run(SMALL, "--num-blocks", "80", "--json") == 0
    assert json.loads(capsys.readouterr().out)["hit_tokens"] == hits["lru"]


@pytest.mark.parametrize("others", [[], ["lru"]])
def test_a_policy_that_is_not_written_yet_is_one_line_and_exit_2(capsys, tmp_path, others):
    """The starter of lab-13, as the course gives it: the file, the class and the method that is missing."""
    starter = tmp_path / "starter.py"
    starter.write_text(STARTER_OF_LAB_13.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["replay", SMALL, "--num-blocks", "80", "--policy", *others, f"{starter}:Hybrid"]) == 2
    missing = "lab-13 Hybrid.victim: for LRU: in which order do the blocks wait?"
    expected = f"mini-kv replay: {starter}:Hybrid is not finished: {missing}\n"
    assert capsys.readouterr() == ("", expected)


def test_a_missing_file_is_one_line_and_exit_2(capsys):
    assert run("nowhere.jsonl") == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "mini-kv replay: nowhere.jsonl: No such file or directory\n")


def test_a_wrong_last_line_is_found_before_anything_is_replayed(tmp_path, monkeypatch, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(Path(SMALL).read_bytes() + b"{}\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(str(trace)) == 2
    assert terminal.getvalue() == f"mini-kv replay: {trace}:201: timestamp is missing\n"
    assert capsys.readouterr().out == ""


def test_with_a_clock_a_line_per_strategy(capsys, tmp_path):
    """`--rate` and `--admission` bring it; `all` are those with names, and one's own comes from a file."""
    two = tmp_path / "two.jsonl"
    two.write_text("".join(Path(SMALL).read_text().splitlines(keepends=True)[:2]))
    mine = tmp_path / "mine.py"
    mine.write_text(
        "class Door:\n    may_jump = False\n    def reserved_blocks(self, block_pool, request):\n        return 0\n"
    )
    own = f"{mine}:Door"
    assert run(str(two), "--num-blocks", "9", "--admission", "all", "--admission", own, "--admission", "greedy") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "pool of 9 blocks (one is the null block); 0 requests are larger"
    assert [line[:20].strip() for line in lines[4:]] == [*strategies(), "mine.py:Door"]
    assert lines[4][20:] == lines[-1][20:], "a door that is always open is greedy"


@pytest.mark.slow
def test_a_clock_s_report_as_json(capsys):
    """What stands in the table of *who runs next*, and what is held at once: a load."""
    assert run(SMALL, "--num-blocks", "60", "--ms-per-step", "50", "--rate", "recorded", "--json") == 0
    report = json.loads(capsys.readouterr().out)["greedy"]
    assert (report["steps"], report["preemptions"], report["longest_wait"]) == (11_031, 17, 3276)
    assert (report["peak_held_blocks"], report["peak_running"]) == (59, 13)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--rate", "fast"], "--rate is 'fast': requests per second, or recorded"),
        (["--rate", "-1"], "rate is -1.0: it must be above 0 requests per second"),
        (["--admission", "gredy"], "there is no admission 'gredy'; did you mean greedy? there are: greedy, jumping"),
        (["--admission", "none.py:Door"], "--admission none.py:Door: there is no file none.py"),
        (["--admission", f"{LFU_OF_LAB_13}:LFU"], "LFU lacks may_jump, reserved_blocks"),
        (["--rate", "1", "--ms-per-step", "0"], "ms_per_step is 0, it must be at least 1"),
        (["--rate", "1", "--concurrency", "0"], "max_num_seqs is 0, it must be at least 1"),
    ],
)
def test_a_clock_that_cannot_be_is_one_line_and_exit_2(capsys, options, problem):
    assert run(SMALL, *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problem in captured.err
    assert captured.err.count("\n") == 1
