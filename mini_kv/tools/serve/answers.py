"""Bodies of answers in OpenAI's shapes: whole answers, and the chunks of a stream.

Source: OpenAI's API reference, "Completions" and "Chat", as vLLM 0.33 fills it in (entrypoints/openai).
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from mini_kv.engine.logprobs import Logprob, LogprobsOnePosition
from mini_kv.engine.output_processor import CompletionOutput, DeltaOutput
from mini_kv.tools.serve.engine_loop import Ticket

LEAST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have. Source: vLLM, the same number."""

Json = dict[str, Any]


@dataclass
class Answer:
    """The answer to one request of one or several prompts, as it grows."""

    is_chat: bool
    model: str
    tickets: Sequence[Ticket]
    include_usage: bool
    tells_cached: bool
    """Whether the answer reports how many prompt tokens were in the cache."""
    created: int = field(default_factory=lambda: int(time.time()))
    num_cached_tokens: int = 0
    num_generated: int = 0

    def __post_init__(self) -> None:
        self.answer_id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.choices = [CompletionOutput(index) for ticket in self.tickets for index in range(ticket.n)]
        firsts = accumulate((ticket.n for ticket in self.tickets), initial=0)
        self._places = dict(zip((ticket.request_id for ticket in self.tickets), firsts, strict=False))
        self.mailbox = self.tickets[0].mailbox
        self.num_open = len(self.choices)
        self._begun: set[str] = set()
        self._num_chars = [0] * len(self.choices)

    def take(self, delta: DeltaOutput) -> int:
        """Add the new tokens of a request, and return the index of their choice."""
        place = self._places[delta.request_id] + delta.index
        if delta.request_id not in self._begun:
            self._begun.add(delta.request_id)
            self.num_cached_tokens += delta.num_cached_tokens or 0
        self.num_generated += len(delta.new_token_ids)
        self.num_open -= delta.finish_reason is not None
        self.choices[place].take(delta)
        return place

    def whole(self) -> Json:
        """Return the whole answer, once all its choices have ended."""
        return {
            **self._head(chunk=False),
            "choices": list(map(self._choice, range(len(self.choices)))),
            "usage": self.usage(),
        }

    def chunk(self, place: int, delta: DeltaOutput) -> Json | None:
        """Return a chunk of a stream, or `None` if the delta has no text, no logprobs and no end."""
        if not (delta.new_text or delta.finish_reason or delta.logprobs):
            return None
        logprobs = None if delta.logprobs is None else self._logprobs([delta.logprobs], self._num_chars[place])
        self._num_chars[place] += len(delta.new_text)
        told = {"delta": {"content": delta.new_text}} if self.is_chat else {"text": delta.new_text}
        return self._chunk([{"index": place, **told, "logprobs": logprobs, "finish_reason": delta.finish_reason}])

    def opening(self) -> list[Json]:
        """Return the chunks before the first token. In a chat they contain the role of the speaker."""
        role = {"role": "assistant", "content": ""}
        places = range(len(self.choices)) if self.is_chat else ()
        return [self._chunk([{"index": i, "delta": role, "logprobs": None, "finish_reason": None}]) for i in places]

    def closing(self) -> list[Json]:
        """Return the chunks after the last token: the token counts, if the client asked for them."""
        return [{**self._head(chunk=True), "choices": [], "usage": self.usage()}] if self.include_usage else []

    def usage(self) -> Json:
        """Return the request's numbers of tokens: prompt, answer, cached."""
        num_prompt_tokens = sum(len(ticket.prompt_token_ids) for ticket in self.tickets)
        details = {"cached_tokens": self.num_cached_tokens} if self.tells_cached else None
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self.num_generated,
            "total_tokens": num_prompt_tokens + self.num_generated,
            "prompt_tokens_details": details,
        }

    def _head(self, *, chunk: bool) -> Json:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.is_chat else "text_completion"
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head(chunk=True), "choices": choices, **({"usage": None} if self.include_usage else {})}

    def _choice(self, place: int) -> Json:
        done = self.choices[place]
        told = {"message": {"role": "assistant", "content": done.text}} if self.is_chat else {"text": done.text}
        logprobs = None if done.logprobs is None else self._logprobs(done.logprobs, 0)
        return {"index": place, **told, "logprobs": logprobs, "finish_reason": done.finish_reason}

    def _logprobs(self, positions: Sequence[LogprobsOnePosition], offset: int) -> Json:
        """Return log probabilities in the shape of a chat or of a completion. `offset`: number of characters before."""
        rows = [list(position.values()) for position in positions]
        if self.is_chat:
            return {"content": [{**_token(row[0]), "top_logprobs": list(map(_token, _likeliest(row)))} for row in rows]}
        tokens = [row[0].decoded_token or "" for row in rows]
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(row[0].logprob) for row in rows],
            "top_logprobs": [{each.decoded_token or "": _finite(each.logprob) for each in row} for row in rows],
            "text_offset": [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))],
        }


def _likeliest(row: list[Logprob]) -> list[Logprob]:
    """Return the tokens that the client asked for, best first. `row[0]` is the chosen token. It may be one of them."""
    return sorted(row[1:] if len(row) > 1 and row[0].rank > len(row) - 1 else row, key=lambda each: each.rank)


def _token(each: Logprob) -> Json:
    text = each.decoded_token or ""
    return {"token": text, "logprob": _finite(each.logprob), "bytes": list(text.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
