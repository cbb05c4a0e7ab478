"""The finale in the page, in a real browser: with right parts, a wrong one, an endless loop, and none."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PHONE = {"width": 390, "height": 844, "has_touch": True}
LABS = [f"lab-{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 17)]
IN_THE_PAGE_S = 20
"""What a reader should wait at most, on two quiet cores."""
BUSY = 4
"""How many times longer it may take where tests run."""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with the element, made by the book's fence, and one without Python."""
    elements = importlib.import_module("mini_kv_book.elements")
    return write_site("The finale", index=elements.finale(megabytes), bare=elements.finale(None))


@pytest.fixture
def show(site, serve, open_page):
    """A function that opens the page in a browser that keeps these texts of labs."""
    address = serve(site)

    def shown(texts, **options):
        page = open_page(f"{address}/bare.html", **options)
        for lab_id, text in texts.items():
            page.evaluate(
                "([key, text]) => localStorage.setItem(key, text)", [f"kv-lab:{lab_id}", json.dumps({"text": text})]
            )
        page.goto(f"{address}/index.html")
        page.get_by_role("button", name="Play yours").wait_for()
        return page

    return shown


def solution(lab_id):
    return (ROOT / "solutions" / lab_id / "solution.py").read_text(encoding="utf-8")


def play(page):
    """Play to the end, and return what the page says then."""
    page.get_by_role("button", name="Play yours").click()
    page.wait_for_function(
        "() => !document.querySelector('kv-finale').shadowRoot.querySelector('.primary').disabled", timeout=180_000
    )
    return page.locator("kv-finale p[role=status]").inner_text()


def report(page):
    """Return the lines about every act."""
    fold = page.locator("kv-finale details", has=page.get_by_text("Every act, and the parts that played"))
    fold.locator("summary").click()
    return fold.locator("pre").inner_text().splitlines()


def ringed(page):
    """Return what differs on both sides: the values in a ring."""
    return page.locator("kv-finale mark").all_inner_texts()


def steps(page):
    """Return the step at which each of the two figures stands."""
    page.locator("kv-finale kv-story svg").first.wait_for()
    return page.locator("kv-finale kv-story").evaluate_all("figures => figures.map((figure) => figure.step)")


@pytest.mark.parametrize("size", [{"width": 1280}, PHONE])
def test_it_opens_on_a_wrong_queue_at_the_first_step_that_differs_without_python(site, serve, open_page, size):
    page = open_page(f"{serve(site)}/bare.html", **size)
    sentence = page.locator("kv-finale .sentence").inner_text()
    assert sentence == "Step 5 differs: the free queue. Place 3: block 11 in mini_kv, block 1 in the wrong one."
    assert (ringed(page), steps(page)) == (["11", "1"], [5, 5])
    link = page.get_by_role("link", name="Open lab 2 at append_n")
    assert link.get_attribute("href") == "../labs/lab-02/#def=append_n"
    assert page.get_by_role("button", name="Play yours").count() == 0
    page.get_by_role("button", name="Forward").first.click()
    assert steps(page) == [6, 6]
    moved = page.evaluate("() => performance.now()")
    assert moved < 1000 * BUSY, "the first move comes within a second of the page's load"


def test_other_wrong_parts_can_be_chosen_with_the_keyboard(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html")
    page.get_by_role("button", name="a hash").press("Enter")
    assert (ringed(page), steps(page)) == (["48", "33"], [57, 57])
    page.get_by_role("button", name="a scheduler").press("Enter")
    assert (ringed(page), steps(page)) == (["J", "G"], [3, 3])
    assert "lab-11 Scheduler" in page.locator("kv-finale section").first.inner_text()
    pressed = page.locator("kv-finale button[aria-pressed=true]").all_inner_texts()
    assert pressed == ["a scheduler"]


def test_all_solutions_pass_and_their_numbers_and_their_pool_are_shown(show):
    page = show({lab_id: solution(lab_id) for lab_id in LABS})
    page.get_by_role("button", name="your own parts").click()
    assert page.evaluate("document.querySelector('kv-finale').shadowRoot.activeElement.textContent") == "Play yours"
    assert page.locator("kv-finale .yours p a").count() == len(LABS)
    said = play(page)
    assert said.startswith("All 8 acts are right.")
    assert int(said.removesuffix(" s.").rpartition(" ")[2]) <= IN_THE_PAGE_S * BUSY
    rows = [row.split("\t")[:3] for row in page.locator("kv-finale tbody tr").all_inner_texts()]
    assert rows[:2] == [["yours", "81", "1037"], ["no prefix caching", "110", "2263"]]
    page.locator("kv-finale .yours kv-story svg").first.wait_for()
    acts = [line for line in report(page) if line.startswith("Act ")]
    assert len(acts) == 8 and all(": right, " in line for line in acts)


def test_a_wrong_part_is_drawn_beside_the_engines_and_its_line_can_be_opened(show):
    wrong = solution("lab-07").replace("max_cache_hit_length = ", "max_cache_hit_length = 0 * ")
    page = show({"lab-07": wrong, "lab-02": solution("lab-02")})
    assert play(page).startswith("An act differs: it is drawn above.")
    said = page.locator("kv-finale section").first.inner_text()
    assert said.startswith("Step 4 differs: the references. Block 6: 2 in mini_kv, 1 in yours.")
    assert "With lab-07 KVCacheManager from mini_kv the run is right: lab-07.py:" in said
    line = 1 + next(at for at, text in enumerate(wrong.splitlines()) if text.startswith("class KVCacheManager"))
    link = page.get_by_role("link", name=f"Open lab 7 at line {line}")
    assert link.get_attribute("href") == f"../labs/lab-07/#line={line}"
    assert (ringed(page), steps(page)) == (["2", "1"], [4, 4])
    assert report(page)[:2] == [
        "lab-02.py: FreeKVCacheBlockQueue",
        "lab-07.py: BlockHashToBlockMap, BlockPool, FullAttentionManager, KVCacheManager, PrefixCacheStats",
    ]


def test_a_line_that_raises_is_named_and_can_be_opened(show):
    wrong = solution("lab-02").replace("taken = []", "taken = [][0]")
    page = show({"lab-02": wrong})
    assert play(page).startswith("An act differs: it is drawn above.")
    line = 1 + next(at for at, text in enumerate(wrong.splitlines()) if "taken = [][0]" in text)
    assert f"at lab-02.py:{line} taken = [][0]" in page.locator("kv-finale section").first.inner_text()
    assert page.get_by_role("link", name=f"Open lab 2 at line {line}").count() == 1
    assert ringed(page) == []


def test_an_endless_loop_is_ended_and_the_page_can_play_again(show):
    loop = solution("lab-02").replace(
        "    def popleft_n(self", "    def popleft_n(self, n):\n        while True: pass\n\n    def old(self"
    )
    page = show({"lab-02": loop})
    assert play(page).startswith("No answer for 10 seconds in Act 1, run 1")
    assert page.get_by_role("button", name="Play yours").is_enabled()


def test_before_the_first_lab_no_act_is_played(show):
    page = show({})
    assert "No lab is begun in this browser." in page.locator("kv-finale .yours").inner_text()
    assert play(page).startswith("No part is yours yet. Begin with a lab.")


def test_without_scripts_the_page_says_what_differs_and_how_to_play_in_a_terminal(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html", java_script_enabled=False)
    told = page.locator("kv-finale").inner_text()
    assert told.startswith("Step 5 differs: the free queue.") and "mini-kv finale" in told


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(show, axe, dark):
    page = show({"lab-02": solution("lab-02")}, dark=dark, **PHONE)
    assert axe(page) == []
    play(page)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []
