"""What the agents write when a conversation is resumed, forked, delegated or compacted: each call is one turn.

The shapes are those of public reports. The sessions are made up.
"""

import json
from copy import deepcopy
from typing import Any

import pytest

from mini_kv.tests.made_sessions import LARGE, SMALL, ClaudeCode, Codex, Maker
from mini_kv.tools.traces.readers.mooncake import TraceError
from mini_kv.tools.traces.sessions.analysis import Analysis, analyse
from mini_kv.tools.traces.sessions.session_formats import read_session

Line = dict[str, Any]


def analysed(lines: list[Line]) -> Analysis:
    return analyse(read_session([json.dumps(line).encode() + b"\n" for line in lines], "made-up"))


def rows_of(lines: list[Line]) -> list[tuple[str, int, int, float | None]]:
    """Return the conversation, the tokens, those that the provider read, and the pause of each turn."""
    return [(row.conversation, row.tokens, row.cached, row.pause) for row in analysed(lines).rows]


def breaks_of(lines: list[Line]) -> list[tuple[int, str]]:
    """Return turn and name of each break."""
    return [(row.turn, row.broke.name) for row in analysed(lines).rows if row.broke is not None]


# Claude Code: a question has 80 tokens, an answer 40 after 4 seconds, and the next question comes 20 seconds later ----

CHAT = [("main", 3080, 0, None), ("main", 3200, 3080, 24), ("main", 3320, 3200, 24)]


def test_an_answer_that_is_streamed_in_three_lines_is_counted_once_by_its_last_line():
    """The first lines say one token of output. A model that was overloaded has handed over to another one."""
    made = ClaudeCode()
    made.user(made.text(80))
    made.answer(thinking=made.text(40), text=made.text(40), calls=["a"])
    for line, output, model in zip(made.lines[1:], (1, 1, 260), (SMALL, SMALL, LARGE), strict=True):
        line["message"]["model"] = model
        line["message"]["usage"] = {**line["message"]["usage"], "output_tokens": output}
    turns = analysed(made.lines).session.turns
    assert [(turn.num_tokens, turn.num_output, turn.model) for turn in turns] == [(3080, 260, LARGE)]


@pytest.mark.parametrize("with_id", [False, True], ids=["without a request's id", "with it"])
def test_a_result_between_two_calls_of_one_answer_begins_no_other_answer(with_id: bool):
    """The agent runs the first call while the second one is still being streamed."""
    made = ClaudeCode()
    made.user(made.text(80))
    made.answer(calls=["a", "b"])
    made.result("a", made.text(50), parent=made.lines[1]["uuid"])
    made.lines[2:] = [made.lines[3], made.lines[2] | {"parentUuid": made.lines[3]["uuid"]}]
    if not with_id:
        for line in made.lines[1::2]:
            del line["requestId"]
    assert rows_of(made.lines) == CHAT[:1]


def test_a_server_that_gives_all_answers_one_id_loses_no_turn():
    made = ClaudeCode()
    made.turns(3)
    for line in made.lines[1::2]:
        line["message"]["id"], line["requestId"] = "same", None
    assert rows_of(made.lines) == CHAT


def test_a_fork_that_has_every_line_twice_has_every_turn_once():
    """The second copy lacks the mark of the fork, and its parent. The times are those of the first session."""
    made = ClaudeCode()
    made.turns(2)
    copies = [{**line, "parentUuid": None} for line in made.lines]
    for line in made.lines:
        line["forkedFrom"] = {"sessionId": "parent", "messageUuid": line["uuid"]}
    made.lines += copies
    made.turns(1)
    assert rows_of(made.lines) == CHAT
    assert breaks_of(made.lines) == []
    assert analysed(made.lines).session.notes == [
        "lines up to 4 are copied from another session, whose file has their turns, too"
    ]


def test_a_title_with_an_id_is_not_a_line_of_the_conversation():
    """A fork ends with one. The parent of the next question was never written."""
    made = ClaudeCode()
    made.turns(2)
    made.line("custom-title", None, customTitle="A fork")
    made.parent = "00000000-0000-4000-8000-000000009999"
    made.turns(1)
    assert rows_of(made.lines) == CHAT
    assert breaks_of(made.lines) == []


def test_a_copy_that_has_the_time_of_the_resumption_has_no_turn():
    """Older versions wrote the history again into a new file, all at one time."""
    made = ClaudeCode()
    made.turns(2)
    made.wait(3600)
    for line in made.lines:
        line["timestamp"] = made.timestamp()
    made.turns(2)
    analysis = analysed(made.lines)
    assert [(row.tokens, row.pause) for row in analysis.rows] == [(3320, None), (3440, 24)]
    assert [len(turn.parts) for turn in analysis.session.turns] == [5, 7]
    assert analysis.session.notes == [
        "answers that were left out: 2. They have the time of their prompt, as after an older version copied a session"
        " that was resumed, and the file does not say when they were made"
    ]


def test_after_compact_the_conversation_goes_on_beside_the_summary():
    """The command's own line has 10 tokens, the summary 100."""
    made = ClaudeCode()
    made.turns(2)
    made.compact(made.text(100), by_hand=True)
    made.turns(2)
    assert rows_of(made.lines) == [
        *CHAT[:2],
        ("main", 3190, 3000, 24),
        ("main", 3310, 3190, 24),
    ]
    assert breaks_of(made.lines) == [(3, "compaction")]
    assert [len(turn.parts) for turn in analysed(made.lines).session.turns] == [1, 3, 3, 5]


@pytest.mark.parametrize("has_hook", [False, True], ids=["after the first question", "after a hook's line"])
def test_a_second_compaction_that_writes_the_history_again_counts_nothing_twice(has_hook: bool):
    """The conversation then goes on after a line before the first compaction, or after one that follows the copies."""
    made = ClaudeCode()
    made.turns(2)
    copies = deepcopy(made.lines)
    made.compact(made.text(100), by_hand=True)
    made.turns(1)
    made.lines += copies
    made.parent = copies[0]["uuid"]
    if has_hook:
        made.line("system", copies[-1]["uuid"], subtype="stop_hook_summary")
    made.compact(made.text(90), by_hand=True)
    made.turns(1)
    assert [row[1:] for row in rows_of(made.lines)] == [
        (3080, 0, None),
        (3200, 3080, 24),
        (3190, 3000, 24),
        (3180, 3000, 24),
    ]
    assert breaks_of(made.lines) == [(3, "compaction"), (4, "compaction")]


def test_a_question_that_waited_in_a_queue_was_not_sent_before_the_result():
    """It was typed 60 seconds before the tool was ready. The pause is the time between two calls."""
    made = ClaudeCode()
    made.user(made.text(80))
    made.answer(calls=["a"])
    made.wait(36)
    typed = made.timestamp()
    made.wait(60)
    made.result("a", made.text(50))
    made.user(made.text(80))
    made.lines[-1]["timestamp"] = typed
    made.answer(text=made.text(40))
    assert [pause for *_, pause in rows_of(made.lines)] == [None, 100]


def test_an_adviser_s_prompt_is_not_the_conversation_s():
    made = ClaudeCode()
    made.turns(2)
    usage = made.lines[-1]["message"]["usage"]
    adviser = {"type": "advisor_message", "model": LARGE, "input_tokens": 9000, "output_tokens": 5}
    usage["iterations"] = [{**usage, "type": "message"}, adviser]
    assert rows_of(made.lines) == CHAT[:2]


def test_a_subagent_s_file_continues_after_a_line_that_was_never_written():
    """The first parent is a line of another file, the second one is in none."""
    made = ClaudeCode()
    made.subagent("a1", 3)
    made.lines[0]["parentUuid"] = "00000000-0000-4000-8000-000000009998"
    made.lines[2]["parentUuid"] = "00000000-0000-4000-8000-000000009999"
    assert rows_of(made.lines) == [
        ("subagent 1", 1580, 0, None),
        ("subagent 1", 1700, 1580, 24),
        ("subagent 1", 1820, 1700, 24),
    ]
    assert breaks_of(made.lines) == []


@pytest.mark.parametrize("is_inside", [False, True], ids=["in a file of its own", "in this file"])
def test_a_subagent_whose_turns_are_elsewhere_is_said_to_be_missing(is_inside: bool):
    made = ClaudeCode()
    made.user(made.text(80))
    made.answer(calls=["a"])
    if is_inside:
        made.subagent("a1", 2)
    made.result("a", made.text(50))
    made.lines[-1]["toolUseResult"] = {"status": "completed", "agentId": "a1"}
    made.answer(text=made.text(40))
    note = "subagents whose turns are not in this file, but in one of their own: 1"
    assert analysed(made.lines).session.notes == ([] if is_inside else [note])


# Codex: a question has 200 tokens, an answer 100 after 4 seconds, and the next question comes 20 seconds later --------


def id_of(made: Maker, *, seconds: float = 0) -> str:
    """Return an id of version 7 that was made now, or so many seconds ago."""
    milliseconds = round(1000 * (made.now.timestamp() - seconds))
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7000-8000-{made.number:012x}"


def fork(made: Codex, *, has_ids: bool, has_times: bool, **meta: Any) -> None:
    """Begin a fork: its own first line, then all lines of the parent, with the time of the fork or their own."""
    made.wait(600)
    born = made.timestamp()
    own = {"id": id_of(made), "base_instructions": {"text": "Be brief."}, **meta}
    copies = made.lines
    copies[0]["payload"]["base_instructions"] = {"text": "Be long."}
    if not has_times:
        copies = [{**line, "timestamp": born} for line in copies]
    made.lines = [{"timestamp": born, "type": "session_meta", "payload": own}, *copies]
    made.wait(30)
    made.line("turn_context", {"model": SMALL, **({"turn_id": id_of(made)} if has_ids else {})})


@pytest.mark.parametrize("meta", [{"forked_from_id": "made-up"}, {}], ids=["named", "not named"])
@pytest.mark.parametrize("has_times", [False, True], ids=["time of the fork", "own times"])
@pytest.mark.parametrize("has_ids", [False, True], ids=["turns without ids", "turns with ids"])
def test_the_turns_that_a_fork_copied_are_not_its_own(has_ids: bool, has_times: bool, meta: dict[str, str]):
    """Its prompts contain the copied texts. When the copied answers were made is not in the file."""
    made = Codex()
    made.turns(2)
    if has_ids:
        made.lines[1]["payload"]["turn_id"] = id_of(made, seconds=48)
    fork(made, has_ids=has_ids, has_times=has_times, **meta)
    made.turns(2)
    analysis = analysed(made.lines)
    assert rows_of(made.lines) == [("main", 3800, 0, None), ("main", 4100, 3712, 24)]
    assert [len(turn.parts) for turn in analysis.session.turns] == [6, 8]
    assert {turn.parts[0].text for turn in analysis.session.turns} == {"Be brief."}
    assert analysis.session.notes == [
        "answers that were left out: 2, up to line 9. They are copied from the session that this one was forked from,"
        " and the file does not say when they were made"
    ]


def test_a_copy_that_takes_three_seconds_is_found_by_the_ids_of_its_turns():
    made = Codex()
    made.turns(2)
    made.lines[1]["payload"]["turn_id"] = id_of(made, seconds=48)
    fork(made, has_ids=True, has_times=False)
    for line in made.lines[5:-1]:
        made.wait(-27)
        line["timestamp"] = made.timestamp()
        made.wait(27)
    made.turns(1)
    assert rows_of(made.lines) == [("main", 3800, 0, None)]


def test_a_fork_without_a_question_of_its_own_has_no_turn():
    made = Codex()
    made.turns(2)
    fork(made, has_ids=True, has_times=False, forked_from_id="made-up")
    with pytest.raises(TraceError) as error:
        analysed(made.lines)
    assert str(error.value) == (
        "made-up:10: the file has no answer of a model with token counts; answers that were left out: 2, up to line 9."
        " They are copied from the session that this one was forked from, and the file does not say when they were made"
    )


def test_a_count_before_the_first_answer_of_a_subagent_is_its_parents():
    """When the server's limits arrive, Codex writes the last counts again: here those of the parent, which are new."""
    made = Codex()
    made.lines[0]["payload"] |= {"id": id_of(made), "forked_from_id": "parent"}
    made.lines[-1]["payload"]["turn_id"] = id_of(made)
    made.user(made.text(200))
    made.wait(2)
    usage = {"input_tokens": 9000, "cached_input_tokens": 0, "output_tokens": 35}
    info = {"total_token_usage": {"input_tokens": 10**9}, "last_token_usage": usage}
    made.line("event_msg", {"type": "token_count", "info": info})
    made.answer(made.text(100))
    assert rows_of(made.lines) == [("main", 3200, 0, None)]


@pytest.mark.parametrize("has_parent", [False, True], ids=["alone", "with its parent's first line"])
def test_a_subagent_of_codex_that_copied_no_count_has_all_its_turns(has_parent: bool):
    made = Codex()
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "parent", "depth": 1}}}
    made.lines[0]["payload"] |= {"id": id_of(made), "source": spawned}
    if has_parent:
        made.lines.insert(1, {**made.lines[0], "payload": {"id": "parent", "source": "cli"}})
    made.lines[-1]["payload"]["turn_id"] = id_of(made)
    made.turns(2)
    assert rows_of(made.lines) == [("main", 3200, 0, None), ("main", 3500, 3200, 24)]
    assert analysed(made.lines).session.notes == []


def test_an_old_count_that_comes_again_is_no_turn():
    """The totals go back to those of the first answer, and forward again."""
    made = Codex()
    made.turns(2)
    first, second = (line for line in made.lines if line["type"] == "event_msg")
    made.lines += [first, second]
    made.turns(1)
    assert rows_of(made.lines) == [
        ("main", 3200, 0, None),
        ("main", 3500, 3200, 24),
        ("main", 3800, 3456, 24),
    ]


def test_a_compaction_before_an_answer_takes_time_of_its_own():
    """The question comes after 20 seconds. The summary takes eight, and then the answer begins. Only counts show it."""
    made = Codex()
    made.turns(1)
    made.user(made.text(200))
    made.wait(4)
    made.answer(made.text(100))
    del made.lines[-2]
    made.compact(made.text(100))
    made.answer(made.text(100))
    assert [(tokens, pause) for _, tokens, _, pause in rows_of(made.lines)] == [(3200, None), (3500, 24), (3100, 8)]


def test_the_call_of_a_compaction_is_a_turn():
    """Its counts are in a line of their own. It began with the command, ten minutes after the last question."""
    made = Codex()
    made.turns(2)
    made.wait(600)
    made.line("event_msg", {"type": "task_started", "turn_id": id_of(made)})
    prompt = made.head + "".join(made.sent)
    cached = made.provider.read(made.model, made.head, prompt, made.now.timestamp())
    made.wait(8)
    usage = {"input_tokens": len(prompt) // 4, "cached_input_tokens": cached, "output_tokens": 100}
    made.line("token_usage_record", {"response_id": "resp_1", "usage": usage})
    made.compact(made.text(100))
    made.lines[-1]["payload"]["compaction_response_id"] = "resp_1"
    made.wait(12)
    made.turns(1)
    assert rows_of(made.lines) == [
        ("main", 3200, 0, None),
        ("main", 3500, 3200, 24),
        ("main", 3600, 0, 624),
        ("main", 3300, 2944, 20),
    ]
    assert breaks_of(made.lines) == [(3, "expired"), (4, "compaction")]


def test_a_subagents_file_may_say_which_lines_are_copies():
    """By their ordinals. Its own first count needs no text of an answer then, and no id of a turn."""
    made = Codex()
    made.turns(2)
    parent = list(made.lines)
    made.line("event_msg", {"type": "task_started", "turn_id": "made-up"})
    made.wait(9)
    usage = {"input_tokens": 4000, "cached_input_tokens": 0, "output_tokens": 35}
    made.line("event_msg", {"type": "token_count", "info": {"total_token_usage": {"a": 1}, "last_token_usage": usage}})
    made.lines[0]["payload"] |= {"forked_from_id": "parent", "subagent_history_start_ordinal": len(parent)}
    for ordinal, line in enumerate(made.lines):
        line["ordinal"] = ordinal
    assert rows_of(made.lines) == [("main", 4000, 0, None)]
    assert analysed(made.lines).session.notes[0].startswith("answers that were left out: 2, ")


def test_a_call_without_an_input_since_the_last_answer_began_after_it():
    """So no pause is below zero, although the last input is older than the last answer."""
    made = Codex()
    made.turns(1)
    made.wait(30)
    made.answer(made.text(100))
    assert [pause for *_, pause in rows_of(made.lines)] == [None, 4]


def test_an_answer_begins_with_what_the_user_wrote_also_if_only_an_event_has_it():
    """Five minutes after the session's first line."""
    made = Codex()
    made.wait(300)
    made.line("event_msg", {"type": "user_message", "message": "Go on."})
    made.turns(0)
    made.answer(made.text(100))
    made.answer(made.text(100))
    assert [pause for *_, pause in rows_of(made.lines)] == [None, 4]
