"""Reads session files of Codex, `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

One JSON object per line: {"timestamp": "...", "type": "...", "payload": {...}}

    session_meta    the session; the system prompt (base_instructions) and tools (dynamic_tools), in newer files
    turn_context    the model
    response_item   a message, a call, a tool's result: the history, in order
    compacted       replaces the history, by replacement_history if there is one
    token_usage_record  the counts of an answer. Those of a compaction's own call are nowhere else, in newer files
    event_msg       token_count: info.last_token_usage are the counts of the last answer
                    turn_aborted: its answer gets no count
                    thread_rolled_back: the last num_turns questions, and all after them, leave the history

    response_item user, response_item function_call, response_item function_call_output, event_msg token_count

The count comes after the answer, and a tool's result may be before it. So the prompt of an answer ends at the first
item since the last count that a model made. The same count may be repeated: then the totals are equal, too.

A fork, and the file of a subagent, may begin with a copy of the parent's lines, its session_meta and its counts among
them. The copies have the time of the fork. The ids of their turns do not: an id of version 7 says when it was made. In
newer files of subagents subagent_history_start_ordinal is the ordinal of the first line that is not a copy.

Sources: github.com/openai/codex, `codex-rs/protocol/src` (lines and items), `codex-rs/core/src/agent/control/spawn.rs`
(copies), issue 47003 (compactions), github.com/ryoppippi/ccusage (counts, and their repetition),
github.com/kenn-io/agentsview, pull request 657 (where a copy ends), all read in 2026.
"""

import json
from typing import Any
from uuid import UUID

from mini_kv.tools.traces.sessions.session import Kind, Part, Session, Turn, as_text, count_of, member, milliseconds_of

_COPIED = (
    "They are copied from the session that this one was forked from, and the file does not say when they were made"
)
LINES = ("session_meta", "turn_context", "response_item", "compacted", "token_usage_record", "event_msg")
"""The types of lines that are read. There are more in newer files."""
_NOT_SENT = ("ghost_snapshot",)
_NO_QUESTIONS = (
    "# AGENTS.md instructions",
    "<environment_context>",
    "<user_instructions>",
    "<user_shell_command>",
    "<turn_aborted>",
    "<skill>",
)
"""Beginnings of a user's messages that Codex wrote itself."""
_COPYING = 1000
"""Milliseconds that the copy of a parent's lines takes at most, where turns have no id that says more."""


class CodexReader:
    """Collects the turns, line by line."""

    def __init__(self) -> None:
        self._system: list[Part] = []
        self._history: list[Part] = []
        self._prompt: tuple[int, int, int] | None = None
        """Of the answer that has no count yet: its line, the length of its prompt, the time of its last input."""
        self._last_input = 0
        self._last_count = 0
        self._model = "unknown"
        self._compaction = 0
        self._totals: set[str] = set()
        """The totals of all counts so far."""
        self._records: dict[str, tuple[int, int, dict[str, Any]]] = {}
        """Line, time and counts of each answer, by its id."""
        self._id: str | None = None
        self._forked: int | None = None
        """Time when this session was forked from another one."""
        self._first_own: int | None = None
        """Ordinal of the first line that is not a copy, if the file says it."""
        self._ordinal = 0
        self._turn_made: int | None = None
        """Time when the last turn began, as its id says. A turn has several answers."""
        self._copies: list[int] = []
        """Lines of counts that were copied from the parent."""
        self._turns: list[Turn] = []

    def add(self, number: int, fields: dict[str, Any]) -> None:
        """Read a line. Raises `ValueError` with the problem."""
        kind = fields.get("type")
        payload = member(fields, "payload", dict)
        if kind not in LINES:
            return
        if payload is None:
            raise ValueError("payload is missing")
        time, self._ordinal = milliseconds_of(fields), member(fields, "ordinal", int) or 0
        self._last_input = self._last_input or time
        if kind == "session_meta":
            self._begin(time, payload)
        elif kind == "turn_context":
            self._model = str(payload.get("model") or self._model)
            self._turn_made = _time_in(payload.get("turn_id"))
            self._prompt = None
        elif kind == "response_item":
            self._item(number, time, payload)
        elif kind == "token_usage_record" and not self._is_copy(time):
            self._records[str(payload.get("response_id"))] = number, time, member(payload, "usage", dict) or {}
        elif kind == "compacted":
            self._compact(number, payload)
            self._last_input = time
        elif kind == "event_msg":
            self._event(number, time, payload)

    def session(self) -> Session:
        """Return the turns that have counts."""
        notes = []
        if self._copies:
            notes.append(f"answers that were left out: {len(self._copies)}, up to line {self._copies[-1]}. {_COPIED}")
        return Session("codex", self._turns, ["main"], notes)

    def _event(self, number: int, time: int, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "token_count":
            self._count(number, time, member(payload, "info", dict))
        elif kind == "task_started":
            self._turn_made, self._last_input = _time_in(payload.get("turn_id")), time
        elif kind == "user_message":
            self._last_input = time
        elif kind == "turn_aborted":
            self._prompt = None
        elif kind == "thread_rolled_back":
            self._go_back(count_of(payload, "num_turns"))

    def _go_back(self, num_turns: int) -> None:
        """Remove the last questions, and all that came after the first of them."""
        questions = [
            index
            for index, part in enumerate(self._history)
            if part.kind == Kind.USER and not part.text.startswith(_NO_QUESTIONS)
        ]
        gone = questions[-num_turns:] if num_turns else []
        del self._history[gone[0] if gone else len(self._history) :]
        self._prompt = None

    def _begin(self, time: int, payload: dict[str, Any]) -> None:
        """Take the system prompt and the tools. A parent's are left out."""
        identifier = str(payload.get("id"))
        if self._id is None:
            self._id = identifier
            source = payload.get("source")
            self._first_own = member(payload, "subagent_history_start_ordinal", int)
            if payload.get("forked_from_id") or (isinstance(source, dict) and "subagent" in source):
                self._forked = _time_in(self._id) or time
        if identifier != self._id:
            self._forked = self._forked or _time_in(self._id) or time
            return
        instructions = payload.get("base_instructions") or payload.get("instructions")
        if isinstance(instructions, dict):
            instructions = instructions.get("text")
        tools = member(payload, "dynamic_tools", list) or []
        system = [Part(Kind.TOOL, json.dumps(tool, ensure_ascii=False)) for tool in tools]
        if isinstance(instructions, str) and instructions:
            system.append(Part(Kind.SYSTEM, instructions))
        self._system = system or self._system

    def _item(self, number: int, time: int, payload: dict[str, Any]) -> None:
        part, is_of_model = _read_item(payload)
        if part is None:
            return
        if is_of_model and self._prompt is None:
            self._prompt = (number, len(self._history), max(self._last_input, self._last_count))
        if not is_of_model:
            self._last_input = time
        if part.kind == Kind.USER and payload.get("role") == "user":
            self._prompt = None
        self._history.append(part)

    def _compact(self, number: int, payload: dict[str, Any]) -> None:
        """Replace the history, as the line says. Without a replacement the user's texts and a summary remain."""
        record = self._records.get(str(payload.get("compaction_response_id")))
        if record is not None:
            self._prompt = None
            self._turn(*record)
        items = member(payload, "replacement_history", list)
        if items is None:
            kept = [part for part in self._history if part.kind == Kind.USER]
            self._history = [*kept, Part(Kind.USER, str(payload.get("message") or ""))]
        else:
            read = [_read_item(item)[0] for item in items if isinstance(item, dict)]
            self._history = [part for part in read if part is not None]
        self._compaction, self._prompt = number, None

    def _count(self, number: int, time: int, info: dict[str, Any] | None) -> None:
        """Take the counts of an answer, unless the line repeats earlier ones or is a copy."""
        if info is None:
            return
        totals = json.dumps(member(info, "total_token_usage", dict), sort_keys=True)
        usage = member(info, "last_token_usage", dict)
        if usage is None or totals in self._totals:
            return
        self._totals.add(totals)
        is_early = self._forked is not None and not self._turns and self._prompt is None  # before the first answer
        if self._is_copy(time) or (is_early and self._first_own is None):
            self._copies.append(number)
        else:
            self._turn(number, time, usage)
        self._prompt, self._last_count = None, time

    def _is_copy(self, time: int) -> bool:
        """Return whether an answer, whose count has this time, was made before the session was forked."""
        if self._first_own is not None:
            return self._ordinal < self._first_own
        made = time - _COPYING if self._turn_made is None else self._turn_made
        return self._forked is not None and made < self._forked

    def _turn(self, number: int, time: int, usage: dict[str, Any]) -> None:
        """Add a turn with these counts. Without a text and a new input it began at this time, at the latest."""
        num_tokens, num_cached = count_of(usage, "input_tokens"), count_of(usage, "cached_input_tokens")
        if num_cached > num_tokens:
            raise ValueError(f"cached_input_tokens is {num_cached}, more than the {num_tokens} input_tokens")
        began = self._last_input if self._last_input > self._last_count else time
        line, length, started = self._prompt or (number, len(self._history), began)
        if num_tokens == 0:  # an estimate after a compaction
            return
        parts = [*self._system, *self._history[:length]]
        turn = Turn(line, 0, started, self._model, parts, self._compaction)
        turn.num_tokens, turn.num_cached = num_tokens, num_cached
        turn.num_output = count_of(usage, "output_tokens")
        self._turns.append(turn)


def _time_in(identifier: Any) -> int | None:
    """Return the time in an id, in ms since 1970. `None`: it is not of version 7."""
    try:
        uuid = UUID(str(identifier))
    except ValueError:
        return None
    return uuid.int >> 80 if uuid.version == 7 else None


def _read_item(payload: dict[str, Any]) -> tuple[Part | None, bool]:
    """Return the text of an item, and whether a model made it."""
    kind = str(payload.get("type"))
    if kind in _NOT_SENT:
        return None, False
    if kind == "message":
        is_answer = payload.get("role") == "assistant"
        return Part(Kind.ANSWER if is_answer else Kind.USER, as_text(payload.get("content"))), is_answer
    if kind == "reasoning":
        texts = (payload.get("encrypted_content"), payload.get("content"), payload.get("summary"))
        return Part(Kind.THINKING, next((as_text(text) for text in texts if text), "")), True
    if kind.endswith("_output"):
        return Part(Kind.RESULT, as_text(payload.get("output"))), False
    if kind.endswith("_call"):
        what = payload.get("arguments") or payload.get("input") or payload.get("action")
        return Part(Kind.CALL, f"{payload.get('name') or kind} {as_text(what)}"), True
    return Part(Kind.USER, as_text(payload.get("encrypted_content") or payload)), False
