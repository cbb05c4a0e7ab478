"""What the page is told: whole states, the last steps, nothing while no page looks on."""

import json
import threading
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.story.state import states
from mini_kv.tests.serve.endpoint import TEXT


def tellings(endpoint, num, until=lambda telling: True):
    """Return the next tellings, up to the one that is as wanted."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    found: list[dict[str, Any]] = []
    while len(found) < num or not until(found[-1]):
        line = answer.fp.readline()
        assert line, "the server has closed the stream"
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
    connection.close()
    return found


def test_who_opens_the_page_is_told_the_state_at_once(serve):
    (telling,) = tellings(serve(), 1)
    assert telling["counters"] == {
        "running": 0,
        "waiting": 0,
        "held": 0,
        "blocks": 96,
        "hit_rate": 0.0,
        "evicted": 0,
        "preempted": 0,
        "prompt_tokens": 0,
        "generation_tokens": 0,
    }
    assert (telling["requests"], telling["log"], telling["story"]["steps"]) == ([], [], [])


def test_a_request_is_told_with_what_it_found_and_said(serve):
    endpoint = serve()
    said = [endpoint.text(max_tokens=4) for _ in range(2)]
    (telling,) = tellings(endpoint, 1)
    found = "A block is free when no request holds it, and the cache rememb"
    common = {"prompt": TEXT, "tokens": 17, "said": said[0], "state": "length"}
    assert telling["requests"] == [
        {"name": "A", "found": "", "cached": 0, **common},
        {"name": "B", "found": found, "cached": 16, **common},
    ]
    assert telling["log"] == [
        "step 1: A arrives with 17 tokens",
        "step 4: A ends: it has all its tokens",
        "step 5: B arrives with 17 tokens",
        "step 5: B finds 16 tokens in the cache",
        "step 8: B ends: it has all its tokens",
    ]


@pytest.mark.slow
def test_a_story_that_is_told_is_what_the_pool_is(serve):
    """Also when it began before the page was opened, and after its first steps were left out."""
    endpoint = serve(num_blocks=40)
    endpoint.text(max_tokens=4)
    listening = []

    def is_the_end(telling):
        ended = [
            each["name"] for each in telling["requests"] if (each["prompt"], each["state"]) == ("the end", "length")
        ]
        return bool(ended) and telling["counters"]["held"] == 0

    listener = threading.Thread(target=lambda: listening.extend(tellings(endpoint, 1, is_the_end)))
    listener.start()
    endpoint.wait(lambda: endpoint.service.page.num_viewers)
    for number in range(60):
        endpoint.text(prompt=f"{number} {TEXT}", max_tokens=4)
    endpoint.text(prompt="the end", max_tokens=1)
    listener.join()
    story, pool = listening[-1]["story"], endpoint.engine.kv_cache_manager.block_pool
    assert len(story["steps"]) <= 48 and listening[-1]["counters"]["evicted"] > 0
    end = states(story)[-1]
    assert end.ref == [block.ref_cnt for block in pool.blocks]
    assert end.free == [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert [bool(name) for name in end.name] == [block.block_hash is not None for block in pool.blocks]


def test_while_no_page_looks_on_nothing_is_kept(serve):
    endpoint = serve()
    endpoint.text()
    endpoint.wait(lambda: endpoint.num_held == 0)
    live = endpoint.service.page.live
    endpoint.wait(lambda: endpoint.engine.kv_cache_manager.spans == [])
    assert live.kept == []


def test_a_recorded_story_plays_in_the_terminal_and_on_a_page(serve, tmp_path, capsys):
    file, page = tmp_path / "story.json", tmp_path / "story.html"
    endpoint = serve(record=file)
    endpoint.text(max_tokens=4)
    endpoint.end()
    capsys.readouterr()
    assert main(["story", str(file)]) == 0
    told = capsys.readouterr().out
    assert "[1/4] 96 blocks of 8 tokens, live\n" in told
    assert "A arrives with 17 tokens." in told and "lookup A: hit 0" in told
    assert "A ends: it has all its tokens." in told
    assert main(["story", str(file), "--to", str(page)]) == 0
    assert "kv-story" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "[]", '{"steps": [{}]}', '{"title": "a", "steps": 1}'])
def test_a_file_that_is_no_story_is_said_to_be_none(tmp_path, capsys, text):
    file = tmp_path / "story.json"
    file.write_text(text, encoding="utf-8")
    assert main(["story", str(file)]) == 2
    assert "is not a story" in capsys.readouterr().err
