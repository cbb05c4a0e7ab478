"""The element of the chapter "Control plane, data plane": recorded plans, executed by JavaScript in a real browser."""

import importlib
import json
import os
import re
import time
from itertools import pairwise
from urllib.parse import urlencode

import pytest

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844, "has_touch": True}
FIELDS = {
    "num_blocks": "5",
    "max_num_batched_tokens": "12",
    "max_tokens": "10",
    "a": "The scheduler counts tokens, and the cache counts blocks. A block is held by",
    "b": "The scheduler counts tokens, and the cache counts blocks. A request waits until",
}
"""Two texts with one beginning: a prompt in two pieces, a hit, and a preemption."""
WINDOWS = {"model": "tiny_windows", "num_blocks": "40", "max_tokens": "48", "a": FIELDS["a"]}


@pytest.fixture(scope="module")
def records():
    """The runs, recorded with PyTorch as the build does it."""
    pytest.importorskip("torch", reason="the words of the small model need PyTorch: make test")
    runs = pytest.importorskip("mini_kv_book.runs", reason="the book's packages are missing; `make site` gets them")
    return {name: runs.run_planes(urlencode(body)) for name, body in (("index", FIELDS), ("windows", WINDOWS))}


@pytest.fixture(scope="module")
def site(records, write_site):
    """A page for each record, one without the model, one whose record has another token."""
    elements = importlib.import_module("mini_kv_book.elements")
    size = elements.model_bytes("tiny")
    if size is None:
        pytest.skip("the model in the page: it is not packed; `make test` does it where npm is")
    other = json.loads(json.dumps(records["index"]))
    other["steps"][2]["tokens"]["A1"] = other["steps"][3]["tokens"]["A1"]
    pages = {name: elements.planes(record, size) for name, record in records.items()}
    pages |= {"bare": elements.planes(records["index"], None), "other": elements.planes(other, size)}
    return write_site("Planes", **pages)


@pytest.fixture
def show(site, serve, open_page):
    """A function that opens a page."""
    address = serve(site)
    return lambda name="index", **options: open_page(f"{address}/{name}.html", **options)


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def status(page):
    return page.locator("kv-planes .status").inner_text()


def wait_for(page, words):
    page.locator("kv-planes .status", has_text=words).wait_for(timeout=30_000)


def marks(page):
    return page.locator("kv-planes .all tbody tr").evaluate_all(
        "rows => rows.map(row => (row.querySelector('.equal, .differs') ?? { className: '' }).className)"
    )


@pytest.mark.parametrize("name", ["index", "windows"])
def test_javascript_chooses_the_tokens_of_pytorch_in_each_step(name, records, show):
    steps = records[name]["steps"]
    num_tokens = sum(len(step["tokens"]) for step in steps)
    page = show(name)
    press(page, "Run all steps")
    wait_for(page, f"{len(steps)} of {len(steps)} steps, {num_tokens} of {num_tokens} tokens equal.")
    assert re.search(r"PyTorch: \d+ ms, here: \d+ ms\.$", status(page))
    assert marks(page) == ["equal" if step["tokens"] else "" for step in steps]


def test_the_recorded_run_has_a_chunk_and_a_hit_and_a_preemption(records):
    """So the plans contain all that a runner without memory of requests must be able to follow."""
    steps = records["index"]["steps"]
    assert [row["samples"] for row in steps[0]["plan"]] == [False]
    begins = [row["begin"] for step in steps for row in step["plan"] if row["request_id"] == "B1"]
    assert begins[0] == 8
    assert any(later <= earlier for earlier, later in pairwise(begins))


def test_a_different_token_is_marked_in_its_step(show):
    page = show("other")
    press(page, "Run all steps")
    wait_for(page, "tokens equal.")
    found = marks(page)
    assert [step for step, mark in enumerate(found) if mark == "differs"] == [2]
    assert "✗ differs" in page.locator("kv-planes .all tbody tr").nth(2).inner_text()


def test_the_keyboard_makes_one_step_after_the_other_and_starts_again(records, show):
    num_steps = len(records["index"]["steps"])
    page = show()
    page.get_by_role("button", name="One step", exact=True).wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.textContent") == "One step"
    page.keyboard.press("Enter")
    wait_for(page, f"1 of {num_steps} steps, 0 of 0 tokens equal.")
    page.keyboard.press("Enter")
    wait_for(page, f"2 of {num_steps} steps, ")
    assert page.locator("kv-planes summary").inner_text() == "The plan of step 3, whole"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for(page, "Press Run: the page loads the model (2 MB)")
    assert set(marks(page)) == {""}


def test_after_the_last_step_the_first_one_is_executed_again(records, show):
    num_steps = len(records["index"]["steps"])
    page = show()
    press(page, "Run all steps")
    wait_for(page, f"{num_steps} of {num_steps} steps")
    press(page, "One step")
    wait_for(page, f"1 of {num_steps} steps, 0 of 0 tokens equal.")
    press(page, "Run all steps")
    wait_for(page, f"{num_steps} of {num_steps} steps")
    assert "differs" not in marks(page)


def test_the_whole_plan_of_the_next_step_can_be_read(records, show):
    page = show()
    page.get_by_text("The plan of step 1, whole").click()
    shown = page.get_by_label("The plan", exact=True).inner_text()
    assert [json.loads(line) for line in shown.splitlines()] == records["index"]["steps"][0]["plan"]


def test_a_model_that_cannot_be_loaded_is_said_and_can_be_tried_again(site, show):
    file = site / "assets" / "kv-lab" / "tiny" / "config.json"
    config = file.read_bytes()
    file.write_text("nonsense", encoding="utf-8")
    page = show()
    press(page, "One step")
    wait_for(page, "JSON")
    file.write_bytes(config)
    os.utime(file, (time.time() + 60,) * 2)  # so that the browser does not take the text from its own cache
    press(page, "One step")
    wait_for(page, "1 of ")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(dark, show, axe):
    page = show(dark=dark, **PHONE)
    press(page, "Run all steps")
    wait_for(page, "tokens equal.")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert axe(page) == []


@pytest.mark.parametrize("name", ["index", "bare"])
def test_without_scripts_or_without_the_model_the_recorded_tokens_are_there(name, records, show):
    page = show(name, java_script_enabled=name == "bare")
    rows = page.locator("kv-planes tbody tr").all_inner_texts()
    steps = records["index"]["steps"]
    assert len(rows) == len(steps)
    for row, step in zip(rows, steps, strict=True):
        for request, token in step["tokens"].items():
            assert f"{request} {records['index']['words'][str(token)]!r}" in row
