"""The Chinese edition: its figures say nothing in English, its numbers are the engine's, its words the glossary's."""

import re
import tomllib
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from mini_kv_book.places import DOCS, ROOT, chinese_edition

from mini_kv.story.figure import fragment, story_data
from mini_kv.story.language import line_in, words
from mini_kv.story.scenario import ScenarioError, load_scenario, parse_scenario, scenario_names, translated
from mini_kv.story.still import svg
from mini_kv.story.story_text import NOTHING_CHANGED, VERBS

TOLD = sorted(path.stem for path in (ROOT / "mini_kv/story/scenarios/zh").glob("*.toml"))
CHAPTER = (DOCS / "zh/chapters/block-manager.md").read_text(encoding="utf-8")
LAB = (DOCS / "zh/labs/lab-05.md").read_text(encoding="utf-8")
SYMBOLS = {"KV", "None", "num_tokens", "ref_cnt", "token", "vLLM"}
"""What is written in Latin letters in Chinese, too."""
SPELLED = {2: "two", 3: "three", 4: "four", 5: "five", 8: "eight"}
TERMS = (
    *("块", "块表", "块大小", "槽位", "引用计数", "空闲队列", "块哈希", "附加键", "索引", "前缀", "命中"),
    *("复活", "驱逐", "承诺", "抢占", "解码", "空块", "未满块", "已缓存的空闲块"),
)


def english(text: str) -> set[str]:
    """Return the words in Latin letters that are no symbols; names of requests and of labs, and hashes, are none."""
    text = re.sub(r"\{\d\}|\bI\d+\b|\blab-\d\d\b|\b[0-9a-f]{4}\b", "", text)
    return set(re.findall(r"[A-Za-z_]{2,}", text)) - SYMBOLS


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in a table of tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


# The figure ---------------------------------------------------------------------------------------------------------


def test_the_figure_has_the_same_words_in_both_languages():
    """The same keys, and as many values to fill in."""
    zh, en = words("zh"), words("en")
    assert list(zh) == list(en)
    assert list(zh["kinds"]) == list(en["kinds"])
    assert len(zh["legend"]) == len(en["legend"])
    assert [sorted(re.findall(r"\{\d\}", line)) for line in strings(zh)] == [
        sorted(re.findall(r"\{\d\}", line)) for line in strings(en)
    ]
    assert {line: found for line in strings(zh) if (found := english(line) - {"JSON"})} == {}


def test_lines_of_a_story_are_told_word_by_word():
    """Calls and kinds of events; the names of requests and the ids stay."""
    assert line_in("zh", "allocate B: shared 1..7, allocated 9") == "分配 B\uff1a共享 1..7\uff0c分配 9"
    assert line_in("zh", f"allocate A: {NOTHING_CHANGED}") == "分配 A\uff1a没有变化"
    assert line_in("zh", "step: A 4, B 1") == "一步\uff1aA 4\uff0cB 1"
    assert line_in("en", "step: A 4, B 1") == "step: A 4, B 1"
    lines = [f"{verb} A: refused" for verb in VERBS.values()] + [f"{kind} 1" for kind in words("en")["kinds"]]
    assert [line for line in lines if english(line_in("zh", line)) - {"ILLEGAL"}] == []


@pytest.mark.parametrize("name", TOLD)
def test_no_english_word_is_left_in_a_figure(name):
    """Title, steps, questions, answers, the story in words, and every still with what it is called."""
    data = story_data(load_scenario(name, "zh"))
    assert data["lang"] == "zh"
    told = [data["title"], data["ending"], data["drawing"]]
    for step in data["steps"]:
        told += [step["do"], step["say"], *step["lines"], *strings(step.get("predict", {}))]
    shown = re.sub(r"<script.*?</script>|<style>.*?</style>", "", fragment(data))
    told += re.findall(r">([^<>]+)<", shown) + re.findall(r'(?:aria-label|title)="([^"]*)"', shown)
    for step in range(len(data["steps"]) + 1):
        picture = re.sub(r"<style>.*?</style>", "", svg(data, step))
        told += re.findall(r">([^<>]+)<", picture) + re.findall(r'aria-label="([^"]*)"', picture)
    assert {text: found for text in told if (found := english(unescape(text)))} == {}


@pytest.mark.parametrize("name", TOLD)
def test_a_translation_changes_words_and_nothing_else(name):
    """The engine plays the same; the right answer, which it measures, is the same one."""
    zh, en = story_data(load_scenario(name, "zh")), story_data(load_scenario(name))
    for data in (zh, en):
        for step in data["steps"]:
            step["predict"] = step.get("predict", {}).get("answer")
            del step["do"], step["say"], step["lines"]
    assert zh["steps"] == en["steps"]


@pytest.mark.parametrize("name", TOLD)
def test_a_translation_names_the_blocks_and_numbers_of_the_original(name):
    """Each number that a Chinese step says in digits stands in the English one, too, or in what the engine did."""
    for zh, en in zip(load_scenario(name, "zh").steps, load_scenario(name).steps, strict=True):
        said = " ".join([en.say.lower(), *en.expect])
        numbers = sorted({int(number) for number in re.findall(r"\d+", zh.say)})
        assert [n for n in numbers if not re.search(rf"\bx?{n}\b|\b{SPELLED.get(n, n)}\b", said)] == []


def test_a_scenario_that_is_not_told_or_told_in_part_is_refused():
    with pytest.raises(ScenarioError, match="no translation 'zh'"):
        load_scenario("eviction", "zh")
    with pytest.raises(ScenarioError, match="there are: "):
        load_scenario("no-such", "zh")
    scenario = load_scenario("one-more-token")
    for told in ({}, {"title": "T", "ending": "E", "step": []}, {"title": "T", "ending": "E", "step": [{}] * 7}):
        with pytest.raises(ScenarioError, match="zh/one-more-token: "):
            translated(scenario, "zh", told)
    silent = parse_scenario("s", 'title = "T"\nnum_blocks = 2\nblock_size = 4\nstep = [{call = "reset", say = "x"}]')
    assert translated(silent, "zh", {"title": "T", "step": [{"say": "y"}]}).ending == ""


def test_only_scenarios_that_there_are_are_told():
    assert set(TOLD) <= set(scenario_names())


# The pages ----------------------------------------------------------------------------------------------------------


def prose(page: str) -> str:
    """Return a page without its head, its code and its formulas."""
    return re.sub(r"\A---.*?^---$|```.*?```|\$\$.*?\$\$|<!--.*?-->|\]\(.*?\)|\{ #.*? \}", "", page, flags=re.S | re.M)


@pytest.mark.prose
@pytest.mark.parametrize("page", [CHAPTER, LAB], ids=["chapter", "lab"])
def test_chinese_is_set_as_chinese_is_set(page):
    """Full-width punctuation; a space between Chinese and Latin letters or digits, none beside a full-width mark."""
    text = re.sub(r"`[^`\n]*`", "`x`", prose(page)).replace("**", "")
    han, wide = "[\u4e00-\u9fff]", "[\u3001\u3002\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09\u201c\u201d]"
    assert re.findall(rf"{han}[,;:?!.()]", text) == []
    assert re.findall(rf".?{han}[A-Za-z0-9`].?|.?[A-Za-z0-9`%]{han}.?", text) == []
    assert re.findall(rf".?{wide} [A-Za-z0-9`\[\u4e00-\u9fff]|[A-Za-z0-9`\u4e00-\u9fff] {wide}", text) == []
    assert re.findall(rf"{han}\n *{han}", text) == []  # a browser would put a space there


@pytest.mark.prose
def test_terms_are_the_glossarys():
    """What pages and figure call by a Chinese name is in the glossary."""
    glossary = (DOCS / "reference/glossary.md").read_text(encoding="utf-8")
    terms = set(re.findall("[\u4e00-\u9fff]+", " ".join(re.findall(r"^[^\n]+\((.+)\)\n:", glossary, re.MULTILINE))))
    assert [term for term in TERMS if term not in terms] == []


def test_the_labs_entrance_asks_what_the_lab_asks():
    """Its four questions with their answers, and its functions."""
    about = tomllib.loads((ROOT / "labs/lab-05/lab.toml").read_text(encoding="utf-8"))
    assert re.findall(r"^    \*\*([\d .]+?)。\*\*", LAB, re.MULTILINE) == [one["answer"] for one in about["prediction"]]
    assert re.findall(r"^\*\*`(.+?)`\*\*", LAB, re.MULTILINE) == [one["signature"] for one in about["function"]]


def test_whatever_the_editor_says_is_told_in_chinese():
    """Each of its words in kv_lab.js, and no other; with the same values to fill in."""
    source = (ROOT / "book/mini_kv_book/assets/kv_lab.js").read_text(encoding="utf-8")
    told = chinese_edition()["lab"]
    strings_of_it = set(re.findall(r'"((?:[^"\\\n])*)"', source))
    assert [english for english in told if english not in strings_of_it | {"starting pytest"}] == []
    asked = set(re.findall(r'#t\(\s*"([^"]*)"', source))
    assert asked - told.keys() == set()
    values = r"\{\d\}"
    assert [en for en, zh in told.items() if sorted(re.findall(values, en)) != sorted(re.findall(values, zh))] == []


def test_the_labs_questions_and_hints_are_told_in_the_labs_order():
    """The same wrong answers; a level for each of the lab's."""
    told = tomllib.loads((ROOT / "book/data/zh-lab-05.toml").read_text(encoding="utf-8"))
    lab = tomllib.loads((ROOT / "labs/lab-05/lab.toml").read_text(encoding="utf-8"))
    assert [list(question["wrong"]) for question in told["question"]] == [
        list(one["wrong"]) for one in lab["prediction"]
    ]
    levels = {name: len(one["levels"]) for name, one in told["hints"].items()}
    assert levels == {one["name"]: len(one["hints"]) for one in lab["function"]}


def test_the_edition_names_every_chinese_page():
    edition = chinese_edition()["pages"]
    assert sorted(edition) == sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "zh").rglob("*.md"))
