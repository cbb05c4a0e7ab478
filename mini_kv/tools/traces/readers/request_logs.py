"""Request logs of vLLM and of SGLang. A server's other lines between them are ignored.

By default neither server logs prompts. These options are needed:

    vLLM      --enable-log-requests, VLLM_LOGGING_LEVEL=DEBUG; --enable-log-outputs for the lengths of the answers
    SGLang    --log-requests --log-requests-level 3; --log-requests-format json or text

Lines of vLLM 0.33 (up to 0.11 the prompt was in the second line), and of SGLang 0.5:

    DEBUG 11-24 03:45:12 [...] Request cmpl-7-0 details: prompt: 'the', prompt_token_ids: [3, 17], prompt_embeds ...
    INFO 11-24 03:45:12 [...] Received request cmpl-7-0: params: SamplingParams(...), lora_request: None.
    DEBUG 11-24 03:45:13 [...] Generated response cmpl-7 details: output_token_ids: [5, 6, 9]
    [2026-11-24 03:45:12] Receive: obj=GenerateReqInput(rid='7', text=None, input_ids=[3, 17], ...)
    [2026-11-24 03:45:13] Finish: obj=GenerateReqInput(...), out={..., 'meta_info': {'completion_tokens': 3, ...}}
    {"timestamp": "2026-11-24T03:45:12.5", "event": "request.received", "rid": "7", "obj": {"input_ids": [3, 17], ...}}

vLLM's lines contain no salts and images: requests that differ only in these look equal here.

Source: vLLM `RequestLogger` (version 0.33), SGLang `RequestLogger` (version 0.5.23).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from mini_kv.tools.traces.readers.mooncake import json_object, quote
from mini_kv.tools.traces.readers.texts import Encoder
from mini_kv.tools.traces.readers.token_trace import TokenRequest, checked_tokens

LOGGING = {
    "vLLM": "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG",
    "SGLang": "--log-requests --log-requests-level 3",
}
"""What makes a server log its prompts, by engine."""
HOW_TO_LOG = f"vLLM logs prompts with {LOGGING['vLLM']}, SGLang with {LOGGING['SGLang']}"
_OUT_OF_STEP = 60_000
"""Milliseconds: the largest step back in time between two lines of one log, because a server has several processes."""
_CUT_TEXT, _CUT_HALF = "...", 1024
"""Number of characters that SGLang's level 2 keeps at each end of a long text."""

_STRING = r"""(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")"""
_IDS = r"(?:None|\[[\d, ]*\])"
_WORTH_READING = re.compile(
    rb"Request \S+ details|Received request|Generated response|(?:Receive|Finish): obj=|max_log_len"
)
_EVENT = re.compile(rb'(?:\[[^]]*\] )?(\{"timestamp": "[^"]*", "event": "request\..*)')
_MESSAGE = re.compile(
    r"Request (?P<details>\S+) details: prompt: "
    r"|Received request (?P<received>\S+): "
    r"|Generated response (?P<answered>\S+?)(?P<delta> \(streaming delta\))?(?: \(\S+ \S+\))?(?: details)?: output"
    r"|Receive: obj=(?P<receive>GenerateReqInput)\("
    r"|Finish: obj=(?P<finish>GenerateReqInput)\("
    r"|non-default args: .*'max_log_len': (?P<cut>\d+)"
    r"|Receive OpenAI: obj=|Request \S+ JSON body: "  # begin with what users wrote, and what follows is theirs
)
_ANSWER = re.compile(rf"(?:: {_STRING}, output)?_token_ids: (.*?)(?:, finish_reason|$)")
"""The text after `Generated response ... output`, if it has the tokens."""
_TIME = re.compile(r"(?<!\d)(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_FIELD = re.compile(rf"(?P<name>\w+)=(?P<value>{_STRING}|None|\[[\d, ]*\]|.)(?P<cut> \.\.\. )?|{_STRING}")
_NEEDED = ("rid", "text", "input_ids", "lora_path", "cache_salt", "extra_key", "image_data", "video_data", "audio_data")


@dataclass
class Logged:
    """A request, and the lengths of its answers, which are logged later."""

    request: TokenRequest
    answers: list[int]
    index: int
    """Index of the request's answer, if several prompts were sent together."""

    @property
    def timestamp(self) -> int:
        """Arrival, in ms since the first request."""
        return self.request.timestamp

    def complete(self) -> TokenRequest:
        """Return the request with the length of its answer, or 1 if the log does not contain it."""
        if not self.answers:
            return self.request
        return replace(self.request, output_length=self.answers[min(self.index, len(self.answers) - 1)])


class LogParser:
    """Parses a log line by line. A request is returned at the line that reports its arrival."""

    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder
        self._clock = _Clock()
        self._prompts: dict[str, Sequence[int]] = {}
        self._answers: dict[str, list[int]] = {}

    def __call__(self, raw: bytes) -> Logged | None:
        """Return the request in a line. Raises `ValueError` with the reason if it cannot be read."""
        if event := _EVENT.match(raw):
            return self._event(json_object(event[1]))
        if not _WORTH_READING.search(raw):
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: byte {error.start + 1} of the line") from None
        when = text
        if text.lstrip().startswith("{"):  # vLLM's formatter json
            fields = json_object(raw)
            text, when = str(fields.get("message")), str(fields.get("asctime"))
        match = _MESSAGE.search(text)
        if match is None:
            return None
        return self._message(match, text, when[: match.start()] if when is text else when)

    def _message(self, match: re.Match[str], text: str, when: str) -> Logged | None:
        """Handle the message of a line."""
        kind = match.lastgroup
        if kind == "details":
            self._prompts[match["details"]] = self._vllm_prompt(match["details"], text, match.end())
        elif kind == "received" and not match["received"].startswith("tokenize-"):
            return self._vllm_request(match["received"], text, match.end(), when)
        elif kind in ("answered", "delta"):
            self._vllm_answer(match, text)
        elif kind == "receive":
            return self._sglang_request(_sglang_fields(text, match.end()), when)
        elif kind == "finish":
            self._sglang_answer(_sglang_fields(text, match.end()).get("rid"), _last_count(text))
        elif kind == "cut":
            raise ValueError(f"the server cuts what it logs to {match['cut']} characters and tokens: --max-log-len")
        return None

    def _vllm_prompt(self, name: str, text: str, start: int) -> Sequence[int]:
        """Return the tokens of the prompt whose text begins at `start`."""
        match = re.compile(rf"(None|{_STRING}), ").match(text, start)
        ids = re.compile(rf"prompt_token_ids: ({_IDS})").search(text, text.rfind(", prompt_token_ids: "))
        if match is None or ids is None:
            raise ValueError("the line is cut: it has no prompt_token_ids")
        if ids[1] != "None":
            return checked_tokens(_integers(ids[1]), "prompt_token_ids")
        if match[1] == "None":
            raise ValueError("the prompt is embeddings, which have no tokens")
        # A chat's text has been through the template, which writes the special tokens itself.
        return self._encode(ast.literal_eval(match[1]), add_special_tokens=not name.startswith("chatcmpl-"))

    def _vllm_request(self, name: str, text: str, start: int, when: str) -> Logged:
        if text.startswith("prompt: ", start):  # vLLM up to 0.11: all in one line
            self._prompts[name] = self._vllm_prompt(name, text, start + len("prompt: "))
        if name not in self._prompts:
            raise ValueError(f"request {name} is logged without its prompt: start vLLM with VLLM_LOGGING_LEVEL=DEBUG")
        if re.compile(r", prompt_logprobs=\d").search(text, start):
            way_out = f"grep -v {name} FILE leaves it out"
            raise ValueError(f"request {name} asks for prompt_logprobs: vLLM looks up nothing for it; {way_out}")
        lora = re.compile(r"LoRARequest\(lora_name='([^']*)'").search(text, max(text.rfind("lora_request: "), 0))
        tokens = self._prompts.pop(name)
        return self._logged(name, tokens, when, lora_name=None if lora is None else lora[1])

    def _vllm_answer(self, match: re.Match[str], text: str) -> None:
        """Record the number of generated tokens, if the line has it. The parts of a stream are added up."""
        ids = _ANSWER.match(text, match.end())
        length = 0 if ids is None else len(_integers(ids[1]))
        answers = self._answers.setdefault(match["answered"], [])
        if match["delta"] and answers:
            answers[0] += length
        elif length:
            answers.append(length)

    def _event(self, fields: Mapping[str, Any]) -> Logged | None:
        """Handle a line of SGLang's JSON."""
        request = fields.get("obj")
        if not isinstance(request, dict):
            raise ValueError(f"obj is {quote(request)}: it must be an object")
        if fields["event"] == "request.received":
            return self._sglang_request(request, str(fields.get("timestamp")))
        if fields["event"] == "request.finished":
            self._sglang_answer(
                request.get("rid"), _member(_member(fields.get("out"), "meta_info"), "completion_tokens")
            )
        return None

    def _sglang_request(self, fields: Mapping[str, Any], when: str) -> Logged | None:
        if str(fields.get("rid")).startswith("HEALTH_CHECK"):
            return None
        for name in ("image_data", "video_data", "audio_data"):
            if fields.get(name):
                raise ValueError(f"the request has {name}: the log does not say how many tokens they take")
        salt = "/".join(str(fields[name]) for name in ("cache_salt", "extra_key") if fields.get(name))
        tokens = self._sglang_prompt(fields)
        lora_path = fields.get("lora_path")
        return self._logged(str(fields.get("rid")), tokens, when, lora_path and str(lora_path), salt or None)

    def _sglang_prompt(self, fields: Mapping[str, Any]) -> Sequence[int]:
        """Return the tokens of a prompt. Raises `ValueError` if it is missing, cut, or not a single prompt."""
        if "text" not in fields and "input_ids" not in fields:
            raise ValueError("the request is logged without its prompt: start SGLang with --log-requests-level 3")
        ids, text = fields.get("input_ids"), fields.get("text")
        if isinstance(ids, list) and ids and not isinstance(ids[0], list):
            if _CUT_TEXT in ids:
                raise ValueError("the prompt is cut: start SGLang with --log-requests-level 3")
            return checked_tokens(ids, "input_ids")
        if ids is None and isinstance(text, str):
            if len(text) == 2 * _CUT_HALF + len(_CUT_TEXT) and text[_CUT_HALF:-_CUT_HALF] == _CUT_TEXT:
                raise ValueError("the prompt is cut: start SGLang with --log-requests-level 3")
            return self._encode(text)
        raise ValueError("the request must be one prompt, a text or token ids: batches and embeddings are not read")

    def _sglang_answer(self, name: object, num_tokens: object) -> None:
        if type(num_tokens) is int:
            self._answers.setdefault(str(name), []).append(num_tokens)

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        if self._encoder is None:
            raise ValueError("the log has this prompt as a text only: say --tokenizer tokenizer.json")
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def _logged(
        self, name: str, tokens: Sequence[int], when: str, lora_name: str | None = None, salt: str | None = None
    ) -> Logged:
        if not tokens:
            raise ValueError("the prompt has no tokens")
        request = TokenRequest(self._clock.read(when), tuple(tokens), 1, salt, lora_name)
        together = re.fullmatch(r"(cmpl-.*)-(\d+)|(chatcmpl-.*)_(\d+)", name)
        if together is None:
            return Logged(request, self._answers.setdefault(name, []), 0)
        name, index = together[1] or together[3], together[2] or together[4]
        return Logged(request, self._answers.setdefault(name, []), int(index))


class _Clock:
    """Milliseconds since the first request, from the times at the beginning of lines."""

    def __init__(self) -> None:
        self._first: datetime | None = None
        self._last = 0

    def read(self, text: str) -> int:
        """Return the time at a line's beginning, or the previous time if it has none."""
        match = _TIME.search(text)
        if match is None:
            return self._last
        year, *numbers = match.groups(default="0")
        month, day, hour, minute, second = map(int, numbers[:5])
        # Lines of vLLM have no year; any with a 29 February does.
        moment = datetime(int(year) or 2000, month, day, hour, minute, second, int(numbers[5].ljust(6, "0")))
        self._first = self._first or moment
        elapsed = (moment - self._first) // timedelta(milliseconds=1)
        if elapsed < self._last - _OUT_OF_STEP:
            raise ValueError(f"the log goes back here, to {match[0]}: two logs in one, or a new year?")
        self._last = max(self._last, elapsed)
        return self._last


def _sglang_fields(text: str, start: int) -> dict[str, Any]:
    """Return the fields of a request as SGLang prints it. Raises `ValueError` if the prompt is cut."""
    fields: dict[str, Any] = {}
    for match in _FIELD.finditer(text, start):
        name, value = match["name"], match["value"]
        if name not in _NEEDED or name in fields:
            continue
        if match["cut"]:
            raise ValueError("the prompt is cut: start SGLang with --log-requests-level 3")
        fields[name] = ast.literal_eval(value) if len(value) > 1 else [[value]]
    return fields


def _last_count(text: str) -> int | None:
    """Return the number of tokens in a request's `meta_info`, which is after the model's text."""
    counts = re.findall(r"'completion_tokens': (\d+)", text[text.rfind("'meta_info': ") :])
    return int(counts[-1]) if counts else None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _integers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
