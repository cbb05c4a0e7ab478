"""Files of traffic that are not read: each is named, and the command in its refusal is followed to the end.

The files have the shapes that the tools' own documentation shows.
"""

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.tests.test_texts import ASK, Letters
from mini_kv.tools.traces.prompt_hashes import Trace
from mini_kv.tools.traces.readers.formats import read_requests
from mini_kv.tools.traces.readers.mooncake import TraceError, TraceRequest
from mini_kv.tools.traces.readers.token_trace import TokenRequest

COMMAND = re.compile(
    r"((?:jq|gzip|python3|duckdb|zstd|iconv|mini-kv) .*?) (?:writes|makes|unpacks|takes|removes|leaves|sorts)"
)


def refusal(path: Path) -> str:
    """Return why a file is not read."""
    with pytest.raises(TraceError) as caught:
        read_requests(path, encoder=Letters())
    return caught.value.problem


def follow(path: Path) -> Path:
    """Run the command that the refusal of a file names, and return the file that it writes."""
    match = COMMAND.search(refusal(path))
    assert match is not None
    command = match[1].replace("FILE", path.name)
    if command.startswith("duckdb"):  # the program's own command line is not on every machine, its library is
        duckdb = pytest.importorskip("duckdb", reason="duckdb reads Parquet: make .venv/.peers")
        duckdb.sql(re.sub(r'duckdb -c "(.*)"', r"\1", command).replace(path.name, str(path)))
        return path.with_name(f"{path.name}.jsonl")
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is missing")
    done = subprocess.run(["bash", "-c", command], cwd=path.parent, capture_output=True, check=True, timeout=60)
    result = path.with_name("followed.jsonl")
    result.write_bytes(done.stdout)
    return result


def read(path: Path) -> Trace:
    """Return the requests of a file of texts, or of hashes."""
    return read_requests(path, encoder=Letters())


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write objects to a file, a line each, and return its path."""

    def write(*lines: object, indent: int | None = None) -> Path:
        path = tmp_path / "traffic"
        path.write_text("".join(f"{json.dumps(line, indent=indent)}\n" for line in lines))
        return path

    return write


def test_inputs_of_aiperf_become_requests(write: Write) -> None:
    """The file is one object over many lines: a list of sessions, each with the requests that were sent."""
    first: dict[str, Any] = {"messages": [ASK], "model": "m", "max_tokens": 7}
    second = first | {"messages": [ASK, {"role": "assistant", "content": "b"}, ASK]}
    sessions = [("a", [first, second]), ("b", [{"prompt": "ab", "model": "m"}])]
    path = write({"data": [{"session_id": name, "payloads": payloads} for name, payloads in sessions]}, indent=2)
    assert refusal(path).startswith("item 1: the file looks like AIPerf's inputs.json, which is not read; ")
    chats = [tuple(map(ord, json.dumps(payload["messages"]))) for payload in (first, second)]
    assert read(follow(path)) == [*(TokenRequest(0, chat, 1) for chat in chats), TokenRequest(0, (0, 97, 98), 1)]


def test_inputs_of_aiperf_may_lack_the_history(write: Write) -> None:
    """AIPerf adds the server's answers when it sends them. So a later prompt is not in the file."""
    payloads = [
        {"messages": [ASK], "model": "m"},
        {"messages": [{"role": "user", "content": "And now?"}], "model": "m"},
    ]
    problem = (
        "a later prompt also contains the answers before it, which are not in it: a server's log of the run has them"
    )
    path = write({"data": [{"session_id": "a", "payloads": payloads}]})
    assert refusal(path) == f"the file looks like AIPerf's inputs.json, which is not read; {problem}"


def test_a_message_batch_of_anthropic_becomes_requests(write: Write) -> None:
    """Its system prompt stands beside the messages, as a text, as parts, or not at all."""
    parts = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    systems: list[dict[str, Any]] = [{"system": parts}, {"system": "Be long."}, {}]
    params = [{"model": "m", "max_tokens": 9, "messages": [ASK]} | system for system in systems]
    path = write({"requests": [{"custom_id": "1", "params": one} for one in params]}, indent=1)
    letters = Letters()
    read_requests(follow(path), encoder=letters)
    texts = [[message["content"] for message in chat.messages] for chat in letters.chats]
    assert texts == [["Be short.", "hi"], ["Be long.", "hi"], ["hi"]]


def test_prompts_for_a_load_generator_become_plain_prompts_or_chats(write: Write) -> None:
    """Both are possible, so the reader of the refusal chooses."""
    path = write({"text": "ab", "output_length": 3}, {"text": "c", "output_length": 4})
    assert read(follow(path)) == [TokenRequest(0, (0, 97, 98), 3), TokenRequest(0, (0, 99), 4)]
    assert refusal(path).endswith("""jq -c '{messages: [{role: "user", content: .text}], output_length}' FILE chats""")


@pytest.mark.parametrize("data", [7, ["a"], [{"payloads": "a"}], [{"payloads": ["a", {"messages": None}]}]])
def test_what_only_looks_like_inputs_is_named_all_the_same(write: Write, data: object) -> None:
    """Whatever is in its field."""
    assert refusal(write({"data": data})).startswith("the file looks like AIPerf's inputs.json, which is not read; jq")


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_request_trace_of_dynamo_becomes_mooncakes(write: Write, *, is_wrapped: bool) -> None:
    """Its rows are in the order of the requests' ends, and its hashes are numbers of 64 bits."""

    def row(received: int, length: int, *hashes: int) -> dict[str, Any]:
        replay = {"trace_block_size": 64, "input_length": length, "input_sequence_hashes": hashes}
        request = {"request_id": "a", "request_received_ms": received, "output_tokens": 16, "replay": replay}
        event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
        return {"timestamp": 5, "event": event} if is_wrapped else event

    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"tool_class": "web_search"}}
    first, second, third = 14879255164371896291, 274632075616497421, 9223372036854775807
    path = write(row(1777312800500, 128, first, second), tool, row(1777312800000, 100, first, third))
    trace = read_requests(follow(path), block_size=64)
    assert [(r.timestamp, r.input_length, r.output_length) for r in trace] == [
        (1777312800000, 100, 16),
        (1777312800500, 128, 16),
    ]
    ids = [request.hash_ids for request in trace if isinstance(request, TraceRequest)]
    assert ids[0][0] == ids[1][0] and len({*ids[0], *ids[1]}) == 3


def test_a_request_log_of_litellm_becomes_requests(write: Write) -> None:
    """What failed, and what its own cache answered, never reached the server. Times are seconds, or dates."""
    call: dict[str, Any] = {"id": "1", "call_type": "acompletion", "status": "success", "cache_hit": None, "model": "m"}
    call |= {"messages": [ASK], "model_parameters": {"stream": True, "tools": None}, "completion_tokens": 9}
    path = write(
        call | {"startTime": 1732420002.5, "endTime": 1732420003.0},
        call | {"startTime": 1732420001.0, "status": "failure"},
        call | {"startTime": 1732420001.5, "cache_hit": True},
        call | {"startTime": 1732420001.25, "completion_tokens": 4},
    )
    chat = tuple(map(ord, json.dumps([ASK])))
    assert read(follow(path)) == [TokenRequest(1732420001250, chat, 4), TokenRequest(1732420002500, chat, 9)]
    path = write(
        call | {"startTime": "2026-06-02T09:00:09.001Z", "cache_hit": "False"},
        call | {"startTime": "2026-06-02T09:00:09.500Z", "cache_hit": "True"},
    )
    assert read(follow(path)) == [TokenRequest(1780390809001, chat, 9)]
    path = write(call | {"startTime": "2026-06-02T09:00:09.001Z", "messages": {}})
    way_out = "it has no prompts, unless store_prompts_in_spend_logs is set in LiteLLM's general_settings"
    assert refusal(path) == f"the file looks like LiteLLM's request log, which is not read; {way_out}"


def test_observations_of_langfuse_become_requests(write: Write) -> None:
    """The messages and the tools are JSON in texts, the lines are in no order, and a span is not a request."""
    tool = {"type": "function", "function": {"name": "look", "description": None, "parameters": {"b": 1}}}
    row: dict[str, Any] = {"type": "GENERATION", "input": json.dumps([ASK]), "provided_model_name": "m", "output": "b"}
    row |= {"usage_details": {"input": 9, "output": 4}, "tool_definitions": {"look": json.dumps(tool)}}
    path = write(
        row | {"type": "SPAN", "input": "a question", "start_time": "2026-05-29 13:46:19.963000"},
        row | {"start_time": "2026-05-29 13:47:02.100000"},
        row | {"start_time": "2026-05-29 13:46:20.010000"},
    )
    letters = Letters()
    trace = read_requests(follow(path), encoder=letters)
    assert [(request.timestamp, request.output_length) for request in trace] == [(1780062380010, 4), (1780062422100, 4)]
    assert [(chat.messages, chat.inputs["tools"]) for chat in letters.chats] == [([ASK], [tool])] * 2


def test_a_recording_of_kv_events_becomes_the_requests_that_it_shows(tmp_path: Path) -> None:
    """The verb that draws it writes them."""
    pytest.importorskip("msgspec", reason="recordings need msgspec: make test")
    path = tmp_path / "events"
    stored = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2, 3, 4]}
    batch = {
        "number": 0,
        "ts": 1.0,
        "events": [stored | {"block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None}],
    }
    path.write_text(json.dumps(batch) + "\n")
    command = COMMAND.search(refusal(path))
    assert command is not None
    trace = tmp_path / "trace.jsonl"
    words = command[1].replace("FILE", str(path)).replace("TRACE", str(trace)).split()
    assert main(words[1:]) == 0
    assert read_requests(trace) == [TokenRequest(0, (1, 2, 3, 4), 1)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_with_prompts_becomes_lines(tmp_path: Path, separator: str) -> None:
    """Its other columns are refused by name then, with the command that leaves them out."""
    path = tmp_path / "traffic"
    path.write_text(separator.join(("id", "prompt", "country")) + "\n" + separator.join(("7", '"a, b"', "de")) + "\n")
    lines = follow(path)
    assert refusal(lines).startswith("id, country: not read; ")
    path.unlink()
    assert read(follow(lines)) == [TokenRequest(0, (0, *map(ord, "a, b")), 1)]


@pytest.mark.parametrize(
    "table",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
    ],
)
def test_a_table_of_lengths_has_nothing_to_find(tmp_path: Path, table: str) -> None:
    """Azure's and BurstGPT's. No command makes prompts of them."""
    path = tmp_path / "traffic"
    path.write_text(table)
    problem = "it has no prompts, and lengths do not say what requests share"
    assert refusal(path) == f"the file looks like a table (CSV), which is not read; {problem}"


def test_parquet_becomes_lines(tmp_path: Path) -> None:
    """As public chat sets come from Hugging Face."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb reads Parquet: make .venv/.peers")
    path = tmp_path / "traffic"
    messages = "[{'content': 'hi', 'role': 'user'}, {'content': 'b', 'role': 'assistant'}]"
    duckdb.sql(f"COPY (SELECT 'a' AS conversation_id, {messages} AS conversation) TO '{path}' (FORMAT parquet)")
    assert read(follow(path)) == [TokenRequest(0, tuple(map(ord, json.dumps([{"role": "user", "content": "hi"}]))), 1)]


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    """By the command that its refusal names."""
    path = tmp_path / "traffic.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside.jsonl", '{"prompt": "a"}\n')
    follow(path)
    assert read(tmp_path / "inside.jsonl") == [TokenRequest(0, (0, 97), 1)]
    inside = tmp_path / "inside.jsonl"
    if shutil.which("zstd") is None:
        pytest.skip("zstd is missing")
    subprocess.run(["zstd", "-q", inside.name, "-o", "packed.zst"], cwd=tmp_path, check=True)
    follow(tmp_path / "packed.zst")
    assert read(tmp_path / "packed") == [TokenRequest(0, (0, 97), 1)]
    path.write_bytes('{"prompt": "a"}\n'.encode("utf-16"))
    assert read(follow(path)) == [TokenRequest(0, (0, 97), 1)]


RESULTS = "it has no prompts: the data set of the run has them, as AIPerf's inputs.json, or the server's log"
EVENTS = "events say what was stored, and not what was asked"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            {"session_id": "a", "turns": [{"text": "Hi"}, {"text": "And now?"}]},
            "questions without answers, which is not read; a later prompt also contains the answers before it,"
            " which are not in it: a server's log of the run has them",
        ),
        (
            {"title": "A chat", "mapping": {"a": {}}, "current_node": "a"},
            "ChatGPT's export, which is not read; its chats are trees, and its system prompts are not in it",
        ),
        (
            {"schemaType": "ModelInvocationLog", "modelId": "m", "input": {}},
            "Bedrock's invocation log, which is not read; its bodies are requests of other services",
        ),
        (
            {"resourceSpans": [{"scopeSpans": []}]},
            "OpenTelemetry's spans, which is not read; they sum up calls of other calls, and have prompts only if these"
            " were captured: the server's log has them",
        ),
        (
            {"date": "20261124", "request_throughput": 7.5, "input_lens": [3]},
            f"results of a benchmark, which is not read; {RESULTS}",
        ),
        (
            {"metadata": {"x_request_id": "a"}, "metrics": {"request_latency": {"value": 2}}, "error": None},
            f"results of a benchmark, which is not read; {RESULTS}",
        ),
        (
            {"id": "b", "custom_id": "7", "response": {"status_code": 200}, "error": None},
            "answers of a batch, which is not read; the batch's input file has the requests",
        ),
        *(
            (
                line,
                f"KV events, which is not read; {EVENTS}:"
                " mini-kv attach SOURCE --trace FILE records the requests of a server that publishes them",
            )
            for line in (
                {"type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2]},
                [1763650001.25, [["BlockStored", [7], None, [1, 2], 2]], 0],
            )
        ),
        (
            {"timestamp": 12, "event": {"worker_id": 1, "event": {"event_id": 42, "data": "cleared"}}},
            f"Dynamo's KV events, which is not read; {EVENTS}: with DYN_REQUEST_TRACE=1 Dynamo records the requests",
        ),
    ],
)
def test_what_has_no_prompts_is_told_where_they_are(write: Write, line: object, problem: str) -> None:
    """No command finds what a file does not hold."""
    assert refusal(write(line)) == f"the file looks like {problem}"


def test_counters_are_for_why(tmp_path: Path) -> None:
    """A server's /metrics are no requests."""
    path = tmp_path / "traffic"
    path.write_text(
        "# HELP vllm:prefix_cache_hits_total Prefix cache hits.\n# TYPE vllm:prefix_cache_hits_total counter\n"
    )
    way_out = "mini-kv why MODEL --metrics FILE explains its hit rate"
    assert refusal(path) == f"the file looks like the counters of a server, which is not read; {way_out}"


def test_a_field_that_is_not_known_is_refused_by_name(write: Write) -> None:
    """With the command that leaves it out, also inside a batch's line and with a name that jq must quote."""
    path = write({"prompt": "a", "temperature": 0.5, "delay": 3, "my field": 1})
    assert refusal(path) == (
        "delay, my field: not read; if the prompt and its time do not depend on that,"
        """ jq -c 'del(.delay, .["my field"])' FILE leaves it out"""
    )
    assert read(follow(path)) == [TokenRequest(0, (0, 97), 1)]
    path = write({"custom_id": "1", "body": {"prompt": "a", "it's": 1}})
    assert read(follow(path)) == [TokenRequest(0, (0, 97), 1)]
    path = write({"timestamp": 0, "input_length": 7, "output_length": 1, "hash_ids": [1], "delay": 5})
    assert read(follow(path)) == [TraceRequest(0, 7, 1, (1,))]
    path = write({"token_ids": [7], "model": "m"})
    assert read(follow(path)) == [TokenRequest(0, (7,), 1)]


def test_two_models_share_no_cache(write: Write) -> None:
    """So requests for a second one are refused, with the command that takes one model's."""
    path = write({"prompt": "a", "model": "m"}, {"prompt": "b", "model": "it's"}, {"prompt": "c", "model": "m"})
    assert refusal(path).startswith('model is "it\'s", and the first request\'s "m": two models share no KV; ')
    assert read(follow(path)) == [TokenRequest(0, (0, 97), 1), TokenRequest(0, (0, 99), 1)]


def test_training_data_ends_with_answers(write: Write) -> None:
    """A request does not, unless it says so."""
    answer = {"role": "assistant", "content": "b"}
    path = write({"messages": [ASK, answer]})
    chat = tuple(map(ord, json.dumps([ASK])))
    assert read(follow(path)) == [TokenRequest(0, chat, 1)]
    path = write({"body": {"messages": [ASK, answer]}})
    assert read(follow(path)) == [TokenRequest(0, chat, 1)]
    path = write({"messages": [ASK, answer], "add_generation_prompt": False, "continue_final_message": True})
    assert read(path) == [TokenRequest(0, tuple(map(ord, json.dumps([ASK, answer]))), 1)]


def test_times_in_seconds_and_out_of_order_are_told(write: Write) -> None:
    """Each with the command that mends it."""
    path = write({"token_ids": [7], "timestamp": 1732420001.5}, {"token_ids": [8], "timestamp": 1732420002})
    assert read(follow(path)) == [TokenRequest(1732420001500, (7,), 1), TokenRequest(1732420002000, (8,), 1)]
    path = write({"token_ids": [7], "timestamp": 9}, {"token_ids": [8], "timestamp": 4})
    assert read(follow(path)) == [TokenRequest(4, (8,), 1), TokenRequest(9, (7,), 1)]


def test_a_prompt_of_token_ids_is_told_its_name(write: Write) -> None:
    """Servers take such prompts."""
    path = write({"body": {"prompt": [7, 8]}})
    assert read(follow(path)) == [TokenRequest(0, (7, 8), 1)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"n": 4}, "n is 4: a server makes n requests of it, so write n lines without it"),
        (
            {"prompt_logprobs": 1},
            "prompt_logprobs is 1: it is not read, vLLM does not use the cache for such a request",
        ),
        (
            {"prompt_logprobs": 0},
            "prompt_logprobs is 0: it is not read, vLLM does not use the cache for such a request",
        ),
        ({"use_beam_search": True}, "use_beam_search is true: it is not read, a server runs several requests for it"),
    ],
)
def test_a_field_that_changes_the_search_is_refused(write: Write, fields: dict[str, Any], problem: str) -> None:
    """Although it does not change the prompt."""
    assert refusal(write({"prompt": "a"} | fields)) == problem
    assert read(write({"prompt": "a", "n": 1, "prompt_logprobs": None, "use_beam_search": False}))
