"""`mini-kv serve` as it is typed: refusals, whose parts serve, TERM in the middle of answers."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mini_kv import LLM
from mini_kv.cli import main
from mini_kv.engine.checkpoint import tiny_folder
from mini_kv.tests.serve.endpoint import TEXT, offline

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def running(*args):
    """Run the command on a free port; yield the process, its port and what it said before it served."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mini_kv", "serve", "--port", "0", *args],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("serving"):
            break
    try:
        yield process, int(said.rpartition(":")[2]), said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(port, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    payload = json.dumps({"prompt": TEXT, "temperature": 0, **body})
    connection.request("POST", "/v1/completions", payload, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return content


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--host", "0.0.0.0"],
            "--host 0.0.0.0 can be reached from other machines: add --api-keys FILE or --open",
        ),
        (["--api-keys", "no-such-file"], "No such file or directory: 'no-such-file'"),
        (["--model", "no-such-folder"], "no-such-folder"),
        (["--model", "x", "--windows"], "--windows is a small model of its own, and --model says 'x': give one"),
        (["--num-blocks", "1"], "num_blocks is 1"),
        (["--labs", "no-such-folder"], "--labs 'no-such-folder': it is neither starter nor solution"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(capsys, args, message):
    assert main(["serve", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith("mini-kv serve: ") and message in err


def test_keys_are_lines_of_eight_letters_or_more(capsys, tmp_path):
    keys = tmp_path / "keys"
    for text in ("", "# none\n", "short\n", "with a space\n"):
        keys.write_text(text, encoding="utf-8")
        assert main(["serve", "--api-keys", str(keys)]) == 2
        assert "a key is a line of 8 characters or more" in capsys.readouterr().err


def text_of(content):
    """Return the text of an answer, whole or streamed; a stream must have its end."""
    if not content.startswith("data: "):
        return json.loads(content)["choices"][0]["text"]
    *events, done = content.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)


def wait_for_running(port, num):
    """Wait until this number of requests runs."""
    metrics = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = ""
    while f'num_requests_running{{engine="0",model_name="tiny"}} {num}.0' not in content:
        metrics.request("GET", "/metrics")
        content = metrics.getresponse().read().decode()
    metrics.close()


@pytest.mark.slow
def test_term_in_the_middle_lets_every_client_have_its_answer():
    said: list[str] = []

    def client(stream):
        said.append(ask(port, max_tokens=60, stream=stream))

    with running("--step-ms", "20") as (process, port, _):
        clients = [threading.Thread(target=client, args=(stream,)) for stream in (False, True, False, True)]
        for each in clients:
            each.start()
        wait_for_running(port, 4)
        process.send_signal(signal.SIGTERM)
        for each in clients:
            each.join()
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)
    (right,) = offline([TEXT], max_tokens=60, temperature=0)
    assert list(map(text_of, said)) == [right.text] * 4


@pytest.mark.slow
def test_the_parts_of_the_labs_serve_and_the_table_says_whose_they_are():
    with running("--labs", "solution") as (_, port, said):
        answer = json.loads(ask(port, max_tokens=4))
    rows = [line.split()[-2] for line in said.splitlines() if line.startswith("lab-07")]
    (right,) = offline([TEXT], max_tokens=4, temperature=0)
    assert rows == ["solution"] * 5
    assert answer["choices"][0]["text"] == right.text


@pytest.mark.slow
def test_with_windows_the_parts_of_lab_12_serve_and_the_model_has_its_own_name():
    with running("--windows", "--labs", "solution") as (_, port, said):
        answer = json.loads(ask(port, max_tokens=24))
    owners = {line.split()[1]: line.split()[2] for line in said.splitlines() if line.startswith(("lab-06", "lab-12"))}
    assert owners == {
        "KVCacheManager": "mini_kv",
        "SlidingWindowManager": "solution",
        "HybridKVCacheCoordinator": "solution",
        "group_layers": "solution",
    }
    (right,) = offline([TEXT], llm=LLM(tiny_folder(windows=True)), max_tokens=24, temperature=0)
    assert (answer["model"], answer["choices"][0]["text"]) == ("tiny_windows", right.text)


@pytest.mark.slow
def test_an_address_in_use_is_said():
    with running() as (_, port, _):
        second = subprocess.run(
            [sys.executable, "-m", "mini_kv", "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert second.returncode == 2 and "address already in use" in second.stderr
