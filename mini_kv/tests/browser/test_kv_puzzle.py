"""The puzzles in a real browser: the grid, each solved by its calls, with keys, on a phone, and without scripts."""

import importlib

import pytest

from mini_kv.story.puzzle import load_puzzle
from mini_kv.tests.test_puzzles import SOLUTIONS

PHONE = {"width": 320, "height": 700, "has_touch": True}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with all puzzles, made by the book's fence, and one without Python."""
    elements = importlib.import_module("mini_kv_book.elements")
    puzzles = [load_puzzle(name) for name in SOLUTIONS]

    def content(size):
        return elements.puzzle_grid(puzzles) + "".join(elements.puzzle_level(puzzle, size) for puzzle in puzzles)

    return write_site("Puzzles", index=content(megabytes), bare=content(None))


@pytest.fixture
def show(site, serve, open_page):
    """A function that opens the page at a puzzle, and returns the page and the puzzle."""
    address = serve(site)

    def shown(name="make-room", **options):
        page = open_page(f"{address}/index.html#{name}", **options)
        puzzle = page.locator(f"kv-puzzle[name={name}]")
        puzzle.locator("kv-story svg").first.wait_for()
        return page, puzzle

    return shown


def wait(page):
    """Wait until the engine has answered."""
    page.wait_for_selector("kv-puzzle[running]", state="detached", timeout=60_000)


def call(page, puzzle, *names):
    """Press these buttons, one after the other."""
    for name in names:
        puzzle.get_by_role("button", name=name, exact=True).click()
        wait(page)


def go_to(page, name):
    """Choose a puzzle in the grid, and return it."""
    page.locator(f".kv-grid a[href='#{name}']").click()
    puzzle = page.locator(f"kv-puzzle[name={name}]")
    puzzle.locator("kv-story svg").first.wait_for()
    return puzzle


def shown_levels(page):
    """Return the headings of the puzzles that are shown."""
    return page.locator(".kv-level h2:visible").all_inner_texts()


def wait_for_levels(page, names):
    """Wait until these headings are shown. The page hears of a new address after the click that chose it."""
    heading = "[...document.querySelectorAll('.kv-level h2')].filter((each) => each.checkVisibility())"
    page.wait_for_function(f"(names) => {heading}.map((each) => each.innerText).join() === names.join()", arg=names)
    assert shown_levels(page) == names


def marks(page):
    """Return what the cards of the grid say of the reader's progress."""
    return page.locator(".kv-grid strong").all_inner_texts()


def said(puzzle):
    return puzzle.locator(".status").inner_text()


def cells(puzzle, request):
    """Return each block of a request's strip: its words, and what is said of its block."""
    row = puzzle.get_by_role("group", name=f"Request {request}", exact=True)
    return [cell.locator(":scope > :not(:empty)").all_inner_texts() for cell in row.locator("li").all()]


def why(puzzle):
    return puzzle.locator(".why").inner_text()


def lines(puzzle):
    """Return what the engine said last."""
    return puzzle.locator("kv-story .cap .lines li").all_inner_texts()


def test_each_puzzle_is_solved_by_its_calls_in_one_python(show):
    """With the engine's verdict, and what the puzzle was about told only then."""
    page, _ = show()
    for name, calls in SOLUTIONS.items():
        puzzle = go_to(page, name)
        assert puzzle.locator(".ending").is_hidden()
        call(page, puzzle, *calls)
        number = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
        assert (name, said(puzzle)) == (name, f"Solved in {number}.")
        assert puzzle.locator(".ending").inner_text() == " ".join(load_puzzle(name).scenario.ending.split())
    assert len(page.workers) == 1


def test_the_engine_answers_in_its_words_and_draws(show):
    page, puzzle = show()
    assert puzzle.locator("kv-story .title").inner_text() == "6 blocks of 4 tokens"
    assert lines(puzzle) == ["free A: freed 3..1"]  # what had happened
    call(page, puzzle, "prefill B")
    assert lines(puzzle) == ["lookup B: hit 0", "allocate B: allocated 4 5, cached 4 5"]
    assert said(puzzle) == "1 of 2 calls made."
    puzzle.locator("kv-story .text summary").click()
    drawing = puzzle.locator("kv-story pre", has_text="free").inner_text()
    assert drawing.splitlines() == ["B     [4x1#] [5x1#]", "free  next-> 6 3# 2# 1# <-last"]


def test_a_call_that_is_not_possible_does_not_count(show):
    page, puzzle = show()
    call(page, puzzle, "free C")
    never = "this request 'C' holds no blocks: never admitted, or freed already"
    assert said(puzzle) == f"free C is not possible now ({never}); it does not count."
    call(page, puzzle, "prefill B", "prefill C")
    assert said(puzzle) == "Solved in 2 calls."


def test_one_can_go_back_and_start_again(show):
    """What misses the goal is said; then no further call is made until one is taken back."""
    page, puzzle = show()
    call(page, puzzle, "prefill A", "free B", "prefill B")
    assert said(puzzle) == (
        "Not reached, and 2 calls made. Evicted blocks, by number: none. The goal needs 3. "
        "Take one back, or start again."
    )
    assert why(puzzle) == (
        "B found 0 of its 8 words: block 1 of its prompt is not cached. The rule: a hit is a chain from the "
        "first block; the index holds full blocks only, computed or promised. B took blocks 5 6 from the front of the "
        "free queue."
    )
    assert lines(puzzle)[0].startswith("lookup B")
    call(page, puzzle, "Back")
    assert said(puzzle) == "1 of 2 calls made."
    assert lines(puzzle)[0].startswith("lookup A")
    call(page, puzzle, "Start again")
    assert (said(puzzle), why(puzzle), lines(puzzle)) == ("0 of 2 calls made.", "", ["free A: freed 3..1"])
    call(page, puzzle, "prefill B", "prefill C")
    assert said(puzzle) == "Solved in 2 calls."


def test_it_is_played_with_keys(show):
    """The buttons' numbers make the calls, Backspace takes one back, and the focus stays."""
    page, puzzle = show()
    puzzle.get_by_role("button", name="prefill A").focus()
    for key in ("1", "Backspace", "2", "3"):
        page.keyboard.press(key)
        wait(page)
    assert said(puzzle) == "Solved in 2 calls."
    assert puzzle.evaluate("puzzle => puzzle.shadowRoot.activeElement.textContent") == "prefill A1"


def test_a_puzzle_opened_from_the_grid_is_played_with_keys(show):
    """The heading has the focus then. A number with Ctrl, or in a field of the page, makes no call."""
    page, _ = show("twelve-of-sixteen")
    puzzle = go_to(page, "make-room")
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    page.locator("main > input").press("1")
    page.locator("main > input").evaluate("field => field.blur()")
    page.keyboard.press("Control+1")
    for key in ("2", "3"):
        page.keyboard.press(key)
        wait(page)
    assert said(puzzle) == "Solved in 2 calls."


def test_the_hint_is_the_terminals(show):
    _, puzzle = show()
    puzzle.get_by_role("button", name="Hint").click()
    assert puzzle.locator(".told").inner_text() == load_puzzle("make-room").hint


def test_the_grid_remembers_what_was_solved_and_says_what_comes_next(show):
    page, puzzle = show()
    assert marks(page) == ["\u2192 next", *[""] * 9]
    call(page, puzzle, "prefill B", "prefill C")
    progress = ["\u2192 next", "\u2713 solved in 2 calls", *[""] * 8]
    assert marks(page) == progress
    page.reload()
    puzzle.locator("kv-story svg").first.wait_for()
    assert marks(page) == progress
    call(page, go_to(page, "twelve-of-sixteen"), "lookup D")
    assert marks(page) == ["\u2713 solved in 1 call", "\u2713 solved in 2 calls", "\u2192 next", *[""] * 7]


def test_a_window_without_storage_plays_and_says_what_was_solved(show):
    page, puzzle = show()
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('no storage') } }")
    call(page, puzzle, "prefill B", "prefill C")
    assert marks(page) == ["\u2192 next", "\u2713 solved in 2 calls", *[""] * 8]


def test_the_grid_has_a_picture_of_each_puzzle_and_what_it_takes(show):
    page, _ = show()
    cards = page.locator(".kv-grid li").all()
    assert cards[0].locator("a, span").all_inner_texts() == ["1. Twelve of sixteen", "2 minutes, 1 call"]
    assert cards[9].locator("a, span").all_inner_texts() == ["10. Save the head", "5 minutes, 5 calls"]
    drawn = {
        card.locator("svg").evaluate("svg => [...svg.querySelectorAll('g')].map(g => g.outerHTML).join()")
        for card in cards
    }
    assert len(drawn) == len(cards) == 10


def test_the_grid_opens_one_puzzle_at_its_address(show):
    """Its heading has the focus. The ways on lead to the next puzzle and to the grid, Back to the last one."""
    page, _ = show()
    assert shown_levels(page) == ["2. Make room"]
    go_to(page, "too-good")
    assert (shown_levels(page), page.url.split("#")[1]) == (["7. Too good a cache"], "too-good")
    assert page.evaluate("document.activeElement.id") == "too-good"
    page.locator(".kv-ways:visible a", has_text="Next").click()
    wait_for_levels(page, ["8. A queue to order"])
    page.locator(".kv-ways:visible a", has_text="All puzzles").click()
    wait_for_levels(page, [])
    page.go_back()
    wait_for_levels(page, ["8. A queue to order"])


def test_a_prompt_is_a_strip_of_words_in_blocks(show):
    """The first word that differs has a sign; the blocks that a lookup finds are said below its words."""
    page, puzzle = show("twelve-of-sixteen")
    assert cells(puzzle, "A") == [
        ["You are a friendly", "block 1"],
        ["cook. Answer in one", "block 2"],
        ["short sentence. What goes", "block 3"],
        ["with fresh tomato soup?", "block 4"],
    ]
    signs = [mark.inner_text() for mark in puzzle.locator(".strip mark").all()]
    assert signs == ["\u2260 the", "\u2260 Thanks!", "\u2260 works"]
    call(page, puzzle, "lookup E")
    assert cells(puzzle, "E") == [
        ["You are a friendly", "found in block 1"],
        ["cook. Answer in one", "found in block 2"],
        ["short sentence. What \u2260 works"],
        ["with fresh tomato soup?"],
        ["I like it hot."],
    ]


def test_calls_stand_on_the_request_that_they_act_on(show):
    _, puzzle = show("let-it-slide")
    rows = puzzle.locator(".calls > .row").all()
    assert [row.get_by_role("button").all_inner_texts() for row in rows] == [["decode A1", "free A3"], ["prefill B2"]]


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_for_accessibility(show, axe, dark):
    page, puzzle = show(dark=dark)
    assert axe(page) == []
    puzzle.get_by_role("button", name="Hint").click()
    call(page, puzzle, "prefill B", "prefill C")
    puzzle.locator("kv-story #b3[aria-label*='held and cached']").wait_for()  # what happened has been played
    page.wait_for_timeout(600)  # cards have moved
    assert axe(page) == []


def test_a_small_phone_shows_all_of_it(show):
    """Nothing is wider than the screen."""
    page, puzzle = show("save-the-head", **PHONE)
    call(page, puzzle, *SOLUTIONS["save-the-head"])
    assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_without_scripts_there_is_the_picture_and_the_terminals_command(site, serve, open_page):
    """Also where the book has no Python for the page."""
    address = serve(site)
    for file, scripts in (("index", False), ("bare", True)):
        page = open_page(f"{address}/{file}.html", java_script_enabled=scripts)
        puzzle = page.locator("kv-puzzle[name=make-room]")
        shown = puzzle.inner_text()
        assert "A  Tell me a story | about two foxes who | learn to fly kites." in shown
        assert "free  next-> 4 5 6 3# 2# 1# <-last" in shown
        assert "Goal, in at most 2 calls: Evict block 3, and no other." in shown
        assert "mini-kv puzzle make-room" in shown
        assert page.locator("button").count() == 0
