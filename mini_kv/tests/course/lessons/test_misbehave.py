"""Five faults, each planted and found from counters and calls alone; a server that is well is accused of nothing."""

import pytest

from mini_kv.cli import main
from mini_kv.course.lessons.misbehave import (
    NUM_REQUESTS,
    SERVERS,
    ages,
    bars,
    causes,
    counters,
    debugged,
    explained,
    hits_per_request,
    memory_spent,
    second_uses,
    serve,
)

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


def accusations(name: str, seed: int) -> list[str]:
    """Return all that is said against a server: causes of `explain`, leaks, more keys than blocks, a stand-still."""
    case = serve(name, seed)
    found = causes(case)
    found += ["leak"] if case.leaks() else []
    found += ["stale-index"] if max(case.seen.num_keys) >= case.fault.num_blocks else []
    assert (case.seen.failed is not None) == (case.seen.num_answers < NUM_REQUESTS) == (name == "stale-index")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_fault_is_found_and_no_other_is_named(seed):
    """And nothing is said of the one that is well."""
    assert {name: accusations(name, seed) for name in SERVERS} == {
        "none": [],
        "salt-per-user": ["salt"],
        "timestamp": ["timestamp"],
        "leak": ["leak"],
        "storm": ["preemption-storm"],
        "stale-index": ["stale-index"],
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_debug_mode_names_the_two_faults_of_the_engine(seed):
    """After the first call that leaves something wrong, long before a request would notice."""
    assert debugged("leak", seed).startswith("I14 broken: no request is left, but these are held: block")
    assert debugged("stale-index", seed).startswith("I4 broken: the index finds block")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "salt-per-user", "timestamp"])
def test_debug_mode_has_nothing_to_say_of_faults_of_traffic(name):
    """The ledger is kept, whatever comes."""
    assert debugged(name) == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_decides(seed):
    """The counters that the chapter looks at, for each seed: they tell the faults apart before a cause is named."""
    well, salted, timed = (serve(name, seed) for name in ("none", "salt-per-user", "timestamp"))
    assert hits_per_request(well)["nothing"] == 1
    assert salted.num_users <= hits_per_request(salted)["nothing"] <= salted.num_users + 6
    assert hits_per_request(timed) == {
        "nothing": 1,
        "one block": NUM_REQUESTS - 1,
        "up to half": 0,
        "more than half": 0,
    }
    once = second_uses(timed)
    assert once["never came back"] > 10 * (once["found"] + once["computed again"])
    assert second_uses(well)["found"] > 10 * second_uses(well)["computed again"]
    assert int(memory_spent(timed)["never_found"].rstrip("%")) > 90 > int(memory_spent(well)["never_found"].rstrip("%"))
    leaking = serve("leak", seed)
    assert memory_spent(well)["no_key"] == "0%" != memory_spent(leaking)["no_key"]
    assert well.seen.usage[-1] == 0
    assert round(leaking.seen.usage[-1] * (leaking.fault.num_blocks - 1)) == sum(
        len(x.block_ids) for x in leaking.leaks()
    )
    assert {leak.call for leak in leaking.leaks()} == {"allocate_slots"}
    keyless = {block.block_id for block in leaking.seen.kv.block_pool.blocks if block.ref_cnt and not block.block_hash}
    assert keyless == {block_id for leak in leaking.leaks() for block_id in leak.block_ids}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_storm_is_mended_by_a_limit(seed):
    """With 16 at once a quarter as many requests are thrown out at most, and fewer tokens are computed."""
    storm, calm = serve("storm", seed), serve("storm", seed, max_num_seqs=16)
    assert storm.seen.scheduler.num_preemptions >= 30
    assert 4 * calm.seen.scheduler.num_preemptions <= storm.seen.scheduler.num_preemptions
    assert 1.1 * calm.seen.tokens_computed < storm.seen.tokens_computed


@pytest.mark.slow
def test_the_same_from_the_command_line(tmp_path, capsys):
    """`mini-kv trace make --fault` makes the traffic that the servers get, and `mini-kv explain` finds the fault."""
    for name in ("salt-per-user", "timestamp"):
        assert main(["trace", "make", "chat", "--num-requests", "120", "--fault", name]) == 0
        path = tmp_path / f"{name}.jsonl"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        assert main(["explain", str(path), "--num-blocks", "1200", "--concurrency", "16"]) == 0
        causes, _, _ = capsys.readouterr().out.partition("\nIn the source code of vLLM ")
        assert causes == explained(serve(name)) + "\n"


@pytest.mark.slow
def test_what_is_printed():
    """A column a server, a bar a power of two."""
    table = counters("none", "leak").splitlines()
    assert table[:2] == [f"{'':22}    none    leak", "pool, in blocks          1,200   1,200"]
    assert counters("none", "leak", letters="AB").splitlines()[1:] == table[1:]
    assert (
        bars({1: 1, 2: 0, 4: 4})
        == "below   1 s      1 ##########\nbelow   2 s      0\n" + f"below   4 s      4 {'#' * 40}"
    )
    assert sum(int(line.split()[3].replace(",", "")) for line in ages(serve("none")).splitlines()) == sum(
        life.ended is not None and life.block_hash is not None for life in serve("none").lives()
    )
