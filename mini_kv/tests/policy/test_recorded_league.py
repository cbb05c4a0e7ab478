"""What *who should go* says of the real trace is what was recorded of it."""

import pytest
from mini_kv_book.places import ROOT
from mini_kv_book.recorded import hit_rates, league, load

from mini_kv.policy.catalogue import POLICIES
from mini_kv.tools.traces.league import BELADY

CHAPTER = " ".join((ROOT / "book/docs/chapters/who-should-go.md").read_text(encoding="utf-8").split())


def percent(policy: str, num_blocks: int, name: str = "league") -> float:
    """Return the recorded hits in percent of the prompt tokens."""
    return 100 * hit_rates(name)[policy][num_blocks]


@pytest.mark.prose
def test_every_figure_of_the_prose_stands_in_the_record() -> None:
    """Computed from the recorded hits, then looked for in the text."""
    prompt_tokens = {row["prompt_tokens"] for row in load("league")["rows"]}
    assert prompt_tokens == {144_793_823}
    lru, twice = percent("lru", 5000), percent("seen-twice", 5000)
    reversal = lru - percent("lru-head-first", 5000)
    for said in (
        "144.8 million tokens",
        f"More than a third of these tokens, {percent(BELADY, 50_000):.1f} %",
        f"5,000 blocks of 512, finds {lru:.1f} %",
        f"knowing the future is worth {percent(BELADY, 5000) - lru:.1f} points. The best policy gets {twice - lru:.1f}",
        f"At 20,000 blocks it finds {percent('lru', 20_000) - percent('seen-twice', 20_000):.1f} points less",
        f"From 5,000 to 20,000 blocks `lru` gains {percent('lru', 20_000) - lru:.0f} points",
        f"At 5,000 blocks the reversal is worth {reversal:.2f} points",
        f"{round(reversal / 100 * 144_793_823, -4):,.0f} of 144.8 million tokens",
    ):
        assert said in CHAPTER
    assert 1.18 < twice / lru < 1.22  # "a fifth more"


def test_the_table_has_every_policy_and_marks_the_best() -> None:
    """Eight policies and the ceiling, seven sizes, one bold cell each; the source below."""
    rows = league().splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:11]] == [*POLICIES, BELADY]
    assert sum(row.count("**") for row in rows) == 2 * 7
    assert "`mini-kv replay conversation.jsonl" in rows[-1]


AGENTS = " ".join((ROOT / "book/docs/chapters/agents.md").read_text(encoding="utf-8").split())


@pytest.mark.prose
def test_every_figure_of_the_agents_chapter_is_in_its_record() -> None:
    recorded = load("league-agents")
    lru, best = percent("lru", 16_000, "league-agents"), percent(BELADY, 16_000, "league-agents")
    gained = {policy: percent(policy, 16_000, "league-agents") - lru for policy in ("seen-twice", "expected-return")}
    for said in (
        f"`seen-twice` finds {gained['seen-twice']:.1f} points more in two columns",
        f"0.73) | {gained['expected-return']:.2f} (0.62 to 1.91)",
        f"{recorded['requests']:,} requests. Their prompts have 177.5 million tokens",
        f"At 16,000 blocks LRU finds {lru:.1f} % and Belady's policy {best:.1f} %",
        f"worth {best - lru:.1f} points, a third of all tokens that LRU computes",
    ):
        assert said in AGENTS


def test_on_the_agents_trace_only_the_policy_with_hints_is_clearly_better_than_lru() -> None:
    """The best possible policy finds a third of what LRU misses."""
    recorded, rates = load("league-agents"), hit_rates("league-agents")
    assert {row["prompt_tokens"] for row in recorded["rows"]} == {177_503_906}
    lru, best = percent("lru", 16_000, "league-agents"), percent(BELADY, 16_000, "league-agents")
    assert 0.31 < (best - lru) / (100 - lru) < 0.36
    for size, found in rates["lru"].items():
        assert all(rates[policy][size] < found + 0.002 for policy in POLICIES)
        assert found < rates["expected-return"][size] < rates[BELADY][size]
