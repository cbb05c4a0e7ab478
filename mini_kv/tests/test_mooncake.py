"""The trace format: what is read, what is refused and with which words, how its ids become block hashes."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mini_kv.tools import traces
from mini_kv.tools.traces.readers.mooncake import (
    MAX_LINE_BYTES,
    TraceError,
    TraceRequest,
    format_request,
    name_blocks,
    read_trace,
)

WAY_OUT = "--block-size says how many tokens an id stands for"
GOOD = '{"timestamp": 5, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 2353]}'


@pytest.fixture(scope="module")
def small_trace():
    return read_trace(Path(traces.__file__).with_name("small.jsonl"))


@pytest.fixture
def write(tmp_path):
    """Write bytes or text to a file and return its path."""

    def write(content):
        path = tmp_path / "trace.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def changed(**fields):
    """The good line with other fields; a field that is None is left out."""
    values = json.loads(GOOD) | fields
    return json.dumps({name: value for name, value in values.items() if value is not None})


def test_a_line_becomes_a_request(write):
    (request,) = read_trace(write(GOOD + "\n"))
    assert request == TraceRequest(5, 1300, 52, (46, 47, 2353))
    assert (request.num_blocks, request.num_full_blocks) == (3, 2)


@pytest.mark.parametrize(
    "content",
    [
        GOOD,  # no newline at the end
        GOOD + "\r\n",  # written on Windows
        changed(session_id="x"),  # a field that the format does not have
        changed(input_length=1537, hash_ids=[1, 2, 3, 4]),  # one token in the last block
        changed(input_length=1536, hash_ids=[1, 2, 3]),  # the last block is full
        changed(output_length=0),
        changed(hash_ids=[2**200, 47, 2353]),
    ],
)
def test_what_is_accepted(write, content):
    assert len(read_trace(write(content))) == 1


def test_requests_may_arrive_together(write):
    assert [request.timestamp for request in read_trace(write(f"{GOOD}\n{GOOD}\n"))] == [5, 5]


def test_a_formatted_request_is_read_back(write):
    request = TraceRequest(5, 1300, 52, (46, 47, 2353))
    assert format_request(request) == GOOD
    assert read_trace(write(format_request(request))) == [request]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "the line is not JSON (column 2): Expecting property name enclosed in double quotes"),
        (GOOD[:40], "the line is not JSON (column 40): "),
        ("[" * 200_000, "not JSON that can be read: "),
        (f'{{"timestamp": {"9" * 5000}}}', "not JSON that can be read: "),
        (GOOD.encode("utf-16-le"), "the line is not JSON (column 2): "),
        (b'{"timestamp": "\xff"}', "not UTF-8: byte 16 of the line is 0xff"),
        ("[1, 2]", "not a JSON object, but [1, 2]"),
        ("null", "not a JSON object, but null"),
        (json.dumps("a" * 100), 'not a JSON object, but "' + "a" * 36 + "..."),
        ("{}", "timestamp is missing"),
        (changed(input_length=None), "input_length is missing"),
        (changed(output_length=None), "output_length is missing"),
        (changed(hash_ids=None), "hash_ids is missing"),
        (changed(timestamp="5"), 'timestamp is "5": it must be a number of milliseconds'),
        (changed(timestamp=True), "timestamp is true: it must be a number of milliseconds"),
        (changed(timestamp=-0.5), "timestamp is -0.5: it must be at least 0"),
        (changed(timestamp=1e16), "timestamp is 1e+16: it must be at most 1,000,000,000,000,000"),
        (GOOD.replace("52", "NaN"), "not JSON that can be read: NaN is not a number of JSON"),
        (GOOD.replace("52", "null"), "output_length is null: it must be an integer"),
        (changed(output_length=True), "output_length is true: it must be an integer"),
        (changed(timestamp=-1), "timestamp is -1: it must be at least 0"),
        (changed(output_length=-1), "output_length is -1: it must be at least 0"),
        (changed(input_length=0, hash_ids=[]), "input_length is 0: it must be at least 1"),
        (changed(hash_ids="46"), 'hash_ids is "46": it must be a list'),
        (changed(hash_ids=[46, 47.5, 3]), "hash_ids[1] is 47.5: it must be an integer"),
        (changed(hash_ids=[46, 47, False]), "hash_ids[2] is false: it must be an integer"),
        (changed(hash_ids=[-46, 47, 3]), "hash_ids[0] is -46: it must be at least 0"),
        (changed(hash_ids=[46, 47]), f"hash_ids has 2 ids, but a prompt of 1300 tokens has 3 blocks of 512: {WAY_OUT}"),
        (changed(input_length=1024), f"hash_ids has 3 ids, but a prompt of 1024 tokens has 2 blocks of 512: {WAY_OUT}"),
        (GOOD[:-1] + ', "timestamp": 6}', "not JSON that can be read: an object has the key 'timestamp' twice"),
        (
            changed(timestamp=1e308).replace("1e+308", "1e400"),
            "not JSON that can be read: the number 1e400 is too large",
        ),
        (changed(output_length=10**16), "output_length is 10000000000000000: it must be at most 1,000,000,000,000,000"),
        (
            changed(timestamp=[[5]] * 40),
            "timestamp is [[5], [5], [5], [5], [5], [5], [5], [...: it must be a number of milliseconds",
        ),
        ("x" * (MAX_LINE_BYTES + 1), "the line is longer than 1,048,576 bytes: a trace has one request per line"),
        (changed(timestamp=4), "timestamp is 4, before the 5 of the line above"),
    ],
)
def test_a_wrong_line_is_named_and_explained(write, line, problem):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(GOOD.encode() + b"\n" + line + b"\n" + GOOD.encode())
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    error = caught.value
    assert (error.path, error.line) == (str(path), 2)
    assert error.problem.startswith(problem)
    assert str(error) == f"{path}:2: {error.problem}"
    assert "\n" not in str(error)


def test_a_file_that_is_one_endless_line_is_not_read_to_its_end(tmp_path):
    """Ten gigabytes, none of them on the disk; today's machines have less memory."""
    path = tmp_path / "trace.jsonl"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: the line is longer than 1,048,576 bytes: a trace has one"):
        read_trace(path)


def test_a_nul_in_a_path_is_a_file_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match="no path has a NUL byte in it"):
        read_trace("trace\0.jsonl")


def test_blank_lines_and_a_byte_order_mark_are_no_fault(write):
    """And lines are counted with them."""
    assert len(read_trace(write(b"\xef\xbb\xbf" + f"{GOOD}\n\n  \n{GOOD}\n\n".encode()))) == 2
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: not a JSON object, but null$"):
        read_trace(write(f"{GOOD}\n\nnull\n".encode()))


def test_a_packed_trace_is_unpacked(write):
    """Whatever its name; and one that was cut off says where."""
    packed = gzip.compress(f"{GOOD}\n{GOOD}\n".encode())
    assert len(read_trace(write(packed))) == 2
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: it cannot be unpacked: Compressed file ended"):
        read_trace(write(packed[:-12]))
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: it cannot be unpacked: "):
        read_trace(write(packed[:20] + b"x" * 20 + packed[20:]))


def test_standard_input_is_a_file_called_minus():
    """As of other commands."""
    result = subprocess.run(
        [sys.executable, "-m", "mini_kv", "replay", "-", "--json"],
        input=f"{GOOD}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["requests"] == 1


def test_an_empty_file_is_refused(write):
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: the file is empty$"):
        read_trace(write(""))


def test_a_line_separator_inside_a_string_is_no_new_line(write):
    content = changed(type="a\u2028b") + "\n{"
    with pytest.raises(TraceError, match=":2: "):
        read_trace(write(content.encode("utf-8")))


def ask(num_tokens, *hash_ids):
    return TraceRequest(0, num_tokens, 1, hash_ids)


def test_only_full_blocks_are_hashed():
    assert [len(names) for names in name_blocks([ask(511, 1), ask(512, 1), ask(1300, 1, 2, 3)])] == [0, 1, 2]


def test_equal_prefixes_have_equal_hashes():
    first, second = name_blocks([ask(1536, 1, 2, 3), ask(1536, 1, 2, 4)])
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_one_id_after_two_prefixes_has_two_hashes():
    first, second = name_blocks([ask(1536, 7, 8, 9), ask(1536, 2, 8, 9)])
    assert set(first).isdisjoint(second)


def test_one_id_twice_in_a_prompt_has_two_hashes():
    (names,) = name_blocks([ask(1024, 7, 7)])
    assert names[0] != names[1]


def test_where_ids_stand_for_prefixes_the_hashes_are_the_ids_renumbered(small_trace):
    pairs = {
        (hash_id, name)
        for request, names in zip(small_trace, name_blocks(small_trace), strict=True)
        for hash_id, name in zip(request.hash_ids[: request.num_full_blocks], names, strict=True)
    }
    assert len(pairs) == len({hash_id for hash_id, _ in pairs}) == len({name for _, name in pairs}) == 585
