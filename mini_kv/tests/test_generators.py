"""Traffic from a seed: the same everywhere, of the shape that its name says, and readable by the commands."""

import hashlib
import json
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.curve import make_curve
from mini_kv.tools.traces.generators import KINDS, format_tokens, generate
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.formats import read_requests

DIGESTS = {
    "chat": "e9cd476c",
    "system-prompts": "0ebde932",
    "agents": "e0acc851",
    "agent-sessions": "fd838a50",
    "rag": "f2bd4ad9",
    "coding": "60cf9f71",
}
FOUND = {"chat": 87, "system-prompts": 92, "agents": 91, "agent-sessions": 96, "rag": 54, "coding": 76}


def digest(kind: str, seed: int = 0) -> str:
    """Return eight digits that stand for a trace of fifty requests."""
    lines = "\n".join(format_tokens(request) for request in generate(kind, 50, seed))
    return hashlib.sha256(lines.encode()).hexdigest()[:8]


def test_a_seed_gives_the_same_trace_everywhere() -> None:
    """On any machine and in any version of Python; another seed gives another one."""
    assert {kind: digest(kind) for kind in KINDS} == DIGESTS
    assert all(digest(kind, 1) != digest(kind) for kind in KINDS)


@pytest.mark.slow
def test_how_much_of_each_kind_a_cache_finds() -> None:
    """With memory for everything, in percent: agents repeat themselves, documents come in other orders."""
    found = {}
    for kind in KINDS:
        curve = make_curve(make_prompts(generate(kind, 400), 16), 16)
        found[kind] = round(100 * curve.at(curve.largest).hit_rate)
    assert found == FOUND


def test_the_command_writes_what_the_others_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of tokens, times that do not run backwards."""
    assert main(["trace", "make", "chat", "--num-requests", "30", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "chat.jsonl").write_text(text, encoding="utf-8")
    assert read_requests(tmp_path / "chat.jsonl") == generate("chat", 30, 4)
    assert [json.loads(line)["timestamp"] for line in text.splitlines()] == sorted(
        json.loads(line)["timestamp"] for line in text.splitlines()
    )
    assert main(["explain", str(tmp_path / "chat.jsonl")]) == 0
    assert "began an earlier prompt" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="num_requests is 0, it must be at least 1"):
        generate("chat", 0)
    with pytest.raises(ConfigError, match="there is no traffic of the kind 'chats'; did you mean chat"):
        generate("chats", 1)
