"""The fit of a model on a card: its memory, the requests that fit, and a bound of their speed.

    card       80.0 GB x 0.92, and on each of several cards the same
    weights    16.1 GB, divided by the cards
    KV cache   the remainder of the share, and the requests of the greatest length that fit

The speed is a bound. A step fetches the weights and every request's keys, values and states, and no card is faster
than its memory. The memory of a forward itself (activations, CUDA graphs) is not known here. vLLM measures it and logs
the memory that is left for the cache. `--memory` takes that number.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_planning import (
    blocks_per_request,
    bytes_per_block,
    get_kv_cache_config,
    get_kv_cache_groups,
    get_max_concurrency,
    is_indexer,
)
from mini_kv.tools.planning.cost import Card
from mini_kv.tools.planning.flags import Flags
from mini_kv.tools.planning.models import Model

GIB = 2**30
GPU_MEMORY_UTILIZATION = 0.92
"""vLLM 0.33's default share of a card's memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The use of one card's memory, in bytes."""

    kv: int | None
    """Bytes for the KV cache, or `None` if the weights are not known."""
    card: Card | None = None
    """The GPU. `None`: the caller gave the memory of the cache alone."""
    weights: float = 0
    active_weights: float | None = None
    """Bytes of the weights that one token uses, or `None` if not known."""

    @property
    def rest(self) -> float:
        """Bytes left for a forward: neither weights nor cache."""
        return 0 if self.card is None or self.kv is None else max(0.0, self.card.memory - self.weights - self.kv)


def memory_of(card: Card, model: Model, cards: int, utilization: float, weights: float | None = None) -> Memory:
    """Return the use of the memory of one of several equal cards.

    Args:
        card: the kind of the cards.
        model: has the weights' bytes if `weights` is not given.
        cards: number of cards that the model is cut over.
        utilization: share of a card's memory that may be used, as vLLM's `gpu_memory_utilization`.
        weights: bytes of all weights together.

    Raises `ConfigError` if they do not fit.
    """
    total = model.weight_bytes if weights is None else weights
    if total is None:
        return Memory(None, card)
    usable = utilization * card.memory
    if total / cards >= usable:
        least = next(n for n in (2**power for power in range(64)) if total / n < usable)
        each = "" if cards == 1 else f" on each of {cards} cards"
        raise ConfigError(
            f"the weights have {total / cards / 1e9:,.1f} GB{each}, and {usable / 1e9:,.1f} GB of one {card.name} may"
            f" be used: it takes --tensor-parallel-size {least} at least"
        )
    return on_card(int(usable - total / cards), card, model, cards, total)


def on_card(kv: int, card: Card, model: Model, cards: int, weights: float | None = None) -> Memory:
    """Return the use of one card's memory with `kv` bytes of cache, from vLLM's log. `weights`: as in `memory_of`."""
    own = (model.weight_bytes if weights is None else weights) or 0
    active = own * model.active_share / cards if own and model.active_share is not None else None
    return Memory(kv, card, own / cards, active)


@dataclass(frozen=True, slots=True)
class Fit:
    """A model's cache in a given memory."""

    model: Model
    flags: Flags
    specs: Mapping[str, KVCacheSpec]
    """One card's spec of each layer, before the blocks are made equally large."""
    groups: tuple[KVCacheGroupSpec, ...]
    config: KVCacheConfig | None
    """The pool, or `None` if its memory is not known."""
    memory: Memory
    max_len: int
    """Tokens of the longest request."""
    max_num_batched_tokens: int
    """The most tokens of a step."""
    num_steps: int
    """Steps in flight: 2, since vLLM schedules one while the one before it runs (`async_scheduling`), or 1."""

    @property
    def in_flight(self) -> int:
        """The most tokens that are scheduled and not yet computed. Windows and chunks keep blocks for them.

        Source: vLLM 0.33, `VllmConfig.max_in_flight_tokens`.
        """
        return self.num_steps * self.max_num_batched_tokens

    @property
    def concurrency(self) -> float:
        """Requests of the greatest length that fit at once. 0 if the memory is not known."""
        return 0 if self.config is None else get_max_concurrency(self.config, self.max_len, self.in_flight)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits, at most `max_len`. 0 if not even one token does.

        As vLLM, which keeps the null block back: `estimate_max_model_len`. A longer request never needs fewer blocks.
        """
        usable = 0 if self.config is None else self.config.num_blocks - 1
        return bisect_right(
            range(1, self.max_len + 1), usable, key=lambda num: blocks_per_request(self.groups, num, self.in_flight)
        )

    @property
    def max_num_seqs(self) -> int | None:
        """The most requests at once, however short, or `None` without states, which each of them holds from the start.

        vLLM 0.33 checks less: `max_num_seqs` is refused only above all blocks of the pool.
        """
        if self.config is None or not any(isinstance(spec, MambaSpec) for spec in self.specs.values()):
            return None
        return (self.config.num_blocks - 1) // blocks_per_request(self.groups, 1, self.in_flight)

    @property
    def capacity(self) -> int:
        """Tokens of `concurrency` requests. vLLM's log calls it the KV cache size."""
        return int(self.concurrency * self.max_len)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block, over all layers."""
        return bytes_per_block(self.groups)

    @property
    def blocks_per_request(self) -> int:
        """The most blocks that a request of the greatest length holds."""
        return blocks_per_request(self.groups, self.max_len, self.in_flight)

    def tokens_per_second(self, batch: int) -> float | None:
        """Return the most tokens per second of that many requests of the greatest length, all together.

        `None` if the card or the share of the weights that a token uses is not known, and for no request. Also `None`
        for drafts, with several tokens per step, and for sparse layers, which read only some of the tokens.
        """
        card, weights = self.memory.card, self.memory.active_weights
        is_sparse = any(is_indexer(spec) for spec in self.specs.values())
        if card is None or weights is None or not batch or is_sparse or self.flags.num_speculative_tokens:
            return None
        read = sum(bytes_read(spec, self.max_len) for spec in self.specs.values())
        read += sum(bytes_read(self.specs[owner], self.max_len) for owner in self.model.kv_sharing.values())
        return batch * card.bandwidth / (weights + batch * read)


def make_fit(
    model: Model,
    flags: Flags,
    specs: Mapping[str, KVCacheSpec],
    memory: Memory,
    *,
    max_len: int,
    max_num_batched_tokens: int,
    num_steps: int = 2,
    disable_hybrid: bool | None = None,
) -> Fit:
    """Return the cache of a model, as `flags.load` gave it. Raises `ConfigError` if there is no plan for it."""
    states = {name: spec for name, spec in specs.items() if isinstance(spec, MambaSpec)}
    if len(states) == len(specs):  # nothing is cached: vLLM's one block is as long as the longest request
        specs = {name: replace(spec, block_size=max_len) for name, spec in states.items()}
    groups = get_kv_cache_groups(specs, disable_hybrid_kv_cache_manager=disable_hybrid)
    config = None if memory.kv is None else get_kv_cache_config(groups, memory.kv)
    return Fit(model, flags, specs, tuple(groups), config, memory, max_len, max_num_batched_tokens, num_steps)


def bytes_read(spec: KVCacheSpec, num_tokens: int) -> int:
    """Return the bytes that a layer reads for one new token of a request with `num_tokens`, the new one included."""
    match spec:
        case MambaSpec():
            return spec.page_size_bytes
        case SlidingWindowSpec():
            num_tokens = min(num_tokens, spec.sliding_window)
        case ChunkedLocalAttentionSpec():
            num_tokens = (num_tokens - 1) % spec.attention_chunk_size + 1
    return num_tokens * spec.page_size_bytes // spec.block_size
