"""The figure in a real browser: read, stepped through, asked, looked at closely, broken on purpose, timed."""

import pytest

from mini_kv.course.lessons.exhibits import COUNTED_AGAIN
from mini_kv.course.lessons.policies import play_seen_twice
from mini_kv.story.edge import EdgeKind
from mini_kv.story.figure import fragment, key_step, page, played_data, script, spans_data, story_data
from mini_kv.story.frame import frames
from mini_kv.story.scenario import ScenarioPlayer, load_scenario, scenario_names
from mini_kv.story.text import draw_state
from mini_kv.story.vllm_source import EVENTS, LOOKUP
from mini_kv.tests.story_examples import EVERYTHING, crowded_run, story_of
from mini_kv.tests.traced_run import random_life

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844, "has_touch": True}
STORY = {**story_data(load_scenario("share-and-evict")), "at": 0}


@pytest.fixture
def open_html(open_page, tmp_path):
    """A function that opens a text as a page."""

    def opened(html, **options):
        file = tmp_path / "story.html"
        file.write_text(html, encoding="utf-8")
        return open_page(file.as_uri(), **options)

    return opened


@pytest.fixture
def show(open_html):
    """A function that opens a story's page and returns the page, with the figure drawn."""
    return lambda data=STORY, **options: open_html(page(data), **options)


def go(shown, step):
    """Go to a step without asking."""
    shown.evaluate("step => { document.querySelector('kv-story').step = step }", step)


def step_of(shown):
    return shown.evaluate("document.querySelector('kv-story').step")


def caption(shown):
    return shown.locator(".cap").inner_text()


def button(shown, name):
    return shown.get_by_role("button", name=name, exact=True)


def live(shown, data):
    """Give the figure a story."""
    shown.evaluate("data => { document.querySelector('kv-story').data = data }", data)


# Two runs side by side ----------------------------------------------------------------------------------------------


def queue_place(free, other):
    """Return the first block of a free queue that has another place in the other queue, in a list."""
    return [a for a, b in zip(free, other, strict=False) if a != b][:1]


def seen_of(played):
    """Return each block's hash and who holds it, after a step."""
    tables = played.frame.tables.items()
    return [
        (block.block_hash, sorted(request for request, groups in tables if any(number in ids for ids in groups)))
        for number, block in enumerate(played.frame.blocks)
    ]


def test_two_runs_go_together_and_mark_the_blocks_that_differ(open_html):
    """The same calls under two policies: step by step, whichever of the two is moved."""
    scenario = load_scenario("passers-by")
    runs = [list(ScenarioPlayer(scenario).play()), list(play_seen_twice(scenario))]
    data, other = (played_data(scenario, iter(run)) for run in runs)
    shown = open_html(page(data, other), width=1300)
    figures = shown.locator("kv-story")
    assert len({round(figure.bounding_box()["y"]) for figure in figures.all()}) == 1
    assert [figures.nth(i).locator(".bar").is_visible() for i in range(2)] == [True, False]
    for part in (".pic", ".say", ".key"):
        assert len({round(figure.locator(part).bounding_box()["y"]) for figure in figures.all()}) == 1
    marked = (
        """root => [...root.shadowRoot.querySelectorAll('.card.differs')].map((card) => +card.id.slice(1)).sort()"""
    )
    told = []
    for number, (one, two) in enumerate(zip(*runs, strict=True), start=1):
        figures.nth(number % 2).evaluate("(story, step) => { story.step = step }", number)
        assert [figures.nth(i).evaluate("story => story.step") for i in range(2)] == [number, number]
        differing = [i for i, (a, b) in enumerate(zip(seen_of(one), seen_of(two), strict=True)) if a != b]
        queues = one.frame.free_order, two.frame.free_order
        first = [queue_place(*queues), queue_place(*queues[::-1])]
        assert [figures.nth(i).evaluate(marked) for i in range(2)] == [sorted({*differing, *ids}) for ids in first]
        told.append(differing)
    assert told[0] == [] and told[-1] != []


def test_a_request_that_comes_back_has_found_its_own_words(open_html):
    """Its first output token has no word, and is the only one that is computed."""
    shown = open_html(page(COUNTED_AGAIN.right(), COUNTED_AGAIN.wrong()), width=1300)
    shown.locator("kv-story").first.evaluate("story => { story.step = 6 }")
    told = [each.locator(".bubble .cost").last.inner_text() for each in shown.locator("kv-story").all()]
    assert told == ["8 found + 0 computed"] * 2


# Opening ------------------------------------------------------------------------------------------------------------


def test_it_opens_as_a_file(show):
    """No server: a double click on the page is enough."""
    shown = show()
    assert shown.locator(".title").inner_text() == "The life of a cached block"
    assert caption(shown) == "Before the first call: every block is free."
    assert shown.locator(".count").inner_text() == "step 0 of 8"


def test_it_opens_from_a_server(open_page, serve, tmp_path):
    """Nothing is asked for but the page, not even an icon."""
    (tmp_path / "story.html").write_text(page(STORY), encoding="utf-8")
    shown = open_page(f"{serve(tmp_path)}/story.html")
    assert shown.locator(".card").count() == 10


def test_without_scripts_the_story_is_told_in_words(show):
    """Every step and the last drawing, in the light DOM."""
    shown = show(java_script_enabled=False)
    shown.locator("summary").click()
    assert shown.locator("ol li").count() == 8
    assert "allocate B: shared 1..7, allocated 9, cached 9" in shown.locator("ol").inner_text()
    assert shown.locator("pre").inner_text() == STORY["drawing"]


def test_the_script_twice_and_elements_that_come_later(show):
    """A notebook sends the script with every figure, and puts figures in by innerHTML."""
    shown = show()
    shown.evaluate(script())
    shown.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", fragment(EVERYTHING))
    assert shown.locator(".title").all_inner_texts() == [STORY["title"], EVERYTHING["title"]]


def test_data_that_was_set_before_the_script_came(open_html):
    """The page may be quicker than its script."""
    shown = open_html("<!doctype html><title>T</title><kv-story></kv-story>")
    live(shown, STORY)
    shown.evaluate(script())
    assert shown.locator(".title").inner_text() == STORY["title"]


def test_the_script_before_the_figures(open_html):
    """The element is known before its story has arrived."""
    head = f"<!doctype html><meta charset=utf-8><title>T</title><script>{script()}</script>"
    shown = open_html(f"{head}{fragment(STORY)}{fragment(EVERYTHING)}")
    assert shown.locator(".title").all_inner_texts() == [STORY["title"], EVERYTHING["title"]]


# The story as text, step by step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scenario_names())
def test_every_step_says_and_shows_what_the_engine_did(show, name):
    """Captions, story lines and the text drawing are those of the terminal."""
    scenario = load_scenario(name)
    shown = show(story_data(scenario))
    shown.locator(".text summary").click()
    for number, played in enumerate(ScenarioPlayer(scenario).play(), start=1):
        go(shown, number)
        assert shown.locator(".say").inner_text() == played.step.say
        assert shown.locator(".lines li").all_inner_texts() == played.lines
        assert shown.locator(".text pre").text_content() == "\n".join(draw_state(played.frame))


@pytest.mark.parametrize("seed", range(4))
def test_any_run_of_the_engine_is_drawn_as_it_was(show, seed):
    """Evictions, resets, misuse, aborts: the folded story has each step's state, cell by cell."""
    (*_, kv) = random_life(seed, snapshots=True)
    data = spans_data(kv.spans, 9, 2, "A random life")
    shown = show(data)
    shown.locator(".text summary").click()
    told = [
        frame
        for index, (span, frame) in enumerate(zip(kv.spans, frames(kv.spans, 9), strict=True), start=1)
        if span.call != "get_computed_blocks" or index == len(kv.spans)
    ]
    assert len(told) == len(data["steps"])
    for number, frame in enumerate(told, start=1):
        go(shown, number)
        assert shown.locator(".text pre").text_content() == "\n".join(draw_state(frame))


# Moving through it --------------------------------------------------------------------------------------------------


def test_the_whole_story_with_the_keyboard_alone(show):
    """Tab to the picture, right arrow through the story, digits for the answers; what is read is what happened."""
    shown = show()
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.querySelector('kv-story').shadowRoot.activeElement.className") == "pic"
    heard = []
    for step in STORY["steps"]:
        shown.keyboard.press("ArrowRight")
        if "predict" in step:
            assert caption(shown) == step["predict"]["ask"]
            shown.keyboard.press(str(step["predict"]["answer"] + 1))
            assert "and that is right." in caption(shown)
        assert step["say"] in caption(shown)
        heard.append(step["do"])
    assert heard == ["prefill A", "prefill B", "free A", "free B", "prefill C", "free C", "prefill D", "free D"]
    assert STORY["ending"] in caption(shown)
    shown.keyboard.press("ArrowRight")
    assert step_of(shown) == 8
    shown.keyboard.press("Home")
    assert step_of(shown) == 0
    shown.keyboard.press("End")
    shown.keyboard.press("ArrowLeft")
    assert step_of(shown) == 7


def test_the_keys_of_the_page_stay_the_pages(show):
    """Outside the figure nothing is taken, and inside only what the figure uses."""
    shown = show()
    shown.evaluate("window.seen = []; addEventListener('keydown', e => seen.push([e.key, e.defaultPrevented]))")
    for key in ("ArrowRight", " ", "End"):
        shown.keyboard.press(key)
    assert step_of(shown) == 0
    button(shown, "Play").focus()
    for key in ("ArrowDown", "PageDown", "Escape", "5"):
        shown.keyboard.press(key)
    assert shown.evaluate("seen") == [
        [key, False] for key in ("ArrowRight", " ", "End", "ArrowDown", "PageDown", "Escape", "5")
    ]


def test_buttons_and_slider(show):
    """Each does what its name says; at the ends they are dead, and keep the focus."""
    shown = show(crowded_run(16, 4, 12))
    for name, step in [
        ("Last step", 12),
        ("Step back", 11),
        ("Step forward", 12),
        ("Step forward", 12),
        ("First step", 0),
    ]:
        button(shown, name).click(force=True)
        assert step_of(shown) == step
    slider = shown.get_by_role("slider", name="Step")
    slider.focus()
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    assert step_of(shown) == 2
    assert slider.get_attribute("aria-valuetext").startswith("step 2 of 12")


def test_play_stops_at_the_question_and_at_the_end(show):
    """The clock is the test's: nothing is waited for."""
    shown = show()
    shown.clock.install()
    button(shown, "Play").click()
    assert step_of(shown) == 1
    shown.clock.run_for(60_000)
    assert step_of(shown) == 1
    assert caption(shown) == STORY["steps"][1]["predict"]["ask"]
    assert button(shown, "Pause").count() == 0
    go(shown, 7)
    button(shown, "Play").click()
    assert step_of(shown) == 8
    assert button(shown, "Play").count() == 1


def test_a_swipe_is_a_step(show):
    """To the left is onwards; up and down is scrolling. On the picture and on the words, and not on the slider."""
    shown = show(**PHONE)
    swipe = """([dx, dy, where]) => {
      const at = (x, y) => new Touch({identifier: 1, target: document.body, clientX: x, clientY: y});
      const part = document.querySelector('kv-story').shadowRoot.querySelector(where), bubbles = true;
      const [from, to] = [at(200, 200), at(200 + dx, 200 + dy)];
      part.dispatchEvent(new TouchEvent('touchstart', {bubbles, touches: [from], changedTouches: [from]}));
      part.dispatchEvent(new TouchEvent('touchend', {bubbles, touches: [], changedTouches: [to]}));
    }"""
    steps: list[int] = []
    for move in ([-80, 5], [-10, 0], [-60, 90], [80, 0], [-80, 0]):
        shown.evaluate(swipe, [*move, ".cap" if len(steps) == 4 else ".pic"])
        steps.append(step_of(shown))
    shown.evaluate(swipe, [80, 0, "input"])
    assert [*steps, step_of(shown)] == [1, 1, 1, 0, 1, 1]


def test_it_tells_the_page_where_it_is(show):
    """An event a step, and one when it asks."""
    shown = show()
    shown.evaluate("window.seen = []; addEventListener('kv-step', e => seen.push(e.detail))")
    for _ in range(3):
        button(shown, "Step forward").click()
    assert shown.evaluate("seen") == [
        {"step": 1, "steps": 8, "asking": False},
        {"step": 1, "steps": 8, "asking": True},
        {"step": 2, "steps": 8, "asking": False},
    ]


# Predictions --------------------------------------------------------------------------------------------------------


def test_a_right_answer_is_confirmed_and_drawn(show):
    """And the question is not asked again."""
    shown = show()
    go(shown, 1)
    button(shown, "Step forward").click()
    button(shown, "1").click()
    assert step_of(shown) == 2
    assert caption(shown).startswith("You said \u201c1\u201d, and that is right.")
    go(shown, 1)
    button(shown, "Step forward").click()
    assert step_of(shown) == 2


def test_a_wrong_answer_shows_what_would_have_had_to_be_true(show):
    """The reader may try again or look; either way nothing is lost."""
    shown = show()
    go(shown, 1)
    button(shown, "Step forward").click()
    button(shown, "8").click()
    assert step_of(shown) == 1
    assert (
        "No. For \u201c8\u201d to be right, every request would have to own all of its blocks"
        in shown.locator(".ask").inner_text()
    )
    assert button(shown, "8").get_attribute("aria-disabled") == "true"
    button(shown, "Show what happens").click()
    assert step_of(shown) == 2
    assert caption(shown).startswith("You said \u201c8\u201d.")


def test_a_question_can_be_skipped(show):
    """By its button, by the next step, by going elsewhere."""
    shown = show()
    go(shown, 1)
    button(shown, "Step forward").click()
    button(shown, "Skip the question").click()
    assert step_of(shown) == 2
    for _ in range(2):
        button(shown, "Step forward").click()
    assert step_of(shown) == 3
    go(shown, 4)
    button(shown, "Step forward").click()
    button(shown, "Step back").click()
    assert step_of(shown) == 3
    assert shown.locator(".ask").is_hidden()


# The picture --------------------------------------------------------------------------------------------------------


def test_a_block_is_one_card_that_moves(show):
    """Ten cards for ten blocks in every step, the same elements all the way, and a shared one is two rows tall."""
    shown = show()
    shown.evaluate("window.cards = new Set()")
    heights = []
    for step in range(9):
        go(shown, step)
        size = shown.evaluate("""() => {
          const all = document.querySelector('kv-story').shadowRoot.querySelectorAll('.card');
          all.forEach(card => cards.add(card));
          return [all.length, cards.size];
        }""")
        assert size == [10, 10]
        heights.append(
            shown.evaluate("document.querySelector('kv-story').shadowRoot.querySelector('#b1 .base').style.height")
        )
    assert heights == ["56px", "56px", "117px", "56px", "56px", "56px", "56px", "56px", "56px"]


@pytest.mark.parametrize(("motion", "moving"), [("no-preference", True), ("reduce", False)])
def test_motion_is_left_out_for_those_who_ask(show, motion, moving):
    """A step moves cards over 0.3 s, or at once."""
    shown = show(reduced_motion=motion)
    running = "document.querySelector('kv-story').shadowRoot.getAnimations().length > 0"
    shown.evaluate("document.querySelector('kv-story').shadowRoot.querySelector('.pic').getBoundingClientRect()")
    button(shown, "Step forward").click()
    assert shown.evaluate(running) is moving


def test_a_block_looked_at(show):
    """What it is, who has it, what is in it, and its life so far."""
    shown = show()
    go(shown, 2)
    shown.locator("#b7").click()
    assert shown.locator(".panel").inner_text().split("\n") == [
        "Block 7", "\u00d7", "held and cached: it can be found", "ref_cnt 2", "held by A, B", "tokens 24..27 of A, B",
        "block hash 7569", "So far:", "step 1: allocated, cached", "step 2: shared",
    ]  # fmt: skip
    go(shown, 5)
    shown.locator(".pic").focus()
    for _ in range(3):
        shown.keyboard.press("ArrowDown")
    assert shown.locator(".panel").inner_text().split("\n") == [
        "Block 10", "\u00d7", "held and cached: it can be found", "ref_cnt 1", "held by C", "tokens 0..3 of C",
        "block hash 3847", "So far:", "step 5: allocated, cached",
    ]  # fmt: skip
    shown.keyboard.press("Escape")
    assert shown.locator(".panel").is_hidden()


# In vLLM's source code -----------------------------------------------------------------------------------------------


def links_of(shown):
    """Return the links to vLLM's code: text, title, address."""
    return [
        [link.inner_text(), link.get_attribute("title"), link.get_attribute("href")]
        for link in shown.locator(".source a").all()
    ]


def test_a_step_links_each_of_its_events_to_vllms_code(show):
    """A step without events has no link. Two kinds of events of one function have one link."""
    shown = show()
    assert links_of(shown) == []
    go(shown, 5)
    places = [LOOKUP, *(EVENTS[kind] for kind in (EdgeKind.ALLOCATED, EdgeKind.EVICTED, EdgeKind.CACHED))]
    kinds = ["lookup", "allocated", "evicted", "cached"]
    assert links_of(shown) == [
        [place.symbol.split(".")[1], f"{kind}: {place.symbol}, {place.file}", place.url]
        for kind, place in zip(kinds, places, strict=True)
    ]
    go(shown, 4)
    assert [title for _, title, _ in links_of(shown)] == ["freed: BlockPool.free_blocks, v1/core/block_pool.py"]
    shown = show({**STORY, "steps": [{"lines": [], "events": "allocated 1, shared 1, unshared 1, freed 1"}]})
    go(shown, 1)
    assert [title for _, title, _ in links_of(shown)] == [
        "allocated: BlockPool.get_new_blocks, v1/core/block_pool.py",
        "shared: BlockPool.touch, v1/core/block_pool.py",
        "unshared, freed: BlockPool.free_blocks, v1/core/block_pool.py",
    ]


def test_a_link_to_vllm_opens_a_new_tab_by_keyboard_and_the_keys_still_step(show):
    """The figure stays in its tab. After a step by key the focus is in the figure, so that the next key works."""
    shown = show()
    shown.context.route("https://github.com/**", lambda route: route.fulfill(body="the code"))
    go(shown, 4)
    shown.locator(".source a").focus()
    with shown.context.expect_page() as opened:
        shown.keyboard.press("Enter")
    opened.value.wait_for_load_state()
    assert opened.value.url == EVENTS[EdgeKind.FREED].url
    opened.value.close()
    shown.bring_to_front()
    assert step_of(shown) == 4
    for number in (3, 2):
        shown.keyboard.press("ArrowLeft")
        assert step_of(shown) == number


def test_a_live_figure_keeps_a_link_that_is_still_right(show):
    """A new step with the same kinds of events does not replace the link that a reader is about to open."""
    steps = [{"lines": [], "events": f"allocated {number}"} for number in (1, 2, 3)]
    shown = show({**STORY, "steps": steps[:1], "at": -1})
    shown.locator(".source a").focus()
    live(shown, {**STORY, "steps": steps[:2], "at": -1})
    assert step_of(shown) == 2
    assert shown.evaluate("document.querySelector('kv-story').shadowRoot.activeElement.innerText") == "get_new_blocks"


def test_an_open_question_has_no_link_and_an_answered_one_has(show):
    """The names of the functions would tell what happens next."""
    shown = show({**STORY, "at": 1})
    before = links_of(shown)
    button(shown, "Step forward").click()
    assert before != [] and links_of(shown) == []
    button(shown, "8").click()
    button(shown, "Show what happens").click()
    assert [text for text, _, _ in links_of(shown)] == [
        "get_computed_blocks",
        "touch",
        "get_new_blocks",
        "cache_full_blocks",
    ]


def test_the_index_shows_evicted_hashes_and_hashes_of_two_blocks(show):
    """The index shows duplicates, and strikes out what this step evicted."""
    shown = show()
    go(shown, 2)
    assert shown.locator(".index li.chg").all_inner_texts() == ["ab86 8 9"]
    go(shown, 5)
    assert shown.locator(".index li.gone").all_inner_texts() == ["ab86 8 9"]
    assert shown.locator("#b9").get_attribute("aria-label") == (
        "Block 9 \u00d71 0d25: held and cached: it can be found, evicted, allocated, cached"
    )


def test_a_story_without_hashes_has_no_index(show):
    """An index that stays empty from beginning to end would only make the reader look for something."""
    assert not show(story_data(load_scenario("one-token-a-box"))).locator(".index").is_visible()
    assert show().locator(".index").is_visible()


def test_windows_tiers_and_a_scheduler_in_the_same_notation(show):
    """One row per group, null blocks hatched, the waiting requests with their reasons, the blocks of a CPU tier."""
    shown = show(EVERYTHING)
    go(shown, 2)
    labels = shown.locator(".row .l").all_text_contents()
    assert labels == ["A.0", "A.1"]
    assert shown.locator(".row .s").all_text_contents() == ["+1", ""]
    assert shown.locator(".nul").count() == 1
    assert shown.locator(".wait li").all_inner_texts() == ["B", "C"]
    go(shown, 3)
    assert shown.locator(".wait li").all_inner_texts() == ["A (preempted)", "B", "C"]
    assert shown.locator(".shelf").all_text_contents() == ["aa11", "bb22"]
    go(shown, 4)
    assert shown.evaluate("""() => document.querySelector('kv-story').shadowRoot.getAnimations()
      .some(one => one.effect.target.matches('.flying'))""")
    assert shown.locator(".shelf").count() == 1
    go(shown, 3)
    assert "CPU: 2 of 4" in shown.locator("svg .tierhead").all_text_contents()


def test_a_learners_mistakes_are_visible(show):
    """A block in no table and not in the queue has a place of its own; one in two places has a ghost."""
    shown = show(
        story_of(
            5,
            {"ref": {"1": "1 2"}, "tables": {"A": ["1 2"], "B": ["2 1"]}, "free": "3 4"},
            {"ref": {"1": "3"}, "tables": {}, "free": "4 1"},
        )
    )
    go(shown, 1)
    assert [ghost.get_attribute("data-id") for ghost in shown.locator(".ghost").all()] == ["2", "1"]
    go(shown, 2)
    assert "In no table and not in the queue" in shown.locator("svg .h").all_text_contents()
    assert shown.locator("#b3").count() == 1
    assert [ghost.get_attribute("data-id") for ghost in shown.locator(".ghost").all()] == ["2", "1", "1"]


def test_a_story_may_begin_in_the_middle_of_a_life(show):
    """With a state to start from, opened at its end."""
    start = {"say": "A is running.", "ref": {"1": "1"}, "tables": {"A": ["1"]}, "free": "2 3", "tok": {"A": 1}}
    shown = show(story_of(4, {"events": "freed 1", "tables": {"A": None}, "free": "1 2 3"}, start=start, at=-1))
    assert step_of(shown) == 1
    go(shown, 0)
    assert caption(shown) == "A is running."
    assert shown.locator("#b1").get_attribute("aria-label") == "Block 1 \u00d71: held, being filled: 1 of 2 slots"


# A story that grows -------------------------------------------------------------------------------------------------


def test_a_live_story_is_followed_to_its_end(show):
    """Who watches the end sees the new step; who looks back is left in peace."""
    data = crowded_run(16, 4, 12)
    shown = show({**data, "steps": data["steps"][:5]})
    go(shown, 5)
    live(shown, {**data, "steps": data["steps"][:6]})
    assert step_of(shown) == 6
    go(shown, 3)
    live(shown, data)
    assert step_of(shown) == 3
    live(shown, STORY)
    assert step_of(shown) == 0


def test_a_live_figure_that_has_grown_plays_what_is_new(show):
    """A notebook's live player hands over the whole story again; the last step is played beat by beat."""
    data = crowded_run(16, 4, 12)
    shown = show({**data, "steps": data["steps"][:5], "at": -1})
    shown.evaluate("""() => {
        window.beats = [];
        document.addEventListener("kv-beat", (event) => window.beats.push(event.detail.step));
    }""")
    live(shown, {**data, "steps": data["steps"][:6], "at": -1})
    assert step_of(shown) == 6
    shown.wait_for_function("() => window.beats.length > 0")
    assert set(shown.evaluate("() => window.beats")) == {6}


# How it looks -------------------------------------------------------------------------------------------------------


CROWDED = """() => [...document.querySelector('kv-story').shadowRoot.querySelectorAll('.card')].filter((card) => {
  const [number, count] = ['.id', '.ref'].map((one) => card.querySelector(one));
  const [left, right] = [number.getBBox(), count.getBBox()];
  const below = count.getAttribute('y') - number.getAttribute('y');
  return count.textContent && below < 12 && right.x - (left.x + left.width) < 3;
}).map((card) => card.getAttribute('aria-label'))"""


@pytest.mark.parametrize("options", [{}, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize(
    "data",
    [STORY, EVERYTHING, story_data(load_scenario("one-question-twice")), crowded_run(64), crowded_run(120)],
    ids=["11 blocks", "everything", "17 blocks", "64 blocks", "120 blocks"],
)
def test_a_number_of_a_block_never_runs_into_its_count(show, data, options):
    """The count of block 10 is 3 px beside its number, or a line below it."""
    shown = show(data, **options)
    for step in range(len(data["steps"]) + 1):
        go(shown, step)
        assert shown.evaluate(CROWDED) == []


@pytest.mark.parametrize("data", [STORY, EVERYTHING, crowded_run(64)], ids=["story", "everything", "64 blocks"])
def test_a_phone_shows_it_without_scrolling_sideways(show, data):
    """390 px wide, and no text under 11 px."""
    shown = show(data, **PHONE)
    for step in (0, 1, 2, 3):
        go(shown, step)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        smallest = shown.evaluate("""() => Math.min(...[...document.querySelector('kv-story').shadowRoot
          .querySelectorAll('text, p, li, button, span, summary, code, pre')]
          .filter(one => one.textContent.trim()).map(one => parseFloat(getComputedStyle(one).fontSize)))""")
        assert smallest >= 11
        outside = shown.evaluate("""() => [...document.querySelector('kv-story').shadowRoot
          .querySelectorAll('.card, .cell, button, li, text')]
          .filter(one => one.getBoundingClientRect().right > 390.5).length""")
        assert outside == 0


IN_SIGHT = """() => {
  const story = document.querySelector('kv-story'), root = story.shadowRoot;
  const box = (part) => root.querySelector(part).getBoundingClientRect();
  const [picture, forward] = [box('.pic'), box('[title="Step forward"]')];
  return {covered: Math.max(0, Math.round(picture.bottom - box('.said').top)),
          below: Math.max(0, Math.round(forward.bottom - innerHeight)),
          button: Math.min(forward.width, forward.height) >= 44};
}"""


@pytest.mark.parametrize("name", ["share-and-evict", "asked-twice", "passers-by"])
def test_a_phone_has_picture_words_and_buttons_on_one_screen(show, name):
    """In each step and at each question, below a header of 48 px. A long caption scrolls by itself."""
    data = {**story_data(load_scenario(name)), "at": 0}
    shown = show(data, **PHONE)
    shown.evaluate("document.body.style.paddingBottom = '800px'")
    shown.evaluate("scrollBy(0, document.querySelector('kv-story').getBoundingClientRect().top - 48)")
    for number in range(len(data["steps"]) + 1):
        go(shown, number)
        for _ in range(2):  # the second time at the question, if the step asks one
            assert shown.evaluate(IN_SIGHT) == {"covered": 0, "below": 0, "button": True}
            if step_of(shown) == number:
                button(shown, "Step forward").click(force=True)
    assert shown.locator(".index ul").is_hidden()


def test_a_phone_keeps_the_buttons_at_its_edge_while_the_picture_is_seen(show):
    """The picture begins in the middle of the screen, and the words and the buttons are not below it."""
    shown = show(story_data(load_scenario("asked-twice")), **PHONE)
    shown.evaluate("document.body.style.padding = '400px 0 800px'")
    assert shown.evaluate(IN_SIGHT)["below"] == 0


@pytest.mark.parametrize("width", [720, 850, 940])
@pytest.mark.parametrize("name", ["asked-twice", "share-and-evict", "two-holders", "who-runs-next"])
def test_a_notebook_shows_the_buttons_and_the_picture_without_scrolling(open_html, name, width):
    """JupyterLab in a window of 1280 x 700 has 560 px for a cell's output. The buttons are above or beside."""
    cell = f"<div style='width: {width}px'>{fragment(story_data(load_scenario(name)))}</div>"
    shown = open_html(f"<meta charset=utf-8>{cell}<script>{script()}</script>", width=1280, height=560)
    forward, queue = (shown.locator(one).bounding_box() for one in ("[title='Step forward']", ".lead"))
    assert forward["y"] + forward["height"] <= 300
    assert queue["y"] + queue["height"] <= 560


def test_orange_is_only_what_this_step_changed(show):
    """Before the first step there is none. A step has it in frames and signs."""
    shown = show()
    found = """(orange) => [...new Set([...document.querySelector('kv-story').shadowRoot.querySelectorAll('.stage *')]
      .filter((one) => one.checkVisibility() && !one.closest('.key') &&
        ['fill', 'stroke', 'backgroundColor', 'borderTopColor'].some((way) => getComputedStyle(one)[way] === orange))
      .map((one) => one.closest('.sign') ? 'sign' : one.closest('.cell') ? 'cell' : one.className.baseVal))]"""
    assert shown.evaluate(found, "rgb(182, 69, 0)") == []
    go(shown, 4)
    assert sorted(shown.evaluate(found, "rgb(182, 69, 0)")) == ["cell", "ring", "sign"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_tag_is_grey_and_can_be_read(show, dark):
    """Its text has at least 4.5 times the contrast, as WCAG counts."""
    shown = show(dark=dark)
    go(shown, 4)
    fills = """() => ['.tag', '.tagtext'].map((part) => {
      const one = document.querySelector('kv-story').shadowRoot.querySelector(`#b1 ${part}`);
      return getComputedStyle(one).fill.match(/\\d+/g).map(Number);
    })"""
    tag, text = shown.evaluate(fills)
    light, dim = (((one[0] / 255 + 0.055) / 1.055) ** 2.4 + 0.05 for one in (tag, text))  # of a grey
    assert [len({*tag}), len({*text})] == [1, 1]
    assert light / dim >= 4.5


def test_a_tag_shows_whose_the_block_is_where_the_story_has_words(show):
    """Elsewhere the beginning of the block hash. A phone's small cards have a strip, and its label the same words."""
    shown = show(story_data(load_scenario("asked-twice")))
    assert {*shown.locator(".card .tagtext").all_text_contents()} == {"first", ""}
    assert show().locator("#b1 .tagtext").text_content() == ""
    small = show(story_data(load_scenario("asked-twice")), **PHONE)
    assert {*small.locator(".card .tagtext").all_text_contents()} == {""}
    assert small.locator("#b1").get_attribute("aria-label").startswith("Block 1 \u00d71 first: held and cached")
    assert small.locator("#b1 .tag").bounding_box()["height"] < 10


@pytest.mark.parametrize(
    "options", [{}, {"dark": True}, PHONE, {**PHONE, "dark": True}], ids=["light", "dark", "phone", "phone, dark"]
)
def test_nothing_serious_for_those_who_cannot_see_or_point(show, axe, options):
    """axe-core, on the picture, on a question, on a wrong answer, on a block looked at."""
    shown = show(reduced_motion="reduce", **options)
    assert axe(shown) == []
    go(shown, 1)
    button(shown, "Step forward").click()
    assert axe(shown) == []
    button(shown, "8").click()
    assert axe(shown) == []
    go(shown, 5)
    shown.locator("#b9").click()
    for box in ("how", "text"):
        shown.locator(f".{box} summary").click()
    assert axe(shown) == []


def test_it_is_dark_where_the_page_is_dark(show):
    """The page's own theme counts: Material's, Jupyter's, or just light text."""
    shown = show()
    is_dark = "document.querySelector('kv-story').shadowRoot.querySelector('.fig').classList.contains('dark')"
    assert shown.evaluate(is_dark) is False
    for change, dark in [
        ("document.body.setAttribute('data-md-color-scheme', 'slate')", True),
        ("document.body.setAttribute('data-md-color-scheme', 'default')", False),
        ("document.body.removeAttribute('data-md-color-scheme')", False),
        ("document.body.setAttribute('data-jp-theme-light', 'false')", True),
        ("document.body.removeAttribute('data-jp-theme-light')", False),
        ("document.body.style.color = '#eee'", True),
    ]:
        shown.evaluate(change)
        shown.wait_for_function(f"() => ({is_dark}) === {str(dark).lower()}")


def test_on_paper_it_is_the_step_that_tells_most_if_none_was_chosen(show):
    """Lab-05's story is printed where blocks are revived and one is evicted; on the screen it stands where it stood."""
    data = story_data(load_scenario("share-and-evict"))
    shown = show(data)
    key = key_step(data)
    assert "evicted" in data["steps"][key - 1]["events"]
    for media, step in (("screen", 1), ("print", key), ("screen", 1)):
        shown.emulate_media(media=media)
        shown.wait_for_function(f"() => document.querySelector('kv-story').step === {step}")
    go(shown, 2)
    shown.emulate_media(media="print")
    assert shown.locator(".bar").is_hidden()
    assert shown.locator(".say").is_visible()
    assert shown.locator("kv-story").evaluate("one => one.step") == 2


def test_in_chinese(show):
    """The interface follows the story's language, or the page's."""
    shown = show({**STORY, "lang": "zh"})
    assert button(shown, "播放").count() == 1
    assert shown.locator(".count").inner_text() == "第 0 步\uff0c共 8 步"
    go(shown, 4)
    assert shown.locator(".source span").inner_text() == "vLLM 源码\uff1a"
    assert [title for _, title, _ in links_of(shown)] == ["释放\uff1aBlockPool.free_blocks, v1/core/block_pool.py"]


# Broken on purpose --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the data is not a JSON object"),
        (None, "the data is not a JSON object"),
        ({"version": 2}, "it has version 2, and this script reads version 1"),
        ({**STORY, "num_blocks": -1}, "num_blocks is -1"),
        ({**STORY, "steps": "none"}, "steps is none"),
        ({**STORY, "steps": [None]}, "steps[0] is null"),
        ({**STORY, "steps": [{"free": "1 12"}]}, "step 1 names block 12, but there are only 11 blocks"),
        ({**STORY, "steps": [{"free": "1 x"}]}, "ids is 1 x"),
        ({**STORY, "steps": [{"predict": {"ask": "?"}}]}, 'steps[0] is {"predict":{"ask":"?"}}'),
    ],
)
def test_a_story_that_cannot_be_drawn_says_why(show, data, message):
    """In the figure, without an exception; and a good story afterwards is drawn."""
    shown = show()
    live(shown, data)
    assert shown.get_by_role("alert").inner_text() == f"This figure cannot be drawn: {message}"
    live(shown, STORY)
    assert shown.locator(".card").count() == 10


def test_a_run_that_stopped_before_its_first_call_says_how_it_ended(show):
    """A learner's first attempt: no step, and a message of several lines."""
    shown = show(story_of(3, ending="NotImplementedError:\n  lab-05"))
    assert shown.locator(".end").inner_text() == "NotImplementedError:\n  lab-05"
    for name in ("Step forward", "Play", "Last step"):
        button(shown, name).click(force=True)
    assert step_of(shown) == 0


def test_json_that_is_no_json_says_so(open_html):
    """A cut-off file."""
    shown = open_html(page(STORY).replace('"drawing"', "drawing"))
    assert shown.get_by_role("alert").inner_text().startswith("This figure cannot be drawn: ")


@pytest.mark.parametrize("num_blocks", [0, 1, 2, 1000])
def test_pools_of_any_size(show, num_blocks):
    """Nothing at all, the null block alone, one block, very many."""
    shown = show(story_of(num_blocks, {"do": "nothing"}))
    button(shown, "Step forward").click()
    assert shown.locator(".card").count() == max(0, num_blocks - 1)
    assert shown.locator(".cell").count() == (num_blocks if num_blocks < 150 else 2)  # the null block's, and the rest
    shown.locator(".pic").focus()
    shown.keyboard.press("ArrowDown")


# How fast -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_blocks", "yardsticks"), [(64, 4), (1000, 11)])
def test_a_step_is_drawn_in_time(show, num_blocks, yardsticks):
    """A step takes the time of so many yardsticks, or four times that: a yardstick is 400 new words of SVG, laid out.

    Each is measured four times, and the best counts. On a quiet machine a yardstick takes 4.5 ms.
    """
    shown = show(crowded_run(num_blocks))
    *times, yardstick = shown.evaluate(
        """() => {
      const story = document.querySelector('kv-story');
      const laidOut = () => document.documentElement.getBoundingClientRect();
      const svg = document.body.appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'svg'));
      const word = (i) => {
        const text = document.createElementNS(svg.namespaceURI, 'text');
        text.textContent = `word ${i}`;
        return text;
      };
      const measures = [() => { story.step = 0 }];
      for (let step = 1; step <= 60; step += 3) measures.push(() => { story.step = step });
      measures.push(() => { svg.replaceChildren(...Array.from({length: 400}, (_, i) => word(i))); svg.getBBox() });
      const best = Array(measures.length).fill(Infinity);
      for (let round = 0; round < 4; round++) {
        measures.forEach((measure, i) => {
          const start = performance.now();
          measure();
          laidOut();
          best[i] = Math.min(best[i], performance.now() - start);
        });
        svg.replaceChildren();
      }
      return best.slice(1);
    }"""
    )
    print(f"{num_blocks} blocks: a step takes {max(times):.1f} ms at most, {sorted(times)[10]:.1f} ms usually")
    print(f"the yardstick: {yardstick:.1f} ms")
    assert max(times) < 4 * yardsticks * yardstick
