"""Counters of the prefix cache's hits."""

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCacheStats:
    """Counters of a prefix cache: one record per request, made when it is first admitted.

    Source: vLLM `PrefixCacheStats` (v1/metrics/stats.py).
    """

    requests: int = 0
    queries: int = 0
    """Number of tokens of these requests."""
    hits: int = 0
    """Number of these tokens that were found in the cache."""

    def record(self, num_tokens: int, num_hits: int) -> None:
        """Count one admitted request of `num_tokens` tokens, of which `num_hits` were cached."""
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits
