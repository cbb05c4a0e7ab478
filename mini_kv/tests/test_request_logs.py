"""Request logs of vLLM and SGLang: which lines are requests, what of them is kept, what cannot be read and why."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.tools.traces.readers.chats import Chat
from mini_kv.tools.traces.readers.formats import _READ, read_requests
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.readers.token_trace import TokenRequest

PREFIX = "(APIServer pid=7) {} 11-24 03:45:{:02} [request_logger.py:56] "
PARAMS = "params: SamplingParams(n=1, stop=[', prompt_token_ids: [1]'], max_tokens=16)"


class Letters:
    """A token per character, with a 1 in front where special tokens are wanted."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(character) for character in text]

    def encode_chat(self, chat: Chat) -> list[int]:
        raise AssertionError("logs hold prompts")


def vllm(name: str, ids: object, *, prompt: object = "hi", second: int = 0, lora: str = "None") -> str:
    """Return the two lines that vLLM 0.33 writes about a request."""
    details = f"Request {name} details: prompt: {prompt!r}, prompt_token_ids: {ids}, prompt_embeds shape: None."
    received = f"Received request {name}: {PARAMS}, lora_request: {lora}."
    return f"{PREFIX.format('DEBUG', second)}{details}\n{PREFIX.format('INFO', second)}{received}\n"


def sglang(second: int = 0, kind: str = "received", **fields: Any) -> str:
    """Return the line of JSON that SGLang writes about a request."""
    event = {"timestamp": f"2026-11-24T03:45:{second:02}.250000", "event": f"request.{kind}"}
    out = {"out": fields.pop("out")} if "out" in fields else {}
    return json.dumps(event | {"rid": fields.get("rid"), "obj": {"rid": "r", "text": None} | fields} | out) + "\n"


Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a log and return its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "server.log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_log_of_vllm_between_other_lines(write: Write) -> None:
    """Times from the first request on, the adapter's name; what is only a prompt's text is no line of the log."""
    lora = "LoRARequest(lora_name='sql', lora_int_id=1, lora_path='/x')"
    quoting = 'it\'s "Received request x: params: ", prompt_token_ids: [9], ü\n'
    log = (
        "\x1b[0;36m(APIServer pid=7)\x1b[0;0m INFO 11-24 03:44:00 [api_server.py:1] vLLM API server version 0.33.0\n"
        + PREFIX.format("INFO", 0)
        + "non-default args: {'model': 'm', 'enable_log_requests': True}\n"
        + vllm("cmpl-a-0", [3, 17, 99], prompt=quoting, second=10)
        + "INFO:     127.0.0.1:1 - POST /v1/completions 200 OK\n"
        + vllm("tokenize-b", [1])
        + vllm("chatcmpl-c", [3, 17], prompt=None, second=12, lora=lora)
    )
    expected = [TokenRequest(0, (3, 17, 99), 1), TokenRequest(2000, (3, 17), 1, lora_name="sql")]
    assert read_requests(write(log)) == expected
    assert read_requests(write(gzip.compress(log.encode()))) == expected
    assert read_requests(write(log.replace("INFO 11", "\x1b[32mINFO\x1b[0m \x1b[90m11"))) == expected


def test_answers_are_found_later_in_the_log(write: Write) -> None:
    """Two prompts sent together have one name; parts of a stream add up; a text about tokens counts nothing."""
    answers = [
        "cmpl-a details: output_token_ids: [5, 6]",
        "cmpl-a: output: 'text, output_token_ids: [1, 2, 3, 4]', finish_reason: stop",
        "cmpl-a details: output_token_ids: (5, 6, 7)",
        "chatcmpl-b (streaming delta) details: output_token_ids: [5]",
        "chatcmpl-b (streaming delta) details: output_token_ids: [5, 9]",
        "chatcmpl-b (streaming complete) details: output_token_ids: None",
        "chatcmpl-c: output: 'as vLLM 0.11 did', output_token_ids: [1, 2, 3, 4], finish_reason: stop",
    ]
    log = vllm("cmpl-a-0", [1]) + vllm("cmpl-a-1", [2]) + vllm("chatcmpl-b", [3]) + vllm("chatcmpl-c", [4])
    log += "".join(f"{PREFIX.format('DEBUG', 9)}Generated response {answer}\n" for answer in answers)
    lengths = [(r.token_ids, r.output_length) for r in read_requests(write(log)) if isinstance(r, TokenRequest)]
    assert lengths == [((1,), 2), ((2,), 3), ((3,), 3), ((4,), 4)]


def test_older_logs_of_vllm_say_all_in_one_line(write: Write) -> None:
    """A chat's prompt may be there as a text only, which has its special tokens already."""
    rest = "prompt_embeds shape: None, lora_request: None.\n"
    start = PREFIX.format("INFO", 0) + "Received request "
    log = f"{start}cmpl-a-0: prompt: 'x', {PARAMS}, prompt_token_ids: [3, 17], {rest}"
    log += f'{start}chatcmpl-b: prompt: "it\'s", {PARAMS}, prompt_token_ids: None, {rest}'
    log += f"{start}cmpl-c-0: prompt: '\\n', {PARAMS}, prompt_token_ids: None, {rest}"
    expected = [(3, 17), (105, 116, 39, 115), (1, 10)]
    assert [
        r.token_ids for r in read_requests(write(log), encoder=Letters()) if isinstance(r, TokenRequest)
    ] == expected


def test_vllm_may_log_in_json(write: Write) -> None:
    """The formatter of `--log-config` or of the logging settings; the same messages."""
    lines = [line.partition("] ")[2] for line in (vllm("cmpl-a-0", [3]) + vllm("cmpl-b-0", [4])).splitlines()]
    log = "".join(
        json.dumps({"asctime": f"2026-11-24 03:45:1{n},500", "levelname": "DEBUG", "message": message}) + "\n"
        for n, message in enumerate(lines)
    )
    assert read_requests(write(log)) == [TokenRequest(0, (3,), 1), TokenRequest(2000, (4,), 1)]


def test_a_log_of_sglang_in_json(write: Write) -> None:
    """Salt, adapter and the length of the answer; texts go through the tokenizer; health checks are nothing."""
    log = (
        "[2026-11-24 03:44:00] server_args=ServerArgs(...)\n"
        + "[2026-11-24 03:45:00] "
        + sglang(0, rid="a", input_ids=[3, 17], lora_path="sql", cache_salt="s", extra_key="k")
        + sglang(1, rid="HEALTH_CHECK_1", input_ids=[0])
        + sglang(2, rid="b", text="hi", input_ids=None, image_data=[])
        + sglang(3, "finished", rid="b", out={"text": "x", "meta_info": {"completion_tokens": 5}})
        + sglang(3, "finished", rid="a", out=[{"text": "x"}])
        + sglang(3, "aborted", rid="a")
    )
    expected = [TokenRequest(0, (3, 17), 1, "s/k", "sql"), TokenRequest(2000, (1, 104, 105), 5)]
    assert read_requests(write(log), encoder=Letters()) == expected
    assert read_requests(write(sglang(rid="a", input_ids=[3]))) == [TokenRequest(0, (3,), 1)]


def test_a_log_of_sglang_in_text(write: Write) -> None:
    """The same, as it prints the request; what a user wrote looks like fields and is none."""
    quoting = "it's input_ids=[1], Finish: obj=GenerateReqInput("
    log = (
        f"[2026-11-24 03:45:00] Receive: obj=GenerateReqInput(rid='a', text={quoting!r}, input_ids=[3, 17], "
        "image_data=None, sampling_params={'stop': [\"rid='b'\"]}, lora_path='sql', cache_salt='s')\n"
        "[2026-11-24 03:45:01] Receive OpenAI: obj={'messages': 'Receive: obj=GenerateReqInput(rid='}\n"
        "[2026-11-24 03:45:01] Receive: obj=EmbeddingReqInput(rid='c', text='hi')\n"
        "[2026-11-24 03:45:02] Finish: obj=GenerateReqInput(rid='a', text=None, input_ids=[3, 17]), out={'text': "
        "\"'completion_tokens': 99\", 'meta_info': {'id': 'a', 'completion_tokens': 5, 'cached_tokens': 1}}\n"
        "[2026-11-24 03:45:02] Finish: obj=GenerateReqInput(rid='d', text='x'), out={}\n"
    )
    assert read_requests(write(log)) == [TokenRequest(0, (3, 17), 5, "s", "sql")]


@pytest.mark.parametrize("times", [("12-31 23:59:59", "12-31 23:59:30"), ("no time at all", "none here")])
def test_lines_of_several_processes_may_be_a_little_out_of_step(write: Write, times: tuple[str, str]) -> None:
    """And a log without times has none."""
    log = "".join(vllm(f"cmpl-{n}-0", [n + 1]).replace("11-24 03:45:00", time) for n, time in enumerate(times))
    assert [request.timestamp for request in read_requests(write(log))] == [0, 0]


SGLANG_LEVEL = "start SGLang with --log-requests-level 3"
NOT_ONE = "the request must be one prompt, a text or token ids: batches and embeddings are not read"


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (
            vllm("cmpl-a-0", [1]).splitlines()[1],
            "1: request cmpl-a-0 is logged without its prompt: start vLLM with VLLM_LOGGING_LEVEL=DEBUG",
        ),
        (
            PREFIX.format("INFO", 0) + "non-default args: {'enable_log_requests': True, 'max_log_len': 100}",
            "1: the server cuts what it logs to 100 characters and tokens: --max-log-len",
        ),
        (vllm("cmpl-a-0", None, prompt=None), "1: the prompt is embeddings, which have no tokens"),
        (vllm("cmpl-a-0", None), "1: the log has this prompt as a text only: say --tokenizer tokenizer.json"),
        (vllm("cmpl-a-0", [1])[:110], "1: the line is cut: it has no prompt_token_ids"),
        (vllm("cmpl-a-0", [2**32]), "1: prompt_token_ids[0] is 4294967296: it must be at most 4,294,967,295"),
        (vllm("cmpl-a-0", []), "2: the prompt has no tokens"),
        (vllm("cmpl-a-0", [1]).replace("03:45", "99:45"), "2: hour must be in 0..23"),
        (
            vllm("cmpl-a-0", [1]) + vllm("cmpl-b-0", [1]).replace("11-24", "01-01"),
            "4: the log goes back here, to 01-01 03:45:00: two logs in one, or a new year?",
        ),
        (b"\n\nReceived request \xff", "3: not UTF-8: byte 18 of the line"),
        (sglang().replace('"obj": {', '"obj": 7, "x": {'), "1: obj is 7: it must be an object"),
        (
            sglang().replace('"text": null', '"rid": 1'),
            "1: not JSON that can be read: an object has the key 'rid' twice",
        ),
        (sglang().replace('"text": null', '"x": 1'), f"1: the request is logged without its prompt: {SGLANG_LEVEL}"),
        (sglang(input_ids=[1, "...", 2]), f"1: the prompt is cut: {SGLANG_LEVEL}"),
        (sglang(text="a" * 1024 + "..." + "b" * 1024), f"1: the prompt is cut: {SGLANG_LEVEL}"),
        ("Receive: obj=GenerateReqInput(rid='a', text='a' ... 'b')", f"1: the prompt is cut: {SGLANG_LEVEL}"),
        (
            "Receive: obj=GenerateReqInput(rid='a', text=None, input_ids=[1, 2] ... [3])",
            f"1: the prompt is cut: {SGLANG_LEVEL}",
        ),
        ("Receive: obj=GenerateReqInput(rid='a')", f"1: the request is logged without its prompt: {SGLANG_LEVEL}"),
        (sglang(input_ids=[1, -2]), "1: input_ids[1] is -2: it must be at least 0"),
        (
            sglang(input_ids=[1], image_data=["x.png"]),
            "1: the request has image_data: the log does not say how many tokens they take",
        ),
        (sglang(input_ids=[[1], [2]]), f"1: {NOT_ONE}"),
        (sglang(text=["a", "b"]), f"1: {NOT_ONE}"),
        (sglang(input_ids=None), f"1: {NOT_ONE}"),
        ("Receive: obj=GenerateReqInput(rid=['a', 'b'], text=['a', 'b'], input_ids=None)", f"1: {NOT_ONE}"),
        ("Receive: obj=GenerateReqInput(rid='a', text=None, input_ids=[[1], [2]])", f"1: {NOT_ONE}"),
        (
            vllm("cmpl-7-0", [3]).replace("n=1, ", "n=1, prompt_logprobs=0, "),
            "2: request cmpl-7-0 asks for prompt_logprobs: vLLM looks up nothing for it;"
            " grep -v cmpl-7-0 FILE leaves it out",
        ),
    ],
)
def test_what_cannot_be_read_is_named_and_explained(write: Write, log: str | bytes, problem: str) -> None:
    """With the file and the line, and how to get a log that can be read."""
    path = write(log)
    with pytest.raises(TraceError) as caught:
        read_requests(path, "log")
    assert str(caught.value) == f"{path}:{problem}"


@pytest.mark.parametrize("command", ["replay", "curve", "explain"])
def test_every_command_takes_a_log(write: Write, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how to get one, where there is no request in it; a pickle is not opened."""
    how = (
        "vLLM logs prompts with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG, SGLang with --log-requests"
        " --log-requests-level 3"
    )
    path = write("".join(vllm(f"cmpl-{n}-0", [1, 2, 3, 4, n]) for n in range(9)))
    assert main([command, str(path), "--num-blocks", "8", "--block-size", "2"]) == 0
    assert "blocks of 2 tokens" in capsys.readouterr().out
    write("INFO 11-24 03:44:00 [api_server.py:1] vLLM API server version 0.33.0\n")
    assert main([command, str(path)]) == 2
    no_request = "the file has no line that is a request"
    assert capsys.readouterr().err == f"mini-kv {command}: {path}:1: {no_request}; {how}; {_READ}\n"
    write(pickle.dumps({"requests": []}))
    assert main([command, str(path)]) == 2
    pickled = "a pickle, as SGLang dumps requests, may run any code, so it is not read"
    assert capsys.readouterr().err == f"mini-kv {command}: {path}:1: {pickled}; {how}\n"
