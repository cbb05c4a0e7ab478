"""A running request needs nothing from the manager until its block is full, and is not looked at until then.

The slow twin looks every time. Both must do the same, call by call; and what ends a quiet stretch early is told here.
"""

import random
from typing import Any, TypeVar

import pytest

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.errors import AllocationError, RepeatedRequestError
from mini_kv.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_kv.core.quiet import NoOpRanges
from mini_kv.core.request import Request

Kind = TypeVar("Kind", bound=KVCacheManager)


class LooksEveryTime(KVCacheManager):
    """The slow twin: forgets before each call that a request was quiet."""

    def allocate_slots(self, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        self.quiet.clear()
        return super().allocate_slots(*args, **kwargs)


class CountingStretches(NoOpRanges):
    """Counts the calls that do not end at once."""

    num_looks = 0

    def note(self, *args: Any) -> None:
        self.num_looks += 1
        super().note(*args)


class Counts(KVCacheManager):
    """Counts them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.quiet: CountingStretches = CountingStretches()

    @property
    def num_looks(self) -> int:
        return self.quiet.num_looks


def make(kind: type[Kind], *specs: KVCacheSpec, num_blocks: int = 40) -> Kind:
    groups = tuple(KVCacheGroupSpec((f"layers {index}",), spec) for index, spec in enumerate(specs))
    return kind(KVCacheConfig(num_blocks, groups))


def decode(kv: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Compute the known tokens of a request, then sample this many."""
    for token in range(num_tokens):
        assert kv.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids(token)


def test_a_block_of_sixteen_is_looked_at_twice():
    """Once for the token that needs a new block, once for the one that fills it."""
    kv = make(Counts, FullAttentionSpec(16))
    request = kv.new_request("A", range(3))
    decode(kv, request, 1)
    looks = []
    for _ in range(48):
        before = kv.num_looks
        decode(kv, request, 1)
        looks.append(kv.num_looks - before)
    # Tokens 3 to 50: 15 fills the block, 16 takes the next one.
    assert [index + 3 for index, look in enumerate(looks) if look] == [15, 16, 31, 32, 47, 48]


def test_the_number_of_quiet_steps_counts_down_to_the_token_that_fills_the_block():
    kv = make(KVCacheManager, FullAttentionSpec(4))
    request = kv.new_request("A", range(5))
    assert kv.num_quiet_steps(request) == 0
    left = []
    for _ in range(5):
        decode(kv, request, 1)
        left.append(kv.num_quiet_steps(request))
    assert left == [2, 1, 0, 0, 2]
    kv.free(request)
    assert kv.num_quiet_steps(request) == 0


def test_a_window_is_also_looked_at_when_a_block_falls_out_of_reach():
    kv = make(Counts, SlidingWindowSpec(4, sliding_window=6))
    request = kv.new_request("A", range(5))
    decode(kv, request, 1)
    looked, tables = [], []
    for number in range(5, 18):
        before = kv.num_looks
        decode(kv, request, 1)
        looked += [number] if kv.num_looks > before else []
        tables.append([block.block_id for block in kv.get_blocks("A").blocks[0]])
    # 7, 11, 15 fill a block; 8, 12, 16 take one; at 9, 13, 17 computed tokens the window has left another one.
    assert looked == [7, 8, 9, 11, 12, 13, 15, 16, 17]
    assert tables[-1] == [0, 0, 0, 4, 5]


SPECS: dict[str, list[KVCacheSpec]] = {
    "full": [FullAttentionSpec(4)],
    "window": [SlidingWindowSpec(4, sliding_window=6)],
    "chunk": [ChunkedLocalAttentionSpec(4, attention_chunk_size=12)],
    "full and window": [FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=5)],
    "three": [
        FullAttentionSpec(8),
        SlidingWindowSpec(4, sliding_window=9),
        ChunkedLocalAttentionSpec(2, attention_chunk_size=6),
    ],
}


class Twins:
    """The same life twice: in the engine's manager and in the one that looks every time."""

    def __init__(self, name: str) -> None:
        self.rng = random.Random(name)
        self.twins = [make(kind, *SPECS[name], num_blocks=24) for kind in (KVCacheManager, LooksEveryTime)]
        self.live: dict[str, list[Request]] = {}
        self.resting: dict[str, list[Request]] = {}
        self.num_grown = 0

    def one(self) -> str:
        return self.rng.choice(list(self.live))

    def both(self, name: str) -> list[tuple[KVCacheManager, Request]]:
        return list(zip(self.twins, self.live[name], strict=True))

    def admit(self, number: int) -> None:
        """Let a new request in, or one that gave way."""
        name, prompt = f"r{number}", [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 12))]
        pair = [kv.new_request(name, prompt) for kv in self.twins]
        if self.resting and self.rng.random() < 0.5:
            name, pair = self.resting.popitem()
        if [admit(kv, request) for kv, request in zip(self.twins, pair, strict=True)] == [True, True]:
            self.live[name] = pair

    def grow(self, number: int) -> None:
        one, other = [grow(kv, request, number) for kv, request in self.both(self.one())]
        assert one == other
        self.num_grown += one is not None

    def fork(self, number: int) -> None:
        name = self.one()
        parent = self.live[name][0]
        tokens = [*parent.token_ids[: parent.num_computed_tokens], number]
        self.live[f"r{number}"] = [fork(kv, parent, f"r{number}", tokens) for kv, parent in self.both(name)]

    def withdraw(self, number: int) -> None:
        for kv, request in self.both(self.one()):
            kv.withdraw_promises(request)

    def free(self, number: int) -> None:
        name = self.one()
        for kv, request in self.both(name):
            kv.free(request)
            request.num_computed_tokens = 0
        self.resting[name] = self.live.pop(name)


@pytest.mark.parametrize("name", SPECS)
def test_it_does_what_the_slow_twin_does(name: str) -> None:
    """Decoding, drafts that are wrong, forks, withdrawal, and requests that give way and come back."""
    twins = Twins(name)
    for number in range(1500):
        act = twins.rng.choice([twins.admit, twins.fork, twins.free, twins.withdraw, *[twins.grow] * 12])
        if act in (twins.admit, twins.fork) and len(twins.live) == 4:
            continue
        if twins.live or act == twins.admit:
            act(number)
        assert state(twins.twins[0]) == state(twins.twins[1])
    assert twins.num_grown > 500


def admit(kv: KVCacheManager, request: Request) -> bool:
    blocks, num_hit = kv.get_computed_blocks(request)
    if kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks) is None:
        return False
    request.num_computed_tokens = request.num_tokens
    request.append_output_token_ids(0)
    return True


def grow(kv: KVCacheManager, request: Request, seed: int) -> list[list[int]] | None:
    """Compute what is known and sometimes drafts, of which some are wrong; return the new blocks."""
    rng = random.Random(seed)
    num_drafts, num_lookahead = rng.choice([0, 0, 0, 2]), rng.choice([0, 0, 0, 3])
    num_new = request.num_tokens - request.num_computed_tokens + num_drafts
    blocks = kv.allocate_slots(request, num_new, num_lookahead_tokens=num_lookahead)
    if blocks is None:
        return None
    request.num_computed_tokens = request.num_tokens
    for _ in range(rng.randrange(num_drafts + 1)):
        request.append_output_token_ids(rng.randrange(2))
        request.num_computed_tokens = request.num_tokens
    kv.cache_blocks(request, request.num_computed_tokens)
    request.append_output_token_ids(rng.randrange(2))
    return [*blocks.get_block_ids()]


def fork(kv: KVCacheManager, parent: Request, name: str, tokens: list[int]) -> Request:
    child = kv.new_request(name, tokens)
    kv.fork(parent, child)
    child.num_computed_tokens = parent.num_computed_tokens
    return child


def state(kv: KVCacheManager) -> tuple[object, ...]:
    """Return all that a caller can see: tables, keys, free queue, copies to make."""
    tables = {name: kv.get_block_ids(name) for name in kv.requests}
    keys = [block.block_hash for block in kv.block_pool.blocks]
    copies = kv.take_kv_cache_block_copies()
    kv.finish_kv_cache_block_copies()
    return tables, keys, [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()], copies


def running() -> tuple[KVCacheManager, Request]:
    """Return a request in the middle of a quiet stretch: 5 of 8 tokens of its block are computed."""
    kv = make(KVCacheManager, FullAttentionSpec(8))
    request = kv.new_request("A", range(4))
    decode(kv, request, 2)
    return kv, request


@pytest.mark.parametrize(
    "arguments", [(0,), (-1,), (1, 1), (1, -1), (1, 0, KVCacheBlocks(([KVCacheBlock(1)],))), (1, 0, None, -1)]
)
def test_what_makes_no_sense_is_refused_in_a_quiet_stretch_too(arguments):
    kv, request = running()
    with pytest.raises(AllocationError):
        kv.allocate_slots(request, *arguments)


def test_a_draft_is_refused_at_each_token_where_a_layer_keeps_states():
    kv = make(KVCacheManager, FullAttentionSpec(8), MambaSpec(8, shapes=((1,),), dtypes_bytes=(2,)))
    request = kv.new_request("A", range(4))
    decode(kv, request, 2)
    with pytest.raises(AllocationError, match="1 tokens are drafts, which cannot be taken back"):
        kv.allocate_slots(request, 2)


def test_another_request_of_the_same_id_is_refused_in_a_quiet_stretch_too():
    kv, request = running()
    other = kv.new_request("A", range(4))
    other.num_computed_tokens = request.num_computed_tokens
    with pytest.raises(RepeatedRequestError):
        kv.allocate_slots(other, 1)


def test_the_first_token_after_a_fork_is_not_quiet():
    """Both hold the half-filled block: the first to write gets a copy."""
    kv, parent = running()
    child = kv.new_request("B", [*parent.token_ids[:5], 9])
    kv.fork(parent, child)
    child.num_computed_tokens = 5
    kv.allocate_slots(parent, 1)
    assert kv.take_kv_cache_block_copies() == [(1, 2)]
    kv.allocate_slots(child, 1)
    assert (kv.get_block_ids("A"), kv.get_block_ids("B")) == (([2],), ([1],))


def test_a_request_that_gave_way_is_not_quiet_when_it_comes_back():
    kv, request = running()
    kv.free(request)
    request.num_computed_tokens = 0
    kv.allocate_slots(request, 5)
    assert kv.get_block_ids("A") == ([1],)


def test_a_withdrawn_promise_can_be_made_again():
    kv = make(KVCacheManager, FullAttentionSpec(4))
    request = kv.new_request("A", range(18))
    kv.allocate_slots(request, 18)
    kv.withdraw_promises(request)
    kv.allocate_slots(request, 10)
    assert [block.block_hash is not None for block in kv.get_blocks("A").blocks[0]] == [True, True, False, False, False]


def test_a_request_that_goes_back_behind_its_hit_is_refused():
    """It was quiet from the hit's end on; the tokens before that others have written."""
    kv, first = running()
    decode(kv, first, 4)
    request = kv.new_request("B", [*first.token_ids[:8], 1, 2])
    assert admit(kv, request)
    assert kv.num_adopted_tokens["B"] == 8
    request.num_computed_tokens = 8
    assert kv.allocate_slots(request, 2) == kv.empty_kv_cache_blocks
    request.num_computed_tokens = 7
    with pytest.raises(AllocationError, match="it adopted 8, which others wrote"):
        kv.allocate_slots(request, 2)


def test_after_a_recovery_nothing_is_quiet():
    """The request holds no block: its next token, though it was in a quiet stretch, has no slot."""
    kv, request = running()
    decode(kv, request, 4)
    kv.recover()
    assert kv.get_block_ids("A") == ([],)
    with pytest.raises(AllocationError):
        kv.allocate_slots(request, 1)
