"""lab-05-examples, in which learners write examples for `prefill` and its counts before they write them.

An example may make the calls of `CacheUnderTest`. The faulty versions are below, then the correct ones: reading them is
reading the lab's answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import Request
from mini_kv.course.given import faulty_parts as parts
from mini_kv.course.given import manager_under_test
from mini_kv.course.given.correct_managers import take_uncached
from mini_kv.course.given.manager_under_test import Session
from mini_kv.course.given.small_manager import make_manager
from mini_kv.course.given.subjects import Correct, Faulty, Misread

Prefill = Callable[[KVCacheManager, list[int], str], tuple[Request, int] | None]


def prefill(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit a request with its hit, and compute its whole prompt. Return the hit in tokens, too."""
    request = kv.new_request(request_id, token_ids)
    num_hit_tokens = manager_under_test.prefill(kv, request)
    return None if num_hit_tokens is None else (request, num_hit_tokens)


def ref_counts(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the reference counts of the request's blocks."""
    return [block.ref_cnt for block in kv.get_blocks(request.request_id).blocks[0]]


def cache_hit_rate(kv: KVCacheManager) -> float:
    """Return the share of the prompts' tokens that were found."""
    stats = kv.prefix_cache_stats
    return stats.hits / stats.queries if stats.queries else 0.0


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the three functions of lab-05."""

    prefill: Prefill = prefill
    ref_counts: Callable[[KVCacheManager, Request], list[int]] = ref_counts
    hit_rate: Callable[[KVCacheManager], float] = cache_hit_rate
    manager: Mapping[str, Any] = field(default_factory=dict)
    """Parts of the cache manager that are replaced."""


class CacheUnderTest:
    """A cache whose requests are admitted by a version of unknown kind."""

    def __init__(self, session: Session, num_blocks: int, block_size: int) -> None:
        """Make a cache with this many blocks that can be used, the null block not counted, of `block_size` tokens."""
        self._session = session
        self._version: Version = session.make_inner()
        self._kv = make_manager(num_blocks + 1, block_size, **self._version.manager)
        self._requests: dict[str, Request] = {}
        self.told = [f"a cache of {num_blocks} blocks of {block_size} tokens"]
        """The calls so far with their answers, as text."""

    def prefill(self, token_ids: Sequence[int], request_id: str) -> int | None:
        """Admit a request. Returns the number of tokens that were found, or `None` if there is no room."""
        admitted = self._do(
            f"prefill({list(token_ids)}, {request_id!r})",
            lambda: self._version.prefill(self._kv, list(token_ids), request_id),
            lambda answer: "None" if answer is None else f"{answer[1]} found",
        )
        if admitted is None:
            return None
        self._requests[request_id], num_found = admitted
        return num_found  # type: ignore[no-any-return]

    def computed(self, request_id: str) -> int:
        """Return the number of computed tokens of a request."""
        return int(self._do(f"computed({request_id!r})", lambda: self._requests[request_id].num_computed_tokens))

    def table(self, request_id: str) -> list[int]:
        """Return the ids of the blocks of a request."""
        return list(self._do(f"table({request_id!r})", lambda: list(self._kv.get_block_ids(request_id)[0])))

    def ref_counts(self, request_id: str) -> list[int]:
        """Return how many requests hold each block of this one."""
        call = f"ref_counts({request_id!r})"
        return list(self._do(call, lambda: self._version.ref_counts(self._kv, self._requests[request_id])))

    def hit_rate(self) -> float:
        """Return the share of all prompts' tokens that were found."""
        return float(self._do("hit_rate()", lambda: self._version.hit_rate(self._kv)))

    def free(self, request_id: str) -> None:
        """End a request."""
        self._do(f"free({request_id!r})", lambda: self._kv.free(self._requests.pop(request_id)))

    def num_free(self) -> int:
        """Return the number of free blocks."""
        return int(self._do("num_free()", lambda: self._kv.block_pool.num_free_blocks))

    def _do(self, told: str, call: Callable[[], Any], shown: Callable[[Any], str] = str) -> Any:
        self.told.append(told)
        answer = self._session.do(call)
        self.told[-1] += f": {shown(answer)}"
        return answer


MakeCache = Callable[[int, int], CacheUnderTest]


# The faulty versions ------------------------------------------------------------------------------------------------


def takes_new_blocks(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Look up, and then take new blocks for all tokens."""
    request = kv.new_request(request_id, token_ids)
    _, num_hit_tokens = kv.get_computed_blocks(request)
    if kv.allocate_slots(request, request.num_tokens) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return request, num_hit_tokens


def asks_for_all_tokens(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Ask for slots for all tokens, after those of the hit."""
    request = kv.new_request(request_id, token_ids)
    hit, num_hit_tokens = kv.get_computed_blocks(request)
    if kv.allocate_slots(request, request.num_tokens, num_hit_tokens, hit) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return request, num_hit_tokens


def counts_the_new_tokens(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Count only the new tokens as computed."""
    admitted = prefill(kv, token_ids, request_id)
    if admitted is not None:
        admitted[0].num_computed_tokens -= admitted[1]
    return admitted


def returns_new_tokens(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Return the number of new tokens in place of the hit."""
    admitted = prefill(kv, token_ids, request_id)
    return None if admitted is None else (admitted[0], len(token_ids) - admitted[1])


def makes_room(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Empty the cache if there is no room, and refuse."""
    admitted = prefill(kv, token_ids, request_id)
    if admitted is None:
        kv.evict_blocks(range(1, len(kv.block_pool.blocks)))
    return admitted


def keeps_a_block(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Take a block before it refuses."""
    admitted = prefill(kv, token_ids, request_id)
    if admitted is None and kv.block_pool.num_free_blocks:
        kv.block_pool.get_new_blocks(1)
    return admitted


def counts_hits_alone(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the counts of shared blocks alone."""
    return [count for count in ref_counts(kv, request) if count > 1]


def tail_first(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the counts from the last block to the first."""
    return ref_counts(kv, request)[::-1]


def held_or_not(kv: KVCacheManager, request: Request) -> list[int]:
    """Return 1 for every block that is held."""
    return [min(count, 1) for count in ref_counts(kv, request)]


def one_without_a_hit(kv: KVCacheManager) -> float:
    """Return 1.0 if nothing was found."""
    return kv.prefix_cache_stats.hits / max(kv.prefix_cache_stats.queries, 1) or 1.0


def hits_per_miss(kv: KVCacheManager) -> float:
    """Divide the found tokens by the others."""
    stats = kv.prefix_cache_stats
    return stats.hits / max(stats.queries - stats.hits, 1)


def percent(kv: KVCacheManager) -> float:
    """Return a number up to 100."""
    return 100 * cache_hit_rate(kv)


_P, _R, _H = "check_prefill", "check_ref_counts", "check_hit_rate"
FAULTY_VERSIONS = (
    Faulty(_P, partial(Version, prefill=takes_new_blocks), rule=5),
    Faulty(_P, partial(Version, prefill=asks_for_all_tokens), rule=6),
    Faulty(_P, partial(Version, prefill=counts_the_new_tokens), rule=4),
    Faulty(_P, partial(Version, prefill=returns_new_tokens), rule=3),
    Faulty(_P, partial(Version, prefill=makes_room), rule=8),
    Faulty(_P, partial(Version, prefill=keeps_a_block), rule=8),
    Faulty(_R, partial(Version, ref_counts=counts_hits_alone), rule=9),
    Faulty(_R, partial(Version, ref_counts=tail_first), rule=9),
    Faulty(_R, partial(Version, ref_counts=held_or_not), rule=10),
    Faulty(_H, partial(Version, hit_rate=one_without_a_hit), rule=12),
    Faulty(_H, partial(Version, hit_rate=hits_per_miss), rule=11),
    Faulty(_H, partial(Version, hit_rate=percent), rule=11),
)
"""Version 1 is the first of them."""


# What a reader may expect who has misread a sentence ----------------------------------------------------------------


def finds_all(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Find a wholly cached prompt as a whole."""
    _, num_cached = kv.get_computed_blocks(kv.new_request("longer", [*token_ids, 0]))
    admitted = prefill(kv, token_ids, request_id)
    return (admitted[0], num_cached) if admitted is not None and num_cached == len(token_ids) else admitted


def finds_all_but_one(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Find all tokens of a block but the last, too."""
    admitted, found = prefill(kv, token_ids, request_id), finds_all(kv, token_ids, request_id + "again")
    return admitted if admitted is None or found is None else (admitted[0], min(found[1], len(token_ids) - 1))


def refuses_with_0(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Any, int] | None:
    """Return 0 tokens if there is no room."""
    return prefill(kv, token_ids, request_id) or (None, 0)


def needs_room_for_all(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Refuse a prompt that is longer than the free blocks, whatever is found."""
    has_room = len(token_ids) <= kv.block_pool.num_free_blocks * kv.block_size
    return prefill(kv, token_ids, request_id) if has_room else None


class Remembers:
    """Counts and rates that a cache would need a memory for: one of them for each cache."""

    def __init__(self) -> None:
        self.most: dict[int, int] = {}
        self.rates: list[float] = []
        self.seen = self.found = 0

    def ever(self, kv: KVCacheManager, request: Request) -> list[int]:
        """Return how many tables had each block at most."""
        for block in kv.block_pool.blocks:
            self.most[block.block_id] = max(self.most.get(block.block_id, 0), block.ref_cnt)
        return [self.most[block.block_id] for block in kv.get_blocks(request.request_id).blocks[0]]

    def admit(self, kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
        """Admit a request, and count it: a refused one, too."""
        admitted = prefill(kv, token_ids, request_id)
        for block in kv.block_pool.blocks:
            self.most[block.block_id] = max(self.most.get(block.block_id, 0), block.ref_cnt)
        self.rates.append(admitted[1] / len(token_ids) if admitted and token_ids else 0.0)
        self.seen += len(token_ids)
        return admitted

    def mean(self, kv: KVCacheManager) -> float:
        """Return the mean of the requests' rates."""
        return sum(self.rates) / max(len(self.rates), 1)

    def last(self, kv: KVCacheManager) -> float:
        """Return the rate of the last request."""
        return self.rates[-1] if self.rates else 0.0

    def of_finders(self, kv: KVCacheManager) -> float:
        """Return the rate without the requests that found nothing."""
        return sum(self.rates) / max(sum(rate > 0 for rate in self.rates), 1)

    def of_requests(self, kv: KVCacheManager) -> float:
        """Return the share of requests that found something."""
        return sum(rate > 0 for rate in self.rates) / max(len(self.rates), 1)

    def of_all(self, kv: KVCacheManager) -> float:
        """Return the rate with the tokens of the refused requests."""
        return kv.prefix_cache_stats.hits / max(self.seen, 1)


def remembering(answer: str) -> Version:
    """Return a version of which one answer needs a memory."""
    memory = Remembers()
    return Version(memory.admit, **{"ref_counts" if answer == "ever" else "hit_rate": getattr(memory, answer)})


def others(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the counts without the request's own reference."""
    return [count - 1 for count in ref_counts(kv, request)]


def all_running(kv: KVCacheManager, request: Request) -> list[int]:
    """Return the greatest count for all blocks."""
    counts = ref_counts(kv, request)
    return [max(counts)] * len(counts)


MISREAD_VERSIONS = (
    Misread(partial(Version, prefill=refuses_with_0), rule=7),
    Misread(partial(Version, prefill=needs_room_for_all), rule=7),
    Misread(partial(Version, prefill=finds_all), rule=2),
    Misread(partial(Version, manager={"tables": parts.HitsTheLastToken}, prefill=finds_all), rule=2),
    Misread(partial(Version, prefill=finds_all_but_one), rule=1),
    Misread(partial(Version, manager={"tables": parts.CachesAtTheEnd}), rule=1),
    Misread(partial(Version, manager={"tables": parts.AllOrNothing}), rule=1),
    Misread(partial(Version, manager={"tables": parts.HitsAfterAHole}), rule=1),
    Misread(partial(Version, manager={"make_pool": parts.ForgetsFreedBlocks}), rule=1),
    Misread(partial(Version, manager={"make_index": parts.NeverForgets}), rule=1),
    Misread(partial(Version, manager={"tables": parts.RevivesForNothing, "make_pool": parts.GivesWhatThereIs}), rule=7),
    Misread(partial(Version, manager={"make_pool": parts.CountsCachedAsUsed}), rule=1),
    Misread(partial(Version, ref_counts=others), rule=10),
    Misread(partial(Version, ref_counts=all_running), rule=10),
    Misread(partial(remembering, "ever"), rule=10),
    Misread(partial(remembering, "mean"), rule=11),
    Misread(partial(remembering, "last"), rule=11),
    Misread(partial(remembering, "of_finders"), rule=11),
    Misread(partial(remembering, "of_requests"), rule=11),
    Misread(partial(remembering, "of_all"), rule=11),
)


# The correct versions -----------------------------------------------------------------------------------------------


def sets_the_hit_first(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit as lab-05's solution does: the hit is counted before the call."""
    request = kv.new_request(request_id, token_ids)
    blocks, num_found = kv.get_computed_blocks(request)
    request.num_computed_tokens = num_found
    if kv.allocate_slots(request, request.num_tokens - num_found, new_computed_blocks=blocks) is None:
        request.num_computed_tokens = 0
        return None
    request.num_computed_tokens = request.num_tokens
    return request, num_found


def backwards(kv: KVCacheManager, token_ids: list[int], request_id: str) -> tuple[Request, int] | None:
    """Admit in a pool whose free blocks without a hash are in the reverse order."""
    queue = kv.block_pool.free_block_queue
    queue.prepend_n(sorted(take_uncached(queue), key=lambda block: -block.block_id))
    return prefill(kv, token_ids, request_id)


CORRECT_VERSIONS = (
    Correct("the engine's way", Version),
    Correct("the hit is counted before the call", partial(Version, prefill=sets_the_hit_first)),
    Correct("new blocks are taken from the highest id down", partial(Version, prefill=backwards)),
)
"""Versions that keep the contract, each with what is different in it."""
