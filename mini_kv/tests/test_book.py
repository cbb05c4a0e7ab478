"""The book without a browser, and without MkDocs: its fences run, its lists are whole, its leak check finds leaks.

The build itself, and what a reader sees of it, are in `browser/test_book_site.py`.
"""

import ast
import json
import re
import sys
import tomllib
from typing import Any

import pytest
from mini_kv_book import generate, leaks, outputs, places, runs, stills
from mini_kv_book.lab_layout import arranged, contract, section, with_contract
from mini_kv_book.places import DOCS, ROOT, line_of
from mini_kv_book.runs import FenceError, run_chart, run_command, run_python, source_of
from mini_kv_book.search_terms import LEFT_OUT, marked

import mini_kv
from mini_kv.course.given.contract import PUBLIC, draw
from mini_kv.course.grading.solution_leaks import bare, bodies
from mini_kv.course.labkit.course_settings import load_course

# The book as it stands --------------------------------------------------------------------------------------------


PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
WITH_FENCES = [page for page, text in PAGES.items() if any(outputs.fences(text))]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_FENCES)
@pytest.mark.slow
def test_the_stored_results_of_a_page_are_those_of_its_fences(page):
    """If this fails: python -m mini_kv_book.outputs. Fences without results to store are checked by the build alone."""
    stale = []

    def result(key, compute):  # a page that needs a package which this machine lacks is shown from the store
        found = outputs.kept_or_stored(key, compute)
        stored = outputs.stored().get(outputs.digest_of(key), found)
        stale.extend([] if outputs.same(stored, found) else [key])
        return found

    outputs.run_fences(page, PAGES[page], result, result)
    assert stale == []


def test_every_fence_is_one_that_the_build_knows():
    """Another one would be shown as code."""
    known = re.findall(r"name: (kv-\w+)", generate.CONFIG.read_text(encoding="utf-8"))
    assert {kind for text in PAGES.values() for kind, _ in outputs.fences(text)} <= {*known}


@pytest.mark.parametrize("name", [name for name, title in stills.KEY_CHARTS.items() if "(" not in title])
def test_a_stored_chart_has_the_words_of_its_cell(name):
    """When this fails: python -m mini_kv_book.stills."""
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    [cell] = [cell for cell in stills.code_cells(notebook) if stills.KEY_CHARTS[name] in "".join(cell["source"])]
    said = " ".join(
        node.value
        for node in ast.walk(ast.parse("".join(cell["source"])))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    [label] = cell["outputs"][0]["data"]["text/plain"]
    title = stills.KEY_CHARTS[name]
    assert label.startswith(f"{title}. ")
    assert label.removeprefix(f"{title}. ") in said


def test_no_module_no_lab_and_no_chapter_is_forgotten():
    """When this fails: make book-pages."""
    notebooks = {path: path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks == stills.notebooks()
    config = generate.CONFIG.read_text(encoding="utf-8")
    assert config == generate.with_navigation(config)
    assert sorted(set(generate.pages()) - set(re.findall(r"[\w./-]+\.md", config))) == []


def test_pages_are_written_once_and_those_of_modules_that_are_gone_deleted(tmp_path):
    for folder, name in (("api", "mini_kv.md"), ("api", "mini_kv.gone.md"), ("labs", "lab-99.md")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("by hand")
    generate.write_pages(tmp_path)
    written = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.md")}
    pages = {name: path.read_text(encoding="utf-8") for name, path in written.items()}
    assert pages == {"api/mini_kv.md": "by hand"} | generate.pages()
    before = {path: path.stat().st_mtime_ns for path in written.values()}
    generate.write_pages(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # or `mkdocs serve` would build for ever


@pytest.mark.parametrize("lab", generate.labs())
def test_a_labs_contract_has_every_function_and_says_what_it_does(lab):
    """In the order of lab.toml: the signature, then the first sentence of the starter's docstring."""
    functions = tomllib.loads((ROOT / "labs" / lab / "lab.toml").read_text(encoding="utf-8"))["function"]
    lines = contract(lab)
    told = [re.fullmatch(r"- `(.+)`<br>[A-Z].{30,}[.)]", line) for line in lines[: len(functions)]]
    assert [line[1] for line in told if line] == [one["signature"] for one in functions]
    assert [line for line in lines[len(functions) :] if not line.startswith("- **Example**")] == []


def test_a_labs_page_has_the_editor_before_the_long_text():
    """Contract, editor, specification; then what the README says before and after it, in its order."""
    readme = ["# Lab", "Why.", "## Background", "b", "## Run", "r", "## What to implement", "w", "## Notes", "n"]
    page = arranged(readme, "lab-05", "Solve it here")
    assert page[:3] == ["# Lab", "", "[Solve it here](#run-it-here){ .kv-solve }"]
    shown = [line for line in page if line.startswith(("<div", "## ", "```kv", "Below", "Why"))]
    assert shown == [
        '<div class="kv-bench" markdown>',
        '<div class="kv-contract" markdown>',
        '<div class="kv-desk" markdown>',
        "## Your code { #run-it-here }",
        "```kv-lab",
        '<div class="kv-spec" markdown>',
        "Why.",
        "Below: [Background](#background), [Run](#run).",
        "## What to implement",
        "## Background",
        "## Run",
        "## Notes",
    ]


def test_the_front_door_comes_first_and_every_name_leads_to_its_home():
    page, api = generate.front_door(), generate.navigation()["api"]
    assert re.findall(r"^\| \[`(\w+)`\]\(mini_kv\.[\w.]+\.md#mini_kv\.[\w.]+\.\1\) \| \w", page, re.M) == [
        name for names in mini_kv._HOMES.values() for name in names
    ]
    listed = [line.rpartition("api/mini_kv.")[2].removesuffix(".md") for line in api if "api/mini_kv." in line]
    assert listed[1 : len(mini_kv._HOMES) + 1] == list(mini_kv._HOMES)


def test_the_address_is_the_courses_and_the_site_is_its_owners():
    assert places.repository_url() == load_course(ROOT).address
    config = generate.CONFIG.read_text(encoding="utf-8")
    assert re.findall(r"^site_url: (\S+)", config, re.MULTILINE) == [load_course(ROOT).site_url]
    assert "github.com" not in re.sub(r"#.*", "", config)  # the theme would ask GitHub for stars, on every page


# What fences do ---------------------------------------------------------------------------------------------------


def test_python_shows_the_code_and_what_it_printed_without_the_promise():
    namespace: dict[str, Any] = {}
    assert run_python("x = 41\nprint(x + 1)\n# prints: 42", namespace) == ("x = 41\nprint(x + 1)", "42")
    assert run_python("print(x)", namespace) == ("print(x)", "41")  # the next cell of the page


@pytest.mark.parametrize(
    ("body", "message", "offset"),
    [
        ("print(1)\nprint(2)\n# prints: 1\n# prints: 3", "promises ['1', '3'], printed ['1', '2']", 2),
        ("print(1)\n# prints: 1\nprint(2)", "promises ['1'], printed ['1', '2']", 1),
        ("x = 1\n\nx.touch()", "AttributeError: 'int' object has no attribute 'touch'", 2),
        ("x = 1\nx = = 2", "SyntaxError: invalid syntax (<fence>, line 2)", 1),
        ("raise SystemExit(3)", "SystemExit: 3", 0),
    ],
)
def test_python_that_does_not_keep_its_word_is_an_error_at_the_guilty_line(body, message, offset):
    with pytest.raises(FenceError) as error:
        run_python(body, {})
    assert (str(error.value), error.value.offset) == (message, offset)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("rm -rf /", "one `mini-kv ...` or `python -m mini_kv...` command belongs here, not 'rm -rf /'"),
        ("python -m this", "one `mini-kv ...` or `python -m mini_kv...` command belongs here, not 'python -m this'"),
        ("mini-kv story no-such-story", "exit status 2: "),
    ],
)
def test_only_commands_of_this_project_run_and_a_failing_one_is_an_error(command, message):
    with pytest.raises(FenceError) as error:
        run_command(command)
    assert str(error.value).startswith(message)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not limit what a process computes")
def test_a_command_that_computes_too_long_is_an_error():
    with pytest.raises(FenceError, match=r"^computed longer than 1 s$"):
        run_command("mini-kv finale --labs solution --hours 6", cpu_seconds=1)


def test_a_command_that_hangs_is_an_error_that_also_suspects_the_machine():
    with pytest.raises(FenceError, match=r"^no end after 0\.01 s: it hangs, or this machine is very busy$"):
        run_command("mini-kv story share-and-evict", wall_seconds=0.01)


def test_a_chart_is_what_the_last_line_shows():
    class Drawing:
        def _repr_html_(self) -> str:
            return f"<svg>{x}</svg>"

    x = 1
    assert run_chart("y = Drawing()\ny", {"Drawing": Drawing}) == "<svg>1</svg>"


@pytest.mark.parametrize(
    ("body", "message", "offset"),
    [
        ("x = 1", "what stands last is no chart", 0),
        ("x = 1\nx", "what stands last is no chart", 1),
        ("x = 1\n\nx.draw()", "AttributeError: 'int' object has no attribute 'draw'", 2),
    ],
)
def test_what_is_no_chart_is_an_error(body, message, offset):
    with pytest.raises(FenceError) as error:
        run_chart(body, {})
    assert (str(error.value), error.value.offset) == (message, offset)


def test_a_command_prints_what_a_terminal_without_colours_would_show():
    printed = run_command("mini-kv story share-and-evict")
    assert printed.splitlines()[0] == "The life of a cached block"
    assert "\x1b" not in printed


def test_a_symbol_is_shown_with_its_decorators_and_without_an_import():
    method = source_of("mini_kv.core.block_pool.BlockPool.touch")
    assert method.path == "mini_kv/core/block_pool.py"
    assert method.text.splitlines()[0].startswith("def touch(self, ")
    assert source_of("mini_kv.story.scenario.Step").text.startswith("@dataclass(frozen=True, slots=True)\nclass Step:")
    inherited = source_of("mini_kv.core.single_type_kv_cache_manager.FullAttentionManager.free")
    assert inherited == source_of("mini_kv.core.single_type_kv_cache_manager.SingleTypeKVCacheManager.free")
    assert source_of("mini_kv.story.text.LEGEND").text == 'LEGEND = "#=cached  xN=ref_cnt"'


def test_a_function_in_wgsl_is_shown_with_its_comments_and_attributes():
    source = source_of("book/mini_kv_book/assets/kv_gpu.wgsl write_kv")
    lines = source.text.splitlines()
    assert lines[0] == "/// Write new keys and values to their slots. Grid: (num_tokens, NUM_KV_HEADS)."
    assert lines[1] == "@compute @workgroup_size(HEAD_SIZE)"
    assert lines[-2:] == ["  v_cache[target_row] = value[source];", "}"]


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (
            "book/mini_kv_book/assets/kv_gpu.wgsl nothing",
            "book/mini_kv_book/assets/kv_gpu.wgsl has no function 'nothing'",
        ),
        ("book/nothing.wgsl attend", "book/nothing.wgsl has no function 'attend'"),
        ("mini_kv.core.block_pool.BlockPool.tuch", "mini_kv/core/block_pool.py has no 'tuch' (asked for "),
        ("vllm.v1.core.block_pool", "no module of this repository begins 'vllm.v1.core.block_pool'"),
    ],
)
def test_an_unknown_symbol_is_an_error(symbol, message):
    with pytest.raises(FenceError) as error:
        source_of(symbol)
    assert str(error.value).startswith(message)


def test_the_challenge_has_the_contract_of_the_class_and_an_anchor_at_each_sentence():
    readme = (ROOT / "labs/lab-17/README.md").read_text(encoding="utf-8")
    of_all, of_class = (section(with_contract(readme, own).splitlines(), "the-contract") for own in (PUBLIC, draw(7)))
    numbers = [str(number) for number in range(1, 21)]
    for lines in (of_all, of_class):
        assert lines[0] == "## The contract"
        assert re.findall(r'^(\d+)\. <span id="sentence-\1"></span>', "\n".join(lines), re.MULTILINE) == numbers
    assert "This is the contract of your class." in "\n".join(of_class)
    assert "This is the contract of your class." not in "\n".join(of_all)


def a_claim(anchor: str, choice: str = "False") -> str:
    """Return a fence's text with one claim."""
    question = f'[[question]]\nid = "{anchor}"\nask = "A claim."\nanswer = "True"\n'
    return question + f'[question.choices]\n"True" = "It is."\n"{choice}" = "it is not."\n'


def test_a_claim_is_proved_by_the_code_of_its_section_of_the_errata():
    [claim] = runs.claims_in(a_claim("e4"))
    title, [proof] = runs.section_of(claim.id)
    assert title == '"A block that is freed is gone"'
    assert run_python(proof, {})[1] == "10 blocks free; 28 tokens found"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (a_claim("e99"), "errata.md has no section #e99"),
        (a_claim("n16"), "errata.md#n16 has no code that proves it"),
        (a_claim("e4", "Perhaps"), "e4: the choices are True and False, not True, Perhaps"),
        (a_claim("e4") * 2, "ValueError: kv-claims: e4 occurs twice, or its answer is not one of its choices"),
        ("[[question]", "TOMLDecodeError: Expected ']]' at the end of an array declaration"),
        ("[[question]]", "KeyError: 'id'"),
    ],
)
def test_a_claim_without_a_proof_or_with_other_choices_is_an_error(body, message):
    with pytest.raises(FenceError) as error:
        [runs.section_of(claim.id) for claim in runs.claims_in(body)]
    assert str(error.value).startswith(message)


def test_some_of_the_claims_are_true_and_each_proof_runs_alone():
    """On its page, a proof runs without the code of the sections before it."""
    [body] = [body for kind, body in outputs.fences(PAGES["true-or-false.md"]) if kind == "kv-claims"]
    judged = runs.claims_in(body)
    assert [claim.answer for claim in judged].count("True") in (3, 4)
    assert all(run_python(proof, {})[1] for claim in judged for proof in runs.section_of(claim.id).proofs)


def test_a_fence_is_found_in_its_file_though_it_is_indented_there():
    assert (
        line_of("print(1)\nprint(2)\n", "# A page\n\n!!! note\n    ```kv-python\n    print(1)\n    print(2)\n    ```")
        == 5
    )
    assert line_of("../x.py", "One\n\nSee [x](../x.py).") == 3
    assert line_of("print(3)", "print(1)") is None


# What the build adds to a page ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "is_left_out"),
    [
        ("<table><td>LRU</td><td>12.5 ms</td></table>", True),
        ("<table><td>off</td><td>34,525</td><td>445 ms</td><td>0%</td></table>", True),
        ("<table><td>LRU</td><td>evicts the block that was used least recently</td></table>", False),
        ("<table><td>2</td><td>blocks of 16 tokens</td><td>one per group</td></table>", False),
        ("<table><th>no cell</th></table>", False),
        ('<svg class="kv-still"><text>7 ms</text></svg>', True),
        ('<figure class="kv-instrument"><svg/></figure>', True),
        ('<figure class="kv-code"><pre>block = 1</pre></figure>', False),
        ("<kv-lab>the contract</kv-lab>", False),
    ],
)
def test_the_search_leaves_out_drawings_and_tables_of_numbers(element, is_left_out):
    assert (LEFT_OUT in marked(element)) == is_left_out


# The leak check ---------------------------------------------------------------------------------------------------


def solution_text(lab: str) -> str:
    return (ROOT / "solutions" / lab / "solution.py").read_text(encoding="utf-8")


def as_page(code: str) -> str:
    """Code as a highlighter leaves it: a tag around every word."""
    escaped = code.replace("<", "&lt;").replace(">", "&gt;")
    return f"<html><pre><code>{re.sub('[A-Za-z_]+', lambda word: f'<i>{word[0]}</i>', escaped)}</code></pre></html>"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("labs/lab-05/index.html", as_page),
        ("search/search_index.json", lambda code: json.dumps({"docs": [{"text": code}]})),
        ("assets/lab.js", lambda code: "const files = `" + code + "`;"),
    ],
)
@pytest.mark.slow
def test_a_solution_is_found_wherever_it_leaks(name, make, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(make(solution_text("lab-05")), encoding="utf-8")
    assert leaks.leaks(tmp_path) == [f"{file}: solutions/lab-05/solution.py: prefill"]


@pytest.mark.slow
def test_half_a_solution_is_a_leak_too(tmp_path):
    body = next(
        body for body in bodies(ROOT / "solutions/lab-07/solution.py", ROOT) if body.where.endswith("cache_full_blocks")
    )
    lines = solution_text("lab-07").splitlines()
    code = [line for line in lines if bare(line) in body.lines]
    start = code.index(next(line for line in code if bare(line) == body.lines[1]))
    (tmp_path / "index.html").write_text(as_page("\n".join(code[start : start + 6])), encoding="utf-8")
    assert leaks.leaks(tmp_path) == [f"{tmp_path}/index.html: {body.where}"]


# What is kept from one build to the next ----------------------------------------------------------------------------


class Builds:
    """Builds of one page of Python; `ran` lists the cells that the last one had to run."""

    def __init__(self, folder, stamps=outputs.stamps):
        self.kept = outputs.Kept(folder, stamps)
        self.ran: list[str] = []

    def run(self, body, names):
        self.ran.append(body)
        return run_python(body, names)

    def build(self, *bodies):
        self.ran.clear()
        page = outputs.Cells(self.kept)
        return [page.result(self.run, body)[1] for body in bodies]


def test_a_page_that_has_not_changed_runs_nothing(tmp_path):
    book = Builds(tmp_path)
    assert (book.build("x = 2", "print(x)"), book.ran) == (["", "2"], ["x = 2", "print(x)"])
    assert (book.build("x = 2", "print(x)"), book.ran) == (["", "2"], [])


def test_a_changed_cell_runs_after_those_before_it_and_so_do_those_below(tmp_path):
    book = Builds(tmp_path)
    book.build("x = 2", "print(x)", "print(3)")
    assert book.build("x = 2", "print(x + 1)", "print(3)") == ["", "3", "3"]
    assert book.ran == ["x = 2", "print(x + 1)", "print(3)"]


def test_a_cell_that_fails_is_not_kept(tmp_path):
    book = Builds(tmp_path)
    for _ in range(2):
        with pytest.raises(FenceError, match="division by zero"):
            book.build("x = 0", "1 / x")


def test_results_of_other_sources_are_removed_and_none_are_kept_while_a_source_changes(tmp_path):
    (tmp_path / "older").mkdir()
    changes = iter(({}, {}, {ROOT / "README.md": (1, 2)}))
    book = Builds(tmp_path, lambda: next(changes))
    assert not (tmp_path / "older").exists()
    book.build("x = 2")
    assert book.build("x = 2") == [""]
    assert book.ran == ["x = 2"]


# What is stored for a build without PyTorch -------------------------------------------------------------------------


def test_a_stored_output_is_replaced_only_if_more_than_decimal_fractions_have_changed(tmp_path):
    file = tmp_path / "chapters" / "a.json"
    outputs.write(file, {"a": "4 blocks in 0.51 ms", "b": "4 blocks", "c": 1})
    outputs.write(file, {"a": "4 blocks in 0.49 ms", "b": "5 blocks", "d": [2.5, {"e": None}]})
    after = {"a": "4 blocks in 0.51 ms", "b": "5 blocks", "d": [2.5, {"e": None}]}
    assert json.loads(file.read_text(encoding="utf-8")) == after


def test_a_page_without_outputs_to_store_has_no_file(tmp_path):
    file = tmp_path / "a.json"
    for found in ({"a": 1}, {}, {}):
        outputs.write(file, found)
    assert not file.exists()


def test_of_a_page_without_pytorch_only_the_commands_are_stored():
    page = "chapters/who-runs-next.md"
    [command] = [body.strip() for kind, body in outputs.fences(PAGES[page]) if kind == "kv-output"]
    assert list(json.loads(outputs.file_of(page).read_text(encoding="utf-8"))) == [
        outputs.digest_of(["run_command", command])
    ]
