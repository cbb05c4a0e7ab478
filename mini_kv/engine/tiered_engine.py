"""An engine whose evicted blocks are kept in tiers: in memory, on disk, on a server that other engines use as well."""

from time import perf_counter
from typing import Any

from torch import Tensor

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.detokenizer import TextTokenizer
from mini_kv.engine.interface import CausalLM
from mini_kv.engine.kv_transfer import KVTransfer
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.tiers.connector import KVConnectorMetadata, TieringConnector, tiered_parts
from mini_kv.tiers.reload_cost import LearnedCost
from mini_kv.tiers.tier_config import open_tiers
from mini_kv.tiers.tiered_cache import TieredCache
from mini_kv.tiers.tiered_scheduler import TieredScheduler


def open_engine(model: CausalLM, tokenizer: TextTokenizer | None, config: EngineConfig, **parts: Any) -> LLMEngine:
    """Return the engine of this config. With `kv_tiers` open the tiers and return a `TieredEngine`.

    `parts` go to `LLMEngine`. Raises `ConfigError` for `parts` with tiers: a `TieredEngine` makes its own parts.
    """
    tiers = config.kv_tiers
    if tiers is None:
        return LLMEngine(model, tokenizer, config, **parts)
    if parts:
        raise ConfigError(f"the engine over tiers has its own parts, and cannot take {', '.join(sorted(parts))}")
    cost = LearnedCost() if tiers.reload == "cheaper" else None
    opened = open_tiers(tiers)
    try:
        return TieredEngine(model, tokenizer, config, tiers=opened, seconds_to_wait=tiers.seconds_to_wait, cost=cost)
    except BaseException:
        opened.close()
        raise


class TieredEngine(LLMEngine):
    """`LLMEngine` over tiers: the same text, with fewer computed tokens. Use it in a `with`, or call `close`.

    `kv_cache_manager.reset_prefix_cache()` empties memory and disk, too. Copies on a server remain for other engines.
    This engine no longer finds them. `tiers.memory` and `tiers.disk` can be cleared one by one.
    """

    connector: TieringConnector
    """The scheduler's half of the connector. Its `counts` include the number of promoted blocks."""

    def __init__(
        self,
        model: CausalLM,
        tokenizer: TextTokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        tiers: TieredCache,
        seconds_to_wait: float = 0.05,
        cost: LearnedCost | None = None,
    ) -> None:
        """Build the engine above `tiers`. `close` closes them.

        Args:
            model: as in `LLMEngine`.
            tokenizer: the same.
            config: the same.
            tiers: the tiers below the pool.
            seconds_to_wait: the longest time that a request waits for its blocks.
            cost: learns the cost of steps and copies, and decides whether a hit is reloaded or computed, also after a
                preemption. `None`: it is always reloaded, so that the result does not depend on a clock.

        Raises the errors of `LLMEngine`, and `ConfigError` if memory or disk is too small for one block.
        """
        self.tiers, self.cost = tiers, cost

        def make_manager(kv_cache_config: KVCacheConfig, **options: Any) -> KVCacheManager:
            return KVCacheManager(kv_cache_config, parts=tiered_parts(), **options)

        def make_scheduler(kv_cache_manager: KVCacheManager, limits: Any) -> TieredScheduler:
            groups = kv_cache_manager.kv_cache_config.kv_cache_groups
            self.connector = TieringConnector(
                kv_cache_manager,
                tiers,
                [group.page_size_bytes for group in groups],
                layout=str(model.dtype),
                seconds_to_wait=seconds_to_wait,
                is_worth_it=lambda num_tokens, num_bytes: cost is None or cost.is_worth_it(num_tokens, num_bytes),
            )
            return TieredScheduler(kv_cache_manager, limits, connector=self.connector)

        super().__init__(model, tokenizer, config, make_manager=make_manager, make_scheduler=make_scheduler)
        self.kv_transfer = KVTransfer(self.model_runner.kv_cache_tensors, self.kv_cache_manager.kv_cache_config, tiers)

    def __enter__(self) -> "TieredEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing, and release disk and server. Blocks in the pool are lost, blocks in tiers are not."""
        self.tiers.close()

    def _execute(self, output: SchedulerOutput) -> tuple[list[str], Tensor]:
        """Store the blocks that are about to be reused, load the promised ones, then execute as in `LLMEngine`."""
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, KVConnectorMetadata)
        self.kv_transfer.rescue(metadata)
        began = perf_counter()
        num_bytes = self.kv_transfer.fill(metadata)
        filled = perf_counter()
        result = super()._execute(output)
        if self.cost is not None:
            self.cost.computed(sum(output.num_scheduled_tokens.values()), perf_counter() - filled)
            if num_bytes:
                self.cost.copied(num_bytes, filled - began)
        self.kv_transfer.after_the_step(metadata)
        return result
