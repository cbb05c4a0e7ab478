"""A step is played as its events in order: seen by sampling the picture in every frame that the browser draws."""

from typing import Any
from xml.etree import ElementTree

import pytest

from mini_kv.course.lessons import tiers_in_letters
from mini_kv.course.lessons.levers import waste_lever
from mini_kv.story.figure import page, story_data
from mini_kv.story.scenario import load_scenario, parse_scenario, scenario_names
from mini_kv.story.state import ids
from mini_kv.story.still import MOST_BLOCKS, TINTS, svg
from mini_kv.tests.browser.conftest import silent_pages
from mini_kv.tests.story_examples import crowded_run

pytestmark = pytest.mark.browser

STORY = story_data(load_scenario("share-and-evict"))


@pytest.fixture
def play(open_page, tmp_path):
    """A function that opens a story, goes to a step and plays the next one to its end."""

    def played(data, step, watch="", **options):
        (tmp_path / "story.html").write_text(page(data), encoding="utf-8")
        shown = open_page((tmp_path / "story.html").as_uri(), **options)
        return shown, perform(shown, step, watch)

    return played


PUT_IN = """async (data) => {
  const story = document.createElement('kv-story');
  story.data = data;
  document.querySelector('kv-story').replaceWith(story);
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);  // after which it is as wide as the page
}"""


@pytest.fixture(scope="module")
def stage(browser, tmp_path_factory):
    """A function that shows a story at a width, on a page without margins that the tests of this file share."""
    markup = page(STORY).replace("padding: 0 1rem", "padding: 0").replace("padding: 0 .6rem", "padding: 0")
    file = tmp_path_factory.mktemp("stage") / "story.html"
    file.write_text(markup, encoding="utf-8")
    with silent_pages(browser) as opener:
        shown = opener(file.as_uri())

        def show(data, width=900):
            shown.set_viewport_size({"width": width, "height": 700})
            shown.evaluate(PUT_IN, data)
            return shown

        yield show


PERFORM = """async (step) => {
  const story = document.querySelector('kv-story'), root = story.shadowRoot;
  const named = (title) => [...root.querySelectorAll('button')].find((one) => one.title === title);
  story.step = step;
  const speed = named('Speed');
  speed.click();
  speed.click(); // 4 times as fast
  await new Promise((done) => setTimeout(done, 450));
  const beats = [], seen = [];
  story.addEventListener('kv-beat', ({detail}) => beats.push([detail.kind, detail.ids.join(' ')]));
  const look = (root) => { WATCH };
  let over = false;
  const sample = () => { const now = look(root); if (now) seen.push(now); if (!over) requestAnimationFrame(sample); };
  requestAnimationFrame(sample);
  named('Step forward').click();
  [...root.querySelectorAll('.ask > button')].forEach((one) => one.click());
  const settled = () => +root.querySelector('.bar input').value === story.step;
  for (let quiet = 0; quiet < 3; ) {
    await new Promise((done) => setTimeout(done, 150));
    quiet = settled() && !root.getAnimations().some((one) => one.playState === 'running') ? quiet + 1 : 0;
  }
  over = true;
  return {beats, seen};
}"""


def perform(shown, step, watch=""):
    """Play the step after this one; what `watch`, the body of a function of the root, returned in each frame."""
    return shown.evaluate(PERFORM.replace("WATCH", watch), step)


def told_events(step):
    """Return the events of a step as the story writes them, each lookup at its place."""
    events, number = [], 0
    probes = [*step.get("probes", [])]
    for part in filter(None, step["events"].split(", ")):
        while probes and probes[0][0] <= number:
            events.append(["lookup", numbers(probes.pop(0)[2])])
        kind, _, run = part.partition(" ")
        events.append([kind, numbers(run)])
        number += len(numbers(run).split())
    return [*events, *(["lookup", numbers(probe[2])] for probe in probes)]


def numbers(run):
    """Return ids one by one: "1..3 9" is "1 2 3 9"."""
    return " ".join(map(str, ids(run)))


WATCH_8 = """
  const card = root.querySelector('#b8'), tag = card.querySelector('.tagtext').textContent;
  const {x, y} = card.querySelector('.base').getBoundingClientRect();
  const falling = [...root.querySelectorAll('.falling')].map((one) => one.textContent);
  return {x: Math.round(x), y: Math.round(y), tag, falling};
"""


@pytest.mark.parametrize("name", scenario_names())
def test_the_beats_of_a_step_are_its_events_in_order(stage, name):
    """For every step of every story, as the engine recorded them; a lookup comes where it was made."""
    data = story_data(load_scenario(name))
    played = stage(data).evaluate(
        """async () => {
      const story = document.querySelector('kv-story'), root = story.shadowRoot, all = [];
      const range = root.querySelector('.bar input');
      const up = () => range.dispatchEvent(
        new KeyboardEvent('keydown', {key: 'ArrowUp', bubbles: true, composed: true}));
      story.addEventListener('kv-beat', ({detail}) => all[all.length - 1].push([detail.kind, detail.ids.join(' ')]));
      for (let step = 1; step <= story.data.steps.length; step++) {
        story.step = step - 1;
        all.push([]);
        do up();
        while (+range.value < step);  // the last beat is the step's end, and is not told
      }
      return all;
    }"""
    )
    for step, beats in zip(data["steps"], played, strict=True):
        assert beats == told_events(step)[: len(beats)]
        assert len(told_events(step)) - len(beats) in {0, 1}


def test_a_name_falls_before_its_card_moves(play):
    """C takes block 8: when its card is first seen elsewhere, its name is gone, and was seen falling before."""
    _, told = play(STORY, 4, WATCH_8)
    seen = told["seen"]
    name = seen[0]["tag"]
    start = (seen[0]["x"], seen[0]["y"])
    rows = [one for one in seen if abs(one["y"] - start[1]) > 8]  # it has left the line of the queue
    assert name == "ab86"
    assert rows[0]["tag"] == ""
    before = seen[: seen.index(rows[0])]
    assert any(name in one["falling"] for one in before)
    assert seen[-1]["tag"] not in ("", name)
    assert told["beats"] == told_events(STORY["steps"][4])


def test_a_lookup_is_walked_before_blocks_are_shared(play):
    """B: a mark on each of seven cards, then a cross; only then do the cards grow into two rows."""
    watch = """
      const height = parseFloat(root.querySelector('#b1 .base').style.height);
      const visible = (mark) => +getComputedStyle(mark).opacity > 0.5;
      return {height, hits: [...root.querySelectorAll('rect.hit')].filter(visible).length,
              misses: [...root.querySelectorAll('.miss')].filter(visible).length};
    """
    _, told = play(STORY, 1, watch)
    walk = [one["hits"] for one in told["seen"] if one["height"] == 56]
    assert sorted(walk[: walk.index(7)]) == walk[: walk.index(7)]  # one after the other
    assert max(walk) == 7
    assert max(one["misses"] for one in told["seen"] if one["height"] == 56) == 1
    assert told["seen"][-1] == {"height": 117, "hits": 0, "misses": 0}


def test_a_revived_card_keeps_its_name_and_fills_with_nothing(play):
    """D gets block 1 back as it was: its tag in every frame, a light around it; 7 fills from nothing."""
    watch = """
      const card = (id) => root.querySelector(`#b${id}`);
      const filled = (id) => Math.round(card(id).querySelector('.lvl').getBoundingClientRect().width);
      return {tag: card(1).querySelector('.tagtext').textContent, halo: card(1).querySelectorAll('.halo').length,
              filled: [filled(1), filled(7)], halo7: card(7).querySelectorAll('.halo').length};
    """
    _, told = play(STORY, 6, watch)
    seen = told["seen"]
    assert {one["tag"] for one in seen} == {"3161"}
    assert max(one["halo"] for one in seen) == 1
    assert max(one["halo7"] for one in seen) == 0
    assert {one["filled"][0] for one in seen} == {47}
    assert min(one["filled"][1] for one in seen) == 0  # the old content is gone before the new one comes
    assert seen[-1]["filled"][1] == 47


def test_going_on_ends_a_step_that_is_being_played(open_page, tmp_path):
    """A reader who presses twice sees the second step, and the first one's beats never come back."""
    (tmp_path / "story.html").write_text(page(story_data(load_scenario("who-runs-next"))), encoding="utf-8")
    shown = open_page((tmp_path / "story.html").as_uri())
    shown.evaluate("""() => {
      window.steps = [];
      addEventListener('kv-beat', ({detail}) => steps.push(detail.step));
      const root = document.querySelector('kv-story').shadowRoot;
      const forward = [...root.querySelectorAll('button')].find((one) => one.title === 'Step forward');
      const skip = () => [...root.querySelectorAll('.ask > button')].forEach((one) => one.click());
      for (let i = 0; i < 4; i++) { forward.click(); skip(); }
    }""")
    shown.wait_for_timeout(2500)
    steps = shown.evaluate("steps")
    assert steps == sorted(steps)


def test_no_beats_for_those_who_ask_for_no_motion(play):
    """The step's end is there at once, and the beats can still be looked at one by one."""
    shown, told = play(STORY, 4, WATCH_8, reduced_motion="reduce")
    assert told["beats"] == []
    assert shown.locator(".at output").inner_text() == "cached 10 8 9"
    slider = shown.get_by_role("slider", name="Step")
    for _ in range(4):
        slider.press("ArrowDown")
    assert shown.locator(".at output").inner_text() == "evicted 8"
    assert slider.get_attribute("aria-valuetext") == "step 5 of 8: evicted 8"


def test_one_slider_has_a_tick_for_each_step_and_a_dot_for_each_beat(play):
    """Where it is let go between two beats it shows the nearer one, and the picture says which."""
    shown, _ = play(STORY, 4, reduced_motion="reduce")
    look = """() => {
      const root = document.querySelector('kv-story').shadowRoot;
      const places = (look) => [...root.querySelectorAll(look)].map((one) => parseFloat(one.style.insetInlineStart));
      return {ticks: places('.ticks i:not(.dot)'), dots: places('.ticks .dot')};
    }"""
    marks = shown.evaluate(look)
    assert marks["ticks"] == [12.5 * step for step in range(9)]
    beats = [len([dot for dot in marks["dots"] if 12.5 * step < dot < 12.5 * (step + 1)]) for step in range(8)]
    assert sum(beats) == len(marks["dots"]) and max(beats) > 1
    slide = """at => {
      const slider = document.querySelector('kv-story').shadowRoot.querySelector('.bar input');
      slider.value = at;
      slider.dispatchEvent(new Event('input'));
      return slider.getAttribute('aria-valuetext');
    }"""
    number = beats[4] + 1
    said = [shown.evaluate(slide, 4 + (beat + 0.3) / number) for beat in range(number + 1)]
    assert said[0].startswith("step 4 of 8") and len(set(said)) == number + 1
    assert all(one.startswith("step 5 of 8: ") for one in said[1:])


# The still: the same picture without a browser ----------------------------------------------------------------------

CARDS = """() => {
  const hex = (rgb) => '#' + rgb.match(/[\\d.]+/g).slice(0, 3).map((n) => (+n).toString(16).padStart(2, '0')).join('');
  const root = document.querySelector('kv-story').shadowRoot;
  const rows = [...root.querySelectorAll('.rowbg')].map((row) => row.parentNode.style.transform);
  return [rows.sort(), [...root.querySelectorAll('.card')].map((card) => {
    const [x, y] = card.style.transform.match(/[\\d.]+/g).map(Number), part = (name) => card.querySelector(name);
    const held = card.classList.contains('held'), base = getComputedStyle(part('.base'));
    return [card.dataset.id, x, y, parseFloat(part('.base').style.height), hex(base.stroke), hex(base.fill),
            base.strokeDasharray === 'none' ? '' : base.strokeDasharray.replaceAll(/px|,/g, ''),
            part('.tagtext').textContent, part('.ref').textContent,
            held ? Math.round(100 * parseFloat(part('.lvl').style.width)) : 0,
            held && parseFloat(part('.lvl').style.width) ? hex(getComputedStyle(part('.lvl')).fill) : '',
            part('.hue').classList.contains('none') ? '' : hex(getComputedStyle(part('.hue')).stroke),
            part('.words').textContent, card.querySelectorAll('.ring').length];
  }).sort((a, b) => a[0] - b[0])];
}"""


SPACE = "{http://www.w3.org/2000/svg}"


def drawn(picture):
    """Return what a still draws, its rows and its cards, in the form of what the browser says."""
    root: Any = ElementTree.fromstring(picture)
    cards = [card_of(group) for group in root.iter(f"{SPACE}g") if group.get("class") == "kv-card"]
    rows = [f"translate(0px, {rect.get('y')}px)" for rect in root.iter(f"{SPACE}rect") if rect.get("class") == "rowbg"]
    return [sorted(rows), sorted(cards, key=lambda card: int(card[0]))]


def card_of(group):
    """Return one card of a still: a list of what can be seen of it."""
    rects, texts = group.findall(f"{SPACE}rect"), group.findall(f"{SPACE}text")
    x, y = map(float, group.get("transform")[len("translate(") : -1].split())
    base, level = rects[0], [rect for rect in rects if rect.get("fill") in TINTS]
    hue = [path.get("stroke") for path in group.findall(f"{SPACE}path")]
    by_class = {text.get("class", "").split(" ")[0]: text.text for text in texts}
    words = " ".join(text.text for text in texts if text.get("class") is None)
    width = round(100 * float(level[0].get("width"))) if level else 0
    card = [group.get("data-id"), x, y, float(base.get("height")), base.get("stroke"), base.get("fill")]
    card += [base.get("stroke-dasharray", ""), by_class.get("tagtext", ""), by_class.get("ref", ""), width]
    card += [level[0].get("fill") if width else ""]
    return [*card, hue[0] if hue else "", words, len([1 for rect in rects if rect.get("stroke") == "#b64500"])]


def same_in_both(shown, data, width):
    """Compare what the browser draws of every step with a still of it."""
    for step in range(len(data["steps"]) + 1):
        shown.evaluate("step => { document.querySelector('kv-story').step = step }", step)
        picture = svg(data, step, width)
        assert [*shown.evaluate(CARDS)] == drawn(picture)
        yield picture


@pytest.mark.parametrize("width", [360, 720])
@pytest.mark.parametrize("name", scenario_names())
def test_a_still_is_what_the_browser_draws(stage, name, width):
    """Every card of every step: place, height, colours, hash, filling, whose words, beginning, frame; every row."""
    data = story_data(load_scenario(name))
    assert len([*same_in_both(stage(data, width), data, width)]) == len(data["steps"]) + 1


SHELVES = """() => [...document.querySelector('kv-story').shadowRoot.querySelectorAll('.shelf, .tierhead')].map(one => [
  ...(one.style.transform.match(/[\\d.]+/g) ?? [one.getAttribute('x'), one.getAttribute('y')]).map(Number),
  one.textContent]).sort((a, b) => a[1] - b[1] || a[0] - b[0] || a[2].localeCompare(b[2]))"""


def shelves_of(picture):
    """Return headings, places and tags of the tiers, from top to bottom, each as place and text."""
    root: Any = ElementTree.fromstring(picture)
    found: list[list[Any]] = []
    for group in root.iter(f"{SPACE}g"):
        if group.get("class") == "kv-shelf":
            x, y = map(float, group.get("transform")[len("translate(") : -1].split())
            found.append([x, y, "".join(group.itertext())])
    places = [rect for rect in root.iter(f"{SPACE}rect") if rect.get("stroke-dasharray") == "3 3"]
    found += [[float(rect.get("x")), float(rect.get("y")), ""] for rect in places if rect.get("height") == "17"]
    texts = [text for text in root.iter(f"{SPACE}text") if text.get("class") == "h" and " of " in text.text]
    found += [[float(text.get("x")), float(text.get("y")), text.text] for text in texts]
    return sorted(found, key=lambda one: (one[1], one[0], one[2]))


@pytest.mark.parametrize("width", [360, 720])
def test_a_still_has_the_shelves_below_the_queue(stage, width):
    """Blocks that go down to memory, and come up again: headings, places and tags, step by step."""
    data = tiers_in_letters.story(("abcd", "wxyz", "abcd"), num_blocks=5, memory_blocks=7)
    shown = stage(data, width)
    for picture in same_in_both(shown, data, width):
        assert [*shown.evaluate(SHELVES)] == shelves_of(picture)
    tags = {one[2] for one in shelves_of(svg(data, 3, width)) if len(one[2]) == 4}
    assert tags == set(data["steps"][2]["tiers"]["memory"].split())
    assert len(tags) == 4  # the first prompt's, which went down


def test_a_pool_that_is_too_large_has_no_still():
    """Very many cards are no picture."""
    with pytest.raises(ValueError, match=f"a still shows at most {MOST_BLOCKS} blocks, not 1000"):
        svg(crowded_run(1000), 1)


# Nothing moves under the reader ---------------------------------------------------------------------------------------


HEIGHTS = """async () => {
  const story = document.querySelector('kv-story'), root = story.shadowRoot, seen = new Set();
  const button = (title) => [...root.querySelectorAll('button')].find((one) => one.title === title);
  const look = () => seen.add(root.querySelector('.fig').offsetHeight);
  story.step = 0;
  look();
  for (let end = 0; end < 200 && button('Step forward').getAttribute('aria-disabled') === 'false'; end++) {
    button('Step forward').click();
    look();
    const count = root.querySelectorAll('.ask:not([hidden]) .choices button').length;
    for (let i = 0; i < count; i++) {  // every choice, the wrong ones too, until the right one goes on
      root.querySelectorAll('.ask:not([hidden]) .choices button')[i]?.click();
      look();
    }
  }
  for (let step = story.step; step >= 0; step--) {
    story.step = step;
    look();
  }
  return [...seen];
}"""


@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("name", scenario_names())
def test_a_figure_has_one_height_whatever_is_stepped_to_or_answered(stage, name, width):
    assert len(stage(story_data(load_scenario(name)), width).evaluate(HEIGHTS)) == 1


# How smooth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_blocks", "frames"), [(64, 50), (1000, 50), (5000, 15)])
def test_frames_per_second(open_page, tmp_path, num_blocks, frames):
    """While steps are played, a quarter of what a quiet machine draws. A slow one, seen on a still page, owes less."""
    (tmp_path / "story.html").write_text(page(crowded_run(num_blocks)), encoding="utf-8")
    shown = open_page((tmp_path / "story.html").as_uri())
    drawn_empty, drawn_busy = shown.evaluate("""async () => {
      const story = document.querySelector('kv-story'), root = story.shadowRoot;
      const forward = [...root.querySelectorAll('button')].find((one) => one.title === 'Step forward');
      const count = async (ms) => {
        let frames = 0, over = false;
        const tick = () => { frames++; if (!over) requestAnimationFrame(tick); };
        requestAnimationFrame(tick);
        await new Promise((done) => setTimeout(done, ms));
        over = true;
        return frames * 1000 / ms;
      };
      story.step = 20;
      const empty = await count(1000);
      const clicks = setInterval(() => forward.click(), 800);
      const busy = await count(2000);
      clearInterval(clicks);
      return [empty, busy];
    }""")
    print(f"{num_blocks} blocks: {drawn_busy:.0f} frames a second while steps are played, {drawn_empty:.0f} while not")
    assert drawn_busy >= frames * min(1, drawn_empty / 60) / 4


def test_a_card_shows_its_words_and_where_it_began():
    """Words of the tokens, cut where the block is; prompts that begin alike have one number."""
    data = story_data(parse_scenario("words", WORDS))
    assert [step.get("words") for step in data["steps"]] == [
        {"1": ["who", "keeps"], "2": ["the", "keys"]},
        {"3": ["a", "lock"]},
        None,
    ]
    assert [step["probes"] for step in data["steps"] if "probes" in step] == [[[0, "A", ""]], [[0, "B", "1"]]]


WORDS = """
title = "Words"
num_blocks = 5
block_size = 2
[[step]]
call = "prefill"
request = "A"
text = "who keeps the keys"
say = "a"
[[step]]
call = "prefill"
request = "B"
text = "who keeps a lock"
say = "b"
[[step]]
call = "free"
request = "A"
say = "c"
"""


def test_a_lever_moves_without_a_kernel_and_at_once(open_page, tmp_path):
    """In a page of its own, with the keyboard: label, spoken text and picture, within a tenth of a second."""
    lever = waste_lever([237, 41, 1180])
    (tmp_path / "lever.html").write_text(f"<meta charset=utf-8>{lever._repr_html_()}", encoding="utf-8")
    page = open_page((tmp_path / "lever.html").as_uri())
    place, box = page.get_by_role("slider").bounding_box(), page.locator(".kv-lever").bounding_box()
    assert (place["width"], place["height"]) == (box["width"], 44)  # for a finger
    page.get_by_role("slider").press("End")
    last = [*lever.pictures][-1]
    assert page.locator("output").inner_text() == page.get_by_role("slider").get_attribute("aria-valuetext") == last
    assert page.locator("figcaption:visible").all_inner_texts() == [lever.pictures[last].sentence]
    took = page.evaluate("""() => {
      const slider = document.querySelector('input'), start = performance.now();
      for (let at = 0; at < 12; at++) {
        slider.value = at;
        slider.dispatchEvent(new Event('input'));
        document.body.getBoundingClientRect();
      }
      return (performance.now() - start) / 12;
    }""")
    assert took < 100
