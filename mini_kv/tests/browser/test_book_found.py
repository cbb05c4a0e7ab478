"""The book is found and shared: by its search, by a link to a page, at a wrong address, on paper; and a lab's page."""

import html
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mini_kv_book.curriculum import glossary, words
from mini_kv_book.places import DOCS
from mini_kv_book.search_terms import MENDED, marked, mended

from mini_kv.tests.browser.built_book import PREFIX, page_names

pytestmark = [pytest.mark.book, pytest.mark.timeout(900)]

LEADS = {
    "引用计数": "reference-counts",
    "驱逐": "share-free-revive-evict",
    "OOM": "how-big-is-a-token",
    "ref_cnt": "reference-counts",
    "copy on write": "from-prompt-to-text",
    "PagedAttention": "blocks-instead-of-rows",
    "写时复制": "from-prompt-to-text",
    "块表": "blocks-instead-of-rows",
    "前缀缓存": "a-name-for-a-prefix",
    "抢占": "who-runs-next",
    "槽位映射": "from-table-to-slot",
    "分块预填充": "who-runs-next",
    "滑动窗口": "windows-and-groups",
    "命中率": "hits-evictions-policies",
    "卸载": "a-second-home",
    "显存不足": "how-big-is-a-token",
    "chunked prefill": "who-runs-next",
    "online softmax": "attention-over-blocks",
    "hash collision": "a-name-for-a-prefix",
    "roofline": "the-kernel",
    "GQA": "how-big-is-a-token",
    "null block": "reference-counts",
    "speculative decoding": "slots-for-the-next-token",
    "eviction policy": "who-should-go",
    "time to first token": "what-a-cache-buys",
    "FlashAttention": "attention-over-blocks",
    "KV cache": "why-a-cache",
    "linked list": "the-free-queue",
    "throughput": "why-batches-matter",
    "vLLM source": "reading-vllm",
}
"""What a reader types, and the file of the chapter that teaches it."""

FIRST_PAGES = """() => [...document.querySelectorAll(".md-search-result__item > a.md-search-result__link")]
  .map((link) => link.pathname)"""


def test_thirty_words_in_two_languages_lead_to_their_chapter(book_url, open_page):
    """It is among the first three pages that the search names."""
    page = open_page(book_url + "labs/lab-02/")
    page.keyboard.press("/")
    found = {}
    for typed in LEADS:
        for text in ("", typed):  # the results of the one before go first
            page.locator(".md-search__input").fill(text)
            page.keyboard.press("Shift")  # a text that is put in raises no key, and the theme waits for one
            page.locator(".md-search-result__item").first.wait_for(state="attached" if text else "detached")
        places = [urlsplit(place).path.rstrip("/").rsplit("/", 1)[-1] for place in page.evaluate(FIRST_PAGES)]
        found[typed] = list(dict.fromkeys(places))[:3]
    missed = {typed: pages for typed, pages in found.items() if LEADS[typed] not in pages}
    assert missed == {}


WORDS_OF_LUNR = """
const [worker, words] = [process.argv[1], JSON.parse(process.argv[2])];
globalThis.self = globalThis;
globalThis.addEventListener = () => {};
require("vm").runInThisContext(require("fs").readFileSync(worker, "utf8"));
console.log(JSON.stringify(self.lunr.TokenSet.fromArray(words).toArray()));
"""


def test_the_search_loses_no_number_and_no_word_beside_one(site):
    """The theme's lunr loses "9977.42" and invents "9977" where nothing separates its nodes' keys."""
    words = sorted({str(number**3 % 999_983 / 100) for number in range(3000)})
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.js")
    done = subprocess.run(
        ["node", "-e", WORDS_OF_LUNR, str(worker), json.dumps(words)], capture_output=True, text=True, check=True
    )
    assert sorted(json.loads(done.stdout)) == words


ASK = """
const [fs, path, vm] = ["fs", "path", "vm"].map(require);
const [worker, index, words] = process.argv.slice(1);
const load = (file) => vm.runInThisContext(fs.readFileSync(path.join(path.dirname(worker), file), "utf8"));
let hear, answer;
globalThis.self = globalThis;
globalThis.exports = undefined;  // a page has none, and lunr's languages look for it
globalThis.addEventListener = (_, listener) => (hear = listener);
globalThis.postMessage = (message) => (answer = message.data);
globalThis.importScripts = (...files) => files.forEach(load);
console.warn = () => {};
load(path.basename(worker));
(async () => {
  const data = JSON.parse(fs.readFileSync(index, "utf8"));
  await hear({ data: { type: 0, data: { ...data, options: { suggest: true } } } });
  const found = {};
  for (const word of JSON.parse(words)) {
    await hear({ data: { type: 2, data: word } });
    found[word] = answer.items.map(([best]) => best.location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
"""
"""Asks the theme's worker for each word, as a page does. An error of lunr is an answer without a page."""
ASKED = {
    "hit rate zero": "answers/hit-rate-is-zero/",
    "prefix cache hit rate 0 hybrid model": "answers/hit-rate-is-zero/",
    "Prefix cache hit rate: 0.0%": "answers/hit-rate-is-zero/",
    "GPU KV cache size": "fit/",
    "maximum concurrency": "fit/",
    "no available memory for the cache blocks": "fit/",
}
"""What a reader of vLLM's log types, and the page that answers it."""


def asked(site: Path, texts: list[str]) -> dict[str, list[str]]:
    """Return the pages that the search names for each text, the best first."""
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.js")
    index = site / "search/search_index.json"
    command = ["node", "-e", ASK, str(worker), str(index), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_each_taught_word_is_found_in_both_languages(site):
    taught = {word for those in words().values() for word in those} | set(glossary()) | set(glossary().values())
    assert len(taught) > 250
    assert [word for word, pages in asked(site, sorted(taught)).items() if not pages] == []


def test_a_line_of_vllm_s_log_leads_to_the_page_that_answers_it(site):
    assert {text: pages[0] for text, pages in asked(site, list(ASKED)).items()} == ASKED


def test_pages_of_the_engine_come_after_pages_of_prose(site):
    for text, pages in asked(site, ["speculative", "scheduler", "free queue", "block hash", "sampling"]).items():
        is_api = [page.startswith("api/") for page in pages]
        assert is_api == sorted(is_api), text
    pages = asked(site, ["speculative"])["speculative"]
    assert "chapters/from-prompt-to-text/" in pages[:2]


def indexed_text(page: str) -> str:
    """Return what the theme puts into the index of a page."""
    parser = pytest.importorskip("material.plugins.search.plugin").Parser()
    parser.feed(marked(page))
    return " ".join("".join(section.text) for section in parser.data)


def test_measured_times_are_not_in_the_index():
    """So two builds of the same files have the same index."""
    from mini_kv_book.elements import planes  # it needs MkDocs, and this file is collected where there is none

    def page(milliseconds: float) -> str:
        row = {"request_id": "A1", "begin": 0, "token_ids": [1, 2]}
        step = {"plan": [row], "tokens": {}, "ms": milliseconds}
        record = {"words": {}, "steps": [step]}
        return f"<h2 id='x'>Plans</h2><p>Before.</p>{planes(record, 1_000_000)}<p>After.</p>"

    assert indexed_text(page(7.01)) == indexed_text(page(9.34)) == " <p>Before.</p><p>After.</p>"


def test_another_lunr_ends_the_build():
    exceptions = pytest.importorskip("mkdocs.exceptions")
    with pytest.raises(exceptions.PluginError, match="the theme's search has no 'e=e"):
        mended("t.TokenSet.prototype.toString=function(){return JSON.stringify(this)}", *MENDED[0][1:])


@pytest.mark.parametrize("opened", ["by a key", "by an address"])
def test_index_and_worker_are_loaded_when_the_search_is_opened(opened, book_url, open_page):
    page = open_page("about:blank", width=1280)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.goto(book_url + "labs/lab-02/", wait_until="networkidle")
    assert not any("search" in name for name in asked)
    if opened == "by a key":
        page.keyboard.press("/")
        page.keyboard.type("evict")
    else:
        page.goto(book_url + "labs/lab-02/?q=evict")
    page.locator(".md-search-result__item a[href*='lab-05']").first.wait_for(state="attached")
    assert asked.count("search_index.json") == 1


FIRST_FILES = ["book.css", "bundle.js", "keys.js", "kv-code.woff2", "kv-text.woff2", "kv_page.js", "kv_story.js"]
FIRST_FILES += ["kv_typed.js", "main.css", "palette.css"]


def test_the_first_visit_loads_what_the_first_page_shows(book_url, open_page):
    """No search, no slanted letters, no element of another page."""
    page = open_page("about:blank", width=1280)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(re.sub(r"\.[0-9a-f]{8}\.min", "", request.url.rpartition("/")[2])))
    page.goto(book_url)  # it is loaded then; its faces may be late
    page.evaluate("document.fonts.ready.then(() => {})")
    assert sorted(asked) == ["", *FIRST_FILES]


def test_words_that_an_address_names_are_marked(book_url, open_page):
    page = open_page(book_url + "labs/lab-02/?h=middle")
    page.locator("article mark", has_text="middle").first.wait_for(state="attached")


def test_what_the_search_loads_has_no_listing(site):
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    assert "<pre>" not in index


def test_every_chapter_and_every_word_of_the_glossary_is_led_to():
    """A new chapter, or a new word, is missing in `book/data/taught.toml`; what stands there is a chapter."""
    assert sorted(words()) == sorted(path.stem for path in (DOCS / "chapters").glob("*.md") if path.stem != "index")
    assert sorted(set(glossary()) - {word for those in words().values() for word in those}) == []


def test_the_glossary_leads_to_the_chapters(site: Path):
    text = (site / "reference/glossary/index.html").read_text(encoding="utf-8")
    assert text.count('href="../../chapters/') >= len(glossary())


# The lists of chapters and labs, and the strip below a title -------------------------------------------------------


CARD = re.compile(r'<h3[^>]*><a href="([^"]+)">')
STRIP = re.compile(r'<ul class="kv-strip"[^>]*>(.*?)</ul>', re.DOTALL)
ITEM = re.compile(r"<li>(.*?)</li>", re.DOTALL)
LINK = re.compile(r'<a href="([^"]+)">')


@pytest.mark.parametrize("folder", ["chapters", "labs"])
def test_a_tab_begins_with_a_list_of_all_its_pages_each_with_a_picture(folder, site):
    html = (site / folder / "index.html").read_text(encoding="utf-8")
    pages = [name for name in page_names(site) if re.fullmatch(rf"{folder}/[^/]+/", name)]
    assert sorted(f"{folder}/{link}" for link in CARD.findall(html)) == sorted(pages)
    pictures = re.findall(r'<div class="kv-thumb.*?</svg>', html, re.DOTALL)
    assert len(pictures) == len(pages)
    assert folder == "labs" or len(set(pictures)) == len(pages), (
        "each chapter has its own, and a lab may have its chapter's"
    )
    assert f'href="{folder}/" class="md-tabs__link"' in (site / "index.html").read_text(encoding="utf-8")


def test_a_card_leads_to_its_page_wherever_it_is_clicked_and_a_labs_also_to_its_chapter(book_url, open_page):
    page = open_page(book_url + "labs/")
    card = page.locator(".kv-cards > div", has_text="Policy arena")
    card.get_by_role("img").click(force=True)  # the title's link lies over the picture
    page.wait_for_url("**/labs/lab-13/")
    page.go_back()
    card.get_by_role("link", name="Who should go").click()
    page.wait_for_url("**/chapters/who-should-go/")


def strip(page: Path) -> list[tuple[str, list[str]]]:
    """Return the words of each item of a page's strip, and where its links lead."""
    found = STRIP.search(page.read_text(encoding="utf-8"))
    assert found, page
    return [(html.unescape(re.sub("<[^>]+>", "", item)), LINK.findall(item)) for item in ITEM.findall(found[1])]


def test_below_a_title_stands_how_long_it_takes_and_what_goes_with_it(site):
    chapter = strip(site / "chapters/a-name-for-a-prefix/index.html")
    (_, (notebook,)) = chapter.pop(2)
    assert "05-the-hash-chain" in notebook  # on the site where it has been exported, else in the repository
    assert chapter == [
        ("25 minutes", []),
        ("lab-04", ["../../labs/lab-04/"]),
        ("Where vLLM does it", ["#where-vllm-does-it"]),
        ("After Reference counts", ["../reference-counts/"]),
    ]
    lab = strip(site / "labs/lab-09/index.html")
    lab.pop(4)
    assert lab == [
        ("60 minutes", []),
        ("Difficulty 3 of 5", []),
        ("PyTorch", []),
        ("Chapter Attention over blocks", ["../../chapters/attention-over-blocks/"]),
        ("Where vLLM does it", ["../../chapters/attention-over-blocks/#where-vllm-does-it"]),
    ]


def test_every_chapter_and_lab_has_a_strip(site):
    pages = [site / name / "index.html" for name in page_names(site) if re.fullmatch("(chapters|labs)/.+/", name)]
    assert [page for page in pages if not strip(page)[0][0].endswith(" minutes")] == []


# A link to a page ---------------------------------------------------------------------------------------------------

META = re.compile(r'<meta (?:property|name)="(og:\w+|twitter:card|description)" content="([^"]*)">')


def test_a_link_to_a_page_shows_its_title_its_words_and_a_picture(site):
    """The picture of a chapter is its own; only the engine's pages share one, and a lab in two languages."""
    pictures = {}
    for name in page_names(site):
        shown = dict(META.findall((site / name / "index.html").read_text(encoding="utf-8")))
        assert shown["og:title"], name
        assert shown["og:description"] == shown["description"], name
        assert shown["twitter:card"] == "summary_large_image"
        picture = site / shown["og:image"].partition(PREFIX)[2]
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG"), name
        assert struct.unpack(">II", content[16:24]) == (1200, 630), name
        if not name.startswith(("api/", "zh/labs/")):
            pictures[name] = content
    assert len(set(pictures.values())) == len(pictures) > 50


def test_an_address_that_has_moved_leads_to_the_page(book_url, open_page):
    page = open_page(book_url + "reference/hit-rate-zero/")
    page.wait_for_url("**/answers/hit-rate-is-zero/")
    page.goto(book_url + "labs/lab-05-further/")
    page.wait_for_url("**/labs/lab-05/#part-2")
    assert page.locator("#part-2").inner_text().startswith("lab-05, part 2: Share, revive and evict")


# A wrong address ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("chapters/05-reference-counts/", "chapters/reference-counts/"),
        ("chapters/kernel.html", "chapters/the-kernel/"),
        ("lab-5/", "labs/lab-05/"),
    ],
)
def test_a_wrong_address_offers_the_page_that_was_meant(wrong, meant, site, book_url, browser):
    """Not through `open_page`: a page that is not there is an error on the console."""
    page = browser.new_page()
    page.route("**/*", lambda route: serve_or_404(route, site))
    page.goto(book_url + wrong)
    assert meant in [link.removeprefix(PREFIX) for link in page.locator("#kv-perhaps + ul a").evaluate_all(PATHS)]
    page.get_by_label("Search the book").fill("驱逐")
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".md-search-result__item a[href*='share-free']").first.wait_for()
    page.close()


PATHS = "links => links.map(link => link.pathname)"


def serve_or_404(route: Any, site: Path) -> None:
    """Answer as GitHub Pages does: the page for wrong addresses stands wherever there is none."""
    path = site / urlsplit(route.request.url).path.removeprefix(PREFIX)
    if path.exists():
        route.continue_()
    else:
        route.fulfill(status=404, path=site / "404.html", content_type="text/html")


# The whole book, on paper -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")  # a process may run other files' tests between those that read it
def pdf(site, browser, tmp_path_factory):
    """The whole book as a PDF, printed by this system's browser as `make book-whole` does it."""
    write_pdf = pytest.importorskip("mini_kv_book.publish").write_pdf
    path = tmp_path_factory.mktemp("pdf") / "mini_kv.pdf"
    write_pdf(site, path, browser)
    return pytest.importorskip("pypdf").PdfReader(path)


@pytest.mark.xdist_group("pdf")
def test_the_pdf_holds_every_chapter_and_lab_as_text_with_an_outline(site, pdf):
    titles = set(outline(pdf.outline))
    pages = [name for name in page_names(site) if name.startswith(("chapters/", "labs/"))]
    headings = {name: heading_of(site / name / "index.html") for name in pages}
    assert len(headings) > 35
    assert [name for name, heading in headings.items() if heading not in titles] == []
    text = " ".join(page.extract_text() for page in pdf.pages[:80])
    assert "keys and values" in text


@pytest.mark.xdist_group("pdf")
def test_the_pdf_holds_every_picture_with_its_words(site, pdf):
    """Each drawing of a chapter is one that a reader has read aloud, under the words that describe it."""
    told = set(descriptions(pdf))
    missing = []
    for path in sorted(site.glob("chapters/*/index.html")):
        stills = re.findall(r'<svg [^>]*class="kv-still"[^>]*aria-label="([^"]*)"', path.read_text(encoding="utf-8"))
        missing += [label for label in stills if html.unescape(label) not in told]
    assert missing == []
    assert len(told) > 30


@pytest.mark.xdist_group("pdf")
def test_the_pdfs_links_lead_inside_it_or_to_the_published_book(pdf):
    inside, outside = 0, set()
    for page in pdf.pages:
        for link in page.get("/Annots") or []:
            action = link.get_object().get("/A", {})
            inside += "/URI" not in action
            outside |= {action["/URI"]} if "/URI" in action else set()
    assert inside > 500
    assert [link for link in outside if "127.0.0.1" in link or link.startswith("file:")] == []


def outline(entries: list[Any]) -> list[str]:
    """Return the titles of an outline, at all depths."""
    return [title for one in entries for title in (outline(one) if isinstance(one, list) else [packed(one.title)])]


def heading_of(path: Path) -> str:
    """Return a page's first heading, as text."""
    found = re.search(r"<h1[^>]*>(.*?)(?:<a class=\"headerlink\"|</h1>)", path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, path
    return packed(html.unescape(re.sub("<[^>]+>", "", found[1])))


def packed(text: str) -> str:
    """Return a text without its blanks: an outline has none where a line ended."""
    return "".join(text.split())


def descriptions(pdf: Any) -> list[str]:
    """Return the alternative texts in a tagged PDF."""
    waiting, found = [pdf.trailer["/Root"]["/StructTreeRoot"]], []
    while waiting:
        one = waiting.pop().get_object()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            found += [str(one["/Alt"])] if "/Alt" in one else []
            waiting += [one["/K"]] if "/K" in one and not isinstance(one["/K"], int) else []
    return found


def test_the_whole_book_is_a_page_without_scripts_that_keeps_its_links_inside(site):
    text = (site / "whole.html").read_text(encoding="utf-8")
    assert "<script" not in text
    ids = set(re.findall(r' id="([^"]+)"', text))
    assert (
        sorted({link for link in re.findall(r'href="#([^"]+)"', text) if link not in ids and "kv-" not in link}) == []
    )


def test_the_whole_book_shows_no_field_that_nothing_answers(book_url, open_page):
    page = open_page(book_url + "whole.html")
    assert page.locator("textarea:visible").count() == 0


def test_on_paper_a_figure_is_the_step_that_tells_most_and_its_story_in_words(book_url, open_page):
    page = open_page(book_url + "chapters/share-free-revive-evict/")
    page.emulate_media(media="print")
    story = page.locator("kv-story").first
    assert story.locator("details li").first.is_visible()
    assert story.locator(".fig svg").first.is_visible()
    page.emulate_media(media="screen")
    page.wait_for_function("!document.querySelector('kv-story details').checkVisibility()")


# A lab's page -------------------------------------------------------------------------------------------------------


LAB_PARTS = (".kv-contract", ".kv-desk", ".kv-spec", "#run")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_a_labs_contract_and_editor_are_on_the_first_screen(width, height, book_url, open_page):
    """Side by side, or on a phone one above the other; the whole text comes below, shells after it."""
    page = open_page(book_url + "labs/lab-05/", width=width, height=height)
    contract, desk, spec, shells = (page.locator(part).first.bounding_box() for part in LAB_PARTS)
    lines = page.locator(".kv-contract").first.locator("li")
    assert lines.first.inner_text().startswith("prefill(kv, token_ids, request_id)\nAdmit")
    assert lines.last.inner_text().startswith("Example, block size 4, ")
    assert contract["y"] + contract["height"] < height
    if width == 1280:
        assert desk["x"] > contract["x"] + contract["width"]
        assert desk["y"] + desk["height"] <= height
        assert contract["y"] + contract["height"] <= spec["y"]
    else:
        assert contract["y"] + contract["height"] < desk["y"] < 0.8 * height
        assert desk["y"] + desk["height"] < spec["y"]
    assert spec["y"] + spec["height"] < shells["y"]
