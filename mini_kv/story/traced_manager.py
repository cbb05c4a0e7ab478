"""Wrappers around a manager that observe its public calls. `TracedKVCacheManager` records each call with its edges."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mini_kv.core.block_pool import BlockPool
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.edge import Edge
from mini_kv.story.recorder import Recorder

if TYPE_CHECKING:
    _Manager = KVCacheManager
else:
    _Manager = object
"""Type checkers see a manager with all its methods; at run time `__getattr__` finds those that are not observed."""

Value = int | bool | str | None | list[int]


@dataclass(slots=True)
class Span:
    """One public call of the manager and everything that it caused."""

    call: str
    """Name of the method."""
    request_id: str | None = None
    args: dict[str, Value] = field(default_factory=dict)
    """The arguments of the call, as numbers."""
    result: Value = None
    """The result of the call as plain data: tokens of the hit, allocated blocks (`None`: refused), whether reset."""
    found: list[int] | None = None
    """Ids of the blocks that a lookup found, all groups in a row, or `None` if it found none."""
    edges: list[Edge] = field(default_factory=list)
    error: str | None = None
    """Class name of the exception, if the call raised one."""
    tables: dict[str, list[list[int]]] | None = None
    """Block tables after the call, per group; only with snapshots."""
    free_order: list[int] | None = None
    """The free queue after the call, front to back; only with snapshots."""


class ObservedKVCacheManager(_Manager):
    """Wraps a manager and can be used in its place. A subclass defines the code around each public call."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager

    def observe(self, span: Span, request: Request | None) -> AbstractContextManager[None]:
        """Return the context in which a call runs. `span` has call and arguments, and after the call its result.

        A call that raises has no result. `request` is the request with the id `span.request_id`.
        """
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Pass all other attributes through: `block_pool`, `new_request`, `get_block_ids` and so on."""
        return getattr(self.manager, name)

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look up. The span's result is the hit in tokens."""
        with self._call("get_computed_blocks", request) as span:
            blocks, span.result = self.manager.get_computed_blocks(request)
            span.found = [block_id for ids in blocks.get_block_ids() for block_id in ids] or None
        return blocks, span.result

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        *rest: Any,
        **admission: Any,
    ) -> KVCacheBlocks | None:
        """Allocate. The span's result is the ids of the new blocks, all groups in a row, or `None`."""
        args: dict[str, Value] = {"num_new_tokens": num_new_tokens, "num_computed_tokens": request.num_computed_tokens}
        if num_new_computed_tokens:
            args["num_new_computed_tokens"] = num_new_computed_tokens
        if num_lookahead_tokens:
            args["num_lookahead_tokens"] = num_lookahead_tokens
        with self._call("allocate_slots", request, **args) as span:
            blocks = self.manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                num_lookahead_tokens,
                *rest,
                **admission,
            )
            if blocks is not None:
                span.result = [block_id for ids in blocks.get_block_ids() for block_id in ids]
        return blocks

    def free(self, request: Request) -> None:
        """Free."""
        with self._call("free", request):
            self.manager.free(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Fork. The span is the child's, and names the parent."""
        with self._call("fork", child, parent=parent.request_id):
            self.manager.fork(parent, child)

    def finish_kv_cache_block_copies(self) -> None:
        """Unpin the blocks of copies. No call is observed if there are none."""
        if self.manager.copy_on_write.pinned:
            with self._call("finish_kv_cache_block_copies"):
                self.manager.finish_kv_cache_block_copies()

    def withdraw_promises(self, request: Request) -> list[str]:
        """Withdraw."""
        with self._call("withdraw_promises", request):
            return self.manager.withdraw_promises(request)

    def withdraw_all_promises(self) -> None:
        """Withdraw the promises of the step under way."""
        with self._call("withdraw_all_promises"):
            self.manager.withdraw_all_promises()

    def recover(self) -> None:
        """Recover."""
        with self._call("recover"):
            self.manager.recover()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Evict."""
        block_ids = list(block_ids)
        with self._call("evict_blocks", block_ids=block_ids):
            self.manager.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Reset. The span's result is whether it was done."""
        with self._call("reset_prefix_cache") as span:
            done = span.result = self.manager.reset_prefix_cache()
        return done

    @contextmanager
    def _call(self, call: str, request: Request | None = None, **args: Value) -> Iterator[Span]:
        span = Span(call, request.request_id if request is not None else None, args)
        with self.observe(span, request):
            yield span


class TracedKVCacheManager(ObservedKVCacheManager):
    """Records every public call of the manager that it wraps as a `Span`.

    `snapshots=True` also records tables and free queue after each call, which costs O(pool) per call. Without it a span
    costs only its edges.
    """

    def __init__(self, manager: KVCacheManager, recorder: Recorder, *, snapshots: bool = False) -> None:
        """Wrap `manager`, whose blocks must come from `recorder.new_block`."""
        super().__init__(manager)
        self.recorder = recorder
        self.snapshots = snapshots
        self.spans: list[Span] = []

    @contextmanager
    def observe(self, span: Span, request: Request | None) -> Iterator[None]:
        """Add the span with the call's effects to `spans`, whether the call returns or raises."""
        self.recorder.take_edges()  # whatever happened between calls belongs to no call
        try:
            yield
        except Exception as error:
            # A check may have raised because of what an exception left behind: then that one is the call's.
            cause = error.__context__ if isinstance(error, InvariantViolationError) else None
            span.error = type(cause or error).__name__
            raise
        finally:
            span.edges = self.recorder.take_edges()
            if self.snapshots:
                span.tables, span.free_order = tables_of(self.manager), free_order_of(self.manager.block_pool)
            self.spans.append(span)


def tables_of(kv: KVCacheManager) -> dict[str, list[list[int]]]:
    """Return the block tables of every admitted request as ids, per group."""
    return {request_id: list(kv.get_block_ids(request_id)) for request_id in kv.requests}


def free_order_of(pool: BlockPool) -> list[int]:
    """Return the ids in the free queue, front to back."""
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def edges_of(spans: Sequence[Span]) -> list[Edge]:
    """Return the edges of all spans in order."""
    return [edge for span in spans for edge in span.edges]
