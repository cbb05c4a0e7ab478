"""The instruments in a browser: what a reader sees at a position is what the engine said there, and at once."""

import json
from collections import Counter
from random import Random

import pytest
from mini_kv_book.places import DOCS
from mini_kv_book.recorded import hit_rates, rows

from mini_kv.course.lessons import instruments, instruments_of_steps
from mini_kv.course.lessons.curves import small_trace
from mini_kv.course.lessons.instrument import STYLE, script
from mini_kv.course.lessons.six_servers import six_servers
from mini_kv.tools.planning.cost import H200, served

pytestmark = pytest.mark.browser

SEEN = """box => ({
  marks: [...box.querySelectorAll('svg > *')].filter(one => getComputedStyle(one).display !== 'none').map(one => [
    one.tagName,
    Object.fromEntries([...one.attributes].filter(({name}) => !['style', 'data-vary'].includes(name))
      .map(({name, value}) => [name, value]).concat(one.tagName === 'text' ? [['text', one.textContent]] : [])),
  ]),
  says: box.querySelector('figcaption').textContent,
})"""
MOVE = """(box, at) => {
  [...box.querySelectorAll('[data-control]')].forEach((control, i) => {
    const inputs = control.querySelectorAll('input');
    if (inputs[0].type === 'range') inputs[0].value = at[i]; else inputs[at[i]].checked = true;
  });
  const start = performance.now();
  box.querySelector('input').dispatchEvent(new Event('input', {bubbles: true}));
  box.getBoundingClientRect();
  return performance.now() - start;
}"""


@pytest.fixture(scope="module")
def shown():
    """The instruments of the book, as their chapters make them."""
    model = served("llama-3-8b", num_parameters=8.03e9, num_heads=32)
    return {
        "recomputed": instruments.recomputed(),
        "token_in_boxes": instruments.token_in_boxes(),
        "rows_and_blocks": instruments.rows_and_blocks(),
        "changed_token": instruments.changed_token(),
        "forgery": instruments.forgery(),
        "hits_of_a_pool": instruments.hits_of_a_pool(small_trace()),
        "policies_by_size": instruments.policies_by_size(hit_rates()),
        "sliding_window": instruments.sliding_window(),
        "holes": instruments.holes(),
        "softmax_in_tiles": instruments_of_steps.softmax_in_tiles(),
        "tiles_over_blocks": instruments_of_steps.tiles_over_blocks(),
        "roofline": instruments_of_steps.roofline(model, H200),
        "timetable": instruments_of_steps.timetable(),
        "eight_clients": instruments_of_steps.eight_clients(),
        "strategies_as_dots": instruments_of_steps.strategies_as_dots(small_trace(), num_blocks=60, ms_per_step=50),
        "one_more_word": instruments_of_steps.one_more_word(rows("cpu", "cache", "small")),
        "bus": instruments_of_steps.bus(model, H200),
        "reload_or_recompute": instruments_of_steps.reload_or_recompute(model, H200),
        "six_servers": six_servers(),
    }


ASSETS = DOCS / "assets"
BOOK_CSS = (ASSETS / "book.css").read_text(encoding="utf-8").replace("fonts/", f"{ASSETS.as_uri()}/fonts/")
HEAD = f"""<!doctype html><html lang=en><title>x</title><meta charset=utf-8>
<meta name=viewport content=width=device-width><style>{BOOK_CSS}</style>
<style>html {{ font-size: 125% }} * {{ box-sizing: border-box }} body {{ margin: 0; color-scheme: light dark }}
main {{ max-width: 990px; margin: 0 16px; font-size: 16px; background: Canvas; color: CanvasText }}</style>"""
"""The book's own styles, and the width that its theme leaves to a figure."""


@pytest.fixture(scope="module")
def url(shown, tmp_path_factory):
    """The address of a page with all of them."""
    boxes = "".join(f'<div class="kv-figure">{instrument.fragment()}</div>' for instrument in shown.values())
    path = tmp_path_factory.mktemp("instruments") / "page.html"
    body = f'<main class="md-typeset">{boxes}</main><script>{script()}</script>'
    path.write_text(f"{HEAD}<style>{STYLE}</style>{body}", encoding="utf-8")
    return path.as_uri()


def drawn(view):
    """Return what a view has drawn, as the page tells it."""
    marks = [[mark.tag, {key: str(value) for key, value in mark.values.items()}] for mark in view.marks.values()]
    return {"marks": sorted(marks, key=str), "says": "".join(view.says)}


def test_every_move_shows_what_the_engine_said_within_a_tenth_of_a_second(shown, url, open_page):
    page = open_page(url)
    boxes = page.locator(".kv-instrument").element_handles()
    for (name, instrument), box in zip(shown.items(), boxes, strict=True):
        for at in [instrument.start, *Random(name).choices(sorted(instrument.views), k=12)]:
            took = box.evaluate(MOVE, list(at))
            found = box.evaluate(SEEN)
            for mark in found["marks"]:
                mark[1] = dict(sorted(mark[1].items()))
            wanted = drawn(instrument.views[at])
            wanted["marks"] = [[tag, dict(sorted(values.items()))] for tag, values in wanted["marks"]]
            assert sorted(found["marks"], key=str) == sorted(wanted["marks"], key=str), (name, at)
            assert found["says"] == wanted["says"]
            assert took < 100, (name, at)


def test_keys_move_it_and_it_says_where_it_is(shown, url, open_page):
    page = open_page(url)
    triangle = page.locator(".kv-instrument").first
    slider = triangle.get_by_role("slider")
    slider.press("ArrowLeft")
    assert (slider.get_attribute("aria-valuetext"), triangle.locator(".kv-controls b").inner_text()) == ("63", "63")
    assert triangle.get_by_role("status").inner_text() == "".join(shown["recomputed"].views[62, 0].says)
    triangle.get_by_role("radio", name="on").press(" ")
    assert triangle.get_by_role("status").inner_text() == "".join(shown["recomputed"].views[62, 1].says)


def test_the_picture_itself_can_be_taken_in_hand(shown, url, open_page):
    """A score is dragged to the top of its bar; the pool's line goes to where the pointer is."""
    page = open_page(url)
    tiles, pool = (
        page.locator(".kv-instrument").nth([*shown].index(name)) for name in ("softmax_in_tiles", "hits_of_a_pool")
    )
    bar = tiles.locator(".kv-handle").nth(0)
    bar.scroll_into_view_if_needed()
    place = bar.bounding_box()
    page.mouse.move(place["x"] + 9, place["y"] + place["height"] - 2)
    page.mouse.down()
    page.mouse.move(place["x"] + 9, place["y"] + 2)
    page.mouse.up()
    assert tiles.locator(".kv-controls b").all_inner_texts() == ["2", "5", "4", "1"]
    line = pool.locator(".kv-handle")
    line.scroll_into_view_if_needed()
    place = line.bounding_box()
    page.mouse.click(place["x"] + place["width"] - 1, place["y"] + 20)
    assert pool.locator(".kv-controls b").inner_text() == "300"


def test_every_control_answers_to_the_keys(shown, url, open_page):
    page = open_page(url)
    for (name, instrument), box in zip(shown.items(), page.locator(".kv-instrument").all(), strict=True):
        at = list(instrument.start)
        for number, control in enumerate(instrument.controls):
            part, last = box.locator("[data-control]").nth(number), len(control.labels) - 1
            if control.choice:
                part.get_by_role("radio").nth(at[number]).press("ArrowRight")
                at[number] = (at[number] + 1) % (last + 1)
            else:
                part.get_by_role("slider").press("End")
                part.get_by_role("slider").press("ArrowLeft")
                at[number] = last - 1
            assert box.get_by_role("status").inner_text() == "".join(instrument.views[*at].says), (name, control.name)


def test_a_click_on_a_row_of_the_picture_chooses_its_server(shown, url, open_page):
    """On a chart, as on the server's own control. The next key press goes on from there."""
    page = open_page(url)
    servers = page.locator(".kv-instrument").nth([*shown].index("six_servers"))
    says = servers.get_by_role("status")
    assert "The cause" not in says.inner_text()
    for row, letter in enumerate("ABCDEF"):
        servers.locator("[data-pick]").nth(row).click(position={"x": 200, "y": 20})
        assert servers.get_by_role("radio", name=letter, exact=True).is_checked()
        assert says.inner_text() == "".join(shown["six_servers"].views[row + 1,].says)
    servers.get_by_role("radio", name="F", exact=True).press("ArrowLeft")
    assert says.inner_text().startswith("E: ")


def test_every_handle_goes_where_the_pointer_is(shown, url, open_page):
    """A third along each of its axes: at the nearest position of the control."""
    page = open_page(url)
    held = []
    for (name, instrument), box in zip(shown.items(), page.locator(".kv-instrument").all(), strict=True):
        at = list(instrument.start)
        for part in box.locator("[data-drag]").all():
            share = {"x": 0.5, "y": 0.5}
            for axis, control in json.loads(part.get_attribute("data-drag")).items():
                last = len(instrument.controls[control].labels) - 1
                at[control] = round(last / 3)
                share[axis] = at[control] / last
            part.scroll_into_view_if_needed()
            frame = part.bounding_box()
            place = {"x": share["x"] * frame["width"], "y": (1 - share["y"]) * frame["height"]}
            part.click(position=place)
            held.append(name)
        if name in held:
            assert box.get_by_role("status").inner_text() == "".join(instrument.views[*at].says), name
    assert {*held} == {name for name, instrument in shown.items() if "data-drag" in instrument.fragment()}


def test_without_scripts_it_is_a_still_and_its_controls_are_not_there(shown, url, open_page):
    page = open_page(url, java_script_enabled=False)
    assert page.locator("input:visible").count() == 0
    captions = page.locator("figcaption").all_inner_texts()
    assert captions == ["".join(instrument.views[instrument.start].says) for instrument in shown.values()]


MEASURED = """box => {
  const place = (one) => one.getBoundingClientRect(), drawing = box.querySelector('svg'), width = place(drawing).width;
  const unit = width / drawing.viewBox.baseVal.width;
  const seen = [...drawing.querySelectorAll('svg > :not(.kv-handle)')].filter((one) => place(one).height > 0);
  const words = seen.filter((one) => one.tagName === 'text' && one.textContent);
  const meet = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 7;
  const targets = [...box.querySelectorAll('[type=range], fieldset label')].map(place);
  return {
    drawing: width / place(box).width,
    drawn: (Math.max(...seen.map((one) => place(one).right)) - Math.min(...seen.map((one) => place(one).left))) / width,
    letters: Math.min(...words.map((one) => parseFloat(getComputedStyle(one).fontSize))) * unit,
    overlapping: words.flatMap((one, i) => words.slice(i + 1).filter((other) => meet(place(one), place(other)))
      .map((other) => [one.textContent, other.textContent])),
    target: Math.min(...targets.flatMap(({width, height}) => [width, height])),
    sliders: [...box.querySelectorAll('[type=range]')].map((one) => place(one).width / place(box).width),
  };
}"""


@pytest.mark.parametrize(
    ("width", "drawing", "letters", "target", "slider"), [(1280, 0.66, 14, 24, 0.3), (390, 1, 12, 44, 1)]
)
def test_it_uses_its_box_can_be_read_and_a_finger_finds_each_control(
    shown, url, open_page, width, drawing, letters, target, slider
):
    """On a phone all of the box: the drawing, and each slider. On a desktop the controls have the last third."""
    page = open_page(url, width=width, has_touch=width == 390)
    for (name, instrument), box in zip(shown.items(), page.locator(".kv-instrument").all(), strict=True):
        found = box.evaluate(MEASURED)
        assert found["drawing"] >= drawing, name
        assert found["drawn"] >= 0.9, name
        assert found["letters"] >= letters, name
        assert found["overlapping"] == [], name
        assert found["target"] >= target, name
        assert min(found["sliders"], default=1) >= slider, name
        axes = Counter(mark.split(": ")[0] for mark in instrument.views[instrument.start].marks if ": " in mark)
        assert min(axes.values(), default=4) >= 4, name


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_for_a_reader_who_does_not_see_and_nothing_wider_than_a_phone(url, open_page, axe, dark):
    page = open_page(url, width=360, dark=dark)
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
