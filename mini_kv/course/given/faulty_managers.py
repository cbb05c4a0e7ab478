"""The faulty parts of the engine in one table: place, part, the rule that it breaks, and the public report.

The fault itself is the first line of the part, in `faulty_parts`. Parts without a public report have plausible faults.
The first 26 are the faulty managers of lab-15: reading this file is reading the lab's answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.course.given import faulty_parts as parts
from mini_kv.course.given.small_manager import make_manager


@dataclass(frozen=True, slots=True, eq=False)
class FaultyManager:
    """A manager with a faulty part, or several that are one fault together."""

    parts: Mapping[str, Any]
    """The faulty parts, each under the argument of `make_manager` that it replaces."""
    breaks: str
    """The sentence of the contract that it breaks."""
    seen: str = ""
    """The public report of such a fault, if there is one."""
    ask: str = ""
    """A question for a learner whose check misses it."""
    rule: int = 0
    """The number of this sentence in lab-15's contract, or 0."""
    check: str = ""
    """The check of lab-15 for this part of the contract. Empty if it is not in lab-15."""

    def make(self, num_blocks: int, block_size: int) -> KVCacheManager:
        """Return the manager, of `num_blocks` blocks of `block_size` tokens."""
        return make_manager(num_blocks, block_size, **self.parts)


_BY_CHECK = {
    "check_sharing": (
        FaultyManager(
            {"tables": parts.HitsTheLastToken},
            "A hit has at most `num_tokens - 1` tokens, because the last token is always computed.",
            rule=2,
            ask="which hit does your check assert for a cached prompt that ends with a full block?",
            seen="nano-vllm #144",
        ),
        FaultyManager(
            {"tables": parts.CachesAtTheEnd},
            "A full block can be found as soon as `allocate_slots` has returned, while its request still runs.",
            rule=3,
            ask="does your check look up a prompt while its first request still runs?",
        ),
        FaultyManager(
            {"tables": parts.CopiesTheHit},
            "A request's table begins with the blocks of its hit: two requests have the same ids there.",
            rule=4,
            ask="does your check compare the block ids of two requests?",
        ),
    ),
    "check_slots": (
        FaultyManager(
            {"tables": parts.OneTokenLate},
            "Every computed token has a slot: a table has at least `num_tokens / block_size` blocks, rounded up.",
            rule=5,
            ask="does your check fail if a table has a block too few, at the first token of a block?",
            seen="MinivLLM #75",
        ),
        FaultyManager(
            {"tables": parts.OneTokenEarly},
            "A table has no block more than its slots need: a new block is taken for its first token.",
            rule=5,
            ask="does your check fail if a table has a block more than its slots need?",
            seen="nano-vllm #150",
        ),
        FaultyManager(
            {"tables": parts.CachesPartialBlocks},
            "A block can be found only if all its tokens are computed, or are computed in this step.",
            rule=6,
            ask="does your check look up a prompt after only a part of it was computed?",
        ),
        FaultyManager(
            {"make": parts.IgnoresLookahead},
            "Lookahead tokens get slots.",
            rule=5,
            ask="does your check pass `num_lookahead_tokens`?",
        ),
    ),
    "check_refusals": (
        FaultyManager(
            {"tables": parts.RevivesForNothing, "make_pool": parts.GivesWhatThereIs},
            "A request is refused if too few blocks are free. Free blocks of its hit count as taken.",
            rule=9,
            ask="does a request in your check have a hit on free blocks, and need one block more than are free?",
            seen="ATOM #902",
        ),
        FaultyManager(
            {"make": parts.KeepsTheHit},
            "A refusal changes nothing: the blocks of the hit are as free as before.",
            rule=10,
            ask="what does your check assert after a refusal of a request with a hit?",
        ),
        FaultyManager(
            {"make": parts.KeepsNewBlocks},
            "A refusal changes nothing: the free blocks are as many as before.",
            rule=10,
            ask="what does your check assert after a refusal?",
        ),
        FaultyManager(
            {"make": parts.RefusesTheLastBlock},
            "A request is not refused if exactly enough blocks are free.",
            rule=8,
            ask="does a request in your check need exactly as many blocks as are free?",
        ),
    ),
    "check_freeing": (
        FaultyManager(
            {"tables": parts.FreesFullBlocks},
            "After `free` all blocks of the request that no other table has are free, also the partial one.",
            rule=11,
            ask="does your check count the free blocks after `free` of a request with a partial block?",
            seen="imp #1115",
        ),
        FaultyManager(
            {"make_pool": parts.OneHolder},
            "A block is free only if no table has it: the second holder keeps it when the first one leaves.",
            rule=11,
            ask="what can a third request get while only one of two holders was freed?",
        ),
        FaultyManager(
            {"tables": parts.KeepsSharedBlocks},
            "After `free` of the last holder a shared block is free.",
            rule=11,
            ask="does your check count the free blocks after both holders of a block were freed?",
        ),
        FaultyManager(
            {"make_pool": parts.HandsOutTheNullBlock},
            "Block 0 is in no table, and is never counted as free.",
            rule=13,
            ask="do you assert the free blocks of an empty pool, by your own count?",
        ),
    ),
    "check_eviction": (
        FaultyManager(
            {"make_index": parts.NeverForgets},
            "A block that was allocated again cannot be found by its old tokens.",
            rule=17,
            ask="does your check look up a prompt whose blocks others have taken since?",
            seen="nano-vllm #163, vllm #4764",
        ),
        FaultyManager(
            {"make_queue": parts.TurnsTheList},
            "Of a freed request's cached blocks the last one is evicted first.",
            rule=16,
            ask="does your check look up a prompt of which one block was evicted?",
            seen="llm-d-inference-sim #704",
        ),
        FaultyManager(
            {"make_queue": parts.NewestFirst},
            "The cached blocks that were freed first are evicted first.",
            rule=15,
            ask="are two prompts freed, one after the other, before a block is evicted?",
        ),
        FaultyManager(
            {"make_index": parts.ForgetsTwins},
            "If two blocks have the same content and one is evicted, the other can still be found.",
            rule=18,
            ask="are two blocks with the same content in your check, and is one of them evicted?",
            seen="kvcached #402",
        ),
        FaultyManager(
            {"make_queue": parts.UselessLast},
            "Free blocks that are not cached are allocated before cached ones.",
            rule=14,
            ask="is a block free that was never full, when another one is allocated?",
        ),
        FaultyManager(
            {"make_pool": parts.KeepsItsOldHash},
            "A block that was allocated again can be found by its new tokens, once it is full.",
            rule=17,
            ask="does your check look up the new content of a block that was evicted before?",
            seen="kvcached #362",
        ),
    ),
    "check_identity": (
        FaultyManager(
            {"make_block_hasher": parts.hashes_without_salts},
            "Requests with different salts share nothing.",
            rule=19,
            ask="does your check look up a prompt with another salt than the one that cached it?",
            seen="imp #1860",
        ),
        FaultyManager(
            {"make_block_hasher": parts.hashes_without_adapters},
            "Requests with different adapters share nothing.",
            rule=19,
            ask="does your check look up a prompt with another adapter than the one that cached it?",
        ),
        FaultyManager(
            {"make_block_hasher": parts.hashes_without_parents},
            "A block is found only after the same tokens: all tokens before it count.",
            rule=19,
            ask="does your check look up a second block after another first block?",
        ),
        FaultyManager(
            {"make_block_hasher": parts.hashes_of_joined_tokens},
            "Blocks with different tokens are different, however their tokens are written down.",
            rule=20,
            ask="does your check look up other tokens that give the same text if they are joined?",
        ),
        FaultyManager(
            {"make_block_hasher": parts.hashes_without_paths},
            "Adapters with one name and different paths are different adapters.",
            rule=21,
            ask="does your check look up a prompt with an adapter of the same name from another path?",
        ),
    ),
}
FAULTY_MANAGERS = tuple(replace(faulty, check=check) for check, group in _BY_CHECK.items() for faulty in group)
"""The faulty managers of lab-15. Manager 1 is the first of them."""

_SHARING, _SLOTS, _FREEING = "check_sharing", "check_slots", "check_freeing"
MISREAD_MANAGERS = tuple(
    FaultyManager(its_parts, "", rule=rule, check=check)
    for its_parts, rule, check in (
        ({"tables": parts.AllOrNothing}, 1, _SHARING),
        ({"tables": parts.HitsAfterAHole}, 1, _SHARING),
        ({"tables": parts.CachesAtTheEnd}, 6, _SLOTS),
        ({"make": parts.CountsItsSteps}, 7, _SLOTS),
        ({"make": parts.NeedsRoomForAll}, 8, "check_refusals"),
        ({"make_pool": parts.CountsCachedAsUsed}, 11, _FREEING),
        ({"make_pool": parts.ForgetsFreedBlocks}, 12, _FREEING),
        ({"make_pool": parts.CountsTheNullBlock}, 13, _FREEING),
        ({"make_queue": parts.CachedFirst}, 14, "check_eviction"),
        ({"make_block_hasher": parts.hashes_of_sorted_tokens}, 20, "check_identity"),
    )
)
"""What a reader of lab-15 may expect who has misread a sentence. No check has to find these."""

OTHER_FAULTS = {
    "hits after a hole": FaultyManager(
        {"tables": parts.HitsAfterAHole},
        "A hit ends before the first block that is missing.",
        seen="llm-d-inference-sim #701",
    ),
    "all or nothing": FaultyManager(
        {"tables": parts.AllOrNothing}, "A hit is the longest cached prefix in whole blocks."
    ),
    "forgets": FaultyManager(
        {"make_pool": parts.ForgetsFreedBlocks}, "Free blocks can still be found until they are allocated again."
    ),
    "any order": FaultyManager(
        {"make_queue": parts.AnyOrder},
        "Of a freed request's cached blocks the last one is evicted first.",
        seen="llm-d-inference-sim #704",
    ),
    "counts again": FaultyManager({"make": parts.CountsAgain}, "A request is counted once.", seen="vllm #25780"),
    "group by group": FaultyManager(
        {"make_coordinator": parts.GroupByGroup},
        "The hits of all groups are touched before a group takes a new block.",
        seen="vllm #44409",
    ),
    "freed twice": FaultyManager(
        parts.FREED_TWICE,
        "A list with a block twice raises an error, and nothing is freed.",
        seen="vllm #42571, dynamo #13398",
    ),
}
"""Faulty parts of other pages. They are not in lab-15."""
