"""From the chosen tokens to the client's output: text, and the finish reason.

Source: vLLM `OutputProcessor` (v1/engine/output_processor.py) and outputs.py.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mini_kv.engine.detokenizer import IncrementalDetokenizer
from mini_kv.engine.logprobs import LogprobsOnePosition
from mini_kv.engine.sampling import SamplingParams, draw


@dataclass(frozen=True, slots=True)
class DeltaOutput:
    """One step's new text of one sample."""

    request_id: str
    index: int
    """Index of the sample among the request's samples."""
    new_token_ids: list[int]
    new_text: str
    """New text that may be shown. "" while a character, or a possible stop string, is incomplete."""
    finish_reason: str | None = None
    """`"stop"`, `"length"`, or `None` while the sample is unfinished."""
    logprobs: LogprobsOnePosition | None = None
    """Log probabilities of the new token, if requested."""
    num_cached_tokens: int | None = None
    """Cached tokens of the request's prompt. See `RequestOutput`."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample. Source: vLLM `CompletionOutput`."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    """Its tokens, the one that ended it included."""
    text: str = ""
    """Its text, without the stop string or end token that ended it."""
    finish_reason: str | None = None
    """`"stop"`: a stop token or a stop string. `"length"`: no more tokens were requested, or none fit."""
    logprobs: list[LogprobsOnePosition] | None = None
    """Log probabilities of each of `token_ids`, or `None` if not requested."""
    cumulative_logprob: float | None = None
    """The sum of the chosen tokens' log probabilities: the logarithm of the whole text's probability."""

    def take(self, delta: DeltaOutput) -> None:
        """Add the new tokens and text."""
        self.token_ids += delta.new_token_ids
        self.text += delta.new_text
        self.finish_reason = delta.finish_reason
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), delta.logprobs]
            chosen = next(iter(delta.logprobs.values()))
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + chosen.logprob


@dataclass(slots=True)
class RequestOutput:
    """All samples of one prompt. Source: vLLM `RequestOutput`."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int | None = None
    """Tokens of the prompt that were found in the cache. `None`: the engine keeps it secret (`multi_tenant`)."""
    prompt: str | None = None
    """The prompt as text, or `None` if it was given as token ids."""

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(completion.finish_reason is not None for completion in self.outputs)


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
    """Tokens of the prompt that were found in the cache at the first admission. `None`: not yet, or secret."""
    prompt: str | None = None
    all_stop_token_ids: frozenset[int] = frozenset()
    """The tokens in `stop_token_ids`, and the model's end tokens, even if the request ignores these."""


@dataclass(slots=True)
class SampleState:
    """One unfinished text. The other samples of a request wait in its first one until the prompt is computed."""

    request: RequestState
    index: int
    detokenizer: IncrementalDetokenizer | None
    num_tokens: int = 0
    """Number of tokens that were sampled for it."""
    num_shown: int = 0
    """Number of characters that were shown."""
    waiting_samples: list["SampleState"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The sample's request id in scheduler and runner."""
        return sample_name(self.request.request_id, self.index)

    def draw(self, ahead: int = 0) -> float:
        """Return the random number for its next token, or for a later place."""
        if self.request.params.temperature == 0:
            return 0.0
        return draw(self.request.seed, self.index, self.num_tokens + ahead)

    def forbidden_token_ids(self, ahead: int = 0) -> frozenset[int]:
        """Return the forbidden tokens at this place: those that end a text, before it has its `min_tokens`."""
        is_early = self.num_tokens + ahead < self.request.params.min_tokens
        return self.request.all_stop_token_ids if is_early else frozenset()

    def take(
        self, token_id: int, finish_reason: str | None, logprobs: LogprobsOnePosition | None = None
    ) -> DeltaOutput:
        """Add a token, with the scheduler's finish reason. Return the new output.

        A token that ends the text is not part of it. A stop string may end a text that the scheduler would continue.
        """
        self.num_tokens += 1
        new_text = ""
        if self.detokenizer is not None:
            may_stop = self.num_tokens > self.request.params.min_tokens
            is_text = token_id not in self.request.stop_token_ids
            if is_text and self.detokenizer.append(token_id, may_stop=may_stop):
                finish_reason = "stop"
            elif finish_reason is not None:
                self.detokenizer.finish()
            new_text = self.detokenizer.text[self.num_shown :]
            self.num_shown += len(new_text)
        name, num_cached_tokens = self.request.request_id, self.request.num_cached_tokens
        return DeltaOutput(name, self.index, [token_id], new_text, finish_reason, logprobs, num_cached_tokens)


def places_of(
    request_ids: Sequence[str], samples: Mapping[str, SampleState]
) -> tuple[list[tuple[SampleState, int]], list[int]]:
    """Return the places that need a token, each with its row of logits. Samples that wait for the prompt start here.

        request_ids    B         B          C          B has a draft; C's prompt is computed, two samples begin
        places         B, 0      B, 1       C, 0   C/1, 0
        rows           0         1          2      2

    A place is a sample and the distance from its next token.
    """
    places: list[tuple[SampleState, int]] = []
    rows: list[int] = []
    num_rows = Counter[str]()
    for row, name in enumerate(request_ids):
        first = samples[name]
        begin, first.waiting_samples = first.waiting_samples, []
        places += [(first, num_rows[name]), *((sample, 0) for sample in begin)]
        rows += [row] * (1 + len(begin))
        num_rows[name] += 1
    return places, rows


@dataclass(slots=True)
class Chosen:
    """The chosen tokens of one sample in one step: one token, and one more per right draft."""

    sample: SampleState
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOnePosition | None] = field(default_factory=list)
    """Of each token."""
    finish_reason: str | None = None

    def keep(self, num_tokens: int) -> None:
        """Remove all but the first tokens."""
        del self.token_ids[num_tokens:], self.logprobs[num_tokens:]

    def deltas(self) -> list[DeltaOutput]:
        """Add the tokens to the sample, one after the other, up to the one that ends its text."""
        deltas: list[DeltaOutput] = []
        for place, (token_id, logprobs) in enumerate(zip(self.token_ids, self.logprobs, strict=True), start=1):
            reason = self.finish_reason if place == len(self.token_ids) else None
            deltas.append(self.sample.take(token_id, reason, logprobs))
            if deltas[-1].finish_reason is not None:
                break
        return deltas


def sample_name(request_id: str, index: int) -> str:
    """Return a sample's request id in scheduler and runner. The first sample has the request's own id."""
    return f"{request_id}/{index}" if index else request_id


def collect(requests: Sequence[RequestState], n: int, deltas: Iterable[DeltaOutput]) -> list[RequestOutput]:
    """Return the outputs of requests with n samples each, collected from all their steps."""
    completions = {request.request_id: [CompletionOutput(index) for index in range(n)] for request in requests}
    for delta in deltas:
        completions[delta.request_id][delta.index].take(delta)
    return [
        RequestOutput(
            request.request_id,
            request.prompt_token_ids,
            completions[request.request_id],
            request.num_cached_tokens,
            request.prompt,
        )
        for request in requests
    ]
