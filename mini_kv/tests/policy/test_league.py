"""The league of policies: every number is a replay's, however many processes share the work."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigError
from mini_kv.policy.catalogue import POLICIES, find_policy
from mini_kv.policy.eviction import parts_of
from mini_kv.tools import traces
from mini_kv.tools.traces.commands.league_table import format_table
from mini_kv.tools.traces.commands.replay_command import add_arguments
from mini_kv.tools.traces.commands.replay_command import run as run_replay
from mini_kv.tools.traces.league import BELADY, Interval, SessionHits, Standing, compare, default_sizes, league
from mini_kv.tools.traces.readers.mooncake import read_trace
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.synthetic import generate

SMALL = str(Path(traces.__file__).with_name("small.jsonl"))


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run_replay(parser.parse_args(argv))


def hits(standings: list[Standing]) -> list[tuple[str, int, int, int]]:
    return [(s.policy, s.num_blocks, s.report.hit_tokens, s.report.evictions) for s in standings]


@pytest.mark.slow
def test_each_standing_is_a_replay_with_that_policy_and_that_pool() -> None:
    """In this process and in two others: the same numbers, in the order that was asked for."""
    trace = read_trace(SMALL)
    told: list[int] = []
    here = league(trace, [50, 100], ["lru", "sieve"], jobs=1, on_progress=told.append)
    assert told == [1, 2, 3, 4]
    assert [(s.policy, s.num_blocks) for s in here] == [("lru", 50), ("lru", 100), ("sieve", 50), ("sieve", 100)]
    for standing in here:
        alone = replay(trace, standing.num_blocks, parts=parts_of(find_policy(standing.policy)))
        assert replace(standing.report, seconds=0.0) == replace(alone, seconds=0.0)
    assert hits(league(trace, [50, 100], ["lru", "sieve"], jobs=2)) == hits(here)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_policy_beats_the_one_that_knows_the_future(seed: int) -> None:
    """On generated traces at every size; and with room for all, every policy hits the same."""
    trace = generate(seed, 60)
    sizes = default_sizes(trace, 5)
    standings = league(trace, sizes, [*POLICIES, BELADY], jobs=1)
    most = {s.num_blocks: s.report.hit_tokens for s in standings if s.policy == BELADY}
    assert all(s.report.hit_tokens <= most[s.num_blocks] for s in standings)
    assert len({s.report.hit_tokens for s in standings if s.num_blocks == sizes[-1]}) == 1
    assert any(s.report.hit_tokens < most[s.num_blocks] for s in standings)


def test_the_table_marks_the_best_that_does_not_know_the_future(capsys: pytest.CaptureFixture[str]) -> None:
    """A row per policy in the order asked for, a column per size, Belady last and unmarked."""
    assert run(SMALL, "--num-blocks", "100", "50", "--policy", "lru", "leaf-first", "--jobs", "1") == 0
    table = capsys.readouterr().out
    assert table == format_table(league(read_trace(SMALL), [50, 100], ["lru", "leaf-first", BELADY], jobs=1)) + "\n"
    header, lru, leaf_first, ceiling = (line.split() for line in table.splitlines()[2:6])
    assert header == ["50", "100"]
    assert [row[0] for row in (lru, leaf_first, ceiling)] == ["lru", "leaf-first", "belady"]
    for column in (1, 2):
        rates = [float(row[column].rstrip("*")) for row in (lru, leaf_first)]
        marked = [row[column].endswith("*") for row in (lru, leaf_first)]
        assert marked == [rate == max(rates) for rate in rates]
        assert not ceiling[column].endswith("*")


def test_json_holds_every_report(capsys: pytest.CaptureFixture[str]) -> None:
    """The reports have the names that `mini-kv replay --json` has, and the policy beside them."""
    assert run(SMALL, "--num-blocks", "100", "--policy", "lru", "fifo", "--jobs", "1", "--json") == 0
    _, fifo, ceiling = json.loads(capsys.readouterr().out)
    assert (fifo["policy"], ceiling["policy"]) == ("fifo", "belady")
    assert fifo["hit_tokens"] == replay(read_trace(SMALL), 100, parts=parts_of(POLICIES["fifo"])).hit_tokens


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((SMALL, "--policy", "lur"), "mini-kv replay: there is no policy 'lur'; did you mean lru?"),
        (
            (SMALL, "--num-blocks", "1", "9"),
            "mini-kv replay: a pool of 1 blocks: the null block takes one, so at least 2",
        ),
        (
            (SMALL, "--policy", "all", "--rate", "recorded"),
            "mini-kv replay: --rate, --admission and --concurrency are for one policy and one pool",
        ),
        (("none.jsonl", "--policy", "all"), "mini-kv replay: none.jsonl: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, nothing on standard output."""
    assert run(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1


def test_a_file_that_raises_is_told_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy's own mistake is not hidden behind ours: its traceback is passed on; a syntax error is a line."""
    file = tmp_path / "mine.py"
    file.write_text("class Mine(\n")
    assert run(SMALL, "--policy", f"{file}:Mine") == 2
    assert "was never closed" in capsys.readouterr().err
    file.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        run(SMALL, "--policy", f"{file}:Mine")


def test_sizes_go_from_the_longest_prompt_to_all() -> None:
    """In equal ratios; both ends are hit exactly."""
    trace = read_trace(SMALL)
    sizes = default_sizes(trace)
    assert (sizes[0], len(sizes)) == (2 + max(entry.num_blocks for entry in trace), 8)
    assert sizes[-1] == 2 + replay(trace).distinct_blocks
    with pytest.raises(ConfigError):
        league(trace, [100], ["none"])


def test_an_interval_is_drawn_from_the_sessions() -> None:
    """Two sessions gain 10 and 30 points. A draw of two has one of them twice in half of the cases."""
    base = {"a": SessionHits(100, 50), "b": SessionHits(100, 50)}
    policy = {"a": SessionHits(100, 60), "b": SessionHits(100, 80)}
    assert compare(policy, base, 0) == Interval(20.0, 10.0, 30.0)
    assert compare(base, base, 0) == Interval(0.0, 0.0, 0.0)
    same = {"a": SessionHits(100, 60), "b": SessionHits(300, 180)}
    assert compare(same, {name: SessionHits(n, n // 2) for name, (n, _) in same.items()}, 7) == Interval(10, 10, 10)


def test_the_league_compares_with_the_first_policy_by_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three sessions take turns in a pool for two: LRU finds nothing. A trace without sessions has no intervals."""
    path = tmp_path / "agents.jsonl"
    asked = [{"t": 10 * turn, "in": 33, "out": 1, "hash_ids": [1, 2]} for turn in range(4)]
    sessions = [{"id": name, "block_size": 16, "requests": asked} for name in "abc"]
    path.write_text("\n".join(map(json.dumps, sessions)), encoding="utf-8")
    assert run(str(path), "--num-blocks", "6", "9", "--policy", "lru", "--jobs", "1", "--intervals", "0") == 0
    told = capsys.readouterr().out.splitlines()[8:]
    assert told[0] == "points more than lru, and the 95 % interval over 3 sessions, seed 0"
    assert told[2].split() == ["6", "9"]
    assert told[3].split() == ["belady", "+40.40", "(+24.24", "to", "+48.48)", "+0.00", "(+0.00", "to", "+0.00)"]
    assert run(SMALL, "--num-blocks", "50", "--intervals", "0") == 2
    assert capsys.readouterr().err.startswith("mini-kv replay: --intervals needs a trace with several sessions")
