"""A request whose prompt is known token by token, so that it can be cut into blocks of any size."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request of a trace of tokens; the fields that it shares with `TraceRequest` mean the same."""

    timestamp: int
    """Arrival, in ms since the trace began."""
    token_ids: tuple[int, ...]
    """The prompt, at least 1 token."""
    output_length: int
    """Tokens of the answer."""
    cache_salt: str | None = None
    """Requests with different salts share no block (vLLM `Request.cache_salt`)."""
    lora_name: str | None = None
    """The adapter: requests with different ones share no block."""
    images: tuple[tuple[int, int, str], ...] = ()
    """Per image the position of its first token, how many tokens it has, and the digest of its content."""
    texts: tuple[str, ...] = ()
    """What the tokens were made of, one text per message, if the file said so; for explanations alone."""

    @property
    def input_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)
