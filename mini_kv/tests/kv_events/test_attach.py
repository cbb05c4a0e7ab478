"""`mini-kv attach`: listens, asks for what it missed, draws, records, and gives a trace of what was asked."""

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from mini_kv.cli import main
from mini_kv.story.vllm_source import PUBLISHED
from mini_kv.tools.serve.attach import Subscriber, read_metrics
from mini_kv.tools.serve.attach_draw import metrics_line, source_lines, state_lines, tree_lines
from mini_kv.tools.serve.kv_events import (
    AllBlocksCleared,
    AnyEvent,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
    encode_batch,
)
from mini_kv.tools.serve.kv_events_publisher import ZmqEventPublisher
from mini_kv.tools.serve.mirror import Mirror
from mini_kv.tools.serve.mirror_trace import SeenRequests


def stored(*hashes: int, parent: int | None = None, salt: str | None = None) -> BlockStored:
    """Return an event whose blocks of two tokens hold their hash, twice."""
    tokens = [token for block_hash in hashes for token in (block_hash, block_hash)]
    keys = [None if salt is None or parent is not None or index else (salt,) for index in range(len(hashes))]
    return BlockStored([*hashes], parent, tokens, 2, None, "GPU", None, extra_keys=keys, group_idx=0)


def mirrored(*events: AnyEvent) -> Mirror:
    mirror = Mirror()
    mirror.apply(KVEventBatch(0.0, list(events)))
    return mirror


def seen(*batches: list[AnyEvent]) -> list[dict[str, object]]:
    """Return the trace of batches that come a second apart."""
    mirror = Mirror()
    requests = SeenRequests(mirror)
    for number, events in enumerate(batches):
        batch = KVEventBatch(100.0 + number, events)
        mirror.apply(batch)
        requests.apply(number, batch)
    return requests.trace()


# Drawn --------------------------------------------------------------------------------------------------------------


def test_what_prompts_have_in_common_stands_once_and_twins_are_numbers():
    mirror = mirrored(stored(1, 2, 3, 4), stored(5, 6, parent=2), stored(7, parent=5), stored(1, 2), stored(8))
    assert tree_lines(mirror, 80, 10) == ["22##", "   #", "  ##", "#"]
    assert tree_lines(mirror, 80, 2) == ["22##", "... and 3 more rows"]
    assert state_lines(mirror) == [
        "10 blocks can be found, 2 of them twins; 10 stored, 0 removed",
        "complete: no batch is missing",
    ]


def test_what_has_lost_its_beginning_says_so():
    assert tree_lines(mirrored(stored(1, 2, 3), BlockRemoved([1], "GPU", 0)), 80, 10) == ["~##"]


def test_a_row_that_is_too_long_ends_in_dots():
    assert tree_lines(mirrored(stored(*range(1, 100))), 20, 10) == ["#" * 17 + "..."]


def test_a_circle_of_parents_is_no_endless_drawing():
    assert tree_lines(mirrored(stored(1, parent=2), stored(2, parent=1)), 80, 10) == []


def test_a_mirror_with_gaps_says_which():
    mirror = mirrored(stored(1), BlockRemoved([9], "GPU", 0))
    mirror.note_gap("batch 3 is missing")
    mirror.note_gap("batches 7 to 9 are missing")
    assert state_lines(mirror)[1] == (
        "NOT COMPLETE: batches 7 to 9 are missing, and 1 more gaps before; 1 unknown blocks were removed"
    )


def test_each_kind_of_event_that_arrived_links_to_the_function_of_vllm_that_makes_it():
    assert source_lines(mirrored()) == []
    pool = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/block_pool.py"
    lines = source_lines(mirrored(stored(1), BlockRemoved([1], "GPU", 0), AllBlocksCleared()))
    assert lines == [
        "",
        "In the source code of vLLM 0.33.0:",
        f"  BlockStored: BlockPool.cache_full_blocks, {pool}#L230",
        f"  BlockRemoved: BlockPool._maybe_evict_cached_block, {pool}#L769",
        f"  AllBlocksCleared: BlockPool.reset_prefix_cache, {pool}#L871",
    ]
    assert source_lines(mirrored(AllBlocksCleared())) == [*lines[:2], lines[-1]]
    assert set(PUBLISHED) == {kind.__name__ for kind in KVCacheEvent.__subclasses__()}


def test_a_servers_counters_are_summed_over_its_engines():
    text = b"""# HELP vllm:prefix_cache_queries_total tokens
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="1"} 300.0
vllm:prefix_cache_hits_total{engine="0"} 1e+02
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_requests_running{engine="0"} what
other 7
"""
    metrics = read_metrics("http://x/metrics", lambda url, timeout: io.BytesIO(text))
    assert metrics_line(metrics) == (
        "the server counts: 100 of 400 prompt tokens found (25.0%); KV cache 25.0% used; 0 running, 0 waiting"
    )


@pytest.mark.parametrize("answer", [b"", b"<html>", b"\xff\xfe"])
def test_a_page_that_is_no_metrics_is_a_sentence(answer: bytes):
    found = read_metrics("http://x/y", lambda url, timeout: io.BytesIO(answer))
    assert found == "http://x/y has none of vLLM's metrics"


def test_a_server_that_does_not_answer_is_a_sentence():
    assert "no answer from" in str(read_metrics("http://127.0.0.1:1/metrics"))


# What was asked -----------------------------------------------------------------------------------------------------


def line(timestamp: int, tokens: list[int], output_length: int = 1, **facts: str) -> dict[str, object]:
    return {
        "timestamp": timestamp,
        "token_ids": [token for each in tokens for token in (each, each)],
        "output_length": output_length,
        **facts,
    }


def test_a_request_is_all_that_its_blocks_follow():
    assert seen([stored(1, 2, 3)], [stored(4, 5, parent=2)]) == [line(0, [1, 2, 3]), line(1000, [1, 2, 4, 5])]


def test_the_next_piece_of_a_prompt_comes_at_once_and_an_answer_block_by_block():
    pieces: list[list[AnyEvent]] = [[stored(1, 2)], [stored(3, 4, parent=2)], [stored(9)], [stored(5, parent=4)]]
    assert seen(*pieces) == [line(0, [1, 2, 3, 4], output_length=2), line(2000, [9])]


def test_who_goes_on_later_with_several_blocks_is_a_new_request():
    batches: list[list[AnyEvent]] = [[stored(1, 2)], [stored(9)], [stored(3, 4, parent=2)]]
    assert seen(*batches) == [line(0, [1, 2]), line(1000, [9]), line(2000, [1, 2, 3, 4])]


def test_a_salt_keeps_requests_apart_in_the_trace_too():
    assert seen([stored(1, 2, salt="a")]) == [line(0, [1, 2], cache_salt="a")]


def test_blocks_without_a_beginning_are_no_request():
    mirror = Mirror()
    requests = SeenRequests(mirror)
    batch = KVEventBatch(0.0, [stored(4, 5, parent=3)])
    mirror.apply(batch)
    requests.apply(0, batch)
    assert (requests.trace(), requests.num_headless) == ([], 2)


# The command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def publisher() -> Iterator[ZmqEventPublisher]:
    found = ZmqEventPublisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    yield found
    found.shutdown()


@pytest.mark.slow
def test_who_comes_late_gets_all_records_it_and_the_recording_replays(
    publisher: ZmqEventPublisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    publisher.publish([stored(1, 2, 3), stored(1)])
    publisher.publish([stored(4, parent=2), BlockRemoved([3], "GPU", 0)])
    time.sleep(0.1)
    recording, trace = tmp_path / "events", tmp_path / "trace.jsonl"
    late = ["attach", publisher.endpoint, "--replay", str(publisher.replay_endpoint), "--seconds", "0.5"]
    assert main([*late, "--record", str(recording), "--trace", str(trace)]) == 0
    shown = capsys.readouterr().out.splitlines()
    picture = [
        "4 blocks can be found, 1 of them a twin; 5 stored, 1 removed",
        "complete: no batch is missing",
        "",
        "2##",
        "",
        "#  a block    2, 3 ...  that many with one hash    ~  the blocks before are gone",
    ]
    links = source_lines(mirrored(stored(1), BlockRemoved([1], "GPU", 0)))
    assert shown == [
        f"{publisher.endpoint}: 2 batches, 2 of them asked for",
        *picture,
        f"3 requests in {trace}",
        *links,
    ]
    assert main(["attach", str(recording)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{recording}: 2 batches", *picture, *links]
    for command in ("curve", "explain"):
        assert main([command, str(trace), "--block-size", "2", "--num-blocks", "9"]) == 0
    assert "3 requests" in capsys.readouterr().out


def test_without_anything_to_hear_the_status_is_1(capsys: pytest.CaptureFixture[str]):
    assert main(["attach", "tcp://127.0.0.1:1", "--seconds", "0.1"]) == 1
    assert capsys.readouterr().out == "tcp://127.0.0.1:1: no batch has arrived yet\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "'nowhere' is neither an address, such as tcp://127.0.0.1:5557, nor a file"),
        (["bogus://x"], "cannot listen to 'bogus://x': Protocol not supported (addr='bogus://x')"),
        (["tcp://x:1", "--metrics", "file:///etc/passwd"], "--metrics 'file:///etc/passwd' is not an http address"),
    ],
)
def test_what_cannot_be_listened_to_is_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    assert main(["attach", *words]) == 2
    assert capsys.readouterr().err == f"mini-kv attach: {sentence}\n"


UNKNOWN_EVENT = '{"number": 1, "ts": 0, "events": [{"type": "X"}]}\n'
FAR_FUTURE = '{"number": 0, "ts": 1e308, "events": []}\n'


@pytest.mark.parametrize("text", ["hello\n", "{}\n", UNKNOWN_EVENT, FAR_FUTURE, "[" * 9999])
def test_a_file_that_is_no_recording_is_a_sentence(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    assert main(["attach", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"mini-kv attach: {path}, line 1: not a batch of KV events: ")
    assert told.count("\n") == 1


@pytest.mark.slow
def test_garbage_on_the_wire_is_a_sentence_and_what_follows_counts(capsys: pytest.CaptureFixture[str]):
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.02):
            pub.send_multipart([b"\x1b[2J"])
            pub.send_multipart([b"", b"\0" * 8, b"\x93garbage"])
            pub.send_multipart([b"", (1).to_bytes(8, "big"), encode_batch(KVEventBatch(1.0, [stored(1)]))])

    sender = threading.Thread(target=publish)
    sender.start()
    try:
        assert main(["attach", f"tcp://127.0.0.1:{port}", "--seconds", "1"]) == 0
    finally:
        stop.set()
        sender.join()
        context.destroy(linger=0)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:3] == [
        "1 blocks can be found; 1 stored, 0 removed",
        "NOT COMPLETE: batch 0 is missing",
    ]
    assert shown[3].startswith("cannot be read: ")


def test_a_replay_that_no_engine_serves_is_a_gap_after_a_while():
    subscriber = Subscriber("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", answer_s=0.1)
    try:
        assert subscriber.replay(0) is None
    finally:
        subscriber.close()


def test_generate_publishes(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "A block", "--max-tokens", "40", "--kv-events", "tcp://127.0.0.1:0"]) == 0
    assert capsys.readouterr().out.startswith("A block")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--kv-events", "nowhere"], "cannot publish events at 'nowhere': Invalid argument (addr='nowhere')"),
        (["--kv-events-replay", "x"], "--kv-events-replay needs --kv-events, whose batches it repeats"),
        (
            ["--kv-events", "tcp://127.0.0.1:0", "--labs", "solution"],
            "--kv-events reports the engine's own pool only: omit --labs and tiers",
        ),
    ],
)
def test_generate_refuses_what_it_cannot_publish(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "hi", *words]) == 2
    assert capsys.readouterr().err == f"mini-kv generate: {sentence}\n"
