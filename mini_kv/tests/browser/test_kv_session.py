"""A session file in the page, in a real browser: the examples, a file of one's own, a wrong file, a pool."""

import gzip
import importlib

import pytest

from mini_kv.tools.traces.sessions.session_formats import example_path

PHONE = {"width": 390, "height": 844, "has_touch": True}
SCREENS = [PHONE, {"width": 1280, "height": 800}]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with the element, made by the book's fence, and one without Python."""
    elements = importlib.import_module("mini_kv_book.elements")
    return write_site("Your agent's session", index=elements.session(megabytes), bare=elements.session(None))


@pytest.fixture(scope="module")
def warm(site, open_warm):
    """A function that shows the page, in the window that these tests share."""
    return open_warm(site, "index.html")


@pytest.fixture
def show(warm, site, serve, open_page):
    """A function that shows the page, or opens another window."""

    def shown(*, own=False, **options):
        page = open_page(f"{serve(site)}/index.html", **options) if own else warm("index.html", **options)
        page.get_by_role("button", name="Example: Codex").wait_for()
        return page

    return shown


def example(page, name="Claude Code"):
    """Show an example, and return what the page says on top."""
    page.get_by_role("button", name=f"Example: {name}").click()
    return page.locator("kv-session .sum p").all_inner_texts()


def rows(page):
    """Return the names of the turns, as a screen reader says them."""
    controls = page.locator("kv-session .turn")
    return [controls.nth(index).get_attribute("aria-label") for index in range(controls.count())]


def detail(page):
    return page.locator("kv-session .detail").inner_text()


@pytest.mark.parametrize("screen", SCREENS)
def test_it_opens_on_the_example_without_python_and_the_arrow_keys_move_at_once(show, screen):
    page = show(own=True, **screen)
    assert page.locator("kv-session .sum strong").inner_text() == (
        "15,980 of 76,980 prompt tokens were paid twice, 5,780 of them in turn 15: another model, at token 0."
    )
    assert detail(page).startswith("Turn 15")
    page.locator("kv-session .turn[aria-current]").press("ArrowUp")
    assert detail(page).startswith("Turn 14")
    assert page.workers == []


def test_the_numbers_over_the_rows_are_where_the_bars_have_so_many_tokens(show):
    page = show()
    ends = page.locator("kv-session").evaluate(
        "element => { const at = (one) => one.getBoundingClientRect(), all = (name) =>"
        " [...element.shadowRoot.querySelectorAll(name)]; return [all('.scale span').map((one) => [one.textContent,"
        " at(one).left + at(one).width / 2]), all('.turn .blocks').map((one) => [at(one).left,"
        " at(one.lastElementChild).right])]; }"
    )
    (left, end), marks = ends[1][10], dict(ends[0][1:])  # turn 11: 5,210 tokens
    assert [*marks] == ["2,000", "4,000", "6,000"]
    for text, place in marks.items():
        assert place == pytest.approx(left + (end - left) * int(text.replace(",", "")) / 5_210, abs=1)


def test_an_example_that_is_chosen_while_python_reads_a_file_stays(show):
    page = show()
    page.locator("kv-session input[type=file]").set_input_files(example_path("codex"))
    assert example(page)[1].startswith("An example, made up: 18 turns of Claude Code.")
    page.get_by_role("button", name="Draw the curve").click()  # which Python answers after the file
    page.locator("kv-session .found").get_by_text("blocks of 16 tokens find").wait_for(timeout=60_000)
    assert page.locator("kv-session .turn").count() == 18


def test_the_example_shows_each_turn_and_begins_with_the_break_that_cost_most(show):
    page = show()
    assert example(page) == [
        "15,980 of 76,980 prompt tokens were paid twice, 5,780 of them in turn 15: another model, at token 0.",
        "An example, made up: 18 turns of Claude Code."
        " 68.6 % of the prompt tokens were read from the provider's cache.",
    ]
    assert detail(page).startswith("Turn 15")
    page.get_by_role("button", name="Turn 10", exact=True).click()
    assert rows(page)[9:13] == [
        "Turn 10 after 15 min, expired: 0 of 4,970 tokens read",
        "Turn 11: 4,970 of 5,210 tokens read",
        "Turn 12: 5,210 of 5,450 tokens read",
        "Turn 13 before the texts: 0 of 5,630 tokens read",
    ]
    told = "4,970 tokens asked. The provider read 0, computed 4,750 again, and 220 were new."
    assert told in detail(page) and "The entry expired in a pause, at token 0" in detail(page)
    lost = page.get_by_role("region", name="Where the tokens went").get_by_role("listitem").all_inner_texts()
    assert [line.split("\n")[0] for line in lost] == [
        "all prompt tokens",
        "less: new, or less than a block",
        "less: after a break, although the turn before had them",
        "began an earlier prompt",
        "hits if nothing were evicted",
        "less: fewer at the provider",
        "tokens that the provider read",
    ]
    causes = page.get_by_role("region", name="What broke").get_by_role("listitem").all_inner_texts()
    assert causes == [
        "Turn 10 The entry expired in a pause, at token 0: 4,750 tokens computed again",
        "Turn 13 Something before the texts changed, or the entry was lost, at token 0: 5,450 tokens computed again",
        "Turn 15 Another model, at token 0: 5,780 tokens computed again",
        "Turn 17 The history was compacted, at token 3,000",
    ]


def test_tokens_that_a_clock_broke_are_drawn_as_computed_again_and_not_as_new(show):
    """By the file the prompt before turn 13 had 7,435 tokens, and 3,200 were read."""
    page = show()
    assert example(page, "Codex")[0] == (
        "15,168 of 94,403 prompt tokens were paid twice, 6,835 of them in turn 11:"
        " the entry expired in a pause, at token 0."
    )
    page.get_by_role("button", name="Turn 13", exact=True).click()
    told = "7,735 tokens asked. The provider read 3,200, computed 4,235 again, and 300 were new."
    assert told in detail(page)
    bars = page.locator("kv-session .waterfall li").evaluate_all(
        "items => items.map((item) => [item.querySelector('i').className, item.querySelector('.value').textContent])"
    )
    assert bars[:3] == [["read", "94,403 (100.0 %)"], ["new", "8,963 (9.5 %)"], ["again", "7,424 (7.9 %)"]]


def test_the_arrow_keys_walk_through_the_turns(show):
    page = show()
    example(page)
    page.locator("kv-session .turn[aria-current]").focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    assert detail(page).startswith("Turn 13")
    page.keyboard.press("End")
    assert detail(page).startswith("Turn 18")
    in_view = "() => { const list = document.querySelector('kv-session').shadowRoot.querySelector('.rows');"
    in_view += " const box = list.querySelector('[aria-current]').getBoundingClientRect();"
    in_view += " return box.bottom <= list.getBoundingClientRect().bottom + 1; }"
    assert page.evaluate(in_view)
    page.keyboard.press("Home")
    assert detail(page).startswith("Turn 1 ")
    page.get_by_role("button", name="Turn 17", exact=True).click()
    assert detail(page).startswith("Turn 17")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_ones_own_is_read_and_nothing_is_sent(show, packed):
    page = show()
    content = example_path("codex").read_bytes()
    page.get_by_role("combobox", name="Entries live").select_option("1 hour")  # which loads Python
    page.locator("kv-session .detail").get_by_text("entries that live 1.0 h").wait_for(timeout=60_000)
    sent = []
    page.on("request", lambda request: sent.append(request.url))
    name = "rollout.jsonl.gz" if packed else "rollout.jsonl"
    data = gzip.compress(content) if packed else content
    page.locator("kv-session input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )
    page.wait_for_function(
        "() => document.querySelector('kv-session').shadowRoot.querySelector('.detail').textContent.includes('Turn')"
        " && !document.querySelector('kv-session').shadowRoot.querySelector('.rows').textContent.includes('subagent')"
    )
    assert sent == []


def test_a_small_packed_file_that_holds_gigabytes_is_not_unpacked(show):
    page = show()
    bomb = gzip.compress(bytes(200_000_001), compresslevel=1)
    page.locator("kv-session input[type=file]").set_input_files(
        {"name": "zeros.jsonl.gz", "mimeType": "application/gzip", "buffer": bomb}
    )
    page.get_by_text("zeros.jsonl.gz has more than 200 MB: give a part of it.").wait_for(timeout=60_000)


def test_a_wrong_file_ends_in_a_sentence_with_its_line(show):
    page = show()
    page.locator("kv-session input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello\n"}
    )
    status = page.locator("kv-session p[role=status]")
    status.get_by_text("notes.txt:1: ").wait_for(timeout=60_000)
    assert not page.locator("kv-session .result").is_visible()
    assert page.locator("kv-session [aria-pressed=true]").count() == 0


def test_after_a_wrong_file_the_next_one_begins_at_its_worst_break_and_the_caches_can_be_changed(show):
    page = show()
    example(page)
    page.get_by_role("button", name="Next").click()
    page.locator("kv-session input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello\n"}
    )
    page.locator("kv-session p[role=status]").get_by_text("notes.txt:1: ").wait_for(timeout=60_000)
    example(page)
    assert detail(page).startswith("Turn 15")
    page.get_by_role("combobox", name="Entries live").select_option("1 hour")
    page.locator("kv-session .detail").get_by_text("entries that live 1.0 h").wait_for(timeout=60_000)


def test_python_that_was_ended_reads_the_session_again(show):
    page = show()
    example(page)
    page.evaluate(
        "() => { const element = document.querySelector('kv-session'); const home = element.parentNode;"
        " element.remove(); home.append(element); }"
    )
    page.get_by_role("button", name="Draw the curve").click()
    page.locator("kv-session .found").get_by_text("blocks of 16 tokens find").wait_for(timeout=60_000)


def test_a_pool_for_several_sessions_finds_less_when_it_is_small(show):
    page = show()
    example(page)
    page.get_by_role("button", name="Draw the curve").click()
    found = page.locator("kv-session .found")
    found.get_by_text("blocks of 16 tokens find").wait_for(timeout=60_000)
    pool = page.get_by_role("slider", name="Blocks in the pool")
    pool.fill("0")
    assert found.inner_text().startswith("381 blocks of 16 tokens find 54.5 %")
    pool.fill("100")
    assert "find 81.6 % of what is asked. A pool without an end finds 81.6 %." in found.inner_text()
    assert page.locator("kv-session .curve text").all_text_contents()[-5:] == [
        *("500", "1,000", "2,000", "5,000"),
        "blocks in the pool",
    ]


def test_without_python_the_examples_are_drawn_and_the_page_says_how_to_read_a_file_in_a_terminal(
    site, serve, open_page
):
    page = open_page(f"{serve(site)}/bare.html")
    assert example(page, "Codex")[1].startswith("An example, made up: 16 turns of Codex.")
    assert page.locator("kv-session input").count() == 0
    assert "mini-kv session example" in page.locator("kv-session").inner_text()


def test_without_scripts_the_output_of_the_command_is_in_a_fold(site, serve, open_page):
    page = open_page(f"{serve(site)}/index.html", java_script_enabled=False)
    page.locator("kv-session summary").click()
    assert page.get_by_text("Turn 15, token 0, before the first text: model.").is_visible()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(show, axe, dark):
    page = show(own=True, dark=dark, **PHONE)
    page.get_by_role("button", name="Draw the curve").click()
    page.locator("kv-session .curve svg").wait_for(timeout=60_000)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []
