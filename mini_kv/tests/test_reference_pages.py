"""The book's reference pages: claims are proved, what is pointed to is there, what is said of vLLM was recorded."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest
from mini_kv_book import coverage, kill_matrix, names, serving
from mini_kv_book.deviations import DEVIATIONS
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import run_python
from mini_kv_book.upstream import files_with, has_setting, recording

from mini_kv.labkit.audit import load_mutants
from mini_kv.labkit.lab import Lab, all_labs
from mini_kv.tests.test_labs_are_sound import run_audit

REFERENCE = sorted((DOCS / "reference").glob("*.md"))
LABS = all_labs(ROOT)
TRUE_AS_WRITTEN = (4, 26, 39, 44)


# The errata ---------------------------------------------------------------------------------------------------------


def errata() -> dict[str, str]:
    """Return the text of each entry, by its catalogue numbers."""
    text = (DOCS / "reference" / "errata.md").read_text(encoding="utf-8")
    sections = re.split(r"^###? .*$", text, flags=re.MULTILINE)
    return {
        numbers[0]: section
        for section in sections
        if (numbers := re.match(r"\s*[EN]\d+(, [EN]\d+|; [EN]\d+)*(?=\. )", section))
    }


def test_every_claim_that_did_not_hold_is_on_the_page_once():
    found = [number for key in errata() for number in re.findall(r"[EN]\d+", key)]
    beliefs = {f"E{number}" for number in range(1, 16)}
    figures = {f"N{number:02}" for number in range(1, 45) if number not in TRUE_AS_WRITTEN}
    assert sorted(found) == sorted(beliefs | figures)


def test_every_entry_has_a_proof_or_a_source():
    bare = [key for key, text in errata().items() if "```kv-python" not in text and "](http" not in text]
    assert bare == []


def test_every_proof_prints_something():
    """And what it promises, if it promises: `run_python` compares the two."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for key, text in errata().items():
        for body in re.findall(r"^```kv-python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            assert run_python(body, namespace)[1], key


# The coverage index -------------------------------------------------------------------------------------------------


def test_every_idea_has_one_row_and_a_home_or_something_that_it_waits_for():
    assert sorted(row.number for row in coverage.rows()) == list(range(1, 171))
    assert [row.number for row in coverage.rows() if not row.homes and not row.waits_for] == []


def test_every_home_of_an_idea_is_there():
    problems = {(row.number, home): coverage.problem_with(home) for row in coverage.rows() for home in row.homes}
    assert {key: problem for key, problem in problems.items() if problem} == {}


def test_nothing_is_waited_for_that_has_arrived():
    """When a lab arrives, its rows get their homes and the line `waits_for` goes."""
    labs = {lab.lab_id for lab in LABS}
    arrived = {row.waits_for for row in coverage.rows() if labs & set(re.findall(r"lab-\d\d", row.waits_for or ""))}
    assert arrived == set()


# Names and settings of vLLM -----------------------------------------------------------------------------------------


def test_names_given_by_hand_exist_on_both_sides():
    for ours, (theirs, _) in names.RENAMED.items():
        assert coverage.find_symbol(f"mini_kv.core.{ours}"), ours
        assert not theirs or files_with(theirs), theirs


def test_every_symbol_of_vllm_that_is_cited_with_its_file_was_recorded():
    """In docstrings and on pages as `Name` (v1/core/block_pool.py); a lab's table writes no quotes."""
    texts = [inspect.getsource(module) for module in names.modules()]
    texts += [page.read_text(encoding="utf-8") for page in (*ROOT.glob("labs/lab-*/README.md"), *DOCS.rglob("*.md"))]
    texts += [re.sub(r"([\w.]+) \(", r"`\1` (", function.vllm) for lab in LABS for function in lab.functions]
    cited = {pair for text in texts for pair in re.findall(r"`([A-Za-z_][\w.]*)`\s\((?:vllm/)?([\w/]+\.py)\)", text)}
    known = {(name, file) for name, file in cited if file in recording()["symbols"] and name not in ("same", "it")}
    assert len(known) > 30
    assert {(name, file) for name, file in known if file not in files_with(name)} == set()


def test_every_deviation_is_about_something_upstream():
    symbols = [symbol for deviation in DEVIATIONS for symbol in deviation.symbol.split(", ")]
    assert [symbol for symbol in symbols if not files_with(symbol)] == []


def test_every_option_exists_with_its_flag():
    options = serving.options()
    assert [option["setting"] for option in options if not has_setting(option["setting"])] == []
    assert [option["flag"] for option in options if option["flag"] not in recording()["flags"]] == []
    page = (DOCS / "reference" / "serving-options.md").read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- table serving (\w+) -->$", page, re.MULTILINE)
    assert set(shown) == {option["group"] for option in options}


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_metrics_and_flags_on_a_page_were_recorded(page: Path):
    text = page.read_text(encoding="utf-8")
    metrics = set(re.findall(r"`(vllm:\w+)`", text))
    assert metrics <= set(recording()["metrics"])
    flags = {flag.replace("--no-", "--") for flag in re.findall(r"`(--(?:no-)?[a-z-]+)`", text)}
    assert flags - {"--page-size"} <= set(recording()["flags"])  # that one is SGLang's


# The kill matrix ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.lab_id)
def test_the_kill_matrix_has_the_labs_own_beliefs_and_tests(lab: Lab):
    """If this fails: PYTHONPATH=book python -m mini_kv_book.kill_matrix"""
    kills = kill_matrix.load()[lab.lab_id].values()
    ideas = {kill["idea"] for kill in kills if not kill["in_engine"]}
    assert ideas == {mutant.idea for mutant in load_mutants(lab) if mutant.module is None}
    fingerprints = json.loads((lab.folder / "fingerprints.json").read_text(encoding="utf-8"))
    assert {belief.partition("\n")[0] for known in fingerprints.values() for belief in known.values()} <= ideas
    tree = ast.parse((lab.folder / "test_lab.py").read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {test.partition("[")[0] for kill in kills for test in kill["caught_by"]} <= tests


@pytest.mark.audit
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "lab", [pytest.param(lab, id=lab.lab_id, marks=pytest.mark.xdist_group(lab.lab_id)) for lab in LABS]
)
def test_the_kill_matrix_is_what_an_audit_finds(lab: Lab):
    """If this fails: PYTHONPATH=book python -m mini_kv_book.kill_matrix"""
    recorded = {mutant: kill["caught_by"] for mutant, kill in kill_matrix.load()[lab.lab_id].items()}
    kills = run_audit(lab.lab_id)["kills"]  # of other spellings as well
    assert recorded == {mutant.id: kills[mutant.id] for mutant in load_mutants(lab)}


def test_the_kill_matrix_shows_no_code():
    """A student's book has this page: beliefs and names of tests, no line of a mutant."""
    assert {key for kills in kill_matrix.load().values() for kill in kills.values() for key in kill} == {
        "idea",
        "in_engine",
        "caught_by",
    }


# The glossary -------------------------------------------------------------------------------------------------------


def test_the_glossary_is_in_order_and_every_term_has_its_chinese_word():
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^(.+)\n:   ", text, re.MULTILINE)
    assert len(terms) > 50
    assert terms == sorted(terms, key=str.lower)
    assert [term for term in terms if not re.search(r"\([^)]*[一-鿿][^)]*\)$", term)] == []
