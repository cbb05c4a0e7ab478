"""Formats of traffic: recognised by the first line, read into the same requests, refused in a sentence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.tools import traces
from mini_kv.tools.traces.generators import format_tokens, generate
from mini_kv.tools.traces.prompt_hashes import as_hashes, make_prompts
from mini_kv.tools.traces.readers.formats import read_requests
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
        ({"timestamp": 61.1}, "2: timestamp is 61100, before the 61114 of the line above"),
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
    assert refusal(write(mooncake_line), "tokens") == "1: token_ids is null: it must be a list of at least one token"
    assert refusal(write(mooncake_line + b"\n" + json.dumps(BAILIAN).encode())) == (
        f"2: hash_ids has 3 ids, but a prompt of 40 tokens has 1 blocks of 512: {WAY_OUT}"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "1: the file is empty"),
        ("\n \n", "2: the file has no line that is a request"),
        ("{", "1: the line is not JSON (column 2): Expecting property name enclosed in double quotes"),
        (
            '{"id": 7}',
            "1: not a line of a known format, which has one of the fields token_ids, prompt, messages, body, chat_id,"
            ' hash_ids, event, levelname, requests: {"id": 7}',
        ),
    ],
)
def test_what_is_in_no_format_is_refused(write: Write, content: str, problem: str) -> None:
    """With the number of the line that was looked at."""
    assert refusal(write(content)) == problem


READ = (
    "which is not read; supported are files of one JSON object per line (with hash_ids as Mooncake's"
    " and Qwen-Bailian's, requests as an agent's session, token_ids, prompt, or messages), and logs of vLLM and SGLang"
)


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n", "a table (CSV)"),
        ("2023-11-16 18:15:46.68,374,44\n", "a table (CSV)"),
        ('"arrival time";"prompt"\n7;"a: b"\n', "a table (CSV)"),
        ("arrival\tprompt\n", "a table (CSV)"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"\x28\xb5\x2f\xfd\x04", "a file packed by zstd"),
        (b"PK\x03\x04", "a zip file"),
        ('{"prompt": "a"}'.encode("utf-16"), "text in UTF-16"),
    ],
)
def test_what_is_in_another_format_is_told_which_it_looks_like(
    write: Write, content: str | bytes, looks_like: str
) -> None:
    """And which formats are read."""
    assert refusal(write(content)) == f"1: the file looks like {looks_like}, {READ}"


@pytest.mark.parametrize(
    "content", ['[{"prompt": "a"}, {"prompt": "b"}]', '[\n  {"prompt": "a"}\n]', " [ ]", "[[1, 2]]"]
)
def test_a_json_array_is_told_how_to_become_lines(write: Write, content: str) -> None:
    """Whether it is on one line or on many."""
    way_out = "jq -c '.[]' FILE writes one request per line"
    assert refusal(write(content)) == f"1: the file looks like a JSON array, {READ}; {way_out}"


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
