"""What *who should go* says of the real trace is what was recorded of it."""

from inline_snapshot import snapshot
from mini_kv_book.recorded import hit_rates, league, load

from mini_kv.policy.catalogue import POLICIES
from mini_kv.tools.traces.league import BELADY


def percent(policy: str, num_blocks: int, name: str = "league") -> float:
    """Return the recorded hits in percent of the prompt tokens."""
    return 100 * hit_rates(name)[policy][num_blocks]


def test_what_sentences_of_two_chapters_tell_is_recorded() -> None:
    """In *Who should go* and *Agents*. If this fails, they tell old figures."""
    lru, twice = percent("lru", 5000), percent("seen-twice", 5000)
    reversal = lru - percent("lru-head-first", 5000)
    assert {row["prompt_tokens"] for row in load("league")["rows"]} == {144_793_823}
    assert [f"{percent(BELADY, size):.1f}" for size in (5000, 50_000)] == snapshot(["34.6", "37.3"])
    assert [f"{lru:.1f}", f"{percent(BELADY, 5000) - lru:.1f}", f"{twice - lru:.1f}"] == snapshot(
        ["12.1", "22.5", "2.5"]
    )
    assert f"{percent('lru', 20_000) - percent('seen-twice', 20_000):.1f}" == snapshot("4.8")
    assert f"{percent('lru', 20_000) - lru:.0f}" == snapshot("18")
    assert [f"{reversal:.2f}", f"{round(reversal / 100 * 144_793_823, -4):,.0f}"] == snapshot(["0.13", "190,000"])
    assert 1.18 < twice / lru < 1.22  # "a fifth more"
    agents = {name: percent(name, 16_000, "league-agents") for name in ("lru", "seen-twice", "expected-return", BELADY)}
    assert {name: f"{found - agents['lru']:.2f}" for name, found in agents.items()} == snapshot(
        {"lru": "0.00", "seen-twice": "0.09", "expected-return": "1.15", "belady": "7.48"}
    )
    assert [f"{load('league-agents')['requests']:,}", f"{agents['lru']:.1f}", f"{agents[BELADY]:.1f}"] == snapshot(
        ["1,501", "78.3", "85.8"]
    )


def test_the_table_has_every_policy_and_marks_the_best() -> None:
    """Eight policies and the ceiling, seven sizes, one bold cell each; the source below."""
    rows = league().splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:11]] == [*POLICIES, BELADY]
    assert sum(row.count("**") for row in rows) == 2 * 7
    assert "`mini-kv replay conversation.jsonl" in rows[-1]


def test_on_the_agents_trace_only_the_policy_with_hints_is_clearly_better_than_lru() -> None:
    """The best possible policy finds a third of what LRU misses."""
    recorded, rates = load("league-agents"), hit_rates("league-agents")
    assert {row["prompt_tokens"] for row in recorded["rows"]} == {177_503_906}
    lru, best = percent("lru", 16_000, "league-agents"), percent(BELADY, 16_000, "league-agents")
    assert 0.31 < (best - lru) / (100 - lru) < 0.36
    for size, found in rates["lru"].items():
        assert all(rates[policy][size] < found + 0.002 for policy in POLICIES)
        assert found < rates["expected-return"][size] < rates[BELADY][size]
