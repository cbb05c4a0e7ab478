"""The figure from Python: a story's JSON, and the HTML around it. What it looks like is tested in a browser."""

import html.parser
import json
from importlib import resources

import pytest

from mini_kv.core.block_hash import make_block_hash_with_group_id
from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.figure import fragment, page, script, spans_data, story_data
from mini_kv.story.frame import BlockView, Frame
from mini_kv.story.scenario import load_scenario, parse_scenario, scenario_names
from mini_kv.story.story_json import StoryWriter
from mini_kv.story.traced_manager import Span
from mini_kv.tests.traced_run import traced_kv

SMALL = """
title = "T"
num_blocks = 4
block_size = 2
ending = '''the
end'''
[[step]]
call = "prefill"
request = "A"
tokens = "1..3"
say = "a"
[step.predict]
ask = "How many?"
measure = "new_blocks"
choice = [{ value = 1, if_true = "so" }, { value = 2 }]
[[step]]
call = "free"
request = "A"
say = "b"
"""


def test_a_story_as_json():
    """Only what is different after a step."""
    data = story_data(parse_scenario("small", SMALL))
    name = data["steps"][0]["names"]
    assert len(name) == 4
    assert data == {
        "version": 1,
        "title": "T",
        "num_blocks": 4,
        "block_size": 2,
        "ending": "the end",
        "steps": [
            {
                "do": "prefill A",
                "say": "a",
                "predict": {
                    "ask": "How many?",
                    "choices": [{"text": "1", "if_true": "so"}, {"text": "2"}],
                    "answer": 1,
                },
                "lines": ["lookup A: hit 0", "allocate A: allocated 1 2, cached 1"],
                "events": "allocated 1 2, cached 1",
                "probes": [[0, "A", ""]],
                "names": name,
                "tables": {"A": ["1 2"]},
                "free": "3",
                "tok": {"A": 3},
                "scheduled": {"A": 3},
            },
            {
                "do": "free A",
                "say": "b",
                "lines": ["free A: freed 2 1"],
                "events": "freed 2 1",
                "tables": {"A": None},
                "free": "2 3 1",
            },
        ],
        "drawing": "free  next-> 2 3 1# <-last",
    }


def test_a_traced_run_as_json():
    """A lookup is told with the call after it; one at the end, or one that failed, for itself."""
    kv = traced_kv(4, 2, snapshots=True)
    request = kv.new_request("A", [1, 2, 3])
    hit, num_hits = kv.get_computed_blocks(request)
    kv.allocate_slots(request, 3, num_hits, hit)
    kv.get_computed_blocks(kv.new_request("B", [1, 2, 3]))
    data = spans_data(kv.spans, 4, 2, "mine")
    assert [step["lines"] for step in data["steps"]] == [
        ["lookup A: hit 0", "allocate A: allocated 1 2, cached 1"],
        ["lookup B: hit 2"],
    ]
    assert data["title"] == "mine"


def test_what_does_not_follow_from_the_events_is_written_out():
    """A learner's pool may do what no event explains: the figure shows the state that there is."""
    writer = StoryWriter("T", 3, 2)
    illegal = Span("free", "A", edges=[Edge(EdgeKind.ILLEGAL, 1, -1, None)])
    writer.add_step(Frame((BlockView(0), BlockView(1, -1), BlockView(2, 0, "ab")), {}, [1, 2]), [illegal])
    assert writer.data()["steps"] == [
        {"lines": ["free A: illegal 1"], "events": "illegal 1", "ref": {"-1": "1"}, "name": {"2": "ab"}}
    ]


def test_names_are_short_and_distinct():
    """Four digits, or as many as it takes; the group is told unless it is the first."""
    first, second, third = bytes.fromhex("aabbccdd"), bytes.fromhex("aabbccee"), bytes.fromhex("11223344")
    keys = [make_block_hash_with_group_id(digest, group) for digest, group in ((first, 0), (second, 0), (third, 1))]  # type: ignore[arg-type]
    writer = StoryWriter("T", 4, 2)
    blocks = (BlockView(0), *(BlockView(number, 0, key.hex()) for number, key in enumerate(keys, start=1)))
    writer.add_step(Frame(blocks, {}, [1, 2, 3]), [])
    assert writer.data()["steps"][0]["name"] == {"1": "aabbccd", "2": "aabbcce", "3": "1122334.1"}


def test_a_step_may_tell_what_a_frame_does_not_know():
    """The scheduler's queue, the tiers."""
    writer = StoryWriter("T", 1, 2, groups=["all"])
    writer.add_step(Frame((BlockView(0),), {}, []), [], do="schedule", say="", waiting=["A", ["B", "preempted"]])
    assert writer.data()["steps"] == [
        {"do": "schedule", "waiting": ["A", ["B", "preempted"]], "lines": [], "events": ""}
    ]
    assert writer.data()["groups"] == ["all"]


class Texts(html.parser.HTMLParser):
    """Collects the text of each element by tag."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], {}

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)


def texts_of(markup):
    parser = Texts()
    parser.feed(markup)
    return parser.texts


@pytest.mark.parametrize(
    "title", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "$title $script ${x}", "</KV-STORY>"]
)
def test_no_word_of_a_story_can_become_markup(title):
    """Whatever a learner calls a request or a story, it stays a word."""
    data = {**story_data(parse_scenario("small", SMALL)), "title": title}
    data["steps"][0]["say"] = title
    texts = texts_of(fragment(data))
    assert json.loads(texts["script"][0]) == data
    assert set(texts) == {"script", "style", "text", "summary", "li", "code", "pre"}
    assert "".join(texts["summary"]) == f"{title}: the story in words"
    assert texts_of(page(data))["title"] == [title]


def test_the_script_can_stand_in_a_page_and_asks_for_nothing():
    """No end tag inside, no address but the name of SVG and the one that links to vLLM's code begin with."""
    assert "</script" not in script().lower()
    assert "<!--" not in script()
    addresses = ["http://www.w3.org/2000/svg", "https://github.com/vllm-project/vllm/blob/v"]
    assert [script().count(address) for address in addresses] == [1, 1]
    assert script().count("http") == 2
    file = resources.files("mini_kv.story").joinpath("kv_story.js").read_text(encoding="utf-8")
    assert script().splitlines() == [line.strip() for line in file.splitlines() if line.strip()]


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_makes_a_page(name):
    """With its title, its words for where no script runs, and the script."""
    markup = page(story_data(load_scenario(name)))
    texts = texts_of(markup)
    assert texts["title"] == [load_scenario(name).title]
    assert len(texts["li"]) >= len(load_scenario(name).steps)
    assert script() in markup
