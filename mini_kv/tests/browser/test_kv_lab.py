"""A lab in the page, in a real browser: written, run, stuck, broken, kept, reached by keyboard, read on a phone."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from mini_kv.course.grading.handins import find_handins
from mini_kv.course.labkit.lab import all_labs, place_of

ROOT = Path(__file__).parents[3]
PHONE = {"width": 390, "height": 844, "has_touch": True}
LABS = [
    *(f"lab-{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16)),
    *("lab-02-examples", "lab-04-radix", "lab-05-examples", "lab-05-further", "lab-12-further"),
]
"""All that need no torch."""

COLD_S, WARM_S = 6, 0.5
"""What a reader should wait at most, on two quiet cores."""
BUSY = 4
"""How many times longer it may take where tests run: several programs share the cores."""

CLOCK = """async () => {
    const lab = document.querySelector("kv-lab"), root = lab.shadowRoot, strip = root.querySelector(".strip");
    const until = (done) => new Promise((resolve) => {
        const look = () => done() ? resolve(performance.now()) : requestAnimationFrame(look);
        look();
    });
    const began = performance.now();
    root.querySelector("button.primary").click();
    const first = await until(() => strip.childElementCount > 0);
    const all = await until(() => !lab.hasAttribute("running"));
    return [(first - began) / 1000, (all - began) / 1000];
}"""

PLAYED = """() => new Promise((done) => {
    const steps = [];
    addEventListener("kv-step", ({ detail }) => {
        steps.push(detail.step);
        if (detail.step === detail.steps) setTimeout(() => done(steps), 1500);  // time enough to begin again
    });
    document.querySelector("kv-lab").shadowRoot.querySelector("button.primary").click();
})"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(write_site, megabytes):
    """Pages with one lab each, made by the book's fence, one in Chinese, and one without Python."""
    elements = importlib.import_module("mini_kv_book.elements")
    pages = {lab: elements.lab(lab, megabytes) for lab in LABS}
    pages |= {"chinese": elements.lab("lab-05", megabytes, "zh"), "bare": elements.lab("lab-05", None)}
    form = "https://github.com/a/kv/issues/new?body=Page: lab-05%0A&amp;title=Share and evict"
    css = re.sub("@font-face {[^}]*}", "", (ROOT / "book/docs/assets/book.css").read_text(encoding="utf-8"))
    bench = '<div class="kv-bench"><div class="kv-contract"></div><div class="kv-desk">{}</div></div><p>Next</p>'
    pages["desk"] = f"<style>{css}</style>{bench.format(pages['lab-05'])}"
    pages["stuck"] = f'{pages["lab-05"]}<p class="kv-stuck"><a href="{form}">Stuck?</a></p>'
    return write_site("A lab", **pages)


@pytest.fixture
def open_lab(site, serve, open_page):
    """A function that opens a lab's page in a window of its own and returns it, the editor ready."""

    def shown(lab="lab-05", **options):
        page = open_page(f"{serve(site)}/{lab}.html", **options)
        page.wait_for_selector("kv-lab[ready]")
        return page

    return shown


@pytest.fixture(scope="module")
def show(site, open_warm):
    """A function that shows a lab on the page that these tests share and returns it, the editor ready."""
    warm = open_warm(site, "lab-05.html")

    def shown(lab="lab-05", **options):
        page = warm(f"{lab}.html", **options)
        page.wait_for_selector("kv-lab[ready]")
        return page

    return shown


def toml(name):
    """Return what a file of the repository says."""
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def solution(lab="lab-05"):
    return (ROOT / "solutions" / lab / "solution.py").read_text(encoding="utf-8")


def mutant(name):
    """Return lab-05's solution with a wrong idea in it, and the idea."""
    (found,) = (one for one in toml("solutions/lab-05/mutants.toml")["mutant"] if one["id"] == name)
    return solution().replace(found["old"], found["new"]), found["idea"]


def changed(old, new):
    """Return lab-05's solution with one change."""
    assert old in solution()
    return solution().replace(old, new)


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def in_file_menu(page, name):
    """Open what is done to the file as a whole, and return one of its buttons."""
    if page.locator(".file").get_attribute("open") is None:
        page.locator(".file > summary").click()
    return button(page, name)


def write(page, text):
    """Put a text in the editor, as by pasting it."""
    page.locator(".cm-content").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)


def written(page):
    """Return what a learner would save."""
    with page.expect_download() as download:
        in_file_menu(page, "Save…").click()
    assert download.value.suggested_filename == "lab-05.py"
    return Path(download.value.path()).read_text(encoding="utf-8")


def wait_for_result(page):
    page.wait_for_selector("kv-lab:not([running])", state="attached", timeout=60_000)
    return said(page)


def run(page, text=None):
    """Run what is in the editor, or this text; return the summary."""
    if text is not None:
        write(page, text)
    button(page, "Run").click()
    return wait_for_result(page)


def failed(page, name):
    """Run lab-05 with a wrong idea in it; return the card of its failure."""
    run(page, mutant(name)[0])
    return page.locator(".card[data-state=fail]")


def open_terminal(page):
    """Open the fold with what `mini-kv run` says."""
    if page.locator(".terminal").get_attribute("open") is None:
        page.locator(".terminal > summary").click()


def brief(page):
    """Return the lines of what `mini-kv run` says."""
    open_terminal(page)
    return [line for shown in page.locator(".brief .line").all_inner_texts() for line in shown.splitlines()]


def unfold(page):
    """Show the row of each test."""
    page.locator(".whole > summary").click()


def said(page):
    return page.locator(".status").inner_text()


def states(page):
    """Return the state of each test, in order."""
    return [row.get_attribute("data-state") for row in page.locator(".whole > .row").all()]


def test_in_chinese(show):
    """Commands, forecast, verdict, card, hints and the figure; what tests and terminal say stays as it is."""
    page = show("chinese")
    buttons = page.locator(".bar summary, .bar button").all_text_contents()
    assert buttons == ["运行", "停止", "预测题 0/4", "提示", "文件…", "重来", "打开…", "另存…", "提交…"]
    button(page, "运行").click()
    wait_for_result(page)
    assert page.locator(".card h3").inner_text() == "接下来写 prefill。"
    page.get_by_label("继续之前先猜").fill("32")
    button(page, "作答").click()
    assert page.locator(".verdict").inner_text().startswith("不对。要这样\uff0c缓存得存下")
    write(page, mutant("last-token-left-out")[0])
    button(page, "运行").click()
    wait_for_result(page)
    assert page.locator(".card h3").inner_text().startswith("你的代码似乎认为\uff1a")
    page.get_by_text("一步一步看", exact=True).click()
    assert said(page).startswith("还没通过\uff1a")
    button(page, "提示").click()
    page.locator(".panel button").click()
    assert page.locator(".panel li").inner_text() == toml("book/data/zh-lab-05.toml")["hints"]["prefill"]["levels"][0]
    story = page.locator("kv-story")
    assert story.locator(".title").inner_text().startswith("你的代码做了什么\uff1a")
    assert story.locator(".call, .lines li").first.inner_text().startswith("释放")
    mixed = page.locator(".bar, .status, .keys, .verdict").all_inner_texts()
    assert [re.findall(r"[A-Za-z]{6,}", text) for text in mixed if re.search(r"[A-Za-z]{6,}", text)] == [["Escape"]]


# Running ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", LABS)
def test_starter_then_solution(show, lab):
    """The untouched starter is all to do, the solution has full marks, in one Python and without a reload."""
    page = show(lab)
    points = toml(f"labs/{lab}/lab.toml")["points"]
    assert run(page).startswith(f"Not passed yet: 0 of {points} points.")
    assert set(states(page)) == {"todo"}
    assert run(page, solution(lab)).startswith(f"Passed: {points} of {points} points.")
    assert set(states(page)) == {"pass"}
    shown = "\n".join(brief(page))
    assert all(words in shown for words in ("  PASSED", "  In vLLM 0.33:", "  To take away: "))  # as in the terminal
    links = [link.get_attribute("href") for link in page.locator(".brief a").all()]
    labs = all_labs(ROOT)
    later = [one.lab_id for one in labs if place_of(one.lab_id) > place_of(lab) and not one.is_further]
    assert links == [f"../{lab_id}/" for lab_id in later[:1]]


def test_who_has_passed_is_led_on(show):
    page = show()
    assert run(page).startswith("Not passed yet")
    assert page.locator(".on").count() == 0
    assert run(page, solution()).startswith("Passed")
    ways = [(way.inner_text(), way.locator("a").get_attribute("href")) for way in page.locator(".on li").all()]
    assert ways == [
        ("Next: Part 2: share, revive and evict, in your own words", "#part-2"),
        ("The chapter: Share, free, revive, evict", "../../chapters/share-free-revive-evict/"),
        ("At home: make lab-05", "#run"),
    ]


def test_the_run_that_passed_is_played_once(show):
    """From its first step to its last, below the way on; what the lab was about comes after it. Nothing is asked."""
    page = show()
    write(page, solution())
    played = page.evaluate(PLAYED)
    assert not page.locator(".forecast").is_visible()
    assert played == list(range(len(played)))
    assert len(played) > 2
    about = toml("labs/lab-05/lab.toml")
    card = page.locator(".card[data-state=pass]")
    assert card.locator("h3").inner_text() == "Passed: 50 of 50 points."
    assert card.locator("> p").all_inner_texts() == [about["lesson"].strip(), about["question"]]
    order = card.evaluate("card => [...card.children].map(one => one.className || one.localName)")
    assert order == ["h3", "on", "figure", "p", "asks"]


def test_with_reduced_motion_the_run_that_passed_stands_at_its_end(show):
    page = show(reduced_motion="reduce")
    run(page, solution())
    story = page.locator("kv-story")
    assert story.evaluate("story => story.step === story.data.steps.length")


def test_a_hand_in_is_one_file_that_grade_takes(show, tmp_path):
    """Code, forecasts, hints and runs, and nothing else; the page asks before it writes, and sends nothing."""
    page = show()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    run(page, solution())
    button(page, "Hint").click()
    button(page, "First hint (1 of 3)").click()
    sent_before = len(asked)
    in_file_menu(page, "Hand in…").click()
    assert "nothing leaves this browser" in page.locator(".notice").inner_text()
    with page.expect_download() as download:
        button(page, "Write the file").click()
    assert download.value.suggested_filename == "lab-05-hand-in.json"
    assert [url for url in asked[sent_before:] if not url.startswith("blob:")] == []
    (tmp_path / "07.json").write_bytes(Path(download.value.path()).read_bytes())
    [handin] = find_handins(tmp_path, [])
    assert (handin.student, handin.code, handin.fault) == ("07", {"lab-05": solution().encode()}, "")
    assert handin.page == {"lab-05": {"forecasts": {}, "hints": {"prefill": 1}, "runs": 1}}


@pytest.fixture
def terminal(tmp_path):
    """A function that returns what a checkout with this text as its starter says to a command, line by line."""

    def says(text, *command):
        for name in ("mini_kv", "labs/lab-05"):
            shutil.copytree(
                ROOT / name,
                tmp_path / name,
                ignore=shutil.ignore_patterns("node_modules", "__pycache__"),
                dirs_exist_ok=True,
            )
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, tmp_path / name)
        (tmp_path / "labs/lab-05/starter.py").write_text(text, encoding="utf-8")
        env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TEMP") if name in os.environ}
        env |= {"LAB_IMPL": "starter", "COLUMNS": "100", "PYTHONUTF8": "1", "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=env, capture_output=True, encoding="utf-8", check=False
        )
        return done.stdout.splitlines()

    return says


def test_the_result_is_what_the_terminal_says(show, terminal):
    """The first failure in full with its belief, how many more, and the score: the lines of `mini-kv run`."""
    text, idea = mutant("last-token-left-out")
    said_there = terminal(text, "mini_kv", "run", "05")
    begins = next(number for number, line in enumerate(said_there) if line.startswith("lab-05  test_"))
    (ends,) = (number for number, line in enumerate(said_there) if "of 50 points" in line)
    page = show()
    run(page, text)
    assert brief(page) == [line for line in said_there[begins : ends + 1] if line]
    assert brief(page)[-2] == "  4 more failures, 4 of them in prefill; all of them:  mini-kv run 05 --all"
    assert f"your code acts as if {idea}" in " ".join(" ".join(brief(page)).split())


def test_the_scoreboard_behind_the_fold_is_the_terminals(show, terminal):
    """Line by line, the same words; the message of each failure to the letter. `--all` unfolds it, and it stays so."""
    text, _ = mutant("last-token-left-out")
    said_there = terminal(text, "pytest", "labs/lab-05", "-p", "no:cacheprovider")
    begins = said_there.index("lab-05  Share and evict: the life of a cached block")
    (ends,) = (number for number, line in enumerate(said_there) if line.startswith("  next: "))
    board = [line.split() for line in said_there[begins : ends + 1] if line]
    page = show()
    run(page, text)
    assert not page.locator(".row").first.is_visible()
    page.locator(".terminal > summary").click()
    button(page, "mini-kv run 05 --all").click()
    shown = page.locator(".whole > .line, .whole > .row > summary").all_inner_texts()
    assert [line.split() for line in shown] == board
    row = page.locator(".row[data-state=fail]").first
    row.locator("summary").click()
    assert row.locator("pre").inner_text() in "\n".join(said_there)
    run(page)
    assert page.locator(".row").first.is_visible()


def test_a_failure_is_a_card(show):
    """What is wrong in large type, expected and got beside the picture of the failing step, one question, a hint.

    A single wrong value is too little for a belief.
    """
    page = show()
    card = failed(page, "never-looks")
    card.locator("svg.kv-still").wait_for()
    assert card.locator(".of").inner_text() == "Failed, test 2: identical prompt shares all but the tail block"
    assert card.locator("h3").inner_text() == "B's cached tokens"
    facts = [line for part in card.locator(".facts > *").all_inner_texts() for line in part.splitlines()]
    assert facts == [
        "expected  28",
        "got       0",
        "Your code breaks rule 2 of the contract: A hit is the longest cached beginning of the prompt in whole blocks,"
        " and has at most all tokens but the last.",
        "a hit covers at most num_tokens - 1 = 31 tokens, in whole blocks of 4: 7 blocks, 28 tokens",
    ]
    assert card.locator("svg.kv-still").get_attribute("aria-label").endswith("all but the tail block, step 2 of 2")
    assert card.locator(".asks").inner_text() == "Which call asks the index for cached blocks?"
    assert card.locator("button").all_inner_texts() == ["A hint for prefill", "Step through it"]
    assert not page.locator(".brief").is_visible()
    assert not page.locator(".forecast").is_visible()  # it has a question of its own
    button(page, "A hint for prefill").click()
    assert page.locator(".panel li").all_inner_texts() == toml("labs/lab-05/lab.toml")["function"][0]["hints"][:1]


def test_a_belief_is_the_title_of_the_card(show):
    """After two signs or more; what is wrong is then the first of the facts. The README has a picture of this card."""
    card = failed(show(), "all-or-nothing")
    title = card.locator("h3").inner_text()
    assert title == f"Your code acts as if {mutant('all-or-nothing')[1]}."
    assert card.locator(".facts > p").first.inner_text() == "B's cached tokens"
    assert card.locator(".facts pre").inner_text().split() == ["expected", "16", "got", "0"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"[![{title} Expected 16, got 0.](book/docs/assets/failure-card.png)]" in readme


def test_the_pages_link_to_a_new_issue_brings_the_first_failure(show):
    """Its own text stays; when the code is right, nothing is added."""
    page = show("stuck")
    for code, lines in ((mutant("all-or-nothing")[0], 2), (solution(), 0)):
        run(page, code)
        card = [page.locator(f".card {part}").inner_text() for part in (".of", "h3")] if lines else []
        form = dict(parse_qsl(urlsplit(page.locator(".kv-stuck a").get_attribute("href")).query))
        assert form == {"title": "Share and evict", "body": "\n".join(["Page: lab-05", *card, ""])}


def test_a_failure_without_a_known_belief_says_what_is_wrong_and_asks_for_the_line(show):
    page = show()
    run(page, changed("    return [block.ref_cnt for", "    return [7 for"))
    card = page.locator(".card[data-state=fail]")
    assert card.locator("h3").inner_text() == "B's reference counts"
    assert card.locator(".asks").inner_text() == "Which line of yours decides this?"


def test_a_failing_run_can_be_stepped_through(show):
    """The figure opens at the step where it went wrong."""
    page = show()
    failed(page, "never-looks")
    button(page, "Step through it").click()
    figure = page.locator("kv-story")
    title = figure.locator(".title").inner_text()
    assert title == "What your code did: 2: identical prompt shares all but the tail block"
    assert figure.evaluate("story => story.step") == 2  # the last: where it went wrong


def test_another_tests_story_can_be_chosen(show):
    page = show()
    run(page, solution())
    unfold(page)
    row = page.locator("[data-test=test_6_cached_free_blocks_are_revived_not_recomputed]")
    row.locator("summary").click()
    row.get_by_role("button", name="See what your code did").click()
    page.locator("kv-story .title", has_text="6: cached free blocks are revived not recomputed").wait_for()


def test_a_line_of_the_failure_leads_into_the_editor(show):
    """The line is marked and in sight. Before the click the focus is where it was."""
    page = show()
    card = failed(page, "hit-counted-twice")
    assert page.evaluate("document.querySelector('kv-lab').shadowRoot.activeElement.textContent") == "Run"
    line, editor = page.locator(".cm-line.marked").bounding_box(), page.locator(".editor").bounding_box()
    assert editor["y"] < line["y"] < editor["y"] + editor["height"]
    card.locator(".link", has_text="starter.py:13").click()
    assert page.locator(".cm-line.marked").inner_text().strip().startswith("if kv.allocate_slots(")


@pytest.mark.parametrize(
    ("place", "opened"), [("line=1", 0), ("def=cache_hit_rate", "def cache_hit_rate("), ("def=no", None)]
)
def test_a_link_of_the_finale_marks_the_line_in_the_editor(site, serve, open_page, place, opened):
    page = open_page(f"{serve(site)}/lab-05.html#{place}")
    page.wait_for_selector("kv-lab[ready]")
    first = (ROOT / "labs/lab-05/starter.py").read_text(encoding="utf-8").splitlines()[0]
    marked = page.locator(".cm-line.marked").all_inner_texts()
    assert [line[:19] for line in marked] == ([] if opened is None else [(opened or first)[:19]])


@pytest.mark.parametrize("edited", [False, True])
def test_after_a_failure_the_cursor_is_on_the_line_that_it_names(show, edited):
    """Who goes on typing types there. A text that was edited during the run is left alone."""
    text, _ = mutant("hit-counted-twice")
    page = show()
    write(page, text)
    page.keyboard.press("ControlOrMeta+Enter")
    if edited:
        page.keyboard.type("# x")
    wait_for_result(page)
    page.keyboard.type("# y ")
    lines = written(page).split("\n")
    assert (lines[12][:12], lines[-1]) == (("    if kv.al", "# x# y ") if edited else ("    # y if k", ""))


def test_a_long_error_of_the_engine_is_in_a_fold(show):
    """The headline is one sentence, and the learner's line is shown to its end."""
    card = failed(show(), "hit-counted-twice")
    assert card.locator("h3").inner_text() == "Line 13 raised AllocationError."
    line = "if kv.allocate_slots(request, num_new_tokens, num_cached_tokens, new_computed_blocks=blocks) is None:"
    assert card.locator(".facts .line").inner_text() == f"labs/lab-05/starter.py:13  {line}"
    error = card.locator(".facts details p")
    assert not error.is_visible()
    card.locator(".facts summary").click()
    assert error.inner_text().startswith("AllocationError: request 'B': the blocks of its hit hold 28 tokens")


def test_a_test_without_a_cache_tells_what_it_compared(show):
    """As `mini-kv story` does: lab-02 is about a queue, and has no blocks to draw."""
    page = show("lab-02")
    text = solution("lab-02")
    assert "self.num_free_blocks -= 1" in text
    run(page, text.replace("self.num_free_blocks -= 1", "self.num_free_blocks -= 2", 1))
    open_terminal(page)
    page.locator(".brief .link", has_text="mini-kv story 02").click()
    page.locator(".figure pre", has_text="<- the first that differs").first.wait_for()


def test_a_schedulers_steps_are_told_below_the_figure(show):
    """What the scheduler planned, as in the terminal's story."""
    page = show("lab-11")
    text = solution("lab-11")
    assert "victim = self.running[-1]" in text
    run(page, text.replace("victim = self.running[-1]", "victim = self.running[0]"))
    button(page, "Step through it").click()
    page.locator(".figure kv-story svg").first.wait_for()
    page.locator(".figure > details > summary").click()
    last = page.locator(".figure > details pre").last.inner_text()
    assert last == "step: A 1   (1 of 14 tokens; running: B; waiting: A, C; gave way: A)"


def test_a_syntax_error_is_told_with_its_line(show):
    page = show()
    assert run(page, "def prefill(:\n    pass\n").startswith("Not passed yet: 0 of 50 points. 1 failed")
    assert "SyntaxError: invalid syntax\n   labs/lab-05/starter.py:1  def prefill(:" in "\n".join(brief(page))


def test_what_the_code_prints_is_shown(show):
    """In the row of its test, and beside the first failure."""
    page = show()
    begin = "    request = kv.new"
    run(page, changed(begin, f'    print("admitting", request_id)\n{begin}'))
    unfold(page)
    row = page.locator(".row").first
    row.locator("summary").click()
    assert row.locator("pre").inner_text() == "admitting A\n"
    run(page, changed(begin, f'    print("admitting", request_id)\n    return 0\n{begin}'))
    assert "   printed   admitting A" in brief(page)


def test_two_runs_in_one_second_run_two_texts(show):
    """Bytecode of the text before, kept by time and length, would be taken for this one's."""
    page = show()
    assert run(page, changed("request, num_cached_tokens\n", "request, num_cached_tokenz\n")).startswith("Not")
    assert run(page, solution()).startswith("Passed: 50 of 50")


# What never ends, and what breaks -----------------------------------------------------------------------------------


def test_an_endless_loop_fails_at_its_line(show):
    """As in the terminal. The other tests go on, and so does Python."""
    page = show()
    text = changed("    return [block.ref_cnt", "    while table:\n        pass\n    return [block.ref_cnt")
    summary = run(page, text)
    assert summary.startswith("Not passed yet: 44 of 50 points. 18 passed, 1 failed, 1 waiting")
    message = "\n".join(brief(page))
    assert "no end after 5 s: an endless loop" in message
    assert "at:  labs/lab-05/starter.py:2" in message


def test_a_right_loop_on_a_busy_machine_has_full_marks(show):
    """The seconds pass without it: a page cannot tell what it has computed, so a few rounds are no endless loop."""
    page = show()
    busy = "    if late:\n        time.sleep(late.pop())\n    for _ in range(9):\n        pass\n"
    text = changed("    return [block.ref_cnt", f"{busy}    return [block.ref_cnt")
    assert run(page, f"import time\n\nlate = [5.5]\n{text}").startswith("Passed: 50 of 50")


def test_a_loop_that_python_cannot_leave_ends_the_worker(open_lab):
    """C code that never returns: only ending the worker helps. The next Run finds a new one, ready."""
    page = open_lab()
    run(page)
    text = changed("    request = kv", "    all(itertools.repeat(1))\n    request = kv")
    summary = run(page, f"import itertools\n{text}")
    assert summary.startswith("No answer for 10 seconds in test_1_first_request_populates_a_cold_cache, so Python was")
    assert run(page, solution()).startswith("Passed: 50 of 50")


def test_code_that_ends_python_is_told_so(show):
    """`os._exit` fails its test, as in the terminal. The real one takes the interpreter; the next Run has a new one."""
    page = show()
    assert run(page, "import os\nos._exit(0)\n").startswith("Not passed yet: 0 of 50 points.")
    assert "the code called exit()" in "\n".join(brief(page))
    text = "from mini_kv.course.labkit.plugin import end_python\nend_python(3)\n"
    assert run(page, text).startswith("Python broke down and was ended.")
    assert "exit(3)" in page.locator(".result pre").inner_text()
    assert run(page, solution()).startswith("Passed: 50 of 50")


def test_a_python_that_was_asked_nothing_is_left_alone(open_lab):
    """After Stop it starts anew, and may be silent for longer than a test."""
    page = open_lab()
    page.clock.install()
    button(page, "Run").click()
    button(page, "Stop").click()
    for _ in range(20):  # until Python is ready, and then some
        page.wait_for_timeout(250)
        page.clock.fast_forward(20_000)
        assert said(page).startswith("Stopped.")


def test_stop_ends_a_run_at_once(show):
    page = show()
    run(page)
    write(page, "import itertools\nall(itertools.repeat(1))\n")
    button(page, "Run").click()
    button(page, "Stop").click()
    assert said(page).startswith("Stopped.")
    assert run(page, solution()).startswith("Passed: 50 of 50")


# What is kept -------------------------------------------------------------------------------------------------------


def test_a_reload_keeps_the_text_the_hints_and_the_best_score(open_lab):
    page = open_lab()
    run(page, solution())
    button(page, "Hint").click()
    button(page, "First hint (1 of 3)").click()
    write(page, "# mine\n")
    page.reload()
    page.wait_for_selector("kv-lab[ready]")
    assert written(page) == "# mine\n"
    assert said(page) == "Best so far: 50 of 50 points."
    button(page, "Hint").click()
    assert page.locator(".panel li").count() == 1


def test_reset_asks_and_can_be_taken_back(show):
    page = show()
    starter = written(page)
    write(page, "# mine\n")
    in_file_menu(page, "Reset").click()
    assert written(page) == "# mine\n"
    button(page, "Put the starter back").click()
    assert written(page) == starter
    button(page, "Bring back the text before").click()
    assert written(page) == "# mine\n"


@pytest.mark.parametrize(("text", "told"), [("# mine\n", True), ("an older starter", False)])
def test_a_new_starter_is_told_to_who_has_begun(open_lab, text, told):
    """Who has written nothing simply gets it."""
    page = open_lab()
    starter = written(page)
    kept = json.dumps({"text": text, "starter": "an older starter"})
    page.add_init_script(f"localStorage.setItem('kv-lab:lab-05', {json.dumps(kept)})")
    page.reload()
    page.wait_for_selector("kv-lab[ready]")
    assert page.locator(".notice").is_visible() is told
    assert written(page) == (text if told else starter)
    if told:
        assert "changed this lab's starter" in page.locator(".notice").inner_text()
        button(page, "Take the new starter").click()
        assert written(page) == starter
        button(page, "Bring back the text before").click()
        assert written(page) == text


def test_a_file_can_be_opened_and_saved(show, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(solution(), encoding="utf-8", newline="\n")
    page = show()
    page.locator("input[type=file]").set_input_files(file)
    button(page, "Bring back the text before").wait_for()
    assert written(page) == solution()


# Hints and predictions ----------------------------------------------------------------------------------------------


def test_every_prediction_is_judged_as_in_the_terminal(show):
    """Right, right in other words, and each wrong answer with what would have to be true."""
    page = show()
    button(page, "Questions 0 of 4").click()
    for question in toml("labs/lab-05/lab.toml")["prediction"]:
        field = page.get_by_label(question["ask"], exact=True)
        verdict = page.locator(".question", has=field).locator(".verdict")
        for answer in (question["answer"], f" [{question['answer']}]  Blocks"):
            field.fill(answer)
            field.press("Enter")
            assert verdict.inner_text() == f"Yes: {question['answer']}. {question['why']}"
        for answer, reason in question["wrong"].items():
            field.fill(answer)
            field.press("Enter")
            assert verdict.inner_text() == f"No. {reason} It is {question['answer']}. {question['why']}"
    assert button(page, "Questions 4 of 4").is_visible()


FORECASTS = toml("labs/lab-05/lab.toml")["prediction"]


def test_a_run_shows_its_result_at_once_and_asks_beside_it(show):
    """About a number that no run has shown yet. Right, wrong with what would have to be true, and skipped for good."""
    page = show()
    right, wrong, skipped, last = FORECASTS
    for question, answer, told, foreseen in (
        (right, right["answer"], f"Yes: {right['answer']}. {right['why']}", None),
        (wrong, "8", f"No. {wrong['wrong']['8']} It is {wrong['answer']}. {wrong['why']}", "foreseen 1/1"),
        (skipped, "", "Skipped.", "foreseen 1/2"),
        (last, last["answer"], f"Yes: {last['answer']}. {last['why']}", "foreseen 1/2"),
    ):
        assert run(page).startswith("Not passed yet: 0 of 50 points. 20 to do")
        assert page.locator(".card[data-state=todo] h3").inner_text() == "Next: write prefill."
        assert foreseen is None or brief(page)[-1].endswith(foreseen)
        field = page.get_by_label(f"Before you go on: {question['ask']}")
        field.fill(answer)
        if answer:
            field.press("Enter")
        else:
            button(page, "Skip").click()
        assert page.locator(".forecast").inner_text() == told
    run(page)
    assert not page.locator(".forecast").is_visible()
    run(page, solution())
    assert brief(page)[-1] == "code 50/50, foreseen 2/3"


def test_the_question_is_beside_the_result_and_on_a_phone_below_it(show):
    page = show()
    run(page)
    card, asked = (page.locator(part).bounding_box() for part in (".card", ".forecast"))
    assert (asked["x"] > card["x"] + card["width"], asked["y"]) == (True, card["y"])
    page.set_viewport_size({"width": 390, "height": 844})
    card, asked = (page.locator(part).bounding_box() for part in (".card", ".forecast"))
    assert asked["y"] > card["y"] + card["height"]


def test_right_code_after_a_starter_leaves_nothing_of_the_old_result(show):
    page = show()
    run(page)
    assert run(page, solution()).startswith("Passed: 50 of 50 points.")
    assert page.locator(".beside > .card").evaluate_all("cards => cards.map(card => card.dataset.state)") == ["pass"]
    assert set(states(page)) == {"pass"}


def test_the_squares_have_a_legend(show):
    """One for each look, from the first run on."""
    page = show()
    assert not page.locator(".legend").is_visible()
    failed(page, "never-looks")
    assert page.locator(".legend span").all_inner_texts() == [
        "Passed",
        "Failed",
        "Not written yet",
        "Waiting for an earlier test",
    ]
    looks = {
        where: page.locator(f".{where} i").evaluate_all(
            "all => all.map(one => [one.dataset.state, getComputedStyle(one).background])"
        )
        for where in ("strip", "legend")
    }
    assert {state for state, _ in looks["strip"]} == {"pass", "fail", "wait"}
    assert {tuple(look) for look in looks["strip"]} < {tuple(look) for look in looks["legend"]}
    assert len({background for _, background in looks["legend"]}) == 4


def test_a_question_is_asked_about_a_test_that_is_still_to_be_passed(show):
    """Here the last one: all tests of the other functions have passed."""
    page = show()
    text = changed("    stats = kv.prefix_cache_stats", '    todo("lab-05", "cache_hit_rate", "divide")')
    run(page, f"from mini_kv.course import todo\n{text}")
    assert page.get_by_label(f"Before you go on: {FORECASTS[3]['ask']}").is_visible()


def test_a_failures_hint_line_gives_the_hint(show):
    page = show()
    failed(page, "never-looks")
    open_terminal(page)
    button(page, "mini-kv hint 05 prefill").click()
    levels = toml("labs/lab-05/lab.toml")["function"][0]["hints"]
    assert page.locator(".panel li").all_inner_texts() == levels[:1]
    button(page, "Next hint (2 of 3)").click()
    button(page, "Next hint (3 of 3)").click()
    assert page.locator(".panel li").all_inner_texts() == levels


# Accessibility ------------------------------------------------------------------------------------------------------


def test_all_of_it_works_by_keyboard(show):
    """Into the editor, an edit, a run, and out again to Run: Tab indents, Escape and Tab leave."""
    page = show()
    page.locator(".cm-content").focus()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.type("# x")
    page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+Enter")
    wait_for_result(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Run
    page.wait_for_selector("kv-lab[running]")
    wait_for_result(page)
    page.locator(".whole > summary").focus()
    page.keyboard.press("Enter")
    assert page.locator(".row").first.is_visible()
    assert written(page).endswith("    # x")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_for_accessibility(show, axe, dark):
    page = show(dark=dark, reduced_motion="reduce")  # half-way from one step to the next, colours have no contrast
    assert axe(page) == []
    failed(page, "never-looks")
    button(page, "Step through it").click()
    page.wait_for_selector("kv-story")
    button(page, "Questions 0 of 4").click()
    in_file_menu(page, "Reset").click()
    open_terminal(page)
    unfold(page)
    assert axe(page) == []
    button(page, "Put the starter back").click()
    run(page)
    assert page.locator(".forecast").is_visible()
    assert axe(page) == []
    run(page, solution())
    assert axe(page) == []


def test_a_phone_shows_all_of_it(open_lab):
    """Nothing is wider than the screen."""
    page = open_lab(**PHONE)
    failed(page, "never-looks")
    button(page, "Step through it").click()
    page.wait_for_selector("kv-story")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_without_the_packed_python_the_page_says_how_to_run_it(site, serve, open_page):
    """Also what a browser without scripts shows: the starter as code."""
    page = open_page(f"{serve(site)}/bare.html")
    shown = page.locator("kv-lab").inner_text()
    assert "make lab-05" in shown
    assert "def prefill(" in shown
    assert page.locator("button").count() == 0


def test_without_the_editor_a_plain_field_does(site, serve, open_page):
    """The editor cannot be loaded: the text can be written, indented and run all the same."""
    page = open_page("about:blank")
    page.route("**/kv_editor.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(f"{serve(site)}/lab-05.html")
    field = page.get_by_label("lab-05, your starter.py")
    field.fill(solution())
    field.press("ControlOrMeta+End")
    field.press("Tab")
    field.press("#")
    assert field.input_value() == solution() + "    #"
    field.press("ControlOrMeta+Enter")
    assert wait_for_result(page).startswith("Passed: 50 of 50")


# Loading ------------------------------------------------------------------------------------------------------------


def names_of(requests):
    """Return the files that a page asked for, in order, without their folders."""
    return [urlsplit(url).path.rpartition("/")[2] for url in requests]


def test_while_python_loads_a_bar_says_how_much_of_it_is_here(open_lab):
    page = open_lab()
    assert not page.locator(".loading").is_visible()
    button(page, "Run").click()
    page.locator(".loading", has_text=re.compile(r"^\d+\.\d / \d+\.\d MB$")).wait_for()
    wait_for_result(page)
    assert not page.locator(".loading").is_visible()
    loaded, all_of_it = page.locator(".loading").text_content().removesuffix(" MB").split(" / ")
    assert loaded == all_of_it


def test_what_a_run_does_not_need_is_loaded_when_a_learner_imports_it(open_lab):
    """A module of Python's library that no lab imports: also a package's submodule, and one that does not exist."""
    page = open_lab()
    asked = []
    page.context.on("request", lambda request: asked.append(request.url))
    assert run(page, f"import json, email.message\n{solution()}").startswith("Passed: 50 of 50")
    assert "rest.zip.xz" not in names_of(asked)
    assert run(page, f"import colorsys, xml.sax.saxutils\n{solution()}").startswith("Passed: 50 of 50")
    assert run(page, f"import wave\n{solution()}").startswith("Passed: 50 of 50")
    assert names_of(asked).count("rest.zip.xz") == 1
    run(page, "import numpy\n")
    assert "ModuleNotFoundError" in "\n".join(brief(page))


@pytest.mark.parametrize("saves", [False, True])
def test_who_begins_to_write_finds_python_loading_unless_they_save_data(open_lab, saves):
    script = f"Object.defineProperty(navigator, 'connection', {{ value: {{ saveData: {str(saves).lower()} }} }});"
    page = open_lab(init_script=script)
    workers = []
    page.on("worker", lambda worker: workers.append(worker.url))
    page.locator("kv-lab .keys").click()
    assert workers == []
    page.locator(".cm-content").click()
    page.wait_for_timeout(300)
    assert names_of(workers) == ([] if saves else ["kv_lab_worker.js"])


# Stillness ----------------------------------------------------------------------------------------------------------

SHIFTS = """globalThis.shifts = [];
new PerformanceObserver((list) => {
    for (const { hadRecentInput, value, startTime, sources } of list.getEntries()) {
        const moved = sources.map((one) => [one.node?.className, one.previousRect.y, one.currentRect.y]);
        if (!hadRecentInput) shifts.push([value, startTime, ...moved]);
    }
}).observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.parametrize("screen", [{"width": 1280, "height": 800}, PHONE])
def test_results_move_nothing_and_leave_the_editor_its_lines(open_lab, screen):
    """A lab's page from its first moment through a run with nothing written, one that fails and one that passes."""
    page = open_lab("desk", init_script=SHIFTS, **screen)
    heights = [page.locator(".editor").bounding_box()["height"]]
    for text in (None, mutant("hit-counted-twice")[0], mutant("all-or-nothing")[0], solution()):
        run(page, text)
        page.wait_for_timeout(700)  # a picture comes after the result, and half a second after a click is the click's
        heights.append(page.locator(".editor").bounding_box()["height"])
    assert set(heights) == {heights[0]}
    assert heights[0] >= 12 * 20.25
    shifts = page.evaluate("shifts")
    assert sum(value for value, *_ in shifts) < 0.05, shifts


def test_beside_the_contract_editor_and_result_scroll_and_nothing_around_them(open_lab):
    page = open_lab("desk", width=1280, height=800)
    run(page, mutant("all-or-nothing")[0])
    scrolling = """() => {
        const found = [], root = document.querySelector("kv-lab").shadowRoot;
        for (let one = root.querySelector(".card"); one; one = one.parentElement ?? one.getRootNode().host)
            if (/auto|scroll/.test(getComputedStyle(one).overflowY)) found.push(one.className);
        return found;
    }"""
    assert page.evaluate(scrolling) == ["below"]


def test_on_a_phone_a_run_brings_its_result_into_sight_and_run_stays_in_reach(open_lab):
    page = open_lab("desk", **PHONE)
    write(page, mutant("hit-counted-twice")[0])
    button(page, "Run").tap()
    wait_for_result(page)
    for part in ("button.primary", ".status", ".card h3"):
        box = page.locator(part).bounding_box()
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 844


# Time ---------------------------------------------------------------------------------------------------------------


def test_the_first_result_comes_soon_and_the_next_at_once(open_lab):
    """The page's own clock: from the click to the first test's mark, and to the whole scoreboard."""
    page = open_lab()
    write(page, solution())
    times = [page.evaluate(CLOCK) for _ in range(6)]
    print("seconds from click to first result and to all, cold then warm:", *[f"{a:.2f}/{b:.2f}" for a, b in times])
    (cold, _), *warm = times
    assert cold < COLD_S * BUSY
    assert sorted(first for first, _ in warm)[2] < WARM_S * BUSY
