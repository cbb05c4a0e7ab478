"""A cache manager that publishes the events of its own blocks.

    kv = EventsKVCacheManager(config)
    ...                                  # lookups, allocations, frees: as with any manager
    kv.take_events()                     # BlockStored, BlockRemoved, AllBlocksCleared since the last time

The algorithms have no code for events. Blocks made by a `Recorder` report when they are cached and evicted. The other
fields of an event, the tokens and the parent hash, are read from the request of the current call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mini_kv.core.block import BlockFactory, BlockHashWithGroupId, KVCacheBlock
from mini_kv.core.block_hash import get_block_hash, get_group_id
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.story.edge import Edge, EdgeKind
from mini_kv.story.recorder import Recorder, TracedBlock
from mini_kv.story.traced_manager import ObservedKVCacheManager, Span
from mini_kv.tools.serve.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    AnyEvent,
    BlockRemoved,
    BlockStored,
    external_block_hash,
)

_KINDS: dict[type[KVCacheSpec], str] = {
    MLAAttentionSpec: "mla_attention",
    SlidingWindowMLASpec: "sliding_window_mla",
    SlidingWindowSpec: "sliding_window",
    ChunkedLocalAttentionSpec: "chunked_local_attention",
    MambaSpec: "mamba",
}
"""vLLM's names for kinds of layers. Any other kind is full attention. Source: vLLM `KVCacheSpecKind`."""


class _Stored(NamedTuple):
    """A newly cached block, and its position in its request."""

    group_id: int
    start: int
    """Its first token."""
    end: int
    block_hash: bytes


def plain_manager(kv_cache_config: KVCacheConfig, *, new_block: BlockFactory, **options: Any) -> KVCacheManager:
    """Return the engine's own manager, with blocks made by `new_block`."""
    return KVCacheManager(kv_cache_config, parts=KVCacheParts(new_block=new_block), **options)


class _Tap(Recorder):
    """Records blocks that may already report to another recorder, and passes their reports on to it."""

    def __init__(self, make_block: BlockFactory) -> None:
        super().__init__(strict=False)  # who listens must not change what happens
        self._make_block = make_block
        self._other: Recorder | None = None

    def new_block(self, block_id: int) -> TracedBlock:
        block = self._make_block(block_id)
        if not isinstance(block, TracedBlock):
            return super().new_block(block_id)
        self._other, block.recorder = block.recorder, self
        return block

    def report(self, edge: Edge, change: str) -> None:
        if self._other is not None:
            self._other.report(edge, change)
        super().report(edge, change)


class EventsKVCacheManager(ObservedKVCacheManager):
    """A manager and the events of its blocks."""

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        make: Callable[..., KVCacheManager] = plain_manager,
        new_block: BlockFactory = KVCacheBlock,
        **options: Any,
    ) -> None:
        """Build a manager of blocks that report.

        Args:
            kv_cache_config: as for `KVCacheManager`.
            make: makes the manager, for instance a learner's, from the config, `new_block` and the options.
            new_block: makes blocks. They may be `TracedBlock`s of another observer, which still gets their reports.
            options: `KVCacheManager`'s.
        """
        self._recorder = _Tap(new_block)
        super().__init__(make(kv_cache_config, new_block=self._recorder.new_block, **options))
        self._events: list[AnyEvent] = []
        self._specs = [group.first_spec for group in kv_cache_config.kv_cache_groups]

    def take_events(self) -> list[AnyEvent]:
        """Return the events since the last call, in their order. Source: vLLM, same name."""
        self._note(None)
        events, self._events = self._events, []
        return events

    @contextmanager
    def observe(self, span: Span, request: Request | None) -> Iterator[None]:
        """Turn the changes of one call into events. Changes between calls are turned into events first."""
        self._note(None)
        try:
            yield
        finally:
            if span.call == "recover" or (span.call == "reset_prefix_cache" and span.result):
                self._recorder.take_edges()
                self._events.append(AllBlocksCleared())
            self._note(request)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache full blocks, as after accepted drafts. Stories do not show this call, but it publishes events."""
        with self.observe(Span("cache_blocks"), request):
            self.manager.cache_blocks(request, num_computed_tokens)

    def _note(self, request: Request | None) -> None:
        """Turn the edges so far into events. Blocks that were cached belong to `request`."""
        run: list[_Stored] = []
        ends: dict[bytes, int] = {}
        for edge in self._recorder.take_edges():
            if edge.kind is EdgeKind.CACHED and request is not None:
                ends = ends or _ends(request, self.manager.coordinator.hash_block_size)
                stored = self._stored(edge, ends)
                if run and (stored.group_id, stored.start) != (run[-1].group_id, run[-1].end):
                    self._tell(request, run)
                    run = []
                run.append(stored)
            elif edge.kind in (EdgeKind.EVICTED, EdgeKind.UNCACHED):
                if run and request is not None:
                    self._tell(request, run)
                    run = []
                key = _key(edge)
                block_hash = external_block_hash(get_block_hash(key))
                self._events.append(BlockRemoved([block_hash], MEDIUM_GPU, get_group_id(key)))
        if run and request is not None:
            self._tell(request, run)

    def _stored(self, edge: Edge, ends: dict[bytes, int]) -> _Stored:
        key = _key(edge)
        group_id, block_hash = get_group_id(key), get_block_hash(key)
        return _Stored(group_id, ends[block_hash] - self._specs[group_id].block_size, ends[block_hash], block_hash)

    def _tell(self, request: Request, run: Sequence[_Stored]) -> None:
        """Add the event of blocks that follow each other in one group."""
        group_id, start, end = run[0].group_id, run[0].start, run[-1].end
        hash_block_size, spec = self.manager.coordinator.hash_block_size, self._specs[group_id]
        parent = request.block_hashes[start // hash_block_size - 1] if start else None
        extra_keys = [_extra_keys(request, stored.start, stored.end) for stored in run]
        event = BlockStored(
            [external_block_hash(stored.block_hash) for stored in run],
            None if parent is None else external_block_hash(parent),
            list(request.token_ids[start:end]),
            spec.block_size,
            lora_id=None,  # an adapter has no number here
            medium=MEDIUM_GPU,
            lora_name=request.lora_request.lora_name if request.lora_request else None,
            extra_keys=extra_keys,
            group_idx=group_id,
            kv_cache_spec_kind=_KINDS.get(type(spec), "full_attention"),
            kv_cache_spec_sliding_window=spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
        )
        self._events.append(event)


def _key(edge: Edge) -> BlockHashWithGroupId:
    assert edge.block_hash is not None
    return BlockHashWithGroupId(bytes.fromhex(edge.block_hash))


def _ends(request: Request, hash_block_size: int) -> dict[bytes, int]:
    """Return for each block hash of the request the number of tokens up to the end of its block."""
    return {block_hash: (i + 1) * hash_block_size for i, block_hash in enumerate(request.block_hashes)}


def _extra_keys(request: Request, start: int, end: int) -> tuple[Any, ...] | None:
    """Return the extra keys of a block's hash, in vLLM's order and without our tags, or `None` if it has none.

    Source: vLLM `to_event_extra_keys` (v1/core/kv_cache_utils.py).
    """
    keys: list[Any] = [] if request.lora_request is None else [request.lora_request.lora_name]
    keys += [
        (image.identifier, image.offset - start)
        for image in request.mm_features
        if image.offset < end and start < image.offset + image.length
    ]
    if start == 0 and request.cache_salt is not None:
        keys.append(request.cache_salt)
    return tuple(keys) or None
