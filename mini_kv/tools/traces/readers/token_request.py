"""A request with a prompt of known tokens, so that it can be split into blocks of any size."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request of a trace of tokens. Fields that `TraceRequest` also has have the same meaning."""

    timestamp: int
    """Arrival, in ms since the trace began."""
    token_ids: tuple[int, ...]
    """The prompt, at least 1 token."""
    output_length: int
    """Tokens of the answer."""
    cache_salt: str | None = None
    """Requests with different salts share no block (vLLM `Request.cache_salt`)."""
    lora_name: str | None = None
    """The adapter. Requests with different adapters share no block."""
    images: tuple[tuple[int, int, str], ...] = ()
    """Per image the position of its first token, its number of tokens, and the digest of its content."""
    texts: tuple[str, ...] = ()
    """The texts of the tokens, one per message, if the file has them. Used only for explanations."""

    @property
    def input_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)
