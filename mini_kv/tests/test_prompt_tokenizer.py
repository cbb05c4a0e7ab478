"""A tokenizer.json and the chat template beside it: the same tokens as transformers makes, or a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mini_kv import engine
from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.installer import install_extra
from mini_kv.tools.traces.readers.chats import Chat, read_chat
from mini_kv.tools.traces.readers.prompt_tokenizer import PromptTokenizer, library

pytest.importorskip(
    "tokenizers", reason="texts need tokenizers: make test, or in a checkout, pip install -e '.[tokenizer]'"
)
pytest.importorskip("jinja2", reason="chats need jinja2: make test, or in a checkout, pip install -e '.[tokenizer]'")

TINY = Path(engine.__file__).with_name("tiny") / "tokenizer.json"
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You <are> short."},
    {"role": "user", "content": "the cache"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"a": "ü"}}}]},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": 2}}}]
TEMPLATE = """
{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "stop" %}{% break %}{% endif %}
    {{- "<|" + message.role + "|>" + message.content }}
    {%- for call in message.tool_calls %}
        {{- call.function.arguments | tojson }}
    {%- endfor %}
    {{- eos_token + "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>" }}
{%- endif %}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer, a template and special tokens."""
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    configure(
        tmp_path, chat_template=TEMPLATE, bos_token="<|end|>", eos_token={"__type": "AddedToken", "content": "<|end|>"}
    )
    return tmp_path


def configure(folder: Path, **config: object) -> None:
    """Write a tokenizer_config.json."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config))


def test_a_chat_has_the_tokens_that_transformers_makes_of_it(folder: Path) -> None:
    """With and without tools, of one message or three."""
    transformers = pytest.importorskip("transformers", reason="the peer of chat templates is transformers: make test")
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    mine = PromptTokenizer(folder)
    for messages, tools in ((CHAT, TOOLS), (CHAT, None), (CHAT[1:2], None)):
        theirs = peer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
        assert mine.encode_chat(Chat(messages, {"tools": tools, "add_generation_prompt": True})) == theirs
    assert mine.encode("the cache, ü") == peer.encode("the cache, ü")


def test_where_a_template_may_lie(folder: Path) -> None:
    """In a file of its own, which goes first; alone in the settings; or there among others, as the default."""
    letters = PromptTokenizer(folder / "tokenizer.json").encode
    named = [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]
    configure(folder, chat_template=named)
    assert PromptTokenizer(folder).encode_chat(Chat(CHAT, {})) == letters("B")
    assert PromptTokenizer(folder).encode_chat(Chat(CHAT, {"tools": TOOLS})) == letters("A")
    (folder / "chat_template.jinja").write_text("C")
    assert PromptTokenizer(folder).encode_chat(Chat(CHAT, {})) == letters("C")


EVERY_INPUT = """
{%- for document in documents or [] %}{{ "doc " + document.text + "; " }}{% endfor %}
{{- "effort " ~ reasoning_effort ~ ", thinking " ~ enable_thinking ~ ", style " ~ style ~ "; " }}
{%- for message in messages %}{{ message.role + ": " + message.content + "<|end|>" }}{% endfor %}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif %}
"""
ASK = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "It is "}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "effort , thinking , style ; user: hi<|end|>assistant: "),
        ({"reasoning_effort": "low"}, "effort low, thinking True, style ; user: hi<|end|>assistant: "),
        ({"reasoning_effort": "none"}, "effort none, thinking False, style ; user: hi<|end|>assistant: "),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True}},
            "effort none, thinking True, style ; user: hi<|end|>assistant: ",
        ),
        (
            {"chat_template_kwargs": {"style": "short", "add_generation_prompt": False}},
            "effort , thinking , style short; user: hi<|end|>assistant: ",
        ),
        ({"add_generation_prompt": False}, "effort , thinking , style ; user: hi<|end|>"),
        ({"documents": [{"text": "one"}]}, "doc one; effort , thinking , style ; user: hi<|end|>assistant: "),
        (
            {"chat_template_kwargs": {"documents": [{"text": "two"}]}},
            "doc two; effort , thinking , style ; user: hi<|end|>assistant: ",
        ),
        (
            {"messages": [ASK, BEGUN], "continue_final_message": True, "add_generation_prompt": False},
            "effort , thinking , style ; user: hi<|end|>assistant: It is ",
        ),
    ],
)
def test_every_field_that_decides_a_prompt_reaches_the_template(
    folder: Path, fields: dict[str, Any], prompt: str
) -> None:
    """As vLLM passes them on. The request's own fields go before those of `chat_template_kwargs`."""
    configure(folder, chat_template=EVERY_INPUT)
    tokenizer = PromptTokenizer(folder)
    chat = read_chat({"messages": [ASK]} | fields)
    assert tokenizer.encode_chat(chat) == tokenizer.encode(prompt, add_special_tokens=False)


def test_a_message_that_goes_on_ends_as_transformers_ends_it(folder: Path) -> None:
    """The space at its end is kept, unless the template strips messages."""
    transformers = pytest.importorskip("transformers", reason="the peer of chat templates is transformers: make test")
    for template in (EVERY_INPUT, EVERY_INPUT.replace("message.content", "message.content.strip()")):
        configure(folder, chat_template=template)
        mine = PromptTokenizer(folder)
        peer = transformers.AutoTokenizer.from_pretrained(folder)
        for content in ("It is ", "It is", " ", ""):
            messages = [ASK, BEGUN | {"content": content}]
            theirs = peer.apply_chat_template(messages, continue_final_message=True, return_dict=False)
            assert mine.encode_chat(Chat(messages, {}, continue_final_message=True)) == theirs


def test_a_message_that_goes_on_must_be_in_the_prompt(folder: Path) -> None:
    """A template may leave the last message out."""
    configure(folder, chat_template="{{ messages[0].content }}")
    with pytest.raises(ValueError, match="continue_final_message is true, and the last message is not in the prompt"):
        PromptTokenizer(folder).encode_chat(Chat([ASK, BEGUN], {}, continue_final_message=True))


def test_a_template_without_the_role_developer_gets_one_system_message(folder: Path) -> None:
    """As in vLLM: the developer's words become the system's, merged at the front."""
    developer = {"role": "developer", "content": "Be short."}
    chat = Chat([{"role": "system", "content": "Be kind."}, ASK, developer], {})
    configure(folder, chat_template="{% for m in messages %}{{ m.role + ': ' + m.content + '; ' }}{% endfor %}")
    tokenizer = PromptTokenizer(folder)
    assert tokenizer.encode_chat(chat) == tokenizer.encode("system: Be kind.\n\nBe short.; user: hi; ")
    assert tokenizer.encode_chat(Chat([developer, ASK], {})) == tokenizer.encode("system: Be short.; user: hi; ")
    knows = "{% for m in messages %}{{ ('D' if m.role == 'developer' else m.role) + '; ' }}{% endfor %}"
    configure(folder, chat_template=knows)
    assert PromptTokenizer(folder).encode_chat(chat) == tokenizer.encode("system; user; D; ")


def test_two_chats_that_differ_at_the_head_of_the_prompt_share_no_more(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The effort stands in the first words of the prompt; blocks are of one token."""
    configure(folder, chat_template="{{ 'a ' + reasoning_effort + ' cache of blocks' }}")
    trace = folder / "chats.jsonl"
    lines = [{"messages": [ASK], "chat_template_kwargs": {"reasoning_effort": word}} for word in ("low", "high")]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["replay", str(trace), "--tokenizer", str(folder), "--block-size", "1", "--json"]) == 0
    low, high = (PromptTokenizer(folder).encode(f"a {word} cache of blocks") for word in ("low", "high"))
    shared = next(n for n, (one, other) in enumerate(zip(low, high, strict=False)) if one != other)
    assert json.loads(capsys.readouterr().out)["hit_tokens"] == shared == 1


def test_a_template_that_asks_for_the_date_is_told_the_same_day_always(folder: Path) -> None:
    """Or else a trace would have other tokens tomorrow."""
    configure(folder, chat_template="{{ strftime_now('%d %b %Y') }}")
    tokenizer = PromptTokenizer(folder)
    assert tokenizer.encode_chat(Chat(CHAT, {})) == tokenizer.encode("01 Jan 2026")


def test_half_a_character_is_a_question_mark(folder: Path) -> None:
    """JSON can spell it; a tokenizer takes none."""
    tokenizer = PromptTokenizer(folder)
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a?b")


def said(folder: Path) -> str:
    """Return the refusal of a tokenizer or of its template, the folder's name left out."""
    with pytest.raises(ValueError) as caught:
        PromptTokenizer(folder / "tokenizer.json").encode_chat(Chat(CHAT, {}))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            "{}",
            "there is no chat template beside tokenizer.json, neither chat_template.jinja nor one in"
            " tokenizer_config.json, and messages need one",
        ),
        (
            '{"chat_template": [{"name": "rag", "template": "A"}, 7]}',
            "there is no chat template beside tokenizer.json,",
        ),
        ('{"chat_template": "{% if %}"}', "the chat template beside tokenizer.json is broken: Expected an expression,"),
        ("{", "tokenizer_config.json is not JSON that can be read: Expecting property name"),
        ("[]", "tokenizer_config.json is not a JSON object"),
        (
            json.dumps({"chat_template": "{{ raise_exception('roles\n must alternate') }}"}),
            "the chat template refuses the messages: roles must alternate",
        ),
        (
            json.dumps({"chat_template": "{{ messages[0].role.__class__.__mro__ }}"}),
            "the chat template refuses the messages: access to attribute '__class__' of 'str' object is unsafe.",
        ),
        (
            json.dumps({"chat_template": "{{ raise_exception('a' * 300) }}"}),
            f"the chat template refuses the messages: {'a' * 197}...",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(folder: Path, config: str, problem: str) -> None:
    """With what is wrong, in one line."""
    (folder / "tokenizer_config.json").write_text(config)
    assert said(folder).startswith(problem)


def test_files_that_are_missing_or_broken(folder: Path) -> None:
    """Each is named."""
    (folder / "tokenizer_config.json").write_bytes(b'{"a": "\xff"}')
    assert said(folder) == "tokenizer_config.json is not UTF-8"
    (folder / "tokenizer_config.json").write_bytes(b" " * ((1 << 24) + 1))
    assert said(folder) == "tokenizer_config.json is larger than 16,777,216 bytes"
    (folder / "tokenizer.json").write_text('{"model": 7}')
    assert said(folder).startswith("--tokenizer tokenizer.json: it is not a tokenizer: ")
    (folder / "tokenizer.json").unlink()
    assert said(folder) == "--tokenizer tokenizer.json: there is no such file"


def test_a_missing_library_names_the_extra() -> None:
    """And how to get it."""
    with pytest.raises(ConfigError) as caught:
        library("no_such_library.sandbox")
    assert str(caught.value) == (
        f"texts need no_such_library, which comes with the extra tokenizer: {install_extra('tokenizer')}"
    )


@pytest.mark.parametrize("command", ["replay", "curve", "explain"])
def test_every_command_takes_chats(folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And says what is wrong with the tokenizer."""
    trace = folder / "chats.jsonl"
    lines = [{"messages": [CHAT[0], {"role": "user", "content": f"the cache {n}"}]} for n in range(3)]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = ["--num-blocks", "50", "--block-size", "4"]
    assert main([command, str(trace), "--tokenizer", str(folder), *options]) == 0
    assert "blocks of 4" in capsys.readouterr().out
    assert main([command, str(trace), "--tokenizer", "none.json"]) == 2
    assert capsys.readouterr().err == f"mini-kv {command}: --tokenizer none.json: there is no such file\n"
