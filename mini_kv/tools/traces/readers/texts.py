"""Traces of texts: a line per request, with the prompt as text or as the messages of a chat.

    {"prompt": "the cache", "timestamp": 27482, "output_length": 52}
    {"messages": [{"role": "user", "content": "the cache"}], "tools": [...], "cache_salt": "a"}
    {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The first field is required. For the other fields see `token_trace`, and for a chat `chats`. `output_tokens` is another
name of `output_length`, that of `vllm bench serve --dataset-name custom`. The third form is that of the batch files of
OpenAI's service and `vllm run-batch`.

Fields of a request that affect its answer alone are ignored. A request for a second model is refused, because two
models share no KV.

Source of the fields: vLLM `ChatCompletionRequest` and `CompletionRequest` (version 0.33).
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mini_kv.core.errors import ConfigError
from mini_kv.tools.traces.readers.chats import NOT_READ, Chat, flag, read_chat, refuse_unread
from mini_kv.tools.traces.readers.mooncake import json_object, quote, refuse_other_fields
from mini_kv.tools.traces.readers.token_trace import FIELDS, TokenRequest, request_of

NO_ENCODER = "its prompts are texts, and a replay needs tokens: give --tokenizer tokenizer.json"
_PROMPT = (
    *("prompt", "messages", "model", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    *("chat_template_kwargs", "reasoning_effort", "add_special_tokens", "output_tokens", "n"),
)
"""Fields that are read here and in `chats`, besides those of `token_trace`."""
_ANSWER = (
    *("allowed_token_ids", "bad_words", "best_of", "frequency_penalty", "ignore_eos", "include_reasoning"),
    *("include_stop_str_in_output", "length_penalty", "logit_bias", "logprob_token_ids", "logprobs"),
    *("max_completion_tokens", "max_tokens", "min_p", "min_tokens", "parallel_tool_calls", "presence_penalty"),
    *("priority", "repetition_detection", "repetition_penalty", "request_id", "response_format"),
    *("return_prompt_text", "return_token_ids", "return_token_offsets", "return_tokens_as_token_ids"),
    *("return_weight_versions", "seed", "session_id", "skip_special_tokens", "spaces_between_special_tokens", "stop"),
    *("stop_token_ids", "stream", "stream_interval", "stream_options", "structured_outputs", "temperature"),
    *("thinking_token_budget", "tool_choice", "top_k", "top_logprobs", "top_p", "truncation_side", "user"),
    *("vllm_xargs", "watermarking", "metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store"),
)
"""Fields that do not change the prompt, of vLLM's requests and, in the end, of OpenAI's that vLLM ignores."""
_BATCH = ("custom_id", "method", "url", "body")


class Encoder(Protocol):
    """Converts prompts to tokens: `PromptTokenizer`, or another class."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        """Return the tokens of a prompt of text, by default with those that the model expects around it."""

    def encode_chat(self, chat: Chat) -> Sequence[int]:
        """Return the tokens of a chat up to the beginning of the answer."""


def text_parser(encoder: Encoder | None) -> Callable[[bytes], TokenRequest]:
    """Return a parser of the lines of one file. Raises `ConfigError` if there is no encoder."""
    if encoder is None:
        raise ConfigError(NO_ENCODER)
    first: dict[str, object] = {}

    def parse(raw: bytes) -> TokenRequest:
        fields, place = json_object(raw), ""
        if isinstance(fields.get("body"), dict):
            refuse_other_fields(fields, _BATCH)
            fields, place = fields["body"], ".body"
        refuse_other_fields(fields, (*_PROMPT, *_ANSWER, *FIELDS, *NOT_READ), place)
        if fields.get("n") not in (None, 1):
            raise ValueError(f"n is {quote(fields['n'])}: a server makes n requests of it, so write n lines without it")
        model = fields.get("model")
        check_model(model, first.setdefault("model", model), place)
        if "output_tokens" in fields:
            fields["output_length"] = fields["output_tokens"]
        return request_of(fields, _encode(fields, encoder, place))

    return parse


def check_model(model: object, first: object, place: str) -> None:
    """Raise `ValueError` if a request is for another model than the first one."""
    if model != first:
        program = shlex.quote(f"select({place}.model == {json.dumps(first)})")
        raise ValueError(
            f"model is {quote(model)}, and the first request's {quote(first)}: two models share no KV;"
            f" jq -c {program} FILE takes one model's requests, jq -c 'del({place}.model)' FILE sends all to one"
        )


def _encode(fields: Mapping[str, Any], encoder: Encoder, place: str) -> Sequence[int]:
    """Return the tokens of a prompt. Raises `ValueError` with the error."""
    if "messages" in fields:
        chat = read_chat(fields)
        is_meant = "add_generation_prompt" in fields or "continue_final_message" in fields
        if chat.messages[-1]["role"] == "assistant" and not is_meant:
            raise ValueError(
                "messages ends with an answer, as in training data:"
                f" jq -c '{place}.messages |= .[:-1]' FILE removes the last one;"
                " a request that ends so says add_generation_prompt or continue_final_message"
            )
        return encoder.encode_chat(chat)
    refuse_unread(fields)
    prompt = fields.get("prompt")
    if isinstance(prompt, list):
        program = f"{place or '.'} | .token_ids = .prompt | del(.prompt)"
        way_out = f"token ids are read as token_ids, and jq -c '{program}' FILE writes them so"
        raise ValueError(f"prompt is {quote(prompt)}: {way_out}")
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is {quote(prompt)}: it must be a text, or else there are messages")
    return encoder.encode(prompt, add_special_tokens=flag(fields, "add_special_tokens", default=True))
