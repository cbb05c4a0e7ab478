"""The limits of steps and engine, and the rule for requests that can run under them."""

from bisect import bisect_left
from dataclasses import dataclass

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.request_queue import SchedulingPolicy


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the engine.

    Source: vLLM `SchedulerConfig` (config/scheduler.py), same names and defaults where we have the option.
    """

    max_num_batched_tokens: int = 2048
    """Tokens that one step may compute, over all requests: the token budget."""
    max_num_seqs: int = 128
    """Requests that may run at once."""
    max_model_len: int = 1 << 20
    """Tokens of the longest request, prompt and output."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps."""
    long_prefill_token_threshold: int = 0
    """The most tokens of one request in a step, so that a long prompt leaves room for others. 0 disables the limit."""
    num_lookahead_tokens: int = 0
    """Number of slots per request beyond its tokens, for drafts."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    scheduler_reserve_full_isl: bool = True
    """Whether a request enters only if all of its tokens fit, not just the chunk that this step computes."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must not be negative")


def check_limits(kv_cache_manager: KVCacheManager, config: SchedulerConfig) -> None:
    """Raise `ConfigError` if the manager and the limits cannot work together for any request."""
    max_in_flight = kv_cache_manager.max_in_flight_tokens
    num_in_flight = config.max_num_batched_tokens + config.num_lookahead_tokens
    if max_in_flight is not None and max_in_flight < num_in_flight:
        message = f"the manager plans for steps of {max_in_flight} tokens at most (max_in_flight_tokens)"
        limits = f"max_num_batched_tokens is {config.max_num_batched_tokens}"
        raise ConfigError(f"{message}; {limits}, num_lookahead_tokens {config.num_lookahead_tokens}")
    if config.num_lookahead_tokens and kv_cache_manager.coordinator.has_states:
        message = f"num_lookahead_tokens is {config.num_lookahead_tokens}, but a layer keeps states"
        raise ConfigError(f"{message}: drafts that are wrong cannot be taken back out of them")
    reason = can_ever_run(kv_cache_manager, config, num_tokens=1, max_slots=1)
    if reason is not None:
        raise ConfigError(f"even a request of one token {reason}")


def can_ever_run(
    kv_cache_manager: KVCacheManager, config: SchedulerConfig, num_tokens: int, max_slots: int
) -> str | None:
    """Return the reason why a request can never finish, even if it runs alone. Return `None` if it can.

    Configuration, admission and sizing use this same rule, so every admitted request makes progress.

    Args:
        kv_cache_manager: the request would have its whole pool.
        config: the limits.
        num_tokens: the request's number of tokens when it is added.
        max_slots: the most of its tokens that are ever computed. A preempted request restarts with up to this number.
    """
    if num_tokens >= config.max_model_len:
        return f"leaves no room for output: max_model_len is {config.max_model_len}"
    if not config.enable_chunked_prefill and max_slots > config.max_num_batched_tokens:
        budget = f"a step of {config.max_num_batched_tokens} (max_num_batched_tokens)"
        if num_tokens > config.max_num_batched_tokens:
            return f"does not fit into {budget}, and enable_chunked_prefill is off"
        return f"does not fit into {budget} when it has grown to {max_slots} and is preempted; chunked prefill is off"
    num_needed = kv_cache_manager.num_blocks_needed(max_slots)
    num_blocks = len(kv_cache_manager.block_pool.blocks) - 1
    if num_needed > num_blocks:
        return f"needs {num_needed} blocks when it has grown to {max_slots + 1}; the pool has {num_blocks}"
    return None


def longest_request(kv_cache_manager: KVCacheManager, config: SchedulerConfig) -> int:
    """Return the most tokens of one request that can be computed, by `can_ever_run`. Use it for sizing tables."""
    lengths = range(1, config.max_model_len)
    return bisect_left(lengths, True, key=lambda n: can_ever_run(kv_cache_manager, config, 1, n) is not None)
