"""What *who should go* says of the real trace is what was recorded of it."""

from mini_kv_book.league import PATH, as_markdown, load, percent
from mini_kv_book.places import ROOT

from mini_kv.policy.catalogue import POLICIES
from mini_kv.traces.league import BELADY

CHAPTER = " ".join((ROOT / "book/docs/chapters/18-who-should-go.md").read_text(encoding="utf-8").split())


def test_every_figure_of_the_prose_stands_in_the_record() -> None:
    """Computed from the recorded hits, then looked for in the text."""
    prompt_tokens = {row["prompt_tokens"] for row in load()["rows"]}
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
    rows = as_markdown().splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:11]] == [*POLICIES, BELADY]
    assert sum(row.count("**") for row in rows) == 2 * 7
    assert "`mini-kv league conversation.jsonl" in rows[-1]
    assert PATH.name == "league.json"
