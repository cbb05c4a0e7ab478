"""Debug mode: the same manager, suspicious of itself.

Use `in_debug_mode(manager)` in place of `manager`. After every public call it checks the ledger, that tables only grew,
that a refusal or an exception changed nothing, and, when the last request is gone, that nothing leaked. Costs O(pool)
per call.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import InvariantViolationError, Violation, check_invariants
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.request import Request


def manager_state(kv: KVCacheManager) -> dict[str, Any]:
    """Return all of the manager's state as plain values, for comparing before and after."""
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
    """Return which blocks are held although no request is left, with the call that took each; "" if none are."""
    if kv.requests:
        return ""
    return "; ".join(
        f"block {block.block_id} (ref_cnt {block.ref_cnt}), taken by {taken_in.get(block.block_id, 'no known call')}"
        for block in kv.block_pool.blocks
        if block.ref_cnt != 0 and not block.is_null and block not in kv.copy_on_write.pinned
    )


@dataclass(slots=True)
class _Call:
    """A public call on its way: what it is, and whether it says that it changed nothing."""

    text: str
    unchanged: bool = False


def in_debug_mode(manager: KVCacheManager) -> KVCacheManager:
    """Return a `DebugKVCacheManager` around the manager, typed as what it stands in for."""
    return cast(KVCacheManager, DebugKVCacheManager(manager))


class DebugKVCacheManager:
    """Stands in for the manager that it wraps; raises `InvariantViolationError` as soon as its state is wrong."""

    HISTORY = 5
    """How many past calls an error shows."""

    def __init__(self, manager: KVCacheManager) -> None:
        """Wrap `manager`: the engine's, or any other that has its calls."""
        self.manager = manager
        self._history: deque[str] = deque(maxlen=self.HISTORY)
        self._taken_in: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the manager has: all but the calls below."""
        return getattr(self.manager, name)

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look up as usual; check that nothing changed and that the hit keeps to the cap (I7)."""
        with self._watched(f"get_computed_blocks({request.request_id})") as call:
            blocks, num_tokens = self.manager.get_computed_blocks(request)
            call.unchanged = True
        if num_tokens > request.num_tokens - 1 or num_tokens % self.block_size:
            message = f"the hit of {request.request_id} covers {num_tokens} of its {request.num_tokens} tokens"
            self._fail(Violation("I7", message))
        return blocks, num_tokens

    def allocate_slots(self, request: Request, num_new_tokens: int, *rest: Any, **options: Any) -> KVCacheBlocks | None:
        """Allocate as usual; check that a refusal changed nothing."""
        with self._watched(f"allocate_slots({request.request_id}, {num_new_tokens})") as call:
            new_blocks = self.manager.allocate_slots(request, num_new_tokens, *rest, **options)
            call.unchanged = new_blocks is None
            if new_blocks is not None:
                self._taken_in |= {block_id: call.text for ids in new_blocks.get_block_ids() for block_id in ids}
        return new_blocks

    def free(self, request: Request) -> None:
        """Free as usual; when the last request is gone, check that no block is held (I14)."""
        with self._watched(f"free({request.request_id})"):
            self.manager.free(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Fork as usual."""
        with self._watched(f"fork({parent.request_id}, {child.request_id})"):
            self.manager.fork(parent, child)

    def finish_kv_cache_block_copies(self) -> None:
        """Let go as usual."""
        with self._watched("finish_kv_cache_block_copies()"):
            self.manager.finish_kv_cache_block_copies()

    def withdraw_promises(self, request: Request) -> list[str]:
        """Withdraw as usual."""
        with self._watched(f"withdraw_promises({request.request_id})"):
            return self.manager.withdraw_promises(request)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Evict as usual."""
        block_ids = list(block_ids)
        with self._watched(f"evict_blocks({block_ids})"):
            self.manager.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Reset as usual; check that a refusal changed nothing."""
        with self._watched("reset_prefix_cache()") as call:
            done = self.manager.reset_prefix_cache()
            call.unchanged = not done
        return done

    @contextmanager
    def _watched(self, text: str) -> Iterator[_Call]:
        """Check the state before against the state after, and the state after against the ledger."""
        before = manager_state(self.manager)
        call = _Call(text)
        try:
            yield call
        except KVCacheError:
            self._history.append(f"{text} raised")
            self._check_unchanged(before)
            raise  # any other exception is a bug in the code that runs: it is worth more than what it left behind
        self._history.append(text)
        if call.unchanged:
            self._check_unchanged(before)
        self._check_append_only(before["tables"])
        leak = leak_report(self.manager, self._taken_in)
        if leak:
            self._fail(Violation("I14", f"no request is left, but these are held: {leak}"))
        check_invariants(self.manager, list(self._history))

    def _check_unchanged(self, before: dict[str, Any]) -> None:
        after = manager_state(self.manager)
        changed = [what for what in before if before[what] != after[what]]
        if changed:
            message = f"{self._history[-1]} should have changed nothing, but it changed the {' and the '.join(changed)}"
            self._fail(Violation("I11", message))

    def _check_append_only(self, tables: dict[str, tuple[list[int], ...]]) -> None:
        pinned = [block.block_id for block in self.copy_on_write.pinned]
        copies = set(zip(pinned[::2], pinned[1::2], strict=True))
        for request_id in self.requests:
            for old, new in zip(tables.get(request_id, ()), self.get_block_ids(request_id), strict=False):
                # A window may null its head, and a writer gets a copy of what others read.
                changes = [change for change in zip(old, new, strict=False) if change[0] != change[1]]
                if len(new) < len(old) or any(now != 0 and (was, now) not in copies for was, now in changes):
                    self._fail(Violation("I8", f"the table of {request_id} was {old} and is {new}", tuple(new)))

    def _fail(self, violation: Violation) -> None:
        raise InvariantViolationError(violation, list(self._history))
