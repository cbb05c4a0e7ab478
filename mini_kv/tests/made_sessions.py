"""Makes session files of Claude Code and Codex, with planted causes, by a made-up provider.

Four letters are a token, and all texts have whole tokens, so that every position is known exactly. The provider has a
cache of its own: entries end at the system prompt and at each prompt (Claude Code), or are found in steps of 128 tokens
(Codex), and live five minutes.

    python -m mini_kv.tests.made_sessions

writes the two examples that are part of the package.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from mini_kv.tools.traces.prefix_overlap import common_length
from mini_kv.tools.traces.sessions.session_formats import example_path

HEAD = 3000
"""Tokens of the made-up system prompt and tools, which no file has."""
TTL = 300
SMALL, LARGE = "made-up-small", "made-up-large"
_WORDS = ("block", "cache", "prefix", "token", "queue", "table", "prompt", "answer", "step", "pool", "hash", "free")


def words(dice: random.Random, num_tokens: int) -> str:
    """Return a text of so many tokens."""
    text = f"{dice.randrange(10**6):06} "
    while len(text) < 4 * num_tokens:
        text += f"{dice.choice(_WORDS)} "
    return text[: 4 * num_tokens]


@dataclass
class Provider:
    """A cache of prompts, each with the model and the time of its last use."""

    has_steps: bool
    entries: dict[tuple[str, str], float] = field(default_factory=dict)

    def read(self, model: str, head: str, prompt: str, now: float) -> int:
        """Return the tokens that are found, then remember the prompt."""
        best, found = 0, None
        for (name, text), used in self.entries.items():
            if name != model or now - used > TTL:
                continue
            equal = common_length(text, prompt) // 4
            if self.has_steps:
                equal = min(equal, len(prompt) // 4 - 1) // 128 * 128 if equal >= 1024 else 0
            elif equal < len(text) // 4:
                continue
            if equal > best:
                best, found = equal, (name, text)
        if found is not None:
            for key in self.entries:
                if key[0] == model and found[1].startswith(key[1]):
                    self.entries[key] = max(self.entries[key], now)
        self.entries[model, head] = self.entries[model, prompt] = now
        return best


class Maker:
    """A session that is being made: the clock, the model, and what the provider gets."""

    def __init__(self, seed: int, *, has_steps: bool) -> None:
        self.dice = random.Random(seed)
        self.provider = Provider(has_steps)
        self.now = datetime(2026, 1, 31, 9, tzinfo=UTC)
        self.model = SMALL
        self.head = words(self.dice, HEAD)
        self.lines: list[dict[str, Any]] = []
        self.number = 0

    def text(self, num_tokens: int) -> str:
        """Return a new text."""
        return words(self.dice, num_tokens)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def change_head(self) -> None:
        """Change the system prompt, of which the file has nothing. Its first 100 tokens stay."""
        self.head = self.head[:400] + words(self.dice, HEAD - 100)

    def timestamp(self) -> str:
        """Return the time as both formats write it."""
        return self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def file(self) -> list[bytes]:
        """Return the lines of the file."""
        return [json.dumps(line).encode() + b"\n" for line in self.lines]


class ClaudeCode(Maker):
    """A session of Claude Code: the main conversation, and subagents."""

    fresh = 0
    """Tokens of a prompt that are neither read nor written."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, has_steps=False)
        self.parent: str | None = None
        self.sent: list[tuple[str, str]] = []
        """The provider's prompt: kind and text."""
        self.agent: str | None = None

    def line(self, kind: str, parent: str | None, **fields: Any) -> str:
        """Write a line and return its uuid."""
        self.number += 1
        uuid = f"00000000-0000-4000-8000-{self.number:012}"
        about = {"parentUuid": parent, "isSidechain": self.agent is not None, "sessionId": "made-up", "version": "0"}
        if self.agent is not None:
            about["agentId"] = self.agent
        self.lines.append({"type": kind, "uuid": uuid, "timestamp": self.timestamp(), **about, **fields})
        self.parent = uuid
        return uuid

    def user(self, text: str) -> str:
        """Write what the user says."""
        self.sent.append(("user", text))
        return self.line("user", self.parent, message={"role": "user", "content": text})

    def result(self, call: str, text: str, parent: str | None = None) -> str:
        """Write a tool's result."""
        self.sent.append(("result", text))
        content = [{"type": "tool_result", "tool_use_id": call, "content": text}]
        return self.line("user", parent or self.parent, message={"role": "user", "content": content})

    def read(self, prompt: Sequence[str]) -> tuple[int, int]:
        """Return the tokens of a prompt, and those that the provider finds."""
        text = self.head + "".join(prompt)
        return len(text) // 4, self.provider.read(self.model, self.head, text, self.now.timestamp())

    def answer(self, *, thinking: str = "", text: str = "", calls: Sequence[str] = ()) -> list[str]:
        """Call the model, and write its answer, one line per block. Return the lines' uuids."""
        num_tokens, cached = self.read([text for _, text in self.sent])
        written = num_tokens - cached - self.fresh
        self.wait(4)
        blocks: list[dict[str, Any]] = []
        if thinking:
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
            self.sent.append(("thinking", thinking))
        if text:
            blocks.append({"type": "text", "text": text})
            self.sent.append(("answer", text))
        for call in calls:
            tool = {"command": self.text(8)}
            blocks.append({"type": "tool_use", "id": call, "name": "Bash", "input": tool})
            self.sent.append(("call", f"Bash {json.dumps(tool)}"))  # 52 letters: 13 tokens
        usage = {
            "input_tokens": self.fresh,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens": 10,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        }
        answer = f"msg_{self.number:04}"
        about = {"id": answer, "role": "assistant", "model": self.model, "usage": usage}
        return [
            self.line("assistant", self.parent, message={**about, "content": [block]}, requestId=f"req_{answer}")
            for block in blocks
        ]

    def turns(self, number: int, *, pause: float = 20, tokens: int = 80) -> None:
        """Let the user ask and the model answer, several times."""
        for _ in range(number):
            self.user(self.text(tokens))
            self.answer(text=self.text(tokens // 2))
            self.wait(pause)

    def compact(self, summary: str, *, by_hand: bool = False) -> None:
        """Replace the history by a summary. By hand the conversation goes on after the line before."""
        leaf = self.parent
        boundary = self.line("system", None, subtype="compact_boundary", content="Conversation compacted")
        self.sent = [("user", summary)]
        self.line("user", boundary, isCompactSummary=True, message={"role": "user", "content": summary})
        if by_hand:
            self.parent = leaf
            self.user("<command-name>/compact</command-name>   ")

    def drop_thinking(self) -> None:
        """Let the provider remove old thinking. The file still has it."""
        self.sent = [one for one in self.sent if one[0] != "thinking"]

    def clear_results(self, *, is_said: bool) -> None:
        """Let old tool results be cleared from the prompt. The file still has them."""
        self.sent = [(kind, "cleared." if kind == "result" else text) for kind, text in self.sent]
        if is_said:
            self.line("system", self.parent, subtype="microcompact_boundary", content="Context microcompacted")

    def go_back(self, uuid: str, num_sent: int) -> None:
        """Continue after an earlier line."""
        self.parent, self.sent = uuid, self.sent[:num_sent]

    def begin_again(self, first: str) -> None:
        """Write the whole conversation anew, as one that was resumed, with another first text."""
        texts = [first, *(text for _, text in self.sent[1:])]
        kinds = [kind for kind, _ in self.sent]
        self.parent, self.sent = None, []
        for kind, text in zip(kinds, texts, strict=True):
            self.sent.append((kind, text))
            role = "user" if kind == "user" else "assistant"
            content = text if role == "user" else [{"type": "text", "text": text}]
            self.line(role, self.parent, message={"role": role, "content": content})

    def subagent(self, name: str, number: int) -> None:
        """Let a subagent work: another conversation with another system prompt."""
        kept = self.parent, self.sent, self.head
        self.parent, self.sent, self.head, self.agent = None, [], words(self.dice, HEAD // 2), name
        self.turns(number)
        self.agent = None
        self.parent, self.sent, self.head = kept


class RoughCounts(ClaudeCode):
    """A session of Claude Code whose provider has another number of letters per token in each text.

    Each message has six tokens more than its text, and three tokens of a prompt are neither read nor written, as in
    files of today.
    """

    fresh = 3

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.used: dict[tuple[str, ...], float] = {}
        """The cached prefixes, and when they were last used."""

    def tokens(self, texts: Sequence[str]) -> int:
        """Return the provider's count: 0.6 to 1.4 tokens for four letters."""
        rates = (0.6 + 0.8 * (crc32(text.encode()) % 1000) / 1000 for text in texts)
        return sum(round(len(text) / 4 * rate) + 6 for text, rate in zip(texts, rates, strict=True))

    def read(self, prompt: Sequence[str]) -> tuple[int, int]:
        """Return the tokens of a prompt, and those that are found."""
        now = self.now.timestamp()
        texts = (self.head, *prompt)
        found = [key for key, used in self.used.items() if texts[: len(key)] == key and now - used <= TTL]
        longest = max(found, key=len, default=())
        for key in (*found, texts[:1], texts):
            self.used[key] = now
        return self.tokens(texts) + self.fresh, self.tokens(longest)


class Codex(Maker):
    """A session of Codex. The system prompt and the tools may be in the file."""

    def __init__(self, seed: int = 0, system: str = "", tools: Sequence[str] = ()) -> None:
        super().__init__(seed, has_steps=True)
        self.system, self.tools = system, list(tools)
        self.sent: list[str] = []
        self.totals = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens"), 0)
        self.begin()

    def line(self, kind: str, payload: dict[str, Any]) -> None:
        """Write a line."""
        self.number += 1
        self.lines.append({"timestamp": self.timestamp(), "type": kind, "payload": payload})

    def begin(self) -> None:
        """Write the session's first lines, as at its start and after it was resumed."""
        payload: dict[str, Any] = {"id": "made-up", "cwd": "/made-up", "cli_version": "0", "source": "cli"}
        if self.system:
            payload["base_instructions"] = {"text": self.system}
        if self.tools:
            payload["dynamic_tools"] = [{"name": name} for name in self.tools]
        self.line("session_meta", payload)
        self.line("turn_context", {"cwd": "/made-up", "model": self.model})

    def change_model(self, model: str) -> None:
        """Go on with another model."""
        self.model = model
        self.line("turn_context", {"cwd": "/made-up", "model": model})

    def item(self, text: str, **payload: Any) -> None:
        """Write an item of the history."""
        self.sent.append(text)
        self.line("response_item", payload)

    def user(self, text: str) -> None:
        """Write what the user says."""
        self.item(text, type="message", role="user", content=[{"type": "input_text", "text": text}])

    def answer(self, text: str, *, thinking: str = "", repeats: int = 1, result: str = "") -> None:
        """Call the model, and write its answer. With a result the answer is a call, whose result comes at once."""
        tools = "".join(json.dumps({"name": name}) for name in self.tools)
        prompt = self.head + tools + self.system + "".join(self.sent)
        num_tokens = len(prompt) // 4
        cached = self.provider.read(self.model, self.head, prompt, self.now.timestamp())
        self.wait(4)
        if thinking:
            self.item(thinking, type="reasoning", summary=[], encrypted_content=thinking)
        if result:
            self.item(f"exec {text}", type="function_call", name="exec", arguments=text, call_id="call_1")
            self.item(result, type="function_call_output", call_id="call_1", output=result)
        else:
            self.item(text, type="message", role="assistant", content=[{"type": "output_text", "text": text}])
        counts = {"input_tokens": num_tokens, "cached_input_tokens": cached, "output_tokens": len(text) // 4}
        self.totals = {name: self.totals[name] + counts[name] for name in counts}
        info = {"total_token_usage": self.totals, "last_token_usage": counts, "model_context_window": 200_000}
        for _ in range(repeats):
            self.line("event_msg", {"type": "token_count", "info": info, "rate_limits": None})

    def abort(self) -> None:
        """Stop an answer after its first call. It gets no count."""
        self.item("exec stop", type="function_call", name="exec", arguments="stop", call_id="call_1")
        self.line("event_msg", {"type": "turn_aborted", "reason": "interrupted"})

    def roll_back(self, num_turns: int) -> None:
        """Remove the last questions, each of which had one answer."""
        self.sent = self.sent[: -2 * num_turns]
        self.line("event_msg", {"type": "thread_rolled_back", "num_turns": num_turns})

    def turns(self, number: int, *, pause: float = 20, tokens: int = 200) -> None:
        """Let the user ask and the model answer, several times."""
        for _ in range(number):
            self.user(self.text(tokens))
            self.answer(self.text(tokens // 2))
            self.wait(pause)

    def compact(self, summary: str) -> None:
        """Replace the history by a summary."""
        content = [{"type": "input_text", "text": summary}]
        self.line(
            "compacted",
            {"message": "", "replacement_history": [{"type": "message", "role": "user", "content": content}]},
        )
        self.sent = [summary]


def example_of_claude_code() -> list[bytes]:
    """Return a morning: a loop of tools, a subagent, a long pause, a changed model, a compaction."""
    made = ClaudeCode(seed=1)
    made.user(made.text(60))
    for number in range(4):
        call = f"toolu_{number}"
        made.answer(text=made.text(12), calls=[call])
        made.result(call, made.text(300))
        made.wait(6)
    made.answer(text=made.text(90))
    made.wait(45)
    made.subagent("a1", 2)
    made.turns(2, tokens=120)
    made.wait(15 * 60)
    made.turns(3, tokens=160)
    made.change_head()
    made.turns(2, tokens=100)
    made.model = LARGE
    made.turns(2, tokens=100)
    made.compact(made.text(250))
    made.turns(2, tokens=80)
    return made.file()


def example_of_codex() -> list[bytes]:
    """Return an afternoon: tools in another order, a long pause, a clock in the system prompt, a compaction."""
    dice = random.Random(2)
    rules = words(dice, 700)
    clock = "It is 14:05 h. "
    tools = ["shell", "patch", "search", "images"]
    made = Codex(seed=2, system=f"{clock} {rules}", tools=[f"{name} {words(dice, 60)}" for name in tools])
    for _ in range(4):
        made.user(made.text(150))
        made.answer(made.text(12), result=made.text(350), repeats=2)
        made.wait(8)
        made.answer(made.text(80))
        made.wait(20)
    made.tools = made.tools[2:] + made.tools[:2]
    made.begin()
    made.turns(2)
    made.wait(20 * 60)
    made.turns(2)
    made.system = made.system.replace("14:05", "14:41")
    made.begin()
    made.turns(2)
    made.compact(made.text(300))
    made.turns(2)
    return made.file()


EXAMPLES = {"claude-code": example_of_claude_code, "codex": example_of_codex}

if __name__ == "__main__":
    for format_name, example in EXAMPLES.items():
        path: Path = example_path(format_name)
        path.write_bytes(b"".join(example()))
        print(path, path.stat().st_size)
