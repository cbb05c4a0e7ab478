"""Checks prompts and converts them to token ids. Each error names the faulty prompt."""

from collections.abc import Sequence

from mini_kv.core.errors import ConfigError, KVCacheError
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.detokenizer import TextTokenizer
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.sampling import SamplingParams

Prompt = str | Sequence[int]


class PromptError(KVCacheError, ValueError):
    """A prompt that the model cannot read: empty, too long, of the wrong type, or with unknown token ids."""


def check_request(
    config: EngineConfig,
    tokenizer: TextTokenizer | None,
    request_id: str,
    params: SamplingParams,
    n: int,
    cache_salt: str | None,
) -> None:
    """Raise `ConfigError` for a request that the engine cannot serve."""
    if cache_salt is None and config.multi_tenant:
        raise ConfigError(f"request {request_id!r} has no cache_salt, and the engine is multi_tenant")
    if n < 1:
        raise ConfigError(f"n of request {request_id!r} is {n}, it must be at least 1")
    if params.stop and tokenizer is None:
        raise ConfigError(f"request {request_id!r} has a stop text, but the engine has no tokenizer")


def prompt_token_ids(request_id: str, prompt: Prompt, model: CausalLM, tokenizer: TextTokenizer | None) -> list[int]:
    """Return the prompt as token ids of the model. Raises `PromptError`."""
    prompt_of = f"the prompt of request {request_id!r}"
    if isinstance(prompt, str):
        prompt = _encoded(prompt_of, prompt, tokenizer)
    if not _is_list(prompt):
        raise PromptError(f"{prompt_of} is {type(prompt).__name__}: it must be text or a list of token ids")
    token_ids = list(prompt)
    if not token_ids:
        raise PromptError(f"{prompt_of} is empty: there is nothing to continue")
    if len(token_ids) >= model.max_position_embeddings:
        message = f"{prompt_of} has {len(token_ids)} tokens"
        raise PromptError(f"{message}; the model reads at most {model.max_position_embeddings}, answer included")
    for index, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise PromptError(f"token {index} of request {request_id!r} is {token_id!r}, which is not an integer")
        if not 0 <= token_id < model.vocab_size:
            message = f"token {index} of request {request_id!r} is {token_id}"
            raise PromptError(f"{message}; the model knows 0 to {model.vocab_size - 1}")
    return token_ids


def _encoded(prompt_of: str, prompt: str, tokenizer: TextTokenizer | None) -> list[int]:
    if tokenizer is None:
        raise PromptError(f"{prompt_of} is text, and there is no tokenizer")
    try:
        return tokenizer.encode(prompt)
    except UnicodeEncodeError as error:
        raise PromptError(f"{prompt_of} is not a text: {error}") from None


def params_per_prompt(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    """Return the parameters of each prompt. Raises `PromptError` or `ConfigError` if they do not fit."""
    if isinstance(prompts, str):
        raise PromptError(f"prompts is a string, not a list of them: write [{prompts!r}]")
    if not _is_list(prompts):
        kind = type(prompts).__name__
        raise PromptError(f"prompts is {kind}: it must be a list, of texts or of lists of token ids")
    if not isinstance(params, Sequence):
        params = [params or SamplingParams()] * len(prompts)
    if len(params) != len(prompts):
        raise ConfigError(f"there are {len(prompts)} prompts and {len(params)} params")
    return params


def _is_list(value: object) -> bool:
    """Return whether this is a sequence of items. Bytes do not count: their items are numbers, but they are a text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
