"""Traces of texts and chats: what a line may hold, what reaches the tokenizer, what is refused."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.traces.formats import read_requests
from mini_kv.traces.mooncake import TraceError
from mini_kv.traces.token_request import TokenRequest

ASK = {"role": "user", "content": "hi"}


class Letters:
    """A token per character; of a chat, the characters of its JSON. It keeps what it was given."""

    def __init__(self) -> None:
        self.chats: list[tuple[Any, Any]] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> list[int]:
        self.chats.append((messages, tools))
        return self.encode(json.dumps(messages))


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write objects to a file, a line each, and return its path."""

    def write(*lines: object) -> Path:
        path = tmp_path / "texts.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


def test_a_line_holds_a_prompt_and_what_a_line_of_tokens_may_hold(write: Write) -> None:
    """Only the prompt must be there."""
    path = write(
        {"prompt": "ab"},
        {"prompt": "abc", "timestamp": 7, "output_length": 3, "cache_salt": "s", "lora_name": "chat"},
    )
    assert read_requests(path, encoder=Letters()) == [
        TokenRequest(0, (97, 98), 1),
        TokenRequest(7, (97, 98, 99), 3, "s", "chat"),
    ]


def test_a_chat_reaches_the_tokenizer_as_a_server_would_pass_it_on(write: Write) -> None:
    """Parts of text are joined by lines; the arguments of a tool call are an object; no tools are none."""
    letters = Letters()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    call = {"id": "1", "function": {"name": "look", "arguments": '{"at": 3}'}}
    broken = {"id": "2", "function": {"name": "look", "arguments": "{at"}}
    tool = {"type": "function", "function": {"name": "look"}}
    path = write(
        {"messages": [{"role": "user", "content": parts}], "tools": []},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [call, broken]}], "tools": [tool]},
        {"messages": [{"role": "assistant", "tool_calls": "none", "name": "a"}]},
        {"custom_id": "7", "method": "POST", "body": {"messages": [ASK], "cache_salt": "s"}},
    )
    requests = read_requests(path, encoder=letters)
    parsed = {"id": "1", "function": {"name": "look", "arguments": {"at": 3}}}
    assert letters.chats == [
        ([{"role": "user", "content": "one\ntwo"}], None),
        ([{"role": "assistant", "content": None, "tool_calls": [parsed, broken]}], [tool]),
        ([{"role": "assistant", "tool_calls": "none", "name": "a"}], None),
        ([ASK], None),
    ]
    assert [request.cache_salt for request in requests if isinstance(request, TokenRequest)] == [None, None, None, "s"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"prompt": [1, 2]}, "prompt is [1, 2]: it must be a text, or else there are messages"),
        ({"text": "a"}, "prompt is null: it must be a text, or else there are messages"),
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"prompt": "a", "timestamp": "1"}, 'timestamp is "1": it must be an integer'),
        ({"messages": []}, "messages is []: it must be a list of at least one message"),
        ({"messages": "hi"}, 'messages is "hi": it must be a list of at least one message'),
        ({"messages": [{"content": "hi"}]}, 'messages[0] is {"content": "hi"}: it must be an object with a role'),
        ({"messages": [ASK], "tools": {}}, "tools is {}: it must be a list"),
        (
            {"messages": [ASK, {"role": "user", "content": 7}]},
            "messages[1].content is 7: it must be a text, or a list of parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            'messages[0].content[0] is {"type": "image_url"}: only texts can be read, of images their tokens are not'
            " known",
        ),
    ],
)
def test_a_wrong_line_is_named_and_explained(write: Write, line: object, problem: str) -> None:
    """With the file and the number of the line."""
    path = write({"prompt": "ab"}, line)
    with pytest.raises(TraceError) as caught:
        read_requests(path, encoder=Letters())
    assert str(caught.value) == f"{path}:2: {problem}"


@pytest.mark.parametrize("options", [[], ["--format", "texts"]])
def test_without_a_tokenizer_the_way_on_is_said(
    write: Write, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is replayed."""
    path = write({"prompt": "ab"})
    assert main(["replay", str(path), *options]) == 2
    assert capsys.readouterr().err == (
        f"mini-kv replay: {path}:1: its prompts are texts, and a cache is asked for tokens: say --tokenizer"
        " tokenizer.json\n"
    )
