"""Helpers of lab-06: a cache with one of the learner's methods, and the steps of a scheduler."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError, UnknownRequestError
from mini_kv.core.invariants import check_invariants
from mini_kv.core.kv_cache_interface import FullAttentionSpec
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.labkit.fixture import LabFailure, LabUnderTest, WatchedKVCacheManager
from mini_kv.course.labkit.lives import (
    COMES,
    LEAVES,
    Step,
    are_blocks,
    cached_blocks,
    cause_first,
    check_life,
    free_queue,
    ids_of,
    random_life,
    seeds,
    table,
)
from mini_kv.course.labkit.naive import NaiveCache
from mini_kv.story.debug import manager_state

NEED = "KVCacheManager.get_num_blocks_to_allocate"
ALLOCATE = "KVCacheManager.allocate_slots"
CACHE = "KVCacheManager.cache_blocks"
FREE = "KVCacheManager.free"

RUNS = "runs"
DRAFTS = {"says": ((1,), (2,), (1, 2), (2, 1, 1), (1, 1, 2, 2)), "rejected drafts": (0, 0, 1, 3)}
OPTIONS: dict[str, Any] = {
    COMES: {"chunk": (2, 4, 20, 20), "lookahead": (0, 0, 0, 3)},
    RUNS: {"chunk": (1, 4, 9), "lookahead": (0, 0, 0, 2, 4), **DRAFTS},
}
"""The options of the steps of random lives: see `random_life`."""


class SilencedGroup(FullAttentionManager):
    """The engine's group, whose `cache_blocks` does nothing while it is silent."""

    is_silent = False

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Cache the full blocks among the first `num_tokens` tokens, unless silent."""
        if not self.is_silent:
            super().cache_blocks(request, num_tokens)


class EnginesManager(KVCacheManager):
    """Runs the engine's versions of the lab's four methods. Two of them have other names there."""

    hashes_are_asked_for = False
    """Whether `allocate` below calls the learner's `cache_blocks`, so that a failure names the right method."""

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[KVCacheBlock]
    ) -> Any:
        """Return the engine's count."""
        return self.coordinator.get_num_blocks_to_allocate(request_id, num_tokens, [new_computed_blocks])

    def allocate_slots(self, *args: Any, **options: Any) -> Any:
        """Return the engine's new blocks, with full ones cached unless that is the learner's task."""
        group: Any = self.coordinator.single_type_managers[0]
        group.is_silent = self.hashes_are_asked_for
        try:
            return KVCacheManager.allocate_slots(self, *args, **options)
        finally:
            group.is_silent = False

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache the full blocks of a table, which the learner's `allocate_slots` may have left too short."""
        num_slots = self.block_size * len(self.get_block_ids(request.request_id)[0])
        self.coordinator.cache_blocks(request, min(num_computed_tokens, num_slots))

    def free(self, request: Request) -> None:
        """Free the request's blocks."""
        if self.requests.get(request.request_id) is not request:
            raise UnknownRequestError(request.request_id)
        del self.requests[request.request_id]
        self.coordinator.free(request.request_id)


class NewBlocksChecked(KVCacheManager):
    """Checks the result of the next class's `allocate_slots` before the recorder uses it."""

    def allocate_slots(self, *args: Any, **options: Any) -> Any:
        """Return the new blocks or `None`. Anything else fails the test."""
        blocks: object = super().allocate_slots(*args, **options)
        if blocks is not None and not _are_new_blocks(blocks):
            want = "None, or KVCacheBlocks(([block, ...],)): a list for the one group"
            raise LabFailure("what allocate_slots returned", want, blocks)
        return blocks


def make_kv(
    lab: LabUnderTest, learners: str, num_blocks: int, block_size: int, *, enable_caching: bool = True
) -> WatchedKVCacheManager:
    """Return a cache whose method `learners` is the learner's, and whose other methods are the engine's."""
    manager: Any = lab.engine_with(learners, EnginesManager, NewBlocksChecked)
    manager.hashes_are_asked_for = learners == CACHE
    parts = KVCacheParts(manager_classes={FullAttentionSpec: SilencedGroup})
    return lab.make_kv(num_blocks, block_size, enable_caching=enable_caching, manager_class=manager, parts=parts)


def _are_new_blocks(value: object) -> bool:
    """Return whether this has the type of a result of `allocate_slots`: the blocks of one group."""
    return (
        isinstance(value, KVCacheBlocks)
        and isinstance(value.blocks, tuple)
        and len(value.blocks) == 1
        and are_blocks(list(value.blocks[0]))
    )


def need(kv: WatchedKVCacheManager, name: str, num_tokens: int, hit: Sequence[KVCacheBlock] = ()) -> int:
    """Return the manager's count of free blocks. The call must change nothing."""
    before = manager_state(kv.manager)
    got = kv.get_num_blocks_to_allocate(name, num_tokens, hit)
    after = manager_state(kv.manager)
    changed = [what for what in before if before[what] != after[what]]
    if changed:
        what = "what get_num_blocks_to_allocate changed: it only answers a question"
        raise LabFailure(what, "nothing", " and the ".join(changed))
    return got  # type: ignore[no-any-return]  # the learner's answer, of any type


def allocate(
    kv: WatchedKVCacheManager,
    request: Request,
    num_new_tokens: int,
    num_new_computed_tokens: int = 0,
    new_computed_blocks: KVCacheBlocks | None = None,
    num_lookahead_tokens: int = 0,
) -> list[int] | None:
    """Call `allocate_slots` and return the ids of the new blocks, or `None`."""
    rest = (num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens)
    with cause_first(AllocationError, RepeatedRequestError, UnknownRequestError):
        blocks = kv.allocate_slots(request, num_new_tokens, *rest)
    if blocks is not None and kv.hashes_are_asked_for:
        kv.cache_blocks(request, request.num_computed_tokens + num_new_computed_tokens + num_new_tokens)
        check_invariants(kv.manager)
    return None if blocks is None else ids_of(blocks.blocks[0])


def free(kv: WatchedKVCacheManager, request: Request) -> None:
    """Call `free`."""
    with cause_first(AllocationError, RepeatedRequestError, UnknownRequestError):
        kv.free(request)


def grant(kv: WatchedKVCacheManager, request: Request, *args: Any, **options: Any) -> list[int]:
    """Return the new blocks of an `allocate` for which there is room. A refusal fails the test."""
    new = allocate(kv, request, *args, **options)
    if new is None:
        what = f"new blocks for {request.request_id}"
        raise LabFailure(what, "a list of ids: there is room", None, "None is for too few free blocks")
    return new


def admit(kv: WatchedKVCacheManager, token_ids: Sequence[int], name: str) -> Request:
    """Admit a request as a scheduler does: look it up, get slots for the rest, compute it in one step."""
    request = kv.new_request(name, token_ids)
    hit, num_hit = kv.get_computed_blocks(request)
    grant(kv, request, len(token_ids) - num_hit, num_hit, hit)
    request.num_computed_tokens = request.num_tokens
    return request


def decode(kv: WatchedKVCacheManager, request: Request) -> list[int]:
    """Sample one token and compute it in the next step. Return the new blocks of that step."""
    request.append_output_token_ids(7)
    new = grant(kv, request, 1)
    request.num_computed_tokens += 1
    return new


def compare_lives(lab: LabUnderTest, learners: str) -> None:
    """Compare forty lives with the model: prompts in chunks, accepted and rejected drafts, lookahead slots."""
    for seed in seeds(40):
        life = random_life(random.Random(seed), 14, {COMES: 0.4, RUNS: 0.3, LEAVES: 0.3}, max_tail=5, options=OPTIONS)
        check_life(lab, partial(play, lab, learners), life, f"in the life of seed {seed}, blocks of 3")


def play(lab: LabUnderTest, learners: str, life: list[Step]) -> None:
    """Play the steps on the learner's code and on the model. A step that is impossible now is skipped."""
    kv, model = make_kv(lab, learners, num_blocks=8, block_size=3), NaiveCache(num_blocks=8, block_size=3)
    requests: dict[str, Request] = {}
    tokens: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    for step in life:
        name, request, hit, model_hit, num_hit = step.name, requests.get(step.name), None, [], 0
        if step.verb == COMES:
            request = kv.new_request(name, step.tokens)
            hit, num_hit = kv.get_computed_blocks(request)
            tokens[name], model_hit = list(step.tokens), model.hit(step.tokens)
            computed[name] = 3 * len(model_hit)
            lab.expect(f"cached tokens of {name}", computed[name], num_hit)
        if request is None:
            continue
        if step.verb == LEAVES:
            free(kv, requests.pop(name))
            model.leave(name)
        else:
            left, said = len(tokens[name]) - computed[name], step.options.get("says", (1,))
            num_new, is_last = min(step.options["chunk"], left), step.options["chunk"] >= left
            num_drafts = len(said) - 1 + step.options.get("rejected drafts", 0) if is_last else 0
            num_slots = computed[name] + num_new + num_drafts + step.options["lookahead"]
            got = kv.get_num_blocks_to_allocate(name, num_slots, hit.blocks[0] if hit else [])
            want = model.num_needed(name, num_slots, model_hit)
            lab.expect(f"free blocks that {name} needs for {num_slots} tokens", want, got)
            new = model.allocate(name, tokens[name][: computed[name] + num_new], model_hit, num_slots)
            got_new = allocate(kv, request, num_new + num_drafts, num_hit, hit, step.options["lookahead"])
            lab.expect(f"new blocks of {name} (None: refused)", new, got_new)
            lab.expect(f"block table of {name}", model.tables.get(name, []), table(kv, name))
            if new is not None:
                requests[name] = request
                num_accepted = len(said) - 1 if is_last else 0
                computed[name] += num_new + num_accepted
                request.num_computed_tokens += num_hit + num_new + num_accepted
            if new is not None and is_last:
                tokens[name] += said
                request.append_output_token_ids(*said)
        lab.expect("free queue", model.free_queue, free_queue(kv))
        lab.expect("cached blocks", sorted(model.cached), cached_blocks(kv))
