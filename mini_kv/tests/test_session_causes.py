"""Causes that are planted in made-up sessions are named, with turn and token. Innocent sessions have none.

A question of Claude Code has 80 tokens and an answer 40, after 3,000 tokens that the file lacks. Of Codex: 200 and 100.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pytest

from mini_kv.tests.made_sessions import LARGE, SMALL, ClaudeCode, Codex, Maker, Provider, RoughCounts
from mini_kv.tools.traces.sessions.analysis import Analysis, analyse
from mini_kv.tools.traces.sessions.session_formats import read_session

Planted = Callable[[], Maker]
Made = TypeVar("Made", bound=Maker)


SESSIONS: list[tuple[Planted, list[tuple[str, int, int]]]] = []
"""Made-up sessions with name, turn and token of the causes in each."""


def session(start: Callable[[], Made], *causes: tuple[str, int, int]) -> Callable[[Callable[[Made], None]], Planted]:
    """Add to `SESSIONS` what the decorated function does after this start."""

    def decorate(play: Callable[[Made], None]) -> Planted:
        @wraps(play)
        def make() -> Maker:
            made = start()
            play(made)
            return made

        SESSIONS.append((make, list(causes)))
        return make

    return decorate


def analysed(made: Maker) -> Analysis:
    return analyse(read_session(made.file(), "made-up"))


def found(made: Maker) -> list[tuple[str, int, int]]:
    """Return name, turn and token of each break."""
    return [(row.broke.name, row.turn, row.broke.token) for row in analysed(made).rows if row.broke is not None]


# Claude Code -------------------------------------------------------------------------------------------------------


@session(ClaudeCode, ("expired", 3, 0))
def a_pause_of_ten_minutes(made: ClaudeCode) -> None:
    made.turns(2)
    made.wait(600)
    made.turns(2)


@session(ClaudeCode, ("expired", 7, 3000))
def a_pause_while_another_session_keeps_the_system_prompt(made: ClaudeCode) -> None:
    """The provider still has the 3,000 tokens of the system prompt: the break is after them."""
    made.turns(6)
    made.wait(600)
    made.provider.entries[made.model, made.head] = made.now.timestamp()
    made.turns(2)


@session(ClaudeCode, ("probably-expired", 3, 0))
def a_pause_of_nearly_five_minutes(made: ClaudeCode) -> None:
    """The provider forgets a little early: after 294 seconds."""
    made.turns(2)
    made.wait(270)
    made.provider.entries.clear()
    made.turns(2)


@session(ClaudeCode, ("before-the-texts", 3, 0))
def an_entry_that_the_provider_lost(made: ClaudeCode) -> None:
    made.turns(2)
    made.provider.entries.clear()
    made.turns(2)


@session(ClaudeCode, ("new-conversation", 3, 3000))
def another_conversation_in_the_same_file(made: ClaudeCode) -> None:
    made.turns(2)
    made.parent, made.sent = None, []
    made.turns(2)


@session(ClaudeCode, ("compaction", 5, 3000))
def a_compaction(made: ClaudeCode) -> None:
    made.turns(4)
    made.compact(made.text(100))
    made.turns(2)


@session(ClaudeCode, ("model", 3, 0))
def another_model(made: ClaudeCode) -> None:
    made.turns(2)
    made.model = LARGE
    made.turns(2)


@session(ClaudeCode, ("before-the-texts", 3, 0))
def another_system_prompt(made: ClaudeCode) -> None:
    """It is not in the file. No entry ends before it, so the provider reads nothing."""
    made.turns(2)
    made.change_head()
    made.turns(2)


@session(ClaudeCode, ("thinking-removed", 5, 4280))
def old_thinking_is_removed(made: ClaudeCode) -> None:
    """The thinking before the call was sent with the result: 3,000 + 80 tokens are before it."""
    made.turns(2, tokens=400)
    made.user(made.text(80))
    made.answer(thinking=made.text(500), calls=["a"])
    made.result("a", made.text(300))
    made.answer(text=made.text(40))
    made.drop_thinking()
    made.turns(2, tokens=400)


@session(ClaudeCode, ("timestamp", 4, 3004))
def a_clock_in_the_first_message(made: ClaudeCode) -> None:
    """The texts agree up to the 16th letter, which is the 4th token: 3,000 + 4."""
    rest = made.text(200)
    made.user(f"Today, about 17:04 hours{rest}")
    made.answer(text=made.text(40))
    made.turns(2)
    made.begin_again(f"Today, about 17:05 hours{rest}")
    made.turns(2)


@session(ClaudeCode, ("rewind", 4, 3120))
def going_back_to_an_earlier_message(made: ClaudeCode) -> None:
    """The second question is asked in other words: 3,000 + 80 + 40 tokens are before it."""
    made.turns(1)
    line, num_sent = made.parent, len(made.sent)
    assert line is not None
    made.turns(2)
    made.go_back(line, num_sent)
    made.turns(2)


@session(ClaudeCode, ("lookback", 5, 3000))
def eleven_calls_in_one_answer(made: ClaudeCode) -> None:
    """22 texts are added. The provider looks back over 20, and finds the system prompt's entry alone."""
    made.turns(3, tokens=200)
    made.user(made.text(80))
    made.answer(calls=[f"{number}" for number in range(11)])
    first = made.number - 10
    for number in range(11):
        made.result(f"{number}", made.text(50), parent=f"00000000-0000-4000-8000-{first + number:012}")
    made.provider.entries = {(made.model, made.head): made.now.timestamp()}
    made.answer(text=made.text(40))
    made.turns(1)


@session(ClaudeCode, ("shorter", 5, 3320))
def old_results_are_cleared(made: ClaudeCode) -> None:
    """The provider reads the prompt before the call: 3,000 + 2 * (80 + 40) + 80 tokens."""
    made.turns(2)
    made.user(made.text(80))
    made.answer(calls=["a"])
    made.result("a", made.text(2000))
    made.answer(text=made.text(40))
    made.clear_results(is_said=False)
    made.turns(2)


@session(ClaudeCode, ("results-cleared", 5, 3320))
def old_results_are_cleared_and_the_file_says_so(made: ClaudeCode) -> None:
    made.turns(2)
    made.user(made.text(80))
    made.answer(calls=["a"])
    made.result("a", made.text(2000))
    made.answer(text=made.text(40))
    made.clear_results(is_said=True)
    made.turns(2)


@session(ClaudeCode, ("results-cleared", 5, 3320))
def the_provider_clears_old_results(made: ClaudeCode) -> None:
    """The answer says so, and the next one says it again."""
    made.turns(2)
    made.user(made.text(80))
    made.answer(calls=["a"])
    made.result("a", made.text(2000))
    made.answer(text=made.text(40))
    made.clear_results(is_said=False)
    made.turns(2)
    edits = [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 1, "cleared_input_tokens": 1998}]
    for number in (-1, -3):
        made.lines[number]["message"]["context_management"] = {"applied_edits": edits}


@session(ClaudeCode, ("model", 4, 0))
def another_model_that_gets_no_old_thinking(made: ClaudeCode) -> None:
    for _ in range(3):
        made.user(made.text(80))
        made.answer(thinking=made.text(100), text=made.text(40))
    made.model = LARGE
    made.drop_thinking()
    made.turns(2)


# Codex -------------------------------------------------------------------------------------------------------------


def three_tools() -> list[str]:
    dice = Maker(5, has_steps=True)
    return [f"{name} {dice.text(100)}" for name in ("shell-1", "patch-1", "image-1")]


@session(ClaudeCode, ("system-prompt", 3, 0))
def a_system_prompt_that_the_provider_itself_names(made: ClaudeCode) -> None:
    """The prompt is not in the file. The provider's reason is."""
    made.turns(2)
    made.head = Maker(7, has_steps=False).head
    made.turns(1)
    reason = {"type": "system_changed", "cache_missed_input_tokens": 3000}
    made.lines[-1]["message"]["diagnostics"] = {"cache_miss_reason": reason}
    made.turns(1)


@session(
    lambda: Codex(tools=three_tools()),
    ("tool-order", 3, 3002),
)
def tools_in_another_order(made: Codex) -> None:
    made.turns(2)
    made.tools = made.tools[1:] + made.tools[:1]
    made.begin()
    made.turns(2)


@session(lambda: Codex(system=Maker(5, has_steps=True).text(400)), ("system-prompt", 3, 3000))
def another_system_prompt_in_the_file(made: Codex) -> None:
    made.turns(2)
    made.system = Maker(6, has_steps=True).text(500)
    made.begin()
    made.turns(2)


@session(
    lambda: Codex(system=f"This is request number 00001 -- {Maker(5, has_steps=True).text(400)}"),
    ("timestamp", 3, 3006),
)
def a_counter_in_the_system_prompt(made: Codex) -> None:
    made.turns(2)
    made.system = made.system.replace("00001", "00002")
    made.begin()
    made.turns(2)


@session(Codex, ("compaction", 5, 3000))
def a_compaction_of_codex(made: Codex) -> None:
    made.turns(4)
    made.compact(made.text(100))
    made.turns(2)


@session(Codex, ("expired", 3, 0))
def a_pause_of_codex(made: Codex) -> None:
    made.turns(2)
    made.wait(600)
    made.turns(2)


@session(Codex, ("model", 3, 0))
def another_model_of_codex(made: Codex) -> None:
    made.turns(2)
    made.change_model(LARGE)
    made.turns(2)


@session(Codex, ("before-the-texts", 3, 1280))
def tools_that_the_file_lacks(made: Codex) -> None:
    """The first 1,280 tokens stay: the break is there, before the texts."""
    made.turns(2)
    made.head = made.head[: 4 * 1300] + made.text(1700)
    made.turns(2)


@session(Codex, ("expired", 3, 0))
def a_pause_after_an_aborted_answer(made: Codex) -> None:
    made.turns(2)
    made.user(made.text(200))
    made.abort()
    made.wait(1200)
    made.turns(2)


@session(Codex, ("expired", 4, 0))
def a_pause_before_a_call_that_only_the_counts_show(made: Codex) -> None:
    """Codex asks for the summary of a compaction. The file has the counts of this call, and no text."""
    made.turns(3)
    made.wait(1200)
    made.answer(made.text(100))
    del made.lines[-2]


@session(Codex, ("rewind", 4, 3300))
def going_back_two_questions(made: Codex) -> None:
    """A question has 200 tokens and an answer 100: 3,000 + 300 are before them."""
    made.turns(3)
    made.roll_back(2)
    made.turns(2)


@session(Codex, ("rewind", 3, 3500))
def going_back_to_before_thinking(made: Codex) -> None:
    """The first answer has 200 tokens of thinking, too."""
    made.user(made.text(200))
    made.answer(made.text(100), thinking=made.text(200))
    made.user(made.text(200))
    made.answer(made.text(100))
    made.roll_back(1)
    made.turns(2)


# Innocent sessions -------------------------------------------------------------------------------------------------


@session(lambda: ClaudeCode(7))
def a_long_chat(made: ClaudeCode) -> None:
    made.turns(30)


@session(lambda: ClaudeCode(7))
def a_loop_of_tools_with_thinking_that_is_kept(made: ClaudeCode) -> None:
    for number in range(6):
        made.user(made.text(60))
        for call in (f"{number}a", f"{number}b"):
            made.answer(thinking=made.text(90), calls=[call])
            made.result(call, made.text(250))
        made.answer(text=made.text(70))


@session(lambda: ClaudeCode(7))
def subagents_between_the_turns(made: ClaudeCode) -> None:
    for name in ("a1", "a2"):
        made.turns(2)
        made.subagent(name, 3)
    made.turns(2)


@session(lambda: ClaudeCode(7))
def pauses_of_four_minutes(made: ClaudeCode) -> None:
    made.turns(6, pause=240)


@session(lambda: ClaudeCode(7))
def thinking_that_was_never_sent_again(made: ClaudeCode) -> None:
    """The provider removes the thinking of each answer before the next question: no prompt had it."""
    for _ in range(8):
        made.user(made.text(60))
        made.answer(thinking=made.text(200), text=made.text(70))
        made.drop_thinking()


@session(lambda: Codex(7, system=Maker(5, has_steps=True).text(400), tools=["shell"]))
def a_resumed_session_of_codex(made: Codex) -> None:
    made.turns(4)
    made.begin()
    made.turns(4)


@session(lambda: Codex(7))
def tools_of_codex_with_repeated_counts(made: Codex) -> None:
    for _ in range(6):
        made.user(made.text(60))
        made.answer(made.text(10), result=made.text(400), repeats=2)
        made.answer(made.text(80), repeats=3)


@session(lambda: ClaudeCode(7))
def an_error_that_the_agent_wrote(made: ClaudeCode) -> None:
    """It is in the file as an answer, and in no prompt."""
    made.turns(2)
    message = {"id": "x", "role": "assistant", "model": "<synthetic>", "usage": {"input_tokens": 0}}
    made.line("assistant", made.parent, message={**message, "content": [{"type": "text", "text": made.text(500)}]})
    made.turns(2)


@session(lambda: Codex(7))
def a_chat_of_codex_with_thinking(made: Codex) -> None:
    """Up to 127 tokens of the prompt before are not read, for the cache is found in steps of 128 tokens."""
    for _ in range(8):
        made.user(made.text(15))
        made.answer(made.text(20), thinking=made.text(60))


@pytest.mark.parametrize(("make", "causes"), SESSIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_cause_is_named_with_its_turn_and_token(make: Planted, causes: list[tuple[str, int, int]]):
    """An innocent session has neither a cause nor a note."""
    assert found(make()) == causes
    if not causes:
        assert {row.note for row in analysed(make()).rows} <= {"", "first turn"}


def a_day_with_rough_counts(seed: int, *, keeps_thinking: bool) -> Maker:
    """Return questions of all lengths, each with up to six calls of tools. Half of the answers have thinking."""
    made = RoughCounts(seed)
    dice = made.dice
    for number in range(12):
        made.user(made.text(dice.randint(5, 200)))
        for call in range(dice.randint(0, 6)):
            made.answer(thinking=dice.choice(["", made.text(dice.randint(80, 600))]), calls=[f"{number} {call}"])
            made.result(f"{number} {call}", made.text(dice.randint(10, 3000)))
            made.wait(dice.randint(1, 20))
        made.answer(thinking=dice.choice(["", made.text(dice.randint(20, 400))]), text=made.text(100))
        if not keeps_thinking:
            made.drop_thinking()
        made.wait(dice.randint(5, 200))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_counts_that_do_not_follow_the_letters_name_no_cause(seed: int):
    assert found(a_day_with_rough_counts(seed, keeps_thinking=True)) == []


@pytest.mark.parametrize("seed", range(5))
def test_thinking_that_is_removed_is_found_in_rough_counts(seed: int):
    """Nearly always. A break that is not named so has no other name."""
    names = [name for name, _, _ in found(a_day_with_rough_counts(seed, keeps_thinking=False))]
    assert set(names) <= {"thinking-removed", "unknown"}
    assert names.count("thinking-removed") >= 0.8 * len(names) > 0


def anything(seed: int) -> Maker:
    """Return a session in which anything may happen."""
    made = ClaudeCode(seed)
    dice = made.dice
    for number in range(12):
        made.user(made.text(dice.randint(1, 300)))
        made.answer(thinking=dice.choice(["", made.text(dice.randint(1, 500))]), calls=[f"{number}"])
        made.result(f"{number}", made.text(dice.randint(1, 3000)))
        made.answer(text=made.text(dice.randint(1, 100)))
        what = dice.randrange(8)
        if what == 0:
            made.clear_results(is_said=dice.random() < 0.5)
        elif what == 1:
            made.compact(made.text(dice.randint(1, 900)))
        elif what == 2:
            made.drop_thinking()
        elif what == 3:
            made.model = dice.choice([SMALL, LARGE])
        elif what == 4:
            made.head = made.head[: dice.randrange(len(made.head) + 1) // 4 * 4]
        elif what == 5:
            made.provider.entries.clear()
        elif what == 6:
            made.sent = made.sent[: dice.randrange(len(made.sent)) + 1]
        made.wait(dice.randint(1, 400))
    return made


@pytest.mark.parametrize("seed", range(30))
def test_no_figure_is_larger_than_the_prompt(seed: int):
    analysis = analysed(anything(seed))
    for row, layout in zip(analysis.rows, analysis.layouts, strict=True):
        for figure in (row.cached, row.hosted, row.blocks, row.common, row.broke.again if row.broke else 0):
            assert 0 <= figure <= row.tokens
        assert row.cached + row.again <= row.tokens
        assert layout.num_tokens == row.tokens
        assert all(span.num_tokens >= 0 for span in layout.spans)
    assert analysis.waterfall.tokens("never") >= 0


# What is said ------------------------------------------------------------------------------------------------------


def test_the_message_and_the_cost_of_a_break():
    """The provider read 0 of 3,200 known tokens. The compaction's summary is the first text, and is new."""
    row = analysed(another_system_prompt()).rows[2]
    assert row.broke is not None
    assert (row.broke.message, row.broke.kind, row.broke.again) == (0, "not in the file", 3200)
    assert row.broke.sentence == (
        "the provider read 0 tokens although the texts in the file continue: either something before"
        " them changed (system prompt, tools, or a setting), or the provider no longer had the entry, or did not find"
        " it"
    )
    row = analysed(a_compaction()).rows[4]
    assert row.broke is not None
    assert (row.broke.message, row.broke.kind, row.broke.again) == (
        1,
        "user",
        0,
    )  # the summary is new, and the 3,000 tokens before it were read


class CountsNothing(Provider):
    """A provider that counts no cached token."""

    def read(self, model: str, head: str, prompt: str, now: float) -> int:
        return 0


@pytest.mark.parametrize("made", [ClaudeCode(), Codex()], ids=["claude-code", "codex"])
def test_a_provider_that_counts_no_cached_token_is_said_once(made: ClaudeCode | Codex):
    """As through a server that leaves the counts out. The compaction is seen in the texts."""
    made.provider = CountsNothing(made.provider.has_steps)
    made.turns(3)
    made.compact(made.text(300))
    made.turns(2)
    analysis = analysed(made)
    assert [row.broke.name for row in analysis.rows if row.broke is not None] == ["compaction"]
    assert [row.note for row in analysis.rows] == ["first turn", "", "", "", ""]
    assert analysis.session.notes == [
        "the provider counted no cached token at all, so only causes that the texts show are named"
    ]


def test_a_count_that_fell_within_the_texts_has_no_reason_in_the_file():
    """The provider dropped its last entries: it reads up to the end of the first prompt."""
    made = ClaudeCode()
    made.turns(6, tokens=400)
    made.provider.entries = dict(list(made.provider.entries.items())[:2])
    made.turns(1)
    assert found(made) == [("unknown", 7, 3400)]


def test_more_than_predicted_is_a_note_and_no_break():
    """An entry that lives longer, and one of another session."""
    made = ClaudeCode()
    made.provider.entries[made.model, made.head] = made.now.timestamp()
    made.turns(2)
    made.wait(600)
    made.provider.entries = dict.fromkeys(made.provider.entries, made.now.timestamp())
    made.turns(1)
    assert [row.note for row in analysed(made).rows] == [
        "first turn, and another session left an entry with the same beginning",
        "",
        "the entry lived longer than the time to live",
    ]
    assert found(made) == []


def test_only_a_cache_with_breakpoints_looks_back_over_twenty_texts():
    """Codex's has none, so that a fall of its count after 22 new texts has another cause."""
    made = Codex()
    made.turns(2)
    for _ in range(22):
        made.user(made.text(10))
    made.provider.entries.clear()
    made.answer(made.text(10))
    assert found(made) == [("before-the-texts", 3, 0)]
