"""The page "Will it fit?" in a real browser: first answer, changes, a pasted file, the address, a phone, no scripts."""

import base64
import importlib
import json
import zlib
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.dev.recorders.planning import planning_rows
from mini_kv.tests.test_config_json import PUBLIC

DOCS = Path(__file__).parents[3] / "book" / "docs"
PHONE = {"width": 390, "height": 844, "has_touch": True}
QWEN = next(row["config"] for row in planning_rows() if row["name"] == "Qwen3.5-4B")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with the element, made by the book's fence from the book's own cases, and one without Python."""
    elements = importlib.import_module("mini_kv_book.elements")
    body = (DOCS / "fit.md").read_text(encoding="utf-8").split("```kv-plan\n")[1].split("\n```")[0]
    cases = elements.cases_of(body)
    index, bare = (f"<h2>Ask</h2>{elements.plan(cases, size)}" for size in (megabytes, None))
    return write_site("Will it fit?", index=index, bare=bare)


@pytest.fixture(scope="module")
def warm(site, open_warm):
    """A function that shows the page, in the window that these tests share."""
    return open_warm(site, "index.html")


@pytest.fixture
def show(warm, site, serve, open_page):
    """A function that shows the page with an address, or opens another window, waits for its answer, and returns it."""

    def shown(fragment="", *, own=False, **options):
        name = f"index.html{fragment}"
        page = open_page(f"{serve(site)}/{name}", **options) if own else warm(name, **options)
        page.locator("kv-plan .big").first.wait_for()
        wait(page)
        return page

    return shown


def wait(page):
    """Wait until the engine has answered."""
    page.wait_for_selector("kv-plan[running]", state="detached", timeout=60_000)


def fill(page, label, value):
    """Type into the field of that label, or choose, and wait for the answer."""
    field = page.get_by_label(label, exact=True)
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
    wait(page)


def said(page):
    """Return the large sentences, and the problems."""
    return page.locator("kv-plan :is(.big, .problem)").all_inner_texts()


def test_the_first_answer_needs_no_python(show):
    page = show()
    assert said(page) == [
        "Room for 54 requests of 32,768 tokens on one A100.",
        "480 shared tokens are shorter than a block of 528: nothing can be found.",
    ]
    assert page.locator("kv-plan .memory .part").all_inner_texts() == [
        "weights\n8.0 GB",
        "KV cache\n65.6 GB",
        "not used\n6.4 GB",
    ]
    assert page.locator("kv-plan svg g").count() == 32
    assert page.workers == []


def test_a_longer_prefix_is_found_from_the_third_request_on(show):
    page = show()
    fill(page, "Tokens that requests share", "979")
    assert said(page)[1] == "Of 979 shared tokens, the third request finds 528 and computes the other 451 again."
    assert page.locator("kv-plan td").all_inner_texts() == ["528", "0", "528"]
    assert page.locator("kv-plan .blocks .piece").all_inner_texts() == ["528", "451"]
    assert page.locator("kv-plan .blocks .found").all_inner_texts() == ["528"]


def test_the_slider_moves_the_prefix(show):
    page = show()
    slider = page.get_by_role("slider", name="Shared tokens")
    slider.focus()
    for _ in range(49):
        slider.press("ArrowRight")
    wait(page)
    assert page.get_by_label("Tokens that requests share", exact=True).input_value() == "529"
    assert said(page)[1] == "Of 529 shared tokens, the third request finds 528 and computes the other 1 again."


def test_each_case_is_answered_as_the_terminal_answers_it(show, capsys):
    page = show()
    buttons = page.get_by_role("group", name="Cases").get_by_role("button")
    assert buttons.count() == 5
    for number in range(5):
        buttons.nth(number).click()
        wait(page)
        plan, why = page.locator("kv-plan section pre").all_inner_texts()
        main(plan.split()[1:])
        assert said(page)[0] in "".join(capsys.readouterr())
        assert main([*why.split()[1:], "--json"]) == 0
        row = json.loads(capsys.readouterr().out)["prompts"][0]
        found = [f"{row[name]:,}" for name in ("same_prompt", "second_to_share", "third_to_share")]
        assert page.locator("kv-plan td").all_inner_texts() == found
    assert len(page.workers) == 1


def test_a_pasted_config_is_read_and_stays_in_the_address(show, serve, site, open_page):
    """Nothing is sent: `open_page` fails a page that asks another machine. A second window reads the address."""
    page = show()
    fill(page, "Model", "")
    assert page.locator("kv-plan .status").inner_text() == "Paste a config.json, or open one. It stays in this page."
    fill(page, "Its text", json.dumps(QWEN))
    assert said(page)[0].endswith("the weights cannot be counted: config.json: it does not say vocab_size.")
    assert page.locator("kv-plan svg g").count() == 32
    fill(page, "Weights, GB", "8")
    assert said(page)[0] == "Room for 54 requests of 32,768 tokens on one A100."
    fill(page, "Weights, GB", "")
    fill(page, "GPU", "")
    assert said(page)[0].startswith("Room for ")
    assert said(page)[1] == "480 shared tokens are shorter than a block of 576: nothing can be found."
    page.wait_for_function("location.hash.includes('config=') && !location.hash.includes('gpu=')")
    other = show(page.evaluate("location.hash"), own=True)
    other.wait_for_function("() => document.querySelector('kv-plan').shadowRoot.querySelector('[name=config]').value")
    wait(other)  # the page asks when it has unpacked the address
    assert said(other) == said(page)
    assert json.loads(other.get_by_label("Its text", exact=True).input_value()) == QWEN


def test_a_file_is_opened(show, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "num_hidden_layers": 2, "kv_surprise": 3}')
    page = show()
    fill(page, "Model", "")
    page.get_by_label("Open a config.json").set_input_files(path)
    page.locator("kv-plan .problem").first.wait_for()
    refusal = "config.json: it has kv_surprise, which plan does not model yet"
    assert said(page) == [refusal, refusal]


def test_a_wrong_field_is_named_and_the_next_right_one_is_answered(show):
    page = show()
    fill(page, "Longest request, tokens", "many")
    assert said(page)[0] == "argument --max-len/--max-model-len: invalid int value: 'many'"
    fill(page, "Longest request, tokens", "65536")
    assert said(page)[0] == "Room for 28 requests of 65,536 tokens on one A100."


def test_fast_typing_ends_with_the_last_words_answer(show):
    page = show()
    field = page.get_by_label("Tokens that requests share", exact=True)
    for number in ("1", "10", "105", "1056"):
        field.fill(number)
    wait(page)
    assert said(page)[1] == "Of 1,056 shared tokens, the third request finds all of them."


def test_the_address_opens_the_question(show):
    page = show(
        "#model=nemotron-3-super-120b-a12b&gpu=h200&tensor-parallel-size=2&kv-cache-dtype=fp8&prompt-tokens=9000"
    )
    assert said(page)[1] == "Of 9,000 shared tokens, the second request finds 8,320 and computes the other 680 again."
    assert page.get_by_label("GPU", exact=True).input_value() == "h200"


def test_a_heading_s_link_does_not_take_the_question_out_of_the_address(show):
    page = show("#model=llama-3-8b&gpu=h100&prompt-tokens=9000")
    page.evaluate("location.hash = 'ask'")
    page.wait_for_function("() => location.hash.includes('prompt-tokens=9000')", timeout=5_000)


def test_a_plain_config_needs_nothing_beside_it(show):
    """Llama 3.1 8B, 131,072 bytes per token. The field for other weights is in the answer."""
    (config,) = [row["config"] for row in PUBLIC["everyday"] if row["name"] == "Llama 3.1 8B"]
    page = show()
    fill(page, "Model", "")
    fill(page, "Its text", json.dumps(config))
    assert page.locator("kv-plan .memory .part").first.inner_text() == "weights\n16.1 GB"
    page.get_by_text("Weights: 16.1 GB, counted from the config at 2 bytes per parameter.").wait_for()
    fill(page, "GPU", "l4")
    fill(page, "Longest request, tokens", "8192")
    assert said(page)[0] == "Room for 5 requests of 8,192 tokens on one L4."
    fill(page, "Weights, GB", "5.7")
    assert said(page)[0] == "Room for 15 requests of 8,192 tokens on one L4."
    fill(page, "Weights, GB", "70")
    assert said(page)[0].startswith("the weights have 70.0 GB, and 22.1 GB of one L4 may be used")
    fill(page, "GiB for the cache", "8")
    assert page.get_by_label("Weights, GB", exact=True).is_visible()
    fill(page, "Weights, GB", "")
    assert not page.get_by_label("Weights, GB", exact=True).is_visible()


def test_an_address_that_is_none_of_the_page_s_changes_nothing(show):
    for fragment in ("#other", "#config=%%%", "#model="):
        page = show(fragment)
        assert page.locator("kv-plan svg g").count() == 32


@pytest.mark.parametrize(("num_bytes", "is_read"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_an_address_holds_no_more_than_a_file_may(show, num_bytes, is_read):
    """A thousand letters of an address can hold a million, and a few more a gigabyte."""
    text = '{"model_type": "llama"}'.ljust(num_bytes)
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode())[2:-4]).decode().rstrip("=")
    page = show(f"#config={packed}")
    assert (page.get_by_label("Its text", exact=True).input_value() == text) is is_read


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_accessible_and_fits_a_phone(show, axe, dark):
    page = show(own=True, **PHONE, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe(page) == []


def test_without_scripts_the_sentences_and_commands_are_there(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html", java_script_enabled=False)
    text = page.locator("kv-plan").inner_text()
    assert "480 shared tokens are shorter than a block of 528: nothing can be found." in text
    assert "mini-kv why qwen-3.5-4b --gpu a100 --prompt-tokens 480" in text
