"""The book's reference pages: claims are proved, what is pointed to is there, what is said of vLLM was recorded."""

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from mini_kv_book import kill_matrix, recorded, upstream
from mini_kv_book.places import DOCS, ROOT
from mini_kv_book.runs import source_of
from mini_kv_book.upstream import files_with, has_setting, recording

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.labkit.audit import load_mutants
from mini_kv.course.labkit.lab import Lab, all_labs
from mini_kv.course.labkit.misconception import load_stored
from mini_kv.course.verify.deviations import DEVIATIONS
from mini_kv.engine.config import NOT_HERE, EngineConfig
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


# Names and settings of vLLM -----------------------------------------------------------------------------------------


def test_names_given_by_hand_exist_on_both_sides():
    for ours, (theirs, _) in upstream.RENAMED.items():
        assert source_of(f"mini_kv.core.{ours}").text
        assert not theirs or files_with(theirs), theirs


def test_every_symbol_of_vllm_that_is_cited_with_its_file_was_recorded():
    """In docstrings and on pages as `Name` (v1/core/block_pool.py); a lab's table writes no quotes."""
    texts = [inspect.getsource(module) for module in upstream.modules()]
    texts += [page.read_text(encoding="utf-8") for page in (*ROOT.glob("labs/lab-*/README.md"), *DOCS.rglob("*.md"))]
    texts += [re.sub(r"([\w.]+) \(", r"`\1` (", function.vllm) for lab in LABS for function in lab.functions]
    cited = {pair for text in texts for pair in re.findall(r"`([A-Za-z_][\w.]*)`\s\((?:vllm/)?([\w/]+\.py)\)", text)}
    known = {(name, file) for name, file in cited if file in recording()["symbols"] and name not in ("same", "it")}
    assert len(known) > 30
    assert {(name, file) for name, file in known if file not in files_with(name)} == set()


WHERE = re.compile(r"^## Where [^\n]*vLLM[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
"""The section of a page that says where vLLM does what the page was about."""
NOT_RECORDED = {
    # Names of ours, told beside vLLM's.
    *(
        "BlockStateError",
        "root_block_hash",
        "reversed",
        "fork",
        "ModelRunner",
        "PagedAttend",
        "replay",
        "league",
        "curve",
    ),
    *("explain", "messages", "int8_per_token_head", "EngineLoop", "Mailbox", "Mirror"),
    # Arguments and variables: the recording has what a module and a class define.
    *("full_sequence_must_fit", "reserved_blocks", "max_cache_hit_length", "request.num_tokens", "seq_len", "fp8"),
    # Other people's code: nano-vllm, transformers.
    *("store_kvcache", "use_cache", "past_key_values"),
}


def is_recorded(name: str) -> bool:
    """Return whether vLLM 0.33 has a file, a flag, a metric, a setting or a name that is written so."""
    if name.endswith(".py"):
        return any(file == name or file.endswith("/" + name) for file in recording()["symbols"])
    if name.startswith("--"):
        return name.replace("--no-", "--") in recording()["flags"]
    if "." in name:
        return bool(files_with(name)) or (name.count(".") == 1 and has_setting(name))
    return name in plain_names()


@cache
def plain_names() -> set[str]:
    """Return the names without a dot that were recorded: classes, members, functions, settings, types, metrics."""
    known = recording()
    defined = {symbol.split(".")[-1] for names in known["symbols"].values() for symbol in names}
    settings = {setting for fields in known["config"].values() for setting in fields}
    return {*defined, *settings, *known["literals"], *known["metrics"]}


def test_every_name_where_vllm_does_it_was_recorded():
    """Who follows such a table finds what it names. What stands there and is no name of vLLM's is listed above."""
    pages = [*DOCS.glob("chapters/*.md"), *ROOT.glob("labs/lab-*/README.md")]
    sections = [section for page in pages for section in WHERE.findall(page.read_text(encoding="utf-8"))]
    spans = {
        span.removesuffix("()").removeprefix("vllm/")
        for section in sections
        for span in re.findall(r"`([^`\n]+)`", section)
    }
    names = {span for span in spans if re.fullmatch(r"--[a-z-]+|[A-Za-z_][\w.]+|[\w/]+\.py|vllm:\w+", span)} - {"v1"}
    assert len(names) > 150
    assert {name for name in names if not is_recorded(name)} - NOT_RECORDED == set()


def test_the_files_on_the_page_of_names_were_recorded():
    page = (DOCS / "reference" / "names.md").read_text(encoding="utf-8")
    files = {file for row in re.findall(r"^\| `.*", page, re.MULTILINE) for file in re.findall(r"`([\w/]+\.py)`", row)}
    assert len(files) > 10
    assert {file for file in files if not is_recorded(file)} == set()


def test_every_deviation_is_about_something_upstream():
    symbols = [symbol for deviation in DEVIATIONS for symbol in deviation.symbol.split(", ")]
    assert [symbol for symbol in symbols if not files_with(symbol)] == []


def test_every_option_exists_with_its_flag():
    settings = upstream.serving_options()
    assert [option["setting"] for option in settings if not has_setting(option["setting"])] == []
    assert [option["flag"] for option in settings if option["flag"] not in recording()["flags"]] == []
    page = (DOCS / "reference" / "serving-options.md").read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- table serving (\w+) -->$", page, re.MULTILINE)
    assert set(shown) == {option["group"] for option in settings}


def test_every_option_of_ours_is_told_beside_vllms():
    """A row per field of the two classes that say how an engine is built; what is shared has vLLM's name."""
    rows = [row.split(" | ") for row in upstream.options_here().splitlines()[2:]]
    ours = [field.name for config in (EngineConfig, SchedulerConfig) for field in fields(config)]
    assert [row[0].strip("|` ") for row in rows] == [name for name in ours if name != "scheduler"]
    alone = [row[0].strip("|` ") for row in rows if "ours alone" in row[2]]
    assert alone == ["backend", "kv_tiers", "debug_poison", "multi_tenant", "num_lookahead_tokens"]
    same = {row[0].strip("|` "): (row[1], row[2].removesuffix(" |")) for row in rows}
    assert same["max_num_seqs"] == ("`128`", "`128`")
    assert same["kv_cache_dtype"] == ("`auto`", "`auto`, `CacheConfig.cache_dtype`")


def test_what_is_left_out_is_refused_by_name_with_the_reason_that_the_page_gives():
    """Every one but `swap_space` is an option of 0.33, and the error says what the table says."""
    table = upstream.options_elsewhere()
    for name, why in NOT_HERE.items():
        with pytest.raises(ConfigError) as error:
            EngineConfig.from_engine_args(**{name: 1})
        assert str(error.value) == f"there is no option {name}: {why}"
        assert f"| `{name}` | " in table and f" | {why} |" in table
        assert ("--" + name.replace("_", "-") in recording()["flags"]) is (name != "swap_space")


def test_the_page_for_readers_from_vllm_names_every_spec_and_every_sampling_parameter():
    page = (DOCS / "reference" / "from-vllm.md").read_text(encoding="utf-8")
    module = ast.parse((ROOT / "mini_kv" / "engine" / "sampling.py").read_text(encoding="utf-8"))  # it imports torch
    (params,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "SamplingParams")
    fields_of_params = {ast.unparse(node.target) for node in params.body if isinstance(node, ast.AnnAssign)}
    wanted = {spec.__name__ for spec in MANAGER_CLASSES} | fields_of_params
    assert {name for name in wanted if f"`{name}`" not in page} == set()


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
    recorded = kill_matrix.load()[lab.lab_id]
    assert list(recorded) == [mutant.id for mutant in load_mutants(lab)]
    kills = recorded.values()
    ideas = {kill["idea"] for kill in kills if not kill["in_engine"]}
    assert ideas == {mutant.idea for mutant in load_mutants(lab) if mutant.module is None}
    assert {
        belief.partition("\n")[0] for known in load_stored(lab).beliefs.values() for belief in known.values()
    } <= ideas
    assert {test for kill in kills for test in kill["caught_by"]} <= {*lab.tests()}


@pytest.mark.audit
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "lab", [pytest.param(lab, id=lab.lab_id, marks=pytest.mark.xdist_group(lab.lab_id)) for lab in LABS]
)
def test_the_kill_matrix_is_what_an_audit_finds(lab: Lab):
    """If this fails: PYTHONPATH=book python -m mini_kv_book.kill_matrix"""
    recorded = {mutant: kill["caught_by"] for mutant, kill in kill_matrix.load()[lab.lab_id].items()}
    kills = run_audit(lab.lab_id)["kills"]  # of those that were played, and of other spellings as well
    assert {id_: tests for id_, tests in kills.items() if id_ in recorded} == {
        id_: tests for id_, tests in recorded.items() if id_ in kills
    }


def test_the_kill_matrix_shows_no_code():
    """A student's book has this page: beliefs and names of tests, no line of a mutant."""
    assert {key for kills in kill_matrix.load().values() for kill in kills.values() for key in kill} == {
        "idea",
        "in_engine",
        "caught_by",
    }


# The glossary -------------------------------------------------------------------------------------------------------


@pytest.mark.prose
def test_the_glossary_is_in_order_and_every_term_has_its_chinese_word():
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^(.+)\n:   ", text, re.MULTILINE)
    assert len(terms) > 50
    assert terms == sorted(terms, key=str.lower)
    assert [term for term in terms if not re.search(r"\([^)]*[一-鿿][^)]*\)$", term)] == []


# Figures in sentences -----------------------------------------------------------------------------------------------


def test_what_sentences_tell_of_vllm_and_of_two_gpus_is_recorded():
    """In *Reading vLLM*, *The kernel* and the page on what is least stable. If this fails, they tell old figures."""
    size = recording()["sizes"]["v1/core"]
    assert (size["lines"], size["files"], len(recording()["literals"]["CacheDType"])) == snapshot((14163, 18, 22))
    h200, h100 = recorded.load("gpu-h200"), recorded.load("gpu-h100")
    fast, slow = ({row["row"]: row for row in card["rows"]} for card in (h200, h100))
    decodes = ("decode B1 128k", "decode B32 4k", "decode B64 8k", "decode B256 1k", "decode B32 4k, int8")
    assert {name: (f"{1e6 * fast[name]['seconds']:.1f}", f"{fast[name]['share_of_copy']:.2f}") for name in decodes} == (
        snapshot(
            {
                "decode B1 128k": ("142.5", "0.89"),
                "decode B32 4k": ("141.9", "0.90"),
                "decode B64 8k": ("572.9", "0.89"),
                "decode B256 1k": ("279.5", "0.91"),
                "decode B32 4k, int8": ("112.6", "0.58"),
            }
        )
    )
    decode, others = fast["decode B32 4k"], ("cudnn", "flashinfer", "flash", "vllm")
    assert [f"{decode['times_as_fast_as'][name]:.2f}" for name in others] == snapshot(["0.92", "0.93", "1.50", "1.65"])
    flops = (fast["prefill 8k"]["flops_per_second"], h200["multiply"])
    assert [len(fast), *(f"{each / 1e12:.0f}" for each in flops)] == snapshot([26, "420", "770"])
    assert [f"{card['copy'] / 1e12:.2f}" for card in (h200, h100)] == snapshot(["4.22", "2.99"])
    assert [f"{1e6 * slow[name]['seconds']:.1f}" for name in ("decode B32 4k", "decode B32 4k, int8")] == snapshot(
        ["197.4", "118.1"]
    )
