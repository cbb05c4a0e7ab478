"""A session file in the page, in a real browser: the examples, a file of one's own, a wrong file, a pool."""

import gzip
import importlib

import pytest

from mini_kv.tools.traces.sessions.session_formats import example_path

PHONE = {"width": 390, "height": 844, "has_touch": True}

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
    """Show an example, and return the page's first sentence about it."""
    page.get_by_role("button", name=f"Example: {name}").click()
    page.locator("kv-session .turn").first.wait_for(timeout=60_000)
    return page.locator("kv-session .sum").inner_text()


def rows(page):
    """Return the names of the turns, as a screen reader says them."""
    controls = page.locator("kv-session .turn")
    return [controls.nth(index).get_attribute("aria-label") for index in range(controls.count())]


def detail(page):
    return page.locator("kv-session .detail").inner_text()


def test_the_example_shows_each_turn_and_begins_with_the_first_break(show):
    page = show()
    assert example(page) == (
        "68.6 % of 76,980 prompt tokens were read from the provider's cache."
        " 15,980 were computed although an earlier turn had them."
    )
    assert rows(page)[9:13] == [
        "Turn 10 after 15 min, expired: 0 of 4,970 tokens read",
        "Turn 11: 4,970 of 5,210 tokens read",
        "Turn 12: 5,210 of 5,450 tokens read",
        "Turn 13 before-the-texts: 0 of 5,630 tokens read",
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
    assert example(page, "Codex").endswith("15,168 were computed although an earlier turn had them.")
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
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
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
    sent = []
    example(page)
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


def test_after_a_wrong_file_the_next_one_begins_at_its_first_break_and_the_caches_can_be_changed(show):
    page = show()
    example(page)
    page.get_by_role("button", name="Next").click()
    page.locator("kv-session input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello\n"}
    )
    page.locator("kv-session p[role=status]").get_by_text("notes.txt:1: ").wait_for()
    example(page)
    assert detail(page).startswith("Turn 10")
    page.get_by_role("combobox", name="Entries live").select_option("1 hour")
    page.locator("kv-session .detail").get_by_text("entries that live 1.0 h").wait_for()


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
    page.get_by_role("button", name="Compare policies").click()
    page.get_by_role("rowheader", name="Belady, who knows the future").wait_for(timeout=120_000)


def test_without_python_the_page_says_how_to_read_a_file_in_a_terminal(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html")
    assert "mini-kv session example" in page.locator("kv-session").inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(show, axe, dark):
    page = show(own=True, dark=dark, **PHONE)
    example(page)
    page.get_by_role("button", name="Draw the curve").click()
    page.locator("kv-session .curve svg").wait_for(timeout=60_000)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []
