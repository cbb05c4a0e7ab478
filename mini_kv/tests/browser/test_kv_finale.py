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
        page.get_by_role("button", name="Play the acts").wait_for()
        return page

    return shown


def solution(lab_id):
    return (ROOT / "solutions" / lab_id / "solution.py").read_text(encoding="utf-8")


def play(page):
    """Play to the end, and return what the page says then."""
    page.get_by_role("button", name="Play the acts").click()
    page.wait_for_function(
        "() => !document.querySelector('kv-finale').shadowRoot.querySelector('.primary').disabled", timeout=180_000
    )
    return page.locator("kv-finale p[role=status]").inner_text()


def verdicts(page):
    return page.locator("kv-finale .acts > details > summary").all_inner_texts()


def test_all_solutions_pass_the_acts_and_their_pool_is_drawn(show):
    page = show({lab_id: solution(lab_id) for lab_id in LABS})
    assert page.locator("kv-finale li", has_text=": begun in this browser").count() == len(LABS)
    said = play(page)
    assert said.startswith("All acts are right.")
    assert verdicts(page) == [f"Act {number}. {title}: right" for number, title in enumerate(TITLES, start=1)]
    assert int(said.removesuffix(" s.").rpartition(" ")[2]) <= IN_THE_PAGE_S * BUSY
    page.locator("kv-finale kv-story svg").first.wait_for()


TITLES = [
    "Prompts without a scheduler",
    "Dice instead of a model",
    "Dice, and layers with windows",
    "Dice, and drafts",
    "Dice, and an eviction policy",
    "Prompts, and a second home",
    "Forks and windows, and no cache",
    "A cache from an empty file",
]


def test_a_wrong_part_is_drawn_beside_the_engines_and_named(show):
    wrong = solution("lab-07").replace("max_cache_hit_length = ", "max_cache_hit_length = 0 * ")
    page = show({"lab-07": wrong, "lab-02": solution("lab-02")})
    assert play(page).startswith("An act differs.")
    assert verdicts(page)[:2] == [
        "Act 1. Prompts without a scheduler: differs",
        "Act 2. Dice instead of a model: differs",
    ]
    told = page.locator("kv-finale .acts > details[open] pre").nth(1).inner_text()
    assert "differs: the tokens that were found." in told
    assert "With lab-07 KVCacheManager from mini_kv the run is right: " in told


def test_an_endless_loop_is_ended_and_the_page_can_play_again(show):
    loop = solution("lab-02").replace(
        "    def popleft_n(self", "    def popleft_n(self, n):\n        while True: pass\n\n    def old(self"
    )
    page = show({"lab-02": loop})
    assert play(page).startswith("No answer for 10 seconds in Act 1, run 1")
    assert page.get_by_role("button", name="Play the acts").is_enabled()


def test_before_the_first_lab_no_act_is_played(show):
    page = show({})
    assert play(page).startswith("No part is yours yet. Begin with a lab.")
    assert verdicts(page) == [f"Act {number}. {title}: not played" for number, title in enumerate(TITLES, start=1)]


def test_without_python_the_page_says_how_to_play_it_in_a_terminal(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html")
    assert "mini-kv finale --labs starter" in page.locator("kv-finale").inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(show, axe, dark):
    page = show({"lab-02": solution("lab-02")}, dark=dark, **PHONE)
    play(page)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []
