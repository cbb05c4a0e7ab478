"""Formats of traffic: recognised by the first line, read into the same requests, refused in a sentence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.tests.test_texts import Letters
from mini_kv.tools import traces
from mini_kv.tools.traces.generators import format_tokens, generate
from mini_kv.tools.traces.prompt_hashes import as_hashes, make_prompts
from mini_kv.tools.traces.readers.formats import read_requests
from mini_kv.tools.traces.readers.json_values import JsonError, values_in
from mini_kv.tools.traces.readers.mooncake import TraceError, TraceRequest, name_blocks, read_trace
from mini_kv.tools.traces.readers.token_trace import TokenRequest

SMALL = Path(traces.__file__).with_name("small.jsonl")
BAILIAN = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 40,
    "output_length": 132,
    "type": "text",
    "turn": 2,
    "hash_ids": [1089, 1090, 6326],
}

WAY_OUT = "--block-size says how many tokens an id stands for"

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text or bytes to a file and return its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path: Path, format_name: str | None = None) -> str:
    """Return what is said about a file, from the line's number on."""
    with pytest.raises(TraceError) as caught:
        read_requests(path, format_name)
    return str(caught.value).removeprefix(f"{path}:")


def test_a_line_of_qwen_bailian_has_blocks_of_16_and_seconds(write: Write) -> None:
    """The last of three blocks holds 8 of the 40 tokens."""
    assert read_requests(write(json.dumps(BAILIAN))) == [TraceRequest(61_114, 40, 132, (1089, 1090, 6326), 16)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"timestamp": "61"}, '2: timestamp is "61": it must be a number of seconds'),
        ({"timestamp": True}, "2: timestamp is true: it must be a number of seconds"),
        ({"timestamp": None}, "2: timestamp is null: it must be a number of seconds"),
        ({"timestamp": -1.5}, "2: timestamp is -1500: it must be at least 0"),
        ({"timestamp": 1e308}, "2: timestamp is 1000000000000000000: it must be at most 1,000,000,000,000,000"),
        (
            {"timestamp": 61.1},
            "2: timestamp is 61100, before the 61114 of the line above: jq -cs 'sort_by(.timestamp)[]' FILE sorts them",
        ),
        ({"input_length": 48.0}, "2: input_length is 48.0: it must be an integer"),
        ({"input_length": 49}, f"2: hash_ids has 3 ids, but a prompt of 49 tokens has 4 blocks of 16: {WAY_OUT}"),
        ({"hash_ids": 7}, "2: hash_ids is 7: it must be a list"),
    ],
)
def test_a_wrong_line_of_qwen_bailian_is_named(write: Write, changes: dict[str, object], problem: str) -> None:
    """By its number, with what is wrong."""
    path = write(f"{json.dumps(BAILIAN)}\n{json.dumps(BAILIAN | changes)}\n")
    assert refusal(path) == problem


def test_the_first_line_says_which_format(write: Write) -> None:
    """Whatever its name, packed or not, behind a byte order mark and blank lines; or --format does."""
    mooncake_line = SMALL.read_bytes().splitlines()[0]
    (tokens,) = generate("chat", 1, 0)
    for line, kind in ((mooncake_line, 512), (json.dumps(BAILIAN).encode(), 16), (format_tokens(tokens).encode(), 0)):
        for content in (line, b"\xef\xbb\xbf\n\n" + line + b"\r\n\n", gzip.compress(line)):
            (request,) = read_requests(write(content))
            assert (request.block_size if isinstance(request, TraceRequest) else 0) == kind
    assert refusal(write(mooncake_line), "tokens").startswith("1: input_length, hash_ids: not read; ")
    assert refusal(write(mooncake_line + b"\n" + json.dumps(BAILIAN).encode())) == (
        f"2: hash_ids has 3 ids, but a prompt of 40 tokens has 1 blocks of 512: {WAY_OUT}"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "1: the file is empty"),
        ("\n \n", "2: the file has no line that is a request"),
        ("{", "1: not JSON: Expecting property name enclosed in double quotes"),
        (
            '{"id": 7}',
            "1: not a line of a known format, which has one of the fields token_ids, prompt, messages, body,"
            ' conversations, conversation, chat_id, hash_ids, event, levelname, block_size: {"id": 7}',
        ),
    ],
)
def test_what_is_in_no_format_is_refused(write: Write, content: str, problem: str) -> None:
    """With the number of the line that was looked at."""
    assert refusal(write(content)) == problem


ONE, TWO = '{"token_ids": [1, 2]}', '{"token_ids": [3]}'


@pytest.mark.parametrize(
    "content",
    [
        f"[{ONE}, {TWO}]",
        f"\ufeff[\n  {ONE},\n  {TWO}\n]\n",
        json.dumps([json.loads(ONE), json.loads(TWO)], indent=2),
        json.dumps(json.loads(ONE), indent=2) + "\n" + json.dumps(json.loads(TWO), indent=4),
    ],
)
def test_an_array_is_read_and_so_are_objects_over_many_lines(write: Write, content: str) -> None:
    """Public chat sets are arrays, and programs indent JSON."""
    assert read_requests(write(content)) == [TokenRequest(0, (1, 2), 1), TokenRequest(0, (3,), 1)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (" [ ]", "1: the file has no line that is a request"),
        ("[[1, 2]]", "1: item 1: not a JSON object, but [1, 2]"),
        (f"[\n{ONE},\n\n7]", "4: item 2: not a JSON object, but 7"),
        (f"[\n{ONE},\n{{}}]", "3: item 2: token_ids is null: it must be a list of at least one token"),
        (f"[{ONE},\n{ONE}", "2: the array has no end"),
        (f"[{ONE}]\n{ONE}", "2: the array ended, and the file goes on"),
        ('[\n{"token_ids": [1,\n 2}]', "3: not JSON: Expecting ',' delimiter"),
        ('{\n"token_ids": [1]\n}\n{"token_ids"\n', "5: not JSON: Expecting ':' delimiter"),
    ],
)
def test_a_fault_in_an_array_is_named(write: Write, content: str, problem: str) -> None:
    """By its line, and by its item if it is not the text that is wrong."""
    assert refusal(write(content)) == problem


def test_an_array_is_read_in_pieces() -> None:
    """Of any length, so that no memory for the whole is needed. A value that has no end is not waited for."""
    text = '[{"a": [1, "\u00e9]"]},\n {"b": {}}]\n'.encode()
    for length in range(1, len(text) + 1):
        pieces = [text[start : start + length] for start in range(0, len(text), length)]
        assert list(values_in(pieces, 100)) == [(1, '{"a": [1, "\u00e9]"]}'.encode()), (2, b'{"b": {}}')]
    with pytest.raises(JsonError, match="no value ends within 100 characters"):
        list(values_in(iter([b"[{", *[b'"a": 1,'] * 1000]), 100))


def test_each_answer_of_a_conversation_was_a_request(write: Write) -> None:
    """Its prompt is all before it. One set names the speakers, the other their roles; what has no answer has none."""
    letters = Letters()
    sharegpt = [
        {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "It goes on."}, {"from": "human", "value": "Oh"}]},
    ]
    said = ["Hi", "Yes", "And?", "No!"]
    lmsys = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(said)]
    assert [request.output_length for request in read_requests(write(json.dumps(sharegpt)), encoder=letters)] == [3]
    chats = {"conversation_id": "c", "model": "vicuna-13b", "conversation": lmsys, "turn": 2, "language": "English"}
    assert [r.output_length for r in read_requests(write(json.dumps(chats)), encoder=letters)] == [3, 3]
    assert [chat.messages for chat in letters.chats] == [
        [{"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": "And?"},
        ],
    ]


def test_conversations_with_two_models_are_not_one_cache(write: Write) -> None:
    """They may be sent to one, if their reader says so: the refusal has both commands."""
    chats: list[dict[str, object]] = [{"model": model, "conversation": []} for model in ("a", "b")]
    path = write("\n".join(map(json.dumps, chats)))
    with pytest.raises(TraceError, match=r"jq -c 'del\(\.model\)' FILE sends all to one"):
        read_requests(path, encoder=Letters())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"conversations": 7}, "1: conversations is 7: it must be a list"),
        ({"id": "a"}, "1: conversations is null: it must be a list"),
        (
            {"conversations": [{"from": "bob", "value": "a"}]},
            '1: conversations[0] is by "bob": it must be one of human, user, gpt, chatgpt, bing, bard, assistant,'
            " system",
        ),
        (
            {"conversations": [{"from": ["gpt"], "value": "a"}]},
            '1: conversations[0] is by ["gpt"]: it must be one of human, user, gpt, chatgpt, bing, bard, assistant,'
            " system",
        ),
        ({"conversation": [{"role": "user", "content": [1]}]}, "1: conversation[0] is [1]: it must be a text"),
        (
            {"conversation": [], "timestamp": "2023-04-09"},
            "1: timestamp: not read; if the prompt and its time do not depend on that, jq -c 'del(.timestamp)' FILE"
            " leaves it out",
        ),
    ],
)
def test_a_wrong_conversation_is_named(write: Write, line: object, problem: str) -> None:
    """By the field, the speaker or the text."""
    path = write(json.dumps(line))
    with pytest.raises(TraceError) as caught:
        read_requests(path, "conversations", Letters())
    assert str(caught.value).removeprefix(f"{path}:") == problem


def test_a_log_may_begin_with_any_line(write: Write) -> None:
    """Its first line is no format's mark: only a file in which no request is found is a table."""
    lines = ["starting, please wait", "[2026-11-24 03:45:12] Receive: obj=GenerateReqInput(rid='7', input_ids=[3, 17])"]
    assert read_requests(write("\n".join(lines))) == [TokenRequest(0, (3, 17), 1)]


def test_a_trace_of_hashes_may_have_blocks_of_another_size(write: Write) -> None:
    """As declared: 40 tokens are 3 blocks of 16, and 2 of 20. Without a word they are the format's."""
    line = {"timestamp": 7, "input_length": 40, "output_length": 1}
    path = write(json.dumps(line | {"hash_ids": [1, 2, 3]}))
    assert read_requests(path, block_size=16) == [TraceRequest(7, 40, 1, (1, 2, 3), 16)]
    assert refusal(path) == f"1: hash_ids has 3 ids, but a prompt of 40 tokens has 1 blocks of 512: {WAY_OUT}"
    path = write(json.dumps(BAILIAN | {"hash_ids": [1, 2]}))
    assert read_requests(path, block_size=20) == [TraceRequest(61_114, 40, 132, (1, 2), 20)]


def test_times_may_have_fractions_of_a_millisecond(write: Write) -> None:
    """They are rounded to whole milliseconds, in each format."""
    hashes = {"timestamp": 7.6, "input_length": 40, "output_length": 1, "hash_ids": [1]}
    assert read_requests(write(json.dumps(hashes))) == [TraceRequest(8, 40, 1, (1,))]
    assert read_requests(write('{"timestamp": 7.4, "token_ids": [1]}')) == [TokenRequest(7, (1,), 1)]


def test_tokens_become_hashes_that_find_the_same() -> None:
    """Block for block: equal where the prompts' own hashes are equal, and nowhere else."""
    trace = generate("agents", 40, 3)
    hashes = as_hashes(trace, 16)
    names = name_blocks(hashes)
    own = [prompt.block_hashes for prompt in make_prompts(trace, 16)]
    pairs = {pair for mine, theirs in zip(names, own, strict=True) for pair in zip(mine, theirs, strict=True)}
    assert len(pairs) == len({mine for mine, _ in pairs}) == len({theirs for _, theirs in pairs})
    assert [(r.timestamp, r.input_length, r.output_length) for r in hashes] == [
        (r.timestamp, r.input_length, r.output_length) for r in trace
    ]
    assert as_hashes(read_trace(SMALL)) == read_trace(SMALL)


def test_two_prompts_with_one_block_in_common() -> None:
    """Five tokens each, blocks of two: the partial third block is never shared."""
    trace = [TokenRequest(0, (1, 2, 3, 4, 5), 1), TokenRequest(7, (1, 2, 9, 9, 5), 2)]
    assert as_hashes(trace, 2) == [TraceRequest(0, 5, 1, (0, 1, 2), 2), TraceRequest(7, 5, 2, (0, 3, 4), 2)]


@pytest.mark.parametrize("command", ["replay", "curve", "explain"])
def test_every_command_takes_every_kind(command: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Of hashes in blocks of 16 or as declared, and of tokens in blocks as asked."""
    lines = [json.dumps(BAILIAN | {"timestamp": second, "hash_ids": [1089, 1090, second]}) for second in (0, 1, 2)]
    path = str(write("\n".join(lines)))
    assert main([command, path, "--num-blocks", "8"]) == 0
    assert "16" in capsys.readouterr().out
    assert main([command, path, "--num-blocks", "8", "--block-size", "32"]) == 2
    assert f"hash_ids has 3 ids, but a prompt of 40 tokens has 2 blocks of 32: {WAY_OUT}" in capsys.readouterr().err
    assert main([command, path, "--num-blocks", "8", "--block-size", "15", "--json"]) == 0
    assert '"block_size": 15' in capsys.readouterr().out
    path = str(write("\n".join(json.dumps({"token_ids": [1, 2, 3, 4, 5, n]}) for n in range(3))))
    assert main([command, path, "--num-blocks", "8", "--block-size", "2", "--json"]) == 0
    assert '"hit_tokens": 8' in capsys.readouterr().out or command == "explain"
    assert main([command, path, "--num-blocks", "8", "--block-size", "0"]) == 2
    assert "block_size is 0, it must be at least 1" in capsys.readouterr().err
