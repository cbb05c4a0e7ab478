"""The first screen in a real browser: two texts, the blocks that they share, an address that holds both."""

import random
import re

import pytest
from mini_kv_book.places import DOCS

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.tests.browser.conftest import ELEMENT_PAGE

WORDS = "a kind tutor, who answers in plain words! Tell me: what is KV? 你 好 naïve don't x".split()  # noqa: SIM905
QUESTION = (
    "You are a kind tutor who answers in plain words. Tell me what a cache of keys and values is, and why two chats "
    "that begin alike can share it. Thank you!"
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The first page's texts and blocks alone, with their script."""
    markdown = pytest.importorskip("markdown", reason="the first page: `make site` gets the book's packages")
    source = (DOCS / "index.md").read_text(encoding="utf-8")
    source = source[source.index('<div class="kv-typed"') : source.index("</script>") + len("</script>")]
    content = markdown.markdown(source, extensions=["md_in_html", "attr_list"])
    folder = tmp_path_factory.mktemp("site")
    (folder / "assets").mkdir()
    (folder / "assets/kv_typed.js").write_bytes((DOCS / "assets/kv_typed.js").read_bytes())
    page = ELEMENT_PAGE.format(title="First", anchor="first", content=content)
    page = re.sub(r'<script src="assets/kv_(story|page).js"></script>\n', "", page)
    (folder / "index.html").write_text(page, encoding="utf-8")
    return folder


@pytest.fixture
def show(site, open_page):
    """A function that opens the page as a file, with an address."""

    def shown(fragment="", **options):
        page = open_page(f"{(site / 'index.html').as_uri()}{fragment}", **options)
        page.locator(".kv-typed.ready").wait_for()
        return page

    return shown


def box(page, name):
    return page.get_by_label({"first": "One person asks", "second": "A second person asks"}[name])


def meters(page):
    return page.locator(".meter b").all_inner_texts()


def told(page):
    return page.locator(".told").inner_text()


def rows(page):
    """Return the words of all blocks: of tall ones, of the first text's own, of the second's own."""
    return [page.locator(f".card.{kind}").all_inner_texts() for kind in ("both", "one", "two")]


def write(page, name, text):
    box(page, name).fill(text)


def test_it_opens_on_the_same_question_twice(show):
    page = show()
    assert [box(page, name).input_value() for name in ("first", "second")] == [QUESTION, QUESTION]
    assert meters(page) == ["32 words computed", "28 found + 4 computed"]
    assert [len(row) for row in rows(page)] == [7, 1, 1]


ANSWERS = {
    "the third word": (
        ("a b c d e f g h i", "a b X d e f g h i", "9 words computed"),
        "The third word differs: it is in the first block, so nothing is shared, though the words after it are the"
        " same.",
    ),
    "the fifth word": (
        ("a b c d e f g h i", "a b c d X Y g h i", "4 found + 5 computed"),
        "The fifth word differs: its block and all later ones are not shared.",
    ),
    "the last word": (
        ("a b c d e", "a b c d X", "4 found + 1 computed"),
        "The fifth word differs: its block and all later ones are not shared.",
    ),
    "one in front": (
        ("a b c d e f g h", "X a b c d e f g h", "9 words computed"),
        "One word inserted at the front: the words after it move, and all are computed again.",
    ),
    "two inserted": (
        ("a b c d e f g h", "a b c d e X Y f g h", "4 found + 6 computed"),
        "Two words inserted after the fifth word: the words after it move. From this block on, all is computed again.",
    ),
    "one left out": (
        ("a b c d e f g h", "b c d e f g h", "7 words computed"),
        "One word left out at the front: the words after it move, and all are computed again.",
    ),
    "more at the end": (
        ("a b c d", "a b c d e f", "4 found + 2 computed"),
        "The second text begins with the first one: 4 words found. All that follows is computed.",
    ),
    "more than a short text": (
        ("a b c", "a b c d e f", "6 words computed"),
        "The second text begins with the whole first one. But only full blocks are found, and a block has four words.",
    ),
    "the same, one block": (
        ("a b c d", "a b c d", "4 words computed"),
        "The same 4 words. The last word is always computed, and a block is shared whole: so here nothing is found.",
    ),
    "the same, and part of a block": (
        ("a b c d e f", "a b c d e f", "4 found + 2 computed"),
        "The same 6 words: 4 words found. The block at the end is not full, so it is not shared.",
    ),
    "the beginning": (
        ("a b c d e f g h", "a b c d e", "4 found + 1 computed"),
        "The second text is the beginning of the first: 4 words found. The block at the end is not full, so it is not"
        " shared.",
    ),
    "nothing": (("a b c", " \n ", "0 words computed"), "Write a text into each box."),
}
"""Two texts, what is found and computed of the second, and what is told."""


def test_what_is_typed_is_answered_at_once(show):
    page = show()
    answers = {}
    for name, ((first, second, _), _) in ANSWERS.items():
        write(page, "first", first)
        write(page, "second", second)
        answers[name] = ((first, second, meters(page)[1]), told(page))
    assert answers == ANSWERS


def test_the_changed_word_is_marked_and_its_block_stands_twice(show):
    page = show()
    write(page, "first", "a b c d e f g h i")
    write(page, "second", "a b c d e X g h i")
    assert rows(page) == [["a b c d"], ["e f g h", "i"], ["e X g h", "i"]]
    assert page.locator("mark").all_inner_texts() == ["X"]


def test_a_letter_of_a_script_without_blanks_is_a_word(show):
    page = show()
    write(page, "first", "缓存里的块 cache")
    write(page, "second", "缓存里的 块 cache")
    assert meters(page) == ["6 words computed", "4 found + 2 computed"]


def some_text(chance):
    return [chance.choice(WORDS) for _ in range(chance.randrange(1, 40))]


def other_text(chance, text):
    """Return another text, or this one with a few changes."""
    if chance.random() < 0.1:
        return some_text(chance)
    text = list(text)
    for _ in range(chance.choice([0, 1, 1, 2])):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(3))
        text[start:end] = [chance.choice(WORDS) for _ in range(chance.randrange(3))]
    return text or some_text(chance)


def by_the_engine(*texts):
    """Return the tokens found and computed for each text, one after the other; a word is a token."""
    kv = KVCacheManager.for_full_attention(64, 4)
    ids = {word: number for number, word in enumerate(WORDS)}
    numbers = []
    for name, text in enumerate(texts):
        request = kv.new_request(str(name), [ids[word] for word in text])
        hit, found = kv.get_computed_blocks(request)
        kv.allocate_slots(request, len(text) - found, found, hit)
        numbers.append([found, len(text) - found])
    return numbers


def test_the_engine_finds_and_computes_as_much_on_1000_pairs(show):
    chance = random.Random(71)
    pairs = [(text, other_text(chance, text)) for text in (some_text(chance) for _ in range(1000))]
    page = show()
    shown = page.evaluate(
        """pairs => pairs.map((texts) => {
          const boxes = document.querySelectorAll('.kv-typed textarea');
          boxes.forEach((box, i) => { box.value = texts[i]; });
          boxes[1].dispatchEvent(new Event('input'));
          const count = (part) => document.querySelectorAll(`.kv-typed ${part}`).length;
          return ['one', 'two'].map((row) => [count(`.meter.${row} .found`), count(`.meter.${row} i:not(.found)`)]);
        })""",
        [[" ".join(text) for text in pair] for pair in pairs],
    )
    assert shown == [by_the_engine(*pair) for pair in pairs]


# The address ----------------------------------------------------------------------------------------------------------


def test_the_address_holds_both_texts_from_the_first_letter(show):
    """Who opens it sees the same two rows, and the button copies it."""
    page = show()
    box(page, "second").focus()
    page.keyboard.press("Home")
    page.keyboard.type("I")
    page.wait_for_function("location.hash !== ''")
    again = show(page.evaluate("location.hash"))
    assert [box(again, name).input_value() for name in ("first", "second")] == [
        QUESTION,
        box(page, "second").input_value(),
    ]
    assert "I" in box(again, "second").input_value().split()[0]
    assert rows(again) == rows(page)
    page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; }")
    page.get_by_role("button", name="Copy this page's address").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("[window.copied, location.href]") == [page.url, page.url]


def test_the_texts_go_on_to_play(show):
    page = show()
    write(page, "first", "a & b")
    write(page, "second", "c#d")
    link = page.locator(".onward")
    link.evaluate("link => link.addEventListener('click', (event) => event.preventDefault())")
    link.click()
    assert link.get_attribute("href").endswith("#a=a+%26+b&b=c%23d&block_size=4")


def test_an_address_that_is_opened_on_the_page_changes_the_texts(show):
    page = show()
    page.evaluate("location.hash = 'a=a%20b%20c%20d%20e&b=a%20b%20c%20d'")
    page.wait_for_function("document.querySelectorAll('.card').length === 3")
    assert box(page, "first").input_value() == "a b c d e"


def test_a_heading_s_link_leaves_the_texts(show):
    page = show()
    write(page, "second", "x")
    page.evaluate("location.hash = 'one-afternoon'")
    page.wait_for_timeout(50)
    assert box(page, "second").input_value() == "x"


# The film -------------------------------------------------------------------------------------------------------------


BY_HAND = """
window.setInterval = (act) => { window.act = act; return 1; };
window.clearInterval = () => { window.act = () => {}; };
"""
"""A film whose scenes come when the test says so."""


@pytest.mark.parametrize("stops", ["typed", "tapped", "paused"])
def test_the_second_person_writes_by_itself_until_somebody_types_or_taps(stops, site, open_page):
    page = open_page((site / "index.html").as_uri(), init_script=BY_HAND)
    page.locator(".kv-typed.ready").wait_for()
    page.evaluate("act()")
    assert (box(page, "second").input_value(), meters(page)[1]) == (
        QUESTION.replace("Tell", "Show"),
        "8 found + 24 computed",
    )
    if stops == "typed":
        box(page, "first").press("End")
    elif stops == "tapped":
        page.locator(".blocks").click()
    else:
        page.get_by_role("button", name="Pause the example").click()
    before = meters(page)
    page.evaluate("act()")
    assert (meters(page), page.get_by_role("button", name="Play the example").count()) == (before, 1)


@pytest.mark.parametrize("why", ["asked", "addressed"])
def test_nothing_moves_by_itself_for_those_who_ask_or_follow_a_link(why, show):
    page = show("#a=a&b=b" if why == "addressed" else "", reduced_motion="reduce" if why == "asked" else None)
    assert page.get_by_role("button", name="Play the example").count() == 1
