"""Recorded calls as JSON lines: everything comes back, and a bad line is named."""

import json

import pytest

from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.events_file import EventsError, EventsHeader, dump_events, load_events
from mini_kv.story.frame import frame_of, frames
from mini_kv.story.scenario import prefill
from mini_kv.story.story_text import story
from mini_kv.story.traced_manager import Span
from mini_kv.tests.traced_run import lived, traced_kv

HEADER = EventsHeader(num_blocks=5, block_size=2, enable_caching=True)
HEADER_LINE = '{"version": 1, "num_blocks": 5, "block_size": 2, "enable_caching": true}\n'


def test_the_text_of_a_few_calls():
    """The pool, then one line per call; what a span does not have is left out."""
    kv = traced_kv(num_blocks=5, block_size=2)
    a = kv.new_request("A", [1, 2, 3])
    prefill(kv, a)
    kv.reset_prefix_cache()
    key = (kv.block_pool.blocks[1].block_hash or b"").hex()
    assert dump_events(EventsHeader.of(kv.manager), kv.spans) == (
        HEADER_LINE
        + '{"call": "get_computed_blocks", "request_id": "A", "result": 0}\n'
        + '{"call": "allocate_slots", "request_id": "A", "args": {"num_new_tokens": 3, "num_computed_tokens": 0}, '
        + '"result": [1, 2], "edges": [["allocated", 1, 1, null], ["allocated", 2, 1, null], '
        + f'["cached", 1, 1, "{key}"]]}}\n'
        + '{"call": "reset_prefix_cache", "result": false}\n'
    )


def test_a_cache_without_caching_says_so():
    """The header holds what it takes to build the same pool."""
    assert EventsHeader.of(traced_kv(7, 3, enable_caching=False).manager) == EventsHeader(7, 3, False)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_every_span_of_a_random_run_comes_back(seed, snapshots):
    """Written, read: equal spans, edges of the right type, the same story."""
    kv = lived(seed, snapshots=snapshots)
    header = EventsHeader.of(kv.manager)
    text = dump_events(header, kv.spans)
    back_header, back = load_events(text)
    assert back_header == header
    assert back == kv.spans
    assert all(type(edge) is Edge and type(edge.kind) is EdgeKind for span in back for edge in span.edges)
    assert story(back) == story(kv.spans)
    assert dump_events(back_header, back) == text
    if snapshots:
        assert frames(back, header.num_blocks)[-1] == frame_of(kv.manager)


def test_results_that_look_like_nothing_come_back():
    """False, 0 and the empty list are answers; only `None` is none."""
    spans = [Span("reset_prefix_cache", result=False), Span("get_computed_blocks", "A", result=0)]
    spans.append(Span("allocate_slots", "A", result=[], tables={}, free_order=[]))
    back = load_events(dump_events(HEADER, spans))[1]
    assert back == spans
    assert [type(span.result) for span in back] == [bool, int, list]


def test_ids_that_are_not_plain_ascii_come_back():
    """A request may be called anything, line separators and broken surrogates included: one line stays one line."""
    spans = [Span("free", name) for name in ("Zoë", "two\nlines", "\u2028", "\x85", "\ud800", '"')]
    text = dump_events(HEADER, spans)
    assert len(text.splitlines()) == 1 + len(spans)
    assert load_events(text)[1] == spans


def test_a_file_without_calls():
    """A header alone is a file of events."""
    assert load_events(HEADER_LINE) == (HEADER, [])


GOOD = '{"call": "free", "request_id": "A"}'


@pytest.mark.parametrize(
    ("text", "number", "what"),
    [
        ("", 1, "the file is empty"),
        ("no json\n", 1, "no json"),
        (HEADER_LINE.replace("1", "2", 1), 1, "version is 2, this reads version 1"),
        ('{"num_blocks": 5, "block_size": 2, "enable_caching": true}', 1, "version is None"),
        ('{"version": 1, "num_blocks": 5}', 1, "block_size"),
        ('{"version": 1, "num_blocks": 5, "block_size": 2, "enable_caching": true, "colour": 1}', 1, "colour"),
        ("[]\n", 1, "[]"),
        (f"{GOOD}\n", 1, "version is None"),
        (f"{HEADER_LINE}{GOOD}\n\n{GOOD}\n", 3, "''"),
        (f"{HEADER_LINE}{GOOD}\n{GOOD[:-1]}\n{GOOD}", 3, GOOD[:-1]),
        (f'{HEADER_LINE}{{"request_id": "A"}}\n', 2, "call"),
        (f'{HEADER_LINE}{GOOD}\n{{"call": "free", "who": "A"}}\n', 3, "who"),
        (f'{HEADER_LINE}{{"call": "free", "edges": [["vanished", 1, 0, null]]}}\n', 2, "vanished"),
        (f'{HEADER_LINE}{{"call": "free", "edges": [["freed", 1, 0]]}}\n', 2, "values to unpack"),
        (f'{HEADER_LINE}{{"call": "free", "edges": 3}}\n', 2, "not iterable"),
        (f"{HEADER_LINE}7\n", 2, "'7'"),
        (f"{HEADER_LINE}null\n", 2, "null"),
    ],
)
def test_a_bad_line_is_named(text, number, what):
    """The number of the first wrong line, what is wrong with it, and its beginning."""
    with pytest.raises(EventsError) as caught:
        load_events(text)
    assert str(caught.value).startswith(f"line {number}: ")
    assert what in str(caught.value)


def test_a_long_bad_line_is_cut():
    """A megabyte of broken line is not printed back."""
    with pytest.raises(EventsError) as caught:
        load_events(HEADER_LINE + json.dumps({"call": "free", "who": "x" * 10_000}))
    assert len(str(caught.value)) < 200
