"""Debug mode: a wrapper that checks the manager's state after every public call.

    kv = DebugKVCacheManager(KVCacheManager.for_full_attention(10, 4))

It checks the ledger of `core.invariants`. It checks that tables only grew, and that a refusal or an exception changed
nothing. After the last request is freed it checks that no block is in use. Costs O(pool) per call.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import InvariantViolationError, Violation, check_invariants
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.story.traced_manager import ObservedKVCacheManager, Span


def manager_state(kv: KVCacheManager) -> dict[str, Any]:
    """Return the manager's whole state as plain values, for comparing before and after."""
    pool = kv.block_pool
    return {
        "blocks": [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        "free queue": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "index": {key: [block.block_id for block in blocks] for key, blocks in pool.cached_block_hash_to_block.items()},
        "tables": {request_id: kv.get_block_ids(request_id) for request_id in kv.requests},
        "published": [dict(manager.num_cached_block) for manager in kv.coordinator.single_type_managers],
        "skipped": [dict(manager.num_skipped_block) for manager in kv.coordinator.single_type_managers],
        "copies": [block.block_id for block in kv.copy_on_write.pinned],
        "statistics": (kv.prefix_cache_stats.requests, kv.prefix_cache_stats.queries, kv.prefix_cache_stats.hits),
    }


def leak_report(kv: KVCacheManager, taken_in: Mapping[int, str]) -> str:
    """Return a text with the blocks that are in use although no request is left, and the calls that took them."""
    if kv.requests:
        return ""
    return "; ".join(
        f"block {block.block_id} (ref_cnt {block.ref_cnt}), taken by {taken_in.get(block.block_id, 'no known call')}"
        for block in kv.block_pool.blocks
        if block.ref_cnt != 0 and not block.is_null and block not in kv.copy_on_write.pinned
    )


def _call_in_words(span: Span) -> str:
    """Return a call with its most important arguments, as in "allocate_slots(A, 5)"."""
    args = span.args
    match span.call:
        case "allocate_slots":
            words = f"{span.request_id}, {args['num_new_tokens']}"
        case "fork":
            words = f"{args['parent']}, {span.request_id}"
        case "evict_blocks":
            words = str(args["block_ids"])
        case _:
            words = span.request_id or ""
    return f"{span.call}({words})"


def _changes_nothing(span: Span) -> bool:
    """Return whether the call must not change the state: a lookup, or a refusal."""
    refused = {"allocate_slots": None, "reset_prefix_cache": False}
    return span.call == "get_computed_blocks" or (span.call in refused and span.result is refused[span.call])


class DebugKVCacheManager(ObservedKVCacheManager):
    """Raises `InvariantViolationError` as soon as the state of the manager that it wraps is wrong."""

    HISTORY = 5
    """Number of past calls that an error shows."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self._history: deque[str] = deque(maxlen=self.HISTORY)
        self._taken_in: dict[int, str] = {}

    @contextmanager
    def observe(self, span: Span, request: Request | None) -> Iterator[None]:
        """Check the state before the call against the state after it, and the state after it against the ledger."""
        before = manager_state(self.manager)
        text = _call_in_words(span)
        try:
            yield
        except KVCacheError:
            self._history.append(f"{text} raised")
            self._check_unchanged(before)
            raise  # any other exception is a bug in the code that runs: it is worth more than what it left behind
        self._history.append(text)
        if span.call == "allocate_slots" and isinstance(span.result, list):
            self._taken_in |= dict.fromkeys(span.result, text)
        if _changes_nothing(span):
            self._check_unchanged(before)
        self._check_append_only(before["tables"])
        leak = leak_report(self.manager, self._taken_in)
        if leak:
            self._fail(Violation("I14", f"no request is left, but these are held: {leak}"))
        check_invariants(self.manager, list(self._history))
        if span.call == "get_computed_blocks" and request is not None:
            self._check_hit(request, span.result)

    def recover(self) -> None:
        """Return to the initial state. The state before is incomplete, so it is not compared."""
        self._history.append("recover()")
        self.manager.recover()
        check_invariants(self.manager, list(self._history))

    def _check_hit(self, request: Request, num_hit: Any) -> None:
        """Check that a hit is not longer than allowed."""
        if num_hit > request.num_tokens - 1 or num_hit % self.manager.block_size:
            message = f"the hit of {request.request_id} covers {num_hit} of its {request.num_tokens} tokens"
            self._fail(Violation("I7", message))

    def _check_unchanged(self, before: dict[str, Any]) -> None:
        after = manager_state(self.manager)
        changed = [what for what in before if before[what] != after[what]]
        if changed:
            message = f"{self._history[-1]} should have changed nothing, but it changed the {' and the '.join(changed)}"
            self._fail(Violation("I11", message))

    def _check_append_only(self, tables: dict[str, tuple[list[int], ...]]) -> None:
        pinned = [block.block_id for block in self.manager.copy_on_write.pinned]
        copies = set(zip(pinned[::2], pinned[1::2], strict=True))
        for request_id in self.manager.requests:
            for old, new in zip(tables.get(request_id, ()), self.manager.get_block_ids(request_id), strict=False):
                # A window may null its head, and a writer gets a copy of what others read.
                changes = [change for change in zip(old, new, strict=False) if change[0] != change[1]]
                if len(new) < len(old) or any(now != 0 and (was, now) not in copies for was, now in changes):
                    self._fail(Violation("I8", f"the table of {request_id} was {old} and is {new}", tuple(new)))

    def _fail(self, violation: Violation) -> None:
        raise InvariantViolationError(violation, list(self._history))
