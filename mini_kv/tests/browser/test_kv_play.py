"""The page "Play" in a real browser: a model in JavaScript, the same words as PyTorch's, steps back, an address."""

import importlib
import json
import random
from pathlib import Path

import pytest

from mini_kv import engine
from mini_kv.cli import main
from mini_kv.course.lessons.exhibits import HEADS, TAILS
from mini_kv.course.lessons.play import Levers, Play
from mini_kv.engine.tokenizer import Tokenizer

DOCS = Path(__file__).parents[3] / "book" / "docs"
ENGINE = Path(engine.__path__[0])
PHONE = {"width": 390, "height": 844, "has_touch": True}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """A page with the element, made by the book's fence from the book's own cases, and one without Python."""
    elements, outputs = map(importlib.import_module, ("mini_kv_book.elements", "mini_kv_book.outputs"))
    body = (DOCS / "play.md").read_text(encoding="utf-8").split("```kv-play\n")[1].split("\n```")[0]
    cases = elements.cases_of(body)
    first = outputs.result_of(elements.run_play, body.strip())
    index, bare = (f"<h2>The engine</h2>{elements.play(cases, first, size)}" for size in (megabytes, None))
    return write_site("Play", index=index, bare=bare)


@pytest.fixture(scope="module")
def warm(site, open_warm):
    """A function that shows the page, in the window that these tests share."""
    return open_warm(site, "index.html")


@pytest.fixture
def show(warm):
    """A function that shows the page with an address."""
    return lambda fragment="", **options: warm(f"index.html{fragment}", **options)


@pytest.fixture
def runner(show):
    """A function that makes the page's runner for a small model, and returns its `execute`."""
    page = show()

    def make(model, levers, groups):
        page.evaluate(
            """async ([model, numBlocks, blockSize, groups]) => {
              const { readWeights, Runner } = await import("./assets/kv_runner.js");
              const fetched = (name) => fetch(`./assets/kv-lab/${model}/${name}`);
              const config = await (await fetched("config.json")).json();
              const weights = readWeights(await (await fetched("model.safetensors")).arrayBuffer());
              window.runner = new Runner(config, weights, { numBlocks, blockSize, groups });
            }""",
            [model, levers.num_blocks + 1, levers.block_size, groups],
        )
        return lambda plan: page.evaluate("plan => window.runner.execute(plan)", plan)

    return make


def box(page, name):
    return page.get_by_role("region", name=f"Text {name}")


def text_of(page, name):
    return box(page, name).locator(".said").text_content()


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def choose_example(page, name):
    page.get_by_label("Example").select_option(label=name)


def status(page):
    return page.locator("kv-play .status").inner_text()


def counters(page):
    """Return the numbers above the figure by their names."""
    names, values = (page.locator(f"kv-play .counters {tag}").all_inner_texts() for tag in ("dt", "dt + dd"))
    return dict(zip(names, values, strict=True))


def wait_for_step(page, number):
    page.wait_for_function(
        "n => document.querySelector('kv-play').shadowRoot?.querySelector('.counters dd')?.textContent === String(n)",
        arg=number,
        timeout=60_000,
    )


def make_steps(page, first, last):
    for number in range(first, last + 1):
        press(page, "One step")
        wait_for_step(page, number)


def run_to_the_end(page):
    page.get_by_label("Speed", exact=True).select_option("fast")
    press(page, "Run")
    page.get_by_text("Send another text.").wait_for(timeout=120_000)


def generated(prompts, max_tokens, model="tiny"):
    """Return each prompt with the text after it, as `mini-kv generate --temperature 0` does."""
    pytest.importorskip("torch", reason="the words of the small model need PyTorch: make test")
    from mini_kv.engine.llm import LLM
    from mini_kv.engine.sampling import SamplingParams

    outputs = LLM(ENGINE / model).generate(prompts, SamplingParams(max_tokens=max_tokens, temperature=0))
    return [prompt + output.outputs[0].text for prompt, output in zip(prompts, outputs, strict=True)]


@pytest.mark.parametrize(
    ("model", "levers"),
    [
        ("tiny", Levers(num_blocks=24)),
        ("tiny", Levers(num_blocks=24, enable_caching=False)),
        ("tiny", Levers(num_blocks=40, block_size=4, max_num_batched_tokens=8)),
        ("tiny_windows", Levers(num_blocks=100, max_tokens=64)),
    ],
    ids=["caching", "no caching", "small blocks and steps", "windows"],
)
def test_the_model_in_javascript_says_what_pytorch_says(model, levers, runner):
    """20 prompts at once, in a pool that preempts: the texts are those of an engine with plenty of memory."""
    chance = random.Random(1)
    prompts = [chance.choice(HEADS) + chance.choice(TAILS) + chance.choice(TAILS) for _ in range(20)]
    folder = ENGINE / model
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    play = Play(Tokenizer.from_file(folder / "tokenizer.json", config["eos_token_id"]), config, levers)
    for number, prompt in enumerate(prompts):
        play.send(chr(ord("a") + number), prompt)
    execute = runner(model, levers, play.groups)
    while (plan := play.plan()) is not None:
        play.take(execute(plan))
    assert [box.text for box in play.boxes.values()] == generated(prompts, levers.max_tokens, model)
    assert play.scheduler.num_preemptions > 5


def test_two_texts_share_a_beginning_and_are_written(show):
    page = show()
    prompts = [box(page, name).locator("textarea").input_value() for name in "AB"]
    run_to_the_end(page)
    assert [text_of(page, name) for name in "AB"] == generated(prompts, 24)
    assert box(page, "A").locator(".small").inner_text() == "0 of 26 tokens found in the cache; its answer is complete"
    assert box(page, "B").locator(".small").inner_text() == "16 of 28 tokens found in the cache; its answer is complete"
    assert prompts[1].startswith(box(page, "B").locator("mark").inner_text())
    assert counters(page)["blocks held"] == "0 of 20"
    assert status(page) == "B computed 12 of its 28 tokens: 16 were found in 2 of A's blocks. Send another text."


@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_move_needs_no_python_and_python_goes_on_from_the_record(width, site, serve, open_page):
    """The first run is recorded. It moves within a second of the load; the reader's next words are computed."""
    page = open_page("about:blank", width=width)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{serve(site)}/index.html")
    assert not any("kv-lab" in url for url in asked)
    press(page, "One step")
    assert page.wait_for_function(
        "() => document.querySelector('kv-play').shadowRoot.querySelector('.counters dd')?.textContent === '1' "
        "&& performance.now()"
    ).json_value() < 1_000 + page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert "16 found + 6 computed" in page.locator("kv-story .bubble").nth(1).inner_text()
    run_to_the_end(page)
    before, other = text_of(page, "A"), text_of(page, "B")
    box(page, "A").locator("textarea").fill(" Then it rains.")
    box(page, "A").locator("textarea").press("Enter")
    wait_for_step(page, 25)
    box(page, "A").get_by_text("it waits").wait_for(timeout=60_000)
    run_to_the_end(page)
    assert text_of(page, "A") == generated([before + " Then it rains."], 24)[0]
    assert text_of(page, "B") == other
    assert "of its own blocks" in status(page)


def test_without_a_hit_the_end_says_so(show):
    page = show("#a=Blocks%20are%20free.&max_tokens=8")
    run_to_the_end(page)
    sentence = "Nothing was found in the cache: no text begins with a whole block of another one."
    assert status(page) == f"{sentence} Send another text."


def test_the_pool_is_drawn_before_the_first_step_and_follows_its_slider(show):
    page = show()
    page.get_by_label("Blocks in the pool").fill("12")
    page.get_by_text("12 blocks of 8 tokens").wait_for()
    press(page, "One step")
    wait_for_step(page, 1)
    figure = page.locator("kv-story")
    figure.get_by_text("step 1 of 1").wait_for()
    figure.get_by_role("slider").fill("0")
    figure.get_by_text("step 0 of 1").wait_for()
    press(page, "One step")
    figure.get_by_text("step 2 of 2").wait_for()
    assert figure.get_by_role("button", name="forward").count() == 0  # one row of buttons makes steps


def test_a_prompt_that_takes_two_steps_is_shown_whole_from_the_first(show):
    """B's 16 shared tokens are found, and the step's last 6 tokens are B's. The next step computes the other 6."""
    page = show()
    make_steps(page, 1, 1)
    bubble = page.locator("kv-story .bubble").nth(1)
    assert "The trees are green and" in bubble.inner_text() and "16 found + 6 computed" in bubble.inner_text()
    said = "16 of 28 tokens found in the cache; its prompt is being computed"
    assert box(page, "B").locator(".small").inner_text() == said
    make_steps(page, 2, 2)
    assert "16 found + 12 computed" in bubble.inner_text()
    assert box(page, "B").locator(".small").inner_text() == "16 of 28 tokens found in the cache; the model writes"


def test_the_next_words_find_the_text_before_them(show):
    page = show()
    box(page, "A").locator("textarea").fill("A block is free when")
    box(page, "B").locator("textarea").fill("")
    run_to_the_end(page)
    before = text_of(page, "A")
    box(page, "A").locator("textarea").fill(" Then it runs.")
    box(page, "A").locator("textarea").press("Enter")
    run_to_the_end(page)
    assert text_of(page, "A") == generated([before + " Then it runs."], 24)[0]
    assert box(page, "A").locator("mark").inner_text() in before


def test_a_step_back_is_a_step_that_was_not_made(show):
    """Texts, counters and the drawing are those of before; the steps after it compute the same again."""
    page = show()
    make_steps(page, 1, 4)
    before, drawn = counters(page), page.locator("kv-story svg").first.inner_html()
    make_steps(page, 5, 6)
    assert counters(page) != before
    press(page, "Undo step")
    wait_for_step(page, 5)
    press(page, "Undo step")
    wait_for_step(page, 4)
    assert (counters(page), page.locator("kv-story svg").first.inner_html()) == (before, drawn)
    prompt = page.evaluate("document.querySelector('kv-play').shadowRoot?.querySelector('.said').firstChild.data ?? ''")
    run_to_the_end(page)
    texts = [text_of(page, name) for name in "AB"]
    press(page, "From the start")
    page.wait_for_function("() => document.querySelector('kv-play').shadowRoot?.querySelector('.said')?.hidden")
    run_to_the_end(page)
    assert [text_of(page, name) for name in "AB"] == texts
    assert prompt == ""


def test_an_address_holds_texts_and_steps(show):
    page = show()
    page.get_by_label("Tokens per block").select_option("4")
    page.wait_for_timeout(100)
    make_steps(page, 1, 3)
    press(page, "Stop A")
    box(page, "A").get_by_text("was stopped").wait_for()
    make_steps(page, 4, 5)
    before = counters(page), text_of(page, "A"), text_of(page, "B")
    page.wait_for_function("() => location.hash.includes('steps=5')")
    again = show("#" + page.url.partition("#")[2])
    wait_for_step(again, 5)
    box(again, "A").get_by_text("was stopped").wait_for()
    assert (counters(again), text_of(again, "A"), text_of(again, "B")) == before
    assert again.get_by_label("Tokens per block").input_value() == "4"


def test_an_address_that_a_person_writes_has_a_text_per_box(show):
    page = show("#a=The%20cache%20counts%20%26%20keeps&b=The+cache+counts&max_tokens=8")
    assert [box(page, name).locator("textarea").input_value() for name in "ABC"] == [
        "The cache counts & keeps",
        "The cache counts",
        "",
    ]
    assert page.get_by_label("Tokens of an answer").input_value() == "8"
    assert page.get_by_label("Example").input_value() == ""


def test_a_changed_setting_is_in_the_address_at_once_with_the_texts_that_wait(show):
    page = show()
    box(page, "A").locator("textarea").fill("The cache counts blocks")
    page.get_by_label("Tokens per block").select_option("4")
    page.wait_for_function("() => location.hash.includes('block_size=4')", timeout=5_000)
    again = show("#" + page.url.partition("#")[2])
    again.wait_for_function(
        "() => document.querySelector('kv-play').shadowRoot?.querySelector('#block_size')?.value === '4'", timeout=5_000
    )
    assert box(again, "A").locator("textarea").input_value() == "The cache counts blocks"
    assert status(again).startswith("Press Run")


def test_a_case_that_is_chosen_is_in_the_address(show):
    page = show()
    assert page.url.partition("#")[2] == ""
    choose_example(page, "Layers that see 32 tokens")
    page.wait_for_function("() => location.hash.includes('model=tiny_windows')", timeout=5_000)


def test_the_address_holds_the_run_although_a_heading_was_visited(show):
    page = show()
    make_steps(page, 1, 2)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("location.hash = 'the-engine'")
    page.wait_for_function("() => location.hash.includes('steps=2')", timeout=5_000)
    press(page, "Copy its address")
    page.get_by_text("Copied: your texts and steps are in the address.").wait_for()
    assert "steps=2" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("#done=nonsense", "Press Run: the texts are sent"),
        ('#steps=3&done=[[0,"fly","a","x"]]', "Press Run: the texts are sent"),
        ("#num_blocks=many&steps=1&done=[]", "num_blocks is 'many', it must be a number from 1 to 9999"),
        ('#steps=1&done=[[0,"send","a",""]]', "box A has no text"),
    ],
)
def test_an_address_of_something_else_is_refused_with_a_sentence(fragment, said, show):
    page = show(fragment)
    page.wait_for_function(
        "said => document.querySelector('kv-play').shadowRoot?.querySelector('.status')?.textContent.includes(said)",
        arg=said,
        timeout=60_000,
    )


def test_a_run_is_copied_as_a_frame_and_shown_in_another_page(show, site, serve, open_page):
    page = show()
    make_steps(page, 1, 2)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press(page, "Copy it as a frame")
    page.get_by_text("Copied: your texts and steps are in the address.").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    head = '<!doctype html><title>Elsewhere</title><link rel="icon" href="data:,">'
    (site / "outer.html").write_text(f"{head}<h1>Elsewhere</h1>{copied}", encoding="utf-8")
    outer = open_page(f"{serve(site)}/outer.html")
    frame = outer.frame_locator("iframe")
    frame.get_by_text("step 2 of 2").wait_for(timeout=60_000)
    assert frame.locator(".said").nth(0).text_content() == text_of(page, "A")
    assert frame.locator("html.kv-embedded").count() == 1


def test_what_cannot_be_sent_is_said_and_stays_in_its_box(show):
    page = show()
    words = "block " * 700
    box(page, "A").locator("textarea").fill(words)
    press(page, "Send A")
    page.get_by_text("max_model_len is 512").wait_for(timeout=60_000)
    assert box(page, "A").locator("textarea").input_value() == words
    press(page, "Send C")
    page.get_by_text("Write some words for C first.").wait_for()
    box(page, "A").locator("textarea").fill("")
    make_steps(page, 1, 1)


def test_a_lever_starts_again_with_the_texts(show):
    page = show()
    make_steps(page, 1, 3)
    page.get_by_label("Prefix caching").select_option("false")
    page.wait_for_function(
        "() => document.querySelector('kv-play').shadowRoot?.querySelector('.counters')?.children.length === 0"
    )
    run_to_the_end(page)
    assert counters(page)["found in the cache"] == "0 %"


def test_each_case_shows_what_its_button_says(show):
    page = show()
    for case, counter in (
        ("Ten blocks for three texts: which blocks are evicted?", "evicted"),
        ("Too few blocks: which text must wait?", "preempted"),
    ):
        choose_example(page, case)
        run_to_the_end(page)
        assert int(counters(page)[counter]) > 0
    assert "is preempted, its blocks are freed, and it waits" in page.get_by_label("What happened").inner_text()
    choose_example(page, "Layers that see 32 tokens")
    make_steps(page, 1, 2)
    assert page.locator("kv-story").get_by_text("window 32").count() > 0


def test_a_saved_run_plays_in_the_terminal(show, tmp_path, capsys):
    page = show()
    make_steps(page, 1, 3)
    with page.expect_download() as download:
        press(page, "Save this run")
    download.value.save_as(tmp_path / "play.json")
    assert main(["story", str(tmp_path / "play.json")]) == 0
    assert "step 3" in capsys.readouterr().out


def test_a_reader_who_presses_at_random_leaves_no_block_behind(show):
    """Sends, stops, clears, steps and steps back in any order: no error, and at the end nothing is held."""
    chance = random.Random(3)
    page = show()
    for _ in range(60):
        name = chance.choice("ABC")
        wanted = chance.choice([f"Send {name}", f"Stop {name}", f"Clear {name}", "Undo step", "One step", "One step"])
        if wanted.startswith("Send"):
            box(page, name).locator("textarea").fill(chance.choice(HEADS) + chance.choice(TAILS))
        wanted_button = page.get_by_role("button", name=wanted, exact=True, include_hidden=True)
        wanted_button.evaluate("button => button.click()")  # if it is enabled
        page.wait_for_timeout(40)
    run_to_the_end(page)
    assert counters(page)["blocks held"] == "0 of 20"


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_can_be_read(dark, site, serve, open_page, axe):
    page = open_page(f"{serve(site)}/index.html", dark=dark, reduced_motion="reduce", **PHONE)  # at rest
    make_steps(page, 1, 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert axe(page) == []


def test_on_a_phone_texts_pool_and_buttons_are_on_one_screen(site, serve, open_page):
    """The buttons and the pool, a square per block, stay in sight when the reader goes down to the figure."""
    page = open_page(f"{serve(site)}/index.html", **PHONE)
    squares = page.locator("kv-play .pool i")
    run = page.get_by_role("button", name="Run", exact=True)
    texts = [box(page, name).locator("textarea") for name in "AB"]
    run.scroll_into_view_if_needed()
    for part in (run, squares.last, *texts):
        place = part.bounding_box()
        assert place["y"] >= 0 and place["y"] + place["height"] <= PHONE["height"]
    assert texts[1].bounding_box()["y"] < page.locator("kv-story").bounding_box()["y"]
    make_steps(page, 1, 1)
    states = squares.evaluate_all("squares => squares.map(square => square.className)")
    assert states == ["shared"] * 2 + ["held"] * 3 + ["free"] * 15
    page.locator("kv-story").evaluate("figure => figure.scrollIntoView()")
    assert 0 <= page.get_by_role("button", name="One step").bounding_box()["y"] < 100


def test_without_python_the_texts_and_a_command_are_there(site, serve, open_page):
    page = open_page(f"{serve(site)}/bare.html", java_script_enabled=False)
    said = page.locator("kv-play").inner_text()
    assert "You help people in a small garden" in said and said.strip().endswith("mini-kv serve")
