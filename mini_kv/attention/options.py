"""The kind of attention: the positions that a token sees, and changes of the scores."""

from dataclasses import dataclass

from torch import Tensor

from mini_kv.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """One layer's kind of attention. The default is causal and full.

    position          0  1  2  3  4  5  6  7  8  9          seen by the token at position 9
    full              x  x  x  x  x  x  x  x  x  x
    sliding_window=4  .  .  .  .  .  .  x  x  x  x          the last 4, itself included
    chunk_size=4      .  .  .  .  .  .  .  .  x  x          its own chunk of 4: 8 to 11
    """

    scale: float | None = None
    """Factor of the scores. `None`: one over the square root of the head size."""
    sliding_window: int | None = None
    chunk_size: int | None = None
    """Chunked local attention, as in Llama 4."""
    logits_soft_cap: float | None = None
    """Scores become `cap * tanh(score / cap)`, as in Gemma 2."""
    sinks: Tensor | None = None
    """`[num_heads]`: an additional score in each softmax that belongs to no token, as in GPT-OSS."""
    decay: Tensor | None = None
    """`[num_heads]`: attention to a state in place of tokens. Each token multiplies the state by it. See `linear`."""

    def __post_init__(self) -> None:
        for name in ("sliding_window", "chunk_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, it must be at least 1")
        if self.logits_soft_cap is not None and self.logits_soft_cap <= 0:
            raise ConfigError(f"logits_soft_cap is {self.logits_soft_cap}, it must be positive")

    def first_visible(self, position: int) -> int:
        """Return the first position that the token at `position` sees. The last one is its own.

        >>> AttentionOptions(sliding_window=4).first_visible(9)
        6
        >>> AttentionOptions(chunk_size=4).first_visible(9)
        8
        """
        first = 0
        if self.sliding_window is not None:
            first = max(first, position - self.sliding_window + 1)
        if self.chunk_size is not None:
            first = max(first, position // self.chunk_size * self.chunk_size)
        return first

    def scale_for(self, head_size: int) -> float:
        """Return the factor of the scores."""
        return head_size**-0.5 if self.scale is None else self.scale
