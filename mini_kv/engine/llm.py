"""The whole engine in two lines: load a model's folder and generate texts.

    from mini_kv import LLM
    print(LLM("path/to/checkpoint").generate("A block is free when")[0].outputs[0].text)

Source: vLLM 0.33 `LLM` (entrypoints/llm.py). `mini_kv.engine.config.NOT_HERE` lists the options that we do not have.
"""

import importlib.util
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_planning import blocks_per_request, bytes_per_block, get_kv_cache_groups, with_cache_dtype
from mini_kv.engine.config import DEFAULT_KV_CACHE_MEMORY, EngineConfig
from mini_kv.engine.hf.hf_tokenizer import HuggingFaceTokenizer
from mini_kv.engine.output_processor import RequestOutput
from mini_kv.engine.prompt_tokens import Prompt, PromptError
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine, open_engine
from mini_kv.installer import install_extra

if TYPE_CHECKING:
    from mini_kv.engine.detokenizer import TextTokenizer
    from mini_kv.engine.interface import CausalLM

Message = Mapping[str, Any]
"""One turn of a conversation: `{"role": "user", "content": "..."}`, and other fields of the template."""
Prompts = Prompt | Mapping[str, Any] | Sequence[Prompt | Mapping[str, Any]]
"""One prompt or several: a text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""

MOST_MEMORY = 4 << 30
"""The most bytes of KV memory by default: the default of vLLM on a CPU (`VLLM_CPU_KVCACHE_SPACE`)."""


class LLM:
    """A model, its tokenizer and an engine: turns prompts into texts. Source: vLLM `LLM` (entrypoints/llm.py)."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: str = "auto",
        device: str = "cpu",
        untested: bool = False,
        parts: Mapping[str, Any] | None = None,
        **engine_args: Any,
    ) -> None:
        """Load a checkpoint and allocate its pool.

        Args:
            model: a folder on this machine. Nothing is downloaded. `None`: the small model of the package.
            dtype: to compute in, `"float32"` for instance. `"auto"`: the checkpoint's own. In `"bfloat16"`, the form
                of most published models, the text may differ from the text of transformers: the chapter *from prompt
                to text* explains the reason.
            device: of model and blocks.
            untested: whether to run an architecture that no test has compared with transformers.
            parts: parts of `LLMEngine` that replace its own, `make_manager` for instance.
            engine_args: sizes and limits by vLLM's names. See `EngineConfig.from_engine_args`. If none gives the size
                of the pool, it holds one text of the model's full length: at least 64 MiB, at most 4 GiB.

        Raises:
            CheckpointError: the folder cannot be used. The message names the file.
            ConfigError: a size cannot work, or an option is not known.
        """
        config = EngineConfig.from_engine_args(**engine_args)
        folder = Path(model) if model is not None else None
        loaded, tokenizer = load(folder, dtype=dtype, device=device, untested=untested)
        if config.num_blocks is None and config.kv_cache_memory_bytes is None:
            config = replace(config, kv_cache_memory_bytes=_memory_for_one_text(loaded, config))
        self.llm_engine = open_engine(loaded, tokenizer, config, **(parts or {}))
        if isinstance(self.llm_engine, TieredEngine):
            self._close = weakref.finalize(self, self.llm_engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing to the tiers and release disk and server. Without tiers, do nothing.

        Happens automatically when the object is deleted or the process ends.
        """
        if isinstance(self.llm_engine, TieredEngine):
            self._close()

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest text, prompt and answer: the model's limit, or the configured one if it is smaller."""
        return self.llm_engine.config.scheduler.max_model_len

    def get_tokenizer(self) -> "TextTokenizer | None":
        """Return the tokenizer, or `None` if the checkpoint has none. Then prompts are token ids."""
        return self.llm_engine.tokenizer

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Return the output for each prompt, in the prompts' order.

        Args:
            prompts: one or several.
            sampling_params: one for all prompts, or one per prompt. `None`: the defaults of `SamplingParams`.
            n: samples of each prompt.
            cache_salt: of all prompts. Only requests with the same salt share blocks.

        Raises `PromptError` for a prompt that the model cannot read, and `ConfigError` for parameters that cannot work.
        In both cases no prompt has run.
        """
        plain = [_plain(prompt) for prompt in _as_list(prompts)]
        return self.llm_engine.generate(plain, self._params(sampling_params), n=n, cache_salt=cache_salt)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        n: int = 1,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Return the output for each conversation. The outputs' `prompt` is the text that the model read.

        Args:
            messages: one conversation, a list of messages, or a list of conversations.
            sampling_params: as in `generate`.
            chat_template: replaces the tokenizer's own template. It runs in Jinja's sandbox.
            add_generation_prompt: whether the text ends where the assistant's turn begins.
            n: as in `generate`.
            cache_salt: as in `generate`.

        Raises:
            ConfigError: the tokenizer has no template and none is given, or jinja2 is not installed.
            PromptError: the messages are not a conversation, or the template refuses them.
        """
        conversations: Any = [messages] if _is_conversation(messages) else messages
        prompts = chat_prompts(self.llm_engine.tokenizer, conversations, chat_template, add_generation_prompt)
        plain = [token_ids for _, token_ids in prompts]
        outputs = self.llm_engine.generate(plain, self._params(sampling_params), n=n, cache_salt=cache_salt)
        for output, (text, _) in zip(outputs, prompts, strict=True):
            output.prompt = text
        return outputs

    def _params(
        self, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> SamplingParams | Sequence[SamplingParams]:
        """Return the parameters, with all tokens that end the model's texts: a chat model has several."""
        more: tuple[int, ...] = getattr(self.llm_engine.model, "eos_token_ids", ())

        def complete(choice: SamplingParams) -> SamplingParams:
            return choice if choice.ignore_eos else replace(choice, stop_token_ids=(*choice.stop_token_ids, *more))

        if isinstance(params, Sequence):
            return [complete(choice) for choice in params]
        return complete(params or SamplingParams())


def chat_prompts(
    tokenizer: "TextTokenizer | None",
    conversations: Sequence[Sequence[Message]],
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
) -> list[tuple[str, list[int]]]:
    """Return each conversation as the model's input text, and as its tokens. For the arguments see `LLM.chat`."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise ConfigError("this is not a chat model: its tokenizer has no chat template")
    texts = [tokenizer.apply_chat_template(each, chat_template, add_generation_prompt) for each in conversations]
    return [(text, tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def load(
    folder: Path | None, *, dtype: str = "auto", device: str = "cpu", untested: bool = False
) -> "tuple[CausalLM, TextTokenizer | None]":
    """Return model and tokenizer: ours, or any that transformers reads, if it is installed.

    Arguments and errors are those of `LLM`. Our own small model computes in float32 by default.
    """
    from mini_kv.engine.checkpoint import load_model, tiny_folder
    from mini_kv.engine.errors import CheckpointError

    number_type = _dtype(dtype)
    try:
        small, tokenizer = load_model(folder or tiny_folder(), number_type or torch.float32)
        return small.to(torch.device(device)), tokenizer
    except CheckpointError as error:
        if folder is None or not folder.is_dir():
            raise
        if importlib.util.find_spec("transformers") is None:
            advice = f"More kinds are read with the extra hf: {install_extra('hf')}"
            raise ConfigError(f"{error}. {advice}") from None
    from mini_kv.engine.hf.hf_checkpoint import load_huggingface

    return load_huggingface(folder, dtype=number_type, device=device, untested=untested)


def _dtype(name: str) -> torch.dtype | None:
    """Return the dtype of that name, or `None` for "auto"."""
    from mini_kv.engine.hf.hf_model import DTYPES

    if name == "auto":
        return None
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}, it must be auto or one of {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _memory_for_one_text(model: "CausalLM", config: EngineConfig) -> int:
    """Return the bytes of a pool that holds one text of full length, within bounds."""
    groups = get_kv_cache_groups(with_cache_dtype(model.get_kv_cache_spec(config.block_size), config.kv_cache_dtype))
    length = min(config.scheduler.max_model_len, model.max_position_embeddings)
    num_blocks = 1 + blocks_per_request(groups, length, config.scheduler.max_num_batched_tokens)
    return min(max(num_blocks * bytes_per_block(groups), DEFAULT_KV_CACHE_MEMORY), MOST_MEMORY)


def _as_list(prompts: Prompts) -> Sequence[Prompt | Mapping[str, Any]]:
    """Return a list of prompts. A single prompt becomes a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    is_list = isinstance(prompts, Sequence) and not isinstance(prompts, bytes | bytearray | memoryview)
    if not is_list:
        raise PromptError(f"prompts is {type(prompts).__name__}: it must be a text, token ids, or a list of these")
    if prompts and all(type(token_id) is int for token_id in prompts):
        return [prompts]  # type: ignore[list-item]  # token ids
    return prompts  # type: ignore[return-value]


def _plain(prompt: Prompt | Mapping[str, Any]) -> Prompt:
    """Return the content of a prompt of vLLM's forms `TextPrompt` and `TokensPrompt` (inputs/)."""
    if not isinstance(prompt, Mapping):
        return prompt
    for key in ("prompt_token_ids", "prompt"):
        if key in prompt:
            inside: Prompt = prompt[key]
            return inside
    raise PromptError(f"a prompt has the keys {sorted(prompt)}, it must have prompt or prompt_token_ids")


def _is_conversation(messages: Any) -> bool:
    """Return whether this is one conversation. Otherwise it must be a list of conversations."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        kind = type(messages).__name__
        raise PromptError(f"messages is {kind}: it must be a list of messages, or of such lists, and not empty")
    return isinstance(messages[0], Mapping)
