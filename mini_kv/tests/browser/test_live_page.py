"""The page of `mini-kv serve` in a real browser: two prompts are sent, and the blocks that they share are seen."""

import json

import pytest

from mini_kv.story.figure import page as page_of

pytest.importorskip("uvicorn", reason="the live page: `make test` gets what the server needs")
Endpoint = pytest.importorskip("mini_kv.tests.serve.endpoint", reason="the live page needs torch").Endpoint

pytestmark = pytest.mark.browser

PROMPT = "The cache remembers what it has read, and a block is free when the last request lets go of it."
"""26 tokens, three blocks and two tokens; to this the small model has much to say."""
PHONE = {"width": 390, "height": 844, "has_touch": True}


@pytest.fixture
def live(open_page):
    """A function that starts a server and opens its page."""
    made, pages = [], []

    def opened(step_ms=40, key=None, **options):
        made.append(Endpoint(step_ms=step_ms, keys=() if key is None else [key]))
        shown = open_page(f"http://127.0.0.1:{made[-1].port}/", **options)
        pages.append(shown)
        if key is None:
            shown.get_by_text("live", exact=True).wait_for()
        return shown

    yield opened
    for shown in pages:
        shown.goto("about:blank")  # or it would look for the server again
    for endpoint in made:
        endpoint.end()


def send(shown, prompt, tokens):
    shown.get_by_label("Prompt").fill(prompt)
    shown.get_by_label("Tokens of the answer").fill(str(tokens))
    shown.get_by_role("button", name="Send").click()


def picture(shown):
    return shown.locator("kv-story .pic").first.inner_text()


@pytest.mark.parametrize("options", [{}, {"dark": True, **PHONE}])
def test_two_prompts_are_sent_and_share_their_blocks(live, axe, options):
    shown = live(step_ms=200, **options)  # each step is told alone, B's first one too
    send(shown, PROMPT, 400)
    shown.locator("#requests li.runs").wait_for()
    send(shown, f"{PROMPT} What else?", 4)
    shown.get_by_text("of your 29 tokens were in the cache").wait_for()
    assert "(24 of your 29 tokens were in the cache)" in shown.locator("form output").inner_text()
    shown.locator("#requests li", has_text="B, 24 of 29 tokens found").wait_for()
    assert shown.locator("#requests li", has_text="B, 24 of 29").locator("mark").inner_text() in PROMPT
    story = shown.evaluate("document.querySelector('kv-story').data")
    shared = [step["say"] for step in story["steps"] if "shared 1..3" in step["events"]]
    assert shared == ["B arrives with 29 tokens. B finds 24 tokens in the cache."]
    assert shown.evaluate("document.body.scrollWidth <= innerWidth")
    shown.get_by_role("button", name="Pause the figure").click()  # words that change under the checker have two texts
    assert axe(shown) == []


WATCHED_EVENTS = """const ask = fetch;
globalThis.fetch = async (address, options) => {
  const response = await ask(address, options);
  if (address !== "/events") return response;
  const watch = new TransformStream({
    start(pipe) { globalThis.pipe = pipe; },
    transform(piece, pipe) {
      globalThis.lastMessage = new TextDecoder().decode(piece);
      pipe.enqueue(piece);
    },
  });
  return new Response(response.body.pipeThrough(watch), response);
}"""
TWENTY_AT_ONCE = """async () => {
  let numDrawn = 0;
  new MutationObserver(() => { numDrawn += 1; }).observe(document.querySelector("#requests"), { childList: true });
  for (let number = 1; number <= 20; number += 1) {
    pipe.enqueue(new TextEncoder().encode(lastMessage.replace('"length"', `"number ${number}"`)));
    await Promise.resolve();
  }
  await new Promise((done) => setTimeout(done, 500));
  return [numDrawn, document.querySelector("#requests .what").textContent];
}"""


def test_a_slow_browser_draws_the_last_of_the_steps_that_wait(live):
    shown = live(init_script=WATCHED_EVENTS)
    send(shown, PROMPT, 2)
    shown.locator("#requests li", has_text="A, 0 of 26 tokens found, length").wait_for()
    assert shown.evaluate(TWENTY_AT_ONCE) == [1, "A, 0 of 26 tokens found, number 20"]


def test_the_picture_can_be_held_by_keyboard_and_goes_on(live):
    shown = live()
    hold = shown.get_by_role("button", name="Pause the figure")
    hold.focus()
    shown.keyboard.press("Enter")
    assert hold.get_attribute("aria-pressed") == "true"
    send(shown, PROMPT, 4)
    shown.locator("form output", has_text="were in the cache").wait_for()
    assert shown.locator("#requests li").count() == 0
    hold.press("Enter")
    shown.locator("#requests li", has_text="A, 0 of 26 tokens found, length").wait_for()


def test_an_error_is_a_sentence_and_a_text_stays_a_text(live):
    shown = live()
    send(shown, "<img src=x onerror=alert(1)>", 2)
    shown.locator("#requests li", has_text="<img src=x").wait_for()
    error = {"error": {"message": "the engine's step failed: RuntimeError: a kernel"}}
    body = f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n"
    shown.route("**/v1/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    send(shown, "a", 1)
    shown.locator("form output", has_text="the engine's step failed: RuntimeError: a kernel").wait_for()


OWN_REFUSAL = """const ask = fetch;
globalThis.fetch = (address, options) =>
  options.headers.Authorization === "Bearer not-the-key" ? new Response("", { status: 401 }) : ask(address, options);
"""
"""The server's refusal without the line that a browser writes on its console for it."""


def test_with_a_key_the_page_asks_for_it_and_sends_it_with_every_request(live, axe):
    shown = live(key="the-key-of-ann", init_script=OWN_REFUSAL)
    assert not shown.locator("main").is_visible()
    assert axe(shown) == []
    shown.get_by_label("Key").fill("not-the-key")
    shown.get_by_role("button", name="Show the page").click()
    shown.get_by_text("This is not a key of this server.").wait_for()
    shown.get_by_label("Key").fill("the-key-of-ann")
    shown.get_by_role("button", name="Show the page").click()
    shown.get_by_text("live", exact=True).wait_for()
    send(shown, PROMPT, 2)
    shown.locator("#requests li", has_text="A, 0 of 26 tokens found, length").wait_for()
    with shown.expect_download() as download:
        shown.get_by_role("link", name="Download the story").click()
    assert json.loads(download.value.path().read_text(encoding="utf-8"))["steps"]


def test_the_story_is_kept_and_plays_in_a_page_of_its_own(live, open_page, tmp_path):
    shown = live()
    send(shown, PROMPT, 12)
    shown.locator("form output", has_text="were in the cache").wait_for()
    with shown.expect_download() as download:
        shown.get_by_role("link", name="Download the story").click()
    data = json.loads(download.value.path().read_text(encoding="utf-8"))
    kept = tmp_path / "kept.html"
    kept.write_text(page_of(data), encoding="utf-8")
    again = open_page(kept.as_uri())
    assert again.locator(".title").inner_text() == "96 blocks of 8 tokens, live"
    assert again.evaluate("document.querySelector('kv-story').data.steps.length") == len(data["steps"]) > 0
