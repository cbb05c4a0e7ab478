"""The instruments of the book: their numbers are the chapters', and what they draw is what the engine does."""

import math
from collections.abc import Callable
from functools import cache

import pytest

from mini_kv.course.lessons import instruments, instruments_of_steps
from mini_kv.course.lessons.curves import small_trace
from mini_kv.course.lessons.instrument import Instrument
from mini_kv.course.lessons.six_servers import six_servers
from mini_kv.course.lessons.timeline import Arrival, timeline
from mini_kv.tests.course.lessons.test_instrument import drawn, seen
from mini_kv.tools.planning.cost import H200, served
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.timed_replay import compare_strategies


def llama():
    """Return the model of *the kernel* and *why batches matter*."""
    return served("llama-3-8b", num_parameters=8.03e9, num_heads=32)


@cache
def strategies_as_dots():
    """Return the instrument as the chapter makes it: of the run that its table shows."""
    return instruments_of_steps.strategies_as_dots(small_trace(), num_blocks=60, ms_per_step=50)


@cache
def table_of_strategies():
    """Return the run of the chapter's table."""
    return compare_strategies(small_trace(), 60, ms_per_step=50)


ROWS = [
    {"tokens": 32, "no cache ms": 20.0, "contiguous ms": 9.0, "paged ms": 10.0},
    {"tokens": 512, "no cache ms": 400.0, "contiguous ms": 9.5, "paged ms": 10.5},
    {"tokens": 4096, "contiguous ms": 15.0, "paged ms": 15.0},
]
RATES = {
    "lru": {1000: 0.1, 5000: 0.2},
    "seen-twice": {1000: 0.15, 5000: 0.18},
    "belady": {1000: 0.2, 5000: 0.3},
}
ALL: dict[str, Callable[[], Instrument]] = {
    "recomputed": instruments.recomputed,
    "token_in_boxes": instruments.token_in_boxes,
    "rows_and_blocks": instruments.rows_and_blocks,
    "changed_token": instruments.changed_token,
    "forgery": instruments.forgery,
    "hits_of_a_pool": lambda: instruments.hits_of_a_pool(small_trace()),
    "tiles_over_blocks": instruments_of_steps.tiles_over_blocks,
    "roofline": lambda: instruments_of_steps.roofline(llama(), H200),
    "timetable": instruments_of_steps.timetable,
    "eight_clients": instruments_of_steps.eight_clients,
    "strategies_as_dots": strategies_as_dots,
    "policies_by_size": lambda: instruments.policies_by_size(RATES),
    "sliding_window": instruments.sliding_window,
    "holes": instruments.holes,
    "one_more_word": lambda: instruments_of_steps.one_more_word(ROWS),
    "bus": lambda: instruments_of_steps.bus(llama(), H200),
    "reload_or_recompute": lambda: instruments_of_steps.reload_or_recompute(llama(), H200),
    "six_servers": six_servers,
}


def says(instrument, *at):
    """Return the sentence below the picture at these positions."""
    return "".join(instrument.views[at].says)


@pytest.mark.parametrize("name", ALL)
def test_the_corners_are_as_they_were_drawn(name):
    instrument = ALL[name]()
    last = tuple(len(control.labels) - 1 for control in instrument.controls)
    for at in (tuple(0 for _ in last), instrument.start, last):
        # In the order of the page a mark that comes later is drawn later; the views' own order may differ.
        assert sorted(map(str, seen(instrument, at)[0])) == sorted(map(str, drawn(instrument.views[at])))


def test_sixty_four_words_are_2080_passes_or_64():
    triangle = instruments.recomputed()
    assert says(triangle, 63, 0) == "A text of 64 words: without a cache 2,080 passes; the last step alone makes 64."
    assert says(triangle, 63, 1).startswith("A text of 64 words: with a cache 64 passes; the last step makes 1, and")
    assert says(triangle, 2, 0).startswith("A text of 3 words: without a cache 6 passes")


def test_the_bytes_of_a_token_are_those_of_chapter_2():
    boxes = instruments.token_in_boxes()
    found = [says(boxes, model, 0).split(" bytes")[0].split()[-1] for model in range(5)]
    assert found == ["524,288", "327,680", "131,072", "57,344", "70,272"]
    assert says(boxes, 0, 1).split(" bytes")[0].endswith("262,144")


def test_in_rows_requests_wait_for_whom_blocks_have_room():
    memory = instruments.rows_and_blocks()
    waits = [says(memory, step).count(" 0 wait") for step in range(len(memory.controls[0].labels))]
    assert says(memory, 11) == (
        "Step 12. Rows: 6 run and 1 wait, 30 of 96 slots taken hold a token; 5 done."
        " Blocks: 7 run and 0 wait, 44 of 56 slots taken hold a token; 5 done."
    )
    assert waits[0] == waits[-1] == 2
    assert min(waits) == 1  # in rows alone


def test_every_name_behind_a_changed_token_is_another():
    chain = instruments.changed_token()
    same = [int(says(chain, at).split(": ")[1].split()[0]) for at in range(25)]
    assert same == [6] + [place // 4 for place in range(24)]


def test_two_forgeries_and_no_third():
    """Add 31 times what is taken from the next: the polynomial does not see it, SHA-256 does."""
    forged = instruments.forgery()
    taken = [at for at, view in forged.views.items() if "one hash under the polynomial" in "".join(view.says)]
    assert taken == [(31, 1), (62, 2)]
    assert all(forged.views[at].marks["1 sha tag"].values["class"] == "pink" for at in taken)


def test_a_pool_finds_what_the_replay_finds_and_never_more_than_the_ideal():
    pool = instruments.hits_of_a_pool(small_trace())
    labels = pool.controls[0].labels
    for at in (0, 6, 20):
        found = replay(small_trace(), int(labels[at])).hit_rate_of_prompt_tokens
        assert f"finds {found:.1%} (blue)" in says(pool, at)
    points = [float(says(pool, at).split("(dashed), ")[1].split()[0]) for at in range(len(labels))]
    assert min(points) == points[-1] == 0
    assert (points[0], max(points)) == (16.8, 17.0)


def test_a_tile_loads_what_its_mask_lets_through():
    tiles = instruments_of_steps.tiles_over_blocks()
    assert (
        says(tiles, 1, 2)
        == "Tile 2 of 2: positions 32 to 53, from block 7 and 3; 10 lanes are masked and load nothing."
    )
    assert says(tiles, 1, 0) == "Tile 2 of 7: positions 8 to 15, from block 5."


def test_company_climbs_the_roof_without_a_past_and_hardly_with_one():
    roof = instruments_of_steps.roofline(llama(), H200)
    alone, together = says(roof, 0, 0), says(roof, 7, 0)
    assert ("1.0 operations per byte" in alone, "128.0 operations per byte" in together) == (True, True)
    assert "15.6 operations per byte" in says(roof, 6, 6)
    assert "if their caches had room" in says(roof, 9, 8)


def test_a_smaller_budget_takes_more_steps():
    table = instruments_of_steps.timetable()
    steps = [int(says(table, at).split()[4]) for at in range(7)]
    assert steps == sorted(steps, reverse=True)
    assert all(
        int(says(table, at).split("at most ")[1].split()[0]) <= int(table.controls[0].labels[at]) for at in range(7)
    )


def test_eight_clients_compute_their_common_beginning_once_and_give_way_in_a_small_pool():
    clients = instruments_of_steps.eight_clients()
    found = "168 of 200 prompt tokens are found: the card is computed once."
    assert [says(clients, at) for at in (1, 4)] == [
        f"{found} The first words are there after steps 1 to 2, all is done after step 13. Preemptions: 0.",
        f"{found} The first words are there after steps 1 to 17, all is done after step 28. Preemptions: 5.",
    ]
    arrivals = [Arrival(1 if n == 1 else 2, str(n), [*range(24), 1000 + n], max_tokens=12) for n in range(1, 9)]
    table = timeline(arrivals, 11, 8)
    paths = {name: str(mark.values.get("d")) for name, mark in clients.views[4,].marks.items()}
    for doing in ("prompt", "answer", "again"):
        assert paths[doing].count("M") == sum(moment.doing == doing for row in table.values() for moment in row)
    assert paths["thrown out"].count("M") == 5


def test_each_strategy_is_a_dot_where_the_tables_run_has_it():
    """The scales are read off the picture's own lines: steps of waiting to the right, powers of ten upward."""
    dots, table = strategies_as_dots(), table_of_strategies()
    for longest in (0, 1):
        marks = {name: mark.values for name, mark in dots.views[6, longest].marks.items()}
        upward = "tokens computed twice, by factors of ten: "
        across = f"steps from arrival to admission, {'the longest wait' if longest else 'on average'}: "
        left, right = marks[f"{across}0"]["x"], marks[f"{across}1,000"]["x"]
        low, ten_times, none = (marks[upward + tokens]["y"] - 4 for tokens in ("1,000", "10,000", "0"))
        for name, report in table.items():
            wait = report.longest_wait if longest else report.mean_wait
            tokens = report.tokens_recomputed
            y = low + (ten_times - low) * (math.log10(tokens) - 3) if tokens else none
            dot = marks["watermark" if name == "watermark-10" else name]
            assert (dot["cx"], dot["cy"]) == pytest.approx((left + (right - left) * wait / 1000, y), abs=0.5), name


def test_a_watermark_moves_from_greedy_to_no_token_computed_twice():
    dots, table = strategies_as_dots(), table_of_strategies()
    greedy, marked = table["greedy"], table["watermark-10"]
    assert says(dots, 0, 0) == (
        f"No block must stay free when a request enters: {greedy.tokens_recomputed:,} tokens are computed twice, and"
        f" the mean wait is {greedy.mean_wait:,.0f} steps, as under greedy."
    )
    assert says(dots, 6, 1) == (
        "6 blocks must stay free when a request enters: no tokens are computed twice, and the longest wait is"
        f" {marked.longest_wait:,} steps, {marked.longest_wait - greedy.longest_wait:,} more than under greedy."
    )
    circles = [dots.views[at, 0].marks["watermark"].values for at in range(len(dots.controls[0].labels))]
    waits = [circle["cx"] for circle in circles]
    assert waits == sorted(waits)
    assert circles[0]["cy"] == dots.views[0, 0].marks["greedy"].values["cy"]


def test_both_kinds_go_on_from_one_place():
    """The chapter's own case is among them: block 8 is missing in full, 1 or 5 in the window."""
    two = instruments.holes()
    assert "both kinds together from token 128" in says(two, 9, 2)
    assert "both kinds together from token 80" in says(two, 9, 6)
    assert "both kinds together from token 160" in says(two, 0, 0)


def test_a_word_is_drawn_as_long_as_it_took():
    word = instruments_of_steps.one_more_word(ROWS)
    widths = [word.views[(at,)].marks["no cache ms bar"].values["width"] for at in range(3)]
    assert widths == [20, 400, 0.6]
    assert word.views[(2,)].marks["no cache ms name"].values["text"] == "without a cache: not measured"


def test_the_bus_is_the_chapter_s():
    """A step for sixty-four with 1,000 tokens each takes one and a half times as long as for one."""
    ride = instruments_of_steps.bus(llama(), H200)
    times = [float(says(ride, at, 1).split(": ")[1].split()[0]) for at in (0, 6)]
    assert times == [3.4, 5.1]
    assert "There is room for" in says(ride, 9, 4)


def test_softmax_in_tiles_is_a_softmax():
    pytest.importorskip("torch", reason="attention in tiles: pip install torch")
    tiles = instruments_of_steps.softmax_in_tiles()
    scores = [1, 2, 2, 4, 0.5, 1]  # as it starts
    largest, total = max(scores), sum(math.exp(score - 4) for score in scores)
    view = tiles.views[(2, 2, 4, 1)]
    assert view.marks["largest"].values["text"] == f"largest {largest}"
    assert view.marks["total"].values["text"] == f"total {total:.2f}"
    shares = [float(view.marks[f"share {tile}"].values["width"]) / 392 for tile in range(3)]
    exact = [sum(math.exp(score - 4) for score in scores[i : i + 2]) / total for i in (0, 2, 4)]
    assert shares == pytest.approx(exact, abs=2e-4)


def test_a_policy_is_compared_with_the_first_and_with_the_ceiling():
    policies = instruments.policies_by_size(RATES)
    assert says(policies, 1, 0) == (
        "seen-twice in 1,000 blocks (blue): 15.0% of the tokens are found, +5.0 points compared with lru."
        " No policy could find more than 20.0% (dashed)."
    )
    assert "18.0% of the tokens are found, -2.0 points compared with lru" in says(policies, 1, 1)
    assert "the policy to beat" in says(policies, 0, 1)


def test_a_window_of_12_holds_three_or_four_blocks_of_4():
    """As the formula of *windows and groups* says: four where it begins inside a block, three where it does not."""
    window = instruments.sliding_window()
    held = [int(says(window, last, 1).split("window of 12 holds ")[1].split(".")[0]) for last in range(48)]
    assert held == [1] * 4 + [2] * 4 + [3] * 4 + [4, 4, 4, 3] * 9
    assert says(window, 29, 1) == (
        "Token 29 is computed. Full attention holds 8 blocks, a window of 12 holds 4."
        " Of its table 4 fell out and are free for others (dashed)."
    )


def test_a_prefix_is_reloaded_from_the_crossover_on():
    """At 16 microseconds a token to compute and 2.6 to copy, a wait of 1 ms is earned back by 74 tokens."""
    prefix = instruments_of_steps.reload_or_recompute(llama(), H200)
    assert says(prefix, 0, 1, 2) == "Compute it again. From 74 tokens on, reloading is quicker."
    assert says(prefix, 0, 1, 3) == "Reload it. From 74 tokens on, reloading is quicker."
    assert says(prefix, 1, 0, 7) == (
        "Compute it again. Reloading is never quicker: a token takes 26 µs to copy, and 16 to compute."
    )
