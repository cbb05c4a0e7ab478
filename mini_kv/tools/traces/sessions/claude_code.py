"""Reads session files of Claude Code, `~/.claude/projects/*/*.jsonl`.

One JSON object per line. Lines with a `uuid` form trees: `parentUuid` is the line before in the conversation.

    {"type": "user", "uuid": "u1", "parentUuid": null, "timestamp": "...", "message": {"role": "user", "content": "Hi"}}
    {"type": "assistant", "uuid": "a1", "parentUuid": "u1", ..., "message": {"id": "m1", "content": [], "usage": {}}}

    message.id          lines with the same id are parts of one answer, and repeat its usage. Its output_tokens grow
    usage               input_tokens (neither read nor written), cache_creation_input_tokens, cache_read_input_tokens
    isSidechain         a subagent's line; agentId names the subagent. Newer versions write a file for each
    toolUseResult       its agentId names the subagent that a tool's result comes from
    usage.iterations    the counts of each prompt, if the provider ran a tool within the answer. The others are sums
    compact_boundary    subtype of the line where a compaction begins a new tree; the next line has isCompactSummary.
                        After /compact the parent of the next question is a line before the compaction
    forkedFrom          a line that was copied from another session, with its time
    microcompact_boundary   old tool results are cleared from the prompts after this line
    diagnostics         its cache_miss_reason says why the provider did not find an entry, in newer files
    context_management  its applied_edits say what the provider cleared from this answer's prompt

A prompt consists of the texts on the way from the tree's root to the answer. A tool's result may be beside this way:
of two calls in one answer, the second result has the second call as its parent. A line may be written again, with its
uuid, after a compaction or in a fork.

Sources: github.com/ryoppippi/ccusage (usage, and its repetition), github.com/microsoft/amplifier,
`session_format_specification.md` (trees and compaction), github.com/anthropics/claude-code, issues 3079 (copied times),
40363 and 92089 (repeated lines), github.com/romp-on/romp, pull request 539 (/compact), all read in 2026.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mini_kv.tools.traces.sessions.session import (
    DEFAULT_TTL,
    Kind,
    Part,
    Session,
    Turn,
    as_text,
    count_of,
    member,
    milliseconds_of,
)

_HOUR = 3600
_IN_TREES = ("user", "assistant", "attachment", "system", "progress")
"""The types of lines that have a parent."""
_NO_MODEL = "<synthetic>"
"""The model of an answer that Claude Code wrote itself, such as an error message."""

_UNTIMED = (
    "They have the time of their prompt, as after an older version copied a session that was resumed, and the file"
    " does not say when they were made"
)
_SUM = "the provider ran a tool within the answer, so its counts may be the sum of several prompts"


@dataclass(slots=True)
class _Node:
    """A line with a `uuid`."""

    line: int
    uuid: str
    parent: str | None
    previous: "_Node | None"
    """The conversation's line before in the file. It replaces a parent that the file lacks, as after a damaged line."""
    summary: "_Node | None"
    """The summary of the conversation's last compaction. It replaces a parent before the compaction."""
    is_side: bool
    """Whether it is a subagent's line."""
    time: int
    parts: list[Part]
    calls: frozenset[str]
    """Ids of the tools that an answer calls."""
    results: frozenset[str]
    """Ids of the calls whose results a line has."""
    latest: int = 0
    """Latest time on the way from the root."""
    compaction: int = 0
    """Line of the last compaction on the way from the root."""
    cleared: int = 0
    """Line of the last clearing of old tool results on this way."""


@dataclass(slots=True)
class _History:
    """The lines of a conversation's last prompt, in order."""

    nodes: list[_Node] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    """Index of each line, by its uuid."""


class ClaudeCodeReader:
    """Collects the turns, line by line."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._last: dict[str, _Node] = {}
        """The last line of the main conversation, and of each subagent with an id."""
        self._children: dict[str, list[_Node]] = {}
        """Lines with results, by their parent."""
        self._conversations: dict[str, int] = {}
        self._roots: dict[str, str] = {}
        """The subagent of each line of a subagent."""
        self._histories: dict[int, _History] = {}
        self._answers: dict[str, Turn] = {}
        """The turn of the last answer with an id."""
        self._turns: list[Turn] = []
        self._num_untimed = 0
        """Answers whose time is that of their prompt."""
        self._forked = 0
        """Last line that was copied from another session."""
        self._subagents: set[str] = set()
        """Ids of the subagents that gave a result."""
        self._sums: dict[int, None] = {}
        """Lines of the answers whose counts are sums."""
        self._ttls: dict[int, int] = {}
        """Seconds that an entry lives, per conversation. Subagents may have others than the main one."""

    def add(self, number: int, fields: dict[str, Any]) -> None:
        """Read a line. Raises `ValueError` with the problem."""
        uuid = member(fields, "uuid", str)
        if uuid is None or fields.get("type") not in _IN_TREES:
            return  # a title, a snapshot of files, a queue: not part of a prompt
        if uuid in self._nodes:
            return  # written again
        node = self._node(number, uuid, fields)
        self._nodes[uuid] = node
        if fields.get("forkedFrom"):
            self._forked = number
        result = fields.get("toolUseResult")
        if isinstance(result, dict) and result.get("agentId"):
            self._subagents.add(str(result["agentId"]))
        if node.results and node.parent is not None:
            self._children.setdefault(node.parent, []).append(node)
        if fields.get("type") == "assistant":
            self._answer(node, fields)

    def session(self) -> Session:
        """Return the turns that have counts."""
        turns = [turn for turn in self._turns if turn.num_tokens > 0]
        used = sorted({turn.conversation for turn in turns})
        keys = list(self._conversations)
        names: list[str] = []
        for number in used:
            names.append("main" if keys[number] == "" else f"subagent {len(names) + ('main' not in names)}")
        for turn in turns:
            turn.conversation = used.index(turn.conversation)
        notes = [f"line {line}: {_SUM}" for line in self._sums]
        if others := len(self._subagents - set(keys)):
            notes.append(f"subagents whose turns are not in this file, but in one of their own: {others}")
        if self._forked:
            notes.append(f"lines up to {self._forked} are copied from another session, whose file has their turns, too")
        if self._num_untimed:
            notes.append(f"answers that were left out: {self._num_untimed}. {_UNTIMED}")
        return Session("claude-code", turns, names, notes)

    def _node(self, number: int, uuid: str, fields: dict[str, Any]) -> _Node:
        is_side = fields.get("isSidechain") is True
        agent = fields.get("agentId") if is_side else ""
        previous = None if agent is None else self._last.get(str(agent))
        parts: list[Part] = []
        calls: set[str] = set()
        results: set[str] = set()
        if fields.get("type") == "attachment":
            parts.append(Part(Kind.USER, json.dumps(fields.get("attachment"), ensure_ascii=False)))
        elif fields.get("type") in ("user", "assistant"):
            message = member(fields, "message", dict)
            if message is None:
                raise ValueError("message is missing")
            if message.get("model") != _NO_MODEL:
                _read_content(message.get("content"), fields["type"] == "user", parts, calls, results)
        parent = member(fields, "parentUuid", str)
        sets = frozenset(calls), frozenset(results)
        summary = None if previous is None else previous.summary
        node = _Node(number, uuid, parent, previous, summary, is_side, milliseconds_of(fields), parts, *sets)
        if agent is not None:
            self._last[str(agent)] = node
        self._inherit(node, fields)
        return node

    def _inherit(self, node: _Node, fields: dict[str, Any]) -> None:
        """Set the latest time, the last compaction and the last clearing on the way to a line, which may be one."""
        is_boundary = fields.get("subtype") == "compact_boundary"
        is_summary = fields.get("isCompactSummary") is True
        before = self._before(node)
        node.latest = node.time
        if before is not None:
            node.latest = max(node.time, before.latest)
            node.compaction, node.cleared = before.compaction, before.cleared
        if is_boundary or (is_summary and (before is None or before.line != before.compaction)):
            node.compaction = node.line
        if fields.get("subtype") == "microcompact_boundary":
            node.cleared = node.line
        if is_summary:
            node.summary = node

    def _answer(self, node: _Node, fields: dict[str, Any]) -> None:
        """Begin a turn, or take the counts of another part of its answer."""
        message = fields["message"]
        usage = member(message, "usage", dict)
        if usage is None or message.get("model") == _NO_MODEL:
            return
        conversation = self._conversation(node, fields)
        request = fields.get("requestId")
        key = f"{conversation} {message.get('id') or request or node.uuid} {request}"
        usage = _last_usage(usage)
        turn = self._answers.get(key)
        if turn is None or self._is_another(node, fields, usage, turn):
            turn = self._answers[key] = self._begin(conversation, node, message)
        if count_of(usage, "output_tokens") >= turn.num_output:
            turn.model = str(message.get("model"))
            self._count(turn, usage)
        if _is_sum(message, usage):
            self._sums[turn.line] = None
        turn.reason = turn.reason or _reason(message)

    def _is_another(self, node: _Node, fields: dict[str, Any], usage: dict[str, Any], turn: Turn) -> bool:
        """Return whether a line begins another answer with the same id. Some servers give all answers one id."""
        before = self._before(node)
        is_input = before is not None and any(part.kind in (Kind.USER, Kind.RESULT) for part in before.parts)
        return is_input and fields.get("requestId") is None and turn.num_tokens != _num_tokens(usage)

    def _begin(self, conversation: int, node: _Node, message: dict[str, Any]) -> Turn:
        """Return a new turn. It is left out if its answer has the time of the last input."""
        history, before = self._extend(conversation, node).nodes, self._before(node)
        started = node.time if before is None else max(before.latest, history[-1].time)
        parts = [part for line in history for part in line.parts]
        marks = node.compaction, (node.cleared, _cleared_tokens(message))
        turn = Turn(node.line, conversation, started, str(message.get("model")), parts, *marks)
        if before is not None and started == node.time:
            self._num_untimed += 1
        else:
            self._turns.append(turn)
        return turn

    def _conversation(self, node: _Node, fields: dict[str, Any]) -> int:
        """Return the number of the line's conversation: the main one, or one for each subagent."""
        name = ""
        if node.is_side:
            root = node
            for before in self._lines_before(node):
                if root.uuid in self._roots:
                    break
                root = before
            name = str(fields.get("agentId") or self._roots.get(root.uuid, root.uuid))
            self._roots[node.uuid] = name
        return self._conversations.setdefault(name, len(self._conversations))

    def _before(self, node: _Node) -> _Node | None:
        """Return the line before in the conversation. A subagent may begin at one of the main one."""
        if node.parent is None:
            return None
        before = self._nodes.get(node.parent) or node.previous
        if before is None or (node.is_side and not before.is_side):
            return None
        is_compacted = node.summary is not None and node.summary is not node and before.line < node.summary.line
        return node.summary if is_compacted else before

    def _lines_before(self, node: _Node) -> Iterator[_Node]:
        """Yield the lines on the way to the root. Raises `ValueError` if they form a circle."""
        seen = {node.uuid}
        while (before := self._before(node)) is not None:
            node = before
            if node.uuid in seen:
                raise ValueError("parentUuid leads in a circle")
            seen.add(node.uuid)
            yield node

    def _extend(self, conversation: int, answer: _Node) -> _History:
        """Return the lines before an answer. They often continue those of the last prompt."""
        history = self._histories.setdefault(conversation, _History())
        way: list[_Node] = []
        kept = 0
        for node in self._lines_before(answer):
            if node.uuid in history.places:
                kept = history.places[node.uuid] + 1
                break
            way.append(node)
        for node in history.nodes[kept:]:
            del history.places[node.uuid]
        del history.nodes[kept:]
        beside = [
            child
            for node in way
            for child in self._children.get(node.uuid, [])
            if child.results <= node.calls and child.line < answer.line
        ]
        new = {node.uuid: node for node in (*way, *beside) if node.uuid not in history.places}
        for node in sorted(new.values(), key=lambda node: node.line):
            history.places[node.uuid] = len(history.nodes)
            history.nodes.append(node)
        return history

    def _count(self, turn: Turn, usage: dict[str, Any]) -> None:
        turn.num_tokens, turn.num_cached = _num_tokens(usage), count_of(usage, "cache_read_input_tokens")
        turn.num_written = count_of(usage, "cache_creation_input_tokens")
        turn.num_output = count_of(usage, "output_tokens")
        lives = member(usage, "cache_creation", dict) or {}
        if lives.get("ephemeral_1h_input_tokens"):
            self._ttls[turn.conversation] = _HOUR
        elif lives.get("ephemeral_5m_input_tokens"):
            self._ttls[turn.conversation] = DEFAULT_TTL
        turn.ttl = self._ttls.get(turn.conversation, DEFAULT_TTL)


def _cleared_tokens(message: dict[str, Any]) -> int:
    """Return the tokens of old tool results that the provider cleared from the prompt of this answer."""
    management = member(message, "context_management", dict) or {}
    edits = member(management, "applied_edits", list) or []
    return sum(
        count_of(edit, "cleared_input_tokens")
        for edit in edits
        if isinstance(edit, dict) and str(edit.get("type")).startswith("clear_tool_uses")
    )


def _reason(message: dict[str, Any]) -> str:
    """Return the provider's own reason why it did not find an entry, or an empty text."""
    missed = member(member(message, "diagnostics", dict) or {}, "cache_miss_reason", dict) or {}
    return str(missed.get("type") or "")


def _num_tokens(usage: dict[str, Any]) -> int:
    """Return the tokens of a prompt."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(count_of(usage, name) for name in names)


def _last_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of the last prompt, if an answer has several. What they lack is as in the whole.

    An adviser is another model, with a prompt of its own.
    """
    iterations = member(usage, "iterations", list) or []
    counts = [one for one in iterations if isinstance(one, dict) and one.get("type") != "advisor_message"]
    return usage | counts[-1] if counts else usage


def _is_sum(message: dict[str, Any], usage: dict[str, Any]) -> bool:
    """Return whether the provider ran a tool, and the counts are not those of one prompt."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return not usage.get("iterations") and any(block.get("type") == "server_tool_use" for block in blocks)


def _read_content(content: Any, is_user: bool, parts: list[Part], calls: set[str], results: set[str]) -> None:
    """Add the texts of a message's content to `parts`, and the ids of calls and results."""
    blocks: Iterable[Any] = content if isinstance(content, list) else [content]
    for block in blocks:
        if isinstance(block, str):
            parts.append(Part(Kind.USER if is_user else Kind.ANSWER, block))
        elif not isinstance(block, dict):
            raise ValueError("message.content must be a text, or a list of objects")
        elif block.get("type") == "text":
            parts.append(Part(Kind.USER if is_user else Kind.ANSWER, as_text(block.get("text"))))
        elif block.get("type") in ("thinking", "redacted_thinking"):
            texts = (block.get(name) for name in ("thinking", "signature", "data"))
            parts.append(Part(Kind.THINKING, "".join(text for text in texts if isinstance(text, str))))
        elif block.get("type") == "tool_use":
            calls.add(str(block.get("id")))
            parts.append(Part(Kind.CALL, f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}"))
        elif block.get("type") == "tool_result":
            results.add(str(block.get("tool_use_id")))
            parts.append(Part(Kind.RESULT, as_text(block.get("content"))))
        else:  # an image or a document
            parts.append(Part(Kind.USER if is_user else Kind.ANSWER, as_text(block)))
