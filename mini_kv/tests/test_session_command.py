"""`mini-kv session`: what it prints, and that it prints nothing of a text unless it is asked to."""

import json
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.tests.made_sessions import ClaudeCode, Codex

SECRET = "moonlight"


def test_the_example_opens_with_a_row_and_blocks_per_turn(capsys: pytest.CaptureFixture[str]):
    assert main(["session", "example"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "claude-code: 18 turns, 1 subagent. A turn is one call of the model."
    assert lines[5:9] == [
        "turn     pause  tokens in   provider     hosted     blocks  what broke",
        "   1         -      3,060          0          0          0  first turn",
        "   2       4 s      3,385      3,060      3,060      3,056",
        "   3      10 s      3,710      3,385      3,385      3,376",
    ]
    remarks = [line[60:] for line in lines[6:24] if line[60:]]
    assert remarks == [
        "first turn",
        "subagent 1: another conversation, not a break",
        "subagent 1",
        "expired, at token 0",
        "before-the-texts, at token 0",
        "model, at token 0",
        "compaction, at token 3,000",
    ]
    blocks = [line for line in lines if line.startswith("  10 [")]
    assert blocks == ["  10 [xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx++]"]


def test_with_a_longer_time_to_live_a_pause_is_not_called_a_change(capsys: pytest.CaptureFixture[str]):
    """Turn 10 comes after 15 minutes. An entry of an hour had not expired, but the provider may have lost it."""
    assert main(["session", "example", "--ttl", "1h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Turn 10, token 0, before the first text: before-the-texts.")
    assert lines[start + 1] == (
        "  The provider read 0 tokens although the texts in the file continue: either something before them changed"
        " (system prompt, tools, or a setting), or the provider no longer had the entry, or did not find it. The"
        " provider computed 4,750 tokens again that the turn before had."
    )


def test_only_what_is_computed_again_is_said_to_be(capsys: pytest.CaptureFixture[str]):
    """After the compaction in turn 17 the provider read the 3,000 tokens that are left. The others are new."""
    assert main(["session", "example"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Turn 17, token 3,000, in text 1 (user): compaction.")
    assert lines[start + 1] == "  A compaction replaced the history by a summary."


def test_the_example_of_codex_names_tools_and_a_clock(capsys: pytest.CaptureFixture[str]):
    assert main(["session", "example", "--format", "codex"]) == 0
    out = capsys.readouterr().out
    breaks = [line for line in out.splitlines() if line.startswith("Turn ")]
    assert breaks == [
        "Turn 9, token 3,002, in text 1 (tool): tool-order.",
        "Turn 11, token 0, before the first text: expired.",
        "Turn 13, token 3,260, in text 5 (system prompt): timestamp.",
        "Turn 15, token 3,962, in text 6 (user): compaction.",
    ]
    assert out.splitlines()[-7:] == [
        "all prompt tokens                                              94,403  100.00 %",
        "  - new, or less than a block                                   8,963    9.49 %",
        "  - after a break, although the turn before had them            7,424    7.86 %",
        "began an earlier prompt                                        78,016   82.64 %",
        "hits if nothing were evicted                                   78,016   82.64 %",
        "  - fewer at the provider                                       7,616    8.07 %",
        "tokens that the provider read                                  70,400   74.57 %",
    ]


def test_a_pool_tells_what_a_pause_cost_and_what_is_not_known(capsys: pytest.CaptureFixture[str]):
    """Turn 10 finds 296 blocks of turn 9, which has 297. With the null block it needs 298 of the 400."""
    assert main(["session", "example", "--num-blocks", "400"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("A pool of 400 blocks (one is the null block), LRU, for this session alone.")
    assert lines[start + 1 :] == [
        "The load of other sessions is not in the file. A pause alone evicts nothing from a pool.",
        "After 15 min, turn 10: the pool computed 0 old tokens again, the provider 4,750. Other sessions may fill 102"
        " blocks before it finds less.",
    ]
    assert main(["session", "example", "--num-blocks", "200", "--ttl", "1h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["Prompts are larger than the pool.", "No pause was longer than 3,600 s."]


def printed(made: ClaudeCode | Codex, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"".join(made.file()))
    assert main(["session", str(path)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_session_is_as_predicted_only_if_no_row_has_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The entry lives longer than five minutes. No prefix broke, and no prediction was right."""
    made = Codex()
    made.turns(2)
    assert "No prefix broke: each prompt continues the one before, and the provider read it as predicted." in printed(
        made, tmp_path, capsys
    )
    made.wait(600)
    made.provider.entries = dict.fromkeys(made.provider.entries, made.now.timestamp())
    made.turns(1)
    assert "No prefix broke: each prompt continues the one before." in printed(made, tmp_path, capsys)


@pytest.mark.parametrize(
    ("made", "unseen"),
    [
        (ClaudeCode(), "the system prompt and the tools"),
        (Codex(), "the system prompt and the tools"),
        (Codex(tools=["search"]), "the system prompt and other tools"),
        (Codex(system="Be brief."), "the agent's own tools, and what else it sends first"),
    ],
)
def test_what_the_file_lacks_is_named(
    made: ClaudeCode | Codex, unseen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made.turns(2)
    assert f"before the first text are not in the file: {unseen}." in printed(made, tmp_path, capsys)[2]


def test_the_figures_as_json(capsys: pytest.CaptureFixture[str]):
    assert main(["session", "example", "--json", "--block-size", "32"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {name: figures[name] for name in ("format", "conversations", "ttls", "block_size", "hidden_tokens")} == {
        "format": "claude-code",
        "conversations": ["main", "subagent 1"],
        "ttls": [300],
        "block_size": 32,
        "hidden_tokens": 3000,
    }
    row = figures["turns"][16]
    assert (row["tokens"], row["cached"], row["hosted"], row["blocks"]) == (3330, 3000, 3000, 2976)
    assert (row["broke"]["name"], row["broke"]["token"]) == ("compaction", 3000)


@pytest.mark.parametrize("made", [ClaudeCode(), Codex()], ids=["claude-code", "codex"])
def test_no_text_is_printed_unless_it_is_asked_for(
    made: ClaudeCode | Codex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The break is in a summary with a secret word, and with letters that would steer a terminal."""
    made.turns(3)
    made.compact(f"{SECRET} \x1b[31m {made.text(100)}")
    made.turns(2)
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"".join(made.file()))
    for options in ([], ["--json"], ["--num-blocks", "300"]):
        assert main(["session", str(path), *options]) == 0
        assert SECRET not in capsys.readouterr().out
    assert main(["session", str(path), "--texts"]) == 0
    out = capsys.readouterr().out
    assert f"Turn 4, text 1: {SECRET} [31m " in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["example", "--num-blocks", "1"], "--num-blocks is 1: the null block takes one, so it must be at least 2"),
        (["example", "--block-size", "0"], "block_size is 0, it must be at least 1"),
        (["example", "--tokenizer", "nowhere.json"], "--tokenizer nowhere.json: there is no such file"),
        (["small.jsonl"], "small.jsonl:1: not a line of a session file: Claude Code's have type and sessionId,"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.jsonl").write_text('{"hash_ids": [1]}\n', encoding="utf-8")
    assert main(["session", *words]) == 2
    assert capsys.readouterr().err.startswith(f"mini-kv session: {problem}")
