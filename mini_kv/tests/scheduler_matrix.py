"""What the scheduler's driver varies: engines in which every two settings meet, drawn as a pairwise matrix."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.admission import AdmissionPolicy, Greedy
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.request_queue import SchedulingPolicy
from mini_kv.policy.admission_strategies import Hysteresis, ReservedBlocks
from mini_kv.tests.pairwise import Setting, pairwise_rows


@dataclass(frozen=True, slots=True)
class Config:
    """The engine to drive, and how it is used."""

    num_blocks: int = 12
    specs: tuple[KVCacheSpec, ...] = (FullAttentionSpec(4),)
    """One per group of layers."""
    limits: SchedulerConfig = field(default_factory=SchedulerConfig)
    admission: AdmissionPolicy = field(default_factory=Greedy)
    enable_caching: bool = True
    retention_interval: int | None = None
    """Which keys windows and states keep; see `KVCacheConfig`."""
    plans_in_flight: bool = False
    """Whether admission counts on steps as long as the scheduler's, as the engine does, or on any length."""
    num_drafts: int = 0
    """Most tokens proposed for a request at a time."""
    fork_rate: float = 0.0
    """How often a running request is forked, per step."""
    num_samples: int = 1
    """Most samples of a prompt; further ones are forked at the first token."""
    num_salts: int = 1
    abort_rate: float = 0.03
    """How often a request is aborted, per step and moment: before the step, in it, after it."""
    abandon_rate: float = 0.0
    """How often a step is given up."""
    stop_token_ids: tuple[int, ...] = ()
    watermark: float = 0.0

    def make_manager(self, manager_class: type[KVCacheManager] = KVCacheManager) -> KVCacheManager:
        """Return a new cache."""
        in_flight = self.limits.max_num_batched_tokens + self.limits.num_lookahead_tokens
        groups = tuple(KVCacheGroupSpec((f"layers of group {i}",), spec) for i, spec in enumerate(self.specs))
        return manager_class(
            KVCacheConfig(self.num_blocks, groups, prefix_cache_retention_interval=self.retention_interval),
            enable_caching=self.enable_caching,
            max_in_flight_tokens=in_flight if self.plans_in_flight else None,
            watermark=self.watermark,
        )


CHUNKS = ChunkedLocalAttentionSpec(2, attention_chunk_size=6)
GROUPS: dict[str, tuple[int, tuple[KVCacheSpec, ...]]] = {
    "full": (11, (FullAttentionSpec(4),)),
    "full of 1": (24, (FullAttentionSpec(1),)),
    "full of 2 and 4": (22, (FullAttentionSpec(2), FullAttentionSpec(4))),
    "full and window": (22, (FullAttentionSpec(4), SlidingWindowSpec(4, sliding_window=6))),
    "window": (12, (SlidingWindowSpec(4, sliding_window=5),)),
    "window and chunks": (30, (FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=5), CHUNKS)),
    "states": (24, (FullAttentionSpec(2), MambaSpec(4, shapes=((1,),), dtypes_bytes=(2,)))),
}  # fmt: skip
"""Blocks of a tight pool, and groups of layers."""

DIMENSIONS: dict[str, Sequence[Any]] = {
    "groups": tuple(GROUPS),
    "pool": ("tight", "roomy"),
    "max_num_batched_tokens": (6, 16, 64),
    "max_num_seqs": (8, 2),
    "max_model_len": (1 << 20, 18),
    "enable_chunked_prefill": (True, False),
    "long_prefill_token_threshold": (0, 3),
    "num_lookahead_tokens": (0, 2),
    "policy": tuple(SchedulingPolicy),
    "scheduler_reserve_full_isl": (True, False),
    "admission": (Greedy(), Greedy(may_jump=True), ReservedBlocks(2), "hysteresis"),
    "enable_caching": (True, False),
    "retention_interval": (None, 0, 8),
    "plans_in_flight": (True, False),
    "num_drafts": (0, 4),
    "fork_rate": (0.0, 0.3),
    "num_samples": (1, 3),
    "num_salts": (1, 2),
    "abort_rate": (0.0, 0.03, 0.3),
    "abandon_rate": (0.0, 0.05),
    "stop_token_ids": ((), (2,)),
}
"""What the matrix varies."""

LIMITS = {
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill", "policy",
    "long_prefill_token_threshold", "num_lookahead_tokens", "scheduler_reserve_full_isl",
}  # fmt: skip


def cannot_meet(one: Setting, other: Setting) -> bool:
    """Return whether the engine refuses these two settings together: a state forgets no token, and has one reader."""
    refused = {"retention_interval"} if str(one[1]).startswith("full of") or one[1] == "full" else set()
    if one == ("groups", "states"):
        refused = {"num_lookahead_tokens", "num_drafts", "fork_rate", "num_samples"}
    return one[0] == "groups" and other[0] in refused and other[1] != DIMENSIONS[other[0]][0]


def config_of(row: dict[str, Any]) -> Config:
    """Return the engine that a row of the matrix describes."""
    values = dict(row)
    num_blocks, specs = GROUPS[values.pop("groups")]
    if values.pop("pool") == "roomy":
        num_blocks *= 3
    if values["admission"] == "hysteresis":  # it keeps a state, so each engine has its own
        values["admission"] = Hysteresis(0.9, 0.5)
    limits = SchedulerConfig(**{name: values.pop(name) for name in LIMITS})
    return Config(num_blocks=num_blocks, specs=specs, limits=limits, **values)


def matrix(seed: int = 0) -> list[Config]:
    """Return engines in which every two settings meet."""
    return [config_of(row) for row in pairwise_rows(DIMENSIONS, seed, excluded=cannot_meet)]


CONFIGS = tuple(matrix())
"""The engines of the test: half of them short of blocks, so that requests have to give way all the time."""
