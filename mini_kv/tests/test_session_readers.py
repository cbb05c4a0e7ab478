"""Session files of Claude Code and Codex: turns, counts, and what two models of a cache predict for them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from mini_kv.tests.made_sessions import EXAMPLES, LARGE, ClaudeCode, Codex, Maker
from mini_kv.tests.test_imports import HEAVY, import_in_a_new_process
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.runners import Setup, sequential
from mini_kv.tools.traces.sessions.analysis import Analysis, analyse
from mini_kv.tools.traces.sessions.blocks import as_trace
from mini_kv.tools.traces.sessions.session_formats import example_path, read_session, read_session_file

Row = tuple[int, int, int, int]


def analysed(made: Maker, **options: Any) -> Analysis:
    return analyse(read_session(made.file(), "made-up"), **options)


def rows_of(made: Maker) -> list[Row]:
    """Return tokens, and what the provider, a hosted cache and blocks of 16 find, per turn."""
    return [(row.tokens, row.cached, row.hosted, row.blocks) for row in analysed(made).rows]


# Claude Code: the system prompt has 3,000 tokens, and entries end at each prompt's end ------------------------------


def test_a_chat_of_claude_code_finds_the_prompt_before():
    """A question has 80 tokens, an answer 40. Blocks find whole blocks of the prompt before: 192 * 16 = 3,072."""
    made = ClaudeCode()
    made.turns(3)
    assert rows_of(made) == [(3080, 0, 0, 0), (3200, 3080, 3080, 3072), (3320, 3200, 3200, 3200)]


def test_an_answer_in_several_lines_is_one_turn_and_both_results_are_in_the_prompt():
    """Two calls in one answer. The second result's parent is the second call, so the first is beside the way."""
    made = ClaudeCode()
    made.user(made.text(80))
    _, first, second = made.answer(text=made.text(10), calls=["a", "b"])
    made.result("a", made.text(200), parent=first)
    made.result("b", made.text(300), parent=second)
    made.answer(text=made.text(40))
    made.turns(1)
    # 536 = 10 + 2 calls of 13 + 200 + 300; then 40 + 80
    assert rows_of(made) == [(3080, 0, 0, 0), (3616, 3080, 3080, 3072), (3736, 3616, 3616, 3616)]
    session = read_session(made.file(), "made-up")
    assert [len(turn.parts) for turn in session.turns] == [1, 6, 8]


def test_a_subagent_is_another_conversation_and_a_long_pause_empties_the_cache():
    """A pool evicts nothing in a pause, if nothing else runs. Entries of a hosted cache expire after five minutes."""
    made = ClaudeCode()
    made.turns(1)
    made.subagent("a1", 2)  # its system prompt has 1,500 tokens
    made.turns(1)
    made.wait(600)
    made.turns(1)
    assert rows_of(made) == [
        (3080, 0, 0, 0),
        (1580, 0, 0, 0),
        (1700, 1580, 1580, 1568),
        (3200, 3080, 3080, 3072),
        (3320, 0, 0, 3200),
    ]
    analysis = analysed(made)
    assert [row.conversation for row in analysis.rows] == ["main", "subagent 1", "subagent 1", "main", "main"]
    assert [row.pause for row in analysis.rows] == [None, None, 24, 72, 624]


def test_two_subagents_without_an_id_that_begin_at_the_same_line_are_two_conversations():
    made = ClaudeCode()
    made.turns(1)
    main = made.parent
    for name in ("a1", "a2"):
        number = len(made.lines)
        made.subagent(name, 2)
        made.lines[number]["parentUuid"] = main
    made.turns(1)
    for line in made.lines:
        line.pop("agentId", None)
    analysis = analysed(made)
    assert [row.conversation for row in analysis.rows] == [
        "main",
        *["subagent 1"] * 2,
        *["subagent 2"] * 2,
        "main",
    ]
    assert [row.broke for row in analysis.rows] == [None] * 6
    assert [len(turn.parts) for turn in analysis.session.turns] == [1, 1, 3, 1, 3, 3]


# Codex: found are steps of 128 tokens ------------------------------------------------------------------------------


def test_a_chat_of_codex_finds_steps_of_128_tokens():
    """A question has 200 tokens, an answer 100: 3,200 = 25 * 128, and 3,500 rounds down to 3,456."""
    made = Codex()
    made.turns(3)
    assert rows_of(made) == [(3200, 0, 0, 0), (3500, 3200, 3200, 3200), (3800, 3456, 3456, 3488)]


def test_a_repeated_count_is_one_turn_and_a_result_before_the_count_is_in_the_next_prompt():
    made = Codex()
    made.user(made.text(200))
    made.answer(made.text(3)[:11], result=made.text(500), repeats=3)
    made.answer(made.text(100))
    made.turns(1)
    # 504 = a call of 4 + 500
    assert rows_of(made) == [(3200, 0, 0, 0), (3704, 3200, 3200, 3200), (4004, 3584, 3584, 3696)]


def test_models_of_codex_share_no_entries_and_a_pause_empties_the_cache():
    made = Codex()
    made.turns(1)
    made.change_model(LARGE)
    made.turns(2)
    made.wait(600)
    made.turns(1)
    assert rows_of(made) == [(3200, 0, 0, 0), (3500, 0, 0, 0), (3800, 3456, 3456, 3488), (4100, 0, 0, 3792)]


# The models of a cache ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", EXAMPLES)
@pytest.mark.parametrize("num_blocks", [None, 250, 320, 500, 900])
def test_the_pool_is_the_engines_own_manager(format_name: str, num_blocks: int | None):
    session = read_session_file("example", format_name)
    analysis = analyse(session, num_blocks=num_blocks)
    setup = Setup((KVCacheGroupSpec(("layers",), FullAttentionSpec(16)),), num_blocks)
    prompts = make_prompts(as_trace(session, analysis.layouts, 16), 16)
    hits = list(sequential(setup.make_manager(prompts), prompts))
    assert [row.blocks if num_blocks is None else row.pool for row in analysis.rows] == hits


def test_a_subagent_evicts_blocks_of_the_main_conversation_from_a_small_pool():
    """193 blocks for 3,080 tokens and 107 for the subagent's 1,700: all fit into 320, not into 260."""
    made = ClaudeCode()
    made.turns(1)
    made.subagent("a1", 2)
    made.turns(1)
    assert [row.pool for row in analysed(made, num_blocks=320).rows] == [0, 0, 1568, 3072]
    assert [row.pool for row in analysed(made, num_blocks=260).rows] == [0, 0, 1568, 2432]


@pytest.mark.parametrize("format_name", EXAMPLES)
def test_a_pool_of_the_needed_blocks_finds_all_and_a_smaller_one_does_not(format_name: str):
    session = read_session_file("example", format_name)
    for row in analyse(session, num_blocks=1000).rows[::4]:
        assert row.needed is not None
        if not row.blocks:
            continue
        enough, fewer = (analyse(session, num_blocks=row.needed - missing).rows[row.turn - 1] for missing in (0, 1))
        assert enough.pool in (row.blocks, None)  # the prompt itself may be larger
        assert (fewer.pool or 0) < row.blocks


def test_the_time_to_live_is_the_file_s_or_the_one_asked_for():
    made = ClaudeCode()
    made.turns(1)
    made.wait(600)
    made.turns(1)
    assert [analysed(made, ttl=ttl).rows[1].hosted for ttl in (None, 3600)] == [0, 3080]
    for line in made.lines:
        if line["type"] == "assistant":
            line["message"]["usage"]["cache_creation"] = {"ephemeral_1h_input_tokens": 1}
    made.subagent("a1", 2)  # lives five minutes
    assert (analysed(made).ttls, analysed(made).rows[1].hosted) == ([300, 3600], 3080)


def test_another_tokenizer_changes_positions_and_no_count():
    """Weights of 1 per text: the user's text then has as many tokens as the answer's."""
    made = ClaudeCode()
    made.turns(3)
    analysis = analysed(made, weigh=lambda _: 1)
    assert [row.tokens for row in analysis.rows] == [3080, 3200, 3320]
    assert [span.num_tokens for span in analysis.layouts[2].spans] == [3020, 60, 60, 60, 60, 60]


@pytest.mark.parametrize("module", ["analysis", "session_formats", "session_report"])
def test_the_analysis_needs_the_standard_library_only(module: str):
    _, loaded = import_in_a_new_process(f"mini_kv.tools.traces.sessions.{module}")
    assert loaded & {*HEAVY, "tokenizers", "jinja2"} == set()


# Files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", EXAMPLES)
def test_the_examples_are_what_their_maker_writes(format_name: str):
    data = example_path(format_name).read_bytes()
    assert data == b"".join(EXAMPLES[format_name]())
    assert len(data) <= 60_000


def test_a_file_may_be_packed_begin_with_a_title_and_be_written_at_this_moment(tmp_path: Path):
    made = ClaudeCode()
    made.turns(2)
    title = b'\xef\xbb\xbf{"type": "summary", "summary": "A title", "leafUuid": "x"}\n'
    path = tmp_path / "session.jsonl.gz"
    path.write_bytes(gzip.compress(title + b"".join(made.file()) + b'{"type": "user", "uu'))
    session = read_session_file(path)
    assert [turn.num_tokens for turn in session.turns] == [3080, 3200]
    assert session.notes == ["line 6, the last one, is incomplete and was left out"]


def test_a_tool_of_the_provider_repeats_the_prompt_and_the_last_counts_are_taken():
    """Without the counts of each prompt there is a note."""
    made = ClaudeCode()
    made.turns(3)
    message = made.lines[3]["message"]
    message["content"].append({"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}})
    last = dict(message["usage"])
    message["usage"] |= {"cache_read_input_tokens": 6280, "iterations": [{"input_tokens": 1}, last]}
    session = read_session(made.file(), "made-up")
    assert ([turn.num_tokens for turn in session.turns], session.notes) == ([3080, 3200, 3320], [])
    del message["usage"]["iterations"]
    session = read_session(made.file(), "made-up")
    assert [turn.num_tokens for turn in session.turns] == [3080, 6400, 3320]
    assert session.notes == [
        "line 4: the provider ran a tool within the answer, so its counts may be the sum of several prompts"
    ]


@pytest.mark.parametrize("made", [ClaudeCode(), Codex()], ids=["claude-code", "codex"])
def test_a_damaged_line_is_left_out_with_a_note_and_the_prompts_continue(made: ClaudeCode | Codex):
    """The third question is cut, and another line follows without an end between them, as after a crash."""
    made.turns(2)
    number = len(made.lines)
    made.turns(2)
    lines = made.file()
    lines[number] = lines[number][:90] + b'{"type": "queue"}\n'
    lines.insert(2, b"\0" * 200 + b"\n")
    session = read_session(lines, "made-up")
    assert session.notes == [f"line {line} is damaged and was left out" for line in (3, number + 2)]
    analysis = analyse(session)
    assert [row.tokens for row in analysis.rows] == [row.tokens for row in analysed(made).rows]
    assert [row.broke for row in analysis.rows] == [None] * 4


def changed(made: ClaudeCode | Codex, number: int, **members: Any) -> list[bytes]:
    """Return the lines, one of them with other members. Numbers count from 1."""
    made.turns(1)
    made.lines[number - 1] |= members
    return made.file()


def circle_of_a_subagent() -> list[bytes]:
    """Return a session whose subagent, without an id, begins with two lines that are each other's parents."""
    made = ClaudeCode()
    made.subagent("a1", 2)
    for line in made.lines:
        del line["agentId"]
    made.lines[0] |= {"type": "user", "parentUuid": made.lines[2]["uuid"]}
    made.lines[1] |= {"type": "system"}
    return made.file()


FIRST, SECOND = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))
USAGE: dict[str, Any] = {"input_tokens": -3}
LAST: dict[str, Any] = {"input_tokens": 5, "cached_input_tokens": 6}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "1: the file is empty"),
        ([b"\n", b"\n"], "2: the file has no answer of a model with token counts"),
        ([b"secret\n"], "1: the line is not JSON (column 1): Expecting value"),
        ([b'["secret"]\n'], "1: not a JSON object"),
        ([b"secret\n", b'{"hash_ids": [1]}\n'], "1: the line is not JSON (column 1): Expecting value"),
        (
            [b"secret\n", *changed(ClaudeCode(), 1, parentUuid=7)],
            "2: parentUuid is an integer: it must be a text",
        ),
        ([b'{"secret": 1, "secret": 2}\n'], "1: not JSON that can be read: an object has a key twice"),
        ([b'{"type": "\xff"}\n'], "1: not UTF-8: byte 11 of the line is 0xff"),
        (
            [b'{"token_ids": [1, 2]}\n'],
            "1: not a line of a session file: Claude Code's have type and sessionId, Codex's have type and payload",
        ),
        (
            [b'{"id": "a", "timestamp": "b", "instructions": "secret"}\n'],
            "1: an older format of Codex, which has no token counts",
        ),
        ([b'{"type": "summary"}\n'], "1: the file has no answer of a model with token counts"),
        ([b"{\n"], "1: the line is not JSON (column 2): Expecting property name enclosed in double quotes"),
        (
            changed(ClaudeCode(), 1, timestamp="secret"),
            "1: timestamp must be a time such as 2026-01-31T17:04:00.000Z",
        ),
        (changed(ClaudeCode(), 1, message=None), "1: message is missing"),
        (changed(ClaudeCode(), 1, message="secret"), "1: message is a text: it must be an object"),
        (
            changed(ClaudeCode(), 2, message={"content": [7]}),
            "2: message.content must be a text, or a list of objects",
        ),
        (
            changed(ClaudeCode(), 2, message={"content": [], "usage": USAGE}),
            "2: input_tokens must be from 0 to 10,000,000",
        ),
        (
            changed(ClaudeCode(), 2, message={"content": [], "usage": {"input_tokens": 10**17}}),
            "2: input_tokens must be from 0 to 10,000,000",
        ),
        (
            changed(ClaudeCode(), 2, message={"content": [], "usage": {"input_tokens": "secret"}}),
            "2: input_tokens is a text: it must be an integer",
        ),
        (changed(ClaudeCode(), 1, parentUuid=7), "1: parentUuid is an integer: it must be a text"),
        (changed(ClaudeCode(), 1, parentUuid=FIRST), "2: parentUuid leads in a circle"),
        (changed(ClaudeCode(), 1, parentUuid=SECOND), "2: parentUuid leads in a circle"),
        (circle_of_a_subagent(), "4: parentUuid leads in a circle"),
        (changed(Codex(), 3, payload=["secret"]), "3: payload is a list: it must be an object"),
        (changed(Codex(), 3, payload=None), "3: payload is missing"),
        (
            changed(Codex(), 5, payload={"type": "token_count", "info": {"last_token_usage": LAST}}),
            "5: cached_input_tokens is 6, more than the 5 input_tokens",
        ),
        (
            changed(Codex(), 5, payload={"type": "token_count", "info": {"last_token_usage": {"input_tokens": 1.5}}}),
            "5: input_tokens is a number: it must be an integer",
        ),
        (
            changed(Codex(), 5, payload={"type": "token_count", "info": {"total_token_usage": "secret"}}),
            "5: total_token_usage is a text: it must be an object",
        ),
        (
            changed(Codex(), 5, payload={"type": "token_count", "info": None}),
            "5: the file has no answer of a model with token counts",
        ),
    ],
)
def test_a_malformed_file_is_one_sentence_with_its_line(lines: list[bytes], problem: str):
    """And nothing of a text: "secret" is never in it."""
    with pytest.raises(TraceError) as error:
        read_session(lines, "FILE")
    assert str(error.value) == f"FILE:{problem}"


def test_the_format_can_be_said():
    made = Codex()
    made.turns(1)
    assert read_session(made.file(), "FILE", "codex").format_name == "codex"
    with pytest.raises(TraceError, match="no answer of a model"):
        read_session(made.file(), "FILE", "claude-code")


def test_an_image_counts_by_the_provider_s_tokens_and_not_by_its_letters():
    """An image of a million letters in the second question. Its 1,500 tokens are not divided among the texts."""
    made = ClaudeCode()
    made.turns(1)
    made.user(made.text(80))
    content: list[dict[str, Any]] = [{"type": "text", "text": made.sent[-1][1]}]
    content.append({"type": "image", "source": {"type": "base64", "data": "A" * 1_000_000}})
    made.lines[-1]["message"]["content"] = content
    made.sent.append(("image", made.text(1500)))
    made.answer(text=made.text(40))
    made.turns(2)
    analysis = analysed(made)
    assert [(row.tokens, row.cached) for row in analysis.rows[1:3]] == [(4700, 3080), (4820, 4700)]
    assert [span.num_tokens for span in analysis.layouts[1].spans] == [3000, 80, 40, 80, 18, 1482]
    assert json.dumps(analysis.as_dict()).count("A" * 100) == 0


def test_a_read_renews_an_entry():
    """Turn 3 goes back to the prompt of turn 1, seven minutes after it. Turn 2 has read its entry on the way."""
    made = ClaudeCode()
    made.turns(1, pause=200)
    line, num_sent = made.lines[0]["uuid"], 1
    made.turns(1, pause=200)
    made.go_back(line, num_sent)
    made.turns(1)
    rows = analysed(made).rows
    assert [row.hosted for row in rows] == [row.cached for row in rows] == [0, 3080, 3080]


def test_a_line_whose_parent_is_damaged_continues_the_main_conversation():
    """Between the two a subagent worked. Its lines are not before the next question."""
    made = ClaudeCode()
    made.turns(2)
    damaged = len(made.lines) - 1
    made.subagent("a1", 2)
    made.turns(1)
    lines = made.file()
    del lines[damaged]
    rows = analyse(read_session(lines, "made-up")).rows
    assert [(row.conversation, row.common) for row in rows] == [
        ("main", 0),
        ("subagent 1", 0),
        ("subagent 1", 1580),
        ("main", 3080),
    ]
