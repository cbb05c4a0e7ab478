"""The cost of each break in the shipped examples, computed from the counts in their files alone.

A break costs what the prompt before would have given less what was read. Only a compaction takes texts out of the
prompt: then the prompt before would have given all but the summary and the question after it.
"""

import json
from typing import Any, NamedTuple

import pytest

from mini_kv.tests.made_sessions import ClaudeCode, Codex, Maker
from mini_kv.tools.traces.sessions.analysis import Analysis, analyse
from mini_kv.tools.traces.sessions.session_formats import example_path, read_session

LETTERS = 4
"""Letters of a token in the examples."""
STEP = 128
"""A prompt that continues is read up to a step of so many tokens, by OpenAI's cache."""


class Counted(NamedTuple):
    """What the file says of a turn."""

    conversation: str
    asked: int
    read: int
    compacted: int
    """Tokens of the summary and of the question after it. 0: no compaction since the turn before."""


def counts_of_claude_code(lines: list[dict[str, Any]]) -> list[Counted]:
    """An answer has a line per block, each with the same counts."""
    turns: dict[str, Counted] = {}
    compacted = 0
    for line in lines:
        message = line.get("message", {})
        if line["type"] == "user" and (compacted or line.get("isCompactSummary")):
            compacted += len(message["content"]) // LETTERS
        elif line["type"] == "assistant" and message["id"] not in turns:
            usage = message["usage"]
            read = usage["cache_read_input_tokens"]
            asked = usage["input_tokens"] + usage["cache_creation_input_tokens"] + read
            turns[message["id"]] = Counted(line.get("agentId", "main"), asked, read, compacted)
            compacted = 0
    return list(turns.values())


def counts_of_codex(lines: list[dict[str, Any]]) -> list[Counted]:
    """A count is written up to twice, with the same total."""
    turns: dict[int, Counted] = {}
    compacted = 0
    for line in lines:
        payload = line["payload"]
        if line["type"] == "compacted":
            compacted = len(payload["replacement_history"][0]["content"][0]["text"]) // LETTERS
        elif compacted and payload.get("role") == "user":
            compacted += len(payload["content"][0]["text"]) // LETTERS
        elif payload.get("type") == "token_count":
            total = payload["info"]["total_token_usage"]["input_tokens"]
            last = payload["info"]["last_token_usage"]
            if total not in turns:
                turns[total] = Counted("main", last["input_tokens"], last["cached_input_tokens"], compacted)
                compacted = 0
    return list(turns.values())


def costs(turns: list[Counted]) -> list[int]:
    """Return per turn what the conversation's prompt before would have given, less what was read."""
    before: dict[str, int] = {}
    found = []
    for turn in turns:
        given = before.get(turn.conversation, 0)
        if turn.compacted:
            given = turn.asked - turn.compacted
        found.append(max(given - turn.read, 0))
        before[turn.conversation] = turn.asked
    return found


EXAMPLES = {"claude-code": counts_of_claude_code, "codex": counts_of_codex}


def example(name: str) -> tuple[Analysis, list[int]]:
    """Return the result for an example, and the cost of each turn by its file's counts."""
    path = example_path(name)
    lines = path.read_bytes().splitlines(keepends=True)
    return analyse(read_session(lines, path.name, name)), costs(EXAMPLES[name]([json.loads(line) for line in lines]))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("claude-code", {"expired": 4750, "before-the-texts": 5450, "model": 5780, "compaction": 0}),
        ("codex", {"tool-order": 3311, "expired": 6835, "timestamp": 4235, "compaction": 122}),
    ],
)
def test_each_cause_costs_what_the_prompt_before_would_have_given_less_what_was_read(name: str, told: dict[str, int]):
    analysis, expected = example(name)
    broken = {row.turn: row.broke for row in analysis.rows if row.broke is not None}
    assert {turn: broke.again for turn, broke in broken.items()} == {turn: expected[turn - 1] for turn in broken}
    assert {broke.name: broke.again for broke in broken.values()} == told


@pytest.mark.parametrize(("name", "headline"), [("claude-code", 15_980), ("codex", 15_168)])
def test_the_headline_is_the_sum_of_the_causes_and_of_the_ends_that_a_step_leaves_out(name: str, headline: int):
    analysis, expected = example(name)
    assert [row.again for row in analysis.rows] == expected
    assert sum(expected) == headline
    ends = [row.again for row in analysis.rows if row.broke is None]
    assert max(ends) < (STEP if name == "codex" else 1)
    assert sum(row.broke.again for row in analysis.rows if row.broke is not None) + sum(ends) == headline


def rows(analysis: Analysis) -> dict[str, int]:
    return {row.name: row.tokens for row in analysis.waterfall.rows if row.tokens}


def test_what_a_break_cost_has_a_row_of_its_own_and_is_not_called_new():
    """In blocks of 16 tokens: 6,240 - 2,992 for the tools, which break after 3,002, and 7,424 - 3,248 for the clock."""
    analysis, _ = example("codex")
    assert rows(analysis) == {
        "prompt": 94_403,
        "never": 8_963,
        "after-break": 3_248 + 4_176,
        "seen": 78_016,
        "unlimited": 78_016,
        "server": 7_616,
        "observed": 70_400,
    }


# Causes that no example has. A question of Claude Code has 80 tokens and an answer 40, after 3,000 tokens of the head.


def cost(made: Maker) -> tuple[str, int, int]:
    """Return the only break's cause and cost, and what the blocks call new."""
    analysis = analyse(read_session(made.file(), "made-up"))
    (broke,) = [row.broke for row in analysis.rows if row.broke is not None]
    return broke.name, broke.again, rows(analysis).get("after-break", 0)


def test_a_history_behind_a_changed_message_is_lost_with_it():
    """The first question's clock changes at token 3,004. The provider reads the head: 3,000 of 3,447 tokens."""
    made = ClaudeCode()
    rest = made.text(200)
    made.user(f"Today, about 17:04 hours{rest}")
    made.answer(text=made.text(40))
    made.turns(2)
    made.begin_again(f"Today, about 17:05 hours{rest}")
    made.turns(1)
    assert cost(made) == ("timestamp", 206 + 40 + 80 + 40 + 80, 3440 - 2992)


def test_another_system_prompt_costs_the_history_after_it_and_is_new_itself():
    """The old one has 400 tokens and the new one 500. The history has two questions and an answer: 500 tokens."""
    made = Codex(system=Maker(5, has_steps=True).text(400))
    made.turns(2)
    made.system = Maker(6, has_steps=True).text(500)
    made.begin()
    made.turns(1)
    assert cost(made) == ("system-prompt", 3000 - 2944 + 500, 3488 - 2992)


def test_a_question_that_is_asked_anew_costs_no_more_than_the_texts_before_it():
    """The texts after it are gone. Of those before it only the answer, of 40 tokens, is behind the last entry."""
    made = ClaudeCode()
    made.turns(1)
    line, num_sent = made.parent, len(made.sent)
    assert line is not None
    made.turns(2)
    made.go_back(line, num_sent)
    made.turns(1)
    assert cost(made) == ("rewind", 40, 0)


def test_removed_thinking_costs_the_texts_after_it():
    """500 tokens of thinking go. The call of 13 tokens and the result of 300 after it are computed again."""
    made = ClaudeCode()
    made.turns(2, tokens=400)
    made.user(made.text(80))
    made.answer(thinking=made.text(500), calls=["a"])
    made.result("a", made.text(300))
    made.answer(text=made.text(40))
    made.drop_thinking()
    made.turns(1, tokens=400)
    assert cost(made) == ("thinking-removed", 13 + 300, 4592 - 4272)
