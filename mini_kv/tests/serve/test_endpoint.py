"""`mini-kv serve`, asked over a real socket: answers, streams, errors, limits, clients that leave."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from typing import Any

import pytest

from mini_kv.tests.serve.endpoint import TEXT, offline
from mini_kv.tools.serve.engine_loop import Mailbox
from mini_kv.tools.serve.protocol import Fields, read_chat
from mini_kv.tools.traces.counter_causes import BlockLengths, Cause, explain_counters
from mini_kv.tools.traces.readers.server_counters import read_metrics

PROMPTS = [f"{text} {number}" for number in range(6) for text in ("The cache", "A block is free when", "Two requests")]


# Answers.


def test_an_answer_has_openais_shape_and_the_offline_text(shared):
    status, _, answer = shared.ask({"model": "tiny", "prompt": TEXT, "max_tokens": 12, "temperature": 0})
    (right,) = offline([TEXT], max_tokens=12, temperature=0)
    assert status == 200 and re.fullmatch("cmpl-[0-9a-f]{32}", answer.pop("id")) and answer.pop("created") > 1.7e9
    assert answer.pop("usage").pop("prompt_tokens_details").keys() == {"cached_tokens"}
    choice = {"index": 0, "text": right.text, "logprobs": None, "finish_reason": "length"}
    assert answer == {"object": "text_completion", "model": "tiny", "choices": [choice]}


def test_the_second_to_ask_the_same_is_told_what_was_in_the_cache(serve):
    usages = [
        serve_answer["usage"] for _, _, serve_answer in map(serve().ask, [{"prompt": TEXT, "temperature": 0}] * 2)
    ]
    assert [usage["prompt_tokens_details"] for usage in usages] == [{"cached_tokens": 0}, {"cached_tokens": 16}]
    assert [(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) for usage in usages] == [
        (17, 16, 33)
    ] * 2


def test_a_message_reaches_the_template_as_vllm_would_pass_it_on():
    """Parts are joined by lines, as in a trace of chats: see test_texts."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "a", "tool_calls": []}]
    assert read_chat(Fields({"messages": messages})).messages == [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "a"},
    ]


def test_eighteen_clients_at_once_get_the_offline_answers(shared):
    params = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 5}
    right = [each.text for each in offline(PROMPTS, **params)]
    said = {}

    def ask(prompt):
        said[prompt] = "".join(event["choices"][0]["text"] for event in shared.events(prompt=prompt, **params))

    clients = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [said[prompt] for prompt in PROMPTS] == right


def test_several_prompts_and_several_samples_are_numbered_prompt_by_prompt(shared):
    params = {"max_tokens": 6, "temperature": 1.0, "seed": 3}
    right = [each.text for each in offline(PROMPTS[:2], n=3, **params)]
    status, _, answer = shared.ask({"prompt": PROMPTS[:2], "n": 3, **params})
    assert [(each["index"], each["text"]) for each in answer["choices"]] == list(enumerate(right))
    streamed = [""] * 6
    for event in shared.events(prompt=PROMPTS[:2], n=3, **params):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert (status, streamed) == (200, right)


def test_token_ids_are_a_prompt_too(shared):
    ids = shared.engine.tokenizer.encode(TEXT)
    assert shared.text(prompt=ids) == shared.text(prompt=[ids]) == shared.text()


def test_a_text_ends_at_a_stop_string_and_does_not_show_it(shared):
    whole = shared.text(max_tokens=16)
    word = whole.split()[2]
    cut = whole[: whole.index(word)]
    status, _, answer = shared.ask({"prompt": TEXT, "temperature": 0, "stop": word})
    assert (status, answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (200, cut, "stop")
    streamed = [event["choices"][0] for event in shared.events(stop=[word, "never"])]
    assert "".join(each["text"] for each in streamed) == cut
    assert [each["finish_reason"] for each in streamed] == [None] * (len(streamed) - 1) + ["stop"]


def test_log_probabilities_are_the_engines(shared):
    (right,) = offline([TEXT], max_tokens=3, temperature=0, logprobs=2)
    told = shared.ask({"prompt": TEXT, "max_tokens": 3, "temperature": 0, "logprobs": 2})[2]["choices"][0]["logprobs"]
    rows = [list(position.values()) for position in right.logprobs]
    assert told["tokens"] == [row[0].decoded_token for row in rows]
    assert told["token_logprobs"] == pytest.approx([row[0].logprob for row in rows], abs=1e-5)
    assert [list(each) for each in told["top_logprobs"]] == [[one.decoded_token for one in row] for row in rows]
    lengths = [len(token) for token in told["tokens"]]
    assert told["text_offset"] == [0, lengths[0], sum(lengths[:2])]
    streamed = [event["choices"][0]["logprobs"] for event in shared.events(max_tokens=3, logprobs=2)]
    assert [each["tokens"] + each["text_offset"] for each in streamed] == [
        [token, offset] for token, offset in zip(told["tokens"], told["text_offset"], strict=True)
    ]


def test_a_stream_tells_its_usage_at_the_end_if_asked(shared):
    events = shared.events(max_tokens=3, stream_options={"include_usage": True})
    assert [event["usage"] for event in events[:-1]] == [None] * 3
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]) == ([], 3)
    assert all("usage" not in event for event in shared.events(max_tokens=3))


def test_models_and_metrics_and_health(shared):
    model = {"id": "tiny", "object": "model", "created": 0, "owned_by": "mini_kv", "max_model_len": 512}
    assert shared.get("/v1/models")[2] == {"object": "list", "data": [model]}
    assert shared.get("/v1/models/tiny")[2] == model and shared.get("/v1/models/other")[0] == 404
    assert shared.get("/health")[::2] == (200, {"status": "ok", "problem": None, "failures": 0})


def test_metrics_have_vllms_names_and_the_engines_numbers(serve):
    endpoint = serve()
    for _ in range(2):
        endpoint.text(max_tokens=4)
    content = endpoint.get("/metrics")[2].decode()
    told = dict(re.findall(r'^vllm:(\w+)\{engine="0",model_name="tiny"\} (\S+)$', content, re.MULTILINE))
    assert {name: float(value) for name, value in told.items() if not name.endswith(("_sum", "_created"))} == {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "prefix_cache_queries_total": 34,
        "prefix_cache_hits_total": 16,
        "num_preemptions_total": 0,
        "prompt_tokens_total": 34,
        "generation_tokens_total": 8,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 6,
        "e2e_request_latency_seconds_count": 2,
    }
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0' in content
    assert 'vllm:cache_config_info{block_size="8",engine="0",num_gpu_blocks="97"} 1.0' in content
    explained = explain_counters(read_metrics(content), BlockLengths(9, 9))
    assert (explained.cause, explained.is_sure) == (Cause.ALL_FOUND, True)  # nothing was evicted


# Refusals.


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt", "prompt is None, it must be a text, token ids, or a list of these"),
        ({"prompt": ""}, "prompt", "is empty"),
        ({"prompt": []}, "prompt", "it must have 1 to 64"),
        ({"prompt": [1, "a"]}, "prompt", "it must be a text, token ids, or a list of these"),
        ({"prompt": [99999]}, "prompt", "token 0 of request"),
        ({"prompt": [True]}, "prompt", "it must be a text"),
        ({"prompt": ["a"] * 65}, "prompt", "it must have 1 to 64"),
        ({"prompt": "a b " * 400}, "prompt", "tokens"),
        ({"prompt": "a" * 70_000}, "prompt", "prompt is too long: 512 tokens cannot encode it"),
        (
            {"prompt": "a", "max_tokens": 512},
            "max_tokens",
            "the prompt has 1 tokens, the answer 512: together at most 512",
        ),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0, it must be a whole number from 1"),
        ({"prompt": "a", "temperature": -1}, "temperature", "it must be 0 or a positive number"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "temperature is 'hot', it must be a number"),
        ({"prompt": "a", "temperature": 10**400}, "temperature", "it must be a number"),
        ({"prompt": "a", "top_p": 0}, "top_p", "top_p is 0.0, it must be above 0.0 and at most 1.0"),
        ({"prompt": "a", "n": 65}, "n", "n is 65, it must be a whole number from 1 to 64"),
        ({"prompt": "a", "n": True}, "n", "n is True"),
        ({"prompt": "a", "seed": 2**63}, "seed", "it must be a whole number"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "it must be a list of up to 16 str"),
        ({"prompt": "a", "stop": ["x" * 257]}, "stop", "longer than 256 characters"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": "a", "stream": "yes"}, "stream", "it must be true or false"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", "stream must be true"),
        ({"prompt": "a", "echo": True}, "echo", "this engine does not support echo: omit it"),
        ({"prompt": "a", "temprature": 1}, "temprature", "there is no field 'temprature'"),
        ({"prompt": "a", "model": "gpt-9"}, "model", "there is no model 'gpt-9' here, only 'tiny'"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt", "it must be a text of 1 to 256 characters"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(shared, body, param, message):
    status, _, answer = shared.ask(body)
    assert (status, set(answer), set(answer["error"])) == (
        404 if param == "model" else 400,
        {"error"},
        {"message", "type", "param", "code"},
    )
    assert (answer["error"]["param"], message in answer["error"]["message"]) == (param, True), answer


def test_fields_that_ask_for_nothing_may_stand_there(shared):
    nothing: dict[str, Any] = {
        "echo": False,
        "best_of": 1,
        "suffix": None,
        "logit_bias": {},
        "presence_penalty": 0.0,
        "user": "ann",
    }
    assert shared.text(**nothing, repetition_penalty=1.0, top_k=-1) == shared.text()


@pytest.mark.parametrize(
    ("body", "message"), [(b"", "the body is not JSON"), (b"[1]", "the body is [1], it must be a JSON object")]
)
def test_garbage_gets_a_sentence(shared, body, message):
    status, _, answer = shared.ask(body)
    assert (status, answer["error"]["message"][: len(message)]) == (400, message)


def test_a_body_that_is_too_large_is_not_read(shared):
    big = b'{"prompt": "' + b"a" * (1 << 20) + b'"}'
    assert shared.ask(big)[0] == 413
    with shared.open(prompt="a" * (1 << 20)) as client:
        client.settimeout(30)
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    length_lies = {"Content-Length": "99999999999999999999"}
    assert shared.ask(b"{}", headers=length_lies)[0] in (400, 413)


def test_addresses_and_methods(shared):
    status, headers, answer = shared.get("/v1/completions")
    assert (status, headers["allow"], answer["error"]["type"]) == (405, "POST", "invalid_request_error")
    assert shared.get("/v2")[2]["error"]["message"] == "GET /v2: Not Found"


@pytest.mark.parametrize(
    ("status", "hosts"),
    [
        (400, ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""]),
        (200, ["localhost", "localhost:1", "127.0.0.1", "[::1]:1"]),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(shared, status, hosts):
    """Another site's page would send its own name, which may begin as one of ours. This machine has three names."""
    assert [shared.get("/health", headers={"Host": host})[0] for host in hosts] == [status] * 4


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (
            415,
            ["", "text/plain", "text/plain; application/json", "application/jsonp", "text/json", "application/json,"],
        ),
        (200, ["application/json", "Application/JSON; charset=utf-8"]),
    ],
)
def test_a_body_of_another_type_is_refused(shared, status, kinds):
    """A browser lets any site's page send `text/plain`, whatever stands behind it, without asking the server first."""
    body = {"prompt": "a", "max_tokens": 1}
    assert {kind: shared.ask(body, headers={"Content-Type": kind})[0] for kind in kinds} == dict.fromkeys(kinds, status)


def test_a_body_without_a_length_is_refused_at_the_limit(shared):
    """It comes in chunks, and no header says how many."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):  # of 64 KiB each, and the limit is 16 of them
            client.sendall(b"10000\r\n" + b" " * (1 << 16) + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_a_model_without_a_chat_template_says_so(shared):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    status, _, answer = shared.ask(body, "/v1/chat/completions")
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "messages", "no_chat_template")


def test_who_finds_no_room_in_the_line_is_told_when_to_come_again(serve):
    endpoint = serve(max_num_seqs=1, max_waiting=1, step_ms=20)
    with endpoint.open(max_tokens=100), endpoint.open(max_tokens=100):
        endpoint.wait(lambda: endpoint.service.loop.num_texts == 2)
        status, headers, answer = endpoint.ask({"prompt": "a"})
        assert (status, headers["retry-after"], answer["error"]["code"]) == (429, "1", "queue_full")
    endpoint.wait(lambda: endpoint.service.loop.num_texts == 0)
    assert endpoint.ask({"prompt": "a"})[0] == 200


# Clients that leave, and clients that do not read.


def rest_of(client):
    """Return what a stream still brings."""
    content = b""
    while not content.endswith(b"0\r\n\r\n"):
        content += client.recv(1 << 16)
    return content


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_before_the_end_gives_its_blocks_back(serve, stream):
    endpoint = serve(step_ms=10)
    with endpoint.open(max_tokens=400, stream=stream) as client:
        assert not stream or client.recv(1000).startswith(b"HTTP/1.1 200")
        endpoint.wait(lambda: endpoint.num_held > 0)
    endpoint.wait(lambda: endpoint.num_held == 0)
    assert endpoint.engine.stats.num_generation_tokens < 400


def test_who_leaves_in_its_body_leaves_no_traceback(serve, capsys):
    endpoint = serve()
    for num_sent in (0, 5):
        with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 10\r\n\r\n" + b" " * num_sent)
            endpoint.wait(lambda: endpoint.server.server_state.tasks)
        endpoint.wait(lambda: not endpoint.server.server_state.tasks)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
def test_a_body_that_is_not_http_ends_its_request_without_a_traceback(serve, capsys, caplog, method):
    endpoint = serve()
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as client:
        head = method + b" /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n  \r\n-1\r\n")
        assert b"HTTP/1.1 200" not in client.recv(1000)
    endpoint.wait(lambda: not endpoint.server.server_state.tasks)
    assert "Traceback" not in capsys.readouterr().err + caplog.text
    assert endpoint.get("/health")[0] == 200


GOOD_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(("before", "begun"), [(b"", b""), (b"", b"GET /hea"), (GOOD_REQUEST, b"GET /hea")])
def test_who_does_not_finish_a_head_is_disconnected(shared, monkeypatch, before, begun):
    """Silent, or a letter now and then; as the first request of a connection, or after another."""
    monkeypatch.setattr("mini_kv.tools.serve.server.HEAD_S", 0.2)
    content, is_open, ends = b"", True, time.monotonic() + 4  # uvicorn itself closes what was silent for 5 s
    with socket.create_connection(("127.0.0.1", shared.port)) as client, contextlib.suppress(ConnectionError):
        client.sendall(before + begun)
        client.settimeout(0.05)
        while is_open and time.monotonic() < ends:
            try:
                piece = client.recv(1000)
                content += piece
                is_open = piece != b""
            except TimeoutError:
                client.sendall(begun[-1:])
    assert time.monotonic() < ends
    assert content.startswith(b"HTTP/1.1 200" if before else b"")


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_no_other_up(serve):
    endpoint = serve()
    with endpoint.open(max_tokens=400, logprobs=20, n=2) as client:
        endpoint.wait(lambda: endpoint.engine.stats.num_generation_tokens > 0)
        (right,) = offline([TEXT], max_tokens=8, temperature=0)
        assert endpoint.text(max_tokens=8) == right.text
        endpoint.wait(lambda: endpoint.num_held == 0)  # the engine is done with it, read or not
        client.settimeout(30)
        content = rest_of(client)
    assert content.count(b'"finish_reason":"length"') == 2 and b"[DONE]" in content


class NeverFetched(Mailbox):
    """The mailbox of a client that does not read."""

    def __init__(self):
        super().__init__(most=5)

    async def fetch(self):
        await asyncio.Event().wait()


def test_an_answer_that_is_never_fetched_is_given_up(serve):
    endpoint = serve(step_ms=5, make_mailbox=NeverFetched)
    with endpoint.open(max_tokens=400):
        endpoint.wait(lambda: endpoint.engine.stats.num_generation_tokens > 5)
        endpoint.wait(lambda: endpoint.num_held == 0)
    assert endpoint.engine.stats.num_generation_tokens < 400


# When something breaks.


class Breaks:
    """A step that fails when it is told to."""

    def __init__(self, engine):
        self.step, self.error = engine.step, None
        engine.step = self

    def __call__(self):
        deltas = self.step()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return deltas


@pytest.mark.parametrize("error", [RuntimeError("a kernel"), SystemExit("a learner's part")])
def test_a_step_that_fails_is_told_to_its_clients_and_in_health(serve, error):
    made = []
    endpoint = serve(before=lambda service: made.append(Breaks(service.engine)))
    made[0].error = error
    status, _, answer = endpoint.ask({"prompt": TEXT})
    named = f"{type(error).__name__}: {error}"
    assert (status, answer["error"]["message"]) == (500, f"the engine's step failed: {named}")
    assert answer["error"]["code"] == "engine_failed"
    assert endpoint.get("/health")[::2] == (503, {"status": "failing", "problem": named, "failures": 1})
    (right,) = offline([TEXT], max_tokens=16, temperature=0)
    assert endpoint.text() == right.text
    assert endpoint.get("/health")[::2] == (200, {"status": "ok", "problem": None, "failures": 1})


def test_a_step_that_fails_in_mid_stream_ends_the_stream_with_an_error(serve):
    made = []
    endpoint = serve(step_ms=5, before=lambda service: made.append(Breaks(service.engine)))
    with endpoint.open(max_tokens=400) as client:
        assert client.recv(1000)
        made[0].error = RuntimeError("a kernel")
        content = rest_of(client)
    last, done = [line for line in content.decode().split("\r\n") if line.startswith("data: ")][-2:]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["message"] == "the engine's step failed: RuntimeError: a kernel"
    assert done.startswith("data: [DONE]")


# The end.


def test_at_its_end_the_server_lets_requests_finish(serve):
    endpoint = serve(step_ms=5)
    with endpoint.open(max_tokens=40) as client:
        content = client.recv(1000)
        endpoint.server.should_exit = True
        content += rest_of(client)
    assert content.count(b'"finish_reason":"length"') == 1 and b"[DONE]" in content


def test_what_is_not_done_after_the_grace_has_a_clean_end(serve):
    endpoint = serve(step_ms=50, before=lambda service: setattr(service, "grace_s", 0.1))
    with endpoint.open(max_tokens=400) as client, endpoint.open(max_tokens=400, stream=False) as other:
        assert client.recv(1000)
        endpoint.wait(lambda: len(endpoint.engine.scheduler.running) == 2)
        endpoint.server.should_exit = True
        content = rest_of(client)
        whole = other.recv(1 << 16)
    assert b"the server is shutting down, and the request took more than 0 s" in content and b"[DONE]" in content
    assert whole.startswith(b"HTTP/1.1 503")
