"""From the token that was chosen to what the user is told: text, and why it ended.

Source: vLLM `OutputProcessor` (v1/engine/output_processor.py) and outputs.py.
"""

from dataclasses import dataclass, field

from mini_kv.engine.detokenizer import IncrementalDetokenizer
from mini_kv.engine.sampling import SamplingParams, draw


@dataclass(frozen=True, slots=True)
class DeltaOutput:
    """One step's new text of one sample."""

    request_id: str
    index: int
    """Index of the sample among the request's samples."""
    new_token_ids: list[int]
    new_text: str
    """Text that may be shown from now on; "" while a character, or what may be a stop string, is not whole yet."""
    finish_reason: str | None = None
    """`"stop"`, `"length"`, or `None` while it goes on."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample. Source: vLLM `CompletionOutput`."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    """Its tokens, the one that ended it included."""
    text: str = ""
    """Its text, without the stop string or end token that ended it."""
    finish_reason: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """All samples of one prompt. Source: vLLM `RequestOutput`."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int | None = None
    """Tokens of the prompt that were found in the cache; `None`: the engine does not tell (`multi_tenant`)."""


@dataclass(slots=True)
class RequestState:
    """A request's state that all of its samples share."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: object
    stop_token_ids: frozenset[int]
    priority: int
    cache_salt: str | None
    num_cached_tokens: int | None = None
    """Tokens of the prompt that were found in the cache when it was first admitted; `None`: not yet, or not to tell."""


@dataclass(slots=True)
class SampleState:
    """One text on its way. The first sample of a request carries the others until the prompt is computed."""

    request: RequestState
    index: int
    detokenizer: IncrementalDetokenizer | None
    num_tokens: int = 0
    """Tokens that were chosen for it."""
    num_shown: int = 0
    """Characters that were shown."""
    waiting_samples: list["SampleState"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The sample's request id in scheduler and runner."""
        return sample_name(self.request.request_id, self.index)

    def draw(self) -> float:
        """Return the number that decides its next token."""
        if self.request.params.temperature == 0:
            return 0.0
        return draw(self.request.seed, self.index, self.num_tokens)

    def take(self, token_id: int, finish_reason: str | None) -> DeltaOutput:
        """Take in a token, and the scheduler's word on whether it is the last; return what may be told.

        A token that ends the text is no part of it. A stop string may end what the scheduler would let go on.
        """
        self.num_tokens += 1
        new_text = ""
        if self.detokenizer is not None:
            if token_id not in self.request.stop_token_ids and self.detokenizer.append(token_id):
                finish_reason = "stop"
            elif finish_reason is not None:
                self.detokenizer.finish()
            new_text = self.detokenizer.text[self.num_shown :]
            self.num_shown += len(new_text)
        return DeltaOutput(self.request.request_id, self.index, [token_id], new_text, finish_reason)


def sample_name(request_id: str, index: int) -> str:
    """Return a sample's request id in scheduler and runner; the first sample has the request's own."""
    return f"{request_id}/{index}" if index else request_id
