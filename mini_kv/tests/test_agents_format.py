"""Sessions of coding agents: read with their subagents, interleaved by time, refused with the place of the fault."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli import main
from mini_kv.tools.traces.prompt_hashes import as_hashes
from mini_kv.tools.traces.readers.formats import read_requests
from mini_kv.tools.traces.readers.mooncake import TraceError, TraceRequest, name_blocks
from mini_kv.tools.traces.replay import replay

SUBAGENT: dict[str, Any] = {
    "t": 9.5,
    "type": "subagent",
    "agent_id": "agent_001",
    "requests": [{"t": 2.0, "in": 70, "out": 12, "hash_ids": [3]}],
}
SESSION: dict[str, Any] = {
    "id": "one",
    "models": ["m"],
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 40,
    "requests": [
        {"t": 0.0, "type": "n", "in": 128, "out": 86, "hash_ids": [1, 2], "stop": "tool_use"},
        SUBAGENT,
        {"t": 31.25, "type": "s", "in": 290, "out": 40, "hash_ids": [1, 2, 4, 5], "stop": "end_turn"},
    ],
}
FIRST, LAST = SESSION["requests"][0], SESSION["requests"][2]


def read(path: Path) -> list[TraceRequest]:
    """Return the file's requests."""
    return as_hashes(read_requests(path))


def write(folder: Path, *sessions: dict[str, Any]) -> Path:
    """Write the sessions, one per line, and return the file's path."""
    path = folder / "agents.jsonl"
    path.write_text("\n".join(map(json.dumps, sessions)), encoding="utf-8")
    return path


def test_the_file_of_one_session_is_a_trace(tmp_path: Path) -> None:
    """Times in ms, subagents in between, a number of its own for each partial last block, and the expected pauses."""
    assert read_requests(write(tmp_path, SESSION)) == [
        TraceRequest(0, 128, 86, (0, 1), 64, "one", 17_000),
        TraceRequest(11_500, 70, 12, (2, 3), 64, "one", 18_000),
        TraceRequest(31_250, 290, 40, (0, 1, 4, 5, 6), 64, "one", 221_000),
    ]


def test_sessions_are_interleaved_by_their_times(tmp_path: Path) -> None:
    """Plain or in gzip. At equal times the session of the earlier line is first."""
    two = SESSION | {"id": "two", "requests": [FIRST, LAST | {"t": 20.0}]}
    path = write(tmp_path, SESSION, two)
    order = [("one", 0), ("two", 0), ("one", 11_500), ("two", 20_000), ("one", 31_250)]
    assert [(request.session_id, request.timestamp) for request in read(path)] == order
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert [(request.session_id, request.timestamp) for request in read(path)] == order


@pytest.mark.parametrize(("scopes", "hits"), [(("local", "local"), 0), (("global", "global"), 1), (("local", None), 0)])
def test_only_ids_of_global_scope_are_shared_between_sessions(
    scopes: tuple[str, str | None], hits: int, tmp_path: Path
) -> None:
    """The same prompt in two sessions. Without a scope ids are local. The last block is computed again."""
    sessions = [{"id": str(index), "block_size": 64, "requests": [FIRST]} for index in range(2)]
    for session, scope in zip(sessions, scopes, strict=True):
        session |= {} if scope is None else {"hash_id_scope": scope}
    assert replay(read(write(tmp_path, *sessions))).hit_blocks == hits


def test_ids_that_are_used_again_in_a_session_are_one_block(tmp_path: Path) -> None:
    """The last prompt begins with both blocks of the first. The subagent's prompt does not."""
    first, subagent, last = name_blocks(read(write(tmp_path, SESSION)))
    assert last[:2] == first
    assert set(subagent).isdisjoint(first + last)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block_size": 0}, "block_size is 0: it must be at least 1"),
        ({"block_size": 32}, "block_size is 32, but 64 in --block-size or the first session"),
        ({"hash_id_scope": "none"}, 'hash_id_scope is "none": it must be local or global'),
        ({"id": 7}, "id is 7: it must be a string"),
        ({"requests": 7}, "requests is 7: it must be a list"),
        ({"requests": []}, "requests has no request"),
        ({"requests": [SUBAGENT | {"requests": []}]}, "requests has no request"),
        ({"requests": [FIRST, 7]}, "requests[1] is 7: it must be an object"),
        ({"requests": [FIRST | {"t": -1}]}, "requests[0]: t is -1: it must be a number of seconds from 0 to "),
        ({"requests": [FIRST | {"t": True}]}, "requests[0]: t is true: it must be a number of seconds"),
        ({"requests": [FIRST | {"in": 0}]}, "requests[0]: in is 0: it must be at least 1"),
        ({"requests": [FIRST | {"out": 10**16}]}, "requests[0]: in and out are 128 and 10000000000000000: they must"),
        ({"requests": [{"t": 0, "in": 7}]}, "requests[0]: out is missing"),
        ({"requests": [FIRST | {"hash_ids": "1"}]}, 'requests[0]: hash_ids is "1": it must be a list'),
        ({"requests": [FIRST | {"hash_ids": [1, -2]}]}, "requests[0]: hash_ids[1] is -2: it must be at least 0"),
        (
            {"requests": [FIRST | {"in": 127}]},
            "requests[0]: hash_ids has 2 ids, but a prompt of 127 tokens has 1 full blocks of 64",
        ),
        (
            {"requests": [FIRST, SUBAGENT | {"requests": [{"t": 0, "in": 7, "out": 1, "hash_ids": [1]}]}]},
            "requests[1].requests[0]: hash_ids has 1 ids, but a prompt of 7 tokens has 0 full blocks of 64",
        ),
        ({"requests": [SUBAGENT | {"requests": 7}]}, "requests[0].requests is 7: it must be a list"),
    ],
)
def test_a_wrong_session_is_refused_in_a_sentence(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """With the number of its line and the place in it."""
    path = write(tmp_path, SESSION, SESSION | changes)
    with pytest.raises(TraceError) as caught:
        read_requests(path)
    assert str(caught.value).startswith(f"{path}:2: {problem}")


@pytest.mark.parametrize("command", ["replay", "curve", "explain"])
def test_every_command_reads_sessions(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In blocks of 64, as the file says. Another size is refused."""
    path = str(write(tmp_path, SESSION))
    assert main([command, path, "--num-blocks", "8"]) == 0
    assert "64" in capsys.readouterr().out
    assert main([command, path, "--num-blocks", "8", "--block-size", "32"]) == 2
    assert ":1: block_size is 64, but 32 in --block-size" in capsys.readouterr().err


def test_rows_of_mooncake_with_sessions_are_read_as_mooncake(tmp_path: Path) -> None:
    """AIPerf and Dynamo add fields to Mooncake's lines. Each line needs its time, and a delay is refused."""
    row = {"timestamp": 7, "input_length": 40, "output_length": 2, "hash_ids": [1], "session_id": "a"}
    assert read_requests(write(tmp_path, row, row | {"timestamp": 9})) == [
        TraceRequest(7, 40, 2, (1,)),
        TraceRequest(9, 40, 2, (1,)),
    ]
    del row["timestamp"]
    path = write(tmp_path, row)
    with pytest.raises(TraceError, match=":1: timestamp is missing"):
        read_requests(path)
