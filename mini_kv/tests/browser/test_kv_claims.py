"""The page "True or false?" in a real browser: by mouse and keyboard, right and wrong, the score, without scripts."""

import importlib
import re

import pytest
from mini_kv_book import runs
from mini_kv_book.places import DOCS

from mini_kv.course.lessons.predict import Question

PHONE = {"width": 390, "height": 844, "has_touch": True}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def claims():
    """The claims of the book's page, in their order."""
    body = (DOCS / "true-or-false.md").read_text(encoding="utf-8").split("```kv-claims\n")[1].split("\n```")[0]
    return runs.claims_in(body)


@pytest.fixture(scope="module")
def site(write_site, claims):
    """A page with the element, made by the book's fence from the book's own claims."""
    elements = importlib.import_module("mini_kv_book.elements")
    markdown = importlib.import_module("markdown").Markdown()
    sections = [(claim, runs.section_of(claim.id)) for claim in claims]
    proofs = ["".join(elements.run_and_show(code, markdown) for code in section.proofs) for _, section in sections]
    return write_site("Claims", index=elements.claims(sections, proofs, "errata.html"))


@pytest.fixture
def show(site, serve, open_page):
    """A function that opens the page and waits for the first claim."""
    address = serve(site)

    def shown(**options):
        page = open_page(f"{address}/index.html", **options)
        page.get_by_role("button", name="True").wait_for()
        return page

    return shown


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def claim_shown(page):
    """Return the headings that the reader sees in the element."""
    return page.locator("kv-claims h2:visible").all_inner_texts()


def said(page):
    return page.get_by_role("status").inner_text()


def marks(page):
    return page.locator("kv-claims .marks li").all_inner_texts()


def opposite(answer):
    return "False" if answer == "True" else "True"


def test_a_reader_judges_all_claims_by_mouse(show, claims):
    """The first three wrong, the others right: a score, and three sections to read."""
    page = show()
    for number, claim in enumerate(claims, start=1):
        assert claim_shown(page) == [f"{number}. {claim.ask}"]
        assert said(page) == ""
        assert page.locator("kv-claims details:visible").count() == 0
        reason = claim.choices[claim.answer]
        if number <= 3:
            other = opposite(claim.answer)
            press(page, other)
            verdict, then = f"\u2717 Wrong: it is {claim.answer.lower()}.", f"If it were {other.lower()}, "
            assert said(page) == f"{verdict} {reason} {then}{claim.choices[other]}"
        else:
            press(page, claim.answer)
            assert said(page) == f"\u2713 Right: it is {claim.answer.lower()}. {reason}"
        press(page, "Next claim" if number < 10 else "Your score")
    assert claim_shown(page) == ["7 of 10"]
    assert marks(page) == [*["\u2717"] * 3, *["\u2713"] * 7]
    links = page.locator("kv-claims .read a").all()
    assert [(link.get_attribute("href"), link.inner_text()) for link in links] == [
        ("errata.html#e1", '"Llama 2 70B needs 10.7 GB for 4,096 tokens"'),
        ("errata.html#e4", '"A block that is freed is gone"'),
        ("errata.html#n13", '"Paging brings the waste below 1 %"'),
    ]


def test_a_reader_judges_all_claims_by_keyboard(show, claims):
    """T, F and N. A key that has nothing to do changes nothing, and the theme's own F and N do not hear these."""
    page = show()
    page.evaluate("() => { window.heard = []; addEventListener('keydown', ({ key }) => window.heard.push(key)) }")
    page.get_by_role("button", name="True").focus()
    page.keyboard.press("n")
    for number, claim in enumerate(claims, start=1):
        assert claim_shown(page) == [f"{number}. {claim.ask}"]
        page.keyboard.press(claim.answer[0].lower())
        page.keyboard.press(opposite(claim.answer)[0].lower())
        assert said(page).startswith(f"\u2713 Right: it is {claim.answer.lower()}.")
        page.keyboard.press("n")
    assert claim_shown(page) == ["10 of 10"]
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.textContent") == "10 of 10"
    assert page.locator("kv-claims .read li").count() == 0
    assert page.evaluate("window.heard") == []


def test_the_score_can_be_started_again_and_nothing_is_stored(show):
    page = show()
    for number in range(10):
        press(page, "True")
        press(page, "Next claim" if number < 9 else "Your score")
    assert claim_shown(page) == ["4 of 10"]
    press(page, "Start again")
    assert claim_shown(page) == ["1. Llama 2 70B needs 10.7 GB of KV cache for 4,096 tokens."]
    assert marks(page) == [str(number) for number in range(1, 11)]
    assert page.evaluate("document.activeElement.textContent") == claim_shown(page)[0]
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_the_answer_opens_the_proof_of_the_errata(show):
    """The code and the output of that section, and a link to it. The reader can fold it."""
    page = show()
    press(page, "True")
    press(page, "Next claim")
    press(page, "True")
    proof = page.locator("kv-claims details:visible")
    assert proof.locator(".highlight").first.inner_text().splitlines()[-2:] == [
        'found = kv.get_computed_blocks(kv.new_request("B", range(32)))[1]',
        'print(kv.block_pool.num_free_blocks, "blocks free;", found, "tokens found")',
    ]
    assert proof.locator(".kv-printed").inner_text().strip() == "10 blocks free; 28 tokens found"
    assert proof.get_by_role("link").get_attribute("href") == "errata.html#e4"
    proof.locator("summary").click()
    assert proof.get_by_role("link").count() == 0


def test_without_scripts_each_claim_has_a_fold_with_its_answer_and_proof(site, serve, open_page, claims):
    page = open_page(f"{serve(site)}/index.html", java_script_enabled=False)
    assert claim_shown(page) == [f"{number}. {claim.ask}" for number, claim in enumerate(claims, start=1)]
    folds = page.locator("kv-claims details")
    assert folds.locator("p:visible").count() == 0
    folds.nth(1).locator("summary").click()
    assert re.sub(r"\s+", " ", folds.nth(1).locator("p").first.inner_text()) == f"True. {claims[1].choices['True']}"
    assert "10 blocks free; 28 tokens found" in folds.nth(1).inner_text()
    assert page.locator("button").count() == 0


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_accessible_and_fits_a_phone(show, axe, dark):
    """Before an answer, after a wrong one, and at the end."""
    page = show(**PHONE, dark=dark)
    assert axe(page) == []
    for number in range(10):
        press(page, "True")
        if number in (0, 1):
            assert axe(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == 390
        press(page, "Next claim" if number < 9 else "Your score")
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_fence_writes_headings_and_folds_that_need_no_script(write_site):
    """`write_site` skips this test where the book's packages are missing."""
    elements = importlib.import_module("mini_kv_book.elements")
    claim = Question("e4", "A claim.", "True", {"True": "It is.", "False": "it is not."})
    assert elements.claims([(claim, runs.section_of("e4"))], ["<p>10</p>"], "errata/") == (
        '<div><kv-claims><script type="application/json">'
        '[{"answer":"True","reasons":{"True":"It is.","False":"it is not."}}]</script>'
        "<h2>1. A claim.</h2><details><summary>Answer and proof</summary><p><strong>True.</strong> It is.</p><p>10</p>"
        '<p>In the errata: <a href="errata/#e4">&quot;A block that is freed is gone&quot;</a></p></details>'
        "</kv-claims></div>"
    )
