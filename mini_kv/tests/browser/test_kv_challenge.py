"""The challenge in the page, in a real browser: empty, solved, with a fault, in JavaScript, wrong, endless."""

import importlib
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PHONE = {"width": 390, "height": 844, "has_touch": True}
TO_RED_S = 60
"""What a reader should wait at most from opening the page to the first red square, with the loading of Python."""
SIGNS = """() => {
  const squares = document.querySelector("kv-challenge").shadowRoot.querySelectorAll(".square");
  return [...squares].map((one) => one.dataset.sign).join("");
}"""
FIRST_GREEN = """
let settings, tables;
function answer({ call, request, ...more }) {
  if (call === "start") [settings, tables] = [more.settings, {}];
  if (call === "new" || call === "free") tables[request] = [[]];
  const [table] = tables[request] ?? [];
  const slots = call === "allocate" ? more.computed + more.tokens : 0;
  while (table && table.length * settings.block_size < slots) table.push(used() + 1);
  const ids = Array.from({ length: settings.num_blocks }, (_, id) => id);
  const result = { lookup: { hit: 0 }, allocate: { granted: true } }[call] ?? {};
  return { result, tables, free: ids.slice(used() + 1), hashes: ids.map(() => null) };
}
const used = () => Object.values(tables).flat(2).length;
"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with the element, made by the book's fence, and one without Python. The contract is a list below."""
    elements = importlib.import_module("mini_kv_book.elements")
    contract = "".join(f'<li id="sentence-{number}">Sentence {number}</li>' for number in range(1, 21))
    return write_site(
        "The challenge", index=f"{elements.challenge(megabytes)}<ol>{contract}</ol>", bare=elements.challenge(None)
    )


@pytest.fixture(scope="module")
def show(site, open_warm):
    """A function that shows the page, with these texts of this browser, and returns it, the editor ready."""
    warm = open_warm(site, "index.html")

    def shown(**options):
        page = warm("index.html", **options)
        page.wait_for_selector("kv-challenge[ready]")
        return page

    return shown


def solution():
    return (ROOT / "solutions/lab-17/solution.py").read_text(encoding="utf-8")


def write(page, text):
    """Put a text in the editor, as by pasting it."""
    page.locator(".cm-content").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)


def play(page, text=None):
    """Run the text to its end, and return the signs of all squares."""
    if text is not None:
        write(page, text)
    page.keyboard.press("ControlOrMeta+Enter")
    page.wait_for_selector("kv-challenge:not([running])", timeout=180_000)
    return page.evaluate(SIGNS)


def status(page):
    return page.locator("kv-challenge .status").inner_text()


def below(page):
    return page.locator("kv-challenge .first").inner_text()


def test_the_empty_file_has_hollow_squares(show):
    page = show()
    assert page.locator("kv-challenge .row b").all_inner_texts() == TOPICS
    before = page.evaluate(SIGNS)
    page.locator(".cm-content").focus()
    assert play(page) == before
    assert {*before} == {"."}
    assert status(page).startswith(f"0 of {len(before)} squares are green.")
    assert "Not green yet: not built yet." in below(page)


TOPICS = ["cold", "hits", "sharing", "freeing", "eviction", "refusal", "caching-off", "salts", "windows", "groups"]


def test_the_solution_makes_all_squares_green_and_the_labs_page_has_its_text(show):
    page = show()
    assert set(play(page, solution())) == {"#"}
    assert "All six topics are green" in below(page)
    assert "mini-kv verify --challenge --to equal.svg answer.py" in below(page)
    kept = page.evaluate("() => JSON.parse(localStorage.getItem('kv-lab:lab-17')).text")
    assert kept == solution()


def test_a_fault_is_a_red_square_and_leads_to_its_sentence(show):
    page = show()
    signs = play(page, wrong())
    assert "x" in signs and "#" in signs
    link = page.locator("kv-challenge .breaks a")
    assert (link.inner_text(), link.get_attribute("href")) == ("sentence 13", "#sentence-13")
    assert "free queue" in page.locator("kv-challenge .first pre").inner_text()
    link.click()
    assert page.evaluate("() => location.hash") == "#sentence-13"


def wrong():
    """Return the solution with one change: all blocks go to the end of the free queue."""
    right = "self.free = useless + self.free + [block for block in freed if block not in useless]"
    assert right in solution()
    return solution().replace(right, "self.free = self.free + freed")


def test_a_square_says_its_name(show):
    page = show()
    square = page.locator("kv-challenge .square").first
    square.focus()
    page.keyboard.press("ArrowRight")
    second = page.evaluate("() => document.querySelector('kv-challenge').shadowRoot.activeElement.title")
    assert page.locator("kv-challenge .named").inner_text() == f"{second}: not equal yet"


def test_javascript_gets_its_first_green_square_and_both_texts_are_kept(show):
    page = show()
    write(page, "# my Python")
    page.get_by_role("button", name="JavaScript").click()
    page.wait_for_selector("kv-challenge[ready=javascript]")
    assert play(page, FIRST_GREEN)[0] == "#"
    page.get_by_role("button", name="Python").click()
    page.wait_for_selector("kv-challenge[ready=python]")
    assert page.locator(".cm-content").inner_text().strip() == "# my Python"


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("JavaScript", "function answer(message) {\n  return {;\n}", "SyntaxError: Unexpected token ';'"),
        ("JavaScript", "function answer(message) {\n  return message.no.way;\n}", "(line 2)"),
        (
            "Python",
            "def answer(message):\n    return {",
            "SyntaxError: '{' was never closed (line 2)",
        ),
        ("Python", "def answer(message):\n    return message['no']", "KeyError: 'no' (line 2)"),
        ("Python", "import sys\nsys.exit()", "SystemExit (line 2)"),
        ("Python", "reply = 1", "the file has no function `answer`"),
    ],
)
def test_an_error_of_the_readers_file_is_said_with_its_line(show, language, text, said):
    page = show()
    page.get_by_role("button", name=language).click()
    page.wait_for_selector(f"kv-challenge[ready={language.lower()}]")
    assert "#" not in play(page, text)
    assert said in below(page)


def test_an_endless_loop_is_ended_and_the_page_can_run_again(show):
    page = show()
    play(page, "def answer(message):\n    while True: pass")
    assert status(page).startswith("No answer for 10 seconds in the square ")
    assert set(play(page, solution())) == {"#"}


def test_the_empty_file_comes_back_after_a_question_and_the_text_before_it(show):
    page = show()
    write(page, "# mine")
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Put it back").click()
    assert "lab-17: a KV cache from an empty file" in page.locator(".cm-content").inner_text()
    page.get_by_role("button", name="Bring the text before back").click()
    assert page.locator(".cm-content").inner_text().strip() == "# mine"


def test_from_opening_the_page_to_the_first_red_square(site, serve, open_page, record_property):
    began = time.monotonic()
    page = open_page(f"{serve(site)}/index.html")
    page.wait_for_selector("kv-challenge[ready]")
    write(page, "def answer(message):\n    return {'result': {}, 'tables': {}, 'free': [], 'hashes': []}")
    page.keyboard.press("ControlOrMeta+Enter")
    page.locator("kv-challenge .square[data-sign=x]").first.wait_for(timeout=TO_RED_S * 4000)
    record_property("seconds", round(time.monotonic() - began, 1))
    print("first red square after", time.monotonic() - began)


def test_without_python_the_page_says_how_to_play_it_in_a_terminal(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html")
    assert "mini-kv verify --challenge answer.py" in page.locator("kv-challenge").inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(show, axe, dark):
    page = show(dark=dark, width=390, height=844)
    play(page, wrong())
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []
