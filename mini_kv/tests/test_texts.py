"""Traces of texts and chats: what a line may hold, what reaches the tokenizer, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.tools.traces.prompt_hashes import token_requests
from mini_kv.tools.traces.readers.chats import Chat
from mini_kv.tools.traces.readers.formats import read_requests
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.readers.token_trace import TokenRequest

ASK = {"role": "user", "content": "hi"}
NO_CALLS: list[dict[str, Any]] = [{"tool_calls": None}, {"tool_calls": []}]


class Letters:
    """A token per character, and 0 at the front; of a chat, the characters of its JSON. It keeps what it was given."""

    def __init__(self) -> None:
        self.chats: list[Chat] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [ord(character) for character in text]

    def encode_chat(self, chat: Chat) -> list[int]:
        self.chats.append(chat)
        return self.encode(json.dumps(chat.messages), add_special_tokens=chat.add_special_tokens)


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
        {"prompt": "c", "timestamp": 7, "output_tokens": 4},
    )
    assert read_requests(path, encoder=Letters()) == [
        TokenRequest(0, (0, 97, 98), 1),
        TokenRequest(7, (0, 97, 98, 99), 3, "s", "chat"),
        TokenRequest(7, (0, 99), 4),
    ]


def test_a_request_may_ask_for_special_tokens_or_for_none(write: Write) -> None:
    """By default a text gets them and a chat does not: its template writes its own."""
    path = write(
        {"prompt": "ab", "add_special_tokens": False},
        {"messages": [ASK], "add_special_tokens": True},
        {"messages": [ASK]},
    )
    firsts = [request.token_ids[0] for request in token_requests(read_requests(path, encoder=Letters()))]
    assert firsts == [97, 0, ord("[")]


def test_a_chat_reaches_the_template_as_vllm_would_pass_it_on(write: Write) -> None:
    """Parts of text are joined by lines. What is null, empty or unknown is left out, and never the word "None"."""
    letters = Letters()
    parts = [{"type": "text", "text": "one"}, "two", "", {"type": "refusal", "refusal": "three"}]
    call = {"id": "1", "function": {"name": "look", "arguments": '{"at": 3}'}}
    broken = [{"id": "2", "function": {"name": "look", "arguments": text}} for text in ("{at", "[]", None)]
    path = write(
        {"messages": [{"role": "user", "content": parts, "name": "a", "prefix": True}, {"role": "user", "name": None}]},
        {
            "messages": [{"role": "assistant", "content": None, "tool_calls": [call, *broken]}],
            "add_generation_prompt": True,
        },
        {
            "messages": [{"role": "assistant", "content": "a"} | calls for calls in NO_CALLS],
            "add_generation_prompt": True,
        },
        {"messages": [{"role": "tool", "content": "7", "tool_call_id": "1"}, {"role": "tool", "tool_call_id": None}]},
        {
            "messages": [{"role": "assistant", "content": None, "reasoning_content": "so"}],
            "add_generation_prompt": True,
        },
        {"custom_id": "7", "method": "POST", "body": {"messages": [ASK], "cache_salt": "s"}},
    )
    requests = token_requests(read_requests(path, encoder=letters))
    parsed = {"id": "1", "function": {"name": "look", "arguments": {"at": 3}}}
    empty = {"id": "2", "function": {"name": "look", "arguments": {}}}
    reasoning = {"reasoning": "so", "reasoning_content": "so", "thinking": "so"}
    assert [chat.messages for chat in letters.chats] == [
        [{"role": "user", "content": "one\ntwo\nthree", "name": "a"}, {"role": "user", "content": ""}],
        [{"role": "assistant", "content": "", "tool_calls": [parsed, empty, empty, empty]}],
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}],
        [{"role": "tool", "content": "7", "tool_call_id": "1"}, {"role": "tool", "content": ""}],
        [{"role": "assistant", "content": "", **reasoning}],
        [ASK],
    ]
    assert [request.cache_salt for request in requests] == [None] * 5 + ["s"]


def test_a_call_of_a_tool_has_the_fields_that_vllm_knows_in_its_order(write: Write) -> None:
    """So two spellings of one call are one prompt."""
    letters = Letters()
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 3}}, "index": 0, "id": "1"}
    message = {"role": "assistant", "tool_calls": [call]}
    read_requests(write({"messages": [message], "add_generation_prompt": True}), encoder=letters)
    known = {"id": "1", "function": {"arguments": {"at": 3}, "name": "look"}, "type": "function"}
    assert json.dumps(letters.chats[0].messages[0]["tool_calls"]) == json.dumps([known])


def test_a_tool_has_the_fields_that_vllm_knows_in_its_order(write: Write) -> None:
    """So two spellings of one tool are one prompt; no tools are none."""
    letters = Letters()
    tool = {"function": {"parameters": {"b": 1}, "strict": True, "name": "look", "extra": 1}, "comment": "mine"}
    read_requests(write(*({"messages": [ASK], "tools": tools} for tools in ([tool], [], None))), encoder=letters)
    known = {"name": "look", "description": None, "parameters": {"b": 1}, "strict": True}
    assert json.dumps([chat.inputs["tools"] for chat in letters.chats]) == json.dumps(
        [[{"type": "function", "function": known}], None, None]
    )


def test_the_line_that_bills_a_coding_assistant_is_not_in_the_prompt(write: Write) -> None:
    """It differs in every request, and vLLM removes it from system messages."""
    letters = Letters()
    header = "x-anthropic-billing-header: cch=7"
    contents: list[Any] = [f"{header}\nBe short.", [{"type": "text", "text": header}, "Be kind."], header]
    lines = ({"messages": [{"role": "system", "content": content}]} for content in contents)
    read_requests(write(*lines), encoder=letters)
    assert [chat.messages[0]["content"] for chat in letters.chats] == ["Be short.", "Be kind.", ""]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"prompt": 7}, "prompt is 7: it must be a text, or else there are messages"),
        ({"prompt": None}, "prompt is null: it must be a text, or else there are messages"),
        ({"prompt": "", "add_special_tokens": False}, "the prompt has no tokens"),
        ({"prompt": "a", "timestamp": "1"}, 'timestamp is "1": it must be a number of milliseconds'),
        ({"messages": []}, "messages is []: it must be a list of at least one message"),
        ({"messages": "hi"}, 'messages is "hi": it must be a list of at least one message'),
        ({"messages": [{"content": "hi"}]}, 'messages[0] is {"content": "hi"}: it must be an object with a role'),
        ({"messages": [ASK], "tools": {}}, "tools is {}: it must be a list"),
        ({"messages": [ASK], "tools": [7]}, "tools[0] is 7: it must be an object"),
        ({"messages": [ASK], "tools": [{"name": "a"}]}, 'tools[0] is {"name": "a"}: it must be a function with a name'),
        ({"messages": [ASK], "documents": ["a"]}, 'documents[0] is "a": it must be an object'),
        (
            {"messages": [ASK], "reasoning_effort": "most"},
            'reasoning_effort is "most": it must be one of none, minimal, low, medium, high, xhigh, max',
        ),
        ({"messages": [ASK], "chat_template_kwargs": [1]}, "chat_template_kwargs is [1]: it must be an object"),
        (
            {"messages": [ASK], "chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs.tools is not read: it is not a variable of the template",
        ),
        (
            {"messages": [ASK], "add_generation_prompt": None},
            "add_generation_prompt is null: it must be true or false",
        ),
        (
            {"messages": [ASK], "continue_final_message": True},
            "continue_final_message is true: then add_generation_prompt must be false",
        ),
        (
            {"messages": [ASK], "chat_template": "A"},
            'chat_template is "A": it is not read, a template is read from the files beside the tokenizer',
        ),
        (
            {"messages": [ASK], "system": "A"},
            'system is "A": it is not read, a system prompt is the first of the messages',
        ),
        (
            {"prompt": "a", "truncate_prompt_tokens": 8},
            "truncate_prompt_tokens is 8: it is not read, prompts are read whole",
        ),
        ({"prompt": "a", "suffix": "b"}, 'suffix is "b": it is not read, only the messages before the answer are read'),
        ({"prompt_embeds": "AA"}, 'prompt_embeds is "AA": it is not read, embeddings have no tokens'),
        (
            {"messages": [{"role": "assistant", "tool_calls": "none"}]},
            'messages[0].tool_calls is "none": it must be a list',
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [7]}]},
            "messages[0].tool_calls[0] is 7: it must be a call of a function",
        ),
        (
            {"messages": [{"role": "assistant", "reasoning": 7}]},
            "messages[0].reasoning is 7: it must be a text",
        ),
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
        f"mini-kv replay: {path}:1: its prompts are texts, and a replay needs tokens: give --tokenizer tokenizer.json\n"
    )
